"""The Spark data source `farm`: committed entries of farms' logs, as a batch or as a stream.

    spark.read.format("farm").option("node", "farm-state/node-1/control.sock").load()
    spark.readStream.format("farm").option("farms", "farms.toml").load()

Options, columns, filters and the form of an offset: docs/reference/pipeline-sources.md. Exactly one of the options
`node`, `directory` and `farms` is required. Rows are decoded entries, in typed columns (`pipeline.schemas.ENTRIES`).

A stream's offset has the next entry of each farm. So farms join and leave without a new checkpoint, and a farm that
returns continues from its last entry. The entry at a committed index never changes, so a range that is read again after
a crash gives the same rows. So a reader does not send acknowledgments to the farm.

The planner's calls run in one long-lived process, and `read` runs in others. State from `latestOffset` is missing in
`read`, so a partition contains all data for its reader.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pipeline.decode.columns import Row, RowsOfLog, batches_of_logs
from pipeline.schemas import ENTRIES
from pipeline.source import log_client
from pipeline.source.daemon_pool import DaemonPool
from pipeline.source.farms import OLDEST, SNAPSHOT, UNLISTED_MAX, ManyFarms, OneFarm, Place, SelectedLog, StreamFarms
from pipeline.source.log_client import FarmLogError, FarmRefusedError, FarmSilentError, credentials_of, shortened
from pipeline.source.offsets import WHOLE_FARMS, Offset, WholeOffsets, entries_before
from pipeline.source.ranges import DirectoryRanges, LogRange, LogRanges, NodeRanges, SnapshotRange
from pipeline.source.selection import Bounds, RowSelection, columns_of, moment_of, words_of
from pipeline.source.shares import Span, fair_shares, fitting_demands, packed
from pipeline.source.stored_log import KnownTime

DEFAULT_PAGE_SIZE = 1_000
DEFAULT_ENTRIES_PER_BATCH = 100_000
DEFAULT_ENTRIES_PER_PARTITION = 50_000
CONTINUE = "continue"
"""The option with the first entry of each farm, as JSON, for a checkpoint without batches."""
DIGITS_MAX = 18
READ_AT_ONCE, FARMS_PER_CALL = 8, 32
READ_AHEAD_ENTRIES = 1_000
"""The longest range that is read as a whole, concurrently with others, before its first row is returned."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The limits of planning."""

    entries_per_batch: int
    entries_per_partition: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries of one farm, and their reader."""

    name: str | None
    ranges: LogRanges
    range: LogRange | SnapshotRange

    def rows(self, selection: RowSelection) -> Iterator[Row]:
        """Yield the rows that the selection takes by index, kind and time."""
        rows = self.ranges.rows(self.range)
        # Ranges of the log were planned by index already.
        if not selection.times_us.are_open or selection.kinds is not None or isinstance(self.range, SnapshotRange):
            rows = (row for row in rows if selection.takes(row[0], row[2], row[3]))
        return rows

    @property
    def is_short(self) -> bool:
        """True if it may be read as a whole."""
        return isinstance(self.range, LogRange) and self.range.end - self.range.first <= READ_AHEAD_ENTRIES


class Task(InputPartition):
    """The input of one Spark task."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(tuple(piece.range.value for piece in pieces))
        self.pieces = tuple(pieces)


class FarmDataSource(DataSource):
    """The data source `farm`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "farm"

    def schema(self) -> StructType:
        """Return the schema of an entry, or its selected columns."""
        columns = self._selection().columns
        return ENTRIES if columns is None else StructType([ENTRIES[each] for each in columns])

    def reader(self, schema: StructType) -> "FarmBatchReader":
        """Return a reader of all entries committed now."""
        del schema
        taking = self.options.get("pushFilters", "false").lower()
        if taking not in {"true", "false"}:
            raise FarmLogError(f"the option 'pushFilters' of the source 'farm' must be true or false, not {taking!r}")
        made = FilteredBatchReader if taking == "true" else FarmBatchReader
        return made(self.farms(), self._selection(), self._sizes())

    # Spark looks the method up by this name.
    def streamReader(self, schema: StructType) -> "FarmStreamReader":  # noqa: N802
        """Return a reader of entries as they are committed."""
        del schema
        return FarmStreamReader(self.farms(), self._selection(), self._sizes(), self._next_entries())

    def _next_entries(self) -> Mapping[str, int]:
        found: dict[str, int] = json.loads(self.options.get(CONTINUE, "{}"))
        return found

    def farms(self) -> StreamFarms:
        """Return the farms of the options. Raise FarmLogError."""
        addresses = tuple(part.strip() for part in self.options.get("node", "").split(",") if part.strip())
        directory, farms = self.options.get("directory"), self.options.get("farms")
        if [bool(addresses), bool(directory), bool(farms)].count(True) != 1:
            raise FarmLogError(
                "the source 'farm' needs one of the options 'node' (a node's control endpoint), 'directory' (a node's"
                " state directory) and 'farms' (a file that names several farms)",
            )
        page_size, start = self._positive("pageSize", DEFAULT_PAGE_SIZE), self._start()
        if farms and start != OLDEST:
            raise FarmLogError(f"the option 'start' belongs to one farm: set it for each farm in {farms}")
        if farms:
            alone = [name for name in ("end", "tokenFile", "certificate") if name in self.options]
            if alone:
                raise FarmLogError(f"the option {alone[0]!r} belongs to one farm: set it for each farm in {farms}")
            return ManyFarms(Path(farms), page_size)
        if directory:
            option = self.options.get("committedThrough")
            through = None if option is None else self._positive("committedThrough", 1)
            return OneFarm(Place(None, DirectoryRanges(Path(directory), through), start))

        def of_nodes() -> Place:
            return Place(None, NodeRanges(addresses, credentials_of(self.options), page_size), start)

        return OneFarm(of_nodes(), of_nodes)

    def _start(self) -> str:
        start = str(self.options.get("start", OLDEST))
        if start not in {OLDEST, SNAPSHOT}:
            self._positive("start", 1)
        return start

    def _selection(self) -> RowSelection:
        end = self._positive("end", 1) if "end" in self.options else None
        moments = [moment_of(name, self.options[name]) if name in self.options else None for name in ("since", "until")]
        selection = RowSelection(Bounds(None, None if end is None else end + 1), Bounds(*moments))
        if "columns" in self.options:
            selection = replace(selection, columns=columns_of(self.options["columns"]))
        if "entries" in self.options:
            selection = selection.of("entries", words_of(self.options["entries"]))
        if "servers" in self.options:
            words = words_of(self.options["servers"])
            if not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS_MAX for each in words):
                raise FarmLogError(f"the option 'servers' of the source 'farm' must be numbers, not {words!r}")
            selection = selection.of("servers", [int(each) for each in words])
        return selection

    def _sizes(self) -> Sizes:
        return Sizes(
            self._positive("maxEntriesPerBatch", DEFAULT_ENTRIES_PER_BATCH),
            self._positive("entriesPerPartition", DEFAULT_ENTRIES_PER_PARTITION),
        )

    def _positive(self, option: str, default: int) -> int:
        text = self.options.get(option, str(default))
        if not text.isascii() or not text.isdecimal() or len(text) > DIGITS_MAX or int(text) < 1:
            raise FarmLogError(f"the option {option!r} of the source 'farm' must be a positive number, not {text!r}")
        return int(text)


def read_entries(options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the committed log in this process, without Spark. Raise FarmLogError."""
    reader = FarmDataSource(dict(options)).reader(ENTRIES)
    for task in reader.partitions():
        yield from reader.read(task)


class _Reader:
    """The common part of batch and stream readers: planning and reading of tasks."""

    def __init__(self, farms: StreamFarms, selection: RowSelection, sizes: Sizes) -> None:
        self._farms = farms
        self._selection = selection
        self._sizes = sizes

    def __getstate__(self) -> dict[str, Any]:
        # A task contains only the places that it needs, so that a thousand farms are not pickled with each task.
        return {"_selection": self._selection}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if partition.value is None:
            return iter(())  # Spark's partition for an empty plan
        if not isinstance(partition, Task):
            raise FarmLogError(f"the source 'farm' cannot read the partition {partition!r}")
        return batches_of_logs(_logs(partition.pieces, self._selection), self._selection)

    def _end(self, commit: int) -> int:
        """Return the index after the last selected and committed entry."""
        end = self._selection.indexes.end
        return commit + 1 if end is None else min(commit + 1, end)

    def _tasks(
        self,
        ranges: Mapping[str, tuple[int, int]],
        covered: Mapping[str, int],
        places: Mapping[str, Place],
        known: Mapping[str, KnownTime],
    ) -> list[InputPartition]:
        """Return tasks for these entries (first, after the last) of each cluster, and for the snapshots `covered`."""
        snapshots = [
            Piece(places[cluster].name, places[cluster].ranges, SnapshotRange(index, cluster))
            for cluster, index in covered.items()
        ]
        spans = [Span(cluster, first, end) for cluster, (first, end) in ranges.items() if first < end]
        planned: list[InputPartition] = [Task(snapshots)] if snapshots else []
        for task in packed(spans, self._sizes.entries_per_partition):
            pieces = []
            for cluster, first, end in task:
                place = places[cluster]
                pieces.append(
                    Piece(place.name, place.ranges, place.ranges.plan(first, end, cluster, known.get(cluster)))
                )
            planned.append(Task(pieces))
        return planned


def _known(offset: Offset) -> dict[str, KnownTime]:
    """Return the next entry and the log time before it, for each farm with a log time in the offset."""
    return {
        cluster: KnownTime(offset["farms"][cluster], time_ms) for cluster, time_ms in offset.get("times", {}).items()
    }


def _logs(pieces: Sequence[Piece], selection: RowSelection) -> Iterator[RowsOfLog]:
    """Yield the rows of the pieces in order. Several farms are read concurrently: each costs a round trip."""
    if len(pieces) == 1:
        yield pieces[0].range.cluster, pieces[0].name, pieces[0].rows(selection)
        return

    def read(several: Sequence[Piece]) -> list[list[Row] | None]:
        return [[*piece.rows(selection)] if piece.is_short else None for piece in several]

    # Queuing a call takes the time of reading some entries, so a call reads several farms.
    size = min(-(-len(pieces) // READ_AT_ONCE), FARMS_PER_CALL)
    parts = [pieces[first : first + size] for first in range(0, len(pieces), size)]
    with DaemonPool(READ_AT_ONCE) as reading:
        for piece, rows in zip(pieces, chain.from_iterable(reading.map(read, parts)), strict=True):
            yield piece.range.cluster, piece.name, piece.rows(selection) if rows is None else rows


class FarmBatchReader(_Reader, DataSourceReader):
    """The committed log at the time of planning."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return tasks for all entries from the first selected entry to the commit index."""
        logs = self._farms.poll({}, thorough=True)
        if self._farms.problems:
            raise FarmLogError(
                "; ".join(shortened([f"{name}: {problem}" for name, problem in self._farms.problems.items()]))
            )
        farms = self._selection.farms
        logs = {cluster: each for cluster, each in logs.items() if farms is None or cluster in farms}
        ranges = {
            cluster: self._selection.indexes.cut(each.begin, each.status.commit_index + 1)
            for cluster, each in logs.items()
        }
        covered = {cluster: each.covered for cluster, each in logs.items() if each.covered is not None}
        return self._tasks(ranges, covered, {cluster: each.place for cluster, each in logs.items()}, {})


class FilteredBatchReader(FarmBatchReader):
    """A batch reader with Spark's filters of the rows."""

    # Spark's name.
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Apply supported filters, and yield the others, which Spark applies itself."""
        for each in filters:
            narrowed = self._selection.narrowed(each)
            if narrowed is None:
                yield each
            else:
                self._selection = narrowed


class FarmStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The committed log as an unbounded table."""

    def __init__(
        self,
        farms: StreamFarms,
        selection: RowSelection,
        sizes: Sizes,
        next_entries: Mapping[str, int] = MappingProxyType({}),
        offsets: WholeOffsets | None = None,
    ) -> None:
        super().__init__(farms, selection, sizes)
        self._next_entries = next_entries
        self._offsets = offsets or WholeOffsets()
        self._read = 0
        self._available_now = False
        self._stop_before: dict[str, int] | None = None
        self._silent_since: float | None = None
        self._turn = ""
        """The last farm in the last batch that did not have room for all farms."""
        self._newest: dict[str, int] = {}
        self._removed: frozenset[str] = frozenset()

    # The names below are Spark's.
    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the known first entries; another farm's first entry is determined at its first request."""
        return self._offsets.stored({"farms": {**self._next_entries}})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of entries in a batch."""
        return ReadMaxRows(self._sizes.entries_per_batch)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of a batch from `start` on; if no node replies, return `start` for `SILENCE_SECONDS`.

        With `availableNow`, a missing reply or a refusal raises an error immediately. Otherwise only a refusal before
        the first reply does so, because a later refusal may be temporary.
        """
        whole = self._offsets.loaded(start)
        try:
            end = self._latest(whole, limit)
        except FarmSilentError as error:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
            is_final = self._available_now or (isinstance(error, FarmRefusedError) and not self._newest)
            if is_final or time.monotonic() - self._silent_since > log_client.SILENCE_SECONDS:
                raise
            return start
        self._silent_since = None
        return start if end is whole else self._offsets.stored(end)

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        next_entries: dict[str, int] = start["farms"]
        logs = self._farms.poll(next_entries, thorough=self._available_now and self._stop_before is None)
        self._newest |= {cluster: each.status.commit_index + 1 for cluster, each in logs.items()}
        removed = self._farms.removed_clusters(self._newest)
        for cluster in removed:
            del self._newest[cluster]
        self._removed = (self._removed | removed).difference(self._newest)
        counts = self._counts(logs, next_entries)
        if isinstance(limit, ReadMaxRows) and not isinstance(limit, ReadAllAvailable):
            chosen = fitting_demands(counts, limit.max_rows, self._turn)
            self._turn = next(reversed(chosen), "") if len(chosen) < len(counts) else self._turn
            counts = fair_shares(chosen, limit.max_rows)
        begins = {
            cluster: {"next": logs[cluster].begin}
            | ({} if (covered := logs[cluster].covered) is None else {"snapshot": covered})
            for cluster, count in counts.items()
            if cluster not in next_entries and (count or logs[cluster].covered is not None)
        }
        moved = {
            cluster: next_entries.get(cluster, logs[cluster].begin) + count
            for cluster, count in counts.items()
            if count or cluster in begins
        }
        known, found = _known(start), {**start.get("times", {})}
        for cluster, end in [*moved.items()]:
            log = logs[cluster]
            if not self._farms.check_range(log, next_entries.get(cluster, log.begin), end, known.get(cluster)):
                del moved[cluster]
                begins.pop(cluster, None)
        ends_read = {**next_entries, **moved}
        absent = ends_read.keys() - self._newest.keys()
        self._read = entries_before({"farms": ends_read}) - sum(ends_read[each] - 1 for each in absent)
        if not moved:
            return start
        for cluster, index in moved.items():
            time_ms = logs[cluster].place.ranges.time_before(index, known.get(cluster))
            if time_ms is not None:
                found[cluster] = time_ms
        also = {name: value for name, value in (("begins", begins), ("times", found)) if value}
        return {"farms": ends_read, **also}

    def _counts(self, logs: Mapping[str, SelectedLog], next_entries: Mapping[str, int]) -> dict[str, int]:
        """Return the number of new entries of each farm with new entries, or with a first snapshot."""
        if self._available_now and self._stop_before is None:
            self._stop_before = self._present_ends(logs)
        counts: dict[str, int] = {}
        for cluster, each in logs.items():
            end = self._end(each.status.commit_index)
            if self._stop_before is not None:
                end = self._stop_before.get(cluster, 0)
            count = max(end - next_entries.get(cluster, each.begin), 0)
            if count or (each.covered is not None and cluster not in next_entries):
                counts[cluster] = count
        return counts

    def _present_ends(self, logs: Mapping[str, SelectedLog]) -> dict[str, int]:
        """Return the ends of a run with `availableNow`: the ends of the logs when its first batch is planned."""
        newest = max((each.status.commit_index for each in logs.values()), default=0)
        last = None if self._selection.indexes.end is None else self._selection.indexes.end - 1
        if last is not None and newest < last:
            raise FarmLogError(
                f"the end is {last}, but the log is known to be committed only up to {newest}; choose an earlier end,"
                " or wait",
            )
        return {cluster: self._end(each.status.commit_index) for cluster, each in logs.items()}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the newest known entries, and the problem of each farm, for the query's progress."""
        problems = dict(self._farms.problems)
        unread = self._farms.unread
        named: dict[str, Any] = {
            "problems": problems,
            "waiting": list(unread.waiting),
            "unlisted": list(unread.unlisted),
        }
        reported = {name: each for name, each in named.items() if each}
        if len(self._newest) > WHOLE_FARMS:
            newest = entries_before({"farms": self._newest})
            totals = {"farms": len(self._newest), "read": self._read, "newest": newest}
            return {"totals": totals, "removed": sorted(self._removed)[:UNLISTED_MAX], **reported}
        return {"farms": {**self._newest}, **reported} if self._newest or reported else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the run when its first batch is planned."""
        self._available_now = True

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return tasks that cover [start, end), which alone determine the entries of a batch and of its repetition."""
        start, end = self._offsets.changed(start, end)
        begins = end.get("begins", {})
        ranges: dict[str, tuple[int, int]] = {}
        for cluster, stop in end["farms"].items():
            first = start["farms"].get(cluster)
            if first is None:
                first = begins[cluster]["next"]
            if first != stop:
                ranges[cluster] = first, stop
        covered = {
            cluster: each["snapshot"]
            for cluster, each in begins.items()
            if "snapshot" in each and cluster not in start["farms"]
        }
        return self._tasks(ranges, covered, self._farms.places(frozenset(ranges) | frozenset(covered)), _known(start))
