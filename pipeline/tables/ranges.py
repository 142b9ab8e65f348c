"""The table `ranges`: the entries of each batch, and the number of its rows in each base table.

    batch 7   farm F   2026-11-28   log       read      entries 2001 to 3000   1,000 rows   stored at 12:00:03
    batch 7   farm F   2026-11-28   reports   read      entries 2002 to 2999     310 rows

Base tables lack a row for some entries, and have several rows for others. So only these counts show lost rows of a
table, and entries that were read twice or not at all. `garlicfarm pipeline query completeness` compares them with the
tables.

The counts are made in Spark's tasks, from the same rows (`pipeline/tables/tasks.py`). Rows of another `kind` limit what
can be compared: an earlier version wrote rows without counting them, and `--keep-days` drops files, not entire days.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.decode.entries import SNAPSHOT
from pipeline.tables.files import BATCH, DAY
from pipeline.tables.specs import RANGES_SPEC

LOG_NAME = "log"
"""The name of the rows that count entries; the other rows have the name of a base table."""
_KEYS = ("farm", DAY, "name")


class RangeKind(StrEnum):
    """The meaning of a row."""

    READ = "read"
    """A batch read these entries, and wrote this number of rows."""
    UNCOUNTED = "uncounted"
    """An earlier version read these entries, and did not count their rows."""
    GONE = "gone"
    """The tables lost these entries, and the farm did not have them any more."""
    DROPPED = "dropped"
    """Some rows up to this log time were dropped by `--keep-days`."""


def range_rows(entries: pa.Table, made: Mapping[str, pa.Table]) -> pa.Table:
    """Return the counts of some entries, and of their rows in base tables (`made`)."""
    counted = {LOG_NAME: entries.filter(pc.not_equal(entries.column("entry"), SNAPSHOT)), **made}
    return pa.concat_tables([counts_of(name, rows) for name, rows in counted.items()])


def merged(rows: pa.Table) -> pa.Table:
    """Return one row for each farm, day and name."""
    groups = rows.group_by(list(_KEYS), use_threads=False)
    found = groups.aggregate([("first_index", "min"), ("last_index", "max"), ("row_count", "sum"), ("log_time", "max")])
    return found.rename_columns([*_KEYS, "first_index", "last_index", "row_count", "log_time"])


def batch_rows(rows: pa.Table, batch: int, stored_at: datetime | None = None) -> pa.Table:
    """Return the rows of the table for a batch, from the merged counts of its tasks.

    `stored_at`: the time of writing by the clock of this machine; None for a repair.
    """
    given = {
        "kind": pa.repeat(pa.scalar(RangeKind.READ.value), rows.num_rows),
        BATCH: pa.repeat(pa.scalar(batch, pa.int64()), rows.num_rows),
        "stored_at": pa.repeat(pa.scalar(stored_at, RANGES_SPEC.schema.field("stored_at").type), rows.num_rows),
    }
    return pa.table(
        {each.name: given[each.name] if each.name in given else rows.column(each.name) for each in RANGES_SPEC.schema}
    )


def limit_rows(
    kind: RangeKind, farms: Sequence[Mapping[str, Any]], batch: int, through: date | None = None
) -> pa.Table:
    """Return a row for each farm with the last day whose counts may differ from the tables.

    `farms`: rows of `current_farm`. `through`: that day; by default the day of the farm's log time.
    """
    found = [
        {
            "farm": each["farm"],
            "name": LOG_NAME,
            "kind": kind.value,
            "first_index": each["first_index"],
            "last_index": each["index"],
            "log_time": each["log_time"],
            BATCH: batch,
            DAY: through or (None if each["log_time"] is None else each["log_time"].date()),
        }
        for each in farms
    ]
    return pa.Table.from_pylist(found, schema=RANGES_SPEC.schema)


def counts_of(name: str, rows: pa.Table) -> pa.Table:
    """Return the counts of the rows of a table, for each farm and day."""
    dated = pa.table(
        {
            "farm": rows.column("farm"),
            DAY: rows.column("log_time").cast(pa.date32()),
            "name": pa.repeat(pa.scalar(name), rows.num_rows),
            "first_index": rows.column("index"),
            "last_index": rows.column("index"),
            "row_count": pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows),
            "log_time": rows.column("log_time"),
        }
    )
    return merged(dated)
