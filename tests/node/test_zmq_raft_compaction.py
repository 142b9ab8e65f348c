"""Compaction: it keeps entries with fresh ids, loses no data, and leaves the log unchanged if the program fails."""

import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from struct import Struct

import pytest
import trio
from trio.testing import MockClock

from consensus.core.model import Entry, Index
from consensus.protocols.zmq_raft.peer.compaction import (
    CommandCompactor,
    Compacted,
    Compaction,
    CompactionError,
    CompactionFailed,
    CompactionOptions,
    CompactionSource,
)
from consensus.protocols.zmq_raft.wire.entries import entry_frame, read_entries
from consensus.protocols.zmq_raft.wire.messages import UpdateCommitted, UpdateExpired
from tests.node.memory_server import until
from tests.node.test_zmq_raft_replicated_log import commit, final_index, group_of
from tests.node.zmq_raft_group import Node, request_id
from tests.processes import hold_for_threads

HOUR_S = 3600
ENTRY = Struct(">QI")
LENGTH = Struct(">Q")


class Concatenation:
    """A `Compactor` whose snapshot is all updates, one on each line."""

    async def compact(self, source: CompactionSource, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write the previous snapshot, and a line for each entry."""
        async for data in source.snapshot:
            await write(data)
        async for _, entry in source.entries:
            await write(entry.data[12:] + b"\n")


def compaction(node: Node, path: Path, reports: list[Compacted | CompactionFailed] | None = None) -> Compaction:
    reports = [] if reports is None else reports
    return Compaction(
        node.server,
        node.machine,
        Concatenation(),
        path / "making",
        reports.append,
        CompactionOptions(log_bytes=1000, min_entries=5),
    )


async def snapshot_of(node: Node) -> bytes:
    chunk = await node.log.read_snapshot(0, 1 << 20)
    return b"" if chunk is None else chunk.data


async def test_snapshot_replaces_entries_with_expired_ids(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Given five old and five fresh updates, then a compaction removes the fresh ones only after their ids expire."""
    hold_for_threads(autojump_clock)  # A thread removes the file.
    async with group_of(tmp_path, 1) as (group, leader):
        indexes = [await commit(leader, counter, b"old %d" % counter) for counter in range(5)]
        group.clock_ahead_s = 8 * HOUR_S + 60
        for counter in range(5, 10):
            answers = leader.update(counter, b"new %d" % counter, age_s=-group.clock_ahead_s)
            await final_index(answers)
        compacted = await compaction(leader, tmp_path).compact()
        assert compacted.index == leader.log.describe().prune_index == indexes[-1]
        assert await snapshot_of(leader) == b"".join(b"old %d\n" % counter for counter in range(5))
        assert leader.log.describe().first_index == compacted.index + 1
        with pytest.raises(CompactionError, match="fresh id"):
            await compaction(leader, tmp_path).compact()
        group.clock_ahead_s *= 2
        await final_index(leader.update(10, b"newest", age_s=-group.clock_ahead_s))
        await compaction(leader, tmp_path).compact()
        assert (await snapshot_of(leader)).count(b"\n") == 10
        assert not (tmp_path / "making").exists()


async def test_fresh_ids_known_after_restart_on_snapshot(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Entries with fresh ids stay in the log, so the snapshot does not need their ids."""
    async with group_of(tmp_path, 1) as (group, leader):
        await commit(leader, 1)
        group.clock_ahead_s = 8 * HOUR_S + 60
        fresh = -group.clock_ahead_s
        index = await final_index(leader.update(2, age_s=fresh))
        await compaction(leader, tmp_path).compact()
        await group.stop(leader)
        await group.start(1, founders=1)
        successor = await group.leader()
        await until(lambda: successor.log.describe().last_applied >= index)
        assert successor.update(2, age_s=fresh) == [UpdateCommitted(request_id(2, fresh), index)]
        assert successor.update(1) == [UpdateExpired(request_id(1))]


async def test_fresh_id_kept_after_clock_jumps_ahead(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Without this id, a repeated request after a restart with the correct clock would be executed twice."""
    async with group_of(tmp_path, 1) as (group, leader):
        index = await commit(leader, 1)
        # Given: a clock that jumps ahead, and clients with correct clocks
        group.clock_ahead_s = 9 * HOUR_S
        # When: a compaction is attempted, and the peer restarts with the correct clock
        with pytest.raises(CompactionError, match="fresh id"):
            await compaction(leader, tmp_path).compact()
        await group.stop(leader)
        group.clock_ahead_s = 0
        await group.start(1, founders=1)
        successor = await group.leader()
        # Then: the request is known
        await until(lambda: successor.log.describe().last_applied >= index)
        assert await commit(successor, 1) == index


async def test_returning_peer_gets_snapshot_and_following_entries(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The peer also learns the index of the fresh request, so that it can reply to a repeat as leader."""
    async with group_of(tmp_path) as (group, leader):
        absent = next(node for node in group.nodes.values() if not node.leads)
        name = next(name for name, node in group.nodes.items() if node is absent)
        await group.stop(absent)
        for counter in range(5):
            await commit(leader, counter)
        group.clock_ahead_s = 8 * HOUR_S + 60
        fresh = -group.clock_ahead_s
        index = await final_index(leader.update(9, age_s=fresh))
        compacted = await compaction(leader, tmp_path).compact()
        await group.start(int(name))
        returned = group.nodes[name]
        await until(lambda: returned.log.describe().last_applied >= index)
        assert returned.log.describe().first_index == compacted.index + 1
        assert await snapshot_of(returned) == await snapshot_of(leader)
        assert returned.machine.table.index_of(request_id(9, fresh)) == index


async def test_large_log_compacted_when_enough_ids_expired(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The log is not compacted while ids are fresh, nor again before enough further ids have expired."""
    hold_for_threads(autojump_clock)  # A thread writes the file.
    reports: list[Compacted | CompactionFailed] = []
    async with group_of(tmp_path, 1) as (group, leader), trio.open_nursery() as nursery:
        nursery.start_soon(compaction(leader, tmp_path, reports).run)
        for counter in range(10):
            await commit(leader, counter, b"x" * 200)
        await trio.sleep(30)
        assert reports == []
        group.clock_ahead_s = 9 * HOUR_S
        await final_index(leader.update(10, age_s=-9 * HOUR_S))
        await until(lambda: bool(reports))
        await trio.sleep(30)
        assert reports == [Compacted(10, 2010)]
        nursery.cancel_scope.cancel()


async def entry_stream(*pairs: tuple[Index, Entry]) -> AsyncGenerator[tuple[Index, Entry], None]:
    for pair in pairs:
        yield pair


async def chunks(*data: bytes) -> AsyncGenerator[bytes, None]:
    for each in data:
        yield each


async def run_command(command: list[str], count: int, snapshot: bytes = b"", timeout_s: float = 20.0) -> bytes:
    """Return the output of a program for a snapshot and `count` entries from index 7 on."""
    compacted = bytearray()

    async def write(data: bytes) -> None:
        compacted.extend(data)

    pairs = [(index, Entry.command(3, request_id(index) + b"data %d" % index)) for index in range(7, 7 + count)]
    async with aclosing(chunks(snapshot)) as before, aclosing(entry_stream(*pairs)) as following:
        source = CompactionSource(len(snapshot), before, following)
        await CommandCompactor(command, timeout_s).compact(source, write)
    return bytes(compacted)


async def test_program_reads_previous_snapshot_and_entries() -> None:
    """The program `cat` returns its input unchanged, so the output shows the framing."""
    compacted = await run_command(["cat"], 2, b"before")
    assert LENGTH.unpack_from(compacted) == (6,)
    at = LENGTH.size + 6
    assert compacted[LENGTH.size : at] == b"before"
    for index in (7, 8):
        number, length = ENTRY.unpack_from(compacted, at)
        frame = compacted[at + ENTRY.size : at + ENTRY.size + length]
        assert (number, read_entries([frame])[0]) == (index, Entry.command(3, request_id(index) + b"data %d" % index))
        assert frame == entry_frame(read_entries([frame])[0])
        at += ENTRY.size + length
    assert at == len(compacted)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("cat >/dev/null; echo broken state >&2; exit 3", "sh ended with status 3: broken state"),
        ("exec sleep 60", "did not end within 0.2 s"),
        ("exit 0", "before it had read everything"),
    ],
)
async def test_failing_program_raises_error_with_reason(script: str, reason: str) -> None:
    """The error distinguishes a status, a timeout, and unread input."""
    with trio.fail_after(60), pytest.raises(CompactionError, match=reason):
        await run_command(["sh", "-c", script], 20_000, timeout_s=0.2 if "sleep" in script else 20)


async def test_missing_program_named_in_error() -> None:
    with pytest.raises(CompactionError, match="no-such-program cannot be started: No such file"):
        await run_command(["no-such-program"], 1)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
async def test_program_whose_output_cannot_be_written_raises_os_error(code: int) -> None:
    """The peer catches OSError and retries later; an exception group would end it."""

    async def write(_data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(code, os.strerror(code))

    async with aclosing(chunks(b"before")) as before, aclosing(entry_stream()) as following:
        with trio.fail_after(60), pytest.raises(OSError, match=os.strerror(code)):
            await CommandCompactor(["cat"]).compact(CompactionSource(6, before, following), write)


async def test_failed_compaction_reported_without_changing_log(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After the failure, the next attempt follows only after a delay."""
    hold_for_threads(autojump_clock)  # A thread writes the file.
    reports: list[Compacted | CompactionFailed] = []

    class Failing:
        async def compact(self, source: CompactionSource, write: Callable[[bytes], Awaitable[object]]) -> None:
            del source
            await write(b"half")
            raise CompactionError("no")

    async with group_of(tmp_path, 1) as (group, leader), trio.open_nursery() as nursery:
        await commit(leader, 1)
        group.clock_ahead_s = 9 * HOUR_S
        await final_index(leader.update(2, age_s=-9 * HOUR_S))
        options = CompactionOptions(log_bytes=1, min_entries=1)
        compacting = Compaction(leader.server, leader.machine, Failing(), tmp_path / "making", reports.append, options)
        nursery.start_soon(compacting.run)
        await until(lambda: bool(reports))
        await trio.sleep(60)
        assert reports == [CompactionFailed("no")]
        assert leader.log.describe().snapshot_bytes == 0
        assert await leader.server.take_snapshot() is None
        nursery.cancel_scope.cancel()
