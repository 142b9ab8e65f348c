"""How soon a silent member was noticed, and how the news of it spread, from the nodes' traces.

An observer's events about one member fall into episodes. An episode begins with `member-suspect` (or `member-dead`, if
the observer missed the suspicion) and ends with the next `member-alive` or `member-left` of the same observer:

    alive ──▶ suspect ──▶ alive                 `false-suspicion`: it was alive all the time
              suspect ──▶ dead ──▶ alive        `came-back`
              suspect ──▶ dead ──▶ left         `left`
              suspect ──▶ dead                  `dead`, so far
              suspect                           `suspect`, so far

An observer that restarts (`node-started`) has forgotten everything: its open episodes stay as they are. A member that
is killed and comes back before any observer called it dead counts as a false suspicion too, because it looks like one
from outside.

The distances within an episode are those of the observer's own clock. Its offset to log time is measured anew with each
batch of events, and badly for a node that has just started. An event without log time, such as one from a file, is
dated by the node's own clock.

Last contact is the last report of the member that the log holds from before the suspicion, of that day or the day
before; to search all of history for it would cost more with each week. It is the best estimate of when the member was
last alive that does not come from the detector itself; its resolution is the reporting period. The Raft id of a member
is taken from the events that carry `raftId`: `server-admitted`, and a node's own `founded`, `joined` and similar ones.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.schemas import LATEST_MS

WAVE_MS = 60_000
"""If reports of the same change to the same member are this far apart, they are about two changes."""


def detections(events: DataFrame, reports: DataFrame) -> DataFrame:
    """One row an episode (columns: `pipeline.schemas.DERIVED["detections"]`)."""
    by_observer = Window.partitionBy("node").orderBy("time_ms", "cursor")
    lives = _named_once(events).withColumn(
        "life", f.sum((f.col("kind") == "node-started").cast("int")).over(by_observer)
    )
    in_order = Window.partitionBy("node", "life", "member").orderBy("time_ms", "cursor")
    ended_before = f.sum(f.col("status").isin("alive", "left").cast("int")).over(
        in_order.rowsBetween(Window.unboundedPreceding, -1)
    )
    notices = f.when(f.col("status").isin("suspect", "dead"), f.col("time_ms"))
    episodes = (
        _about_members(lives)
        .withColumn("episode", f.coalesce(ended_before, f.lit(0)))
        .groupBy("node", "life", "member", "episode")
        .agg(
            f.max("member_id").alias("member_id"),
            f.min(notices).alias("noticed_ms"),
            f.min_by("log_time", notices).alias("noticed_at"),
            *(_first(status).alias(f"{status}_ms") for status in ("suspect", "dead", "alive", "left")),
        )
        .where(f.col("noticed_ms").isNotNull())
        .join(_raft_ids(events), "member", "left")
    )
    outcome = (
        f.when(f.col("left_ms").isNotNull(), "left")
        .when(f.col("alive_ms").isNotNull() & f.col("dead_ms").isNotNull(), "came-back")
        .when(f.col("alive_ms").isNotNull(), "false-suspicion")
        .when(f.col("dead_ms").isNotNull(), "dead")
        .otherwise("suspect")
    )
    silent_ms = _between(f.col("last_contact"), f.col("noticed_at"))
    return _with_last_contact(episodes, reports).select(
        f.col("node").alias("observer"),
        "member",
        "member_id",
        "server_id",
        "last_contact",
        _moment("suspect_ms").alias("suspect_at"),
        _moment("dead_ms").alias("dead_at"),
        _moment("alive_ms").alias("back_at"),
        (silent_ms + f.col("suspect_ms") - f.col("noticed_ms")).alias("contact_to_suspect_ms"),
        (silent_ms + f.col("dead_ms") - f.col("noticed_ms")).alias("contact_to_dead_ms"),
        (f.col("dead_ms") - f.col("suspect_ms")).alias("suspect_to_dead_ms"),
        (f.col("alive_ms") - f.col("dead_ms")).alias("dead_to_back_ms"),
        outcome.alias("outcome"),
    )


def convergence(events: DataFrame) -> DataFrame:
    """One row a change to a member: from the first node that saw it to the last (`DERIVED["convergence"]`).

    `nodes` counts the nodes with a trace. If `observers` is lower, some nodes did not see the change, or one is the
    member itself.
    """
    once = _named_once(events)
    nodes = once.agg(f.count_distinct("node").alias("nodes"))
    news = _about_members(once)
    in_order = Window.partitionBy("member", "status").orderBy("log_time", "node", "cursor")
    apart = _between(f.lag("log_time").over(in_order), f.col("log_time"))
    waves = news.withColumn("begins", f.coalesce(apart > WAVE_MS, f.lit(False)).cast("int")).withColumn(  # noqa: FBT003
        "wave", f.sum("begins").over(in_order)
    )
    return (
        waves.groupBy("member", "status", "wave")
        .agg(
            f.min("log_time").alias("first_at"),
            f.max("log_time").alias("last_at"),
            f.count_distinct("node").alias("observers"),
        )
        .crossJoin(f.broadcast(nodes))
        .select(
            "member",
            "status",
            "first_at",
            "last_at",
            "observers",
            "nodes",
            _between(f.col("first_at"), f.col("last_at")).alias("converged_ms"),
        )
    )


def _named_once(events: DataFrame) -> DataFrame:
    """Each event once, with a log time."""
    known = events.where(f.col("time_ms").between(0, LATEST_MS)).dropDuplicates(["node", "cursor", "time_ms"])
    return known.withColumn("log_time", f.coalesce("log_time", _milliseconds(f.col("time_ms"))))


def _about_members(events: DataFrame) -> DataFrame:
    """Events about another member, with `member`, `member_id` and `status` as columns."""
    return (
        events.where(f.col("kind").isin("member-alive", "member-suspect", "member-dead", "member-left"))
        .withColumn("status", f.substring("kind", len("member-") + 1, 16))
        .withColumn("member", f.get_json_object("data", "$.member"))
        .withColumn("member_id", f.get_json_object("data", "$.id"))
        .where(f.col("member").isNotNull())
    )


def _raft_ids(events: DataFrame) -> DataFrame:
    admitted = events.where(f.col("kind") == "server-admitted").select(
        f.get_json_object("data", "$.name").alias("member"), f.get_json_object("data", "$.server").alias("told")
    )
    own = events.select(f.col("node").alias("member"), f.get_json_object("data", "$.raftId").alias("told"))
    both = admitted.unionByName(own).withColumn("server_id", f.try_to_number(f.col("told"), f.lit("9999999999")))
    return (
        both.where(f.col("server_id").isNotNull())
        .groupBy("member")
        .agg(f.max("server_id").cast("long").alias("server_id"))
    )


def _with_last_contact(episodes: DataFrame, reports: DataFrame) -> DataFrame:
    contacts = reports.where(f.col("log_time").isNotNull()).select(
        f.col("server_id"), f.to_date("log_time").alias("day"), f.col("log_time").alias("reported_at")
    )
    keys = ["node", "life", "member", "episode"]
    noticed_on = f.to_date("noticed_at")
    sought = episodes.select(
        *keys, "server_id", "noticed_at", f.explode(f.array(noticed_on, f.date_sub(noticed_on, 1))).alias("day")
    )
    before = contacts.join(f.broadcast(sought), ["server_id", "day"]).where(f.col("reported_at") <= f.col("noticed_at"))
    last = before.groupBy(*keys).agg(f.max("reported_at").alias("last_contact"))
    return episodes.join(last, keys, "left")


def _milliseconds(value: Column) -> Column:
    """A timestamp from milliseconds since the epoch; NULL outside the years that can be shown."""
    return f.when(value.between(0, LATEST_MS), f.timestamp_millis(f.when(value.between(0, LATEST_MS), value)))


def _first(status: str) -> Column:
    return f.min(f.when(f.col("status") == status, f.col("time_ms")))


def _moment(own_clock: str) -> Column:
    """When it was in log time, by the time at which the observer noticed."""
    return _milliseconds(f.unix_millis("noticed_at") + f.col(own_clock) - f.col("noticed_ms"))


def _between(earlier: Column, later: Column) -> Column:
    return f.unix_millis(later) - f.unix_millis(earlier)
