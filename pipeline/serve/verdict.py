"""The state of each server at the end of the tables, by the rules of the watch, and the verdict over all of them.

    last report ─▶ `RouterWatch` ─▶ healthy or unhealthy ─▶ the advance of log time since then ─▶ `silent`

The watch's own state of a server (`current_watched`) counts if it exists, since it includes the reports before the
last. Without the watch that state does not exist, and the last report decides alone. Missing reports are judged here in
any case: by the end of the tables, not by the last change that the watch wrote. A server of the last configuration that
never reported is not healthy. A `silent` server outside the configuration was removed, and is not counted.

Log time stops when a whole farm does. So a farm is *stale* if its tables ended longer ago than the permitted time
without a report, plus half a minute for the pipeline. The servers' last state then does not describe the present.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from pipeline.serve.query import SqlQuery
from pipeline.watch.machine import (
    HEALTHY,
    SILENT,
    SILENT_AFTER_DEFAULT_MS,
    SILENT_AFTER_PERIODS,
    UNHEALTHY,
    ReportFacts,
    RouterWatch,
    Rules,
)

PIPELINE_MS = 30_000
"""The maximum delay of an entry into the tables of a working pipeline: a trigger and a batch."""


class State(Enum):
    """The state of a server, the worst first."""

    NEVER = "never reported"
    SILENT = SILENT
    UNHEALTHY = UNHEALTHY
    UNDATED = "known from a snapshot only"
    HEALTHY = HEALTHY
    REMOVED = "removed"

    @property
    def counts(self) -> bool:
        """True if a server in this state belongs to the farm."""
        return self is not State.REMOVED


@dataclass(frozen=True, slots=True)
class FarmEnd:
    """The end of a farm's tables, and the limit of the time without a report."""

    farm: str
    index: int
    log_time: datetime | None
    silent_after_ms: int

    def stale_ms(self, now: datetime) -> int:
        """Return the time from the end of the tables to `now` if it is too long to call a server healthy; else 0."""
        if self.log_time is None:
            return 0
        behind_ms = _ms(now) - _ms(self.log_time)
        return behind_ms if behind_ms > self.silent_after_ms + PIPELINE_MS else 0


@dataclass(frozen=True, slots=True)
class Server:
    """A server at the end of the tables. `report` is its last report as a row of `current_routers`, or empty."""

    farm: str
    server_id: int
    state: State
    age_ms: int | None
    report: dict[str, Any]


def farm_ends(run_query: SqlQuery) -> dict[str, FarmEnd]:
    """Return the end of each farm's tables."""
    return {end.farm: end for end in map(_end, run_query("SELECT farm, index, log_time, period_ms FROM current_farm"))}


def servers_now(run_query: SqlQuery, ends: dict[str, FarmEnd]) -> list[Server]:
    """Return all servers that have reported or are in the last configuration, the worst first."""
    watched = {_key(row): row for row in run_query("SELECT * FROM current_watched")}
    reports = {_key(row): row for row in run_query("SELECT * FROM current_routers")}
    configured = {
        row["farm"]: row["members"]
        for row in run_query(
            "SELECT farm, arg_max(list_concat(voters, learners), index) AS members FROM configurations GROUP BY farm"
        )
    }
    members = [(farm, server) for farm, servers in configured.items() for server in servers or ()]
    found = []
    for key in dict.fromkeys([*reports, *members]):
        farm, server_id = key
        report = reports.get(key, {})
        state, age_ms = _judged(report, watched.get(key), ends.get(farm)) if report else (State.NEVER, None)
        if state is State.SILENT and server_id not in (configured.get(farm) or [server_id]):
            state = State.REMOVED
        found.append(Server(farm, server_id, state, age_ms, report))
    return sorted(found, key=_badness)


def count(servers: Sequence[Server]) -> dict[State, int]:
    """Return the number of servers in each state, the worst first; without empty states."""
    return {state: len([*same]) for state, same in groupby(servers, key=lambda each: each.state)}


def _badness(server: Server) -> tuple[int, int, float, str, int]:
    """Return a sort key: the worst state first, then the oldest report, then the largest lag."""
    lag_ms = server.report.get("job_lag_ms") or 0.0
    return [*State].index(server.state), -(server.age_ms or 0), -lag_ms, server.farm, server.server_id


def _key(row: dict[str, Any]) -> tuple[str, int]:
    return row["farm"], row["server_id"]


def _end(row: dict[str, Any]) -> FarmEnd:
    period_ms = row["period_ms"]
    silent_after_ms = period_ms * SILENT_AFTER_PERIODS if period_ms else SILENT_AFTER_DEFAULT_MS
    return FarmEnd(row["farm"], row["index"], row["log_time"], silent_after_ms)


def _judged(report: dict[str, Any], watched: dict[str, Any] | None, end: FarmEnd | None) -> tuple[State, int | None]:
    """Return the state, and the time from the report's commit to the end of the tables."""
    reported = report["log_time"]
    if reported is None or end is None or end.log_time is None:
        return State.UNDATED, None
    rules = Rules(silent_after_ms=end.silent_after_ms)
    seen = ReportFacts(
        index=report["index"],
        at_ms=_ms(reported),
        attached=bool(report["attached"]),
        uptime_ms=report["uptime_ms"],
        job_lag_ms=report["job_lag_ms"],
        destinations=report["destinations"] or 0,
        healthy_destinations=report["healthy_destinations"] or 0,
    )
    watch, _ = RouterWatch().after_report(seen, rules)
    # If the watch recorded missing reports before this report, they are over.
    if watched is not None and not (watched["state"] == SILENT and watched["at"] <= reported):
        watch = replace(watch, state=watched["state"])
    watch, _ = watch.after_silence_until(_ms(end.log_time), rules)
    return State(watch.state), max(0, _ms(end.log_time) - _ms(reported))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
