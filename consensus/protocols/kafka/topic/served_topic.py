"""The interface between the endpoint for clients and the log that it serves as a topic of one partition.

    ServedTopic ◀── the log of a KRaft quorum, which accepts records of clients
                ◀── the farm's committed log, for a Kafka listener

The endpoint serves Metadata, ListOffsets, Fetch and Produce; the topic has the contents, and accepts records. A topic
is read in whole record batches, as bytes that go to the client unchanged, so that batches can be cached.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.records import RecordBatch

E = TypeVar("E")


class Broker(Struct, frozen=True):
    """A server that clients may connect to, on the listener of their request."""

    node_id: int
    host: str
    port: int


class TopicState(Struct, frozen=True):
    """The topic now. Offsets are Kafka's; `high_watermark` is exclusive: clients read below it."""

    name: str
    topic_id: UUID
    cluster_id: str
    node_id: int
    """Id of this server."""
    leader_id: int
    """The server for clients to fetch from and to produce to; -1 if unknown."""
    leader_epoch: int
    controller_id: int
    """The leader of the topic's quorum; -1: not known now."""
    brokers: tuple[Broker, ...]
    log_start_offset: int
    high_watermark: int
    is_internal: bool
    takes_records: bool
    """True if clients may produce to it on this server."""
    log_end_offset: int = -1
    """End (exclusive) of this server's log, uncommitted entries included; -1: the high watermark."""
    final_end: int = -1
    """Offsets from the high watermark up to this one (exclusive) never get records; -1: there are no such offsets."""

    def leader_endpoint(self, part: Callable[..., E]) -> tuple[E, ...]:
        """Return the part of a message that names the leader, or nothing if clients cannot connect to it."""
        leader = (broker for broker in self.brokers if broker.node_id == self.leader_id)
        return tuple(part(node_id=each.node_id, host=each.host, port=each.port) for each in leader)


MAX_OFFSET: Final = 2**63 - 1
"""An offset beyond every log: the end is unknown."""


class OffsetOutOfRangeError(Exception):
    """The offset lies before the log's start, in the compacted part, or beyond the high watermark."""


class ProduceRefusedError(Exception):
    """The records were refused. The text is for the client."""

    def __init__(self, error_code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error_code = error_code


class Produced(Struct, frozen=True):
    """Records committed now, or earlier if the batch is a repetition. The first has `base_offset`."""

    base_offset: int
    log_append_time_ms: int
    """The timestamp of the records; -1 if they keep the client's timestamps."""


class ProducerId(Struct, frozen=True):
    """Id and epoch for the batches of an idempotent producer."""

    producer_id: int
    producer_epoch: int


class CommittedOffset(Struct, frozen=True):
    """The committed offset of a consumer group. `leader_epoch` is -1 if the client did not send it."""

    offset: int
    leader_epoch: int
    metadata: str


class GroupOffsets(Protocol):
    """Store of the offsets of consumer groups: entries of the log, by its leader."""

    def is_coordinator(self) -> bool:
        """Return True if this server coordinates the groups: it leads the log.

        It does not coordinate before it has applied an entry of its term. Before that, `committed` may return an older
        offset than a consumer has committed, and the consumer would read entries twice.
        """

    def groups(self) -> Collection[str]:
        """Return the groups with a committed offset."""

    def committed(self, group: str) -> Mapping[str, CommittedOffset]:
        """Return the group's committed offset of each topic; partition 0 is the only one."""

    def may_use(self, group: str, principal: str | None) -> bool:
        """Return True if no other user owns the group by its first committed offset."""

    async def commit(
        self, group: str, offsets: Mapping[str, CommittedOffset], principal: str | None, hold_s: float = 0.0
    ) -> None:
        """Store offsets; return when they, or newer ones of the group, are committed and applied.

        They may wait up to `hold_s`, so that several commits of the group are written together.

        Raises `ProduceRefusedError`, such as for one group too many, `ServerBusyError` or `ServerStoppedError`.
        """


class ServedTopic(Protocol):
    """One topic. All methods are called from one trio run; only the coroutines wait."""

    @property
    def max_batch_records(self) -> int:
        """Return the limit of records in a client's batch; `append` never gets a larger one."""

    def state(self) -> TopicState:
        """Return the present state, cheaply: it is needed for every request."""

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole record batches, from the batch with `offset` on, all below the high watermark.

        Offsets may lack a record: then the first batch begins after `offset`. The result is empty if no record follows.
        Otherwise it has at least one batch, of any size, and further ones up to `max_bytes`. Raises
        `OffsetOutOfRangeError`, `ServerBusyError` (retry soon) or `ServerStoppedError`.
        """

    async def wait_beyond(self, offset: int) -> None:
        """Return when the high watermark is above `offset`."""

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the first offset whose record has this timestamp or a later one, and its timestamp, or None."""

    async def latest_timestamp(self) -> tuple[int, int] | None:
        """Return the offset of the record with the latest timestamp, and the timestamp; None in an empty topic."""

    async def epoch_end(self, epoch: int) -> int | None:
        """Return the offset after the last record of `epoch` or of an earlier one, if this server has later records.

        Without later records, return `MAX_OFFSET`: this server may only lag, so the consumer must not treat its records
        as truncated. Return None if the log never gets a record of that epoch: the consumer has read that epoch in
        another log. Raises `ServerBusyError` or `ServerStoppedError`.
        """

    async def append(self, batch: RecordBatch, principal: str | None) -> Produced:
        """Commit the records of a client, once for each (producer id, epoch, sequence).

        Raises `ProduceRefusedError`, `ServerBusyError` or `ServerStoppedError`.
        """

    async def new_producer_id(self, principal: str | None) -> ProducerId:
        """Return an id that no other producer of this log ever had. Raises as `append` does."""

    def groups(self) -> GroupOffsets | None:
        """Return the offsets of consumer groups; None if the APIs of groups are not served."""
