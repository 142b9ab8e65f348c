"""SIGKILL the pipeline's driver, again and again, and compare its tables with those of an undisturbed run.

    python -m tests.soak.pipeline_kills --kills 20 --seed 1

Each life follows the log with both queries at once: the tables with the watch over the servers, and the events, which
are lines of a file that is longer in each life. The driver, its JVM and its workers are killed as one group: for one
life in ten while it is still starting, else at a random moment behind the beginning of the first batch of one of the
queries or behind the end of its first, second or third. Then it is started again with the same checkpoints, until all
kills are done and a last life reaches the end. Tables are compared as multisets of rows.
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
from pipeline.run import CHECKPOINT, EVENTS_CHECKPOINT
from tests.processes import END_S
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
DONE_MAX = 3
FAILURES_MAX = 3
EVENTS = 20_000


def batches(checkpoint: Path, how_far: str) -> int:
    """How many batches of a query were begun (`offsets`) or done (`commits`) so far."""
    return sum(1 for each in checkpoint.glob(f"{how_far}/*") if each.name.isdecimal())


def live_until_killed(command: list[str], output: Path, log: Path, random: Random) -> str | None:
    """One life that ends by SIGKILL; a word on when, None if the run reached its end before."""
    query = output / random.choice((CHECKPOINT, CHECKPOINT, EVENTS_CHECKPOINT))
    begun, done = batches(query, "offsets"), batches(query, "commits")
    process = start(command, log)
    try:
        began = time.monotonic()
        if random.random() < IN_START_SHARE:
            moment = f"{(span := random.uniform(0, START_SPAN_S)):.1f} s after its start"
        else:
            # The events of one life are one batch.
            more = random.randint(0, 1 if query.name == EVENTS_CHECKPOINT else DONE_MAX)
            while process.poll() is None and (
                batches(query, "commits") < done + more if more else batches(query, "offsets") == begun
            ):
                if time.monotonic() - began > BEGIN_PATIENCE_S:
                    raise RuntimeError(f"no batch within {BEGIN_PATIENCE_S:.0f} s; see {log}")
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


def made_up_events(seed: int) -> list[str]:
    """What the nodes' traces would say, as lines of JSON."""
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
    """How many batches each query has done."""
    done = {each.name: len(list((each / "commits").glob("[0-9]*"))) for each in sorted(output.glob("checkpoint*"))}
    return ", ".join(f"{name.partition('-')[2] or 'tables'} {count}" for name, count in done.items())


def run(kills: int, seed: int, directory: Path, *, routers: int, days: float, batch: int) -> list[str]:
    """The whole comparison; differences in words."""
    random = Random(seed)
    entries = made_up_log(directory / "log", routers, days, seed)
    print(f"seed {seed}: {entries} entries, {-(-entries // batch)} batches", flush=True)
    traces = directory / "trace.jsonl"
    more = ("--master", "local[2]", "--entries-per-batch", str(batch), "--watch", "--trace-files", str(traces))
    events = made_up_events(seed)
    traces.write_text("".join(events), encoding="utf-8")
    undisturbed = directory / "undisturbed"
    finished(
        start(pipeline_command(directory / "log", undisturbed, *more), directory / "undisturbed.txt"),
        directory / "undisturbed.txt",
        END_PATIENCE_S,
    )
    expected = tables_of(undisturbed)
    killed = directory / "killed"
    same_pseudonyms(undisturbed, killed)
    command = pipeline_command(directory / "log", killed, *more, once=False)
    for kill in range(1, kills + 1):
        traces.write_text("".join(events[: EVENTS * kill // (kills + 1)]), encoding="utf-8")
        # On a busy machine Spark gives up a worker that does not begin in ten seconds; such a life is no kill.
        lives = (live_until_killed(command, killed, directory / "killed.txt", random) for _ in range(FAILURES_MAX))
        moment = next((told for told in lives if told is not None), None)
        if moment is None:
            raise RuntimeError(f"runs failed by themselves after {kill - 1} kills: see {directory / 'killed.txt'}")
        print(f"kill {kill}: {moment}; batches done: {batches_done(killed)}", flush=True)
    traces.write_text("".join(events), encoding="utf-8")
    last = pipeline_command(directory / "log", killed, *more)
    finished(start(last, directory / "killed.txt"), directory / "killed.txt", END_PATIENCE_S)
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
