"""What the tables by window share: the window, what counts as one report, and the periods in which one was due.

An entry may be in the log several times: a sender that got no answer submits it again under the same `request`, and
only the first is applied. Each `request` is counted once, by the entry with the lowest index. Entries without a
`request`, or with a text in it that names no submission (`docs/reference/application-json.md`), are all counted, as the
farm applies them all.

A leader writes a clock entry per reporting period, and nothing else moves log time. So a moment of log time is a
reporting period: the log itself shows which ones there were, and no setting is needed. Servers report a little sooner
than they must, and once more when a leaf falls ill. So periods are counted and not reports: an additional report does
not make up for a missing one. A period is *whole* when the leader that began it also began the next one. A period that
an election cut short, or that is not over yet, counts against no server.
"""

import re

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

DEFAULT_WINDOW = "1 minute"
_WIDTH = re.compile(r"([1-9][0-9]{0,5}) *(second|minute|hour|day|week)s?")
_UNITS_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_WIDEST_MS = 366 * _UNITS_MS["day"]
REQUEST = "(?s)^.{1,64}-[0-9]{1,19}-(?=[0-9]*[1-9])[0-9]{1,19}$"
"""`CLIENT-BORN-SEQUENCE`, the sequence from 1 on."""


def window_ms(window: str) -> int:
    """The width of windows such as `5 minutes`; they begin at multiples of it since the epoch. Raises ValueError."""
    found = _WIDTH.fullmatch(window.strip().lower())
    if found is None:
        raise ValueError(f"{window!r} is no width of a window: say 30 seconds, 5 minutes, 1 hour, 1 day or the like")
    width_ms = int(found[1]) * _UNITS_MS[found[2]]
    if width_ms > _WIDEST_MS:
        raise ValueError(f"{window!r} is wider than a year: name a shorter window")
    return width_ms


def span(window: str) -> Column:
    """The window of log time that a row is in."""
    # Spark itself does not know all the units that `window_ms` does.
    return f.window("log_time", f"{window_ms(window)} milliseconds")


def first_of_each_request(entries: DataFrame, *also_by: str) -> DataFrame:
    """Without the repetitions of a submission. `also_by` tells the rows of one entry apart."""
    names_one = f.coalesce(f.col("request").rlike(REQUEST), f.lit(False))  # noqa: FBT003 - a column's value
    order = Window.partitionBy("request", *also_by).orderBy("index")
    named = entries.where(names_one)
    first = named.withColumn("_place", f.row_number().over(order)).where(f.col("_place") == 1).drop("_place")
    return first.unionByName(entries.where(~names_one))


def whole_periods(clocks: DataFrame, window: str) -> DataFrame:
    """`span` and `periods`: the whole reporting periods that began in each window, by their log time."""
    moments = clocks.where(f.col("log_time").isNotNull()).groupBy("log_time").agg(f.max("term").alias("term"))
    whole = f.lead("term").over(Window.orderBy("log_time")) == f.col("term")
    return (
        moments.withColumn("whole", whole)
        .where("whole")
        .groupBy(span(window).alias("span"))
        .agg(f.collect_set("log_time").alias("periods"))
    )


def availability(heard: Column, periods: Column) -> Column:
    """Share of the reporting periods in which a report was committed: `heard` are those in which one was."""
    missed = f.coalesce(f.size(f.array_except(periods, heard)), f.lit(0))
    return f.size(heard) / (f.size(heard) + f.greatest(missed, f.lit(0)))


def share(part: Column, whole: Column) -> Column:
    """`part / whole`, NULL where either is unknown or the whole is 0."""
    return part / f.nullif(whole, f.lit(0))
