"""The recent past of each farm, from the entries of a batch: few columns, in order of farm and index.

A backlog may hold millions of entries, and the feedback needs only the last minutes. Entries older than `RECENT_MS`
before the newest entry of their farm are omitted. Of the others, at most `ROWS_MAX` leave a task, fewer if entries are
large, so that no author's entries fill the driver's memory. Farms share that room equally. The farm's own rules
classify entries (`pipeline.decode.entries`), so an entry that the farm ignores is ignored here as well.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

RECENT_MS = 20 * 60_000
ROWS_MAX = 50_000
COLLECTED_MAX_BYTES = 128 * 1024 * 1024
_KINDS = pa.array(["report", "clock", "factors"])
_COLUMNS = (
    "farm",
    "farm_name",
    "index",
    "log_time",
    "entry",
    "server_id",
    "request",
    "body_bytes",
    "report",
    "destinations",
    "clock",
    "factors",
)


def recent_rows(entries: pa.Table) -> pa.Table:
    """Return the relevant rows of some rows of the source `farm`, in few columns."""
    timed = pc.and_(pc.is_in(entries.column("entry"), _KINDS), pc.is_valid(entries.column("log_time")))
    return newest(entries.filter(timed).select(_COLUMNS))


def newest(rows: pa.Table) -> pa.Table:
    """Return the newest rows of each farm, in order of farm and index: within `RECENT_MS`, up to a limit.

    After a correction has set log time back, earlier entries with later times are omitted.
    """
    rows = rows.sort_by([("farm", "ascending"), ("index", "ascending")])
    at_ms = rows.column("log_time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    timed = pa.table({"farm": rows.column("farm"), "at_ms": at_ms})
    last = timed.group_by("farm", use_threads=False).aggregate([("at_ms", "last")])
    of_farm = pc.index_in(rows.column("farm"), value_set=last.column("farm").combine_chunks())
    last_ms = last.column("at_ms_last").take(of_farm)
    is_young = pc.and_(pc.greater_equal(at_ms, pc.subtract(last_ms, RECENT_MS)), pc.less_equal(at_ms, last_ms))
    young = rows.filter(is_young)
    largest_bytes = pc.max(young.column("body_bytes")).as_py() or 1
    room = min(ROWS_MAX, COLLECTED_MAX_BYTES // max(1, largest_bytes)) // max(1, last.num_rows)
    if young.num_rows <= room:
        return young
    return pa.concat_tables([each.slice(max(0, each.num_rows - room)) for each in by_farm(young)])


def by_farm(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of each farm, from rows in order of farm."""
    first = 0
    for run in pc.run_end_encode(rows.column("farm").combine_chunks()).run_ends.to_pylist():
        yield rows.slice(first, run - first)
        first = run
