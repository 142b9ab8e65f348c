"""The weighing's figures from the recent entries of one farm (`pipeline/tables/recent.py`)."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from pipeline.feedback.weighing import ClockRow, FactorsRow, ReportRow, Row
from pipeline.source.farm import read_entries
from pipeline.tables.recent import recent_rows

_NAMED = re.compile("(?s)^.{1,64}-[0-9]{1,19}-(?=[0-9]*[1-9])[0-9]{1,19}$")
"""A request that names a submission: CLIENT-BORN-SEQUENCE, the sequence from 1 on (`pipeline/gold/submission.sql`)."""

ReadRows = Callable[[Mapping[str, str]], list[Row]]
"""Reads a range of one farm's log, selected by options of the source `farm`."""


def rows_in_log(options: Mapping[str, str]) -> list[Row]:
    """Return the weighing's rows of a range of the log. Raise FarmLogError."""
    found = [recent_rows(pa.Table.from_batches([each])) for each in read_entries(options)]
    return recent(pa.concat_tables(found)) if found else []


def recent(entries: pa.Table) -> list[Row]:
    """Return the weighing's rows from one farm's entries, or from results of `recent_rows`."""
    rows = recent_rows(entries)
    at_ms = rows.column("log_time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    pairs = zip(
        rows.drop_columns(["farm", "farm_name", "log_time", "body_bytes"]).to_pylist(), at_ms.to_pylist(), strict=True
    )
    return [row for found, log_time_ms in pairs for row in _rows(found, log_time_ms)]


def named(request: str | None) -> str | None:
    """Return the request if it names a submission, else None."""
    return request if _NAMED.match(request or "") else None


def _rows(found: Mapping[str, Any], log_time_ms: int) -> Iterator[Row]:
    index = found["index"]
    match found["entry"]:
        case "clock":
            yield ClockRow(index, log_time_ms, found["clock"]["period_ms"])
        case "factors":
            yield FactorsRow(index, log_time_ms, found["factors"]["through_index"], dict(found["factors"]["factors"]))
        case _:
            leaves = tuple((leaf["address"], leaf["healthy"]) for leaf in found["destinations"] or ())
            lag_ms = found["report"]["job_lag_ms"]
            yield ReportRow(index, log_time_ms, found["server_id"], lag_ms, leaves, named(found["request"]))
