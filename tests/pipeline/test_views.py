"""`garlicfarm pipeline views`: the tables in another program's DuckDB, and the panels of the dashboard.

The views use `delta_scan` of DuckDB's extension `delta`, which DuckDB downloads. A test cannot download it. So here
delta-rs, which reads the same Delta log, replaces this function. No test uses the extension.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from pipeline.cli.queries import views
from pipeline.gold.answers import ANSWERS, answer_sql
from pipeline.gold.tables import Gold
from pipeline.serve.query import TABLES, documents, of_one_version
from tests.packages import monitoring
from tests.pipeline.generated_log import generated_log
from tests.pipeline.made_tables import tables_of, write_batch, write_derived
from tests.structure.sources import ROOT

MINUTE_MS = 60_000
PANELS = monitoring.panels(monitoring.TABLES_DASHBOARD)
_SCAN = re.compile(r"delta_scan\('((?:[^']|'')+)'\)")
_CODE = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)
_MACRO = re.compile(r"\$__timeFilter\(([^()]+)\)")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tables of a farm with failures, refused entries, leaders and a detection. Its path has a quote."""
    made = tmp_path_factory.mktemp("tables") / "farm's"
    gold = Gold(made, MINUTE_MS)
    tables_of(generated_log(routers=5, days=0.15, seed=3), made, gold=gold, watch=True)
    gold.refresh(0)
    (last,) = documents(made, "SELECT farm, log_time AS suspect_at FROM reports ORDER BY index DESC LIMIT 1")
    episode = {**last, "observer": "one", "member": "two", "member_id": "2", "outcome": "dead"}
    spans = {"contact_to_suspect_ms": 900, "contact_to_dead_ms": 4000, "suspect_to_dead_ms": 3100}
    write_derived(made, "detections", [{**episode, **spans}])
    return made


def script(output: Path) -> str:
    result = CliRunner().invoke(views, ["--output", str(output)])
    assert result.exit_code == 0, result.output
    return result.stdout


def open_views(sql: str) -> duckdb.DuckDBPyConnection:
    """Run the script in a new DuckDB; delta-rs replaces the extension."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for number, path in enumerate(_SCAN.findall(sql)):
        connection.register("dataset", DeltaTable(path.replace("''", "'")).to_pyarrow_dataset())
        connection.table("dataset").create(f"stored_{number}")
        connection.unregister("dataset")
        sql = sql.replace(f"delta_scan('{path}')", f"stored_{number}")
    connection.execute(re.sub(r"^(INSTALL|LOAD) delta;$", "", sql, flags=re.MULTILINE))
    return connection


@pytest.fixture(scope="module")
def program(output: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with open_views(script(output)) as connection:
        yield connection


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall()


def test_view_of_each_table_and_query_has_rows_of_query(output: Path, program: duckdb.DuckDBPyConnection) -> None:
    assert {name for (name,) in rows(program, "SELECT view_name FROM duckdb_views() WHERE NOT internal")} == {
        *TABLES,
        *ANSWERS,
    }
    for name in ("reports", "router_health", "current_routers", "transitions", "detections"):
        expected = [tuple(row.values()) for row in documents(output, f"FROM {name}")]
        assert sorted(map(repr, program.table(name).fetchall())) == sorted(map(repr, expected))
        assert expected
    answers = of_one_version(output, lambda run_query: {name: run_query(answer_sql(name)) for name in ANSWERS})
    for name, found in answers.items():
        assert rows(program, f"FROM {name}") == [tuple(row.values()) for row in found]
    assert rows(program, "FROM slo")


def test_absent_table_is_empty_view_with_columns(tmp_path: Path) -> None:
    write_batch(tmp_path, "clocks", 0, [{"index": 1}])
    script_text = script(tmp_path)
    assert script_text.count("not there yet") == len(TABLES) - 1
    with open_views(script_text) as connection:
        assert rows(connection, "SELECT count(*) FROM clocks") == [(1,)]
        assert rows(connection, "FROM slo") == []
        for name, schema in TABLES.items():
            assert connection.table(name).columns == schema.names
        configurations = connection.table("configurations")
        kinds = dict(zip(configurations.columns, map(str, configurations.types), strict=True))
        assert kinds["voters"] == "BIGINT[]"


def test_directory_without_tables_error_names_remedy(tmp_path: Path) -> None:
    result = CliRunner().invoke(views, ["--output", str(tmp_path)])
    assert (result.exit_code, "make them with" in result.output) == (1, True)


def test_python_code_of_document_reads_table(output: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "farm-tables").symlink_to(output)
    monkeypatch.chdir(tmp_path)
    document = (ROOT / "docs" / "how-to" / "open-the-tables.md").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(each).strip() for each in _CODE.findall(document)]
    parts = ast.parse("\n".join(each for each in blocks if each.startswith("import "))).body
    assert {each.names[0].name for each in parts if isinstance(each, ast.Import)} == {"duckdb", "polars"}
    space: dict[str, Any] = {}
    found = []
    for part in parts:
        if isinstance(part, ast.Expr):
            found.append(eval(ast.unparse(part), space))  # noqa: S307 - the document's own code
        else:
            exec(ast.unparse(part), space)  # noqa: S102 - the same
    by_duckdb, all_reports, less_available = found
    (counted,) = documents(output, "SELECT count(*) AS n FROM reports")
    assert sum(count for _, count in by_duckdb.fetchall()) == all_reports.height == counted["n"]
    assert 0 < less_available.height < counted["n"]


# -- the dashboard -----------------------------------------------------------------------------------------------------


def grafana_sql(sql: str, farms: list[str], begin: datetime, end: datetime) -> str:
    """Return the SQL with Grafana's substitutions: times and names become SQL literals."""
    since, until = (f"'{each:%Y-%m-%dT%H:%M:%SZ}'" for each in (begin, end))
    sql = _MACRO.sub(rf"\1 >= {since} AND \1 <= {until}", sql)
    sql = sql.replace("$__timeFrom()", since).replace("$__timeTo()", until)
    sql = sql.replace("$farm", ", ".join(f"'{farm}'" for farm in farms))
    assert "$" not in sql
    return sql


def panel_rows(program: duckdb.DuckDBPyConnection, panel: dict[str, Any]) -> duckdb.DuckDBPyRelation:
    (variable,) = (
        each
        for each in monitoring.dashboard(monitoring.TABLES_DASHBOARD)["templating"]["list"]
        if each["name"] == "farm"
    )
    farms = [farm for (farm,) in rows(program, variable["query"])]
    ((begin, end),) = rows(program, "SELECT min(log_time), max(log_time) FROM reports")
    (target,) = panel["targets"]
    return program.sql(grafana_sql(target["rawSql"], farms, begin, end + timedelta(seconds=1)))


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panel_has_rows_and_named_columns(program: duckdb.DuckDBPyConnection, panel: dict[str, Any]) -> None:
    found = panel_rows(program, panel)
    named = [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]]
    assert [column for column in found.columns if column != "time"] == named
    assert found.fetchone() is not None
    # Grafana's data source would convert a HUGEINT to text.
    assert "HUGEINT" not in map(str, found.types)


@pytest.mark.parametrize(
    "panel", [panel for panel in PANELS if panel["type"] == "timeseries"], ids=lambda panel: panel["title"]
)
def test_time_panel_has_one_sorted_row_per_moment(program: duckdb.DuckDBPyConnection, panel: dict[str, Any]) -> None:
    found = panel_rows(program, panel)
    assert (found.columns[0], panel["targets"][0]["format"]) == ("time", 0)
    assert {str(kind) for kind in found.types[1:]} <= {"BIGINT", "DOUBLE"}
    moments = [row[0] for row in found.fetchall()]
    assert moments == sorted(set(moments))


@pytest.mark.parametrize(
    "panel",
    [each for each in PANELS if each["type"] == "table" and "GROUP BY" not in each["targets"][0]["rawSql"]],
    ids=lambda panel: panel["title"],
)
def test_row_about_one_object_names_its_farm(program: duckdb.DuckDBPyConnection, panel: dict[str, Any]) -> None:
    assert "farm" in panel_rows(program, panel).columns
