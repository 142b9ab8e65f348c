"""The cost of many farms in one run: 100 to 100,000 farms of three nodes, whose entries are made in the tasks.

    every farm, one reporting period ──▶ plan ──▶ tasks in two processes ──▶ tables        batches, three times
                                          └── the part of the driver ──────────┘

The farms are not processes: their logs are one generated log with another cluster id and other destinations. So the
figures exclude the requests to the nodes, and include all work of the pipeline: planning, decoding, rows, commits and
the watch. With `DERIVED_MAX` farms at most, they include the derived tables and the report. The batches have the
default maximum of entries, so many farms take turns. A run keeps up if the batches of a reporting period take less time
than the period. The time of the batches is then the lag. Each number of farms has its own process, whose peak memory is
the figure of the driver. The tasks are in other processes, as with Spark.
"""

import json
import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.processor_time import Took, measured
from pipeline import ignore
from pipeline.cli.entry import save_memory
from pipeline.decode.columns import Row
from pipeline.gold.tables import Gold
from pipeline.lake import Lake
from pipeline.load_model import EPOCH_MS, PERIOD_MS, LoadModel
from pipeline.source.farm import DEFAULT_ENTRIES_PER_BATCH, FarmStreamReader, Sizes
from pipeline.source.farms import Place, SelectedLog, StreamFarms, Unread
from pipeline.source.log_client import FarmLogError, LogStatus
from pipeline.source.offsets import Offset
from pipeline.source.ranges import LogRange, SnapshotRange
from pipeline.source.selection import RowSelection
from pipeline.source.stored_log import KnownTime
from pipeline.tables.offset_shards import OffsetShards
from pipeline.tables.specs import LOG
from pipeline.tables.tasks import TablesReader, outcome_of

FARMS = (100, 1_000, 10_000, 100_000)
FARMS_VARIABLE = "GARLICFARM_FARMS"
NODES = 3
PERIODS = 3
WINDOW_MS = 60_000
DERIVED_MAX = 1_000
TASK_PROCESSES = 2
ENTRIES_PER_TASK = 50_000
MIB = 1024 * 1024
_OWN = b'"destinations":[{"destination":"'
_OWN_CHARACTERS = 12
_LETTERS = bytes.maketrans(b"0123456789", b"abcdefghij")
"""Letters of a destination in place of digits, since base32 lacks some of them."""
_PROOF = b',"proof":"' + b"A" * 43 + b".1." + b"A" * 86 + b'"}'
"""A proof of the right form: the pipeline cannot verify it, and refuses entries without one."""


def _template() -> Iterator[tuple[int, int | None, bytes | None]]:
    """Yield the term, log time and value of each entry; no value: a configuration."""
    log_time_ms: int | None = None
    for entry in LoadModel(NODES, (PERIODS + 1) * PERIOD_MS / 86_400_000).entries():
        clock = None if entry.value is None or not entry.value.startswith(b'{"clock"') else json.loads(entry.value)
        log_time_ms = log_time_ms if clock is None else int(clock["clock"]["time"])
        value = entry.value
        yield entry.term, log_time_ms, value and (value if entry.author is None else value[:-1] + _PROOF)


@cache
def _rows() -> tuple[tuple[int, int | None, bytes | None], ...]:
    """Return the entries, which only the tasks need."""
    return tuple(_template())


@cache
def _ends() -> tuple[int, ...]:
    """Return the last index of each reporting period."""
    times_ms = [log_time_ms or 0 for _, log_time_ms, _ in _template()]
    changes = [index for index, (before, now) in enumerate(pairwise(times_ms), start=1) if before != now]
    return tuple(index for index in changes if times_ms[index] >= EPOCH_MS + PERIOD_MS)


def _cluster(number: int) -> str:
    # The last digits first: the first digit of an id is as random as in a farm's own id.
    return f"{number:032x}"[::-1]


class MadeRanges:
    """The log of one farm; `periods`: the number of reporting periods in it."""

    def __init__(self, number: int, periods: int = 1) -> None:
        self._number = number
        self._periods = periods

    def status(self, cluster: str | None = None, *, of_all: bool = False) -> LogStatus:
        """Return the range of the log."""
        del of_all
        return LogStatus(cluster or _cluster(self._number), 1, _ends()[self._periods - 1])

    def oldest(self, cluster: str) -> int:
        """Return the first index."""
        del cluster
        return 1

    def snapshot_index(self) -> int:
        """Raise FarmLogError, since the farm does not have a snapshot."""
        raise FarmLogError("a generated farm does not have a snapshot")

    def time_before(self, index: int, known: object) -> None:
        """Return None, since each entry has its log time."""

    def plan(self, first: int, end: int, cluster: str, known: object = None) -> LogRange:
        """Return the partition for [first, end)."""
        del known
        return LogRange(first, end, cluster)

    def rows(self, partition: LogRange | SnapshotRange) -> Iterator[Row]:
        """Make the entries."""
        if isinstance(partition, SnapshotRange):
            raise FarmLogError("a generated farm does not have a snapshot")
        own = f"{self._number:0{_OWN_CHARACTERS}d}".encode().translate(_LETTERS)
        for index in range(partition.first, partition.end):
            term, log_time_ms, value = _rows()[index - 1]
            if value is None:
                yield index, term, "configuration", log_time_ms, b'{"voters": [{"id": 1}]}'
                continue
            head, found, rest = value.partition(_OWN)
            yield (
                index,
                term,
                "application",
                log_time_ms,
                (head + found + own + rest[_OWN_CHARACTERS:] if found else value),
            )


class MadeFarms(StreamFarms):
    """Farms whose logs grow by a reporting period when `advance` is called."""

    problems: Mapping[str, str] = MappingProxyType({})
    unread = Unread()

    def __init__(self, count: int) -> None:
        self._count = count
        self._periods = 0
        self._logs: dict[str, SelectedLog] = {}

    def advance(self) -> None:
        """Add a reporting period to each log."""
        self._periods += 1
        places = (Place(f"farm-{number}", MadeRanges(number, self._periods)) for number in range(self._count))
        logs = (
            # Like `FarmLog`, a later reply contains the text of the first one.
            SelectedLog(place, place.ranges.status(cluster), 1)
            for place, cluster in zip(places, self._logs or [None] * self._count, strict=True)
        )
        self._logs = {log.status.cluster: log for log in logs}

    def poll(self, next_entries: Mapping[str, int], *, thorough: bool) -> dict[str, SelectedLog]:
        """Return all logs."""
        del next_entries, thorough
        return self._logs

    def removed_clusters(self, clusters: Collection[str]) -> frozenset[str]:
        """Return an empty set."""
        del clusters
        return frozenset()

    def places(self, clusters: frozenset[str]) -> dict[str, Place]:
        """Return the places of these clusters."""
        return {each: self._logs[each].place for each in clusters}

    def check_range(self, log: SelectedLog, first: int, end: int, known: KnownTime | None) -> bool:
        """Return True, since generated entries are not damaged."""
        del log, first, end, known
        return True


class Period(NamedTuple):
    """The cost of the batches of one reporting period, in processor seconds except for the elapsed time."""

    entries: int
    batches: int
    plan_s: float
    write_s: float
    elapsed_s: float
    task_s: float
    offset_bytes: int


class ManyFarmsCost(NamedTuple):
    """The cost of a run."""

    periods: tuple[Period, ...]
    record_bytes: int
    derived_s: float
    driver_mib: float
    report: Took
    """The cost of a report over all farms, if they have derived tables."""


def measure(job: Job) -> list[Figure]:
    """Return the figures of each number of farms."""
    counts = tuple(map(int, os.environ[FARMS_VARIABLE].split(","))) if FARMS_VARIABLE in os.environ else FARMS
    figures: list[Figure] = []
    for farms in counts:
        with _processes(1, save_memory) as alone:
            alone.submit(_end_with_parent).result()
            cost = alone.submit(run, job.directory / str(farms), farms).result()
        figures += _figures(farms, cost)
    return figures


def _processes(count: int, begin: Callable[[], None]) -> ProcessPoolExecutor:
    """Return processes that call `begin` before anything else: `save_memory` works only before other imports."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), begin)


def _end_with_parent() -> None:
    """End this process when its parent ends, also after SIGKILL."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _figures(farms: int, cost: ManyFarmsCost) -> list[Figure]:
    group = f"pipeline: {farms} farms of {NODES}, a reporting period"
    periods, last = cost.periods, cost.periods[-1]
    rows = [
        Figure(group, "elapsed", "s", tuple(each.elapsed_s for each in periods), "goal: below 30"),
        Figure(group, "the driver: plan", "s", tuple(each.plan_s for each in periods), "processor time"),
        Figure(group, "the driver: tables", "s", tuple(each.write_s for each in periods), "processor time"),
        Figure(group, "the tasks", "s", tuple(each.task_s for each in periods), "processor time"),
        Figure(group, "the offset", "bytes", tuple(float(each.offset_bytes) for each in periods)),
        Figure(group, "the record of batches", "bytes", (float(cost.record_bytes),)),
        Figure(
            group,
            "peak memory of the driver",
            "MiB",
            (cost.driver_mib,),
            f"goal: at most 300; {last.entries} entries in {last.batches} batches",
        ),
    ]
    if farms <= DERIVED_MAX:
        rows += [
            Figure(group, "all derived tables", "s", (cost.derived_s,), f"of {PERIODS} periods"),
            Figure(group, "the report: elapsed", "s", (cost.report.seconds,), "goal for 1,000 farms: at most 5"),
            Figure(group, "the report: processor time", "s", (cost.report.processor_s,)),
        ]
    return rows


def run(directory: Path, farms: int) -> ManyFarmsCost:
    """Write batches of this number of farms; return their cost."""
    directory.mkdir()
    gold = Gold(directory, WINDOW_MS, None)
    has_derived = farms <= DERIVED_MAX
    lake = Lake(directory, WINDOW_MS, watch=True, note=gold.note if has_derived else ignore)
    made = MadeFarms(farms)
    sizes = Sizes(DEFAULT_ENTRIES_PER_BATCH, ENTRIES_PER_TASK)
    reader = TablesReader(lake.plan, made, RowSelection(), sizes, {}, OffsetShards(directory / "checkpoint"))
    periods: list[Period] = []
    offset: Offset = reader.initialOffset()
    batch = 0
    with _processes(TASK_PROCESSES, _end_with_parent) as tasks:
        list(tasks.map(_warm_up, range(TASK_PROCESSES)))
        for _ in range(PERIODS):
            made.advance()
            offset, period = _period(lake, reader, tasks, offset, batch)
            batch += period.batches
            periods.append(period)
    began = time.perf_counter()
    if has_derived:
        gold.refresh(gold.noted_through(LOG), None)
    derived_s = time.perf_counter() - began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    record_bytes = (directory / f"batches-{LOG}.json").stat().st_size
    return ManyFarmsCost(
        tuple(periods), record_bytes, derived_s, peak_mib, _report(directory) if has_derived else Took()
    )


def _report(directory: Path) -> Took:
    """Make the report of all farms as `garlicfarm pipeline report` does, without the start of Python."""
    began, began_s = time.perf_counter(), time.process_time()
    from pipeline.serve.report import make_report  # noqa: PLC0415 - it loads Vega, which the driver does not use

    make_report(directory, datetime.now(UTC), show_destinations=False)
    return Took(time.perf_counter() - began, time.process_time() - began_s)


def _period(
    lake: Lake, reader: TablesReader, tasks: ProcessPoolExecutor, begin: Offset, first: int
) -> tuple[Offset, Period]:
    """Write batches until all entries are in the tables."""
    began, entries, batch, plan_s, write_s, task_s = time.perf_counter(), 0, first, 0.0, 0.0, 0.0
    while True:
        began_s = time.process_time()
        end = reader.latestOffset(begin, reader.getDefaultReadLimit())
        planned = [] if end == begin else reader.partitions(begin, end)
        plan_s += time.process_time() - began_s
        if end == begin:
            elapsed_s = time.perf_counter() - began
            return end, Period(entries, batch - first, plan_s, write_s, elapsed_s, task_s, len(json.dumps(end)))
        with measured() as took:
            results = [each for found in tasks.map(_read, ((reader, task) for task in planned)) for each in found]
        task_s += took.processor_s
        results_at_s = time.process_time()
        outcome = outcome_of(results)
        del results
        if outcome.count("reports") <= outcome.count("quarantine"):
            raise RuntimeError("the pipeline refused the generated reports")
        lake.write_outcome(outcome, batch)
        write_s += time.process_time() - results_at_s
        entries += sum(outcome.rows["farms"].column("entries").to_pylist())
        begin, batch = end, batch + 1


def _warm_up(_: int) -> None:
    _rows()


def _read(work: tuple[FarmStreamReader, object]) -> list[pa.RecordBatch]:
    reader, task = work
    return [*reader.read(task)]  # type: ignore[arg-type]
