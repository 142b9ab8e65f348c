"""The HTML report: safe against hostile names, without scripts, worst rows first, with the number of omitted rows.

Each test writes tables by hand and reads the page. The first part tests safety, the second part the verdict, the third
part the sections and charts.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from pipeline.cli.queries import report as report_command
from pipeline.tables import delta
from pipeline.tables.names import remember_names
from tests.pipeline.made_tables import write_batch, write_current_state, write_derived
from tests.pipeline.test_warnings import DAY_SLOTS, health_rows, rising_from

pytest.importorskip("vl_convert", reason="the extra `pipeline` of an older version is installed")
from pipeline.serve import charts, query, report
from pipeline.serve import page as parts

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
EVIL = "<script>alert(1)</script>\" onload='x' url(http://192.0.2.1/) \u202egnp.exe \x1b[31m" + "W" * 80
PLAIN = {"html", "head", "meta", "title", "style", "body", "section", "div", "h1", "h2", "h3", "p", "strong", "figure"}
TABLES = {"table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
SHAPES = {"svg", "g", "path", "line", "rect", "circle", "text"}


class Elements(HTMLParser):
    """The names of elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


def last_report(server: int, ago: timedelta = 5 * SECOND, **others: Any) -> dict[str, Any]:
    values = {"destinations": 1, "healthy_destinations": 1, "attached": True, "job_lag_ms": 2.0}
    return {"server_id": server, "index": server, "log_time": NOON - ago, **values, **others}


def farm(**others: Any) -> dict[str, Any]:
    return {"index": 4711, "log_time": NOON, "period_ms": 30_000, **others}


def make_page(output: Path, now: datetime = NOON + SECOND, *, is_drawn: bool = False, **options: Any) -> str:
    """Return the page, by default without the drawings, which take most of the time."""
    with pytest.MonkeyPatch.context() as patched:
        if not is_drawn:
            patched.setattr(charts, "_drawn", lambda _: "")
        return report.make_report(output, now, show_destinations=False, **options)


def verdict(page: str) -> tuple[str, str]:
    """Return the headline of the verdict, and its complete text."""
    found = page[page.index('<div class="verdict') : page.index("</div>")]
    return re.findall("<strong>(.*?)</strong>", found)[0], re.sub("<[^>]+>", " ", found)


def verdict_of(output: Path, now: datetime = NOON + SECOND) -> tuple[str, str]:
    """Return the verdict of a page without its sections, whose queries take most of the time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(report, "_sections", lambda *_: [])
        return verdict(make_page(output, now))


def section(page: str, title: str) -> str:
    begin = page.index(f"<h2>{title}</h2>")
    return page[begin : page.index("</section>", begin)]


def wide(part: str) -> list[str]:
    return re.findall(r'<svg [^>]*class="wide".*?</svg>', part)


# -- safety of the page ------------------------------------------------------------------------------------------------


def test_page_of_hostile_names_has_only_safe_elements(tmp_path: Path) -> None:
    write_current_state(
        tmp_path, 0, {"farm": [farm(farm=EVIL), farm()], "routers": [last_report(1, farm=EVIL), last_report(1)]}
    )
    write_derived(tmp_path, "router_health", [health(0, 1, 0.5)])
    write_derived(tmp_path, "detections", [detection(0, observer=EVIL, member=EVIL, outcome=EVIL)])
    reign = {"server_id": 1, "first_at": NOON, "last_at": NOON + MINUTE, "publications": 3}
    write_derived(tmp_path, "publishers", [{"master": EVIL, **reign}])
    write_derived(tmp_path, "destination_health", [destination(EVIL, 0.5)])
    write_batch(tmp_path, "quarantine", 0, [{"index": 1, "reason": EVIL, "log_time": NOON}])
    page = make_page(tmp_path, is_drawn=True)
    found = Elements(page)
    assert found.names <= PLAIN | TABLES | SHAPES
    assert not [name for name in found.attributes if name.startswith("on") or name in {"style", "src", "href"}]
    style = re.findall("<style>(.*?)</style>", page, re.DOTALL)[0]
    hashed = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in page
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "url(" not in style
    assert not {"\u202e", "\x1b", "\0"} & set(page), "without characters that reverse or hide text"
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 9, "each name is shown, some also by a query"
    assert "&lt;script&gt;aler · server 1" in page


def test_chart_escapes_text_of_tables() -> None:
    bars = [charts.Bar(name, NOON, NOON + MINUTE, name, 1) for name in (EVIL, "datum.lane", "server 1")]
    drawn = charts.timeline(bars)
    assert Elements(drawn).names <= {"figure", "title"} | SHAPES
    (one,) = wide(drawn)
    titles = re.findall("<title>(.*?)</title>", one)
    assert len(titles) == 3
    assert titles[0].startswith("&lt;script&gt;alert(1)")
    assert titles[1] == "datum.lane", "the text is not evaluated as an expression"


def test_report_hides_destinations_unless_requested(tmp_path: Path) -> None:
    reign = {"server_id": 1, "first_at": NOON, "last_at": NOON + MINUTE, "publications": 3}
    write_derived(tmp_path, "publishers", [{"master": "d-0123456789ab", **reign}])
    remember_names(tmp_path, {"d-0123456789ab": "q" * 52})

    def page(*options: str) -> str:
        target = tmp_path / "report.html"
        result = CliRunner().invoke(report_command, ["--html", str(target), "--output", str(tmp_path), *options])
        assert result.exit_code == 0, result.output
        return target.read_text(encoding="utf-8")

    plain = page()
    assert "d-0123456789ab" in plain
    assert "q" * 52 not in plain
    assert "q" * 52 + ".b32.i2p" in page("--show-destinations")


# -- the verdict -------------------------------------------------------------------------------------------------------


def test_dead_server_is_not_healthy_despite_last_report(tmp_path: Path) -> None:
    dead = last_report(1, timedelta(seconds=384))
    watched = {"server_id": 1, "at": NOON - 10 * MINUTE, "state": "healthy"}
    write_current_state(tmp_path, 0, {"farm": [farm()], "routers": [dead], "watched": [watched]})
    head, text = verdict_of(tmp_path)
    assert head == "0 of 1 server healthy"
    assert "1 silent: server 1 for 6 min 24 s" in text


def test_verdict_of_stale_log_is_not_healthy(tmp_path: Path) -> None:
    write_current_state(tmp_path, 0, {"farm": [farm()], "routers": [last_report(1)]})
    assert verdict_of(tmp_path, NOON + 120 * SECOND)[0] == "1 of 1 server healthy"
    head, text = verdict_of(tmp_path, NOON + 384 * SECOND)
    assert head == "Nothing is known of the last 6 min 24 s"
    assert "1 of 1 server healthy at the end of the tables" in text
    # then the age of old tables is not shown as an outage
    head, text = verdict_of(tmp_path, NOON + timedelta(days=329))
    assert re.fullmatch(r"The tables end 32[89] d.* ago", head)
    assert "1 of 1 server healthy at the end of the tables" in text


def test_lines_beyond_colors_are_dashed() -> None:
    points = [(NOON, 1.0), (NOON + MINUTE, 2.0)]
    some, many = (
        charts.lines([charts.Series(f"server {number}", points) for number in range(count)], "ms")
        for count in (charts.SHADES, charts.SHADES + 1)
    )
    assert 'stroke-dasharray="6' not in some
    assert 'stroke-dasharray="6' in many


def test_outlier_does_not_flatten_other_lines() -> None:
    def height(highest: float) -> float:
        """Return the height of the chart between the values 2 and 4."""
        steady = charts.Series("quiet", [(NOON, 2.0), (NOON + MINUTE, 4.0), (NOON + 2 * MINUTE, 2.0)])
        outlier = charts.Series("loud", [(NOON, 2.0), (NOON + MINUTE, highest), (NOON + 2 * MINUTE, 2.0)])
        [path] = re.findall(r'd="M[^"]*"[^>]*stroke="var\(--shade-0\)"', charts.lines([steady, outlier], "ms"))[:1]
        heights = [float(each) for each in re.findall(r",(-?[\d.]+)", path)]
        return max(heights) - min(heights)

    assert height(10_000) > height(50) / 5


def test_verdict_uses_watch_state_or_else_last_report(tmp_path: Path) -> None:
    reports = [
        last_report(1),
        last_report(2, attached=False),
        # given one bad report among good ones: the watch ignores it
        last_report(3, attached=False),
        # a server that reports again after an outage
        last_report(4),
        # and a server whose good report is not the third in sequence
        last_report(5),
    ]
    watched = [
        {"server_id": 3, "at": NOON - 9 * MINUTE, "state": "healthy"},
        {"server_id": 4, "at": NOON - MINUTE, "state": "silent"},
        {"server_id": 5, "at": NOON - MINUTE, "state": "unhealthy"},
    ]
    write_current_state(tmp_path, 0, {"farm": [farm()], "routers": reports, "watched": watched})
    head, text = verdict_of(tmp_path)
    assert head == "3 of 5 servers healthy"
    assert "2 unhealthy: server 2, server 5" in text


def test_verdict_counts_member_without_report_but_not_removed(tmp_path: Path) -> None:
    reports = [last_report(1), last_report(2, 60 * MINUTE), last_report(3, 60 * MINUTE)]
    write_current_state(tmp_path, 0, {"farm": [farm()], "routers": reports})
    write_batch(
        tmp_path,
        "configurations",
        0,
        [
            {"index": 1, "voters": [1, 2, 3], "learners": [], "log_time": NOON},
            {"index": 9, "voters": [1, 2], "learners": [4], "log_time": NOON},
        ],
    )
    page = make_page(tmp_path)
    head, text = verdict(page)
    assert head == "1 of 3 servers healthy"
    assert "1 never reported: server 4" in text
    assert "server 3" not in text
    servers = re.findall(r">(server \d|removed|silent|healthy|never reported)<", section(page, "Servers"))
    assert servers == ["server 4", "never reported", "server 2", "silent", "server 1", "healthy", "server 3", "removed"]


def test_verdict_separates_farms_with_equal_server_ids(tmp_path: Path) -> None:
    write_current_state(
        tmp_path,
        0,
        {
            "farm": [farm(farm="a" * 32), farm(farm="b" * 32, log_time=NOON - 60 * MINUTE)],
            "routers": [last_report(1, farm="a" * 32, attached=False), last_report(1, 61 * MINUTE, farm="b" * 32)],
        },
    )
    head, text = verdict_of(tmp_path)
    assert head == "Nothing is known of the last 1 h 1 s of 1 of 2 farms"
    assert "1 of 2 servers healthy at the end of the tables" in text
    assert f"1 unhealthy: {'a' * 12} · server 1" in text
    assert f"{'b' * 12}: The tables reach to entry 4711 of the log, at log time 2026-01-01 11:00:00 UTC" in text


def test_report_opens_each_table_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_current_state(tmp_path, 0, {"farm": [farm()], "routers": [last_report(1)]})
    opened: list[str] = []

    found = delta._opened

    def counted(root: Path) -> DeltaTable | None:
        opened.append(root.name)
        return found(root)

    monkeypatch.setattr(delta, "_opened", counted)
    make_page(tmp_path)
    assert sorted(opened) == sorted(query.TABLES)


def test_report_shows_one_version_of_changing_table(tmp_path: Path) -> None:
    write_current_state(tmp_path, 0, {"farm": [farm()], "routers": [last_report(1)]})

    def servers(run_query: query.SqlQuery) -> list[list[dict[str, Any]]]:
        """Return the servers before and after a commit."""
        before = run_query("SELECT server_id FROM current_routers")
        write_current_state(tmp_path, 1, {"routers": [last_report(2)]})
        return [before, run_query("SELECT server_id, index FROM current_routers")]

    assert query.of_one_version(tmp_path, servers) == [[{"server_id": 1}], [{"server_id": 1, "index": 1}]]
    assert len(query.documents(tmp_path, "SELECT server_id FROM current_routers")) == 2


def test_verdict_without_reports_is_unknown(tmp_path: Path) -> None:
    write_current_state(tmp_path, 0, {"farm": [farm()]})
    assert verdict_of(tmp_path)[0] == "Nothing is known yet: no server has reported"


def test_page_escapes_note_about_omitted_rows() -> None:
    assert "<b>" not in parts.cut(1, 2, "<b>rows", "the <b>newest")


# -- sections: worst rows first, with the number of omitted rows -------------------------------------------------------


def health(minute: int, server: int, availability: float = 1.0, lag_ms: float = 2.0) -> dict[str, Any]:
    begin = NOON + minute * MINUTE
    values = {"availability": availability, "job_lag_p95_ms": lag_ms, "reports": 2}
    return {"window_start": begin, "window_end": begin + MINUTE, "server_id": server, **values}


def detection(minute: int, **others: Any) -> dict[str, Any]:
    values = {"observer": "node-1", "member": "node-2", "suspect_at": NOON + minute * MINUTE}
    return {**values, "contact_to_suspect_ms": 900, "contact_to_dead_ms": 4000, **others}


def destination(name: str, healthy: float) -> dict[str, Any]:
    values = {"window_start": NOON, "window_end": NOON + MINUTE, "server_id": 1, "reports": 2, "breaks": 0}
    return {"destination": name, "healthy_share": healthy, **values}


def test_error_budget_lists_worst_servers_first(tmp_path: Path) -> None:
    def in_minute(minute: int, server: int) -> float:
        lately = {1: 0.0 if minute >= 570 else 1.0, 3: 0.85, 4: 0.97}
        return lately.get(server, 1.0) if minute >= 540 else 0.0 if server == 2 and minute < 3 else 1.0

    # Given ten hours: server 2 was down for the first three minutes.
    # In the last hour server 1 was down for half of the time, server 3 for 15 % and server 4 for 3 %.
    write_derived(
        tmp_path,
        "router_health",
        [health(minute, server, in_minute(minute, server)) for minute in range(600) for server in range(1, 6)],
    )
    page = make_page(tmp_path, NOON + 600 * MINUTE, objective_percent=99.0)
    budget = section(page, "Error budget")
    assert page.index('class="verdict') < page.index(budget) < page.index("<h2>Servers</h2>")
    rows = re.findall(r"<tr class=(bad|warn)><td [^>]*>(server \d+)</td><td [^>]*>([^<]*)</td>", budget)
    assert rows == [
        ("bad", "server 1", "used up 5 times, burns 50 times too fast"),
        ("bad", "server 3", "used up, burns 15 times too fast"),
        ("warn", "server 4", "burns 3 times too fast, gone in 7 d"),
    ]
    assert "3 of 5 budgets shown, the worst; the rest: at least 50% left." in budget
    assert "The objective is 99% good" in budget


def test_leaders_and_churn_list_days_with_most_changes(tmp_path: Path) -> None:
    def term(number: int, day: int) -> dict[str, Any]:
        at = NOON + timedelta(days=day, minutes=number)
        times = {"first_at": at, "last_at": at + 30 * SECOND, "first_index": number}
        return {"term": number, "leader_id": number % 3, **times, "leader_changed": True, "gap_ms": 1_000}

    # given one day more than the page shows; the last day has two changes
    write_derived(tmp_path, "leaderships", [term(number, min(number, 5)) for number in range(7)])
    write_batch(
        tmp_path,
        "configurations",
        0,
        [
            {"index": index, "voters": [*range(index)], "learners": [], "log_time": NOON + timedelta(days=index)}
            for index in (1, 2, 4)
        ],
    )
    page = make_page(tmp_path)
    rows = re.findall(r"<tr><td [^>]*>([^<]*)</td><td [^>]*>(\d)</td>", section(page, "Leaders"))
    assert (len(rows), rows[0]) == (5, ("2026-01-06", "2"))
    assert "5 of 6 days shown, with the most changes." in section(page, "Leaders")
    rows = re.findall(r"<tr><td [^>]*>([^<]*)</td><td [^>]*>(\d)</td>", section(page, "Churn"))
    assert rows == [("2026-01-05", "2"), ("2026-01-03", "1")]


def test_negative_gap_between_leaders_is_unknown(tmp_path: Path) -> None:
    # given a correction of log time between two terms, and between the publications of two servers
    times = {"first_at": NOON, "last_at": NOON, "first_index": 1, "gap_ms": -3_600_000}
    write_derived(tmp_path, "leaderships", [{"term": 1, "leader_id": 1, **times}])
    write_derived(tmp_path, "publishers", [{"master": "d-1", "server_id": 1, **times}])
    page = make_page(tmp_path, is_drawn=True)
    for title in ("Leaders", "Publishers"):
        assert "the time since an earlier one is unknown" in section(page, title)
    assert "-3600" not in page


def test_failures_list_longest_outage_first(tmp_path: Path) -> None:
    def became(server: int, minute: int, previous: str, state: str) -> dict[str, Any]:
        return {"at": NOON + minute * MINUTE, "server_id": server, "previous": previous, "state": state, "reason": ""}

    # given thirteen servers: 0 never failed, 12 stopped reporting, and server N (1 to 11) was down for N minutes
    transitions = [became(server, 0, "", "healthy") for server in range(13)]
    transitions += [became(server, 10, "healthy", "unhealthy") for server in range(1, 12)]
    transitions += [became(server, 10 + server, "unhealthy", "healthy") for server in range(1, 12)]
    transitions.append(became(12, 20, "healthy", "silent"))
    write_batch(tmp_path, "transitions", 0, transitions)
    write_current_state(tmp_path, 0, {"farm": [farm(log_time=NOON + 60 * MINUTE)]})
    shown = section(make_page(tmp_path), "Failures")
    rows = re.findall(r"<tr( class=bad)?><td [^>]*>(server \d+)</td><td [^>]*>([^<]*)</td>", shown)
    assert rows[:2] == [(" class=bad", "server 12", "40 min"), ("", "server 11", "11 min")]
    assert len(rows) == 10
    assert "10 of 12 servers that failed shown, the longest down; the rest: at most 2 min." in shown


def test_early_warning_shows_unusual_and_usual_values(tmp_path: Path) -> None:
    slots = 4 * DAY_SLOTS
    write_current_state(tmp_path, 0, {"farm": [farm()]})
    write_derived(tmp_path, "router_health", health_rows(slots))
    assert "No router departs from its usual values" in section(make_page(tmp_path), "Early warning")
    # when the lag of one server rises, and another server had lost most of its tunnels for 100 minutes
    lost = health_rows(slots, tunnels=lambda slot: 30.0 if slots - 30 <= slot < slots - 20 else 300.0)
    rising = [row | {"server_id": 7} for row in health_rows(slots, lag=rising_from(slots - 5, factor=50.0))]
    write_derived(tmp_path, "router_health", [row | {"server_id": 6} for row in lost] + rising, batch=1)
    matches = re.findall(
        r"<tr( class=warn)?>(<td [^>]*>server .*?)</tr>", section(make_page(tmp_path), "Early warning")
    )
    cells = [(kind, re.findall("<td[^>]*>([^<]*)</td>", row)) for kind, row in matches]
    (now, first), (over, second) = cells
    assert (now, first[0], first[3], first[5]) == (" class=warn", "server 7", "continues", "the hour of day")
    assert re.fullmatch(r"lag \d[\d,]+ ms, usually [\d.]+ ms", first[1])
    assert (over, second[0], second[3] != "continues") == ("", "server 6", True)
    assert re.fullmatch(r"tunnels [\d.]+, usually [\d.]+", second[1])


def test_detection_compares_measured_and_expected_times(tmp_path: Path) -> None:
    times = {"contact_to_dead_ms": 8_000, "suspect_to_dead_ms": 4_500}
    lost = [
        detection(10 * n, member=f"node-{n}", outcome="dead", contact_to_suspect_ms=1_000 * n, **times)
        for n in range(1, 8)
    ]
    # given a live member declared dead
    alive = {"member": "node-8", "dead_at": NOON + MINUTE, "back_at": NOON + 2 * MINUTE, "outcome": "came-back"}
    write_derived(tmp_path, "detections", [*lost, detection(0, **alive)])
    trace = {"first_event_at": NOON - MINUTE, "last_event_at": NOON + 60 * MINUTE}
    write_derived(tmp_path, "members", [{"member": "node-8", **trace}])
    write_current_state(tmp_path, 0, {"farm": [farm()]})
    detection_section = section(make_page(tmp_path), "Detection")
    assert (
        "SWIM expects 1.6 s to suspect, 5.6 s to dead if others confirm it, and 4.0 to 24.0 s between."
        in detection_section
    )
    assert "Both measured times are too long by up to 30 s." in detection_section
    (row,) = re.findall("<tr class=bad>(<td [^>]*>the farm</td>.*?)</tr>", detection_section)
    assert re.findall("<td[^>]*>([^<]*)</td>", row) == [
        "the farm",
        "1 of 8, 1 called dead",
        "7",
        "4.0, 7.0, 7.0 s",
        "8.0, 8.0, 8.0 s",
        "4.5, 4.5 s",
    ]
    assert "5 of 8 members shown, with the longest delay of detection." in detection_section


def test_report_of_thousand_servers_is_limited(tmp_path: Path) -> None:
    reports = [
        last_report(server, 10 * MINUTE if server == 777 else SECOND, attached=server != 500)
        for server in range(1, 1001)
    ]
    write_current_state(tmp_path, 0, {"farm": [farm()], "routers": reports})
    # The worst servers have 30 windows, the others one.
    flapping = [
        health(n, server, (n + server) % 3 / 2 if server <= 60 else 1.0, server)
        for server in range(1, 1001)
        if server != 777
        for n in range(30 if server <= 60 else 1)
    ]
    write_derived(tmp_path, "router_health", flapping)
    write_derived(tmp_path, "destination_health", [destination(f"d-{n:04}", n / 1000) for n in range(1000)])
    write_derived(tmp_path, "detections", [detection(n) for n in range(150)])
    times = {"first_at": NOON, "last_at": NOON, "gap_ms": None}
    write_derived(tmp_path, "leaderships", [{"term": n, "leader_id": n, "first_index": n, **times} for n in range(100)])
    page = make_page(tmp_path, is_drawn=True)
    assert verdict(page)[0] == "998 of 1,000 servers healthy"
    rows = re.findall(r"<tr[^>]*><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td>", section(page, "Servers"))
    assert rows[:2] == [("server 777", "silent"), ("server 500", "unhealthy")]
    assert len(rows) == 200
    assert "200 of 1,000 servers shown, the worst; the rest: 800 healthy." in page
    assert "<summary>170 more rows</summary>" in section(page, "Servers")
    assert "40 of 999 servers shown, the worst; the rest: at least " in section(page, "Availability by server")
    assert "8 of 999 servers shown, the worst; the rest: at most 992.0 ms." in section(page, "Lag by server")
    assert "100 of 150 detections shown, the newest." in page
    assert "40 of 100 terms shown, the newest." in section(page, "Leaders")
    assert "200 of 1,000 destinations shown, the worst; the rest: at least 19.9% healthy." in page
    assert section(page, "Destinations").index("d-0000") < section(page, "Destinations").index("d-0001")
    # The strips of the worst servers change their color in each window, and the page is still small.
    assert len(page) < 1_000_000


def test_unavailable_server_is_drawn_as_unavailable(tmp_path: Path) -> None:
    windows = [(n, server) for n in range(500) for server in range(1, 12) if server != 7 or n < 251]
    write_derived(tmp_path, "router_health", [health(n, server, 1.0, 1234.0) for n, server in windows])
    reign = {"server_id": 1, "first_at": NOON, "last_at": NOON + MINUTE, "publications": 3}
    write_derived(tmp_path, "publishers", [{"master": master, **reign} for master in ("d-1", "d-2")])
    page = make_page(tmp_path, is_drawn=True)
    (strips,) = wide(section(page, "Availability by server"))
    marks = re.findall("<title>(.*?)</title>", strips)
    assert [mark for mark in marks if "server 7" in mark] == [
        "server 7, 01-01 12:00 to 01-01 16:10: 100.0%",
        "server 7, 01-01 16:10 to 01-01 16:15: 20.0%",
        "server 7, 01-01 16:15 to 01-01 20:20: 0.0%",
    ]
    assert len(marks) == 3 + 10, "one strip for each healthy server"
    assert strips.index(">server 7<") < strips.index(">server 1<"), "worst first"
    (lag,) = wide(section(page, "Lag by server"))
    assert lag.count("<title>server ") == 8
    assert "8 of 11 servers shown" in section(page, "Lag by server")
    assert page.count("<h3>") == 2, "one drawing per master"
    assert len(page) < 100_000


def test_gap_of_whole_farm_is_drawn_as_unknown(tmp_path: Path) -> None:
    # given two hours of windows of a minute, a gap of ten hours, and one more hour.
    # Server 2 reported only in the second half of that last hour
    windows = [(n, 1) for n in [*range(120), *range(720, 780)]] + [(n, 2) for n in range(750, 780)]
    # A pause of ten minutes, the longest reporting period, is not a gap.
    windows = [(n, server) for n, server in windows if n not in range(50, 60)]
    write_derived(tmp_path, "router_health", [health(n, server) for n, server in windows])
    write_current_state(tmp_path, 0, {"farm": [farm(log_time=NOON + 780 * MINUTE)]})
    page = make_page(tmp_path, NOON + timedelta(days=3), is_drawn=True)
    (strips,) = wide(section(page, "Availability by server"))
    assert re.findall("<title>(.*?)</title>", strips) == [
        "server 1, 01-01 12:00 to 01-01 14:00: 100.0%",
        "server 1, 01-02 00:00 to 01-02 01:00: 100.0%",
        "server 2, 01-02 00:30 to 01-02 01:00: 100.0%",
    ]
    (lag,) = wide(section(page, "Lag by server"))
    assert lag.count("<title>server ") == 3, "lines are interrupted at the gap"
    # A page made days later shows the end of the tables.
    assert "The tables reach to entry 4711 of the log, at log time 2026-01-02 01:00:00 UTC;" in page


def test_charts_have_two_widths_and_theme_colors() -> None:
    points = [(NOON + n * MINUTE, n / 7) for n in range(7)]
    drawn = charts.strips([charts.Series("server 1", points)]) + charts.lines([charts.Series("server 1", points)], "ms")
    widths = [int(width) for width in re.findall(r'<svg width="(\d+)"', drawn)]
    assert widths == [charts.WIDE, charts.NARROW] * 2
    assert charts.NARROW <= 390 - 2 * 15, "a phone's width without the margins"
    used = set(re.findall(r'(?:fill|stroke)="var\((--[\w-]+)\)"', drawn))
    light, dark = re.findall(r":root \{(.*?)\}", parts.STYLE, re.DOTALL)
    assert used <= set(re.findall(r"(--[\w-]+):", light)) == set(re.findall(r"(--[\w-]+):", dark))
    assert not re.search(r'(?:fill|stroke)="(?!var\(|none")', drawn), "all colors come from the theme"
