"""The tables that a run appends to, and the queries of their batches.

    log       its batches are in the base tables, in `ranges`, in `transitions` and in the current state
    events    its batches are in the table `events`, numbered separately from the log's
    alerts    is in no batch of these queries: the alerting writes the table after each change

Writers and readers of a table both need its columns, and import them from this module. So a query does not load the
watch or the alerting for the names of columns.
"""

import pyarrow as pa

from pipeline.schemas import HISTORY, RANGES, TRANSITIONS, arrow_schema
from pipeline.tables.delta import TableSpec
from pipeline.tables.rows import BASE

LOG, EVENTS = "log", "events"
"""Names of the queries in the tables' transactions; `events` is a table as well."""
BASE_SPECS = {name: TableSpec(name, schema, ("farm", "index")) for name, schema in BASE.items()}
EVENTS_SPEC = TableSpec(EVENTS, arrow_schema(HISTORY[EVENTS]), ("node", "cursor"))
TRANSITIONS_SPEC = TableSpec("transitions", arrow_schema(TRANSITIONS), ("farm", "at", "server_id"))
RANGES_SPEC = TableSpec("ranges", arrow_schema(RANGES), ("farm", "first_index", "name"))
_MOMENT = pa.timestamp("us", tz="UTC")
ALERTS_SPEC = TableSpec(
    "alerts",
    pa.schema(
        [
            ("id", pa.string()),
            ("farm", pa.string()),
            ("server_id", pa.int64()),
            ("name", pa.string()),
            ("status", pa.string()),
            ("state", pa.string()),
            ("began_at", _MOMENT),
            ("ended_at", _MOMENT),
            ("failures", pa.int64()),
            ("was_silent", pa.bool_()),
            ("reason", pa.string()),
            ("held_back", pa.string()),
            ("delivered", pa.list_(pa.string())),
            ("farm_name", pa.string()),
        ]
    ),
    ("farm", "began_at", "server_id"),
    "interval 1 hours",
)
STATES_SPEC = TableSpec(
    "alerting_states",
    pa.schema(
        [
            ("farm", pa.string()),
            ("subject", pa.string()),
            ("state", pa.string()),
            ("since", _MOMENT),
            ("reason", pa.string()),
        ]
    ),
    ("farm", "subject"),
    "interval 1 hours",
)
