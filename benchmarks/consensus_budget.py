"""The time of one entry, hop by hop: `python -m benchmarks consensus-budget`.

    client ─▶ leader's socket ─▶ step ─▶ append ─▶ follower's socket ─▶ step ─▶ disk ─▶ reply ─▶ leader ─▶ client

One client in this process submits single entries to three bare servers. Each server stores the time of
each hop (`hop_marks`); all processes read the same monotonic clock. The follower of a write is the one whose reply
commits it, so the hops of a write add up to its latency. Writes that waited for the leader's own disk are counted and
left out. The marks cost a few microseconds each.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from time import monotonic_ns
from typing import Any

import trio

from benchmarks.child import ChildError
from benchmarks.client import connect, entry
from benchmarks.consensus_group import ConsensusGroup, running_consensus_group
from benchmarks.figures import Figure
from benchmarks.hop_marks import ACK, DISK, READ, REPLIED, REQUEST, SENT, STORED, SYNCED, Marks
from benchmarks.job import Job
from consensus import Outcome
from consensus.protocols.garlic_farm import GarlicFarmClient

GROUP = "consensus, one entry of one client, hop by hop"
ENTRY_BYTES = 256
WARM_UP = 200
STEPS = (
    "client: encodes, sends; leader: wakes, decrypts",
    "leader: decodes the request",
    "leader: step, encodes and sends the append",
    "follower: wakes, decrypts",
    "follower: decodes the append",
    "follower: step, plan, until the disk's thread begins",
    "follower: write and fdatasync",
    "follower: until the event loop has the result",
    "follower: step, encodes and sends the reply",
    "leader: wakes, decrypts",
    "leader: decodes the reply",
    "leader: step, encodes and sends the reply",
    "client: wakes, decrypts, decodes",
)
"""The time before each mark of a write, in order."""


async def measure(job: Job) -> list[Figure]:
    """Return the median of each hop in each run; print the number of writes left out."""
    medians: list[list[float]] = []
    complete = written = 0
    group_running = running_consensus_group(job.directory / "group", instrument="hops")
    async with group_running as group, trio.open_nursery() as nursery:
        client = connect(group.target())
        await nursery.start(client.run)
        for _ in range(WARM_UP):
            await _submit(client)
        for _ in range(job.runs):
            leader = await group.settle()
            await _marks(group)
            end_ns = monotonic_ns() + round(job.seconds * 1e9)
            writes: list[tuple[int, int]] = []
            while monotonic_ns() < end_ns:
                began_ns = monotonic_ns()
                await _submit(client)
                writes.append((began_ns, monotonic_ns()))
            marks = await _marks(group)
            of_leader = marks.pop(leader)
            hops = [found for each in writes if (found := split(each, of_leader, list(marks.values()))) is not None]
            if not hops:
                raise ChildError("no write of the trace was complete")
            complete, written = complete + len(hops), written + len(writes)
            medians.append([statistics.median(each) for each in zip(*hops, strict=True)])
        nursery.cancel_scope.cancel()
    figures = [Figure(GROUP, name, "us", tuple(run[at] for run in medians)) for at, name in enumerate(STEPS)]
    figures.append(Figure(GROUP, "a write, sum of these medians", "us", tuple(map(sum, medians))))
    print(f"{job.name}: {complete} of {written} writes were committed by a follower's reply", flush=True)
    return figures


def split(write: tuple[int, int], leader: Marks, followers: Sequence[Marks]) -> list[float] | None:
    """Return the microseconds of each step; None if a hop is missing or the write waited for the leader's disk."""
    begin, end = write
    try:
        request = _first(leader, REQUEST, begin)
        replied = _last(leader, REPLIED, end)
        committed = _last(leader, ACK, replied)
        came = _last(leader, READ, committed)
        path = max((_path(each, came) for each in followers), key=itemgetter(-1))
        times = [begin, _last(leader, READ, request), request, _first(leader, SENT, request)]
        times += [*path, came, committed, replied, end]
        waited_for_disk = bisect_right(leader[STORED], committed) < bisect_right(leader[STORED], replied)
    except LookupError:
        return None
    if times != sorted(times) or waited_for_disk:
        return None
    return [(later - earlier) / 1000 for earlier, later in pairwise(times)]


def _path(marks: Marks, end: int) -> list[int]:
    """Return the times of a follower's last write before `end`, from the received append to the sent reply."""
    times = [_last(marks, REPLIED, end)]
    for hop in (STORED, SYNCED, DISK, REQUEST, READ):
        times.append(_last(marks, hop, times[-1]))
    return times[::-1]


def _first(marks: Marks, hop: str, begin: int) -> int:
    """Return the first time of a hop from `begin` on, or raise `LookupError`."""
    return marks[hop][bisect_left(marks[hop], begin)]


def _last(marks: Marks, hop: str, end: int) -> int:
    """Return the last time of a hop up to `end`, or raise `LookupError`."""
    at = bisect_right(marks[hop], end)
    if not at:
        raise LookupError(hop)
    return marks[hop][at - 1]


async def _submit(client: GarlicFarmClient) -> None:
    submission = await client.submit([entry(0, ENTRY_BYTES)])
    if submission.outcome is not Outcome.COMMITTED:
        raise ChildError(f"a submission was not acknowledged: {submission.reason}")


async def _marks(group: ConsensusGroup) -> dict[int, Marks]:
    """Return the marks of each server since the last call."""
    found: Any = await group.statuses()
    return {number: status["taken"] for number, status in found.items()}
