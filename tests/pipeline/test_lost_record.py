"""Tables whose record of batches was lost together with `ranges`, or whose watch is older than the other tables."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.queries import query
from pipeline.gold.tables import Gold
from pipeline.lake import Lake
from pipeline.repair.damage import examine
from pipeline.repair.repairing import repair
from pipeline.serve.query import QueryError, documents, stored_gaps
from pipeline.source.farm import FarmDataSource
from pipeline.tables.batch_notes import noted_batches
from pipeline.tables.files import TableDamagedError
from pipeline.tables.specs import LOG
from tests.effort import each_case
from tests.pipeline.farm_log_server import MadeUpLog, serve_log, two_days
from tests.pipeline.made_tables import tables_of, without_records

RECORD = "batches-log.json"


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return copies of one output directory after a batch, and after the next one."""
    made, entries = tmp_path_factory.mktemp("states"), two_days().entries
    for batch, part in enumerate((entries[:9], entries[9:])):
        tables_of(MadeUpLog(entries=part), made / "tables", batch, watch=True)
        shutil.copytree(made / "tables", made / str(batch))
    return made / "0", made / "1"


def restored(output: Path, name: str, earlier: Path) -> None:
    shutil.rmtree(output / name)
    shutil.copytree(earlier / name, output / name)


def repair_from(output: Path) -> None:
    with serve_log(two_days(), output.with_suffix(".sock")) as address:
        repair(output, examine(output), FarmDataSource({"node": address}).farms, lambda _: None)


def counts_in(output: Path) -> str:
    sql = "SELECT count(*) FROM reports UNION ALL SELECT count(*) FROM clocks"
    result = CliRunner().invoke(query, [sql, "--output", str(output)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_lost_record_and_ranges_are_refused_until_repair(states: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = states
    output = shutil.copytree(after, tmp_path / "tables")
    # given a table that lacks rows, too
    restored(output, "reports", before)
    (output / RECORD).unlink()
    shutil.rmtree(output / "ranges")
    result = CliRunner().invoke(query, ["SELECT count(*) FROM clocks", "--output", str(output)])
    assert (result.exit_code, f"{RECORD} does not belong to the tables: it is missing" in result.output) == (1, True)
    with pytest.raises(TableDamagedError, match="it is missing; stop the pipeline and run"):
        Lake(output, 60_000)
    repair_from(output)
    assert counts_in(output) == counts_in(after)
    assert Lake(output, 60_000).first_entries == {two_days().cluster_id: 27}


def test_queries_of_any_table_of_log_without_record_are_refused(states: tuple[Path, Path], tmp_path: Path) -> None:
    output = shutil.copytree(states[-1], tmp_path / "tables")
    Gold(output, 60_000).refresh(1)
    (output / RECORD).unlink()
    for is_without_ranges in (False, True):
        if is_without_ranges:
            shutil.rmtree(output / "ranges")
        for table in ("ranges", "current_routers", "transitions", "router_health"):
            result = CliRunner().invoke(query, [f"FROM {table}", "--output", str(output)])
            assert (result.exit_code, f"{RECORD} does not belong" in result.output) == (1, True), result.output
        with pytest.raises(QueryError, match="it is missing"):
            stored_gaps(output)
    # The alerting numbers its commits itself, so `alerts` does not need the record.
    assert documents(output, "SELECT count(*) AS n FROM alerts") == [{"n": 0}]


@each_case("name", ["transitions", "current_watched", "watch_state"])
def test_older_table_of_watch_without_record_is_refused(name: str, states: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = states
    output = shutil.copytree(after, tmp_path / "tables")
    (output / RECORD).unlink()
    assert examine(output).record == "it is missing"
    restored(output, name, before)
    with pytest.raises(TableDamagedError, match=f"{name} lost commits or files"):
        repair_from(output)
    # when the table is missing
    shutil.rmtree(output / name)
    with pytest.raises(TableDamagedError, match=f"{name} lost commits or files"):
        repair_from(output)


@each_case("table", ["", "clocks"])
def test_tables_of_version_without_record_are_repaired(table: str, states: tuple[Path, Path], tmp_path: Path) -> None:
    output = shutil.copytree(states[-1], tmp_path / "tables")
    without_records(output)
    assert not examine(output)
    assert counts_in(output) == counts_in(states[-1])
    Lake(output, 60_000)
    if table:
        min((output / table).rglob("*.parquet")).unlink()
        repair_from(output)
        assert counts_in(output) == counts_in(states[-1])
        assert noted_batches(output, LOG) is not None
