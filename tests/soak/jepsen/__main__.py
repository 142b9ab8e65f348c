"""Runs five real nodes under real faults and judges one history: `python -m tests.soak.jepsen --help`."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests.processes import child
from tests.soak.jepsen import network
from tests.soak.jepsen.disk import compiler
from tests.soak.jepsen.run import new_run, play, write_result
from tests.soak.jepsen.schedule import Kind, draw

BESIDES_S = 900.0
"""Longest time of a run without its time under faults."""


def main() -> int:
    """Run the seeds, print the figures; return 1 if a run has a finding."""
    parser = argparse.ArgumentParser(description="Run five real nodes under real faults, and judge the history.")
    parser.add_argument("--seed", type=int, help="seed of the first run (default: the time)")
    parser.add_argument("--runs", type=int, default=1, help="number of runs, with the next seeds")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes under faults of each run")
    parser.add_argument("--only", nargs="+", type=Kind, default=[], metavar="KIND", help="kinds of the faults")
    parser.add_argument("--keep", action="store_true", help="keep the directories of all runs")
    parser.add_argument(
        "--plant-loss", action="store_true", help="lose acknowledged entries, to see that the judgment finds it"
    )
    options = parser.parse_args()
    reason = network.missing() or (None if compiler() else "a C compiler is missing (Debian: apt-get install gcc)")
    if reason is not None:
        print(f"soak-jepsen is skipped: {reason}")
        return 0
    # Otherwise each start of a node or a command would compile all modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if network.INSIDE in os.environ:
        # The kernel ignores signals to the first process of a namespace unless the process handles them.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return int(not one_run(options))
    first = int(time.time()) % 1_000_000 if options.seed is None else options.seed
    failed = [seed for seed in range(first, first + options.runs) if enter(seed, options)]
    seeds = f"seeds {first} to {first + options.runs - 1}"
    print(f"{options.runs} runs, {seeds}: {len(failed)} with findings {failed or ''}")
    return 1 if failed else 0


def enter(seed: int, options: argparse.Namespace) -> int:
    """Run one seed in new namespaces, as their first process; return its exit code."""
    arguments = ["--seed", str(seed), "--minutes", str(options.minutes)]
    arguments += ["--only", *(kind.value for kind in options.only)] if options.only else []
    arguments += ["--keep"] * options.keep + ["--plant-loss"] * options.plant_loss
    command = [*network.entrance(), sys.executable, "-m", "tests.soak.jepsen", *arguments]
    with child(command, stdout=None, env={**os.environ, network.INSIDE: "1"}) as process:
        return process.wait(options.minutes * 60 + BESIDES_S)


def one_run(options: argparse.Namespace) -> bool:
    """Run one seed; print its figures, and its story if there is a finding. Return True without a finding."""
    seed, duration_s = options.seed, options.minutes * 60
    schedule = draw(seed, duration_s, only=options.only)
    directory = Path(tempfile.mkdtemp(prefix=f"garlicfarm-jepsen-{seed}-"))
    mix = ", ".join(kind.value for kind in schedule.mix)
    print(f"seed {seed}, {duration_s / 60:g} minutes, {len(schedule.faults)} faults of {mix}")
    print(f"{directory}, load average {os.getloadavg()[0]:.1f}", flush=True)
    run, access = new_run(directory, schedule, plants_loss=options.plant_loss)
    findings = ["the run has ended early"]
    try:
        findings = trio.run(play, run, access)
    finally:
        for node in run.nodes:
            node.kill()
        run.network.close()
        write_result(run, findings)
    for name, each in run.figures.get("operations", {}).items():
        print(f"  {name}: " + ", ".join(f"{what} {value:.4g}" for what, value in each.items()))
    for name in ("faults", "gap", "entries", "received", "recovery_s", "healthy_s", "load_average"):
        print(f"  {name}: {run.figures.get(name)}")
    if findings:
        print(f"FINDINGS; draw these faults again: make soak-jepsen ARGS='--seed {seed} --minutes {duration_s / 60:g}'")
        print("\n".join(run.story))
        for finding in findings:
            print(f"FINDING: {finding}")
        print(f"the directory of the run: {directory}", flush=True)
    elif not options.keep:
        shutil.rmtree(directory)
    return not findings


if __name__ == "__main__":
    sys.exit(main())
