"""Queries of the tables, the query errors, damaged files, and the doctor, without a JVM.

A query can only read, and only the tables. Its formats are text, JSON and CSV.
"""

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
from pipeline.gold.sources import Sources
from pipeline.gold.tables import last_rows
from pipeline.serve.query import QueryError, documents, query_result
from pipeline.spark.java import NoJavaError
from pipeline.tables.delta import stored_files
from pipeline.tables.files import TableDamagedError
from pipeline.tables.names import remember_names
from tests.pipeline.farm_log_server import three_servers
from tests.pipeline.made_tables import tables_of, write_batch, write_current_state, write_derived

duckdb = pytest.importorskip("duckdb", reason="the extra `pipeline` of an older version is installed")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def clock(index: int) -> dict[str, Any]:
    return {"index": index, "term": 1, "log_time": NOON + timedelta(seconds=index), "leader_id": 1, "period_ms": 1000}


def query_output(output: Path, sql: str, *options: str) -> str:
    result = CliRunner().invoke(query_command, [sql, "--output", str(output), *options])
    assert result.exit_code == 0, result.output
    return result.output


def indexes(output: Path) -> list[int]:
    lines = query_output(output, "SELECT index FROM clocks ORDER BY 1", "--json").splitlines()
    return [json.loads(line)["index"] for line in lines]


def test_query_reads_history_and_current_state_in_all_formats(tmp_path: Path) -> None:
    write_batch(tmp_path, "clocks", 0, [clock(1), clock(2)])
    write_current_state(tmp_path, 0, {"routers": [{"server_id": 3, "index": 9, "publishing": True, "log_time": NOON}]})
    assert query_output(tmp_path, "SELECT count(*) AS n, max(log_time) AS t FROM clocks", "--csv") == (
        "n,t\n2,2026-01-01T12:00:02.000Z\n"
    )
    row = json.loads(query_output(tmp_path, "SELECT * FROM current_routers", "--json"))
    assert (row["server_id"], row["publishing"], row["log_time"]) == (3, True, "2026-01-01T12:00:00.000Z")
    assert "leader_id" in query_output(tmp_path, "DESCRIBE clocks")


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
def test_query_cannot_change_or_read_other_files(tmp_path: Path, sql: str) -> None:
    write_batch(tmp_path, "clocks", 0, [clock(1)])
    (stored,) = stored_files(tmp_path / "clocks")
    (tmp_path / "pseudonym.salt").write_text("secret")

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}

    before = contents()
    statement = sql.format(output=tmp_path, file=tmp_path / "clocks" / stored.path)
    result = CliRunner().invoke(query_command, [statement, "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "secret" not in result.output
    assert contents() == before


def test_query_over_memory_limit_fails_without_spill_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_batch(tmp_path, "clocks", 0, [clock(1)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.serve.query.MEMORY_LIMIT", "20MB")
    before = sorted(tmp_path.rglob("*"))
    sql = "SELECT range || 'a' AS a FROM range(10000000) ORDER BY hash(a)"
    result = CliRunner().invoke(query_command, [sql, "--output", str(tmp_path)])
    assert (result.exit_code, "needs more than 20MB of memory" in result.output) == (1, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_query_output_escapes_terminal_sequences(tmp_path: Path) -> None:
    write_batch(tmp_path, "clocks", 0, [clock(1)])
    shown = query_output(tmp_path, "SELECT chr(27) || '[31m[/red] [b]' AS \"a[/x]\", true AS b, NULL AS c FROM clocks")
    assert shown.splitlines() == ["a[/x]               b     c", r"\x1b[31m[/red] [b]  true"]


def test_query_values_do_not_depend_on_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    write_batch(tmp_path, "clocks", 0, [clock(1)])
    sql = "SELECT index, index, 'nan'::DOUBLE AS n, log_time::TIMESTAMP AS t, [log_time] AS l FROM clocks"
    row = json.loads(query_output(tmp_path, sql, "--json"))
    monkeypatch.undo()
    time.tzset()
    assert row == {
        "index": 1,
        "index_2": 1,
        "n": None,
        "t": "2026-01-01T12:00:01.000",
        "l": ["2026-01-01T12:00:01.000Z"],
    }


def test_large_result_is_streamed_and_shown_in_part(tmp_path: Path) -> None:
    write_batch(tmp_path, "clocks", 0, [clock(1)])
    with query_result(tmp_path, "SELECT range, repeat('x', 1000) AS text FROM range(100000000000)") as answer:
        assert next(answer.rows)[0] == 0
    shown = CliRunner().invoke(query_command, ["FROM range(100000000000)", "--output", str(tmp_path)])
    assert shown.stdout.splitlines()[-1] == "199"
    assert "first 200 rows" in shown.stderr
    names = query_output(tmp_path, "SHOW TABLES", "--csv").split()
    assert {"clocks", "router_health", "current_routers"} <= set(names)
    assert not [name for name in names if name.startswith("_")], "internal tables are hidden"


def test_empty_result_names_empty_tables_and_their_source(tmp_path: Path) -> None:
    def outputs(sql: str, *options: str) -> tuple[str, str]:
        result = CliRunner().invoke(query_command, [sql, "--output", str(tmp_path), *options])
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    # given tables of a run without a watch and without traces
    tables_of(three_servers(minutes=1), tmp_path)
    write_derived(tmp_path, "detections", [])
    # then the message names each empty table of the query, and the way to fill it
    head, why = outputs("reliability")
    assert (len(head.splitlines()), head.startswith("farm")) == (1, True)
    assert why.startswith("transitions is empty: `run` and `run --once --watch` watch")
    assert "--watch" in why
    assert "--trace-files" in outputs("SELECT count(*) FROM Detections, events", "--csv")[1]
    assert len(outputs("SELECT count(*) FROM Detections, events", "--csv")[1].splitlines()) == 2
    assert "pipeline floodfills" in outputs("DESCRIBE closest_floodfills", "--json")[1]
    assert outputs("SELECT * FROM publications")[1] == "publications is empty: the read entries do not produce any\n"
    # tables with rows, and names defined by the query, are not mentioned
    assert outputs("WITH events AS (SELECT 1 AS a) SELECT * FROM events, current_routers")[1] == ""


def test_missing_or_damaged_tables_fail_query(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(query_command, ["SELECT 1", "--output", str(tmp_path / "empty")])
    assert "does not contain tables" in result.output
    write_current_state(tmp_path, 0, {"routers": [{"server_id": 3, "index": 9}]})
    for commit in (tmp_path / "current_routers" / "_delta_log").glob("*.json"):
        commit.write_text("{")
    result = CliRunner().invoke(query_command, ["SELECT 1", "--output", str(tmp_path)])
    assert (result.exit_code, "current_routers is damaged" in result.output) == (1, True)


def test_damaged_file_of_daily_table_error_names_file(tmp_path: Path) -> None:
    write_derived(tmp_path, "router_health", [{"window_start": NOON, "server_id": 1}])
    (stored,) = stored_files(tmp_path / "router_health")
    file = tmp_path / "router_health" / stored.path
    file.write_bytes(b"no Parquet")
    with pytest.raises(TableDamagedError, match=f"{file} is damaged"):
        last_rows(tmp_path, 10)


def damage(file: Path, kind: str) -> None:
    whole = file.read_bytes()
    match kind:
        case "empty":
            file.write_bytes(b"")
        case "not-parquet":
            file.write_bytes(b"no Parquet, and long enough to be one")
        case "missing":
            file.unlink()
        case _:
            # damage pages after the magic number; the footer of the file stays intact
            file.write_bytes(whole[:4] + b"\xff" * (len(whole) // 4) + whole[4 + len(whole) // 4 :])


@pytest.mark.parametrize("kind", ["empty", "not-parquet", "missing", "pages"])
def test_query_of_damaged_file_names_file_and_remedy(kind: str, tmp_path: Path) -> None:
    rows = [{"window_start": NOON + timedelta(minutes=minute), "server_id": minute} for minute in range(2_000)]
    write_derived(tmp_path, "router_health", rows)
    stored = stored_files(tmp_path / "router_health")[0]
    damage(tmp_path / "router_health" / stored.path, kind)
    with pytest.raises(QueryError, match=rf"{stored.path} is (damaged|missing).*: run .* repair --output "):
        documents(tmp_path, "SELECT * FROM router_health")


@pytest.mark.parametrize("kind", ["empty", "not-parquet", "missing", "pages"])
def test_derivation_from_damaged_file_names_file_and_remedy(kind: str, tmp_path: Path) -> None:
    write_batch(tmp_path, "clocks", 0, [{"index": each, "log_time": NOON} for each in range(2_000)])
    stored = stored_files(tmp_path / "clocks")[0]
    damage(tmp_path / "clocks" / stored.path, kind)

    def read() -> None:
        with Sources(tmp_path) as sources, sources.connected() as connection:
            sources.view(connection, "clocks", [stored])
            connection.execute("SELECT * FROM all_clocks").fetchall()

    with pytest.raises(TableDamagedError, match=r"is (damaged|missing).*: run .* repair --output "):
        read()


def test_query_error_is_not_reported_as_damage(tmp_path: Path) -> None:
    write_derived(tmp_path, "router_health", [{"window_start": NOON, "server_id": 1}])
    with pytest.raises(QueryError, match="Conversion"):
        documents(tmp_path, "SELECT CAST('x' AS INTEGER) FROM router_health")


def test_names_file_is_readable_only_by_owner(tmp_path: Path) -> None:
    remember_names(tmp_path, {"d-0123456789ab": "q" * 52})
    assert (tmp_path / "names.sqlite").stat().st_mode & 0o077 == 0


def test_doctor_reports_missing_parts_with_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    findings = {finding.name: finding for finding in examine(tmp_path / "tables", None, {"PATH": ""})}
    assert findings["Java"].result == "ok"
    assert findings["pyspark"].result == "ok"
    assert (findings["farm"].result, "--node" in findings["farm"].action) == ("warning", True)
    monkeypatch.setattr(
        "pipeline.spark.versions.PACKAGES", {"no-such-package": ((1,), None), "pyarrow": ((999,), None)}
    )
    result = CliRunner().invoke(doctor, ["--json", "--output", str(tmp_path)])
    assert result.exit_code == 1
    document = json.loads(result.output[: result.output.rindex("}") + 1])
    found = {check["name"]: check for check in document["checks"]}
    assert found["no-such-package"]["result"] == found["pyarrow"]["result"] == "problem"
    assert found["pyarrow"]["action"].startswith("pip install 'garlicfarm[pipeline]', or in a checkout")


def test_doctor_without_java_reports_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_java(*_: object) -> None:
        raise NoJavaError("install Java 17")

    monkeypatch.setattr("pipeline.cli.doctor.find_java", find_no_java)
    (found,) = [each for each in examine(tmp_path, None, {}) if each.name == "Java"]
    assert (found.result, found.action) == ("warning", "install Java 17")
    assert "only Spark needs it" in found.text


def test_doctor_runs_without_spark(tmp_path: Path) -> None:
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


def test_query_of_unknown_table_lists_known_tables(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    with pytest.raises(QueryError) as error:
        documents(tmp_path, "SELECT * FROM router_helth")
    assert "\n" not in str(error.value)
    assert "pg_" not in str(error.value)
    assert "There are " in str(error.value)
    assert "router_health" in str(error.value)
