"""Jobs of the disk, in order, from the server's executor to the disk worker.

    WriteJob          a group of Persists, with one sync of its entries: dependent work continues after the job
    HardStateJob      term and vote alone, during a group that waits for space
    ReadJob           entries or a chunk of a snapshot, for the core, for a reader or for the state machine
    SnapshotWrite     a chunk of a snapshot that is being taken: nothing depends on it yet
    PreparationJob    a step of the log's next segment

The executor makes jobs on the trio thread, from plans that touch no file; the disk worker performs them.
"""

from collections.abc import Callable, Iterator
from typing import assert_never

from msgspec import Struct

from consensus.core.effects import CheckSnapshot, ReadEntries, ReadSnapshot
from consensus.core.events import EntriesRead, SnapshotChecked, SnapshotRead
from consensus.storage.disk import DiskOperation, DiskReader
from consensus.storage.journal import SPARE, Extent
from consensus.storage.planner import read_extents
from consensus.storage.records import Binding
from consensus.storage.snapshot_form import IMAGE, SnapshotForm
from consensus.storage.snapshots import ChunkExtent, received_snapshot, received_state

StorageRead = ReadEntries | ReadSnapshot | CheckSnapshot
StorageReadResult = EntriesRead | SnapshotRead | SnapshotChecked


class WriteJob(Struct, frozen=True):
    """Perform `operations` in order; then every Persist up to `number` is durable."""

    number: int
    operations: tuple[DiskOperation, ...]


class ReadJob(Struct, frozen=True):
    """A read, performed by `answer`, in any thread.

    `extents` or `chunk` is the place of the data. Without a place, the data are no longer stored.
    """

    request: StorageRead
    binding: Binding
    extents: tuple[Extent, ...] = ()
    chunk: ChunkExtent | None = None
    check_state: Callable[[Iterator[bytes]], str | None] = lambda _: None
    """Returns the state machine's objection to a received snapshot, or None."""
    form: SnapshotForm = IMAGE

    def answer(self, reader: DiskReader) -> StorageReadResult:
        """Read; raises `StorageError` or `OSError`."""
        match self.request:
            case ReadEntries(request_id=request_id, first=first, limit_bytes=limit_bytes):
                entries = read_extents(reader, self.binding, self.extents, limit_bytes) if self.extents else ()
                return EntriesRead(request_id, first, entries)
            case ReadSnapshot(request_id=request_id, last=last, offset=offset):
                if self.chunk is None:
                    return SnapshotRead(request_id=request_id, last=last, offset=offset, data=None, done=False)
                data = reader.read(self.chunk.file, self.chunk.offset_bytes, self.chunk.length_bytes)
                return SnapshotRead(request_id=request_id, last=last, offset=offset, data=data, done=self.chunk.done)
            case CheckSnapshot(request_id, last, configuration):
                snapshot = received_snapshot(reader, self.form.reading(last, configuration))
                state = received_state(reader, self.form.reading(last, configuration))
                objection = None if snapshot is None else self.check_state(state)
                return SnapshotChecked(request_id, snapshot, objection)
            case _:
                assert_never(self.request)


class SnapshotWrite(Struct, eq=False):
    """Operations on `file`, which nothing depends on yet: a snapshot being taken. Abandoned on a full disk."""

    operations: tuple[DiskOperation, ...]
    file: str
    settle: bool = False
    """True if the job must wait for all Persists that the core emitted before it."""
    given_up: bool = False


class PreparationJob(Struct, eq=False):
    """Operations on `file`: a step of the log's next segment. Abandoned on a full disk."""

    operations: tuple[DiskOperation, ...]
    file: str = SPARE
    given_up: bool = False


class HardStateJob(Struct, frozen=True):
    """Operations during a blocked group; then the hard state of every Persist up to `number` is durable."""

    number: int
    operations: tuple[DiskOperation, ...]


Job = WriteJob | HardStateJob | ReadJob | SnapshotWrite | PreparationJob
