"""RequestEntries: messages ahead of their confirmations, snapshots first, and bounds on what is unconfirmed."""

from dataclasses import replace
from random import Random, randrange

import pytest
import trio
import trio.testing

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
    """A log with an update of each size."""
    return FakeLog([update_entry(number, size) for number, size in enumerate(sizes, 1)])


def compacted_log(state_bytes: int, entries: int = 2) -> FakeLog:
    """A log whose entries up to 10 are in a snapshot."""
    log = FakeLog([update_entry(number) for number in range(1, 11 + entries)])
    log.compact(10, bytes(state_bytes))
    return log


def after(index: int, count: int | None = None, offset: int | None = None) -> EntriesRequest:
    """A further request of the same client and request id."""
    return EntriesRequest(
        request_id=FROM_THE_START.request_id, ident=b"", previous_index=index, count=count, snapshot_offset=offset
    )


def options(**streams: int) -> EndpointOptions:
    return EndpointOptions(streams=StreamOptions(**streams))


def last_indexes(replies: list[ClientReply]) -> list[int]:
    """Where each of some messages with entries ends."""
    assert all(isinstance(reply, EntriesBatch) for reply in replies)
    return [reply.last_index for reply in replies if isinstance(reply, EntriesBatch)]


def offsets(replies: list[ClientReply]) -> list[int]:
    """Where each of some chunks begins."""
    assert all(isinstance(reply, SnapshotPiece) for reply in replies)
    return [reply.offset for reply in replies if isinstance(reply, SnapshotPiece)]


def entries(replies: list[ClientReply]) -> list[Entry]:
    return [entry for reply in replies if isinstance(reply, EntriesBatch) for entry in reply.entries]


async def test_a_log_that_fits_into_one_message_comes_in_one_that_says_it_is_the_last() -> None:
    log = log_of(10, 20, 30)
    async with serving(log) as stage:
        (reply,) = await stage.answer(FROM_THE_START)
        assert reply == EntriesBatch(request_id=b"\x11", is_last=True, last_index=3, entries=tuple(log.entries))
        assert stage.endpoint.under_way == 0


async def test_a_count_ends_the_answer_behind_so_many_entries() -> None:
    async with serving(log_of(1, 1, 1, 1)) as stage:
        assert await stage.answer(after(1, count=2)) == [
            EntriesBatch(request_id=b"\x11", is_last=True, last_index=3, entries=tuple(stage.log.entries[1:3]))
        ]
        assert await stage.answer(after(2, count=9)) == [
            EntriesBatch(request_id=b"\x11", is_last=True, last_index=4, entries=tuple(stage.log.entries[2:]))
        ]


async def test_entries_that_are_applied_after_the_request_do_not_belong_to_its_answer() -> None:
    log = log_of(*[MESSAGE] * 7)
    async with serving(log) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1, 2, 3, 4, 5]
        log.entries.append(update_entry(8))
        replies = await stage.answer(after(1), after(2))
        assert last_indexes(replies) == [6, 7]
        assert [reply.is_last for reply in replies if isinstance(reply, EntriesBatch)] == [False, True]


@pytest.mark.parametrize("previous", [2, 12])
async def test_a_previous_index_at_the_end_or_beyond_is_answered_by_the_index_of_the_end(previous: int) -> None:
    async with serving(log_of(1, 1)) as stage:
        assert await stage.answer(after(previous)) == [EntriesBatch(request_id=b"\x11", is_last=True, last_index=2)]
        assert await stage.answer(after(previous, count=3)) == [
            EntriesBatch(request_id=b"\x11", is_last=True, last_index=2)
        ]


async def test_five_messages_of_64_kib_go_ahead_and_one_more_for_each_confirmation() -> None:
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


async def test_a_message_has_no_more_entries_than_permitted() -> None:
    async with serving(log_of(*[1] * 10), options(message_entries=4)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [4, 8, 10]


async def test_a_confirmation_of_another_message_than_the_oldest_is_a_new_request() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1, 2, 3, 4, 5]
        assert last_indexes(await stage.answer(after(3))) == [4, 5, 6, 7, 8]
        assert last_indexes(await stage.answer(after(4))) == [9]
        assert stage.endpoint.under_way == 1


async def test_the_same_request_again_begins_anew_when_something_was_sent() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        await stage.answer(FROM_THE_START)
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1, 2, 3, 4, 5]
        assert stage.endpoint.under_way == 1


async def test_the_same_request_again_changes_nothing_while_the_log_is_being_read() -> None:
    log = log_of(1, 1)
    log.open_for_reads = trio.Event()
    async with serving(log) as stage:
        assert await stage.answer(FROM_THE_START, FROM_THE_START) == []
        log.open_for_reads.set()
        assert last_indexes(await stage.answer()) == [2]
        assert log.reads == [1]


async def test_a_client_that_repeats_what_is_being_read_keeps_its_stream(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    log = log_of(1, 1)
    log.open_for_reads = trio.Event()
    async with serving(log) as stage:
        stage.ask(FROM_THE_START)
        await trio.sleep(4)
        stage.ask(FROM_THE_START)
        await trio.sleep(4)
        log.open_for_reads.set()
        assert last_indexes(await stage.answer()) == [2]


async def test_streams_of_other_clients_and_other_request_ids_are_others() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        for identity, request_id in ((CLIENT, b"\x11"), (CLIENT, b"\x12"), (b"other", b"\x11")):
            request = replace(FROM_THE_START, request_id=request_id)
            assert last_indexes(await stage.answer(request, identity=identity)) == [1, 2, 3, 4, 5]
        assert stage.endpoint.under_way == 3
        assert last_indexes(await stage.answer(after(1), identity=b"other")) == [6]


async def test_a_count_of_zero_ends_a_stream_and_is_no_request() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        await stage.answer(FROM_THE_START)
        assert await stage.answer(after(1, count=0)) == []
        assert stage.endpoint.under_way == 0
        assert await stage.answer(after(1, count=0)) == []


async def test_a_stream_ends_five_seconds_after_the_last_confirmation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
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


async def test_behind_an_entry_larger_than_a_message_nothing_is_sent_until_it_is_confirmed() -> None:
    async with serving(log_of(MESSAGE, LARGE, LARGE, MESSAGE, MESSAGE)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1, 2]
        assert last_indexes(await stage.answer(after(1))) == []
        assert last_indexes(await stage.answer(after(2))) == [3]
        assert last_indexes(await stage.answer(after(3))) == [4, 5]


async def test_a_peer_that_does_not_lead_names_the_leader() -> None:
    log = log_of(1)
    log.is_leader = False
    async with serving(log) as stage:
        assert await stage.answer(FROM_THE_START) == [EntriesRedirect(b"\x11", "2")]


async def test_a_stream_ends_with_the_leadership() -> None:
    log = log_of(*[MESSAGE] * 9)
    async with serving(log) as stage:
        await stage.answer(FROM_THE_START)
        log.is_leader, log.leader = False, None
        assert await stage.answer(after(1)) == [EntriesRedirect(b"\x11", None)]
        assert stage.endpoint.under_way == 0


async def test_a_stream_that_has_sent_everything_ends_with_the_leadership_too() -> None:
    log = log_of(*[MESSAGE] * 5)
    async with serving(log) as stage:
        assert len(await stage.answer(FROM_THE_START)) == 5
        log.is_leader = False
        assert await stage.answer(after(1)) == [EntriesRedirect(b"\x11", "2")]
        assert stage.endpoint.under_way == 0


async def test_nothing_that_was_read_is_sent_when_leadership_was_lost_meanwhile() -> None:
    log = log_of(*[MESSAGE] * 3)
    log.open_for_reads = trio.Event()
    async with serving(log) as stage:
        await stage.answer(FROM_THE_START)
        log.is_leader = False
        log.open_for_reads.set()
        assert await stage.answer() == [EntriesRedirect(b"\x11", "2")]
        assert stage.endpoint.under_way == 0


async def test_a_snapshot_goes_two_chunks_ahead_and_the_entries_follow_on_request() -> None:
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
    ("further", "begins"),
    [(after(0, offset=2 * CHUNK), 2 * CHUNK), (after(1), 0), (after(0, offset=0), 0)],
    ids=["the offset behind another chunk", "another previous index", "the beginning"],
)
async def test_a_confirmation_that_does_not_follow_from_the_oldest_chunk_is_a_new_request(
    further: EntriesRequest, begins: int
) -> None:
    async with serving(compacted_log(9 * CHUNK)) as stage:
        await stage.answer(FROM_THE_START)
        assert offsets(await stage.answer(further)) == [begins, begins + CHUNK]
        assert stage.endpoint.under_way == 1


async def test_a_snapshot_is_sent_from_the_offset_that_the_request_names() -> None:
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
async def test_an_offset_at_the_end_of_the_snapshot_or_beyond_gets_an_empty_chunk(beyond: int) -> None:
    async with serving(compacted_log(100)) as stage:
        replies = await stage.answer(after(0, offset=100 + beyond))
        assert replies == [
            SnapshotPiece(request_id=b"\x11", last_index=10, last_term=1, offset=100, total_bytes=100, data=b"")
        ]
        assert stage.endpoint.under_way == 0


async def test_a_snapshot_of_nothing_is_an_empty_chunk() -> None:
    async with serving(compacted_log(0)) as stage:
        assert await stage.answer(FROM_THE_START) == [
            SnapshotPiece(request_id=b"\x11", last_index=10, last_term=1, offset=0, total_bytes=0, data=b"")
        ]


async def test_an_offset_means_nothing_where_the_entries_are_there() -> None:
    async with serving(compacted_log(100)) as stage:
        assert last_indexes(await stage.answer(after(10, offset=50))) == [12]


async def test_a_snapshot_that_is_replaced_is_sent_anew_and_its_chunks_say_so() -> None:
    log = compacted_log(9 * CHUNK)
    async with serving(log) as stage:
        assert offsets(await stage.answer(FROM_THE_START)) == [0, CHUNK]
        log.snapshot = LogId(11, 1), b"newer"
        assert await stage.answer(after(0, offset=CHUNK)) == [
            SnapshotPiece(request_id=b"\x11", last_index=11, last_term=1, offset=0, total_bytes=5, data=b"newer")
        ]
        assert await stage.answer(after(0, offset=2 * CHUNK)) == []
        assert stage.endpoint.under_way == 0


async def test_entries_that_are_compacted_before_they_are_sent_come_as_the_snapshot() -> None:
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
async def test_a_snapshot_that_is_not_there_yet_is_awaited(
    autojump_clock: trio.testing.MockClock, before: tuple[LogId, bytes] | None
) -> None:
    del autojump_clock
    log = compacted_log(5)
    snapshot, log.snapshot = log.snapshot, before
    async with serving(log) as stage:
        assert await stage.answer(after(4)) == []
        log.snapshot = snapshot
        await trio.sleep(0.1)
        assert stage.replies() == [
            SnapshotPiece(request_id=b"\x11", last_index=10, last_term=1, offset=0, total_bytes=5, data=bytes(5))
        ]


async def test_a_busy_log_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    log = log_of(1, 1)
    log.busy = 3
    async with serving(log, options(budget_bytes=CHUNK)) as stage:
        stage.ask(FROM_THE_START)
        await trio.sleep(0.2)
        assert last_indexes(stage.replies()) == [2]


async def test_a_stream_to_a_client_whose_queue_is_full_ends() -> None:
    async with serving(log_of(*[MESSAGE] * 9)) as stage:
        stage.has_room = False
        assert await stage.answer(FROM_THE_START) == []
        assert stage.endpoint.under_way == 0
        assert stage.endpoint.counts == {}, "the socket counts the dropped reply"


async def test_beyond_the_high_watermark_requests_are_ignored() -> None:
    async with serving(log_of(*[MESSAGE] * 9), options(high_watermark=2)) as stage:
        for identity in (b"1", b"2"):
            assert len(await stage.answer(FROM_THE_START, identity=identity)) == 5
        assert await stage.answer(FROM_THE_START, identity=b"3") == []
        assert stage.endpoint.counts == {EndpointDrop.TOO_MANY_STREAMS: 1}
        assert await stage.answer(after(1, count=0), identity=b"2") == []
        assert len(await stage.answer(FROM_THE_START, identity=b"3")) == 5


async def test_requests_that_begin_anew_count_until_those_before_have_ended() -> None:
    """A burst without a pause for other tasks cannot begin more streams than permitted."""
    async with serving(log_of(*[MESSAGE] * 9), options(high_watermark=3)) as stage:
        replies = await stage.answer(*(after(number % 2) for number in range(100)))
        assert stage.endpoint.counts[EndpointDrop.TOO_MANY_STREAMS] == 97
        assert replies == []
        assert stage.endpoint.under_way == 0


async def test_one_client_has_so_many_streams_at_once() -> None:
    async with serving(log_of(*[MESSAGE] * 9), options(streams_of_client=2)) as stage:
        for request_id in (b"1", b"2", b"3"):
            await stage.answer(replace(FROM_THE_START, request_id=request_id))
        assert stage.endpoint.under_way == 2
        assert stage.endpoint.counts == {EndpointDrop.CLIENT_STREAMS: 1}
        assert len(await stage.answer(FROM_THE_START, identity=b"other")) == 5


async def test_unconfirmed_messages_of_all_streams_keep_to_a_budget(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with serving(log_of(*[MESSAGE] * 9), options(budget_bytes=8 * CHUNK)) as stage:
        assert len(await stage.answer(FROM_THE_START, identity=b"1")) == 5
        assert len(await stage.answer(FROM_THE_START, identity=b"2")) == 3
        assert await stage.answer(FROM_THE_START, identity=b"3") == []
        assert stage.endpoint.counts == {EndpointDrop.UNCONFIRMED_BYTES: 1}
        # The second waits longer than the first, so what is confirmed to the first goes to the second.
        assert await stage.answer(after(1), identity=b"1") == []
        assert last_indexes(stage.replies(b"2")) == [4]
        await trio.sleep(6)
        assert stage.endpoint.under_way == 0
        assert len(await stage.answer(FROM_THE_START, identity=b"3")) == 5
        assert len(await stage.answer(FROM_THE_START, identity=b"4")) == 3


async def test_an_entry_larger_than_the_whole_budget_is_sent_when_nothing_else_is_unconfirmed() -> None:
    async with serving(log_of(LARGE, LARGE), options(budget_bytes=CHUNK // 2)) as stage:
        assert last_indexes(await stage.answer(FROM_THE_START)) == [1]
        assert last_indexes(await stage.answer(after(1))) == [2]


async def test_only_so_many_entries_can_turn_out_to_be_larger_than_was_reserved() -> None:
    log = log_of(LARGE, LARGE)
    log.open_for_reads = trio.Event()
    clients = [b"%d" % number for number in range(9)]
    async with serving(log, options(budget_bytes=3 * CHUNK, reads_at_once=2)) as stage:
        for identity in clients:
            await stage.answer(FROM_THE_START, identity=identity)
        log.open_for_reads.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sum(len(stage.replies(identity)) for identity in clients) == 2


async def test_a_request_before_the_endpoint_runs_is_ignored() -> None:
    stage = Stage(log_of(1))
    assert await stage.answer(FROM_THE_START) == []
    assert stage.endpoint.counts == {EndpointDrop.NOT_RUNNING: 1}
    assert stage.endpoint.under_way == 0


async def read_all(stage: Stage, request: EntriesRequest, random: Random) -> tuple[bytes, list[Entry]]:
    """Read as a client of the package does, which confirms each message. Confirmations may come in a burst."""
    state, read, count = b"", list[Entry](), request.count
    arrived: list[ClientReply] = await stage.answer(request)
    while True:
        reply = arrived.pop(0)
        if isinstance(reply, SnapshotPiece):
            assert reply.offset == len(state)
            state += reply.data
            done = len(state) == reply.total_bytes
            request = replace(request, previous_index=reply.last_index) if done else request
            stage.ask(replace(request, snapshot_offset=None if done else random.choice((None, len(state)))))
        else:
            assert isinstance(reply, EntriesBatch)
            assert reply.last_index - len(reply.entries) == request.previous_index
            read += reply.entries
            request = replace(request, previous_index=reply.last_index)
            if reply.is_last:
                return state, read
            stage.ask(replace(request, count=count and count - len(read)))
        if not arrived or random.random() < 0.5:
            arrived += await stage.answer()


async def test_a_client_that_confirms_each_message_gets_each_byte_once_and_in_order() -> None:
    seed = randrange(2**32)
    random = Random(seed)
    for _ in range(12):
        log = log_of(*(random.choice((1, 500, HALF_MESSAGE, LARGE)) for _ in range(random.randrange(2, 40))))
        whole, state = list(log.entries), random.randbytes(random.choice((10, CHUNK, 5 * CHUNK + 3)))
        compacted = random.randrange(0, len(whole)) if random.random() < 0.5 else 0
        if compacted:
            log.compact(compacted, state)
        previous = random.randrange(0, len(whole))
        count = random.choice((None, 1, 7, 1_000)) if previous >= compacted else None
        async with serving(log) as stage:
            received = await read_all(stage, after(previous, count), random)
            begin = max(previous, compacted)
            wanted = state if previous < compacted else b""
            assert received == (wanted, whole[begin : None if count is None else begin + count]), f"seed {seed}"
            assert await stage.answer() == []
            assert stage.endpoint.under_way == 0
            assert stage.endpoint.counts == {}
