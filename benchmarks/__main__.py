"""`python -m benchmarks [NAME …]`: measure this machine and a real farm on it, in one run, and print a plain table.

    machine ─▶ commands, throughput, memory ─▶ failover, timing "lan" ─▶ failover, timing "local" ─▶ elections
            ─▶ cold start, idle, restart ─▶ storage ─▶ ØMQ sockets, endpoint ─▶ consensus and others ─▶ gossip
            ─▶ KRaft and Kafka

Names choose parts; without names, all run. Bad figures are printed like the others.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from benchmarks import (
    cold_start,
    commands,
    consensus,
    elections,
    failover,
    farm_restart,
    gossip,
    idle,
    kraft,
    machine,
    storage,
    throughput,
    zmq_raft,
)
from benchmarks.child import ChildError
from benchmarks.farm import BenchmarkError, Farm, running_farm
from benchmarks.figures import Figure, repeated, table
from benchmarks.gossip_group import GroupError
from bridge.node.settings.choices import Timing

ALONE: dict[str, Callable[[Path, int, float], Awaitable[list[Figure]]]] = {
    "elections": lambda where, runs, _: elections.measure(where, runs),
    "elections-simulated": lambda where, runs, _: elections.simulated(where, runs),
    "cold-start": lambda where, runs, _: trio.to_thread.run_sync(cold_start.measure, where, runs),
    "idle": lambda where, runs, _: idle.measure(where, runs),
    "farm-restart": lambda where, runs, _: farm_restart.measure(where, runs),
    "idle-budget": lambda where, runs, _: repeated(idle.budget, where, runs),
    "storage": lambda where, runs, seconds: trio.to_thread.run_sync(storage.measure, where, runs, seconds / 6),
}
"""Parts that do not use the common farm: directory, number of runs, seconds of a run."""
NAMES = (
    "machine",
    "commands",
    "throughput",
    "memory",
    "failover",
    "failover-local",
    *ALONE,
    "zmq-sockets",
    "zmq-endpoint",
    *consensus.PARTS,
    *gossip.PARTS,
    *kraft.PARTS,
)
PIPELINE_PARTS = (
    "pipeline-source",
    "pipeline-tables",
    "pipeline-latency",
    "pipeline-refresh",
    "pipeline-farms",
    "pipeline-backfill",
    "pipeline-contenders",
    "pipeline-floodfills",
)
"""Parts that run only on request: they need the extra `pipeline`, and a quarter of an hour."""
ZMQ_RAFT_PARTS = zmq_raft.PARTS
"""Parts that run only on request: they need Node, and the npm package installed by `make interop-zmq`."""
GROUPS: dict[str, tuple[str, ...]] = {
    "consensus": tuple(consensus.PARTS),
    "gossip": tuple(gossip.PARTS),
    "kraft": kraft.PARTS,
    "pipeline": PIPELINE_PARTS,
    "zmq-raft": ZMQ_RAFT_PARTS,
}
"""The parts of each collective name."""
RUNS: dict[str, int] = {
    **dict.fromkeys(("cold-start", "idle", "idle-budget", "farm-restart", "consensus-restart"), 3),
    **dict.fromkeys(("zmq-endpoint", "kraft-memory", "gossip-memory", "gossip-whole-node", "gossip-idle"), 3),
    **dict.fromkeys(("gossip-many", "gossip-speed-busy", "elections"), 3),
    **dict.fromkeys(("pipeline-source", "pipeline-tables", "pipeline-contenders", "pipeline-floodfills"), 3),
    **dict.fromkeys(("gossip-kill", "gossip-kill-busy"), 9),
    "zmq-raft-failover": 10,
    "commands": 15,
    **dict.fromkeys(("consensus-failover", "gossip-stop"), 20),
    "elections-simulated": 30,
}
"""The number of runs of a part without `--runs`; 5 if a part is not listed."""
UNREPEATED = frozenset(
    {"machine", "memory", "pipeline-latency", "pipeline-refresh", "pipeline-farms", "pipeline-backfill"}
)
"""Parts with a fixed number of values, for example the five runs of each limit, and the servers of one farm."""
MIB = 1024 * 1024


def main() -> None:
    """Run the parts of the command line, and print their figures."""
    options = _options()
    names = [part for name in options.names or NAMES for part in GROUPS.get(name, (name,))]
    with tempfile.TemporaryDirectory(prefix="garlicfarm-bench-", dir=options.directory) as directory:
        try:
            limits = machine.measure(Path(directory))
            print("\n".join([*limits.lines(), *_setting()]), flush=True)
            figures = trio.run(_measure, names, Path(directory), limits, options)
        except (BenchmarkError, ChildError, GroupError) as error:
            sys.exit(f"benchmarks: {error}")
    if options.json is not None:
        document = {
            "machine": limits.description,
            "fdatasyncPerSecond": limits.fdatasync_per_s,
            "blockingRoundTripMicroseconds": limits.blocking_round_trip_us,
            "trioRoundTripMicroseconds": limits.trio_round_trip_us,
            "figures": [figure.document() for figure in figures],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures a farm of real processes.")
    parser.add_argument(
        "names",
        nargs="*",
        choices=[*NAMES, *PIPELINE_PARTS, *ZMQ_RAFT_PARTS, *GROUPS, []],
        metavar="NAME",
        help=f"parts: {', '.join(NAMES)}; only if named: pipeline, "
        f"{', '.join(PIPELINE_PARTS)}, zmq-raft, {', '.join(ZMQ_RAFT_PARTS)}",
    )
    parser.add_argument("--base", help="consensus-step: another checkout or a commit, for comparison")
    parser.add_argument(
        "--runs", type=_positive(int), help="runs of each part; without it, each part has its own number"
    )
    parser.add_argument("--seconds", type=_positive(float), default=3.0, help="length of a run of a load (3)")
    parser.add_argument("--json", type=Path, help="write the figures, including every run, to this file")
    parser.add_argument("--directory", type=Path, help="directory of the farms' files, on the disk to measure")
    options = parser.parse_args()
    if options.runs is not None and options.names and UNREPEATED.issuperset(options.names):
        parser.error(f"--runs does not apply to {' and '.join(sorted(options.names))}: measure another part with it")
    return options


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return convert


def _setting() -> list[str]:
    return [
        "farm                          3 server processes on loopback; TLS 1.3, Digest upgrade, fdatasync on,",
        "                              the farm's own state machine; clients are other processes on this machine",
        "client protocol               Garlic Farm (GarlicFarmClient); one entry a request; acknowledged = committed",
    ]


async def _measure(
    names: list[str], directory: Path, limits: machine.Machine, options: argparse.Namespace
) -> list[Figure]:
    figures: list[Figure] = []
    seconds, runs = float(options.seconds), partial(_runs, options.runs)

    def report(found: list[Figure]) -> None:
        figures.extend(found)
        print("\n".join(table(found)), flush=True)

    async def lan(farm: Farm) -> None:
        if "commands" in names:
            report(await commands.measure(farm, runs("commands")))
        if "memory" in names:
            report(_memory(farm, "created, idle"))
        if "throughput" in names:
            report(await throughput.measure(farm, limits, runs("throughput"), seconds))
            if "memory" in names:
                report(_memory(farm, "after the throughput runs"))
        if "failover" in names:
            report(await failover.leader(farm, runs("failover")))
            report(await failover.publisher(farm, runs("failover")))

    if {"commands", "memory", "throughput", "failover"} & set(names):
        async with running_farm(directory / "lan", Timing.LAN) as farm:
            await lan(farm)
    if "failover-local" in names:
        async with running_farm(directory / "local", Timing.LOCAL) as farm:
            report(await failover.leader(farm, runs("failover-local")))
    await _alone(names, directory, runs, seconds, report)
    await consensus.measure(names, directory, limits, consensus.Options(runs, seconds, options.base), report)
    await gossip.measure(names, directory, runs, report)
    await zmq_raft.measure(names, directory, runs, seconds, report)
    await kraft.measure(names, directory, runs, report)
    await _pipeline([name for name in names if name in PIPELINE_PARTS], directory, runs, report)
    return figures


def _runs(requested: int | None, name: str) -> int:
    """Return the number of runs of a part."""
    return requested or RUNS.get(name, 5)


async def _alone(
    names: list[str],
    directory: Path,
    runs: Callable[[str], int],
    seconds: float,
    report: Callable[[list[Figure]], None],
) -> None:
    """Run the parts that do not use the common farm."""
    for name, part in ALONE.items():
        if name in names:
            report(await part(directory / name, runs(name), seconds))
    if {"zmq-sockets", "zmq-endpoint"} & set(names):
        # The base install does not include pyzmq, and the other parts do not need it.
        try:
            from benchmarks import zmq_endpoint, zmq_sockets  # noqa: PLC0415
        except ImportError:
            print("zmq-sockets, zmq-endpoint     left out: the extra `zmq` is not installed", flush=True)
            return
        if "zmq-sockets" in names:
            report(await zmq_sockets.measure(directory, runs("zmq-sockets")))
        if "zmq-endpoint" in names:
            report(await repeated(zmq_endpoint.measure, directory / "endpoint", runs("zmq-endpoint")))


async def _pipeline(
    names: list[str], directory: Path, runs: Callable[[str], int], report: Callable[[list[Figure]], None]
) -> None:
    if not names:
        return
    # The base install does not include Spark, and the other parts do not need it.
    from benchmarks import pipeline  # noqa: PLC0415

    for name in names:
        report(await pipeline.measure(name, directory, runs(name)))


def _memory(farm: Farm, when: str) -> list[Figure]:
    values = tuple(server.resident_bytes() / MIB for server in farm.servers)
    return [Figure(f"memory of a node, {when}", "resident", "MiB", values, "the three servers")]


if __name__ == "__main__":
    main()
