"""The programs measured together: the bare group, etcd, PySyncObj. They take turns under load.

    each contender: server processes, and a load against them ─▶ Rate, processor time of its servers

Unavailable contenders are skipped with a reason. Running contenders without load only send heartbeats.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import trio

from benchmarks import client, etcd_group
from benchmarks.child import Child, ChildError
from benchmarks.consensus_group import ConsensusGroup, running_consensus_group
from benchmarks.etcd_group import EtcdGroup, free_ports, running_etcd_group
from benchmarks.load import GO, READY, Load, Rate, Result

OURS = "garlicfarm"
FAILURES_SHOWN = 3
PYSYNCOBJ_MEMBERS = 3
ELECTION_TIMEOUT_S = 30.0
POLL_S = 0.1


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


async def drive(clients: Sequence[Child], servers: Sequence[Child], load: Load) -> Turn:
    """Start the prepared client processes together."""
    try:
        patience_s = 30 + 3 * load.seconds
        for child in clients:
            if await child.receive_line(patience_s) != READY:
                raise ChildError(f"{child.name} did not get ready")
        before = [server.processor_seconds() for server in servers]
        for child in clients:
            await child.send_line(GO)
        results = [Result(**await child.receive_document(patience_s)) for child in clients]
        used_s = sum(server.processor_seconds() for server in servers) - sum(before)
    finally:
        for child in clients:
            await child.end()
    return _turn(results, used_s, load)


def _turn(results: Sequence[Result], used_s: float, load: Load) -> Turn:
    failures = [f"{count} x {reason}" for result in results for reason, count in result.failures.items()]
    if failures:
        raise ChildError(f"submissions were not acknowledged: {'; '.join(failures[:FAILURES_SHOWN])}")
    if not any(result.latencies_us for result in results):
        raise ChildError("nothing was acknowledged")
    return Turn(Rate.of(results, load.batch), used_s / max(result.elapsed_s for result in results))


class Ours:
    """The bare consensus group."""

    name = OURS

    def __init__(self, group: ConsensusGroup) -> None:
        self._group = group

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
        return await drive(children, list(self._group.servers.values()), load)


class Etcd:
    """etcd, for one entry per submission: a transaction of several would be one entry of its log."""

    name = "etcd"

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


class PySyncObj:
    """PySyncObj; its clients are in its leader's process."""

    def __init__(self, name: str, members: list[Child]) -> None:
        self.name = name
        self._members = members

    def fits(self, scenario: Scenario) -> bool:
        """Return True for single entries."""
        return scenario.batch == 1

    async def turn(self, scenario: Scenario, load: Load) -> Turn:
        """Its turn: the whole load in one process."""
        leader = await self.leader()
        whole = Load(scenario.clients, 0, load.seconds, load.entry_bytes)
        before = sum(member.processor_seconds() for member in self._members)
        answer = await leader.request(json.dumps({"load": asdict(whole)}), 30 + 3 * load.seconds)
        used_s = sum(member.processor_seconds() for member in self._members) - before
        result = Result(**answer)
        return _turn([result], used_s, whole)

    async def leader(self) -> Child:
        """Return the leader."""
        with trio.move_on_after(ELECTION_TIMEOUT_S):
            while True:
                for member in self._members:
                    if (await member.request("{}"))["leads"]:
                        return member
                await trio.sleep(POLL_S)
        raise ChildError(f"PySyncObj elected no leader within {ELECTION_TIMEOUT_S:g} s")


@asynccontextmanager
async def pysyncobj(directory: Path, name: str, *, synced: bool, at_once: bool) -> AsyncIterator[PySyncObj]:
    """Start three members; they end with the block."""
    await trio.Path(directory).mkdir(parents=True)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(PYSYNCOBJ_MEMBERS)]
    members: list[Child] = []
    try:
        for number, address in enumerate(addresses):
            document = {
                "address": address,
                "others": [other for other in addresses if other != address],
                "journal": str(directory / f"{number}.journal"),
                "synced": synced,
                "at_once": at_once,
            }
            log = directory / f"{number}.log"
            members.append(await Child.start_module(name, "benchmarks.pysyncobj_node", document, log))
        found = PySyncObj(name, members)
        await found.leader()
        yield found
    finally:
        for member in members:
            await member.end()


@asynccontextmanager
async def all_contenders(directory: Path) -> AsyncIterator[tuple[list[Contender], list[str]]]:
    """Yield all available contenders, and remarks: the unavailable ones, and the client of etcd."""
    contenders: list[Contender] = []
    remarks: list[str] = []
    async with AsyncExitStack() as stack:
        contenders.append(Ours(await stack.enter_async_context(running_consensus_group(directory / "ours"))))
        program, reason = await etcd_group.find(directory)
        if program is None:
            remarks.append(f"etcd: skipped: {reason}")
        else:
            go_client, reason = await etcd_group.build_client()
            language = "Go" if go_client is not None else f"Python, at the expense of etcd's throughput: {reason}"
            remarks.append(f"etcd: {await etcd_group.version(program)}; its client is in {language}")
            group = await stack.enter_async_context(running_etcd_group(directory / "etcd", program, go_client))
            contenders.append(Etcd(group))
        if find_spec("pysyncobj") is None:
            remarks.append("PySyncObj: skipped: the package pysyncobj (the extra `bench`) is not installed")
        else:
            for name, synced, at_once in (
                ("PySyncObj unchanged, never syncs", False, False),
                ("PySyncObj without batches, never syncs", False, True),
                ("PySyncObj without batches, synced by a patch", True, True),
            ):
                home = directory / f"pysyncobj{len(contenders)}"
                contenders.append(
                    await stack.enter_async_context(pysyncobj(home, name, synced=synced, at_once=at_once))
                )
        yield contenders, remarks
