"""What the weighing looks at, out of entries of the log: few columns of the recent past, in order of index.

A backlog may hold millions of entries, of which only the last minutes matter: what is older than `RECENT` before the
newest entry is left out, and of the rest no more than `ROWS_MAX` leave Spark, fewer if entries are large, so that no
author's entries fill the driver's memory. The farm's own rules say what an entry is (`pipeline.decode.entries`), so an
entry that the farm ignores is ignored here as well.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as f

from pipeline.transforms.windows import REQUEST
from pipeline.weighing import ClockRow, FactorsRow, ReportRow, Row

RECENT = "20 minutes"
ROWS_MAX = 50_000
COLLECTED_MAX_BYTES = 128 * 1024 * 1024
KINDS = ("report", "clock", "factors")


def recent(entries: DataFrame) -> list[Row]:
    """The rows of the newest entries, in order."""
    told = entries.where(f.col("entry").isin(*KINDS) & f.col("log_time").isNotNull())
    [[newest, largest_bytes]] = told.agg(f.max("log_time"), f.max("body_bytes")).collect()
    if newest is None:
        return []
    chosen = (
        told.where(f.col("log_time") >= f.lit(newest) - f.expr(f"INTERVAL {RECENT}"))
        .select(
            "index",
            f.unix_millis("log_time").alias("log_time_ms"),
            "entry",
            "server_id",
            f.when(f.col("request").rlike(REQUEST), f.col("request")).alias("request"),
            f.col("report.job_lag_ms").alias("job_lag_ms"),
            f.col("destinations.address").alias("leaves"),
            f.col("destinations.healthy").alias("healthy"),
            f.col("clock.period_ms").alias("period_ms"),
            f.col("factors.through_index").alias("through_index"),
            f.col("factors.factors").alias("factors"),
        )
        .orderBy(f.col("index").desc())
        .limit(min(ROWS_MAX, COLLECTED_MAX_BYTES // max(1, largest_bytes)))
    )
    return list(reversed([row for found in chosen.collect() for row in _rows(found)]))


def _rows(found: SparkRow) -> Iterator[Row]:
    index, log_time_ms = found["index"], found["log_time_ms"]
    match found["entry"]:
        case "clock":
            yield ClockRow(index, log_time_ms, found["period_ms"])
        case "factors":
            yield FactorsRow(index, log_time_ms, found["through_index"], found["factors"])
        case _:
            leaves = tuple(zip(found["leaves"] or (), found["healthy"] or (), strict=True))
            yield ReportRow(index, log_time_ms, found["server_id"], found["job_lag_ms"], leaves, found["request"])
