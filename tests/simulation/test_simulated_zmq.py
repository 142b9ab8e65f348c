"""The simulator's ØMQ sockets: losses on the wire, repetitions, and servers of the package."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, Message, SnapshotReply
from consensus.core.model import Configuration, Entry, Index, LogId, Server, ServerId
from tests.simulation.consensus.history import SHORT, run_history
from tests.simulation.consensus.marks import Marks
from tests.simulation.consensus.profile import STRATEGIES, draw_profile
from tests.simulation.consensus.quiet_way import QuietWay
from tests.simulation.consensus.zmq_sockets import ZmqSockets, members_in_reply

ONE, TWO, THREE = (Server(f"peer {number}", f"tcp://10.0.0.{number}:7669") for number in (1, 2, 3))
LEADER, FOLLOWER = ONE.server_id, TWO.server_id
ENTRY = Entry.command(1, b"123456789012x")
REPEAT_MS = 50


@dataclass
class SimulatedHost:
    """A server with simulated sockets."""

    wire: "Wire"
    configuration: Configuration | None = Configuration((ONE, TWO))  # noqa: RUF009 - it cannot change
    snapshot_bytes: int = 6

    @property
    def clock_ms(self) -> int:
        return self.wire.now

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run `action` immediately: the server never pauses."""
        action()


class Wire(QuietWay):
    """The sockets of two servers; `package`: the follower acts as the package."""

    def __init__(self, *, package: bool = False) -> None:
        super().__init__()
        self.package = package
        self.end = 0
        profile = dataclasses.replace(draw_profile(Random(1), STRATEGIES["zmq"]), repeat_ms=REPEAT_MS)
        self.hosts: dict[ServerId, SimulatedHost] = {server: SimulatedHost(self) for server in (LEADER, FOLLOWER)}
        self.sockets = ZmqSockets(Random(1), profile, self.hosts, self, Marks(), self)

    # The judge's interface.

    def check_request(self, *_details: object) -> None:
        """Ignore a request."""

    def arrived(self, *_details: object) -> None:
        """Ignore a processed request."""

    def acknowledged(self, *_details: object) -> None:
        """Ignore an acknowledgment."""

    def follows_package(self, _server: ServerId) -> bool:
        return self.package

    def end_of(self, _server: ServerId) -> Index:
        """Return the last index of the follower's log."""
        return self.end

    def taken(self, previous: Index, *entries: Entry, commit: Index = 0) -> AppendEntries:
        """Send an append from the leader; return the request that the follower receives."""
        self.sockets.send_request(
            LEADER,
            FOLLOWER,
            AppendEntries(
                term=1, leader=LEADER, previous=LogId(previous, 1), entries=entries, commit=commit, correlation=700
            ),
        )
        (request,) = self.run(10)
        assert isinstance(request, AppendEntries)
        return request

    def replies_to_append(self, request: AppendEntries, next_index: Index, *, success: bool = True) -> list[Message]:
        """Send the follower's reply; return the messages that the leader receives."""
        self.sockets.send_reply(
            FOLLOWER,
            LEADER,
            AppendReply(term=1, success=success, next_index=next_index, correlation=request.correlation),
        )
        return self.run(10)


def test_sockets_append_and_reply_survive_encoding() -> None:
    wire = Wire()
    request = wire.taken(3, ENTRY, commit=2)
    assert (request.previous, request.entries, request.commit) == (LogId(3, 1), (ENTRY,), 2)
    assert wire.replies_to_append(request, 5) == [AppendReply(term=1, success=True, next_index=5, correlation=700)]


def test_sockets_partial_success_is_not_sent() -> None:
    wire = Wire()
    assert wire.replies_to_append(wire.taken(3, ENTRY), 4) == []


def test_package_refusal_has_hint_only_for_short_log() -> None:
    wire = Wire(package=True)
    wire.end = 9
    (reply,) = wire.replies_to_append(wire.taken(9), 2, success=False)
    assert isinstance(reply, AppendReply)
    assert reply.next_index == 9
    wire.end = 4
    (reply,) = wire.replies_to_append(wire.taken(9), 2, success=False)
    assert isinstance(reply, AppendReply)
    assert reply.next_index == 5


def test_sockets_repetition_reaches_no_core() -> None:
    wire = Wire()
    request = wire.taken(3, ENTRY)
    wire.run(REPEAT_MS)
    wire.replies_to_append(request, 5)
    assert wire.run(3 * REPEAT_MS) == []


def test_sockets_committing_append_not_repeated_on_reconnect() -> None:
    for commit, times in ((3, 1), (4, 0)):
        wire = Wire()
        wire.taken(3, ENTRY, commit=commit)
        wire.sockets._break(wire.sockets._dealers[LEADER, FOLLOWER].connection)  # type: ignore[arg-type]
        assert len(wire.run(2 * REPEAT_MS - 10)) == times


def test_sockets_snapshot_has_current_members() -> None:
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
    wire.sockets.send_request(LEADER, FOLLOWER, chunk)
    assert wire.run(10) == []
    (taken,) = wire.run(10)
    assert isinstance(taken, InstallSnapshot)
    assert taken.configuration == Configuration((ONE, THREE, TWO))
    installed = SnapshotReply(term=1, accepted=True, next_offset=6, installed=True, correlation=taken.correlation)
    wire.sockets.send_reply(FOLLOWER, LEADER, installed)
    assert wire.run(10) == [replace(installed, correlation=700)]


def test_requested_members_without_change_equal_voters() -> None:
    assert members_in_reply(Configuration((ONE, TWO))) == Configuration((ONE, TWO))


def test_history_server_ids_are_strings() -> None:
    lines: list[str] = []
    run_history(3, SHORT, STRATEGIES["zmq"], lines.append)
    assert any("server_id='peer 1'" in line for line in lines)
