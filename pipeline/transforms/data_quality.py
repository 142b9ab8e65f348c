"""What is wrong with the entries themselves: repeated, late, dated by a clock that is off, or refused.

    offset     = written_at - log_time          of each report; 0 to one period by a right clock, since log time stands
                                                still within a period
    clock off  : offset < -30 s, or offset > one period + 30 s
                                                the farm's own rule: such a sender cannot publish
    late       : offset < typical offset - 1.5 periods
                                                typical: the median of this server's reports in the hour

The median separates the two: a clock that is behind shifts all of a server's reports alike, a report that was long on
its way lags behind its own server's others. It is that of an hour, since a window may hold two reports only. The period
is that of the last clock entry before the report within the hour, or of the hour's first one for reports before it, so
that it does not matter which days are made at once. A period that the farm would not accept is ignored: any client that
can submit can write what looks like a clock entry.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from pipeline.transforms.windows import DEFAULT_WINDOW, first_of_each_request, span
from pipeline.weighing import PERIOD_DEFAULT_MS, PERIOD_MAX_MS, PERIOD_MIN_MS

CLOCK_OFF_MS = 30_000
STALE_PERIODS = 1.5
TYPICAL_OF = "hour"


def data_quality(
    reports: DataFrame, clocks: DataFrame, quarantine: DataFrame, window: str = DEFAULT_WINDOW
) -> DataFrame:
    """One row a server and window; refused entries name no server and have the row whose `server_id` is NULL."""
    offset = (f.col("written_at").cast("double") - f.col("log_time").cast("double")) * 1000
    timed = (
        reports.where(f.col("log_time").isNotNull()).withColumn("span", span(window)).withColumn("offset_ms", offset)
    )
    counted = _with_period(first_of_each_request(timed), clocks)
    repeated = timed.groupBy("span", "server_id").agg(f.count("*").alias("copies"))
    typical = counted.groupBy("hour", "server_id").agg(f.percentile_approx("offset_ms", 0.5).alias("typical_ms"))
    judged = counted.join(typical, ["hour", "server_id"])
    is_late = f.col("offset_ms") < f.col("typical_ms") - STALE_PERIODS * f.col("period_ms")
    right = f.col("offset_ms").between(-CLOCK_OFF_MS, f.col("period_ms") + CLOCK_OFF_MS)
    by_server = judged.groupBy("span", "server_id").agg(
        f.count("*").alias("reports"),
        f.count_if(is_late).alias("late"),
        # A date beyond those that can be shown is NULL, and no right clock shows it.
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
    of_no_server = (
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
    both = of_servers.unionByName(of_no_server)
    return both.select(
        f.col("span.start").alias("window_start"), f.col("span.end").alias("window_end"), *both.columns[1:]
    )


def _with_period(timed: DataFrame, clocks: DataFrame) -> DataFrame:
    """The reports with their `hour` and the `period_ms` that the farm had then."""
    hour = f.date_trunc(TYPICAL_OF, "log_time").alias("hour")
    told = f.when(f.col("period_ms").between(PERIOD_MIN_MS, PERIOD_MAX_MS), f.col("period_ms")).alias("period_ms")
    reports = timed.select("index", "span", "server_id", "offset_ms", hour, f.lit(None).cast("long").alias("period_ms"))
    periods = clocks.where(f.col("log_time").isNotNull()).select("index", hour, told)
    in_order = Window.partitionBy("hour").orderBy("index")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    at_all = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    period = f.coalesce(
        f.last("period_ms", ignorenulls=True).over(so_far),
        f.first("period_ms", ignorenulls=True).over(at_all),
        f.lit(PERIOD_DEFAULT_MS),
    )
    both = reports.unionByName(periods, allowMissingColumns=True).withColumn("period_ms", period)
    return both.where(f.col("server_id").isNotNull())
