"""The queue between the kernel and the handlers of connections, during a flood of connections from unknown sources."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from consensus.net.accepting import AcceptOptions, AcceptQueue, CloseReason, KnownSources, source_of
from tests.node.memory_server import until
from tests.processes import hold_for_sockets

LOOPBACK = "127.0.0.1"


@dataclass
class ListeningQueue:
    """A listening queue, with its handled and dropped connections."""

    queue: AcceptQueue
    port: int
    handled: list[str] = field(default_factory=list)
    dropped: list[tuple[str, CloseReason]] = field(default_factory=list)
    fault: Exception | None = None
    """The error that the handler raises."""

    async def connect(self, source: str = LOOPBACK) -> trio.SocketStream:
        return await trio.open_tcp_stream(LOOPBACK, self.port, local_address=source)


@asynccontextmanager
async def listening(options: AcceptOptions) -> AsyncIterator[ListeningQueue]:
    async def handle(stream: trio.SocketStream, address: str) -> None:
        async with stream:
            found.handled.append(address)
            data = await stream.receive_some()
            if found.fault is not None:
                raise found.fault
            await stream.send_all(data)

    def dropped(address: str, why: CloseReason) -> None:
        found.dropped.append((address, why))

    listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
    queue = AcceptQueue(options, dropped=dropped)
    found = ListeningQueue(queue, int(listeners[0].socket.getsockname()[1]))
    async with trio.open_nursery() as nursery:
        await nursery.start(queue.serve, listeners, handle)
        with trio.fail_after(60):
            yield found
        nursery.cancel_scope.cancel()


async def receives_echo(stream: trio.SocketStream) -> bool:
    await stream.send_all(b"x")
    return await stream.receive_some() == b"x"


async def test_unproven_connections_over_limit_drop_oldest() -> None:
    async with listening(AcceptOptions(unknown_max=8, unknown_per_source_max=8)) as found:
        idle = [await found.connect() for _ in range(40)]
        active = await found.connect()
        assert await receives_echo(active)
        assert found.queue.waiting <= 8
        assert found.handled == [LOOPBACK]
        assert {why for _, why in found.dropped} == {CloseReason.CROWDED}
        for each in (*idle, active):
            await each.aclose()


async def test_source_over_limit_loses_only_its_own_connections() -> None:
    """Source 127.0.0.2 opens more idle connections than it may have; one connection from 127.0.0.3 stays open."""
    async with listening(AcceptOptions(unknown_max=64, unknown_per_source_max=4)) as found:
        other = await found.connect("127.0.0.3")
        flood = [await found.connect("127.0.0.2") for _ in range(60)]
        assert await receives_echo(other)
        assert {address for address, _ in found.dropped} == {"127.0.0.2"}
        for each in (*flood, other):
            await each.aclose()


async def test_proven_source_is_served_before_unknown_sources() -> None:
    """20 connections of an unknown source wait, and the queue starts one per second."""
    async with listening(AcceptOptions(starts_per_s=1.0)) as found:
        found.queue.known.add("127.0.0.3")
        flood = [await found.connect("127.0.0.2") for _ in range(20)]
        for each in flood:
            await each.send_all(b"x")
        member = await found.connect("127.0.0.3")
        assert await receives_echo(member)
        assert found.handled.count("127.0.0.2") < 5
        for each in (*flood, member):
            await each.aclose()


async def test_idle_or_closed_connection_is_dropped_unhandled() -> None:
    async with listening(AcceptOptions(waiting_s=0.2)) as found:
        idle, closed = await found.connect(), await found.connect()
        await closed.aclose()
        assert await idle.receive_some() == b""
        assert {why for _, why in found.dropped} == {CloseReason.SILENT, CloseReason.GONE}
        assert found.handled == []
        await idle.aclose()


async def test_exhausted_descriptors_drop_oldest_idle_connection(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """With EMFILE, the queue closes its oldest idle connection without spinning, and accepts the new one later."""
    hold_for_sockets(autojump_clock)
    refused = 0
    accept = socket.socket.accept

    def exhausted(listener: socket.socket) -> tuple[socket.socket, object]:
        nonlocal refused
        if full:
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    full = False
    async with listening(AcceptOptions()) as found:
        idle = await found.connect()
        await trio.sleep(0.01)
        assert found.queue.waiting == 1
        monkeypatch.setattr(socket.socket, "accept", exhausted)
        full = True
        late = await found.connect()
        assert await idle.receive_some() == b""
        assert found.dropped == [(LOOPBACK, CloseReason.EXHAUSTED)]
        full = False
        assert await receives_echo(late)
        assert refused < 20
        await idle.aclose()
        await late.aclose()


async def test_connection_without_place_in_selector_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with listening(AcceptOptions()) as found:
        monkeypatch.setattr(found.queue._selector, "register", exhausted)
        refused = await found.connect()
        assert await refused.receive_some() == b""
        assert found.dropped == [(LOOPBACK, CloseReason.EXHAUSTED)]
        await refused.aclose()


def test_source_of_address_is_its_ipv6_network_or_ipv4_address() -> None:
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff") != source_of("2001:db8:0:1::1")
    assert source_of("::ffff:10.0.0.1") == source_of("10.0.0.1") == "10.0.0.1"
    assert source_of("fe80::1%eth0") == "fe80::/64"
    assert source_of("the I2P router") == "the I2P router"


async def test_known_source_expires_after_one_hour(autojump_clock: trio.testing.MockClock) -> None:
    known = KnownSources()
    known.add("10.0.0.1")
    assert "10.0.0.1" in known
    assert "10.0.0.2" not in known
    await trio.sleep(3601)
    assert "10.0.0.1" not in known


async def test_fault_in_handler_ends_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(AcceptOptions()) as found:
        found.fault = ValueError("a fault of the service")
        broken = await found.connect()
        await broken.send_all(b"x")
        assert await broken.receive_some() == b""
        found.fault = None
        working = await found.connect()
        assert await receives_echo(working)
        await until(lambda: "a fault of the service" in caplog.text)
        for each in (broken, working):
            await each.aclose()
    assert caplog.text.count("a fault of the program") == 1
