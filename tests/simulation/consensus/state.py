"""The state machine of a simulated server: all entries it took, from one life to the next only through snapshots.

Its snapshot holds every entry since index 1, so the judge can compare what came out of a snapshot, own or received,
with what was committed. What is applied while a snapshot is being read back waits, as it does in a real server.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from consensus.core.effects import Apply, ReadSnapshot, Restore, TakeSnapshot
from consensus.core.events import SnapshotRead, SnapshotTaken
from consensus.core.position import Entry, Index, SnapshotDescription
from consensus.node.executor import SideJob
from consensus.node.snapshots import SnapshotWriter
from consensus.wire.snapshot_image import ImageReader
from tests.node.kept_entries import decoded, encoded

OWN_READ = -1
_EVERYTHING = 2**40
_PIECE_BYTES = 300


@dataclass(slots=True)
class StateMachine:
    """What one life holds. `applied` and `restored` tell the judge."""

    on_applied: Callable[[Apply], None]
    on_restored: Callable[[SnapshotDescription, list[Entry]], None]
    entries: list[Entry] = field(default_factory=list)
    covered: Index = 0
    restoring: SnapshotDescription | None = None
    waiting: deque[Apply] = field(default_factory=deque)
    jobs: deque[SideJob] = field(default_factory=deque)
    writer: SnapshotWriter | None = None

    def apply(self, effect: Apply) -> None:
        """Entries are committed."""
        if self.restoring is not None:
            self.waiting.append(effect)
            return
        self.on_applied(effect)
        self.entries += effect.entries

    def begin_restore(self, effect: Restore) -> ReadSnapshot:
        """Begin anew: what is to be read first."""
        self.restoring = effect.snapshot
        self.waiting.clear()
        return ReadSnapshot(OWN_READ, effect.snapshot.last, 0, _EVERYTHING)

    def restore(self, answer: SnapshotRead) -> None:
        """What was read; nothing if a newer snapshot took its place."""
        snapshot = self.restoring
        if snapshot is None or answer.last != snapshot.last:
            return
        assert answer.data is not None, f"the snapshot of {snapshot.last} is gone"
        image = ImageReader()
        self.entries = decoded(b"".join(image.feed(answer.data)))
        assert image.finish() == snapshot
        self.restoring, self.covered = None, snapshot.last.index
        self.on_restored(snapshot, self.entries)
        while self.waiting:
            self.apply(self.waiting.popleft())

    def begin_snapshot(self, effect: TakeSnapshot) -> None:
        """Plan all of its writes."""
        writer = self.writer = SnapshotWriter(effect.last, effect.configuration)
        data = b"".join(encoded(tuple(self.entries[: effect.last.index])))
        plans = [writer.plan_begin()]
        plans += [writer.plan(data[start : start + _PIECE_BYTES]) for start in range(0, len(data), _PIECE_BYTES)]
        plans.append(writer.plan_end())
        self.jobs = deque(SideJob(tuple(plan), writer.file) for plan in plans)

    def end_snapshot(self, kept_behind: Index) -> SnapshotTaken:
        """All is written."""
        assert self.writer is not None
        snapshot, self.writer = self.writer.description, None
        self.covered = snapshot.last.index
        return SnapshotTaken(snapshot, snapshot.last.index + 1 - kept_behind)
