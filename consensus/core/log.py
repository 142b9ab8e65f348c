"""The log of a replica in memory: runs of terms, the newest entries, and the durable index.

The log may be larger than the memory. Decisions need only the term at every index. So `Log` keeps the *runs of terms*
(one record per term with entries) and a *tail*: a bounded number of the newest entries. Older entries are read back
from storage (`ReadEntries`), for a lagging follower or for a state machine after a restart. Entries that are not yet
durable never leave the tail, because storage could not return them.

    index     1  2  3  4  5  6  7  8  9
    term      1  1  1  4  4  5  5  6  6        runs  (1, t1) (4, t4) (6, t5) (8, t6)
                                ^  ^  ^        tail  7..9
                                ^              durable 7: Persists of 8 and 9 are under way

*Compaction.* A log may begin later than at index 1. `start` is the place before its first entry, and a snapshot covers
everything up to this place (Raft section 7). The snapshot usually covers later entries as well: the log keeps them for
a while, for followers with a short lag. The consistency check of the first entry needs the term at `start`.

Configurations take effect when appended and are undone when their entry is truncated (Raft section 6). So the log keeps
the index of each change of the configuration.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from consensus.core.entry_data import configuration_in, decode_configuration
from consensus.core.model import (
    COMMAND,
    ORIGIN,
    Configuration,
    Entry,
    EntryKind,
    Index,
    LogId,
    SnapshotDescription,
    Term,
)

ENTRY_OVERHEAD_BYTES = 32
"""Cost of an entry in addition to its data, on any wire and in memory, so that empty entries are not free."""


def entry_bytes(entry: Entry) -> int:
    """Return the size of an entry for the purpose of limits."""
    return ENTRY_OVERHEAD_BYTES + len(entry.data)


class TermRun(Struct, frozen=True):
    """A run of terms: the entries from `first` to the next run have `term`."""

    first: Index
    term: Term


class RecoveredLog(Struct, frozen=True):
    """The durable log that storage recovered at start. The default is an empty log.

    The log begins after `start`: the origin, or a place that `snapshot` covers. `tail` holds the entries from
    `tail_first` to the end; the core drops those beyond its limit. `configurations` are the entries that change the
    configuration, oldest first.
    """

    runs: tuple[TermRun, ...] = ()
    tail_first: Index = 1
    tail: tuple[Entry, ...] = ()
    configurations: tuple[tuple[Index, Configuration], ...] = ()
    start: LogId = ORIGIN
    snapshot: SnapshotDescription | None = None

    @property
    def last(self) -> LogId:
        """Return the position of the last entry."""
        return LogId(self.tail_first + len(self.tail) - 1, self.runs[-1].term if self.runs else self.start.term)

    @property
    def names_configuration(self) -> bool:
        """Return True if the log or its snapshot contains a configuration: a server can start with the log alone."""
        return bool(self.configurations) or self.snapshot is not None


def describe_entries(entries: Sequence[Entry]) -> RecoveredLog:
    """Return the recovered log that holds exactly `entries`, from index 1 on."""
    runs: list[TermRun] = []
    configurations: list[tuple[Index, Configuration]] = []
    for index, entry in enumerate(entries, start=1):
        if not runs or runs[-1].term != entry.term:
            runs.append(TermRun(index, entry.term))
        configuration = configuration_in(entry)
        if configuration is not None and (not configurations or configurations[-1][1] != configuration):
            configurations.append((index, configuration))
    return RecoveredLog(tuple(runs), 1, tuple(entries), tuple(configurations))


class Log:
    """The log of one replica. Indexes are 1-based; index 0 with term 0 is the place before the first entry."""

    def __init__(self, recovered: RecoveredLog, initial: Configuration) -> None:
        self._base = recovered.snapshot.configuration if recovered.snapshot is not None else initial
        self.start = recovered.start
        """The place before the first entry: the origin, or a place that the snapshot covers."""
        self.snapshot = recovered.snapshot
        """The newest snapshot, of committed entries only."""
        self._runs = list(recovered.runs)
        self._tail = list(recovered.tail)
        self._tail_first = recovered.tail_first
        self._bytes_before = 0
        self._bytes_up_to = list(accumulate(map(entry_bytes, recovered.tail)))
        self._newest: tuple[Entry, ...] = ()
        self._newest_encoded = b""
        self._configurations = list(recovered.configurations)
        self.configuration = self._latest_configuration()
        """The latest configuration in the log, committed or not; else the snapshot's; else the initial one."""
        self.last_index = recovered.last.index
        """Index of the newest entry, durable or not."""
        self.last_term = recovered.last.term
        self.durable_index = self.last_index
        """The last durable index: after a restart, the log still contains the entries up to this index."""
        self._writing: deque[tuple[int, Index]] = deque()

    @property
    def last(self) -> LogId:
        """Return the position of the last entry."""
        return LogId(self.last_index, self.last_term)

    @property
    def tail_first(self) -> Index:
        """The oldest index in memory (one beyond the end of the log if the tail is empty)."""
        return self._tail_first

    @property
    def tail_bytes(self) -> int:
        """Size of the entries in memory."""
        return self._bytes_up_to[-1] - self._bytes_before if self._bytes_up_to else 0

    @property
    def writing_number(self) -> int:
        """The number of the newest Persist under way that changes the log, or 0."""
        return self._writing[-1][0] if self._writing else 0

    def configuration_at(self, index: Index) -> Configuration:
        """Return the configuration in force at `index`.

        Before the end of a recovered snapshot, it may be the configuration of the snapshot.
        """
        known = bisect_right(self._configurations, index, key=_index_of)
        return self._configurations[known - 1][1] if known else self._base

    @property
    def configuration_index(self) -> Index:
        """Return the index of the latest configuration.

        If the log does not contain a configuration, return the index of `start`.
        """
        return self._configurations[-1][0] if self._configurations else self.start.index

    @property
    def names_configuration(self) -> bool:
        """Return True if a new server could learn the configuration from this log or its snapshot."""
        return bool(self._configurations) or self.snapshot is not None

    @property
    def previous_configuration(self) -> Configuration:
        """Return the configuration before the latest, while a change is under way; otherwise it may be the latest.

        It is committed, because a change begins only after the commitment of the previous change.
        """
        return self._configurations[-2][1] if len(self._configurations) > 1 else self._base

    def configurations_after(self, index: Index) -> int:
        """Return the number of configuration changes after `index`."""
        return sum(changed > index for changed, _ in self._configurations)

    def term_at(self, index: Index) -> Term | None:
        """Return the term of the entry at `index` or at `start`; None for any other index."""
        if index > self.last_index:
            return None
        if self._runs and index >= self._runs[-1].first:
            return self.last_term
        if index <= self.start.index:
            return self.start.term if index == self.start.index else None
        return self._runs[self._run_at(index)].term

    def matches(self, position: LogId) -> bool:
        """Return True if this log has the entry at `position` in that term: the consistency check of AppendEntries."""
        return self.term_at(position.index) == position.term

    def divergence(self, other: LogId) -> LogId:
        """Return the last position up to `other` that this log may share with a log that ends with `other`.

        Terms never fall along a log. So a log that ends with `other` cannot contain our entries with a later term than
        the term of `other`. The compacted part cannot be compared: the result is never before `start`.
        """
        index = max(self.start.index, min(other.index, self.last_index))
        while index > self.start.index and (self.term_at(index) or 0) > other.term:
            index = self._runs[self._run_at(index)].first - 1
        return LogId(index, self.term_at(index) or 0)

    def first_of_term_at(self, index: Index) -> Index:
        """Return the first index of the run of entries with the term of the entry at `index`."""
        return self._runs[self._run_at(index)].first

    def entries(self, first: Index, last: Index, limit_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries [first, last], at least one if the range has any, cut at `limit_bytes`.

        Return None if they begin before the tail.
        """
        if first < self._tail_first:
            return None
        tail, begin, end = self._tail, first - self._tail_first, min(last, self.last_index) + 1 - self._tail_first
        if end <= begin:
            return ()
        end = bisect_right(self._bytes_up_to, self._size_before(begin) + limit_bytes, begin + 1, end)
        if end == len(tail) and end - begin == len(self._newest):
            return self._newest
        return tuple(tail[begin:end])

    def size_bytes(self, first: Index, last: Index) -> int:
        """Return the size of the entries [first, last], which are in memory."""
        return self._size_before(last + 1 - self._tail_first) - self._size_before(first - self._tail_first)

    def encoded(self, entries: tuple[Entry, ...]) -> bytes:
        """Return the bytes of `entries` if they are the newest appended group, otherwise no bytes."""
        return self._newest_encoded if entries is self._newest else b""

    def append(self, entries: tuple[Entry, ...], encoded: bytes = b"") -> None:
        """Add entries at the end; `encoded` contains their bytes if already available.

        Next, the caller calls `written` with the number of the Persist that contains these entries; the entries are
        durable when that Persist is durable.
        """
        term = self.last_term
        size = self._size_before(len(self._tail))
        ends: list[int] = []
        for entry in entries:
            if entry.term != term or not self._runs:
                term = entry.term
                self._runs.append(TermRun(self.last_index + len(ends) + 1, term))
            if entry.kind is not COMMAND and entry.kind is EntryKind.CONFIGURATION:
                self._configure(self.last_index + len(ends) + 1, decode_configuration(entry.data))
            size += ENTRY_OVERHEAD_BYTES + len(entry.data)
            ends.append(size)
        self._bytes_up_to.extend(ends)
        self._tail.extend(entries)
        self.last_index += len(entries)
        self.last_term = term
        self._newest, self._newest_encoded = entries, encoded

    def _size_before(self, position: int) -> int:
        """Return the cumulative size of all entries before a place in the tail."""
        return self._bytes_up_to[position - 1] if position else self._bytes_before

    def _configure(self, index: Index, configuration: Configuration) -> None:
        """Store the decoded configuration of the entry at `index`, if it differs from the previous configuration."""
        if configuration != self.configuration or not self.names_configuration:
            self._configurations.append((index, configuration))
            self.configuration = configuration

    def _latest_configuration(self) -> Configuration:
        return self._configurations[-1][1] if self._configurations else self._base

    def truncate_from(self, index: Index) -> None:
        """Drop the entry at `index` and all later entries."""
        kept = max(0, index - self._tail_first)
        del self._tail[kept:], self._bytes_up_to[kept:]
        self.last_index = min(self.last_index, index - 1)
        self._newest, self._newest_encoded = (), b""
        if not self._tail:
            self._tail_first = min(self._tail_first, index)
        while self._runs and self._runs[-1].first >= index:
            self._runs.pop()
        while self._configurations and self._configurations[-1][0] >= index:
            self._configurations.pop()
        self.last_term = self._runs[-1].term if self._runs else self.start.term
        self.configuration = self._latest_configuration()
        self.durable_index = min(self.durable_index, index - 1)
        self._writing = deque((number, min(last, index - 1)) for number, last in self._writing)

    def compact(self, snapshot: SnapshotDescription, first_kept: Index) -> None:
        """Record `snapshot` of a prefix of this log; drop the entries before `first_kept`, which are durable."""
        self.snapshot = snapshot
        if first_kept <= self.start.index + 1:
            return
        base = self.configuration_at(first_kept - 1)
        self.start = LogId(first_kept - 1, self.term_at(first_kept - 1) or 0)
        self._forget_oldest(min(len(self._tail), max(0, first_kept - self._tail_first)))
        self._tail_first = max(self._tail_first, first_kept)
        self._runs = self._runs[self._run_at(first_kept) :] if first_kept <= self.last_index else []
        if self._runs and self._runs[0].first < first_kept:
            self._runs[0] = TermRun(first_kept, self._runs[0].term)
        del self._configurations[: bisect_right(self._configurations, first_kept - 1, key=_index_of)]
        self._base = base

    def replace(self, snapshot: SnapshotDescription) -> None:
        """Discard the whole log: it begins after `snapshot` (Raft figure 13, rule 7)."""
        self.snapshot = snapshot
        self.start = snapshot.last
        self._base = snapshot.configuration
        self._runs.clear()
        self._configurations.clear()
        self._tail.clear()
        self._bytes_up_to.clear()
        self._newest, self._newest_encoded = (), b""
        self._tail_first = snapshot.last.index + 1
        self.last_index, self.last_term = snapshot.last.index, snapshot.last.term
        self.configuration = snapshot.configuration
        self.durable_index = 0
        self._writing = deque((number, 0) for number, _ in self._writing)

    def written(self, number: int) -> None:
        """Record that Persist `number` contains the log up to its current end."""
        self._writing.append((number, self.last_index))

    def persisted(self, number: int) -> None:
        """Record that every Persist up to `number` is durable."""
        while self._writing and self._writing[0][0] <= number:
            self.durable_index = self._writing.popleft()[1]

    def trim(self, keep_entries: int, keep_bytes: int) -> None:
        """Drop the oldest durable entries if memory holds over an eighth too many entries, or too many bytes.

        The eighth makes removals rare: each removal moves all later entries in memory.
        """
        ends = self._bytes_up_to
        if len(ends) <= keep_entries + keep_entries // 8 and self.tail_bytes <= keep_bytes:
            return
        too_large = bisect_left(range(len(ends)), ends[-1] - keep_bytes, key=self._size_before)
        removable = max(0, self.durable_index + 1 - self._tail_first)
        self._forget_oldest(min(removable, max(too_large, len(ends) - keep_entries)))

    def faults(self) -> Iterator[str]:
        """Yield contradictions in the state of the log, for the invariants."""
        if self.last_index != self._tail_first + len(self._tail) - 1:
            yield "last index differs from the end of the tail"
        if self.last_term != (self._runs[-1].term if self._runs else self.start.term):
            yield "last term differs from the newest run"
        if self.configuration != self._latest_configuration():
            yield "configuration differs from the latest"
        place = self._configurations[-1][0] if self._configurations else 0
        if place > self.last_index or (
            place >= self._tail_first and self._tail[place - self._tail_first].kind is not EntryKind.CONFIGURATION
        ):
            yield "configuration of an entry that is not in the log"

    def _forget_oldest(self, count: int) -> None:
        self._bytes_before = self._size_before(count)
        del self._tail[:count], self._bytes_up_to[:count]
        self._tail_first += count

    def _run_at(self, index: Index) -> int:
        return bisect_right(self._runs, index, key=_first_of) - 1


def _first_of(run: TermRun) -> Index:
    return run.first


def _index_of(known: tuple[Index, Configuration]) -> Index:
    return known[0]
