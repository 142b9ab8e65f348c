"""Compaction: never past a fresh id, nothing lost, and nothing changed when the operator's program fails."""

import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from struct import Struct
from time import monotonic

import pytest
import trio
import trio.testing

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
from consensus.protocols.zmq_raft.wire.entries import entry_frame, read_entry
from consensus.protocols.zmq_raft.wire.messages import UpdateCommitted, UpdateExpired
from tests.node.test_zmq_raft_replicated_log import committed, done, group_of
from tests.node.zmq_raft_group import Node, request_id, until

HOUR_S = 3600
ENTRY = Struct(">QI")
LENGTH = Struct(">Q")


class Concatenation:
    """A `Compactor` whose snapshot is all updates, one on each line."""

    async def compact(self, source: CompactionSource, write: Callable[[bytes], Awaitable[object]]) -> None:
        """The previous snapshot, and a line for each entry."""
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


async def test_a_snapshot_stands_for_the_entries_whose_ids_have_expired(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Given five old updates and five fresh ones, when the log is compacted twice, then the fresh ones stay in it."""
    del autojump_clock
    async with group_of(tmp_path, 1) as group:
        leader = await group.leader()
        indexes = [await done(leader, counter, b"old %d" % counter) for counter in range(5)]
        group.clock_ahead_s = 8 * HOUR_S + 60
        for counter in range(5, 10):
            answers = leader.update(counter, b"new %d" % counter, age_s=-group.clock_ahead_s)
            await committed(answers)
        made = await compaction(leader, tmp_path).compact()
        assert made.index == leader.log.describe().prune_index == indexes[-1]
        assert await snapshot_of(leader) == b"".join(b"old %d\n" % counter for counter in range(5))
        assert leader.log.describe().first_index == made.index + 1
        with pytest.raises(CompactionError, match="fresh id"):
            await compaction(leader, tmp_path).compact()
        group.clock_ahead_s *= 2
        await committed(leader.update(10, b"newest", age_s=-group.clock_ahead_s))
        await compaction(leader, tmp_path).compact()
        assert (await snapshot_of(leader)).count(b"\n") == 10
        # The thread that removes the file is no part of the simulated time.
        ends_s = monotonic() + 10
        while (tmp_path / "making").exists() and monotonic() < ends_s:
            await trio.lowlevel.checkpoint()
        assert not (tmp_path / "making").exists()


async def test_after_a_restart_on_a_snapshot_fresh_ids_are_known_and_old_ones_expired(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Exactly-once needs nothing of the snapshot."""
    del autojump_clock
    async with group_of(tmp_path, 1) as group:
        leader = await group.leader()
        await done(leader, 1)
        group.clock_ahead_s = 8 * HOUR_S + 60
        fresh = -group.clock_ahead_s
        index = await committed(leader.update(2, age_s=fresh))
        await compaction(leader, tmp_path).compact()
        await group.stop(leader)
        await group.start(1, founders=1)
        leader = await group.leader()
        await until(lambda: leader.log.describe().last_applied >= index)
        assert leader.update(2, age_s=fresh) == [UpdateCommitted(request_id(2, fresh), index)]
        assert leader.update(1) == [UpdateExpired(request_id(1))]


async def test_a_clock_that_jumps_ahead_has_no_fresh_id_compacted_away(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Else a request that is repeated after a restart, with the right clock, would be executed twice."""
    del autojump_clock
    async with group_of(tmp_path, 1) as group:
        leader = await group.leader()
        index = await done(leader, 1)
        # Given: a clock that jumps ahead, and clients whose clocks are right
        group.clock_ahead_s = 9 * HOUR_S
        # When: the log is to be compacted, and the peer is started again with the right clock
        with pytest.raises(CompactionError, match="fresh id"):
            await compaction(leader, tmp_path).compact()
        await group.stop(leader)
        group.clock_ahead_s = 0
        await group.start(1, founders=1)
        leader = await group.leader()
        # Then: the request is known
        await until(lambda: leader.log.describe().last_applied >= index)
        assert await done(leader, 1) == index


async def test_a_peer_that_was_away_gets_the_snapshot_and_the_entries_behind_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """And answers repeats like the others when it leads."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        away = next(node for node in group.nodes.values() if not node.leads)
        name = next(name for name, node in group.nodes.items() if node is away)
        await group.stop(away)
        for counter in range(5):
            await done(leader, counter)
        group.clock_ahead_s = 8 * HOUR_S + 60
        fresh = -group.clock_ahead_s
        index = await committed(leader.update(9, age_s=fresh))
        made = await compaction(leader, tmp_path).compact()
        await group.start(int(name))
        back = group.nodes[name]
        await until(lambda: back.log.describe().last_applied >= index)
        assert back.log.describe().first_index == made.index + 1
        assert await snapshot_of(back) == await snapshot_of(leader)
        assert back.machine.table.index_of(request_id(9, fresh)) == index


async def test_the_log_is_compacted_when_it_is_large_and_enough_of_it_is_old(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Not while ids are fresh; and once it is done, not again before as much is old once more."""
    del autojump_clock
    reports: list[Compacted | CompactionFailed] = []
    async with group_of(tmp_path, 1) as group, trio.open_nursery() as nursery:
        leader = await group.leader()
        nursery.start_soon(compaction(leader, tmp_path, reports).run)
        for counter in range(10):
            await done(leader, counter, b"x" * 200)
        await trio.sleep(30)
        assert reports == []
        group.clock_ahead_s = 9 * HOUR_S
        await committed(leader.update(10, age_s=-9 * HOUR_S))
        await until(lambda: bool(reports))
        await trio.sleep(30)
        assert reports == [Compacted(10, 2010)]
        nursery.cancel_scope.cancel()


async def entries(*pairs: tuple[Index, Entry]) -> AsyncGenerator[tuple[Index, Entry], None]:
    for pair in pairs:
        yield pair


async def chunks(*data: bytes) -> AsyncGenerator[bytes, None]:
    for each in data:
        yield each


async def run_command(command: list[str], count: int, snapshot: bytes = b"", timeout_s: float = 20.0) -> bytes:
    """What a program makes of a snapshot and so many entries from index 7 on."""
    made = bytearray()

    async def write(data: bytes) -> None:
        made.extend(data)

    pairs = [(index, Entry.command(3, request_id(index) + b"data %d" % index)) for index in range(7, 7 + count)]
    async with aclosing(chunks(snapshot)) as before, aclosing(entries(*pairs)) as behind:
        source = CompactionSource(len(snapshot), before, behind)
        await CommandCompactor(command, timeout_s).compact(source, write)
    return bytes(made)


async def test_a_program_reads_the_previous_snapshot_and_each_entry_as_it_is_on_the_wire() -> None:
    """`cat` shows the framing."""
    made = await run_command(["cat"], 2, b"before")
    assert LENGTH.unpack_from(made) == (6,)
    at = LENGTH.size + 6
    assert made[LENGTH.size : at] == b"before"
    for index in (7, 8):
        told, length = ENTRY.unpack_from(made, at)
        frame = made[at + ENTRY.size : at + ENTRY.size + length]
        assert (told, read_entry(frame)) == (index, Entry.command(3, request_id(index) + b"data %d" % index))
        assert frame == entry_frame(read_entry(frame))
        at += ENTRY.size + length
    assert at == len(made)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("cat >/dev/null; echo broken state >&2; exit 3", "sh ended with status 3: broken state"),
        ("exec sleep 60", "did not end within 0.2 s"),
        ("exit 0", "before it had read everything"),
    ],
)
async def test_a_program_that_fails_makes_no_snapshot_and_the_reason_is_told(script: str, reason: str) -> None:
    """A status, no end, or less than everything read: the operator learns which."""
    with trio.fail_after(20), pytest.raises(CompactionError, match=reason):
        await run_command(["sh", "-c", script], 20_000, timeout_s=0.2 if "sleep" in script else 20)


async def test_a_program_that_is_not_there_is_named() -> None:
    """The error says what cannot be started."""
    with pytest.raises(CompactionError, match="no-such-program cannot be started: No such file"):
        await run_command(["no-such-program"], 1)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
async def test_program_whose_output_cannot_be_written_raises_os_error(code: int) -> None:
    """The peer catches OSError and retries later; a group of errors would end it."""

    async def write(_data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(code, os.strerror(code))

    async with aclosing(chunks(b"before")) as before, aclosing(entries()) as behind:
        with trio.fail_after(20), pytest.raises(OSError, match=os.strerror(code)):
            await CommandCompactor(["cat"]).compact(CompactionSource(6, before, behind), write)


async def test_a_failed_compaction_leaves_the_log_as_it_was_and_is_reported(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The next attempt comes later, not at once."""
    del autojump_clock
    reports: list[Compacted | CompactionFailed] = []

    class Failing:
        async def compact(self, source: CompactionSource, write: Callable[[bytes], Awaitable[object]]) -> None:
            del source
            await write(b"half")
            raise CompactionError("no")

    async with group_of(tmp_path, 1) as group, trio.open_nursery() as nursery:
        leader = await group.leader()
        await done(leader, 1)
        group.clock_ahead_s = 9 * HOUR_S
        await committed(leader.update(2, age_s=-9 * HOUR_S))
        options = CompactionOptions(log_bytes=1, min_entries=1)
        failing = Compaction(leader.server, leader.machine, Failing(), tmp_path / "making", reports.append, options)
        nursery.start_soon(failing.run)
        # The file is written by a thread, which the simulated clock does not wait for.
        await until(lambda: bool(reports))
        await trio.sleep(60)
        assert reports == [CompactionFailed("no")]
        assert leader.log.describe().snapshot_bytes == 0
        assert await leader.server.take_snapshot() is None
        nursery.cancel_scope.cancel()
