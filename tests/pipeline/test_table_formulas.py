"""Formulas of derived tables on made-up rows with known results: elections, restarts, late reports, wrong clocks."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.gold.tables import window_ms
from pipeline.tables.rows import Pseudonyms, base_rows
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of, destination
from tests.pipeline.made_tables import derived_rows, write_batch

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PERIOD = timedelta(seconds=30)
MINUTE_MS = 60_000


HOUR_MS = 3_600_000


def clock(at: float, term: int = 1, period_ms: int = 30_000) -> dict[str, Any]:
    """Return a clock entry, `at` periods after noon."""
    return {"log_time": NOON + PERIOD * at, "term": term, "period_ms": period_ms}


def report(at: float, *, server: int = 1, offset_s: float = 10.0, **more: Any) -> dict[str, Any]:
    moment = NOON + PERIOD * at
    return {"log_time": moment, "server_id": server, "written_at": moment + timedelta(seconds=offset_s), **more}


def write_tables(output: Path, **tables: list[dict[str, Any]]) -> None:
    """Write base tables with these rows. Without an index, the index is the row's position."""
    for table, rows in tables.items():
        write_batch(output, table, 0, [{"index": place, **row} for place, row in enumerate(rows, 1)])


def test_availability_ignores_period_cut_by_election(tmp_path: Path) -> None:
    # given a leader that failed soon after its clock entry, and a newest period without reports so far
    clocks = [clock(at, term) for at, term in ((0, 1), (1, 1), (2, 1), (2.1, 2), (3.1, 2))]
    reports = [
        *(report(at, server=1) for at in (0, 0, 2.1)),
        *(report(at, server=2) for at in (0, 1, 2, 2.1)),
        *(report(at, server=3) for at in (0, 1, 2.1)),
    ]
    write_tables(tmp_path, reports=reports, clocks=clocks)
    rows = derived_rows(tmp_path, "router_health", HOUR_MS)
    # then a second report in one period does not compensate for a missing report in another
    assert {row["server_id"]: row["availability"] for row in rows} == {1: pytest.approx(2 / 3), 2: 1.0, 3: 1.0}


def test_restart_is_detected_after_reports_without_uptime(tmp_path: Path) -> None:
    reports = [report(at, uptime_ms=uptime_ms) for at, uptime_ms in enumerate((600_000, None, None, 5_000, 35_000))]
    write_tables(tmp_path, reports=reports, clocks=[clock(0)])
    (row,) = derived_rows(tmp_path, "router_health", HOUR_MS)
    assert (row["uptime_resets"], row["restarted"], row["uptime_ms"]) == (1, True, 35_000)


def test_break_between_windows_counts_once(tmp_path: Path) -> None:
    healthy = (True, True, False, False, True, False)
    reports = [{**report(at), "destination": "d-1", "healthy": each} for at, each in enumerate(healthy)]
    reports += [{**report(at), "destination": "d-1", "healthy": each} for at, each in ((6, True), (200, False))]
    # Windows of destinations come from the reports that contain them.
    write_tables(tmp_path, destination_reports=reports, reports=[report(each) for each in (*range(7), 200)])
    rows = derived_rows(tmp_path, "destination_health", MINUTE_MS)
    assert [row["breaks"] for row in rows] == [0, 1, 1, 0, 0], "a report an hour later does not count as a break"


def test_extreme_figures_do_not_stop_derivation(tmp_path: Path) -> None:
    most = 2**63 - 1
    reports = [report(at, bandwidth_bytes_per_s=most, participating_tunnels=most, cpu_percent=1e300) for at in range(3)]
    reports = [{**row, "configured_bandwidth_bytes_per_s": 1, "destinations": 0} for row in reports]
    write_tables(tmp_path, reports=reports)
    (row,) = derived_rows(tmp_path, "router_health", HOUR_MS)
    assert (row["bandwidth_bytes_per_s"], row["participating_tunnels"]) == (float(most), float(most))
    assert (row["cpu_percent"], row["healthy_share"]) == (1e9, None)


def test_late_reports_and_wrong_clocks_are_distinguished(tmp_path: Path) -> None:
    # given a clock five hours ahead, and one report that took a minute longer
    ahead_s = 5 * 3600
    reports = [report(at, offset_s=ahead_s - (60 if at == 4 else 0)) for at in range(8)]
    # and reports of another server: just within the farm's limit, just beyond it, and without a valid date
    reports += [report(0, server=2, offset_s=59.0), report(0, server=2, offset_s=61.0)]
    reports += [report(0, server=2) | {"written_at": None}]
    write_tables(tmp_path, reports=reports, clocks=[clock(0)])
    rows = derived_rows(tmp_path, "data_quality", MINUTE_MS)
    rows.sort(key=lambda row: (row["server_id"], row["window_start"]))
    assert [(row["server_id"], row["late"], row["clock_off"]) for row in rows] == [
        *((1, late, 2) for late in (0, 0, 1, 0)),
        (2, 0, 2),
    ]


def test_clock_limit_follows_period_of_its_time(tmp_path: Path) -> None:
    # given a period of 30 s, of 2 s three hours later, and two false clock entries
    periods = [(0, 1, 30_000), (0, 50, 2**52), (360, 100, 2_000), (360, 150, 1)]
    clocks = [{**clock(at, period_ms=each), "index": index} for at, index, each in periods]
    # when the reports of server 1 are 59 s and 61 s ahead, and later 31 s and 33 s.
    # Two reports of server 2 lag its others by 44 s and 46 s, and later by 2 s and 4 s
    cases = [(1, 0, 60, each) for each in (59.0, 61.0)] + [(1, 360, 160, each) for each in (31.0, 33.0)]
    cases += [(2, 0, 70, each) for each in (9.0, 9.0, 9.0, -35.0, -37.0)]
    cases += [(2, 360, 170, each) for each in (9.0, 9.0, 9.0, 7.0, 5.0)]
    reports = [
        report(at, server=server, offset_s=each) | {"index": first + place % 10}
        for place, (server, at, first, each) in enumerate(cases)
    ]
    write_tables(tmp_path, reports=reports, clocks=clocks)
    rows = derived_rows(tmp_path, "data_quality", MINUTE_MS)
    rows.sort(key=lambda row: (row["server_id"], row["window_start"]))
    # then one report of each pair is more than a period plus 30 s ahead, or more than 1.5 periods late
    assert [(row["server_id"], row["reports"], row["late"], row["clock_off"]) for row in rows] == [
        (1, 2, 0, 1),
        (1, 2, 0, 1),
        (2, 5, 1, 2),
        (2, 5, 1, 0),
    ]


def test_duplicate_requires_valid_request_id(tmp_path: Path) -> None:
    requests = ("a-b-1-2", "a-b-1-2", "once", "once", "x-1-0", "x-1-0", None, None, "x-1-1\n", "x-1-1\n")
    reports = [report(at, request=request) for at, request in enumerate(requests)]
    # a copy more than an hour later is counted again
    reports.append(report(130, request="a-b-1-2"))
    write_tables(tmp_path, reports=reports)
    rows = derived_rows(tmp_path, "data_quality", HOUR_MS)
    assert [(row["reports"], row["duplicates"]) for row in rows] == [(9, 1), (1, 0)]


def test_several_masters_are_read_and_hostile_json_is_refused() -> None:
    log = MadeUpLog()
    part = {
        "destination": destination("one"),
        "publishConfig": "auto",
        "publishing": False,
        "canSignUntil": 2_000_000_000,
    }
    other = {
        "destination": destination("two"),
        "publishConfig": "off",
        "publishing": True,
        "lastPublishedTime": 1_767_225_600_000,
    }
    head = {"cluster": "farm", "date": log.log_time_ms, "id": 1, "router": {"uptime": 7}}
    for meta in (part, [part], [part, other], [], [{**part, "canSignUntil": 2**62}], "text"):
        log.add(value=json.dumps({**head, "meta": meta}))
    for text in (
        '{"router": {"uptime": ' + "1" * 2_000 + '}, "id": 1, "date": 2}',
        '{"' + "k" * 60_000 + '": 1}',
        '{"meta": [[[[]]]], "router": {}, "id": 1, "date": 2}',
        '{"router": {}, "id": 1, "date": 2, "request": "' + "9" * 6_000 + '", "destinations": [null]}',
        '{"router": {"jobLag": NaN}, "id": 1, "date": 2}',
        "[" * 30_000,
    ):
        log.add(value=text)
    found = base_rows(arrow_entries_of(log), Pseudonyms("salt"))
    rows = found["reports"].to_pylist()
    masters = [(row["masters"], row["publishing"], row["publish_config"]) for row in rows]
    assert masters[:3] == [(1, False, "auto"), (1, False, "auto"), (2, True, "auto,off")]
    assert len(masters) == 3, "a report with an invalid part is refused"
    assert (rows[2]["can_sign_until"].year, rows[2]["last_published_at"].year, rows[2]["uptime_ms"]) == (2033, 2026, 7)
    refused = found["quarantine"].to_pylist()
    assert len(refused) == 9
    assert {row["kind"] for row in refused} == {"report", None}


@pytest.mark.parametrize("text", ["", "minute", "0 minutes", "-1 hour", "1 month", "1 minute 30", "9999999 days"])
def test_invalid_window_width_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the width of a window"):
        window_ms(text)


def test_window_wider_than_one_year_is_refused() -> None:
    assert window_ms("366 days") == 366 * 24 * HOUR_MS
    with pytest.raises(ValueError, match="wider than a year"):
        window_ms("999999 weeks")
