"""An append that the state machine cannot take is answered, and is no contact with a leader, on either side."""

from dataclasses import replace

from consensus.core.effects import Persist, ReadReady, Role, Send
from consensus.core.events import ReadRequested, Rejected, SnapshotChecked
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.position import LogPosition, SnapshotDescription
from tests.spec.raft_bench import THREE, TWO, Bench, group, suffix

AT = LogPosition


def test_nothing_of_it_is_stored_and_its_term_is_not_adopted() -> None:
    bench = Bench(1, term=3)
    bench.step(Rejected(TWO, AppendEntries(5, TWO, AT(1, 1), suffix(2, 5), 2, 7)))
    assert bench.all(Persist) == []
    assert bench.all(Send) == [Send(TWO, AppendReply(0, success=False, next_index=2, correlation=7), 0)]
    assert (bench.about.term, bench.about.leader, bench.terms) == (3, None, [1])
    assert dict(bench.about.dropped)["append that the state machine cannot take"] == 1


def test_it_restarts_no_election_timer_and_makes_nobody_deaf_to_candidates() -> None:
    bench = Bench(1, term=3)
    due = bench.raft.deadline
    bench.step(Rejected(TWO, AppendEntries(3, TWO, AT(1, 1), suffix(2, 3), 2, 7)), after_ms=100)
    assert bench.raft.deadline == due
    assert bench.ask(4, AT(1, 1), sender=THREE).granted


def test_its_answer_keeps_no_leader_in_office_and_confirms_no_read() -> None:
    bench = Bench(1)
    bench.lead()
    first = bench.appends(TWO)[0]
    bench.matched(TWO, first)
    bench.step(ReadRequested(1))
    (asked,) = bench.appends(TWO)
    bench.now += 500
    bench.receive(TWO, AppendReply(0, success=False, next_index=1, correlation=asked.correlation))
    assert bench.all(ReadReady) == []
    (follower,) = (each for each in bench.about.followers if each.server_id == TWO)
    assert follower.contact_ms == 500
    while bench.is_(Role.LEADER):
        bench.expire()
        for append in (*bench.appends(TWO), *bench.appends(THREE)):
            bench.receive(TWO, AppendReply(0, success=False, next_index=1, correlation=append.correlation))
    assert bench.now < 10_000


def test_a_snapshot_that_the_state_machine_cannot_take_is_not_installed() -> None:
    bench = Bench(1, term=3)
    bench.receive(TWO, InstallSnapshot(3, TWO, AT(9, 2), group(3), 0, b"image", done=True, correlation=7))
    snapshot = SnapshotDescription(AT(9, 2), group(3), 5, 0)
    bench.step(SnapshotChecked(1, snapshot, "of a later version"))
    (answer,) = (send.message for send in bench.all(Send))
    assert answer == SnapshotReply(3, accepted=False, next_offset=0, installed=False, correlation=7)
    assert (bench.about.snapshot, bench.terms) == (None, [1])
    assert replace(snapshot) == snapshot
