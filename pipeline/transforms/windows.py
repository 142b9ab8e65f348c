"""What the tables by window share: the window, what counts as one report, and how many were to be expected.

An entry may be in the log several times: a sender that got no answer submits it again under the same `request`, and
only the first is applied. Whoever counts entries counts each `request` once, the one with the lowest index. Entries
without a `request` are all counted.

The expected number of reports is the number of the leader's clock entries in the window: a leader writes one per
reporting period, so it is counted from the log itself and needs no setting. A new leader writes one more at its
election, so a window with an election may expect one too many.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

DEFAULT_WINDOW = "1 minute"


def span(window: str) -> Column:
    """The window of log time that a row is in."""
    return f.window("log_time", window)


def first_of_each_request(entries: DataFrame, *also_by: str) -> DataFrame:
    """Without the repetitions of a submission. `also_by` tells the rows of one entry apart."""
    named = entries.where(f.col("request").isNotNull())
    order = Window.partitionBy("request", *also_by).orderBy("index")
    first = named.withColumn("_place", f.row_number().over(order)).where(f.col("_place") == 1).drop("_place")
    return first.unionByName(entries.where(f.col("request").isNull()))


def expected_reports(clocks: DataFrame, window: str) -> DataFrame:
    """`span` and `periods`: how many reports of each server a window should hold."""
    return (
        clocks.where(f.col("log_time").isNotNull())
        .groupBy(span(window).alias("span"))
        .agg(f.count("*").alias("periods"))
    )


def availability(reports: Column, periods: Column) -> Column:
    """Share of the reporting periods in which a report was committed, at most 1."""
    return f.least(f.lit(1.0), reports / f.greatest(f.coalesce(periods, f.lit(1)), f.lit(1)))


def share(part: Column, whole: Column) -> Column:
    """`part / whole`, NULL where either is unknown or the whole is 0."""
    return part / f.nullif(whole, f.lit(0))
