"""The farm's log as a topic: the entries that this node has applied, with an offset for each index.

    offset            index - 1                     high watermark   after the last applied record
    leader, epoch     this node, its term           controller       the leader of the farm
    log start         the end of compaction         brokers          this node and the present `kafka.peers`

A consumer of Kafka reads from a partition's leader only. Every node applies the same entries, so each presents itself
as the leader. A consumer stays at its node, and can continue at another node, because the same entries have the same
offsets. The topic ends at the applied index, not at the commit index. Before a node has applied an entry, it does not
know the entry's log time, or whether the entry is a duplicate.

Entries that are not for readers have an offset without a record, unless `kafka.control_records` requests control
records. Without them the high watermark is directly after the last record. If it were after later offsets, a reader
would wait for records at these offsets.

While this node is not a server of a farm, the topic lacks a leader, and clients repeat their requests. The same applies
for a moment after a start, until the snapshot is restored: until then the applied index is before the log's start.
"""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Final
from uuid import UUID

from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.kafka.farm_batches import EPOCH_MAX, batches_of, epoch_of, timestamp_of
from bridge.node.kafka.producing import BATCH_RECORDS, Producing
from bridge.node.settings.clients import KafkaSettings
from consensus import ServerBusyError, ServerStoppedError, integer_id
from consensus.protocols import kafka as protocol
from gossip import Address

READ_ENTRIES: Final = 4_096
CACHE_BYTES: Final = 4 * 1024 * 1024
"""Room for about 10,000 entries of 256 bytes: enough for all consumers that follow the log."""
PRESENT_S: Final = 9.0
"""Seconds without contact until a node is no longer listed as a broker, like Kafka's `broker.session.timeout.ms`."""
NO_ID: Final = 0
"""The id of a node that is not a server yet: Raft ids begin at 1."""
UNKNOWN: Final = -1
_TOPIC_ID_PURPOSE: Final = b"garlic farm topic\x00"


class FarmTopic:
    """A `ServedTopic` over the farm that this node serves at the moment.

    Clients reach this listener at `advertise`. `producing` accepts their records, `groups` their offsets.
    """

    max_batch_records: Final = BATCH_RECORDS

    def __init__(
        self,
        current: CurrentFarm,
        settings: KafkaSettings,
        advertise: Address,
        producing: Producing,
        groups: protocol.GroupOffsets | None,
    ) -> None:
        self._current = current
        self._settings = settings
        self._advertise = advertise
        self._producing = producing
        self._groups = groups
        self._cache = protocol.BatchCache(self._load, CACHE_BYTES)
        self._cached: FoundedFarm | None = None
        """The farm of the cached batches."""
        self._topic_id: tuple[bytes, UUID] | None = None

    def state(self) -> protocol.TopicState:
        """Return the present state of the topic."""
        farm, settings, here = self._current.farm, self._settings, self._advertise
        if farm is None:
            return protocol.TopicState(
                name=settings.topic,
                topic_id=UUID(int=0),
                cluster_id="",
                node_id=NO_ID,
                leader_id=UNKNOWN,
                leader_epoch=UNKNOWN,
                controller_id=UNKNOWN,
                brokers=(protocol.Broker(NO_ID, here.host, here.port),),
                log_start_offset=0,
                high_watermark=0,
                is_internal=False,
                takes_records=settings.write,
            )
        own_id, cluster_id = farm.replica.server_id, farm.known.founding.cluster_id
        server = farm.replica.server
        raft, applied, role = server.soft_state(), server.applied_index, server.role
        start, end = self._bounds(farm)
        return protocol.TopicState(
            name=settings.topic,
            topic_id=self._id_in(cluster_id),
            cluster_id=cluster_id.hex(),
            node_id=own_id,
            leader_id=own_id if applied >= start else UNKNOWN,
            leader_epoch=epoch_of(role.term),
            controller_id=UNKNOWN if role.leader is None else integer_id(role.leader),
            brokers=(
                protocol.Broker(own_id, here.host, here.port),
                *(protocol.Broker(number, at.host, at.port) for number, at in listeners_of(farm, settings).items()),
            ),
            log_start_offset=start,
            high_watermark=max(start, end),
            is_internal=False,
            takes_records=settings.write,
            log_end_offset=max(applied, raft.last.index),
            final_end=max(start, applied),
        )

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Return complete batches, beginning with the batch of `offset`; see `ServedTopic.read`."""
        farm = self._current.serving()
        start, end = self._bounds(farm)
        if not start <= offset <= end:
            raise protocol.OffsetOutOfRangeError(f"offset {offset} is not between {start} and {end}")
        if offset == end:
            return b""
        if self._cached is not farm:
            self._cache.clear()
            self._cached = farm
        self._cache.drop_before(start)
        return await self._cache.read(offset, max_bytes)

    async def wait_beyond(self, offset: int) -> None:
        """Wait until a record with this or a later offset is applied, here or in a later farm of this node."""
        while True:
            farm = await self._current.founded()
            server = farm.replica.server
            with suppress(ServerStoppedError):
                while self._bounds(farm)[1] <= offset:
                    await server.wait_applied(max(offset, server.applied_index) + 1)
                return
            await self._current.ended(farm)

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the first offset with this log time or a later one, and its log time, without a read of the log."""
        farm = self._current.serving()
        applied_state, (start, end) = farm.applied_state, self._bounds(farm)
        index = applied_state.moments.first_at(timestamp_ms)
        offset = None if index is None else max(start, index - 1)
        if offset is None or offset >= end:
            return None
        return offset, timestamp_of(offset + 1, applied_state)

    async def latest_timestamp(self) -> tuple[int, int] | None:
        """Return the first offset with the highest log time, and that time."""
        return await self.offset_for_time(self._current.serving().applied_state.moments.latest_ms())

    async def epoch_end(self, epoch: int) -> int | None:
        """Return the end of the terms up to `epoch` among the applied entries; see `ServedTopic.epoch_end`.

        A recovered farm begins with a snapshot of the old farm. Without `recover --reset term`, its terms are greater
        than the old farm's. Then the old farm's records beyond the snapshot lie after the end of their epoch. So a
        consumer that has read such records detects their loss.
        """
        farm = self._current.serving()
        server = farm.replica.server
        # This epoch represents all terms beyond Kafka's 31 bits.
        term = max(epoch, server.role.term) if epoch == EPOCH_MAX else epoch
        return await protocol.end_of_term(server, term, lambda: server.applied_index, farm.replica.read_barrier)

    async def append(self, batch: protocol.RecordBatch, principal: str | None) -> protocol.Produced:
        """Have the records committed as entries; see `Producing`."""
        return await self._producing.append(batch, principal)

    async def new_producer_id(self, principal: str | None) -> protocol.ProducerId:
        """Start a producer, whose id is the index of a new entry; see `Producing`."""
        return await self._producing.new_producer_id(principal)

    def groups(self) -> protocol.GroupOffsets | None:
        """Return the storage of consumer groups' offsets; None if the settings switch groups off."""
        return self._groups

    def _bounds(self, farm: FoundedFarm) -> tuple[int, int]:
        """Return log start offset and high watermark; during a restore the watermark may be smaller."""
        server = farm.replica.server
        start, applied = server.soft_state().log_start.index, server.applied_index
        if self._settings.control_records or applied < start:
            return start, applied
        return start, max(start, min(applied, farm.applied_state.last_for_readers))

    async def _load(self, offset: int, max_bytes: int) -> bytes:
        farm = self._current.serving()
        batches = b""
        while not batches and offset < self._bounds(farm)[1]:
            limit = min(READ_ENTRIES, self._bounds(farm)[1] - offset)
            entries = await farm.replica.server.read(offset + 1, limit, max_bytes)
            if not entries:
                if offset < self._bounds(farm)[0]:
                    raise protocol.OffsetOutOfRangeError(f"offset {offset} was compacted")
                raise ServerBusyError("the log did not return an applied entry")
            control_records = self._settings.control_records
            batches = await batches_of(offset + 1, entries, farm.applied_state, control_records=control_records)
            offset += len(entries)
        return batches

    def _id_in(self, cluster_id: bytes) -> UUID:
        """Return an id, the same on all nodes, that differs by farm and name, so that clients can distinguish logs."""
        if self._topic_id is None or self._topic_id[0] != cluster_id:
            digest = sha256(_TOPIC_ID_PURPOSE + cluster_id + self._settings.topic.encode()).digest()
            self._topic_id = cluster_id, UUID(bytes=digest[:16], version=4)
        return self._topic_id[1]


def listeners_of(farm: FoundedFarm, settings: KafkaSettings) -> Mapping[int, Address]:
    """Return the addresses of the other present nodes' listeners, by Raft id, from the settings and the log.

    Clients store a coordinator by its id. Some of them (Sarama) drop it only when the list of brokers lacks that id. So
    the list must omit a dead node, as Kafka omits a fenced broker.
    """
    admitted = farm.state.admitted.items() if settings.peers else ()
    ids = {each.name: number for number, each in admitted if each.is_member and number != farm.replica.server_id}
    return {
        ids[peer.name]: peer.address
        for peer in settings.peers
        if peer.name in ids and farm.is_present(ids[peer.name], PRESENT_S)
    }
