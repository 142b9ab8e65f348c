"""A leader whose protocol has one request per follower, and no entry without need: ØMQ Raft.

The transport of such a protocol sends a request again until it is answered, and a new one ends the old. A follower of
another make ends if an append begins below its commit index. So the leader asks one thing at a time, and looks for a
follower that did not answer from its own end on.
"""

from dataclasses import replace

import pytest

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ReadEntries, ReadReady, ReadSnapshot, Role, Send
from consensus.core.entry_data import configuration_in
from consensus.core.events import (
    ChangeConfiguration,
    EntriesRead,
    ReadRequested,
    SnapshotRead,
    SnapshotTaken,
    SnapshotWanted,
)
from consensus.core.features import GARLIC_FARM, ZMQ_RAFT, Features
from consensus.core.messages import AppendEntries, InstallSnapshot, SnapshotReply
from consensus.core.model import EntryKind, LogId, SnapshotDescription
from consensus.core.options import Options, lan
from tests.spec.membership_bench import Group, joint, plain
from tests.spec.raft_bench import THREE, TWO, Bench, entries_of, group, suffix

COMMAND = b"123456789012x"


def leader_of(*terms: int, committed: int = 0, features: Features = ZMQ_RAFT, options: Options | None = None) -> Bench:
    """Server 1 leads with entries of these terms, of which it knows the first `committed` to be committed."""
    bench = Bench(*terms, features=features, options=options)
    if committed:
        term = terms[-1]
        bench.append(term, LogId(len(terms), terms[-1]), commit=committed)
    bench.lead()
    return bench


def follow_up(bench: Bench) -> AppendEntries:
    """The next append to server 2, when the clock goes on."""
    while not bench.appends(TWO):
        bench.expire()
    (append,) = bench.appends(TWO)
    return append


def test_a_leader_that_knows_its_whole_log_to_be_committed_appends_nothing() -> None:
    bench = leader_of(1, 1, committed=2)
    assert (bench.terms, bench.about.commit_index) == ([1, 1], 2)
    heartbeat = follow_up(bench)
    assert (heartbeat.previous, heartbeat.entries, heartbeat.commit) == (LogId(2, 1), (), 2)


def test_the_first_leader_of_an_empty_log_appends_nothing() -> None:
    bench = leader_of()
    assert bench.about.last.index == 0


@pytest.mark.parametrize("committed", [0, 1])
def test_a_leader_with_uncommitted_entries_of_older_terms_appends_a_checkpoint(committed: int) -> None:
    """Only an entry of its own term may be committed by counting (Raft section 5.4.2)."""
    bench = leader_of(1, 1, committed=committed)
    assert bench.terms == [1, 1, 2]
    append = follow_up(bench)
    assert [entry.kind for entry in append.entries] == [EntryKind.NO_OP]
    bench.matched(TWO, append)
    assert bench.about.commit_index == 3


def test_a_read_makes_a_leader_append_the_checkpoint_that_it_left_out() -> None:
    bench = leader_of(1, committed=1)
    bench.step(ReadRequested(7))
    assert bench.terms == [1, 2]
    while not bench.all(ReadReady):
        bench.matched(TWO, follow_up(bench))
    assert bench.all(ReadReady) == [ReadReady(7, 2)]


def test_a_change_of_the_members_waits_for_the_checkpoint() -> None:
    bench = Group(1, features=ZMQ_RAFT)
    bench.append(1, LogId(1, 1), commit=1)
    bench.lead()
    bench.change(plain(1, 2))
    assert bench.answers[-1].refusal is ChangeRefusal.NO_COMMIT_IN_TERM
    assert bench.terms == [1, 2]
    bench.store(2)
    bench.change(plain(1, 2), change_id=2)
    bench.store(2, 3)
    assert bench.answers[-1].outcome is ChangeOutcome.COMMITTED


def test_one_server_less_is_a_joint_change_as_well() -> None:
    bench = Group(1, features=ZMQ_RAFT)
    bench.become_leader()
    bench.change(plain(1, 2))
    bench.store(2, 3)
    found = [configuration_in(entry) for entry in bench.appended if entry.kind is EntryKind.CONFIGURATION]
    assert found == [joint((1, 2, 3), (1, 2)), plain(1, 2)]


def test_a_leader_that_inherits_a_committed_joint_configuration_finishes_it() -> None:
    changing = Group(1, features=ZMQ_RAFT)
    changing.become_leader()
    changing.step(ChangeConfiguration(1, plain(1, 2)))
    entries = [*entries_of(1), *changing.appended]
    heir = Group(entries=entries, term=2, features=ZMQ_RAFT)
    heir.append(2, LogId(len(entries), entries[-1].term), commit=len(entries))
    heir.lead()
    heir.store(2, 3)
    assert heir.configuration == plain(1, 2)


def test_nothing_is_sent_to_a_follower_that_owes_an_answer() -> None:
    """Neither entries nor heartbeats; what has gathered goes with the next request."""
    bench = leader_of(1)
    first = follow_up(bench)
    for _ in range(3):
        bench.propose(COMMAND)
        assert not bench.appends(TWO)
    bench.matched(TWO, first)
    (next_append,) = bench.appends(TWO)
    assert len(next_append.entries) == 3


def test_a_round_of_reads_waits_for_the_answer_under_way_and_asks_again() -> None:
    """An answer to what was sent before the read proves nothing."""
    bench = leader_of(1)
    bench.matched(TWO, follow_up(bench))
    bench.propose(COMMAND)
    under_way = follow_up(bench)
    bench.step(ReadRequested(7))
    assert not bench.appends(TWO)
    bench.matched(TWO, under_way)
    assert not bench.all(ReadReady)
    (asked,) = bench.appends(TWO)
    bench.matched(TWO, asked)
    assert bench.all(ReadReady) == [ReadReady(7, 2)]


def silent_follower(features: Features) -> tuple[Bench, list[AppendEntries]]:
    """What a follower that answers once and then never again is sent in five retry intervals."""
    bench = leader_of(1, features=features)
    sent = [follow_up(bench)]
    bench.matched(TWO, sent[0])
    bench.propose(COMMAND)
    until = bench.now + 5 * bench.raft._replica.options.retry_ms
    while bench.now < until:
        sent += bench.appends(TWO)
        for send in bench.all(Send):
            if send.recipient == THREE and isinstance(send.message, AppendEntries):
                bench.matched(THREE, send.message)
        bench.expire()
    assert bench.is_(Role.LEADER)
    return bench, sent


def test_a_follower_that_does_not_answer_is_asked_from_the_end_of_the_log_on() -> None:
    """It may have stored and committed what it was sent, although its answer was lost."""
    bench, sent = silent_follower(ZMQ_RAFT)
    probes = [append for append in sent if not append.entries]
    assert probes
    assert all(append.previous.index == bench.about.last.index for append in probes)


def test_where_appends_below_the_commit_index_harm_nothing_the_follower_is_asked_from_its_match_index_on() -> None:
    _, sent = silent_follower(GARLIC_FARM)
    probes = [append for append in sent if not append.entries]
    assert any(append.previous.index == sent[0].previous.index + len(sent[0].entries) for append in probes)


def test_a_late_answer_to_what_was_taken_for_lost_still_counts() -> None:
    bench = leader_of(1)
    first = follow_up(bench)
    while not bench.appends(TWO) or bench.appends(TWO)[0] is first:
        bench.expire()
    (probe,) = bench.appends(TWO)
    bench.matched(TWO, first)
    assert bench.about.commit_index == 2
    assert not bench.appends(TWO)
    bench.matched(TWO, probe)
    assert bench.about.commit_index == 2


@pytest.mark.parametrize("follower_has", range(5))
def test_no_append_ever_begins_below_what_the_follower_has_committed(follower_has: int) -> None:
    """A follower that holds and committed `follower_has` of the leader's entries is found from above."""
    bench = leader_of(1, 1, 2, 2, 3)
    append = follow_up(bench)
    while append.previous.index > follower_has:
        bench.refused(TWO, append, hint=append.previous.index)
        append = follow_up(bench)
    assert append.previous.index == follower_has


def given_up(bench: Bench) -> tuple[AppendEntries, AppendEntries]:
    """The first append to server 2, which does not answer in time, and the probe that took its place."""
    first = follow_up(bench)
    bench.expire()
    return first, follow_up(bench)


def test_a_late_refusal_leaves_the_probe_under_way_which_is_answered_before_the_next_is_asked() -> None:
    bench = leader_of(1, 1, 1)
    first, probe = given_up(bench)
    bench.refused(TWO, first, hint=1)
    assert not bench.appends(TWO)
    bench.refused(TWO, probe, hint=1)
    (append,) = bench.appends(TWO)
    assert append.previous.index == 0


def test_a_late_success_leaves_the_probe_under_way_which_is_answered_before_the_next_is_asked() -> None:
    bench = leader_of(1, 1, 1)
    first, probe = given_up(bench)
    bench.propose(COMMAND)
    bench.matched(TWO, first)
    assert not bench.appends(TWO)
    bench.matched(TWO, probe)
    (append,) = bench.appends(TWO)
    assert append.entries[-1].data == COMMAND


@pytest.mark.parametrize("is_success", [True, False])
def test_an_older_answer_does_not_say_where_to_go_on(is_success: bool) -> None:  # noqa: FBT001 - a parameter
    """What was asked since may have brought the follower further; a server of another make would cut that off."""
    bench = leader_of(1, 1, 1)
    first, probe = given_up(bench)
    if is_success:
        bench.matched(TWO, first)
        assert bench.about.commit_index == 4
    else:
        bench.refused(TWO, first, hint=1)
    bench.propose(COMMAND)
    bench.expire()
    again = follow_up(bench)
    assert (again.previous.index, again.entries) == (5, ())
    bench.refused(TWO, probe, hint=1)
    assert not bench.appends(TWO)
    bench.refused(TWO, again, hint=2)
    (append,) = bench.appends(TWO)
    assert append.previous.index == (4 if is_success else 1)


def reads_entries_back() -> tuple[Bench, ReadEntries]:
    """A leader that has the disk read what server 2 lacks."""
    bench = leader_of(1, 1, 1, options=replace(lan(), tail_entries=1))
    bench.refused(TWO, follow_up(bench), hint=1)
    (read,) = bench.all(ReadEntries)
    return bench, read


def test_a_round_of_reads_goes_with_the_entries_that_the_disk_reads() -> None:
    """With a heartbeat under way they could not be sent and would be read again, for each round."""
    bench, read = reads_entries_back()
    bench.step(ReadRequested(7))
    assert not bench.appends(TWO)
    bench.step(EntriesRead(read.request_id, 1, entries_of(1, 1, 1)))
    (append,) = bench.appends(TWO)
    assert len(append.entries) == 3


def test_entries_that_come_from_the_disk_too_late_are_read_again_behind_the_heartbeat() -> None:
    bench, read = reads_entries_back()
    heartbeat = follow_up(bench)
    assert not heartbeat.entries
    bench.step(EntriesRead(read.request_id, 1, entries_of(1, 1, 1)))
    assert not bench.appends(TWO)
    assert bench.raft.deadline > bench.now
    bench.refused(TWO, heartbeat, hint=1)
    assert len(bench.all(ReadEntries)) == 1


def test_a_commit_index_is_told_with_the_entries_that_the_disk_reads() -> None:
    """(A heartbeat for each would keep a follower that catches up from ever getting its entries.)."""
    bench = leader_of(1, 1, 1, options=replace(lan(), tail_entries=1, commit_notice_ms=0))
    (probe,), (waiting,) = bench.appends(TWO), bench.appends(THREE)
    bench.refused(TWO, probe, hint=1)
    (read,) = bench.all(ReadEntries)
    bench.step(EntriesRead(read.request_id, 1, entries_of(1)))
    bench.matched(TWO, bench.appends(TWO)[0])
    (read,) = bench.all(ReadEntries)
    bench.matched(THREE, waiting)
    assert bench.about.commit_index == 4
    assert not bench.appends(TWO)
    bench.step(EntriesRead(read.request_id, 2, suffix(2, 1, 1)))
    (append,) = bench.appends(TWO)
    assert append.commit == 4


def chunks(bench: Bench) -> list[InstallSnapshot]:
    """The chunks of a snapshot that were sent to server 2."""
    sent = [send.message for send in bench.all(Send) if send.recipient == TWO]
    return [message for message in sent if isinstance(message, InstallSnapshot)]


def sends_snapshot() -> tuple[Bench, ReadSnapshot]:
    """A leader that has the disk read the snapshot that server 2 lacks."""
    bench = leader_of(1, 1, committed=2)
    bench.step(SnapshotWanted(2))
    bench.step(SnapshotTaken(SnapshotDescription(LogId(2, 1), group(3), 4, 0), 3))
    bench.refused(TWO, follow_up(bench), hint=1)
    (read,) = bench.all(ReadSnapshot)
    return bench, read


def test_a_chunk_goes_before_a_round_of_reads_and_takes_it_along() -> None:
    bench, read = sends_snapshot()
    bench.step(ReadRequested(7))
    assert not bench.appends(TWO)
    bench.step(SnapshotRead(request_id=read.request_id, last=read.last, offset=0, data=b"abcd", done=True))
    (chunk,) = chunks(bench)
    assert chunk.done


def test_a_chunk_that_comes_from_the_disk_too_late_is_read_again_behind_the_heartbeat() -> None:
    """(Until then nothing is due: the leader does not turn in circles.)."""
    bench, read = sends_snapshot()
    heartbeat = follow_up(bench)
    bench.step(SnapshotRead(request_id=read.request_id, last=read.last, offset=0, data=b"abcd", done=True))
    assert not chunks(bench)
    assert bench.raft.deadline > bench.now
    bench.refused(TWO, heartbeat, hint=1)
    assert len(bench.all(ReadSnapshot)) == 1


def test_a_late_answer_to_a_chunk_leaves_the_probe_under_way_which_is_answered_before_the_next_chunk() -> None:
    bench, read = sends_snapshot()
    bench.step(SnapshotRead(request_id=read.request_id, last=read.last, offset=0, data=b"ab", done=False))
    (chunk,) = chunks(bench)
    probe = follow_up(bench)
    bench.receive(
        TWO, SnapshotReply(term=2, accepted=True, next_offset=2, installed=False, correlation=chunk.correlation)
    )
    assert not bench.all(ReadSnapshot)
    bench.refused(TWO, probe, hint=1)
    (read,) = bench.all(ReadSnapshot)
    assert read.offset == 2
