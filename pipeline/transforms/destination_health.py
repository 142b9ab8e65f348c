"""How each destination fared on each server that serves it, in each window of log time."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from pipeline.transforms.windows import (
    DEFAULT_WINDOW,
    availability,
    first_of_each_request,
    share,
    span,
    whole_periods,
)

WITHIN_MS = 3_600_000


def destination_health(destination_reports: DataFrame, clocks: DataFrame, window: str = DEFAULT_WINDOW) -> DataFrame:
    """One row a destination, server and window (columns: `pipeline.schemas.DERIVED["destination_health"]`).

    `breaks` counts the reports that call it unhealthy where the one before, within an hour and also in an earlier
    window, called it healthy: how often it broke, not for how long. (Days are made one by one, with the hour before.)
    """
    in_order = Window.partitionBy("destination", "server_id").orderBy("index")
    since_ms = f.unix_millis("log_time") - f.unix_millis(f.lag("log_time").over(in_order))
    broke = f.lag("healthy").over(in_order) & ~f.col("healthy") & (since_ms <= WITHIN_MS)
    counted = (
        first_of_each_request(destination_reports, "destination")
        .withColumn("broke", f.coalesce(broke, f.lit(False)).cast("long"))  # noqa: FBT003 - a column's value
        .where(f.col("log_time").isNotNull())
        .withColumn("span", span(window))
    )
    grouped = counted.groupBy("span", "destination", "server_id").agg(
        f.count("*").alias("reports"),
        f.collect_set("log_time").alias("heard"),
        f.avg(f.col("healthy").cast("int")).alias("healthy_share"),
        f.sum("broke").alias("breaks"),
        f.max_by("uptime_ms", "index").alias("uptime_ms"),
        f.avg(share(f.col("current_tunnels"), f.col("configured_tunnels"))).alias("tunnels_share"),
        f.avg(share(f.col("bandwidth_bytes_per_s"), f.col("configured_bandwidth_bytes_per_s"))).alias("bandwidth_use"),
        f.avg("bandwidth_bytes_per_s").alias("bandwidth_bytes_per_s"),
        f.avg("connections").alias("connections"),
    )
    return grouped.join(whole_periods(clocks, window), "span", "left").select(
        f.col("span.start").alias("window_start"),
        f.col("span.end").alias("window_end"),
        "destination",
        "server_id",
        "reports",
        availability(f.col("heard"), f.col("periods")).alias("availability"),
        "healthy_share",
        "breaks",
        "uptime_ms",
        "tunnels_share",
        "bandwidth_use",
        "bandwidth_bytes_per_s",
        "connections",
    )
