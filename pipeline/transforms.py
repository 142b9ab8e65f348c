"""From log entries to tables: pure functions DataFrame -> DataFrame with explicit schemas.

    entries (envelope) ──▶ reports        one row a server's application entry, typed
                       ──▶ clocks         one row a clock entry of the leader
                       ──▶ quarantine     application entries that cannot be read, with the reason
    reports + clocks   ──▶ router_health  one row a server and window

Event time is log time: the time that the leaders' clock entries gave the log, never the date that a server wrote.
Parsing is Spark's own `from_json` with a declared schema, so a hostile entry becomes NULLs, not an exception.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

BODY_LIMIT_BYTES = 64 * 1024
DEFAULT_WINDOW = "1 minute"

_REPORT_SCHEMA = StructType(
    [
        StructField("cluster", StringType()),
        StructField("date", LongType()),
        StructField("id", LongType()),
        StructField(
            "meta",
            StructType([StructField("publishConfig", StringType()), StructField("publishing", BooleanType())]),
        ),
        StructField(
            "router",
            StructType(
                [
                    StructField("attached", BooleanType()),
                    StructField("uptime", LongType()),
                    StructField("jobLag", DoubleType()),
                    StructField("participatingTunnels", LongType()),
                    StructField("currentBandwidth", LongType()),
                    StructField("cpuPercent", DoubleType()),
                    StructField("memoryPercent", DoubleType()),
                ]
            ),
        ),
        StructField("destinations", ArrayType(StructType([StructField("healthy", BooleanType())]))),
        StructField("clock", StructType([StructField("time", LongType()), StructField("id", LongType())])),
        StructField("publication", StructType([StructField("id", LongType()), StructField("published", LongType())])),
        StructField("admission", StructType([StructField("node", StringType()), StructField("name", StringType())])),
        StructField("exclusion", StructType([StructField("hash", StringType())])),
        StructField("cost", StructType([StructField("hash", StringType())])),
        StructField("force", StructType([StructField("master", StringType())])),
        StructField("factors", StructType([StructField("throughIndex", LongType())])),
        StructField("removal", StructType([StructField("server", LongType())])),
        StructField("_malformed", StringType()),
    ]
)


def parsed(entries: DataFrame) -> DataFrame:
    """Application entries with their JSON as the column `json` (NULL where the text is not what it should be)."""
    application = entries.where(f.col("kind") == "application")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_malformed"}
    readable = (f.col("encoding") == "text") & (f.col("body_bytes") <= BODY_LIMIT_BYTES)
    return application.withColumn("json", f.from_json(f.when(readable, f.col("body")), _REPORT_SCHEMA, options))


def reports(entries: DataFrame) -> DataFrame:
    """One row per readable application entry of a server (columns: docs/pipeline.md, table `reports`)."""
    json = f.col("json")
    destinations = json["destinations"]
    return (
        parsed(entries)
        .where(_is_report(json))
        .select(
            "index",
            "term",
            "log_time",
            json["id"].alias("server_id"),
            f.timestamp_millis(json["date"]).alias("written_at"),
            json["router"]["attached"].alias("attached"),
            json["router"]["uptime"].alias("uptime_ms"),
            json["router"]["jobLag"].alias("job_lag_ms"),
            json["router"]["participatingTunnels"].alias("participating_tunnels"),
            json["router"]["currentBandwidth"].alias("bandwidth_bytes_per_s"),
            json["router"]["cpuPercent"].alias("cpu_percent"),
            json["router"]["memoryPercent"].alias("memory_percent"),
            f.coalesce(f.size(destinations), f.lit(0)).cast("int").alias("destinations"),
            f.coalesce(f.size(f.filter(destinations, lambda leaf: leaf["healthy"])), f.lit(0))
            .cast("int")
            .alias("healthy_destinations"),
            f.coalesce(json["meta"]["publishing"], f.lit(False)).alias("publishing"),  # noqa: FBT003
        )
    )


def clocks(entries: DataFrame) -> DataFrame:
    """One row per clock entry: when, and which leader wrote it."""
    json = f.col("json")
    return (
        parsed(entries)
        .where(json["clock"]["time"].isNotNull())
        .select("index", "term", "log_time", json["clock"]["id"].alias("leader_id"))
    )


def quarantine(entries: DataFrame) -> DataFrame:
    """Application entries that nothing else could read: index, size and reason; the text itself stays in the log."""
    json = f.col("json")
    reason = (
        f.when(f.col("encoding") != "text", "not UTF-8")
        .when(f.col("body_bytes") > BODY_LIMIT_BYTES, f"larger than {BODY_LIMIT_BYTES} bytes")
        .when(json["_malformed"].isNotNull(), "not the JSON that a server writes")
        .when(json["router"].isNotNull() & json["id"].isNull(), "a report without the server's id")
        .when(_is_known(json), None)
        .otherwise("no kind of entry that a farm knows")
    )
    return (
        parsed(entries)
        .withColumn("reason", reason)
        .where(f.col("reason").isNotNull())
        .select("index", "term", "log_time", "body_bytes", "reason")
    )


def _is_report(json: Column) -> Column:
    return json["_malformed"].isNull() & json["router"].isNotNull() & json["id"].isNotNull() & json["date"].isNotNull()


def _is_known(json: Column) -> Column:
    return (
        _is_report(json)
        | json["clock"]["time"].isNotNull()
        | json["publication"]["published"].isNotNull()
        | json["admission"]["node"].isNotNull()
        | json["exclusion"]["hash"].isNotNull()
        | json["cost"]["hash"].isNotNull()
        | json["force"]["master"].isNotNull()
        | json["factors"]["throughIndex"].isNotNull()
        | json["removal"]["server"].isNotNull()
    )


def router_health(reports_table: DataFrame, clocks_table: DataFrame, window: str = DEFAULT_WINDOW) -> DataFrame:
    """How each router fared in each window of log time.

    `availability` is the share of reporting periods in which the server's report was committed. The leader writes one
    clock entry per period, so the expected number is counted from the log itself and needs no setting.
    """
    span = f.window("log_time", window)
    expected = clocks_table.groupBy(span.alias("span")).agg(f.count("*").alias("periods"))
    grouped = (
        reports_table.withColumn("span", span)
        .groupBy("span", "server_id")
        .agg(
            f.count("*").alias("reports"),
            f.max_by("uptime_ms", "index").alias("uptime_ms"),
            f.min("uptime_ms").alias("lowest_uptime_ms"),
            f.min_by("uptime_ms", "index").alias("first_uptime_ms"),
            f.percentile_approx("job_lag_ms", 0.5).alias("job_lag_p50_ms"),
            f.percentile_approx("job_lag_ms", 0.95).alias("job_lag_p95_ms"),
            f.avg("cpu_percent").alias("cpu_percent"),
            f.avg("memory_percent").alias("memory_percent"),
            f.max_by("destinations", "index").alias("destinations"),
            f.avg(f.col("healthy_destinations") / f.nullif(f.col("destinations"), f.lit(0))).alias("healthy_share"),
            f.max_by("publishing", "index").alias("publishing"),
        )
    )
    return (
        grouped.join(expected, "span", "left")
        .select(
            f.col("span.start").alias("window_start"),
            f.col("span.end").alias("window_end"),
            "server_id",
            "reports",
            f.least(f.lit(1.0), f.col("reports") / f.greatest(f.col("periods"), f.lit(1))).alias("availability"),
            "uptime_ms",
            (f.col("lowest_uptime_ms") < f.col("first_uptime_ms")).alias("restarted"),
            "job_lag_p50_ms",
            "job_lag_p95_ms",
            "cpu_percent",
            "memory_percent",
            "destinations",
            "healthy_share",
            "publishing",
        )
        .orderBy("window_start", "server_id")
    )
