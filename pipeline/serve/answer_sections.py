"""The sections of the report for named answers (`pipeline/gold/answers`): as text, the worst first, and short.

    slo          error budgets that burn, with their speed     at the head of the page
    warnings     routers that depart from their usual values    below the current servers
    reliability  servers with the longest outages               below the current servers
    capacity     reached and approaching limits                 below the lag of the servers
    detection    the delay of noticed losses                    above the single detections
    leaders      days with the most changes of the leader       above the drawing of the terms
    churn        days with the most joins and departures of servers

Two windows decide about a burn, as for alerts on an error budget (Google, The Site Reliability Workbook, chapter 5). At
a speed of 14.4, one hour uses up 2 % of the budget of 30 days; at 6, six hours use up 5 %. The first window shows a
failure that has just begun, the second a slow and lasting failure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pipeline.gold.answers import answer_sql
from pipeline.serve.charts import nothing
from pipeline.serve.page import cut, maybe, table
from pipeline.serve.printing import span
from pipeline.serve.query import SqlQuery
from pipeline.watch.machine import HEALTHY, SILENT

FAST_BURN, SLOW_BURN = 14.4, 6.0
"""The limits of the speed of a burn in the last hour, and in the last six hours."""
BUDGETS_SHOWN, BUDGETS_LEAST, DAYS_SHOWN, FAILING_SHOWN, NOTICED_SHOWN = 10, 3, 5, 10, 5
"""Limits of rows: burning budgets, the budgets shown even if fewer burn, days, failed servers; for detection, the
farms, the members and the observers each.
"""
SOON_DAYS, LATER_DAYS, LOADED = 14, 90, 0.8
"""Limits in days until a resource is full: of a bad state, and of a warning; and the load that causes a warning."""
LIMITS_SHOWN, LIMITS_LEAST = 10, 3
WARNINGS_SHOWN = 20
_SIGNALS = {"lag": ("lag", " ms"), "tunnels": ("tunnels", ""), "round-trip": ("third-party look-ups", " ms")}
"""The name of a signal, and its unit."""
DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
_NOTICED = "to suspect", "to dead"


@dataclass(frozen=True, slots=True)
class Names:
    """The page's names of things; `farm` returns an empty text for a single farm."""

    farm: Callable[[str | None], str]
    server: Callable[[str, int], str]
    destination: Callable[[str], str]


def budgets(run_query: SqlQuery, names: Names, objective_percent: float) -> str:
    """Return the error budgets that burn."""
    rows = sorted(run_query(answer_sql("slo", objective_percent)), key=_urgency)
    if not rows:
        return nothing()
    failing = [row for row in rows if _burn(row)[0]]
    shown = rows[: max(BUDGETS_LEAST, min(len(failing), BUDGETS_SHOWN))]
    html = table(
        ("what", "its budget", "left", "good in 1 h", "6 h", "30 d"),
        [
            (
                _name(row, names),
                _burn(row)[1],
                f"{row['budget_left']:.0%}" if row["budget_left"] > 0 else None,
                *(maybe(row[f"level_{window}"], _share) for window in ("1h", "6h", "30d")),
            )
            for row in shown
        ],
        [_burn(row)[0] for row in shown],
    )
    least = min((row["budget_left"] for row in rows[len(shown) :]), default=1.0)
    rest = "some of the rest are used up too" if least <= 0 else f"the rest: at least {least:.0%} left"
    return html + cut(len(shown), len(rows), "budgets", f"the worst; {rest}")


def reliability(run_query: SqlQuery, names: Names) -> str:
    """Return the servers with the longest outages."""
    rows = run_query(answer_sql("reliability"))
    failed = [row for row in rows if row["failures"] or row["down_ms"]]
    if rows and not failed:
        return '<p class="none">No watched server failed.</p>'
    shown = failed[:FAILING_SHOWN]
    html = table(
        ("server", "down", "now", "failures", "time between failures", "time to repair", "healthy"),
        [
            (
                names.server(row["farm"], row["server_id"]),
                span(row["down_ms"]),
                row["state"],
                row["failures"],
                maybe(row["mtbf_ms"], span),
                maybe(row["mttr_ms"], span),
                span(row["healthy_ms"]),
            )
            for row in shown
        ],
        ["" if row["state"] == HEALTHY else "bad" if row["state"] == SILENT else "warn" for row in shown],
    )
    most = span(failed[len(shown)]["down_ms"]) if len(failed) > len(shown) else ""
    return html + cut(len(shown), len(failed), "servers that failed", f"the longest down; the rest: at most {most}")


def detection(run_query: SqlQuery, names: Names) -> str:
    """Return the delay of noticed losses, by farms, members and observers, next to the expectation."""
    rows = run_query(answer_sql("detection"))
    if not rows:
        return ""
    by_kind = {kind: [*same] for kind, same in groupby(rows, key=lambda row: row["kind"])}
    shown = [row for same in by_kind.values() for row in same[:NOTICED_SHOWN]]
    html = table(
        ("what", "false alarms", "losses", *(f"{what}: median, 99%, longest" for what in _NOTICED), "suspect for"),
        [
            (
                names.farm(row["farm"]) + ("the farm" if row["kind"] == "farm" else f"{row['kind']} {row['name']}"),
                _false_alarms(row),
                row["detections"],
                _seconds(row["suspect_median_ms"], row["suspect_p99_ms"], row["suspect_max_ms"]),
                _seconds(row["dead_median_ms"], row["dead_p99_ms"], row["dead_max_ms"]),
                _seconds(row["suspicion_median_ms"], row["suspicion_max_ms"]),
            )
            for row in shown
        ],
        ["bad" if row["false_deaths"] else "warn" if row["false_suspicions"] else "" for row in shown],
    )
    return (
        f'<p class="how">{_expected(shown)}</p>'
        + html
        + "".join(
            cut(min(len(same), NOTICED_SHOWN), len(same), f"{kind}s", "with the longest delay of detection")
            for kind, same in by_kind.items()
        )
    )


def capacity(run_query: SqlQuery, names: Names) -> str:
    """Return reached and approaching limits, and the load of the other routers without the largest one."""
    rows = run_query(answer_sql("capacity"))
    judged = [(*_due(row), row) for row in rows]
    ordered = sorted(judged, key=lambda each: ["bad", "warn", ""].index(each[0]))
    scarce = sum(1 for kind, _, _ in judged if kind)
    shown = ordered[: max(LIMITS_LEAST, min(scarce, LIMITS_SHOWN))]
    html = table(
        ("what", "is full", "resource", "load", "a day", "without the largest router"),
        [
            (
                _name(row, names),
                said,
                row["resource"],
                f"{row['load']:.0%}",
                maybe(row["trend"], lambda trend: f"{trend:+.1%}"),
                maybe(row["headroom_n1"], lambda headroom: f"{1 - headroom:.0%}"),
            )
            for _, said, row in shown
        ],
        [kind for kind, _, _ in shown],
    )
    rest = f"; {scarce - len(shown):,} of the rest are scarce too" if scarce > len(shown) else ""
    return html + cut(len(shown), len(rows), "limits", f"the scarcest{rest}")


def warnings(run_query: SqlQuery, names: Names) -> str:
    """Return the routers that depart from their usual values."""
    rows = run_query(answer_sql("warnings"))
    if not rows:
        return '<p class="how">No router departs from its usual values in its history.</p>'

    def departure(row: dict[str, Any]) -> str:
        signal, unit = _SIGNALS[row["signal"]]
        return f"{signal} {row['seen']:,.4g}{unit}, usually {row['usual']:,.4g}{unit}"

    html = table(
        ("server", "departs", "since", "until", "spreads away", "compared with"),
        [
            (
                names.server(row["farm"], row["server_id"]),
                departure(row),
                f"{row['since']:%m-%d %H:%M}",
                "continues" if row["lasting"] else f"{row['until']:%m-%d %H:%M}",
                f"{row['score']:.1f}",
                "the hour of day" if row["baseline"] == "days" else "the hours before",
            )
            for row in rows[:WARNINGS_SHOWN]
        ],
        ["warn" if row["lasting"] else "" for row in rows[:WARNINGS_SHOWN]],
    )
    return html + cut(min(len(rows), WARNINGS_SHOWN), len(rows), "warnings", "the continuing first, then the strongest")


def leader_changes(run_query: SqlQuery, names: Names) -> str:
    """Return the days with the most changes of the leader."""
    rows = [row for row in run_query(answer_sql("leaders")) if row["changes"]]
    if not rows:
        return ""
    html = table(
        ("day", "changes", "terms", "below a minute", "shortest", "median", "without a leader"),
        [
            (
                names.farm(row["farm"]) + f"{row['day']}",
                row["changes"],
                row["terms"],
                row["below_a_minute"] or None,
                maybe(row["shortest_ms"], span),
                maybe(row["median_ms"], span),
                maybe(row["leaderless_ms"], lambda sum_ms: f"up to {span(sum_ms)}"),
            )
            for row in rows[:DAYS_SHOWN]
        ],
    )
    return html + cut(min(len(rows), DAYS_SHOWN), len(rows), "days", "with the most changes")


def churn(run_query: SqlQuery, names: Names) -> str:
    """Return the days with the most joins and departures of servers."""
    rows = run_query(answer_sql("churn"))
    counted = ("joined", "removed", "silent", "returned", "restarted")
    html = table(
        ("day", *counted),
        [
            (names.farm(row["farm"]) + f"{row['day'] or 'unknown'}", *(row[each] or None for each in counted))
            for row in rows[:DAYS_SHOWN]
        ],
    )
    return html + cut(min(len(rows), DAYS_SHOWN), len(rows), "days", "with the most changes")


def _urgency(row: dict[str, Any]) -> tuple[int, bool, float, float]:
    """Return a sort key: the severity, the farm before its parts, the least budget left, the fastest burn."""
    kind, _ = _burn(row)
    return ["bad", "warn", ""].index(kind), row["kind"] != "farm", row["budget_left"], -(row["burn_1h"] or 0.0)


def _burn(row: dict[str, Any]) -> tuple[str, str]:
    """Return the severity, and a text: the speed of the burn, and the remaining budget."""
    in_1h, in_6h, left = row["burn_1h"] or 0.0, row["burn_6h"] or 0.0, row["budget_left"]
    # If both windows burn too fast, show the more recent one.
    burn = in_1h if in_1h >= FAST_BURN else in_6h if in_6h >= SLOW_BURN else max(in_1h, in_6h)
    times = f"burns {burn:,.1f} times too fast" if burn < 2 else f"burns {burn:,.0f} times too fast"  # noqa: PLR2004
    if left <= 0:
        used = "used up" if left > -1 else f"used up {1 - left:,.0f} times"
        return "bad", f"{used}, {times}" if burn > 1 else used
    if burn <= 1:
        return "", "lasts"
    is_bad = in_1h >= FAST_BURN or in_6h >= SLOW_BURN
    return "bad" if is_bad else "warn", f"{times}, gone in {span(round(left * MONTH_MS / burn))}"


def _false_alarms(row: dict[str, Any]) -> str | None:
    """Return the number of suspicions of living members, and of all suspicions that can be judged."""
    judged, false = row["suspicions"] - row["unjudged"], row["false_suspicions"] + row["false_deaths"]
    unjudged = f"{row['unjudged']:,} not judged" if row["unjudged"] else ""
    if not judged:
        return unjudged or None
    called_dead = f"{row['false_deaths']:,} called dead" if row["false_deaths"] else ""
    return ", ".join(filter(None, (f"{false:,} of {judged:,}", called_dead, unjudged)))


def _seconds(*times_ms: int | None) -> str | None:
    """Return these times as text, if they are known."""
    parts = [f"{each / 1000:,.1f}" for each in times_ms if each is not None]
    return f"{', '.join(parts)} s" if parts else None


def _expected(rows: Sequence[dict[str, Any]]) -> str:
    """Return SWIM's expectation for these rows, and the largest error of the measured times."""

    def between(least: str, most: str) -> str:
        bounds = min(row[least] for row in rows), max(row[most] for row in rows)
        return " to ".join(dict.fromkeys(f"{each / 1000:,.1f}" for each in bounds)) + " s"

    suspect, dead = (between(each, each) for each in ("suspect_expected_ms", "dead_expected_ms"))
    suspicion = between("suspicion_expected_min_ms", "suspicion_expected_max_ms")
    text = f"SWIM expects {suspect} {_NOTICED[0]}, {dead} {_NOTICED[1]} if others confirm it, and {suspicion} between."
    uncertain = [row["uncertain_ms"] for row in rows if row["uncertain_ms"] is not None]
    return text + (f" Both measured times are too long by up to {span(max(uncertain))}." if uncertain else "")


def _due(row: dict[str, Any]) -> tuple[str, str]:
    """Return the severity, and the time until the limit as text. An insignificant rise does not cause a warning."""
    left, surely = row["days_left"], row["days_left_latest"] is not None
    if left == 0:
        return "bad", "now"
    if left is not None and surely and left <= LATER_DAYS:
        soonest, latest = (span(round(row[f"days_left_{end}"] * DAY_MS)) for end in ("soonest", "latest"))
        return "bad" if left <= SOON_DAYS else "warn", f"in {span(round(left * DAY_MS))} ({soonest} to {latest})"
    if row["headroom_n1"] is not None and row["headroom_n1"] < 0:
        return "warn", "if the largest router is lost"
    if row["load"] >= LOADED:
        return "warn", "nearly"
    return "", "unknown" if row["trend"] is None else "not soon"


def _name(row: dict[str, Any], names: Names) -> str:
    match row["kind"]:
        case "router":
            return names.server(row["farm"], int(row["name"]))
        case "destination":
            return names.farm(row["farm"]) + names.destination(row["name"])
        case _:
            return names.farm(row["farm"]) + "the farm"


def _share(level: float) -> str:
    """Return a share as text; a share below 1 is never rounded to 100 %."""
    return f"{min(level, 0.9999):.2%}" if level < 1 else "100%"
