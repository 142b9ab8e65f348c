"""The outages in the recorded history under other alert settings, for `garlicfarm pipeline what-if-alerts`.

    reports, clocks, by days ──▶ FarmsWatch with other rules ──▶ transitions ──▶ outages by `keep_firing_ms`

The watch is the production code (`pipeline/watch`). The outages follow the rules of `pipeline/alerts/servers.sql`,
which computes only the last outage of each server. An outage begins when a server goes down for the first time, or
after it has been healthy for `keep_firing_ms` or longer. It ends when the server becomes healthy and then stays healthy
for `keep_firing_ms`. The command `silence`, a removal or an orderly departure suppresses an alert's message under every
setting. So this module ignores them.

Rows are read one day at a time, so that memory has a bound. After a correction, log time may return to an earlier day.
Then these days are read together, because the watch needs the order of the log.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import pyarrow as pa

from pipeline.feedback.weighing import PERIOD_MAX_MS, PERIOD_MIN_MS
from pipeline.output.buckets import Output
from pipeline.serve.query import SqlQuery, of_one_version
from pipeline.watch.machine import HEALTHY, PRESENT_RULES, SILENT, SILENT_AFTER_PERIODS, Rules, Transition
from pipeline.watch.watching import FarmsWatch

_ENDS = "SELECT farm, log_time, unix_millis(log_time) AS end_ms FROM current_farm WHERE log_time IS NOT NULL"
_SEEN = """
    SELECT farm, index, unix_millis(log_time) AS at_ms, 'report' AS entry, server_id,
      CASE WHEN length(request) <= 128 THEN request ELSE '' END AS request, coalesce(attached, false) AS attached,
      uptime_ms, job_lag_ms, coalesce(destinations, 0) AS destinations,
      coalesce(healthy_destinations, 0) AS healthy_destinations, NULL AS period_ms
    FROM reports WHERE day BETWEEN DATE '$first' AND DATE '$last'
    UNION ALL
    SELECT farm, index, unix_millis(log_time), 'clock', leader_id, '', false, NULL, NULL, 0, 0, period_ms
    FROM clocks WHERE day BETWEEN DATE '$first' AND DATE '$last'
"""
_DAYS = """
    WITH spans AS (
      SELECT farm, day, min(index) AS first, max(index) AS last,
        max(max(index)) OVER (PARTITION BY farm ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM (SELECT farm, day, index FROM reports UNION ALL SELECT farm, day, index FROM clocks)
      WHERE day IS NOT NULL GROUP BY farm, day
    ),
    returns AS (
      SELECT s.day, min(e.day) AS earlier
      FROM spans s JOIN spans e ON e.farm = s.farm AND e.day < s.day AND e.last > s.first
      WHERE s.first < s.before GROUP BY s.day
    )
    SELECT DISTINCT s.day, coalesce(r.earlier, s.day) AS earliest
    FROM spans s LEFT JOIN returns r ON r.day = s.day ORDER BY s.day
"""
"""The days, each with the earliest day that has later entries of a farm."""
_TYPES = {"request": pa.string(), "job_lag_ms": pa.float64(), "farm": pa.string(), "entry": pa.string()}


@dataclass(frozen=True, slots=True)
class AlertSetting:
    """The settings that decide whether an alert fires. A run uses the defaults of `rules` and `silent_periods`."""

    keep_firing_ms: int
    rules: Rules = PRESENT_RULES
    silent_periods: int = SILENT_AFTER_PERIODS


@dataclass(slots=True)
class Outage:
    """One outage of a server. Times are log time in milliseconds. Without `ended_ms`, the outage is not over."""

    farm: str
    server_id: int
    began_ms: int
    reason: str
    failures: int = 1
    was_silent: bool = False
    ended_ms: int | None = None

    def overlaps(self, other: "Outage") -> bool:
        """Return True if both are outages of one server at a common time."""
        begins = max(self.began_ms, other.began_ms)
        ends = [each.ended_ms for each in (self, other) if each.ended_ms is not None]
        return (self.farm, self.server_id) == (other.farm, other.server_id) and all(begins <= each for each in ends)


@dataclass(slots=True)
class _History:
    """The replay of the history under one setting."""

    setting: AlertSetting
    watch: FarmsWatch
    changes: dict[tuple[str, int], list[Transition]] = field(default_factory=dict)

    def outages(self, ends_ms: dict[str, int]) -> list[Outage]:
        keep_ms = self.setting.keep_firing_ms
        found = [
            outage
            for (farm, server), changes in self.changes.items()
            for outage in outages_of(farm, server, changes, keep_ms, ends_ms[farm])
        ]
        return sorted(found, key=lambda each: (each.began_ms, each.farm, each.server_id))


def alert_history(output: Output, settings: Sequence[AlertSetting], days: float) -> list[list[Outage]]:
    """Return, for each setting, the outages in the last `days` days before each farm's latest log time.

    Raises QueryError.
    """

    def read(run_query: SqlQuery) -> list[list[Outage]]:
        ends = {row["farm"]: row for row in run_query(_ENDS)}
        histories = [
            _History(each, FarmsWatch((PERIOD_MIN_MS, PERIOD_MAX_MS), each.rules, each.silent_periods))
            for each in settings
        ]
        since_ms = {farm: row["end_ms"] - round(days * 86_400_000) for farm, row in ends.items()}
        for first, last in _together(run_query(_DAYS)):
            if all(row["log_time"].date() - last > timedelta(days=days) for row in ends.values()):
                continue
            rows = [
                row
                for row in run_query(_SEEN.replace("$first", first.isoformat()).replace("$last", last.isoformat()))
                if row["farm"] in ends and row["at_ms"] >= since_ms[row["farm"]]
            ]
            for each in histories if rows else ():
                for farm, server, change in each.watch.changes(_table(rows)):
                    each.changes.setdefault((farm, server), []).append(change)
        return [each.outages({farm: row["end_ms"] for farm, row in ends.items()}) for each in histories]

    return of_one_version(output, read)


def _together(days: Iterable[Mapping[str, date]]) -> list[tuple[date, date]]:
    """Return the first and the last day of each group of days that are read together."""
    groups: list[tuple[date, date]] = []
    for found in days:
        first = found["earliest"]
        while groups and groups[-1][1] >= first:
            first = min(first, groups.pop()[0])
        groups.append((first, found["day"]))
    return groups


def outages_of(farm: str, server: int, changes: Sequence[Transition], keep_ms: int, end_ms: int) -> list[Outage]:
    """Return the outages of a server from its transitions, in order."""
    found: list[Outage] = []
    healthy_ms: int | None = None
    was_down = False
    for change in changes:
        is_down = change.state != HEALTHY
        # After a correction of log time, the length of the healthy time is unknown.
        is_stable = healthy_ms is None or not 0 <= change.at_ms - healthy_ms < keep_ms
        if is_down and not was_down and (not found or is_stable):
            found.append(Outage(farm, server, change.at_ms, change.reason))
        elif is_down:
            found[-1].failures += not was_down
            found[-1].reason = change.reason
        if is_down:
            found[-1].ended_ms, found[-1].was_silent = None, found[-1].was_silent or change.state == SILENT
        elif was_down:
            healthy_ms = change.at_ms
            found[-1].ended_ms = change.at_ms
        was_down = is_down
    if found and not was_down and healthy_ms is not None and 0 <= end_ms - healthy_ms < keep_ms:
        found[-1].ended_ms = None
    return found


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    names = rows[0].keys()
    kinds = {name: pa.bool_() if name == "attached" else _TYPES.get(name, pa.int64()) for name in names}
    return pa.table({name: pa.array([row[name] for row in rows], kinds[name]) for name in names})
