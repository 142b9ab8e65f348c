"""The interface between the planners of durable state and a disk: six operations and three queries.

`Journal`, `HardStateFile` and `Storage` never touch a file. They *plan*: they return a list of operations, a disk
performs them in order, and the caller reports the completion. On a machine the disk is `consensus.storage.directory` (a
real directory, in a worker thread). The simulator's disk may crash between any two operations.

Guarantees of a disk, for planners:

* `WriteBytes` is durable only after a later `SyncFile` of the same file returns. Until then a crash may keep any part
  of it: none, all, a torn piece, and pieces of later writes without earlier ones. A write never damages bytes outside
  its own range ("powersafe overwrite"; sectors are rewritten with their old bytes).
* `CreateFile`, `RenameFile` and `RemoveFile` are durable only after a later `SyncDirectory`. Until then a crash may
  undo any subset of them. The content and size of a created file are durable after `SyncFile`, under any name.
* Every operation may be repeated after a failure: after a full disk, a group resumes after its last successful sync.
  The resulting bytes must be the same. So plans finish one file before the next. `CreateFile` replaces a file.
  `RemoveFile` of a missing file and `RenameFile` of a renamed file do nothing.
* Between operations of one process reads see every write, durable or not.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class CreateFile(Struct, frozen=True):
    """Create or replace `file`, filled with `size_bytes` written zeros (allocated blocks, not a hole)."""

    file: str
    size_bytes: int


class WriteBytes(Struct, frozen=True):
    """Write `data` at `offset_bytes`.

    Planners write beyond the created size only in files whose name ends in `.new`: a growing snapshot, or the next
    segment.
    """

    file: str
    offset_bytes: int
    data: bytes


class SyncFile(Struct, frozen=True):
    """Make every earlier write to `file` durable (fdatasync)."""

    file: str


class RenameFile(Struct, frozen=True):
    """Rename `file` to `to`, and replace a file with that name."""

    file: str
    to: str


class RemoveFile(Struct, frozen=True):
    """Remove `file`; a missing file is not an error."""

    file: str


class SyncDirectory(Struct, frozen=True):
    """Make every earlier creation, renaming and removal durable."""


DiskOperation = CreateFile | WriteBytes | SyncFile | RenameFile | RemoveFile | SyncDirectory


class DiskReader(Protocol):
    """The queries of recovery and reads."""

    def files(self) -> Sequence[str]:
        """Return the names of the files in the directory, in any order."""

    def size(self, file: str) -> int:
        """Return the size of `file` in bytes."""

    def read(self, file: str, offset_bytes: int, length_bytes: int) -> bytes:
        """Return bytes of `file` from `offset_bytes` on; fewer than `length_bytes` only at its end."""


STOP_SECONDS = 5.0
"""Time that a stopping server waits for an unresponsive disk. A slow disk needs less; a hung one never finishes."""
PROCESS_STOP_SECONDS = 12.0
"""Limit in seconds for the end of a process.

Its server waits up to `STOP_SECONDS` for a write, and then up to `STOP_SECONDS` + 1 s for the mark of a clean stop.
With a shorter limit, a slow disk would be treated as a hung one.
"""


class StorageError(Exception):
    """Stored state cannot be used. The text contains the failure, its object and the remedy for an operator."""


class DamagedStorageError(StorageError):
    """Durable state is damaged or missing. The server must be rebuilt, because lost state cannot be guessed."""


class ForeignStorageError(StorageError):
    """The directory belongs to another node, or is a copy: with it a server could vote twice."""


class StorageInUseError(StorageError):
    """Another process has the directory open."""


class DiskHangsError(StorageError):
    """The disk did not finish its work within `STOP_SECONDS` of the stop of its server, which no longer waits."""

    def __init__(self) -> None:
        super().__init__(
            f"the disk did not finish a write within {STOP_SECONDS:g} s of the stop, and the server stops without it:"
            " acknowledged entries are durable, other entries may be lost. Check the disk of the log, then start"
            " again"
        )
