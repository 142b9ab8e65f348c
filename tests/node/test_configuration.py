"""The configuration of `run`: defaults for all settings except the farm key, and each error with its place."""

from pathlib import Path

import pytest

from bridge.core.log.records import PublishConfig
from bridge.node.settings.choices import PublishingPace, Timing
from bridge.node.settings.configuration import (
    SETTINGS,
    ConfigurationError,
    NodeConfiguration,
    Overrides,
    load_configuration,
)
from bridge.node.settings.declared import Form
from bridge.node.settings.machine import Machine, Network
from bridge.node.settings.masters import MasterSettings
from bridge.node.settings.named_files import LOADERS
from bridge.node.settings.router import FileRouterSettings
from consensus.protocols.garlic_farm.wire.proxy import ProxyMode
from gossip.core.member import Address
from gossip.node.discovery import LanInterface
from tests.destinations import new_demo_leaf
from tests.effort import each_case

LAN = LanInterface("eth0", "192.168.7.5", "192.168.7.255")
BRIDGE = LanInterface("docker0", "172.17.0.1", "172.17.255.255")


def network(*interfaces: LanInterface, route: str | None = None) -> Network:
    return Network(lambda: list(interfaces), lambda: route)


def machine(*interfaces: LanInterface, route: str | None = None) -> Machine:
    return Machine("node one.example", Path("/var/state"), network(*interfaces, route=route))


def load(tmp_path: Path, text: str, overrides: Overrides | None = None) -> NodeConfiguration:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return load_configuration(file, overrides, machine(LAN))


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    prefix = f"{tmp_path / 'node.toml'}: "
    lines = str(caught.value).splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


def test_farm_key_is_enough_on_lan() -> None:
    configuration = load_configuration(None, Overrides(farm_key=Path("/keys/farm.key")), machine(LAN))
    assert configuration.farm_key == Path("/keys/farm.key")
    assert configuration.name == "node-one.example"
    assert configuration.gossip is not None
    assert configuration.gossip.bind == Address("192.168.7.5", 7668)
    assert configuration.gossip.broadcast == Address("192.168.7.255", 7668)
    assert configuration.consensus.bind == configuration.consensus.advertise == Address("192.168.7.5", 7669)
    assert configuration.state_dir == Path("/var/state")
    assert configuration.router == FileRouterSettings(directory=Path("/var/state/published"))
    assert configuration.masters == ()
    assert configuration.publishing.reporting_period_ms == 30_000


def test_missing_farm_key_explains_how_to_make_one() -> None:
    with pytest.raises(ConfigurationError, match=r"garlicfarm init.*garlicfarm join TOKEN"):
        load_configuration(None, None, machine(LAN))


def test_settings_of_file_are_read_completely(tmp_path: Path) -> None:
    leaf = new_demo_leaf()
    configuration = load(
        tmp_path,
        f"""
        name = "node-1"
        state_dir = "state"
        farm_key = "keys/farm.key"
        demo = true

        [gossip]
        bind = "127.0.0.1:17668"
        advertise = "10.0.0.9:17668"
        seeds = ["127.0.0.1:17669", "node-2.example:7668"]
        capacity = 5
        broadcast = "off"
        timing = "local"

        [consensus]
        bind = "127.0.0.1:17700"
        advertise = "10.0.0.9:17700"
        timing = "local"
        segment_bytes = 4194304
        voters_max = 7
        grace_ms = 60000

        [publishing]
        publish = "on"
        signing_key = "/keys/signing.key"
        pace = "reporting-period"
        reporting_period_ms = 2000

        [router]
        kind = "file"
        directory = "published"

        [[leaf]]
        destination = "{leaf.base64}"
        probe = "127.0.0.1:8080"
        """,
    )
    assert configuration.name == "node-1"
    assert configuration.state_dir == tmp_path / "state"
    assert configuration.farm_key == tmp_path / "keys" / "farm.key"
    assert configuration.demo
    gossip, consensus, publishing = configuration.gossip, configuration.consensus, configuration.publishing
    assert gossip is not None
    assert (gossip.bind, gossip.advertise) == (Address("127.0.0.1", 17668), Address("10.0.0.9", 17668))
    assert gossip.seeds == ("127.0.0.1:17669", "node-2.example:7668")
    assert (gossip.capacity, gossip.broadcast, gossip.timing) == (5, None, Timing.LOCAL)
    assert (consensus.bind, consensus.advertise) == (Address("127.0.0.1", 17700), Address("10.0.0.9", 17700))
    assert (consensus.timing, consensus.segment_bytes) == (Timing.LOCAL, 4_194_304)
    assert (consensus.voters_max, consensus.grace_ms) == (7, 60_000)
    assert (publishing.pace, publishing.reporting_period_ms) == (PublishingPace.REPORTING_PERIOD, 2000)
    assert configuration.masters == (MasterSettings(publish=PublishConfig.ON, signing_key=Path("/keys/signing.key")),)
    assert configuration.router == FileRouterSettings(directory=tmp_path / "published")
    assert [(each.destination.address, each.probe) for each in configuration.leaves] == [
        (leaf.address, ("127.0.0.1", 8080))
    ]


@pytest.mark.parametrize(("probe", "expected"), [("localhost:80", ("localhost", 80)), ("[::1]:65535", ("::1", 65535))])
def test_leaf_probe_is_host_with_port(tmp_path: Path, probe: str, expected: tuple[str, int]) -> None:
    text = f'farm_key = "k"\n[[leaf]]\ndestination = "{new_demo_leaf().base64}"\nprobe = "{probe}"'
    assert load(tmp_path, text).leaves[0].probe == expected


@each_case("probe", ["localhost", "localhost:0", "localhost:65536", ":80", "a b:80", "::1:80", "h:8x"])
def test_leaf_probe_without_host_or_port_is_refused(tmp_path: Path, probe: str) -> None:
    text = f'farm_key = "k"\n[[leaf]]\ndestination = "{new_demo_leaf().base64}"\nprobe = "{probe}"'
    [problem] = problems(tmp_path, text)
    assert problem.startswith(f"leaf[0].probe: probe {probe!r} is not host:port")


def test_command_line_overrides_file(tmp_path: Path) -> None:
    overrides = Overrides(farm_key=Path("/k"), state_dir=Path("/s"), name="other")
    configuration = load(tmp_path, 'name = "node-1"\nfarm_key = "f"\nstate_dir = "d"', overrides)
    assert (configuration.farm_key, configuration.state_dir, configuration.name) == (Path("/k"), Path("/s"), "other")
    assert configuration.router == FileRouterSettings(directory=Path("/s/published"))


@each_case(
    ("text", "problem"),
    [
        ("nmae = 'x'", "nmae: no such setting; did you mean 'name'?"),
        ("[gossip]\nwibble = 1", "gossip.wibble: no such setting; there are broadcast, bind, advertise"),
        ("[gosip]\nbind = 'x'", "gosip: no such setting; did you mean 'gossip'?"),
        (
            "[publishing]\nreporting_period = 5",
            "reporting_period: no such setting; did you mean 'reporting_period_ms'?",
        ),
        ("name = 'two words'", "name: 'two words': 1 to 32 letters"),
        ("name = 5", "name: 5 is not a text in quotes"),
        ("demo = 'yes'", "demo: 'yes' is neither true nor false"),
        ("gossip = 5", "gossip: is 5, not a table"),
        ("[gossip]\ncapacity = 0", "gossip.capacity: 0 is not a whole number from 1 to"),
        ("[gossip]\ncapacity = true", "gossip.capacity: True is not a whole number"),
        ("[gossip]\nbind = 'host:7668'", "gossip.bind: 'host' is not a numeric address"),
        ("[gossip]\nbind = '10.0.0.1'", "gossip.bind: '10.0.0.1': expected HOST:PORT"),
        ("[gossip]\nbind = '10.0.0.1:99999'", "gossip.bind: '10.0.0.1:99999': the port must be"),
        ("[gossip]\nbind = '8.8.8.8:7668'", "gossip.bind: 8.8.8.8:7668 is not a private address"),
        (
            "[gossip]\nbind = '0.0.0.0:7668'",
            "gossip.bind: 0.0.0.0:7668 listens on every interface: set gossip.advertise",
        ),
        ("[gossip]\nseeds = 'x'", "gossip.seeds: 'x' is not a list"),
        ("[gossip]\nseeds = ['x']", "gossip.seeds: 'x': expected HOST:PORT"),
        ("[gossip]\nseeds = ['9.9.9.9:1']", "gossip.seeds: 9.9.9.9:1 is not a private address"),
        ("[gossip]\nadvertise = '0.0.0.0:1'", "gossip.advertise: 0.0.0.0:1 is not the address of one machine"),
        ("[gossip]\nseeds = ['239.0.0.1:1']", "gossip.seeds: 239.0.0.1:1 is not the address of one machine"),
        ("[consensus]\nadvertise = '[::]:1'", "consensus.advertise: [::]:1 is not the address of one machine"),
        (
            "[kafka]\nlisten = '127.0.0.1:9092'\nadvertise = '0.0.0.0:9092'",
            "kafka.advertise: 0.0.0.0:9092 is not the address of one machine",
        ),
        ("[zmq]\nlisten = '127.0.0.1:1'\npeers = ['tcp://0.0.0.0:1']", "0.0.0.0:1 is not the address of one machine"),
        ("[gossip]\nbroadcast = 'on'", "gossip.broadcast: 'on': expected HOST:PORT"),
        ("[gossip]\ntiming = 'wan'", "gossip.timing: 'wan' is not one of 'lan', 'local'; did you mean 'lan'?"),
        (
            "[consensus]\nvoters_max = 4",
            "consensus.voters_max: 4 is even: 4 voters tolerate no more failures than 3",
        ),
        (
            '[consensus.plain]\nlisten = "127.0.0.1:7670"\npeers = {"4" = "127.0.0.1:9004"}',
            "consensus.plain: a farm accepts only proven identities, and a plain connection does not prove an identity",
        ),
        ("[consensus]\nvoters_max = 11", "consensus.voters_max: 11 is not a whole number from 1 to 9"),
        ("[consensus]\ngrace_ms = 0", "consensus.grace_ms: 0 is not a whole number from 1000 to"),
        ("[consensus]\nsegment_bytes = 1", "consensus.segment_bytes: 1 is not a whole number from 65536 to"),
        ("[publishing]\npublish = 'on'", 'publishing.publish: "on" needs publishing.signing_key'),
        ("[publishing]\npublish = false", "publishing.publish: False is not one of 'off', 'auto', 'on'"),
        ("[router]\nkind = 'ssh'", "router.kind: 'ssh' is not one of 'file', 'i2cp'"),
        ("[[leaf]]\nprobe = '127.0.0.1:80'", "leaf[0].destination: missing"),
        ("[[leaf]]\ndestination = 'AAAA'", "leaf[0].destination: leaf destination 'AAAA'"),
        ("[leaf]\ndestination = 'AAAA'", "leaf: {'destination': 'AAAA'} is not a list of at most 16 tables"),
        ("state_dir = '~missing-user/state'", "state_dir: the home of ~missing-user is unknown: write the whole path"),
    ],
)
def test_invalid_setting_is_named_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, 'farm_key = "k"\n' + text)
    assert len(found) == 1
    assert problem in found[0]


def test_invalid_settings_are_named_together(tmp_path: Path) -> None:
    found = problems(tmp_path, "color = 1\n[gossip]\ncapacity = -1\n[consensus]\ntiming = 7")
    assert [each.split(":")[0] for each in found] == ["farm_key", "gossip.capacity", "consensus.timing", "color"]


@pytest.mark.parametrize("text", ["name = ", "a" * 50, "[gossip\n", "x = " + "[" * 20_000])
def test_invalid_toml_is_refused(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)[0].startswith("not TOML")


def test_binary_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not TOML"):
        load_configuration(tmp_path / "binary")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_configuration(tmp_path / "absent")


def test_allow_wan_permits_public_addresses(tmp_path: Path) -> None:
    text = 'farm_key = "k"\n[gossip]\nallow_wan = true\nbind = "0.0.0.0:7668"\nadvertise = "9.9.9.9:7668"'
    configuration = load(tmp_path, text)
    assert configuration.gossip is not None
    assert configuration.gossip.advertise == Address("9.9.9.9", 7668)
    assert configuration.consensus.bind == Address("0.0.0.0", 7669)  # noqa: S104 -- compared, not bound
    assert configuration.consensus.advertise == Address("9.9.9.9", 7669)


def test_loopback_node_does_not_broadcast(tmp_path: Path) -> None:
    configuration = load(tmp_path, 'farm_key = "k"\n[gossip]\nbind = "127.0.0.1:7668"')
    assert configuration.gossip is not None
    assert configuration.gossip.broadcast is None


def test_interfaces_of_this_machine_can_be_read() -> None:
    found = Network()
    assert all(each.name for each in found.interfaces())
    assert isinstance(found.route_host(), str | None)


def test_invalid_bind_is_only_problem_without_default(tmp_path: Path) -> None:
    key = tmp_path / "farm.key"
    file = tmp_path / "node.toml"
    file.write_text(f'farm_key = "{key}"\n[gossip]\nbind = "nowhere"\n', encoding="utf-8")
    nowhere = Machine("r", tmp_path, network())
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(file, machine=nowhere)
    assert str(refused.value).count("\n") == 0
    assert "gossip.bind" in str(refused.value)


I2P = 'farm_key = "k"\ntransport = "i2p"\n'
NAME = "a" * 52 + ".b32.i2p"


def test_i2p_node_has_longer_defaults_without_gossip(tmp_path: Path) -> None:
    text = f'[consensus]\nadvertise = "{NAME}:7669"\nseeds = ["farm.i2p:7669"]'
    configuration = load(tmp_path, I2P + text)
    assert configuration.gossip is None
    assert configuration.consensus.bind == Address("127.0.0.1", 7669)
    assert configuration.consensus.advertise == Address(NAME, 7669)
    assert configuration.consensus.timing is Timing.I2P
    assert configuration.publishing.reporting_period_ms == 60_000
    assert configuration.consensus.seeds == (Address("farm.i2p", 7669),)
    proxy = configuration.proxy
    assert proxy is not None
    assert (proxy.address, proxy.mode, proxy.user) == (Address("127.0.0.1", 4444), ProxyMode.ABSOLUTE_URI, None)


@each_case(
    ("text", "problem"),
    [
        ("", "consensus.advertise: missing: the address of the router's server tunnel"),
        ("[consensus]\nadvertise = '10.0.0.1:7669'", "consensus.advertise: '10.0.0.1:7669' is not an I2P name"),
        ("[consensus]\nadvertise = 'farm.example.org:7669'", "do not use TLS, so they lead only to I2P names"),
        (f"[consensus]\nadvertise = '{NAME}'", "is not an I2P name and port"),
        ("[consensus]\nbind = '192.168.7.5:7669'\n!", "consensus.bind: 192.168.7.5:7669 is not a loopback address"),
        ("[consensus]\nbind = '0.0.0.0:7669'\n!", "not a loopback address"),
        ("[consensus]\nseeds = ['192.0.2.7:7669']\n!", "consensus.seeds: '192.0.2.7:7669' is not an I2P name"),
        ("[consensus]\nca_file = 'x'\n!", "consensus.ca_file: I2P encrypts the connection"),
        ("[consensus]\n!\n[proxy]\naddress = '9.9.9.9:4444'", "proxy.address: 9.9.9.9:4444 is not on this machine"),
        (
            "[consensus]\n!\n[proxy]\naddress = '192.168.1.1:4444'",
            "proxy.address: 192.168.1.1:4444 is not on this machine",
        ),
        ("[consensus]\n!\n[proxy]\nuser = 'x'", "proxy.user: user and password_file go together"),
        ("[consensus]\n!\n[proxy]\nmode = 'socks'", "proxy.mode: 'socks' is not one of 'absolute-uri', 'connect'"),
        ("[consensus]\n!\n[gossip]\ncapacity = 3", 'gossip: transport = "i2p" does not use gossip'),
    ],
)
def test_unencrypted_settings_with_i2p_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, I2P + text.replace("!", f"advertise = '{NAME}:7669'"))
    assert len(found) == 1
    assert problem in found[0]


@each_case(
    ("text", "problem"),
    [
        ("transport = 'plain'", "transport: 'plain' is not one of 'tls', 'i2p'"),
        ("[proxy]\nmode = 'connect'", 'proxy.address: a proxy leads into I2P: it needs transport = "i2p"'),
        ("[consensus]\nca_file = 'ca.pem'", "consensus.certificate: missing: ca_file and certificate go together"),
        (f"[consensus]\nadvertise = '{NAME}:7669'", "consensus.advertise"),
        (
            f"[consensus]\nca_file = 'a'\ncertificate = 'b'\nadvertise = '{NAME}:7669'",
            'is a name within I2P: it needs transport = "i2p"',
        ),
        ("[consensus]\nseeds = ['farm.i2p:7669']", 'consensus.seeds: only transport = "i2p" has seeds here'),
    ],
)
def test_settings_of_tls_with_i2p_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, 'farm_key = "k"\n' + text)
    assert len(found) == 1
    assert problem in found[0]


def test_server_with_authority_may_have_a_name(tmp_path: Path) -> None:
    text = 'farm_key = "k"\n[consensus]\nca_file = "ca.pem"\ncertificate = "node.pem"\nadvertise = "one.example:7669"'
    configuration = load(tmp_path, text)
    assert configuration.consensus.advertise == Address("one.example", 7669)
    assert configuration.consensus.ca_file == tmp_path / "ca.pem"


def test_missing_key_file_is_named_with_other_problems(tmp_path: Path) -> None:
    overrides = Overrides(farm_key=tmp_path / "nope.key", bind="nowhere")
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(None, overrides, try_files=True)
    assert "gossip.bind" in str(refused.value)
    assert "nope.key does not exist" in str(refused.value)


def test_problems_of_settings_or_files_are_reported_together(tmp_path: Path) -> None:
    for name in ("open.key", "bad.pem", "password"):
        (tmp_path / name).write_text("no key")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "open.key").chmod(0o644)
    text = """farm_key = "nope.key"
        [gossip]
        capacity = 0
        [consensus]
        ca_file = "bad.pem"
        certificate = "bad.pem"
        users_file = "open.key"
        [publishing]
        signing_key = "password"
        """
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(file, None, machine(LAN), try_files=True)
    found = str(refused.value).splitlines()
    named = [line.removeprefix(f"{file}: ").partition(":")[0] for line in found]
    assert sorted(named) == [
        "consensus.ca_file",
        "consensus.certificate",
        "consensus.users_file",
        "farm_key",
        "gossip.capacity",
        "publishing.signing_key",
    ]


def test_file_settings_are_tried_unless_directories() -> None:
    files = {each.path.rpartition(".")[2] for each in SETTINGS.values() if each.kind is Form.FILE}
    assert files - LOADERS.keys() == {"state_dir", "directory"}
    assert LOADERS.keys() <= files
