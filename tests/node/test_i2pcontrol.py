"""Figures from I2PControl of Java I2P and i2pd; passwords, tokens, timeouts and malformed replies."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import h11
import pytest
import trio
import trio.testing

from bridge.core.log.figures import RouterStatus
from bridge.node.router.i2pcontrol import I2PControl
from bridge.node.router.link import CONTROL_PATHS, ControlAccess, Link, RouterLost, Software
from bridge.wire.i2p.i2pcontrol import REPLY_LIMIT_BYTES, RouterFacts
from consensus.net.tls import load_or_create_certificate
from tests.node.fake_i2pcontrol import I2PD_INFO, JAVA_INFO, FakeControl, control_in_place_of_sockets

Patch = pytest.MonkeyPatch
Clock = trio.testing.MockClock
WORD = "word"


@asynccontextmanager
async def control_with(
    monkeypatch: Patch, clock: Clock, fake: FakeControl | None = None, password: str = WORD
) -> AsyncIterator[tuple[I2PControl, FakeControl]]:
    assert clock.autojump_threshold == 0
    fake = fake or FakeControl()
    software = Software.JAVA if fake.is_java else Software.I2PD
    async with trio.open_nursery() as nursery:
        with control_in_place_of_sockets(fake, nursery, monkeypatch):
            yield I2PControl(ControlAccess(Link("127.0.0.1", 7650), software, password, CONTROL_PATHS[software])), fake
        nursery.cancel_scope.cancel()


async def test_java_router_reports_all_figures(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with control_with(monkeypatch, autojump_clock) as (control, _):
        assert await control.facts() == RouterFacts(
            RouterStatus(
                attached=True,
                uptime_ms=3_600_000,
                participating_tunnels=120,
                exploratory_tunnels=5,
                current_bandwidth_bytes_per_s=30_000,
                configured_bandwidth_bytes_per_s=160 * 1024,
                job_lag_ms=12.5,
                last_published_router_info="cm91dGVyaW5mbw==",
            ),
            version="2.10.0",
            status="OK",
        )


async def test_i2pd_is_queried_only_for_router_info(monkeypatch: Patch, autojump_clock: Clock) -> None:
    fake = FakeControl(info=dict(I2PD_INFO), is_java=False, path="/")
    async with control_with(monkeypatch, autojump_clock, fake) as (control, _):
        assert await control.facts() == RouterFacts(
            RouterStatus(
                attached=True, uptime_ms=7_200_000, participating_tunnels=7, current_bandwidth_bytes_per_s=3_000
            ),
            version="2.56.0",
        )
        assert fake.calls == ["Authenticate", "RouterInfo"]


async def test_older_java_router_has_unknown_figures(monkeypatch: Patch, autojump_clock: Clock) -> None:
    older = {key: JAVA_INFO[key] for key in ("i2p.router.uptime", "i2p.router.version")}
    fake = FakeControl(info=older)
    async with control_with(monkeypatch, autojump_clock, fake) as (control, _):
        facts = await control.facts()
        assert (facts.report.uptime_ms, facts.version) == (3_600_000, "2.10.0")
        assert facts.report.exploratory_tunnels is None
        assert facts.report.current_bandwidth_bytes_per_s is None
        assert facts.report.last_published_router_info is None


@pytest.mark.parametrize("value", [True, "soon", -1, 1e300, None, [1], {"a": 1}, "9" * 400])
async def test_invalid_figure_is_unknown(monkeypatch: Patch, autojump_clock: Clock, value: object) -> None:
    fake = FakeControl(info={**JAVA_INFO, "i2p.router.uptime": value})
    async with control_with(monkeypatch, autojump_clock, fake) as (control, _):
        assert (await control.facts()).report.uptime_ms is None


async def test_network_status_is_reported_as_text(monkeypatch: Patch, autojump_clock: Clock) -> None:
    fake = FakeControl(info={**JAVA_INFO, "i2p.router.net.status": 9})
    async with control_with(monkeypatch, autojump_clock, fake) as (control, _):
        assert (await control.facts()).network_error == "its clock is off"


async def test_queries_are_at_least_five_seconds_apart(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with control_with(monkeypatch, autojump_clock) as (control, fake):
        for _ in range(5):
            await control.facts()
        assert fake.calls.count("RouterInfo") == 1
        await trio.sleep(6)
        await control.facts()
        assert fake.calls.count("RouterInfo") == 2
        assert fake.calls.count("Authenticate") == 1


async def test_expired_token_is_renewed_automatically(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with control_with(monkeypatch, autojump_clock) as (control, fake):
        await control.facts()
        fake.token = 2
        await trio.sleep(6)
        assert (await control.facts()).report.uptime_ms == 3_600_000
        assert fake.calls.count("Authenticate") == 2


@pytest.mark.parametrize("router", [FakeControl(), FakeControl(is_java=False, path="/")], ids=["java", "i2pd"])
async def test_wrong_password_is_retried_once_per_minute(
    monkeypatch: Patch, autojump_clock: Clock, router: FakeControl
) -> None:
    async with control_with(monkeypatch, autojump_clock, router, "guess") as (control, fake):
        for _ in range(10):
            with pytest.raises(RouterLost, match="refuses the password") as refused:
                await control.facts()
            assert "guess" not in str(refused.value)
            await trio.sleep(5)
        assert fake.calls == ["Authenticate"]
        fake.password = "guess"  # noqa: S105 - of a fake router
        await trio.sleep(60)
        assert (await control.facts()).version == "2.10.0"


async def test_unresponsive_i2pcontrol_is_abandoned_after_timeout(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with control_with(monkeypatch, autojump_clock, FakeControl(unresponsive=True)) as (control, _):
        with pytest.raises(RouterLost, match="did not answer within 10 s"):
            await control.facts()
        assert trio.current_time() == pytest.approx(10, abs=0.1)


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "does not speak HTTP|closed the connection"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "does not speak HTTP"),
        (http(b"not json"), "is not JSON-RPC"),
        (http(b"[1]"), "is not JSON-RPC"),
        (http(b"{}"), "neither result nor error"),
        (http(b'{"result": {"Token": ""}}'), "lacks a token"),
        (http(b'{"result": {"Token": 5}}'), "lacks a token"),
        (
            http(b'{"error": {"code": -32700, "message": "\\u001b[31mParse error"}}'),
            r"\[31mParse error \(error -32700\)",
        ),
        (http(b"", b"401 Unauthorized"), "status 401"),
        (http(b'"' + b"x" * REPLY_LIMIT_BYTES + b'"'), "more than 262144 bytes"),
        (http(b"[" * 200_000), "is not JSON-RPC"),
    ],
)
async def test_malformed_reply_is_reported(monkeypatch: Patch, autojump_clock: Clock, raw: bytes, message: str) -> None:
    async with control_with(monkeypatch, autojump_clock, FakeControl(raw=raw)) as (control, _):
        with pytest.raises(RouterLost, match=message):
            await control.facts()


async def test_wrong_path_is_reported_as_status(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with control_with(monkeypatch, autojump_clock, FakeControl(path="/elsewhere")) as (control, _):
        with pytest.raises(RouterLost, match="status 404: check the address and path"):
            await control.facts()


async def test_router_is_queried_immediately_when_available_again(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with control_with(monkeypatch, autojump_clock, FakeControl(up=False)) as (control, fake):
        with pytest.raises(RouterLost, match="nothing answers"):
            await control.facts()
        fake.up = True
        assert (await control.facts()).version == "2.10.0"


# -- over sockets ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def over_sockets(certificate: Path | None = None) -> AsyncIterator[tuple[str, int]]:
    """Run an I2PControl on a separate port, with TLS if a certificate is given."""
    fake = FakeControl()

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, h11.RemoteProtocolError):
            if certificate is None:
                await fake.serve(stream)
                return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            await fake.serve(trio.SSLStream(stream, context, server_side=True, https_compatible=True))

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield "127.0.0.1", listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def version_at(link: Link) -> str | None:
    return (await I2PControl(ControlAccess(link, Software.JAVA, WORD, CONTROL_PATHS[Software.JAVA])).facts()).version


def certificate_in(directory: Path) -> Path:
    directory.mkdir()
    return load_or_create_certificate(directory).path


async def test_query_works_over_plain_socket_or_pinned_tls(tmp_path: Path) -> None:
    certificate = certificate_in(tmp_path / "a")
    async with over_sockets() as place:
        assert await version_at(Link(*place)) == "2.10.0"
    async with over_sockets(certificate) as place:
        assert await version_at(Link(*place, certificate)) == "2.10.0"
        assert await version_at(Link(*place, unchecked_tls=True)) == "2.10.0"


async def test_password_is_not_sent_to_other_certificate(tmp_path: Path) -> None:
    shown, pinned = certificate_in(tmp_path / "a"), certificate_in(tmp_path / "b")
    async with over_sockets(shown) as place:
        with pytest.raises(RouterLost, match=r"shows another certificate: CERTIFICATE_VERIFY_FAILED"):
            await version_at(Link(*place, pinned))
    async with over_sockets() as place:
        with pytest.raises(RouterLost, match="does not speak TLS"):
            await version_at(Link(*place, pinned))


async def test_connection_problem_is_reported(tmp_path: Path) -> None:
    async with over_sockets() as place:
        with pytest.raises(RouterLost, match=r"absent.pem cannot be used: a certificate in PEM is needed"):
            await version_at(Link(*place, tmp_path / "absent.pem"))
    with pytest.raises(RouterLost, match=r"nothing answers at 127.0.0.1:\d+: Connection refused"):
        await version_at(Link(*place))


def test_password_is_not_in_repr_of_access() -> None:
    assert WORD not in repr(ControlAccess(Link("127.0.0.1", 7650), Software.JAVA, WORD))
