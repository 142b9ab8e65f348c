"""Gaps of the log in query results, the report, the replay of factors, and alert messages."""

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from shutil import copytree

import pytest
from click.testing import CliRunner

from pipeline.cli.queries import query, report
from pipeline.cli.what_if import what_if
from pipeline.gold.tables import Gold
from pipeline.repair.damage import examine
from pipeline.serve.gaps import FARMS_SHOWN, Gap, lines
from pipeline.serve.query import stored_gaps
from pipeline.tables.batch_notes import Continuity
from pipeline.tables.delta import Table
from pipeline.tables.ranges import RangeKind
from pipeline.tables.specs import RANGES_SPEC
from tests.pipeline.farm_log_server import MadeUpLog, two_days
from tests.pipeline.made_tables import rows_of, tables_of
from tests.pipeline.test_alerts import KEEP_MS, PERIOD_MS, Farm, Inbox, run_once
from tests.pipeline.test_completeness import FIRST_DAY, SECOND_DAY, part, write

FARM = MadeUpLog().cluster_id
UNREAD = (
    f"farm {FARM} has a gap: 5 entries of 2026-01-01 to 2026-01-02 are missing (11 to 15);"
    " `garlicfarm pipeline query completeness --output OUTPUT` lists the days,"
    " `garlicfarm pipeline repair --output OUTPUT` reads them again\n"
)


@pytest.fixture(scope="module")
def with_gap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of two batches without the entries 11 to 15 between them. Tests only read it."""
    log, output = two_days(), tmp_path_factory.mktemp("gap")
    write(output, part(log, 1, 10))
    write(output, part(log, 16, 26), begin=1, continuity=Continuity.UNKNOWN)
    return output


def record_gone(output: Path, first: int, last: int, farm: str = FARM) -> None:
    """Record a gap like a repair of a farm that compacted its log."""
    row = {"farm": farm, "name": "log", "kind": RangeKind.GONE.value, "first_index": first, "last_index": last}
    rows = rows_of(RANGES_SPEC.schema, [{**row, "row_count": last - first + 1, "batch_id": -first}])
    table = Table(output, RANGES_SPEC, is_checked=False)
    table.rewrite([], rows)


def errors_of(output: Path, sql: str, *options: str) -> str:
    result = CliRunner().invoke(query, [sql, "--output", str(output), *options])
    assert result.exit_code == 0, result.output
    return result.stderr.replace(f"--output {output}`", "--output OUTPUT`")


@pytest.mark.parametrize("options", [(), ("--json",), ("--csv",)])
def test_answer_over_gap_names_entries_days_and_repair(options: tuple[str, ...], with_gap: Path) -> None:
    assert errors_of(with_gap, "SELECT * FROM reports", *options) == UNREAD
    assert UNREAD in errors_of(with_gap, "leaders", *options)


@pytest.mark.parametrize("sql", ["SELECT 1", "completeness", "SELECT * FROM ranges", "DESCRIBE events"])
def test_gap_is_reported_only_if_answer_depends_on_log(sql: str, with_gap: Path) -> None:
    shown = errors_of(with_gap, sql)
    assert ("has a gap" in shown) is (sql == "completeness")


def test_complete_tables_are_without_gap(tmp_path: Path) -> None:
    log, output, html = two_days(), tmp_path / "tables", tmp_path / "page.html"
    write(output, part(log, 3, 10), part(log, 11, 26))
    assert stored_gaps(output) == ()
    assert "has a gap" not in errors_of(output, "SELECT * FROM reports")
    CliRunner().invoke(report, ["--html", str(html), "--output", str(output)])
    assert "The tables have all entries." in html.read_text()


def test_gone_entries_stay_shown_without_repair(tmp_path: Path) -> None:
    log = two_days()
    write(tmp_path, part(log, 10, 13))
    record_gone(tmp_path, 1, 9)
    assert stored_gaps(tmp_path) == (Gap(FARM, 1, 9, is_gone=True, after=None, until=FIRST_DAY),)
    assert errors_of(tmp_path, "SELECT * FROM reports") == (
        f"farm {FARM} has a gap: 9 entries until 2026-01-01 are missing (1 to 9), which the farm does not have any"
        " more; `garlicfarm pipeline query completeness --output OUTPUT` lists the days\n"
    )


def test_holes_of_topic_are_not_gaps(tmp_path: Path) -> None:
    # given batches that lack entries inside and between them, as in a topic
    log = two_days()
    first = part(log, 1, 10)
    del first.entries[4]
    write(tmp_path, first)
    write(tmp_path, part(log, 12, 26), begin=1, continuity=Continuity.LATER)
    assert stored_gaps(tmp_path) == ()
    # The checkpoint has the offset of the topic's next record, index 27.
    for folder, content in (("offsets", 'v1\n{}\n{"farm-log":{"0":26}}'), ("commits", "v1\n{}")):
        (tmp_path / "checkpoint" / folder).mkdir(parents=True)
        (tmp_path / "checkpoint" / folder / "1").write_text(content)
    assert not examine(tmp_path), [*examine(tmp_path).lines()]
    (tmp_path / "checkpoint/offsets/1").write_text('v1\n{}\n{"farm-log":{"0":25}}')
    assert examine(tmp_path).checkpoint == f"it continues farm {FARM} with entry 26, and the tables with entry 27"
    record_gone(tmp_path, 11, 11)
    assert [(each.first, each.last) for each in stored_gaps(tmp_path)] == [(11, 11)]


def test_hole_between_complete_batches_of_topic_is_not_gap(tmp_path: Path) -> None:
    log = two_days()
    write(tmp_path, part(log, 1, 10))
    write(tmp_path, part(log, 12, 26), begin=1, continuity=Continuity.LATER)
    assert stored_gaps(tmp_path) == ()


def test_gaps_of_many_farms_are_counted() -> None:
    gaps = [Gap(f"{farm:032x}", 5, 6, is_gone=False, after=None, until=None) for farm in range(FARMS_SHOWN + 2)]
    shown = [*lines([*gaps, Gap(f"{0:032x}", 9, 9, is_gone=True, after=FIRST_DAY, until=None)], "a b")]
    assert len(shown) == FARMS_SHOWN + 1
    assert "3 entries of unknown days are missing (between 5 and 9), 1 of them gone" in shown[0]
    assert shown[-1] == (
        "2 more farms have gaps; `garlicfarm pipeline query completeness --output 'a b'` lists the days"
    )


def test_report_shows_gaps_in_verdict_and_section(with_gap: Path, tmp_path: Path) -> None:
    copytree(with_gap, tmp_path / "tables")
    record_gone(tmp_path / "tables", 1, 2)
    html = tmp_path / "page.html"
    result = CliRunner().invoke(report, ["--html", str(html), "--output", str(tmp_path / "tables")])
    assert result.exit_code == 0, result.output
    page = html.read_text()
    verdict = page[page.index('<div class="verdict') : page.index("</div>")]
    assert "7 entries" in verdict
    assert "garlicfarm pipeline repair" in verdict
    rows = re.findall(r"<tr class=bad>(.*?)</tr>", page[page.index("<h2>Gaps</h2>") :])
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert cells == [
        ["11 to 15", "5", "of 2026-01-01 to 2026-01-02", "garlicfarm pipeline repair --output OUTPUT"],
        ["1 to 2", "2", "until 2026-01-01", "none: the farm does not have them any more"],
    ]


def test_replay_over_gap_names_missing_entries(tmp_path: Path) -> None:
    log, gold = two_days(), Gold(tmp_path, 60_000)
    tables_of(part(log, 1, 10), tmp_path, gold=gold)
    tables_of(part(log, 16, 26), tmp_path, 1, gold=gold, continuity=Continuity.UNKNOWN)
    gold.refresh(0)
    result = CliRunner().invoke(what_if, ["--gain", "4", "--output", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    assert UNREAD in result.stderr.replace(f"--output {tmp_path}`", "--output OUTPUT`")


@pytest.fixture(scope="module")
def late_outage(tmp_path_factory: pytest.TempPathFactory) -> Farm:
    """Return a farm whose server 2 stopped a day after its first reports."""
    farm = Farm(tmp_path_factory.mktemp("outage") / "tables")
    farm.report(1, 2, periods=3)
    farm.write()
    farm.log.log_time_ms += 86_400_000
    farm.report(1, 2, periods=3 + KEEP_MS // PERIOD_MS)
    farm.report(1, periods=5)
    farm.write()
    return farm


@pytest.mark.parametrize(("kind", "is_named"), [("during", True), ("before", False), ("other farm", False)])
def test_alert_names_gap_since_outage_began(kind: str, late_outage: Farm, tmp_path: Path, *, is_named: bool) -> None:
    farm, inbox = Farm(tmp_path / "tables", late_outage), Inbox()
    farm.start_with_silent_server()
    first = {"during": 15, "before": 1, "other farm": 15}[kind]
    record_gone(farm.output, first, first + 2, farm="0a" * 16 if kind == "other farm" else FARM)
    run_once(farm, inbox)
    (alert,) = inbox.accepted
    text = alert["commonAnnotations"]["gap"]
    assert ("3 entries" in text) is is_named
    assert ("this alert may be wrong: 3 entries" in alert["commonAnnotations"]["description"]) is is_named


def test_alert_is_sent_although_gaps_are_unknown(late_outage: Farm, tmp_path: Path) -> None:
    farm, inbox = Farm(tmp_path / "tables", late_outage), Inbox()
    farm.start_with_silent_server()
    for commit in (farm.output / "ranges" / "_delta_log").glob("*.json"):
        commit.write_text("{")
    run_once(farm, inbox)
    (alert,) = inbox.accepted
    assert alert["commonAnnotations"]["gap"].startswith("it is unknown whether entries are missing")


def test_gap_reaches_its_last_day() -> None:
    gap = Gap(FARM, 1, 2, is_gone=False, after=FIRST_DAY, until=SECOND_DAY)
    later = datetime(2026, 1, 3, tzinfo=UTC).date()
    assert (gap.reaches(FIRST_DAY), gap.reaches(SECOND_DAY), gap.reaches(later)) == (True, True, False)
    assert json.dumps(gap.days) == '"of 2026-01-01 to 2026-01-02"'
    assert Gap(FARM, 1, 2, is_gone=False, after=date(2026, 1, 1), until=None).days == "since 2026-01-01"
