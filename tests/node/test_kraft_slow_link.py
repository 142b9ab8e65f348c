"""A KRaft quorum over links of 1 Mbit/s: a follower catches up, and its leader continues to lead."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
import trio
import trio.testing

from consensus.core.effects import Outcome, Role
from consensus.core.features import KRAFT_STATIC, LeaderRecords
from consensus.core.model import Configuration, Server
from consensus.core.raft import Raft
from consensus.protocols.kafka.connections import connection
from consensus.protocols.kafka.connections.connection import DialOptions
from consensus.protocols.kafka.connections.listener import KafkaListener, ListenerOptions
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.operators.settings import StaticVoter, VoterSettings, core_options
from consensus.protocols.kraft.replica.peer_transport import KraftTransport
from consensus.protocols.kraft.replica.quorum_service import AnsweringLeader, QuorumService
from consensus.protocols.kraft.wire.entries import (
    batch_continues_after,
    batches_for_replicas,
    data_of,
    fetched_entries,
    leader_head,
)
from consensus.server.event_loop import now_ms
from consensus.server.server import ConsensusServer
from consensus.storage.planner import Owner, StorageOptions, recover
from tests.node.kept_entries import KeptEntries
from tests.node.kraft_replicas import KnownReplicas, replica_names
from tests.node.memory_server import MemoryDisk, parts_around
from tests.node.slow_link import MEGABIT_PER_S, Pipe, slow_pair

FAST = 100 * MEGABIT_PER_S
TIMEOUT_S = 600
STORAGE = StorageOptions(segment_bytes=16 * 1024 * 1024)


@dataclass
class Voter:
    """A running server."""

    server: ConsensusServer
    listener: KafkaListener
    machine: KeptEntries
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)


class Quorum:
    """Voters connected by pipes: each voter has one pipe towards it and one from it."""

    def __init__(self, nursery: trio.Nursery, count: int = 3) -> None:
        self.voters: dict[int, Voter] = {}
        self.names: list[KnownReplicas] = replica_names(count)
        self.towards = {number: Pipe(FAST) for number in range(1, count + 1)}
        self.leaders: list[int] = []
        """The voters that became leaders, in order."""
        self._disks = {number: MemoryDisk() for number in range(1, count + 1)}
        self._nursery = nursery
        for each in self.names:
            each.addresses.update({number: (str(each.own.id), number) for number in range(1, count + 1)})

    async def open_stream(self, host: str, port: int, _tls: object) -> trio.abc.Stream:
        """Replace TCP: `host` is the caller, `port` the called voter."""
        voter = self.voters.get(port)
        if voter is None:
            raise OSError(111, "Connection refused")
        ours, theirs = slow_pair(self._nursery, self.towards[port], self.towards[int(host)])
        self._nursery.start_soon(voter.listener.serve, theirs, f"10.0.0.{host}", 1)
        return ours

    async def start(self, *numbers: int) -> None:
        """Run voters on the data of their disks."""
        for number in numbers:
            await self._nursery.start(self._run, number)

    async def stop(self, number: int) -> None:
        voter = self.voters.pop(number)
        voter.scope.cancel()
        await voter.ended.wait()

    async def leader(self) -> int:
        """Return the leading voter after its term has a committed entry."""
        while True:
            for number, voter in self.voters.items():
                raft = voter.server.describe().raft
                if raft.role is Role.LEADER and raft.commit_index == raft.last.index:
                    return number
            await trio.sleep(0.01)

    async def write(self, number: int, batches: list[RecordBatch]) -> None:
        """Propose batches to the leader until they are committed."""
        for batch in batches:
            answer = await self.voters[number].server.propose(data_of(batch))
            assert answer.outcome is Outcome.COMMITTED

    async def catch_up(self, number: int, leader: int) -> float:
        """Wait until a voter has applied the leader's commit index; return the duration."""
        began_s = trio.current_time()
        await self.voters[number].server.wait_applied(self.voters[leader].server.commit_index)
        return trio.current_time() - began_s

    def values(self, number: int) -> list[bytes]:
        return [entry.data for entry in self.voters[number].machine.entries]

    async def _run(self, number: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        names, disk, machine = self.names[number - 1], self._disks[number], KeptEntries()
        voters = Configuration(tuple(Server(each.own, f"replica:{each.own.id}") for each in self.names))
        recovery = recover(disk, Owner(b"node-%03d" % number, 1, 1), bytes(16), STORAGE)
        disk.run(recovery.operations)
        settings = VoterSettings(number, disk, voters=(StaticVoter(1, "h", 1),))  # type: ignore[arg-type]
        records = LeaderRecords(lambda: leader_head(1), tuple, lambda each: each)
        core = Raft(
            names.own,
            voters,
            recovery.hard_state,
            recovery.log,
            core_options(settings),
            KRAFT_STATIC,
            Random(number),
            now_ms(),
            None,
            records,
        )
        transport = KraftTransport(names, fetched_entries, DialOptions(), random=Random(number))

        def observe(_notice: object) -> None:
            if server.role.role is Role.LEADER and self.leaders[-1:] != [number]:
                self.leaders.append(number)

        server = ConsensusServer(core, recovery.storage, disk, parts_around(transport, machine, observe))
        service = QuorumService(
            server,
            names,
            batches_for_replicas,
            AnsweringLeader(server.soft_state).now,
            ends_batch=lambda entry: not batch_continues_after(entry),
        )
        listener = KafkaListener((service,), ListenerOptions())
        with trio.CancelScope() as scope:
            self.voters[number] = voter = Voter(server, listener, machine, scope)
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                task_status.started()
                await trio.sleep_forever()
        voter.ended.set()


@asynccontextmanager
async def quorum(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Quorum]:
    """Yield three running voters with fast links."""
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            made = Quorum(nursery)
            monkeypatch.setattr(connection, "_open_stream", made.open_stream)
            await made.start(1, 2, 3)
            yield made
            nursery.cancel_scope.cancel()


def in_memory(test: Callable[[], object]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]


def batch(size: int, records: int = 1) -> RecordBatch:
    return RecordBatch(0, -1, tuple(Record(1_000, None, bytes([n % 251]) * (size // records)) for n in range(records)))


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param([batch(10_000)] * 500, id="many-records", marks=pytest.mark.soak),
        pytest.param([batch(5_000_000)], id="one-record"),
        pytest.param([batch(2_500_000, 250)] * 2, id="large-batches"),
    ],
)
def test_follower_on_one_megabit_link_catches_up(missing: list[RecordBatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower lacks 5 MB, whose transfer takes 40 s. Until then, no voter campaigns."""

    async def run() -> None:
        async with quorum(monkeypatch) as made:
            leader = await made.leader()
            follower = next(number for number in (1, 2, 3) if number != leader)
            await made.stop(follower)
            await made.write(leader, missing)
            made.towards[follower].bytes_per_s = MEGABIT_PER_S
            await made.start(follower)
            took_s = await made.catch_up(follower, leader)
            assert 38 < took_s < 75
            assert made.leaders == [leader]
            assert made.values(follower) == made.values(leader)

    in_memory(run)


def test_large_record_commits_over_one_megabit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both followers have slow links: until the record has arrived, only heartbeats keep the leader."""

    async def run() -> None:
        async with quorum(monkeypatch) as made:
            leader = await made.leader()
            for number in {1, 2, 3} - {leader}:
                made.towards[number].bytes_per_s = MEGABIT_PER_S
            await made.write(leader, [batch(5_000_000)])
            assert made.leaders == [leader]

    in_memory(run)
