"""The persistent part of a machine: its disk, with all faults of the disk."""

from collections.abc import Callable, Sequence
from random import Random

from consensus.core.effects import ReadEntries
from consensus.core.model import Index, ServerId
from consensus.storage.disk import DiskOperation, RemoveFile
from consensus.storage.jobs import PreparationJob, SnapshotWrite, WriteJob
from consensus.storage.planner import Owner, Recovery, Storage, StorageOptions, read_extents, recover
from consensus.storage.snapshot_form import SnapshotForm
from tests.simulation.consensus.checker import Checker
from tests.simulation.consensus.faulty_disk import FaultyDisk
from tests.simulation.consensus.profile import Profile, place_of

_EVERYTHING = 2**62


class Keeper:
    """The disk of one server across its runs."""

    def __init__(
        self, server_id: ServerId, profile: Profile, random: Random, checker: Checker, form: SnapshotForm
    ) -> None:
        self._server_id = server_id
        self._random = random
        self._checker = checker
        self._options = StorageOptions(
            64 * 1024, profile.options.tail_entries, profile.options.tail_bytes, snapshot_form=form
        )
        self._generation = 0
        self._full_until_ms = 0
        self.disk = FaultyDisk()
        self.rotten = False

    def open(self, operate: Callable[[Sequence[DiskOperation]], None]) -> Recovery:
        """Recover, and have the judge check the result; raises `StorageError` and the errors of `operate`."""
        self._generation += 1
        own = place_of(self._server_id)
        owner = Owner(own.to_bytes(8, "big"), self._generation, place=1)
        recovery = recover(self.disk, owner, own.to_bytes(16, "big"), self._options)
        operate(recovery.operations)
        storage = recovery.storage
        first = storage._journal.start.index + 1
        extents = storage.extents(
            ReadEntries(request_id=0, first=first, last=storage.last.index, limit_bytes=_EVERYTHING)
        )
        entries = list(read_extents(self.disk, storage.binding, extents, 2**62))
        if self.rotten:
            self._checker.marks.see("rot healed or harmless")
            self.rotten = False
        self._checker.recovered(self._server_id, recovery.hard_state, first, entries)
        self._checker.marks.recovered(recovery.report)
        return recovery

    def power_off(self) -> None:
        """Lose or tear unsynced writes."""
        self.disk = self.disk.after_crash(self._random)

    def rot_entry(self, storage: Storage, proven: Index) -> str | None:
        """Flip a bit of an entry that other data proves durable; return None if there is no such entry."""
        first, last = storage._journal.start.index + 1, min(proven, storage.last.index)
        if first > last:
            return None
        index = self._random.randint(first, last)
        extent = storage.extents(ReadEntries(request_id=0, first=index, last=index, limit_bytes=_EVERYTHING))[0]
        offset_bytes = extent.offset_bytes + self._random.randrange(extent.length_bytes)
        self.disk.rot(extent.file, offset_bytes, self._random)
        self.rotten = True
        return f"{extent.file} at {offset_bytes}"

    def rot_anywhere(self) -> str:
        self.rotten = True
        return self.disk.rot_anywhere(self._random)

    def fill_up(self, until_ms: int) -> None:
        """Leave the disk without space until `until_ms`."""
        self._full_until_ms = max(self._full_until_ms, until_ms)

    def is_full(self, now_ms: int) -> bool:
        return now_ms < self._full_until_ms

    def break_off(self, job: WriteJob, start: int) -> int:
        """Stop a job midway because the disk is full; return the place to resume."""
        return self.disk.fill_up(job.operations, start, self._random)

    def give_up(self, job: SnapshotWrite | PreparationJob) -> None:
        """Remove the file of a snapshot or of the log's next segment if the disk is full: nothing waits for it."""
        if isinstance(job, SnapshotWrite):
            self._checker.marks.see("snapshot canceled because the disk was full")
        self.disk.fill_up(job.operations, 0, self._random)
        self.disk.perform(RemoveFile(job.file))
        job.operations, job.given_up = (), True
