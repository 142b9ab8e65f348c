"""Kills the pipeline's driver repeatedly with SIGKILL, and compares its tables with the tables of an undisturbed run.

    python -m tests.soak.pipeline_kills --kills 20 --seed 1

Each run follows the log with both queries together. One query writes the tables and watches the servers. The other one
reads events from a file that is longer in each run. Driver, JVM and workers are killed as one process group. One run in
ten is killed while it starts. The others are killed at a random moment after a query's first batch begins, or after its
first, second or third batch ends. Then the driver starts again with the same checkpoints. After all kills, a last run
reaches the end. Tables are compared as multisets of rows.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from pipeline.load_model import EPOCH_MS
from pipeline.local.checkpoint import CHECKPOINT, EVENTS_CHECKPOINT
from tests.processes import END_S
from tests.soak.pipeline_tables import (
    differences,
    generate_log,
    pipeline_command,
    same_pseudonyms,
    start,
    tables_of,
    wait_for_success,
)

POLL_S = 0.05
BATCH_TIMEOUT_S = 180.0
END_TIMEOUT_S = 900.0
IN_START_SHARE = 0.1
START_SPAN_S = 8.0
RUN_SPAN_S = 4.0
DONE_MAX = 3
FAILURES_MAX = 3
EVENTS = 20_000


def batches(checkpoint: Path, how_far: str) -> int:
    """Return how many batches of a query were begun (`offsets`) or done (`commits`) so far."""
    return sum(1 for each in checkpoint.glob(f"{how_far}/*") if each.name.isdecimal())


def run_until_killed(command: list[str], output: Path, log: Path, random: Random) -> str | None:
    """Run the command and kill it at a random moment; return a description of it, or None if the run ended first."""
    query = output / random.choice((CHECKPOINT, CHECKPOINT, EVENTS_CHECKPOINT))
    begun, done = batches(query, "offsets"), batches(query, "commits")
    process = start(command, log)
    try:
        began = time.monotonic()
        if random.random() < IN_START_SHARE:
            moment = f"{(span := random.uniform(0, START_SPAN_S)):.1f} s after its start"
        else:
            # The events of one run are one batch.
            more = random.randint(0, 1 if query.name == EVENTS_CHECKPOINT else DONE_MAX)
            while process.poll() is None and (
                batches(query, "commits") < done + more if more else batches(query, "offsets") == begun
            ):
                if time.monotonic() - began > BATCH_TIMEOUT_S:
                    raise RuntimeError(f"no batch within {BATCH_TIMEOUT_S:.0f} s; see {log}")
                time.sleep(POLL_S)
            span = random.uniform(0, RUN_SPAN_S)
            moment = f"{span:.1f} s after " + (f"{more} done" if more else "the first began") + f" in {query.name}"
        try:
            process.wait(span)
        except subprocess.TimeoutExpired:
            return moment
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_S)


def generate_events(seed: int) -> list[str]:
    """Return events as in the nodes' traces, as lines of JSON."""
    random = Random(seed)
    kinds = ("member-suspect", "member-dead", "member-alive")
    lines = []
    for number in range(EVENTS):
        event = {
            "node": f"node-{random.randint(1, 9)}",
            "cursor": number + 1,
            "timeMs": EPOCH_MS + 1_000 * number,
            "logTimeMs": EPOCH_MS + 1_000 * number,
            "kind": random.choice(kinds),
            "data": {"member": f"node-{random.randint(1, 9)}"},
        }
        lines.append(json.dumps(event) + "\n")
    return lines


def batches_done(output: Path) -> str:
    """Return the number of completed batches of each query as text."""
    done = {each.name: len(list((each / "commits").glob("[0-9]*"))) for each in sorted(output.glob("checkpoint*"))}
    return ", ".join(f"{name.partition('-')[2] or 'tables'} {count}" for name, count in done.items())


def run(kills: int, seed: int, directory: Path, *, routers: int, days: float, batch: int, engine: str) -> list[str]:
    """Run the whole comparison; return the differences as text."""
    random = Random(seed)
    entries = generate_log(directory / "log", routers, days, seed)
    print(f"seed {seed}: {entries} entries, {-(-entries // batch)} batches", flush=True)
    traces = directory / "trace.jsonl"
    more = ("--engine", engine, "--entries-per-batch", str(batch), "--watch", "--trace-files", str(traces))
    events = generate_events(seed)
    traces.write_text("".join(events), encoding="utf-8")
    undisturbed = directory / "undisturbed"
    wait_for_success(
        start(pipeline_command(directory / "log", undisturbed, *more), directory / "undisturbed.txt"),
        directory / "undisturbed.txt",
        END_TIMEOUT_S,
    )
    expected = tables_of(undisturbed)
    killed = directory / "killed"
    same_pseudonyms(undisturbed, killed)
    command = pipeline_command(directory / "log", killed, *more, once=False)
    for kill in range(1, kills + 1):
        traces.write_text("".join(events[: EVENTS * kill // (kills + 1)]), encoding="utf-8")
        # On a busy machine Spark aborts if a worker does not start within ten seconds; such a run does not count as a
        # kill.
        runs = (run_until_killed(command, killed, directory / "killed.txt", random) for _ in range(FAILURES_MAX))
        moment = next((each for each in runs if each is not None), None)
        if moment is None:
            raise RuntimeError(f"runs failed without a kill after {kill - 1} kills: see {directory / 'killed.txt'}")
        print(f"kill {kill}: {moment}; batches done: {batches_done(killed)}", flush=True)
    traces.write_text("".join(events), encoding="utf-8")
    last = pipeline_command(directory / "log", killed, *more)
    wait_for_success(start(last, directory / "killed.txt"), directory / "killed.txt", END_TIMEOUT_S)
    found = tables_of(killed)
    for name, rows in sorted(found.items()):
        print(f"  {name}: {rows.total()} rows", flush=True)
    return differences(expected, found)


def main() -> None:
    """Parse the command line; exit with code 1 if a table differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--routers", type=int, default=10)
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=400, help="entries per batch")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="pipeline-kills-"))
    found = run(
        arguments.kills,
        arguments.seed,
        directory,
        routers=arguments.routers,
        days=arguments.days,
        batch=arguments.batch,
        engine=arguments.engine,
    )
    for line in found:
        print(f"DIFFERS {line}", flush=True)
    if found:
        print(f"the output is kept in {directory}", flush=True)
        sys.exit(1)
    shutil.rmtree(directory)
    print(f"after {arguments.kills} kills every table equals the undisturbed run's, row for row", flush=True)


if __name__ == "__main__":
    main()
