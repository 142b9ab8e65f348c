"""FetchSnapshot (KIP-630): what stands for entries that the leader no longer has, fetched chunk by chunk."""

from consensus.core.effects import CheckSnapshot, Persist, ReadSnapshot, Restore, StoreChunk
from consensus.core.events import DeadlineReached, SnapshotChecked, SnapshotRead, SnapshotTaken, SnapshotWanted
from consensus.core.messages import Fetch, FetchReply, FetchSnapshot, FetchSnapshotReply, RefusalReason
from consensus.core.model import LogId, SnapshotDescription
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import THREE, TWO, group, suffix

BYTES = b"a snapshot of three parts"


def described(last: LogId) -> SnapshotDescription:
    return SnapshotDescription(last, group(3), len(BYTES), 7)


def compacted_leader() -> FetchBench:
    """Leads term 2; entries up to 3 of its four are gone behind a snapshot."""
    bench = FetchBench(1, 1, 1)
    bench.lead()
    bench.fetch(TWO, LogId(4, 2))
    bench.step(SnapshotWanted(3))
    bench.step(SnapshotTaken(described(LogId(3, 1)), 4))
    assert bench.about.log_start == LogId(3, 1)
    return bench


def ask_for_chunk(bench: FetchBench, snapshot: LogId, offset: int, max_bytes: int = 10) -> None:
    bench.correlation += 1
    bench.receive(
        TWO,
        FetchSnapshot(
            term=2, replica=TWO, snapshot=snapshot, offset=offset, max_bytes=max_bytes, correlation=bench.correlation
        ),
    )


def test_a_fetch_from_before_the_log_is_pointed_to_the_snapshot() -> None:
    """If the fetch offset is smaller than the log start offset, the leader answers with the id of its snapshot."""
    bench = compacted_leader()
    (reply,) = bench.fetch(THREE, LogId(1, 1))
    assert (reply.snapshot, reply.entries, reply.diverging) == (LogId(3, 1), (), None)
    (reply,) = bench.fetch(THREE, LogId(3, 1))
    assert [entry.term for entry in reply.entries] == [2]


def test_a_log_that_diverges_before_the_start_is_pointed_to_the_snapshot_too() -> None:
    bench = FetchBench(1, 3, 3)
    bench.lead()
    bench.fetch(TWO, LogId(4, 4))
    bench.step(SnapshotWanted(3))
    bench.step(SnapshotTaken(described(LogId(3, 3)), 4))
    (reply,) = bench.fetch(THREE, LogId(5, 2))
    assert reply.snapshot == LogId(3, 3)


def test_a_chunk_is_read_and_sent_with_its_place_and_the_size_of_the_whole() -> None:
    bench = compacted_leader()
    ask_for_chunk(bench, LogId(3, 1), 4)
    (read,) = bench.all(ReadSnapshot)
    assert (read.offset, read.limit_bytes) == (4, 10)
    bench.step(SnapshotRead(request_id=read.request_id, last=read.last, offset=4, data=BYTES[4:14], done=False))
    (chunk,) = bench.sent(FetchSnapshotReply, TWO)
    assert (chunk.data, chunk.offset, chunk.size_bytes, chunk.error) == (BYTES[4:14], 4, len(BYTES), None)


def test_another_snapshot_and_a_place_beyond_its_end_are_refused() -> None:
    bench = compacted_leader()
    ask_for_chunk(bench, LogId(2, 1), 0)
    assert [reply.error for reply in bench.sent(FetchSnapshotReply)] == [RefusalReason.SNAPSHOT_UNKNOWN]
    ask_for_chunk(bench, LogId(3, 1), len(BYTES) + 1)
    assert [reply.error for reply in bench.sent(FetchSnapshotReply)] == [RefusalReason.OFFSET_OUT_OF_RANGE]


def test_chunks_that_are_being_read_are_bounded_and_answered_when_leadership_ends() -> None:
    bench = compacted_leader()
    for _ in range(65):
        ask_for_chunk(bench, LogId(3, 1), 0)
    assert [reply.error for reply in bench.sent(FetchSnapshotReply)] == [RefusalReason.BUSY]
    bench.fetch(THREE, LogId(4, 2), term=9)
    assert [reply.error for reply in bench.sent(FetchSnapshotReply)] == [RefusalReason.NOT_LEADER] * 64


def test_a_snapshot_is_fetched_chunk_by_chunk_checked_and_installed() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    bench.receive(TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=asked.correlation, snapshot=LogId(5, 2)))
    for start in (0, 10, 20):
        (fetch,) = bench.sent(FetchSnapshot, TWO)
        assert (fetch.snapshot, fetch.offset) == (LogId(5, 2), start)
        give(bench, fetch, BYTES[start : start + 10])
    assert bench.terms == [1]
    (check,) = bench.all(CheckSnapshot)
    bench.step(SnapshotChecked(check.request_id, described(LogId(5, 2))))
    assert bench.all(Restore)
    assert (bench.about.last, bench.about.commit_index) == (LogId(5, 2), 5)
    (entries,) = bench.sent(Fetch, TWO)
    assert entries.position == LogId(5, 2)
    bench.reply(entries, suffix(6, 2), commit=6)
    assert bench.about.last == LogId(6, 2)


def test_the_next_chunk_is_fetched_when_the_one_before_is_durable() -> None:
    bench = FetchBench(1, term=2, fast=False)
    asked = bench.follow(TWO, 2)
    bench.receive(TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=asked.correlation, snapshot=LogId(5, 2)))
    (fetch,) = bench.sent(FetchSnapshot, TWO)
    give(bench, fetch, BYTES[:10])
    (persist,) = bench.all(Persist)
    assert isinstance(persist.snapshot, StoreChunk)
    assert bench.sent(FetchSnapshot) == []
    bench.persisted(persist.number)
    (fetch,) = bench.sent(FetchSnapshot, TWO)
    assert fetch.offset == 10


def test_a_lost_chunk_is_fetched_again_from_where_the_transfer_stands() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    bench.receive(TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=asked.correlation, snapshot=LogId(5, 2)))
    give(bench, bench.sent(FetchSnapshot, TWO)[0], BYTES[:10])
    (lost,) = bench.sent(FetchSnapshot, TWO)
    bench.step(DeadlineReached(), after_ms=400)
    (again,) = bench.sent(FetchSnapshot, TWO)
    assert (lost.offset, again.offset) == (10, 10)
    give(bench, again, BYTES[10:20])
    give(bench, lost, BYTES[10:20])
    assert bench.all(Persist) == []  # the late one is no longer the chunk that is wanted


def test_a_snapshot_that_was_replaced_meanwhile_is_begun_anew() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    bench.receive(TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=asked.correlation, snapshot=LogId(5, 2)))
    (fetch,) = bench.sent(FetchSnapshot, TWO)
    give(bench, fetch, b"", error=RefusalReason.SNAPSHOT_UNKNOWN)
    bench.step(DeadlineReached(), after_ms=100)
    (entries,) = bench.sent(Fetch, TWO)
    bench.receive(TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=entries.correlation, snapshot=LogId(7, 2)))
    (fetch,) = bench.sent(FetchSnapshot, TWO)
    assert (fetch.snapshot, fetch.offset) == (LogId(7, 2), 0)


def test_a_snapshot_of_what_is_committed_here_is_not_fetched() -> None:
    bench = FetchBench(1, 1)
    asked = bench.follow(TWO, 2)
    bench.reply(asked, commit=2)
    bench.step(DeadlineReached(), after_ms=100)
    bench.receive(
        TWO, FetchReply(term=2, leader=TWO, commit=9, correlation=bench.asked[TWO].correlation, snapshot=LogId(2, 1))
    )
    assert bench.sent(FetchSnapshot) == []


def give(bench: FetchBench, fetch: FetchSnapshot, data: bytes, error: RefusalReason | None = None) -> None:
    """The leader's answer to a request for a chunk arrives."""
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
