"""What the weighing looks at, out of entries of the log: few columns of the recent past, in order of index.

A backlog may hold millions of entries, of which only the last minutes matter: what is older than `RECENT` before the
newest entry is left out, and of the rest no more than `ROWS_MAX` leave Spark, fewer where an entry is large: nobody's
entries are to fill the driver's memory. Parsing is done by Spark with a declared
schema, as everywhere; it is a schema of its own, because this runs with every batch, and what the tables need of an
entry takes four times as long to plan. What the farm takes for no report, clock entry or factors (a member that is
missing, of another type or outside its range, or several kinds at once) is none here either.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pipeline.weighing import LEAVES_PER_SERVER_MAX, ClockRow, FactorsRow, ReportRow, Row, leaf_hash

RECENT = "20 minutes"
ROWS_MAX = 50_000
COLLECTED_MAX_BYTES = 128 * 1024 * 1024
BODY_LIMIT_BYTES = 64 * 1024
SERVER_ID_END = 2**31
LAG_LIMIT_MS = 1e9

_LEAF = StructType([StructField("destination", StringType()), StructField("healthy", BooleanType())])
_BODY = StructType(
    [
        StructField("id", LongType()),
        StructField("date", LongType()),
        StructField("request", StringType()),
        StructField("router", StructType([StructField("jobLag", DoubleType())])),
        StructField("destinations", ArrayType(_LEAF)),
        StructField("clock", StructType([StructField("time", LongType()), StructField("period", LongType())])),
        StructField(
            "factors",
            StructType(
                [StructField("throughIndex", LongType()), StructField("factors", MapType(StringType(), DoubleType()))]
            ),
        ),
        StructField("_malformed", StringType()),
    ]
)
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_malformed", "allowNonNumericNumbers": "false"}


def recent(entries: DataFrame) -> list[Row]:
    """The rows of the newest entries, in order."""
    readable = entries.where(
        (f.col("kind") == "application")
        & (f.col("encoding") == "text")
        & (f.col("body_bytes") <= BODY_LIMIT_BYTES)
        & f.col("log_time").isNotNull()
    )
    [[newest, largest_bytes]] = readable.agg(f.max("log_time"), f.max("body_bytes")).collect()
    if newest is None:
        return []
    most = min(ROWS_MAX, COLLECTED_MAX_BYTES // max(1, largest_bytes))
    body = f.from_json("body", _BODY, _OPTIONS)
    chosen = (
        readable.where(f.col("log_time") >= f.lit(newest) - f.expr(f"INTERVAL {RECENT}"))
        .select("index", f.unix_millis("log_time").alias("log_time_ms"), body.alias("body"))
        .where(
            f.col("body._malformed").isNull()
            & f.coalesce("body.clock.time", "body.factors.throughIndex", "body.id").isNotNull()
        )
        .orderBy(f.col("index").desc())
        .limit(most)
    )
    return list(reversed([row for found in chosen.collect() for row in _rows(found)]))


def _rows(found: SparkRow) -> Iterator[Row]:
    index, log_time_ms, body = found["index"], found["log_time_ms"], found["body"]
    match body["router"], body["clock"], body["factors"]:
        case None, clock, None if clock is not None and clock["time"] is not None:
            yield ClockRow(index, log_time_ms, clock["period"])
        case None, None, factors if factors is not None and None not in (factors["throughIndex"], factors["factors"]):
            yield FactorsRow(index, log_time_ms, factors["throughIndex"], factors["factors"])
        case router, None, None if router is not None and _is_report(body):
            named = ((leaf_hash(leaf["destination"]), leaf["healthy"]) for leaf in body["destinations"] or ())
            healthy = tuple((name, bool(well)) for name, well in named if name is not None)
            yield ReportRow(index, log_time_ms, body["id"], router["jobLag"], healthy, body["request"])
        case _:
            pass


def _is_report(body: SparkRow) -> bool:
    lag_ms, leaves = body["router"]["jobLag"], body["destinations"] or ()
    return (
        body["date"] is not None
        and body["id"] is not None
        and 0 <= body["id"] < SERVER_ID_END
        and (lag_ms is None or 0 <= lag_ms <= LAG_LIMIT_MS)
        and len(leaves) <= LEAVES_PER_SERVER_MAX
        and all(leaf is not None and leaf["destination"] is not None for leaf in leaves)
    )
