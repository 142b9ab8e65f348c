"""What is wanted of the entries: by options of the source, and by the filters that Spark hands to a batch read."""

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
from pipeline.source.wanted import Bounds, Wanted
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, served, three_servers

HALF = datetime.fromtimestamp((EPOCH_MS + 30_000) / 1000, UTC)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """A minute of a farm, served."""
    made = three_servers(minutes=1)
    with served(made, tmp_path / "control.sock") as address:
        yield made, address


def rows_of(reader: DataSourceReader) -> list[dict[str, Any]]:
    """What a batch read gives."""
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
    EqualTo: lambda value, told: value == told.value,
    GreaterThan: lambda value, told: value > told.value,
    GreaterThanOrEqual: lambda value, told: value >= told.value,
    LessThan: lambda value, told: value < told.value,
    LessThanOrEqual: lambda value, told: value <= told.value,
    In: lambda value, told: value in told.value,
    IsNotNull: lambda value, _: value is not None,
}


@pytest.mark.parametrize(("told", "column"), FILTERS, ids=[f"{type(told).__name__} {name}" for told, name in FILTERS])
def test_a_filter_that_is_taken_gives_the_rows_that_spark_would_have_kept(
    log: tuple[MadeUpLog, str], told: Filter, column: str
) -> None:
    reader = FarmDataSource({"node": log[1], "pushFilters": "true"}).reader(ENTRIES)
    assert isinstance(reader, FilteredBatchReader)
    assert list(reader.pushFilters([told])) == []
    meaning = _MEANING[type(told)]
    assert rows_of(reader) == [
        row for row in all_rows(log[1]) if row[column] is not None and meaning(row[column], told)
    ]


def test_a_filter_that_is_not_known_is_left_to_spark() -> None:
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


def test_options_choose_rows_and_columns_of_a_stream(log: tuple[MadeUpLog, str]) -> None:
    options = {"node": log[1], "entries": "report", "servers": "1,3", "columns": "index,server_id,report"}
    source = FarmDataSource({**options, "until": HALF.isoformat()})
    assert [field.name for field in source.schema()] == ["index", "server_id", "report"]
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert [*end["farms"].values()] == [log[0].commit_index + 1], "what is not wanted is passed over"
    (task,) = stream.partitions(start, end)
    batches: list[Any] = [*stream.read(task)]
    (batch,) = batches
    assert batch.schema.names == ["index", "server_id", "report"]
    wanted = [
        row for row in all_rows(log[1]) if row["entry"] == "report" and row["server_id"] != 2 and row["log_time"] < HALF
    ]
    assert batch.column("index").to_pylist() == [row["index"] for row in wanted]
    assert pc.struct_field(batch.column("report"), "uptime_ms").to_pylist() == [
        row["report"]["uptime_ms"] for row in wanted
    ]


def test_columns_that_need_no_decoding_are_the_same_without(log: tuple[MadeUpLog, str]) -> None:
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
def test_an_option_that_says_nothing_is_refused_with_what_it_must_be(option: str, value: str, words: str) -> None:
    source = FarmDataSource({"node": "absent.sock", option: value})
    with pytest.raises(FarmLogError, match=words):
        source.reader(source.schema())


@given(some.lists(some.tuples(some.none() | some.integers(0, 9), some.none() | some.integers(0, 9)), max_size=4))
def test_bounds_within_bounds_hold_what_all_of_them_hold(told: list[tuple[int | None, int | None]]) -> None:
    bounds = Bounds()
    for least, end in told:
        bounds = bounds.within(least, end)
    held = [number for number in range(10) if all(number in Bounds(*each) for each in told)]
    assert [number for number in range(10) if number in bounds] == held
    first, end = bounds.cut(0, 10)
    assert [*range(first, end)] == held


def test_two_filters_of_one_column_leave_what_both_leave() -> None:
    once = Wanted().of("entries", ["report", "clock"])
    assert once.of("entries", ["clock", "factors"]).entries == frozenset({"clock"})
