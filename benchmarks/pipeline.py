"""The pipeline's figures: the source alone, log to tables compared with Parquet to tables, a large backfill.

    pipeline-source     the source `farm` over a directory, rows discarded: rows per second; goal 100,000
    pipeline-tables     log ──▶ tables, in turns with   Parquet of the same rows ──▶ the same parse, transform and write
    its figures         ratio of the elapsed times, and of the processor times; goal: at most 1.5
    pipeline-backfill   ten million entries (GARLICFARM_BACKFILL_ENTRIES sets another number). Entries per second of the
                        base tables alone, and with all derived tables: goals 20,000 and 12,000. Memory of driver, JVM
                        and workers together: goal below 3 GB

The log is the fictional farm of `pipeline generate`. Each part generates its own log, so it can run alone.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.measured_command import run_measured
from benchmarks.pipeline_latency import COMMAND
from benchmarks.processor_time import Took, measured
from pipeline.generate import generate
from pipeline.load_model import LoadModel
from pipeline.run import RunSettings, await_end, prepare, start_query
from pipeline.schemas import ENTRIES
from pipeline.spark.session import open_session

GIB = 1024**3
ROUTERS = 200
DAYS = 1.0
TABLES_DAYS = 0.4
BATCH_ENTRIES = 200_000
ENTRIES_PER_FILE = 50_000
BACKFILL_VARIABLE = "GARLICFARM_BACKFILL_ENTRIES"
BACKFILL_ENTRIES = 10_000_000
BACKFILL_ROUTERS = 1_000
MASTER = "local[2]"


@contextmanager
def running_session() -> Iterator[SparkSession]:
    """Yield a session of Spark, which ends with the block."""
    session = open_session(MASTER)
    try:
        yield session
    finally:
        session.stop()


def source(job: Job) -> list[Figure]:
    """Measure the source alone. Blocks."""
    log = job.directory / "log"
    entries = generate(log, LoadModel(ROUTERS, DAYS)).entries
    with running_session() as session:
        rates = []
        for _ in range(job.runs + 1):
            began = time.perf_counter()
            session.read.format("farm").option("directory", str(log)).load().write.format("noop").mode(
                "overwrite"
            ).save()
            rates.append(entries / (time.perf_counter() - began))
    note = f"{entries} entries, {MASTER}, after one warm-up; goal 100,000"
    return [Figure("pipeline: the source alone", "directory, rows discarded", "rows/s", tuple(rates[1:]), note)]


def tables(job: Job) -> list[Figure]:
    """Measure the log to tables, compared with Parquet to tables. Blocks."""
    directory = job.directory
    log, parquet = directory / "log", directory / "parquet"
    entries = generate(log, LoadModel(ROUTERS, TABLES_DAYS)).entries
    source = {
        "directory": str(log),
        "maxEntriesPerBatch": str(BATCH_ENTRIES),
        "entriesPerPartition": str(ENTRIES_PER_FILE),
    }
    from_farm: list[Took] = []
    from_parquet_runs: list[Took] = []
    with running_session() as session:
        session.read.format("farm").options(**source).load().write.parquet(str(parquet))
        files = BATCH_ENTRIES // ENTRIES_PER_FILE

        def from_parquet() -> DataFrame:
            return session.readStream.schema(ENTRIES).option("maxFilesPerTrigger", files).parquet(str(parquet))

        def timed(entries: DataFrame | None) -> Took:
            output = directory / "tables"
            settings = RunSettings(output, source)
            prepare(settings.output)
            with measured() as took:
                await_end(
                    session, settings, lambda: start_query(session, settings, available_now=True, entries=entries)
                )
            shutil.rmtree(output)
            return took

        for number in range(job.runs + 1):
            pair = timed(None), timed(from_parquet())
            if number:
                from_farm.append(pair[0])
                from_parquet_runs.append(pair[1])
    group = "pipeline: the log to tables, compared with the same rows from Parquet"
    setting = f"{entries} entries, batches of {BATCH_ENTRIES}, {MASTER}, in turns, after one warm-up"
    by_clock = tuple(own.seconds / other.seconds for own, other in zip(from_farm, from_parquet_runs, strict=True))
    by_processor = tuple(
        own.processor_s / other.processor_s for own, other in zip(from_farm, from_parquet_runs, strict=True)
    )
    return [
        Figure(group, "log to tables", "rows/s", tuple(entries / took.seconds for took in from_farm), setting),
        Figure(
            group,
            "Parquet to tables",
            "rows/s",
            tuple(entries / took.seconds for took in from_parquet_runs),
            "the same tasks",
        ),
        Figure(group, "time of the first over the second", "x", by_clock, "goal at most 1.5"),
        Figure(
            group, "log to tables, processor time", "s", tuple(took.processor_s for took in from_farm), "JVM and Python"
        ),
        Figure(group, "processor time of the first over the second", "x", by_processor, "less moved by other load"),
    ]


async def backfill(job: Job) -> list[Figure]:
    """Measure a large backfill."""
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
                f"highest sum, {each.peak.java_bytes / GIB:.2f} of it the JVM's, the rest of {each.peak.others}"
                " processes of Python; goal below 3 GB",
            )
            for name, each in (("base tables", base), ("derived tables", derived))
        ),
    ]
