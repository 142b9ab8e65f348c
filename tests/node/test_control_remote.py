"""The control endpoint over TCP: closed unless it is opened, sealed, and a token decides what a client may do."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from bridge.api.control_routes import Access
from bridge.node.control.access import RemoteAccess, open_remote_access
from bridge.node.control.routes import ControlEvent
from bridge.node.control.server import ControlLimits, ControlServer
from bridge.node.security.control_socket import ControlSocketError
from bridge.node.settings.configuration import ConfigurationError, ControlSettings, load_configuration
from gossip.core.member import Address
from pipeline.source.endpoint import CredentialError, Credentials, Endpoint, load_credentials
from pipeline.source.log_client import FarmLog, FarmLogError
from tests.node.test_control import FakeNode

LOOPBACK = Address("127.0.0.1", 0)


def opened(state_dir: Path) -> RemoteAccess:
    access = open_remote_access(state_dir, ControlSettings(listen=LOOPBACK))
    assert access is not None
    return access


@asynccontextmanager
async def serving(state_dir: Path, limits: ControlLimits | None = None) -> AsyncIterator[tuple[ControlServer, str]]:
    """A control endpoint on a socket and on TCP, and its address there."""
    server = ControlServer(state_dir / "control.sock", FakeNode().handlers, limits, opened(state_dir))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server, f"https://127.0.0.1:{server.remote_port}"
        nursery.cancel_scope.cancel()


def credentials(state_dir: Path, token: str = "control.read.token") -> Credentials:  # noqa: S107 - a file's name
    return load_credentials(state_dir / token, state_dir / "control.crt")


async def asked(address: str, shown: Credentials, target: str = "/v1/cluster") -> dict[str, object]:
    def ask() -> dict[str, object]:
        with Endpoint(address, shown) as node:
            return node.get(target)

    return await trio.to_thread.run_sync(ask)


async def posted(address: str, shown: Credentials) -> int:
    def ask() -> int:
        with Endpoint(address, shown) as node:
            node._connection.request("POST", "/v1/leave", headers=node._headers)
            return node._connection.getresponse().status

    return await trio.to_thread.run_sync(ask)


async def test_the_read_token_reads_and_changes_nothing_the_admin_token_does_both(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, address):
        read, admin = credentials(tmp_path), credentials(tmp_path, "control.admin.token")
        assert (await asked(address, read))["clusterId"] == "c0ffee"
        assert (await asked(address, admin))["clusterId"] == "c0ffee"
        assert await posted(address, read) == 403
        assert await posted(address, admin) == 202


async def test_without_a_token_or_with_a_wrong_one_nothing_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, address):
        wrong = Credentials("x" * 43, credentials(tmp_path).fingerprints)
        with pytest.raises(ValueError, match="401"):
            await asked(address, wrong)
        with pytest.raises(ValueError, match="needs a token"):
            await asked(address, Credentials("", wrong.fingerprints))
        assert server.counters[ControlEvent.UNAUTHORIZED] == 1


async def test_a_client_sends_its_token_to_no_other_certificate_than_the_pinned_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, address):
        other = Credentials(credentials(tmp_path).token, frozenset({bytes(32)}))
        with pytest.raises(OSError, match="unpinned certificate"):
            await asked(address, other)
        assert server.counters[ControlEvent.REQUESTS] == 0


async def test_the_pipeline_reads_the_log_over_tcp(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, address):
        log = FarmLog((address,), credentials(tmp_path))
        assert await trio.to_thread.run_sync(log.bounds) == (1, 3)
        entries = await trio.to_thread.run_sync(lambda: list(log.range(1, 4, page_size=2, cluster="c0ffee")))
        assert [entry.index for entry in entries] == [1, 2, 3]


async def test_strangers_on_tcp_take_no_place_of_the_nodes_own_user(tmp_path: Path) -> None:
    async with serving(tmp_path, ControlLimits(remote_connections=1)) as (_, address):

        def crowd() -> None:
            # given one who keeps the only place, the next one on TCP is turned away, and the socket is as free as ever
            with Endpoint(address, shown) as first, Endpoint(address, shown) as second:
                first.get("/v1/cluster")
                with pytest.raises(ValueError, match="503"):
                    second.get("/v1/cluster")
                with Endpoint(str(tmp_path / "control.sock"), Credentials()) as own:
                    assert own.get("/v1/cluster")["clusterId"] == "c0ffee"

        shown = credentials(tmp_path)
        await trio.to_thread.run_sync(crowd)


async def test_seventy_silent_strangers_do_not_keep_the_holder_of_a_token_out(tmp_path: Path) -> None:
    """Given 70 that say nothing and 70 more that say nothing after TLS, when a token is shown, then it is answered."""
    async with serving(tmp_path) as (server, address):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        held: list[trio.abc.AsyncResource] = []
        for number in range(140):
            transport = await trio.open_tcp_stream("127.0.0.1", server.remote_port or 0)
            held.append(transport)
            if number % 2:
                secured = trio.SSLStream(transport, context, https_compatible=True)
                held.append(secured)
                with trio.move_on_after(5):
                    await secured.do_handshake()
        with trio.fail_after(3):
            assert (await asked(address, credentials(tmp_path)))["clusterId"] == "c0ffee"
        assert server.counters[ControlEvent.CONNECTIONS_REFUSED] > 0
        for each in held:
            await trio.aclose_forcefully(each)


async def test_a_silent_stranger_loses_its_place_to_a_newer_one(tmp_path: Path) -> None:
    async with serving(tmp_path, ControlLimits(remote_strangers=4)) as (server, _):
        port = server.remote_port or 0
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(6)]
        with trio.fail_after(2):
            assert await silent[0].receive_some() == b""
        assert server.counters[ControlEvent.CONNECTIONS_REFUSED] >= 1
        for each in silent:
            await each.aclose()


async def test_a_body_is_not_read_before_its_sender_has_shown_a_token(tmp_path: Path) -> None:
    """Given a request without a token that announces a body, then 401 comes before any of the body was sent."""
    async with serving(tmp_path) as (server, address):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        transport = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        stream = trio.SSLStream(transport, context, https_compatible=True)
        await stream.send_all(b"POST /v1/submit HTTP/1.1\r\nHost: node\r\nContent-Length: 200000\r\n\r\n")
        with trio.fail_after(5):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 401 ")
        assert server.counters[ControlEvent.UNAUTHORIZED] == 1
        await trio.aclose_forcefully(stream)


async def test_a_client_without_a_token_keeps_a_place_no_longer_than_a_request_may_take(tmp_path: Path) -> None:
    limits = ControlLimits(idle_s=3600, receive_s=0.3)
    async with serving(tmp_path, limits) as (server, address):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        transport = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        silent = trio.SSLStream(transport, context, https_compatible=True)
        await silent.do_handshake()
        with trio.fail_after(30):
            assert await silent.receive_some() == b""
        assert server.counters[ControlEvent.REQUESTS] == 0
        await trio.aclose_forcefully(silent)


def test_tokens_are_secret_made_once_and_told_apart(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    assert (first.read_token, first.admin_token) == (second.read_token, second.admin_token)
    assert first.read_token not in repr(first)
    assert first.granted(f"Bearer {first.read_token}") is Access.READ
    assert first.granted(f"bearer {first.admin_token}") is Access.ADMIN
    for shown in ("", "Bearer", "Bearer ", f"Basic {first.admin_token}", f"Bearer {first.admin_token}x", "Bearer é"):
        assert first.granted(shown) is Access.NONE
    for name in ("control.read.token", "control.admin.token"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in (tmp_path / "control.crt").read_text()


def test_a_token_that_others_may_read_or_that_is_too_short_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    path = tmp_path / "control.read.token"
    path.chmod(0o640)
    with pytest.raises(ControlSocketError, match="chmod 600"):
        opened(tmp_path)
    path.chmod(0o600)
    path.write_text("secret\n")
    with pytest.raises(ControlSocketError, match="remove it"):
        opened(tmp_path)


def test_tcp_is_closed_unless_the_configuration_opens_it(tmp_path: Path) -> None:
    settings = tmp_path / "node.toml"
    common = 'farm_key = "farm.key"\n[gossip]\nbind = "127.0.0.1:7668"\n'
    settings.write_text(common)
    assert load_configuration(settings).control is None
    settings.write_text(f'{common}[control]\nlisten = "127.0.0.1:7650"\n')
    assert load_configuration(settings).control == ControlSettings(listen=Address("127.0.0.1", 7650))
    settings.write_text(f'{common}[control]\nlisten = "everywhere"\n')
    with pytest.raises(ConfigurationError, match=r"control\.listen"):
        load_configuration(settings)


def test_files_that_hold_no_token_or_certificate_are_refused_by_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(CredentialError, match="does not contain a token"):
        load_credentials(empty, None)
    with pytest.raises(CredentialError, match="does not contain a certificate"):
        load_credentials(None, empty)
    with pytest.raises(CredentialError, match="cannot be read"):
        load_credentials(tmp_path / "none", None)


def test_an_address_of_tcp_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(FarmLogError, match="HOST:PORT"):
        FarmLog(("https://127.0.0.1",), credentials(tmp_path)).bounds()
