"""ØMQ endpoints: the error without pyzmq, broadcasts of a log, limits of frames, and an endpoint of another log."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import zmq
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.node import client_endpoints as opening
from bridge.node.events.alarms import NodeStopped
from bridge.node.founded_farm import CurrentFarm
from bridge.node.local_node import LocalNode
from bridge.node.settings.clients import ZmqSettings
from bridge.node.zmq.endpoint import READ_BYTES, WRITE_BYTES, open_endpoint
from consensus.core.model import Entry, Index
from consensus.protocols.zmq_raft import EndpointAddress, FollowedLog, LogDescription, bound_endpoint, connect
from consensus.protocols.zmq_raft.counters import EndpointEvent
from consensus.protocols.zmq_raft.endpoint.broadcast import HEARTBEAT_S, broadcast_log
from consensus.protocols.zmq_raft.sockets import SocketKind, ZmqSocket, zmq_context
from consensus.protocols.zmq_raft.wire.codec import decode_broadcast
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS
from consensus.server.errors import ServerBusyError
from gossip import Address

LOOPBACK = "127.0.0.1"


async def test_endpoint_without_pyzmq_names_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda _: None)
    settings = SimpleNamespace(zmq=ZmqSettings(listen=Address(LOOPBACK, 0)), kafka=None)
    local = cast("LocalNode", SimpleNamespace(configuration=settings))
    with pytest.raises(NodeStopped, match=r"pip install 'garlicfarm\[zmq\]'"):
        async with opening.client_endpoints(local, CurrentFarm()):
            pass


class GrowingLog:
    """A log of another protocol, which grows under the control of a test."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.compacted = 0
        self.leads = True
        self.busy = False
        self._news = trio.Event()

    def grow(self, *contents: bytes) -> None:
        """Append and apply entries."""
        self.entries += [Entry.command(3, bytes(12) + each) for each in contents]
        self._news.set()
        self._news = trio.Event()

    def describe(self) -> LogDescription:
        """Describe the log, with all entries applied."""
        last = len(self.entries)
        leader = "here" if self.leads else None
        return LogDescription(self.leads, leader, (), 3, self.compacted + 1, last, last, last, 0, 0)

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return at most two entries; none if they are compacted."""
        del limit_bytes
        await trio.lowlevel.checkpoint()
        if self.busy:
            self.busy = False
            raise ServerBusyError("busy")
        return () if first <= self.compacted else tuple(self.entries[first - 1 : first - 1 + min(2, limit_entries)])

    async def news(self) -> None:
        """Wait until the log grows."""
        await self._news.wait()


async def broadcasts_during(
    scenario: Callable[[GrowingLog], None], log: GrowingLog, wait_s: float
) -> list[tuple[int, list[bytes]]]:
    """Run a scenario, and return the last index and the entries of each broadcast."""
    broadcasts: list[tuple[int, list[bytes]]] = []

    def send(frames: object) -> bool:
        broadcast = decode_broadcast(cast("list[bytes]", frames), DEFAULT_LIMITS)
        assert (broadcast.ident, broadcast.term) == (b"x", 3)
        broadcasts.append((broadcast.last_applied, [each.data[12:] for each in broadcast.entries]))
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broadcast_log, cast("FollowedLog", log), b"x", send)
        await wait_all_tasks_blocked()
        scenario(log)
        await trio.sleep(wait_s)
        nursery.cancel_scope.cancel()
    return broadcasts


async def test_entries_broadcast_in_order_from_start(autojump_clock: MockClock) -> None:
    log = GrowingLog()
    log.grow(b"before")
    log.busy = True
    broadcasts = await broadcasts_during(lambda log: log.grow(b"1", b"2", b"3"), log, 0.1)
    assert broadcasts == [(3, [b"1", b"2"]), (4, [b"3"])]


async def test_heartbeats_sent_every_half_second_by_leader_only(autojump_clock: MockClock) -> None:
    log = GrowingLog()
    assert await broadcasts_during(lambda _: None, log, 2.1 * HEARTBEAT_S) == [(0, [])] * 2
    log.leads = False
    assert await broadcasts_during(lambda _: None, log, 2.1 * HEARTBEAT_S) == []


async def test_replayed_entries_not_broadcast(autojump_clock: MockClock) -> None:
    def start(log: GrowingLog) -> None:
        log.grow(b"1", b"2")
        log.leads = True

    log = GrowingLog()
    log.leads = False
    assert await broadcasts_during(start, log, 1.1 * HEARTBEAT_S) == [(2, [])]


async def test_entries_compacted_before_broadcast_leave_gap(autojump_clock: MockClock) -> None:
    def install(log: GrowingLog) -> None:
        log.compacted = 2
        log.grow(b"1", b"2")

    assert await broadcasts_during(install, GrowingLog(), 0.1) == [(2, [])]


@pytest.mark.parametrize(("write", "limit_bytes"), [(False, READ_BYTES), (True, WRITE_BYTES)])
async def test_oversized_frame_closes_connection_to_farm(*, write: bool, limit_bytes: int) -> None:
    # Given: the endpoint of a farm, and a client that monitors its connection
    settings = ZmqSettings(listen=Address(LOOPBACK, 0), write=write)
    local = cast("LocalNode", SimpleNamespace(farm_key=SimpleNamespace(cluster="x"), alarms=None))
    with trio.fail_after(60), zmq_context() as context:
        async with open_endpoint(local, settings, CurrentFarm()) as endpoint, trio.open_nursery() as nursery:
            nursery.start_soon(endpoint.serve)
            dealer = ZmqSocket(context, SocketKind.DEALER)
            dealer.connect(endpoint.url)
            with dealer._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
                # When: the client sends a frame slightly below the limit
                dealer.send([bytes(limit_bytes - 255)])
                # Then: the endpoint reads it
                while not endpoint.counters.get(EndpointEvent.MESSAGES_RECEIVED):
                    await trio.lowlevel.checkpoint()
                assert not monitor.poll(0)
                # When: a frame exceeds the limit by one byte; then: the endpoint closes the connection
                dealer.send([bytes(limit_bytes + 1)])
                assert monitor.poll(5_000)
            assert endpoint.counters[EndpointEvent.MESSAGES_RECEIVED] == 1
            nursery.cancel_scope.cancel()


async def test_client_connects_to_serving_endpoint() -> None:
    log = GrowingLog()
    with trio.fail_after(60), bound_endpoint(EndpointAddress(f"tcp://{LOOPBACK}:0", b"x")) as endpoint:
        async with trio.open_nursery() as nursery:
            await nursery.start(endpoint.serve, log)
            async with connect([endpoint.url], "x") as client:
                assert (await client.log_info(endpoint.url)).term == 3
            assert endpoint.counts[EndpointEvent.MESSAGES_RECEIVED] >= 1
            assert endpoint.under_way == 0
            nursery.cancel_scope.cancel()
