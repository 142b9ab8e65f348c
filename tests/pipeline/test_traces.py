"""Traces of nodes and trace files: ranges of events, restarts of nodes, lost events, and invalid lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipeline.schemas import EVENTS
from pipeline.source import events, traces
from pipeline.source.endpoint import Credentials
from pipeline.source.events import FarmEventsDataSource, FarmEventsStreamReader
from pipeline.source.log_client import FarmLogError
from pipeline.source.traces import EVENTS_LOST, EventRow, FileTrace, NodeTrace, Trace, same_place
from tests.pipeline.farm_log_server import MadeUpLog, serve_log


def a_node_with_five_events() -> MadeUpLog:
    """Return a node with five events. Its clock is two seconds ahead of log time."""
    node = MadeUpLog(clock_ahead_ms=2_000)
    node.add_event("node-started", pid=1)
    for number in range(3):
        node.add_event("member-suspect", member=f"node-{number}")
    node.add_event("publication-accepted", log_time=True, server=1)
    return node


def read(trace: Trace, start: str | None = None) -> tuple[str, list[EventRow]]:
    end = trace.end(start)
    assert end is not None
    return end, list(trace.rows(trace.stretch(start, end)))


def trace_of(address: str) -> NodeTrace:
    return NodeTrace(address, Credentials())


def test_event_is_read_once_with_clock_offset(tmp_path: Path) -> None:
    node = a_node_with_five_events()
    with serve_log(node, tmp_path / "control.sock") as address:
        end, rows = read(trace_of(address))
        assert end.startswith("1:6:")
        assert [row[1] for row in rows] == [1, 2, 3, 4, 5]
        assert {row[4] for row in rows} == {2_000}
        assert {row[3] for row in rows} == {node.log_time_ms}, "from the event, or computed from the offset"
        node.add_event("leader-elected", term=2)
        assert [row[5] for row in read(trace_of(address), end)[1]] == ["leader-elected"]


def test_overwritten_events_leave_row_with_their_count(tmp_path: Path) -> None:
    node = a_node_with_five_events()
    node.first_cursor, node.events = 4, node.events[3:]
    with serve_log(node, tmp_path / "control.sock") as address:
        _, rows = read(trace_of(address), "1:2")
    assert [(row[5], row[1]) for row in rows[:2]] == [(EVENTS_LOST, 3), ("member-suspect", 4)]
    assert json.loads(rows[0][6]) == {"lost": 2}


def test_restarted_node_is_read_from_start_of_its_trace(tmp_path: Path) -> None:
    node = a_node_with_five_events()
    with serve_log(node, tmp_path / "control.sock") as address:
        end, _ = read(trace_of(address))
        node.generation, node.events = 2, node.events[:1]
        new_end, rows = read(trace_of(address), end)
        assert new_end.startswith("2:2:")
        assert [row[1] for row in rows] == [1]


def test_unreachable_node_after_plan_counts_events_as_lost(tmp_path: Path) -> None:
    with serve_log(a_node_with_five_events(), tmp_path / "control.sock") as address:
        trace = trace_of(address)
        end = trace.end(None)
        assert end is not None
    stretch = trace.stretch(None, end)
    (row,) = trace.rows(stretch)
    assert (row[0], row[5], json.loads(row[6])) == ("node-1", EVENTS_LOST, {"lost": 5})
    assert trace.end(end) is None, "without a reply the offset does not change"


def test_repeated_batch_equals_first_despite_clock_change(tmp_path: Path) -> None:
    node = a_node_with_five_events()
    with serve_log(node, tmp_path / "control.sock") as address:
        trace = trace_of(address)
        end, rows = read(trace)
        node.clock_ahead_ms += 700
        assert list(trace.rows(trace.stretch(None, end))) == rows
        # without new events the end does not change, even if the clock does
        assert trace.end(end) == end


def test_shortened_trace_file_fails(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in a_node_with_five_events().events))
    end, _ = read(FileTrace(str(path)))
    path.write_text("")
    with pytest.raises(FarmLogError, match="cut or replaced"):
        FileTrace(str(path)).end(end)


def finite_run(**options: str) -> FarmEventsStreamReader:
    stream = FarmEventsDataSource(options).streamReader(EVENTS)
    assert isinstance(stream, FarmEventsStreamReader)
    stream.prepareForTriggerAvailableNow()
    return stream


def test_shortened_trace_file_fails_in_finite_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [json.dumps(event) + "\n" for event in a_node_with_five_events().events]
    path.write_text("".join(lines))
    stream = FarmEventsDataSource({"files": str(path)}).streamReader(EVENTS)
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    path.write_text(lines[0])
    stream = finite_run(files=str(path))
    with pytest.raises(FarmLogError, match="cut or replaced"):
        stream.latestOffset(start, ReadAllAvailable())


def test_event_farm_comes_from_node_or_option(
    tmp_path: Path,
) -> None:
    def farms(**options: str) -> set[str | None]:
        stream = FarmEventsDataSource(options).streamReader(EVENTS)
        end = stream.latestOffset({}, ReadAllAvailable())
        (task,) = stream.partitions({}, end)
        batches: list[Any] = [*stream.read(task)]
        return {farm for batch in batches for farm in batch.column("farm").to_pylist()}

    node, path = a_node_with_five_events(), tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in node.events))
    with serve_log(node, tmp_path / "control.sock") as address:
        assert farms(node=address) == {node.cluster_id}
    assert farms(files=str(path)) == {None}
    assert farms(files=str(path), farm="ab" * 16) == {"ab" * 16}


def test_finite_run_ends_at_events_of_first_plan(tmp_path: Path) -> None:
    node = a_node_with_five_events()
    with serve_log(node, tmp_path / "control.sock") as address:
        stream = finite_run(node=address)
        end = stream.latestOffset({}, ReadAllAvailable())
        node.add_event("leader-elected", term=2)
        assert stream.latestOffset(end, ReadAllAvailable()) == end
        assert same_place(end[address], "1:6")


def test_trace_file_is_read_by_complete_lines(tmp_path: Path) -> None:
    node = a_node_with_five_events()
    path = tmp_path / "trace.jsonl"
    text = "".join(json.dumps(event) + "\n" for event in node.events)
    path.write_text(text[:-20])
    end, rows = read(FileTrace(str(path)))
    assert len(rows) == 4
    path.write_text(text)
    assert [row[5] for row in read(FileTrace(str(path)), end)[1]] == ["publication-accepted"]


@pytest.mark.parametrize(
    "line",
    [
        '{"cursor": 1}',
        "[" * 100_000,
        '{"cursor": 1, "timeMs": 1e999, "logTimeMs": null, "node": "a", "kind": "b", "data": {}}',
        '{"cursor": 1, "timeMs": 99999999999999999999, "logTimeMs": null, "node": "a", "kind": "b", "data": {}}',
        '{"cursor": 9223372036854775808, "timeMs": 1, "logTimeMs": null, "node": "a", "kind": "b", "data": {}}',
        '{"cursor": true, "timeMs": 1, "logTimeMs": null, "node": "a", "kind": "b", "data": {}}',
        '{"cursor": 1, "timeMs": 1, "logTimeMs": null, "node": "\\ud800", "kind": "b", "data": {}}',
        '{"cursor": 1, "timeMs": 1, "logTimeMs": null, "node": "a", "kind": ["b"], "data": {}}',
        '{"cursor": 1, "timeMs": 1, "logTimeMs": null, "node": "a", "kind": "b", "data": {"lag": NaN}}',
        '{"cursor": 1, "timeMs": 1, "logTimeMs": null, "node": "a", "kind": "b", "data": []}',
    ],
)
def test_invalid_line_error_names_its_position(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(FarmLogError, match="at byte 0") as error:
        list(source_of_files(path))
    assert len(str(error.value)) < 1_000


def source_of_files(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file, like for Spark."""
    reader = FarmEventsDataSource({"files": str(path)}).reader(EVENTS)
    for partition in reader.partitions():
        yield from reader.read(partition)


def test_large_events_end_record_batch_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BYTES_PER_RECORD_BATCH", 30_000)
    node = MadeUpLog()
    for _ in range(8):
        node.add_event("member-suspect", member="x" * 10_000)
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(event) + "\n" for event in node.events))
    assert [batch.num_rows for batch in source_of_files(tmp_path / "trace.jsonl")] == [3, 3, 2]


def test_file_pattern_may_contain_wildcards_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trace.jsonl").write_text("")

    def planned(files: str) -> list[str]:
        source = FarmEventsDataSource({"files": files})
        return [trace.name for trace in source._traces()]

    both = [str(tmp_path / name / "trace.jsonl") for name in ("one", "two")]
    assert planned(f"{tmp_path}/*/trace.jsonl") == both
    assert planned(f"{tmp_path}/one/*.jsonl, {tmp_path}/two/trace.jsonl") == both
    monkeypatch.chdir(tmp_path)
    assert planned("*/trace.jsonl") == ["one/trace.jsonl", "two/trace.jsonl"]
    for nothing in ("/", ".", f"{tmp_path}/three/*"):
        with pytest.raises(FarmLogError, match="no file matches"):
            planned(nothing)


def test_read_of_absent_node_is_empty(tmp_path: Path) -> None:
    reader = FarmEventsDataSource({"node": str(tmp_path / "absent.sock")}).reader(EVENTS)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == [], "Spark reads such a partition for an empty plan"


def file_rows(path: Path, first: int = 0) -> list[tuple[int, int | None, int | None]]:
    """Return cursor, log time and clock offset of the events from the byte `first` on."""
    trace = FileTrace(str(path))
    end = trace.end(None)
    assert end is not None
    return [(row[1], row[3], row[4]) for row in trace.rows(trace.stretch(str(first), end))]


def event_line(node: str, cursor: int, time_ms: int, log_time_ms: int | None = None) -> str:
    event: dict[str, Any] = {
        "cursor": cursor,
        "timeMs": time_ms,
        "logTimeMs": log_time_ms,
        "kind": "k",
        "node": node,
        "data": {},
    }
    return json.dumps(event) + "\n"


def test_undated_event_is_dated_by_neighbors_of_its_node(tmp_path: Path) -> None:
    # given two nodes with clocks an hour apart, and a third one without any date
    path = tmp_path / "trace.jsonl"
    lines = [
        event_line("a", 1, 3_601_000),
        event_line("a", 2, 3_602_000, 2_000),
        event_line("b", 1, 3_000),
        event_line("a", 3, 3_604_000),
        event_line("c", 1, 4_000),
        event_line("b", 2, 5_500, 5_000),
        event_line("b", 3, 6_500),
    ]
    path.write_text("".join(lines))
    expected = [
        (1, 1_000, 3_600_000),
        (2, 2_000, 3_600_000),
        (1, 2_500, 500),
        (3, 4_000, 3_600_000),
        (1, None, None),
        (2, 5_000, 500),
        (3, 6_000, 500),
    ]
    assert file_rows(path) == expected
    # A batch that begins in the middle also finds the earlier neighbors.
    for skipped in range(len(lines)):
        assert file_rows(path, len("".join(lines[:skipped]))) == expected[skipped:]


def test_dates_of_file_do_not_come_from_its_remote_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    dated = event_line("a", 1, 3_000, 1_000)
    path.write_text(dated + event_line("b", 1, 1) + event_line("a", 2, 4_000))
    first = len(dated + event_line("b", 1, 1))
    assert file_rows(path, first) == [(2, 2_000, 2_000)]
    monkeypatch.setattr(traces, "BACK_BYTES", len(dated))
    assert file_rows(path, first) == [(2, None, None)]
