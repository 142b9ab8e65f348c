"""Tables that Spark makes as a whole out of the nodes' traces; SQL makes the others (`pipeline/gold/tables.py`).

Such a table is written beside the old one and exchanged by two renames: a reader sees the old or the new, and a crash
between the two leaves the old one aside, which the next run repairs.
"""

import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pipeline import transforms
from pipeline.schemas import HISTORY
from pipeline.spark.session import fit_to_size, rows_of_files
from pipeline.tables.delta import stored_files


def derive(session: SparkSession, output: Path) -> None:
    """Makes anew what is derived of the nodes' traces."""
    fit_to_size(session, sum(file.rows for name in ("reports", "events") for file in stored_files(output / name)))
    events, reports = (history(session, output, name) for name in ("events", "reports"))
    made = {
        "detections": transforms.detections(events, reports),
        "convergence": transforms.convergence(events),
    }
    for name, rows in made.items():
        exchange(rows, output / name)


def exchange(rows: DataFrame, target: Path, *, mode: int = 0o755) -> None:
    """The directory `target` holds these rows instead of what it held, and never has more permissions than `mode`."""
    aside, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode, parents=True)
    # Spark chooses the modes of its directories, so it makes them inside one of ours.
    written = aside / "rows"
    rows.coalesce(1).write.mode("overwrite").parquet(str(written))
    written.chmod(mode & written.stat().st_mode)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    written.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)


def history(session: SparkSession, output: Path, table: str) -> DataFrame:
    """One base table, empty if nothing was written yet."""
    # The schema is given, not inferred: an older file lacks newer columns, and a new farm's tables have no file.
    return rows_of_files(session, HISTORY[table], (output / table / file.path for file in stored_files(output / table)))
