"""TLS over a socket: all data arrives in both directions, and every failure is one of trio's errors."""

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from consensus.net.direct_stream import FIRST_READ_BYTES, READ_BYTES
from consensus.net.failed_connection import connection_failure, was_refused
from consensus.net.tls import client_context, load_or_create_certificate
from consensus.net.tls_stream import TlsStream
from consensus.protocols.garlic_farm.node.client_connection import ClientConnection

LARGE = 3 * 1024 * 1024
RECORD_BYTES = 16 * 1024 + 22
"""A full record with its header, type and tag."""


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[tuple[TlsStream, TlsStream, trio.SocketStream]]:
    """Yield a client's stream, a server's stream, and the server's bare transport."""
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    context = load_or_create_certificate(path).server_context()
    plain_client = await trio.open_tcp_stream("127.0.0.1", port)
    plain_server = await listener.accept()
    client = TlsStream(plain_client, client_context(), server_side=False)
    server = TlsStream(plain_server, context, server_side=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.do_handshake)
        nursery.start_soon(server.do_handshake)
    try:
        yield client, server, plain_server
    finally:
        await trio.aclose_forcefully(client)
        await trio.aclose_forcefully(server)
        await listener.aclose()


async def received(stream: TlsStream, count: int) -> bytes:
    """Return exactly `count` bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < count and (more := await stream.receive_some()):
        data += more
    return data


async def test_simultaneous_data_arrives_in_both_directions(tmp_path: Path) -> None:
    there, back = Random(1).randbytes(LARGE), Random(2).randbytes(LARGE)
    found: dict[str, bytes] = {}

    async def collect(name: str, stream: TlsStream) -> None:
        found[name] = await received(stream, LARGE)

    async with connected(tmp_path) as (client, server, _), trio.open_nursery() as nursery:
        nursery.start_soon(collect, "there", server)
        nursery.start_soon(collect, "back", client)
        nursery.start_soon(client.send_all, there)
        nursery.start_soon(server.send_all, back)
    assert found == {"there": there, "back": back}


async def test_received_record_costs_one_read_of_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(tmp_path) as (client, server, _):
        # Given an exchange that has consumed the session tickets of the handshake
        await client.send_all(b"1")
        await server.send_all(await received(server, 1))
        await received(client, 1)
        reads: list[int] = []
        tls = client._tls

        def read(limit: int) -> bytes:
            reads.append(limit)
            return tls.read(limit)

        monkeypatch.setattr(client, "_tls", SimpleNamespace(read=read))
        # When ten records arrive in ten sends
        for number in range(10):
            await server.send_all(b"%d" % number)
            assert await client.receive_some() == b"%d" % number
        # Then OpenSSL reads once for each record
        assert len(reads) == 10


async def test_small_reads_return_rest_of_record(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, server, _):
        await server.send_all(b"a record")
        assert [await client.receive_some(3) for _ in range(3)] == [b"a r", b"eco", b"rd"]


async def test_openssl_gets_at_most_one_record_per_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recording:
        def __init__(self, buffer: ssl.MemoryBIO) -> None:
            self.sizes: list[int] = []
            self._buffer = buffer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._buffer, name)

        def write(self, data: bytes) -> int:
            self.sizes.append(len(data))
            return self._buffer.write(data)

    async with connected(tmp_path) as (client, server, _):
        buffer = Recording(client._incoming)
        monkeypatch.setattr(client, "_incoming", buffer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.send_all, bytes(LARGE))
            assert await received(client, LARGE) == bytes(LARGE)
        assert max(buffer.sizes) == RECORD_BYTES


async def test_request_beyond_buffer_of_kernel_is_sent_later(tmp_path: Path) -> None:
    request = Random(3).randbytes(256 * 1024)
    async with connected(tmp_path) as (client, server, _), trio.open_nursery() as nursery:
        client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection = ClientConnection(client, reply_timeout_s=60)
        nursery.start_soon(connection.run)
        await trio.testing.wait_all_tasks_blocked()
        assert connection.post(request, lambda _: None)
        assert client.unsent_bytes
        with trio.fail_after(10):
            assert await received(server, len(request)) == request
        nursery.cancel_scope.cancel()


async def test_read_is_large_only_after_full_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = os.read

    def record_size(descriptor: int, size: int) -> bytes:
        sizes.append(size)
        return read(descriptor, size)

    async with connected(tmp_path) as (client, server, _):
        monkeypatch.setattr(os, "read", record_size)
        for size in (1, LARGE, 1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send_all, bytes(size))
                await received(server, size)
            # If the last read of a large message was full, the next read is still large.
            await client.send_all(b"1")
            await received(server, 1)
    assert sizes[0] == sizes[-1] == FIRST_READ_BYTES
    assert set(sizes) == {FIRST_READ_BYTES, READ_BYTES}


async def test_send_now_keeps_bytes_refused_by_kernel(tmp_path: Path) -> None:
    # Given a peer that does not read, so that the kernel buffer is full
    data = Random(3).randbytes(LARGE)
    async with connected(tmp_path) as (client, server, _):
        taken = [client.send_now(data[start : start + 65_536]) for start in range(0, LARGE, 65_536)]
        assert not all(taken)
        assert client.unsent_bytes > 0
        # When the peer reads, and the rest is sent
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, b"")
            # Then all data arrives, in order
            assert await received(server, LARGE) == data
        assert client.unsent_bytes == 0


async def test_send_now_during_send_all_is_sent_after_it(tmp_path: Path) -> None:
    data = Random(4).randbytes(LARGE)
    async with connected(tmp_path) as (client, server, _), trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, data)
        await trio.testing.wait_all_tasks_blocked()
        assert not client.send_now(b"afterwards")
        assert await received(server, LARGE + 10) == data + b"afterwards"


async def test_concurrent_sends_raise_busy_resource_error(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, _, _), trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, bytes(LARGE))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await client.send_all(b"me too")
        nursery.cancel_scope.cancel()


async def test_close_ends_stream_after_sent_data(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, server, _):
        await client.send_all(b"last words")
        await client.aclose()
        assert await received(server, 100) == b"last words"
        assert await server.receive_some() == b""
        with pytest.raises(trio.ClosedResourceError):
            await client.send_all(b"more")
        with pytest.raises(trio.ClosedResourceError):
            await client.receive_some()


async def test_peer_closing_without_tls_close_ends_stream(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, server, bare_server):
        await server.send_all(b"half a sen")
        await bare_server.aclose()
        assert await received(client, 100) == b"half a sen"
        assert await client.receive_some() == b""


async def test_invalid_tls_bytes_break_stream(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, _, bare_server):
        await bare_server.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(trio.BrokenResourceError, match="TLS"):
            await client.receive_some()


async def test_own_close_ends_waiting_receive(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, _, _), trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await client.receive_some()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await client.aclose()


@pytest.mark.parametrize("rubbish", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01"])
async def test_handshake_with_invalid_bytes_raises_one_error(tmp_path: Path, rubbish: bytes) -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    caller = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    context: ssl.SSLContext = load_or_create_certificate(tmp_path).server_context()
    server = TlsStream(await listener.accept(), context, server_side=True)
    await caller.send_all(rubbish)
    await caller.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await server.do_handshake()
    await trio.aclose_forcefully(server)
    await listener.aclose()


def failed_attempts(error: OSError) -> OSError:
    failure = OSError("all attempts to connect to 192.0.2.1:7669 failed")
    failure.__cause__ = ExceptionGroup("multiple connection attempts failed", [error, TimeoutError()])
    return failure


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (failed_attempts(ConnectionRefusedError(111, "another text")), "Connection refused"),
        (trio.socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (trio.BrokenResourceError("TLS: no shared cipher"), "TLS: no shared cipher"),
        (trio.ClosedResourceError(), "ClosedResourceError"),
    ],
    ids=["attempts", "resolver", "TLS", "no-text"],
)
def test_connection_failure_has_system_error_text(error: Exception, text: str) -> None:
    assert connection_failure(error) == text


@pytest.mark.parametrize(
    ("attempts", "refused"),
    [
        ([ConnectionRefusedError()], True),
        ([ConnectionRefusedError(), ConnectionRefusedError()], True),
        ([ConnectionRefusedError(), TimeoutError()], False),
        ([TimeoutError()], False),
    ],
    ids=["one", "all", "some", "none"],
)
def test_connection_is_refused_if_every_attempt_was(attempts: list[OSError], *, refused: bool) -> None:
    failure = OSError("all attempts to connect to 192.0.2.1:7669 failed")
    failure.__cause__ = attempts[0] if len(attempts) == 1 else ExceptionGroup("attempts", attempts)
    assert was_refused(failure) is refused
