"""The programs measured together: the bare group, a pipe without consensus, and etcd. They take turns under load.

    each contender: server processes, and a load against them ─▶ Rate, processor time of its servers

Unavailable contenders are skipped with a reason. Running contenders without load only send heartbeats.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from benchmarks import client, etcd_group
from benchmarks.bare_pipe import Pipe, running_pipe
from benchmarks.child import Child, ChildError
from benchmarks.consensus_group import ConsensusGroup, running_consensus_group
from benchmarks.etcd_group import EtcdGroup, running_etcd_group
from benchmarks.load import GO, READY, Load, Rate, Result

OURS = "garlicfarm"
PIPE = "the pipe"
ETCD = "etcd"
FAILURES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Scenario:
    """The numbers of clients, of their processes and connections altogether, and of entries per submission."""

    name: str
    clients: int
    processes: int
    connections: int
    batch: int = 1

    def load(self, seconds: float, entry_bytes: int) -> Load:
        """Return the load of each client process."""
        return Load(
            self.clients // self.processes, self.connections // self.processes, seconds, entry_bytes, self.batch
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender's turn at one scenario."""

    rate: Rate
    servers_share: float
    """Processor time of all its servers, as a share of one processor."""


class Contender(Protocol):
    """A program under load."""

    name: str

    def fits(self, scenario: Scenario) -> bool:
        """Return True if it can run the scenario."""
        ...

    async def turn(self, scenario: Scenario, load: Load) -> Turn:
        """Load its servers, and return the figures."""
        ...


async def drive(
    clients: Sequence[Child],
    servers: Sequence[Child],
    load: Load,
    on_ready: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
) -> Turn:
    """Start the prepared client processes together, after a call of `on_ready`."""
    try:
        patience_s = 30 + 3 * load.seconds
        for child in clients:
            if await child.receive_line(patience_s) != READY:
                raise ChildError(f"{child.name} did not get ready")
        await on_ready()
        before = [server.processor_seconds() for server in servers]
        for child in clients:
            await child.send_line(GO)
        results = [Result(**await child.receive_document(patience_s)) for child in clients]
        used_s = sum(server.processor_seconds() for server in servers) - sum(before)
    finally:
        for child in clients:
            await child.end()
    failures = [f"{count} x {reason}" for result in results for reason, count in result.failures.items()]
    if failures:
        raise ChildError(f"submissions were not acknowledged: {'; '.join(failures[:FAILURES_SHOWN])}")
    if not any(result.latencies_us for result in results):
        raise ChildError("nothing was acknowledged")
    return Turn(Rate.of(results, load.batch), used_s / max(result.elapsed_s for result in results))


class Ours:
    """The bare consensus group."""

    name = OURS

    def __init__(
        self, group: ConsensusGroup, on_ready: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
    ) -> None:
        self._group = group
        self._on_ready = on_ready

    def fits(self, _scenario: Scenario) -> bool:
        """Return True: every scenario is possible."""
        return True

    async def turn(self, scenario: Scenario, load: Load) -> Turn:
        """Load its servers, and return the figures."""
        await self._group.settle()
        line = client.specification(self._group.target(), load).strip()
        children = [
            await Child.start_module("client", "benchmarks.client", None, self._group.directory / "client.log")
            for _ in range(scenario.processes)
        ]
        for child in children:
            await child.send_line(line)
        return await drive(children, list(self._group.servers.values()), load, self._on_ready)


class BarePipe:
    """Replication without consensus, the limit of this machine."""

    name = PIPE

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def fits(self, _scenario: Scenario) -> bool:
        """Return True: every scenario is possible."""
        return True

    async def turn(self, scenario: Scenario, load: Load) -> Turn:
        """Load its servers, and return the figures."""
        children = [await self._pipe.client(load) for _ in range(scenario.processes)]
        return await drive(children, self._pipe.servers, load)


class Etcd:
    """etcd, for one entry per submission: a transaction of several would be one entry of its log."""

    name = ETCD

    def __init__(self, group: EtcdGroup) -> None:
        self._group = group

    def fits(self, scenario: Scenario) -> bool:
        """Return True for single entries."""
        return scenario.batch == 1

    async def turn(self, scenario: Scenario, load: Load) -> Turn:
        """Load its servers, and return the figures."""
        leader = await self._group.settle()
        children = [await self._group.client(leader, load) for _ in range(scenario.processes)]
        return await drive(children, list(self._group.members.values()), load)


@asynccontextmanager
async def all_contenders(directory: Path) -> AsyncIterator[tuple[list[Contender], list[str]]]:
    """Yield all available contenders, and a remark about etcd: its version, or the reason for its absence."""
    async with AsyncExitStack() as stack:
        contenders: list[Contender] = [
            Ours(await stack.enter_async_context(running_consensus_group(directory / "ours"))),
            BarePipe(await stack.enter_async_context(running_pipe(directory / "pipe"))),
        ]
        program, reason = await etcd_group.find(directory)
        go_client = None
        if program is not None:
            go_client, reason = await etcd_group.build_client()
        if program is None or go_client is None:
            remark = f"etcd: skipped: {reason}"
        else:
            remark = f"etcd: {await etcd_group.version(program)}"
            group = await stack.enter_async_context(running_etcd_group(directory / "etcd", program, go_client))
            contenders.append(Etcd(group))
        yield contenders, [remark]
