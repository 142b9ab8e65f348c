"""How each router fared in each window of log time, out of reports and the leader's clock entries."""

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


def router_health(
    reports: DataFrame, clocks: DataFrame, window: str = DEFAULT_WINDOW, uptimes: DataFrame | None = None
) -> DataFrame:
    """One row a server and window in which it reported (columns: `pipeline.schemas.DERIVED["router_health"]`).

    An uptime reset is a report whose uptime is below the last one that the server told before it, also across windows
    and across reports without an uptime: a router that restarts cannot be asked for a while. `uptimes` (`server_id`,
    `uptime_ms`) tells the servers' last ones from before these reports.
    """
    in_order = Window.partitionBy("server_id").orderBy("index").rowsBetween(Window.unboundedPreceding, -1)
    once = first_of_each_request(reports).withColumn("before_ms", f.last("uptime_ms", ignorenulls=True).over(in_order))
    if uptimes is not None:
        told = f.broadcast(uptimes.withColumnRenamed("uptime_ms", "told_ms"))
        once = once.join(told, "server_id", "left").withColumn("before_ms", f.coalesce("before_ms", "told_ms"))
    before = f.col("before_ms")
    counted = (
        once.withColumn("reset", f.coalesce(f.col("uptime_ms") < before, f.lit(False)).cast("int"))  # noqa: FBT003
        .where(f.col("log_time").isNotNull())
        .withColumn("span", span(window))
    )
    use = share(f.col("bandwidth_bytes_per_s"), f.col("configured_bandwidth_bytes_per_s"))
    grouped = counted.groupBy("span", "server_id").agg(
        f.count("*").alias("reports"),
        f.collect_set("log_time").alias("heard"),
        f.max_by("uptime_ms", f.when(f.col("uptime_ms").isNotNull(), f.col("index"))).alias("uptime_ms"),
        f.sum("reset").alias("uptime_resets"),
        f.percentile_approx("job_lag_ms", [0.5, 0.95, 0.99]).alias("job_lag_ms"),
        f.avg("cpu_percent").alias("cpu_percent"),
        f.avg("memory_percent").alias("memory_percent"),
        f.max_by("destinations", "index").alias("destinations"),
        f.avg(share(f.col("healthy_destinations"), f.col("destinations"))).alias("healthy_share"),
        f.max_by("publishing", "index").alias("publishing"),
        f.avg("participating_tunnels").alias("participating_tunnels"),
        f.avg("exploratory_tunnels").alias("exploratory_tunnels"),
        f.avg("bandwidth_bytes_per_s").alias("bandwidth_bytes_per_s"),
        f.avg(use).alias("bandwidth_use"),
        f.avg(f.col("attached").cast("int")).alias("attached_share"),
    )
    return grouped.join(whole_periods(clocks, window), "span", "left").select(
        f.col("span.start").alias("window_start"),
        f.col("span.end").alias("window_end"),
        "server_id",
        "reports",
        availability(f.col("heard"), f.col("periods")).alias("availability"),
        "uptime_ms",
        (f.col("uptime_resets") > 0).alias("restarted"),
        f.col("job_lag_ms")[0].alias("job_lag_p50_ms"),
        f.col("job_lag_ms")[1].alias("job_lag_p95_ms"),
        "cpu_percent",
        "memory_percent",
        "destinations",
        "healthy_share",
        "publishing",
        "uptime_resets",
        f.col("job_lag_ms")[2].alias("job_lag_p99_ms"),
        "participating_tunnels",
        "exploratory_tunnels",
        "bandwidth_bytes_per_s",
        "bandwidth_use",
        "attached_share",
    )
