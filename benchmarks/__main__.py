"""`python -m benchmarks [NAME …]`: measure this machine and a real farm on it, in one run, and print a plain table.

    machine ─▶ commands, throughput, memory, failover on one farm ─▶ each other part of `PARTS`

Names choose parts. Without names, all parts run, except the parts that run only on request. Bad figures are printed
like the others.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from benchmarks import commands, failover, machine, throughput
from benchmarks.child import BenchmarkError
from benchmarks.farm import Farm, running_farm
from benchmarks.figures import Figure, table
from benchmarks.job import Job, LeftOut, repeated
from bridge.node.settings.choices import Timing


class Part(NamedTuple):
    """A part with its own servers."""

    function: str
    """Module and function. The module is loaded if the part runs, because some need packages of an extra."""
    runs: int = 5
    """Number of runs without `--runs`; 0 if the part has a fixed number."""
    is_repeated: bool = False
    """True if the function measures once."""
    on_request: bool = False


PARTS: Final[dict[str, Part]] = {
    "failover-local": Part("failover.local_leader"),
    "elections": Part("elections.measure", 3),
    "elections-simulated": Part("elections.simulated", 30),
    "cold-start": Part("cold_start.measure", 3),
    "idle": Part("idle.measure", 3),
    "farm-restart": Part("farm_restart.measure", 3),
    "idle-budget": Part("idle.budget", 3, is_repeated=True),
    "consensus-throughput": Part("consensus_throughput.measure"),
    "consensus-failover": Part("consensus_failover.measure", 20),
    "consensus-budget": Part("consensus_budget.measure"),
    "consensus-split": Part("consensus_split.measure"),
    "consensus-scale": Part("consensus_scale.measure"),
    "consensus-step": Part("consensus_step.measure"),
    "gossip-speed": Part("gossip_speed.speed"),
    "gossip-whole-node": Part("gossip_whole_node.memory", 3, is_repeated=True),
    "gossip-many": Part("gossip.one_process", 3, is_repeated=True),
    "gossip-kill": Part("gossip.beside_serf", 9),
    "gossip-stop": Part("gossip.stops", 20),
    "gossip-speed-busy": Part("gossip.speed_if_busy", 3),
    "gossip-kill-busy": Part("gossip.kills_if_busy", 9),
    "kraft-scans": Part("kraft_scans.measure"),
    "kraft-latency": Part("kraft.latency"),
    "kraft-failover": Part("kraft.failover"),
    "zmq-raft-throughput": Part("zmq_raft.throughput", on_request=True),
    "zmq-raft-failover": Part("zmq_raft.failover", 10, on_request=True),
    "pipeline-latency": Part("pipeline_latency.measure", 0, on_request=True),
    "pipeline-farms": Part("pipeline_farms.measure", 0, on_request=True),
    "pipeline-backfill": Part("pipeline_backfill.measure", 0, on_request=True),
    "pipeline-contenders": Part("pipeline_contenders.measure", 3, on_request=True),
}
ON_FARM: Final = {"machine": 0, "commands": 15, "throughput": 5, "memory": 0, "failover": 5}
"""The measurement of the machine and the parts on the common farm, with their number of runs."""
RUNS: Final = ON_FARM | {name: part.runs for name, part in PARTS.items()}
GROUPS: Final = {
    group: [name for name in PARTS if name.startswith(f"{group}-")]
    for group in ("consensus", "gossip", "kraft", "zmq-raft", "pipeline")
}
"""The parts of each collective name."""
SETTING: Final = """\
farm                          3 server processes on loopback; TLS 1.3, Digest upgrade, fdatasync on,
                              the farm's own state machine; clients are other processes on this machine
client protocol               Garlic Farm (GarlicFarmClient); one entry a request; acknowledged = committed
consensus                     3 bare servers: Garlic Farm protocol, TLS 1.3, fdatasync on, a state machine that
                              counts; clients in other processes on this machine, over TLS to the leader;
                              etcd: gRPC over TLS for clients and peers, fsync on, its own store, client in Go;
                              the pipe: frames over the same TLS, fdatasync on, no Raft"""
MIB = 1024 * 1024
PROJECT: Final = Path(__file__).parents[1]
"""The directory of the project's own packages."""


def main() -> None:
    """Run the parts of the command line, and print their figures."""
    options = _options()
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="garlicfarm-bench-", dir=options.directory) as directory:
        try:
            limits = machine.measure(Path(directory))
            print("\n".join([*limits.lines(), SETTING]), flush=True)
            figures = trio.run(_measure, Path(directory), limits, options)
        except BenchmarkError as error:
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures farms of real processes.")
    usual = [name for name in RUNS if name not in PARTS or not PARTS[name].on_request]
    parser.add_argument(
        "names",
        nargs="*",
        choices=[*RUNS, *GROUPS, []],
        metavar="NAME",
        help=f"without names, these parts run: {', '.join(usual)}; "
        f"only if named: {', '.join(name for name in RUNS if name not in usual)}; "
        f"collective names: {', '.join(GROUPS)}",
    )
    parser.add_argument("--base", help="consensus-step: another checkout or a commit, for comparison")
    parser.add_argument(
        "--runs", type=_positive(int), help="runs of each part; without it, each part has its own number"
    )
    parser.add_argument("--seconds", type=_positive(float), default=3.0, help="length of a run of a load (3)")
    parser.add_argument("--json", type=Path, help="write the figures, including every run, to this file")
    parser.add_argument("--directory", type=Path, help="directory of the files of all parts, on the disk to measure")
    options = parser.parse_args()
    options.names = {part for name in options.names or usual for part in GROUPS.get(name, (name,))}
    if options.runs is not None and not any(RUNS[name] for name in options.names):
        parser.error(f"--runs does not apply to {' and '.join(sorted(options.names))}: measure another part with it")
    return options


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return convert


async def _measure(home: Path, limits: machine.Machine, options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []

    def report(found: list[Figure]) -> None:
        figures.extend(found)
        print("\n".join(table(found)), flush=True)

    def job(name: str) -> Job:
        return Job(name, home, options.runs or RUNS[name], options.seconds, limits, options.base)

    if options.names & (ON_FARM.keys() - {"machine"}):
        async with running_farm(home / "lan", Timing.LAN) as farm:
            await _on_farm(farm, options.names, job, report)
    for name, part in PARTS.items():
        if name in options.names:
            print(f"\n{name}: begins at a load of {os.getloadavg()[0]:.1f}", flush=True)
            try:
                report(await run_part(part, job(name)))
            except LeftOut as reason:
                print(f"{name}: left out: {reason}", flush=True)
            print(f"{name}: ended at a load of {os.getloadavg()[0]:.1f}", flush=True)
    return figures


async def _on_farm(
    farm: Farm, names: set[str], job: Callable[[str], Job], report: Callable[[list[Figure]], None]
) -> None:
    if "commands" in names:
        report(await commands.measure(farm, job("commands").runs))
    if "memory" in names:
        report(_memory(farm, "created, idle"))
    if "throughput" in names:
        report(await throughput.measure(farm, job("throughput")))
        if "memory" in names:
            report(_memory(farm, "after the throughput runs"))
    if "failover" in names:
        report(await failover.leader(farm, job("failover").runs))
        report(await failover.publisher(farm, job("failover").runs))


async def run_part(part: Part, job: Job) -> list[Figure]:
    """Return the figures of a part; raise LeftOut if a package of an extra is missing."""
    module, _, name = part.function.rpartition(".")
    try:
        function: Any = getattr(import_module(f"benchmarks.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or (PROJECT / error.name.partition(".")[0]).is_dir():
            raise
        raise LeftOut(f"the package {error.name} is not installed; an extra in pyproject.toml has it") from error
    await trio.Path(job.directory).mkdir(mode=0o700)
    if part.is_repeated:
        function = partial(repeated, function)
    if iscoroutinefunction(function):
        return list(await function(job))
    return list(await trio.to_thread.run_sync(function, job))


def _memory(farm: Farm, when: str) -> list[Figure]:
    values = tuple(server.resident_bytes() / MIB for server in farm.servers)
    return [Figure(f"memory of a node, {when}", "resident", "MiB", values, "the three servers")]


if __name__ == "__main__":
    main()
