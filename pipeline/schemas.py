"""The schemas at the borders of the pipeline: rows of the sources and of the tables.

    source `farm`        ENTRIES: one row per entry, with its content (`pipeline/decode/columns.py`)
    source `farm_events` EVENTS: one row per event of a node's trace
    history              HISTORY[table]: one row per entry, or per element of it; a directory per day of log time
    derived              DERIVED[table]: made of history and events by SQL (`pipeline/gold`)

The columns of both sources are listed in docs/reference/pipeline-sources.md, the columns of the tables in
docs/reference/pipeline-tables.md. Columns for entries of another kind are NULL.

A history table is read with the schema given here, which is never inferred. A file of an older version may lack a
column, whose value is then NULL. So a table may only gain columns. A column keeps its name, type and unit permanently,
and a new meaning gets another name (`docs/reference/pipeline-tables.md`, 'Entries and tables change').

A restarted node counts its cursors from 1 again, so only (`node`, `cursor`, `time_ms`) identify an event. A row of kind
`events-lost` has the time of the first event after the lost ones, and the cursor before that event's.
"""

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bridge.core.log.figures import FIGURES

_ARROW_TYPES: dict[type[DataType], pa.DataType] = {
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    DoubleType: pa.float64(),
    BooleanType: pa.bool_(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, the latest time that Python can represent."""

_TYPES: dict[str, DataType] = {
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "DOUBLE": DoubleType(),
    "BOOLEAN": BooleanType(),
    "STRING": StringType(),
    "TIMESTAMP": TimestampType(),
    "DATE": DateType(),
    "BINARY": BinaryType(),
    "ARRAY<BIGINT>": ArrayType(LongType()),
    "ARRAY<STRING>": ArrayType(StringType()),
    "MAP<STRING;DOUBLE>": MapType(StringType(), DoubleType()),
}


def _columns(text: str) -> StructType:
    """Parse `name TYPE, …` to a schema; Spark's own parser needs a JVM, which is not running yet."""
    fields = (column.split() for column in text.split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in fields])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema in Arrow's form: names, order, types and nullability, as Spark requires of record batches."""
    return pa.schema([_arrow_field(each.name, each.dataType, nullable=each.nullable) for each in schema])


def _arrow_field(name: str, kind: DataType, *, nullable: bool) -> pa.Field:
    return pa.field(name, _arrow_type(kind), nullable=nullable)


def _arrow_type(kind: DataType) -> pa.DataType:
    match kind:
        case StructType():
            return pa.struct([_arrow_field(each.name, each.dataType, nullable=each.nullable) for each in kind])
        case ArrayType():
            return pa.list_(_arrow_field("element", kind.elementType, nullable=kind.containsNull))
        case MapType():
            values = _arrow_field("value", kind.valueType, nullable=kind.valueContainsNull)
            return pa.map_(_arrow_field("key", kind.keyType, nullable=False), values)
        case _:
            return _ARROW_TYPES[type(kind)]


def _required(columns: StructType, *names: str) -> StructType:
    """Return the schema with these columns never NULL."""
    return StructType([StructField(each.name, each.dataType, each.name not in names) for each in columns])


_DESTINATION = """address STRING, healthy BOOLEAN, uptime_ms BIGINT, configured_tunnels BIGINT, current_tunnels BIGINT,
    configured_bandwidth_bytes_per_s BIGINT, bandwidth_bytes_per_s BIGINT, configured_connections BIGINT,
    connections BIGINT"""
FIGURE_COLUMNS = {each.column or each.name: each for each in FIGURES.values()}
"""The figures of a router as columns of `report` and of the table `reports`."""
_REPORT = ", ".join(
    [
        "written_at TIMESTAMP, attached BOOLEAN",
        *(f"{name} {'BIGINT' if each.kind is int else 'DOUBLE'}" for name, each in FIGURE_COLUMNS.items()),
        "destinations INT, healthy_destinations INT, publishing BOOLEAN, publish_config STRING",
        "can_sign_until TIMESTAMP, last_published_at TIMESTAMP, masters INT, fetch_ms BIGINT",
    ]
)
ENTRIES = StructType(
    [
        *_required(
            _columns(
                """farm STRING, farm_name STRING, index BIGINT, term BIGINT, kind STRING, log_time TIMESTAMP,
                entry STRING, server_id BIGINT, request STRING, reason STRING, claimed STRING, body_bytes INT,
                body BINARY"""
            ),
            *("farm", "index", "term", "kind", "entry", "body_bytes"),
        ),
        StructField("report", _columns(_REPORT)),
        StructField("destinations", ArrayType(_columns(_DESTINATION))),
        StructField("clock", _columns("time TIMESTAMP, period_ms BIGINT")),
        StructField("publication", _columns("address STRING, published_at TIMESTAMP, content_hash STRING")),
        StructField("configuration", _columns("voters ARRAY<BIGINT>, learners ARRAY<BIGINT>, joint BOOLEAN")),
        StructField("factors", _columns("through_index BIGINT, formula STRING, factors MAP<STRING;DOUBLE>")),
        StructField("action", _columns("address STRING, detail STRING")),
    ]
)
"""Destinations are named by their b32 addresses, 52 characters without `.b32.i2p`."""

EVENTS = StructType(
    [
        StructField("farm", StringType(), nullable=True),
        StructField("node", StringType(), nullable=False),
        StructField("cursor", LongType(), nullable=False),
        StructField("time_ms", LongType(), nullable=False),
        StructField("log_time", TimestampType(), nullable=True),
        StructField("clock_offset_ms", LongType(), nullable=True),
        StructField("kind", StringType(), nullable=False),
        StructField("data", StringType(), nullable=False),
    ]
)

_TABLE_COLUMNS = {
    "reports": f"""index BIGINT, term BIGINT, log_time TIMESTAMP, server_id BIGINT, {_REPORT},
        request STRING""",
    "destination_reports": """index BIGINT, log_time TIMESTAMP, server_id BIGINT, destination STRING, healthy BOOLEAN,
        uptime_ms BIGINT, configured_tunnels BIGINT, current_tunnels BIGINT, configured_bandwidth_bytes_per_s BIGINT,
        bandwidth_bytes_per_s BIGINT, configured_connections BIGINT, connections BIGINT, request STRING""",
    "clocks": "index BIGINT, term BIGINT, log_time TIMESTAMP, leader_id BIGINT, period_ms BIGINT",
    "publications": """index BIGINT, term BIGINT, log_time TIMESTAMP, master STRING, server_id BIGINT,
        published_at TIMESTAMP, content_hash STRING""",
    "configurations": """index BIGINT, term BIGINT, log_time TIMESTAMP, voters ARRAY<BIGINT>, learners ARRAY<BIGINT>,
        joint BOOLEAN""",
    "factors": """index BIGINT, log_time TIMESTAMP, through_index BIGINT, formula STRING, destination STRING,
        factor DOUBLE""",
    "operator_actions": """index BIGINT, term BIGINT, log_time TIMESTAMP, action STRING, subject STRING,
        detail STRING, request STRING""",
    "quarantine": "index BIGINT, term BIGINT, log_time TIMESTAMP, body_bytes INT, reason STRING, kind STRING",
    "events": """node STRING, cursor BIGINT, time_ms BIGINT, log_time TIMESTAMP, clock_offset_ms BIGINT, kind STRING,
        data STRING, batch_id BIGINT""",
}
HISTORY: dict[str, StructType] = {
    name: _columns(f"farm STRING, {columns}, day DATE") for name, columns in _TABLE_COLUMNS.items()
}
"""`farm` is the cluster id; `day` is the day of `log_time`, in UTC."""

_DERIVED_COLUMNS = {
    "router_health": """window_start TIMESTAMP, window_end TIMESTAMP, server_id BIGINT, reports BIGINT,
        availability DOUBLE, uptime_ms BIGINT, restarted BOOLEAN, job_lag_p50_ms DOUBLE, job_lag_p95_ms DOUBLE,
        cpu_percent DOUBLE, memory_percent DOUBLE, destinations INT, healthy_share DOUBLE, publishing BOOLEAN,
        uptime_resets BIGINT, job_lag_p99_ms DOUBLE, participating_tunnels DOUBLE, exploratory_tunnels DOUBLE,
        bandwidth_bytes_per_s DOUBLE, bandwidth_use DOUBLE, attached_share DOUBLE, fetch_p50_ms DOUBLE""",
    "destination_health": """window_start TIMESTAMP, window_end TIMESTAMP, destination STRING, server_id BIGINT,
        reports BIGINT, availability DOUBLE, healthy_share DOUBLE, breaks BIGINT, uptime_ms BIGINT,
        tunnels_share DOUBLE, bandwidth_use DOUBLE, bandwidth_bytes_per_s DOUBLE, connections DOUBLE""",
    "data_quality": """window_start TIMESTAMP, window_end TIMESTAMP, server_id BIGINT, reports BIGINT,
        duplicates BIGINT, late BIGINT, clock_off BIGINT, clock_offset_ms BIGINT, refused BIGINT""",
    "leaderships": """term BIGINT, leader_id BIGINT, first_at TIMESTAMP, last_at TIMESTAMP, clock_entries BIGINT,
        longest_silence_ms BIGINT, gap_ms BIGINT, leader_changed BOOLEAN, first_index BIGINT, last_index BIGINT""",
    "publishers": """master STRING, server_id BIGINT, first_at TIMESTAMP, last_at TIMESTAMP, publications BIGINT,
        longest_silence_ms BIGINT, gap_ms BIGINT, first_index BIGINT, last_index BIGINT""",
    "detections": """observer STRING, member STRING, member_id STRING, server_id BIGINT, last_contact TIMESTAMP,
        suspect_at TIMESTAMP, dead_at TIMESTAMP, back_at TIMESTAMP, contact_to_suspect_ms BIGINT,
        contact_to_dead_ms BIGINT, suspect_to_dead_ms BIGINT, dead_to_back_ms BIGINT, outcome STRING,
        noticed_ms BIGINT, is_over BOOLEAN, is_dated BOOLEAN""",
    "convergence": """member STRING, status STRING, first_at TIMESTAMP, last_at TIMESTAMP, observers BIGINT,
        nodes BIGINT, converged_ms BIGINT, seen_by ARRAY<STRING>""",
    "members": "member STRING, server_id BIGINT, first_event_at TIMESTAMP, last_event_at TIMESTAMP",
}
DERIVED: dict[str, StructType] = {
    name: _columns(f"farm STRING, {columns}{', day DATE' if columns.startswith('window_start') else ''}")
    for name, columns in _DERIVED_COLUMNS.items()
}
"""`farm` is the cluster id, and `day`, in tables by window, the day of `window_start`, in UTC."""

TRANSITIONS = _columns(
    """farm STRING, server_id BIGINT, at TIMESTAMP, index BIGINT, previous STRING, state STRING, reason STRING,
    session_started_at TIMESTAMP, session_reports BIGINT, uptime_ms BIGINT, after_index BIGINT, day DATE"""
)
"""Changes of a server's state (`pipeline/watch/machine.py`)."""

RANGES = _columns(
    """farm STRING, name STRING, kind STRING, first_index BIGINT, last_index BIGINT, row_count BIGINT,
    log_time TIMESTAMP, batch_id BIGINT, stored_at TIMESTAMP, day DATE"""
)
"""The entries and rows of each batch (`pipeline/tables/ranges.py`)."""

FLOODFILLS = _columns("destination STRING, day DATE, rank INT, router STRING, distance STRING")
"""`router` and `destination` are hashes in lower-case hexadecimal.

`distance` has the same form: it is the XOR of `router` and the routing key of the destination on that day.
"""
