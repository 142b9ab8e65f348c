"""Kafka's snapshot of its log (KIP-630) as a form of the storage: record batches, from a header to a footer.

    SnapshotHeader, KRaftVersion, Voters   one control batch; the last two if the log names the voters (kraft.version 1)
    record batches                         the bytes of the state machine
    SnapshotFooter                         one control batch

All batches are numbered from 0 on, as if the file were a log. For the state machine the numbers begin at 0 after the
header, regardless of its length. This is possible because a batch's checksum does not cover the base offset. The writer
chooses a batch's epoch: Kafka uses the snapshot's epoch for all; our batches keep theirs.

Snapshots of Kafka and ours are interchangeable. A snapshot does not contain its position, which comes separately, like
fixed voters (kraft.version 0). Everything is decoded once before a snapshot is installed, since the state machine
cannot refuse it afterwards.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

from consensus.core.model import Configuration, LogId, ReplicaKey, SnapshotDescription
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError
from consensus.protocols.kafka.wire.record_batches import (
    BATCH_HEAD,
    LENGTH_AND_BEFORE,
    BatchHead,
    batch_heads,
    decode_tail,
    decode_tails,
    encode_tail,
    encode_tails,
)
from consensus.protocols.kraft.wire.control_records import (
    KRAFT_VERSION,
    KRAFT_VERSION_1,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    VOTERS,
    control_key,
    control_type_of,
    snapshot_footer,
    snapshot_header,
    voters_of,
    voters_value,
)
from consensus.protocols.kraft.wire.entries import entries_of
from consensus.storage.records import RecordError
from consensus.storage.snapshot_form import SnapshotReading, SnapshotWriting
from consensus.storage.snapshot_image import CountedSnapshot

_BASE_OFFSET: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")


class KafkaSnapshotForm:
    """The `SnapshotForm` (`consensus.storage.snapshot_form`) of Kafka's snapshots."""

    file_format = 3

    def __init__(self, last_ms: Callable[[], int]) -> None:
        """Make the form; `last_ms` returns the timestamp of the last entry that the snapshot covers."""
        self._last_ms = last_ms

    def writing(self, last: LogId, configuration: Configuration) -> SnapshotWriting:
        """See `SnapshotForm.writing`."""
        return _KafkaSnapshotWriter(last, configuration, self._last_ms())

    def reading(self, last: LogId, configuration: Configuration) -> SnapshotReading:
        """See `SnapshotForm.reading`."""
        return _KafkaSnapshotReader(last, configuration)


class _KafkaSnapshotWriter(CountedSnapshot):
    def __init__(self, last: LogId, configuration: Configuration, time_ms: int) -> None:
        super().__init__(last, configuration)
        self._time_ms = time_ms
        self._records = 0

    def begin(self) -> bytes:
        """Return the header, and the voters if they have directories: then the log names them."""
        records = [(SNAPSHOT_HEADER, snapshot_header(self._time_ms))]
        if any(_has_directory(server_id) for server_id in self._configuration.voter_ids):
            records += [(KRAFT_VERSION, KRAFT_VERSION_1), (VOTERS, voters_value(self._configuration))]
        return self._controls(records)

    def blocks(self, data: bytes) -> bytes:
        """Return the state machine's batches, numbered after the earlier ones."""
        end, numbered = 0, bytearray(data)
        for at, head in batch_heads(data):
            _BASE_OFFSET.pack_into(numbered, at, self._records)
            self._records += head.count
            end = at + head.size_bytes
        if end != len(data):
            raise ValueError("a snapshot of Kafka's is written in whole record batches")
        return self._count(bytes(numbered))

    def end(self) -> bytes:
        return self._controls([(SNAPSHOT_FOOTER, snapshot_footer())])

    def _controls(self, records: list[tuple[int, bytes]]) -> bytes:
        tails = [(self._time_ms, encode_tail(control_key(kind), value)) for kind, value in records]
        base, self._records = self._records, self._records + len(records)
        return self._count(encode_tails(base, self._last.term, tails, is_control=True))


class _KafkaSnapshotReader(CountedSnapshot):
    """A reader of a snapshot in chunks of any size; it holds at most one incomplete batch."""

    def __init__(self, last: LogId, configuration: Configuration) -> None:
        super().__init__(last, configuration)
        self._buffer = bytearray()
        self._records = 0
        self._state = LogId(0, 0)
        """Number of the state machine's records so far, and the epoch of the last."""
        self._ended = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Process the next chunk; yield the state machine's complete batches, numbered from 0 on."""
        self._count(data)
        self._buffer += data
        if not self._has_whole_batch():
            return
        whole, end = bytes(self._buffer), 0
        try:
            for at, head in batch_heads(whole):
                end = at + head.size_bytes
                if not self._is_bracket(whole, at, head):
                    yield self._of_state(whole[at:end], head)
        except KafkaWireError as error:
            raise RecordError(str(error)) from error
        del self._buffer[:end]

    def finish(self) -> SnapshotDescription:
        if self._buffer or not self._ended:
            raise RecordError("the snapshot is cut off: it lacks a footer")
        return self.description

    def _has_whole_batch(self) -> bool:
        if len(self._buffer) < BATCH_HEAD.size:
            return False
        size: int = LENGTH_AND_BEFORE + _LENGTH.unpack_from(self._buffer, _BASE_OFFSET.size)[0]
        return size <= len(self._buffer) or size > DEFAULT_LIMITS.max_batch_bytes

    def _is_bracket(self, data: bytes, at: int, head: BatchHead) -> bool:
        """Return True for the header or the footer; read the voters in a header. The first batch must be the header."""
        if self._ended or head.base_offset != self._records:
            raise KafkaWireError(f"a record batch at offset {head.base_offset} where {self._records} follows")
        self._records += head.count
        is_first = head.base_offset == 0
        if not head.is_control:
            if is_first:
                raise KafkaWireError("a snapshot lacks a header at its beginning")
            return False
        records = [decode_tail(tail) for _, tail in decode_tails(data, at, head)]
        kinds = [control_type_of(key) for key, _, _ in records]
        if is_first is not (kinds[0] == (SNAPSHOT_HEADER, 0)):
            raise KafkaWireError("a snapshot lacks a header at its beginning, or has another header later")
        if is_first:
            for kind, (_, value, _) in zip(kinds, records, strict=True):
                if kind is not None and kind[0] == VOTERS:
                    self._configuration, _ = voters_of(kind[1], value or b"")
            return True
        is_last = kinds[0] == (SNAPSHOT_FOOTER, 0)
        self._ended = is_last
        return is_last

    def _of_state(self, batch: bytes, head: BatchHead) -> bytes:
        numbered = _BASE_OFFSET.pack(self._state.index) + batch[_BASE_OFFSET.size :]
        entries_of(numbered, self._state)
        self._state = LogId(self._state.index + head.count, head.leader_epoch)
        return numbered


def _has_directory(server_id: object) -> bool:
    return isinstance(server_id, ReplicaKey) and bool(server_id.directory)
