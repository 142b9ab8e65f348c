"""The cost of an entry by the number of servers: 3, 5, 9, 17, 33 and 64, the farm's limit.

    process 1: the leader ──appends──▶ process 2: all followers      one client, then 64 clients: latency
                 └─ processor time and bytes of an entry

64 processes need more memory and processors than a small machine has. So all followers share one process, and the
leader has its own. The leader's processor time and bytes are the same as in a farm of separate machines. The latency is
an upper bound, because one processor does the work of all followers. Followers never campaign, and do not connect to
each other. Bytes are the kernel's counters of the leader's connections, with TLS and acknowledgments, but without the
headers of TCP.
"""

import re
import subprocess
from dataclasses import replace

import trio

from benchmarks import client
from benchmarks.child import Child, ChildError
from benchmarks.consensus_group import ConsensusGroup, running_consensus_group
from benchmarks.contenders import drive
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.load import Load

SIZES = (3, 5, 9, 17, 33, 64)
CLIENTS = (1, 64)
ENTRY_BYTES = 256
_LEADER_TIMEOUT_MS, _NEVER_MS = 8_000, 600_000
"""Shortest election timeouts. The leader's is longer than by default, for 63 followers on one busy processor."""
_COUNTERS = re.compile(r"bytes_(?:sent|received):(\d+)")


async def measure(job: Job) -> list[Figure]:
    """Return the figures of each number of servers; print the numbers that this machine is too slow for."""
    figures: list[Figure] = []
    for size in SIZES:
        try:
            async with running_consensus_group(job.directory / str(size), _processes(size)) as group:
                figures.append(await _idle(group, size, job.seconds))
                for clients in CLIENTS:
                    figures += await _of(group, size, clients, job)
        except (ChildError, trio.TooSlowError) as error:
            print(f"{size} servers: ended early: {error}", flush=True)
    return figures


async def _idle(group: ConsensusGroup, size: int, seconds: float) -> Figure:
    leader = group.servers[1]
    used_s = leader.processor_seconds()
    await trio.sleep(seconds)
    share = 100 * (leader.processor_seconds() - used_s) / seconds
    return Figure(_title(size, 0), "the leader's processor time, heartbeats only", "%", (share,))


async def _of(group: ConsensusGroup, size: int, clients: int, job: Job) -> list[Figure]:
    p50s, costs, sizes, others = [], [], [], []
    leader, followers = group.servers[1], group.servers[2]
    target = replace(group.target(), servers=group.target().servers[:1])
    load = Load(clients, min(clients, 8), job.seconds, ENTRY_BYTES)
    for _ in range(job.runs):
        child = await client.start(target, load, leader.log)
        before, used_s = _bytes_of(leader), followers.processor_seconds()
        before_entries = await _last(group)
        turn = await drive([child], [leader], load)
        entries = await _last(group) - before_entries
        p50s.append(turn.rate.p50_ms)
        costs.append(turn.entry_us)
        sizes.append((_bytes_of(leader) - before) / entries)
        others.append((followers.processor_seconds() - used_s) / entries / (size - 1) * 1e6)
    title = _title(size, clients)
    return [
        Figure(title, "latency p50", "ms", tuple(p50s), "all followers in one process"),
        Figure(title, "the leader's processor time for an entry", "us", tuple(costs)),
        Figure(title, "a follower's processor time for an entry", "us", tuple(others)),
        Figure(title, "bytes between the leader and the followers for an entry", "B", tuple(sizes)),
    ]


def _title(size: int, clients: int) -> str:
    return f"consensus, {size} servers, {clients} clients, {ENTRY_BYTES}-byte entries"


async def _last(group: ConsensusGroup) -> int:
    return int((await group.servers[1].request("status"))["last"])


def _bytes_of(leader: Child) -> int:
    """Return the bytes of the leader's outgoing connections so far: those to the followers."""
    found = subprocess.run(["ss", "-tinpH"], capture_output=True, text=True, check=True).stdout  # noqa: S607
    rows = re.split(r"\n(?=\S)", found)
    return sum(sum(map(int, _COUNTERS.findall(row))) for row in rows if f"pid={leader.pid}," in row)


def _processes(size: int) -> dict[int, dict[str, object]]:
    """Return the leader's process, and the process of all followers."""
    return {
        1: {"servers": size, "election_timeout_ms": _LEADER_TIMEOUT_MS},
        2: {"servers": size, "election_timeout_ms": _NEVER_MS, "hosted": size - 1, "follows": True},
    }
