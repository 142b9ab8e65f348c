"""Committed entries as a stream: from any index, with a snapshot for compacted entries, and bounded read-ahead."""

from itertools import accumulate

import pytest
import trio
import trio.testing

from consensus.core.model import COMMAND, Index
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.log_stream import EntryBatch, LogStream, SnapshotChunk, StreamItem
from consensus.server.options import ServerOptions
from consensus.storage.snapshot_image import ImageReader
from tests.node.memory_server import MemoryDisk, Node, leader_alone

KEEP_NOTHING = ServerOptions(retain_bytes=0)
LARGE = 40_000


async def fill(node: Node, *commands: bytes) -> None:
    answer = await node.server.propose(commands)
    assert answer.position is not None
    await node.server.wait_applied(answer.position.index)


async def take(stream: LogStream, until: Index) -> list[StreamItem]:
    """Return items up to the batch with the entry at `until`."""
    items: list[StreamItem] = []
    with trio.fail_after(60):
        async for item in stream:
            items.append(item)
            if isinstance(item, EntryBatch) and item.first + len(item.entries) > until:
                break
    return items


def commands(items: list[StreamItem]) -> list[bytes]:
    batches = [item for item in items if isinstance(item, EntryBatch)]
    return [entry.data for batch in batches for entry in batch.entries if entry.kind == COMMAND]


async def test_stream_returns_committed_entries_then_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        await fill(node, b"1", b"2", b"3")
        with node.server.committed_entries(1) as stream:
            last = node.server.commit_index
            assert commands(await take(stream, last)) == [b"1", b"2", b"3"]
            with trio.move_on_after(60) as scope:
                await stream.__anext__()
            assert scope.cancelled_caught
            await fill(node, b"4")
            (batch,) = await take(stream, last + 1)
            assert isinstance(batch, EntryBatch)
            assert (batch.first, batch.commit, commands([batch])) == (last + 1, last + 1, [b"4"])
        nursery.cancel_scope.cancel()


async def test_stream_from_future_index_starts_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        await fill(node, b"1")
        with node.server.committed_entries(node.server.commit_index + 2) as stream:
            await fill(node, b"2", b"3")
            assert commands(await take(stream, node.server.commit_index)) == [b"3"]
        nursery.cancel_scope.cancel()


async def test_compacted_log_starts_with_snapshot_and_its_size(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk(), KEEP_NOTHING)
        await fill(node, *(b"%d" % number * LARGE for number in range(20)))
        snapshot = await node.server.take_snapshot()
        assert snapshot is not None
        await fill(node, b"after")
        with node.server.committed_entries(1) as stream:
            items = await take(stream, node.server.commit_index)
        nursery.cancel_scope.cancel()
    chunks = [item for item in items if isinstance(item, SnapshotChunk)]
    assert len(chunks) > 1
    assert {(chunk.last, chunk.total_bytes) for chunk in chunks} == {(snapshot.last, snapshot.size_bytes)}
    assert [chunk.offset for chunk in chunks] == list(accumulate((len(chunk.data) for chunk in chunks[:-1]), initial=0))
    assert chunks[-1].offset + len(chunks[-1].data) == snapshot.size_bytes
    image = ImageReader()
    for chunk in chunks:
        list(image.feed(chunk.data))
    assert image.finish() == snapshot
    batch = items[len(chunks)]
    assert isinstance(batch, EntryBatch)
    assert (batch.first, commands(items)) == (snapshot.last.index + 1, [b"after"])


async def test_replaced_snapshot_restarts_transfer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk(), KEEP_NOTHING)
        await fill(node, *(b"%d" % number * LARGE for number in range(40)))
        first = await node.server.take_snapshot()
        with node.server.committed_entries(1, ahead=0) as stream:
            first_chunk = await stream.__anext__()
            await fill(node, b"more")
            second = await node.server.take_snapshot()
            await fill(node, b"after")
            items = await take(stream, node.server.commit_index)
        nursery.cancel_scope.cancel()
    assert first is not None
    assert second is not None
    assert isinstance(first_chunk, SnapshotChunk)
    assert (first_chunk.last, first_chunk.offset) == (first.last, 0)
    again = next(item for item in items if isinstance(item, SnapshotChunk) and item.last == second.last)
    assert (again.offset, again.total_bytes) == (0, second.size_bytes)
    newer = [item for item in items if isinstance(item, SnapshotChunk) and item.last == second.last]
    assert sum(len(chunk.data) for chunk in newer) == second.size_bytes
    assert commands(items) == [b"after"]


async def test_read_ahead_is_bounded(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        await fill(node, *(b"%d" % number for number in range(100)))
        reads: list[Index] = []
        read = node.server._storage_reads.log

        async def counted(first: Index, last: Index, limit_bytes: int) -> object:
            reads.append(first)
            return await read(first, last, limit_bytes)

        monkeypatch.setattr(node.server._storage_reads, "log", counted)
        with node.server.committed_entries(1, ahead=3, batch_bytes=1) as stream:
            await trio.sleep(60)
            assert reads == [1, 2, 3, 4]  # three items wait for the consumer, and one for room
            await stream.__anext__()
            await trio.sleep(60)
            assert reads == [1, 2, 3, 4, 5]
        nursery.cancel_scope.cancel()


async def test_ended_stream_is_closed_and_others_continue(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        await fill(node, b"1")
        last = node.server.commit_index
        with node.server.committed_entries(1) as remaining:
            for _ in range(10):
                with node.server.committed_entries(1) as ending:
                    await take(ending, last)
            await trio.sleep(1)
            assert node.server._streams.count == 1
            assert commands(await take(remaining, last)) == [b"1"]
        nursery.cancel_scope.cancel()


async def test_stopped_server_ends_its_streams(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        with node.server.committed_entries(node.server.commit_index + 1) as stream:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), pytest.raises(ServerStoppedError):
                await stream.__anext__()
    with pytest.raises(ServerStoppedError), node.server.committed_entries(1):
        pass


async def test_open_streams_are_limited(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk(), ServerOptions(max_log_streams=2))
        await fill(node, b"1")
        last = node.server.commit_index
        with node.server.committed_entries(1) as remaining:
            with node.server.committed_entries(1) as ending:
                with pytest.raises(ServerBusyError, match="2 streams of the log are open"):
                    node.server.committed_entries(1).__enter__()
                assert commands(await take(ending, last)) == [b"1"]
            await trio.sleep(1)
            with node.server.committed_entries(1) as next_stream:
                assert commands(await take(next_stream, last)) == commands(await take(remaining, last)) == [b"1"]
        nursery.cancel_scope.cancel()


async def test_unentered_stream_does_not_count(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk(), ServerOptions(max_log_streams=1))
        await fill(node, b"1")
        never = [node.server.committed_entries(1) for _ in range(10)]
        await trio.sleep(1)
        assert (len(never), node.server._streams.count) == (10, 0)
        with node.server.committed_entries(1) as stream:
            assert commands(await take(stream, node.server.commit_index)) == [b"1"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("first", "ahead", "batch_bytes", "reason"),
    [
        (0, 4, 1, "begins at index 1, not at 0"),
        (1, -1, 1, "0 to 16 items ahead, not -1"),
        (1, 17, 1, "0 to 16 items ahead, not 17"),
        (1, 4, 0, "1 to 1048576 bytes, not 0"),
        (1, 4, 2**20 + 1, "1 to 1048576 bytes, not 1048577"),
    ],
)
async def test_argument_out_of_bounds_is_refused_with_bound(
    first: int, ahead: int, batch_bytes: int, reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        with pytest.raises(ValueError, match=reason):
            node.server.committed_entries(first, ahead=ahead, batch_bytes=batch_bytes).__enter__()
        assert node.server._streams.count == 0
        nursery.cancel_scope.cancel()


async def test_stored_snapshot_is_read_from_any_offset(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk(), KEEP_NOTHING)
        assert await node.server.read_snapshot(0, 1_000) is None
        await fill(node, b"1" * LARGE)
        snapshot = await node.server.take_snapshot()
        assert snapshot is not None
        size = snapshot.size_bytes
        chunks = [await node.server.read_snapshot(offset, 1_000) for offset in (0, 7, size - 3, size, size + 100)]
        nursery.cancel_scope.cancel()
    read = [(chunk.last, chunk.total_bytes, chunk.offset, len(chunk.data)) for chunk in chunks if chunk is not None]
    assert read == [
        (snapshot.last, size, offset, length)
        for offset, length in ((0, 1_000), (7, 1_000), (size - 3, 3), (size, 0), (size, 0))
    ]
