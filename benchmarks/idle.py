"""The cost of an idle farm's nodes: processor time and memory, compared with serf's agents, and the time by task.

    three nodes, timing "lan", a report each 30 s ─┐
    three agents of serf, its profile "lan" ───────┴─ the same windows of time ─▶ share of one core, each process
    then three nodes with an I2CP router each ─────── the same windows, without serf

The nodes have LAN settings: `garlicfarm up` writes faster ones for a demonstration. They run with the environment of
the package's service, and restart once, because a first start also loads modules that create keys and certificates.
Serf does less: its agents only monitor each other. A node also exchanges Raft's heartbeats over TLS, applies the log
and renews a published structure.

The budget (`python -m benchmarks idle-budget`) divides the processor time of a node among its tasks (`task_times`).
"""

import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import trio

from benchmarks import task_times
from benchmarks.child import BenchmarkError, Child
from benchmarks.debian_package import find_program
from benchmarks.farm import SERVERS, Farm, Server, running_farm, with_reporting_period, with_timing
from benchmarks.figures import Figure
from benchmarks.gossip_group import processes
from benchmarks.job import Job
from bridge.node.security.key_files import save_master_key
from bridge.node.settings.choices import Timing
from bridge.wire.i2p.destination_keys import new_master_key

SETTLED_S = 10.0
WINDOW_S = 20.0
REPORTING_PERIOD_MS = 30_000
MB = 1_000_000
GROUP = f"{SERVERS} idle nodes, LAN timing, each process"
ROWS = {
    "processor time of the leader": ("%", "of one core; goal 0.8"),
    "processor time of a follower": ("%", "of one core; goal 0.5"),
    "wake-ups of the leader": ("/s", "all threads; goal 15"),
    "wake-ups of a follower": ("/s", "all threads; goal 15"),
    "resident memory of a node": ("MB", "goal 45"),
    "processor time of a serf agent": ("%", "of one core, at the same time"),
    "the leader compared with a serf agent": ("x", "goal 3"),
    "a follower compared with a serf agent": ("x", "goal 3"),
    "resident memory of a serf agent": ("MB", ""),
}
"""Unit and note of each figure."""
BUDGET_TASKS = 14
"""Number of tasks in the budget of a node."""
SERVICE = Path(__file__).resolve().parents[1] / "deploy" / "debian" / "garlicfarm.service"
_ENVIRONMENT = re.compile(r"(?m)^Environment=(\w+)=(.*)$")
_ROUTER = re.compile(r"(?m)^\[router\]\n(?:.+\n)*")


async def measure(job: Job) -> list[Figure]:
    """Return the figures of some windows of time: a farm at the same time as serf's agents, then a farm with I2CP."""
    program, reason = await find_program("serf", "serf", job.home)
    async with processes() as agents, _restarted_farm(job.directory / "farm", change=as_on_a_lan) as farm:
        if program is None:
            print(f"serf: skipped, {reason}", flush=True)
        else:
            await agents.start_serfs(SERVERS, program)
            await agents.converge()
        figures = await _windows(GROUP, farm, [member.child for member in agents.members], job.runs)
    return figures + await _with_i2cp(job.directory / "i2cp", job.runs)


async def _with_i2cp(directory: Path, runs: int) -> list[Figure]:
    await trio.Path(directory).mkdir(mode=0o700)
    # The keys of a demonstration never reach a router.
    save_master_key(directory / "master.key", new_master_key())
    log = directory / "routers.log"
    async with await Child.start_module("routers", "benchmarks.i2cp_routers", {"routers": SERVERS}, log) as routers:
        ports = iter((await routers.receive_document())["ports"])
        async with _restarted_farm(directory, change=lambda text: with_router(as_on_a_lan(text), next(ports))) as farm:
            figures = await _windows(f"{GROUP}, with I2CP", farm, (), runs)
        if not (await routers.request(""))["structures"]:
            raise BenchmarkError("the farm did not publish a structure by I2CP")
    return figures


async def _windows(group: str, farm: Farm, agents: Sequence[Child], runs: int) -> list[Figure]:
    """Measure windows of time. Each window has one value for each process; ratios compare the means of a window."""
    await trio.sleep(SETTLED_S)
    leader = await farm.leader()
    found: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        before = [(each, each.processor_seconds(), each.wake_ups()) for each in farm.servers]
        agents_before = [(each, each.processor_seconds()) for each in agents]
        began_s = trio.current_time()
        await trio.sleep(WINDOW_S)
        passed_s = trio.current_time() - began_s
        shares: defaultdict[str, list[float]] = defaultdict(list)
        for server, used_s, waits in before:
            role = "the leader" if server is leader else "a follower"
            shares[role].append(100 * (server.processor_seconds() - used_s) / passed_s)
            # The difference omits threads that have ended.
            found[f"wake-ups of {role}"].append((server.wake_ups() - waits).total() / passed_s)
            found["resident memory of a node"].append(server.resident_bytes() / MB)
        for agent, used_s in agents_before:
            shares["a serf agent"].append(100 * (agent.processor_seconds() - used_s) / passed_s)
            found["resident memory of a serf agent"].append(agent.resident_bytes() / MB)
        for role, each in shares.items():
            found[f"processor time of {role}"] += each
            if agents:
                found[f"{role} compared with a serf agent"].append(mean(each) / mean(shares["a serf agent"]))
    if await farm.leader() is not leader:
        raise BenchmarkError(
            "another node was elected during the measurement: measure again with less load on the machine"
        )
    return [Figure(group, name, unit, tuple(found[name]), note) for name, (unit, note) in ROWS.items() if name in found]


async def budget(job: Job) -> list[Figure]:
    """Return the processor time of each task of the leader and of a follower, with the number of its steps."""
    figures: list[Figure] = []
    async with _restarted_farm(job.directory, as_on_a_lan, "benchmarks.task_times") as farm:
        await trio.sleep(task_times.SETTLED_S + task_times.WINDOW_S + 1)
        leader = await farm.leader()
        follower = next(server for server in farm.servers if server is not leader)
        for role, server in (("leader", leader), ("follower", follower)):
            measured: Any = json.loads(_times_file(server).read_text(encoding="utf-8"))
            spent_ms, steps = measured["ms"], measured["steps"]
            ranked = sorted(spent_ms, key=spent_ms.__getitem__, reverse=True)
            group = f"processor time of an idle {role} by task, milliseconds a second"
            figures += [
                Figure(group, _short(name), "ms", (spent_ms[name],), _steps_note(steps.get(name)))
                for name in ranked[:BUDGET_TASKS]
            ]
            others_ms = sum(map(spent_ms.__getitem__, ranked[BUDGET_TASKS:]))
            figures.append(Figure(group, "other tasks", "ms", (others_ms,)))
            figures.append(Figure(group, "all", "ms", (sum(spent_ms.values()),)))
    return figures


def _times_file(server: Server) -> Path:
    return server.node.directory / "task-times.json"


def _short(name: str) -> str:
    """Return the class and the method of a task."""
    return ".".join(name.replace(".<locals>", "").split(".")[-2:])


def _steps_note(steps: float | None) -> str:
    return "" if steps is None else f"{steps:.2f} steps a second"


@asynccontextmanager
async def _restarted_farm(directory: Path, change: Callable[[str], str], program: str = "") -> AsyncIterator[Farm]:
    """Run a farm with changed settings that has restarted once, optionally as another program."""
    environment = dict(_ENVIRONMENT.findall(SERVICE.read_text(encoding="utf-8")))
    async with running_farm(directory, Timing.LAN, change=change, environment=environment) as farm:
        for server in farm.servers:
            server.program = program or server.program
            server.environment = {**environment, task_times.TASK_TIMES_FILE: str(_times_file(server))}
        await farm.restart()
        yield farm


def as_on_a_lan(settings: str) -> str:
    """Return the settings of `up` with the reporting period and gossip timing of a node on a LAN."""
    return with_reporting_period(with_timing(settings, "gossip", Timing.LAN), REPORTING_PERIOD_MS)


def with_router(settings: str, port: int) -> str:
    """Return the settings for a router of the operator, with keys that are not a demonstration's."""
    replaced = {"demo = true\n": "demo = false\n", 'pace = "reporting-period"\n': ""}
    for old, new in replaced.items():
        settings = settings.replace(old, new)
    return _ROUTER.sub(f'[router]\nkind = "i2cp"\nsoftware = "java"\ni2cp = "127.0.0.1:{port}"\n', settings)
