"""Where the rows go: history in Parquet, one directory a micro-batch, and the health table made from it.

    <output>/reports/batch_id=N/             history, one directory a micro-batch
    <output>/clocks/batch_id=N/              the same
    <output>/quarantine/batch_id=N/          the same
    <output>/router_health/                  made anew from the history after each run of batches

A micro-batch that is repeated after a crash carries the same number and the same range of the log; it overwrites its
own directory, so nothing is there twice. Appending to one directory would be simpler and duplicate rows after a crash.

The health table is written beside the old one and exchanged by two renames: a reader sees the old or the new, and a
crash between the two leaves the old one aside, which the next run repairs.

The run loop (`pipeline/run.py`) calls three functions: `refuse_orphaned` before it starts, `write_batch` for each
micro-batch, which must leave the same files behind however often it is repeated, and `refresh` when a batch is written.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pipeline import transforms
from pipeline.envelope import SCHEMA
from pipeline.log_client import FarmLogError

TABLES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "reports": transforms.reports,
    "clocks": transforms.clocks,
    "quarantine": transforms.quarantine,
}
HEALTH = "router_health"


def write_batch(entries: DataFrame, batch_id: int, output: Path) -> None:
    """Writes one micro-batch into every history table; repeated, it overwrites what it wrote."""
    entries.persist()
    try:
        for name, transform in TABLES.items():
            target = output / name / f"batch_id={batch_id}"
            transform(entries).coalesce(1).write.mode("overwrite").parquet(str(target))
    finally:
        entries.unpersist()


def refresh(session: SparkSession, output: Path, window: str) -> DataFrame:
    """Makes the health table from the history, exchanges it for the old one and returns it."""
    target = output / HEALTH
    aside, old = target.with_name(HEALTH + ".new"), target.with_name(HEALTH + ".old")
    health = transforms.router_health(
        history(session, output, "reports"),
        history(session, output, "clocks"),
        window,
    )
    health.coalesce(1).write.mode("overwrite").parquet(str(aside))
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return session.read.parquet(str(target)).orderBy("window_start", "server_id")


def history(session: SparkSession, output: Path, table: str) -> DataFrame:
    """One history table, empty if nothing was written yet."""
    # The schema is told, not inferred: a farm whose log holds no report yet has empty tables, not an error.
    schema = TABLES[table](session.createDataFrame([], SCHEMA)).schema
    path = output / table
    path.mkdir(parents=True, exist_ok=True)
    return session.read.schema(schema).parquet(str(path))


def refuse_orphaned(output: Path) -> None:
    """Without the checkpoint batch numbers would begin again, and new batches would overwrite some of the old ones."""
    if (output / "checkpoint").exists():
        return
    tables = [name for name in TABLES if (output / name).exists() and any((output / name).iterdir())]
    if tables:
        raise FarmLogError(
            f"{output} holds tables ({', '.join(tables)}) and no checkpoint that belongs to them:"
            " restore it, or choose another output directory; the log can be read again from its start",
        )
