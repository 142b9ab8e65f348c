"""Repair of damaged tables: lost rows return, an older or newer checkpoint is replaced, gone entries are recorded.

Most tests damage the tables of an undisturbed run, and compare the repaired tables with the undamaged ones.
"""

import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli.queries import query
from pipeline.cli.repair import repair as repair_command
from pipeline.gold.answers import answer_sql
from pipeline.gold.tables import SPECS, WINDOWS_SPEC, Gold
from pipeline.lake import LOCK_FILE, EventsTable, Lake
from pipeline.local.checkpoint import EVENTS_CHECKPOINT
from pipeline.repair.damage import Damage, examine
from pipeline.repair.record import WATCH, stored_notes
from pipeline.repair.repairing import current_rows, repair
from pipeline.run import CONTINUED, LAYOUT, LAYOUT_FILE, claim_layout
from pipeline.serve.query import QueryError, documents, query_result
from pipeline.source.farm import FarmDataSource
from pipeline.source.log_client import FarmLogError
from pipeline.tables import current, delta
from pipeline.tables.batch_notes import BatchNotes, Continuity, noted_batches
from pipeline.tables.delta import Table, TableSpec, stored_files, stored_rows
from pipeline.tables.files import TableDamagedError
from pipeline.tables.specs import ALERTS_SPEC, BASE_SPECS, EVENTS, EVENTS_SPEC, LOG, RANGES_SPEC, STATES_SPEC
from tests.effort import each_case, few_of, over_seeds
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, serve_log, two_days
from tests.pipeline.made_tables import gold_rows, tables_of, write_batch
from tests.pipeline.test_trace_tables import event

pytestmark = pytest.mark.usefixtures("shared_tables")
RECORD = "batches-log.json"
BATCHES = ((1, 7), (8, 9), (10, 16), (17, 26))
NOT_IN_TOPIC = {5, 10}
"""Entries that the topic lacks: inside a batch, and between two batches."""
TABLES = (*BASE_SPECS.values(), *(spec for name, spec in current.SPECS.items() if name != "watched"))
WRONG_MS = 40 * 86_400_000
Damaging = Callable[[Path], object]
Rows = dict[str, list[dict[str, Any]]]
UNNAMED = {"current_farm": ("name", "batch_id")}
"""Columns that a repair cannot restore."""


def write(output: Path, batch: int, *, of_topic: bool = False, **options: Any) -> None:
    """Write a batch like a run: Spark's offsets before it, its commit after it. A topic lacks some entries."""
    log, (first, last) = two_days(), BATCHES[batch]
    output.mkdir(exist_ok=True)
    claim_layout(output)
    for directory in ("offsets", "commits"):
        (output / "checkpoint" / directory).mkdir(parents=True, exist_ok=True)
    offset = json.dumps({"farm-log": {"0": last}} if of_topic else {"farms": {log.cluster_id: last + 1}})
    (output / "checkpoint" / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}\n")
    entries = [each for each in log.entries[first - 1 : last] if not of_topic or each["index"] not in NOT_IN_TOPIC]
    continuity = Continuity.LATER if of_topic else Continuity.NEXT
    tables_of(MadeUpLog(entries=entries), output, batch, continuity=continuity, **options)
    (output / "checkpoint" / "commits" / str(batch)).write_text("v1\n{}\n")


def rows_in(output: Path) -> Rows:
    """Return all rows, without the columns that a repair cannot restore."""
    found = {}
    for spec in TABLES:
        without = UNNAMED.get(spec.name, ())
        rows = stored_rows(output / spec.name, spec.schema).to_pylist()
        found[spec.name] = sorted(({k: v for k, v in row.items() if k not in without} for row in rows), key=repr)
    return found


def repair_from(output: Path, log: MadeUpLog, found: Damage | None = None) -> list[str]:
    """Repair the found damage; return the messages. `repair` finally examines the tables, and raises for any damage."""
    lines: list[str] = []
    with serve_log(log, output.with_suffix(".sock")) as address:
        repair(
            output, examine(output) if found is None else found, FarmDataSource({"node": address}).farms, lines.append
        )
    return lines


def is_complete(output: Path) -> bool:
    return all(row["complete"] for row in documents(output, answer_sql("completeness")))


def empty_commit(table: str, number: int) -> Damaging:
    return lambda output: (output / table / "_delta_log" / f"{number:020}.json").write_bytes(b"")


def drop_commit(table: str) -> Damaging:
    return lambda output: max((output / table / "_delta_log").glob("*.json")).unlink()


def damage_commit(table: str) -> Damaging:
    return lambda output: max((output / table / "_delta_log").glob("*.json")).write_text("{")


def remove_file(table: str) -> Damaging:
    return lambda output: min((output / table).rglob("*.parquet")).unlink()


def truncate_file(table: str) -> Damaging:
    return lambda output: min((output / table).rglob("*.parquet")).write_bytes(b"half")


def remove_batch(table: str, batch: int) -> Damaging:
    def damage(output: Path) -> None:
        for file in stored_files(output / table):
            if file.batch == batch:
                (output / table / file.path).unlink()

    return damage


def empty_offsets(number: int) -> Damaging:
    return lambda output: (output / "checkpoint" / "offsets" / str(number)).write_bytes(b"")


def remove(name: str) -> Damaging:
    return lambda output: shutil.rmtree(output / name)


DAMAGES = {
    "empty-first-commit": empty_commit("reports", 1),
    "empty-middle-commit": empty_commit("reports", 3),
    "lost-last-commit": drop_commit("destination_reports"),
    "damaged-log": damage_commit("clocks"),
    "missing-file": remove_file("reports"),
    "damaged-file": truncate_file("quarantine"),
    "empty-commit-of-ranges": empty_commit("ranges", 2),
    "lost-last-commit-of-ranges": drop_commit("ranges"),
    "damaged-log-of-ranges": damage_commit("ranges"),
    "lost-batch-of-ranges": remove_batch("ranges", 0),
    "lost-day-of-ranges": remove("ranges/day=2026-01-01"),
    "lost-table": remove("reports"),
    "lost-current-state": drop_commit("current_routers"),
    "lost-current-farm": damage_commit("current_farm"),
    "lost-checkpoint": remove("checkpoint"),
    "empty-offsets": empty_offsets(len(BATCHES) - 1),
    "lost-record": lambda output: (output / RECORD).unlink(),
    "lost-record-and-table": lambda output: ((output / RECORD).unlink(), remove("clocks")(output)),
    "lost-record-and-ranges": lambda output: ((output / RECORD).unlink(), damage_commit("ranges")(output)),
}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return copies of one output directory, one after each batch."""
    made = tmp_path_factory.mktemp("states")
    found = []
    for batch in range(len(BATCHES)):
        write(made / "tables", batch)
        found.append(shutil.copytree(made / "tables", made / str(batch)))
    return found


@pytest.fixture(scope="module")
def undamaged(states: list[Path]) -> Path:
    return states[-1]


@pytest.fixture
def output(undamaged: Path, tmp_path: Path) -> Path:
    """Return a copy of the undamaged tables."""
    return shutil.copytree(undamaged, tmp_path / "tables")


@pytest.fixture(scope="module")
def undamaged_rows(undamaged: Path) -> Rows:
    return rows_in(undamaged)


@pytest.mark.parametrize(
    "damage",
    few_of(
        DAMAGES,
        *("damaged-file", "damaged-log-of-ranges", "lost-batch-of-ranges", "lost-day-of-ranges"),
        *("lost-checkpoint", "lost-record-and-table"),
    ),
)
def test_damaged_tables_are_refused_and_repaired(damage: Damaging, output: Path, undamaged_rows: Rows) -> None:
    damage(output)
    found = examine(output)
    assert found
    repair_from(output, two_days(), found)
    assert not examine(output)
    assert rows_in(output) == undamaged_rows
    assert is_complete(output)
    # the next run continues
    assert Lake(output, 60_000).first_batch in {0, len(BATCHES)}
    assert BatchNotes(output, LOG).next_entries() == {two_days().cluster_id: 27}


def test_undamaged_tables_are_not_changed(output: Path, undamaged: Path, tmp_path: Path) -> None:
    with serve_log(two_days(), tmp_path / "control.sock") as address:
        result = CliRunner().invoke(repair_command, ["--output", str(output), "--node", address])
    assert (result.exit_code, result.output) == (0, f"{output} is not damaged.\n")
    versions = {path.name for path in (output / "reports" / "_delta_log").iterdir()}
    assert versions == {path.name for path in (undamaged / "reports" / "_delta_log").iterdir()}


def test_dry_run_only_lists_damage(output: Path) -> None:
    empty_commit("reports", 3)(output)
    result = CliRunner().invoke(repair_command, ["--output", str(output), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "reports: commits were lost\n" in result.output
    assert f"entries 1 to 26 of farm {two_days().cluster_id}: rows are missing or surplus\n" in result.output
    assert examine(output)


@pytest.mark.parametrize("table", ["reports", "ranges", "current_routers", "events"])
def test_dry_run_does_not_change_files(output: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    if table == EVENTS:
        EventsTable(output).write_batch([], 0)
    remove(table)(output)
    (output / LOCK_FILE).touch()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    # A run would adapt the properties of the tables to this setting.
    monkeypatch.setattr(delta, "LOG_KEPT", "interval 2 minutes")
    result = CliRunner().invoke(repair_command, ["--output", str(output), "--dry-run"])
    assert (result.exit_code, table in result.output) == (0, True), result.output
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


def test_repair_that_leaves_damage_is_refused(output: Path) -> None:
    found = examine(output)
    assert not found
    remove("reports")(output)
    with pytest.raises(TableDamagedError, match="is still damaged after the repair: entries 1 to 26"):
        repair_from(output, two_days(), found)


def test_repair_refuses_layout_of_another_version(output: Path, tmp_path: Path) -> None:
    remove("reports")(output)
    (output / LAYOUT_FILE).write_text(json.dumps({"layout": LAYOUT + 1}))
    result = CliRunner().invoke(repair_command, ["--output", str(output)])
    assert (result.exit_code, f"has the layout {LAYOUT + 1} and this version writes" in result.output) == (1, True)
    assert not (output / "reports").exists()
    # given an earlier layout that a run continues: a dry run does not change it, and a repair upgrades it
    (output / LAYOUT_FILE).write_text(content := json.dumps({"layout": min(CONTINUED)}))
    result = CliRunner().invoke(repair_command, ["--output", str(output), "--dry-run"])
    assert (result.exit_code, (output / LAYOUT_FILE).read_text()) == (0, content)
    with serve_log(two_days(), tmp_path / "control.sock") as address:
        result = CliRunner().invoke(repair_command, ["--output", str(output), "--node", address])
    assert (result.exit_code, json.loads((output / LAYOUT_FILE).read_text())) == (0, {"layout": LAYOUT})
    # nothing is written to undamaged tables
    (output / LAYOUT_FILE).write_text(content)
    result = CliRunner().invoke(repair_command, ["--output", str(output)])
    assert (result.exit_code, (output / LAYOUT_FILE).read_text()) == (0, content)


def test_gone_entries_are_recorded_and_shown(output: Path, undamaged_rows: Rows) -> None:
    # given a farm that compacted its log up to entry 9
    remove("reports")(output)
    log = two_days()
    compacted = MadeUpLog(first_index=10, entries=log.entries[9:])
    lines = repair_from(output, compacted)
    assert any("Entries 1 to 9 of farm" in line and "gone" in line for line in lines)
    expected = [row for row in undamaged_rows["reports"] if row["index"] >= 10]
    assert rows_in(output)["reports"] == expected
    days = documents(output, answer_sql("completeness"))
    assert sum(row["gone"] for row in days) == 9
    assert [row["complete"] for row in days] == [False, True]
    assert sum(row["missing_rows"] + row["surplus_rows"] for row in days) == 0


def test_checkpoint_older_than_tables_is_replaced(output: Path) -> None:
    for directory in ("offsets", "commits"):
        (output / "checkpoint" / directory / "3").unlink()
    found = examine(output)
    assert "it ends with batch 2, and the tables end with batch 3" in "".join(found.lines())
    repair_from(output, two_days(), found)
    assert [*(output / "checkpoint").iterdir()] == []
    lake = Lake(output, 60_000)
    starts = {two_days().cluster_id: 27}
    assert (lake.first_batch, lake.first_entries) == (4, starts)
    # a repeated first batch begins at the same entry
    log = two_days()
    log.report(1)
    tables_of(MadeUpLog(entries=log.entries[26:]), output, 4)
    assert Lake(output, 60_000).first_entries == starts


def lose_last_batch_of_checkpoint(output: Path) -> None:
    for directory in ("offsets", "commits"):
        (output / "checkpoint" / directory / "3").unlink()


def lose_last_batch_and_kind_of_source(output: Path) -> None:
    """Lose the last batch of the checkpoint and the kind of the source, which earlier versions did not record."""
    lose_last_batch_of_checkpoint(output)
    noted = json.loads((output / RECORD).read_text())
    assert noted.pop("ofTopic")
    (output / RECORD).write_text(json.dumps(noted))


@pytest.fixture(scope="module")
def tables_of_topic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tables of an undisturbed run on a topic."""
    made = tmp_path_factory.mktemp("topic") / "tables"
    for batch in range(len(BATCHES)):
        write(made, batch, of_topic=True)
    assert not examine(made)
    return made


@pytest.fixture(scope="module")
def rows_of_topic(tables_of_topic: Path) -> Rows:
    return rows_in(tables_of_topic)


@each_case(
    "damage",
    [
        lose_last_batch_of_checkpoint,
        lose_last_batch_and_kind_of_source,
        remove("checkpoint"),
        empty_offsets(3),
        DAMAGES["lost-record"],
    ],
)
def test_repair_of_topic_does_not_read_its_holes(
    damage: Damaging, tables_of_topic: Path, rows_of_topic: Rows, tmp_path: Path
) -> None:
    output = shutil.copytree(tables_of_topic, tmp_path / "tables")
    damage(output)
    lines = repair_from(output, two_days())
    assert (rows_in(output), [each for each in lines if "read again" in each]) == (rows_of_topic, [])
    assert Lake(output, 60_000, continuity=Continuity.LATER).first_entries == {two_days().cluster_id: 27}


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tables of one batch. Entries 81 to 120 have a wrong date, until a correction of log time."""
    log, made = MadeUpLog(), tmp_path_factory.mktemp("corrected") / "tables"
    for index in range(1, 242):
        by_ms = {81: WRONG_MS, 121: -WRONG_MS}.get(index, 0)
        log.tick(1_000 + by_ms)
    tables_of(log, made)
    return made


def test_wrong_log_time_does_not_indicate_a_topic(corrected: Path) -> None:
    assert not stored_notes(corrected).of_topic


def test_repaired_farm_has_log_time_of_last_entry(corrected: Path) -> None:
    spec = current.SPECS["farm"]
    (stored,) = stored_rows(corrected / spec.name, spec.schema).to_pylist()
    (repaired,) = current_rows(corrected, spec).to_pylist()
    last = datetime.fromtimestamp((EPOCH_MS + 241_000) / 1000, UTC)
    assert [(each["index"], each["log_time"]) for each in (stored, repaired)] == [(241, last)] * 2


@each_case("end", ["null", '"x"'])
def test_damaged_offset_of_topic_is_reported(end: str, tmp_path: Path) -> None:
    write(tmp_path, 0, of_topic=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text(f'v1\n{{}}\n{{"farm-log":{{"0":{end}}}}}\n')
    assert examine(tmp_path).checkpoint == "its file offsets/0 is damaged"


def test_checkpoint_newer_than_tables_is_replaced(states: list[Path], tmp_path: Path) -> None:
    # given all tables of an earlier day, and the checkpoint of today
    output = shutil.copytree(states[1], tmp_path / "tables")
    shutil.rmtree(output / "checkpoint")
    shutil.copytree(states[-1] / "checkpoint", output / "checkpoint")
    repair_from(output, two_days())
    lake = Lake(output, 60_000)
    assert (lake.first_batch, lake.first_entries) == (2, {two_days().cluster_id: 10})


def test_record_and_checkpoint_older_than_tables_are_replaced(
    states: list[Path], undamaged_rows: Rows, tmp_path: Path
) -> None:
    # given an earlier checkpoint and record: the numbers of stored batches would belong to other entries
    output = shutil.copytree(states[-1], tmp_path / "tables")
    shutil.copy(states[1] / RECORD, output)
    remove("checkpoint")(output)
    shutil.copytree(states[1] / "checkpoint", output / "checkpoint")
    with pytest.raises(TableDamagedError, match="it ends with batch 1, and the tables have batch 3"):
        write(output, 2)
    found = examine(output)
    assert "record of batches: it ends with batch 1, and the tables have batch 3" in [*found.lines()]
    repair_from(output, two_days(), found)
    assert (rows_in(output), Lake(output, 60_000).first_batch) == (undamaged_rows, len(BATCHES))


def test_repair_of_lost_record_derives_all_tables_again(output: Path) -> None:
    Gold(output, 60_000).refresh(0)
    rows = gold_rows(output, "router_health")
    # when a derived table has also lost its rows
    Table(output, SPECS["router_health"]).rewrite(
        Table(output, SPECS["router_health"]).files(), SPECS["router_health"].schema.empty_table()
    )
    remove("gold_windows")(output)
    (output / RECORD).unlink()
    repair_from(output, two_days())
    gold = Gold(output, 60_000)
    gold.refresh(gold.noted_through(LOG))
    assert gold_rows(output, "router_health") == rows


def test_older_watch_without_record_is_refused(watched: Path, tmp_path: Path) -> None:
    output = shutil.copytree(watched, tmp_path / "tables")
    # given a last batch without changes of servers, so that only `watch_state` records the batch
    log = MadeUpLog(first_index=10)
    log.add("configuration", value='{"servers":[]}')
    tables_of(log, output, 2, watch=True)
    (output / RECORD).unlink()
    remove("watch_state")(output)
    shutil.copytree(watched / "watch_state", output / "watch_state")
    with pytest.raises(TableDamagedError, match="watch_state lost commits or files"):
        repair_from(output, two_days())


def test_lost_record_of_traces_is_made_from_their_table(states: list[Path], traces: Path) -> None:
    shutil.copytree(states[0], traces, dirs_exist_ok=True)
    (traces / "batches-events.json").unlink()
    result = CliRunner().invoke(query, ["SELECT * FROM events", "--output", str(traces)])
    assert "batches-events.json does not belong to the tables: it is missing" in result.output
    with pytest.raises(TableDamagedError, match=r"batches-events\.json does not belong"):
        EventsTable(traces)
    found = examine(traces)
    assert found.events == "record of batches: it is missing"
    repair_from(traces, two_days(), found)
    assert EventsTable(traces)._notes.base == 1


def test_interrupted_batch_is_not_damage(states: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(states[1], tmp_path, dirs_exist_ok=True)

    def killed(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BatchNotes, "end", killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, 2)
    assert not examine(tmp_path)
    # when the checkpoint is lost as well
    shutil.rmtree(tmp_path / "checkpoint")
    repair_from(tmp_path, two_days())
    assert is_complete(tmp_path)
    assert Lake(tmp_path, 60_000).first_entries == {two_days().cluster_id: 17}


@pytest.fixture(scope="module")
def undamaged_traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the table of batch 0 of the traces; Spark has planned batch 1."""
    output = tmp_path_factory.mktemp("traces")
    write_batch(output, EVENTS, 0, [{"kind": "member-dead", "time_ms": 1}])
    for directory, numbers in (("offsets", (0, 1)), ("commits", (0,))):
        (output / EVENTS_CHECKPOINT / directory).mkdir(parents=True)
        for each in numbers:
            (output / EVENTS_CHECKPOINT / directory / str(each)).write_text('v1\n{}\n{"node-1": [1, 7]}\n')
    assert not examine(output)
    return output


@pytest.fixture
def traces(undamaged_traces: Path, tmp_path: Path) -> Path:
    return shutil.copytree(undamaged_traces, tmp_path / "tables")


@pytest.mark.parametrize("number", [0, 1])
def test_empty_offsets_of_traces_are_repaired(number: int, traces: Path) -> None:
    (traces / EVENTS_CHECKPOINT / "offsets" / str(number)).write_bytes(b"")
    found = examine(traces)
    assert found.events == f"checkpoint: its file offsets/{number} is missing or damaged"
    repair_from(traces, two_days(), found)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (damage_commit, "its log of commits is damaged"),
        (remove_file, "1 data files are missing or damaged"),
        (truncate_file, "1 data files are missing or damaged"),
    ],
)
def test_unreadable_table_of_traces_is_repaired(damage: Callable[[str], Damaging], fault: str, traces: Path) -> None:
    damage(EVENTS)(traces)
    found = examine(traces)
    assert found.events == fault
    repair_from(traces, two_days(), found)
    EventsTable(traces).write_batch([], 0)


def test_repair_without_lost_entries_does_not_read_farm(output: Path) -> None:
    remove("checkpoint")(output)
    result = CliRunner().invoke(repair_command, ["--node", str(output / "none.sock"), "--output", str(output)])
    assert (result.exit_code, bool(examine(output))) == (0, False), result.output


def test_repair_without_the_farm_is_refused(output: Path) -> None:
    empty_commit("reports", 3)(output)
    other = two_days()
    other.cluster_id = "ff" * 16
    with pytest.raises(FarmLogError, match=r"it is not among the farms that reply"):
        repair_from(output, other)
    assert examine(output)


@pytest.mark.parametrize(
    "damage",
    few_of({each.__name__: each for each in (remove_file, truncate_file, drop_commit, damage_commit)}, "drop_commit"),
)
def test_damaged_derived_table_is_made_again(damage: Callable[[str], Damaging], output: Path) -> None:
    Gold(output, 60_000).refresh(0)
    rows = gold_rows(output, "router_health")
    damage("router_health")(output)
    repair_from(output, two_days())
    Gold(output, 60_000).refresh(0)
    assert gold_rows(output, "router_health") == rows


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("watched")
    for batch, (first, last) in enumerate(BATCHES[:2]):
        tables_of(MadeUpLog(entries=two_days().entries[first - 1 : last]), output, batch, watch=True)
    return output


@pytest.mark.parametrize("damage", [drop_commit("watch_state"), remove("watch_state"), remove("transitions")])
def test_damaged_watch_is_refused(damage: Damaging, watched: Path, tmp_path: Path) -> None:
    shutil.copytree(watched, tmp_path, dirs_exist_ok=True)
    damage(tmp_path)
    with pytest.raises(TableDamagedError, match=r"(watch_state|transitions) lost commits or files"):
        repair_from(tmp_path, two_days())


def test_repair_is_not_advised_for_damaged_watch(watched: Path, tmp_path: Path) -> None:
    shutil.copytree(watched, tmp_path, dirs_exist_ok=True)
    for spec in WATCH:
        for file in (tmp_path / spec.name).rglob("*.parquet"):
            file.unlink()
        with pytest.raises(TableDamagedError, match="missing: restore the entire"):
            stored_rows(tmp_path / spec.name, spec.schema)
    remove("transitions")(tmp_path)
    with pytest.raises(QueryError, match="lost; restore the entire"):
        documents(tmp_path, "SELECT * FROM transitions")


@pytest.mark.parametrize(
    "spec", [BASE_SPECS["clocks"], EVENTS_SPEC, ALERTS_SPEC, STATES_SPEC, WINDOWS_SPEC], ids=lambda spec: spec.name
)
def test_repair_is_advised_only_if_it_finds_damage(tmp_path: Path, spec: TableSpec) -> None:
    table = Table(tmp_path, spec)
    for commit in (tmp_path / spec.name / "_delta_log").iterdir():
        commit.write_text("{")
    with pytest.raises(TableDamagedError) as refused:
        stored_rows(table.root, spec.schema)
    assert ("pipeline repair" in str(refused.value)) == bool(examine(tmp_path))


def notes(**damage: dict[str, str]) -> str:
    return json.dumps({"begun": 0, "done": 0, "ranges": {}, "through": {}, "tables": {}, **damage})


@pytest.mark.parametrize("content", ["{", notes(through={"a": "x"}), notes(starts={"a": "x"})])
def test_damaged_notes_are_refused_with_advice_to_restore(content: str, tmp_path: Path) -> None:
    (tmp_path / "batches-log.json").write_text(content)
    with pytest.raises(TableDamagedError, match=r"batches-log\.json is damaged .*: restore the entire"):
        examine(tmp_path)


def rows_or_refusal(output: Path, spec: TableSpec) -> list[dict[str, Any]] | None:
    """Return all rows of a table in order as `pipeline query` does; None if it refuses, or reports a gap."""
    try:
        with query_result(output, f"FROM {spec.name} ORDER BY ALL", with_gaps=True) as answer:
            return None if answer.gaps else [*answer.documents()]
    except QueryError:
        return None


@pytest.mark.search
@over_seeds(40, quick=1)
def test_restored_state_does_not_lose_rows_silently(
    seed: int, states: list[Path], undamaged_rows: Rows, tmp_path: Path
) -> None:
    """Some tables, the checkpoint or the record return to an earlier state, or the record is lost.

    Queries and a run refuse the tables or return the undamaged rows. A repair restores the undamaged rows.
    """
    choice, output = random.Random(seed), tmp_path / "tables"
    shutil.copytree(states[-1], output)
    names = [*BASE_SPECS, RANGES_SPEC.name, "current_farm", "current_routers", "checkpoint"]
    chosen = {name: choice.choice(states[:-1]) for name in choice.sample(names, choice.randint(1, 4))}
    for name, earlier in chosen.items():
        shutil.rmtree(output / name)
        shutil.copytree(earlier / name, output / name)
    record = choice.choice([None, "lost", *states[:-1]])
    if record == "lost":
        (output / RECORD).unlink()
    elif record is not None:
        shutil.copy(Path(record) / RECORD, output)
    note = f"seed {seed}: {', '.join(f'{name} of batch {earlier.name}' for name, earlier in chosen.items())}, {record}"
    for spec in BASE_SPECS.values():
        rows = rows_or_refusal(output, spec)
        assert rows is None or rows == rows_or_refusal(states[-1], spec), f"{note}: {spec.name}"
    found = examine(output)
    continued = shutil.copytree(output, tmp_path / "continued")
    try:
        Lake(continued, 60_000)
    except TableDamagedError:
        assert found, note
    else:
        assert rows_in(continued) == undamaged_rows, note
    if not found:
        assert rows_in(output) == undamaged_rows, note
        return
    repair_from(output, two_days(), found)
    assert rows_in(output) == undamaged_rows, note
    assert is_complete(output), note


def derive(output: Path, batch: int, *, is_refreshed: bool) -> None:
    """Write a batch with a new event, like a run; if `is_refreshed`, also refresh the derived tables."""
    gold = Gold(output, 60_000)
    write_batch(output, EVENTS, batch, [event(f"node-{batch}", 1, batch, "founded", raftId=batch + 1)])
    write(output, batch, gold=gold)
    if is_refreshed:
        gold.refresh(gold.noted_through(LOG))
        BatchNotes(output, LOG).end_derived(gold.batches)


@pytest.fixture(scope="module")
def derived_states(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return copies of one output directory after each batch; the derived tables lack the last batch."""
    made = tmp_path_factory.mktemp("derived")
    found = []
    for batch in range(len(BATCHES) - 1):
        derive(made / "tables", batch, is_refreshed=batch < len(BATCHES) - 2)
        found.append(shutil.copytree(made / "tables", made / str(batch)))
    return found


@pytest.fixture(scope="module")
def derived_at_end(derived_states: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return the derived rows of the run without a fault."""
    output = shutil.copytree(derived_states[-1], tmp_path_factory.mktemp("end") / "tables")
    derive(output, len(BATCHES) - 1, is_refreshed=True)
    record = noted_batches(output, LOG)
    assert record is not None
    assert record.derived == dict.fromkeys([*SPECS, WINDOWS_SPEC.name], len(BATCHES) - 1)
    return {name: gold_rows(output, name) for name in SPECS}


def restore_derived(output: Path, states: list[Path], choice: random.Random) -> str:
    """Remove some derived tables or the recorded windows, or restore an earlier state; return a description."""
    places = [None, *states[:-1]]
    names = choice.sample([*SPECS, WINDOWS_SPEC.name], choice.randint(1, 3))
    chosen = {name: choice.choice(places) for name in names}
    for name, earlier in chosen.items():
        shutil.rmtree(output / name)
        if earlier is not None:
            shutil.copytree(earlier / name, output / name)
    return f"{ {name: earlier and earlier.name for name, earlier in chosen.items()} }"


@pytest.mark.search
@over_seeds(40, quick=1)
def test_restored_derived_tables_do_not_lose_rows_silently(
    seed: int, derived_states: list[Path], derived_at_end: Rows, tmp_path: Path
) -> None:
    """Queries refuse the restored tables or return the same rows. The next refresh corrects them without a repair."""
    choice = random.Random(seed)
    output = shutil.copytree(derived_states[-1], tmp_path / "tables")
    note = restore_derived(output, derived_states, choice)
    is_refused = False
    for name, spec in SPECS.items():
        rows = rows_or_refusal(output, spec)
        is_refused |= rows is None
        assert rows is None or rows == rows_or_refusal(derived_states[-1], spec), f"{note}: {name}"
    found = examine(output)
    assert bool(found.derived) == is_refused, note
    if choice.random() < 0.5:
        repair_from(output, two_days(), found)
    if choice.random() < 0.5:
        gold = Gold(output, 60_000)
        gold.refresh(gold.noted_through(LOG))
    derive(output, len(BATCHES) - 1, is_refreshed=True)
    assert {name: gold_rows(output, name) for name in SPECS} == derived_at_end, note
    assert all(rows_or_refusal(output, spec) is not None for spec in SPECS.values()), note
