"""Connections between the kernel and their handlers: what a flood of strangers costs, and what gets through it."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from consensus.net.accepting import AcceptOptions, AcceptQueue, CloseReason, KnownSources, source_of

LOOPBACK = "127.0.0.1"


@dataclass
class Listening:
    """A queue that listens, and what it did with whom."""

    queue: AcceptQueue
    port: int
    handled: list[str] = field(default_factory=list)
    dropped: list[tuple[str, CloseReason]] = field(default_factory=list)

    async def connect(self, source: str = LOOPBACK) -> trio.SocketStream:
        """A connection from an address of loopback."""
        return await trio.open_tcp_stream(LOOPBACK, self.port, local_address=source)


@asynccontextmanager
async def listening(options: AcceptOptions) -> AsyncIterator[Listening]:
    async def handle(stream: trio.SocketStream, address: str) -> None:
        async with stream:
            found.handled.append(address)
            await stream.send_all(await stream.receive_some())

    def dropped(address: str, why: CloseReason) -> None:
        found.dropped.append((address, why))

    listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
    queue = AcceptQueue(options, dropped=dropped)
    found = Listening(queue, int(listeners[0].socket.getsockname()[1]))
    async with trio.open_nursery() as nursery:
        await nursery.start(queue.serve, listeners, handle)
        with trio.fail_after(30):
            yield found
        nursery.cancel_scope.cancel()


async def answered(stream: trio.SocketStream) -> bool:
    await stream.send_all(b"x")
    return await stream.receive_some() == b"x"


async def test_silent_connections_cost_no_task_and_the_oldest_gives_way() -> None:
    async with listening(AcceptOptions(strangers_max=8, strangers_per_source_max=8)) as found:
        silent = [await found.connect() for _ in range(40)]
        speaking = await found.connect()
        assert await answered(speaking)
        assert found.queue.waiting <= 8
        assert found.handled == [LOOPBACK]
        assert {why for _, why in found.dropped} == {CloseReason.CROWDED}
        for each in (*silent, speaking):
            await each.aclose()


async def test_one_source_cannot_take_the_places_of_another() -> None:
    """Given a source with more silent connections than it may have, then one of another source keeps its place."""
    async with listening(AcceptOptions(strangers_max=64, strangers_per_source_max=4)) as found:
        patient = await found.connect("127.0.0.3")
        flood = [await found.connect("127.0.0.2") for _ in range(60)]
        assert await answered(patient)
        assert {address for address, _ in found.dropped} == {"127.0.0.2"}
        for each in (*flood, patient):
            await each.aclose()


async def test_a_lately_proven_source_is_served_at_once_while_strangers_wait_for_their_turn() -> None:
    """Given strangers of whom next to none may begin, when a known source connects, then it is answered first."""
    async with listening(AcceptOptions(begun_per_s=1.0)) as found:
        found.queue.known.add("127.0.0.3")
        flood = [await found.connect("127.0.0.2") for _ in range(20)]
        for each in flood:
            await each.send_all(b"x")
        member = await found.connect("127.0.0.3")
        assert await answered(member)
        assert found.handled.count("127.0.0.2") < 5
        for each in (*flood, member):
            await each.aclose()


async def test_a_silent_connection_is_closed_and_one_that_hangs_up_costs_nothing() -> None:
    async with listening(AcceptOptions(waiting_s=0.2)) as found:
        silent, gone = await found.connect(), await found.connect()
        await gone.aclose()
        assert await silent.receive_some() == b""
        assert {why for _, why in found.dropped} == {CloseReason.SILENT, CloseReason.GONE}
        assert found.handled == []
        await silent.aclose()


async def test_without_a_free_descriptor_the_oldest_silent_one_is_closed_and_accepting_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a process at its limit, when a peer connects, then nothing spins or ends, and it is let in afterwards."""
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
        silent = await found.connect()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert found.queue.waiting == 1
        monkeypatch.setattr(socket.socket, "accept", exhausted)
        full = True
        late = await found.connect()
        assert await silent.receive_some() == b""
        assert found.dropped == [(LOOPBACK, CloseReason.EXHAUSTED)]
        full = False
        assert await answered(late)
        assert refused < 20
        await silent.aclose()
        await late.aclose()


def test_an_ipv6_network_is_one_source_and_a_mapped_address_is_its_own() -> None:
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff") != source_of("2001:db8:0:1::1")
    assert source_of("::ffff:10.0.0.1") == source_of("10.0.0.1") == "10.0.0.1"
    assert source_of("fe80::1%eth0") == "fe80::/64"
    assert source_of("the I2P router") == "the I2P router"


async def test_a_source_is_known_for_an_hour(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    known = KnownSources()
    known.add("10.0.0.1")
    assert "10.0.0.1" in known
    assert "10.0.0.2" not in known
    await trio.sleep(3601)
    assert "10.0.0.1" not in known
