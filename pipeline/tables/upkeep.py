"""The upkeep of tables: small files are merged, old ones dropped, and removed ones deleted.

    every `LOOK_BATCHES` batches   days with many small files: merged in two steps of size, so rows are rewritten rarely
    at the same time               files with all rows `keep_ms` before both the youngest row and the present: dropped
    every hour                     files removed longer ago than the table's `undo` time: deleted

Dropped or merged files stay readable for readers that have begun, until they are deleted.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

from pipeline import ignore
from pipeline.tables.delta import StoredFile, Table
from pipeline.tables.files import DAY

LOOK_BATCHES = 32
SWEEP_SECONDS = 3_600
MIB = 1024 * 1024
STEPS = ((32, 4 * MIB), (16, 128 * MIB))
"""Merging steps (number, size). If a day has at least this number of files below three quarters of the size, they are
merged up to the size.
"""
_NEARLY = 0.75


class Upkeep:
    """The periodic upkeep."""

    def __init__(self, keep_ms: int | None) -> None:
        self._keep_ms = keep_ms
        self._swept_at: float | None = None
        self._batches = 0

    def after_batch(self, tables: Sequence[Table], before_drop: Callable[[datetime], None] = ignore) -> None:
        """Do due work. `before_drop` is called before a drop, with the latest log time of the dropped rows."""
        self._batches += 1
        if self._batches % LOOK_BATCHES == 0:
            # The other tables have one current row for each key, so none of their rows is old.
            by_day = [table for table in tables if DAY in table.spec.schema.names]
            ends = [each.youngest for table in by_day for each in _old_files(table, self._keep_ms)]
            if any(ends):
                before_drop(max(each for each in ends if each is not None))
            for table in by_day:
                tidy(table, self._keep_ms)
        if self._swept_at is None or time.monotonic() - self._swept_at >= SWEEP_SECONDS:
            for table in tables:
                # The first sweep also deletes files of killed runs.
                table.sweep(full=self._swept_at is None)
            self._swept_at = time.monotonic()


def _old_files(table: Table, keep_ms: int | None) -> list[StoredFile]:
    return too_old(table.files(), keep_ms, time.time_ns() // 1_000_000)


def tidy(table: Table, keep_ms: int | None) -> None:
    """Drop old files and merge small ones of one table."""
    old = _old_files(table, keep_ms)
    if old:
        table.exchange([], removed=old)
    by_day: dict[date | None, list[StoredFile]] = defaultdict(list)
    for file in table.files():
        if file not in old:
            by_day[file.day].append(file)
    for day, of_day in by_day.items():
        for least, size_bytes in STEPS:
            if sum(file.size_bytes < _NEARLY * size_bytes for file in of_day) >= least:
                table.merge_small(day, size_bytes)
                break


def too_old(files: Iterable[StoredFile], keep_ms: int | None, now_ms: int) -> list[StoredFile]:
    """Return the files whose rows are all more than `keep_ms` older than the youngest row of all files.

    A row in the future of the machine's clock counts as present. Otherwise one farm with a wrong log time would drop
    the rows of all others, and its own rows after a correction.

    Rows without log time are as old as the batch that wrote them: their files are dropped with the files of that batch.
    In a table without a batch column, their files are dropped `keep_ms` after they were written (`now_ms`: the
    machine's clock).
    """
    timed: list[StoredFile] = []
    untimed: list[StoredFile] = []
    for file in files:
        (untimed if file.youngest is None else timed).append(file)
    if keep_ms is None or not timed:
        return []
    youngest = max(file.youngest for file in timed if file.youngest is not None)
    limit = min(youngest, datetime.fromtimestamp(now_ms / 1000, UTC)) - timedelta(milliseconds=keep_ms)
    old = [file for file in timed if file.youngest is not None and file.youngest < limit]
    kept = [file.batch for file in timed if file not in old and file.batch is not None]
    first_kept = min(kept, default=0)

    def is_old(file: StoredFile) -> bool:
        if file.batch is not None:
            return file.batch < first_kept
        return file.written_ms is not None and file.written_ms < now_ms - keep_ms

    return [*old, *filter(is_old, untimed)]
