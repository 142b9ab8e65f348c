"""The run loop. It writes each entry of the log into the tables exactly once, and shows the progress.

    source `farm_tables` ─▶ micro-batch N ──▶ `Lake.write_outcome` ─▶ commit of N in <output>/checkpoint
                                                    └─▶ the thread of derived tables (`pipeline/gold/deriving.py`)
    source `farm_events` ─▶ micro-batch N ──▶ table `events` ──────▶ commit of N in <output>/checkpoint-events

The engine is Spark if there is a session, otherwise this process (`pipeline/local`). If the output is a bucket, Spark
runs only the tasks of a batch. This process plans the batches, commits them and makes the derived tables. The engine
writes the range of batch N into the checkpoint before the batch, and records the end of the batch after it. After a
crash between the two records, the engine repeats the batch with the same number and the same range. The entry at an
index of the log never changes, so the repeated batch has the same rows. Each table stores the number of its last batch
(`pipeline/tables/delta.py`), and skips a batch that it has.

`LAYOUT` is the number of the format of checkpoint and tables; each change of the format raises it. A run continues a
directory with a layout in `CONTINUED`, and records `LAYOUT` there, so earlier versions refuse the directory. A run
refuses any other layout with the remedy: read the log again into a new directory.
"""

import json
import shlex
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipeline import ignore
from pipeline.alerts.alerting import Alerting
from pipeline.gold.deriving import REST_TIMES, REST_TIMES_LOCAL, Deriving, running
from pipeline.gold.tables import DEFAULT_WINDOW, SPECS, WINDOWS_SPEC, Gold, window_ms
from pipeline.lake import EventsTable, Lake, record_earlier_events
from pipeline.local.checkpoint import CHECKPOINT, EVENTS_CHECKPOINT, last_number
from pipeline.local.query import LocalQuery, WriteBatch
from pipeline.output.buckets import Output
from pipeline.output.documents import Document
from pipeline.schemas import EVENTS as EVENTS_SCHEMA
from pipeline.serve.metrics import RunMetrics
from pipeline.source.events import FarmEventsDataSource
from pipeline.source.farm import CONTINUE, DEFAULT_ENTRIES_PER_BATCH
from pipeline.source.farms import Unread
from pipeline.source.kafka import (
    MOST_ENTRIES,
    MOST_OFFSETS,
    SERVERS,
    await_same_farm,
    kafka_stream,
    refuse_other_farm,
    refuse_unknown_topic,
)
from pipeline.source.log_client import FarmLogError, FarmSilentError, shortened
from pipeline.source.offsets import entries_between
from pipeline.source.shares import SHARE_LEAST
from pipeline.spark.failures import is_lost_start
from pipeline.spark.interrupt import Interrupt, deferred
from pipeline.spark.lost_starts import GIVE_UP_S, LostStarts, RetryPolicy
from pipeline.spark.side_by_side import QueryState, RunningQuery, SideBySide
from pipeline.tables.batch_notes import BatchNotes, Continuity
from pipeline.tables.delta import stored_version
from pipeline.tables.specs import BASE_SPECS, EVENTS, LOG, RANGES_SPEC
from pipeline.tables.tasks import CHECKPOINT as CHECKPOINT_OPTION
from pipeline.tables.tasks import (
    FARMS,
    OUTCOME,
    RECENT,
    Outcome,
    found_in_log,
    found_in_rows,
    outcome_of,
    read_in_tasks,
    tables_source,
    work,
)

LAYOUT = 4
"""The layout with offsets in shards and the state of farms in several files."""
CONTINUED = frozenset({3})
"""Earlier layouts that a run continues: the offset is whole, and the state of all farms is in one file."""
LAYOUT_FILE = "layout.json"
RANGE_FILE = "range.json"
TABLES_OF: dict[str, tuple[str, ...]] = {
    CHECKPOINT: (*BASE_SPECS, RANGES_SPEC.name, "transitions", "watch_state", *SPECS, WINDOWS_SPEC.name),
    EVENTS_CHECKPOINT: (EVENTS,),
}
"""The tables whose batches each checkpoint numbers."""
DERIVED_TABLES = "the derived tables"
PROGRESS_SECONDS = 1
BESIDE_SECONDS = 5
TOPIC_FULL = 0.9
"""A batch of a topic counts as full if it has at least this share of the maximum number of offsets."""
NOTED_WINDOWS_MAX = 1_000_000
"""The limit of recorded windows of log time with new entries, about 50 MB. At this limit, a run with an end makes the
tables by window before it continues to read.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a running query, for a line on the screen."""

    batch: int
    entries_per_s: float
    tasks_done: int
    tasks: int
    message: str
    read_through: int = 0
    """The index of the last entry read, summed over all farms; 0 if not known yet."""
    newest: int = 0
    """The index of the last existing entry, summed over all farms."""
    farms: frozenset[str] = frozenset()
    """The clusters with a known number of entries; empty with many farms."""
    removed: frozenset[str] | None = None
    """With many farms: the clusters that have left the file of farms."""
    problems: Mapping[str, str] | None = None
    """The problems of unread farms, by name; None if the query has not reported yet."""
    unread: Unread = field(default_factory=Unread)
    """Farms without a known state."""


_ALL_KNOWN = Unread()


class ProblemReports:
    """Reports each farm's problem once, and its end once; a report has a limited number of lines."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._known: Mapping[str, str] = {}

    def take(self, problems: Mapping[str, str], unread: Unread = _ALL_KNOWN) -> None:
        """Report changes. `problems`: the present problems, by farm; `unread`: the farms without a known state."""
        new_problems = sorted(problems.keys() - self._known.keys())
        found = [f"{name} is not read, but the other farms are: {problems[name]}" for name in new_problems]
        # After a restart of the query or an edit of the file, a farm's problem counts as over only after a reply.
        kept = {name: self._known[name] for name in unread.waiting if name in self._known}
        unlisted = frozenset(unread.unlisted)
        ended = [
            f"{name} is not listed any more" if name in unlisted else f"{name} is read again"
            for name in sorted(self._known.keys() - problems.keys() - kept.keys())
        ]
        for line in (*shortened(found), *shortened(ended)):
            self._notify(line)
        self._known = {**problems, **kept}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The output, the source (options of the source `farm`), and the mode of a run."""

    output: Output
    source: dict[str, str]
    window: str = DEFAULT_WINDOW
    trigger_seconds: int = 5
    progress: Callable[[Progress], None] = ignore
    judge: Callable[[pa.Table | None], None] | None = None
    """A callback for the newest rows of each batch: feedback to the farm (`pipeline/feedback/submitting.py`)."""
    events: dict[str, str] | None = None
    """Options of the source `farm_events`; without them the nodes' traces are not read."""
    watch: bool = False
    """True to watch the servers (`pipeline/watch`)."""
    keep_ms: int | None = None
    """The length of kept history, in log time; None keeps all."""
    notify: Callable[[str], None] = ignore
    """A callback for messages to the operator during the run."""
    metrics: RunMetrics | None = None
    """The counters of batches."""
    derived: bool = True
    """True if a run with an end makes the tables by window. A run without an end always makes them."""
    alerting: Alerting | None = None
    """The alerting; it is notified of each batch in the tables."""
    interrupt: Interrupt = field(default_factory=Interrupt)
    """The end of the run by Ctrl-C or an error."""

    def retry_policy(self, give_up_s: float | None) -> RetryPolicy:
        """Return the reaction to lost starts of Spark's Python processes."""
        count = ignore if self.metrics is None else self.metrics.start_lost
        return RetryPolicy(notify=self.notify, count=count, give_up_s=give_up_s)

    @property
    def is_in_bucket(self) -> bool:
        """True if the output is a bucket or in HDFS.

        Then this process, not Spark, uses the checkpoint and makes the derived tables: Spark's writes lack conditions.
        """
        return not isinstance(self.output, Path)

    @property
    def is_part(self) -> bool:
        """True if the log is read up to a fixed end."""
        return "end" in self.source


def run_once(session: SparkSession | None, settings: RunSettings) -> None:
    """Read all committed entries that are not read yet, and then bring the derived tables up to them.

    Raises FarmLogError when the log cannot be read.
    """
    prepare(settings.output, part=settings.is_part)
    if settings.events is not None:
        options = settings.events
        await_end(session, settings, lambda: start_events(session, settings, options, available_now=True))
    gold, apart = gold_of(settings), None if settings.is_in_bucket else session

    def refresh(batch: int) -> None:
        # A refresh also reads the rows around its windows, so refreshes are rare.
        if settings.derived and gold.noted_windows >= NOTED_WINDOWS_MAX:
            gold.refresh(batch, apart)

    await_end(
        session,
        settings,
        lambda: start_query(session, settings, available_now=True, after_batch=refresh, gold=gold),
    )
    if settings.derived:
        lost_starts = LostStarts(DERIVED_TABLES, settings.retry_policy(GIVE_UP_S))
        while not _refreshed(settings.output, gold, apart, lost_starts):
            pass


def _refreshed(output: Output, gold: Gold, session: SparkSession | None, lost_starts: LostStarts) -> bool:
    """Bring the derived tables up to the log. After a lost start of Spark's Python process, pause and return False."""
    try:
        gold.refresh(gold.noted_through(LOG), session)
        BatchNotes(output, LOG).end_derived(gold.batches)
    except (PySparkException, Py4JError) as error:
        if not is_lost_start(str(error)):
            raise
        time.sleep(lost_starts.pause_s(error))
        return False
    return True


def run_forever(session: SparkSession | None, settings: RunSettings, show: Callable[[], None]) -> None:
    """Follow the log until the process is stopped; after batches, bring the derived tables up to the log and show them.

    Raises FarmLogError when the log cannot be read any more.
    """
    prepare(settings.output, part=settings.is_part)
    apart = None if session is None or settings.is_in_bucket else session.newSession()
    gold = gold_of(settings)

    def make_tables(batch: int) -> None:
        gold.refresh(batch, apart)
        show()

    rest_times = REST_TIMES_LOCAL if session is None else REST_TIMES
    lost_starts = LostStarts(DERIVED_TABLES, settings.retry_policy(None))
    deriving = Deriving(make_tables, lost_starts, rest_times=rest_times)

    def begin() -> RunningQuery:
        return start_query(session, settings, available_now=False, after_batch=deriving.batch_done, gold=gold)

    kept = [QueryState("the tables", begin)]
    if settings.events is not None:
        options = settings.events
        kept.append(QueryState("the events", lambda: start_events(session, settings, options, available_now=False)))
    with running(deriving, session):
        _follow(session, settings, kept, settings.retry_policy(None), deriving.check)


def prepare(output: Output, *, part: bool = False) -> None:
    """Create the output directory; raise FarmLogError when it cannot be continued.

    `part`: the directory is for a part of the log with a fixed end.
    """
    if not part and (output / RANGE_FILE).exists():
        raise FarmLogError(
            f"{output} holds a part of the log, which `garlicfarm pipeline backfill` made; choose another output"
            " directory"
        )
    output.mkdir(parents=True, exist_ok=True)
    claim_layout(output)
    refuse_orphaned(output)
    record_earlier_events(output, last_number(output / EVENTS_CHECKPOINT / "commits"))


def gold_of(settings: RunSettings) -> Gold:
    """Return the derived tables of the output directory."""
    return Gold(settings.output, window_ms(settings.window), settings.keep_ms)


def start_query(
    session: SparkSession | None,
    settings: RunSettings,
    *,
    available_now: bool,
    after_batch: Callable[[int], None] | None = None,
    gold: Gold | None = None,
) -> RunningQuery:
    """Start the query that writes the log into the tables."""
    lake = Lake(
        settings.output,
        window_ms(settings.window),
        watch=settings.watch,
        feedback=settings.judge is not None,
        keep_ms=settings.keep_ms,
        note=ignore if gold is None else gold.note,
        continuity=Continuity.LATER if SERVERS in settings.source else Continuity.NEXT,
    )
    source = {
        **settings.source,
        CONTINUE: json.dumps(lake.first_entries),
        CHECKPOINT_OPTION: str(settings.output / CHECKPOINT),
    }

    def write(results: Iterable[pa.RecordBatch], number: int) -> None:
        began, batch_id = time.monotonic(), lake.first_batch + number
        outcome = outcome_of(results)
        lake.write_outcome(outcome, batch_id)
        if settings.metrics is not None:
            count_batch(outcome, time.monotonic() - began, settings.metrics)
        if settings.alerting is not None:
            settings.alerting.batch_done(
                newest_of(outcome),
                is_full=may_have_more(outcome, settings.source),
                others_wait=may_leave_farms_waiting(outcome),
            )
        if settings.judge is not None:
            settings.judge(outcome.rows.get(RECENT))
        if after_batch is not None:
            after_batch(batch_id)

    if session is None or settings.is_in_bucket:
        farms, trigger_s = tables_source(source, lake.plan), None if available_now else settings.trigger_seconds
        checkpoint = settings.output / CHECKPOINT
        if session is not None:
            in_tasks = farms.streamReader(OUTCOME)
            # The tag distinguishes the jobs of this query from a notebook's own jobs in the same context.
            tag = f"garlicfarm-{uuid.uuid4()}"
            read = partial(read_in_tasks, session, tag, in_tasks)
            cancel = partial(session.sparkContext.cancelJobsWithTag, tag)
            return LocalQuery(
                in_tasks, write, checkpoint, trigger_s, read=read, cancel=cancel, notify=settings.notify
            ).start()

        def write_entries(entries: Iterable[pa.RecordBatch], number: int) -> None:
            # One task for the whole batch: parts of it, each with a few rows, would take longer.
            write(work(lake.plan, entries), number)

        # A bucket charges for each request, so it does not get previews.
        shown = None if settings.is_in_bucket else lake.show_newest
        return LocalQuery(farms.entries_reader(), write_entries, checkpoint, trigger_s, shown).start()
    if SERVERS in settings.source:
        farm = refuse_other_farm(session, settings.source, lake.farms, settings.interrupt.check)
        refuse_unknown_topic(session, settings.source, settings.interrupt.check)
        entries = kafka_stream(session, settings.source, farm, lake.first_entries.get(farm))
        found, writes = found_in_rows(entries, lake.plan), _while_farm(session, settings, farm, write)
    else:
        found, writes = found_in_log(session, source, lake.plan), write
    return _started(found, writes, settings, CHECKPOINT, available_now=available_now)


def _while_farm(session: SparkSession, settings: RunSettings, farm: str, write: WriteBatch) -> WriteBatch:
    """Return `write` that refuses a batch if the topic no longer belongs to this farm, such as after a recovery."""

    def checked(results: Iterable[pa.RecordBatch], number: int) -> None:
        try:
            # After the last result, the tasks have read all records.
            found = [*results]
        except Exception:
            # A topic that now belongs to another cluster may be the cause, for example of missing offsets.
            with suppress(FarmSilentError):
                refuse_other_farm(session, settings.source, {farm}, settings.interrupt.check)
            raise
        await_same_farm(session, settings.source, farm, settings.notify, settings.interrupt.check)
        write(found, number)

    return checked


def entries_in(outcome: Outcome) -> int:
    """Return the number of entries in a batch."""
    return 0 if FARMS not in outcome.rows else sum(outcome.rows[FARMS].column("entries").to_pylist())


def may_have_more(outcome: Outcome, source: Mapping[str, str]) -> bool:
    """Return True if a batch has the maximum size, so that more entries may follow."""
    most = int(source.get(MOST_ENTRIES, DEFAULT_ENTRIES_PER_BATCH))
    if SERVERS not in source:
        return entries_in(outcome) >= most
    # A topic lacks records for some indexes, but the connector counts these offsets. Missing records at the ends of a
    # batch are not visible here.
    most = int(source.get(MOST_OFFSETS, most))
    farms = outcome.rows[FARMS].to_pylist() if FARMS in outcome.rows else []
    spanned: int = sum(each["index"] - each["first_index"] + 1 for each in farms if each["first_index"] is not None)
    return spanned >= most * TOPIC_FULL


def may_leave_farms_waiting(outcome: Outcome) -> bool:
    """Return True if the farms of a full batch may be too many for one batch, so that others wait for their turn."""
    return len(newest_of(outcome)) * SHARE_LEAST >= entries_in(outcome)


def count_batch(outcome: Outcome, seconds: float, metrics: RunMetrics) -> None:
    """Count a batch in the metrics."""
    metrics.batch_done(seconds, entries_in(outcome), outcome.count("quarantine"), newest_of(outcome))


def newest_of(outcome: Outcome) -> dict[str, datetime]:
    """Return the log time of the newest entry of each farm in a batch."""
    rows = outcome.rows[FARMS].sort_by("index").to_pylist() if FARMS in outcome.rows else []
    return {each["farm"]: each["log_time"] for each in rows if each["log_time"] is not None}


def start_events(
    session: SparkSession | None, settings: RunSettings, options: dict[str, str], *, available_now: bool
) -> RunningQuery:
    """Start the query that writes the traces of the nodes into the table `events`."""
    write = EventsTable(settings.output, settings.keep_ms).write_batch
    if session is None or settings.is_in_bucket:
        reader = FarmEventsDataSource(options).streamReader(EVENTS_SCHEMA)
        trigger_s = None if available_now else _trigger_s(settings, EVENTS_CHECKPOINT)
        return LocalQuery(reader, write, settings.output / EVENTS_CHECKPOINT, trigger_s).start()
    stream = session.readStream.format("farm_events").options(**options).load()
    return _started(stream, write, settings, EVENTS_CHECKPOINT, available_now=available_now)


def _started(
    stream: DataFrame,
    write: WriteBatch,
    settings: RunSettings,
    checkpoint: str,
    *,
    available_now: bool,
) -> RunningQuery:
    def write_rows(rows: DataFrame, number: int) -> None:
        write(_collected(rows), number)

    writer = stream.writeStream.foreachBatch(write_rows).option("checkpointLocation", str(settings.output / checkpoint))
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{_trigger_s(settings, checkpoint)} seconds").start()


def _collected(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Run the tasks of a batch at the first request for a row."""
    yield from rows.toArrow().to_batches()


def _trigger_s(settings: RunSettings, checkpoint: str) -> int:
    # A user may be waiting for the rows of the log. So the other queries run less often, and leave the processors to
    # this one.
    return settings.trigger_seconds if checkpoint == CHECKPOINT else max(settings.trigger_seconds, BESIDE_SECONDS)


def refuse_orphaned(output: Output) -> None:
    """Raise FarmLogError if tables lack their checkpoint: they would skip new batches, which get the same numbers."""
    for checkpoint, tables in TABLES_OF.items():
        if (output / checkpoint).exists():
            continue
        if found := [name for name in tables if stored_version(output / name) > 0]:
            raise FarmLogError(
                f"{output} has tables ({', '.join(found)}) without their {checkpoint}: run `garlicfarm pipeline repair"
                f" --output {shlex.quote(str(output))}`, or choose another output directory"
            )


def claim_layout(output: Output) -> None:
    """Record the layout of the directory; raise FarmLogError when a run cannot continue it."""
    note = Document(output / LAYOUT_FILE)
    content = note.read()
    if layout_of(output, content) != LAYOUT or content is None:
        _write(note, {"layout": LAYOUT})


def layout_of(output: Output, content: bytes | None) -> int:
    """Return the layout of the directory, from its record; raise FarmLogError if this version cannot use it."""
    try:
        # The first version did not write this note; its layout has the number 1.
        without = 1 if (output / CHECKPOINT).exists() else LAYOUT
        found = without if content is None else int(json.loads(content)["layout"])
    except (ValueError, KeyError, TypeError) as error:
        raise FarmLogError(
            f"{output / LAYOUT_FILE} is damaged: it should be {json.dumps({'layout': LAYOUT})}; restore it"
        ) from error
    if found not in {LAYOUT, *CONTINUED}:
        raise FarmLogError(
            f"{output} has the layout {found} and this version writes {LAYOUT}: its checkpoint cannot be continued."
            " Start again with a new output directory: `run` reads the log from its start, `backfill` a part of it"
            " (`garlicfarm help how-to/pipeline 'Upgrades'`)",
        )
    return found


def claim_range(output: Output, first: int, last: int) -> None:
    """Record the directory's part of the log; raise FarmLogError when it holds another part, or all of it."""
    note, part = Document(output / RANGE_FILE), {"first": first, "last": last}
    content = note.read()
    if content is None and not (output / "checkpoint").exists():
        output.mkdir(parents=True, exist_ok=True)
        _write(note, part)
        return
    try:
        found = json.loads(content or b"")
    except ValueError:
        found = None
    if found != part:
        is_part = isinstance(found, dict) and found.keys() == part.keys()
        tables = f"entries {found['first']} to {found['last']}" if is_part else "the tables of another run"
        raise FarmLogError(f"{output} contains {tables}; choose another output directory")


def _write(note: Document, content: dict[str, int]) -> None:
    note.write(json.dumps(content).encode() + b"\n")


def await_end(session: SparkSession | None, settings: RunSettings, begin: Callable[[], RunningQuery]) -> None:
    """Begin a query and wait for its end, with progress shown; raise FarmLogError with the farm's own error text."""
    _follow(session, settings, [QueryState("the run", begin)], settings.retry_policy(GIVE_UP_S))


def _follow(
    session: SparkSession | None,
    settings: RunSettings,
    kept: list[QueryState],
    retry_policy: RetryPolicy,
    check: Callable[[], None] = ignore,
) -> None:
    """Run until all queries have ended, or one of them has failed. An error of `check` also ends all queries."""
    side_by_side, problems = SideBySide(kept, retry_policy), ProblemReports(settings.notify)
    with deferred(settings.interrupt) as interrupt:
        try:
            while side_by_side.step():
                side_by_side.wait(PROGRESS_SECONDS)
                if side_by_side.running is not None:
                    progress = _progress(session, side_by_side.running)
                    settings.progress(progress)
                    if settings.metrics is not None:
                        settings.metrics.progressed(
                            progress.read_through, progress.newest, progress.farms, progress.removed
                        )
                    if progress.problems is not None:
                        problems.take(progress.problems, progress.unread)
                check()
                interrupt.check()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                settings.notify("ending: the running batches are canceled, and the next run repeats them")
            # A batch that waits for a broker must not delay `stop`.
            interrupt.is_ending = True
            raise
        finally:
            side_by_side.stop()
    # Check again: Ctrl-C may have been pressed after the loop's last check, and more work follows.
    interrupt.check()


def _progress(session: SparkSession | None, query: RunningQuery) -> Progress:
    tracker = None if session is None else session.sparkContext.statusTracker()
    stages = [] if tracker is None else [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    last = query.lastProgress
    read_through, newest, farms, problems = (0, 0, frozenset[str](), None) if last is None else places(last)
    return Progress(
        batch=-1 if last is None else int(last["batchId"]),
        entries_per_s=0.0 if last is None else _entries_per_s(last),
        tasks_done=sum(stage.numCompletedTasks for stage in stages if stage is not None),
        tasks=sum(stage.numTasks for stage in stages if stage is not None),
        message=str(query.status["message"]),
        read_through=read_through,
        newest=newest,
        farms=farms,
        removed=None if last is None else removed_in(last),
        problems=problems,
        unread=Unread() if last is None else unread_in(last),
    )


def _entries_per_s(progress: Any) -> float:
    """Return the speed of the last batch. Spark counts the tasks' rows, which are not entries (`found_in_log`)."""
    (source,) = progress["sources"]
    start, end = (json.loads(source[name] or "null") or {} for name in ("startOffset", "endOffset"))
    if "farms" not in end and "shards" not in end:
        return float(progress["processedRowsPerSecond"] or 0.0)
    return entries_between(start, end) * 1000 / max(1, int(progress["batchDuration"]))


def unread_in(progress: Any) -> Unread:
    """Return the farms that a query has not read yet, from its report."""
    (source,) = progress["sources"]
    latest = json.loads(source["latestOffset"] or "null") or {}
    return Unread(tuple(latest.get("waiting", ())), tuple(latest.get("unlisted", ())))


def removed_in(progress: Any) -> frozenset[str] | None:
    """Return the clusters that have left the file of many farms; None if the report names the remaining clusters."""
    (source,) = progress["sources"]
    latest = json.loads(source["latestOffset"] or "null") or {}
    return frozenset(latest["removed"]) if "removed" in latest else None


def places(progress: Any) -> tuple[int, int, frozenset[str], dict[str, str]]:
    """Return the numbers of read and existing entries in all logs, the farms, and the problem of each unread farm.

    For a query that does not read entries, both numbers are 0, and the rest is empty. Unless all lengths are unknown,
    both numbers exclude farms of unknown length.
    """
    (source,) = progress["sources"]
    end, latest = (json.loads(source[name] or "null") or {} for name in ("endOffset", "latestOffset"))
    problems = latest.get("problems", {})
    if (totals := latest.get("totals")) is not None:
        return totals["read"], totals["newest"], frozenset(), problems
    read, newest = end.get("farms", {}), latest.get("farms", {})
    counted = [next_entry - 1 for cluster, next_entry in read.items() if cluster in newest or not newest]
    there = sum(next_entry - 1 for next_entry in newest.values())
    return sum(counted), there, frozenset(newest), problems
