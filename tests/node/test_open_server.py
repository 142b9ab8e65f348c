"""`open_server` over a network in memory and real directories, with both strategies of replication.

A `MockClock` provides the time, and the tests do not sleep: each story waits for events of the servers.
"""

import dataclasses
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import consensus
from consensus import KRAFT, Configuration, Features, Notice, Outcome, Role, RoleChanged, Server
from consensus.net import MEMORY, MemoryNetwork
from consensus.storage import Recovery
from consensus.storage.snapshot_form import PLAIN
from tests.node.kept_entries import KeptEntries

GROUP = Configuration(tuple(Server(number, f"memory:{number}") for number in (1, 2, 3)))
DELAY_S = 0.001
ROOT = Path(__file__).parents[2]


@dataclass
class ServerRun:
    """One server from its start to its end."""

    server: consensus.ConsensusServer
    machine: KeptEntries
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)


class Group:
    """Three servers with separate directories; each can be stopped and started."""

    def __init__(self, path: Path, features: Features, nursery: trio.Nursery, *, retain_bytes: int = 2**40) -> None:
        self.network = MemoryNetwork(DELAY_S)
        self.runs: dict[int, ServerRun] = {}
        self._path = path
        self._features = features
        self._nursery = nursery
        self._options = consensus.ServerOptions(retain_bytes=retain_bytes)
        self._changed = trio.Event()

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            self.runs[number] = await self._nursery.start(self._run_server, number)

    async def stop(self, number: int) -> ServerRun:
        """Stop a server, and wait until its directory is closed."""
        run = self.runs.pop(number)
        run.scope.cancel()
        await run.ended.wait()
        return run

    async def leader(self) -> int:
        """Return the leader when all running servers follow it."""
        with trio.fail_after(600):
            while True:
                for number, run in self.runs.items():
                    followers = [each for each in self.runs.values() if each.server.role.leader == number]
                    if run.server.role.role is Role.LEADER and len(followers) == len(self.runs):
                        return number
                await self._changed.wait()

    async def commit(self, *commands: bytes) -> None:
        """Commit commands through the leader, and wait until all running servers apply them."""
        answer = await self.runs[await self.leader()].server.propose(commands)
        assert answer.outcome is Outcome.COMMITTED
        assert answer.position is not None
        for run in self.runs.values():
            await run.server.wait_applied(answer.position.index)

    def commands(self) -> set[tuple[bytes, ...]]:
        """Return the commands in the state machines: one element if all agree."""
        return {tuple(e.data for e in run.machine.entries if e.kind == consensus.COMMAND) for run in self.runs.values()}

    async def _run_server(
        self, number: int, task_status: trio.TaskStatus[ServerRun] = trio.TASK_STATUS_IGNORED
    ) -> None:
        machine = KeptEntries()
        with trio.CancelScope() as scope:
            async with consensus.open_server(
                consensus.ServerParts(
                    path=self._path / str(number),
                    server_id=number,
                    configuration=GROUP,
                    transport=self.network.transport(number),
                    state_machine=machine,
                    features=self._features,
                    options=consensus.lan(),
                    server_options=self._options,
                    storage_options=consensus.StorageOptions(segment_bytes=64 * 1024, tail_entries=8),
                    observe=self._observe,
                    random=Random(number),
                    disk_thread=False,
                )
            ) as server:
                run = ServerRun(server, machine, scope)
                task_status.started(run)
                await trio.sleep_forever()
        run.ended.set()

    def _observe(self, notice: Notice) -> None:
        if isinstance(notice, RoleChanged):
            self._changed.set()
            self._changed = trio.Event()


@pytest.fixture
def retain_bytes() -> int:
    """Return the bytes of log that servers retain after a snapshot."""
    return 2**40


@pytest.fixture(params=[MEMORY, KRAFT], ids=lambda features: features.replication.name)
async def group(request: pytest.FixtureRequest, tmp_path: Path, nursery: trio.Nursery, retain_bytes: int) -> Group:
    """Run three servers with each strategy of replication."""
    group = Group(tmp_path, request.param, nursery, retain_bytes=retain_bytes)
    await group.start(1, 2, 3)
    return group


async def test_restarted_follower_catches_up_from_its_directory(group: Group, autojump_clock: MockClock) -> None:
    await group.commit(b"before")
    leader = await group.leader()
    stopped = next(number for number in group.runs if number != leader)
    await group.stop(stopped)
    for number in range(50):
        await group.commit(b"meanwhile %d" % number * 100)
    await group.start(stopped)
    await group.commit(b"after")
    (commands,) = group.commands()
    assert (commands[0], len(commands), commands[-1]) == (b"before", 52, b"after")


async def test_killed_leader_is_replaced_and_follows_later(group: Group, autojump_clock: MockClock) -> None:
    await group.commit(b"acknowledged")
    old = await group.leader()
    await group.stop(old)
    new = await group.leader()
    assert new != old
    await group.commit(b"by the next leader")
    await group.start(old)
    await group.commit(b"by all three")
    assert group.commands() == {(b"acknowledged", b"by the next leader", b"by all three")}


async def test_acknowledged_entries_survive_stop_of_all_servers(group: Group, autojump_clock: MockClock) -> None:
    await group.commit(b"acknowledged")
    for number in (1, 2, 3):
        await group.stop(number)
    await group.start(1, 2, 3)
    await group.commit(b"after the restart")
    assert group.commands() == {(b"acknowledged", b"after the restart")}


@pytest.mark.parametrize("retain_bytes", [0])
async def test_lagging_follower_receives_snapshot(group: Group, autojump_clock: MockClock) -> None:
    await group.commit(b"before")
    leader = await group.leader()
    stopped = max(number for number in group.runs if number != leader)
    await group.stop(stopped)
    for number in range(100):
        await group.commit(b"%04d" % number * 1_000)
    for number in group.runs:
        assert await group.runs[number].server.take_snapshot() is not None
    await group.start(stopped)
    await group.commit(b"after")
    late = group.runs[stopped]
    assert late.machine.restored
    assert late.server.describe().raft.snapshot == group.runs[leader].server.describe().raft.snapshot
    (commands,) = group.commands()
    assert (commands[0], len(commands), commands[-1]) == (b"before", 102, b"after")


async def test_reads_are_linearizable_across_leadership_transfer(group: Group, autojump_clock: MockClock) -> None:
    await group.commit(b"one")
    old = await group.leader()
    await group.runs[old].server.read_barrier()
    target = next(number for number in group.runs if number != old)
    ended = await group.runs[old].server.transfer_leadership(target)
    assert (ended.outcome, ended.leader) == (consensus.TransferOutcome.DONE, target)
    assert await group.leader() == target
    await group.runs[target].server.read_barrier()
    with pytest.raises(consensus.NotLeaderError):
        await group.runs[old].server.read_barrier()


def parts_of(path: Path, number: int, storage_options: consensus.StorageOptions | None = None) -> consensus.ServerParts:
    """Return the parts of a server whose followers fetch."""
    return consensus.ServerParts(
        path=path,
        server_id=number,
        configuration=GROUP,
        transport=MemoryNetwork().transport(number),
        state_machine=KeptEntries(),
        features=KRAFT,
        storage_options=storage_options or consensus.StorageOptions(),
    )


async def test_directory_serves_one_server_at_a_time(tmp_path: Path) -> None:
    async def open_as(number: int) -> None:
        async with consensus.open_server(parts_of(tmp_path, number)):
            with pytest.raises(consensus.StorageError, match="another process has the directory"):
                async with consensus.open_server(parts_of(tmp_path, number)):
                    pytest.fail("opened twice")

    await open_as(1)
    await open_as(1)
    with pytest.raises(consensus.StorageError, match="belongs to node"):
        await open_as(2)


async def test_fetching_followers_need_snapshots_with_configuration(tmp_path: Path) -> None:
    """After a snapshot without a configuration, followers would count majorities of their old configuration."""
    plain = consensus.StorageOptions(snapshot_form=PLAIN)
    with pytest.raises(ValueError, match="do not contain the configuration"):
        async with consensus.open_server(parts_of(tmp_path, 1, plain)):
            pytest.fail("opened")


async def test_storage_refused_by_its_owner_is_closed(tmp_path: Path) -> None:
    def refuse(recovery: Recovery) -> None:
        raise consensus.StorageError(f"{recovery.report.entries} entries of another server")

    with pytest.raises(consensus.StorageError, match="0 entries of another server"):
        async with consensus.open_server(dataclasses.replace(parts_of(tmp_path, 1), recovered=refuse)):
            pytest.fail("opened")
    async with consensus.open_server(parts_of(tmp_path, 1)):
        pass


async def test_prepared_server_sends_no_notice_before_it_runs(tmp_path: Path) -> None:
    notices: list[Notice] = []
    alone = Configuration((Server(1, "memory:1"),))
    parts = dataclasses.replace(
        parts_of(tmp_path, 1), configuration=alone, options=consensus.local(), observe=notices.append
    )
    with trio.fail_after(60):
        async with consensus.prepare_server(parts) as server, trio.open_nursery() as nursery:
            await trio.testing.wait_all_tasks_blocked()
            assert (notices, server.describe().raft.term) == ([], 0)
            await nursery.start(server.run)
            await server.wait_commit(1)
            assert any(isinstance(notice, RoleChanged) for notice in notices)
            nursery.cancel_scope.cancel()


def test_documentation_example_commits_command() -> None:
    text = (ROOT / "docs" / "explanation" / "consensus.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", example]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.stdout, result.stderr) == ("Outcome.COMMITTED\n", "")
