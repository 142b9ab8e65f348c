"""Snapshots of a running server: taken by size, by age and on demand, restored at a start, sent to late followers."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from consensus.core.effects import Outcome, Role
from consensus.core.features import GARLIC_FARM
from consensus.core.model import Configuration, Index, Server
from consensus.core.options import Options
from consensus.net.memory import MemoryNetwork
from consensus.server.interfaces import StateMachine
from consensus.server.opening import open_server
from consensus.server.options import ServerOptions
from consensus.server.parts import ServerParts
from consensus.server.server import ConsensusServer
from consensus.server.snapshotting import Snapshotting
from consensus.storage.planner import StorageOptions
from consensus.storage.verification import StorageVerdict, verify_storage
from tests.node.kept_entries import KeptEntries, encoded
from tests.node.memory_server import MemoryDisk, build, leader_alone, until

ALONE = Configuration((Server(1, "tcp://127.0.0.1:7001"),))
FAST = Options(election_timeout_min_ms=20, election_timeout_max_ms=40, heartbeat_ms=5, retry_ms=20)
SMALL = StorageOptions(segment_bytes=64 * 1024, tail_entries=4)
KEEP_NOTHING = ServerOptions(retain_bytes=0)


@asynccontextmanager
async def one_run(
    path: Path, generation: int, machine: StateMachine, snapshot_index: Callable[[], Index] | None = None
) -> AsyncIterator[ConsensusServer]:
    """Run the only voter in one generation on real files."""
    parts = ServerParts(
        path=path,
        server_id=1,
        configuration=ALONE,
        transport=MemoryNetwork().transport(1),
        state_machine=machine,
        features=GARLIC_FARM,
        options=FAST,
        server_options=KEEP_NOTHING,
        storage_options=SMALL,
        node_id=b"node-one",
        generation=generation,
        snapshot_index=snapshot_index,
    )
    async with open_server(parts) as server:
        with trio.fail_after(60):
            while server.role.role is not Role.LEADER:  # noqa: ASYNC110 - real time, and soon
                await trio.sleep(0.005)
            yield server


async def fill(server: ConsensusServer, count: int, size: int = 4_000) -> Index:
    """Commit `count` commands; return the index of the last one.

    The state machine may apply them later: entries stored by an earlier run are read back first.
    """
    last = 0
    for number in range(count):
        answer = await server.propose((b"%06d" % number * (size // 6),))
        assert answer.outcome is Outcome.COMMITTED
        assert answer.position is not None
        last = answer.position.index
    return last


async def test_snapshot_compacts_log_and_is_restored_at_start(tmp_path: Path) -> None:
    """Raft section 7: "delete all log entries up through the last included index, as well as any prior snapshot"."""
    first = KeptEntries()
    async with one_run(tmp_path / "raft", 1, first) as server:
        await fill(server, 60)
        snapshot = await server.take_snapshot()
        assert snapshot is not None
        assert snapshot.last.index == server.describe().applied
        assert server.describe().segments < 5
        assert await server.take_snapshot() is None, "nothing was applied since"
        await server.wait_applied(await fill(server, 3))
    found = verify_storage(tmp_path / "raft")
    assert found.verdict is StorageVerdict.SOUND
    covered = f"up to index {snapshot.last.index} of term {snapshot.last.term}, {snapshot.size_bytes} bytes"
    assert [covered in line for line in found.found if line.startswith("snapshot")] == [True]
    assert found.entries < 30
    second = KeptEntries()
    async with one_run(tmp_path / "raft", 2, second) as server:
        await server.wait_applied(len(first.entries))
        assert second.restored == [snapshot.last.index]
        assert second.entries[: len(first.entries)] == first.entries
        await fill(server, 1)


class _OldestTen(KeptEntries):
    """A state machine whose snapshots contain the first ten entries only."""

    def snapshot(self) -> Iterator[bytes]:
        return encoded(tuple(self.entries[:10]))


async def test_snapshot_may_cover_fewer_entries_than_applied(tmp_path: Path) -> None:
    """The log keeps every later entry, and the next run applies them after the snapshot."""

    async def one_generation(generation: int, machine: KeptEntries, commands: int) -> None:
        async with one_run(tmp_path / "raft", generation, machine, lambda: 10) as server:
            await server.wait_applied(await fill(server, commands))
            taken = await server.take_snapshot()
            assert (taken.last.index if taken else None) == (10 if commands == 30 else None)
            snapshot = server.describe().raft.snapshot
            assert snapshot is not None
            assert snapshot.last.index == 10

    first, second = _OldestTen(), _OldestTen()
    await one_generation(1, first, 30)
    await one_generation(2, second, 1)
    assert second.restored == [10]
    assert second.entries[: len(first.entries)] == first.entries


async def test_snapshot_by_size_bounds_log(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Raft section 7: "One simple strategy is to take a snapshot when the log reaches a fixed size in bytes"."""
    node = await leader_alone(
        nursery, MemoryDisk(), ServerOptions(snapshot_log_bytes=100_000, snapshot_check_ms=50, retain_bytes=0)
    )
    for _ in range(200):
        await node.server.propose((bytes(5_000),))
        await trio.sleep(0.02)
    about = node.server.describe()
    assert about.snapshots_taken >= 5
    assert sum(len(file.now) for file in node.disk.names.values()) < 3_000_000
    assert about.raft.log_start.index > 150


async def test_snapshot_by_age_needs_new_entries(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    node = await leader_alone(nursery, MemoryDisk(), ServerOptions(snapshot_age_ms=60_000))
    await node.server.propose((b"news",))
    await trio.sleep(50)
    assert node.server.describe().snapshots_taken == 0
    await trio.sleep(20)
    assert node.server.describe().snapshots_taken == 1
    await trio.sleep(200)
    assert node.server.describe().snapshots_taken == 1


async def test_snapshot_checks_pause_without_new_entries(
    autojump_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0
    is_due = Snapshotting._is_due

    def counted(snapshotting: Snapshotting) -> bool:
        nonlocal checks
        checks += 1
        return is_due(snapshotting)

    monkeypatch.setattr(Snapshotting, "_is_due", counted)
    node = await leader_alone(nursery, MemoryDisk(), ServerOptions(snapshot_age_ms=60_000))
    await node.server.propose((b"news",))
    await trio.sleep(10)
    before = checks
    await trio.sleep(30)
    assert checks == before
    await node.server.propose((b"more",))
    await trio.sleep(10)
    assert checks == before + 1


async def test_proposals_during_snapshot_commit_outside_it(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Raft section 7: "so that new updates can be accepted without impacting the snapshot being written"."""
    node = await leader_alone(nursery, MemoryDisk())
    for _ in range(30):
        await node.server.propose((bytes(100_000),))
    covered: list[int] = []

    async def take() -> None:
        snapshot = await node.server.take_snapshot()
        assert snapshot is not None
        covered.append(snapshot.last.index)

    nursery.start_soon(take)
    committed = 0
    while not covered:
        assert (await node.server.propose((b"meanwhile",))).outcome is Outcome.COMMITTED
        committed += 1
    assert committed >= 3
    assert covered[0] <= len(node.applied) - committed + 1


async def test_snapshot_without_space_is_abandoned(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    node = await leader_alone(nursery, MemoryDisk())
    await node.server.propose((b"entry",))
    node.disk.full_for = ".snapshot.new"
    assert await node.server.take_snapshot() is None
    assert node.server.describe().snapshots_given_up == 1
    assert not node.server.describe().disk_full
    assert (await node.server.propose((b"more",))).outcome is Outcome.COMMITTED
    node.disk.full_for = ""
    assert await node.server.take_snapshot() is not None


async def test_canceled_snapshot_leaves_next_one_complete(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        # Given a state of several chunks, and a caller that cancels while the disk writes the first chunk
        node = await leader_alone(nursery, MemoryDisk())
        for _ in range(10):
            await node.server.propose((bytes(100_000),))
        await node.server.wait_applied(node.server.commit_index)
        with trio.move_on_after(0.001) as scope:
            await node.server.take_snapshot()
        assert scope.cancelled_caught
        # When another snapshot is taken immediately, then it does not use the disk's reply to the first
        snapshot = await node.server.take_snapshot()
        assert snapshot is not None
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        again = build(1, MemoryNetwork(), node.disk)
        await nursery.start(again.server.run)
        await until(lambda: again.machine.restored == [snapshot.last.index])
        assert again.applied == node.applied[: snapshot.last.index]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [0, 1, 300_000])
async def test_states_of_any_size_are_restored(tmp_path: Path, size: int) -> None:
    machine = KeptEntries()
    async with one_run(tmp_path / "raft", 1, machine) as server:
        await server.propose((bytes(size),))
        await server.take_snapshot()
    again = KeptEntries()
    async with one_run(tmp_path / "raft", 2, again) as server:
        await server.wait_applied(len(machine.entries))
        assert bytes(size) in [entry.data for entry in again.entries]
