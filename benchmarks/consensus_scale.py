"""The cost of an entry by the number of servers: 3, 5, 9, 17, 33 and 64, the farm's limit.

    process 1: the leader ──appends──▶ process 2: all followers      one client, then 64 clients: latency
                 └─ processor time and bytes of an entry

64 processes need more memory and processors than a small machine has. So all followers share one process, and the
leader has its own. The leader's processor time and bytes are the same as in a farm of separate machines. The latency is
an upper bound, because one processor does the work of all followers. Followers never campaign, and do not connect to
each other. Bytes are the kernel's counters of the leader's connections, with TLS and acknowledgments, but without the
headers of TCP.
"""

import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from benchmarks import client
from benchmarks.child import Child, ChildError
from benchmarks.client import ClusterTarget, ServerTarget
from benchmarks.consensus_group import PASSWORD, POLL_S
from benchmarks.consensus_node import CLUSTER, LISTENS, USER
from benchmarks.contenders import drive
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.load import Load

SIZES = (3, 5, 9, 17, 33, 64)
CLIENTS = (1, 64)
ENTRY_BYTES = 256
START_S = 120.0
_TIMEOUTS_MS = {"leader": 8_000, "followers": 600_000}
"""Shortest election timeouts. The leader's is longer than by default, for 63 followers on one busy processor."""
_COUNTERS = re.compile(r"bytes_(?:sent|received):(\d+)")


@dataclass(frozen=True, slots=True)
class Scaled:
    """A running group, and the data that a client needs."""

    leader: Child
    followers: Child
    target: ClusterTarget


async def measure(job: Job) -> list[Figure]:
    """Return the figures of each number of servers; print the numbers that this machine is too slow for."""
    figures: list[Figure] = []
    for size in SIZES:
        try:
            async with _running(job.directory / str(size), size) as group:
                figures.append(await _idle(group, size, job.seconds))
                for clients in CLIENTS:
                    figures += await _of(group, size, clients, job)
        except (ChildError, trio.TooSlowError) as error:
            print(f"{size} servers: ended early: {error}", flush=True)
    return figures


async def _idle(group: Scaled, size: int, seconds: float) -> Figure:
    used_s = group.leader.processor_seconds()
    await trio.sleep(seconds)
    share = 100 * (group.leader.processor_seconds() - used_s) / seconds
    return Figure(_title(size, 0), "the leader's processor time, heartbeats only", "%", (share,))


async def _of(group: Scaled, size: int, clients: int, job: Job) -> list[Figure]:
    p50s, costs, sizes, others = [], [], [], []
    load = Load(clients, min(clients, 8), job.seconds, ENTRY_BYTES)
    for _ in range(job.runs):
        child = await client.start(group.target, load, group.leader.log)
        before, used_s = _bytes_of(group.leader), group.followers.processor_seconds()
        before_entries = await _last(group)
        turn = await drive([child], [group.leader], load)
        entries = await _last(group) - before_entries
        p50s.append(turn.rate.p50_ms)
        costs.append(turn.entry_us)
        sizes.append((_bytes_of(group.leader) - before) / entries)
        others.append((group.followers.processor_seconds() - used_s) / entries / (size - 1) * 1e6)
    title = _title(size, clients)
    return [
        Figure(title, "latency p50", "ms", tuple(p50s), "all followers in one process"),
        Figure(title, "the leader's processor time for an entry", "us", tuple(costs)),
        Figure(title, "a follower's processor time for an entry", "us", tuple(others)),
        Figure(title, "bytes between the leader and the followers for an entry", "B", tuple(sizes)),
    ]


def _title(size: int, clients: int) -> str:
    return f"consensus, {size} servers, {clients} clients, {ENTRY_BYTES}-byte entries"


async def _last(group: Scaled) -> int:
    return int((await group.leader.request("status"))["last"])


def _bytes_of(leader: Child) -> int:
    """Return the bytes of the leader's outgoing connections so far: those to the followers."""
    found = subprocess.run(["ss", "-tinpH"], capture_output=True, text=True, check=True).stdout  # noqa: S607
    rows = re.split(r"\n(?=\S)", found)
    return sum(sum(map(int, _COUNTERS.findall(row))) for row in rows if f"pid={leader.pid}," in row)


@asynccontextmanager
async def _running(directory: Path, size: int) -> AsyncIterator[Scaled]:
    parts = {"leader": (1, 1), "followers": (2, size - 1)}
    children: list[Child] = []
    announced: list[dict[str, Any]] = []
    try:
        for name, (first, count) in parts.items():
            where = directory / name
            await trio.Path(where).mkdir(mode=0o700, parents=True)
            document = {
                "server_id": first,
                "servers": size,
                "directory": str(where),
                "password": PASSWORD,
                "hosted": count,
                "follows": name != "leader",
                "election_timeout_ms": _TIMEOUTS_MS[name],
            }
            child = await Child.start_module(name, "benchmarks.consensus_node", document, directory / f"{name}.log")
            children.append(child)
            announced += [await child.receive_document(START_S) for _ in range(count)]
        for child in children:
            await child.send_line(json.dumps(announced))
        for child in children:
            await child.wait_ready(START_S)
        leader, followers = children
        with trio.fail_after(START_S):
            while not (await leader.request("status"))["commit"]:  # noqa: ASYNC110 - another process
                await trio.sleep(POLL_S)
        listens = announced[0]
        target = ServerTarget(1, LISTENS, listens["port"], listens["fingerprint"])
        yield Scaled(leader, followers, ClusterTarget(CLUSTER, USER, PASSWORD, (target,)))
    finally:
        for child in children:
            await child.end()
