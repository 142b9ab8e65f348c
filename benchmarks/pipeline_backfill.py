"""A large backfill, entries per second and memory: the base tables alone, then all derived tables by a second call.

The log is the fictional farm of `pipeline generate`, ten million entries (GARLICFARM_BACKFILL_ENTRIES sets another
number). Goals: 20,000 entries per second for the base tables, 12,000 with all derived tables. Memory of driver, JVM and
workers together: goal below 3 GB.
"""

import os
import time

import trio

from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.measured_command import run_measured
from benchmarks.pipeline_latency import COMMAND
from pipeline.generate import generate
from pipeline.load_model import LoadModel

GIB = 1024**3
BACKFILL_VARIABLE = "GARLICFARM_BACKFILL_ENTRIES"
BACKFILL_ENTRIES = 10_000_000
BACKFILL_ROUTERS = 1_000
MASTER = "local[2]"


async def measure(job: Job) -> list[Figure]:
    """Generate the log, and backfill it twice: without and with derived tables."""
    directory = job.directory
    entries_max = int(os.environ.get(BACKFILL_VARIABLE, BACKFILL_ENTRIES))
    log = directory / "log"
    model = LoadModel(BACKFILL_ROUTERS, entries_max / BACKFILL_ROUTERS / 2800)
    began = time.perf_counter()
    made = await trio.to_thread.run_sync(generate, log, model)
    generating_s = time.perf_counter() - began
    entries = min(entries_max, made.entries)
    command = [
        *COMMAND,
        *("backfill", "--directory", str(log), "--from", "1", "--to", str(entries)),
        *("--output", str(directory / "tables"), "--master", MASTER),
    ]
    base = await run_measured("the backfill", [*command, "--no-derived"], directory / "base.txt")
    derived = await run_measured("the backfill", command, directory / "derived.txt")
    group = f"pipeline: {entries} entries backfilled, start and end of Spark included"
    whole_s = base.seconds + derived.seconds
    return [
        Figure(group, "generating them", "entries/s", (made.entries / generating_s,), f"{generating_s:.0f} s"),
        Figure(
            group, "base tables alone", "entries/s", (entries / base.seconds,), f"{base.seconds:.0f} s; goal 20,000"
        ),
        Figure(
            group,
            "base tables, then all derived tables by a second call",
            "entries/s",
            (entries / whole_s,),
            f"{base.seconds:.0f} s and {derived.seconds:.0f} s; goal 12,000",
        ),
        *(
            Figure(
                group,
                f"memory for {name}, shared pages once",
                "GiB",
                (each.peak.total_bytes / GIB,),
                f"highest sum, {each.peak.java_bytes / GIB:.2f} in the JVM and the remainder in {each.peak.others}"
                " processes of Python; goal below 3 GB",
            )
            for name, each in (("base tables", base), ("derived tables", derived))
        ),
    ]
