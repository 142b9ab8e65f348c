"""The state machine of a plain replicated log: the ids of executed requests.

    committed entries ──▶ table: request id -> index ──▶ watchers: replies to clients, broadcasts
    a snapshot        ──▶ read and dropped: its bytes belong to the users of the log

Clients read the entries in the log, and this state machine does not interpret them. So it cannot produce a snapshot.
The operator's program produces the content (`compaction`), and `prepare` sets it, with the index that it covers. A
snapshot of this server replaces only entries before the first unexpired id. So the log after the snapshot has all
unexpired ids, and a restart rebuilds the table. The npm package `zmq-raft` also reads its table from the log.

*Time.* An id expires when it is too old both by this machine's clock and by the newest id in the log. If only the clock
decided, all ids could expire after a jump ahead by 9 hours, and a compaction could replace the whole log. Then a recent
request, repeated after a restart with the correct clock, could be executed twice. A full table also drops ids
(`request_table`).
"""

from collections.abc import AsyncIterator, Callable, Iterator

from msgspec import Struct

from consensus.core.entry_data import configuration_head
from consensus.core.model import COMMAND, Entry, EntryKind, Index, LogId, Milliseconds
from consensus.protocols.zmq_raft.wire.frames import REQUEST_ID_BYTES
from consensus.protocols.zmq_raft.wire.request_ids import DEFAULT_WINDOW, NO_REQUEST_ID, Window, request_seconds
from consensus.protocols.zmq_raft.wire.request_table import RequestTable
from consensus.server.callbacks import run_callback

_EXPIRY_MS = 10_000

Watcher = Callable[[Index, tuple[Entry, ...]], None]
"""Receives applied entries from an index on; it must return immediately."""


class PreparedSnapshot(Struct, frozen=True):
    """Source of a snapshot of all entries up to `index`; `chunks` reads it, once for each call."""

    index: Index
    chunks: Callable[[], AsyncIterator[bytes]]


def request_id_of(entry: Entry) -> bytes:
    """Return the request id of an entry; the zero id for an entry without a client's request."""
    if entry.kind == COMMAND:
        return entry.data[:REQUEST_ID_BYTES]
    return configuration_head(entry.data) or NO_REQUEST_ID if entry.kind == EntryKind.CONFIGURATION else NO_REQUEST_ID


class ExecutedRequests:
    """A `StateMachine` that keeps only the ids of requests. `now_ms` is Unix time."""

    def __init__(
        self, table: RequestTable, now_ms: Callable[[], Milliseconds], window: Window = DEFAULT_WINDOW
    ) -> None:
        self.table = table
        self.applied: Index = 0
        self.watchers: list[Watcher] = []
        self._now_ms = now_ms
        self._window = window
        self._newest = NO_REQUEST_ID
        """The newest id in the log, by its time."""
        self._expired_ms: Milliseconds | None = None
        self._prepared: PreparedSnapshot | None = None

    @property
    def prune_index(self) -> Index:
        """The last applied index before the first unexpired id: a snapshot may replace the log up to here."""
        self._expire()
        return self.table.prune_index(self.applied)

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """Store the ids, and notify the watchers."""
        self._expire()
        add, newest = self.table.add, self._newest
        for index, entry in enumerate(entries, first):
            request_id = request_id_of(entry)
            add(request_id, index)
            newest = max(newest, request_id)
        self._newest = newest
        self.applied = first + len(entries) - 1
        for watcher in self.watchers:
            run_callback(watcher, first, entries)

    def snapshot(self) -> Iterator[bytes] | AsyncIterator[bytes]:
        """Return the prepared bytes, or nothing."""
        return iter(()) if self._prepared is None else self._prepared.chunks()

    def snapshot_index(self) -> Index:
        """Return the index of the prepared bytes; 0 without them, since a snapshot must not be taken then."""
        return 0 if self._prepared is None else self._prepared.index

    def prepare(self, snapshot: PreparedSnapshot | None) -> None:
        """Set the bytes of the next snapshot, if any."""
        self._prepared = snapshot

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Clear the table, and continue after a snapshot. Its bytes are read to check them, and dropped."""
        async for _ in state:
            pass
        self.table.clear()
        self.applied = last.index

    def _expire(self) -> None:
        now_ms = min(self._now_ms(), request_seconds(self._newest) * 1000)
        # The table also changes if the clock was set back, because it then accepts older ids again.
        if self._expired_ms is None or abs(now_ms - self._expired_ms) >= _EXPIRY_MS:
            self._expired_ms = now_ms
            self.table.forget_before((now_ms - self._window.kept_ms) // 1000)
