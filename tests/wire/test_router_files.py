"""The decoders of the routers' files: real files, wrong ones, and bytes at random, with one kind of error."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.wire.routers.i2pd_files import Option, read_i2pd_conf, read_i2pd_tunnels
from bridge.wire.routers.java_files import (
    CONSOLE_CLASS,
    SAM_CLASS,
    ClientApp,
    read_java_clients,
    read_java_properties,
    read_java_tunnels,
)
from bridge.wire.routers.process_files import (
    Listener,
    RouterCommand,
    read_command_line,
    read_listeners,
    read_service_unit,
)
from bridge.wire.routers.text_file import (
    ENCRYPTED,
    FILE_LIMIT_BYTES,
    LINES_MAX,
    TUNNELS_MAX,
    VALUE_LIMIT,
    RouterFileError,
    ServerTunnel,
)
from tests.effort import each_case

DECODERS: list[Callable[[bytes], object]] = [
    read_i2pd_conf,
    read_i2pd_tunnels,
    read_java_properties,
    read_java_tunnels,
    read_java_clients,
    read_command_line,
    read_listeners,
    read_service_unit,
]
WORDS = st.sampled_from(
    [
        *("[", "]", "=", "#", ";", "\n", "\r\n", "\0", ".", " ", "web", "tunnel.1.", "type", "server", "http", "keys"),
        *(
            "i2cp",
            "enabled",
            "true",
            "port",
            "8080",
            "99999",
            "host",
            "::1",
            "privKeyFile",
            "clientApp.0.main",
            "--",
            "é",
        ),
        *("i2pd", "java", "net.i2p.router.Router", "0A", "0100007F:1F90", "/i2pd.service"),
    ]
)
I2PD_CONF = b"""\
## Lines that begin with "## " explain
ipv4 = true
#ipv6 = false
[i2cp]
# enabled = false
[i2pcontrol]
enabled = true # by me
password = se=cret
[sam]
enabled = false
[i2cp]
enabled = true
"""
TUNNELS = b"""\
; a comment
[web]
type = http
host = 127.0.0.1
port = 8080
keys = web.dat
inbound.length = 1
[IRC]
type = client
port = 6668
destination = irc.example.i2p
[ssh]
type=server
host=::1
port=22
keys=/srv/ssh.dat # not a comment
"""
CLIENTS = f"""\
# NOTE: This I2P config file must use UTF-8 encoding
clientApp.0.args=7657 ::1,127.0.0.1 ./webapps/
clientApp.0.main={CONSOLE_CLASS}
clientApp.0.startOnLoad=true
clientApp.1.args=sam.keys 127.0.0.1 7656 i2cp.tcp.host=127.0.0.1 i2cp.tcp.port=7654
clientApp.1.main={SAM_CLASS}
clientApp.1.startOnLoad=false
"""


def test_i2pd_conf_is_read_with_lines() -> None:
    assert read_i2pd_conf(I2PD_CONF) == {
        "ipv4": Option("true", 2),
        "i2pcontrol.enabled": Option("true", 7),
        "i2pcontrol.password": Option("se=cret", 8),
        "sam.enabled": Option("false", 10),
        "i2cp.enabled": Option("true", 12),
    }


@each_case(("word", "flag"), [("true", True), ("", True), ("1", True), ("Off", False), ("no", False), ("maybe", None)])
def test_option_flag_is_read_like_i2pd(word: str, flag: bool | None) -> None:  # noqa: FBT001 - a value of a table
    assert Option(word, 1).flag is flag


def test_i2pd_server_tunnels_are_read_in_order() -> None:
    assert read_i2pd_tunnels(TUNNELS) == (
        ServerTunnel("web", "http", "127.0.0.1", 8080, "web.dat"),
        ServerTunnel("ssh", "server", "::1", 22, "/srv/ssh.dat # not a comment"),
    )


@each_case(
    ("lines", "problem"),
    [
        (b"keys = transient", "set `keys = x.dat`"),
        (b"keys = transient-2", "set `keys = x.dat`"),
        (b"keys = shareddest", "set `keys = x.dat`"),
        (b"keys = x.dat\ni2cp.leaseSetType = 5", ENCRYPTED),
        (b"", "needs `host`, `port` and `keys`"),
    ],
)
def test_i2pd_tunnel_without_fixed_address_has_problem(lines: bytes, problem: str) -> None:
    (found,) = read_i2pd_tunnels(b"[x]\ntype = server\nhost = 127.0.0.1\nport = 80\n" + lines)
    assert problem in found.problem


@each_case(
    "line, cause",
    [
        (b"[web]", "the section is repeated"),
        (b"[open", "its `]` is missing"),
        (b"type = http", "a key is repeated"),
        (b"no value", "`=` is missing"),
        (b"= value", "a key is repeated or missing"),
    ],
)
def test_i2pd_tunnels_that_i2pd_ignores_are_refused(line: bytes, cause: str) -> None:
    with pytest.raises(RouterFileError, match=f"line 3: i2pd ignores the whole file: .*{cause}"):
        read_i2pd_tunnels(b"[web]\ntype = http\n" + line + b"\n")


def test_java_tunnels_are_read_in_both_forms() -> None:
    values = {"type": "httpserver", "name": "eepsite", "targetHost": "127.0.0.1", "targetPort": "7658"}
    values |= {"privKeyFile": "eepsite/eepPriv.dat", "startOnLoad": "false", "description": "My # eepsite"}
    other = {"type": "client", "name": "irc"}
    numbered = "".join(f"tunnel.3.{key}={value}\n" for key, value in values.items())
    numbered += "".join(f"tunnel.12.{key}={value}\n" for key, value in other.items())
    alone = "".join(f"{key}={value}\n" for key, value in values.items())
    wanted = ServerTunnel("eepsite", "httpserver", "127.0.0.1", 7658, "eepsite/eepPriv.dat", is_started=False)
    assert read_java_tunnels(numbered.encode()) == read_java_tunnels(alone.encode()) == (wanted,)


@pytest.mark.parametrize(
    ("line", "problem"),
    [("option.i2cp.leaseSetType=5", ENCRYPTED), ("type=streamrserver", "datagrams"), ("privKeyFile=", "private key")],
)
def test_java_tunnel_that_cannot_be_leaf_has_problem(line: str, problem: str) -> None:
    (found,) = read_java_tunnels(f"type=server\ntargetPort=80\nprivKeyFile=a.dat\n{line}\n".encode())
    assert problem in found.problem


def test_java_clients_show_console_and_sam() -> None:
    assert read_java_clients(CLIENTS.encode()) == (
        ClientApp(CONSOLE_CLASS, ("7657", "::1,127.0.0.1", "./webapps/"), is_started=True),
        ClientApp(
            SAM_CLASS,
            ("sam.keys", "127.0.0.1", "7656", "i2cp.tcp.host=127.0.0.1", "i2cp.tcp.port=7654"),
            is_started=False,
        ),
    )


def test_java_properties_follow_the_router_format() -> None:
    text = "a=1 # comment\n;b=2\n c = 3 \nd\na=4\ne=x=y\n"
    assert read_java_properties(text.encode()) == {"a": "4", " c ": "3", "e": "x=y"}


def test_command_lines_of_routers_are_recognized() -> None:
    i2pd = b"\0".join([b"/usr/sbin/i2pd", b"--conf=/etc/i2pd/i2pd.conf", b"--datadir", b"/srv", b"--service", b""])
    java = [b"/usr/bin/java", b"-Xmx1g", b"-Di2p.dir.config=/var/lib/i2p/i2p-config", b"net.i2p.router.RouterLaunch"]
    options = {"conf": "/etc/i2pd/i2pd.conf", "datadir": "/srv", "service": "true"}
    assert read_command_line(i2pd) == RouterCommand("i2pd", options)
    found = read_command_line(b"\0".join(java) + b"\0")
    assert found == RouterCommand("java", {"i2p.dir.config": "/var/lib/i2p/i2p-config"})


@pytest.mark.parametrize("line", [b"", b"\0", b"grep\0i2pd\0", b"java\0-jar\0other.jar\0", b"/usr/bin/i2pd-tools\0"])
def test_command_line_of_other_program_is_skipped(line: bytes) -> None:
    assert read_command_line(line) is None


def test_listeners_are_read_with_their_users() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    rest = "00000000:00000000 00:00000000 00000000   109        0 23456 1 0000000000000000 100 0 0 10 0\n"
    rows = [
        f"   0: 0100007F:1DE6 00000000:0000 0A {rest}",
        f"   1: 0100007F:1DE7 0100007F:9C40 01 {rest}",
        f"   2: 00000000000000000000000001000000:1DE8 00000000000000000000000000000000:0000 0A {rest}",
        f"   3: 0000000000000000FFFF00000100007F:1DE9 00000000000000000000000000000000:0000 0A {rest}",
        "   4: garbage\n",
    ]
    assert read_listeners((head + "".join(rows)).encode()) == (
        Listener("127.0.0.1", 7654, 109),
        Listener("::1", 7656, 109),
        Listener("127.0.0.1", 7657, 109),
    )


def test_service_unit_is_read_from_control_group() -> None:
    assert read_service_unit(b"0::/system.slice/i2pd.service\n") == "i2pd.service"
    assert read_service_unit(b"0::/user.slice/user-1000.slice/session-2.scope\n") is None
    assert read_service_unit(b"0::/user.slice/user-1000.slice/user@1000.service/app.slice/i2pd.service\n") is None


@pytest.mark.parametrize(
    "lines",
    [
        ("0::/", "1:name=systemd:/system.slice/i2pd.service", "2:cpu:/"),
        ("9:name=systemd:/", "8:pids:/", "0::/system.slice/i2pd.service"),
        ("9:pids:/system.slice/other.service", "1:name=systemd:/system.slice/i2pd.service/sub", "0::/"),
    ],
)
def test_service_unit_is_found_among_control_groups(lines: tuple[str, ...]) -> None:
    assert read_service_unit("\n".join((*lines, "")).encode()) == "i2pd.service"


@each_case(
    "data",
    [b"a" * (FILE_LIMIT_BYTES + 1), b"\n" * LINES_MAX, b"a = " + b"b" * (VALUE_LIMIT + 1), b"a = \xff", b"a = \0"],
)
@each_case("decode", DECODERS[:5])
def test_file_beyond_its_bounds_is_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(RouterFileError) as caught:
        decode(data)
    assert len(str(caught.value)) < 200


def test_too_many_tunnels_are_refused() -> None:
    with pytest.raises(RouterFileError, match="tunnels"):
        read_i2pd_tunnels(b"".join(b"[%d]\n" % number for number in range(TUNNELS_MAX + 1)))
    with pytest.raises(RouterFileError, match="numbers"):
        read_java_tunnels(b"".join(b"tunnel.%d.type=server\n" % number for number in range(TUNNELS_MAX + 1)))


@given(st.one_of(st.binary(max_size=400), st.lists(WORDS, max_size=40).map(lambda words: "".join(words).encode())))
def test_bytes_at_random_raise_the_one_error(data: bytes) -> None:
    for decode in DECODERS:
        with suppress(RouterFileError):
            decode(data)


def test_errors_do_not_contain_values() -> None:
    secret = b"hunter2"
    for data in (b"[i2pcontrol]\npassword %b\n" % secret, b"[x]\nkeys %b\n" % secret):
        for decode in (read_i2pd_conf, read_i2pd_tunnels):
            with pytest.raises(RouterFileError) as caught:
                decode(data)
            assert "hunter2" not in str(caught.value)
