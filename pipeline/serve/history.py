"""The recorded past of all farms from the tables, for `replay.py`: a day at a time, in the order of the log.

    reports + destination_reports, clocks, factors ──┐
    router_health (windows at their ends) ───────────┴▶ by farm, log time and index ─▶ `Past` of that farm

The tables are partitioned by day, and rows are read one day at a time, which bounds the memory for any number of days.
The leaves have constant pseudonyms in the tables, which suffices for the weighing. An operator's removal counts from
its entry on, even if the entry is long before the period.

A correction can set log time back. The log has then several *passes* over the same days, which are read one after
another. A window ends in the last pass over its time.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pipeline.feedback.replay import Past, Removal, Window
from pipeline.feedback.rows import named
from pipeline.feedback.weighing import LAG_WORST_MS, ClockRow, FactorsRow, ReportRow, Row, Setting
from pipeline.output.buckets import Output
from pipeline.serve.query import SqlQuery, documents, query_result

BAD_SHARE = 0.5
"""A server is bad in a window with an availability or healthy share below this, or with a median lag above this part of
`LAG_WORST_MS`.
"""
_ENDS = (
    "ends AS (SELECT farm, unix_millis(log_time) - $span_ms AS since_ms FROM current_farm WHERE log_time IS NOT NULL)"
)
_DAYS = f"""
    WITH {_ENDS}
    SELECT DISTINCT c.day FROM clocks c JOIN ends e USING (farm)
    WHERE c.day >= CAST(timestamp_millis(e.since_ms) AS DATE) ORDER BY 1
"""  # noqa: S608 - own names
_OF_A_DAY = f"""
    WITH {_ENDS},
    leaves AS (
      SELECT farm, index, list({{'leaf': destination, 'healthy': coalesce(healthy, false)}}) AS leaves
      FROM destination_reports WHERE day = DATE '$day' GROUP BY farm, index
    ),
    records AS (
      SELECT 'report' AS kind, r.farm, unix_millis(r.log_time) AS at_ms, r.index, r.server_id, r.job_lag_ms, r.request,
        l.leaves, NULL AS period_ms, NULL AS start_ms, NULL AS servers, NULL AS through_index, NULL AS factors
      FROM reports r LEFT JOIN leaves l USING (farm, index) WHERE r.day = DATE '$day'
      UNION ALL BY NAME
      SELECT 'clock' AS kind, farm, unix_millis(log_time) AS at_ms, index, period_ms
      FROM clocks WHERE day = DATE '$day'
      UNION ALL BY NAME
      SELECT 'factors' AS kind, farm, unix_millis(min(log_time)) AS at_ms, index,
        max(through_index) AS through_index, list({{'leaf': destination, 'factor': factor}}) AS factors
      FROM factors WHERE day = DATE '$day' GROUP BY farm, index
      UNION ALL BY NAME
      SELECT 'window' AS kind, farm, unix_millis(window_end) AS at_ms, 0 AS index,
        unix_millis(window_start) AS start_ms,
        list({{'server_id': server_id, 'bad': coalesce(availability < {BAD_SHARE}, false)
          OR coalesce(healthy_share < {BAD_SHARE}, false)
          OR coalesce(job_lag_p50_ms > {BAD_SHARE * LAG_WORST_MS}, false)}}) AS servers
      FROM router_health WHERE day = DATE '$day' GROUP BY farm, window_start, window_end
    )
    SELECT t.* FROM records t JOIN ends e USING (farm)
    WHERE t.at_ms IS NOT NULL AND coalesce(t.start_ms, t.at_ms) >= e.since_ms
    ORDER BY t.farm, t.at_ms, t.index
"""  # noqa: S608 - own names
_SETBACKS = """
    WITH steps AS (
      SELECT farm, index, unix_millis(log_time) AS at_ms,
        lag(unix_millis(log_time)) OVER (PARTITION BY farm ORDER BY index) AS before_ms
      FROM clocks
    )
    SELECT farm, index, at_ms, before_ms FROM steps WHERE at_ms < before_ms ORDER BY farm, index
"""
_REMOVALS = """
    SELECT farm, index, json_extract(detail, '$.server')::BIGINT AS server_id,
      coalesce(json_extract(detail, '$.removed')::BOOLEAN, true) AS removed
    FROM operator_actions WHERE action = 'removal' AND json_extract(detail, '$.server') IS NOT NULL ORDER BY farm, index
"""


class _Pass(Struct, frozen=True):
    """A part of a farm's log with increasing log time."""

    first_index: float = 0
    end_index: float = inf
    first_ms: float = -inf
    last_ms: float = inf


_WHOLE = (_Pass(),)


def replayed(
    output: Output, settings: Sequence[Setting], left_at: float, span_ms: int, progress: Callable[[date], None]
) -> dict[str, Past]:
    """Return the last `span_ms` of log time of each farm in the tables. Raise QueryError."""
    removals = removals_of(lambda sql: documents(output, sql))
    passes = _passes(documents(output, _SETBACKS))
    days = [found["day"] for found in documents(output, _put_in(_DAYS, span_ms))]
    pasts: dict[str, Past] = {}
    for number in range(max(map(len, passes.values()), default=1)):
        for day in days:
            progress(day)
            with query_result(output, _put_in(_OF_A_DAY, span_ms, day)) as answer:
                for row in answer.documents():
                    farm = row["farm"]
                    if _number(row, passes.get(farm, _WHOLE)) != number:
                        continue
                    if farm not in pasts:
                        pasts[farm] = Past(settings, left_at, removals.get(farm, ()))
                    _take(pasts[farm], row)
    for past in pasts.values():
        past.moment_over()
    return pasts


def _passes(setbacks: Sequence[dict[str, Any]]) -> dict[str, list[_Pass]]:
    """Return the passes of each farm whose log time was set back."""
    found: dict[str, list[_Pass]] = {}
    for each in setbacks:
        passes = found.setdefault(each["farm"], [_Pass()])
        passes[-1] = replace(passes[-1], end_index=each["index"], last_ms=each["before_ms"])
        passes.append(_Pass(first_index=each["index"], first_ms=each["at_ms"]))
    return found


def _number(row: dict[str, Any], passes: Sequence[_Pass]) -> int:
    """Return the number of the pass that a row belongs to."""
    if row["kind"] == "window":
        over = [each.first_ms < row["at_ms"] and row["start_ms"] <= each.last_ms for each in passes]
        return max((number for number, is_over in enumerate(over) if is_over), default=0)
    return next(number for number, each in enumerate(passes) if each.first_index <= row["index"] < each.end_index)


def removals_of(run_query: SqlQuery) -> dict[str, list[Removal]]:
    """Return the removals of each farm, in the order of the log."""
    removals: dict[str, list[Removal]] = {}
    for row in run_query(_REMOVALS):
        removals.setdefault(row["farm"], []).append(Removal(row["index"], row["server_id"], row["removed"]))
    return removals


def record_rows(run_query: SqlQuery, farm: str, since: datetime, until: datetime) -> list[Row]:
    """Return the weighing's rows of a farm between two moments, both included, in the order of the log."""
    rows: list[Row] = []
    since_ms, until_ms = (round(each.timestamp() * 1000) for each in (since, until))
    for number in range((until.date() - since.date()).days + 1):
        found = run_query(_put_in(_OF_A_DAY, until_ms, since.date() + timedelta(days=number)))
        of_farm = (each for each in found if each["farm"] == farm and each["kind"] != "window")
        rows += (_row(each) for each in of_farm if since_ms <= each["at_ms"] <= until_ms)
    # A correction of log time can make the time of a later entry earlier.
    return sorted(rows, key=lambda each: each.index)


def _put_in(sql: str, span_ms: int, day: date = date.min) -> str:
    return sql.replace("$span_ms", str(span_ms)).replace("$day", day.isoformat())


def _take(past: Past, row: dict[str, Any]) -> None:
    if row["kind"] == "window":
        is_bad = {each["server_id"]: each["bad"] for each in row["servers"]}
        past.window_over(Window(row["start_ms"], row["at_ms"], is_bad))
    else:
        past.observe(_row(row))


def _row(row: dict[str, Any]) -> Row:
    index, at_ms = row["index"], row["at_ms"]
    match row["kind"]:
        case "clock":
            return ClockRow(index, at_ms, row["period_ms"])
        case "factors":
            factors = {each["leaf"]: each["factor"] for each in row["factors"]}
            return FactorsRow(index, at_ms, row["through_index"], factors)
        case _:
            leaves = tuple((each["leaf"], each["healthy"]) for each in row["leaves"] or ())
            return ReportRow(index, at_ms, row["server_id"], row["job_lag_ms"], leaves, named(row["request"]))
