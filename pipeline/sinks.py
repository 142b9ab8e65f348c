"""Where the rows go: history in Parquet, the current state in SQLite, and the tables made out of history.

    <output>/TABLE/batch_id=N/        history, one directory a micro-batch and table, merged as they become many
    <output>/current.sqlite           the newest known state (`pipeline/current_state.py`)
    <output>/names.sqlite             the destinations behind the pseudonyms; mode 0600
    <output>/TABLE/2026-11-22.parquet derived tables by window: days that changed are made anew (`pipeline/daily.py`)
    <output>/TABLE/                   other derived tables, made anew out of history
    <output>/pseudonym.salt           what makes destinations' pseudonyms; mode 0600

A micro-batch that is repeated after a crash carries the same number and the same range of the log; it overwrites its
own directories, so nothing is there twice. Appending to one directory would be simpler and duplicate rows after a
crash. A table that has no row in a batch gets no directory.

A derived table that is made as a whole is written beside the old one and exchanged by two renames: a reader sees the
old or the new, and a crash between the two leaves the old one aside, which the next run repairs.

The run loop (`pipeline/run.py`) calls three functions: `refuse_orphaned` before it starts, `write_batch` for each
micro-batch, which must leave the same files behind however often it is repeated, and `refresh` when a batch is written,
which brings the routers' health up to it. `derive` does so with the other derived tables, which need not be new every
second.
"""

import os
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline import current_state, daily, transforms
from pipeline.decode.entries import OPERATOR_KINDS, SNAPSHOT
from pipeline.schemas import HISTORY
from pipeline.session import fit_to_size, rows_of_files
from pipeline.source.log_client import FarmLogError
from pipeline.table_files import BATCH, live_files, merge, reached, reading, rows_in
from pipeline.weighing import PERIOD_MAX_MS, PERIOD_MIN_MS

SALT_FILE = "pseudonym.salt"
SALT_BYTES = 32
SALT_LEAST = 16
"""The fewest characters of a salt that an operator chose: without one a list of addresses reveals the pseudonyms."""
EVENTS = "events"
WRITERS = 4
SOURCES: dict[str, frozenset[str]] = {
    "reports": frozenset({"report"}),
    "destination_reports": frozenset({"report"}),
    "clocks": frozenset({"clock"}),
    "publications": frozenset({"publication"}),
    "configurations": frozenset({"configuration"}),
    "factors": frozenset({"factors"}),
    "operator_actions": frozenset(OPERATOR_KINDS),
    "quarantine": frozenset({"refused"}),
}
"""Which kinds of entry give rows of which table."""
CHECKPOINTS: dict[str, tuple[str, ...]] = {
    "checkpoint": tuple(SOURCES),
    "checkpoint-events": (EVENTS,),
    "checkpoint-watch": ("transitions",),
}
"""Which tables' batches are numbered by which checkpoint."""


Judge = Callable[[DataFrame], None]
"""What looks at the entries of a batch beside the tables: feedback to the farm."""


def judge_nothing(_: DataFrame) -> None:
    """The default: the entries become tables and nothing else."""


def tables(salt: str) -> dict[str, Callable[[DataFrame], DataFrame]]:
    """How the rows of each history table are made out of entries."""
    return {
        "reports": transforms.reports,
        "destination_reports": lambda entries: transforms.destination_reports(entries, salt),
        "clocks": transforms.clocks,
        "publications": lambda entries: transforms.publications(entries, salt),
        "configurations": transforms.configurations,
        "factors": lambda entries: transforms.factors(entries, salt),
        "operator_actions": lambda entries: transforms.operator_actions(entries, salt),
        "quarantine": transforms.quarantine,
    }


def write_batch(
    entries: DataFrame, batch_id: int, output: Path, *, keep_ms: int | None = None, judge: Judge = judge_nothing
) -> None:
    """Writes one micro-batch into history and the current state; repeated, it overwrites what it wrote.

    `judge` gets the entries when they are written, with all columns that they came with.
    """
    salt = salt_of(output)
    made_by = tables(salt)
    # Read and decoded once, however many tables use it.
    known = entries.persist()
    try:
        counted = {row["entry"]: row["count"] for row in known.groupBy("entry").count().collect()}
        fit_to_size(entries.sparkSession, sum(counted.values()))
        wanted = [name for name, sources in SOURCES.items() if sources & counted.keys()]

        def write(name: str) -> None:
            write_history(made_by[name](known), output / name, batch_id)

        # What a user may be waiting for comes first; a batch that is repeated changes nothing in it.
        _update_current(known, salt, set(counted), batch_id, output)
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(write, wanted))
        judge(known)
    finally:
        known.unpersist()
    for name in wanted:
        merge(output / name, HISTORY[name], batch_id, keep_ms=keep_ms)


def write_history(rows: DataFrame, table: Path, batch_id: int) -> None:
    """One batch's directory of one table, unless its rows were merged already."""
    if reached(table, batch_id):
        return
    directory = table / f"{BATCH}{batch_id}"
    # A directory that a crashed run left must not vanish while tables are made from it.
    with reading() if directory.exists() else nullcontext():
        rows.coalesce(1).write.mode("overwrite").parquet(str(directory))


def write_events(rows: DataFrame, batch_id: int, output: Path, *, keep_ms: int | None = None) -> None:
    """One batch of the nodes' traces into `events`."""
    write_history(rows, output / EVENTS, batch_id)
    merge(output / EVENTS, HISTORY[EVENTS], batch_id, keep_ms=keep_ms)


def refresh(session: SparkSession, output: Path, window: str, through: int | None = None) -> None:
    """Brings the routers' health up to what history says; `through`: without what later batches wrote."""
    daily.bring_up_to_date(session, output, daily.ROUTER_HEALTH, window, through)


def derive(session: SparkSession, output: Path, window: str, through: int | None = None) -> None:
    """Brings the other derived tables up to what history says."""
    for each in daily.OTHERS:
        daily.bring_up_to_date(session, output, each, window, through)
    fit_to_size(session, _rows_of(output, "reports", "clocks", "events"))
    # Batches of events are numbered by themselves.
    events = history(session, output, "events")
    clocks, reports = (history(session, output, name, through) for name in ("clocks", "reports"))
    made = {
        "leaderships": transforms.leaderships(clocks),
        "publishers": transforms.publishers(history(session, output, "publications", through)),
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


def history(session: SparkSession, output: Path, table: str, through: int | None = None) -> DataFrame:
    """One history table, empty if nothing was written yet; `through`: without what later batches wrote."""
    # The schema is given, not inferred: an older file lacks newer columns, and a new farm's tables have no file.
    return rows_of_files(session, HISTORY[table], live_files(output / table, through))


def _rows_of(output: Path, *names: str) -> int:
    """How many rows these tables have, by the ends of their files."""
    return sum(rows_in(file) for name in names for file in live_files(output / name))


def salt_of(output: Path) -> str:
    """The secret that makes pseudonyms; made once for an output directory. Raises FarmLogError when it is damaged."""
    path = output / SALT_FILE
    if not path.exists():
        output.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{SALT_FILE}.new")
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(SALT_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    salt = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(salt) < SALT_LEAST or not salt.isascii():
        raise FarmLogError(
            f"{path} is damaged: it should hold {2 * SALT_BYTES} hexadecimal digits. Restore it, since the pseudonyms"
            " in the tables are made with it; or read the log again into another output directory"
        )
    return salt


def refuse_orphaned(output: Path) -> None:
    """Without the checkpoint batch numbers would begin again, and new batches would overwrite some of the old ones.

    If old ones of that number were merged, new batches would be passed over.
    """
    for checkpoint, tables_of in CHECKPOINTS.items():
        found = [name for name in tables_of if (output / name).exists() and any((output / name).iterdir())]
        if found and not (output / checkpoint).exists():
            raise FarmLogError(
                f"{output} holds tables ({', '.join(found)}) and no {checkpoint} that belongs to them: restore it, or"
                " choose another output directory; the log can be read again from its start"
            )


def _update_current(known: DataFrame, salt: str, kinds: set[str], batch_id: int, output: Path) -> None:
    keys, last_rows = current_state.KEYS, current_state.last_rows
    rows = {}
    if {"report", SNAPSHOT} & kinds:
        # A report that only a snapshot still holds is state; when it was made is not known, so history lacks it.
        rows["routers"] = last_rows(transforms.last_reports(known), keys["routers"])
        leaves = transforms.addressed_destination_reports(known, salt)
        rows["destinations"] = last_rows(leaves, keys["destinations"])
    if "publication" in kinds:
        rows["publishers"] = last_rows(transforms.addressed_publications(known, salt), keys["publishers"])
    at_clock = f.when(f.col("entry") == "clock", f.col("index"))
    # The farm accepts no other period from a clock entry either; an entry without a period does not change it.
    at_period = f.when(f.col("clock.period_ms").between(PERIOD_MIN_MS, PERIOD_MAX_MS), at_clock)
    last = known.agg(
        f.max("index").alias("index"),
        f.max("term").alias("term"),
        f.max("log_time").alias("log_time"),
        f.max_by("server_id", at_clock).alias("leader_id"),
        f.max_by("clock.period_ms", at_period).alias("period_ms"),
    )
    rows["farm"] = [
        {"farm": 1, "batch_id": batch_id, **row.asDict()} for row in last.collect() if row["index"] is not None
    ]
    current_state.update(output, rows)
    named = [*rows.get("destinations", ()), *rows.get("publishers", ())]
    current_state.remember_names(output, {row.get("destination") or row["master"]: row["address"] for row in named})
