"""What the weighing looks at, out of entries of the log: few columns of the recent past, in order of index.

A backlog may hold millions of entries, of which only the last minutes matter: what is older than `RECENT` before the
newest entry is left out, and of the rest no more than `ROWS_MAX` leave Spark, fewer if entries are large, so that no
author's entries fill the driver's memory. The rules of the tables classify the entries (`pipeline.transforms.entries`).
They are the farm's own rules, so an entry that the farm ignores is ignored here as well.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as f

from pipeline.transforms.windows import REQUEST
from pipeline.weighing import ClockRow, FactorsRow, ReportRow, Row, leaf_hash

RECENT = "20 minutes"
ROWS_MAX = 50_000
COLLECTED_MAX_BYTES = 128 * 1024 * 1024
KINDS = ("report", "clock", "factors")


def recent(classified: DataFrame) -> list[Row]:
    """The rows of the newest entries, in order."""
    told = classified.where(f.col("entry").isin(*KINDS) & f.col("log_time").isNotNull())
    [[newest, largest_bytes]] = told.agg(f.max("log_time"), f.max("body_bytes")).collect()
    if newest is None:
        return []
    json = f.col("json")
    chosen = (
        told.where(f.col("log_time") >= f.lit(newest) - f.expr(f"INTERVAL {RECENT}"))
        .select(
            "index",
            f.unix_millis("log_time").alias("log_time_ms"),
            "entry",
            json["id"].alias("server_id"),
            f.when(json["request"].rlike(REQUEST), json["request"]).alias("request"),
            json["router"]["jobLag"].alias("job_lag_ms"),
            json["destinations"]["destination"].alias("leaves"),
            json["destinations"]["healthy"].alias("healthy"),
            json["clock"]["period"].alias("period_ms"),
            json["factors"]["throughIndex"].alias("through_index"),
            json["factors"]["factors"].alias("factors"),
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
            told = zip(found["leaves"] or (), found["healthy"] or (), strict=True)
            named = ((leaf_hash(destination), bool(healthy)) for destination, healthy in told)
            leaves = tuple((name, healthy) for name, healthy in named if name is not None)
            yield ReportRow(index, log_time_ms, found["server_id"], found["job_lag_ms"], leaves, found["request"])
