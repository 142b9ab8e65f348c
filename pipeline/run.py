"""One run of the pipeline: the log to Parquet tables, exactly once, and the health table made from them.

    <output>/checkpoint/                     Spark's own: how far the log was read
    <output>/reports/batch_id=N/             history, one directory a micro-batch
    <output>/clocks/batch_id=N/              the same
    <output>/quarantine/batch_id=N/          the same
    <output>/router_health/                  made anew from the history after each run of batches

A micro-batch that is repeated after a crash carries the same number and the same range of the log; it overwrites its
own directory, so nothing is there twice. Appending to one directory would be simpler and duplicate rows after a crash.

The health table is written beside the old one and exchanged by two renames: a reader sees the old or the new, and a
crash between the two leaves the old one aside, which the next run repairs.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline import transforms
from pipeline.log_client import FarmLogError
from pipeline.source import SCHEMA

TABLES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "reports": transforms.reports,
    "clocks": transforms.clocks,
    "quarantine": transforms.quarantine,
}
HEALTH = "router_health"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Where from, where to, and how."""

    addresses: tuple[str, ...]
    output: Path
    window: str = transforms.DEFAULT_WINDOW
    trigger_seconds: int = 5


def run_once(session: SparkSession, settings: RunSettings) -> DataFrame:
    """Reads all that is committed and not yet read, and returns the health table.

    Raises FarmLogError when the log cannot be read.
    """
    _await(_query(session, settings, available_now=True))
    return refresh_health(session, settings)


def run_forever(session: SparkSession, settings: RunSettings, show: Callable[[DataFrame], None]) -> None:
    """Follows the log until the process is stopped; after each batch the health table is refreshed and shown.

    Raises FarmLogError when the log cannot be read any more.
    """
    _await(_query(session, settings, available_now=False, after_batch=lambda: show(refresh_health(session, settings))))


def refresh_health(session: SparkSession, settings: RunSettings) -> DataFrame:
    """Makes the health table from the history and exchanges it for the old one."""
    target = settings.output / HEALTH
    aside, old = target.with_name(HEALTH + ".new"), target.with_name(HEALTH + ".old")
    health = transforms.router_health(
        _history(session, settings, "reports"),
        _history(session, settings, "clocks"),
        settings.window,
    )
    health.coalesce(1).write.mode("overwrite").parquet(str(aside))
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return session.read.parquet(str(target)).orderBy("window_start", "server_id")


def _history(session: SparkSession, settings: RunSettings, table: str) -> DataFrame:
    # The schema is told, not inferred: a farm whose log holds no report yet has empty tables, not an error.
    schema = TABLES[table](session.createDataFrame([], SCHEMA)).schema
    path = settings.output / table
    path.mkdir(parents=True, exist_ok=True)
    return session.read.schema(schema).parquet(str(path))


def _query(
    session: SparkSession,
    settings: RunSettings,
    *,
    available_now: bool,
    after_batch: Callable[[], None] | None = None,
) -> StreamingQuery:
    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            for name, transform in TABLES.items():
                target = settings.output / name / f"batch_id={batch_id}"
                transform(batch).coalesce(1).write.mode("overwrite").parquet(str(target))
        finally:
            batch.unpersist()
        if after_batch is not None:
            after_batch()

    settings.output.mkdir(parents=True, exist_ok=True)
    _refuse_orphaned_tables(settings.output)
    stream = session.readStream.format("farm").option("node", ",".join(settings.addresses)).load()
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(settings.output / "checkpoint"))
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_seconds} seconds").start()


def _refuse_orphaned_tables(output: Path) -> None:
    """Without the checkpoint batch numbers would begin again, and new batches would overwrite some of the old ones."""
    if (output / "checkpoint").exists():
        return
    tables = [name for name in TABLES if (output / name).exists() and any((output / name).iterdir())]
    if tables:
        raise FarmLogError(
            f"{output} holds tables ({', '.join(tables)}) and no checkpoint that belongs to them:"
            " restore it, or choose another output directory; the log can be read again from its start",
        )


def _await(query: StreamingQuery) -> None:
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise FarmLogError(_reason(str(error))) from error
    finally:
        query.stop()


def _reason(text: str) -> str:
    """The farm's own words out of Spark's report of a failed Python call."""
    marker = "FarmLogError: "
    lines = [line.partition(marker)[2] for line in text.splitlines() if marker in line]
    return lines[-1] if lines else text.strip().splitlines()[0]
