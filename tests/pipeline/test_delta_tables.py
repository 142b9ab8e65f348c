"""Tables on disk: repeated batches, killed runs, merging, retention, damage, and other readers of the same files.

A table contains each batch exactly once. DuckDB and Polars read the same directories as the pipeline.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline.gold.tables import WINDOWS_SPEC, Gold, _of_batches
from pipeline.output.buckets import OvertakenError
from pipeline.output.data_files import place_on_disk
from pipeline.tables import delta, farm_files, upkeep
from pipeline.tables.current import SCHEMAS, CurrentState, last_rows, read
from pipeline.tables.delta import CHECKPOINT_COMMITS, HELD, Table, TableSpec, stored_files, stored_rows
from pipeline.tables.files import PLAIN_ROWS, PartWriter, TableDamagedError, write_files
from pipeline.tables.specs import BASE_SPECS, LOG
from pipeline.tables.upkeep import tidy, too_old
from tests.effort import over_seeds
from tests.pipeline.made_tables import rows_of, write_batch, write_current_state
from tests.processes import child

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLOCKS = BASE_SPECS["clocks"]
WIDER = CLOCKS.schema.append(pa.field("note", pa.string()))
KILLS = 20
WRITING = """
import os, signal, sys
from pathlib import Path
from pipeline.tables.delta import Table
from pipeline.tables.upkeep import tidy
from tests.pipeline.made_tables import write_batch
from tests.pipeline.test_delta_tables import CLOCKS, LOG, clock
output = Path(sys.argv[1])
for processor_s in sys.stdin:
    if not os.fork():
        begin = Table(output, CLOCKS).committed(LOG)
        signal.setitimer(signal.ITIMER_PROF, float(processor_s))
        for batch in range(begin, begin + 10_000):
            table = write_batch(output, "clocks", batch, [clock(batch), clock(batch)])
            if batch % 8 == 0:
                tidy(table, None)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""A program that reads processor times; for each, a run writes batches until the kernel kills it after that time."""


def clock(index: int) -> dict[str, Any]:
    return {"index": index, "term": 1, "log_time": NOON + timedelta(seconds=index), "leader_id": 1, "period_ms": 1000}


def indexes(output: Path) -> list[int]:
    return sorted(stored_rows(output / "clocks", CLOCKS.schema).column("index").to_pylist())


def append_rows(table: Table, batches: Iterable[list[dict[str, Any]]]) -> Table:
    for batch, rows in enumerate(batches):
        table.append(LOG, batch, rows_of(CLOCKS.schema, rows))
    return table


def test_batch_repeated_is_stored_once(tmp_path: Path) -> None:
    for batch in (0, 1, 1, 0, 2):
        write_batch(tmp_path, "clocks", batch, [clock(batch)])
    assert indexes(tmp_path) == [0, 1, 2]
    assert Table(tmp_path, CLOCKS).committed(LOG) == 2
    assert Table(tmp_path, CLOCKS).committed("another query") == -1


def test_unused_files_of_repeated_task_are_swept(tmp_path: Path) -> None:
    table = write_batch(tmp_path, "clocks", 0, [clock(0)])
    orphan = write_files(table.root, CLOCKS.schema, rows_of(CLOCKS.schema, [clock(9)]))
    assert table.append(LOG, 1, None, write_files(table.root, CLOCKS.schema, rows_of(CLOCKS.schema, [clock(1)])))
    assert not table.append(LOG, 1, None, orphan)
    assert indexes(tmp_path) == [0, 1]
    (orphan_path,) = (place_on_disk(table.root, each.path) for each in orphan)
    long_ago = time.time() - 3 * 86_400
    os.utime(orphan_path, (long_ago, long_ago))
    table.sweep(full=True)
    assert not orphan_path.exists()
    assert indexes(tmp_path) == [0, 1]


def test_older_table_gets_new_column_with_nulls(tmp_path: Path) -> None:
    old = pa.schema([each for each in CLOCKS.schema if each.name != "period_ms"])
    Table(tmp_path, TableSpec("clocks", old, ("farm", "index"))).append(LOG, 0, rows_of(old, [clock(1)]))
    write_batch(tmp_path, "clocks", 1, [clock(2)])
    rows = stored_rows(tmp_path / "clocks", CLOCKS.schema).sort_by("index")
    assert rows.column("period_ms").to_pylist() == [None, 1000]
    assert set(CLOCKS.schema.names) == {each.name for each in DeltaTable(tmp_path / "clocks").schema().fields}


def test_log_of_many_commits_stays_short(tmp_path: Path) -> None:
    # given a table of an earlier version, which kept a day of commits
    earlier = {"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 1 days"}
    write_batch(tmp_path, "clocks", 0, [clock(0)])
    DeltaTable(tmp_path / "clocks").alter.set_table_properties(earlier)
    # when a run appends to it, and an hour passes after each commit
    table = Table(tmp_path, CLOCKS)
    log = tmp_path / "clocks" / "_delta_log"
    for batch in range(1, 2 * CHECKPOINT_COMMITS):
        table.append(LOG, batch, rows_of(CLOCKS.schema, [clock(batch)]))
        for file in log.iterdir():
            an_hour_ago = file.stat().st_mtime - 3600
            os.utime(file, (an_hour_ago, an_hour_ago))
    # then
    assert len([*log.iterdir()]) < CHECKPOINT_COMMITS
    assert indexes(tmp_path) == [*range(2 * CHECKPOINT_COMMITS)]


def test_checkpoint_is_durable_before_its_commits_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another order, a power failure could leave neither the checkpoint nor the commits."""
    monkeypatch.setattr(delta, "LOG_KEPT", "interval 0 seconds")
    table, log = Table(tmp_path, CLOCKS), tmp_path / "clocks" / "_delta_log"
    synced: dict[str, int] = {}

    def sync(*paths: Path) -> None:
        commits = len([*log.glob("*.json")])
        synced.update({each.name: commits for each in paths if ".checkpoint." in each.name})

    monkeypatch.setattr(delta, "sync", sync)
    append_rows(table, [[clock(batch)] for batch in range(CHECKPOINT_COMMITS)])
    (commits_at_sync,) = synced.values()
    assert commits_at_sync > CHECKPOINT_COMMITS >= len([*log.glob("*.json")])


def test_merge_keeps_rows_and_older_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "STEPS", ((4, 4 * upkeep.MIB),))
    table = write_batch(tmp_path, "clocks", 0, [clock(0)])
    for batch in range(1, 30):
        table.append(LOG, batch, rows_of(CLOCKS.schema, [clock(batch), {"index": 1000 + batch}]))
        tidy(table, None)
    assert indexes(tmp_path) == [*range(30), *range(1001, 1030)]
    assert len(table.files()) < 10
    assert table.committed(LOG) == 29
    assert pa.table(DeltaTable(tmp_path / "clocks", version=2).to_pyarrow_table()).num_rows == 3


DATED_AND_UNDATED = [*([clock(index * 100)] for index in range(12)), [{"index": 5}]]


def test_retention_drops_whole_files_but_keeps_undated_rows(tmp_path: Path) -> None:
    tidy(append_rows(Table(tmp_path, CLOCKS), DATED_AND_UNDATED), 500_000)
    assert indexes(tmp_path) == [5, 600, 700, 800, 900, 1000, 1100]


def test_log_time_in_future_does_not_drop_present_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = NOON.timestamp() + 1_000
    monkeypatch.setattr("pipeline.tables.upkeep.time.time_ns", lambda: round(now_s * 1e9))
    ahead = [{**clock(0), "index": 7, "log_time": NOON + timedelta(days=40)}]
    tidy(append_rows(Table(tmp_path, CLOCKS), [[clock(400)], ahead, [clock(600)], [clock(900)]]), 500_000)
    assert indexes(tmp_path) == [7, 600, 900]


def test_undated_rows_expire_by_batch_number_or_write_time(tmp_path: Path) -> None:
    files = append_rows(Table(tmp_path, CLOCKS), DATED_AND_UNDATED).files()
    (untimed,) = (file for file in files if file.youngest is None)
    assert untimed.written_ms is not None
    assert untimed not in too_old(files, 500_000, untimed.written_ms + 500_000)
    assert untimed in too_old(files, 500_000, untimed.written_ms + 500_001)
    # a batch number takes precedence over the time of the write, because the machine's clock may be wrong
    numbered = [replace(file, batch=number) for number, file in enumerate(sorted(files, key=lambda each: each.rows))]
    late = untimed.written_ms + 86_400_000
    first, last = (replace(untimed, batch=batch) for batch in (-1, 99))
    assert first in too_old([*numbered, first], 500_000, late)
    assert last not in too_old([*numbered, last], 500_000, late)


def test_file_statistics_hold_day_and_time_range(tmp_path: Path) -> None:
    for batch in (0, 4000, 90_000):
        write_batch(tmp_path, "clocks", batch, [clock(batch), clock(batch + 10)])
    found = sorted(
        (file.day, file.rows, file.oldest, file.youngest) for file in stored_files(tmp_path / "clocks") if file.day
    )
    moments = [NOON + timedelta(seconds=second) for second in (0, 4000, 90_000)]
    assert found == [(moment.date(), 2, moment, moment + timedelta(seconds=10)) for moment in moments]


def test_file_statistics_cover_all_row_groups(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, CLOCKS.schema)
    for index in (5, 3, 9):
        writer.write(rows_of(CLOCKS.schema, [clock(index)]))
    (file,) = writer.close()
    stats = json.loads(file.stats)
    assert (stats["minValues"]["index"], stats["maxValues"]["index"]) == (3, 9)


@pytest.mark.parametrize(("rows", "compression"), [(PLAIN_ROWS, "UNCOMPRESSED"), (PLAIN_ROWS + 1, "ZSTD")])
def test_file_with_many_rows_is_compressed(rows: int, compression: str, tmp_path: Path) -> None:
    (file,) = write_files(tmp_path, CLOCKS.schema, rows_of(CLOCKS.schema, [clock(0)] * rows))
    footer = pq.ParquetFile(place_on_disk(tmp_path, file.path)).metadata
    columns = [footer.row_group(0).column(number) for number in range(footer.num_columns)]
    assert {each.compression for each in columns} == {compression}


def test_statistics_omit_range_without_long_text_of_one_group(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, pa.schema([("farm", pa.string())]))
    for farm in ("a", None, "b", "z" * 5_000):
        writer.write(pa.table({"farm": pa.array([farm], pa.string())}))
    (file,) = writer.close()
    assert json.loads(file.stats) == {"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {"farm": 1}}


def test_duckdb_and_polars_read_current_and_older_version(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars", reason="only the extra `test` brings it")
    write_batch(tmp_path, "clocks", 0, [clock(1)])
    write_batch(tmp_path, "clocks", 1, [clock(2)])
    place = tmp_path / "clocks"
    assert polars.read_delta(str(place)).sort("index")["index"].to_list() == [1, 2]
    assert polars.read_delta(str(place), version=1).shape == (1, len(CLOCKS.schema))
    dataset = DeltaTable(place).to_pyarrow_dataset()
    result = duckdb.sql("SELECT max(index), count(*), min(day)::VARCHAR FROM dataset")
    assert result.fetchall() == [(2, 2, "2026-01-01")]
    assert dataset.count_rows() == 2


@pytest.mark.soak
def test_killed_run_neither_loses_nor_repeats_rows(tmp_path: Path) -> None:
    last = 0
    write_batch(tmp_path, "clocks", last, [clock(last)] * 2)
    with child([sys.executable, "-c", WRITING, str(tmp_path)], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for kill in range(KILLS):
            print(0.1 + kill / 40, file=process.stdin, flush=True)
            assert int(process.stdout.readline()) == -signal.SIGPROF
            # the next run repeats an incomplete batch
            begin, last = last, Table(tmp_path, CLOCKS).committed(LOG)
            assert begin < last
            assert indexes(tmp_path) == sorted([*range(last + 1)] * 2), f"kill {kill}"


def test_damaged_table_error_names_file_and_remedy(tmp_path: Path) -> None:
    write_batch(tmp_path, "clocks", 0, [clock(0)])
    (file,) = stored_files(tmp_path / "clocks")
    (tmp_path / "clocks" / file.path).write_bytes(b"half of a fi")
    with pytest.raises(TableDamagedError, match=r"part-.*parquet is damaged .*: run .* repair --output "):
        stored_rows(tmp_path / "clocks", CLOCKS.schema)
    for commit in (tmp_path / "clocks" / "_delta_log").glob("*.json"):
        commit.write_text("{")
    with pytest.raises(TableDamagedError, match=r"clocks is damaged .*: run .* repair --output "):
        stored_files(tmp_path / "clocks")


def commits_of(output: Path) -> list[Path]:
    return sorted((output / "clocks" / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_table_with_emptied_earlier_commit_is_refused(lost: int, tmp_path: Path) -> None:
    append_rows(Table(tmp_path, CLOCKS), [[clock(batch)] * 2 for batch in range(4)])
    commits_of(tmp_path)[lost].write_bytes(b"")
    reason = r"clocks should have 8 rows and has 6: a commit was lost"
    with pytest.raises(TableDamagedError, match=reason):
        stored_rows(tmp_path / "clocks", CLOCKS.schema)
    with pytest.raises(TableDamagedError, match=reason):
        Table(tmp_path, CLOCKS)


@pytest.mark.parametrize(("count", "reason"), [(1, "should have 1 row and has 0"), (3, "should have 3 rows and has 2")])
def test_table_restored_by_another_program_is_refused(count: int, reason: str, tmp_path: Path) -> None:
    append_rows(Table(tmp_path, CLOCKS), [[clock(batch)] for batch in range(count)])
    DeltaTable(tmp_path / "clocks").restore(count - 1)
    with pytest.raises(TableDamagedError, match=f"clocks {reason}"):
        Table(tmp_path, CLOCKS)


def test_table_optimized_and_vacuumed_by_another_program_is_read(tmp_path: Path) -> None:
    for batch in range(4):
        written = write_batch(tmp_path, "clocks", batch, [clock(batch)])
    assert len(written.files()) == 4
    table = DeltaTable(tmp_path / "clocks")
    table.optimize.compact()
    assert len(written.files()) == 1
    table.vacuum(dry_run=False, retention_hours=0, enforce_retention_duration=False)
    write_batch(tmp_path, "clocks", 4, [clock(4)])
    assert indexes(tmp_path) == [0, 1, 2, 3, 4]


def test_table_of_earlier_version_counts_rows_at_next_commit(tmp_path: Path) -> None:
    # given a table whose commits do not state the number of rows, and a file without statistics
    first = write_batch(tmp_path, "clocks", 0, [clock(0), clock(1)])
    (commit,) = commits_of(tmp_path)[1:]
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    kept = [each for each in actions if each.get("txn", {}).get("appId") != HELD]
    assert len(kept) == len(actions) - 1
    commit.write_text("".join(f"{json.dumps(each)}\n" for each in kept))
    # when the next version writes
    write_batch(tmp_path, "clocks", 1, [clock(2)])
    # then
    assert indexes(tmp_path) == [0, 1, 2]
    assert DeltaTable(str(first.root)).transaction_version(HELD) == 3


def test_commit_follows_sync_of_data_files_and_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))

    monkeypatch.setattr(os, "fsync", recorded)
    table = Table(tmp_path, CLOCKS)
    append_rows(table, [[clock(0)]])
    (file,) = table.files()
    day, log = str(Path(file.path).parent), "clocks/_delta_log"
    created = ["clocks", ".", f"{log}/{0:020}.json", log]
    assert synced == [*created, "clocks", f"clocks/{file.path}", f"clocks/{day}", f"{log}/{1:020}.json", log]


def test_upkeep_syncs_merged_files_before_it_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another order, a power failure could leave neither the small files nor the merged file."""
    monkeypatch.setattr(delta, "LOG_KEPT", "interval 0 seconds")
    table = Table(tmp_path, replace(CLOCKS, undo="interval 0 seconds"))
    append_rows(table, [[clock(batch)] for batch in range(CHECKPOINT_COMMITS - 1)])
    root, log = tmp_path / "clocks", tmp_path / "clocks" / "_delta_log"
    small, synced = {each.path for each in table.files()}, dict[str, bool]()

    def sync(*paths: Path) -> None:
        is_whole = all((root / each).exists() for each in small) and len([*log.glob("*.json")]) > len(small)
        synced.update({str(each.relative_to(root)): is_whole for each in paths})

    monkeypatch.setattr(delta, "sync", sync)
    table.merge_small(NOON.date(), 1_000_000)
    (merged,) = {each.path for each in table.files()}
    last = CHECKPOINT_COMMITS
    for name in (merged, f"_delta_log/{last:020}.json", f"_delta_log/{last:020}.checkpoint.parquet", "_delta_log"):
        assert synced[name]
    before = {each.name for each in log.glob("*.json")}
    table.sweep(full=True)
    assert not any((root / each).exists() for each in small)
    assert {each.name for each in log.glob("*.json")} - before <= {Path(each).name for each in synced}
    assert indexes(tmp_path) == [*range(CHECKPOINT_COMMITS - 1)]


@pytest.mark.parametrize(
    ("commit", "is_earlier"),
    [
        (lambda table: table.append(LOG, 99, rows_of(CLOCKS.schema, [clock(99)])), False),
        (lambda table: table.merge_small(NOON.date(), 1_000_000), False),
        (lambda table: table.sweep(full=True), False),
        (lambda table: Table(table.root.parent, replace(table.spec, schema=WIDER)), True),
        (lambda table: Table(table.root.parent, table.spec), True),
    ],
    ids=["batch", "merge", "sweep", "columns", "properties"],
)
def test_commit_is_synced_without_checkpoint_of_delta_rs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: Callable[[Table], object], *, is_earlier: bool
) -> None:
    """delta-rs would make a checkpoint at the commits 9, 19, 29 and so on, and would not sync it.

    `is_earlier`: a table of an earlier version has the interval in its properties.
    """
    table, last = Table(tmp_path, replace(CLOCKS, undo="interval 0 seconds")), CHECKPOINT_COMMITS - 1
    append_rows(table, [[clock(batch)] for batch in range(last - 1 - is_earlier)])
    if is_earlier:
        DeltaTable(tmp_path / "clocks").alter.set_table_properties(
            {"delta.checkpointInterval": str(CHECKPOINT_COMMITS)}
        )
    file = tmp_path / "clocks" / table.files()[0].path
    file.with_name("part-0.parquet").write_bytes(file.read_bytes())  # VACUUM commits only if it deletes a file
    synced: set[str] = set()
    monkeypatch.setattr(delta, "sync", lambda *paths: synced.update(each.name for each in paths))
    commit(table)
    assert f"{last:020}.json" in synced
    assert not [*(tmp_path / "clocks" / "_delta_log").glob(f"{last:020}.checkpoint*")]


def test_unwritable_table_error_names_table(tmp_path: Path) -> None:
    (tmp_path / "clocks" / "_delta_log").mkdir(parents=True)
    (tmp_path / "clocks" / "_delta_log" / "00000000000000000000.json").mkdir()
    with pytest.raises(OSError, match=r"clocks (cannot be written|is damaged)"):
        Table(tmp_path, CLOCKS)


def test_failed_upkeep_error_names_table(tmp_path: Path) -> None:
    table = Table(tmp_path, CLOCKS)
    append_rows(table, [[clock(batch)] for batch in range(2)])
    place_on_disk(table.root, table.files()[0].path).unlink()
    with pytest.raises(OSError, match=r"clocks cannot be written: [^\n]+$"):
        table.merge_small(NOON.date(), 1_000_000)


def test_current_state_ignores_older_row_and_repeated_batch(tmp_path: Path) -> None:
    def publisher(index: int, server_id: int) -> dict[str, list[dict[str, object]]]:
        return {"publishers": [{"master": "d-1", "index": index, "server_id": server_id}]}

    for batch, (index, server_id) in enumerate(((10, 1), (9, 2), (10, 1), (11, 3), (10, 1))):
        write_current_state(tmp_path, batch, publisher(index, server_id))
    write_current_state(tmp_path, 3, publisher(99, 99))
    assert [(row["index"], row["server_id"]) for row in read(tmp_path, "publishers")] == [(11, 3)]
    # values absent from a batch keep their last value
    write_current_state(tmp_path, 5, {"farm": [{"index": 7, "period_ms": 10_000}]})
    write_current_state(tmp_path, 6, {"farm": [{"index": 8, "leader_id": 2, "entries": 1}]})
    (farm,) = read(tmp_path, "farm")
    assert (farm["index"], farm["period_ms"], farm["leader_id"]) == (8, 10_000, 2)
    # a batch without a count makes the number of entries unknown
    assert farm["entries"] is None


def entries_read(count: int) -> tuple[str, pa.Table]:
    return "farm", rows_of(SCHEMAS["farm"], [{"index": count, "entries": count}])


def test_batch_of_current_state_by_two_writers_counts_once(tmp_path: Path) -> None:
    one = CurrentState(tmp_path)
    one.take(LOG, 0, *entries_read(10))
    other = CurrentState(tmp_path)
    other.take(LOG, 0, *entries_read(10))
    # Both have read batch 0. The second writer must not add batch 1 to rows that contain it.
    one.take(LOG, 1, *entries_read(20))
    with pytest.raises(OvertakenError, match="current_farm was written by another process"):
        other.take(LOG, 1, *entries_read(20))
    other.take(LOG, 1, *entries_read(20))
    other.take(LOG, 2, *entries_read(5))
    assert [each["entries"] for each in read(tmp_path, "farm")] == [35]


def test_first_batch_of_two_writers_counts_once(tmp_path: Path) -> None:
    one, other = CurrentState(tmp_path), CurrentState(tmp_path)
    for table in other.tables():
        assert table.known_batch(LOG) == -1
    one.take(LOG, 0, *entries_read(10))
    with pytest.raises(OvertakenError):
        other.take(LOG, 0, *entries_read(10))
    assert [each["entries"] for each in read(tmp_path, "farm")] == [10]


def test_commit_of_another_writer_after_own_one_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, sync_after = Table(tmp_path, CLOCKS), Table._sync_after

    def commit_and_sync(table: Table, version: int) -> None:
        monkeypatch.setattr(Table, "_sync_after", sync_after)
        assert Table(tmp_path, CLOCKS).append(LOG, 1, rows_of(CLOCKS.schema, [clock(1)]))
        table._sync_after(version)

    monkeypatch.setattr(Table, "_sync_after", commit_and_sync)
    with pytest.raises(OvertakenError):
        one.append(LOG, 0, rows_of(CLOCKS.schema, [clock(0)]))
    assert not one.append(LOG, 1, rows_of(CLOCKS.schema, [clock(1)]))
    assert one.append(LOG, 2, rows_of(CLOCKS.schema, [clock(2)]))
    assert (indexes(tmp_path), one.lacks_rows()) == ([0, 1, 2], False)


def test_commit_of_another_program_without_rows_is_accepted(tmp_path: Path) -> None:
    table = write_batch(tmp_path, "clocks", 0, [clock(0)])
    table.append(LOG, 1, rows_of(CLOCKS.schema, [clock(1)]))
    DeltaTable(tmp_path / "clocks").optimize.compact()
    assert table.append(LOG, 2, rows_of(CLOCKS.schema, [clock(2)]))
    assert table.replace(LOG, 3, rows_of(CLOCKS.schema, [clock(3)]))
    assert (indexes(tmp_path), table.lacks_rows()) == ([3], False)


def test_windows_noted_by_another_writer_are_not_dropped(tmp_path: Path) -> None:
    windows = pa.table({"farm": pa.array(["a"], pa.string()), "window_start": pa.array([NOON])})
    one, other = Gold(tmp_path, 60_000), Gold(tmp_path, 60_000)
    one.note(LOG, 0, windows)
    with pytest.raises(OvertakenError):
        other.note(LOG, 1, windows)


@over_seeds(many=20, quick=1)
def test_windows_in_files_by_farm_equal_windows_in_one_file(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most the windows of one file are in memory, for any number of farms."""
    random, bound, farms = Random(seed), 7, 60
    batches = [
        [
            (f"{random.randrange(farms):02}", NOON + timedelta(minutes=number + random.choice((0, 0, 1))))
            for _ in range(9)
        ]
        for number in range(12)
    ]

    def noted(output: Path) -> list[set[tuple[str, datetime]]]:
        gold = Gold(output, 60_000)
        for batch, found in enumerate(batches):
            farm, start = zip(*found, strict=True)
            gold.note(LOG, batch, pa.table({"farm": pa.array(farm), "window_start": pa.array(start)}))
            if batch == 5:
                gold.refresh(batch)
        kept = sum(each.num_rows for each in gold._windows._kept.values())
        assert kept <= farm_files.FILE_ROWS
        rows = stored_rows(output / "gold_windows", WINDOWS_SPEC.schema)
        return [
            {(each["farm"], each["window_start"]) for each in _of_batches(rows, made, len(batches)).to_pylist()}
            for made in range(5, len(batches))
        ]

    whole = noted(tmp_path / "whole")
    monkeypatch.setattr(farm_files, "FILE_ROWS", bound)
    assert noted(tmp_path / "parts") == whole, f"seed {seed}"
    assert len(stored_files(tmp_path / "parts" / "gold_windows")) > farms / bound


@over_seeds(many=40, quick=1)
def test_state_in_files_by_farm_equals_state_in_one_file(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    batches = [
        [
            {"farm": f"{random.randrange(40):02}", "server_id": random.randint(1, 3), "index": random.randint(1, 99)}
            for _ in range(random.choice((1, 5, 30)))
        ]
        for _ in range(8)
    ]

    def write(output: Path) -> pa.Table:
        state = CurrentState(output)
        for batch, rows in enumerate(batches):
            found = rows_of(SCHEMAS["routers"], rows)
            # when another run continues, another program merges the files, or a part of the next batch is shown
            if random.random() < 0.3:
                state = CurrentState(output)
            if random.random() < 0.2:
                DeltaTable(output / "current_routers").optimize.compact()
            if random.random() < 0.2:
                state.show("routers", found)
            state.take(LOG, batch, "routers", found)
        return state.rows("routers").sort_by([("farm", "ascending"), ("server_id", "ascending")])

    whole = write(tmp_path / "whole")
    monkeypatch.setattr(farm_files, "FILE_ROWS", 7)
    assert write(tmp_path / "parts").equals(whole), f"seed {seed}"


def test_batch_rewrites_state_of_its_farms_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm_files, "FILE_ROWS", 2)
    rows = [{"farm": farm, "server_id": 1, "index": 5, "log_time": NOON} for farm in "bcdefg"]
    write_current_state(tmp_path, 0, {"routers": rows})
    before = {each.path for each in stored_files(tmp_path / "current_routers")}
    late = {"farm": "e", "server_id": 1, "index": 6, "log_time": NOON + timedelta(days=9)}
    write_current_state(tmp_path, 1, {"routers": [late, {**late, "farm": "a"}]})
    table = next(each for each in CurrentState(tmp_path).tables() if each.spec.name == "current_routers")
    after = table.files()
    # then only the files of its farms are replaced; a new farm is in the first file
    assert len(before) == 3
    assert len(before & {each.path for each in after}) == 1
    # and retention does not drop the state of farms without new entries
    monkeypatch.setattr(upkeep, "LOOK_BATCHES", 1)
    upkeep.Upkeep(1_000).after_batch([table])
    assert table.files() == after


def test_file_of_state_states_any_first_and_last_farm(tmp_path: Path) -> None:
    """The nodes of a farm report its cluster id, and the pipeline accepts any text."""
    for batch, names in enumerate((["", "\0/../"], ["\U0010fffe", "\U0010ffff"])):
        rows = [{"farm": farm, "server_id": 1, "index": 5, "log_time": NOON} for farm in names]
        write_current_state(tmp_path / str(batch), 0, {"routers": rows})
        (file,) = stored_files(tmp_path / str(batch) / "current_routers")
        assert [file.first_farm, file.last_farm] == names


def test_full_file_of_state_is_divided_equally() -> None:
    """If a full file gave away only its last farm, each new farm would make another file."""
    rows = pa.table({"farm": [*"aabccdefghi"]})
    assert [each.column("farm").to_pylist() for each in farm_files.pieces(rows, 10)] == [[*"aabccd"], [*"efghi"]]
    assert [*farm_files.pieces(rows, 11)] == [rows]


def test_last_row_with_equal_key_and_position_is_kept() -> None:
    rows = pa.table({"key": ["a", "b", "a", "a"], "place": [3, 1, 4, 4], "said": [1, 2, 3, 4]})
    assert sorted(last_rows(rows, ["key"], "place").column("said").to_pylist()) == [2, 4]


@pytest.mark.parametrize(("owner", "step"), [(Table, "_sync_after"), (DeltaTable, "create_write_transaction")])
def test_batch_of_failed_commit_is_stored_once(
    owner: type, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_batch(tmp_path, "clocks", 0, [clock(0)])
    rows = write_batch(tmp_path / "other", "clocks", 1, [clock(1)]).rows()

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as failing:
        failing.setattr(owner, step, fail)
        with pytest.raises(OSError, match="full"):
            table.append(LOG, 1, rows)
    table.append(LOG, 1, rows)
    assert indexes(tmp_path) == [0, 1]
