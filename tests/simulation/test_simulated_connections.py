"""The simulator's connections: order, losses, and heartbeats on a second connection."""

from random import Random

from consensus.core.messages import AppendEntries, AppendReply, Message
from consensus.core.model import Entry, EntryKind, LogId, ServerId
from tests.simulation.consensus.connections import Connections, Wiring
from tests.simulation.consensus.quiet_way import QuietWay

ONE, TWO = 1, 2
REPLY_TIMEOUT_MS = 300


class Wire(QuietWay):
    """Connections over the network."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__()
        self.arrived: list[tuple[int, ServerId, int]] = []
        self.connections = Connections(Random(1), wiring, REPLY_TIMEOUT_MS, self)

    def deliver(self, _sender: ServerId, recipient: ServerId, message: Message) -> bool:
        """Record a delivery with its time."""
        self.arrived.append((self.now, recipient, message.correlation))
        return True

    def run_until(self, until_ms: int) -> list[tuple[int, ServerId, int]]:
        """Advance the time; return the deliveries as time, recipient and correlation."""
        self.arrived.clear()
        self.run(until_ms - self.now)
        return list(self.arrived)

    def send_append(self, correlation: int, *entries: Entry) -> None:
        """Send an append from server 1; without entries it is a heartbeat."""
        self.connections.send_request(
            ONE,
            TWO,
            AppendEntries(term=1, leader=ONE, previous=LogId(0, 0), entries=entries, commit=0, correlation=correlation),
        )

    def send_reply(self, correlation: int) -> None:
        self.connections.send_reply(TWO, ONE, AppendReply(term=1, success=True, next_index=1, correlation=correlation))


ENTRY = Entry(1, EntryKind.COMMAND, b"x")


def test_connection_replies_leave_in_request_order() -> None:
    # Given an append, followed by a heartbeat
    wire = Wire(Wiring.ONE)
    wire.send_append(1, ENTRY)
    wire.send_append(2)
    assert wire.run_until(10) == [(5, TWO, 1), (5, TWO, 2)]
    # When the reply to the heartbeat is known first, nothing is delivered
    wire.send_reply(2)
    assert wire.run_until(100) == []
    # Then both replies arrive in order after the append is answered
    wire.send_reply(1)
    assert wire.run_until(200) == [(105, ONE, 1), (105, ONE, 2)]


def test_heartbeats_apart_keep_waiting_connection_alive() -> None:
    wire = Wire(Wiring.HEARTBEATS_APART)
    wire.send_append(1, ENTRY)
    # Given a disk that takes longer than the reply timeout, and immediate replies to heartbeats
    for correlation in range(2, 10):
        wire.run_until(wire.now + 100)
        wire.send_append(correlation)
        wire.run_until(wire.now + 5)
        wire.send_reply(correlation)
        # Then the reply to each heartbeat arrives
        assert wire.run_until(wire.now + 5) == [(wire.now, ONE, correlation)]
    # And the append may still be answered
    assert wire.now > 2 * REPLY_TIMEOUT_MS
    wire.send_reply(1)
    assert wire.run_until(wire.now + 5) == [(wire.now, ONE, 1)]


def test_connection_overdue_reply_breaks_connection() -> None:
    wire = Wire(Wiring.ONE)
    wire.send_append(1, ENTRY)
    wire.run_until(REPLY_TIMEOUT_MS - 100)
    wire.send_append(2)
    wire.run_until(REPLY_TIMEOUT_MS + 50)
    # When both are answered later, no reply is delivered
    wire.send_reply(1)
    wire.send_reply(2)
    assert wire.run_until(1_000) == []
    # Then the next request opens another connection
    wire.send_append(3)
    assert wire.run_until(2_000) == [(1_005, TWO, 3)]


def test_connection_cut_or_stopped_loses_messages() -> None:
    for stops in (False, True):
        wire = Wire(Wiring.ONE)
        wire.send_append(1)
        wire.is_cut = not stops
        if stops:
            wire.connections.stopped(TWO)
        assert wire.run_until(100) == []
        wire.is_cut = False
        wire.send_reply(1)
        assert wire.run_until(200) == []
