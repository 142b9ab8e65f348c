"""One self-contained page about farms: the health of their servers now and before, leaders and publishers.

    tables ─▶ queries (`query.py`) ─┬▶ verdict, servers (`verdict.py`)         ─┬▶ one HTML file (`page.py`)
                                    ├▶ named answers (`answer_sections.py`)    ─┤
                                    └▶ charts as SVG (`charts.py`)             ─┘

Each section shows only results of queries. All queries read one version of each table, so the sections agree with each
other while a run writes. Problems come first: the verdict, then burning error budgets, then the servers, the worst at
the top. A page of a large farm stays small, because each section shows its worst rows and the number of omitted rows.

The page does not contain a script and does not load anything. Its Content-Security-Policy allows only its style sheet,
by the hash. So a text in the tables cannot make a browser load or execute anything. On a narrow screen a table becomes
a list, and charts are drawn narrower (`charts.py`). Destinations are named by their pseudonyms; only
`--show-destinations` looks up their addresses.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from html import escape
from itertools import groupby, zip_longest
from typing import Any

from pipeline.gold.answers import OBJECTIVE_PERCENT
from pipeline.output.buckets import Output
from pipeline.serve import answer_sections
from pipeline.serve.charts import Bar, Series, lines, nothing, strips, timeline
from pipeline.serve.gaps import Gap, gaps_of
from pipeline.serve.gaps import lines as gap_lines
from pipeline.serve.page import STYLE, cut, maybe, section, table
from pipeline.serve.printing import printable, span
from pipeline.serve.query import SqlQuery, of_one_version
from pipeline.serve.verdict import FarmEnd, Server, State, count, farm_ends, servers_now
from pipeline.tables.names import read_names

SERVERS_SHOWN, DESTINATIONS_SHOWN, DETECTIONS_SHOWN, RUNS_SHOWN, NAMED = 200, 200, 100, 300, 10
"""Limits of the rows of each table, the worst or newest first, and of the servers that the verdict names."""
STRIPS_SHOWN, LINES_SHOWN, STRETCHES, MASTERS_SHOWN, LANES_SHOWN = 40, 8, 120, 10, 40
"""Limits of drawn servers (the worst first), parts of their time, drawn masters, and servers in drawings of leaders and
publishers. With 300 servers instead, the drawings took 70 % of the time to make a page of 1,000 farms.
"""
FARM_LETTERS = 12
"""The number of letters of a farm's name that precede a server, if there are several farms."""
GAPS_SHOWN = 100
OLD_MS = 24 * 3600 * 1000
"""The age in milliseconds above which the verdict reports old tables instead of a possible outage."""
_FARED = f"""
    WITH windows AS (SELECT *, row_number() OVER in_order - 1 AS place, count(*) OVER (PARTITION BY farm) AS windows,
                       coalesce(window_start - lag(window_end) OVER in_order
                                > greatest(5 * (window_end - window_start), INTERVAL 15 MINUTE), false) AS behind_gap
                     FROM (SELECT DISTINCT farm, window_start, window_end FROM router_health)
                     WINDOW in_order AS (PARTITION BY farm ORDER BY window_start)),
         cut AS (SELECT *, place // ((windows + {STRETCHES - 1}) // {STRETCHES}) AS stretch,
                   sum(behind_gap::INT) OVER (PARTITION BY farm ORDER BY place) AS run
                 FROM windows),
         fared AS (SELECT h.farm, h.server_id, c.place, c.windows, c.stretch, h.availability, h.job_lag_p95_ms
                   FROM router_health h JOIN cut c USING (farm, window_start)),
         servers AS (SELECT farm, server_id, min(place) AS since, max(job_lag_p95_ms) AS lag,
                       sum(availability) / (max(windows) - min(place)) AS availability
                     FROM fared GROUP BY farm, server_id)
"""  # noqa: S608 - own names
"""Windows of each farm, numbered and divided into stretches of a few windows; servers from their first report to the
end. In a window without a report a server lacks a row, and was not available. If no server of a farm has a row for
longer than any reporting period, the farm as a whole was stopped. This gap ends a run of windows.
"""


def make_report(
    output: Output, made_at: datetime, *, show_destinations: bool, objective_percent: float = OBJECTIVE_PERCENT
) -> str:
    """Return the page as text, of one version of each table. Raises QueryError."""
    names = read_names(output) if show_destinations else {}
    return of_one_version(output, lambda run_query: _page(output, run_query, names, made_at, objective_percent))


def _page(
    output: Output, run_query: SqlQuery, names: dict[str, str], made_at: datetime, objective_percent: float
) -> str:
    ends = farm_ends(run_query)
    servers = servers_now(run_query, ends)
    gaps = gaps_of(output, run_query)
    page = _Page(run_query, names, several=len({each.farm for each in servers} | ends.keys()) > 1)
    hashed = b64encode(sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Garlic Farm</title><style>{STYLE}</style></head><body><h1>Garlic Farm</h1>"
        f"{_verdict(servers, ends, made_at, page.name_of, gaps)}"
        f'<p class="how">Made {made_at:%Y-%m-%d %H:%M:%S} UTC. All times are log time in UTC.</p>'
        f"{''.join(_sections(page, servers, gaps, objective_percent))}</body></html>\n"
    )


def _sections(page: "_Page", servers: Sequence[Server], gaps: Sequence[Gap], objective_percent: float) -> list[str]:
    """Return the sections after the verdict, in order."""
    run_query, called = page.run_query, answer_sections.Names(page.farm, page.server, page.destination)
    return [
        section(
            "Error budget",
            f"The objective is {objective_percent:g}% good over 30 days. A budget lasts if"
            " the present rate of failures does not use it up within 30 days.",
            answer_sections.budgets(run_query, called, objective_percent),
        ),
        section(
            "Servers",
            "The last report of each server, the worst first, with its age at the end of the tables.",
            page.servers(servers),
        ),
        section(
            "Early warning",
            "Routers whose values departed from their usual range for half an hour, in the last day.",
            answer_sections.warnings(run_query, called),
        ),
        section(
            "Failures",
            "Watched servers, the longest outage first. A missing report counts when its period is over, and times"
            " count from the start of the watch.",
            answer_sections.reliability(run_query, called),
        ),
        section(
            "Availability by server",
            "Share of the reporting periods with a committed report of the server; 0 while it did not report.",
            page.availability(),
        ),
        section(
            "Lag by server",
            "95th percentile of the job lag (or of the node's own event loop) in a window; the highest of several.",
            page.lag(),
        ),
        section(
            "Capacity",
            "The busiest four hours of the last day, and when the limit is reached by the trend of 28 days, with its"
            " 90% interval.",
            answer_sections.capacity(run_query, called),
        ),
        section(
            "Detection",
            "Time from the last report of a member until gossip suspected it and marked it dead, compared with the"
            " expectation of SWIM for the timing lan. The last table has the times of each observer, the newest first.",
            answer_sections.detection(run_query, called) + page.detection(),
        ),
        section(
            "Leaders",
            "The days with the most changes, then one bar for each term, from its first to its last clock entry.",
            answer_sections.leader_changes(run_query, called) + page.leaders(),
        ),
        section("Publishers", "One bar for each run of publications of one server.", page.publishers()),
        section(
            "Churn",
            "Servers that joined and were removed; for watched servers also missing reports, returns and restarts.",
            answer_sections.churn(run_query, called),
        ),
        section("Destinations", "Share of the reports that show a destination as healthy.", page.destinations()),
        section("Refused entries", "Entries in the quarantine, by reason.", page.quarantine()),
        section(
            "Gaps",
            "Entries of the log that the tables lack, between the first and the last entry read; the newest first.",
            page.gaps(gaps),
        ),
    ]


def _verdict(
    servers: Sequence[Server],
    ends: dict[str, FarmEnd],
    made_at: datetime,
    name_of: Callable[[Server], str],
    gaps: Sequence[Gap],
) -> str:
    """Return the number of healthy servers; if a farm's tables end too long ago, first the age of that end."""
    known = [each for each in servers if each.state.counts]
    healthy = sum(each.state is State.HEALTHY for each in known)
    counted = f"{healthy:,} of {len(known):,} server{'' if len(known) == 1 else 's'}"
    stale_ms = max((end.stale_ms(made_at) for end in ends.values()), default=0)
    stale = sum(end.stale_ms(made_at) > 0 for end in ends.values())
    if not known:
        kind, head = "warn", "Nothing is known yet: no server has reported"
    elif stale:
        where = "" if len(ends) == 1 else f" of {stale:,} of {len(ends):,} farms"
        # Tables that ended earlier describe the past, or are generated. Only for tables that end within the last day,
        # the missing time may be an outage.
        is_old = stale_ms >= OLD_MS
        ended = f"The tables end {span(stale_ms)} ago" if is_old else f"Nothing is known of the last {span(stale_ms)}"
        kind, head = "warn", f"{ended}{where}"
    else:
        kind, head = "good" if healthy == len(known) else "bad" if not healthy else "warn", f"{counted} healthy"
    lines = [f"<strong>{escape(head)}</strong>"]
    if stale and known:
        lines.append(f"<p>{escape(counted)} healthy at the end of the tables.</p>")
    lines += [_named(state, [*same], name_of) for state, same in groupby(known, key=lambda each: each.state)]
    lines += [_reach(end, alone=len(ends) == 1) for end in ends.values()] if len(ends) <= NAMED else []
    lines += [f"<p>{escape(printable(each))}</p>" for each in gap_lines(gaps, "OUTPUT")]
    return f'<div class="verdict {kind}" role="status">{"".join(lines)}</div>'


def _named(state: State, same: Sequence[Server], name_of: Callable[[Server], str]) -> str:
    if state is State.HEALTHY:
        return ""
    since = [f" for {span(each.age_ms or 0)}" if state is State.SILENT else "" for each in same[:NAMED]]
    names = ", ".join(name_of(each) + suffix for each, suffix in zip(same[:NAMED], since, strict=True))
    more = f", and {len(same) - NAMED:,} more" if len(same) > NAMED else ""
    return f"<p>{len(same):,} {escape(state.value)}: {escape(printable(names))}{more}</p>"


def _reach(end: FarmEnd, *, alone: bool) -> str:
    whose = "" if alone else f"{escape(printable(end.farm[:FARM_LETTERS]))}: "
    at = "an unknown time" if end.log_time is None else f"{end.log_time:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f'<p class="how">{whose}The tables reach to entry {end.index} of the log, at log time {at}; a server counts as'
        f" not reporting after {span(end.silent_after_ms)}.</p>"
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """The common data of the sections: the tables, and the addresses of pseudonyms. `several`: with several farms."""

    run_query: SqlQuery
    names: dict[str, str]
    several: bool

    def name_of(self, server: Server) -> str:
        """Return the name of a server."""
        return self.server(server.farm, server.server_id)

    def farm(self, farm: str | None) -> str:
        """Return the prefix of a farm, if there are several."""
        return f"{farm[:FARM_LETTERS]} · " if self.several and farm else ""

    def server(self, farm: str | None, server_id: int | None) -> str:
        """Return the name of a server."""
        return self.farm(farm) + ("unknown" if server_id is None else f"server {server_id}")

    def destination(self, destination: str) -> str:
        """Return the name of a destination."""
        address = self.names.get(destination)
        return destination if address is None else f"{address}.b32.i2p"

    def servers(self, servers: Sequence[Server]) -> str:
        """Return the last report of each server."""
        kinds = {State.HEALTHY: "", State.REMOVED: "", State.UNHEALTHY: "warn", State.UNDATED: "warn"}
        rest = ", ".join(f"{number:,} {state.value}" for state, number in count(servers[SERVERS_SHOWN:]).items())
        return table(
            ("server", "state", "last report", "uptime", "job lag", "healthy leaves then", "publishes"),
            [
                (
                    self.name_of(each),
                    each.state.value,
                    None if each.age_ms is None else f"{span(each.age_ms)} ago",
                    maybe(each.report.get("uptime_ms"), span),
                    maybe(each.report.get("job_lag_ms"), lambda lag: f"{lag:.1f} ms"),
                    f"{each.report['healthy_destinations']} of {each.report['destinations']}" if each.report else None,
                    "yes" if each.report.get("publishing") else None,
                )
                for each in servers[:SERVERS_SHOWN]
            ],
            [kinds.get(each.state, "bad") for each in servers[:SERVERS_SHOWN]],
        ) + cut(min(len(servers), SERVERS_SHOWN), len(servers), "servers", f"the worst; the rest: {rest}")

    def availability(self) -> str:
        """Return a strip for each of the worst servers."""
        value = "sum(coalesce(f.availability, 0)) / count(*)"
        drawn = strips(self._stretches("availability", STRIPS_SHOWN, value))
        total, least = self._rest("availability", STRIPS_SHOWN, "min(availability)")
        return drawn + cut(STRIPS_SHOWN, total, "servers", f"the worst; the rest: at least {least or 0:.1%}")

    def lag(self) -> str:
        """Return a line for each of the worst servers."""
        order = "lag DESC NULLS LAST"
        drawn = lines(self._stretches(order, LINES_SHOWN, "max(f.job_lag_p95_ms)"), "ms")
        total, most = self._rest(order, LINES_SHOWN, "max(lag)")
        return drawn + cut(LINES_SHOWN, total, "servers", f"the worst; the rest: at most {most or 0:,.1f} ms")

    def _rest(self, order: str, shown: int, value: str) -> tuple[int, float | None]:
        """Return the number of all servers, and a value over the servers beyond the shown ones."""
        (row,) = self.run_query(
            f"""{_FARED} SELECT (SELECT count(*) FROM servers) AS total, {value} AS value
                FROM (SELECT * FROM servers ORDER BY {order}, farm, server_id OFFSET {shown})"""  # noqa: S608 - own names
        )
        return row["total"], row["value"]

    def _stretches(self, order: str, shown: int, value: str) -> list[Series]:
        """Return a value for each stretch of each shown server; DuckDB returns no more than can be drawn."""
        rows = self.run_query(
            f"""{_FARED}, shown AS (SELECT *, row_number() OVER (ORDER BY {order}, farm, server_id) AS rank
                                    FROM servers ORDER BY rank LIMIT {shown})
                SELECT s.rank, s.farm, s.server_id, c.run, min(c.window_start) AS moment, max(c.window_end) AS until,
                  {value} AS value
                FROM shown s JOIN cut c ON c.farm = s.farm AND c.place >= s.since
                LEFT JOIN fared f ON f.farm = s.farm AND f.server_id = s.server_id AND f.place = c.place
                GROUP BY s.rank, s.farm, s.server_id, c.stretch, c.run ORDER BY s.rank, moment"""  # noqa: S608 - own names
        )
        return [
            Series(self.server(farm, server), _points([*of_server]))
            for (_, farm, server), of_server in groupby(
                rows, key=lambda row: (row["rank"], row["farm"], row["server_id"])
            )
        ]

    def detection(self) -> str:
        """Return the delay of noticed losses."""
        rows = self.run_query(
            f"""SELECT *, count(*) OVER () AS total FROM detections
                ORDER BY coalesce(suspect_at, dead_at) DESC LIMIT {DETECTIONS_SHOWN}"""  # noqa: S608 - own names
        )
        plotted = [row for row in reversed(rows) if row["suspect_at"] is not None and row["is_dated"] is not False]
        series = [
            Series("to suspect", [(row["suspect_at"], _seconds(row["contact_to_suspect_ms"])) for row in plotted]),
            Series("to dead", [(row["suspect_at"], _seconds(row["contact_to_dead_ms"])) for row in plotted]),
        ]
        drawn = lines(series, "s", dots=True) if plotted else ""
        html = table(
            ("observer", "member", "suspected", "to suspect s", "to dead s", "away s", "outcome"),
            [
                (
                    row["observer"],
                    row["member"],
                    _suspected(row["suspect_at"], is_dated=row["is_dated"] is not False),
                    maybe(_seconds(row["contact_to_suspect_ms"]), "{:,.1f}".format),
                    maybe(_seconds(row["contact_to_dead_ms"]), "{:,.1f}".format),
                    maybe(_seconds(row["dead_to_back_ms"]), "{:,.1f}".format),
                    row["outcome"],
                )
                for row in rows
            ],
        )
        return drawn + html + cut(len(rows), _total(rows), "detections", "the newest")

    def leaders(self) -> str:
        """Return the leaders over time."""
        rows = self._runs("leaderships", "leader_id")
        bars = [
            Bar(
                self.server(row["farm"], row["leader_id"]),
                row["first_at"],
                row["last_at"],
                f"term {row['term']}: {row['clock_entries']} clock entries, {_gap(row['gap_ms'])}",
                row["leader_id"] or 0,
            )
            for row in reversed(rows)
        ]
        return timeline(bars) + cut(len(rows), _total(rows), "terms", "the newest")

    def publishers(self) -> str:
        """Return a drawing for each master, because a server's bars for several masters would overlap."""
        rows = self._runs("publishers", "server_id")
        often = Counter(row["master"] for row in rows)
        masters = sorted(often, key=lambda master: (-often[master], master))
        drawn = [
            f"<h3>{escape(printable(self.destination(master)))}</h3>"
            + timeline([self._reign(row) for row in reversed(rows) if row["master"] == master])
            for master in masters[:MASTERS_SHOWN]
        ]
        few = cut(len(drawn), len(masters), "masters", "with the most changes of the publisher")
        return ("".join(drawn) if drawn else nothing()) + few + cut(len(rows), _total(rows), "runs", "the newest")

    def _runs(self, table: str, server: str) -> list[dict[str, Any]]:
        """Return the newest runs of at most `LANES_SHOWN` servers; `server` is the column with their numbers."""
        rows = self.run_query(
            f"""SELECT *, count(*) OVER () AS total FROM {table}
                ORDER BY first_at DESC LIMIT {RUNS_SHOWN}"""  # noqa: S608 - own names
        )
        lanes = set[tuple[str, int | None]]()
        for number, row in enumerate(rows):
            lanes.add((row["farm"], row[server]))
            if len(lanes) > LANES_SHOWN:
                return rows[:number]
        return rows

    def _reign(self, row: dict[str, Any]) -> Bar:
        text = f"{row['publications']} publications, {_gap(row['gap_ms'])}"
        name = self.server(row["farm"], row["server_id"])
        return Bar(name, row["first_at"], row["last_at"], text, row["server_id"] or 0)

    def destinations(self) -> str:
        """Return the worst destinations."""
        rows = self.run_query(
            f"""SELECT *, count(*) OVER () AS total, max(healthy) OVER () AS best FROM (
                  SELECT farm, destination, server_id, sum(healthy_share * reports) / sum(reports) AS healthy,
                    sum(breaks) AS breaks, arg_max(connections, window_start) AS connections
                  FROM destination_health GROUP BY ALL)
                ORDER BY healthy NULLS LAST, farm, destination, server_id LIMIT {DESTINATIONS_SHOWN}"""  # noqa: S608 - own names
        )
        html = table(
            ("destination", "on", "healthy", "breaks", "connections"),
            [
                (
                    self.destination(row["destination"]),
                    self.server(row["farm"], row["server_id"]),
                    maybe(row["healthy"], lambda share: f"{share:.1%}"),
                    row["breaks"] or None,
                    maybe(row["connections"], lambda number: f"{number:.0f}"),
                )
                for row in rows
            ],
        )
        least = maybe(rows[-1]["healthy"] if rows else None, lambda share: f"{share:.1%}") or "an unknown share"
        return html + cut(len(rows), _total(rows), "destinations", f"the worst; the rest: at least {least} healthy")

    def quarantine(self) -> str:
        """Return the refused entries by reason."""
        rows = self.run_query(
            "SELECT reason, count(*) AS entries, max(index) AS last FROM quarantine GROUP BY ALL ORDER BY 2 DESC, 1"
        )
        return table(("reason", "entries", "last at index"), [tuple(row.values()) for row in rows])

    def gaps(self, gaps: Sequence[Gap]) -> str:
        """Return the gaps of all farms."""
        shown = sorted(gaps, key=lambda each: each.last, reverse=True)[:GAPS_SHOWN]
        html = table(
            ("entries", "missing", "written", "remedy"),
            [
                (
                    f"{self.farm(each.farm)}{each.first} to {each.last}",
                    each.entries,
                    each.days,
                    "none: the farm does not have them any more"
                    if each.is_gone
                    else "garlicfarm pipeline repair --output OUTPUT",
                )
                for each in shown
            ],
            ["bad"] * len(shown),
        )
        if not gaps:
            html = '<p class="how">The tables have all entries.</p>'
        return html + cut(len(shown), len(gaps), "gaps", "the newest")


def _total(rows: Sequence[dict[str, Any]]) -> int:
    return rows[0]["total"] if rows else 0


def _points(rows: list[dict[str, Any]]) -> list[tuple[datetime, float | None]]:
    """Return the values of one server, with a gap after the end of each run of windows."""
    points: list[tuple[datetime, float | None]] = []
    for row, next_row in zip_longest(rows, rows[1:]):
        points.append((row["moment"], row["value"]))
        if row["until"] is not None and (next_row is None or next_row["run"] != row["run"]):
            points.append((row["until"], None))
    return points


def _gap(gap_ms: int | None) -> str:
    return (
        "the time since an earlier one is unknown"
        if gap_ms is None or gap_ms < 0
        else f"{gap_ms / 1000:.1f} s after the previous one"
    )


def _suspected(moment: datetime | None, *, is_dated: bool) -> str | None:
    """Return the time of a suspicion, marked if it is by the clock of the observer."""
    return None if moment is None else f"{moment:%m-%d %H:%M:%S}{'' if is_dated else ' (own clock)'}"


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
