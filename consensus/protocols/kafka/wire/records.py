"""Record batches of Kafka's message format 2."""

from enum import IntEnum

from msgspec import Struct


class Compression(IntEnum):
    """Compression of the records of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Record(Struct, frozen=True):
    """One record; a control record has its version and type in the key."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class RecordBatch(Struct, frozen=True):
    """Adjacent records of one leader epoch. Without a producer the last three fields are -1."""

    base_offset: int
    leader_epoch: int
    records: tuple[Record, ...]
    is_control: bool = False
    is_transactional: bool = False
    compression: Compression = Compression.NONE
    log_append_time: bool = False
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
