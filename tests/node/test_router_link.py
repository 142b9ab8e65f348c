"""Streams to a router over real sockets: plain, TLS with the pinned certificate, and the errors of other peers."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from bridge.node.router.i2cp_connection import open_i2cp
from bridge.node.router.link import Link, RouterLost, open_stream, shown
from consensus.net.tls import load_or_create_certificate
from tests.node.certificates import Authority
from tests.node.fake_i2cp_router import FakeRouter


def certificate_in(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return load_or_create_certificate(directory).path


@asynccontextmanager
async def listening(certificate: Path | None = None) -> AsyncIterator[tuple[str, int]]:
    """Run a router on its own port, with TLS if it has a certificate."""
    router = FakeRouter()

    async def serve(stream: trio.SocketStream) -> None:
        if certificate is None:
            await router.serve(stream)
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError:
            return
        await router.serve(secured)

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield "127.0.0.1", listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def greet(link: Link) -> str | None:
    async with open_i2cp(link, None) as (_, date):
        return date.version


async def test_i2cp_over_plain_socket() -> None:
    async with listening() as place:
        assert await greet(Link(*place)) == "0.9.64"


async def test_i2cp_over_tls_with_pinned_certificate(tmp_path: Path) -> None:
    certificate = certificate_in(tmp_path)
    async with listening(certificate) as place:
        assert await greet(Link(*place, certificate)) == "0.9.64"
        assert await greet(Link(*place, unchecked_tls=True)) == "0.9.64"


async def test_other_certificate_than_pinned_is_refused(tmp_path: Path) -> None:
    shown_one, pinned = certificate_in(tmp_path / "a"), certificate_in(tmp_path / "b")
    async with listening(shown_one) as place:
        with pytest.raises(RouterLost, match=r"shows another certificate: CERTIFICATE_VERIFY_FAILED"):
            await greet(Link(*place, pinned))


async def test_certificate_signed_by_pinned_one_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with listening(authority.certificate("127.0.0.1").path) as place:
        with pytest.raises(RouterLost, match=r"CERTIFICATE_VERIFY_FAILED; pin the router's own certificate, not"):
            await greet(Link(*place, authority.file))


async def test_certificate_after_first_in_file_is_refused(tmp_path: Path) -> None:
    shown_one, pinned = certificate_in(tmp_path / "a"), certificate_in(tmp_path / "b")
    file = tmp_path / "both.pem"
    file.write_bytes(pinned.read_bytes() + shown_one.read_bytes())
    async with listening(shown_one) as place:
        with pytest.raises(RouterLost, match=r"shows another certificate: CERTIFICATE_VERIFY_FAILED"):
            await greet(Link(*place, file))


async def test_plain_port_with_tls_settings_is_named(tmp_path: Path) -> None:
    async with listening() as place:
        with pytest.raises(RouterLost, match="does not speak TLS"):
            await greet(Link(*place, certificate_in(tmp_path)))


async def test_invalid_certificate_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("no certificate")
    async with listening() as place:
        for path in (tmp_path / "none.pem", tmp_path / "absent.pem"):
            with pytest.raises(RouterLost, match=f"{path.name} cannot be used: a certificate in PEM is needed"):
                await open_stream(Link(*place, path))


async def test_port_without_listener_is_named() -> None:
    async with listening() as place:
        pass
    with pytest.raises(RouterLost, match=r"nothing answers at 127.0.0.1:\d+: Connection refused"):
        await open_stream(Link(*place))


def test_router_text_is_shortened_without_control_characters() -> None:
    assert shown("a\x1b[2Jb\n") == "a?[2Jb?"
    assert len(shown("x" * 10_000)) == 200
