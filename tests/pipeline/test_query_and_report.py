"""Questions to the tables, the page made of them, and files that are merged under a reader: all without a JVM."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline import current_state, table_files
from pipeline.daily import last_rows
from pipeline.doctor import doctor, examine
from pipeline.query import asked as asked_for
from pipeline.query_cli import query as query_command
from pipeline.query_cli import report as report_command
from pipeline.report import make_report
from pipeline.schemas import DERIVED, HISTORY
from pipeline.table_files import TableDamagedError, arrow_schema, live_files, load_manifest, merge, span_of

duckdb = pytest.importorskip("duckdb", reason="the extra `pipeline` of an older version is installed")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def wrote(table: Path, batch: int, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    directory = table / f"batch_id={batch}"
    directory.mkdir(parents=True)
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), directory / "part-0.parquet")
    (directory / "_SUCCESS").touch()


def clock(index: int) -> dict[str, Any]:
    return {"index": index, "term": 1, "log_time": NOON + timedelta(seconds=index), "leader_id": 1, "period_ms": 1000}


CLOCKS = arrow_schema(HISTORY["clocks"])


def asked(output: Path, sql: str, *options: str) -> str:
    result = CliRunner().invoke(query_command, [sql, "--output", str(output), *options])
    assert result.exit_code == 0, result.output
    return result.output


def indexes(output: Path) -> list[int]:
    lines = asked(output, "SELECT index FROM clocks ORDER BY 1", "--json").splitlines()
    return [json.loads(line)["index"] for line in lines]


def test_a_query_reads_history_and_current_state_in_all_formats(tmp_path: Path) -> None:
    wrote(tmp_path / "clocks", 0, [clock(1), clock(2)], CLOCKS)
    current_state.update(tmp_path, {"routers": [{"server_id": 3, "index": 9, "publishing": True, "log_time": NOON}]})
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
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{output}/clocks/batch_id=0/part-0.parquet'",
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
    wrote(tmp_path / "clocks", 0, [clock(1)], CLOCKS)
    (tmp_path / "pseudonym.salt").write_text("secret")

    def everything() -> dict[Path, bytes]:
        return {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}

    before = everything()
    result = CliRunner().invoke(query_command, [sql.format(output=tmp_path), "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "secret" not in result.output
    assert everything() == before


def test_a_query_that_needs_too_much_memory_says_so_and_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote(tmp_path / "clocks", 0, [clock(1)], CLOCKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.query.MEMORY_LIMIT", "20MB")
    before = sorted(tmp_path.rglob("*"))
    sql = "SELECT range || 'a' AS a FROM range(10000000) ORDER BY hash(a)"
    result = CliRunner().invoke(query_command, [sql, "--output", str(tmp_path)])
    assert (result.exit_code, "needs more than 20MB of memory" in result.output) == (1, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_text_of_other_machines_is_shown_without_power_over_the_terminal(tmp_path: Path) -> None:
    wrote(tmp_path / "clocks", 0, [clock(1)], CLOCKS)
    shown = asked(tmp_path, "SELECT chr(27) || '[31m[/red] [b]' AS \"a[/x]\", true AS b, NULL AS c FROM clocks")
    assert shown.splitlines() == ["a[/x]               b     c", r"\x1b[31m[/red] [b]  true"]


def test_values_that_json_and_this_machines_zone_have_no_say_in_are_told_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    wrote(tmp_path / "clocks", 0, [clock(1)], CLOCKS)
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
    wrote(tmp_path / "clocks", 0, [clock(1)], CLOCKS)
    with asked_for(tmp_path, "SELECT range, repeat('x', 1000) AS text FROM range(100000000000)") as answer:
        assert next(answer.rows)[0] == 0
    shown = CliRunner().invoke(query_command, ["FROM range(100000000000)", "--output", str(tmp_path)])
    assert shown.stdout.splitlines()[-1] == "199"
    assert "first 200 rows" in shown.stderr
    names = asked(tmp_path, "SHOW TABLES", "--csv").split()
    assert {"clocks", "router_health", "current_routers"} <= set(names)
    assert not [name for name in names if name.startswith("_")], "what the views stand on is not told"


def test_a_directory_without_tables_and_a_damaged_state_are_errors_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(query_command, ["SELECT 1", "--output", str(tmp_path / "empty")])
    assert "there are no tables in" in result.output
    (tmp_path / "current.sqlite").write_bytes(b"no database" * 100)
    result = CliRunner().invoke(query_command, ["SELECT 1", "--output", str(tmp_path)])
    assert (result.exit_code, "not a database" in result.output) == (1, True)


def test_the_current_state_is_read_without_being_changed(tmp_path: Path) -> None:
    current_state.update(tmp_path, {"routers": [{"server_id": 3, "index": 9}]})
    with closing(sqlite3.connect(tmp_path / "current.sqlite")) as connection:
        connection.execute("ALTER TABLE routers DROP COLUMN masters")
        connection.execute("DROP TABLE watched")
        connection.commit()
    before = (tmp_path / "current.sqlite").read_bytes()
    assert [(row["server_id"], row["masters"]) for row in current_state.read(tmp_path, "routers")] == [(3, None)]
    assert current_state.read(tmp_path, "watched") == []
    assert (tmp_path / "current.sqlite").read_bytes() == before


def test_a_merge_between_a_look_at_the_manifest_and_one_at_the_directories_hides_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "clocks"
    for batch in range(4):
        wrote(table, batch, [clock(batch)], CLOCKS)
    load, merges = table_files.load_manifest, [4]

    def loaded_before_a_merge(place: Path) -> table_files.Manifest:
        manifest = load(place)
        if merges:
            before = merges.pop()
            merge(place, HISTORY["clocks"], before, from_batches=2)
        return manifest

    monkeypatch.setattr(table_files, "load_manifest", loaded_before_a_merge)
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in live_files(table)) == 4


def test_between_the_two_renames_of_an_exchange_the_old_rows_are_read(tmp_path: Path) -> None:
    derived(tmp_path, "leaderships", [{"term": 7}])
    (tmp_path / "leaderships").rename(tmp_path / "leaderships.old")
    wrote(tmp_path / "clocks", 0, [clock(1)], CLOCKS)
    assert asked(tmp_path, "SELECT term FROM leaderships", "--csv") == "term\n7\n"


def test_an_older_row_does_not_replace_a_newer_one_in_the_current_state(tmp_path: Path) -> None:
    current_state.update(tmp_path, {"routers": [{"server_id": 1, "index": 5, "uptime_ms": 50}]})
    current_state.update(tmp_path, {"routers": [{"server_id": 1, "index": 4, "uptime_ms": 40}]})
    current_state.update(tmp_path, {"farm": [{"farm": 1, "index": 5, "leader_id": 2}]})
    current_state.update(tmp_path, {"farm": [{"farm": 1, "index": 6, "leader_id": None}]})
    assert current_state.read(tmp_path, "routers")[0]["uptime_ms"] == 50
    farm = current_state.read(tmp_path, "farm")[0]
    assert (farm["index"], farm["leader_id"]) == (6, 2), "a batch without a clock entry does not say who leads"


def test_merging_changes_no_row_and_files_stay_few(tmp_path: Path) -> None:
    table = tmp_path / "clocks"
    for batch in range(200):
        wrote(table, batch, [clock(batch)], CLOCKS)
        merge(table, HISTORY["clocks"], batch, from_batches=8)
    assert indexes(tmp_path) == list(range(200))
    assert len(live_files(table)) < 16
    assert (table / "batch_id=199").exists(), "the running batch may be repeated, so it is left alone"


def test_files_of_an_older_version_lack_a_column_and_give_null_for_it(tmp_path: Path) -> None:
    old = pa.schema([field for field in CLOCKS if field.name != "period_ms"])
    wrote(tmp_path / "clocks", 0, [clock(1)], old)
    wrote(tmp_path / "clocks", 1, [clock(2)], CLOCKS)
    sql = "SELECT period_ms FROM clocks ORDER BY index"
    expected = "period_ms\n\n1000\n".replace("\n\n", '\n""\n')
    assert asked(tmp_path, sql, "--csv") == expected
    merge(tmp_path / "clocks", HISTORY["clocks"], 2, from_batches=2)
    assert asked(tmp_path, sql, "--csv") == expected


def test_what_is_older_than_is_kept_is_dropped_by_whole_files(tmp_path: Path) -> None:
    table = tmp_path / "clocks"
    for batch in range(12):
        wrote(table, batch, [clock(batch * 100)], CLOCKS)
        merge(table, HISTORY["clocks"], batch + 1, from_batches=1, keep_ms=500_000)
    assert 1100 in indexes(tmp_path)
    assert 600 in indexes(tmp_path), "what is young enough is kept"
    assert 0 not in indexes(tmp_path)
    assert load_manifest(table).reached == 11


MERGING = """
import os
import sys
from pathlib import Path
from pipeline.schemas import HISTORY
from pipeline.table_files import merge
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        merge(Path(sys.argv[1]), HISTORY["clocks"], 10_000, from_batches=2)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""
"""One merge for each line that it is told, each in a process of its own: importing takes longer than merging."""


def test_a_merge_that_is_killed_at_any_moment_loses_and_doubles_no_row(tmp_path: Path) -> None:
    table = tmp_path / "clocks"
    batches = 0
    merging = [sys.executable, "-c", MERGING, str(table)]
    with subprocess.Popen(merging, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for attempt in range(12):
            for _ in range(40):
                wrote(table, batches, [clock(batches)], CLOCKS)
                batches += 1
            process.stdin.write("merge\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            # the helper reaps its child, so the number may be gone already
            with suppress(ProcessLookupError):
                time.sleep(attempt * 0.004)
                os.kill(child, signal.SIGKILL)
            assert process.stdout.readline() == "ended\n"
            assert indexes(tmp_path) == list(range(batches)), f"killed after {attempt * 4} ms"
    merge(table, HISTORY["clocks"], batches, from_batches=1)
    assert indexes(tmp_path) == list(range(batches))
    assert not list(table.glob(".batch_id*"))


def test_a_damaged_manifest_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "clocks").mkdir()
    (tmp_path / "clocks" / "_manifest.json").write_text("{")
    with pytest.raises(TableDamagedError, match="restore it from a backup"):
        load_manifest(tmp_path / "clocks")


def test_a_damaged_file_of_a_table_is_an_error_that_says_which_and_what_to_do(tmp_path: Path) -> None:
    batch = tmp_path / "reports" / "batch_id=0"
    day = tmp_path / "router_health" / "2026-11-22.parquet"
    for file in (batch / "part-0.parquet", batch / "_SUCCESS", day):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half of a fi")
    with pytest.raises(TableDamagedError, match=r"part-0\.parquet is damaged .*: restore it from a backup"):
        span_of(tmp_path / "reports")
    with pytest.raises(TableDamagedError, match=r"part-0\.parquet is damaged"):
        merge(tmp_path / "reports", HISTORY["reports"], before_batch=1, from_batches=1)
    with pytest.raises(TableDamagedError, match=r"2026-11-22\.parquet is damaged .*: remove .*_made\.json"):
        last_rows(tmp_path, 10)


def derived(output: Path, name: str, rows: list[dict[str, Any]]) -> None:
    schema = arrow_schema(DERIVED[name])
    (output / name).mkdir()
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), output / name / "part-0.parquet")


def test_the_report_is_one_page_that_loads_nothing_and_names_no_destination_unasked(tmp_path: Path) -> None:
    minute = timedelta(minutes=1)
    health = [
        {
            "window_start": NOON + n * minute,
            "server_id": server,
            "availability": 0.5,
            "job_lag_p95_ms": 2.0,
            "reports": 2,
        }
        for n in range(5)
        for server in (1, 2)
        if (n, server) != (2, 2)
    ]
    derived(tmp_path, "router_health", health)
    derived(
        tmp_path,
        "detections",
        [
            {
                "observer": "<script>alert(1)</script>",
                "member": "node-2",
                "suspect_at": NOON,
                "contact_to_suspect_ms": 900,
            }
        ],
    )
    derived(tmp_path, "leaderships", [{"term": 1, "leader_id": 1, "first_at": NOON, "last_at": NOON + minute}])
    derived(
        tmp_path,
        "publishers",
        [{"master": "d-0123456789ab", "server_id": 1, "first_at": NOON, "last_at": NOON + minute, "publications": 3}],
    )
    current_state.remember_names(tmp_path, {"d-0123456789ab": "q" * 52})

    def page(*options: str) -> str:
        target = tmp_path / "report.html"
        result = CliRunner().invoke(report_command, ["--html", str(target), "--output", str(tmp_path), *options])
        assert result.exit_code == 0, result.output
        return target.read_text(encoding="utf-8")

    plain = page()
    assert plain.count("<svg") == 5
    assert "default-src 'none'" in plain
    assert "http" not in plain.replace('http-equiv="', ""), "nothing is loaded from elsewhere"
    assert "<script" not in plain
    assert "d-0123456789ab" in plain
    assert "q" * 52 not in plain
    assert "q" * 52 + ".b32.i2p" in page("--show-destinations")


def test_a_router_that_is_silent_is_shown_as_not_available_and_many_windows_as_few(tmp_path: Path) -> None:
    minute = timedelta(minutes=1)
    told = [(n, server) for n in range(2_000) for server in range(1, 12) if server != 7 or n < 1_001]
    derived(
        tmp_path,
        "router_health",
        [
            {"window_start": NOON + n * minute, "server_id": server, "availability": 1.0, "job_lag_p95_ms": 1234.0}
            for n, server in told
        ],
    )
    derived(
        tmp_path,
        "publishers",
        [
            {"master": master, "server_id": 1, "first_at": NOON, "last_at": NOON + minute, "publications": 3}
            for master in ("d-<b>", "d-2")
        ],
    )
    page = make_report(tmp_path, NOON, show_destinations=False)
    strips = page[page.index("Availability by router") : page.index("Lag by router")]
    assert strips.count("<rect") == 12, "one that was well for each, and two for the one that fell silent"
    assert "server 7, 01-02 04:41 to 01-02 21:22: 0.0%" in strips
    lag = page[page.index("Lag by router") : page.index("Detection")]
    assert lag.count("<polyline") == 8
    assert "3 more servers fared better" in lag
    assert "1,234" in lag
    assert page.count("<h3>") == 2, "each master has its drawing"
    assert "d-&lt;b&gt;" in page
    assert len(page) < 100_000


def test_a_time_in_which_the_whole_farm_stood_still_is_shown_as_nothing_known(tmp_path: Path) -> None:
    minute = timedelta(minutes=1)
    # given two hours of windows of a minute, ten hours of nothing, and an hour of which one server saw the second half
    told = [(n, 1) for n in [*range(120), *range(720, 780)]] + [(n, 2) for n in range(750, 780)]
    # of a pause as long as the longest reporting period nothing is made
    told = [(n, server) for n, server in told if n not in range(50, 60)]
    health = [
        {"window_start": NOON + n * minute, "window_end": NOON + (n + 1) * minute, "server_id": server}
        for n, server in told
    ]
    derived(tmp_path, "router_health", [{**row, "availability": 1.0, "job_lag_p95_ms": 2.0} for row in health])
    current_state.update(tmp_path, {"farm": [{"farm": 1, "index": 4711, "log_time": NOON + 780 * minute}]})
    page = make_report(tmp_path, NOON + timedelta(days=3), show_destinations=False)
    strips = page[page.index("Availability by router") : page.index("Lag by router")]
    assert re.findall("<title>(.*?)</title>", strips) == [
        "server 1, 01-01 12:00 to 01-01 14:00: 100.0%",
        "server 1, 01-02 00:00 to 01-02 01:00: 100.0%",
        "server 2, 01-02 00:30 to 01-02 01:00: 100.0%",
    ]
    lag = page[page.index("Lag by router") : page.index("Detection")]
    assert lag.count("<polyline") == 3, "no line leads across it"
    # and a page that was made days later says so
    assert "The tables reach to entry 4711 of the log, at log time 2026-01-02 01:00:00;" in page


def test_the_names_behind_the_pseudonyms_are_for_the_owner_alone(tmp_path: Path) -> None:
    current_state.remember_names(tmp_path, {"d-0123456789ab": "q" * 52})
    assert (tmp_path / "names.sqlite").stat().st_mode & 0o077 == 0


def test_the_doctor_says_what_is_missing_and_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    findings = {finding.name: finding for finding in examine(tmp_path / "tables", None, {"PATH": ""})}
    assert findings["Java"].result == "ok"
    assert findings["pyspark"].result == "ok"
    assert (findings["farm"].result, "--node" in findings["farm"].action) == ("warning", True)
    monkeypatch.setattr("pipeline.doctor.PACKAGES", {"no-such-package": ((1,), None), "pyarrow": ((999,), None)})
    result = CliRunner().invoke(doctor, ["--json", "--output", str(tmp_path)])
    assert result.exit_code == 1
    document = json.loads(result.output[: result.output.rindex("}") + 1])
    found = {check["name"]: check for check in document["checks"]}
    assert found["no-such-package"]["result"] == found["pyarrow"]["result"] == "problem"
    assert "make pipeline" in found["pyarrow"]["action"]


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
