"""One self-contained page about a farm: how its routers fared, how fast losses were noticed, what led and published.

Each section asks the tables one question (`pipeline/query.py`), so the page shows nothing that a query would not. The
page loads nothing: styles and drawings are in it, and its Content-Security-Policy forbids a browser to fetch anything,
even if a text in the tables tries to. Destinations are named by their pseudonyms; only `--show-destinations` looks up
their addresses.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from html import escape
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from pipeline.plots import Bar, Series, lines, strips, table, timeline
from pipeline.query import documents
from pipeline.tables.names import read_names

RUNS_SHOWN = 500
STRIPS_SHOWN, LINES_SHOWN, STRETCHES = 200, 8, 300
"""Routers that are drawn, the worst first, and the parts into which their time is divided."""
_STYLE = """
:root { color-scheme: light dark; --text: #222; --soft: #555; --line: #ddd; --ground: #fff; --plot: #fafafa }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --soft: #aaa; --line: #444; --ground: #161616;
--plot: #1f1f1f } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: var(--text);
background: var(--ground) }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em } h3 { font-size: 1em; font-weight: normal }
p { margin: .4em 0 } svg { width: 100%; height: auto; background: var(--plot); border: 1px solid var(--line) }
svg text { font-size: 11px; fill: var(--soft) } svg .left { text-anchor: end }
svg polyline { fill: none; stroke-width: 1.5 } svg .grid { stroke: var(--line) }
.legend span { margin-right: 1em; font-size: .85em } .legend i { display: inline-block; width: .9em; height: .9em;
margin-right: .3em } .none, .how { color: var(--soft) } .how { font-size: .9em } section { overflow-x: auto }
table { border-collapse: collapse; font-size: .9em } th, td { text-align: left; padding: .2em .8em .2em 0;
border-bottom: 1px solid var(--line) }
"""
_FARED = f"""
    WITH windows AS (SELECT *, row_number() OVER in_order - 1 AS place,
                       coalesce(window_start - lag(window_end) OVER in_order
                                > greatest(5 * (window_end - window_start), INTERVAL 15 MINUTE), false) AS behind_gap
                     FROM (SELECT DISTINCT window_start, window_end FROM router_health)
                     WINDOW in_order AS (ORDER BY window_start)),
         cut AS (SELECT *, place // (SELECT (count(*) + {STRETCHES - 1}) // {STRETCHES} FROM windows) AS stretch,
                   sum(behind_gap::INT) OVER (ORDER BY place) AS run
                 FROM windows),
         fared AS (SELECT h.server_id, c.place, c.stretch, h.availability, h.job_lag_p95_ms
                   FROM router_health h JOIN cut c USING (window_start)),
         servers AS (SELECT server_id, min(place) AS since, max(job_lag_p95_ms) AS lag,
                       sum(availability) / ((SELECT count(*) FROM windows) - min(place)) AS availability
                     FROM fared GROUP BY server_id)
"""  # noqa: S608 - own names
"""Windows numbered and cut into stretches of a few; servers as they fared from their first report to the end of it all:
in a window without a report a server has no row, and was not available. Where no server has a row, for longer than any
reporting period, the farm as a whole stood still: a gap, which ends a run of windows."""

Ask = Callable[[str], list[dict[str, Any]]]


def make_report(output: Path, made_at: datetime, *, show_destinations: bool) -> str:
    """The page as text. Raises QueryError."""

    def ask(sql: str) -> list[dict[str, Any]]:
        return documents(output, sql)

    names = read_names(output) if show_destinations else {}

    def name_of(destination: str) -> str:
        address = names.get(destination)
        return destination if address is None else f"{address}.b32.i2p"

    sections = [
        _section("Now", "The newest reports in the tables.", _now(ask)),
        _section(
            "Availability by router",
            "Share of the reporting periods in which the router's report was committed; 0 while it was silent.",
            _availability(ask),
        ),
        _section(
            "Lag by router",
            "95th percentile of the job lag (or of the node's own event loop) in a window; of several the highest.",
            _lag(ask),
        ),
        _section(
            "Detection",
            "From the last report of a member to its being suspected and called dead, as each observer saw it.",
            _detection(ask),
        ),
        _section("Leaders", "One bar a term, from its first to its last clock entry.", _leaders(ask)),
        _section("Publishers", "One bar a run of publications of one server.", _publishers(ask, name_of)),
        _section("Destinations", "Share of their reports that call them healthy.", _destinations(ask, name_of)),
        _section("Refused entries", "What the quarantine holds, by reason.", _quarantine(ask)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Garlic Farm</title><style>{_STYLE}</style></head><body><h1>Garlic Farm: how the routers fared</h1>"
        f"<p>Made {made_at:%Y-%m-%d %H:%M} UTC. Times in the plots are log time in UTC.</p>"
        f"{''.join(sections)}</body></html>\n"
    )


def _section(title: str, how: str, content: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="how">{escape(how)}</p>{content}</section>'


def _now(ask: Ask) -> str:
    rows = ask(
        """SELECT r.server_id, date_diff('second', r.log_time, f.log_time) AS age_s, r.uptime_ms, r.job_lag_ms,
             r.healthy_destinations, r.destinations, r.publishing, w.state
           FROM current_routers r CROSS JOIN current_farm f LEFT JOIN current_watched w USING (server_id)
           ORDER BY r.server_id LIMIT 200"""
    )
    reach = ask("SELECT index, coalesce(strftime(log_time, '%Y-%m-%d %H:%M:%S'), 'unknown') AS at FROM current_farm")
    told = (
        f"<p>The tables reach to entry {row['index']} of the log, at log time {escape(row['at'])}; how long ago a"
        " report came is counted from then.</p>"
        for row in reach
    )
    return "".join(told) + table(
        ("server", "last report", "uptime", "job lag", "healthy leaves", "publishes", "state"),
        [
            (
                row["server_id"],
                "unknown" if row["age_s"] is None else f"{row['age_s']} s ago",
                "unknown" if row["uptime_ms"] is None else str(timedelta(seconds=row["uptime_ms"] // 1000)),
                "unknown" if row["job_lag_ms"] is None else f"{row['job_lag_ms']:.1f} ms",
                f"{row['healthy_destinations']} of {row['destinations']}",
                "yes" if row["publishing"] else "",
                row["state"],
            )
            for row in rows
        ],
    )


def _availability(ask: Ask) -> str:
    value = "sum(coalesce(f.availability, 0)) / count(*)"
    return strips(_stretches(ask, "availability", STRIPS_SHOWN, value)) + _left_out(ask, STRIPS_SHOWN)


def _lag(ask: Ask) -> str:
    series = _stretches(ask, "lag DESC NULLS LAST", LINES_SHOWN, "max(f.job_lag_p95_ms)")
    return lines(series, "ms") + _left_out(ask, LINES_SHOWN)


def _stretches(ask: Ask, worst_first: str, shown: int, value: str) -> list[Series]:
    """A value for each stretch of each server that is shown; DuckDB returns no more than can be drawn."""
    rows = ask(
        f"""{_FARED}, shown AS (SELECT * FROM servers ORDER BY {worst_first}, server_id LIMIT {shown})
            SELECT s.server_id, c.run, min(c.window_start) AS moment, max(c.window_end) AS until, {value} AS value
            FROM shown s JOIN cut c ON c.place >= s.since
            LEFT JOIN fared f ON f.server_id = s.server_id AND f.place = c.place
            GROUP BY s.server_id, c.stretch, c.run ORDER BY s.server_id, moment"""  # noqa: S608 - own names
    )
    return [
        Series(f"server {server}", _points([*of_server]))
        for server, of_server in groupby(rows, key=lambda row: row["server_id"])
    ]


def _points(rows: list[dict[str, Any]]) -> list[tuple[datetime, float | None]]:
    """The values of one server, with nothing from the end of a run of windows on."""
    points: list[tuple[datetime, float | None]] = []
    for row, following in zip_longest(rows, rows[1:]):
        points.append((row["moment"], row["value"]))
        if row["until"] is not None and (following is None or following["run"] != row["run"]):
            points.append((row["until"], None))
    return points


def _left_out(ask: Ask, shown: int) -> str:
    more = ask("SELECT count(DISTINCT server_id) AS servers FROM router_health")[0]["servers"] - shown
    return f'<p class="how">{more} more servers fared better and are not drawn.</p>' if more > 0 else ""


def _detection(ask: Ask) -> str:
    rows = ask(
        """SELECT observer, member, suspect_at, contact_to_suspect_ms, contact_to_dead_ms, dead_to_back_ms, outcome
           FROM detections ORDER BY coalesce(suspect_at, dead_at) DESC LIMIT 100"""
    )
    plotted = [row for row in reversed(rows) if row["suspect_at"] is not None]
    series = [
        Series("to suspect", [(row["suspect_at"], _seconds(row["contact_to_suspect_ms"])) for row in plotted]),
        Series("to dead", [(row["suspect_at"], _seconds(row["contact_to_dead_ms"])) for row in plotted]),
    ]
    return lines(series, "s", dots=True) + table(
        ("observer", "member", "suspected", "to suspect s", "to dead s", "away s", "outcome"),
        [
            (
                row["observer"],
                row["member"],
                None if row["suspect_at"] is None else f"{row['suspect_at']:%m-%d %H:%M:%S}",
                _seconds(row["contact_to_suspect_ms"]),
                _seconds(row["contact_to_dead_ms"]),
                _seconds(row["dead_to_back_ms"]),
                row["outcome"],
            )
            for row in rows
        ],
    )


def _leaders(ask: Ask) -> str:
    rows = ask(f"SELECT * FROM leaderships ORDER BY first_at DESC LIMIT {RUNS_SHOWN}")  # noqa: S608 - own names
    return timeline(
        [
            Bar(
                f"server {row['leader_id']}",
                row["first_at"],
                row["last_at"],
                f"term {row['term']}: {row['clock_entries']} clock entries, {_gap(row['gap_ms'])}",
                row["leader_id"] or 0,
            )
            for row in reversed(rows)
        ]
    )


def _publishers(ask: Ask, name_of: Callable[[str], str]) -> str:
    """A drawing for each master: those of a server that publishes for several would cover each other."""
    rows = ask(
        f"SELECT * FROM publishers ORDER BY first_at DESC LIMIT {RUNS_SHOWN}"  # noqa: S608 - own names
    )
    by_master = {master: [row for row in reversed(rows) if row["master"] == master] for master in _masters(rows)}
    drawn = [
        f"<h3>{escape(name_of(master))}</h3>" + timeline([_reign(row) for row in runs])
        for master, runs in by_master.items()
    ]
    return "".join(drawn) if drawn else timeline([])


def _masters(rows: list[dict[str, Any]]) -> list[str]:
    return sorted({row["master"] for row in rows})


def _reign(row: dict[str, Any]) -> Bar:
    said = f"{row['publications']} publications, {_gap(row['gap_ms'])}"
    return Bar(f"server {row['server_id']}", row["first_at"], row["last_at"], said, row["server_id"] or 0)


def _gap(gap_ms: int | None) -> str:
    return "nothing known before" if gap_ms is None else f"{gap_ms / 1000:.1f} s after the one before"


def _destinations(ask: Ask, name_of: Callable[[str], str]) -> str:
    rows = ask(
        """SELECT destination, server_id, sum(healthy_share * reports) / sum(reports) AS healthy, sum(breaks) AS breaks,
             arg_max(connections, window_start) AS connections
           FROM destination_health GROUP BY ALL ORDER BY healthy, destination LIMIT 200"""
    )
    return table(
        ("destination", "server", "healthy", "breaks", "connections"),
        [
            (
                name_of(row["destination"]),
                row["server_id"],
                f"{row['healthy']:.1%}",
                row["breaks"],
                None if row["connections"] is None else f"{row['connections']:.0f}",
            )
            for row in rows
        ],
    )


def _quarantine(ask: Ask) -> str:
    rows = ask("SELECT reason, count(*) AS entries, max(index) AS last FROM quarantine GROUP BY ALL ORDER BY 2 DESC")
    return table(("reason", "entries", "last at index"), [tuple(row.values()) for row in rows])


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
