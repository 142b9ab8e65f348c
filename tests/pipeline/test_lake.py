"""All tables of a batch: few or many rows, interruptions between commits, several farms, and lost commits."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from pipeline.gold.answers import answer_sql
from pipeline.lake import EventsTable, Lake, _ranges_of
from pipeline.run import prepare
from pipeline.schemas import EVENTS, arrow_schema
from pipeline.serve.query import documents
from pipeline.tables import current
from pipeline.tables.batch_notes import Range
from pipeline.tables.current import CurrentState
from pipeline.tables.delta import Table, TableSpec, stored_files, stored_rows
from pipeline.tables.files import TableDamagedError
from pipeline.tables.names import read_names
from pipeline.tables.rows import ADDRESS
from pipeline.tables.specs import BASE_SPECS, EVENTS_SPEC, RANGES_SPEC, TRANSITIONS_SPEC
from pipeline.tables.tasks import FILES, OUTCOME, WINDOWS, Outcome, Results, _packed, outcome_of, work
from pipeline.watch.watching import STATE_SPEC
from tests.effort import IS_SOAK, each_case
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of, three_servers
from tests.pipeline.made_tables import without_records

SPECS = (*BASE_SPECS.values(), *current.SPECS.values(), RANGES_SPEC, TRANSITIONS_SPEC, STATE_SPEC)
SALT = "the same for all"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def lake_at(output: Path) -> Lake:
    output.mkdir(parents=True, exist_ok=True)
    (output / "pseudonym.salt").write_text(f"{SALT}\n")
    return Lake(output, 60_000, watch=True, feedback=True, clock=lambda: 0.0)


def outcome_for(lake: Lake, log: MadeUpLog, tasks: int, few_rows: int = 20_000, name: str | None = None) -> Outcome:
    entries, plan = arrow_entries_of(log, name), replace(lake.plan, few_rows=few_rows)
    step = -(-entries.num_rows // tasks)
    parts = (entries.slice(begin, step) for begin in range(0, entries.num_rows, step))
    return outcome_of(each for part in parts for each in work(plan, part.to_batches(max_chunksize=5)))


def events_of_two() -> pa.RecordBatch:
    """Return two events of a node, the second one without a log time."""
    schema = arrow_schema(EVENTS)
    cells = [["aa", "aa"], ["node-1"] * 2, [1, 2], [1_000, 2_000], [NOON, None], [0, 0], ["founded"] * 2, ["{}"] * 2]
    arrays = [pa.array(cell, each.type) for cell, each in zip(cells, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def tables_in(output: Path) -> dict[str, list[dict[str, Any]]]:
    return {spec.name: sorted(stored_rows(output / spec.name, spec.schema).to_pylist(), key=repr) for spec in SPECS}


def test_rows_written_by_tasks_equal_rows_written_by_driver(tmp_path: Path) -> None:
    log = three_servers(minutes=2)
    few = lake_at(tmp_path / "few")
    few.write_outcome(outcome_for(few, log, 1), 0)
    expected = tables_in(tmp_path / "few")
    assert len(stored_files(tmp_path / "few" / "reports")) == 1
    for tasks, few_rows in (3, 0), (3, 20_000), (2, 10):
        output = tmp_path / f"{tasks} tasks of {few_rows} rows"
        many = lake_at(output)
        many.write_outcome(outcome_for(many, log, tasks, few_rows), 0)
        assert tables_in(output) == expected, output.name
        assert len(stored_files(output / "reports")) == (1 if few_rows > 100 else tasks), output.name


@pytest.mark.search
def test_error_of_merge_is_not_missing_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.tables.tasks._made_small", Mock(side_effect=KeyError("farm")))
    rows = Results({"rows": []})
    assert rows.get("other") is None
    with pytest.raises(KeyError):
        rows.get("rows")


def test_results_at_any_position_do_not_print_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    windows = pa.table({"farm": ["a"], "window_start": pa.array([1], pa.timestamp("ms", tz="UTC"))})
    for bytes_before in range(1, 8):
        contents = [b"[]".ljust(bytes_before + 1), _packed(windows)]
        batch = pa.record_batch([[f"{FILES}clocks", WINDOWS], contents], schema=arrow_schema(OUTCOME))
        assert outcome_of([batch, batch]).rows[WINDOWS].num_rows == 1
    assert capfd.readouterr().err == ""


def test_interrupted_batch_is_completed_by_repetition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = three_servers(minutes=2)
    parts = [MadeUpLog(entries=log.entries[:30]), MadeUpLog(entries=log.entries[30:])]
    commit, commits_left = Table._commit, [1_000]

    def interrupted(table: Table, *arguments: Any, **more: Any) -> None:
        commits_left[0] -= 1
        if commits_left[0] < 0:
            raise KeyboardInterrupt
        commit(table, *arguments, **more)

    monkeypatch.setattr(Table, "_commit", interrupted)
    undisturbed = lake_at(tmp_path / "undisturbed")
    undisturbed.write_outcome(outcome_for(undisturbed, parts[0], 2), 0)
    copytree(tmp_path / "undisturbed", tmp_path / "begun")
    commits_left[0] = 1_000
    undisturbed.write_outcome(outcome_for(undisturbed, parts[1], 2), 1)
    commits = 1_000 - commits_left[0]
    assert commits >= 6
    expected = tables_in(tmp_path / "undisturbed")
    for completed in range(commits) if IS_SOAK else (commits // 2,):
        output = copytree(tmp_path / "begun", tmp_path / str(completed))
        lake = lake_at(output)
        commits_left[0] = completed
        with pytest.raises(KeyboardInterrupt):
            lake.write_outcome(outcome_for(lake, parts[1], 2), 1)
        commits_left[0] = 1_000
        # when a new run repeats the batch with other tasks
        again = lake_at(output)
        again.write_outcome(outcome_for(again, parts[1], 3), 1)
        assert tables_in(output) == expected, f"after {completed} commits"


def test_farm_of_first_batch_is_known_without_its_end_or_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, lake = three_servers(minutes=1), lake_at(tmp_path)
    assert lake.farms == frozenset()
    with monkeypatch.context() as killed:
        killed.setattr(CurrentState, "take", Mock(side_effect=InterruptedError))
        with pytest.raises(InterruptedError):
            lake.write_outcome(outcome_for(lake, log, 1), 0)
    assert lake_at(tmp_path).farms == {log.cluster_id}
    lake_at(tmp_path).write_outcome(outcome_for(lake, log, 1), 0)
    without_records(tmp_path)
    assert lake_at(tmp_path).farms == {log.cluster_id}


def test_farms_with_equal_server_ids_are_separate(tmp_path: Path) -> None:
    one, other = three_servers(minutes=1), three_servers(minutes=2)
    other.cluster_id = "ff" * 16
    lake = lake_at(tmp_path)
    for batch, log in enumerate((one, other)):
        lake.write_outcome(outcome_for(lake, log, 1), batch)
    routers = [(row["farm"], row["server_id"]) for row in current.read(tmp_path, "routers")]
    assert routers == [(log.cluster_id, server) for log in (one, other) for server in (1, 2, 3)]
    reached = {row["farm"]: row["index"] for row in current.read(tmp_path, "farm")}
    assert reached == {log.cluster_id: log.commit_index for log in (one, other)}


def test_farms_query_counts_entries_by_farm_name(tmp_path: Path) -> None:
    # given a farm whose last part is read in two batches, after a snapshot
    one, other = three_servers(minutes=1), three_servers(minutes=2)
    other.cluster_id = "ff" * 16
    report = one.entries[3]["value"]
    parts = [MadeUpLog(entries=one.entries[6:10]), MadeUpLog(entries=one.entries[10:])]
    parts[0].entries.insert(0, {**one.entries[5], "kind": "snapshot", "value": report})
    lake = lake_at(tmp_path)
    assert _ranges_of(outcome_for(lake, parts[0], 2)) == {one.cluster_id: Range(7, 10)}
    assert _ranges_of(outcome_for(lake, MadeUpLog(entries=parts[0].entries[:1]), 1)) == {}
    for batch, part in enumerate(parts):
        lake.write_outcome(outcome_for(lake, part, 2, name="berlin"), batch)
    lake.write_outcome(outcome_for(lake, other, 1), 2)
    # then its entries are counted once, without the snapshot
    rows = {row["farm"]: row for row in documents(tmp_path, answer_sql("farms"))}
    berlin, unnamed = rows[one.cluster_id], rows[other.cluster_id]
    assert (berlin["name"], berlin["first_index"], berlin["last_index"]) == ("berlin", 7, one.commit_index)
    assert (berlin["entries"], unnamed["entries"]) == (one.commit_index - 6, other.commit_index)
    assert (berlin["behind_ms"], unnamed["behind_ms"], unnamed["name"]) == (60_000, 0, None)
    assert [*rows] == [one.cluster_id, other.cluster_id], "the farm with the larger lag is first"
    # a repeated batch does not change the count
    again = lake_at(tmp_path)
    again.write_outcome(outcome_for(again, other, 1), 2)
    counts = {row["farm"]: row["entries"] for row in current.read(tmp_path, "farm")}
    assert counts[other.cluster_id] == other.commit_index


def parts_of(*ends: int) -> list[MadeUpLog]:
    log = three_servers(minutes=3)
    begins = (0, *ends)
    return [MadeUpLog(entries=log.entries[begin:end]) for begin, end in zip(begins, (*ends, None), strict=True)]


def write_parts(output: Path, parts: list[MadeUpLog], begin: int = 0) -> None:
    lake = lake_at(output)
    for batch, part in enumerate(parts, begin):
        lake.write_outcome(outcome_for(lake, part, 1), batch)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return copies of one output directory, one after each of three batches."""
    made, found = tmp_path_factory.mktemp("lake"), []
    for batch, part in enumerate(parts_of(20, 40)):
        write_parts(made / "tables", [part], batch)
        found.append(copytree(made / "tables", made / str(batch)))
    return found


def test_lake_with_older_checkpoint_is_refused(states: list[Path], tmp_path: Path) -> None:
    first, second, third = parts_of(20, 40)
    lake = lake_at(copytree(states[1], tmp_path / "tables"))
    larger = MadeUpLog(entries=[*second.entries, *third.entries])
    with pytest.raises(TableDamagedError, match=r"is older than the tables: its batch 1 has entries 21 to"):
        lake.write_outcome(outcome_for(lake, larger, 1), 1)
    with pytest.raises(TableDamagedError, match=r"is older than the tables: it continues with batch 0"):
        lake.write_outcome(outcome_for(lake, first, 1), 0)


def test_lake_with_newer_checkpoint_is_refused(states: list[Path], tmp_path: Path) -> None:
    *_, third = parts_of(20, 40)
    lake = lake_at(copytree(states[0], tmp_path / "tables"))
    with pytest.raises(TableDamagedError, match=r"is newer than the tables: it continues with batch 2"):
        lake.write_outcome(outcome_for(lake, third, 1), 2)
    with pytest.raises(TableDamagedError, match=r"is newer than the tables: it continues farm \w+ with entry 41"):
        lake.write_outcome(outcome_for(lake, third, 1), 1)


@pytest.mark.parametrize("spec", [BASE_SPECS["reports"], STATE_SPEC, current.SPECS["farm"]], ids=lambda each: each.name)
@pytest.mark.parametrize("loss", ["empty-commit", "missing-commit"])
def test_lake_with_lost_last_commit_is_refused(states: list[Path], tmp_path: Path, spec: TableSpec, loss: str) -> None:
    copytree(states[2], tmp_path, dirs_exist_ok=True)
    last = max((tmp_path / spec.name / "_delta_log").glob("*.json"))
    if loss == "empty-commit":
        last.write_bytes(b"")
    else:
        last.unlink()
    with pytest.raises(TableDamagedError, match=rf"{spec.name} ends with batch 1 and had batch 2 before"):
        lake_at(tmp_path)


def test_lake_of_earlier_version_without_records_continues(states: list[Path], tmp_path: Path) -> None:
    copytree(states[1], tmp_path, dirs_exist_ok=True)
    without_records(tmp_path)
    write_parts(tmp_path, parts_of(20, 40)[2:], 2)
    expected, found = tables_in(states[2]), tables_in(tmp_path)
    assert {row["kind"] for row in found.pop("ranges")} == {"read", "uncounted"}
    assert found == {name: rows for name, rows in expected.items() if name != "ranges"}


@each_case("finished", [-1, 0, 3])
def test_events_of_earlier_version_without_records_continue(finished: int, states: list[Path], tmp_path: Path) -> None:
    # given batch 0 of the traces, completed or not, and perhaps later batches without events
    copytree(states[0], tmp_path, dirs_exist_ok=True)
    events = events_of_two()
    EventsTable(tmp_path).write_batch([events], 0)
    without_records(tmp_path)
    for name in ("checkpoint", "checkpoint-events"):
        (tmp_path / name / "commits").mkdir(parents=True)
    if finished >= 0:
        (tmp_path / "checkpoint-events" / "commits" / str(finished)).touch()
    (tmp_path / "layout.json").write_text('{"layout": 3}')
    prepare(tmp_path)
    # when the query over the log makes its record of batches first
    write_parts(tmp_path, parts_of(20, 40)[1:2], 1)
    EventsTable(tmp_path).write_batch([events], finished + 1)
    assert len(documents(tmp_path, "FROM events")) == (2 if finished < 0 else 4)


def test_known_pseudonyms_are_bounded_and_all_names_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.lake.NAMED_MAX", 30)
    lake, names = lake_at(tmp_path), {f"d-{number:012x}": f"address {number}" for number in range(500)}
    for first in (*range(0, 500, 20), 0):
        part = dict([*names.items()][first : first + 20])
        lake._remember(pa.table({"destination": [*part], ADDRESS: [*part.values()]}), "destination")
        assert len(lake._named) <= 30 + 20
    assert read_names(tmp_path) == names


def test_repeated_batch_of_events_is_stored_once(tmp_path: Path) -> None:
    for batch in (0, 0):
        EventsTable(tmp_path).write_batch([events_of_two()], batch)
    EventsTable(tmp_path).write_batch([], 1)
    rows = stored_rows(tmp_path / "events", EVENTS_SPEC.schema).sort_by("cursor").to_pylist()
    assert [(row["cursor"], row["log_time"], row["day"], row["batch_id"]) for row in rows] == [
        (1, NOON, NOON.date(), 0),
        (2, None, None, 0),
    ]
