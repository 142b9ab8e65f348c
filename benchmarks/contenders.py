"""The programs measured together: the bare group, a pipe without consensus, and etcd. They take turns under load.

    each contender: server processes, and a load against them ─▶ Rate, processor time of its servers

Unavailable contenders are skipped with a reason. Running contenders without load only send heartbeats.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from benchmarks import etcd_group
from benchmarks.bare_pipe import Pipe, running_pipe
from benchmarks.child import Child, ChildError
from benchmarks.consensus_group import ConsensusGroup, running_consensus_group
from benchmarks.debian_package import find_program
from benchmarks.etcd_group import EtcdGroup, running_etcd_group
from benchmarks.load import GO, Load, Rate, Result

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
    shares: tuple[float, ...]
    """Processor time of each of its servers, as a share of one processor."""

    @property
    def entry_us(self) -> float:
        """Processor time of an entry, which depends less than a rate on the other load of the machine."""
        return sum(self.shares) / self.rate.entries_per_s * 1e6


class Server(Protocol):
    """A process under load."""

    def processor_seconds(self) -> float:
        """Return its processor time so far."""
        ...


Contender = ConsensusGroup | Pipe | EtcdGroup


async def drive(
    clients: Sequence[Child],
    servers: Collection[Server],
    load: Load,
    on_ready: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
) -> Turn:
    """Start the prepared client processes together, after a call of `on_ready`."""
    try:
        timeout_s = 30 + 3 * load.seconds
        for child in clients:
            await child.wait_ready(timeout_s)
        await on_ready()
        before = [server.processor_seconds() for server in servers]
        for child in clients:
            await child.send_line(GO)
        results = [Result(**await child.receive_document(timeout_s)) for child in clients]
        used_s = [server.processor_seconds() - began for server, began in zip(servers, before, strict=True)]
    finally:
        for child in clients:
            await child.end()
    failures = [f"{count} x {reason}" for result in results for reason, count in result.failures.items()]
    if failures:
        raise ChildError(f"submissions were not acknowledged: {'; '.join(failures[:FAILURES_SHOWN])}")
    if not any(result.latencies_us for result in results):
        raise ChildError("nothing was acknowledged")
    elapsed_s = max(result.elapsed_s for result in results)
    return Turn(Rate.of(results, load.batch), tuple(each / elapsed_s for each in used_s))


@asynccontextmanager
async def all_contenders(directory: Path) -> AsyncIterator[dict[str, Contender]]:
    """Yield all available contenders by name; print the version of etcd, or the reason for its absence."""
    async with AsyncExitStack() as stack:
        contenders: dict[str, Contender] = {
            OURS: await stack.enter_async_context(running_consensus_group(directory / "ours")),
            PIPE: await stack.enter_async_context(running_pipe(directory / "pipe")),
        }
        program, reason = await find_program("etcd", "etcd-server", directory)
        go_client = None
        if program is not None:
            go_client, reason = await etcd_group.build_client()
        if program is None or go_client is None:
            print(f"etcd: skipped: {reason}", flush=True)
        else:
            print(f"etcd: {await etcd_group.version(program)}", flush=True)
            group = await stack.enter_async_context(running_etcd_group(directory / "etcd", program, go_client))
            contenders[ETCD] = group
        yield contenders
