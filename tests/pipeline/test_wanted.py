"""Selection of entries by options of the source, and by filters that Spark pushes into a batch read."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pipeline.schemas import ENTRIES
from pipeline.source.farm import FarmDataSource, FilteredBatchReader
from pipeline.source.log_client import FarmLogError
from pipeline.source.selection import Bounds, RowSelection
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, serve_log, three_servers

HALF = datetime.fromtimestamp((EPOCH_MS + 30_000) / 1000, UTC)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """Serve one minute of a farm; yield the log and its address."""
    made = three_servers(minutes=1)
    with serve_log(made, tmp_path / "control.sock") as address:
        yield made, address


def rows_of(reader: DataSourceReader) -> list[dict[str, Any]]:
    batches: list[Any] = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


def all_rows(address: str, **options: str) -> list[dict[str, Any]]:
    return rows_of(FarmDataSource({"node": address, **options}).reader(ENTRIES))


FILTERS: list[tuple[Filter, str]] = [
    (EqualTo(("index",), 7), "index"),
    (GreaterThan(("index",), 20), "index"),
    (GreaterThanOrEqual(("index",), 20), "index"),
    (LessThan(("index",), 5), "index"),
    (LessThanOrEqual(("index",), 5), "index"),
    (EqualTo(("kind",), "configuration"), "kind"),
    (In(("entry",), ("clock", "configuration")), "entry"),
    (EqualTo(("server_id",), 2), "server_id"),
    (LessThan(("log_time",), HALF), "log_time"),
    (GreaterThanOrEqual(("log_time",), HALF), "log_time"),
    (EqualTo(("log_time",), HALF), "log_time"),
    (EqualTo(("farm",), "another"), "farm"),
    (IsNotNull(("index",)), "index"),
    (IsNotNull(("log_time",)), "log_time"),
]
_MEANING: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, condition: value == condition.value,
    GreaterThan: lambda value, condition: value > condition.value,
    GreaterThanOrEqual: lambda value, condition: value >= condition.value,
    LessThan: lambda value, condition: value < condition.value,
    LessThanOrEqual: lambda value, condition: value <= condition.value,
    In: lambda value, condition: value in condition.value,
    IsNotNull: lambda value, _: value is not None,
}


@pytest.mark.parametrize(
    ("condition", "column"), FILTERS, ids=[f"{type(condition).__name__} {name}" for condition, name in FILTERS]
)
def test_pushed_filter_returns_rows_that_spark_would_keep(
    log: tuple[MadeUpLog, str], condition: Filter, column: str
) -> None:
    reader = FarmDataSource({"node": log[1], "pushFilters": "true"}).reader(ENTRIES)
    assert isinstance(reader, FilteredBatchReader)
    assert list(reader.pushFilters([condition])) == []
    meaning = _MEANING[type(condition)]
    assert rows_of(reader) == [
        row for row in all_rows(log[1]) if row[column] is not None and meaning(row[column], condition)
    ]


def test_unsupported_filter_is_left_to_spark() -> None:
    others: list[Filter] = [
        Not(EqualTo(("index",), 7)),
        StringStartsWith(("entry",), "re"),
        EqualTo(("report", "uptime_ms"), 5),
        GreaterThan(("term",), 1),
        IsNotNull(("reason",)),
    ]
    reader = FarmDataSource({"node": "absent.sock", "pushFilters": "true"}).reader(ENTRIES)
    assert isinstance(reader, FilteredBatchReader)
    assert list(reader.pushFilters(others)) == others


def test_stream_options_select_rows_and_columns(log: tuple[MadeUpLog, str]) -> None:
    options = {"node": log[1], "entries": "report", "servers": "1,3", "columns": "index,server_id,report"}
    source = FarmDataSource({**options, "until": HALF.isoformat()})
    assert [field.name for field in source.schema()] == ["index", "server_id", "report"]
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert [*end["farms"].values()] == [log[0].commit_index + 1], "the offset includes skipped entries"
    (task,) = stream.partitions(start, end)
    batches: list[Any] = [*stream.read(task)]
    (batch,) = batches
    assert batch.schema.names == ["index", "server_id", "report"]
    expected = [
        row for row in all_rows(log[1]) if row["entry"] == "report" and row["server_id"] != 2 and row["log_time"] < HALF
    ]
    assert batch.column("index").to_pylist() == [row["index"] for row in expected]
    assert pc.struct_field(batch.column("report"), "uptime_ms").to_pylist() == [
        row["report"]["uptime_ms"] for row in expected
    ]


def test_columns_without_decoding_equal_columns_of_full_read(log: tuple[MadeUpLog, str]) -> None:
    names = ["log_time", "index", "kind", "body_bytes"]
    assert all_rows(log[1], columns=",".join(names)) == [
        {name: row[name] for name in names} for row in all_rows(log[1])
    ]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("columns", "index,weather", "must name columns"),
        ("columns", "index,index", "each once"),
        ("servers", "one", "must be numbers"),
        ("since", "yesterday", "must be a moment"),
        ("pushFilters", "yes", "must be true or false"),
    ],
)
def test_invalid_option_error_names_valid_values(option: str, value: str, words: str) -> None:
    source = FarmDataSource({"node": "absent.sock", option: value})
    with pytest.raises(FarmLogError, match=words):
        source.reader(source.schema())


@given(some.lists(some.tuples(some.none() | some.integers(0, 9), some.none() | some.integers(0, 9)), max_size=4))
def test_bounds_intersection_contains_common_values(limits: list[tuple[int | None, int | None]]) -> None:
    bounds = Bounds()
    for least, end in limits:
        bounds = bounds.within(least, end)
    common = [number for number in range(10) if all(number in Bounds(*each) for each in limits)]
    assert [number for number in range(10) if number in bounds] == common
    first, end = bounds.cut(0, 10)
    assert [*range(first, end)] == common


def test_selections_of_one_column_intersect() -> None:
    once = RowSelection().of("entries", ["report", "clock"])
    assert once.of("entries", ["clock", "factors"]).entries == frozenset({"clock"})
