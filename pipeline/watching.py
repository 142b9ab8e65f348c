"""The stateful query of a run: the log's reports through `pipeline.state` into `transitions` and the current state.

    source `farm` ─▶ watermark on log time ─▶ reports ─▶ one state machine a server ─▶ table `transitions`
                                                                                    └─▶ `watched` in current.sqlite

It reads the log by itself, with a checkpoint of its own (`<output>/checkpoint-watch`): state and timers live in that
checkpoint, and one that cannot be continued costs this query alone. The watermark is set on *all* entries, before
anything is filtered, so that the leader's clock entries move it on while a server is silent. A repeated batch gives the
same rows and overwrites its own directory; the row of the current state is the one with the greatest time.
"""

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline import current_state, sinks
from pipeline.schemas import TRANSITIONS
from pipeline.state import SILENT_AFTER_DEFAULT_MS, SILENT_AFTER_PERIODS, WATERMARK, Rules, seen_reports, transitions
from pipeline.table_files import BATCH, merge
from pipeline.weighing import PERIOD_MAX_MS, PERIOD_MIN_MS

TABLE = "transitions"
CHECKPOINT = "checkpoint-watch"


def watched(entries: DataFrame, rules: Rules) -> DataFrame:
    """The stream of changes out of the stream of entries."""
    marked = entries.where(f.col("log_time").isNotNull()).withWatermark("log_time", WATERMARK)
    return transitions(seen_reports(marked), rules)


def rules_for(output: Path) -> Rules:
    """The rules, with the silence that suits the farm's reporting period as far as an earlier batch has seen it."""
    period_ms = next((row["period_ms"] for row in current_state.read(output, "farm")), None)
    # Any client that can submit can write what looks like a clock entry; the farm accepts no other period either.
    if period_ms is None or not PERIOD_MIN_MS <= period_ms <= PERIOD_MAX_MS:
        return Rules(silent_after_ms=SILENT_AFTER_DEFAULT_MS)
    return Rules(silent_after_ms=period_ms * SILENT_AFTER_PERIODS)


def write_transitions(changes: DataFrame, batch_id: int, output: Path, *, keep_ms: int | None = None) -> None:
    """One batch of changes, into history and the current state."""
    table = output / TABLE
    changes.persist()
    try:
        at_ms = f.unix_millis("at").alias("order_ms")
        # Silence may be complete at the very moment of the report that ends it.
        in_order = changes.select(at_ms, *TRANSITIONS.names).orderBy("order_ms", f.col("index").asc_nulls_first())
        rows = [row.asDict() for row in in_order.collect()]
        # Nearly always nothing has changed. What an interrupted batch left is overwritten all the same.
        if rows or (table / f"{BATCH}{batch_id}").exists():
            sinks.write_history(changes, table, batch_id)
    finally:
        changes.unpersist()
    current_state.update(output, {"watched": rows})
    merge(table, TRANSITIONS, batch_id, keep_ms=keep_ms)
