"""Log compaction by the sentences of Raft section 7, and the receiver's rules of the InstallSnapshot RPC."""

from consensus.core.drops import Drop
from consensus.core.effects import (
    CheckSnapshot,
    Compact,
    Install,
    Persist,
    ReadReady,
    ReadSnapshot,
    Restore,
    Role,
    Send,
    StoreChunk,
    TakeSnapshot,
)
from consensus.core.events import Persisted, ReadRequested, SnapshotChecked, SnapshotRead, SnapshotTaken, SnapshotWanted
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.model import Configuration, LogId, SnapshotDescription
from consensus.core.replication.progress import ProgressState
from tests.spec.raft_bench import IMAGE, THREE, TWO, Bench, entries_of, group, suffix


def description_of(index: int, term: int, configuration: Configuration | None = None) -> SnapshotDescription:
    return SnapshotDescription(LogId(index, term), configuration or group(3), len(IMAGE), 1)


def complete_check(bench: Bench, snapshot: SnapshotDescription | None) -> list[SnapshotReply]:
    """Complete the check of the stored chunks on the disk; return the replies of this step."""
    (check,) = bench.all(CheckSnapshot)
    bench.step(SnapshotChecked(check.request_id, snapshot))
    return bench.snapshot_replies()


def changes(bench: Bench) -> list[object]:
    return [persist.snapshot for persist in bench.all(Persist) if persist.snapshot is not None]


def install_snapshot(bench: Bench, index: int, term: int) -> SnapshotDescription:
    """Install a snapshot sent in one chunk."""
    snapshot = description_of(index, term)
    assert bench.chunk(snapshot.last) == []
    (reply,) = complete_check(bench, snapshot)
    assert reply.installed
    return snapshot


class Leading(Bench):
    """Server 1 leads term 3; a snapshot replaces the log up to index 4, and follower 2 has not replied yet."""

    def __init__(self) -> None:
        super().__init__(1, 1, 2, 2, 2, term=2)
        self.lead()
        (self.first_append,) = self.appends(TWO)
        (append,) = self.appends(THREE)
        self.matched(THREE, append)
        self.step(SnapshotWanted(4))
        self.step(SnapshotTaken(description_of(4, 2), 5))
        assert self.about.log_start == LogId(4, 2)

    def behind(self) -> ReadSnapshot:
        """Receive from follower 2 that its log is empty; return the read of the snapshot."""
        self.refused(TWO, self.first_append, 1)
        (read,) = self.all(ReadSnapshot)
        return read


# -- taking a snapshot -------------------------------------------------------------------------------------------------


def test_snapshot_has_last_index_term_and_configuration() -> None:
    """Quote: "Raft also includes a small amount of metadata in the snapshot".

    For cluster membership changes, the metadata contains the latest configuration as of the last included index.
    """
    bench = Bench(1, 1, 2, term=2)
    bench.append(2, LogId(3, 2), commit=3)
    bench.step(SnapshotWanted(2))
    assert bench.all(TakeSnapshot) == [TakeSnapshot(LogId(2, 1), group(3))]


def test_snapshot_covers_only_committed_entries() -> None:
    """Quote: "Each server takes snapshots independently, covering just the committed entries in its log"."""
    bench = Bench(1, 1, 2, term=2)
    bench.append(2, LogId(3, 2), commit=2)
    bench.step(SnapshotWanted(3))
    assert bench.all(TakeSnapshot) == []
    bench.step(SnapshotWanted(2))
    assert len(bench.all(TakeSnapshot)) == 1


def test_durable_snapshot_replaces_covered_entries() -> None:
    """Quote: "… it may delete all log entries up through the last included index …"."""
    bench = Bench(1, 1, 2, term=2)
    bench.append(2, LogId(3, 2), commit=3)
    bench.step(SnapshotTaken(description_of(2, 1), 3))
    assert changes(bench) == [Compact(description_of(2, 1), 3)]
    assert bench.about.log_start == LogId(2, 1)
    assert bench.about.last == LogId(3, 2)


def test_consistency_check_works_after_snapshot() -> None:
    """Quote: "These are preserved to support the consistency check for the first log entry following the snapshot"."""
    bench = Bench(1, 1, 2, term=2)
    bench.append(2, LogId(3, 2), commit=3)
    bench.step(SnapshotTaken(description_of(3, 2), 4))
    assert bench.append(2, LogId(3, 2), suffix(4, 2)).success
    assert not bench.append(2, LogId(9, 2)).success


def test_append_starting_in_compacted_part_extends_log() -> None:
    bench = Bench(1, 1, 2, term=2)
    bench.append(2, LogId(3, 2), commit=3)
    bench.step(SnapshotTaken(description_of(3, 2), 4))
    assert bench.append(2, LogId(1, 1), (*entries_of(1, 1, 2)[1:], *suffix(4, 2))).next_index == 5
    reply = bench.append(2, LogId(0, 0), entries_of(1, 1))
    assert reply.success
    assert reply.next_index == 3


def test_append_covered_by_snapshot_acknowledged_when_durable() -> None:
    # Given a follower that installs a snapshot on a slow disk
    bench = Bench(1, 1, term=9, fast=False)
    snapshot = description_of(20, 5)
    bench.chunk(snapshot.last)
    stored = max(persist.number for persist in bench.all(Persist))
    (check,) = bench.all(CheckSnapshot)
    bench.persisted(stored)
    bench.step(SnapshotChecked(check.request_id, snapshot))
    (install,) = bench.all(Persist)
    # When a delayed append arrives whose entries are all covered by the snapshot
    bench.receive(
        TWO, AppendEntries(term=9, leader=TWO, previous=LogId(2, 1), entries=suffix(3, 5), commit=0, correlation=77)
    )
    # Then its acknowledgment waits for the snapshot
    (answer,) = bench.all(Send)
    assert answer.message == AppendReply(term=9, success=True, next_index=4, correlation=77)
    assert answer.after == install.number


def test_snapshot_completed_after_newer_one_ignored() -> None:
    bench = Bench(1, 1, term=1)
    bench.append(1, LogId(2, 1), commit=2)
    install_snapshot(bench, 20, 5)
    bench.step(SnapshotTaken(description_of(2, 1), 3))
    assert changes(bench) == []
    assert bench.about.log_start == LogId(20, 5)


# -- receiving a snapshot: the rules of the RPC ------------------------------------------------------------------------


def test_rule_1_older_term_gets_immediate_reply() -> None:
    """Quote: "1. Reply immediately if term < currentTerm"."""
    bench = Bench(1, 1, term=9)
    (reply,) = bench.chunk(LogId(5, 2), term=8)
    assert (reply.term, reply.accepted) == (9, False)
    assert changes(bench) == []


def test_rules_2_and_3_chunks_stored_at_their_offsets() -> None:
    """Rules 2 and 3: "Create new snapshot file if first chunk (offset is 0)", "Write data … at given offset"."""
    bench = Bench(1, 1)
    bench.chunk(LogId(5, 2), 0, b"abc", done=False)
    assert changes(bench) == [StoreChunk(LogId(5, 2), 0, b"abc")]
    bench.chunk(LogId(5, 2), 3, b"de", done=False)
    assert changes(bench) == [StoreChunk(LogId(5, 2), 3, b"de")]


def test_rule_4_reply_and_wait_for_more_chunks() -> None:
    """Quote: "4. Reply and wait for more data chunks if done is false"."""
    bench = Bench(1, 1)
    (reply,) = bench.chunk(LogId(5, 2), 0, b"abc", done=False)
    assert (reply.accepted, reply.next_offset, reply.installed) == (True, 3, False)
    assert bench.about.last == LogId(2, 1)


def test_chunk_reply_waits_for_durable_write() -> None:
    bench = Bench(1, 1, fast=False)
    bench.chunk(LogId(5, 2), 0, b"abc", done=False)
    (send,) = (send for send in bench.all(Send) if isinstance(send.message, SnapshotReply))
    (persist,) = bench.all(Persist)
    assert send.after == persist.number
    (reply,) = bench.chunk(LogId(5, 2), 3, b"de", done=False)
    assert (reply.accepted, reply.next_offset) == (False, 3)
    bench.step(Persisted(persist.number))
    (reply,) = bench.chunk(LogId(5, 2), 3, b"de", done=False)
    assert reply.accepted


def test_rule_6_entries_after_known_last_entry_retained() -> None:
    """Quote: "6. If existing log entry has same index and term …, retain log entries following it and reply"."""
    bench = Bench(1, 1, 2, 2, 2)
    (reply,) = bench.chunk(LogId(3, 2), 0, b"abc", done=False)
    assert reply.installed, "stored data is not transferred again"
    assert changes(bench) == []
    assert bench.about.last == LogId(5, 2)
    assert bench.about.commit_index == 3, "a snapshot covers only committed entries"


def test_rule_5_older_or_partial_snapshot_discarded() -> None:
    """Quote: "5. Save snapshot file, discard any existing or partial snapshot with a smaller index"."""
    bench = Bench(1, 1)
    install_snapshot(bench, 5, 2)
    bench.chunk(LogId(7, 2), 0, b"abc", done=False)
    snapshot = install_snapshot(bench, 9, 3)
    assert Install(snapshot) in changes(bench)
    assert bench.about.snapshot == snapshot
    (reply,) = bench.chunk(LogId(7, 2), 3, b"de", done=False)
    assert reply.installed, "the log already has all that the partial snapshot covers"


def test_rule_7_entire_log_discarded_otherwise() -> None:
    """Quote: "7. Discard the entire log".

    The log is superseded, and "may possibly have uncommitted entries that conflict with the snapshot".
    """
    bench = Bench(1, 1, 3, 3, 3, 3)
    snapshot = description_of(4, 4)
    assert bench.chunk(snapshot.last) == []
    (reply,) = complete_check(bench, snapshot)
    assert reply.installed
    assert Install(snapshot) in changes(bench)
    assert bench.about.last == bench.about.log_start == LogId(4, 4)


def test_rule_8_state_machine_and_configuration_reset() -> None:
    """Quote: "8. Reset state machine using snapshot contents (and load snapshot's cluster configuration)"."""
    bench = Bench(1, 1, voters=3)
    snapshot = description_of(10, 4, group(5))
    bench.chunk(snapshot.last)
    complete_check(bench, snapshot)
    assert bench.all(Restore) == [Restore(snapshot)]
    assert bench.about.configuration == group(5)
    assert bench.about.commit_index == bench.about.applied_index == 10


def test_installed_snapshot_acknowledged_when_durable() -> None:
    bench = Bench(1, 1, fast=False)
    bench.chunk(LogId(10, 4))
    (check,) = bench.all(CheckSnapshot)
    bench.step(SnapshotChecked(check.request_id, description_of(10, 4)))
    (send,) = (send for send in bench.all(Send) if isinstance(send.message, SnapshotReply))
    (persist,) = bench.all(Persist)
    assert send.after == persist.number
    assert bench.about.durable_index == 0


def test_snapshot_older_than_commit_index_ignored() -> None:
    """Quote: "If … a snapshot that describes a prefix of its log …, entries following the snapshot are still valid"."""
    bench = Bench(1, 1, 2, 2)
    bench.append(9, LogId(4, 2), commit=4)
    (reply,) = bench.chunk(LogId(3, 2))
    assert reply.installed
    assert changes(bench) == []
    assert bench.about.last == LogId(4, 2)


def test_wrong_offset_refused_with_expected_one() -> None:
    bench = Bench(1, 1)
    bench.chunk(LogId(5, 2), 0, b"abc", done=False)
    for offset in (0, 2, 7):
        (reply,) = bench.chunk(LogId(5, 2), offset, b"xy", done=False)
        assert (reply.accepted, reply.next_offset) == (False, 3)
        assert changes(bench) == []
    (reply,) = bench.chunk(LogId(5, 2), 3, b"de", done=False)
    assert (reply.accepted, reply.next_offset) == (True, 5)


def test_chunk_of_other_snapshot_refused_unless_first() -> None:
    bench = Bench(1, 1)
    bench.chunk(LogId(5, 2), 0, b"abc", done=False)
    (reply,) = bench.chunk(LogId(7, 2), 3, b"de", done=False)
    assert (reply.accepted, reply.next_offset) == (False, 0)
    (reply,) = bench.chunk(LogId(7, 2), 0, b"de", done=False)
    assert (reply.accepted, reply.next_offset) == (True, 2)


def test_new_leader_restarts_transfer() -> None:
    bench = Bench(1, 1)
    bench.chunk(LogId(5, 2), 0, b"abc", done=False)
    (reply,) = bench.chunk(LogId(5, 2), 3, b"de", done=False, term=10)
    assert (reply.accepted, reply.next_offset) == (False, 0)


def test_chunks_with_wrong_checksum_dropped() -> None:
    bench = Bench(1, 1)
    bench.chunk(LogId(5, 2))
    (reply,) = complete_check(bench, None)
    assert (reply.accepted, reply.next_offset) == (False, 0)
    assert bench.about.last == LogId(2, 1)
    assert (Drop.SNAPSHOT_CHECKSUM, 1) in bench.about.dropped


def test_snapshot_checked_after_leader_change_not_installed() -> None:
    bench = Bench(1, 1)
    bench.chunk(LogId(5, 2))
    (check,) = bench.all(CheckSnapshot)
    bench.append(10, LogId(2, 1), sender=THREE)
    bench.step(SnapshotChecked(check.request_id, description_of(5, 2)))
    (reply,) = bench.snapshot_replies()
    assert not reply.accepted
    assert bench.about.last == LogId(2, 1)


# -- sending a snapshot ------------------------------------------------------------------------------------------------


def test_leader_sends_snapshot_for_compacted_entry() -> None:
    """Quote: "… already discarded the next log entry that it needs to send to a follower"."""
    bench = Leading()
    read = bench.behind()
    assert read.offset == 0
    bench.step(SnapshotRead(request_id=read.request_id, last=read.last, offset=0, data=IMAGE[:4], done=False))
    (sent,) = (send.message for send in bench.all(Send) if isinstance(send.message, InstallSnapshot))
    assert (sent.last, sent.offset, sent.data, sent.done) == (LogId(4, 2), 0, IMAGE[:4], False)
    assert sent.configuration == group(3)


def sent_chunk(bench: Bench, read: ReadSnapshot, end: int) -> InstallSnapshot:
    """Read [offset, end) from the disk, and return the chunk that the leader sends."""
    data = IMAGE[read.offset : end]
    bench.step(
        SnapshotRead(request_id=read.request_id, last=read.last, offset=read.offset, data=data, done=end == len(IMAGE))
    )
    (message,) = (send.message for send in bench.all(Send) if isinstance(send.message, InstallSnapshot))
    return message


def send_reply(bench: Bench, sent: InstallSnapshot, offset: int, *, accepted: bool = True, whole: bool = False) -> None:
    bench.receive(
        TWO,
        SnapshotReply(
            term=sent.term, accepted=accepted, next_offset=offset, installed=whole, correlation=sent.correlation
        ),
    )


def test_next_chunk_sent_after_reply() -> None:
    """Quote: "Leaders always send chunks in order"."""
    bench = Leading()
    read = bench.behind()
    sent = sent_chunk(bench, read, 4)
    bench.propose(b"x")
    assert bench.all(ReadSnapshot) == []
    send_reply(bench, sent, 4)
    (read,) = bench.all(ReadSnapshot)
    assert read.offset == 4


def test_refused_chunk_resumes_at_requested_offset() -> None:
    bench = Leading()
    read = bench.behind()
    send_reply(bench, sent_chunk(bench, read, 4), 2, accepted=False)
    assert bench.all(ReadSnapshot) == []
    reads: list[ReadSnapshot] = []
    while not reads:
        bench.expire()
        reads = bench.all(ReadSnapshot)
    assert reads[0].offset == 2


def test_unresponsive_follower_gets_only_heartbeats() -> None:
    bench = Leading()
    read = bench.behind()
    sent = sent_chunk(bench, read, 4)
    send_reply(bench, sent, 4)
    sent_chunk(bench, bench.all(ReadSnapshot)[0], 8)
    heartbeats: list[AppendEntries] = []
    for _ in range(12):
        bench.expire()
        assert bench.all(ReadSnapshot) == []
        heartbeats += bench.appends(TWO)
        for append in bench.appends(THREE):
            bench.matched(THREE, append)
    bench.refused(TWO, heartbeats[-1], 1)
    (read,) = bench.all(ReadSnapshot)
    assert read.offset == 4, "stored chunks are not sent again"


def test_reply_to_earlier_chunk_confirms_no_read() -> None:
    """After that reply the follower may have elected another leader; the read would miss that leader's entries."""
    bench = Leading()
    earlier = sent_chunk(bench, bench.behind(), 4)
    heartbeats: list[AppendEntries] = []
    while bench.about.followers[0].state is not ProgressState.UNREACHABLE:
        bench.expire()
        heartbeats += bench.appends(TWO)
        for append in bench.appends(THREE):
            bench.matched(THREE, append)
    bench.step(ReadRequested(1))
    bench.refused(TWO, heartbeats[-1], 1)
    repeated = sent_chunk(bench, bench.all(ReadSnapshot)[0], 4)
    send_reply(bench, earlier, 4)
    assert not bench.all(ReadReady)
    send_reply(bench, repeated, 4)
    assert bench.all(ReadReady)


def test_installed_snapshot_counts_as_match() -> None:
    bench = Leading()
    read = bench.behind()
    send_reply(bench, sent_chunk(bench, read, len(IMAGE)), len(IMAGE), whole=True)
    (append,) = bench.appends(TWO)
    assert append.previous == LogId(4, 2)
    (two,) = (follower for follower in bench.about.followers if follower.server_id == TWO)
    assert two.match == 4
    assert two.state is ProgressState.PROBING


def test_replaced_snapshot_restarts_transfer() -> None:
    bench = Leading()
    read = bench.behind()
    sent = sent_chunk(bench, read, 4)
    bench.step(SnapshotTaken(description_of(5, 2), 6))
    send_reply(bench, sent, 4)
    (read,) = bench.all(ReadSnapshot)
    assert (read.last, read.offset) == (LogId(5, 2), 0)


def test_leader_never_installs_snapshot() -> None:
    bench = Leading()
    assert bench.is_(Role.LEADER)
    (reply,) = bench.chunk(LogId(50, 3), term=3)
    assert not reply.accepted
    assert bench.is_(Role.LEADER)
