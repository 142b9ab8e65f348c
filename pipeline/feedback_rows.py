"""What the weighing looks at, out of entries of the log: few columns of the recent past, in order of index.

A backlog may hold millions of entries, of which only the last minutes matter: what is older than `RECENT` before the
newest entry is left out, and of the rest no more than `ROWS_MAX` leave Spark. Parsing is done by Spark with a declared
schema, as everywhere: what does not fit becomes NULL and is passed over.
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

from pipeline.weighing import ClockRow, FactorsRow, ReportRow, Row, leaf_hash

RECENT = "20 minutes"
ROWS_MAX = 50_000
BODY_LIMIT_BYTES = 64 * 1024
LEAVES_MAX = 64

_LEAF = StructType([StructField("destination", StringType()), StructField("healthy", BooleanType())])
_BODY = StructType(
    [
        StructField("id", LongType()),
        StructField("router", StructType([StructField("jobLag", DoubleType())])),
        StructField("destinations", ArrayType(_LEAF)),
        StructField("clock", StructType([StructField("time", LongType()), StructField("period", LongType())])),
        StructField(
            "factors",
            StructType(
                [StructField("throughIndex", LongType()), StructField("factors", MapType(StringType(), DoubleType()))]
            ),
        ),
    ]
)


def recent(entries: DataFrame) -> list[Row]:
    """The rows of the newest entries, at most `ROWS_MAX`, in order."""
    readable = entries.where(
        (f.col("kind") == "application")
        & (f.col("encoding") == "text")
        & (f.col("body_bytes") <= BODY_LIMIT_BYTES)
        & f.col("log_time").isNotNull()
    )
    newest = readable.agg(f.max("log_time")).collect()[0][0]
    if newest is None:
        return []
    body = f.from_json("body", _BODY, {"mode": "PERMISSIVE"})
    chosen = (
        readable.where(f.col("log_time") >= f.lit(newest) - f.expr(f"INTERVAL {RECENT}"))
        .select("index", f.unix_millis("log_time").alias("log_time_ms"), body.alias("body"))
        .where(
            f.col("body.clock.time").isNotNull()
            | f.col("body.factors.throughIndex").isNotNull()
            | (f.col("body.router").isNotNull() & f.col("body.id").isNotNull())
        )
        .orderBy(f.col("index").desc())
        .limit(ROWS_MAX)
    )
    return list(reversed([row for found in chosen.collect() for row in _rows(found)]))


def _rows(found: SparkRow) -> Iterator[Row]:
    index, log_time_ms, body = found["index"], found["log_time_ms"], found["body"]
    if body["clock"] is not None and body["clock"]["time"] is not None:
        yield ClockRow(index, log_time_ms, body["clock"]["period"])
    elif body["factors"] is not None and body["factors"]["throughIndex"] is not None:
        said = {leaf: factor for leaf, factor in (body["factors"]["factors"] or {}).items() if factor is not None}
        yield FactorsRow(index, log_time_ms, body["factors"]["throughIndex"], said)
    else:
        leaves = (body["destinations"] or [])[:LEAVES_MAX]
        named = ((leaf_hash(leaf["destination"] or ""), leaf["healthy"]) for leaf in leaves if leaf is not None)
        healthy = tuple((name, bool(well)) for name, well in named if name is not None)
        yield ReportRow(index, log_time_ms, body["id"], body["router"]["jobLag"], healthy)
