"""The small port between the planners of durable state and a disk: six operations and three questions.

`Journal`, `HardState` and `Storage` never touch a file. They *plan*: they return a list of operations that a disk
performs in order, one after the other, and they are told when the list is done. On a machine the disk is
`consensus.storage.directory` (a real directory, in a worker thread); in the simulator it is one that may crash between
any two operations.

What a disk promises, and what planners may rely on:

* `WriteBytes` is durable only after a later `SyncFile` of the same file returns. Until then a crash may keep any part
  of it: none, all, a torn piece, and pieces of later writes without earlier ones. A write never damages bytes outside
  its own range ("powersafe overwrite"; sectors are rewritten with what they held).
* `CreateFile`, `RenameFile` and `RemoveFile` are durable only after a later `SyncDirectory`. Until then a crash may
  undo any subset of them. The content and size of a created file are durable after `SyncFile`, whatever its name is
  by then.
* Every operation may be performed again after a failure: a group that met a full disk is repeated from behind the last
  sync that succeeded, and must then lead to the same bytes. So plans finish with one file before they touch the next,
  `CreateFile` replaces, and `RemoveFile` of a missing file, like `RenameFile` of one that has its new name, is nothing.
* Between operations of one process reads see every write, durable or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CreateFile:
    """Create `file` anew, filled with `size_bytes` zeros that are really written (blocks allocated, not a hole)."""

    file: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WriteBytes:
    """Overwrite `data` at `offset_bytes`.

    Planners write beyond the size that a file was created with only while it has a name that ends in `.new`: a snapshot
    grows, because its size is not known before its end.
    """

    file: str
    offset_bytes: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SyncFile:
    """Make every earlier write to `file` durable (fdatasync)."""

    file: str


@dataclass(frozen=True, slots=True)
class RenameFile:
    """Give `file` the name `to`, replacing what has that name."""

    file: str
    to: str


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove `file`; a missing file is no error."""

    file: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """Make every earlier creation, renaming and removal durable."""


DiskOperation = CreateFile | WriteBytes | SyncFile | RenameFile | RemoveFile | SyncDirectory


class DiskReader(Protocol):
    """The questions that recovery and reads ask."""

    def files(self) -> Sequence[str]:
        """Names of the files in the directory, in any order."""

    def size(self, file: str) -> int:
        """Size of `file` in bytes."""

    def read(self, file: str, offset_bytes: int, length_bytes: int) -> bytes:
        """Bytes of `file` from `offset_bytes` on; fewer than `length_bytes` only at its end."""


STOP_SECONDS = 5.0
"""How long a server that stops waits for a disk that does not answer. A slow disk needs less; a hung one never ends."""
PROCESS_STOP_SECONDS = 12.0
"""How long a process may take to close: its server waits for a write, then for the mark of a clean stop, each so long.
An end before both are over would take a disk that is slow for one that hangs."""


class StorageError(Exception):
    """Stored state cannot be used. The text tells an operator what happened, to what, and what to do next."""


class DamagedStorageError(StorageError):
    """Something that had been made durable is damaged or missing: the server must be rebuilt, never guessed."""


class ForeignStorageError(StorageError):
    """The directory belongs to another node, or is a copy: with it a server could vote twice."""


class StorageInUseError(StorageError):
    """Another process has the directory open."""


class DiskHangsError(StorageError):
    """The disk has not done what was begun within `STOP_SECONDS` of the stop of its server, which waits no longer."""

    def __init__(self) -> None:
        super().__init__(
            f"the disk did not finish a write within {STOP_SECONDS:g} s of the stop, and the server stops without it:"
            " acknowledged entries are durable, other entries may be lost. Check the disk of the log, then start"
            " again"
        )
