"""Tables of the current state, made from the base tables and from `ranges`.

The last row of each key in a base table is the current one, as in a batch (`pipeline/tables/current.py`). The row of a
farm has the range in `ranges`, and leader and period of its last clock entry. A farm's name is not in any other table:
it is NULL until the next batch has the farm.

A module of its own, because it changes with the columns of the current state, not with the steps of a repair.
"""

from typing import Any

import pyarrow as pa

from pipeline.feedback.weighing import PERIOD_MAX_MS, PERIOD_MIN_MS
from pipeline.output.buckets import Output
from pipeline.tables.current import FROM_BASE, KEYS, ORDER, PREFIX, SCHEMAS, last_rows
from pipeline.tables.delta import TableSpec, stored_rows
from pipeline.tables.files import BATCH
from pipeline.tables.ranges import LOG_NAME, RangeKind
from pipeline.tables.specs import BASE_SPECS, RANGES_SPEC


def current_rows(output: Output, spec: TableSpec) -> pa.Table:
    """Return all rows of a table of the current state except `current_watched`. Raise TableDamagedError."""
    name = spec.name.removeprefix(PREFIX)
    if name == "farm":
        return _farms(output)
    (base,) = (each for each, current in FROM_BASE.items() if current == name)
    rows = stored_rows(output / base, BASE_SPECS[base].schema)
    return last_rows(rows, KEYS[name], ORDER[name]).select(spec.schema.names)


def _farms(output: Output) -> pa.Table:
    farms: dict[str, dict[str, Any]] = {}
    for row in stored_rows(output / RANGES_SPEC.name, RANGES_SPEC.schema).to_pylist():
        if row["name"] == LOG_NAME and row["kind"] in {RangeKind.READ, RangeKind.UNCOUNTED}:
            known = farms.setdefault(row["farm"], {"farm": row["farm"], "index": 0, BATCH: row[BATCH], "entries": 0})
            _add(known, row)
    for row in stored_rows(output / "clocks", BASE_SPECS["clocks"].schema).sort_by("index").to_pylist():
        if (farm := farms.get(row["farm"])) is not None:
            farm |= {"term": row["term"], "leader_id": row["leader_id"]}
            if row["period_ms"] is not None and PERIOD_MIN_MS <= row["period_ms"] <= PERIOD_MAX_MS:
                farm["period_ms"] = row["period_ms"]
    return pa.Table.from_pylist([*farms.values()], schema=SCHEMAS["farm"])


def _add(farm: dict[str, Any], row: dict[str, Any]) -> None:
    """Extend a farm's range by a row of `ranges`."""
    farm["index"] = max(farm["index"], row["last_index"])
    farm["first_index"] = min(each for each in (farm.get("first_index"), row["first_index"]) if each is not None)
    farm[BATCH] = max(farm[BATCH], row[BATCH])
    farm["log_time"] = max((each for each in (farm.get("log_time"), row["log_time"]) if each), default=None)
    known = (farm["entries"], row["row_count"])
    farm["entries"] = None if None in known else sum(known)
