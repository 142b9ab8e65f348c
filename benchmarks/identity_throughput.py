"""Opaque entries per second before and after: a farm of another checkout and one of this tree, by the same clients.

Both farms run all the time, three processes each; one is loaded at a time, in short rounds whose order changes, so that
a busy moment of the machine hits both. The clients are this tree's. They show no identity, like any client that only
submits, so a server of an earlier tree understands them. Each round gives a ratio; the figure is the median of these.
Beside the rate stands the leader's processor time for one entry, which other programs disturb less.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import Child, ChildError
from benchmarks.client import ClusterTarget, ServerTarget, specification
from benchmarks.figures import Figure
from benchmarks.load import GO, READY, Load, Rate, Result

CLIENTS = 64
CONNECTIONS = 2
ENTRY_BYTES = 256
GOAL = 0.95
FOUNDING_TIMEOUT_S = 90.0
MIB = 1024 * 1024


async def measure(directory: Path, base: Path, runs: int, seconds: float) -> list[Figure]:
    """The figures. Each round loads both farms for so many seconds."""
    here = Path(__file__).parents[1]
    if not (base / "benchmarks" / "farm.py").is_file():
        raise ChildError(f"{base} (--base) is no checkout of this project: it has no benchmarks/farm.py")
    async with _farm(directory / "before", base) as before, _farm(directory / "after", here) as after:
        for number in range(runs):
            for side in (before, after) if number % 2 else (after, before):
                side.rounds.append(await _round(side, seconds))
    rates = [[each.rate.entries_per_s for each in side.rounds] for side in (before, after)]
    costs = [[each.leader_us for each in side.rounds] for side in (before, after)]
    ratios = tuple(new / old for old, new in zip(*rates, strict=True))
    group = f"identity, opaque entries of {ENTRY_BYTES} bytes, {CLIENTS} clients on {CONNECTIONS} connections"
    middle = Figure(group, "", "", ratios).median
    return [
        Figure(group, "committed entries, before", "/s", tuple(rates[0])),
        Figure(group, "committed entries, after", "/s", tuple(rates[1])),
        Figure(group, "after / before", "x", ratios, f"goal {GOAL}: {'held' if middle >= GOAL else 'MISSED'}"),
        Figure(group, "leader's processor for an entry, before", "us", tuple(costs[0])),
        Figure(group, "leader's processor for an entry, after", "us", tuple(costs[1])),
        Figure(group, "its before / after", "x", tuple(old / new for old, new in zip(*costs, strict=True))),
        Figure(group, "resident memory of a node, before", "MiB", before.resident),
        Figure(group, "resident memory of a node, after", "MiB", after.resident),
    ]


@dataclass(frozen=True, slots=True)
class _Round:
    rate: Rate
    leader_us: float
    """Processor time of the leader for each entry."""


@dataclass(slots=True)
class _Side:
    name: str
    child: Child
    log: Path
    rounds: list[_Round] = field(default_factory=list)
    resident: tuple[float, ...] = ()
    """Of its nodes after all rounds, in MiB."""

    async def settled(self) -> dict[str, Any]:
        """The farm, when all its servers follow one leader."""
        return await self.child.ask("", FOUNDING_TIMEOUT_S)


@asynccontextmanager
async def _farm(directory: Path, tree: Path) -> AsyncIterator[_Side]:
    await trio.Path(directory).mkdir(parents=True)
    log, script = directory / "farm.log", Path(__file__).with_name("identity_farm.py")
    with log.open("ab") as errors:
        process = await trio.lowlevel.open_process(
            # -P: the script's own directory has modules of the same names as packages.
            [sys.executable, "-P", str(script), str(directory / "farm")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            start_new_session=True,
        )
    side = _Side(directory.name, Child(f"the farm of {tree}", process, log), log)
    try:
        await side.child.hear_document(FOUNDING_TIMEOUT_S)
        yield side
        servers = (await side.settled())["servers"]
        side.resident = tuple(_resident_bytes(pid) / MIB for pid in servers.values())
    finally:
        await side.child.end()


async def _round(side: _Side, seconds: float) -> _Round:
    found = await side.settled()
    leader = int(found["servers"][found["leader"]])
    target = dict(found["target"])
    servers = tuple(ServerTarget(**each) for each in target.pop("servers"))
    client = await Child.start_module("the clients", "benchmarks.client", None, side.log.with_name("clients.log"))
    try:
        load = Load(CLIENTS, CONNECTIONS, seconds, ENTRY_BYTES)
        await client.say(specification(ClusterTarget(**target, servers=servers), load).strip())
        if await client.hear() != READY:
            raise ChildError("the clients did not get ready")
        began_s = _processor_s(leader)
        await client.say(GO)
        result = Result(**json.loads(await client.hear(seconds * 4 + 30)))
        used_s = _processor_s(leader) - began_s
    finally:
        await client.end()
    if result.failures:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in Counter(result.failures).most_common(3))
        raise ChildError(f"the farm of {side.name}: submissions were not committed: {reasons}")
    rate = Rate.of([result], 1)
    return _Round(rate, used_s / len(result.latencies_us) * 1e6)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found[1]) * 1024 if found else 0
