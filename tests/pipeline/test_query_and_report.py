"""Questions to the tables, the page made of them, and files that are merged under a reader: all without a JVM."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli.doctor import doctor, examine
from pipeline.cli.queries import query as query_command
from pipeline.gold.refreshing import opened, source_view
from pipeline.gold.tables import last_rows
from pipeline.serve.query import QueryError, documents
from pipeline.serve.query import asked as asked_for
from pipeline.tables.delta import stored_files
from pipeline.tables.files import TableDamagedError
from pipeline.tables.names import remember_names
from tests.pipeline.farm_log_server import three_servers
from tests.pipeline.made_tables import derived, knew, tables_of, wrote

duckdb = pytest.importorskip("duckdb", reason="the extra `pipeline` of an older version is installed")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def clock(index: int) -> dict[str, Any]:
    return {"index": index, "term": 1, "log_time": NOON + timedelta(seconds=index), "leader_id": 1, "period_ms": 1000}


def asked(output: Path, sql: str, *options: str) -> str:
    result = CliRunner().invoke(query_command, [sql, "--output", str(output), *options])
    assert result.exit_code == 0, result.output
    return result.output


def indexes(output: Path) -> list[int]:
    lines = asked(output, "SELECT index FROM clocks ORDER BY 1", "--json").splitlines()
    return [json.loads(line)["index"] for line in lines]


def test_a_query_reads_history_and_current_state_in_all_formats(tmp_path: Path) -> None:
    wrote(tmp_path, "clocks", 0, [clock(1), clock(2)])
    knew(tmp_path, 0, {"routers": [{"server_id": 3, "index": 9, "publishing": True, "log_time": NOON}]})
    assert asked(tmp_path, "SELECT count(*) AS n, max(log_time) AS t FROM clocks", "--csv") == (
        "n,t\n2,2026-01-01T12:00:02.000Z\n"
    )
    row = json.loads(asked(tmp_path, "SELECT * FROM current_routers", "--json"))
    assert (row["server_id"], row["publishing"], row["log_time"]) == (3, True, "2026-01-01T12:00:00.000Z")
    assert "leader_id" in asked(tmp_path, "DESCRIBE clocks")


@pytest.mark.parametrize(
    "sql",
    [
        "COPY clocks TO 'stolen.csv'",
        "CREATE TABLE mine AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SET enable_external_access = true",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_text('{output}/pseudonym.salt')",
        "SELECT * FROM glob('{output}/*')",
        "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{file}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{output}/stolen.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA memory_limit = '100GB'",
        "EXPORT DATABASE '{output}/copy'",
        "ATTACH 'other.db'",
        "SELECT nothing FROM clocks",
        "SELECT * FROM no_such_table",
        "",
    ],
)
def test_a_query_changes_nothing_and_reads_nothing_else(tmp_path: Path, sql: str) -> None:
    wrote(tmp_path, "clocks", 0, [clock(1)])
    (stored,) = stored_files(tmp_path / "clocks")
    (tmp_path / "pseudonym.salt").write_text("secret")

    def everything() -> dict[Path, bytes]:
        return {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}

    before = everything()
    told = sql.format(output=tmp_path, file=tmp_path / "clocks" / stored.path)
    result = CliRunner().invoke(query_command, [told, "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "secret" not in result.output
    assert everything() == before


def test_a_query_that_needs_too_much_memory_says_so_and_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote(tmp_path, "clocks", 0, [clock(1)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.serve.query.MEMORY_LIMIT", "20MB")
    before = sorted(tmp_path.rglob("*"))
    sql = "SELECT range || 'a' AS a FROM range(10000000) ORDER BY hash(a)"
    result = CliRunner().invoke(query_command, [sql, "--output", str(tmp_path)])
    assert (result.exit_code, "needs more than 20MB of memory" in result.output) == (1, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_text_of_other_machines_is_shown_without_power_over_the_terminal(tmp_path: Path) -> None:
    wrote(tmp_path, "clocks", 0, [clock(1)])
    shown = asked(tmp_path, "SELECT chr(27) || '[31m[/red] [b]' AS \"a[/x]\", true AS b, NULL AS c FROM clocks")
    assert shown.splitlines() == ["a[/x]               b     c", r"\x1b[31m[/red] [b]  true"]


def test_values_that_json_and_this_machines_zone_have_no_say_in_are_told_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    wrote(tmp_path, "clocks", 0, [clock(1)])
    sql = "SELECT index, index, 'nan'::DOUBLE AS n, log_time::TIMESTAMP AS t, [log_time] AS l FROM clocks"
    row = json.loads(asked(tmp_path, sql, "--json"))
    monkeypatch.undo()
    time.tzset()
    assert row == {
        "index": 1,
        "index_2": 1,
        "n": None,
        "t": "2026-01-01T12:00:01.000",
        "l": ["2026-01-01T12:00:01.000Z"],
    }


def test_an_answer_larger_than_what_is_shown_is_handed_on_row_by_row(tmp_path: Path) -> None:
    wrote(tmp_path, "clocks", 0, [clock(1)])
    with asked_for(tmp_path, "SELECT range, repeat('x', 1000) AS text FROM range(100000000000)") as answer:
        assert next(answer.rows)[0] == 0
    shown = CliRunner().invoke(query_command, ["FROM range(100000000000)", "--output", str(tmp_path)])
    assert shown.stdout.splitlines()[-1] == "199"
    assert "first 200 rows" in shown.stderr
    names = asked(tmp_path, "SHOW TABLES", "--csv").split()
    assert {"clocks", "router_health", "current_routers"} <= set(names)
    assert not [name for name in names if name.startswith("_")], "what the views stand on is not told"


def test_an_answer_out_of_tables_without_rows_says_which_and_what_fills_them(tmp_path: Path) -> None:
    def said(sql: str, *options: str) -> tuple[str, str]:
        result = CliRunner().invoke(query_command, [sql, "--output", str(tmp_path), *options])
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    # given tables of a run that did not watch, and of traces of which it read none
    tables_of(three_servers(minutes=1), tmp_path)
    derived(tmp_path, "detections", [])
    # then each empty table that is read is told, with what fills it
    head, why = said("reliability")
    assert (len(head.splitlines()), head.startswith("farm")) == (1, True)
    assert why.startswith("transitions is empty: `run` and `run --once --watch` watch")
    assert "--watch" in why
    assert "--trace-files" in said("SELECT count(*) FROM Detections, events", "--csv")[1]
    assert len(said("SELECT count(*) FROM Detections, events", "--csv")[1].splitlines()) == 2
    assert "pipeline floodfills" in said("DESCRIBE closest_floodfills", "--json")[1]
    assert said("SELECT * FROM publications")[1] == "publications is empty: the read entries do not produce any\n"
    # and nothing is said of those that have rows, or that a query gives a name to itself
    assert said("WITH events AS (SELECT 1 AS a) SELECT * FROM events, current_routers")[1] == ""


def test_a_directory_without_tables_and_a_damaged_state_are_errors_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(query_command, ["SELECT 1", "--output", str(tmp_path / "empty")])
    assert "does not contain tables" in result.output
    knew(tmp_path, 0, {"routers": [{"server_id": 3, "index": 9}]})
    for commit in (tmp_path / "current_routers" / "_delta_log").glob("*.json"):
        commit.write_text("{")
    result = CliRunner().invoke(query_command, ["SELECT 1", "--output", str(tmp_path)])
    assert (result.exit_code, "current_routers is damaged" in result.output) == (1, True)


def test_a_damaged_file_of_a_daily_table_is_an_error_that_says_which_and_what_to_do(tmp_path: Path) -> None:
    derived(tmp_path, "router_health", [{"window_start": NOON, "server_id": 1}])
    (stored,) = stored_files(tmp_path / "router_health")
    file = tmp_path / "router_health" / stored.path
    file.write_bytes(b"no Parquet")
    with pytest.raises(TableDamagedError, match=f"{file} is damaged"):
        last_rows(tmp_path, 10)


def broken(file: Path, way: str) -> None:
    whole = file.read_bytes()
    match way:
        case "empty":
            file.write_bytes(b"")
        case "no Parquet":
            file.write_bytes(b"no Parquet, and long enough to be one")
        case "missing":
            file.unlink()
        case _:
            # Pages, behind the mark at the start; the end of the file still tells what is in it.
            file.write_bytes(whole[:4] + b"\xff" * (len(whole) // 4) + whole[4 + len(whole) // 4 :])


@pytest.mark.parametrize("way", ["empty", "no Parquet", "missing", "pages"])
def test_query_of_a_damaged_file_names_it_and_the_remedy(way: str, tmp_path: Path) -> None:
    rows = [{"window_start": NOON + timedelta(minutes=minute), "server_id": minute} for minute in range(2_000)]
    derived(tmp_path, "router_health", rows)
    stored = stored_files(tmp_path / "router_health")[0]
    broken(tmp_path / "router_health" / stored.path, way)
    with pytest.raises(QueryError, match=rf"{stored.path} is (damaged|missing).*: restore it from a backup, or make"):
        documents(tmp_path, "SELECT * FROM router_health")


@pytest.mark.parametrize("way", ["empty", "no Parquet", "missing", "pages"])
def test_derived_tables_name_a_damaged_file_and_the_remedy(way: str, tmp_path: Path) -> None:
    wrote(tmp_path, "clocks", 0, [{"index": each, "log_time": NOON} for each in range(2_000)])
    stored = stored_files(tmp_path / "clocks")[0]
    broken(tmp_path / "clocks" / stored.path, way)

    def read() -> None:
        with opened() as connection:
            source_view(connection, tmp_path, "clocks", [stored])
            connection.execute("SELECT * FROM all_clocks").fetchall()

    with pytest.raises(TableDamagedError, match=r"is (damaged|missing).*: restore it"):
        read()


def test_query_error_of_its_own_is_no_damage(tmp_path: Path) -> None:
    derived(tmp_path, "router_health", [{"window_start": NOON, "server_id": 1}])
    with pytest.raises(QueryError, match="Conversion"):
        documents(tmp_path, "SELECT CAST('x' AS INTEGER) FROM router_health")


def test_the_names_behind_the_pseudonyms_are_for_the_owner_alone(tmp_path: Path) -> None:
    remember_names(tmp_path, {"d-0123456789ab": "q" * 52})
    assert (tmp_path / "names.sqlite").stat().st_mode & 0o077 == 0


def test_the_doctor_says_what_is_missing_and_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    findings = {finding.name: finding for finding in examine(tmp_path / "tables", None, {"PATH": ""})}
    assert findings["Java"].result == "ok"
    assert findings["pyspark"].result == "ok"
    assert (findings["farm"].result, "--node" in findings["farm"].action) == ("warning", True)
    monkeypatch.setattr("pipeline.cli.doctor.PACKAGES", {"no-such-package": ((1,), None), "pyarrow": ((999,), None)})
    result = CliRunner().invoke(doctor, ["--json", "--output", str(tmp_path)])
    assert result.exit_code == 1
    document = json.loads(result.output[: result.output.rindex("}") + 1])
    found = {check["name"]: check for check in document["checks"]}
    assert found["no-such-package"]["result"] == found["pyarrow"]["result"] == "problem"
    assert found["pyarrow"]["action"].startswith("pip install 'garlicfarm[pipeline]', or in a checkout")


def test_the_doctor_runs_where_spark_is_not_installed(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('pyspark', 'pandas', 'pyarrow', 'duckdb', 'numpy', 'py4j'):\n"
        "    sys.modules[name] = None\n"
        "from bridge.cli.main import main\n"
        "sys.argv = ['garlicfarm', 'pipeline', 'doctor']\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Java" in result.stdout
    assert "Traceback" not in result.stderr


def test_query_of_an_unknown_table_names_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    with pytest.raises(QueryError) as refused:
        documents(tmp_path, "SELECT * FROM router_helth")
    assert "\n" not in str(refused.value)
    assert "pg_" not in str(refused.value)
    assert "There are " in str(refused.value)
    assert "router_health" in str(refused.value)
