"""RequestEntries: messages ahead of their confirmations, snapshots first, and bounds on unconfirmed messages."""

from random import Random, randrange

import pytest
import trio
import trio.testing
from msgspec.structs import replace
from trio.testing import MockClock

from consensus.core.model import Entry, LogId
from consensus.protocols.zmq_raft.counters import EndpointDrop
from consensus.protocols.zmq_raft.endpoint.client_endpoint import EndpointOptions
from consensus.protocols.zmq_raft.endpoint.entry_streams import StreamOptions
from consensus.protocols.zmq_raft.wire.messages import (
    ClientReply,
    EntriesBatch,
    EntriesRedirect,
    EntriesRequest,
    SnapshotPiece,
)
from tests.node.zmq_served_log import CLIENT, FakeLog, Stage, serving, update_entry

FROM_THE_START = EntriesRequest(request_id=b"\x11", ident=b"", previous_index=0)
HALF_MESSAGE = 30_000
MESSAGE = 60_000
LARGE = 100_000
CHUNK = 64 * 1024


def log_of(*sizes: int) -> FakeLog:
    return FakeLog([update_entry(number, size) for number, size in enumerate(sizes, 1)])


def compacted_log(state_bytes: int, entries: int = 2) -> FakeLog:
    """Return a log whose entries up to 10 are in a snapshot."""
    log = FakeLog([update_entry(number) for number in range(1, 11 + entries)])
    log.compact(10, bytes(state_bytes))
    return log


def after(index: int, count: int | None = None, offset: int | None = None) -> EntriesRequest:
    return EntriesRequest(
        request_id=FROM_THE_START.request_id, ident=b"", previous_index=index, count=count, snapshot_offset=offset
    )


def options(**streams: int) -> EndpointOptions:
    return EndpointOptions(streams=StreamOptions(**streams))


def last_indexes(replies: list[ClientReply]) -> list[int]:
    """Return the last index of each message with entries."""
    assert all(isinstance(reply, EntriesBatch) for reply in replies)
    return [reply.last_index for reply in replies if isinstance(reply, EntriesBatch)]


def offsets(replies: list[ClientReply]) -> list[int]:
    assert all(isinstance(reply, SnapshotPiece) for reply in replies)
    return [reply.offset for reply in replies if isinstance(reply, SnapshotPiece)]


def entries(replies: list[ClientReply]) -> list[Entry]:
    return [entry for reply in replies if isinstance(reply, EntriesBatch) for entry in reply.entries]


async def test_small_log_sent_in_one_last_message() -> None:
    log = log_of(10, 20, 30)
    async with serving(log) as stage:
        (reply,) = await stage.answer(FROM_THE_START)
        assert reply == EntriesBatch(request_id=b"\x11", is_last=True, last_index=3, entries=tuple(log.entries))
        assert stage.endpoint.under_way == 0


async def test_count_limits_entries() -> None:
    async with serving(log_of(1, 1, 1, 1)) as stage:
        assert await stage.answer(after(1, count=2)) == [
            EntriesBatch(request_id=b"\x11", is_last=True, last_index=3, entries=tuple(stage.log.entries[1:3]))
        ]
        assert await stage.answer(after(2, count=9)) == [
            EntriesBatch(request_id=b"\x11", is_last=True, last_index=4, entries=tuple(stage.log.entries[2:]))
        ]


async def test_entries_applied_after_request_not_sent() -> None:
    log = log_of(*[MESSAGE] * 7)
    async with serving(log) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1, 2, 3, 4, 5]
        log.entries.append(update_entry(8))
        replies = await stage.answer(after(1), after(2))
        assert last_indexes(replies) == [6, 7]
        assert [reply.is_last for reply in replies if isinstance(reply, EntriesBatch)] == [False, True]


@pytest.mark.parametrize("previous", [2, 12])
async def test_previous_index_at_or_beyond_end_returns_end_index(previous: int) -> None:
    async with serving(log_of(1, 1)) as stage:
        assert await stage.answer(after(previous)) == [EntriesBatch(request_id=b"\x11", is_last=True, last_index=2)]
        assert await stage.answer(after(previous, count=3)) == [
            EntriesBatch(request_id=b"\x11", is_last=True, last_index=2)
        ]


async def test_five_messages_of_64_kib_sent_ahead_of_confirmations() -> None:
    async with serving(log_of(*[HALF_MESSAGE] * 20)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [2, 4, 6, 8, 10]
        assert last_indexes(await stage.answer(after(2))) == [12]
        assert last_indexes(await stage.answer(after(4), after(6))) == [14, 16]
        assert last_indexes(await stage.answer(after(8))) == [18]
        assert last_indexes(await stage.answer(after(10))) == [20]
        assert await stage.answer(after(12), after(14), after(16)) == []
        assert stage.endpoint.under_way == 1
        assert await stage.answer(after(18)) == []
        assert stage.endpoint.under_way == 0


async def test_entries_of_message_limited() -> None:
    async with serving(log_of(*[1] * 10), options(message_entries=4)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [4, 8, 10]


async def test_confirmation_that_skips_messages_restarts_stream() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1, 2, 3, 4, 5]
        assert last_indexes(await stage.answer(after(3))) == [4, 5, 6, 7, 8]
        assert last_indexes(await stage.answer(after(4))) == [9]
        assert stage.endpoint.under_way == 1


async def test_repeated_request_restarts_stream_after_send() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        await stage.answer(FROM_THE_START)
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1, 2, 3, 4, 5]
        assert stage.endpoint.under_way == 1


async def test_repeated_request_ignored_during_read() -> None:
    log = log_of(1, 1)
    log.open_for_reads = trio.Event()
    async with serving(log) as stage:
        assert await stage.answer(FROM_THE_START, FROM_THE_START) == []
        log.open_for_reads.set()
        assert last_indexes(await stage.answer()) == [2]
        assert log.reads == [1]


async def test_repeated_request_keeps_stream_during_read(autojump_clock: MockClock) -> None:
    log = log_of(1, 1)
    log.open_for_reads = trio.Event()
    async with serving(log) as stage:
        stage.ask(FROM_THE_START)
        await trio.sleep(4)
        stage.ask(FROM_THE_START)
        await trio.sleep(4)
        log.open_for_reads.set()
        assert last_indexes(await stage.answer()) == [2]


async def test_streams_separate_per_client_and_request_id() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        for identity, request_id in ((CLIENT, b"\x11"), (CLIENT, b"\x12"), (b"other", b"\x11")):
            request = replace(FROM_THE_START, request_id=request_id)
            assert last_indexes(await stage.answer(request, identity=identity)) == [1, 2, 3, 4, 5]
        assert stage.endpoint.under_way == 3
        assert last_indexes(await stage.answer(after(1), identity=b"other")) == [6]


async def test_zero_count_ends_stream_without_reply() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        await stage.answer(FROM_THE_START)
        assert await stage.answer(after(1, count=0)) == []
        assert stage.endpoint.under_way == 0
        assert await stage.answer(after(1, count=0)) == []


async def test_stream_ends_five_seconds_after_last_confirmation(autojump_clock: MockClock) -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        await stage.answer(FROM_THE_START)
        await trio.sleep(4)
        assert last_indexes(await stage.answer(after(1))) == [6]
        await trio.sleep(4.9)
        assert stage.endpoint.under_way == 1
        await trio.sleep(0.2)
        assert stage.endpoint.under_way == 0
        assert stage.endpoint.counts == {EndpointDrop.STREAM_EXPIRED: 1}
        assert last_indexes(await stage.answer(after(2))) == [3, 4, 5, 6, 7]


async def test_large_entry_confirmed_before_next_message() -> None:
    async with serving(log_of(MESSAGE, LARGE, LARGE, MESSAGE, MESSAGE)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1, 2]
        assert last_indexes(await stage.answer(after(1))) == []
        assert last_indexes(await stage.answer(after(2))) == [3]
        assert last_indexes(await stage.answer(after(3))) == [4, 5]


async def test_peer_without_leadership_names_leader() -> None:
    log = log_of(1)
    log.is_leader = False
    async with serving(log) as stage:
        assert await stage.answer(FROM_THE_START) == [EntriesRedirect(b"\x11", "2")]


async def test_stream_ends_with_leadership() -> None:
    log = log_of(*[MESSAGE] * 9)
    async with serving(log) as stage:
        await stage.answer(FROM_THE_START)
        log.is_leader, log.leader = False, None
        assert await stage.answer(after(1)) == [EntriesRedirect(b"\x11", None)]
        assert stage.endpoint.under_way == 0


async def test_completely_sent_stream_ends_with_leadership() -> None:
    log = log_of(*[MESSAGE] * 5)
    async with serving(log) as stage:
        assert len(await stage.answer(FROM_THE_START)) == 5
        log.is_leader = False
        assert await stage.answer(after(1)) == [EntriesRedirect(b"\x11", "2")]
        assert stage.endpoint.under_way == 0


async def test_entries_not_sent_if_leadership_lost_during_read() -> None:
    log = log_of(*[MESSAGE] * 3)
    log.open_for_reads = trio.Event()
    async with serving(log) as stage:
        await stage.answer(FROM_THE_START)
        log.is_leader = False
        log.open_for_reads.set()
        assert await stage.answer() == [EntriesRedirect(b"\x11", "2")]
        assert stage.endpoint.under_way == 0


async def test_snapshot_sent_two_chunks_ahead_before_entries() -> None:
    log = compacted_log(3 * CHUNK + 1)
    async with serving(log) as stage:
        replies = await stage.answer(FROM_THE_START)
        assert offsets(replies) == [0, CHUNK]
        assert replies[0] == SnapshotPiece(
            request_id=b"\x11", last_index=10, last_term=1, offset=0, total_bytes=3 * CHUNK + 1, data=bytes(CHUNK)
        )
        assert offsets(await stage.answer(after(0))) == [2 * CHUNK]
        assert offsets(await stage.answer(after(0, offset=2 * CHUNK))) == [3 * CHUNK]
        assert await stage.answer(after(0)) == []
        assert stage.endpoint.under_way == 0
        assert await stage.answer(after(10)) == [
            EntriesBatch(request_id=b"\x11", is_last=True, last_index=12, entries=tuple(log.entries))
        ]


@pytest.mark.parametrize(
    ("confirmation", "offset"),
    [(after(0, offset=2 * CHUNK), 2 * CHUNK), (after(1), 0), (after(0, offset=0), 0)],
    ids=["offset after another chunk", "other previous index", "start"],
)
async def test_unexpected_confirmation_of_chunk_restarts_stream(confirmation: EntriesRequest, offset: int) -> None:
    async with serving(compacted_log(9 * CHUNK)) as stage:
        await stage.answer(FROM_THE_START)
        assert offsets(await stage.answer(confirmation)) == [offset, offset + CHUNK]
        assert stage.endpoint.under_way == 1


async def test_snapshot_sent_from_requested_offset() -> None:
    log = compacted_log(CHUNK + 100)
    async with serving(log) as stage:
        replies = await stage.answer(after(3, offset=CHUNK + 50))
        assert replies == [
            SnapshotPiece(
                request_id=b"\x11",
                last_index=10,
                last_term=1,
                offset=CHUNK + 50,
                total_bytes=CHUNK + 100,
                data=bytes(50),
            )
        ]
        assert log.offsets == [CHUNK + 50]


@pytest.mark.parametrize("beyond", [0, 1, 10**9])
async def test_offset_at_or_beyond_snapshot_end_gets_empty_chunk(beyond: int) -> None:
    async with serving(compacted_log(100)) as stage:
        replies = await stage.answer(after(0, offset=100 + beyond))
        assert replies == [
            SnapshotPiece(request_id=b"\x11", last_index=10, last_term=1, offset=100, total_bytes=100, data=b"")
        ]
        assert stage.endpoint.under_way == 0


async def test_empty_snapshot_sent_as_empty_chunk() -> None:
    async with serving(compacted_log(0)) as stage:
        assert await stage.answer(FROM_THE_START) == [
            SnapshotPiece(request_id=b"\x11", last_index=10, last_term=1, offset=0, total_bytes=0, data=b"")
        ]


async def test_offset_ignored_if_entries_are_available() -> None:
    async with serving(compacted_log(100)) as stage:
        assert last_indexes(await stage.answer(after(10, offset=50))) == [12]


async def test_replaced_snapshot_sent_again_with_new_index() -> None:
    log = compacted_log(9 * CHUNK)
    async with serving(log) as stage:
        assert offsets(await stage.answer(FROM_THE_START)) == [0, CHUNK]
        log.snapshot = LogId(11, 1), b"newer"
        assert await stage.answer(after(0, offset=CHUNK)) == [
            SnapshotPiece(request_id=b"\x11", last_index=11, last_term=1, offset=0, total_bytes=5, data=b"newer")
        ]
        assert await stage.answer(after(0, offset=2 * CHUNK)) == []
        assert stage.endpoint.under_way == 0


async def test_entries_compacted_before_send_replaced_by_snapshot() -> None:
    log = log_of(*[MESSAGE] * 9)
    async with serving(log) as stage:
        await stage.answer(FROM_THE_START)
        log.compact(8, b"state")
        assert await stage.answer(after(1)) == []
        assert await stage.answer(after(2), after(3)) == []
        assert await stage.answer(after(4)) == [
            SnapshotPiece(request_id=b"\x11", last_index=8, last_term=1, offset=0, total_bytes=5, data=b"state")
        ]
        assert last_indexes(await stage.answer(after(8))) == [9]


@pytest.mark.parametrize("before", [None, (LogId(4, 1), b"of entries that the client has")])
async def test_missing_snapshot_awaited(autojump_clock: MockClock, before: tuple[LogId, bytes] | None) -> None:
    log = compacted_log(5)
    snapshot, log.snapshot = log.snapshot, before
    async with serving(log) as stage:
        assert await stage.answer(after(4)) == []
        log.snapshot = snapshot
        await trio.sleep(0.1)
        assert stage.replies() == [
            SnapshotPiece(request_id=b"\x11", last_index=10, last_term=1, offset=0, total_bytes=5, data=bytes(5))
        ]


async def test_unreadable_snapshot_ends_its_stream_only() -> None:
    log = compacted_log(CHUNK)
    log.snapshot_is_damaged = True
    async with serving(log) as stage:
        assert await stage.answer(FROM_THE_START) == []
        assert (stage.endpoint.under_way, stage.endpoint.counts) == (0, {EndpointDrop.SNAPSHOT_UNREADABLE: 1})
        log.snapshot_is_damaged = False
        assert offsets(await stage.answer(FROM_THE_START)) == [0]


async def test_read_of_busy_log_retried(autojump_clock: MockClock) -> None:
    log = log_of(1, 1)
    log.busy = 3
    async with serving(log, options(budget_bytes=CHUNK)) as stage:
        stage.ask(FROM_THE_START)
        await trio.sleep(0.2)
        assert last_indexes(stage.replies()) == [2]


async def test_fault_in_read_ends_only_its_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(log_of(1)) as stage:
        with monkeypatch.context() as patched:
            patched.setattr(stage.log, "read", None)
            assert await stage.answer(FROM_THE_START) == []
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1]
        assert stage.endpoint.under_way == 0
    assert "a fault of the program" in caplog.text


async def test_full_queue_of_client_ends_stream() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        stage.has_room = False
        assert await stage.answer(FROM_THE_START) == []
        assert stage.endpoint.under_way == 0
        assert stage.endpoint.counts == {}, "the socket counts the dropped reply"


async def test_requests_beyond_high_watermark_ignored() -> None:
    async with serving(log_of(*[MESSAGE] * 9), options(high_watermark=2)) as stage:
        for identity in (b"1", b"2"):
            assert len(await stage.answer(FROM_THE_START, identity=identity)) == 5
        assert await stage.answer(FROM_THE_START, identity=b"3") == []
        assert stage.endpoint.counts == {EndpointDrop.TOO_MANY_STREAMS: 1}
        assert await stage.answer(after(1, count=0), identity=b"2") == []
        assert len(await stage.answer(FROM_THE_START, identity=b"3")) == 5


async def test_restarted_requests_count_until_previous_ones_end() -> None:
    """A burst without a pause for other tasks cannot begin more streams than permitted."""
    async with serving(log_of(*[MESSAGE] * 9), options(high_watermark=3)) as stage:
        replies = await stage.answer(*(after(number % 2) for number in range(100)))
        assert stage.endpoint.counts[EndpointDrop.TOO_MANY_STREAMS] == 97
        assert replies == []
        assert stage.endpoint.under_way == 0


async def test_streams_of_client_limited() -> None:
    async with serving(log_of(*[MESSAGE] * 9), options(streams_of_client=2)) as stage:
        for request_id in (b"1", b"2", b"3"):
            await stage.answer(replace(FROM_THE_START, request_id=request_id))
        assert stage.endpoint.under_way == 2
        assert stage.endpoint.counts == {EndpointDrop.CLIENT_STREAMS: 1}
        assert len(await stage.answer(FROM_THE_START, identity=b"other")) == 5


async def test_unconfirmed_messages_of_all_streams_share_budget(autojump_clock: MockClock) -> None:
    async with serving(log_of(*[MESSAGE] * 9), options(budget_bytes=8 * CHUNK)) as stage:
        assert len(await stage.answer(FROM_THE_START, identity=b"1")) == 5
        assert len(await stage.answer(FROM_THE_START, identity=b"2")) == 3
        assert await stage.answer(FROM_THE_START, identity=b"3") == []
        assert stage.endpoint.counts == {EndpointDrop.UNCONFIRMED_BYTES: 1}
        # The second stream waits longer than the first, so it gets the room that the confirmation frees.
        assert await stage.answer(after(1), identity=b"1") == []
        assert last_indexes(stage.replies(b"2")) == [4]
        await trio.sleep(6)
        assert stage.endpoint.under_way == 0
        assert len(await stage.answer(FROM_THE_START, identity=b"3")) == 5
        assert len(await stage.answer(FROM_THE_START, identity=b"4")) == 3


async def test_entry_larger_than_budget_sent_alone() -> None:
    async with serving(log_of(LARGE, LARGE), options(budget_bytes=CHUNK // 2)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1]
        assert last_indexes(await stage.answer(after(1))) == [2]


async def test_concurrent_reads_of_large_entries_limited() -> None:
    log = log_of(LARGE, LARGE)
    log.open_for_reads = trio.Event()
    clients = [b"%d" % number for number in range(9)]
    async with serving(log, options(budget_bytes=3 * CHUNK, reads_at_once=2)) as stage:
        for identity in clients:
            await stage.answer(FROM_THE_START, identity=identity)
        log.open_for_reads.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sum(len(stage.replies(identity)) for identity in clients) == 2


async def test_request_before_endpoint_runs_ignored() -> None:
    stage = Stage(log_of(1))
    assert await stage.answer(FROM_THE_START) == []
    assert stage.endpoint.counts == {EndpointDrop.NOT_RUNNING: 1}
    assert stage.endpoint.under_way == 0


async def read_all(stage: Stage, request: EntriesRequest, random: Random) -> tuple[bytes, list[Entry]]:
    """Read like a client of the npm package: confirm each message, sometimes several in a burst."""
    state, read, count = b"", list[Entry](), request.count
    pending: list[ClientReply] = await stage.answer(request)
    while True:
        reply = pending.pop(0)
        if isinstance(reply, SnapshotPiece):
            assert reply.offset == len(state)
            state += reply.data
            is_complete = len(state) == reply.total_bytes
            request = replace(request, previous_index=reply.last_index) if is_complete else request
            stage.ask(replace(request, snapshot_offset=None if is_complete else random.choice((None, len(state)))))
        else:
            assert isinstance(reply, EntriesBatch)
            assert reply.last_index - len(reply.entries) == request.previous_index
            read += reply.entries
            request = replace(request, previous_index=reply.last_index)
            if reply.is_last:
                return state, read
            stage.ask(replace(request, count=count and count - len(read)))
        if not pending or random.random() < 0.5:
            pending += await stage.answer()


async def test_confirming_client_reads_bytes_in_order() -> None:
    seed = randrange(2**32)
    random = Random(seed)
    for _ in range(12):
        log = log_of(*(random.choice((1, 500, HALF_MESSAGE, LARGE)) for _ in range(random.randrange(2, 40))))
        whole, state = list(log.entries), random.randbytes(random.choice((10, CHUNK, 5 * CHUNK + 3)))
        compacted_entries = random.randrange(0, len(whole)) if random.random() < 0.5 else 0
        if compacted_entries:
            log.compact(compacted_entries, state)
        previous = random.randrange(0, len(whole))
        count = random.choice((None, 1, 7, 1_000)) if previous >= compacted_entries else None
        async with serving(log) as stage:
            received = await read_all(stage, after(previous, count), random)
            first = max(previous, compacted_entries)
            expected_state = state if previous < compacted_entries else b""
            assert received == (expected_state, whole[first : None if count is None else first + count]), f"seed {seed}"
            assert await stage.answer() == []
            assert stage.endpoint.under_way == 0
            assert stage.endpoint.counts == {}
