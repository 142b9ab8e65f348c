"""Runs under unusual conditions: a recovered farm, a renamed farm, a change of summer time, a read-only directory."""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.gold.answers import answer_sql
from pipeline.gold.tables import Gold
from pipeline.run import RunSettings, run_once
from pipeline.serve.query import documents
from tests.effort import few_of
from tests.pipeline.farm_log_server import MadeUpLog, serve_log, three_servers
from tests.pipeline.made_tables import tables_of as write_tables
from tests.processes import END_S
from tests.soak.pipeline_tables import differences, same_pseudonyms, tables_of

RECOVERED = "ff" * 16
AUTUMN, SPRING = datetime(2026, 10, 24, 23, 30, tzinfo=UTC), datetime(2026, 3, 28, 23, 30, tzinfo=UTC)
NAMED = "SELECT DISTINCT name FROM current_farm"


def run_farms(tmp_path: Path, name: str, log: MadeUpLog, *, derived: bool) -> None:
    file = tmp_path / "farms.toml"
    with serve_log(log, tmp_path / "control.sock") as address:
        file.write_text(f'[farms.{name}]\nnodes = ["{address}"]\n')
        run_once(None, RunSettings(tmp_path / "tables", {"farms": str(file)}, watch=True, derived=derived))


def reports(tmp_path: Path) -> dict[str, list[int]]:
    sql = "SELECT farm, list(index ORDER BY index) AS indexes FROM reports GROUP BY farm"
    assert all(each["complete"] for each in documents(tmp_path / "tables", answer_sql("completeness")))
    return {row["farm"]: row["indexes"] for row in documents(tmp_path / "tables", sql)}


def derived_reports(tmp_path: Path) -> dict[str, int]:
    """Return the number of each farm's reports in the derived table."""
    found = documents(tmp_path / "tables", "SELECT farm, sum(reports)::INT AS reports FROM router_health GROUP BY farm")
    return {row["farm"]: row["reports"] for row in found}


RECOVERIES = {"from-start": (1, True), "compacted": (5, False), "compacted-derived": (5, True)}


@pytest.mark.parametrize(("first_index", "derived"), few_of(RECOVERIES, "compacted"))
def test_recovered_farm_of_file_is_another_cluster(first_index: int, tmp_path: Path, *, derived: bool) -> None:
    log = three_servers(minutes=1)
    run_farms(tmp_path, "blog", log, derived=derived)
    before = reports(tmp_path)[log.cluster_id]
    # `garlicfarm recover` makes a new cluster, whose log may begin before the end of the old cluster's log.
    again = MadeUpLog(cluster_id=RECOVERED, first_index=first_index, log_time_ms=log.log_time_ms)
    again.tick(10_000)
    again.report(1, uptime=1)
    run_farms(tmp_path, "blog", again, derived=derived)
    assert reports(tmp_path) == {log.cluster_id: before, RECOVERED: [first_index + 1]}
    if derived:
        assert derived_reports(tmp_path) == {log.cluster_id: len(before), RECOVERED: 1}


@pytest.mark.parametrize("derived", few_of({"base": False, "derived": True}, "base"))
def test_renamed_farm_continues_under_new_name(tmp_path: Path, *, derived: bool) -> None:
    log = three_servers(minutes=1)
    run_farms(tmp_path, "blog", log, derived=derived)
    before = reports(tmp_path)[log.cluster_id]
    log.tick(10_000)
    log.report(1, uptime=70_000)
    run_farms(tmp_path, "shop", log, derived=derived)
    assert reports(tmp_path) == {log.cluster_id: [*before, log.commit_index]}
    if derived:
        assert derived_reports(tmp_path) == {log.cluster_id: len(before) + 1}
    assert documents(tmp_path / "tables", NAMED) == [{"name": "shop"}]


@pytest.mark.parametrize("begin", few_of({"autumn": AUTUMN, "spring": SPRING}, "autumn"))
def test_tables_do_not_depend_on_summer_time(begin: datetime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MadeUpLog(log_time_ms=int(begin.timestamp() * 1000))
    for period in range(24):
        log.tick(600_000)
        log.report(1, uptime=period * 600_000)
    for zone in ("UTC", "Europe/Berlin"):
        output = tmp_path / zone.replace("/", "-")
        if zone != "UTC":
            same_pseudonyms(tmp_path / "UTC", output)
        with monkeypatch.context() as patched:
            patched.setenv("TZ", zone)
            time.tzset()
            gold = Gold(output, 3_600_000)
            write_tables(log, output, gold=gold, watch=True)
            gold.refresh(0)
    time.tzset()
    found, other = tables_of(tmp_path / "UTC"), tables_of(tmp_path / "Europe-Berlin")
    assert (differences(found, other), found["router_health"].total()) == ([], 5)


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts a file system: needs root")
def test_read_only_directory_is_read_and_not_written(tmp_path: Path) -> None:
    output, log = tmp_path / "tables", three_servers(minutes=1)
    write_tables(log, output)
    before = sorted(str(each) for each in output.rglob("*"))

    def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
        script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        command = [sys.executable, "-m", "bridge.cli.main", "pipeline", *arguments, "--output", str(output)]
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, str(output), *command],  # noqa: S607 - found on the path
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * END_S,
        )

    with serve_log(log, tmp_path / "control.sock") as address:
        refused = call("run", "--once", "--node", address)
    assert (refused.returncode, "Read-only file system" in refused.stderr) == (1, True), refused.stderr
    answered = call("query", "SELECT count(*) AS reports FROM reports", "--json")
    assert (json.loads(answered.stdout or "null"), answered.stderr) == ({"reports": 18}, "")
    assert sorted(str(each) for each in output.rglob("*")) == before
