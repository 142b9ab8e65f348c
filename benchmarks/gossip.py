"""Groups of gossip on real sockets: at their start, and when members die or stop.

    50 nodes in one process ─▶ 12 processes, SIGKILL, with serf ─▶ 3 stopped

Processes are killed, stopped and restarted by the handles that started them. All sockets are bound to loopback. The
parts with `-busy` repeat another part with ten busy processes on the same machine.
"""

import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial

import trio

import gossip
from benchmarks import gossip_speed
from benchmarks.child import BenchmarkError
from benchmarks.debian_package import find_program
from benchmarks.figures import Figure
from benchmarks.gossip_group import Group, Member, processes
from benchmarks.job import Job
from gossip import Address, Status, SwimOptions
from gossip.node import endpoint

BUSY_PROCESSES = 10
BUSY_QUESTIONS = 3_000
NODES_IN_ONE = 50
SIZE = 12
STOPPED = 3
STOPPED_S = 3.0
WATCHED_S = 5.0
SUSPECT_GOAL_S = 3.0

BUSY_PROGRAM = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""A busy process. It ends after its parent, even if the parent is killed."""
Start = Callable[[Group], Awaitable[object]]


async def beside_busy(part: Callable[[], Awaitable[list[Figure]]]) -> list[Figure]:
    """Measure a part while other processes use all processor time that they get."""
    async with trio.open_nursery() as nursery:
        for _ in range(BUSY_PROCESSES):
            nursery.start_soon(trio.run_process, [sys.executable, "-c", BUSY_PROGRAM])
        figures = await part()
        nursery.cancel_scope.cancel()
    return [replace(each, group=f"{each.group}, {BUSY_PROCESSES} busy processes") for each in figures]


async def one_process(_: Job) -> list[Figure]:
    """Measure several nodes in this process, each with a separate socket."""
    seconds = await converge_in_one_process(NODES_IN_ONE)
    name = "until each sees all others alive"
    return [Figure(f"gossip, {NODES_IN_ONE} nodes in one process, LAN timing", name, "s", (seconds,))]


async def converge_in_one_process(count: int) -> float:
    """Return the seconds from the first node's start until each node sees all others alive."""
    key = b"many nodes in one single process"
    groups: list[gossip.Group] = []
    done = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run(*seeds: gossip.Group, task_status: trio.TaskStatus[gossip.Group]) -> None:
            opened = gossip.open_group(
                Address("127.0.0.1", 0),
                key=key,
                seeds=tuple(endpoint(seed.info.address) for seed in seeds),
                capacity=2 * count,
                options=SwimOptions.lan(),
            )
            async with opened as group:
                groups.append(group)
                task_status.started(group)
                async for _ in group.events():
                    if len(groups) == count and all(_sees(each, count - 1) for each in groups):
                        done.set()

        began = time.monotonic()
        first = await nursery.start(run)
        for _ in range(count - 1):
            await nursery.start(run, first)
        with trio.move_on_after(60) as waiting:
            await done.wait()
        nursery.cancel_scope.cancel()
    if waiting.cancelled_caught:
        raise BenchmarkError(f"{count} nodes in one process did not find each other within 60 s")
    return time.monotonic() - began


def _sees(group: gossip.Group, others: int) -> bool:
    return sum(member.status is Status.ALIVE for member in group.members()) == others


async def beside_serf(job: Job) -> list[Figure]:
    """Measure repeated SIGKILLs of one of twelve processes, with serf's agents at the same time on the same machine."""
    own_figures: list[Figure] = []
    serf_figures: list[Figure] = []
    program, reason = await find_program("serf", "serf", job.home)

    async def run(start: Start, replace: Start, into: list[Figure], group_name: str) -> None:
        into.extend(await _killed(start, replace, job.runs, group_name))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, lambda group: group.start_many(SIZE), _one_more, own_figures, "garlicfarm")
        if program is not None:
            nursery.start_soon(
                run,
                partial(Group.start_serfs, count=SIZE, program=program),
                partial(Group.start_serfs, count=1, program=program),
                serf_figures,
                "serf",
            )
    if program is None:
        print(f"serf: skipped, {reason}", flush=True)
    return own_figures + serf_figures


async def _one_more(group: Group) -> Member:
    return await group.start(group.members[0])


async def _killed(start: Start, replace: Start, kills: int, group_name: str) -> list[Figure]:
    suspected, first, everywhere = [], [], []
    async with processes() as group:
        await start(group)
        began = time.monotonic()
        await group.converge()
        converged_s = time.monotonic() - began
        for _ in range(kills):
            await trio.sleep(random.uniform(1.0, 2.0))
            victim = random.choice(group.members[1:])
            rest = [member for member in group.members if member is not victim]
            killed_at = await group.kill(victim)
            await group.until("all declare the killed one dead", partial(_all_see, rest, victim, "dead"))
            # Serf may declare a failure without a logged suspicion, or log the suspicion late.
            suspicions = times_seen(rest, victim, {"suspect", "dead"}, killed_at)
            times = times_seen(rest, victim, {"dead"}, killed_at)
            suspected.append(min(suspicions) - killed_at)
            first.append(min(times) - killed_at)
            everywhere.append(max(times) - killed_at)
            group.members.remove(victim)
            await replace(group)
            await group.converge()
    name = f"gossip, SIGKILL of one of {SIZE} processes, LAN timing: {group_name}"
    within = sum(each <= SUSPECT_GOAL_S for each in suspected)
    goal = f"goal {SUSPECT_GOAL_S:g} s at the median: {within} of {kills} within" if group_name == "garlicfarm" else ""
    return [
        Figure(name, "all started until all see all", "s", (converged_s,)),
        Figure(name, "until a member suspects it", "s", tuple(suspected), goal),
        Figure(name, "until a member declares it dead", "s", tuple(first)),
        Figure(name, "until all members declare it dead", "s", tuple(everywhere)),
    ]


def _all_see(members: list[Member], victim: Member, status: str) -> bool:
    return all(member.status.get(victim.name) == status for member in members)


def times_seen(members: list[Member], victim: Member, statuses: Collection[str], since: float) -> list[float]:
    """Return the times when these members first saw the victim in one of these statuses; some may not have."""
    moments = [member.first(victim.name, statuses, since) for member in members]
    return [moment for moment in moments if moment is not None]


async def stops(job: Job) -> list[Figure]:
    """Measure three of twelve processes stopped together for three seconds."""
    async with processes() as group:
        await group.start_many(SIZE)
        await group.converge()
        deaths = [await stop_some(group) for _ in range(job.runs)]
    clean = sum(each == 0 for each in deaths)
    return [
        Figure(
            f"gossip, SIGSTOP of {STOPPED} of {SIZE} processes for {STOPPED_S:g} s together, LAN timing",
            "times that a process declared another dead",
            "",
            tuple(float(each) for each in deaths),
            f"goal none: {clean} of {job.runs} tries without",
        )
    ]


async def stop_some(group: Group) -> int:
    """Run one try; return the number of times that a process declared another dead, in it and in the next seconds."""
    await trio.sleep(random.uniform(0.0, 1.0))
    began = time.monotonic()
    chosen = random.sample(group.members, STOPPED)
    for member in chosen:
        member.child.signal(signal.SIGSTOP)
    await trio.sleep(STOPPED_S)
    for member in chosen:
        member.child.signal(signal.SIGCONT)
    await trio.sleep(WATCHED_S)
    await group.converge()
    return sum(change.status == "dead" and change.at >= began for member in group.members for change in member.story)


async def speed_if_busy(job: Job) -> list[Figure]:
    """Measure the datagrams per second while other processes are busy."""
    return await beside_busy(partial(gossip_speed.speed, job, BUSY_QUESTIONS))


async def kills_if_busy(job: Job) -> list[Figure]:
    """Measure repeated SIGKILLs while other processes are busy."""
    return await beside_busy(partial(beside_serf, job))
