"""The simulator's ØMQ sockets: what the wire loses, what is repeated, and what servers of the package are spared."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, Message, SnapshotReply
from consensus.core.model import Configuration, Entry, Index, LogId, Server, ServerId
from tests.simulation.consensus.history import SHORT, run_history
from tests.simulation.consensus.marks import Marks
from tests.simulation.consensus.profile import STRATEGIES, draw_profile
from tests.simulation.consensus.zmq_sockets import ZmqSockets, told_members

ONE, TWO, THREE = (Server(f"peer {number}", f"tcp://10.0.0.{number}:7669") for number in (1, 2, 3))
LEADER, FOLLOWER = ONE.server_id, TWO.server_id
ENTRY = Entry.command(1, b"123456789012x")
REPEAT_MS = 50


@dataclass
class SimulatedHost:
    """A server behind its sockets."""

    wire: "Wire"
    configuration: Configuration | None = Configuration((ONE, TWO))  # noqa: RUF009 - it cannot change
    snapshot_bytes: int = 6

    @property
    def clock_ms(self) -> int:
        """It has the time of the world."""
        return self.wire.now

    def when_awake(self, action: Callable[[], None]) -> None:
        """It never sleeps."""
        action()


class Wire:
    """A network that takes 5 ms for every message, with two servers; `package`: the follower is of the package."""

    def __init__(self, *, package: bool = False) -> None:
        self.now = 0
        self.package = package
        self.end = 0
        self.delivered: list[Message] = []
        profile = replace(draw_profile(Random(1), STRATEGIES["zmq"]), repeat_ms=REPEAT_MS)
        self.hosts: dict[ServerId, SimulatedHost] = {server: SimulatedHost(self) for server in (LEADER, FOLLOWER)}
        self.sockets = ZmqSockets(Random(1), profile, self.hosts, self, Marks(), self)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    # What the sockets ask of a judge.

    def asked(self, *_details: object) -> None:
        """A request leaves."""

    def arrived(self, *_details: object) -> None:
        """A request is taken up."""

    def acknowledged(self, *_details: object) -> None:
        """A success leaves."""

    def follows_package(self, _server: ServerId) -> bool:
        """Whether the follower is of the package."""
        return self.package

    def end_of(self, _server: ServerId) -> Index:
        """Where the follower's log ends."""
        return self.end

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay_ms`."""
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._sequence, action))

    def reaches(self, _sender: ServerId, _recipient: ServerId) -> bool:
        """Every way is open."""
        return True

    def draw_delay_ms(self) -> int:
        """Every message takes as long."""
        return 5

    def draw_loss(self) -> bool:
        """No message is lost."""
        return False

    def deliver(self, _sender: ServerId, _recipient: ServerId, message: Message) -> bool:
        """A message has arrived."""
        self.delivered.append(message)
        return True

    def run(self, for_ms: int) -> list[Message]:
        """Let time pass; returns what arrived meanwhile."""
        until_ms = self.now + for_ms
        self.delivered.clear()
        while self._queue and self._queue[0][0] <= until_ms:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until_ms
        return list(self.delivered)

    def taken(self, previous: Index, *entries: Entry, commit: Index = 0) -> AppendEntries:
        """The leader sends an append; returns what the follower gets."""
        self.sockets.ask(
            LEADER,
            FOLLOWER,
            AppendEntries(
                term=1, leader=LEADER, previous=LogId(previous, 1), entries=entries, commit=commit, correlation=700
            ),
        )
        (request,) = self.run(10)
        assert isinstance(request, AppendEntries)
        return request

    def answered(self, request: AppendEntries, next_index: Index, *, success: bool = True) -> list[Message]:
        """The follower answers; returns what the leader gets."""
        self.sockets.answer(
            FOLLOWER,
            LEADER,
            AppendReply(term=1, success=success, next_index=next_index, correlation=request.correlation),
        )
        return self.run(10)


def test_an_append_and_its_answer_come_through_the_frames_as_they_were() -> None:
    wire = Wire()
    request = wire.taken(3, ENTRY, commit=2)
    assert (request.previous, request.entries, request.commit) == (LogId(3, 1), (ENTRY,), 2)
    assert wire.answered(request, 5) == [AppendReply(term=1, success=True, next_index=5, correlation=700)]


def test_a_success_that_covers_less_than_was_sent_is_not_told() -> None:
    wire = Wire()
    assert wire.answered(wire.taken(3, ENTRY), 4) == []


def test_a_server_of_the_package_names_no_place_where_terms_differ() -> None:
    wire = Wire(package=True)
    wire.end = 9
    (reply,) = wire.answered(wire.taken(9), 2, success=False)
    assert isinstance(reply, AppendReply)
    assert reply.next_index == 9
    wire.end = 4
    (reply,) = wire.answered(wire.taken(9), 2, success=False)
    assert isinstance(reply, AppendReply)
    assert reply.next_index == 5


def test_a_repetition_gets_the_same_reply_and_reaches_no_core() -> None:
    wire = Wire()
    request = wire.taken(3, ENTRY)
    wire.run(REPEAT_MS)
    wire.answered(request, 5)
    assert wire.run(3 * REPEAT_MS) == []


def test_a_request_is_repeated_over_a_new_connection_unless_the_follower_may_have_committed_what_it_brings() -> None:
    for commit, times in ((3, 1), (4, 0)):
        wire = Wire()
        wire.taken(3, ENTRY, commit=commit)
        wire.sockets._break(wire.sockets._dealers[LEADER, FOLLOWER].connection)  # type: ignore[arg-type]
        assert len(wire.run(2 * REPEAT_MS - 10)) == times


def test_a_snapshot_waits_for_its_members_and_comes_with_those_of_now() -> None:
    wire = Wire()
    wire.hosts[LEADER].configuration = Configuration((ONE, THREE), (ONE, TWO))
    chunk = InstallSnapshot(
        term=1,
        leader=LEADER,
        last=LogId(3, 1),
        configuration=Configuration((ONE,)),
        offset=0,
        data=b"abcdef",
        done=True,
        correlation=700,
    )
    wire.sockets.ask(LEADER, FOLLOWER, chunk)
    assert wire.run(10) == []
    (taken,) = wire.run(10)
    assert isinstance(taken, InstallSnapshot)
    assert taken.configuration == Configuration((ONE, THREE, TWO))
    installed = SnapshotReply(term=1, accepted=True, next_offset=6, installed=True, correlation=taken.correlation)
    wire.sockets.answer(FOLLOWER, LEADER, installed)
    assert wire.run(10) == [replace(installed, correlation=700)]


def test_members_that_do_not_change_are_told_as_they_are() -> None:
    assert told_members(Configuration((ONE, TWO))) == Configuration((ONE, TWO))


def test_servers_of_a_history_have_ids_that_are_strings() -> None:
    lines: list[str] = []
    run_history(3, SHORT, STRATEGIES["zmq"], lines.append)
    assert any("server_id='peer 1'" in line for line in lines)
