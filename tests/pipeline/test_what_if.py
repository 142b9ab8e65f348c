"""`what-if`: a replay of the past with other settings. The present settings repeat the actual submissions.

A made-up farm has slow, unhealthy and absent servers, and a run that submits factors. The replay reads only its tables.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from statistics import mean, pstdev
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from bridge.cli.main import main
from pipeline.alerts import alerting
from pipeline.alerts.outages import server_of
from pipeline.cli.queries import query
from pipeline.cli.what_if import what_if
from pipeline.cli.what_if_alerts import what_if_alerts
from pipeline.feedback import replay
from pipeline.feedback.replay import Course, Past, Removal, Spread, Window
from pipeline.feedback.rows import rows_in_log
from pipeline.feedback.submitting import Feedback, Submitted
from pipeline.feedback.weighing import PRESENT, ClockRow, Proposal, ReportRow, Row, Setting
from pipeline.gold.tables import Gold
from pipeline.serve.alert_history import AlertSetting, alert_history
from pipeline.serve.history import record_rows, replayed
from pipeline.serve.query import documents, of_one_version
from pipeline.tables.names import read_names
from pipeline.tables.recent import recent_rows
from tests.effort import IS_SOAK, over_seeds
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, arrow_entries_of, destination
from tests.pipeline.made_tables import tables_of

PERIOD_MS = 30_000
MINUTE_MS = 60_000
DAY_MS = 86_400_000
LEFT_AT = 1.2
SERVERS = (1, 2, 3, 4)


@dataclass
class Farm:
    """A fake farm: a submission becomes the next entry of the log."""

    log: MadeUpLog
    removed_servers: set[int] = field(default_factory=set)
    proposals: list[Mapping[str, Any]] = field(default_factory=list)

    def oldest(self) -> int:
        """Return a high index, so that nothing before the first batch is read."""
        return 1_000_000

    def log_time_ms(self) -> int | None:
        """Return the newest log time, so that the run does not lag."""
        return self.log.log_time_ms

    def removed(self) -> frozenset[int]:
        return frozenset(self.removed_servers)

    def submit(self, entry: Mapping[str, object]) -> Submitted:
        """Commit and accept the entry."""
        self.log.add(value=json.dumps(entry))
        self.proposals.append(cast("Mapping[str, Any]", entry["factors"]))
        return Submitted(self.log.commit_index)


@cache
def farm_with_problems(seed: int = 0, periods: int = 400 if IS_SOAK else 120, setback_ms: int = 0) -> Farm:
    """Return a farm whose servers lag, become unhealthy and stop reporting, with the factors of a run.

    In the middle, log time is set back.
    """
    random, log, log_lines = Random(seed), MadeUpLog(), list[str]()
    log.add("configuration", value='{"voters": [{"id": 1}]}')
    farm, read = Farm(log), 0
    feedback = Feedback(rows_in_log, {}, farm, log_lines.append)
    lag_ms, absent = dict.fromkeys(SERVERS, 5.0), dict.fromkeys(SERVERS, 0)
    for period in range(periods):
        if period == periods // 2:
            log.log_time_ms -= setback_ms
        log.tick(0 if period == 0 else PERIOD_MS)
        if period in {periods // 2, periods * 3 // 4}:
            out = period == periods // 2
            log.add(value=json.dumps({"removal": {"server": 4, "removed": out}}))
            (farm.removed_servers.add if out else farm.removed_servers.discard)(4)
        for server in SERVERS:
            if random.random() < 0.05:
                lag_ms[server] = random.choice((5.0, 900.0))
            absent[server] = absent[server] - 1 if absent[server] else (random.random() < 0.02) * 8
            if not absent[server]:
                leaf = {"destination": destination(f"leaf {server}"), "healthy": random.random() < 0.9}
                router = {"jobLag": lag_ms[server] * random.uniform(0.5, 1.5)}
                body = {"cluster": "farm", "date": log.log_time_ms, "id": server, "router": router}
                log.add(value=json.dumps({**body, "destinations": [leaf]}))
        found = arrow_entries_of(MadeUpLog(entries=log.entries[read:], cluster_id=log.cluster_id))
        read = log.commit_index
        feedback.after_batch(recent_rows(found))
    assert (feedback.failed, feedback.refused) == (0, 0), log_lines
    return farm


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a function that writes the tables of the farm of a seed once."""

    @cache
    def written(seed: int) -> Path:
        output = tmp_path_factory.mktemp("tables")
        gold = Gold(output, MINUTE_MS)
        tables_of(farm_with_problems(seed).log, output, gold=gold, watch=True)
        gold.refresh(0)
        return output

    return written


@pytest.fixture
def output(tables: Callable[[int], Path]) -> Path:
    """Return the tables of a farm with problems."""
    return tables(0)


@pytest.mark.search
def test_factor_steps_explain_each_entry_of_a_run(output: Path) -> None:
    entries = documents(output, "SELECT index, any_value(log_time) AS log_time FROM factors GROUP BY index ORDER BY 1")
    assert len(entries) > 4
    for entry in entries[-2:]:
        shown = CliRunner().invoke(
            query, ["factor-steps", "--at", str(entry["log_time"]), "--output", str(output), "--json"]
        )
        rows = [json.loads(line) for line in shown.stdout.splitlines()]
        assert rows, shown.output
        for row in rows:
            assert (row["index"], row["explained"], row["wanted"]) == (entry["index"], True, row["factor"])
            figures = 0.6 * row["lag"] + 0.2 * row["absence"] + 0.2 * row["illness"]
            assert row["strain"] == pytest.approx(figures)
            formula = 1 + 2 * (row["strain"] - row["middle"])
            assert row["factor"] == pytest.approx(min(2.0, max(0.5, formula)), abs=1e-3)
            assert abs(row["after"] / row["before"] - 1) <= 0.1 + 1e-9
    missing = CliRunner().invoke(query, ["factor-steps", "--at", "2020-01-01", "--output", str(output)])
    reason = "No rows: the tables contain no entry of factors up to 2020-01-01T00:00:00.000Z\n"
    assert (missing.exit_code, missing.stderr) == (0, reason)


def test_rows_around_correction_have_order_of_log(tmp_path: Path) -> None:
    log = MadeUpLog()
    log.log_time_ms += DAY_MS
    log.tick(0)
    log.log_time_ms -= DAY_MS
    for milliseconds in (0, 3 * MINUTE_MS, DAY_MS):
        log.tick(milliseconds)
    log.log_time_ms -= MINUTE_MS
    log.tick(0)
    tables_of(log, tmp_path)
    since, until = (datetime.fromtimestamp((EPOCH_MS + each) / 1000, UTC) for each in (0, 2 * DAY_MS))
    rows = of_one_version(tmp_path, lambda run_query: record_rows(run_query, log.cluster_id, since, until))
    assert [row.index for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("setback_ms", [10 * MINUTE_MS, DAY_MS])
def test_replay_after_correction_has_order_of_log(
    setback_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a correction, log time passes the same minutes again, so only the indexes show the order."""
    farm, gold = farm_with_problems(setback_ms=setback_ms), Gold(tmp_path, MINUTE_MS)
    tables_of(farm.log, tmp_path, gold=gold, watch=True)
    gold.refresh(0)
    indexes: list[int] = []
    observe = Past.observe

    def recording(past: Past, row: Row) -> None:
        indexes.append(row.index)
        observe(past, row)

    monkeypatch.setattr(Past, "observe", recording)
    (past,) = replayed(tmp_path, (PRESENT,), LEFT_AT, 2 * DAY_MS, lambda _: None).values()
    assert len(indexes) > 100
    assert indexes == sorted(set(indexes))
    assert past.courses[0].entries == past.recorded_entries > 10
    windows = documents(tmp_path, "SELECT count(DISTINCT window_start) AS windows FROM router_health")
    assert past.windows == windows[0]["windows"]


@over_seeds(10, quick=1)
def test_replay_with_present_setting_repeats_submissions(
    seed: int, tables: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    farm, output = farm_with_problems(seed), tables(seed)
    found: list[Proposal] = []
    moment_over = Course.moment_over

    def recording(course: Course, removed: frozenset[int]) -> Proposal | None:
        proposal = moment_over(course, removed)
        if proposal is not None:
            found.append(proposal)
        return proposal

    monkeypatch.setattr(replay.Course, "moment_over", recording)
    (past,) = replayed(output, (PRESENT,), LEFT_AT, DAY_MS, lambda _: None).values()
    addresses = read_names(output)
    expected = [(each["throughIndex"], each["factors"]) for each in farm.proposals]
    assert len(expected) > 10, "the comparison needs many submissions"
    assert [
        (each.through_index, {addresses[leaf]: factor for leaf, factor in each.factors.items()}) for each in found
    ] == expected, f"seed {seed}"
    assert past.recorded_entries == past.courses[0].entries == len(expected)
    # the table of factors contains the same entries
    stored = documents(output, "SELECT DISTINCT through_index FROM factors ORDER BY 1")
    assert [row["through_index"] for row in stored] == [through for through, _ in expected]


class Story:
    """Rows and windows of three servers; the third one may be bad."""

    def __init__(self, *settings: Setting, removals: tuple[Removal, ...] = ()) -> None:
        self.past = Past(settings, LEFT_AT, removals)
        self.now_ms = EPOCH_MS
        self.index = 0

    def pass_minutes(self, count: int, *, lag_ms: float = 5.0, absent: bool = False) -> None:
        """Add windows of two periods each."""
        for _ in range(count):
            start_ms = self.now_ms
            for _ in range(2):
                self.past.observe(ClockRow(self._next(), self.now_ms, PERIOD_MS))
                for server in (1, 2, 3):
                    if server < 3 or not absent:
                        reported_ms = lag_ms if server == 3 else 5.0
                        leaves = ((f"leaf-{server}", True),)
                        self.past.observe(ReportRow(self._next(), self.now_ms, server, reported_ms, leaves))
                self.now_ms += PERIOD_MS
            is_bad = {1: False, 2: False} | ({} if absent else {3: lag_ms > 500})
            self.past.window_over(Window(start_ms, self.now_ms, is_bad))

    def _next(self) -> int:
        self.index += 1
        return self.index


def test_larger_gain_leaves_bad_server_sooner_with_more_entries() -> None:
    story = Story(Setting(gain=0), PRESENT, Setting(gain=8))
    story.pass_minutes(20)
    story.pass_minutes(40, lag_ms=350)
    story.pass_minutes(20)
    story.pass_minutes(40, lag_ms=900)
    never, present, eager = story.past.courses
    assert (never.entries, never.factor.mean, never.factor.deviation) == (0, 1.0, 0.0)
    assert 0 < present.entries < eager.entries
    assert story.past.health[3].spells == 1
    (left_ms,), (eagerly_ms,) = present.servers[3].left_ms, eager.servers[3].left_ms
    assert MINUTE_MS <= eagerly_ms < left_ms < 40 * MINUTE_MS
    assert never.servers[3].left_ms == []
    shares = [each.bad_share.mean or 0.0 for each in (never, present, eager)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == story.past.bad_share.mean == pytest.approx(40 / 119 / 3)


def test_server_is_left_in_each_bad_spell() -> None:
    story = Story(PRESENT)
    story.pass_minutes(10)
    for _ in range(3):
        story.pass_minutes(30, lag_ms=900)
        story.pass_minutes(30)
    story.pass_minutes(90, absent=True)
    health, course = story.past.health[3], story.past.courses[0].servers[3]
    assert (health.spells, len(course.left_ms)) == (4, 4)
    assert health.bad_windows == pytest.approx(3 * 30 + 60, abs=2)
    assert health.windows == pytest.approx(10 + 3 * 60 + 60, abs=2)


def test_removed_server_is_excluded_until_readmitted() -> None:
    story = Story(PRESENT, removals=(Removal(1, 3, removed=True), Removal(300, 3, removed=False)))
    story.pass_minutes(30)
    assert set(story.past.health) == {1, 2}
    story.pass_minutes(30, lag_ms=900)
    assert set(story.past.health) == {1, 2, 3}
    assert story.past.health[3].spells == 0, "the health before the readmission is unknown"


def test_spread_has_mean_and_deviation_of_all_numbers() -> None:
    random = Random(3)
    numbers = [random.uniform(0.5, 2) for _ in range(1_000)]
    spread = Spread()
    for each in numbers:
        spread.add(each)
    assert [spread.mean, spread.deviation] == pytest.approx([mean(numbers), pstdev(numbers)])
    assert (Spread().mean, Spread().deviation) == (None, None)


def run_what_if(output: Path, *arguments: str) -> Result:
    return CliRunner().invoke(what_if, [*arguments, "--output", str(output)])


@pytest.mark.search
def test_command_reports_both_settings_and_each_server(output: Path) -> None:
    result = run_what_if(output, "--gain", "6", "--pause-periods", "4", "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    document = json.loads(result.stdout)
    assert (document["present"]["setting"]["gain"], document["other"]["setting"]["gain"]) == (2.0, 6.0)
    assert document["present"]["entries"] == document["recorded_entries"] < document["other"]["entries"]
    assert {each["server_id"] for each in document["servers"]} == set(SERVERS)
    bad = [each["bad_windows"] for each in document["servers"]]
    assert bad == sorted(bad, reverse=True)
    assert document["present"]["left"] == sum(each["present"]["left"] for each in document["servers"])
    shown = run_what_if(output, "--gain", "6", "--pause-periods", "4").stdout
    assert ": 59 min 30 s of log time in " in shown.splitlines()[0]
    assert max(map(len, shown.splitlines()[1:])) <= 80
    assert "pause periods" in shown
    assert f"{document['other']['entries']}" in shown


def test_command_warns_of_more_servers_than_farm_limit(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cli.what_if.SERVERS_MAX", len(SERVERS) - 1)
    assert f"has {len(SERVERS)} servers in these days" in run_what_if(output, "--gain", "6").stderr


def test_options_limit_weighed_past_and_set_shares(output: Path) -> None:
    hour = json.loads(run_what_if(output, "--shares", "0", "0", "1", "--days", f"{1 / 24}", "--json").stdout)
    assert (hour["days"], hour["windows"]) == (pytest.approx(1 / 24, abs=1e-3), pytest.approx(60, abs=1))
    setting = hour["other"]["setting"]
    assert [setting[name] for name in ("lag_share", "absence_share", "illness_share")] == [0, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "name a parameter to change, such as --gain 4"),
        (("--left-at", "1.5"), "name a parameter to change, such as --gain 4"),
        (("--shares", "0.5", "0.5", "0.5"), "the shares must add up to 1, not 0.5 + 0.5 + 0.5"),
        (("--gain", "nan"), "is not a number"),
        (("--gain", "abc"), "'abc' is not a valid number."),
        (("--gain", "-1"), "is not in the range"),
        (("--report-weight", "0"), "is not in the range"),
        (("--gain", "3", "--left-at", "3"), "is not in the range"),
        (("--gain", "3", "--days", "inf"), "is not in the range"),
    ],
)
def test_invalid_option_is_refused_with_reason(arguments: tuple[str, ...], why: str, output: Path) -> None:
    result = run_what_if(output, *arguments)
    assert (result.exit_code, why in " ".join(result.stderr.split())) == (2, True), result.stderr


@pytest.mark.parametrize("arguments", [("--gain",), ("--shares", "1", "0")])
def test_option_without_value_is_reported_as_usage_error(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["garlicfarm", "pipeline", "what-if", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"Error: Option '{arguments[0]}' requires" in capsys.readouterr().err


def test_missing_tables_or_windows_error_names_remedy(tmp_path: Path) -> None:
    result = run_what_if(tmp_path / "nowhere", "--gain", "3")
    assert (result.exit_code, "make them with `garlicfarm pipeline run" in result.stderr) == (1, True)
    tables_of(farm_with_problems(periods=5).log, tmp_path)
    result = run_what_if(tmp_path, "--gain", "3")
    assert (result.exit_code, "does not contain a report with a window in router_health" in result.stderr) == (1, True)


@pytest.mark.search
def test_alert_history_ends_with_last_outages_of_a_run(output: Path) -> None:
    keep_ms = 600_000
    setting = AlertSetting(keep_ms)
    (found,) = alert_history(output, [setting], 7.0)
    sql = alerting._LOOK_SQL.replace("$keep_ms", str(keep_ms))
    last = {each.server_id: each for each in found}
    servers = {server.server_id: server for server in map(server_of, documents(output, sql))}
    assert servers.keys() == last.keys() >= {1, 2}
    for number, server in servers.items():
        outage = last[number]
        ended_ms = None if server.ended_at is None else round(server.ended_at.timestamp() * 1000)
        assert (outage.began_ms, outage.failures, outage.was_silent, outage.reason, outage.ended_ms) == (
            round(server.began_at.timestamp() * 1000),
            server.failures,
            server.was_silent,
            server.reason,
            ended_ms,
        )


def test_alerts_with_another_setting_are_compared(tmp_path: Path) -> None:
    log = MadeUpLog()
    for minute in range(120):
        log.tick(MINUTE_MS)
        log.report(1, uptime=log.log_time_ms)
        # given silences of 5 and of 20 minutes, with an hour between them
        if minute not in {*range(10, 15), *range(75, 95)}:
            log.report(2, uptime=log.log_time_ms)
    tables_of(log, tmp_path, watch=True)

    def found(*arguments: str) -> list[tuple[str, int, int]]:
        shown = CliRunner().invoke(what_if_alerts, [*arguments, "--json", "--output", str(tmp_path)])
        rows = [json.loads(line) for line in shown.stdout.splitlines()]
        return [(row["setting"], row["server_id"], row["failures"]) for row in rows]

    assert found("--worse-after", "9") == [("both", 2, 1), ("both", 2, 1)]
    assert found("--keep-firing", "100") == [("both", 2, 2)]
    shown = CliRunner().invoke(what_if_alerts, ["--keep-firing", "100", "--output", str(tmp_path)])
    title, note, _, row = shown.stdout.splitlines()
    assert title == "Alerts with the present setting: 2; with the other setting: 1"
    assert note == "The present setting is the defaults of `run`. A row `both` shows the alert of the other setting."
    assert (row.split()[1], "…" in row, "Z  " in row) == (log.cluster_id, False, True)
    assert CliRunner().invoke(what_if_alerts, ["--output", str(tmp_path)]).exit_code == 2
