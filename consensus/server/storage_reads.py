"""What the server itself wants to know from its disk: entries for readers, the snapshot for the state machine.

The core asks too; its questions have positive numbers, ours negative ones. They take their turn with the core's in the
executor, behind every Persist that was emitted before, and the answer comes back in a turn.
"""

from collections.abc import AsyncIterator, Callable

from consensus.core.effects import ReadEntries, ReadSnapshot
from consensus.core.events import EntriesRead, SnapshotRead
from consensus.core.model import Entry, Index, SnapshotDescription
from consensus.server.applying import SnapshotReplacedError
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.executor import StorageRead, StorageReadResult
from consensus.server.mailbox import Awaited
from consensus.storage.disk import DamagedStorageError
from consensus.storage.records import RecordError
from consensus.storage.snapshot_image import ImageReader
from consensus.storage.snapshots import PIECE_BYTES


class DiskQuestions:
    """Questions that the disk has not answered."""

    def __init__(self, put: Callable[[StorageRead], None]) -> None:
        self._put = put
        self._waiting: dict[int, Awaited[StorageReadResult]] = {}
        self._last_number = 0
        self._ended = False

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._waiting)

    async def entries(self, first: Index, last: Index, limit_bytes: int) -> tuple[Entry, ...]:
        """Entries [first, last], at least one; none if they are not there."""
        answer = await self._ask(lambda number: ReadEntries(number, first, last, limit_bytes))
        return answer.entries if isinstance(answer, EntriesRead) else ()

    async def entries_unless_busy(self, first: Index, last: Index, limit_bytes: int, most: int) -> tuple[Entry, ...]:
        """Like `entries`, and none for an empty range; raises `ServerBusyError` if `most` questions are under way."""
        if first < 1 or last < first:
            return ()
        if len(self) >= most:
            raise ServerBusyError(f"{len(self)} reads are under way")
        return await self.entries(first, last, limit_bytes)

    async def state(self, snapshot: SnapshotDescription) -> AsyncIterator[bytes]:
        """The state machine's bytes in the stored snapshot."""
        image, offset, done = ImageReader(), 0, False
        try:
            while not done:
                answer = await self._ask(_piece_of(snapshot, offset))
                if not isinstance(answer, SnapshotRead) or answer.data is None:
                    raise SnapshotReplacedError
                for data in image.feed(answer.data):
                    yield data
                offset, done = offset + len(answer.data), answer.done
            image.finish()
        except RecordError as error:
            raise DamagedStorageError(
                f"the snapshot of index {snapshot.last.index} was damaged while this server ran: {error}. Move the "
                "directory away and let the node join again as a new server"
            ) from error

    def answered(self, number: int, answer: StorageReadResult) -> bool:
        """The disk answered; returns False if the question is the core's."""
        awaited = self._waiting.get(number)
        if awaited is not None:
            awaited.give(answer)
        return number < 0

    def end(self) -> None:
        """The server stops."""
        self._ended = True
        for awaited in self._waiting.values():
            awaited.give(None)

    async def _ask(self, make: Callable[[int], StorageRead]) -> StorageReadResult:
        if self._ended:
            raise ServerStoppedError("the server has stopped")
        self._last_number -= 1
        number = self._last_number
        awaited = self._waiting[number] = Awaited[StorageReadResult]()
        self._put(make(number))
        try:
            answer = await awaited.wait()
        finally:
            del self._waiting[number]
        if answer is None:
            raise ServerStoppedError("the server has stopped")
        return answer


def _piece_of(snapshot: SnapshotDescription, offset: int) -> Callable[[int], StorageRead]:
    return lambda number: ReadSnapshot(number, snapshot.last, offset, PIECE_BYTES)
