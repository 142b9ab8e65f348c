"""Whole record batches of Kafka as bytes, and back; servers write batches by `encode_tails`."""

from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError, Limits
from consensus.protocols.kafka.wire.record_batches import batch_heads, encode_tail, encode_tails, read_batches
from consensus.protocols.kafka.wire.records import RecordBatch


def encode_batch(batch: RecordBatch) -> bytes:
    """Return the bytes of a batch; raises `KafkaWireError` for unsupported values."""
    return encode_tails(
        batch.base_offset,
        batch.leader_epoch,
        [(each.timestamp_ms, encode_tail(each.key, each.value, each.headers)) for each in batch.records],
        is_control=batch.is_control,
        is_transactional=batch.is_transactional,
        log_append_time=batch.log_append_time,
        compression=batch.compression,
        producer=(batch.producer_id, batch.producer_epoch, batch.base_sequence),
    )


def decode_batch(data: bytes, limits: Limits = DEFAULT_LIMITS) -> RecordBatch:
    """Decode exactly one batch; raises `KafkaWireError`."""
    if [head.size_bytes for _, head in batch_heads(data, limits)] != [len(data)]:
        raise KafkaWireError("not exactly one record batch")
    return read_batches(data, limits)[0]
