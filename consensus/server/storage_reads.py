"""Reads of the server itself from its storage: entries for readers of the log, the snapshot for the state machine.

The core reads too; its requests have positive numbers, the server's own negative ones. The executor begins a read after
all Persists emitted before it. The reply arrives in a turn of the event loop.
"""

from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from consensus.core.effects import ReadEntries, ReadSnapshot
from consensus.core.events import EntriesRead, SnapshotRead
from consensus.core.model import Entry, Index, LogId, SnapshotDescription
from consensus.server.applying import SnapshotReplacedError
from consensus.server.pending_calls import CallKind, PendingCalls
from consensus.storage.disk import DamagedStorageError
from consensus.storage.jobs import StorageRead, StorageReadResult
from consensus.storage.records import RecordError
from consensus.storage.snapshot_form import IMAGE, SnapshotForm
from consensus.storage.snapshots import CHUNK_BYTES


class SnapshotChunk(Struct, frozen=True):
    """Bytes of the snapshot that covers everything up to `last`, from `offset` on."""

    last: LogId
    total_bytes: int
    offset: int
    data: bytes


class StorageReads:
    """Reads of the server, not of the core. `put` queues a read in the executor."""

    def __init__(self, calls: PendingCalls, put: Callable[[StorageRead], None], form: SnapshotForm = IMAGE) -> None:
        self._calls = calls
        self._form = form
        self._put = put

    async def entries(self, first: Index, last: Index, limit_bytes: int) -> tuple[Entry, ...]:
        """Return committed entries [first, last] for the state machine, at least one; none if they are absent."""
        return await self._entries(self._calls.own_reads, first, last, limit_bytes)

    async def log(self, first: Index, last: Index, limit_bytes: int) -> tuple[Entry, ...]:
        """Return entries for a reader of the log, none for an empty range; raises `ServerBusyError`."""
        if first < 1 or last < first:
            return ()
        return await self._entries(self._calls.log_reads, first, last, limit_bytes)

    async def chunk(self, snapshot: SnapshotDescription, offset: int, limit_bytes: int = CHUNK_BYTES) -> bytes | None:
        """Return bytes of the stored snapshot for a reader of the log; None if it was replaced."""
        answer = await self._read_storage(self._calls.log_reads, _chunk_at(snapshot, offset, limit_bytes))
        return answer.data if isinstance(answer, SnapshotRead) else None

    async def state(self, snapshot: SnapshotDescription) -> AsyncIterator[bytes]:
        """Yield the state machine's bytes in the stored snapshot."""
        offset, done = 0, False
        image = self._form.reading(snapshot.last, snapshot.configuration)
        try:
            while not done:
                answer = await self._read_storage(self._calls.own_reads, _chunk_at(snapshot, offset))
                if not isinstance(answer, SnapshotRead) or answer.data is None:
                    raise SnapshotReplacedError
                for data in image.feed(answer.data):
                    yield data
                offset, done = offset + len(answer.data), answer.done
            if image.finish() != snapshot:
                raise RecordError("its bytes differ from the stored bytes")  # noqa: TRY301 - reported like any damage
        except RecordError as error:
            raise DamagedStorageError(
                f"the snapshot of index {snapshot.last.index} was damaged while this server ran: {error}. Move the "
                "directory away and let the node join again as a new server"
            ) from error

    async def _entries(
        self, kind: CallKind[StorageReadResult], first: Index, last: Index, limit_bytes: int
    ) -> tuple[Entry, ...]:
        answer = await self._read_storage(
            kind, lambda number: ReadEntries(request_id=number, first=first, last=last, limit_bytes=limit_bytes)
        )
        return answer.entries if isinstance(answer, EntriesRead) else ()

    async def _read_storage(
        self, kind: CallKind[StorageReadResult], read: Callable[[int], StorageRead]
    ) -> StorageReadResult:
        def put(number: int) -> bool:
            self._put(read(-number))
            return True

        return await self._calls.ask(kind, put)


def _chunk_at(
    snapshot: SnapshotDescription, offset: int, limit_bytes: int = CHUNK_BYTES
) -> Callable[[int], StorageRead]:
    return lambda number: ReadSnapshot(request_id=number, last=snapshot.last, offset=offset, limit_bytes=limit_bytes)
