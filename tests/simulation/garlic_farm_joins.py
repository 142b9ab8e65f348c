"""`python -m tests.simulation garlic-farm-joins`: servers join a cluster in use without an effect on its clients.

    20,000 entries ─▶ a fourth server requests to join: log packs ─▶ all write snapshots, the older log is deleted
                   ─▶ a fifth requests to join: the snapshot ─▶ both request their removal
                   ─▶ the clients stop, the history is judged

Real servers run in one process, over TLS on loopback, with journals on disk; the clients write and read throughout.
Every write returns the value that it replaced. Every read obtains a read index; then any server answers it, also a new
one. So if a newcomer lacks part of the log, or a client gets a premature answer, no single store could have produced
the history (`linearizability`).

The election timeouts are long (`CALM`). On a busy machine shorter ones would replace the leader again and again. Each
new leader sends the log to a joining server from the start.
"""

import argparse
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import trio

from consensus.core.effects import Outcome
from consensus.core.model import Index, LogId
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.wire.values import ClusterServer
from consensus.sessions.client import ExactlyOnceClient
from consensus.sessions.dedup_state_machine import OPENING_ENTRY, request_entry
from tests.node.loopback_group import CALM, LoopbackGroup, Run, Service, until
from tests.node.membership_client import join, request_removal
from tests.simulation.consensus.linearizability import NOTHING, Operation, Verdict, judge

FOURTH, FIFTH = 4, 5
KEYS = 128
READS = 0.2
PADDING = "-" * 64


class Store(Service):
    """Numbers by key; it also stores the value that each value replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, int] = {}
        self.replaced: dict[int, int] = {}

    async def execute(self, _index: Index, command: bytes) -> bytes:
        """Write one value; all values differ."""
        key, value, _ = json.loads(command)
        self.replaced[value] = self.values.get(key, NOTHING)
        self.values[key] = value
        return b""

    def snapshot(self) -> Iterator[bytes]:
        """Return the current state in chunks."""
        data = json.dumps([list(self.values.items()), list(self.replaced.items())]).encode()
        return (data[at : at + 65_536] for at in range(0, len(data), 65_536))

    async def restore(self, _last: LogId, state: AsyncIterator[bytes]) -> None:
        values, replaced = json.loads(b"".join([chunk async for chunk in state]))
        self.values, self.replaced = dict(values), dict(replaced)


@dataclass
class Figures:
    """Figures of the run, to print."""

    entries_before: int = 0
    joined_by_packs_s: float = 0.0
    packs: int = 0
    joined_by_snapshot_s: float = 0.0
    snapshot_bytes: int = 0
    removed_s: float = 0.0
    written_meanwhile: int = 0
    writes: int = 0
    reads: int = 0
    unanswered: int = 0
    elections: int = 0
    verdict: Verdict = Verdict.CONTRADICTORY
    """The worst verdict until the history is judged."""

    def lines(self) -> tuple[str, ...]:
        return (
            f"entries before a server joined   {self.entries_before}",
            f"fourth, by log packs            {self.joined_by_packs_s:.2f} s, {self.packs} packs",
            f"fifth, by snapshot              {self.joined_by_snapshot_s:.2f} s, {self.snapshot_bytes} bytes",
            f"both removed                    {self.removed_s:.2f} s",
            f"writes acknowledged             {self.writes}, {self.written_meanwhile} of them since the first join",
            f"reads                           {self.reads}",
            f"without an answer               {self.unanswered}",
            f"term at the end                 {self.elections}",
            f"history                         {self.verdict.value}",
        )


@dataclass
class Story:
    """One run; call `run` once."""

    directory: Path
    entries: int
    clients: int
    random: Random
    figures: Figures = field(default_factory=Figures)
    history: list[Operation] = field(default_factory=list)
    _moment: int = 0
    _value: int = 0
    _stopping: bool = False

    async def run(self) -> Figures:
        """Run from the creation of the group to the verdict."""
        async with trio.open_nursery() as nursery:
            servers = LoopbackGroup(self.directory, nursery, make_service=Store, options=CALM, eager=True)
            for server_id in servers.ids:
                await servers.start(server_id)
            plain = servers.client()
            await nursery.start(plain.run)
            async with trio.open_nursery() as clients:
                for number in range(self.clients):
                    client = ExactlyOnceClient(plain, f"client-{number}", request_entry, OPENING_ENTRY)
                    clients.start_soon(self._work, servers, plain, client)
                await until(lambda: self.figures.writes >= self.entries)
                self.figures.entries_before = self.figures.writes
                await self._members_change(servers, plain)
                self.figures.written_meanwhile = self.figures.writes - self.figures.entries_before
                self._stopping = True
            await self._check_stores(servers)
            leader = servers.runs[await servers.leader()]
            self.figures.elections = leader.server.describe().raft.term
            nursery.cancel_scope.cancel()
        self.figures.verdict = judge(self.history).verdict
        return self.figures

    async def _members_change(self, servers: LoopbackGroup, plain: GarlicFarmClient) -> None:
        figures, began = self.figures, trio.current_time()
        fourth = await self._join(servers, plain, FOURTH)
        figures.joined_by_packs_s = trio.current_time() - began
        figures.packs = fourth.members.joining.packs
        assert figures.packs > 0, "the fourth got no log packs"
        assert fourth.server.describe().restores == 0, "the fourth got a snapshot"
        for run in servers.runs.values():  # no server may have its log from the beginning when the fifth joins
            taken = await run.server.take_snapshot()
            assert taken is not None
            figures.snapshot_bytes = taken.size_bytes
        began = trio.current_time()
        fifth = await self._join(servers, plain, FIFTH)
        figures.joined_by_snapshot_s = trio.current_time() - began
        assert fifth.server.describe().restores > 0, "the fifth got no snapshot"
        # Let the newcomers answer reads for a while.
        enough = figures.reads + 200
        await until(lambda: figures.reads >= enough)
        began = trio.current_time()
        for server_id in (FOURTH, FIFTH):
            await self._remove(servers, server_id)
        figures.removed_s = trio.current_time() - began
        enough = figures.writes + 200
        await until(lambda: figures.writes >= enough)

    async def _join(self, servers: LoopbackGroup, plain: GarlicFarmClient, server_id: int) -> Run:
        run = await servers.start(server_id)
        await join(plain, run.server, ClusterServer(server_id, servers.endpoint(server_id)), self.random)
        return run

    async def _remove(self, servers: LoopbackGroup, server_id: int) -> None:
        own = servers.client(server_id=server_id)
        async with trio.open_nursery() as nursery:
            await nursery.start(own.run)
            while True:
                leader = servers.runs[await servers.leader()].server
                if server_id not in leader.describe().raft.configuration.voter_ids:
                    break
                await request_removal(own, server_id)
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        await servers.kill(server_id)

    # -- the clients ---------------------------------------------------------------------------------------------------

    async def _work(self, servers: LoopbackGroup, plain: GarlicFarmClient, client: ExactlyOnceClient) -> None:
        while not self._stopping:
            key = self.random.randrange(KEYS)
            if self.random.random() < READS:
                await self._read(servers, plain, key)
            else:
                await self._write(servers, client, key)

    async def _write(self, servers: LoopbackGroup, client: ExactlyOnceClient, key: int) -> None:
        self._value += 1
        value, called = self._value, self._tick()
        answer = await client.submit(json.dumps([key, value, PADDING]).encode(), timeout_s=30)
        if answer.outcome is not Outcome.COMMITTED or answer.position is None:
            self.figures.unanswered += 1
            self.history.append(Operation(key, value, None, called, None))
            return
        replied_at = self._tick()
        self.figures.writes += 1
        run = servers.runs[self.random.choice(servers.ids)]
        await run.server.wait_applied(answer.position.index)
        store = run.service
        assert isinstance(store, Store)
        self.history.append(Operation(key, value, store.replaced[value], called, replied_at))

    async def _read(self, servers: LoopbackGroup, plain: GarlicFarmClient, key: int) -> None:
        called = self._tick()
        barrier = await plain.read_index(timeout_s=30)
        if barrier.outcome is not Outcome.COMMITTED or barrier.position is None:
            self.figures.unanswered += 1
            return
        members = [each for each, run in servers.runs.items() if each in servers.ids or _is_member(each, run)]
        run = servers.runs[self.random.choice(members)]
        with trio.move_on_after(10) as scope:
            await run.server.wait_applied(barrier.position.index)
        store = run.service
        assert isinstance(store, Store)
        if scope.cancelled_caught or run.ended.is_set():
            self.figures.unanswered += 1  # the server was removed during the read
            return
        self.history.append(Operation(key, None, store.values.get(key, NOTHING), called, self._tick()))
        self.figures.reads += 1

    def _tick(self) -> int:
        self._moment += 1
        return self._moment

    async def _check_stores(self, servers: LoopbackGroup) -> None:
        runs = [servers.runs[server_id] for server_id in servers.ids]
        last = max(run.server.commit_index for run in runs)
        stores = []
        for run in runs:
            await run.server.wait_applied(last)
            assert isinstance(run.service, Store)
            stores.append(run.service)
        assert all((store.values, store.replaced) == (stores[0].values, stores[0].replaced) for store in stores)


def _is_member(server_id: int, run: Run) -> bool:
    return server_id in run.server.describe().raft.configuration.voter_ids


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation garlic-farm-joins", description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="garlic-farm-joins-") as directory:
        story = Story(Path(directory), chosen.entries, chosen.clients, Random(chosen.seed))
        figures = trio.run(story.run)
    for line in figures.lines():
        print(line)  # noqa: T201 - a command for people
    return 0 if figures.verdict is Verdict.LINEARIZABLE else 1
