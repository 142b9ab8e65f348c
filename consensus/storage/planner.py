"""The planner of all durable state of one server: it turns Raft's Persists into disk operations.

    recover(reader, owner, …) ──▶ Recovery(storage, hard state, log, report, operations)   perform the operations first
    storage.plan(persists)    ──▶ [DiskOperation …]     one group, for any number of Persists
    storage.done()                                      the group was performed: now its Persists are durable
    storage.extents(request)  ──▶ the place to read     `read_extents` does the reading, in any thread
    storage.plan_close()      ──▶ [DiskOperation …]     a clean stop; later damage is never mistaken for a torn tail

A group is carried out in the order that Raft needs. The hard state comes first, with the record of a truncation in
progress. The truncation follows, then the entries and their one sync. No entry of a term may be durable before the term
is.

The storage belongs to one node in one place. `recover` refuses a hard state from another node, from another directory
(a copy has another inode), or from a later generation of this node. With such a directory, a server could vote twice in
one term.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from consensus.core.effects import Compact, Install, Persist, ReadEntries, ReadSnapshot, SnapshotChange, StoreChunk
from consensus.core.entry_data import encode_group
from consensus.core.log import RecoveredLog, entry_bytes
from consensus.core.model import Entry, HardState, Index, LogId, SnapshotDescription
from consensus.core.words import counted
from consensus.storage.disk import (
    DamagedStorageError,
    DiskOperation,
    DiskReader,
    ForeignStorageError,
    RemoveFile,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)
from consensus.storage.hard_state import STATE_FILE, HardStateFile, StoredState
from consensus.storage.journal import NEW_SUFFIX, SEGMENT_SUFFIX, Extent, Journal
from consensus.storage.records import Binding
from consensus.storage.recovery import decode_extent, recovered_log, scan_segments
from consensus.storage.snapshot_form import IMAGE, SnapshotForm
from consensus.storage.snapshots import (
    INCOMING,
    ChunkExtent,
    SnapshotFiles,
    plan_removal,
    snapshot_file,
    stored_snapshot,
    taking_file,
)


class Owner(Struct, frozen=True):
    """The node that opens the storage: its id, its generation (raised at each start), and the directory's inode."""

    node_id: bytes
    generation: int
    place: int


class StorageOptions(Struct, frozen=True):
    """Sizes of the storage. A smaller segment suits a small device; a larger one rolls over less often."""

    segment_bytes: int = 64 * 1024 * 1024
    tail_entries: int = 8192
    tail_bytes: int = 8 * 1024 * 1024
    """Limits of the newest entries (`tail_entries`, `tail_bytes`) that recovery passes to the core, for its memory."""
    snapshot_form: SnapshotForm = IMAGE
    """The form of the group's snapshots, which its protocol chooses."""

    def __post_init__(self) -> None:
        if not 64 * 1024 <= self.segment_bytes <= 1024 * 1024 * 1024:
            raise ValueError(f"a segment has 64 KiB to 1 GiB, not {self.segment_bytes} bytes; change segment_bytes")
        if self.tail_entries < 1 or self.tail_bytes < 1:
            raise ValueError("the tail that recovery reads needs at least one entry and one byte")


def merge(persists: Sequence[Persist]) -> Persist:
    """Return one Persist with the effect of all `persists` in order; a Persist with a snapshot change must be alone."""
    if len(persists) == 1:
        return persists[0]
    hard_state: HardState | None = None
    truncate_from: Index | None = None
    first: Index = 0
    entries: list[Entry] = []
    encoded: list[bytes] = []
    for persist in persists:
        hard_state = persist.hard_state or hard_state
        cut = persist.truncate_from
        if cut is not None and entries and cut > first:
            del entries[cut - first :]
            encoded = [encode_group(entries)]
        elif cut is not None:
            entries.clear()
            encoded.clear()
            truncate_from = cut if truncate_from is None else min(truncate_from, cut)
        if persist.entries:
            first = first if entries else persist.first
            if persist.first != first + len(entries):
                raise ValueError(f"entries from {persist.first} on do not follow index {first + len(entries) - 1}")
            entries += persist.entries
            encoded.append(persist.encoded or encode_group(persist.entries))
    number = persists[-1].number
    return Persist(
        number=number,
        hard_state=hard_state,
        truncate_from=truncate_from,
        first=first,
        entries=tuple(entries),
        encoded=b"".join(encoded),
    )


class Storage:
    """The planner. Made by `recover`."""

    def __init__(self, stored_state: HardStateFile, journal: Journal, snapshots: SnapshotFiles) -> None:
        self._stored_state = stored_state
        self._journal = journal
        self._snapshots = snapshots
        self._in_flight = False
        self._ahead: HardState | None = None
        """The last hard state written by `plan_hard_state`.

        Groups that the core emitted before it may still carry an older state, which must not replace it.
        """

    @property
    def binding(self) -> Binding:
        """The owner of this storage."""
        return self._stored_state.state.binding

    @property
    def last(self) -> LogId:
        """Return the position of the last entry, planned or durable."""
        return self._journal.last

    @property
    def durable(self) -> Index:
        """The index of the last durable entry."""
        return self._journal.durable

    @property
    def segment_count(self) -> int:
        """The number of the log's segment files."""
        return len(self._journal.segments)

    def plan(self, persists: Sequence[Persist]) -> list[DiskOperation]:
        """Plan one group. Plan the next group only after `done`."""
        if self._in_flight:
            raise RuntimeError("a group was planned while another is under way")
        if len(persists) > 1 and any(persist.snapshot is not None for persist in persists):
            raise ValueError("a change of the snapshot shares its group with others")
        group = merge(persists)
        state = self._stored_state.state
        hard_state = group.hard_state or state.hard_state
        if self._ahead is not None:
            hard_state = _later(hard_state, self._ahead)
        operations: list[DiskOperation] = []
        cut = group.truncate_from
        if cut is not None and cut <= self._journal.last.index:
            operations += self._stored_state.plan_hard_state(hard_state, min(self._journal.durable, cut - 1), cut)
            operations += self._journal.plan_truncate(cut)
            operations += self._stored_state.plan_hard_state(hard_state, self._journal.durable)
        elif hard_state != state.hard_state:
            operations += self._stored_state.plan_hard_state(hard_state, self._journal.durable)
        if group.entries:
            operations += self._journal.plan_append(group.first, group.entries, group.encoded)
        if group.snapshot is not None:
            operations += self._plan_snapshot(group.snapshot, hard_state)
        self._in_flight = True
        return operations

    def plan_hard_state(self, hard_state: HardState) -> list[DiskOperation]:
        """Plan a write of the term and the vote while a group waits for disk space.

        The write overwrites bytes in place, so it does not need space. Call it only if the remaining group does not
        write this file (`writes_hard_state`).
        """
        self._ahead = hard_state
        return self._stored_state.plan_hard_state(hard_state, self._journal.durable)

    def _plan_snapshot(self, change: SnapshotChange, hard_state: HardState) -> list[DiskOperation]:
        """Plan a change of the snapshot; replaced files are removed after the snapshot is durable under its name."""
        before = self._snapshots.stored
        match change:
            case StoreChunk():
                return self._snapshots.plan_chunk(change)
            case Compact(snapshot, first_kept):
                operations = self._snapshots.plan_adopt(snapshot, taking_file(snapshot.last))
                operations += self._journal.plan_compact(first_kept)
            case Install(snapshot):
                operations = self._snapshots.plan_adopt(snapshot, INCOMING)
                operations += self._plan_replacement(snapshot.last, hard_state)
            case _:
                assert_never(change)
        return [*operations, *(plan_removal([snapshot_file(before.last)]) if before is not None else [])]

    def _plan_replacement(self, start: LogId, hard_state: HardState) -> list[DiskOperation]:
        begin = self._journal.start.index
        operations = self._stored_state.plan_hard_state(hard_state, begin, begin + 1)
        operations += self._journal.plan_replace(start)
        return operations + self._stored_state.plan_hard_state(hard_state, start.index)

    def prepare_ahead(self) -> None:
        """Promise that the caller carries out `plan_preparation`, so groups need not make a whole segment."""
        self._journal.prepares_ahead = True

    def plan_preparation(self) -> list[DiskOperation]:
        """Return one step of preparing the next segment, between two groups; empty if no step is due."""
        return [] if self._in_flight else self._journal.plan_preparation()

    def prepared(self, *, given_up: bool) -> None:
        """Record that the step was performed, or that the disk was full and the spare segment is removed."""
        self._journal.prepared(given_up=given_up)

    def done(self) -> None:
        """Record that the planned group was performed."""
        self._journal.done()
        self._in_flight = False

    def plan_close(self) -> list[DiskOperation]:
        """Plan the note that everything is durable. With it, the next start does not treat damage as a torn write."""
        state = self._stored_state.state
        if self._in_flight or state.durable == self._journal.durable:
            return []
        return self._stored_state.plan(replace(state, durable=self._journal.durable))

    @property
    def snapshot_form(self) -> SnapshotForm:
        """The form of the snapshots."""
        return self._snapshots.form

    @property
    def snapshot(self) -> SnapshotDescription | None:
        """The stored snapshot, planned or durable."""
        return self._snapshots.stored

    @property
    def log_bytes(self) -> int:
        """Bytes of the log that the snapshot does not cover."""
        return self._journal.size_after(self.snapshot.last.index if self.snapshot is not None else 0)

    def first_within(self, last: Index, limit_bytes: int) -> Index:
        """Return the index of the first entry to keep, for at most `limit_bytes` of the log up to `last`.

        The log is kept in whole segments. If no segment fits, return `last` + 1.
        """
        return self._journal.first_within(last, limit_bytes)

    def chunk_extent(self, request: ReadSnapshot) -> ChunkExtent | None:
        """Return the place of the requested chunk of the snapshot; None if another snapshot is stored now."""
        return self._snapshots.chunk_extent(request.last, request.offset, request.limit_bytes)

    def extents(self, request: ReadEntries) -> list[Extent]:
        """Return the places of the requested entries; empty if the range does not exist any more."""
        return self._journal.extents(request.first, request.last, request.limit_bytes)


def writes_hard_state(operations: Iterable[DiskOperation]) -> bool:
    """Return True if one of the operations writes the file of the hard state."""
    return any(isinstance(operation, WriteBytes) and operation.file == STATE_FILE for operation in operations)


def _later(one: HardState, other: HardState) -> HardState:
    """Return the later of two states of a server: terms rise, and a vote is not withdrawn within a term."""
    return max(one, other, key=lambda state: (state.term, state.voted_for is not None))


def read_extents(
    reader: DiskReader, binding: Binding, extents: Sequence[Extent], limit_bytes: int
) -> tuple[Entry, ...]:
    """Return the entries of `extents`, checked, at most `limit_bytes` but at least one; raises `DamagedStorageError`.

    Whole groups are read, so the extents may hold more than `limit_bytes`.
    """
    entries = [entry for extent in extents for entry in decode_extent(reader, binding, extent)]
    fitting = bisect_right(list(accumulate(map(entry_bytes, entries))), limit_bytes)
    return tuple(entries[: max(1, fitting)])


class RecoveryReport(Struct, frozen=True):
    """Findings and repairs of a start, as text for the operator."""

    entries: int
    segments: int
    last: LogId
    torn_bytes: int = 0
    """Bytes of an unfinished write that recovery cut off. No entry in them was acknowledged."""
    torn_at: str = ""
    rewritten_bytes: int = 0
    truncation_finished: Index = 0
    hard_state_slot_repaired: bool = False
    created: bool = False
    snapshot: SnapshotDescription | None = None
    install_finished: bool = False

    def lines(self) -> list[str]:
        """Return the findings for the operator, one sentence per line."""
        if self.created:
            return ["a new, empty storage was created"]
        found = f"{counted(self.entries, 'entry', 'entries')} in {counted(self.segments, 'segment')}"
        sentences = [f"{found}, the last at index {self.last.index} of term {self.last.term}; every checksum matches"]
        if self.snapshot is not None:
            last, size_bytes = self.snapshot.last, self.snapshot.size_bytes
            text = f"a snapshot of {size_bytes} bytes covers the log up to index {last.index} of term {last.term}"
            sentences.append(f"{text}; all its checksums match")
        if self.install_finished:
            sentences.append(
                "the leader's snapshot, whose installation was interrupted by a stop, has replaced the log"
            )
        if self.torn_bytes:
            sentences.append(
                f"an unfinished write of {counted(self.torn_bytes, 'byte')} was cut at {self.torn_at}; it was never"
                " acknowledged"
            )
        if self.truncation_finished:
            sentences.append(
                f"a truncation from index {self.truncation_finished} on, interrupted by a stop, was finished"
            )
        if self.hard_state_slot_repaired:
            sentences.append(
                "one of the hard state's two slots was unfinished or damaged and was copied from the other"
            )
        return sentences


class Recovery(Struct, frozen=True):
    """A storage that is ready once `operations` are performed, and the state for the start of a `Raft`."""

    storage: Storage
    hard_state: HardState
    log: RecoveredLog
    report: RecoveryReport
    operations: tuple[DiskOperation, ...]


def recover(reader: DiskReader, owner: Owner, new_storage_id: bytes, options: StorageOptions) -> Recovery:
    """Open the stored state, or plan a new storage in an empty directory; raises `StorageError` with the remedy.

    `new_storage_id` (16 random bytes) is used only for a new storage.
    """
    files = reader.files()
    if STATE_FILE not in files:
        return _create(files, owner, new_storage_id, options)
    stored_state, slots_agree = HardStateFile.read(reader)
    state = stored_state.state
    check_owner(state, owner)
    snapshot, outdated = stored_snapshot(reader, state.binding, options.snapshot_form)
    scan = scan_segments(reader, state, snapshot)
    journal = Journal(state.binding, options.segment_bytes)
    journal.restore(scan.start, scan.segments, scan.runs)
    # If a killed process wrote the newest slot, that slot may exist only in the cache. If the other slot were written
    # before this one is synced, a crash could damage both.
    operations: list[DiskOperation] = [SyncFile(STATE_FILE), *scan.repairs, *plan_removal(outdated)]
    if scan.replaced:
        operations += _plan_giving_up(reader, stored_state, scan.start.index)
    operations += stored_state.plan(
        replace(state, generation=owner.generation, durable=scan.last.index, truncating_from=0)
    )
    report = RecoveryReport(
        entries=scan.last.index - scan.start.index,
        segments=len(scan.segments),
        last=scan.last,
        torn_bytes=scan.torn_bytes,
        torn_at=scan.torn_at,
        rewritten_bytes=scan.rewritten_bytes,
        truncation_finished=state.truncating_from,
        hard_state_slot_repaired=not slots_agree,
        snapshot=snapshot,
        install_finished=scan.replaced,
    )
    log = recovered_log(reader, journal, scan, snapshot, options.tail_entries, options.tail_bytes)
    storage = Storage(stored_state, journal, SnapshotFiles(state.binding, snapshot, options.snapshot_form))
    return Recovery(storage, state.hard_state, log, report, tuple(operations))


def _create(files: Sequence[str], owner: Owner, storage_id: bytes, options: StorageOptions) -> Recovery:
    segments = sorted(file for file in files if file.endswith(SEGMENT_SUFFIX))
    if segments:
        raise DamagedStorageError(
            f"the directory holds log segments ('{segments[0]}' …) but no file '{STATE_FILE}', so the vote of this"
            " server is lost. Restore the file if it was moved; otherwise move the directory away and let the node"
            " join again as a new server"
        )
    binding = Binding(owner.node_id, storage_id)
    state = StoredState(binding, owner.place, owner.generation, HardState(0))
    stored_state, operations = HardStateFile.plan_creation(state)
    leftovers: list[DiskOperation] = [RemoveFile(file) for file in files if file.endswith(NEW_SUFFIX)]
    report = RecoveryReport(0, 0, LogId(0, 0), created=True)
    storage = Storage(
        stored_state, Journal(binding, options.segment_bytes), SnapshotFiles(binding, None, options.snapshot_form)
    )
    return Recovery(storage, HardState(0), RecoveredLog(), report, (*leftovers, *operations))


def _plan_giving_up(reader: DiskReader, stored_state: HardStateFile, covered: Index) -> list[DiskOperation]:
    """Finish an installation whose snapshot is durable: note the removal of the replaced log, then remove it."""
    state = stored_state.state
    segments: list[DiskOperation] = [RemoveFile(file) for file in reader.files() if file.endswith(SEGMENT_SUFFIX)]
    leftovers: list[DiskOperation] = [RemoveFile(file) for file in reader.files() if file.endswith(NEW_SUFFIX)]
    noted = state.truncating_from if 0 < state.truncating_from <= covered else 1
    note = stored_state.plan(replace(state, durable=0, truncating_from=noted))
    return [SyncDirectory(), *note, *segments, *leftovers, SyncDirectory()]


def check_owner(state: StoredState, owner: Owner) -> None:
    """Raise `ForeignStorageError` if a server could vote twice in one term with this storage."""
    remedy = "move the directory away and let the node join again as a new server"
    if state.binding.node_id != owner.node_id:
        raise ForeignStorageError(
            f"this directory belongs to node {state.binding.node_id.hex()}, but this is node {owner.node_id.hex()}: "
            f"with it one vote could be given twice. Start it under its own node's identity, or {remedy}"
        )
    if state.place != owner.place:
        raise ForeignStorageError(
            f"this directory is a copy: it was created in another place (its inode was {state.place}, and is"
            f" {owner.place}). If the original still runs, both would vote. Use the original, or {remedy}"
        )
    if state.generation > owner.generation:
        raise ForeignStorageError(
            f"this directory was last opened by generation {state.generation} of this node, but this is generation"
            f" {owner.generation}: the node's state is older than its log, as after a restored backup. Restore the"
            f" newer state, or {remedy}"
        )
