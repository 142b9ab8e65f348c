"""Hands committed entries to the state machine: in order, each once, however old they are.

The commit index is volatile (Raft figure 2): after a restart it is that of the snapshot, or 0, and rises with the first
word from a leader, so the state machine sees the log again from there on. Entries that left the tail are read back, one
`ReadEntries` at a time; while a read is under way nothing newer is applied, which keeps the order.
"""

from consensus.core.effects import Apply, ReadEntries, Restore
from consensus.core.log import Log
from consensus.core.model import Entry, Index, SnapshotDescription
from consensus.core.options import Options
from consensus.core.outbox import Outbox


class Applier:
    """The commit index, and how far the state machine has come."""

    def __init__(self, log: Log, outbox: Outbox, options: Options) -> None:
        self._log = log
        self._outbox = outbox
        self._options = options
        self._read: int | None = None
        self._reads = 0
        covered = log.snapshot.last.index if log.snapshot is not None else 0
        self.commit: Index = covered
        self.applied: Index = covered

    def next_read_id(self) -> int:
        """A number for a `ReadEntries`, unique in this process."""
        self._reads += 1
        return self._reads

    def commit_up_to(self, index: Index) -> bool:
        """Raise the commit index (it never falls) and apply what it covers; returns whether it rose."""
        if index <= self.commit:
            return False
        self.commit = index
        self._apply()
        return True

    def restore(self, snapshot: SnapshotDescription) -> None:
        """The state machine begins anew from `snapshot`, which is ahead of all that it has seen."""
        self._read = None
        self.commit = self.applied = snapshot.last.index
        self._outbox.add(Restore(snapshot))

    def entries_read(self, request_id: int, first: Index, entries: tuple[Entry, ...]) -> bool:
        """Storage answered; returns False if the read is not one of ours."""
        if request_id != self._read:
            return False
        self._read = None
        if first == self.applied + 1 and entries and self.applied + len(entries) <= self.commit:
            self._hand_over(entries)
        self._apply()
        return True

    def _apply(self) -> None:
        while self.applied < self.commit and self._read is None:
            first = self.applied + 1
            last = min(self.commit, self.applied + self._options.max_entries_per_append)
            entries = self._log.entries(first, last, self._options.max_bytes_per_append)
            if entries is None:
                self._read = self.next_read_id()
                self._outbox.add(ReadEntries(self._read, first, last, self._options.max_bytes_per_append))
            else:
                self._hand_over(entries)

    def _hand_over(self, entries: tuple[Entry, ...]) -> None:
        self._outbox.add(Apply(self.applied + 1, entries))
        self.applied += len(entries)
