"""Records of a quorum's log for its readers, from the record batches of a Fetch or from a server's directory.

    Fetch ─▶ batches ─▶ `committed_records`: from a position on, below the high watermark
    DIR/__cluster_metadata-0/storage ─▶ entries ─▶ batches ─▶ `stored_records`

The directory of a stopped or running server is read without a lock, and is not changed. Records on disk need not be
committed: the next leader may replace the newest ones.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from consensus.core.model import Entry, EntryKind, ServerId
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.protocols.kraft.operators.quorum_directory import storage_in
from consensus.protocols.kraft.wire.control_records import (
    KRAFT_VERSION,
    LEADER_CHANGE,
    VOTERS,
    control_type_of,
    no_op_of,
    voters_of,
)
from consensus.protocols.kraft.wire.entries import batches_of
from consensus.protocols.kraft.wire.replica_names import replica
from consensus.storage.stored_log import open_stored_log
from consensus.storage.verification import verify_storage

_CHUNK_ENTRIES: Final = 1_024
_LEVEL: Final = struct.Struct(">2xh")
"""Level in a KRaftVersion record, after the record's own version."""


class LogRecord(Struct, frozen=True):
    """A record. `control_type` is the kind of a record of the protocol, else None."""

    offset: int
    epoch: int
    timestamp_ms: int
    control_type: int | None
    """-1 if the record's key does not contain the type."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class LogStart(Struct, frozen=True):
    """The requested records are compacted: the log begins here, and a snapshot replaces the earlier part."""

    offset: int


class ReadPosition(Struct):
    """Offset of the next read; `epoch` is the previous record's, or None if it is not known."""

    offset: int
    epoch: int | None
    watermark: int = -1


def log_start(part: clients.FetchResponsePartition, at: ReadPosition) -> list[LogRecord | LogStart]:
    """Return the start of the log if the requested offset is compacted; move `at` there."""
    if part.snapshot_id.end_offset >= 0:
        at.offset, at.epoch = part.snapshot_id.end_offset, part.snapshot_id.epoch
    elif part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset > at.offset:
        at.offset, at.epoch = part.log_start_offset, None
    else:
        return []
    return [LogStart(at.offset)]


def committed_records(data: bytes, at: ReadPosition) -> list[LogRecord | LogStart]:
    """Return the committed records from `at` on, and move `at` after them. Raises `KafkaWireError`."""
    found: list[LogRecord | LogStart] = []
    for record in _records(data):
        if at.offset <= record.offset < at.watermark:
            found.append(record)
            at.offset, at.epoch = record.offset + 1, record.epoch
    return found


def stored_records(directory: Path, first: int) -> Iterator[LogRecord | LogStart]:
    """Yield all records in a server's directory from offset `first` on, up to the end of the log or the first damage.

    Raises `QuorumDirectoryError` for other directories, and `StorageError` if its log cannot be read.
    """
    log = open_stored_log(storage_in(directory))
    offset, end = max(first, log.start.index), log.end() - 1
    if first < log.start.index:
        yield LogStart(offset)
    if offset >= end:
        return
    stored = log.entries(log.beginning(log.segment_of(offset + 1)), end + 1)
    entries = (Entry(term, EntryKind(kind), data) for _, index, term, kind, data in stored if index > offset)
    while chunk := tuple(islice(entries, _CHUNK_ENTRIES)):
        yield from _records(batches_of(offset + 1, chunk))
        offset += len(chunk)


def stored_fault(directory: Path) -> str | None:
    """Return the fault that prevents a start of a server with this directory; None without one, or while it is in use.

    Raises as `stored_records` does.
    """
    found = verify_storage(storage_in(directory))
    return found.faults[0] if found.faults and not found.live else None


def _records(data: bytes) -> Iterator[LogRecord]:
    for batch in read_batches(data):
        for offset, record in enumerate(batch.records, batch.base_offset):
            control = (control_type_of(record.key) or (-1, 0))[0] if batch.is_control else None
            content = record.timestamp_ms, control, record.key, record.value, record.headers
            yield LogRecord(offset, batch.leader_epoch, *content)


def control_text(record: LogRecord) -> str | None:
    """Return the contents of a control record as text; None if it is not understood here."""
    found, value = control_type_of(record.key), record.value or b""
    if found is None or record.control_type is None:
        return None
    control_type, version = found
    if control_type == LEADER_CHANGE and (no_op := no_op_of(value)) is not None and no_op.leader is not None:
        return f"leader {replica(no_op.leader).id}, granted by {_ids(no_op.granted_by)} of {_ids(no_op.voters)}"
    if control_type == KRAFT_VERSION and len(value) >= _LEVEL.size:
        return f"level {_LEVEL.unpack_from(value)[0]}"
    if control_type == VOTERS:
        try:
            configuration, _ = voters_of(version, value)
        except KafkaWireError:
            return None
        return ", ".join(f"{replica(each.server_id).id} at {each.endpoint}" for each in configuration.voters)
    return None


def _ids(voters: Iterable[ServerId]) -> str:
    return ",".join(str(replica(each).id) for each in voters) or "none"
