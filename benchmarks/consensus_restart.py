"""A log of 1,000,000 entries of 128 bytes: a follower's memory, and its time to verify and apply the log at a start.

    load in batches ─▶ memory of both followers ─▶ stop one ─▶ start it: open (every checksum) │ ready │ all applied

Replication transfers the log. Verification is the time to open the storage. Application begins when the leader has sent
the commit index, and ends when the (counting) state machine has every entry. The files are in the page cache, since
they have just been written: on a cold machine, add the disk's reading time.
"""

import time
from dataclasses import dataclass

import trio

from benchmarks.child import ChildError
from benchmarks.consensus_group import POLL_S, ConsensusGroup, running_consensus_group
from benchmarks.contenders import drive
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.load import Load

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


async def measure(job: Job) -> list[Figure]:
    """Return the figures of both followers."""
    async with running_consensus_group(job.directory / "restart", whole_log=True) as group:
        leader = await group.settle()
        followers = [number for number in group.servers if number != leader]
        empty = _memory(group, followers)
        entries = await _fill(group)
        full = _memory(group, followers)
        title = f"consensus, a log of {entries:,} entries of {ENTRY_BYTES} bytes, a follower"
        opened, processor, applied, after = [], [], [], []
        for turn in range(job.runs):
            number = followers[turn % len(followers)]
            restart = await _restart(group, number)
            opened.append(restart.opened_s)
            processor.append(restart.processor_s)
            applied.append(restart.applied_s)
            after.append(group.servers[number].resident_bytes() / MB)
    return [
        Figure(title, "resident, empty log", "MB", empty),
        Figure(title, "resident, after replication", "MB", full, _goal(full, MEMORY_GOAL_MB, "MB")),
        Figure(title, "verified at start", "s", tuple(opened), _goal(opened, OPEN_GOAL_S, "s")),
        Figure(title, "verified at start: processor time", "s", tuple(processor)),
        Figure(title, "applied, from its start to work on", "s", tuple(applied)),
        Figure(title, "resident, after start and applying", "MB", tuple(after), _goal(after, MEMORY_GOAL_MB, "MB")),
    ]


def _goal(values: list[float] | tuple[float, ...], goal: float, unit: str) -> str:
    return f"goal below {goal:g} {unit}: {sum(each < goal for each in values)} of {len(values)} within"


def _memory(group: ConsensusGroup, numbers: list[int]) -> tuple[float, ...]:
    return tuple(group.servers[number].resident_bytes() / MB for number in numbers)


async def _fill(group: ConsensusGroup) -> int:
    """Load until the log is long enough; return its length."""
    for _ in range(LOADS_MAX):
        load = Load(CLIENTS, 1, LOAD_S, ENTRY_BYTES, BATCH)
        await drive(await group.clients(load, 1), group.servers.values(), load)
        await group.settle()
        commit = min(int(status["commit"]) for status in (await group.statuses()).values())
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
    await group.servers.pop(number).end()
    announced = await group.start(number)
    began_s = time.perf_counter()
    found = int(announced["entries"])
    if found < ENTRIES:
        raise ChildError(f"server {number} found {found:,} entries in its log, fewer than were committed")
    with trio.move_on_after(APPLY_TIMEOUT_S):
        while (await group.servers[number].request("status"))["applied"] < found:  # noqa: ASYNC110 - another process
            await trio.sleep(POLL_S)
        applied_s = time.perf_counter() - began_s
        await group.settle()
        return Restart(announced["opened_s"], announced["opened_processor_s"], applied_s)
    raise ChildError(f"server {number} had not applied {found:,} entries within {APPLY_TIMEOUT_S:g} s of its start")
