"""A topic in memory for the endpoint of clients."""

from collections.abc import Collection, Mapping
from uuid import UUID

import trio

from consensus.protocols.kafka import (
    BatchCache,
    Broker,
    Caller,
    CommittedOffset,
    GroupOffsets,
    OffsetOutOfRangeError,
    Produced,
    ProducerId,
    Record,
    RecordBatch,
    TopicState,
)
from consensus.protocols.kafka.topic.served_topic import MAX_OFFSET
from consensus.protocols.kafka.wire.record_batches import read_batches
from tests.wire.record_batches import encode_batch

TOPIC_ID = UUID(int=77)
EPOCH = 5


def caller(version: int) -> Caller:
    """Return a client without a login."""
    return Caller("test", None, "127.0.0.1", 1, version, 1, "PLAINTEXT")


def written(base_offset: int, values: list[bytes]) -> bytes:
    """Return one batch. The record at offset 0 has the time 1,000 ms; each further record is one millisecond later."""
    records = tuple(Record(1_000 + base_offset + at, None, value) for at, value in enumerate(values))
    return encode_batch(RecordBatch(base_offset, EPOCH, records))


def values_in(data: bytes) -> list[bytes]:
    return [record.value or b"" for batch in read_batches(data) for record in batch.records]


class MemoryOffsets:
    """`GroupOffsets` of a leader; servers with the same log may share them."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, CommittedOffset]] = {}
        self.owners: dict[str, str | None] = {}
        self.is_ready = True
        self.wait_s = 0.0
        self.error: Exception | None = None

    def is_coordinator(self) -> bool:
        return self.is_ready

    def groups(self) -> Collection[str]:
        return self.stored

    def may_use(self, group: str, principal: str | None) -> bool:
        """Return True if no other user used the group first."""
        return self.owners.get(group, principal) == principal

    def committed(self, group: str) -> Mapping[str, CommittedOffset]:
        return self.stored.get(group, {})

    async def commit(
        self, group: str, offsets: Mapping[str, CommittedOffset], principal: str | None, hold_s: float = 0.0
    ) -> None:
        """Record offsets after `wait_s`, or raise `error`."""
        del hold_s
        self.owners.setdefault(group, principal)
        await trio.sleep(self.wait_s)
        if self.error is not None:
            raise self.error
        self.stored.setdefault(group, {}).update(offsets)


class MemoryTopic:
    """A `ServedTopic` whose state a test sets."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self.end = 0
        self.start = 0
        self.node_id = self.leader_id = self.controller_id = 1
        self.epoch = EPOCH
        self.brokers: tuple[Broker, ...] = (Broker(1, "127.0.0.1", 9092), Broker(2, "127.0.0.1", 9093))
        self.offsets: MemoryOffsets | None = None
        self.takes_records = True
        self.epoch_ends: dict[int, int | None] = {}
        self.max_batch_records = 16_384
        self.is_stuck = False
        self.appended: dict[tuple[int, int, int], int] = {}
        self.cache = BatchCache(self._load)
        self._changed = trio.Event()

    def is_served_at(self, port: int) -> None:
        """List only the broker at this port: a real client may connect to any listed broker."""
        self.brokers = (Broker(self.node_id, "127.0.0.1", port),)

    def write(self, *values: bytes) -> None:
        self.batches.append((self.end, self.end + len(values), written(self.end, list(values))))
        self.end += len(values)
        self._changed.set()
        self._changed = trio.Event()

    def state(self) -> TopicState:
        return TopicState(
            name="farm",
            topic_id=TOPIC_ID,
            cluster_id="cluster",
            node_id=self.node_id,
            leader_id=self.leader_id,
            leader_epoch=self.epoch,
            controller_id=self.controller_id,
            brokers=self.brokers,
            log_start_offset=self.start,
            high_watermark=self.end,
            is_internal=False,
            takes_records=self.takes_records,
        )

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Read through the cache."""
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRangeError
        return await self.cache.read(offset, max_bytes) if offset < self.end else b""

    async def _load(self, offset: int, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        data = b""
        for _, end, batch in self.batches:
            if end > offset and (not data or len(data) + len(batch) <= max_bytes):
                data += batch
        return data

    async def wait_beyond(self, offset: int) -> None:
        """Wait until records after `offset` are written."""
        while self.end <= offset:
            await self._changed.wait()

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        offset = max(self.start, timestamp_ms - 1_000)
        return (offset, 1_000 + offset) if offset < self.end else None

    async def latest_timestamp(self) -> tuple[int, int] | None:
        """Return the offset and time of the last record, by the rule of `written`."""
        return (self.end - 1, 999 + self.end) if self.end else None

    async def epoch_end(self, epoch: int) -> int | None:
        await trio.lowlevel.checkpoint()
        return self.epoch_ends.get(epoch, MAX_OFFSET)

    async def append(self, batch: RecordBatch, principal: str | None) -> Produced:
        """Commit a batch immediately, once per sequence; wait forever if the topic is stuck."""
        del principal
        if self.is_stuck:
            await trio.sleep_forever()
        key = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        if batch.producer_id < 0 or key not in self.appended:
            self.appended[key] = self.end
            self.write(*(record.value or b"" for record in batch.records))
        return Produced(self.appended[key], -1)

    async def new_producer_id(self, principal: str | None) -> ProducerId:
        del principal
        return ProducerId(41, 0)

    def groups(self) -> GroupOffsets | None:
        return self.offsets
