"""The outages in the recorded history under other alert settings, for `garlicfarm pipeline what-if-alerts`.

    reports, clocks, in pieces ──▶ FarmsWatch with other rules ──▶ transitions ──▶ outages by `keep_firing_ms`

The watch is the production code (`pipeline/watch`). The outages follow the rules of `pipeline/alerts/servers.sql`,
which computes only the last outage of each server. An outage begins when a server goes down for the first time, or
after it has been healthy for `keep_firing_ms` or longer. It ends when the server becomes healthy and then stays healthy
for `keep_firing_ms`. The command `silence`, a removal or an orderly departure suppresses an alert's message under every
setting. So this module ignores them.

Rows are read in pieces of `PIECE_ENTRIES` indexes, which bounds the memory. The pieces have the order of the log, which
the watch needs: after a correction, log time may return to an earlier day.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from pipeline.feedback.weighing import PERIOD_MAX_MS, PERIOD_MIN_MS
from pipeline.output.buckets import Output
from pipeline.serve.query import SqlQuery, of_one_version
from pipeline.watch.machine import HEALTHY, PRESENT_RULES, SILENT, SILENT_AFTER_PERIODS, Rules, Transition
from pipeline.watch.watching import FarmsWatch

PIECE_ENTRIES: Final = 50_000
_ENDS = "SELECT farm, unix_millis(log_time) AS end_ms FROM current_farm WHERE log_time IS NOT NULL"
_PIECES = f"""
    SELECT s.index // $entries AS piece, min(s.day) AS first_day, max(s.day) AS last_day
    FROM (SELECT farm, index, log_time, day FROM reports UNION ALL SELECT farm, index, log_time, day FROM clocks) s
    JOIN ({_ENDS}) e ON e.farm = s.farm AND unix_millis(s.log_time) >= e.end_ms - $span_ms
    GROUP BY piece ORDER BY piece
"""  # noqa: S608 - own names
_SEEN = f"""
    SELECT s.* FROM (
      SELECT farm, index, unix_millis(log_time) AS at_ms, 'report' AS entry, server_id,
        CASE WHEN length(request) <= 128 THEN request ELSE '' END AS request, coalesce(attached, false) AS attached,
        uptime_ms, job_lag_ms, coalesce(destinations, 0) AS destinations,
        coalesce(healthy_destinations, 0) AS healthy_destinations, NULL AS period_ms
      FROM reports WHERE $of_piece
      UNION ALL
      SELECT farm, index, unix_millis(log_time), 'clock', leader_id, '', false, NULL, NULL, 0, 0, period_ms
      FROM clocks WHERE $of_piece
    ) s
    JOIN ({_ENDS}) e ON e.farm = s.farm AND s.at_ms >= e.end_ms - $span_ms
"""  # noqa: S608 - own names
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
        ends_ms = {row["farm"]: row["end_ms"] for row in run_query(_ENDS)}
        histories = [
            _History(each, FarmsWatch((PERIOD_MIN_MS, PERIOD_MAX_MS), each.rules, each.silent_periods))
            for each in settings
        ]
        pieces, seen = (each.replace("$span_ms", str(round(days * 86_400_000))) for each in (_PIECES, _SEEN))
        for piece in run_query(pieces.replace("$entries", str(PIECE_ENTRIES))):
            first = piece["piece"] * PIECE_ENTRIES
            # The days exclude files, and the indexes exclude rows.
            of_piece = (
                f"day BETWEEN DATE '{piece['first_day']}' AND DATE '{piece['last_day']}'"
                f" AND index BETWEEN {first} AND {first + PIECE_ENTRIES - 1}"
            )
            rows = run_query(seen.replace("$of_piece", of_piece))
            for each in histories:
                for farm, server, change in each.watch.changes(_table(rows)):
                    each.changes.setdefault((farm, server), []).append(change)
        return [each.outages(ends_ms) for each in histories]

    return of_one_version(output, read)


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
