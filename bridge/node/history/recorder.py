"""The observer of a node's history: each check of the verdict gives it a view, and changes are written to the file.

    VerdictWatch ──view──▶ take ──changes──▶ run ──a thread──▶ HistoryFile
    GET /v1/history ──▶ page ──▶ the same file, read in a thread

The view is built for the verdict anyway, so an observation costs only the comparison of its rows. Most checks change
nothing. The disk gets one small write in a minute, and one for the changes of a check.

The history never stops the node. If the file cannot be opened or written, the recorder logs the reason once and counts
it. It opens the file again every minute, and records nothing until then. If the disk fails, records are dropped instead
of queued without a limit.
"""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct

from bridge.api.control import Refused
from bridge.api.observations.history import HOURS_MAX, HistoryAnswer, figures, history_answer, observed
from bridge.api.view import FarmView
from bridge.core.history.changes import Changes
from bridge.core.history.records import Record, Row, SeriesKind
from bridge.core.history.timeline import read
from bridge.node.history.history_file import FILE_NAME, HistoryFile, HistoryFileError, open_history
from bridge.wire.history.records import RegionError
from consensus import CountedReason, Histogram

LOG = logging.getLogger(__name__)

RETRY_S: Final = 60.0
END_S: Final = 1.0
"""Limit for the last write of a stopping node."""
PENDING_MAX: Final = 2_000
"""Records that wait for the disk."""
PAGE_WAIT_S: Final = 5.0
"""Limit for a request that waits for the disk."""
PAGE_AGE_S: Final = 5.0
"""A page is used again for later requests within this time, because reading the whole file takes long."""
_COMMIT_LAG: Final = Row(SeriesKind.COMMIT_LAG)


class HistoryEvent(CountedReason):
    """Work on the history file."""

    CUT_OFF = (
        "history_cut_off",
        "Damaged places in the history file; later records there are dropped. If no kill caused them, check the disk",
    )
    FAILED = (
        "history_failed",
        "Failed attempts to open or write the history file. The log of the node has the reason",
    )
    RECORDS = "history_records", "Records written to the history file. It grows by one each minute, and with changes"


class _StoredPage(Struct, frozen=True):
    answer: HistoryAnswer
    hours: int
    made_at: float


class HistoryRecorder:
    """The history of one node. `commits` has the durations from submission to commitment."""

    def __init__(self, name: str, state_dir: Path, clock_ms: Callable[[], int], commits: Histogram) -> None:
        self.counters = Counter(dict.fromkeys(HistoryEvent, 0))
        self._name = name
        self._state_dir = state_dir
        self._clock_ms = clock_ms
        self._commits = commits
        self._commits_before = (commits.count, commits.total_s)
        self._changes: Changes | None = None
        """The recorded states; None after a failure, until the file is open again."""
        self._missed: FarmView | None = None
        """The last view while the file is not open, since the next view may come many seconds later."""
        self._file: HistoryFile | None = None
        self._pending: list[Record] = []
        self._news = trio.Event()
        self._disk = trio.Lock()
        """Lock of the file: reads must not end in the middle of a write."""
        self._page: _StoredPage | None = None
        self._logged = ""

    def take(self, view: FarmView) -> None:
        """Observe a view, or keep it until the file is open."""
        if self._changes is None:
            self._missed = view
            return
        values = dict(figures(view))
        if (lag_ms := self._commit_lag_ms()) is not None:
            values[_COMMIT_LAG] = lag_ms
        self._pending += self._changes.take(self._clock_ms(), observed(view), values)
        if len(self._pending) > PENDING_MAX:
            self._fail("the disk is too slow for the history")
        if self._pending:
            self._news.set()

    async def run(self) -> None:
        """Record until canceled; the last records are written then."""
        try:
            while True:
                await self._record()
                await self._close()
                await trio.sleep(RETRY_S)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + END_S):
                await self._end()

    async def _record(self) -> None:
        """Open the file, and write until a failure."""
        try:
            async with self._disk:
                file, note = await trio.to_thread.run_sync(open_history, self._state_dir)
        except (OSError, HistoryFileError) as error:
            self._fail(str(error))
            return
        self._file, self._changes, self._logged = file, Changes(), ""
        self.counters[HistoryEvent.CUT_OFF] += file.cut_off
        if file.cut_off:
            LOG.warning("the history has %d damaged places: the records after each of them are dropped", file.cut_off)
        if note:
            LOG.warning("%s", note)
        if self._missed is not None:
            self.take(self._missed)
            self._missed = None
        while self._changes is not None:
            await self._news.wait()
            self._news = trio.Event()
            await self._write(file)

    async def page(self, hours: int) -> HistoryAnswer:
        """Return the last hours."""
        hours = max(1, min(hours, HOURS_MAX))
        with trio.move_on_after(PAGE_WAIT_S) as waiting:
            await self._disk.acquire()
        if waiting.cancelled_caught:
            raise Refused(503, "busy", "the disk of the node does not finish its last write; try again in a moment")
        try:
            page = self._page
            if page is None or page.hours != hours or trio.current_time() - page.made_at > PAGE_AGE_S:
                answer = await trio.to_thread.run_sync(self._read, hours, self._clock_ms())
                page = self._page = _StoredPage(answer, hours, trio.current_time())
        finally:
            self._disk.release()
        return page.answer

    def _read(self, hours: int, now_ms: int) -> HistoryAnswer:
        file = self._file
        try:
            parts = () if file is None else file.content().parts
        except (OSError, RegionError) as error:
            LOG.warning("the history cannot be read: %s", error)
            parts = ()
        return history_answer(self._name, read(parts, now_ms, hours))

    def _commit_lag_ms(self) -> float | None:
        before_count, before_s = self._commits_before
        self._commits_before = count, total_s = self._commits.count, self._commits.total_s
        return (total_s - before_s) / (count - before_count) * 1000 if count > before_count else None

    async def _write(self, file: HistoryFile) -> None:
        try:
            async with self._disk:
                # Shielded, so that a stop of the node does not lose records. They wait until the disk is free, and are
                # written even after a cancellation.
                with trio.CancelScope(shield=True):
                    records, self._pending = self._pending, []
                    await trio.to_thread.run_sync(file.write, records)
        except OSError as error:
            # The text adds the path, because the error of a write by descriptor lacks it.
            self._fail(f"{self._state_dir / FILE_NAME} cannot be written: {error.strerror or error}")
        else:
            self.counters[HistoryEvent.RECORDS] += len(records)

    def _fail(self, reason: str) -> None:
        self.counters[HistoryEvent.FAILED] += 1
        self._changes = None
        self._pending.clear()
        self._news.set()
        if reason != self._logged:
            LOG.warning("nothing is recorded in the history now: %s", reason)
        self._logged = reason

    async def _end(self) -> None:
        if self._changes is not None and self._file is not None:
            self._pending += self._changes.sample()
            await self._write(self._file)
        await self._close()

    async def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            async with self._disk:
                await trio.to_thread.run_sync(file.close)
