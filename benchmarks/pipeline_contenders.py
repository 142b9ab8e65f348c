"""`backfill` with either engine, next to short scripts for DuckDB, Polars and plain Spark, in turns.

    the log of a day of 60 routers ─┬▶ backfill, engine local ─▶ all tables
                                    ├▶ backfill, engine spark ─▶ all tables
                                    └▶ Parquet of the entries (not measured) ─▶ each script ─▶ five Parquet files

Each contender is a new process, so its start counts. The scripts read entries as Parquet with log time, since none of
these programs reads the log itself. Each contender must find the same number of reports, or the benchmark fails.
"""

import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import trio

from benchmarks.child import ChildError
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.measured_command import Measured, run_measured
from pipeline.generate import generate
from pipeline.load_model import LoadModel
from pipeline.source.stored_log import StoredLog
from pipeline.tables.delta import Table
from pipeline.tables.specs import BASE_SPECS

ROUTERS, DAYS = 60, 1.0
FILES = 4
MASTER = "local[2]"
GOAL = "goal for backfill 20 s"
MIB = 1024**2
SCRIPTS = {"duckdb": "duckdb", "polars": "polars", "spark": "pyspark"}
"""The package that each script needs."""
OMISSIONS = (
    "the farm's own checks of an entry, refused and repeated entries, most columns, all other tables, commits that"
    " survive a kill, and secret pseudonyms"
)
_ENTRIES = pa.schema(
    {"index": pa.int64(), "term": pa.int64(), "kind": pa.string(), "log_time_ms": pa.int64(), "body": pa.binary()}
)


async def measure(job: Job) -> list[Figure]:
    """Run the contenders in turns; return their figures."""
    directory = job.directory
    log, exported = directory / "log", directory / "entries"
    entries = (await trio.to_thread.run_sync(generate, log, LoadModel(ROUTERS, DAYS))).entries
    await trio.to_thread.run_sync(export, log, exported)
    backfill = [sys.executable, "-m", "bridge.cli.main", "pipeline", "backfill", "--directory", str(log)]
    backfill += ["--from", "1", "--to", str(entries)]
    script = [sys.executable, "-m", "benchmarks.pipeline_scripts"]
    commands: dict[str, list[str]] = {
        "backfill, engine local": [*backfill, "--engine", "local", "--output"],
        "backfill, engine spark": [*backfill, "--engine", "spark", "--master", MASTER, "--output"],
        **{
            f"script for {name}": [*script, name, str(exported)]
            for name, package in SCRIPTS.items()
            if find_spec(package) is not None
        },
    }
    for name, package in SCRIPTS.items():
        if find_spec(package) is None:
            print(f"script for {name:<18} left out: the package {package} is not installed", flush=True)
    took: dict[str, list[Measured]] = {name: [] for name in commands}
    reports: dict[str, int] = {}
    for _ in range(job.runs):
        for name, command in commands.items():
            output = directory / "output"
            run = await run_measured(name, [*command, str(output)], directory / f"{name}.txt")
            print(f"  {name}: {run.seconds:.1f} s, {run.processor_s:.1f} s of processor time", flush=True)
            took[name].append(run)
            reports[name] = await trio.to_thread.run_sync(_reports, output)
            shutil.rmtree(output)
    if len({*reports.values()}) != 1:
        raise ChildError(f"the contenders found different numbers of reports: {reports}")
    return _figures(entries, next(iter(reports.values())), took)


def export(log: Path, directory: Path) -> None:
    """Write the entries of a log as Parquet files."""
    stored = StoredLog(log)
    first, last = stored.bounds()
    rows = stored.rows(stored.place(first), first, last + 1)
    directory.mkdir()
    for number in range(FILES):
        part = [*islice(rows, -(-last // FILES))]
        columns = [pa.array(column, each.type) for column, each in zip(zip(*part, strict=True), _ENTRIES, strict=True)]
        pq.write_table(pa.table(columns, schema=_ENTRIES), directory / f"{number}.parquet")


def _reports(output: Path) -> int:
    """Return the number of reports in the tables of a contender."""
    written = output / "reports.parquet"
    if written.exists():
        return int(pq.read_table(written, columns=["index"]).num_rows)
    return sum(file.rows for file in Table(output, BASE_SPECS["reports"]).files())


def _figures(entries: int, reports: int, took: Mapping[str, list[Measured]]) -> list[Figure]:
    group = f"pipeline: {entries} entries to tables, {reports} of them reports, start and end of each program included"
    print(f"The scripts omit: {OMISSIONS}.", flush=True)
    figures = []
    for name, runs in took.items():
        note = GOAL if name.startswith("backfill") else ""
        figures += [
            Figure(group, f"{name}: elapsed", "s", tuple(each.seconds for each in runs), note),
            Figure(group, f"{name}: processor time", "s", tuple(each.processor_s for each in runs)),
            Figure(group, f"{name}: memory", "MiB", tuple(each.peak.total_bytes / MIB for each in runs)),
        ]
    return figures
