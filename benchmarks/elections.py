"""Elections of a farm without a failure: `python -m benchmarks elections elections-simulated`.

    elections             a farm, timing "lan", at the same time as busy processes ─▶ `leader-elected` in a window
    elections-simulated   farms of three in virtual time, 5 % of all packets lost  ─▶ the same count, by constants

Each window of a real farm begins with a leader, so each election in it is a false one. A simulated farm begins without
a leader, so its first election is necessary. Its settings are the present settings. Two former settings can be set: the
interval of heartbeats, and no early campaign after the end of a leader's process. A simulation replaces parts of
its process, so it is a separate one: `python -m benchmarks.elections SPECIFICATION`.
"""

import json
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import trio

from benchmarks.child import Child
from benchmarks.failover import elections
from benchmarks.farm import SERVERS, Farm, running_farm
from benchmarks.figures import Figure
from benchmarks.gossip import beside_busy
from benchmarks.idle import as_on_a_lan
from benchmarks.job import Job
from bridge.node.settings import timing
from bridge.node.settings.choices import Timing
from tests.simulation.farm.network import Link
from tests.simulation.farm.world import World, simulate

WINDOW_S: Final = 60.0
VIRTUAL_S: Final = 120.0
LOSS: Final = 0.05
FORMER_HEARTBEAT_MS: Final = 250
TIMEOUT_S: Final = 600.0
VARIANTS: Final[dict[str, dict[str, object]]] = {
    "present": {},
    f"heartbeats each {FORMER_HEARTBEAT_MS} ms": {"heartbeat_ms": FORMER_HEARTBEAT_MS},
    "without early campaigns": {"early": False},
}


async def measure(job: Job) -> list[Figure]:
    """Count the elections of a farm in `job.runs` windows, at the same time as busy processes."""
    async with running_farm(job.directory, Timing.LAN, change=as_on_a_lan) as farm:
        return await beside_busy(partial(_windows, farm, job.runs))


async def _windows(farm: Farm, runs: int) -> list[Figure]:
    await farm.leader()
    counts = []
    for _ in range(runs):
        began_ms = time.time() * 1000
        await trio.sleep(WINDOW_S)
        counts.append(float(sum(each >= began_ms for each in await elections(farm.servers))))
    return [Figure(f'{SERVERS} nodes, timing "lan"', f"elections in {WINDOW_S:g} s", "", tuple(counts), "goal none")]


async def simulated(job: Job) -> list[Figure]:
    """Count the elections of simulated farms, one of each seed."""
    figures, seeds = [], job.runs
    for name, changes in VARIANTS.items():
        document = {"seeds": seeds, **changes}
        log = job.directory / "output.log"
        async with await Child.start_module("simulation", "benchmarks.elections", document, log) as child:
            counts = [float((await child.receive_document(TIMEOUT_S))["elections"]) for _ in range(seeds)]
        group = f"{SERVERS} simulated nodes, {LOSS:.0%} of all packets lost, elections in {VIRTUAL_S:g} virtual seconds"
        figures.append(Figure(group, name, "", tuple(counts), f"{sum(counts):g} of all farms; goal {seeds}"))
    return figures


def _simulate(seeds: int, heartbeat_ms: int | None = None, *, early: bool = True) -> None:
    """Print the number of elections of the farm of each seed."""
    with ExitStack() as changes:
        if heartbeat_ms is not None:
            changes.enter_context(patch.object(timing, "_LAN_HEARTBEAT_MS", heartbeat_ms))
        if not early:
            changes.enter_context(patch("consensus.core.roles.ServerRole.leader_ended"))
        for seed in range(seeds):
            print(json.dumps({"elections": simulate(seed, partial(_elections_of, seed))}), flush=True)


async def _elections_of(seed: int) -> int:
    elected: list[Any] = []
    async with World.open(seed, SERVERS) as world:
        world.network.link = Link(loss=LOSS)
        world.on_event.append(lambda _, event: elected.append(event) if event.kind == "leader-elected" else None)
        await world.start_all()
        await trio.sleep(VIRTUAL_S)
    return len(elected)


if __name__ == "__main__":
    _simulate(**json.loads(sys.argv[1]))
