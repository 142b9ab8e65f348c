"""SIGKILL of the leader until the first acknowledged write: the bare group and etcd, same base timeout, in turns.

    a client begins a write every 20 ms ─▶ SIGKILL ─▶ a write begun after it is acknowledged ─▶ start again

Both groups have a base election timeout of 1,000 ms and heartbeats every 100 ms; both draw the timeout from 1,000 to
2,000 ms. Before its group's next turn, the killed server restarts and catches up.
"""

import json
import time
from contextlib import AsyncExitStack

from benchmarks.consensus_group import ConsensusGroup, running_consensus_group
from benchmarks.contenders import ETCD, OURS
from benchmarks.debian_package import find_program
from benchmarks.etcd_group import EtcdGroup, running_etcd_group
from benchmarks.figures import Figure
from benchmarks.job import Job

TIMEOUT_S = 60.0
GROUP = "consensus, SIGKILL of the leader until a write is acknowledged, election timeout 1,000 to 2,000 ms"


async def measure(job: Job) -> list[Figure]:
    """Return the figures; print the reason if etcd is missing."""
    async with AsyncExitStack() as stack:
        groups: dict[str, ConsensusGroup | EtcdGroup] = {
            OURS: await stack.enter_async_context(running_consensus_group(job.directory / "ours"))
        }
        program, reason = await find_program("etcd", "etcd-server", job.directory)
        if program is None:
            print(f"etcd: skipped: {reason}", flush=True)
        else:
            groups[ETCD] = await stack.enter_async_context(running_etcd_group(job.directory / "etcd", program))
        found: dict[str, list[float]] = {name: [] for name in groups}
        for _ in range(job.runs):
            for name, group in groups.items():
                found[name].append(await _kill_leader(group))
    return figures(found)


async def _kill_leader(group: ConsensusGroup | EtcdGroup) -> float:
    """Return the seconds from SIGKILL to the first acknowledged write; then all servers run again."""
    leader = await group.settle()
    [client] = await group.clients(None, 1)
    async with client:
        # The clock starts when the client's writes arrive.
        await client.request(json.dumps(time.monotonic()), TIMEOUT_S)
        killed_s = time.monotonic()
        group.servers[leader].kill()
        seconds = float((await client.request(json.dumps(killed_s), TIMEOUT_S))["seconds"])
    await group.servers.pop(leader).end()
    await group.start(leader)
    await group.settle()
    return seconds


def figures(found: dict[str, list[float]]) -> list[Figure]:
    """Return the times of each group, compared with etcd's."""
    rows = [Figure(GROUP, name, "s", tuple(seconds)) for name, seconds in found.items()]
    if len(rows) == 1:
        return rows
    own, etcd = rows
    verdict = "reached" if own.median <= etcd.median else f"missed by {own.median - etcd.median:.2f} s"
    note = f"goal: at most etcd's median of {etcd.median:.2f} s: {verdict}"
    return [Figure(GROUP, own.name, own.unit, own.values, note), etcd]
