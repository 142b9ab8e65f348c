"""FetchSnapshot (KIP-630): the snapshot replaces compacted entries, and is fetched chunk by chunk."""

from consensus.core.effects import CheckSnapshot, Persist, ReadSnapshot, Restore, StoreChunk
from consensus.core.events import DeadlineReached, SnapshotChecked, SnapshotRead, SnapshotTaken, SnapshotWanted
from consensus.core.messages import Fetch, FetchReply, FetchSnapshot, FetchSnapshotReply, RefusalReason
from consensus.core.model import LogId, SnapshotDescription
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import THREE, TWO, group, suffix

BYTES = b"a snapshot of three parts"


def description_of(last: LogId) -> SnapshotDescription:
    return SnapshotDescription(last, group(3), len(BYTES), 7)


def compacted_leader() -> FetchBench:
    """Return a leader of term 2 with four entries; a snapshot has replaced the first three."""
    bench = FetchBench(1, 1, 1).lead()
    bench.fetch(TWO, LogId(4, 2))
    bench.step(SnapshotWanted(3))
    bench.step(SnapshotTaken(description_of(LogId(3, 1)), 4))
    assert bench.about.log_start == LogId(3, 1)
    return bench


def request_chunk(bench: FetchBench, snapshot: LogId, offset: int, max_bytes: int = 10) -> None:
    bench.correlation += 1
    bench.receive(
        TWO,
        FetchSnapshot(
            term=2, replica=TWO, snapshot=snapshot, offset=offset, max_bytes=max_bytes, correlation=bench.correlation
        ),
    )


def test_fetch_before_log_start_gets_snapshot_id() -> None:
    bench = compacted_leader()
    (reply,) = bench.fetch(THREE, LogId(1, 1))
    assert (reply.snapshot, reply.entries, reply.diverging) == (LogId(3, 1), (), None)
    (reply,) = bench.fetch(THREE, LogId(3, 1))
    assert [entry.term for entry in reply.entries] == [2]


def test_fetch_before_log_start_ends_acknowledgment() -> None:
    """The directory of a voter was emptied, so its lost entries do not count for a majority."""
    bench = compacted_leader()
    assert {follower.match for follower in bench.about.followers} == {0, 4}
    bench.fetch(TWO)
    assert {follower.match for follower in bench.about.followers} == {0}


def test_divergence_before_log_start_gets_snapshot_id() -> None:
    bench = FetchBench(1, 3, 3).lead()
    bench.fetch(TWO, LogId(4, 4))
    bench.step(SnapshotWanted(3))
    bench.step(SnapshotTaken(description_of(LogId(3, 3)), 4))
    (reply,) = bench.fetch(THREE, LogId(5, 2))
    assert reply.snapshot == LogId(3, 3)


def test_chunk_sent_with_offset_and_total_size() -> None:
    bench = compacted_leader()
    request_chunk(bench, LogId(3, 1), 4)
    (read,) = bench.all(ReadSnapshot)
    assert (read.offset, read.limit_bytes) == (4, 10)
    bench.step(SnapshotRead(request_id=read.request_id, last=read.last, offset=4, data=BYTES[4:14], done=False))
    (chunk,) = bench.sent(FetchSnapshotReply, TWO)
    assert (chunk.data, chunk.offset, chunk.size_bytes, chunk.error) == (BYTES[4:14], 4, len(BYTES), None)


def test_chunk_of_unknown_snapshot_or_offset_refused() -> None:
    bench = compacted_leader()
    request_chunk(bench, LogId(2, 1), 0)
    assert [reply.error for reply in bench.sent(FetchSnapshotReply)] == [RefusalReason.SNAPSHOT_UNKNOWN]
    request_chunk(bench, LogId(3, 1), len(BYTES) + 1)
    assert [reply.error for reply in bench.sent(FetchSnapshotReply)] == [RefusalReason.OFFSET_OUT_OF_RANGE]


def test_chunk_reads_bounded_and_answered_at_leadership_end() -> None:
    bench = compacted_leader()
    for _ in range(65):
        request_chunk(bench, LogId(3, 1), 0)
    assert [reply.error for reply in bench.sent(FetchSnapshotReply)] == [RefusalReason.BUSY]
    bench.fetch(THREE, LogId(4, 2), term=9)
    assert [reply.error for reply in bench.sent(FetchSnapshotReply)] == [RefusalReason.NOT_LEADER] * 64


def test_snapshot_fetched_by_chunks_and_installed() -> None:
    bench = FetchBench(1)
    first_fetch = bench.follow(TWO, 2)
    bench.receive(
        TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=first_fetch.correlation, snapshot=LogId(5, 2))
    )
    for start in (0, 10, 20):
        (fetch,) = bench.sent(FetchSnapshot, TWO)
        assert (fetch.snapshot, fetch.offset) == (LogId(5, 2), start)
        deliver_chunk(bench, fetch, BYTES[start : start + 10])
    assert bench.terms == [1]
    (check,) = bench.all(CheckSnapshot)
    bench.step(SnapshotChecked(check.request_id, description_of(LogId(5, 2))))
    assert bench.all(Restore)
    assert (bench.about.last, bench.about.commit_index) == (LogId(5, 2), 5)
    (entries,) = bench.sent(Fetch, TWO)
    assert entries.position == LogId(5, 2)
    bench.reply(entries, suffix(6, 2), commit=6)
    assert bench.about.last == LogId(6, 2)


def test_next_chunk_fetched_after_durable_one() -> None:
    bench = FetchBench(1, term=2, fast=False)
    first_fetch = bench.follow(TWO, 2)
    bench.receive(
        TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=first_fetch.correlation, snapshot=LogId(5, 2))
    )
    (fetch,) = bench.sent(FetchSnapshot, TWO)
    deliver_chunk(bench, fetch, BYTES[:10])
    (persist,) = bench.all(Persist)
    assert isinstance(persist.snapshot, StoreChunk)
    assert bench.sent(FetchSnapshot) == []
    bench.persisted(persist.number)
    (fetch,) = bench.sent(FetchSnapshot, TWO)
    assert fetch.offset == 10


def test_lost_chunk_fetched_again() -> None:
    bench = FetchBench(1)
    first_fetch = bench.follow(TWO, 2)
    bench.receive(
        TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=first_fetch.correlation, snapshot=LogId(5, 2))
    )
    deliver_chunk(bench, bench.sent(FetchSnapshot, TWO)[0], BYTES[:10])
    (lost,) = bench.sent(FetchSnapshot, TWO)
    bench.step(DeadlineReached(), after_ms=400)
    (again,) = bench.sent(FetchSnapshot, TWO)
    assert (lost.offset, again.offset) == (10, 10)
    deliver_chunk(bench, again, BYTES[10:20])
    deliver_chunk(bench, lost, BYTES[10:20])
    assert bench.all(Persist) == []  # the late chunk is no longer the next one


def test_replaced_snapshot_fetched_from_start() -> None:
    bench = FetchBench(1)
    first_fetch = bench.follow(TWO, 2)
    bench.receive(
        TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=first_fetch.correlation, snapshot=LogId(5, 2))
    )
    (fetch,) = bench.sent(FetchSnapshot, TWO)
    deliver_chunk(bench, fetch, b"", error=RefusalReason.SNAPSHOT_UNKNOWN)
    bench.step(DeadlineReached(), after_ms=100)
    (entries,) = bench.sent(Fetch, TWO)
    bench.receive(TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=entries.correlation, snapshot=LogId(7, 2)))
    (fetch,) = bench.sent(FetchSnapshot, TWO)
    assert (fetch.snapshot, fetch.offset) == (LogId(7, 2), 0)


def test_snapshot_of_committed_entries_not_fetched() -> None:
    bench = FetchBench(1, 1)
    first_fetch = bench.follow(TWO, 2)
    bench.reply(first_fetch, commit=2)
    bench.step(DeadlineReached(), after_ms=100)
    bench.receive(
        TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=bench.fetches[TWO].correlation, snapshot=LogId(2, 1))
    )
    assert bench.sent(FetchSnapshot) == []


def deliver_chunk(bench: FetchBench, fetch: FetchSnapshot, data: bytes, error: RefusalReason | None = None) -> None:
    """Receive the leader's reply to a request for a chunk."""
    size = 0 if error else len(BYTES)
    reply = FetchSnapshotReply(
        term=2,
        leader=TWO,
        snapshot=fetch.snapshot,
        offset=fetch.offset,
        correlation=fetch.correlation,
        data=data,
        size_bytes=size,
        error=error,
    )
    bench.receive(TWO, reply)
