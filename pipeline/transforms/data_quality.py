"""What is wrong with the entries themselves: repeated, late, dated by a clock that is off, or refused.

    offset     = written_at - log_time          of each report; 0 to one period by a right clock, since log time stands
                                                still within a period
    clock off  : offset < -30 s, or offset > one period + 30 s
                                                the farm's own rule: such a sender cannot publish
    late       : offset < typical offset - 1.5 periods
                                                typical: the median of this server's reports in the hour

The median separates the two: a clock that is behind shifts all of a server's reports alike, a report that was long on
its way lags behind its own server's others. It is that of an hour, since a window may hold two reports only. The period
is the one that the leader's clock entries tell.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.transforms.windows import DEFAULT_WINDOW, first_of_each_request, span

CLOCK_OFF_MS = 30_000
STALE_PERIODS = 1.5
DEFAULT_PERIOD_MS = 30_000
TYPICAL_OF = "hour"


def data_quality(
    reports: DataFrame, clocks: DataFrame, quarantine: DataFrame, window: str = DEFAULT_WINDOW
) -> DataFrame:
    """One row a server and window; refused entries name no server and have the row whose `server_id` is NULL."""
    offset = (f.col("written_at").cast("double") - f.col("log_time").cast("double")) * 1000
    timed = (
        reports.where(f.col("log_time").isNotNull()).withColumn("span", span(window)).withColumn("offset_ms", offset)
    )
    hour = f.date_trunc(TYPICAL_OF, "log_time").alias("hour")
    counted = first_of_each_request(timed).select("*", hour)
    repeated = timed.groupBy("span", "server_id").agg(f.count("*").alias("copies"))
    typical = counted.groupBy("hour", "server_id").agg(f.percentile_approx("offset_ms", 0.5).alias("typical_ms"))
    period = clocks.agg(
        f.coalesce(
            f.max_by("period_ms", f.when(f.col("period_ms").isNotNull(), f.col("index"))), f.lit(DEFAULT_PERIOD_MS)
        ).alias("period_ms")
    )
    judged = counted.join(typical, ["hour", "server_id"]).crossJoin(f.broadcast(period))
    is_late = f.col("offset_ms") < f.col("typical_ms") - STALE_PERIODS * f.col("period_ms")
    right = f.col("offset_ms").between(-CLOCK_OFF_MS, f.col("period_ms") + CLOCK_OFF_MS)
    by_server = judged.groupBy("span", "server_id").agg(
        f.count("*").alias("reports"),
        f.count_if(is_late).alias("late"),
        # A date beyond those that can be shown is NULL, and no right clock tells it.
        f.count_if(~f.coalesce(right, f.lit(False))).alias("clock_off"),  # noqa: FBT003 - a column's value
        f.percentile_approx("offset_ms", 0.5).cast("long").alias("clock_offset_ms"),
    )
    none = f.lit(0).cast("long")
    of_servers = repeated.join(by_server, ["span", "server_id"], "left").select(
        "span",
        "server_id",
        f.coalesce("reports", none).alias("reports"),
        (f.col("copies") - f.coalesce("reports", none)).alias("duplicates"),
        f.coalesce("late", none).alias("late"),
        f.coalesce("clock_off", none).alias("clock_off"),
        "clock_offset_ms",
        none.alias("refused"),
    )
    of_nobody = (
        quarantine.where(f.col("log_time").isNotNull())
        .groupBy(span(window).alias("span"))
        .agg(f.count("*").alias("refused"))
        .select(
            "span",
            f.lit(None).cast("long").alias("server_id"),
            *(none.alias(name) for name in ("reports", "duplicates", "late", "clock_off")),
            f.lit(None).cast("long").alias("clock_offset_ms"),
            "refused",
        )
    )
    both = of_servers.unionByName(of_nobody)
    return both.select(
        f.col("span.start").alias("window_start"), f.col("span.end").alias("window_end"), *both.columns[1:]
    )
