"""Recovery of a directory after a stop or a crash: read everything, check everything, plan the repairs.

Recovery reads the hard state file, then every segment from the first record on. At the first place without a valid next
record, the bytes after it determine the result:

    only zeros follow                                         the end of the log
    a proof that the entry had been durable                   rot, or a hole: refuse, the operator must rebuild
    no such proof                                             a torn tail: cut, and report it
    a valid record that does not continue the log             damage that no crash explains: refuse

Proofs are the hard state file's `durable`, the first index of a later segment, and `durable` of a later valid record. A
truncation noted in the hard state file is finished first. If the log lacks the entry at the snapshot's position, the
snapshot has replaced the log: the interrupted installation is finished.

The repairs may be interrupted by the next crash, and recovery starts over. The newest records without proof are written
again and synced. After a killed process or a failed sync, they may exist only in the page cache. For the same reason,
names and erased bytes are synced again. At last the hard state file declares everything found durable.
"""

from bisect import bisect_right
from collections import deque
from functools import partial

from msgspec import Struct

from consensus.core.entry_data import EntryDataError, decode_configuration, heads
from consensus.core.log import RecoveredLog, TermRun, entry_bytes
from consensus.core.model import COMMAND, ORIGIN, Configuration, Entry, EntryKind, Index, LogId, SnapshotDescription
from consensus.storage.disk import (
    DamagedStorageError,
    DiskOperation,
    DiskReader,
    RemoveFile,
    StorageError,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)
from consensus.storage.hard_state import StoredState
from consensus.storage.journal import NEW_SUFFIX, SEGMENT_SUFFIX, Extent, Journal, Segment, plan_zeros
from consensus.storage.records import (
    CHUNK_BYTES,
    CUT,
    GROUP,
    OTHER_FORMAT,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RECORD_MAGIC_OFFSET,
    SEGMENT_HEADER_BYTES,
    Binding,
    FormatError,
    RecordError,
    RecordHeader,
    decode_payload,
    decode_record_header,
    decode_segment_header,
    encode_cut,
    records_in,
)

_ZEROS = bytes(CHUNK_BYTES)
_REBUILD = (
    "The server stops here on purpose: entries that it acknowledged are missing, and a restart could lose them for"
    " the whole farm. Move the directory away and let the node join again as a new server; the other servers send it"
    " the log"
)


class Scan(Struct):
    """The result of reading the segments, and the operations that repair it."""

    segments: list[Segment]
    runs: list[TermRun]
    configurations: list[tuple[Index, Configuration]]
    repairs: list[DiskOperation]
    torn_bytes: int = 0
    torn_at: str = ""
    rewritten_bytes: int = 0
    start: LogId = ORIGIN
    replaced: bool = False
    """True if the snapshot replaced this log, whose files must still be removed."""

    @property
    def last(self) -> LogId:
        """Return the position of the last entry."""
        index = self.segments[-1].last if self.segments else self.start.index
        return LogId(index, self.runs[-1].term if self.runs else self.start.term)

    def holds(self, position: LogId) -> bool:
        """Return True if the entry at `position`, of that term, is in this log or just before it."""
        if position == self.start:
            return True
        if not self.start.index < position.index <= self.last.index:
            return False
        run = bisect_right(self.runs, position.index, key=lambda run: run.first) - 1
        return self.runs[run].term == position.term


class _Scanner:
    """Reads segments in order, growing a `Scan`."""

    def __init__(self, reader: DiskReader, stored_state: StoredState, snapshot: SnapshotDescription | None) -> None:
        self._reader = reader
        self._binding = stored_state.binding
        self._seed = stored_state.binding.seed
        self._durable = stored_state.durable
        self._stop = stored_state.truncating_from
        self._snapshot = snapshot
        self._claimed: Index = 0
        self.scan = Scan([], [], [], [])

    def run(self) -> Scan:
        covered = self._snapshot.last if self._snapshot is not None else ORIGIN
        if 0 < self._stop <= covered.index:
            # Only an installation erases entries covered by a snapshot: the remaining log is dropped.
            self.scan.start, self.scan.replaced = covered, True
            return self.scan
        segments = self._open_segments()
        self.scan.start = segments[0].previous if segments else covered
        if self.scan.start.index > covered.index:
            raise DamagedStorageError(
                f"the log begins at index {self.scan.start.index + 1}, but no snapshot covers the earlier entries (the"
                f" newest one covers {covered.index} entries): a file is missing. {_REBUILD}"
            )
        for number, segment in enumerate(segments):
            later = segments[number + 1] if number + 1 < len(segments) else None
            if segment.previous != self.scan.last:
                raise DamagedStorageError(
                    f"the segment '{segment.file}' continues a log that ends at index {segment.previous.index} of "
                    f"term {segment.previous.term}, but the log before it ends at index {self.scan.last.index} of "
                    f"term {self.scan.last.term}: a file is missing or was replaced. {_REBUILD}"
                )
            self.scan.segments.append(segment)
            self._read_records(segment)
            if 0 < self._stop <= segment.last + 1:
                self._erase_rest(segment)
            else:
                self._judge_rest(segment, later)
        if self.scan.last.index < self._durable:
            raise DamagedStorageError(
                f"the log ends at index {self.scan.last.index}, but the hard state proves that it was durable up to "
                f"index {self._durable}: a segment is missing. {_REBUILD}"
            )
        if self.scan.holds(covered):
            self._rewrite_newest()
        else:
            # The snapshot's rename was durable, but the removal of the replaced log had not begun.
            self.scan = Scan([], [], [], self.scan.repairs, start=covered, replaced=True)
        return self.scan

    def _open_segments(self) -> list[Segment]:
        """Read all headers; segments that a noted truncation removes are removed unread."""
        segments: list[Segment] = []
        removed: list[DiskOperation] = []
        for file in sorted(self._reader.files()):
            if not file.endswith(SEGMENT_SUFFIX):
                if file.endswith(NEW_SUFFIX):
                    removed.append(RemoveFile(file))
                continue
            if self._stop and segments and _first_in(file) >= self._stop:
                removed.append(RemoveFile(file))
                continue
            segments.append(self._open_segment(file))
        # The visible names may exist only in the cache, because a killed process may leave unsynced renames and
        # removals.
        self.scan.repairs += [*removed, SyncDirectory()]
        return segments

    def _open_segment(self, file: str) -> Segment:
        try:
            header = decode_segment_header(self._reader.read(file, 0, SEGMENT_HEADER_BYTES))
        except FormatError as error:
            raise StorageError(f"the segment '{file}' cannot be read: {error}. {OTHER_FORMAT}") from error
        except RecordError as error:
            raise DamagedStorageError(f"the segment '{file}' cannot be read: {error}. {_REBUILD}") from error
        if header.binding != self._binding:
            raise DamagedStorageError(
                f"the segment '{file}' was written for another storage (node {header.binding.node_id.hex()}, storage"
                f" {header.binding.storage_id.hex()}): files of two directories were mixed. Restore the right files,"
                " or move the directory away and let the node join again as a new server"
            )
        size_bytes = self._reader.size(file)
        if header.previous.index + 1 != _first_in(file) or size_bytes != header.size_bytes:
            raise DamagedStorageError(
                f"the segment '{file}' has {size_bytes} bytes and should have {header.size_bytes}, beginning with "
                f"index {header.previous.index + 1}: it was cut off or renamed. {_REBUILD}"
            )
        return Segment(file, header.previous, size_bytes)

    def _read_records(self, segment: Segment) -> None:
        """Add the valid records that continue the log to the scan, up to the first invalid record."""
        read = partial(self._reader.read, segment.file)
        for offset, header, payload in records_in(read, self._seed, SEGMENT_HEADER_BYTES, segment.size_bytes):
            last = self.scan.last
            first = last.index + 1
            if 0 < self._stop <= first and header.kind == GROUP:
                return
            cuts = header.kind == CUT and bool(segment.firsts) and segment.firsts[-1] < header.first < first
            follows = header.kind == GROUP and header.first == first and header.previous_term == last.term
            if cuts:
                self._remove_from(segment, header.first)
            if cuts and header.previous_term == self.scan.last.term:
                segment.end_bytes = offset + header.size_bytes
            elif follows:
                self._take_group(segment, header, payload)
            else:
                raise DamagedStorageError(
                    f"the record at byte {offset} of '{segment.file}' begins with index {header.first}, after term "
                    f"{header.previous_term}, but follows index {last.index} of term {last.term}. {_REBUILD}"
                )
            self._claimed = header.durable

    def _take_group(self, segment: Segment, header: RecordHeader, payload: memoryview) -> None:
        term, index = self.scan.last.term, header.first
        runs, command = self.scan.runs, COMMAND.value
        try:
            for entry_term, kind, begin, end in heads(payload):
                if entry_term < term:
                    raise DamagedStorageError(
                        f"entry {index} in '{segment.file}' has term {entry_term} after term {term}. {_REBUILD}"
                    )
                if entry_term != term or not runs:
                    term = entry_term
                    runs.append(TermRun(index, term))
                if kind != command:
                    self._note_configuration(index, kind, bytes(payload[begin:end]))
                index += 1
        except EntryDataError as error:
            raise DamagedStorageError(
                f"entry {index} in '{segment.file}' cannot be read: {error}. {_REBUILD}"
            ) from error
        if index != header.first + header.count:
            raise DamagedStorageError(
                f"the group from entry {header.first} on in '{segment.file}' ends with entry {index - 1}, and should"
                f" have {header.count} entries. {_REBUILD}"
            )
        segment.add(header.count, header.size_bytes)

    def _remove_from(self, segment: Segment, first_removed: Index) -> bool:
        scan = self.scan
        is_cut = segment.remove_from(first_removed)
        while scan.runs and scan.runs[-1].first >= first_removed:
            scan.runs.pop()
        while scan.configurations and scan.configurations[-1][0] >= first_removed:
            scan.configurations.pop()
        return is_cut

    def _note_configuration(self, index: Index, kind: int, data: bytes) -> None:
        if kind in (EntryKind.NO_OP, EntryKind.CONTROL):
            return
        if kind != EntryKind.CONFIGURATION:
            raise StorageError(
                f"entry {index} has kind {kind}, unknown to this version: a newer version of this program wrote it;"
                " start that version again"
            )
        try:
            configuration = decode_configuration(data)
        except EntryDataError as error:
            raise DamagedStorageError(f"the configuration in entry {index} is damaged: {error}") from error
        known = self.scan.configurations
        if not known or known[-1][1] != configuration:
            known.append((index, configuration))

    def _judge_rest(self, segment: Segment, later: Segment | None) -> None:
        """Classify the bytes after the last valid record: nothing, a torn tail, or rot."""
        missing = segment.last + 1
        if later is not None and later.first == missing:
            return
        proof = ""
        torn_end = segment.end_bytes
        if missing <= self._durable:
            proof = "the hard state"
        elif later is not None:
            proof = f"the segment '{later.file}'"
        else:
            torn_end = self._last_used_byte(segment)
        if torn_end > segment.end_bytes:
            proof = self._proof_behind(segment, torn_end, missing)
        if proof:
            raise DamagedStorageError(
                f"entry {missing} at byte {segment.end_bytes} of '{segment.file}' is damaged or missing, and {proof} "
                f"proves that it had been durable. {_REBUILD}"
            )
        if torn_end > segment.end_bytes:
            self.scan.torn_bytes = torn_end - segment.end_bytes
            self.scan.torn_at = f"byte {segment.end_bytes} of '{segment.file}' (index {missing})"
            self._erase(segment, torn_end)

    def _erase_rest(self, segment: Segment) -> None:
        """Finish a noted truncation. Zeros may exist only in the cache, so all of them are written again."""
        if self._stop <= segment.last and self._remove_from(segment, self._stop):
            self._cut(segment)
        self._erase(segment, segment.size_bytes)

    def _cut(self, segment: Segment) -> None:
        last = self.scan.last
        record = encode_cut(self._seed, last.index + 1, last.term, self._durable)
        self.scan.repairs += [WriteBytes(segment.file, segment.end_bytes, record), SyncFile(segment.file)]
        segment.end_bytes += len(record)

    def _erase(self, segment: Segment, end_bytes: int) -> None:
        if end_bytes > segment.end_bytes:
            self.scan.repairs += plan_zeros(segment.file, segment.end_bytes, end_bytes)
            self.scan.repairs.append(SyncFile(segment.file))

    def _last_used_byte(self, segment: Segment) -> int:
        """Return the offset after the last byte that is not zero, or the end of the records."""
        used = segment.end_bytes
        for offset in range(segment.end_bytes, segment.size_bytes, CHUNK_BYTES):
            chunk = self._reader.read(segment.file, offset, min(CHUNK_BYTES, segment.size_bytes - offset))
            if chunk != _ZEROS[: len(chunk)]:  # a comparison is a hundred times as fast as `rstrip`
                used = offset + len(chunk.rstrip(b"\0"))
        return used

    def _proof_behind(self, segment: Segment, end_bytes: int, missing: Index) -> str:
        """Search the bytes after the damage for a record that proves the missing entry durable.

        A record with an earlier index is also a proof: only a cut permits it, and that durable cut is damaged.
        """
        overlap = RECORD_HEADER_BYTES - 1
        for start in range(segment.end_bytes, end_bytes, CHUNK_BYTES):
            chunk = self._reader.read(segment.file, start, CHUNK_BYTES + overlap)
            place = chunk.find(RECORD_MAGIC)
            while place >= 0:
                try:
                    header = decode_record_header(self._seed, chunk, place - RECORD_MAGIC_OFFSET)
                except RecordError:
                    header = None
                if header is not None and (header.durable >= missing or header.first < missing):
                    return f"the later entry {header.first}"
                place = chunk.find(RECORD_MAGIC, place + 1)
        return ""

    def _rewrite_newest(self) -> None:
        """Write records without a proof of durability again: reading them does not show that they are on the disk."""
        if not self.scan.segments:
            return
        segment = self.scan.segments[-1]
        first = max(self._durable, self._claimed, segment.previous.index) + 1
        if first > segment.last:
            return
        offset = segment.offset_of(first)
        data = self._reader.read(segment.file, offset, segment.end_bytes - offset)
        self.scan.rewritten_bytes = len(data)
        self.scan.repairs += [WriteBytes(segment.file, offset, data), SyncFile(segment.file)]


def scan_segments(reader: DiskReader, stored_state: StoredState, snapshot: SnapshotDescription | None = None) -> Scan:
    """Read and check all segments; raises `StorageError` with the reason why they cannot be used."""
    return _Scanner(reader, stored_state, snapshot).run()


def decode_extent(reader: DiskReader, binding: Binding, extent: Extent) -> list[Entry]:
    """Read the entries of an extent; raises `DamagedStorageError` if other records are there."""
    data = reader.read(extent.file, extent.offset_bytes, extent.length_bytes)
    seed = binding.seed
    entries: list[Entry] = []
    begin, offset = 0, 0
    fault = "another record was written over it"
    try:
        while offset < extent.length_bytes:
            header = decode_record_header(seed, data, offset)
            begin = begin or (0 if header is None else header.first)
            next_index = begin + len(entries)
            if header is None or (header.first != next_index and not begin < header.first < next_index):
                break
            if header.kind == CUT:
                del entries[header.first - begin :]
            elif header.first != next_index:
                break
            start = offset + RECORD_HEADER_BYTES
            offset += header.size_bytes
            if header.kind == GROUP:
                entries += decode_payload(seed, header, data[start:offset])
    except RecordError as error:
        fault = str(error)
    found = entries[extent.first - begin : extent.first - begin + extent.count] if begin else []
    if len(found) < extent.count:
        raise DamagedStorageError(
            f"entry {max(extent.first, begin + len(entries))} in '{extent.file}' (byte {extent.offset_bytes + offset}) "
            f"was damaged while this server ran: {fault}. {_REBUILD}"
        )
    return found


def recovered_log(
    reader: DiskReader,
    journal: Journal,
    scan: Scan,
    snapshot: SnapshotDescription | None,
    tail_entries: int,
    tail_bytes: int,
) -> RecoveredLog:
    """Return the log for the start of the core: runs of terms, changes of the configuration, and the newest entries."""
    last = scan.last.index
    tail: deque[Entry] = deque()
    size = 0
    first = max(scan.start.index + 1, last - tail_entries + 1)
    for extent in journal.extents(first, last, 2**63) if first <= last else []:
        for entry in decode_extent(reader, journal.binding, extent):
            tail.append(entry)
            size += entry_bytes(entry)
            while size > tail_bytes:
                size -= entry_bytes(tail.popleft())
    return RecoveredLog(
        tuple(scan.runs), last - len(tail) + 1, tuple(tail), tuple(scan.configurations), scan.start, snapshot
    )


def _first_in(file: str) -> Index:
    digits = file.removesuffix(SEGMENT_SUFFIX)
    if not (digits.isascii() and digits.isdigit()):
        raise StorageError(f"'{file}' is not a name of this program's segments; move it out of the directory")
    return int(digits)
