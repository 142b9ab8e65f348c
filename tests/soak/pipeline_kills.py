"""SIGKILL the pipeline's driver, again and again, and compare its tables with those of a run that nobody disturbed.

    python -m tests.soak.pipeline_kills --kills 20 --seed 1

The driver, its JVM and its workers are killed as one group, at a random moment behind the first batch that a life has
begun, or, for one in ten, while it is still starting. Then it is started again with the same checkpoint, until all
kills are done and a last life reaches the end. Tables are compared as multisets of rows.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.soak.pipeline_tables import (
    differences,
    finished,
    made_up_log,
    pipeline_command,
    same_pseudonyms,
    start,
    tables_of,
)

POLL_S = 0.05
BEGIN_PATIENCE_S = 180.0
END_PATIENCE_S = 900.0
IN_START_SHARE = 0.1
START_SPAN_S = 8.0
RUN_SPAN_S = 4.0


def offsets(output: Path) -> int:
    """How many batches were begun so far."""
    found = list(output.glob("checkpoint*/**/offsets/*"))
    return sum(1 for each in found if each.name.isdecimal())


def live_until_killed(command: list[str], output: Path, log: Path, random: Random) -> str | None:
    """One life that ends by SIGKILL; a word on when, None if the run reached its end before."""
    before = offsets(output)
    process = start(command, log)
    try:
        began = time.monotonic()
        if random.random() < IN_START_SHARE:
            moment = f"{(span := random.uniform(0, START_SPAN_S)):.1f} s after its start"
        else:
            while process.poll() is None and offsets(output) == before:
                if time.monotonic() - began > BEGIN_PATIENCE_S:
                    raise RuntimeError(f"no batch began within {BEGIN_PATIENCE_S:.0f} s; see {log}")
                time.sleep(POLL_S)
            moment = f"{(span := random.uniform(0, RUN_SPAN_S)):.1f} s after its first batch began"
        try:
            process.wait(span)
        except subprocess.TimeoutExpired:
            return moment
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(kills: int, seed: int, directory: Path, *, routers: int, days: float, batch: int) -> list[str]:
    """The whole comparison; differences in words."""
    random = Random(seed)
    entries = made_up_log(directory / "log", routers, days, seed)
    print(f"seed {seed}: {entries} entries, {-(-entries // batch)} batches", flush=True)
    more = ("--master", "local[2]", "--entries-per-batch", str(batch))
    undisturbed = directory / "undisturbed"
    finished(
        start(pipeline_command(directory / "log", undisturbed, *more), directory / "undisturbed.txt"),
        directory / "undisturbed.txt",
        END_PATIENCE_S,
    )
    expected = tables_of(undisturbed)
    killed = directory / "killed"
    same_pseudonyms(undisturbed, killed)
    command = pipeline_command(directory / "log", killed, *more)
    done = 0
    while done < kills:
        moment = live_until_killed(command, killed, directory / "killed.txt", random)
        if moment is None:
            raise RuntimeError(f"the run ended after {done} kills: choose a longer log or smaller batches")
        done += 1
        print(f"kill {done}: {moment}, {offsets(killed)} batches begun", flush=True)
    finished(start(command, directory / "killed.txt"), directory / "killed.txt", END_PATIENCE_S)
    found = tables_of(killed)
    for name, rows in sorted(found.items()):
        print(f"  {name}: {rows.total()} rows", flush=True)
    return differences(expected, found)


def main() -> None:
    """Parses the command line; exit code 1 if a table differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--routers", type=int, default=10)
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=400, help="entries per batch")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="pipeline-kills-"))
    told = run(
        arguments.kills,
        arguments.seed,
        directory,
        routers=arguments.routers,
        days=arguments.days,
        batch=arguments.batch,
    )
    for line in told:
        print(f"DIFFERS {line}", flush=True)
    if told:
        print(f"what was written is kept in {directory}", flush=True)
        sys.exit(1)
    shutil.rmtree(directory)
    print(f"after {arguments.kills} kills every table equals the undisturbed run's, row for row", flush=True)


if __name__ == "__main__":
    main()
