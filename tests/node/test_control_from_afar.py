"""The command line with a node on another machine, and clients that verify its certificate by name."""

import secrets
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest
import trio
import trio.testing
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bridge.api.control_routes import LEAVE
from bridge.cli.main import cli
from bridge.node.control import control_certificate as control_certificate_module
from bridge.node.control.access import open_remote_access
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.control.connections.async_connection import AsyncConnection, connection_failure
from bridge.node.control.connections.connection import HttpRequest
from bridge.node.control.connections.node_address import NodeAddressError, RemoteNode
from bridge.node.control.connections.remote_node import remote_node
from bridge.node.control.control_certificate import control_certificate, keep_control_certificate
from bridge.node.control.server import ControlServer
from bridge.node.events.event_log import clock_ms
from bridge.node.security.control_socket import ControlSocketError
from bridge.node.settings.configuration import ControlSettings
from gossip import Address
from tests.effort import each_case
from tests.node.test_control import FakeNode

LOOPBACK = Address("127.0.0.1", 0)
CURL = shutil.which("curl")


@asynccontextmanager
async def serving(settings: ControlSettings, directory: Path) -> AsyncIterator[tuple[FakeNode, str]]:
    """Serve a node's control endpoint on TCP; yield the node and the URL of the endpoint."""
    node = FakeNode()
    server = ControlServer(directory / "control.sock", node.handlers, remote=open_remote_access(directory, settings))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield node, f"https://127.0.0.1:{server.remote_port}"
        nursery.cancel_scope.cancel()


def remote_of(url: str, directory: Path, token: str = "control.read.token") -> RemoteNode:  # noqa: S107 - a file's name
    return remote_node(url, directory / token, directory / "control.crt")


async def command(*arguments: str) -> Result:
    return await trio.to_thread.run_sync(partial(CliRunner().invoke, cli, arguments, catch_exceptions=False))


async def test_remote_client_has_permissions_of_its_token(tmp_path: Path) -> None:
    async with serving(ControlSettings(listen=LOOPBACK), tmp_path) as (node, url):
        async with ControlClient(remote_of(url, tmp_path)) as client:
            assert await client.view() == node.current
            assert (await client.cluster()).leader_name == "node-1"
            with pytest.raises(ControlError, match="this token only reads"):
                await client.call(LEAVE)
        async with ControlClient(remote_of(url, tmp_path, "control.admin.token")) as client:
            await client.call(LEAVE)
        assert node.leaving


async def test_command_line_reaches_node_by_url(tmp_path: Path) -> None:
    async with serving(ControlSettings(listen=LOOPBACK), tmp_path) as (_, url):
        options = ("--token-file", str(tmp_path / "control.read.token"), "--certificate", str(tmp_path / "control.crt"))
        shown = await command("members", "--json", "--node", url, *options)
        assert (shown.exit_code, '"members"' in shown.output) == (0, True), shown.output
        without = await command("members", "--node", url)
        assert without.exit_code != 0
        assert "needs a token" in without.output


async def test_url_gets_token_and_certificate_at_its_position(tmp_path: Path) -> None:
    """The tokens and the certificate of one node are invalid at another node."""
    places = (tmp_path / "a", tmp_path / "b")
    for each in places:
        each.mkdir()
    settings = ControlSettings(listen=LOOPBACK)
    async with serving(settings, places[0]) as (_, first), serving(settings, places[1]) as (_, second):
        named = ("debug", "--seconds", "1", "--node", first, "--node", second)
        tokens = [word for each in places for word in ("--token-file", str(each / "control.admin.token"))]
        certificates = [word for each in places for word in ("--certificate", str(each / "control.crt"))]
        written = await command(*named, *tokens, *certificates, "--output", str(tmp_path / "1.tar.gz"))
        assert (written.exit_code, written.output.count(": view, events, history, metrics")) == (0, 2), written.output
        shared = await command(*named, *tokens[:2], *certificates, "--output", str(tmp_path / "2.tar.gz"))
        assert (shared.exit_code, shared.output.count(": view, events, history, metrics")) == (0, 1), shared.output
        three = await command(*named, *tokens, *certificates, "--token-file", tokens[1])
        assert three.exit_code == 1
        assert "--token-file names 3 files, and 2 nodes are given by a URL" in three.output


async def test_token_is_not_sent_to_node_with_other_certificate(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    control_certificate(other, LOOPBACK)
    async with serving(ControlSettings(listen=LOOPBACK), tmp_path) as (node, url):
        pinned = remote_node(url, tmp_path / "control.read.token", other / "control.crt")
        async with ControlClient(pinned) as client:
            with pytest.raises(ControlError, match=r"certificate of https://127.0.0.1:[0-9]+ is refused"):
                await client.view()
        by_authority = remote_node(url, tmp_path / "control.read.token", None)
        async with ControlClient(by_authority) as client:
            with pytest.raises(ControlError, match=r"copy the node's file control\.crt again"):
                await client.view()
        assert node.log_reads == []


@pytest.mark.parametrize(("host", "is_trusted"), [("127.0.0.1", True), ("127.0.0.2", False)])
async def test_authority_is_accepted_only_for_host_of_url(tmp_path: Path, host: str, *, is_trusted: bool) -> None:
    authority, signed = signed_by_an_authority(tmp_path, host)
    async with (
        serving(ControlSettings(listen=LOOPBACK, certificate=signed), tmp_path) as (node, url),
        ControlClient(remote_node(url, tmp_path / "control.read.token", authority)) as client,
    ):
        if is_trusted:
            assert await client.view() == node.current
            return
        with pytest.raises(ControlError, match="is refused"):
            await client.view()


async def test_port_without_listener_is_reported(tmp_path: Path) -> None:
    control_certificate(tmp_path, LOOPBACK)
    open_remote_access(tmp_path, ControlSettings(listen=LOOPBACK))
    async with ControlClient(remote_of("https://127.0.0.1:1", tmp_path)) as client:
        with pytest.raises(
            ControlError, match=r"cannot reach a node at https://127\.0\.0\.1:1: it refused .*control\.listen"
        ):
            await client.view()


async def test_unresolved_name_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control_certificate(tmp_path, LOOPBACK)
    open_remote_access(tmp_path, ControlSettings(listen=LOOPBACK))

    async def unknown(*_given: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", unknown)
    async with ControlClient(remote_of("https://node.invalid:7650", tmp_path)) as client:
        with pytest.raises(
            ControlError, match=r"the name node\.invalid cannot be resolved \(Name or service not known\)"
        ):
            await client.view()


@pytest.mark.parametrize("is_accepted", [True, False])
async def test_timeout_names_machine_or_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, *, is_accepted: bool
) -> None:
    """Without a connection, the error names the machine and the network; with a connection, it names the node."""
    control_certificate(tmp_path, LOOPBACK)
    open_remote_access(tmp_path, ControlSettings(listen=LOOPBACK))

    ours, _theirs = trio.testing.memory_stream_pair()

    async def connect(*_given: object, **_options: object) -> trio.abc.Stream:
        if not is_accepted:
            await trio.sleep_forever()
        return ours

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    cause = "is it stopped or overloaded" if is_accepted else "does a firewall drop this port"
    async with ControlClient(remote_of("https://127.0.0.1:7650", tmp_path)) as client:
        with pytest.raises(ControlError, match=cause):
            await client.view()


def test_failures_of_all_tried_addresses_are_listed_once() -> None:
    tried = [
        ConnectionRefusedError(111, "Connection refused"),
        TimeoutError(110, "timed out"),
        ConnectionRefusedError(),
    ]
    error = OSError("all attempts to connect to h:1 failed")
    error.__cause__ = ExceptionGroup("multiple connection attempts failed", tried)
    assert connection_failure(error) == (
        "it refused the connection; does the node run, with control.listen set?; no answer to the connection; is that"
        " machine on, and does a firewall drop this port?"
    )


async def test_error_of_unresponsive_machine_has_whole_time_limit(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> tuple[int, bytes]:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("bridge.node.control.connections.async_connection.exchange", never)
    node = RemoteNode(
        host="192.0.2.1",
        port=7670,
        context=ssl.create_default_context(),
        token=secrets.token_hex(8),
        token_file=tmp_path,
    )
    request = HttpRequest("GET", "/", (), b"", timeout_s=5.0, first_s=25.0, limit_bytes=1)
    began_s = autojump_clock.current_time()
    with pytest.raises(ControlError, match="no answer to the connection within 30 s;"):
        await AsyncConnection(node, lambda _: None).exchange(request)
    assert autojump_clock.current_time() - began_s == pytest.approx(30.0)


async def test_wrong_token_error_names_wrong_and_right_files(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    open_remote_access(other, ControlSettings(listen=LOOPBACK))
    async with serving(ControlSettings(listen=LOOPBACK), tmp_path) as (_, url):
        wrong = other / "control.read.token"
        options = ("--token-file", str(wrong), "--certificate", str(tmp_path / "control.crt"))
        shown = await command("status", "--node", url, *options)
    assert f"the node at {url} refuses the token in {wrong}" in shown.output
    assert "control.admin.token" in shown.output
    assert "Bearer" not in shown.output


@each_case(
    "url",
    ["http://127.0.0.1:7650", "https://", "https://a:b", "https://h:0", "https://h/path", "https://u@h", "ftp://h"],
)
def test_invalid_node_url_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(NodeAddressError, match="is not an address of a node"):
        remote_node(url, tmp_path / "token", None)


def test_error_names_unusable_token_or_certificate_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "token").write_text("a-token\n")
    with pytest.raises(NodeAddressError, match="empty does not contain a token"):
        remote_node("https://h", tmp_path / "empty", None)
    with pytest.raises(NodeAddressError, match="empty does not contain a certificate"):
        remote_node("https://h", tmp_path / "token", tmp_path / "empty")
    with pytest.raises(NodeAddressError, match="absent cannot be read"):
        remote_node("https://h", tmp_path / "absent", None)


def test_token_is_not_in_text_of_node(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token\n")
    node = remote_node("https://h", tmp_path / "token", None)
    assert "a-token" not in repr(node) + str(node)


async def test_client_verifying_names_accepts_certificate(tmp_path: Path) -> None:
    """Prometheus and browsers verify in this way: with an authority file and the name of the URL."""
    async with serving(ControlSettings(listen=LOOPBACK), tmp_path) as (_, url):
        context = ssl.create_default_context(cafile=tmp_path / "control.crt")
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]), ssl_context=context)
        await stream.do_handshake()
        await trio.aclose_forcefully(stream)
        by_name = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
        wrong = trio.SSLStream(by_name, context, server_hostname="example.org")
        with pytest.raises(trio.BrokenResourceError):
            await wrong.do_handshake()
        await trio.aclose_forcefully(wrong)


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
async def test_curl_verifies_certificate(tmp_path: Path) -> None:
    async with serving(ControlSettings(listen=LOOPBACK), tmp_path) as (_, url):
        token = (tmp_path / "control.read.token").read_text().strip()
        curl = [str(CURL), "--silent", "--show-error", "--cacert", str(tmp_path / "control.crt"), "--max-time", "10"]
        done = await trio.run_process(
            [*curl, "-H", f"Authorization: Bearer {token}", f"{url}/v1/cluster"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert (done.returncode, b"node-1" in done.stdout) == (0, True), done.stderr


def test_certificate_is_kept_until_name_is_missing(tmp_path: Path) -> None:
    first = control_certificate(tmp_path, LOOPBACK)
    assert control_certificate(tmp_path, LOOPBACK) == first
    named = control_certificate(tmp_path, LOOPBACK, ["farm.example.org", "192.0.2.7"])
    assert named.fingerprint != first.fingerprint
    assert control_certificate(tmp_path, LOOPBACK, ["192.0.2.7"]) == named
    with pytest.raises(ControlSocketError, match="is not valid in a certificate"):
        control_certificate(tmp_path, LOOPBACK, ["bücher.example"])
    assert (tmp_path / "control.key").stat().st_mode & 0o077 == 0


WRONG_CLOCKS = [timedelta(days=5_000), timedelta(days=-20_000), timedelta(days=-800)]


@pytest.mark.parametrize("wrong", WRONG_CLOCKS)
def test_certificate_with_wrong_dates_is_replaced_at_start(tmp_path: Path, wrong: timedelta) -> None:
    dated = control_certificate(tmp_path, LOOPBACK, now=datetime.now(UTC) + wrong)
    assert control_certificate(tmp_path, LOOPBACK).fingerprint != dated.fingerprint


def test_certificate_with_long_lifetime_is_replaced(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_certificate_module, "_LIFETIME", timedelta(days=3_650))
        dated = control_certificate(tmp_path, LOOPBACK)
    assert control_certificate(tmp_path, LOOPBACK).fingerprint != dated.fingerprint


@pytest.mark.parametrize("wrong", WRONG_CLOCKS)
async def test_running_endpoint_renews_certificate_with_wrong_dates(tmp_path: Path, wrong: timedelta) -> None:
    control_certificate(tmp_path, LOOPBACK, now=datetime.now(UTC) + wrong)
    # The endpoint starts while the clock is still wrong, so it does not renew the certificate then.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_certificate_module, "_is_current", lambda *_: True)
        remote = open_remote_access(tmp_path, ControlSettings(listen=LOOPBACK))
    assert remote is not None
    renewed = trio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_certificate_module, "LOOK_EVERY_S", 0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_control_certificate, tmp_path, remote.context, clock_ms, renewed.set)
            with trio.fail_after(60):
                await renewed.wait()
            nursery.cancel_scope.cancel()
    # The same context has the new certificate now, and a client that verifies dates accepts it.
    trusting = ssl.create_default_context(cafile=tmp_path / "control.crt")
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.SSLStream(theirs, remote.context, server_side=True).do_handshake)
        await trio.SSLStream(ours, trusting, server_hostname=LOOPBACK.host).do_handshake()


def test_readable_or_damaged_key_file_is_refused(tmp_path: Path) -> None:
    control_certificate(tmp_path, LOOPBACK)
    (tmp_path / "control.key").chmod(0o644)
    with pytest.raises(ControlSocketError, match=r"control\.key"):
        control_certificate(tmp_path, LOOPBACK)
    (tmp_path / "control.key").chmod(0o600)
    (tmp_path / "control.key").write_text("nothing")
    with pytest.raises(ControlSocketError, match="damaged: remove it"):
        control_certificate(tmp_path, LOOPBACK)


@pytest.mark.parametrize("is_open", [True, False])
async def test_health_without_token_needs_open_health(tmp_path: Path, *, is_open: bool) -> None:
    async with serving(ControlSettings(listen=LOOPBACK, open_health=is_open), tmp_path) as (_, url):
        context = ssl.create_default_context(cafile=tmp_path / "control.crt")
        for target, status in (("/healthz", b"200" if is_open else b"401"), ("/v1/view", b"401")):
            stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]), ssl_context=context)
            await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
            with trio.fail_after(60):
                answer = await stream.receive_some(1024)
            assert answer.split(b" ")[1] == status
            await trio.aclose_forcefully(stream)


def signed_by_an_authority(directory: Path, host: str) -> tuple[Path, Path]:
    """Return two files: an authority's certificate, and a certificate for `host` signed by it with its key."""
    now, keys = datetime.now(UTC), [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in ("an authority", host)]

    def made(number: int, extension: x509.ExtensionType) -> x509.Certificate:
        builder = x509.CertificateBuilder().subject_name(names[number]).issuer_name(names[0])
        builder = builder.public_key(keys[number].public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        return builder.add_extension(extension, critical=False).sign(keys[0], hashes.SHA256())

    authority = made(0, x509.BasicConstraints(ca=True, path_length=None))
    server = made(1, x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]))
    (directory / "authority.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    signed = directory / "signed.pem"
    signed.write_bytes(
        server.public_bytes(serialization.Encoding.PEM)
        + keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    signed.chmod(0o600)
    return directory / "authority.crt", signed
