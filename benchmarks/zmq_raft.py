"""Servers of Garlic Farm and of the npm package zmq-raft, in turns, with one client: updates per second, and failover.

    zmq-raft-throughput   64 closed loops of updates against three servers, fsync on; the groups take turns
    zmq-raft-failover     one closed loop of updates; SIGKILL of the leader; the longest time without an acknowledgment

Both groups have the package's client, in Node; only the servers differ. Each group runs alone, with the package's
default times (election 200 to 300 ms, heartbeats every 70 ms). `make interop-zmq` installs the package; without it,
the parts are left out.
"""

import statistics
from typing import Any

import trio

from benchmarks.child import ChildError
from benchmarks.figures import Figure, latencies, ratios
from benchmarks.job import Job, leave_out_if
from benchmarks.zmq_raft_group import Program, ZmqRaftGroup, missing, running_zmq_raft_group

CLIENTS = 64
CONNECTIONS = 4
UPDATE_BYTES = 256
WARM_UP_S = 1.0
FAILOVER_S = 4.0
BEFORE_KILL_S = 1.0
GOAL_TIMES = 3.0
NAMES = {Program.OURS: "garlicfarm", Program.PACKAGE: "npm zmq-raft"}


async def throughput(job: Job) -> list[Figure]:
    """Measure updates per second and their latency."""
    leave_out_if(missing())
    found: dict[Program, list[tuple[float, list[float]]]] = {program: [] for program in NAMES}
    for run in range(job.runs):
        for program in NAMES:
            async with running_zmq_raft_group(job.directory / f"{run}-{program.value}", [program] * 3) as group:
                found[program].append(await _load(group, job.seconds))
    where = f"ØMQ Raft, {CLIENTS} concurrent updates of {UPDATE_BYTES} bytes, three servers, fsync on, client in Node"
    rates = {program: tuple(rate for rate, _ in turns) for program, turns in found.items()}
    figures = []
    for program, turns in found.items():
        figures.append(Figure(where, f"{NAMES[program]}: updates", "/s", rates[program]))
        figures += latencies(where, NAMES[program], [microseconds for _, microseconds in turns])
    compared = ratios(rates[Program.OURS], rates[Program.PACKAGE])
    return [
        *figures,
        Figure(where, "updates, garlicfarm / zmq-raft", "x", compared, f"goal at least {GOAL_TIMES:g}"),
    ]


async def _load(group: ZmqRaftGroup, seconds: float) -> tuple[float, list[float]]:
    """Return updates per second, and the microseconds of each."""
    client = await group.client()
    load: dict[str, object] = {"clients": CLIENTS, "connections": CONNECTIONS, "bytes": UPDATE_BYTES}
    await client.do("load", seconds=WARM_UP_S, **load)
    found: dict[str, Any] = await client.do("load", seconds=seconds, **load)
    if found["failures"]:
        raise ChildError(f"updates failed: {found['failures']}")
    return len(found["latencies_us"]) / found["elapsed_s"], found["latencies_us"]


async def failover(job: Job) -> list[Figure]:
    """Measure SIGKILL of the leader."""
    leave_out_if(missing())
    found: dict[Program, list[float]] = {program: [] for program in NAMES}
    for program in NAMES:
        async with running_zmq_raft_group(job.directory / program.value, [program] * 3) as group:
            for _ in range(job.runs):
                found[program].append(await _kill_leader(group))
    where = "ØMQ Raft, SIGKILL of the leader until the next acknowledged update, election timeout 200 to 300 ms"
    package_s = statistics.median(found[Program.PACKAGE])
    share = statistics.median(found[Program.OURS]) / package_s
    notes = {Program.OURS: f"= {share:.2f} of the package's time; goal at most 1"}
    return [
        Figure(where, f"{NAMES[program]}: without an acknowledgment", "s", tuple(gaps), notes.get(program, ""))
        for program, gaps in found.items()
    ]


async def _kill_leader(group: ZmqRaftGroup) -> float:
    """Return the seconds between the acknowledgments of the old and the new leader; then restart the old one."""
    client = await group.client()
    gap_s = 0.0

    async def loop() -> None:
        nonlocal gap_s
        gap_s = (await client.do("failover", seconds=FAILOVER_S))["longest_ms"] / 1000

    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop)
        await trio.sleep(BEFORE_KILL_S)
        leader = await group.leader()
        await group.kill(leader)
    await group.start_again(leader)
    return gap_s
