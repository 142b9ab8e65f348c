"""The schema of everything that crosses a border of the pipeline: what the sources give, what the tables hold.

    source `farm`        the envelope of a log entry: with the source, in `pipeline/source/farm.py`
    source `farm_events` EVENTS: one row an event of a node's trace
    history              HISTORY[table]: one row an entry (or an element of it), one directory a micro-batch
    derived              DERIVED[table]: made anew out of history

A history table is read with the schema given here, which is never inferred: a file that an older version wrote lacks a
column and gives NULL for it. So a table may only gain columns; a column keeps its name, type and unit for ever, and
what would need another meaning gets another name (`docs/reference/pipeline-tables.md`, 'Entries and tables change').

`farm_events`, column by column:

    node             name of the node whose trace it is
    cursor           its place in that node's trace; begins at 1 in each process of the node
    time_ms          the node's own clock, milliseconds since the epoch
    log_time         when it was, in log time: as the event itself says, else `time_ms - clock_offset_ms`; NULL when
                     neither is known
    clock_offset_ms  the node's clock less log time, as measured by the reader; NULL when unknown
    kind             lower-case word joined by `-`
    data             the event's facts, a JSON object of texts, numbers, booleans and nulls

A cursor comes again after a restart of the node, so an event is named by (`node`, `cursor`, `time_ms`). When a node's
ring has overwritten events before they were read, the reader puts one row of kind `events-lost` in their place, with
`{"lost": N}`, the time of the first event after them, and that event's cursor less one.
"""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TYPES: dict[str, DataType] = {
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "DOUBLE": DoubleType(),
    "BOOLEAN": BooleanType(),
    "STRING": StringType(),
    "TIMESTAMP": TimestampType(),
    "DATE": DateType(),
    "ARRAY<BIGINT>": ArrayType(LongType()),
}


def _columns(text: str) -> StructType:
    """`name TYPE, …` as a schema; Spark's own parser of such text lives in a JVM, which is not there yet."""
    fields = (column.split() for column in text.split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in fields])


EVENTS = StructType(
    [
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
    "reports": """index BIGINT, term BIGINT, log_time TIMESTAMP, server_id BIGINT, written_at TIMESTAMP,
        attached BOOLEAN, uptime_ms BIGINT, job_lag_ms DOUBLE, participating_tunnels BIGINT,
        bandwidth_bytes_per_s BIGINT, cpu_percent DOUBLE, memory_percent DOUBLE, destinations INT,
        healthy_destinations INT, publishing BOOLEAN, exploratory_tunnels BIGINT,
        configured_bandwidth_bytes_per_s BIGINT, publish_config STRING, can_sign_until TIMESTAMP,
        last_published_at TIMESTAMP, request STRING, masters INT""",
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
        data STRING""",
}
HISTORY: dict[str, StructType] = {name: _columns(columns) for name, columns in _TABLE_COLUMNS.items()}

_DERIVED_COLUMNS = {
    "router_health": """window_start TIMESTAMP, window_end TIMESTAMP, server_id BIGINT, reports BIGINT,
        availability DOUBLE, uptime_ms BIGINT, restarted BOOLEAN, job_lag_p50_ms DOUBLE, job_lag_p95_ms DOUBLE,
        cpu_percent DOUBLE, memory_percent DOUBLE, destinations INT, healthy_share DOUBLE, publishing BOOLEAN,
        uptime_resets BIGINT, job_lag_p99_ms DOUBLE, participating_tunnels DOUBLE, exploratory_tunnels DOUBLE,
        bandwidth_bytes_per_s DOUBLE, bandwidth_use DOUBLE, attached_share DOUBLE""",
    "destination_health": """window_start TIMESTAMP, window_end TIMESTAMP, destination STRING, server_id BIGINT,
        reports BIGINT, availability DOUBLE, healthy_share DOUBLE, breaks BIGINT, uptime_ms BIGINT,
        tunnels_share DOUBLE, bandwidth_use DOUBLE, bandwidth_bytes_per_s DOUBLE, connections DOUBLE""",
    "data_quality": """window_start TIMESTAMP, window_end TIMESTAMP, server_id BIGINT, reports BIGINT,
        duplicates BIGINT, late BIGINT, clock_off BIGINT, clock_offset_ms BIGINT, refused BIGINT""",
    "leaderships": """term BIGINT, leader_id BIGINT, first_at TIMESTAMP, last_at TIMESTAMP, clock_entries BIGINT,
        longest_silence_ms BIGINT, gap_ms BIGINT, leader_changed BOOLEAN""",
    "publishers": """master STRING, server_id BIGINT, first_at TIMESTAMP, last_at TIMESTAMP, publications BIGINT,
        longest_silence_ms BIGINT, gap_ms BIGINT, first_index BIGINT""",
    "detections": """observer STRING, member STRING, member_id STRING, server_id BIGINT, last_contact TIMESTAMP,
        suspect_at TIMESTAMP, dead_at TIMESTAMP, back_at TIMESTAMP, contact_to_suspect_ms BIGINT,
        contact_to_dead_ms BIGINT, suspect_to_dead_ms BIGINT, dead_to_back_ms BIGINT, outcome STRING""",
    "convergence": """member STRING, status STRING, first_at TIMESTAMP, last_at TIMESTAMP, observers BIGINT,
        nodes BIGINT, converged_ms BIGINT""",
}
DERIVED: dict[str, StructType] = {name: _columns(columns) for name, columns in _DERIVED_COLUMNS.items()}

TRANSITIONS = _columns(
    """server_id BIGINT, at TIMESTAMP, index BIGINT, previous STRING, state STRING, reason STRING,
    session_started_at TIMESTAMP, session_reports BIGINT, uptime_ms BIGINT"""
)
"""Rows of the stateful query (`pipeline/state.py`)."""

FLOODFILLS = _columns("destination STRING, day DATE, rank INT, router STRING, distance STRING")
"""`router` and `destination` are hashes in lower-case hexadecimal; `distance` is their XOR likewise."""
