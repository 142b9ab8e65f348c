"""The control endpoint over TCP: closed by default, encrypted, and limited by the client's token."""

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
from pipeline.source.endpoint import CredentialError, Credentials, Endpoint, RefusedError, load_credentials
from pipeline.source.log_client import FarmLog, FarmLogError
from tests.node.test_control import FakeNode

LOOPBACK = Address("127.0.0.1", 0)


def opened(state_dir: Path) -> RemoteAccess:
    access = open_remote_access(state_dir, ControlSettings(listen=LOOPBACK))
    assert access is not None
    return access


@asynccontextmanager
async def serving(state_dir: Path, limits: ControlLimits | None = None) -> AsyncIterator[tuple[ControlServer, str]]:
    """Yield a control endpoint on a socket and on TCP, and its TCP address."""
    server = ControlServer(state_dir / "control.sock", FakeNode().handlers, limits, opened(state_dir))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server, f"https://127.0.0.1:{server.remote_port}"
        nursery.cancel_scope.cancel()


def credentials(state_dir: Path, token: str = "control.read.token") -> Credentials:  # noqa: S107 - a file's name
    return load_credentials(state_dir / token, state_dir / "control.crt")


async def get_document(address: str, shown: Credentials, target: str = "/v1/cluster") -> dict[str, object]:
    def request_document() -> dict[str, object]:
        with Endpoint(address, shown) as node:
            return node.get(target)

    return await trio.to_thread.run_sync(request_document)


async def post_leave(address: str, shown: Credentials) -> int:
    def request_document() -> int:
        with Endpoint(address, shown) as node:
            node._connection.request("POST", "/v1/leave", headers=node._headers)
            return node._connection.getresponse().status

    return await trio.to_thread.run_sync(request_document)


async def test_read_token_cannot_change_what_admin_token_can(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, address):
        read, admin = credentials(tmp_path), credentials(tmp_path, "control.admin.token")
        assert (await get_document(address, read))["clusterId"] == "c0ffee"
        assert (await get_document(address, admin))["clusterId"] == "c0ffee"
        assert await post_leave(address, read) == 403
        assert await post_leave(address, admin) == 202


async def test_request_without_valid_token_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, address):
        wrong = Credentials("x" * 43, credentials(tmp_path).fingerprints)
        with pytest.raises(RefusedError, match="401"):
            await get_document(address, wrong)
        with pytest.raises(RefusedError, match="needs a token"):
            await get_document(address, Credentials("", wrong.fingerprints))
        assert server.counters[ControlEvent.UNAUTHORIZED] == 1


async def test_token_is_sent_only_to_pinned_certificate(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, address):
        other = Credentials(credentials(tmp_path).token, frozenset({bytes(32)}))
        with pytest.raises(OSError, match="unpinned certificate"):
            await get_document(address, other)
        assert server.counters[ControlEvent.REQUESTS] == 0


async def test_pipeline_reads_log_over_tcp(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, address):
        log = FarmLog((address,), credentials(tmp_path))
        assert await trio.to_thread.run_sync(log.bounds) == (1, 3)
        entries = await trio.to_thread.run_sync(lambda: list(log.range(1, 4, page_size=2, cluster="c0ffee")))
        assert [entry.index for entry in entries] == [1, 2, 3]


async def test_tcp_clients_do_not_use_places_of_local_user(tmp_path: Path) -> None:
    async with serving(tmp_path, ControlLimits(remote_connections=1)) as (_, address):

        def fill_places() -> None:
            # The first client uses the only TCP place: the second is refused, and the local socket stays usable.
            with Endpoint(address, shown) as first, Endpoint(address, shown) as second:
                first.get("/v1/cluster")
                with pytest.raises(ValueError, match="503"):
                    second.get("/v1/cluster")
                with Endpoint(str(tmp_path / "control.sock"), Credentials()) as own:
                    assert own.get("/v1/cluster")["clusterId"] == "c0ffee"

        shown = credentials(tmp_path)
        await trio.to_thread.run_sync(fill_places)


async def test_seventy_idle_clients_do_not_block_holder_of_token(tmp_path: Path) -> None:
    """70 clients send nothing, and 70 more send nothing after TLS; a request with a token is still answered."""
    # A long timeout, so that the idle clients stay connected
    async with serving(tmp_path, ControlLimits(unproven_s=90)) as (server, address):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        streams: list[trio.abc.AsyncResource] = []
        for number in range(140):
            transport = await trio.open_tcp_stream("127.0.0.1", server.remote_port or 0)
            streams.append(transport)
            if number % 2:
                secured = trio.SSLStream(transport, context, https_compatible=True)
                streams.append(secured)
                with trio.move_on_after(5):
                    await secured.do_handshake()
        with trio.fail_after(60):
            assert (await get_document(address, credentials(tmp_path)))["clusterId"] == "c0ffee"
        assert server.counters[ControlEvent.CONNECTIONS_REFUSED] > 0
        for each in streams:
            await trio.aclose_forcefully(each)


async def test_oldest_idle_client_loses_its_place_to_newer_one(tmp_path: Path) -> None:
    async with serving(tmp_path, ControlLimits(remote_unproven=4, unproven_s=90)) as (server, _):
        port = server.remote_port or 0
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(6)]
        with trio.fail_after(60):
            assert await idle[0].receive_some() == b""
        assert server.counters[ControlEvent.CONNECTIONS_REFUSED] >= 1
        for each in idle:
            await each.aclose()


async def test_body_is_not_read_before_token(tmp_path: Path) -> None:
    """A request without a token announces a body; the reply 401 comes before any byte of the body."""
    async with serving(tmp_path) as (server, address):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        transport = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        stream = trio.SSLStream(transport, context, https_compatible=True)
        await stream.send_all(b"POST /v1/submit HTTP/1.1\r\nHost: node\r\nContent-Length: 200000\r\n\r\n")
        with trio.fail_after(60):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 401 ")
        assert server.counters[ControlEvent.UNAUTHORIZED] == 1
        await trio.aclose_forcefully(stream)


async def test_client_without_token_is_closed_after_receive_timeout(tmp_path: Path) -> None:
    limits = ControlLimits(idle_s=3600, receive_s=0.3)
    async with serving(tmp_path, limits) as (server, address):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        transport = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        idle = trio.SSLStream(transport, context, https_compatible=True)
        await idle.do_handshake()
        with trio.fail_after(60):
            assert await idle.receive_some() == b""
        assert server.counters[ControlEvent.REQUESTS] == 0
        await trio.aclose_forcefully(idle)


def test_tokens_are_secret_files_made_once(tmp_path: Path) -> None:
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


def test_readable_or_short_token_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    path = tmp_path / "control.read.token"
    path.chmod(0o640)
    with pytest.raises(ControlSocketError, match="chmod 600"):
        opened(tmp_path)
    path.chmod(0o600)
    path.write_text("secret\n")
    with pytest.raises(ControlSocketError, match="remove it"):
        opened(tmp_path)


def test_tcp_is_closed_unless_configured(tmp_path: Path) -> None:
    settings = tmp_path / "node.toml"
    common = 'farm_key = "farm.key"\n[gossip]\nbind = "127.0.0.1:7668"\n'
    settings.write_text(common)
    assert load_configuration(settings).control is None
    settings.write_text(f'{common}[control]\nlisten = "127.0.0.1:7650"\n')
    assert load_configuration(settings).control == ControlSettings(listen=Address("127.0.0.1", 7650))
    settings.write_text(f'{common}[control]\nlisten = "everywhere"\n')
    with pytest.raises(ConfigurationError, match=r"control\.listen"):
        load_configuration(settings)


def test_files_without_token_or_certificate_are_refused_by_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(CredentialError, match="does not contain a token"):
        load_credentials(empty, None)
    with pytest.raises(CredentialError, match="does not contain a certificate"):
        load_credentials(None, empty)
    with pytest.raises(CredentialError, match="cannot be read"):
        load_credentials(tmp_path / "none", None)
    damaged = tmp_path / "damaged"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n")
    with pytest.raises(CredentialError, match=f"{damaged} contains a damaged certificate"):
        load_credentials(None, damaged)


def test_invalid_tcp_address_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(FarmLogError, match="HOST:PORT"):
        FarmLog(("https://127.0.0.1",), credentials(tmp_path)).bounds()
