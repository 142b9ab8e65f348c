"""The connections of the simulator: what they keep in order, what they lose, and what passes by."""

import heapq
from collections.abc import Callable
from random import Random

from consensus.core.messages import AppendEntries, AppendReply, Message
from consensus.core.model import Entry, EntryKind, LogId, ServerId
from tests.simulation.consensus.connections import Connections, Wiring

ONE, TWO = 1, 2
REPLY_TIMEOUT_MS = 300


class Wire:
    """A network that takes 5 ms for every message, and remembers what has arrived."""

    def __init__(self, wiring: Wiring) -> None:
        self.now = 0
        self.is_cut = False
        self.arrived: list[tuple[int, ServerId, int]] = []
        self.connections = Connections(Random(1), wiring, REPLY_TIMEOUT_MS, self)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay_ms`."""
        heapq.heappush(self._queue, (self.now + delay_ms, len(self._queue), action))

    def reaches(self, _sender: ServerId, _recipient: ServerId) -> bool:
        """Whether the way is open."""
        return not self.is_cut

    def draw_delay_ms(self) -> int:
        """Every message takes as long."""
        return 5

    def draw_loss(self) -> bool:
        """No message is lost."""
        return False

    def deliver(self, _sender: ServerId, recipient: ServerId, message: Message) -> bool:
        """A message has arrived."""
        self.arrived.append((self.now, recipient, message.correlation))
        return True

    def run(self, until_ms: int) -> list[tuple[int, ServerId, int]]:
        """Let time pass; returns what arrived meanwhile: when, at whom, with which correlation."""
        self.arrived.clear()
        while self._queue and self._queue[0][0] <= until_ms:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until_ms
        return list(self.arrived)

    def ask(self, correlation: int, *entries: Entry) -> None:
        """Server 1 sends an append, or a heartbeat if it has no entries."""
        self.connections.ask(
            ONE,
            TWO,
            AppendEntries(term=1, leader=ONE, previous=LogId(0, 0), entries=entries, commit=0, correlation=correlation),
        )

    def answer(self, correlation: int) -> None:
        """Server 2 answers it."""
        self.connections.answer(TWO, ONE, AppendReply(term=1, success=True, next_index=1, correlation=correlation))


ENTRY = Entry(1, EntryKind.COMMAND, b"x")


def test_a_reply_that_is_known_waits_for_the_replies_to_earlier_requests() -> None:
    # Given an append, and a heartbeat behind it
    wire = Wire(Wiring.ONE)
    wire.ask(1, ENTRY)
    wire.ask(2)
    assert wire.run(10) == [(5, TWO, 1), (5, TWO, 2)]
    # When the answer to the heartbeat is known first, nothing is told
    wire.answer(2)
    assert wire.run(100) == []
    # Then both replies arrive when the append is answered, in order
    wire.answer(1)
    assert wire.run(200) == [(105, ONE, 1), (105, ONE, 2)]


def test_a_heartbeat_passes_by_a_connection_that_owes_a_reply_for_long_and_keeps_it_alive() -> None:
    wire = Wire(Wiring.HEARTBEATS_APART)
    wire.ask(1, ENTRY)
    # Given a disk that takes longer than a reply may take, and heartbeats that are answered at once
    for correlation in range(2, 10):
        wire.run(wire.now + 100)
        wire.ask(correlation)
        wire.run(wire.now + 5)
        wire.answer(correlation)
        # Then the reply to each arrives
        assert wire.run(wire.now + 5) == [(wire.now, ONE, correlation)]
    # And the append may still be answered
    assert wire.now > 2 * REPLY_TIMEOUT_MS
    wire.answer(1)
    assert wire.run(wire.now + 5) == [(wire.now, ONE, 1)]


def test_a_connection_that_owes_a_reply_for_too_long_is_lost_with_all_that_is_on_it() -> None:
    wire = Wire(Wiring.ONE)
    wire.ask(1, ENTRY)
    wire.run(REPLY_TIMEOUT_MS - 100)
    wire.ask(2)
    wire.run(REPLY_TIMEOUT_MS + 50)
    # When both are answered after that, no caller hears of it
    wire.answer(1)
    wire.answer(2)
    assert wire.run(1_000) == []
    # Then the next request opens another connection
    wire.ask(3)
    assert wire.run(2_000) == [(1_005, TWO, 3)]


def test_what_is_under_way_is_lost_when_the_way_is_cut_or_an_end_stops() -> None:
    for stops in (False, True):
        wire = Wire(Wiring.ONE)
        wire.ask(1)
        wire.is_cut = not stops
        if stops:
            wire.connections.stopped(TWO)
        assert wire.run(100) == []
        wire.is_cut = False
        wire.answer(1)
        assert wire.run(200) == []
