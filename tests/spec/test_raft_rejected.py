"""A rejected message of a leader gets a reply, but neither side counts the exchange as contact."""

import pytest
from msgspec.structs import replace

from consensus.core.drops import Drop
from consensus.core.effects import Persist, ReadReady, Role, Send
from consensus.core.events import ReadRequested, Rejected, SnapshotChecked
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.model import LogId, SnapshotDescription
from tests.spec.raft_bench import THREE, TWO, Bench, group, suffix

AT = LogId


def test_rejected_append_not_stored_and_term_not_adopted() -> None:
    bench = Bench(1, term=3)
    bench.step(
        Rejected(
            TWO, AppendEntries(term=5, leader=TWO, previous=AT(1, 1), entries=suffix(2, 5), commit=2, correlation=7)
        )
    )
    assert bench.all(Persist) == []
    assert bench.all(Send) == [Send(TWO, AppendReply(term=3, success=False, next_index=2, correlation=7), 0)]
    assert (bench.about.term, bench.about.leader, bench.terms) == (3, None, [1])
    assert dict(bench.about.dropped)[Drop.APPEND_REJECTED_BY_STATE_MACHINE] == 1


IMPLAUSIBLE_APPEND = AppendEntries(term=3, leader=TWO, previous=AT(1, 1), entries=(), commit=-1, correlation=7)
IMPLAUSIBLE_SNAPSHOT = InstallSnapshot(
    term=3, leader=TWO, last=AT(9, 2), configuration=group(3), offset=-1, data=b"image", done=False, correlation=7
)


@pytest.mark.parametrize("refused", [IMPLAUSIBLE_APPEND, IMPLAUSIBLE_SNAPSHOT], ids=["append", "snapshot"])
def test_implausible_message_is_not_leader_contact(refused: AppendEntries | InstallSnapshot) -> None:
    # Given a follower of server 2, after an append from this leader
    bench = Bench(1, term=3)
    bench.append(3, AT(1, 1))
    due = bench.raft.deadline
    # When server 2 sends an invalid message
    bench.receive(TWO, refused, after_ms=900)
    # Then the follower replies without a promise: the reply does not count for a lease or a quorum
    (answer,) = (send.message for send in bench.all(Send))
    assert isinstance(answer, AppendReply | SnapshotReply)
    assert (answer.term, answer.correlation) == (0, 7)
    assert bench.raft.deadline == due
    assert bench.request_vote(4, AT(1, 1), sender=THREE, after_ms=100).granted


def test_second_leader_of_term_gets_reply_with_term_zero() -> None:
    bench = Bench(1, term=3)
    bench.append(3, AT(1, 1))
    bench.receive(THREE, AppendEntries(term=3, leader=THREE, previous=AT(1, 1), entries=(), commit=0, correlation=7))
    assert [send.message for send in bench.all(Send)] == [
        AppendReply(term=0, success=False, next_index=2, correlation=7)
    ]
    (answer,) = bench.chunk(AT(9, 2), done=False, term=3, sender=THREE)
    refusal = SnapshotReply(term=0, accepted=False, next_offset=0, installed=False, correlation=bench.correlation)
    assert answer == refusal


def test_deposed_leader_gets_later_term_in_each_reply() -> None:
    bench = Bench(1, term=3)
    bench.step(
        Rejected(
            TWO, AppendEntries(term=2, leader=TWO, previous=AT(1, 1), entries=suffix(2, 2), commit=2, correlation=7)
        )
    )
    assert [send.message.term for send in bench.all(Send)] == [3]
    bench.receive(TWO, replace(IMPLAUSIBLE_APPEND, term=2))
    assert [send.message.term for send in bench.all(Send)] == [3]


def test_rejected_append_keeps_election_timer() -> None:
    bench = Bench(1, term=3)
    due = bench.raft.deadline
    bench.step(
        Rejected(
            TWO, AppendEntries(term=3, leader=TWO, previous=AT(1, 1), entries=suffix(2, 3), commit=2, correlation=7)
        ),
        after_ms=100,
    )
    assert bench.raft.deadline == due
    assert bench.request_vote(4, AT(1, 1), sender=THREE).granted


def test_reply_to_rejected_append_confirms_nothing() -> None:
    bench = Bench(1).lead()
    first = bench.appends(TWO)[0]
    bench.matched(TWO, first)
    bench.step(ReadRequested(1))
    (append,) = bench.appends(TWO)
    bench.now += 500
    bench.receive(TWO, AppendReply(term=0, success=False, next_index=1, correlation=append.correlation))
    assert bench.all(ReadReady) == []
    (follower,) = (each for each in bench.about.followers if each.server_id == TWO)
    assert follower.contact_ms == 500
    while bench.is_(Role.LEADER):
        bench.expire()
        for append in (*bench.appends(TWO), *bench.appends(THREE)):
            bench.receive(TWO, AppendReply(term=0, success=False, next_index=1, correlation=append.correlation))
    assert bench.now < 10_000


def test_leader_ignores_reply_from_older_term() -> None:
    bench = Bench(1, term=3).lead()
    (append,) = bench.appends(TWO)
    bench.now += 500
    bench.receive(TWO, AppendReply(term=3, success=True, next_index=3, correlation=append.correlation))
    (follower,) = (each for each in bench.about.followers if each.server_id == TWO)
    assert (follower.contact_ms, follower.match) == (None, 0)
    assert dict(bench.about.dropped)[Drop.OLDER_TERM_REPLY] == 1
    bench.matched(TWO, append)
    assert next(each.match for each in bench.about.followers if each.server_id == TWO) == 2


def test_snapshot_refused_by_state_machine_not_installed() -> None:
    bench = Bench(1, term=3)
    bench.chunk(AT(9, 2), term=3)
    snapshot = SnapshotDescription(AT(9, 2), group(3), 10, 0)
    bench.step(SnapshotChecked(1, snapshot, "of a later version"))
    (answer,) = (send.message for send in bench.all(Send))
    assert answer == SnapshotReply(
        term=3, accepted=False, next_offset=0, installed=False, correlation=bench.correlation
    )
    assert (bench.about.snapshot, bench.terms) == (None, [1])
