"""A query without Spark's streaming: it reads batches by a source's reader, and passes their rows to a writer.

    offsets/N ──▶ the source's tasks in turn ──▶ `write(rows, N)` ──▶ commits/N ──▶ the next poll
    between two batches, every `PREVIEW_S`: new rows ──▶ `preview(rows)`, kept for the next batch

The query uses the readers of the Spark data sources, which plan and read in Python. A few rows per second do not need
more than one process. The steps have the same order as in Spark. After a kill between two steps, the batch is read
again with the same ends and number. Tables that already have it skip it (`pipeline/tables/delta.py`).

A batch is a commit in each table, and costs more than its few rows. So `preview` shows new rows between two batches.
The batch must be able to repeat a preview's effects, because rows that were only previewed are read again after a kill.

The run loop uses this query like one of Spark's (`pipeline/spark/side_by_side.py`), so the names are Spark's. A thread
reads and writes. `stop` waits for the end of a commit, and for the source at most `STOP_S`, since a farm may take
minutes to reply. A batch that reads after `stop` ends without a write.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, Self, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from pipeline import ignore
from pipeline.local.checkpoint import SourceOffset, StoredCheckpoint
from pipeline.output.buckets import Output
from pipeline.source.log_client import FarmLogError

Found = TypeVar("Found")
WriteBatch = Callable[[Iterable[pa.RecordBatch], int], None]
"""Writes the rows of a batch with this number; the rows are read while it iterates."""
Preview = Callable[[Sequence[pa.RecordBatch]], None]
"""Shows the rows of a part of the next batch."""
ReadTasks = Callable[[Sequence[InputPartition]], Iterable[pa.RecordBatch]]
PREVIEW_S: Final = 1.0
CANCEL_S: Final = 1.0
"""The time between two calls of `cancel`."""
STOP_S: Final = 2.0
"""The limit of the wait for the source at the end of the run."""
KEPT_BYTES: Final = 1024 * 1024
"""The size of previewed rows above which the next batch begins early, so a backlog is written without a preview."""


class SourceReader(Protocol):
    """The used part of a reader of Spark's data source; the names are Spark's."""

    def initialOffset(self) -> SourceOffset:  # noqa: N802
        """Return the offset before the first batch."""
        ...

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch."""
        ...

    def latestOffset(self, start: SourceOffset, limit: ReadLimit) -> SourceOffset:  # noqa: N802
        """Return the end of a batch that begins at `start`; return `start` without new rows."""
        ...

    def reportLatestOffset(self) -> SourceOffset | None:  # noqa: N802
        """Return the end of the source, for the progress."""
        ...

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the run when its first batch is planned."""
        ...

    def partitions(self, start: SourceOffset, end: SourceOffset) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        ...

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        ...


class _StoppedError(Exception):
    """The run ends in the middle of a batch, which the next run repeats."""


class LocalQuery:
    """A query over one source. `trigger_s`: the least time between two batches; None: end at the source's end.

    `read`: reads the tasks of a batch elsewhere; by default this process reads one after another. `cancel`: ends `read`
    early with an error. `notify`: receives the first error of `cancel`.
    """

    def __init__(
        self,
        reader: SourceReader,
        write: WriteBatch,
        checkpoint: Output,
        trigger_s: float | None,
        preview: Preview | None = None,
        read: ReadTasks | None = None,
        cancel: Callable[[], None] | None = None,
        notify: Callable[[str], None] = ignore,
    ) -> None:
        self._reader = reader
        self._read = read or self._read_here
        self._cancel = cancel or ignore
        self._notify = notify
        self._write = write
        self._checkpoint = StoredCheckpoint(checkpoint)
        self._trigger_s = trigger_s
        self._preview = None if trigger_s is None else preview
        self._poll_s = min(trigger_s or 0.0, PREVIEW_S) if preview else trigger_s or 0.0
        self._ended = threading.Event()
        self._is_reading = False
        """True while the thread waits for the source."""
        self._failure: Exception | None = None
        self._progress: dict[str, Any] | None = None
        self._activity = "Initializing sources"
        self._thread = threading.Thread(target=self._run, name=f"query in {checkpoint.name}", daemon=True)

    def start(self) -> Self:
        """Start the thread; return the query."""
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """True until the query has ended."""
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        """The current activity."""
        return {"message": self._activity or "Waiting for next trigger", "isTriggerActive": bool(self._activity)}

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The progress after the newest batch or poll; None before the first."""
        return self._progress

    def exception(self) -> Exception | None:
        """Return the error that ended the query."""
        return self._failure

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802 - Spark's name
        """Return when the query has ended, or after this number of seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the query after its current commit, or while it reads."""
        self._ended.set()
        end_s, is_reported = time.monotonic() + STOP_S, False
        while self._thread.is_alive() and not (self._is_reading and time.monotonic() >= end_s):
            # Repeated, because the tasks of a batch may begin after the first call.
            try:
                self._cancel()
            # For example, the JVM has ended. The other queries must end too, and this thread ends with its own error.
            except Exception as error:  # noqa: BLE001 - any error
                if not is_reported:
                    self._notify(f"the running tasks could not be canceled: {str(error) or type(error).__name__}")
                is_reported = True
            self._thread.join(min(CANCEL_S, STOP_S))

    def _run(self) -> None:
        try:
            if self._trigger_s is None:
                self._reader.prepareForTriggerAvailableNow()
            self._follow()
        except _StoppedError:
            pass
        # The run loop finds the cause in an error of Spark's tasks, and repeats a lost start.
        except (FarmLogError, OSError, Py4JError, PySparkException) as error:
            self._failure = error
        # This includes errors that end a process: in a thread they would not be reported.
        except BaseException as error:  # noqa: BLE001 - the run loop raises any error
            self._failure = FarmLogError(f"{type(error).__name__}: {error}")
            self._failure.__cause__ = error
        finally:
            self._activity = ""

    def _follow(self) -> None:
        number, place = self._repeat_begun()
        shown, kept, kept_bytes, next_batch_at = place, list[pa.RecordBatch](), 0, 0.0
        while not self._ended.is_set():
            began = time.monotonic()
            self._activity = "Getting offsets"
            begin = self._reader.initialOffset() if place is None else place
            shown = shown or begin
            if "shards" in shown:
                # With so many farms, each preview would rewrite the rows of many farms, and the shards of its offset.
                self._preview, self._poll_s = None, self._trigger_s or 0.0
            end = self._of_source(partial(self._reader.latestOffset, shown, self._reader.getDefaultReadLimit()))
            # The end contains the first entries of farms that are new after `shown`. After a preview the batch would
            # lack them, and could not be repeated. So a new farm begins a batch.
            has_new_farm = end != shown and ("begins" in end or "shards" in end)
            is_early = self._preview is not None and began < next_batch_at and not has_new_farm
            if self._preview is not None and is_early and end != shown:
                rows = [*self._rows(shown, end)]
                kept += rows
                kept_bytes += sum(each.nbytes for each in rows)
                shown, is_early = end, kept_bytes < KEPT_BYTES
                if is_early:
                    self._preview(rows)
            if end != begin and not is_early:
                number += 1
                self._checkpoint.plan(number, end)
                self._process(number, begin, end, began, chain(kept, self._rows(shown, end)))
                place, shown, kept, kept_bytes = end, end, [], 0
                next_batch_at = began + (self._trigger_s or 0.0)
                # Continue: a backlog has more entries, and a poll takes less time than a batch.
            elif self._trigger_s is None:
                return
            else:
                self._note(number, begin, begin, began)
            self._activity = ""
            self._ended.wait(max(0.0, began + self._poll_s - time.monotonic()))

    def _repeat_begun(self) -> tuple[int, SourceOffset | None]:
        """Run a batch without a commit again; return the last batch and its end."""
        began, number = time.monotonic(), self._checkpoint.planned
        if number < 0:
            return number, None
        end = self._checkpoint.offset(number)
        if self._checkpoint.committed < number:
            begin = self._checkpoint.offset(number - 1) if number else self._reader.initialOffset()
            self._process(number, begin, end, began, self._rows(begin, end))
        return number, end

    def _process(
        self, number: int, begin: SourceOffset, end: SourceOffset, began: float, rows: Iterable[pa.RecordBatch]
    ) -> None:
        self._activity = "Processing new data"
        self._write(rows, number)
        self._checkpoint.commit(number)
        self._note(number, begin, end, began)

    def _rows(self, begin: SourceOffset, end: SourceOffset) -> Iterator[pa.RecordBatch]:
        if begin != end:
            tasks = self._of_source(partial(self._reader.partitions, begin, end))
            found = iter(self._of_source(partial(self._read, tasks)))
            while (rows := self._of_source(partial(next, found, None))) is not None:
                yield rows

    def _of_source(self, call: Callable[[], Found]) -> Found:
        """Return the result of a call that waits for the source, unless the run has ended."""
        self._is_reading = True
        found = call()
        self._is_reading = False
        # A write follows only after this check. So a thread that `stop` did not wait for never writes.
        if self._ended.is_set():
            raise _StoppedError
        return found

    def _read_here(self, tasks: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        return chain.from_iterable(map(self._reader.read, tasks))

    def _note(self, number: int, begin: SourceOffset, end: SourceOffset, began: float) -> None:
        """Record the progress, in the form of Spark's reports."""
        seconds = time.monotonic() - began
        source = {
            "startOffset": json.dumps(begin),
            "endOffset": json.dumps(end),
            "latestOffset": json.dumps(self._reader.reportLatestOffset()),
        }
        self._progress = {
            "batchId": number,
            "sources": [source],
            "batchDuration": int(seconds * 1000),
            "processedRowsPerSecond": 0.0,
        }
