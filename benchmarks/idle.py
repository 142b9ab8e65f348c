"""The cost of an idle farm's nodes: processor time and memory, compared with serf's agents, and the time by task.

    three nodes, timing "lan", a report each 30 s ─┐
    three agents of serf, its profile "lan" ───────┴─ the same windows of time ─▶ share of one core, each process

The nodes have LAN settings: `garlicfarm up` writes faster ones for a demonstration. They run with the environment of
the package's service, and restart once, because a first start also loads modules that create keys and certificates.
Serf does less: its agents only monitor each other. A node also exchanges Raft's heartbeats over TLS, applies the log
and renews a published structure.

The budget (`python -m benchmarks idle-budget`) divides the processor time of a node among its tasks (`task_times`).
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks import serf, task_times
from benchmarks.farm import SERVERS, BenchmarkError, Farm, Server, running_farm
from benchmarks.figures import Figure
from benchmarks.gossip_group import Group, processes
from bridge.node.settings.choices import Timing

SETTLED_S = 10.0
WINDOW_S = 20.0
WINDOWS = 3
REPORTING_PERIOD_MS = 30_000
LEADER_GOAL = 0.8
FOLLOWER_GOAL = 0.5
WAKE_UPS_GOAL = 15
SERF_GOAL = 3.0
RESIDENT_GOAL_MB = 45
MB = 1_000_000
GROUP = f"{SERVERS} idle nodes, LAN timing, each process"
BUDGET_TASKS = 14
"""Number of tasks in the budget of a node."""
SERVICE = Path(__file__).resolve().parents[1] / "deploy" / "debian" / "garlicfarm.service"
_ENVIRONMENT = re.compile(r"(?m)^Environment=(\w+)=(.*)$")
_PERIOD = re.compile(r"(?m)^reporting_period_ms = \d+$")
_GOSSIP_TIMING = re.compile(r'(?s)(\[gossip\].*?)timing = "[a-z]+"')


async def measure(directory: Path) -> list[Figure]:
    """Return shares of one core in windows of time, and resident memory at the end, of a farm in `directory`."""
    program, reason = await serf.find(directory)
    async with processes() as agents, _restarted_farm(directory) as farm:
        if program is None:
            print(f"serf: skipped, {reason}", flush=True)
        else:
            await serf.start(agents, SERVERS, program)
            await agents.converge()
        await trio.sleep(SETTLED_S)
        leader = await farm.leader()
        began_s, waits = trio.current_time(), [server.wake_ups() for server in farm.servers]
        shares = [await _window(farm, agents) for _ in range(WINDOWS)]
        passed_s = trio.current_time() - began_s
        wake_ups = {
            server.node.name: (server.wake_ups() - before) / passed_s
            for server, before in zip(farm.servers, waits, strict=True)
        }
        if await farm.leader() is not leader:
            raise BenchmarkError(
                "another node was elected during the measurement: measure again with less load on the machine"
            )
        resident = tuple(server.resident_bytes() / MB for server in farm.servers)
        serf_resident = tuple(agent.resident_bytes() / MB for agent in agents.members)
    followers = [server for server in farm.servers if server is not leader]
    led = tuple(nodes[leader.node.name] for nodes, _ in shares)
    followed = tuple(nodes[server.node.name] for nodes, _ in shares for server in followers)
    theirs = tuple(share for _, agent_shares in shares for share in agent_shares)
    figures = [
        Figure(GROUP, "processor time of the leader", "%", led, f"of one core; goal {LEADER_GOAL:g}"),
        Figure(GROUP, "processor time of a follower", "%", followed, f"of one core; goal {FOLLOWER_GOAL:g}"),
        Figure(GROUP, "wake-ups of the leader", "/s", (wake_ups[leader.node.name],)),
        Figure(
            GROUP,
            "wake-ups of a follower",
            "/s",
            tuple(wake_ups[server.node.name] for server in followers),
            f"all threads; goal {WAKE_UPS_GOAL}",
        ),
        Figure(GROUP, "resident memory of a node", "MB", resident, f"goal {RESIDENT_GOAL_MB}"),
    ]
    if theirs:
        ratio = Figure("", "", "", followed).median / Figure("", "", "", theirs).median
        figures += [
            Figure(GROUP, "processor time of a serf agent", "%", theirs, "of one core, at the same time"),
            Figure(
                GROUP, "a follower compared with a serf agent", "x", (ratio,), f"of the medians; goal {SERF_GOAL:g}"
            ),
            Figure(GROUP, "resident memory of a serf agent", "MB", serf_resident),
        ]
    return figures


async def budget(directory: Path) -> list[Figure]:
    """Return the processor time of each task of the leader and of a follower, with the number of its steps."""
    figures: list[Figure] = []
    async with _restarted_farm(directory, "benchmarks.task_times") as farm:
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
async def _restarted_farm(directory: Path, program: str = "") -> AsyncIterator[Farm]:
    """Run a farm with LAN settings that has restarted once, optionally as another program."""
    environment = dict(_ENVIRONMENT.findall(SERVICE.read_text(encoding="utf-8")))
    settings = running_farm(directory / "idle", Timing.LAN, change=_as_on_a_lan, environment=environment)
    async with settings as farm:
        for server in farm.servers:
            server.program = program or server.program
            server.environment = {**environment, task_times.TASK_TIMES_FILE: str(_times_file(server))}
        await farm.restart()
        yield farm


async def _window(farm: Farm, agents: Group) -> tuple[dict[str, float], list[float]]:
    """Return the percentage of one core in one window, for each node by name and for each agent."""
    nodes = {server.node.name: server.processor_seconds() for server in farm.servers}
    others = [agent.processor_seconds() for agent in agents.members]
    began_s = trio.current_time()
    await trio.sleep(WINDOW_S)
    passed_s = trio.current_time() - began_s
    return (
        {server.node.name: _percent(server, nodes[server.node.name], passed_s) for server in farm.servers},
        [
            100 * (agent.processor_seconds() - used_s) / passed_s
            for agent, used_s in zip(agents.members, others, strict=True)
        ],
    )


def _percent(server: Server, used_s: float, passed_s: float) -> float:
    return 100 * (server.processor_seconds() - used_s) / passed_s


def _as_on_a_lan(settings: str) -> str:
    """Return the settings of `up` with the reporting period and gossip timing of a node on a LAN."""
    settings, periods = _PERIOD.subn(f"reporting_period_ms = {REPORTING_PERIOD_MS}", settings)
    settings, timings = _GOSSIP_TIMING.subn(rf'\1timing = "{Timing.LAN.value}"', settings)
    if (periods, timings) != (1, 1):
        raise BenchmarkError("the settings of `up` do not have a reporting period and a gossip timing")
    return settings
