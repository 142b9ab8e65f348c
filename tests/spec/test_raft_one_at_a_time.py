"""A leader of a protocol with one request per follower, and without unnecessary entries: ØMQ Raft.

The transport of such a protocol repeats a request until the reply arrives, and a new request cancels the old one. A
follower of another implementation exits if an append begins below its commit index. So the leader sends one request at
a time, and probes an unresponsive follower at the end of the leader's log.
"""

import pytest
from msgspec.structs import replace

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ReadEntries, ReadReady, ReadSnapshot, Role, Send
from consensus.core.entry_data import configuration_in
from consensus.core.events import (
    ChangeConfiguration,
    DeadlineReached,
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
from tests.effort import each_case
from tests.spec.membership_bench import Group, joint, plain
from tests.spec.raft_bench import FIVE, FOUR, THREE, TWO, Bench, entries_of, group, suffix

COMMAND = b"123456789012x"


def leader_of(*terms: int, committed: int = 0, features: Features = ZMQ_RAFT, options: Options | None = None) -> Bench:
    """Return server 1 as a leader with entries of these terms, the first `committed` of them known to be committed."""
    bench = Bench(*terms, features=features, options=options)
    if committed:
        term = terms[-1]
        bench.append(term, LogId(len(terms), terms[-1]), commit=committed)
    bench.lead()
    return bench


def follow_up(bench: Bench) -> AppendEntries:
    """Advance the clock, and return the next append to server 2."""
    while not bench.appends(TWO):
        bench.expire()
    (append,) = bench.appends(TWO)
    return append


def test_leader_of_committed_log_appends_nothing() -> None:
    bench = leader_of(1, 1, committed=2)
    assert (bench.terms, bench.about.commit_index) == ([1, 1], 2)
    heartbeat = follow_up(bench)
    assert (heartbeat.previous, heartbeat.entries, heartbeat.commit) == (LogId(2, 1), (), 2)


def test_first_leader_of_empty_log_appends_nothing() -> None:
    bench = leader_of()
    assert bench.about.last.index == 0


@pytest.mark.parametrize("committed", [0, 1])
def test_leader_with_uncommitted_entries_appends_checkpoint(committed: int) -> None:
    """Only an entry of the leader's own term may be committed by counting (Raft section 5.4.2)."""
    bench = leader_of(1, 1, committed=committed)
    assert bench.terms == [1, 1, 2]
    append = follow_up(bench)
    assert [entry.kind for entry in append.entries] == [EntryKind.NO_OP]
    bench.matched(TWO, append)
    assert bench.about.commit_index == 3


def test_read_makes_leader_append_checkpoint() -> None:
    bench = leader_of(1, committed=1)
    bench.step(ReadRequested(7))
    assert bench.terms == [1, 2]
    while not bench.all(ReadReady):
        bench.matched(TWO, follow_up(bench))
    assert bench.all(ReadReady) == [ReadReady(7, 2)]


def test_membership_change_waits_for_checkpoint() -> None:
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


def test_removal_of_one_server_is_joint_change() -> None:
    bench = Group(1, features=ZMQ_RAFT).become_leader()
    bench.change(plain(1, 2))
    bench.store(2, 3)
    found = [configuration_in(entry) for entry in bench.appended if entry.kind is EntryKind.CONFIGURATION]
    assert found == [joint((1, 2, 3), (1, 2)), plain(1, 2)]


def test_leader_with_committed_joint_configuration_ends_it() -> None:
    changing = Group(1, features=ZMQ_RAFT).become_leader()
    changing.step(ChangeConfiguration(1, plain(1, 2)))
    entries = [*entries_of(1), *changing.appended]
    successor = Group(entries=entries, term=2, features=ZMQ_RAFT)
    successor.append(2, LogId(len(entries), entries[-1].term), commit=len(entries))
    successor.lead()
    successor.store(2, 3)
    assert successor.configuration == plain(1, 2)


def test_follower_gets_one_request_at_a_time() -> None:
    """Until the reply, the leader sends neither entries nor heartbeats; then it sends the collected entries."""
    bench = leader_of(1)
    first = follow_up(bench)
    for _ in range(3):
        bench.propose(COMMAND)
        assert not bench.appends(TWO)
    bench.matched(TWO, first)
    (next_append,) = bench.appends(TWO)
    assert len(next_append.entries) == 3


def test_heartbeat_not_early_for_follower_with_open_request() -> None:
    """The due heartbeat of server 2 waits for its reply. So the other heartbeats must not be sent with it, early."""
    # Given server 2 with an overdue heartbeat and without a reply, and the other servers with a later append
    bench = Bench(1, features=ZMQ_RAFT, voters=5).lead()
    options = bench.raft._replica.options
    for each, append in [(each, bench.appends(each)[0]) for each in (THREE, FOUR, FIVE)]:
        bench.matched(each, append)
    bench.now += options.heartbeat_ms // 2
    bench.propose(COMMAND)
    appends = {each: bench.appends(each)[0] for each in (THREE, FOUR, FIVE)}
    assert not bench.appends(TWO)
    # When servers 3 and 4 get a commit notice, and server 5 replies later and gets one shortly before its heartbeat
    for each in (THREE, FOUR):
        bench.matched(each, appends[each])
    bench.step(DeadlineReached(), options.commit_notice_ms)
    for each, notice in [(each, bench.appends(each)[0]) for each in (THREE, FOUR)]:
        bench.matched(each, notice)
    bench.now += options.heartbeat_ms - 1 - 2 * options.commit_notice_ms
    bench.matched(FIVE, appends[FIVE])
    bench.step(DeadlineReached(), options.commit_notice_ms)
    # Then the heartbeats of servers 3 and 4 are not early
    assert [send.recipient for send in bench.all(Send)] == [FIVE]
    bench.step(DeadlineReached(), options.commit_notice_ms + 1)
    assert {THREE, FOUR} <= {send.recipient for send in bench.all(Send)}


def test_read_round_waits_for_pending_reply() -> None:
    """The reply to a request sent before the read does not confirm it, so the leader sends another one."""
    bench = leader_of(1)
    bench.matched(TWO, follow_up(bench))
    bench.propose(COMMAND)
    under_way = follow_up(bench)
    bench.step(ReadRequested(7))
    assert not bench.appends(TWO)
    bench.matched(TWO, under_way)
    assert not bench.all(ReadReady)
    (confirmation,) = bench.appends(TWO)
    bench.matched(TWO, confirmation)
    assert bench.all(ReadReady) == [ReadReady(7, 2)]


def appends_to_unresponsive_follower(features: Features) -> tuple[Bench, list[AppendEntries]]:
    """Return the appends sent in five retry intervals to a follower that replies only once."""
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


def test_unresponsive_follower_probed_from_log_end() -> None:
    """The follower may have stored and committed the sent entries, although its reply was lost."""
    bench, sent = appends_to_unresponsive_follower(ZMQ_RAFT)
    probes = [append for append in sent if not append.entries]
    assert probes
    assert all(append.previous.index == bench.about.last.index for append in probes)


def test_unresponsive_follower_probed_from_match_index() -> None:
    _, sent = appends_to_unresponsive_follower(GARLIC_FARM)
    probes = [append for append in sent if not append.entries]
    assert any(append.previous.index == sent[0].previous.index + len(sent[0].entries) for append in probes)


def test_late_reply_to_expired_request_counts() -> None:
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


@each_case("follower_has", range(5))
def test_append_never_below_committed_entries_of_follower(follower_has: int) -> None:
    """The appends go back step by step to the last of `follower_has` entries that the follower has committed."""
    bench = leader_of(1, 1, 2, 2, 3)
    append = follow_up(bench)
    while append.previous.index > follower_has:
        bench.refused(TWO, append, hint=append.previous.index)
        append = follow_up(bench)
    assert append.previous.index == follower_has


def expired_append_and_probe(bench: Bench) -> tuple[AppendEntries, AppendEntries]:
    """Return the first append to server 2, which does not reply in time, and the probe sent after it."""
    first = follow_up(bench)
    bench.expire()
    return first, follow_up(bench)


def test_late_refusal_waits_for_reply_to_probe() -> None:
    bench = leader_of(1, 1, 1)
    first, probe = expired_append_and_probe(bench)
    bench.refused(TWO, first, hint=1)
    assert not bench.appends(TWO)
    bench.refused(TWO, probe, hint=1)
    (append,) = bench.appends(TWO)
    assert append.previous.index == 0


def test_late_success_waits_for_reply_to_probe() -> None:
    bench = leader_of(1, 1, 1)
    first, probe = expired_append_and_probe(bench)
    bench.propose(COMMAND)
    bench.matched(TWO, first)
    assert not bench.appends(TWO)
    bench.matched(TWO, probe)
    (append,) = bench.appends(TWO)
    assert append.entries[-1].data == COMMAND


@pytest.mark.parametrize("is_success", [True, False])
def test_older_reply_does_not_set_next_index(is_success: bool) -> None:  # noqa: FBT001 - a parameter
    """A later request may have extended the follower's log; another implementation would cut that part."""
    bench = leader_of(1, 1, 1)
    first, probe = expired_append_and_probe(bench)
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


def leader_reading_entries() -> tuple[Bench, ReadEntries]:
    """Return a leader whose disk reads the entries that server 2 lacks."""
    bench = leader_of(1, 1, 1, options=replace(lan(), tail_entries=1))
    bench.refused(TWO, follow_up(bench), hint=1)
    (read,) = bench.all(ReadEntries)
    return bench, read


def test_read_round_sent_with_entries_from_disk() -> None:
    """A separate heartbeat would block the entries, and they would be read again for each round."""
    bench, read = leader_reading_entries()
    bench.step(ReadRequested(7))
    assert not bench.appends(TWO)
    bench.step(EntriesRead(read.request_id, 1, entries_of(1, 1, 1)))
    (append,) = bench.appends(TWO)
    assert len(append.entries) == 3


def test_entries_from_slow_disk_read_again_after_heartbeat() -> None:
    bench, read = leader_reading_entries()
    heartbeat = follow_up(bench)
    assert not heartbeat.entries
    bench.step(EntriesRead(read.request_id, 1, entries_of(1, 1, 1)))
    assert not bench.appends(TWO)
    assert bench.raft.deadline > bench.now
    bench.refused(TWO, heartbeat, hint=1)
    assert len(bench.all(ReadEntries)) == 1


def test_commit_index_sent_with_entries_from_disk() -> None:
    """With one heartbeat per commit, a follower that catches up would never receive its entries."""
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
    sent = [send.message for send in bench.all(Send) if send.recipient == TWO]
    return [message for message in sent if isinstance(message, InstallSnapshot)]


def leader_reading_snapshot() -> tuple[Bench, ReadSnapshot]:
    """Return a leader whose disk reads the snapshot that server 2 lacks."""
    bench = leader_of(1, 1, committed=2)
    bench.step(SnapshotWanted(2))
    bench.step(SnapshotTaken(SnapshotDescription(LogId(2, 1), group(3), 4, 0), 3))
    bench.refused(TWO, follow_up(bench), hint=1)
    (read,) = bench.all(ReadSnapshot)
    return bench, read


def test_chunk_sent_before_read_round() -> None:
    bench, read = leader_reading_snapshot()
    bench.step(ReadRequested(7))
    assert not bench.appends(TWO)
    bench.step(SnapshotRead(request_id=read.request_id, last=read.last, offset=0, data=b"abcd", done=True))
    (chunk,) = chunks(bench)
    assert chunk.done


def test_chunk_from_slow_disk_read_again_after_heartbeat() -> None:
    """Until the reply to the heartbeat no deadline is due, so the leader does not loop."""
    bench, read = leader_reading_snapshot()
    heartbeat = follow_up(bench)
    bench.step(SnapshotRead(request_id=read.request_id, last=read.last, offset=0, data=b"abcd", done=True))
    assert not chunks(bench)
    assert bench.raft.deadline > bench.now
    bench.refused(TWO, heartbeat, hint=1)
    assert len(bench.all(ReadSnapshot)) == 1


def test_late_chunk_reply_waits_for_reply_to_probe() -> None:
    bench, read = leader_reading_snapshot()
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
