"""A disk that also fills up and rots, on top of `CrashDisk`, which loses and tears unsynced writes.

A full disk stops a job midway. The job continues after its last sync, as on a real disk. Rot flips one bit of synced
data, in the cache and on the disk itself.
"""

from collections.abc import Sequence
from random import Random

from consensus.storage.disk import DiskOperation, SyncDirectory, SyncFile
from tests.node.crash_disk import CrashDisk


class FaultyDisk(CrashDisk):
    """The disk of one machine across its crashes."""

    def fill_up(self, operations: Sequence[DiskOperation], start: int, random: Random) -> int:
        """Perform operations from `start` until the disk is full; return the place to resume."""
        resume_at = start
        for number in range(start, random.randrange(start, len(operations))):
            self.perform(operations[number])
            if isinstance(operations[number], SyncFile | SyncDirectory):
                resume_at = number + 1
        return resume_at

    def rot(self, file: str, offset_bytes: int, random: Random) -> None:
        """Flip one bit of a byte."""
        stored, bit = self.names[file], 1 << random.randrange(8)
        for content in (stored.now, stored.platter):
            if offset_bytes < len(content):
                content[offset_bytes] ^= bit

    def rot_anywhere(self, random: Random) -> str:
        """Flip one bit of any file, mostly in its used part; return its location."""
        file = random.choice(sorted(self.names))
        content = self.names[file].now
        used = len(content.rstrip(b"\0")) if random.random() < 0.9 else len(content)
        offset_bytes = random.randrange(max(1, used))
        self.rot(file, offset_bytes, random)
        return f"{file} at {offset_bytes}"

    def after_crash(self, random: Random) -> "FaultyDisk":
        left = self.crash(random)
        return FaultyDisk(left.names, left.durable_names)
