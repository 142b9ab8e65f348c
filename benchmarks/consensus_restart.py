"""A log of 1,000,000 entries of 128 bytes: a follower's memory, and its time to verify and apply the log at a start.

    load in batches ─▶ memory of both followers ─▶ stop one ─▶ start it: open (every checksum) │ ready │ all applied

Replication transfers the log. Verification is the time to open the storage. Application begins when the leader has sent
the commit index, and ends when the (counting) state machine has every entry. The files are in the page cache, since
they have just been written: on a cold machine, add the disk's reading time.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import trio

from benchmarks.child import Child, ChildError
from benchmarks.client import specification
from benchmarks.consensus_group import POLL_S, ConsensusGroup, running_consensus_group
from benchmarks.figures import Figure
from benchmarks.load import GO, READY, Load

ENTRIES = 1_000_000
ENTRY_BYTES = 128
BATCH = 500
CLIENTS = 4
LOAD_S = 10.0
LOADS_MAX = 100
APPLY_TIMEOUT_S = 120.0
OPEN_GOAL_S = 5.0
MEMORY_GOAL_MB = 150
MB = 1_000_000


async def measure(directory: Path, runs: int) -> tuple[list[Figure], list[str]]:
    """Return the figures of both followers, and no remarks."""
    async with running_consensus_group(directory / "restart", whole_log=True) as group:
        leader = await group.settle()
        followers = [number for number in group.servers if number != leader]
        empty = _memory(group, followers)
        entries = await _fill(group)
        full = _memory(group, followers)
        title = f"consensus, a log of {entries:,} entries of {ENTRY_BYTES} bytes, a follower"
        opened, processor, applied, after = [], [], [], []
        for turn in range(runs):
            number = followers[turn % len(followers)]
            restart = await _restart(group, number)
            opened.append(restart.opened_s)
            processor.append(restart.processor_s)
            applied.append(restart.applied_s)
            after.append(group.servers[number].resident_bytes() / MB)
    figures = [
        Figure(title, "resident, empty log", "MB", empty),
        Figure(title, "resident, after replication", "MB", full, _goal(full, MEMORY_GOAL_MB, "MB")),
        Figure(title, "verified at start", "s", tuple(opened), _goal(opened, OPEN_GOAL_S, "s")),
        Figure(title, "verified at start: processor time", "s", tuple(processor)),
        Figure(title, "applied, from its start to work on", "s", tuple(applied)),
        Figure(title, "resident, after start and applying", "MB", tuple(after), _goal(after, MEMORY_GOAL_MB, "MB")),
    ]
    return figures, []


def _goal(values: list[float] | tuple[float, ...], goal: float, unit: str) -> str:
    return f"goal below {goal:g} {unit}: {sum(each < goal for each in values)} of {len(values)} within"


def _memory(group: ConsensusGroup, numbers: list[int]) -> tuple[float, ...]:
    return tuple(group.servers[number].resident_bytes() / MB for number in numbers)


async def _fill(group: ConsensusGroup) -> int:
    """Load until the log is long enough; return its length."""
    for _ in range(LOADS_MAX):
        client = await Child.start_module("client", "benchmarks.client", None, group.directory / "client.log")
        try:
            await client.send_line(specification(group.target(), Load(CLIENTS, 1, LOAD_S, ENTRY_BYTES, BATCH)).strip())
            if await client.receive_line() != READY:
                raise ChildError("the client did not get ready")
            await client.send_line(GO)
            await client.receive_line(LOAD_S * 4)
        finally:
            await client.end()
        await group.settle()
        commit = min(int(str(status["commit"])) for status in (await group.statuses()).values())
        if commit >= ENTRIES:
            return commit
    raise ChildError(f"the log has {commit:,} entries after {LOADS_MAX} loads of {LOAD_S:g} s")


@dataclass(frozen=True, slots=True)
class Restart:
    """The elapsed and processor seconds to open the storage, and the seconds until all entries are applied."""

    opened_s: float
    processor_s: float
    applied_s: float


async def _restart(group: ConsensusGroup, number: int) -> Restart:
    await group.end(number)
    announced = await group.restart(number)
    began_s = time.perf_counter()
    found = int(str(announced["entries"]))
    if found < ENTRIES:
        raise ChildError(f"server {number} found {found:,} entries in its log, fewer than were committed")
    with trio.move_on_after(APPLY_TIMEOUT_S):
        while (await group.servers[number].request("status"))["applied"] < found:  # noqa: ASYNC110 - another process
            await trio.sleep(POLL_S)
        applied_s = time.perf_counter() - began_s
        await group.settle()
        return Restart(float(str(announced["opened_s"])), float(str(announced["opened_processor_s"])), applied_s)
    raise ChildError(f"server {number} had not applied {found:,} entries within {APPLY_TIMEOUT_S:g} s of its start")
