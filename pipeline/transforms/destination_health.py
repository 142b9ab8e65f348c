"""How each destination fared on each server that serves it, in each window of log time."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.transforms.windows import (
    DEFAULT_WINDOW,
    availability,
    expected_reports,
    first_of_each_request,
    share,
    span,
)


def destination_health(destination_reports: DataFrame, clocks: DataFrame, window: str = DEFAULT_WINDOW) -> DataFrame:
    """One row a destination, server and window (columns: `pipeline.schemas.DERIVED["destination_health"]`).

    `breaks` counts the reports that call it unhealthy while one of the window calls it healthy before: how often it
    broke, not for how long.
    """
    counted = (
        first_of_each_request(destination_reports, "destination")
        .where(f.col("log_time").isNotNull())
        .withColumn("span", span(window))
    )
    history = f.array_sort(f.collect_list(f.struct("index", "healthy")))
    grouped = counted.groupBy("span", "destination", "server_id").agg(
        f.count("*").alias("reports"),
        f.avg(f.col("healthy").cast("int")).alias("healthy_share"),
        history.alias("history"),
        f.max_by("uptime_ms", "index").alias("uptime_ms"),
        f.avg(share(f.col("current_tunnels"), f.col("configured_tunnels"))).alias("tunnels_share"),
        f.avg(share(f.col("bandwidth_bytes_per_s"), f.col("configured_bandwidth_bytes_per_s"))).alias("bandwidth_use"),
        f.avg("bandwidth_bytes_per_s").alias("bandwidth_bytes_per_s"),
        f.avg("connections").alias("connections"),
    )
    flags = f.transform(f.col("history"), lambda each: each["healthy"])
    broke = f.zip_with(
        f.slice(flags, 1, f.greatest(f.size(flags) - 1, f.lit(0))),
        f.slice(flags, 2, f.size(flags)),
        lambda before, after: (before & ~after).cast("long"),
    )
    breaks = f.aggregate(broke, f.lit(0).cast("long"), lambda total, each: total + f.coalesce(each, f.lit(0)))
    return grouped.join(expected_reports(clocks, window), "span", "left").select(
        f.col("span.start").alias("window_start"),
        f.col("span.end").alias("window_end"),
        "destination",
        "server_id",
        "reports",
        availability(f.col("reports"), f.col("periods")).alias("availability"),
        "healthy_share",
        breaks.alias("breaks"),
        "uptime_ms",
        "tunnels_share",
        "bandwidth_use",
        "bandwidth_bytes_per_s",
        "connections",
    )
