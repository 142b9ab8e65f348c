"""A disk in memory that can crash. Unsynced writes survive in part, torn or not, in any order.

`crash` can produce every state that the disk port allows. Each unsynced write keeps a random part of its bytes: none,
all, a prefix, or random 512-byte sectors. Any subset of the unsynced directory changes is undone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import assert_never

from consensus.storage.disk import (
    CreateFile,
    DiskOperation,
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)

SECTOR_BYTES = 512


@dataclass(eq=False)
class StoredFile:
    """One file: its bytes as reads return them, its durable bytes, and the writes since the last sync."""

    now: bytearray
    platter: bytearray
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass
class CrashDisk:
    """A disk port in memory."""

    names: dict[str, StoredFile] = field(default_factory=dict)
    durable_names: dict[str, StoredFile] = field(default_factory=dict)
    name_changes: list[tuple[str, StoredFile | None]] = field(default_factory=list)
    synced_files: int = 0

    def files(self) -> Sequence[str]:
        """Return the file names, including unsynced changes."""
        return list(self.names)

    def size(self, file: str) -> int:
        """Return the file size, including unsynced writes."""
        return len(self.names[file].now)

    def read(self, file: str, offset_bytes: int, length_bytes: int) -> bytes:
        """Return bytes, including unsynced writes."""
        return bytes(self.names[file].now[offset_bytes : offset_bytes + length_bytes])

    def perform(self, operation: DiskOperation) -> None:
        match operation:
            case CreateFile(file, size_bytes):
                # The durable file may be shorter until the sync.
                self._name(file, StoredFile(bytearray(size_bytes), bytearray()))
            case WriteBytes(file, offset_bytes, data):
                stored = self.names[file]
                end = offset_bytes + len(data)
                assert end <= len(stored.now) or file.endswith(".new"), "a write beyond the end of the file"
                stored.now.extend(bytes(max(0, end - len(stored.now))))
                stored.now[offset_bytes : offset_bytes + len(data)] = data
                stored.unsynced.append((offset_bytes, data))
            case SyncFile(file):
                stored = self.names[file]
                stored.platter.extend(bytes(len(stored.now) - len(stored.platter)))
                for offset_bytes, data in stored.unsynced:
                    stored.platter[offset_bytes : offset_bytes + len(data)] = data
                stored.unsynced.clear()
                self.synced_files += 1
            case RenameFile(file, to):
                if file in self.names:
                    stored = self.names[file]
                    self._name(file, None)
                    self._name(to, stored)
                else:
                    assert to in self.names, "a rename that was never done is repeated"
            case RemoveFile(file):
                self._name(file, None)
            case SyncDirectory():
                self.durable_names = dict(self.names)
                self.name_changes.clear()
            case _:
                assert_never(operation)

    def run(self, operations: Sequence[DiskOperation]) -> None:
        for operation in operations:
            self.perform(operation)

    def crash(self, random: Random) -> "CrashDisk":
        """Return the disk as the next run finds it."""
        names = dict(self.durable_names)
        for name, stored in self.name_changes:
            if random.random() < 0.5:
                continue
            if stored is None:
                names.pop(name, None)
            else:
                names[name] = stored
        copies = {}
        for name, stored in names.items():
            content = bytearray(stored.platter)
            for offset_bytes, data in stored.unsynced:
                self._tear(content, offset_bytes, data, random)
            copies[name] = StoredFile(content, bytearray(content))
        return CrashDisk(dict(copies), dict(copies))

    @staticmethod
    def _tear(content: bytearray, offset_bytes: int, data: bytes, random: Random) -> None:
        kind = random.randrange(4)
        if kind == 0:
            return
        if len(content) < offset_bytes + len(data):
            content.extend(bytes(offset_bytes + len(data) - len(content)))
        if kind == 1:
            content[offset_bytes : offset_bytes + len(data)] = data
        elif kind == 2:
            kept = random.randrange(len(data) + 1)
            content[offset_bytes : offset_bytes + kept] = data[:kept]
        else:
            end = offset_bytes + len(data)
            start = offset_bytes
            while start < end:
                stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
                if random.random() < 0.5:
                    content[start:stop] = data[start - offset_bytes : stop - offset_bytes]
                start = stop

    def _name(self, file: str, stored: StoredFile | None) -> None:
        self.name_changes.append((file, stored))
        if stored is None:
            self.names.pop(file, None)
        else:
            self.names[file] = stored
