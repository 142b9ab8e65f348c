"""The run loop: the log through Spark into the sinks, exactly once, with progress shown while a batch runs.

    source `farm` ────────▶ micro-batch N ──▶ sinks.write_batch ──▶ commit of N in <output>/checkpoint
                                                    └─▶ the thread of derived tables (`pipeline/deriving.py`)
    source `farm` ────────▶ micro-batch N ──▶ state a server ──────▶ commit of N in <output>/checkpoint-watch
    source `farm_events` ─▶ micro-batch N ──▶ table `events` ─────▶ commit of N in <output>/checkpoint-events

Spark writes the range of batch N into the checkpoint before it runs and notes its end afterwards. A crash in between
repeats the batch with the same number and the same range; indexes of the log never change their entry, so the rows are
the same ones, and the sinks overwrite what a repeated batch wrote. That is all that exactly-once rests on.

A stream's checkpoint holds for the operators of the version that wrote it. `LAYOUT` is raised when they change; an
output directory of another layout is refused with the way out: the log is read again into a new directory.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline import daily, sinks, transforms, watching
from pipeline.deriving import Deriving, running
from pipeline.log_client import FarmLogError
from pipeline.table_files import reading

LAYOUT = 2
LAYOUT_FILE = "layout.json"
RANGE_FILE = "range.json"
CHECKPOINT, EVENTS_CHECKPOINT = "checkpoint", "checkpoint-events"
EVENTS_TABLE = sinks.EVENTS
PROGRESS_SECONDS = 1
DERIVE_SECONDS = 60
BESIDE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running query is, for a line on the screen."""

    batch: int
    entries_per_s: float
    tasks_done: int
    tasks: int
    message: str


def _show_nothing(_: Progress) -> None:
    """The default: no line."""


def _check_nothing() -> None:
    """The default: nothing else can fail."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Where to, where from (options of the source `farm`), and how."""

    output: Path
    source: dict[str, str]
    window: str = transforms.DEFAULT_WINDOW
    trigger_seconds: int = 5
    progress: Callable[[Progress], None] = _show_nothing
    judge: sinks.Judge = sinks.judge_nothing
    """Gets the entries of each batch: feedback to the farm (`pipeline/feedback.py`)."""
    events: dict[str, str] | None = None
    """Options of the source `farm_events`; without them the nodes' traces are not read."""
    watch: bool = False
    """Whether the servers are watched by the stateful query."""
    keep_ms: int | None = None
    """How much history is kept, in log time; None keeps all."""


def run_once(session: SparkSession, settings: RunSettings) -> DataFrame:
    """Reads all that is committed and not yet read, and returns the health table.

    Raises FarmLogError when the log cannot be read.
    """
    prepare(settings.output)
    if settings.events is not None:
        await_end(session, settings, start_events(session, settings, settings.events, available_now=True))
    await_end(session, settings, start_query(farm_stream(session, settings), settings, available_now=True))
    if settings.watch:
        await_end(session, settings, start_watch(session, settings, available_now=True))
    sinks.refresh(session, settings.output, settings.window)
    return daily.health_of(session, settings.output)


def run_forever(session: SparkSession, settings: RunSettings, show: Callable[[], None]) -> None:
    """Follows the log until the process is stopped; after batches derived tables are brought up to it, and shown.

    Raises FarmLogError when the log cannot be read any more.
    """
    apart = session.newSession()
    derived_at = -math.inf

    def make_tables(through: int) -> None:
        nonlocal derived_at
        with reading():
            sinks.refresh(apart, settings.output, settings.window, through)
            show()
            if time.monotonic() - derived_at >= DERIVE_SECONDS:
                sinks.derive(apart, settings.output, settings.window, through)
                derived_at = time.monotonic()

    deriving = Deriving(make_tables)
    prepare(settings.output)
    beside: tuple[StreamingQuery, ...] = ()
    if settings.events is not None:
        beside += (start_events(session, settings, settings.events, available_now=False),)
    if settings.watch:
        beside += (start_watch(session, settings, available_now=False),)
    try:
        with running(deriving, session):
            stream = farm_stream(session, settings)
            query = start_query(stream, settings, available_now=False, after_batch=deriving.batch_done)
            await_end(session, settings, query, beside, deriving.check)
    finally:
        for each in beside:
            each.stop()


def prepare(output: Path) -> None:
    """Makes the output directory; raises FarmLogError when it cannot be continued."""
    output.mkdir(parents=True, exist_ok=True)
    sinks.refuse_orphaned(output)
    claim_layout(output)


def farm_stream(session: SparkSession, settings: RunSettings) -> DataFrame:
    """The log as an unbounded table."""
    return session.readStream.format("farm").options(**settings.source).load()


def start_query(
    stream: DataFrame,
    settings: RunSettings,
    *,
    available_now: bool,
    after_batch: Callable[[int], None] | None = None,
) -> StreamingQuery:
    """Starts what writes the rows of `stream`, which has the columns of the source `farm`, into the tables."""

    def write(batch: DataFrame, batch_id: int) -> None:
        sinks.write_batch(batch, batch_id, settings.output, keep_ms=settings.keep_ms, judge=settings.judge)
        if after_batch is not None:
            after_batch(batch_id)

    return _started(stream, write, settings, CHECKPOINT, available_now=available_now)


def start_events(
    session: SparkSession, settings: RunSettings, options: dict[str, str], *, available_now: bool
) -> StreamingQuery:
    """Starts what writes the traces of the nodes into the table `events`."""

    def write(batch: DataFrame, batch_id: int) -> None:
        sinks.write_events(batch, batch_id, settings.output, keep_ms=settings.keep_ms)

    stream = session.readStream.format("farm_events").options(**options).load()
    return _started(stream, write, settings, EVENTS_CHECKPOINT, available_now=available_now)


def start_watch(session: SparkSession, settings: RunSettings, *, available_now: bool) -> StreamingQuery:
    """Starts what watches every server: sessions, health with hysteresis, silence."""

    def write(batch: DataFrame, batch_id: int) -> None:
        watching.write_transitions(batch, batch_id, settings.output, keep_ms=settings.keep_ms)

    stream = watching.watched(farm_stream(session, settings), watching.rules_for(settings.output))
    return _started(stream, write, settings, watching.CHECKPOINT, available_now=available_now)


def _started(
    stream: DataFrame,
    write: Callable[[DataFrame, int], None],
    settings: RunSettings,
    checkpoint: str,
    *,
    available_now: bool,
) -> StreamingQuery:
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(settings.output / checkpoint))
    if available_now:
        return writer.trigger(availableNow=True).start()
    # For the rows of the log somebody may be waiting; the queries beside it leave it the processors for a while.
    seconds = settings.trigger_seconds if checkpoint == CHECKPOINT else max(settings.trigger_seconds, BESIDE_SECONDS)
    return writer.trigger(processingTime=f"{seconds} seconds").start()


def claim_layout(output: Path) -> None:
    """Notes which layout the directory has; raises FarmLogError when it has another one."""
    note = output / LAYOUT_FILE
    try:
        found = json.loads(note.read_text(encoding="utf-8"))["layout"]
    except FileNotFoundError:
        # The first version wrote no note; its layout is number 1.
        found = 1 if (output / "checkpoint").exists() else LAYOUT
        _note(note, {"layout": found})
    except (ValueError, KeyError, TypeError) as error:
        raise FarmLogError(f"{note} is damaged: it should be {json.dumps({'layout': LAYOUT})}; restore it") from error
    if found != LAYOUT:
        raise FarmLogError(
            f"{output} has the layout {found} and this version writes {LAYOUT}: its checkpoint cannot be continued."
            " Start again with a new output directory; the log is read from its start (docs/pipeline.md, 'Upgrades')",
        )


def claim_range(output: Path, first: int, last: int) -> None:
    """Notes which part of the log the directory is of; raises FarmLogError when it is of another, or of all of it."""
    note, wanted = output / RANGE_FILE, {"first": first, "last": last}
    if not note.exists() and not (output / "checkpoint").exists():
        output.mkdir(parents=True, exist_ok=True)
        _note(note, wanted)
        return
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found != wanted:
        raise FarmLogError(f"{output} holds another part of the log ({found}); choose another output directory")


def _note(path: Path, content: dict[str, int]) -> None:
    """Written aside and renamed: a run that is killed here leaves no half of it."""
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(json.dumps(content) + "\n", encoding="utf-8")
    aside.rename(path)


def await_end(
    session: SparkSession,
    settings: RunSettings,
    query: StreamingQuery,
    beside: tuple[StreamingQuery, ...] = (),
    check: Callable[[], None] = _check_nothing,
) -> None:
    """Waits for the end of a query, with progress shown; raises FarmLogError with the farm's own words.

    The end of a query `beside` it is the end of all, since it can only be a failure. What `check` raises ends all too.
    """
    try:
        while not query.awaitTermination(PROGRESS_SECONDS):
            settings.progress(_progress(session, query))
            check()
            for each in beside:
                if not each.isActive:
                    each.awaitTermination()
    except StreamingQueryException as error:
        raise FarmLogError(_reason(str(error))) from error
    finally:
        query.stop()


def _progress(session: SparkSession, query: StreamingQuery) -> Progress:
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    last = query.lastProgress
    return Progress(
        batch=-1 if last is None else int(last["batchId"]),
        entries_per_s=0.0 if last is None else float(last["processedRowsPerSecond"] or 0.0),
        tasks_done=sum(stage.numCompletedTasks for stage in stages if stage is not None),
        tasks=sum(stage.numTasks for stage in stages if stage is not None),
        message=str(query.status["message"]),
    )


def _reason(text: str) -> str:
    """The farm's own words out of Spark's report of a failed Python call."""
    marker = "FarmLogError: "
    lines = [line.partition(marker)[2] for line in text.splitlines() if marker in line]
    return lines[-1] if lines else text.strip().splitlines()[0]
