"""What the tables by window share: the window, what counts as one report, and how many were to be expected.

An entry may be in the log several times: a sender that got no answer submits it again under the same `request`, and
only the first is applied. Whoever counts entries counts each `request` once, the one with the lowest index. Entries
without a `request` are all counted.

The expected number of reports is the number of the leader's clock entries in the window: a leader writes one per
reporting period, so it is counted from the log itself and needs no setting. A new leader writes one more at its
election, so a window with an election may expect one too many.
"""

import re

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

DEFAULT_WINDOW = "1 minute"
_WIDTH = re.compile(r"([1-9][0-9]{0,5}) *(second|minute|hour|day|week)s?")
_UNITS_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}


def window_ms(window: str) -> int:
    """The width of windows such as `5 minutes`; they begin at multiples of it since the epoch. Raises ValueError."""
    found = _WIDTH.fullmatch(window.strip().lower())
    if found is None:
        raise ValueError(f"{window!r} is no width of a window: say 30 seconds, 5 minutes, 1 hour, 1 day or the like")
    return int(found[1]) * _UNITS_MS[found[2]]


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
