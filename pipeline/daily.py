"""Tables by window of log time, kept as one file a day, so that a report of today does not make last year anew.

    <output>/router_health/2026-11-22.parquet     the rows whose window begins on that day, UTC
    <output>/router_health/_made.json             through when the table is made, with which windows, and of which shape

Log time never falls along the log, so new entries change nothing in windows that ended before the newest entry that was
seen. What is made anew therefore begins with the day on which the window of that entry begins, and ends with the newest
day; all other files stay. A table that was never made, or was made with windows of another width, is made from the
oldest day of history on, several days at a time, so that memory does not grow with history.

Three things reach across midnight. A submission that comes again is counted once if its copies are on one day, or not
more than an hour apart (`REACH_MS`): the hour before the first day is read as well, and with it what a destination's
first report is compared with. Whether a reporting period is whole is known by the next one: so is the hour behind the
last day. And a router's uptime is compared with that of its report before, however long ago: each server's last uptime
before the first day is kept in the note.

A file is exchanged by one rename, and the note is written when all files of a step are in place. A crash in between
makes the same days again, of the same rows. To make the whole table anew each time would be simpler, but in the end the
pipeline would do nothing else.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from pipeline import transforms
from pipeline.schemas import DERIVED, HISTORY
from pipeline.session import SMALL_ROWS, fit_to_size, rows_of_files
from pipeline.tables.delta import StoredFile, stored_files
from pipeline.tables.files import TableDamagedError
from pipeline.transforms.windows import window_ms

SHAPE = 3
"""Raised when a formula changes: tables that were made by the old one are made anew."""
NOTE = "_made.json"
ASIDE = ".new"
DAY = "day"
REACH_MS = 3_600_000
ROWS_AT_A_TIME = 1_000_000
DAY_MS = 86_400_000
UPTIMES = StructType([StructField("server_id", LongType()), StructField("uptime_ms", LongType())])

Read = Callable[[str], DataFrame]
"""The rows of a history table that a step needs, by its name."""


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of a table, and the log time of its oldest and of its youngest row."""

    rows: int
    oldest_ms: int
    youngest_ms: int


@dataclass(frozen=True, slots=True)
class DailyTable:
    """A table by window: what it is made of and how. `make` gets the rows, the window, and earlier uptimes."""

    name: str
    sources: tuple[str, ...]
    make: Callable[[Read, str, DataFrame], DataFrame]
    compares_uptimes: bool = False


ROUTER_HEALTH = DailyTable(
    "router_health",
    ("reports", "clocks"),
    lambda read, window, uptimes: transforms.router_health(read("reports"), read("clocks"), window, uptimes),
    compares_uptimes=True,
)
OTHERS = (
    DailyTable(
        "destination_health",
        ("destination_reports", "clocks"),
        lambda read, window, _: transforms.destination_health(read("destination_reports"), read("clocks"), window),
    ),
    DailyTable(
        "data_quality",
        ("reports", "clocks", "quarantine"),
        lambda read, window, _: transforms.data_quality(read("reports"), read("clocks"), read("quarantine"), window),
    ),
)


@dataclass(frozen=True, slots=True)
class Made:
    """How far a table is made. `uptimes` are the servers' last ones before the day `uptimes_before`."""

    window: str
    through_ms: int
    uptimes_before: str = ""
    uptimes: dict[str, int | None] = field(default_factory=dict)
    shape: int = SHAPE


@dataclass(frozen=True, slots=True)
class Step:
    """Days that are made in one go: from `first` to before `end`, out of `rows` rows, about."""

    first: date
    end: date
    rows: int


def bring_up_to_date(session: SparkSession, output: Path, daily: DailyTable, window: str) -> None:
    """Makes the days of a table that history has changed since the last time."""
    table = output / daily.name
    table.mkdir(parents=True, exist_ok=True)
    spans = {name: span_of(stored_files(output / name)) for name in daily.sources}
    made = _made(table, window)
    if made is None:
        _remove(file for file in table.iterdir() if file.name != NOTE)
    for step in steps(spans, made, window):
        uptimes = _uptimes_before(step.first, table, made) if daily.compares_uptimes else {}
        _make(session, _Job(output, daily, window, step), uptimes)
        newest_ms = max(span.youngest_ms for span in spans.values() if span is not None)
        made = Made(window, min(newest_ms, midnight_ms(step.end)), step.first.isoformat(), uptimes)
        _write_note(table / NOTE, json.dumps(asdict(made)) + "\n")
    oldest = min((span.oldest_ms for span in spans.values() if span is not None), default=None)
    if oldest is not None:
        _remove(file for day, file in day_files(table) if day < day_of(oldest, window))


def steps(spans: dict[str, Span | None], made: Made | None, window: str) -> list[Step]:
    """Which days are to be made, in order, in portions of about `ROWS_AT_A_TIME` rows."""
    known = [span for span in spans.values() if span is not None]
    if not known:
        return []
    oldest_ms, newest_ms = min(span.oldest_ms for span in known), max(span.youngest_ms for span in known)
    first = day_of(oldest_ms if made is None else max(made.through_ms, oldest_ms), window)
    end = day_of(newest_ms, window) + timedelta(days=1)
    rows_a_day = sum(span.rows for span in known) // (1 + (newest_ms - oldest_ms) // DAY_MS)
    days = max(1, ROWS_AT_A_TIME // max(1, rows_a_day))
    starts = [first + timedelta(days=each) for each in range(0, max(0, (end - first).days), days)]
    return [Step(one, other, rows_a_day * (other - one).days) for one, other in pairwise([*starts, end])]


def span_of(files: Iterable[StoredFile]) -> Span | None:
    """How many rows these files have and what log time they cover; None if no row has one."""
    listed = list(files)
    seen_ms = {_ms(end) for file in listed for end in (file.oldest, file.youngest) if end is not None}
    return Span(sum(file.rows for file in listed), min(seen_ms), max(seen_ms)) if seen_ms else None


def files_within(files: Iterable[StoredFile], from_ms: int, before_ms: int) -> list[StoredFile]:
    """Those that may hold rows of this log time."""
    return [
        file
        for file in files
        if file.oldest is not None
        and file.youngest is not None
        and _ms(file.youngest) >= from_ms
        and _ms(file.oldest) < before_ms
    ]


@contextmanager
def damage_told(file: Path, remedy: str) -> Iterator[None]:
    """While the block reads this file: one that is no Parquet is a TableDamagedError with the `remedy`."""
    try:
        yield
    except pa.ArrowException as error:
        # In one line: it may pass through the JVM, whose report is read by lines.
        raise TableDamagedError(f"{file} is damaged ({' '.join(str(error).split())}): {remedy}") from error


def health_of(session: SparkSession, output: Path) -> DataFrame:
    """The routers' health, all of it, in the order of windows and servers."""
    files = (file for _, file in day_files(output / ROUTER_HEALTH.name))
    found = rows_of_files(session, DERIVED[ROUTER_HEALTH.name], files)
    return found.orderBy("window_start", "server_id")


def last_rows(output: Path, count: int) -> list[dict[str, Any]]:
    """The last rows of the routers' health, in order, without a query of Spark."""
    rows: list[dict[str, Any]] = []
    for _, path in reversed(list(day_files(output / ROUTER_HEALTH.name))):
        with damage_told(path, _made_anew(path.parent)), pq.ParquetFile(path) as file:
            for number in reversed(range(file.num_row_groups)):
                group = file.read_row_group(number)
                rows = group.slice(max(0, group.num_rows - (count - len(rows)))).to_pylist() + rows
                if len(rows) >= count:
                    return rows
    return rows


def day_files(table: Path) -> Iterator[tuple[date, Path]]:
    """The files of a table by day, in order."""
    for file in sorted(table.glob("*.parquet")):
        try:
            yield date.fromisoformat(file.stem), file
        except ValueError:
            continue  # not written here: no day bears that name


def day_of(moment_ms: int, window: str) -> date:
    """The day on which the window begins that the moment lies in."""
    return datetime.fromtimestamp((moment_ms - moment_ms % window_ms(window)) / 1000, UTC).date()


def midnight_ms(day: date) -> int:
    """When the day begins, in ms since the epoch."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


@dataclass(frozen=True, slots=True)
class _Job:
    """A step of a table."""

    output: Path
    daily: DailyTable
    window: str
    step: Step


def _make(session: SparkSession, job: _Job, uptimes: dict[str, int | None]) -> None:
    step, table = job.step, job.output / job.daily.name
    from_ms = midnight_ms(step.first) - REACH_MS
    before_ms = midnight_ms(step.end) + max(REACH_MS, window_ms(job.window))

    def read(name: str) -> DataFrame:
        files = files_within(stored_files(job.output / name), from_ms, before_ms)
        rows = rows_of_files(session, HISTORY[name], (job.output / name / file.path for file in files))
        log_time = f.col("log_time")
        return rows.where((log_time >= _moment(from_ms)) & (log_time < _moment(before_ms)))

    fit_to_size(session, step.rows)
    earlier = session.createDataFrame([(int(server), uptime) for server, uptime in uptimes.items()], UPTIMES)
    begins_on = f.to_date("window_start")
    rows = job.daily.make(read, job.window, earlier).where((begins_on >= step.first) & (begins_on < step.end))
    marked = rows.withColumn(DAY, begins_on)
    # A file a day, whichever partition writes it; of few rows it costs more to distribute them than to sort them.
    placed = marked.coalesce(1) if step.rows <= SMALL_ROWS else marked.repartition(DAY)
    aside = table / ASIDE
    placed.sortWithinPartitions(DAY, "window_start", "server_id").write.mode("overwrite").partitionBy(DAY).parquet(
        str(aside)
    )
    _put_in_place(aside, table, step)


def _put_in_place(aside: Path, table: Path, step: Step) -> None:
    written = {directory.name.partition("=")[2]: directory for directory in aside.glob(f"{DAY}=*")}
    _remove(file for day, file in day_files(table) if step.first <= day < step.end and day.isoformat() not in written)
    for day, directory in written.items():
        (file,) = directory.glob("*.parquet")
        file.replace(table / f"{day}.parquet")
    shutil.rmtree(aside)


def _uptimes_before(first: date, table: Path, made: Made | None) -> dict[str, int | None]:
    """Each server's last uptime before a day: as the note has it, and what the files of the days since then say."""
    known = made is not None and "" < made.uptimes_before <= first.isoformat()
    uptimes = {**made.uptimes} if made is not None and known else {}
    since = date.fromisoformat(made.uptimes_before) if made is not None and known else date.min
    for day, file in day_files(table):
        if since <= day < first:
            with damage_told(file, _made_anew(table)):
                rows = pq.read_table(file, columns=["server_id", "uptime_ms"])
            # In the order of windows, as it was written. A day of a large farm must not become Python objects.
            last = rows.filter(pc.field("uptime_ms").is_valid()).group_by("server_id", use_threads=False)
            told = last.aggregate([("uptime_ms", "last")])
            uptimes |= {
                str(server): uptime
                for server, uptime in zip(
                    told.column("server_id").to_pylist(), told.column("uptime_ms_last").to_pylist(), strict=True
                )
            }
    return uptimes


def _made(table: Path, window: str) -> Made | None:
    """The note, if it is about tables as they would be made now."""
    try:
        made = Made(**json.loads((table / NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # never made, or the note is lost: history has all that is needed
    return made if (made.window, made.shape) == (window, SHAPE) else None


def _made_anew(table: Path) -> str:
    return f"remove {table / NOTE}, and the next run makes this table anew out of history"


def _moment(moment_ms: int) -> Column:
    return f.timestamp_millis(f.lit(moment_ms))


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _write_note(path: Path, text: str) -> None:
    """The file has the old text or the new one, whatever happens."""
    aside = path.with_name(f".{path.name}.new")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
