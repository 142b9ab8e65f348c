"""Named queries of `garlicfarm pipeline query` on a farm with known failures.

The failures begin and end at known minutes, so the expected figures can be computed by hand.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli.queries import query
from pipeline.gold.answers import SUBJECTS, answer_sql
from pipeline.gold.tables import Gold
from pipeline.serve.query import documents
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, address
from tests.pipeline.made_tables import tables_of, write_batch, write_derived

MINUTE_MS = 60_000
HOURS = 8
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY_S = 86_400


def farm_of_three(output: Path) -> None:
    """Write the tables of eight hours with one report per minute and server, and with gaps of servers 2 and 3.

    Server 2 does not report in minutes 30 to 59 and 120 to 149, server 3 in the last 15. Destination `b` is unhealthy
    on server 2 and healthy on the others.
    """
    log = MadeUpLog()
    for minute in range(HOURS * 60):
        log.tick(0 if minute == 0 else MINUTE_MS)
        if minute == 0:
            log.entries[-1]["value"] = log.entries[-1]["value"].replace('"id"', f'"period": {MINUTE_MS}, "id"')
        silent = {2: minute in range(30, 60) or minute in range(120, 150), 3: minute >= HOURS * 60 - 15}
        for server in (1, 2, 3):
            if not silent.get(server):
                log.report(server, uptime=minute * MINUTE_MS, jobLag=1.0)
    gold = Gold(output, MINUTE_MS)
    tables_of(log, output, gold=gold, watch=True)
    gold.refresh(0)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tables")
    farm_of_three(made)
    return made


def query_rows(output: Path, *arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(query, [*arguments, "--output", str(output), "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_slo_levels_and_burn_rates_follow_outages(output: Path) -> None:
    rows = query_rows(output, "slo", "--objective", "90")
    routers = {row["name"]: row for row in rows if row["kind"] == "router"}
    assert [(row["kind"], row["level_30d"], row["budget_left"]) for row in rows[:3]] == [
        ("farm", 1.0, 1.0),
        ("destination", 1.0, 1.0),
        ("destination", 1.0, 1.0),
    ], "the best server determines the level of a destination"
    assert list(routers) == ["2", "3", "1"], "sorted by burn rate"
    assert [routers["2"][level] for level in ("level_1h", "level_6h", "level_30d")] == [
        1.0,
        pytest.approx(330 / 360),
        pytest.approx(420 / 480),
    ]
    assert [routers["3"][burn] for burn in ("burn_1h", "burn_6h", "burn_30d")] == [
        pytest.approx(2.5),
        pytest.approx(15 / 36, abs=1e-3),
        pytest.approx(15 / 48, abs=1e-3),
    ]
    assert (routers["1"]["burn_30d"], routers["2"]["budget_left"]) == (0.0, pytest.approx(-0.25))


def test_slo_default_objective_is_documented_value(output: Path) -> None:
    rows = documents(output, answer_sql("slo"))
    burn = {row["name"]: row["burn_30d"] for row in rows}
    assert burn["2"] == pytest.approx((60 / 480) / 0.005)


def test_reliability_times_follow_outages(output: Path) -> None:
    rows = {row["server_id"]: row for row in query_rows(output, "reliability")}
    # given outages of 30 minutes, detected after three minutes, and one outage without an end
    assert [(rows[server]["failures"], rows[server]["repairs"]) for server in (1, 2, 3)] == [(0, 0), (2, 2), (1, 0)]
    assert rows[2]["mttr_ms"] == pytest.approx(27 * MINUTE_MS, abs=2 * MINUTE_MS)
    assert rows[2]["mtbf_ms"] == (HOURS * 60 - 1) * MINUTE_MS // 2 - rows[2]["mttr_ms"]
    assert (rows[1]["mtbf_ms"], rows[3]["mttr_ms"], rows[3]["state"]) == (None, None, "silent")


def test_leaders_counts_changes_and_short_terms_per_day(tmp_path: Path) -> None:
    def term(number: int, leader: int, first_s: float, last_s: float, **others: Any) -> dict[str, Any]:
        first, last = (NOON + timedelta(seconds=each) for each in (first_s, last_s))
        return {
            "term": number,
            "leader_id": leader,
            "first_at": first,
            "last_at": last,
            "first_index": number,
            **others,
        }

    write_derived(
        tmp_path,
        "leaderships",
        [
            term(1, 1, 0, 600, leader_changed=False),
            # given two terms below a minute; the second one has the same leader as the term before
            term(2, 2, 604, 610, leader_changed=True, gap_ms=4_000),
            term(3, 2, 613, 613, leader_changed=False, gap_ms=3_000),
            term(4, 1, 620, 710, leader_changed=True, gap_ms=7_000),
            # a term on the next day, and a term without an end
            term(5, 2, DAY_S, DAY_S + 60, leader_changed=True, gap_ms=1_000),
            term(6, 3, DAY_S + 61, DAY_S + 62, leader_changed=True, gap_ms=1_000),
            # and two terms of another farm, with a correction of log time between them
            term(1, 1, 0, 60, leader_changed=False, farm="0a" * 16),
            term(2, 1, 30, 90, leader_changed=False, farm="0a" * 16, gap_ms=-30_000),
        ],
    )
    first, second, other = query_rows(tmp_path, "leaders")
    assert (first["day"], first["terms"], first["changes"], first["below_a_minute"]) == ("2026-01-01", 4, 2, 2)
    assert (first["shortest_ms"], first["median_ms"]) == (0, 6_000), "0, 6, 90 and 600 s"
    assert (first["leaderless_ms"], first["longest_leaderless_ms"]) == (14_000, 7_000)
    assert (second["day"], second["changes"], second["below_a_minute"], second["shortest_ms"]) == (
        "2026-01-02",
        2,
        0,
        60_000,
    ), "days with equal changes are sorted by the shortest term; an open term does not have a length"
    assert (other["farm"], other["changes"], other["median_ms"], other["leaderless_ms"]) == ("0a" * 16, 0, 60_000, None)


def test_churn_counts_membership_changes_per_day(tmp_path: Path) -> None:
    def configured(index: int, hour: int, voters: list[int], learners: list[int]) -> dict[str, Any]:
        at = NOON + timedelta(hours=hour)
        return {"index": index, "log_time": at, "voters": voters, "learners": learners}

    def became(hour: int, server: int, previous: str, state: str, reason: str = "") -> dict[str, Any]:
        at = NOON + timedelta(hours=hour)
        return {"at": at, "server_id": server, "previous": previous, "state": state, "reason": reason}

    write_batch(
        tmp_path,
        "configurations",
        0,
        [
            configured(1, 0, [1, 2, 3], []),
            # given two learners; one becomes a voter through a joint configuration, and replaces voter 3
            configured(5, 1, [1, 2, 3], [4, 5]),
            configured(6, 2, [1, 2, 3, 4], [5]),
            configured(9, 24, [1, 2, 4], [5]),
            # and another farm, with the same configuration at each election
            {**configured(1, 0, [7], []), "farm": "0a" * 16},
            {**configured(8, 3, [7], []), "farm": "0a" * 16},
        ],
    )
    rows = [(row["day"], row["joined"], row["removed"], row["silent"]) for row in query_rows(tmp_path, "churn")]
    assert rows == [("2026-01-01", 2, 0, None), ("2026-01-02", 0, 1, None)], (
        "without a watch, silent servers are unknown"
    )
    # when transitions are recorded
    write_batch(
        tmp_path,
        "transitions",
        0,
        [
            became(0, 1, "", "healthy", "first report"),
            became(1, 1, "healthy", "silent"),
            became(2, 1, "silent", "unhealthy", "reports again"),
            became(3, 1, "unhealthy", "healthy", "recovered"),
            became(4, 2, "healthy", "healthy", "router restarted"),
            became(25, 2, "healthy", "silent"),
        ],
    )
    counted = ("joined", "removed", "silent", "returned", "restarted")
    found = {row["day"]: tuple(row[each] for each in counted) for row in query_rows(tmp_path, "churn")}
    assert found == {"2026-01-01": (2, 0, 1, 1, 1), "2026-01-02": (0, 1, 1, 0, 0)}


def test_help_lists_each_query_within_80_columns() -> None:
    shown = CliRunner().invoke(query, ["--help"], terminal_width=80).output
    lines = {
        words[0]: words[1] for words in (line.strip().split(maxsplit=1) for line in shown.splitlines()) if words[1:]
    }
    assert {"slo", "reliability", "factor-steps"} <= SUBJECTS.keys()
    assert {name: lines.get(name) for name in SUBJECTS} == SUBJECTS
    assert max(map(len, shown.splitlines())) <= 80


def test_empty_result_explains_missing_rows(output: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(query, ["churn", "--output", str(output)])
    assert "No rows" not in result.stderr
    write_batch(tmp_path, "configurations", 0, [{"index": 1, "voters": [1], "learners": [], "log_time": NOON}])
    became = {"at": NOON, "server_id": 1, "previous": "", "state": "healthy", "reason": "first report"}
    write_batch(tmp_path, "transitions", 0, [became])
    result = CliRunner().invoke(query, ["churn", "--output", str(tmp_path)])
    assert (result.exit_code, result.stderr.startswith("No rows: no server joined or was removed")) == (0, True)


def test_unknown_query_lists_known_queries(output: Path) -> None:
    result = CliRunner().invoke(query, ["slop", "--output", str(output)])
    assert (result.exit_code, "'slop': use one of alerting, capacity, " in result.stderr) == (2, True)


def test_objective_of_another_query_is_rejected(output: Path) -> None:
    result = CliRunner().invoke(query, ["SELECT 1", "--objective", "99", "--output", str(output)])
    assert (result.exit_code, "belongs to `slo`" in result.output) == (2, True)


def test_changes_lists_window_around_last_outage(tmp_path: Path) -> None:
    log = MadeUpLog()

    def configure(*servers: int) -> None:
        log.add("configuration", value=json.dumps({"voters": [{"id": each} for each in servers]}))

    def minutes(count: int, *servers: int, leader: int = 1, period_s: int = 60) -> None:
        for _ in range(count):
            log.tick(MINUTE_MS, leader)
            log.entries[-1]["value"] = log.entries[-1]["value"].replace('"id"', f'"period": {period_s}000, "id"')
            for server in servers:
                log.report(server, uptime=log.log_time_ms, jobLag=1.0)

    configure(1, 2)
    log.add(value='{"level": {"number": 3, "version": "0.2"}}')
    log.add(value='{"handover": {"term": 1, "to": 2}}')
    minutes(60, 1, 2)
    # given changes before an outage of server 2, and one long after it
    configure(1, 2, 3)
    minutes(1, 1, 2, leader=2)
    log.add(value=json.dumps({"cost": {"hash": address("a"), "factor": 2.0}}))
    log.add(value='{"removal": {"server": 3, "removed": true}}')
    minutes(10, 1, leader=2)
    minutes(1, 1, 2, leader=2, period_s=30)
    minutes(60, 1, 2, leader=2)
    configure(1, 2)
    tables_of(log, tmp_path, watch=True)
    began = documents(tmp_path, "SELECT min(t.at) AS began FROM transitions t WHERE previous = 'healthy'")[0]["began"]
    seen = {"first_at": began, "last_at": began, "observers": 2, "nodes": 3, "seen_by": ["node-1", "node-3"]}
    write_derived(tmp_path, "convergence", [{"farm": None, "member": "node-2", "status": "dead", **seen}])
    rows = query_rows(tmp_path, "changes")
    assert [(row["kind"], row["subject"], row["change"], row["observers"]) for row in rows] == [
        ("membership", None, "voters [1, 2, 3], learners []", None),
        ("leader", "2", "server 1 in term 1, then server 2 in term 1", None),
        ("factor", rows[2]["subject"], "cost factor 2.0", None),
        ("membership", None, "removal server 3, removed true", None),
        ("member", "node-2", "dead", 2),
        ("server", "2", "healthy, then silent: no report for 180000 ms", None),
        ("period", None, "60000 ms, then 30000 ms", None),
        ("server", "2", "silent, then healthy: reports again", None),
        ("period", None, "30000 ms, then 60000 ms", None),
    ]
    assert [row["after_ms"] <= 0 for row in rows] == [True] * 6 + [False] * 3
    # and the level of the first minute, around another moment
    first = query_rows(tmp_path, "changes", "--at", "2026-01-01T00:00:00", "--minutes", "0.5")
    assert [(row["kind"], row["change"]) for row in first if row["change"].startswith(("level", "handover"))] == [
        ("level", "level number 3, version 0.2"),
        ("leader", "handover term 1, to 2"),
    ]
    assert query_rows(tmp_path, "changes", "--at", "2026-01-01T03:00Z") == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["leaders", "--at", "2026-01-01"], "--at belongs to `changes`"),
        (["leaders", "--minutes", "5"], "--minutes belongs to `changes`"),
        (["changes", "--at", "yesterday"], "'yesterday' is not a time"),
        (["changes", "--at", "0001-01-01T00:00+14:00"], "is not a time"),
        (["changes", "--objective", "90"], "--objective belongs to `slo`"),
    ],
)
def test_option_of_another_query_is_refused(arguments: list[str], why: str, output: Path) -> None:
    result = CliRunner().invoke(query, [*arguments, "--output", str(output)])
    assert result.exit_code == 2
    assert why in result.output


def test_lag_is_time_from_newest_log_time_to_tables(tmp_path: Path) -> None:
    log = MadeUpLog()
    log.add("configuration", value='{"servers":[]}')
    written_at = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    for batch, lag_s in enumerate((1, 3, 120)):
        log.tick(5_000)
        log.report(1, uptime=1)
        part = MadeUpLog(first_index=1, entries=log.entries[2 * batch + (batch > 0) :])
        written_at = datetime.fromtimestamp(log.log_time_ms / 1000 + lag_s, UTC)
        tables_of(part, tmp_path, batch, clock=written_at.timestamp)
    # given a clock of this machine that is 2 s slow in another hour
    log.tick(3_600_000)
    behind = MadeUpLog(entries=log.entries[-1:])
    tables_of(behind, tmp_path, 3, clock=lambda: log.log_time_ms / 1000 - 2)
    assert [{key: row[key] for key in row if key != "farm"} for row in query_rows(tmp_path, "lag")] == [
        {"hour": "2026-01-01T01:00:00.000Z", "batches": 1, "entries": 1}
        | dict.fromkeys(("lag_median_ms", "lag_p99_ms", "lag_max_ms", "last_lag_ms"), -2_000),
        {
            "hour": "2026-01-01T00:00:00.000Z",
            "batches": 3,
            "entries": 7,
            "lag_median_ms": 3_000,
            "lag_p99_ms": 120_000,
            "lag_max_ms": 120_000,
            "last_lag_ms": 120_000,
        },
    ]
