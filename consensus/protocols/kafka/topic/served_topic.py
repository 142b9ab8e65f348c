"""What the endpoint for clients needs of the log that it serves as a topic of one partition.

    ServedTopic ◀── the log of a KRaft quorum, which takes what clients produce
                ◀── the farm's committed log behind a Kafka listener

The endpoint answers Metadata, ListOffsets, Fetch and Produce; the topic says what is in it and takes what is produced.
A topic is read in whole record batches, as bytes that go to the client unchanged, so that batches can be cached.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from uuid import UUID

from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.records import RecordBatch

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Broker:
    """A server that clients may connect to, on the listener that they asked by."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """The topic now. Offsets are Kafka's; `high_watermark` is exclusive: clients read what is below."""

    name: str
    topic_id: UUID
    cluster_id: str
    node_id: int
    """Of this server."""
    leader_id: int
    """The server that clients are to fetch from and to produce to; -1: not known now."""
    leader_epoch: int
    controller_id: int
    """The leader of the quorum behind the topic; -1: not known now."""
    brokers: tuple[Broker, ...]
    log_start_offset: int
    high_watermark: int
    is_internal: bool
    takes_records: bool
    """Whether clients may produce to it at all, on this server."""
    log_end_offset: int = -1
    """Exclusive: where this server's log ends, committed or not; -1: at the high watermark."""
    final_end: int = -1
    """Exclusive: between the high watermark and this no offset has a record; -1: at the high watermark."""

    def leader_endpoint(self, part: Callable[..., E]) -> tuple[E, ...]:
        """Return the part of a message that names the leader, or nothing if clients cannot connect to it."""
        leader = (broker for broker in self.brokers if broker.node_id == self.leader_id)
        return tuple(part(node_id=each.node_id, host=each.host, port=each.port) for each in leader)


MAX_OFFSET: Final = 2**63 - 1
"""An end that no log has."""


class OffsetOutOfRangeError(Exception):
    """The offset lies before the log's start (what was there is compacted) or beyond the high watermark."""


class ProduceRefusedError(Exception):
    """Records were not taken. The text is for the client."""

    def __init__(self, error_code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error_code = error_code


@dataclass(frozen=True, slots=True)
class Produced:
    """Records were committed, or had been before if the same batch came again. The first has `base_offset`."""

    base_offset: int
    log_append_time_ms: int
    """-1: the records keep the timestamps that the client gave them."""


@dataclass(frozen=True, slots=True)
class ProducerId:
    """What an idempotent producer puts into its batches."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a consumer group has noted. `leader_epoch` is -1 if the client did not say it."""

    offset: int
    leader_epoch: int
    metadata: str


class GroupOffsets(Protocol):
    """Where the offsets of consumer groups are kept: as entries of the log, by its leader."""

    def is_coordinator(self) -> bool:
        """Whether this server is where groups meet, for the partition of offsets that there is: the leader.

        Not before it has applied an entry of its own term: until then `committed` may give an older offset than a
        consumer has noted, and the consumer would read entries twice.
        """

    def groups(self) -> Collection[str]:
        """The groups that have noted an offset."""

    def committed(self, group: str) -> Mapping[str, CommittedOffset]:
        """By topic, what the group has noted; partition 0 is the only one."""

    def may_use(self, group: str, principal: str | None) -> bool:
        """Return True if no other user owns the group: the one who first noted an offset in it."""

    async def commit(
        self, group: str, offsets: Mapping[str, CommittedOffset], principal: str | None, hold_s: float = 0.0
    ) -> None:
        """Note offsets; returns when they, or newer ones of the group, are committed and applied.

        They may be held up to `hold_s` before they are written, for others of the group to be written with them.

        Raises `ProduceRefusedError`, such as for one group too many, `ServerBusyError` or `ServerStoppedError`.
        """


class ServedTopic(Protocol):
    """One topic. Everything is called from one trio run; nothing but the coroutines waits."""

    @property
    def max_batch_records(self) -> int:
        """How many records a batch has at most that clients produce; `append` gets none with more."""

    def state(self) -> TopicState:
        """How it is now, cheaply: it is asked for every request."""

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole record batches, the first of which has the record at `offset`, all below the high watermark.

        At least one batch if `offset` is below the high watermark, however large; else of at most `max_bytes`. Offsets
        may have no record: then the first batch begins behind `offset`. Empty if there is no record from `offset` on.
        Raises `OffsetOutOfRangeError`, `ServerBusyError` (ask again soon) or `ServerStoppedError`.
        """

    async def wait_beyond(self, offset: int) -> None:
        """Return when the high watermark is above `offset`."""

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The first offset whose record has this timestamp or a later one, and its timestamp; None: there is none."""

    async def latest_timestamp(self) -> tuple[int, int] | None:
        """The offset of the record with the latest timestamp, and that; None in an empty topic."""

    async def epoch_end(self, epoch: int) -> int | None:
        """The offset behind the last record of `epoch` or of an earlier one, if this server has records beyond it.

        `MAX_OFFSET` if it has not: what it may lack is not cut. None if the log has no record of that epoch and never
        gets one: a consumer that has read one did so in another log. Raises `ServerBusyError` or `ServerStoppedError`.
        """

    async def append(self, batch: RecordBatch, principal: str | None) -> Produced:
        """Have the records of a client committed, once for each (producer id, epoch, sequence).

        Raises `ProduceRefusedError`, `ServerBusyError` or `ServerStoppedError`.
        """

    async def new_producer_id(self, principal: str | None) -> ProducerId:
        """An id that no other producer of this log ever had. Raises as `append` does."""

    def groups(self) -> GroupOffsets | None:
        """Where consumer groups keep their offsets; None: the APIs of groups are not served."""
