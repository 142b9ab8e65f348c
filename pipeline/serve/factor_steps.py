"""The steps from reports to each factor of a `factors` entry: `garlicfarm pipeline query factor-steps`.

    tables, from `WARM_MS` before the entry ─▶ `Weighing` up to `through_index` ─▶ lag, absence, illness, strain, wanted
                                            └▶ `Weighing` up to the entry       ─▶ the factor before and after the entry

The production weighing (`pipeline/feedback/weighing.py`) processes the rows of the tables, so each number equals the
run's number. Smoothed figures of an earlier time have lost their weight after `WARM_MS`. `explained` is true if the
formula gives the factor of the entry. It may be false if another program submitted the factors, or if the run had
started shortly before the entry, with less history.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from pipeline.feedback.weighing import FactorsRow, Row, Weighing
from pipeline.output.buckets import Output
from pipeline.serve.gaps import gaps_of
from pipeline.serve.history import record_rows, removals_of
from pipeline.serve.query import Answer, SqlQuery, of_one_version

WARM_MS = 2 * 3_600_000
COLUMNS = (
    *("farm", "index", "log_time", "through_index", "destination", "server_id", "lag", "absence", "illness"),
    *("strain", "middle", "wanted", "factor", "before", "after", "explained"),
)
_ENTRIES = """
    WITH entries AS (
      SELECT farm, index, log_time, through_index, list({'leaf': destination, 'factor': factor}) AS factors
      FROM factors WHERE $moment GROUP BY farm, index, log_time, through_index
    )
    SELECT * FROM entries QUALIFY row_number() OVER (PARTITION BY farm ORDER BY index DESC) = 1 ORDER BY farm
"""


def factor_steps(output: Output, moment: datetime | None) -> Answer:
    """Return a row for each factor of each farm's last entry up to a moment. Raise QueryError."""

    def read(run_query: SqlQuery) -> Answer:
        until = "true" if moment is None else f"log_time <= make_timestamptz({round(moment.timestamp() * 1_000_000)})"
        entries = run_query(_ENTRIES.replace("$moment", until))
        rows = [row for entry in entries for row in _steps(run_query, entry)]
        empty = () if rows or moment is not None else ("factors",)
        return Answer(COLUMNS, iter(rows), empty, bool(rows), gaps_of(output, run_query))

    return of_one_version(output, read)


def _steps(run_query: SqlQuery, entry: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    farm, at = entry["farm"], entry["log_time"]
    since = at - timedelta(milliseconds=WARM_MS)
    rows: list[Row] = record_rows(run_query, farm, since, at)
    removed: set[int] = set()
    for each in removals_of(run_query).get(farm, ()):
        if each.index <= entry["index"]:
            (removed.add if each.removed else removed.discard)(each.server_id)
    weighing = Weighing()
    for row in rows:
        if row.index <= entry["through_index"]:
            weighing.observe(row)
    inputs = weighing.inputs(removed)
    for row in rows:
        if row.index < entry["index"]:
            weighing.observe(row)
    at_ms = round(at.timestamp() * 1000)
    factors = {each["leaf"]: each["factor"] for each in entry["factors"]}
    before = {leaf: weighing.current.at(leaf, at_ms) for leaf in factors}
    weighing.observe(FactorsRow(entry["index"], at_ms, entry["through_index"], factors))
    for leaf, factor in sorted(factors.items()):
        found = inputs.get(leaf)
        steps: tuple[Any, ...] = (None,) * 7
        if found is not None:
            steps = (found.server_id, found.lag, found.absence, found.illness, found.strain, found.middle, found.wanted)
        moved = (before[leaf], weighing.current.at(leaf, at_ms), found is not None and found.wanted == factor)
        yield (farm, entry["index"], at, entry["through_index"], leaf, *steps, factor, *moved)
