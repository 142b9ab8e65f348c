"""SIGKILL of the leader until the first acknowledged write: the bare group and etcd, same base timeout, in turns.

    a client begins a write every 20 ms ─▶ SIGKILL ─▶ a write begun after it is acknowledged ─▶ start again

Both groups have a base election timeout of 1,000 ms and heartbeats every 100 ms; both draw the timeout from 1,000 to
2,000 ms. Before its group's next turn, the killed server restarts and catches up.
"""

import json
import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from benchmarks import etcd_group
from benchmarks.child import Child
from benchmarks.consensus_group import ConsensusGroup, running_consensus_group
from benchmarks.etcd_group import EtcdGroup, running_etcd_group
from benchmarks.figures import Figure

TIMEOUT_S = 60.0
GROUP = "consensus, SIGKILL of the leader until a write is acknowledged, election timeout 1,000 to 2,000 ms"


class Killable(Protocol):
    """A group whose leader can be killed."""

    name: str

    async def kill_leader(self) -> float:
        """Return the seconds from SIGKILL to the first acknowledged write; then all servers run again."""
        ...


class OurGroup:
    """The bare consensus group."""

    name = "garlicfarm"

    def __init__(self, group: ConsensusGroup) -> None:
        self._group = group

    async def kill_leader(self) -> float:
        """See `Killable`."""
        leader = await self._group.settle()
        document = {"target": asdict(self._group.target())}
        log = self._group.directory / "client.log"
        client = await Child.start_module("client", "benchmarks.steady", document, log)
        try:
            seconds = await _kill(client, self._group.servers[leader])
        finally:
            await client.end()
            await self._group.end(leader)
        await self._group.restart(leader)
        await self._group.settle()
        return seconds


class EtcdKilled:
    """etcd."""

    name = "etcd"

    def __init__(self, group: EtcdGroup) -> None:
        self._group = group

    async def kill_leader(self) -> float:
        """See `Killable`."""
        leader = await self._group.settle()
        client = await self._group.client(leader, None)
        try:
            seconds = await _kill(client, self._group.members[leader])
        finally:
            await client.end()
            await self._group.members[leader].end()
        await self._group.start(leader)
        await self._group.settle()
        return seconds


async def _kill(client: Child, leader: Child) -> float:
    """Kill the leader once the client's writes arrive, and wait."""
    await client.request(json.dumps(time.monotonic()), TIMEOUT_S)
    killed_s = time.monotonic()
    leader.kill()
    return float((await client.request(json.dumps(killed_s), TIMEOUT_S))["seconds"])


async def measure(directory: Path, repetitions: int) -> tuple[list[Figure], list[str]]:
    """Return the figures, and the reason if etcd is missing."""
    missing: list[str] = []
    async with AsyncExitStack() as stack:
        groups: list[Killable] = [
            OurGroup(await stack.enter_async_context(running_consensus_group(directory / "ours")))
        ]
        program, reason = await etcd_group.find(directory)
        if program is None:
            missing.append(f"etcd: skipped: {reason}")
        else:
            groups.append(EtcdKilled(await stack.enter_async_context(running_etcd_group(directory / "etcd", program))))
        found: dict[str, list[float]] = {group.name: [] for group in groups}
        for _ in range(repetitions):
            for group in groups:
                found[group.name].append(await group.kill_leader())
    return figures(found), missing


def figures(found: dict[str, list[float]]) -> list[Figure]:
    """Return the times of each group, compared with etcd's."""
    rows = [Figure(GROUP, name, "s", tuple(seconds)) for name, seconds in found.items()]
    if len(rows) == 1:
        return rows
    own, etcd = rows
    verdict = "reached" if own.median <= etcd.median else f"missed by {own.median - etcd.median:.2f} s"
    note = f"goal: at most etcd's median of {etcd.median:.2f} s: {verdict}"
    return [Figure(GROUP, own.name, own.unit, own.values, note), etcd]
