"""Which servers led and published, and the gaps between: from the log, so that no node's own view is needed.

A leader writes a clock entry at its election and in each reporting period. A term's first and last one bound what is
known of its leadership, and the time between one term's last and the next term's first is how long the log shows no
leader: an upper bound of the real gap, by at most one reporting period.

A publisher commits to every structure before it signs it. A reign is a run of publications of one server for one
master; the time between two reigns is how long no server published.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f


def leaderships(clocks: DataFrame) -> DataFrame:
    """One row a term and leader, in order (columns: `pipeline.schemas.DERIVED["leaderships"]`)."""
    known = clocks.where(f.col("log_time").isNotNull())
    silence = _milliseconds_since(f.lag("log_time").over(Window.partitionBy("term", "leader_id").orderBy("index")))
    terms = (
        known.withColumn("silence_ms", silence)
        .groupBy("term", "leader_id")
        .agg(
            f.min("log_time").alias("first_at"),
            f.max("log_time").alias("last_at"),
            f.count("*").alias("clock_entries"),
            f.max("silence_ms").alias("longest_silence_ms"),
            f.min("index").alias("_first_index"),
        )
    )
    before = Window.orderBy("_first_index")
    return terms.select(
        "term",
        "leader_id",
        "first_at",
        "last_at",
        "clock_entries",
        "longest_silence_ms",
        _milliseconds_since(f.lag("last_at").over(before), f.col("first_at")).alias("gap_ms"),
        f.coalesce(f.lag("leader_id").over(before) != f.col("leader_id"), f.lit(False)).alias("leader_changed"),  # noqa: FBT003
    )


def publishers(publications: DataFrame) -> DataFrame:
    """One row a reign, in order (columns: `pipeline.schemas.DERIVED["publishers"]`)."""
    in_order = Window.partitionBy("master").orderBy("index")
    known = publications.where(f.col("log_time").isNotNull())
    begins = f.coalesce(f.lag("server_id").over(in_order) != f.col("server_id"), f.lit(True)).cast("int")  # noqa: FBT003
    reigns = (
        known.withColumn("begins", begins)
        .withColumn("reign", f.sum("begins").over(in_order))
        .withColumn("silence_ms", f.when(f.col("begins") == 0, _milliseconds_since(f.lag("log_time").over(in_order))))
        .groupBy("master", "server_id", "reign")
        .agg(
            f.min("log_time").alias("first_at"),
            f.max("log_time").alias("last_at"),
            f.count("*").alias("publications"),
            f.max("silence_ms").alias("longest_silence_ms"),
            f.min("index").alias("first_index"),
        )
    )
    before = Window.partitionBy("master").orderBy("reign")
    return reigns.select(
        "master",
        "server_id",
        "first_at",
        "last_at",
        "publications",
        "longest_silence_ms",
        _milliseconds_since(f.lag("last_at").over(before), f.col("first_at")).alias("gap_ms"),
        "first_index",
    )


def _milliseconds_since(earlier: Column, later: Column | None = None) -> Column:
    until = f.col("log_time") if later is None else later
    return f.unix_millis(until) - f.unix_millis(earlier)
