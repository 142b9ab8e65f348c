"""Requests of consumers to a topic of one partition: Metadata, DescribeCluster, ListOffsets, epochs' ends, Fetch.

    Fetch ─▶ check topic, leader, epoch ─▶ offset within [log start, high watermark]? ─▶ enough bytes? ─▶ reply
                                                         │ beyond it                        │ no
                                                         └───── wait for the watermark ◀────┘ at most max_wait

*Epochs.* A request with a lower epoch than the topic's gets FENCED_LEADER_EPOCH, with a higher one
UNKNOWN_LEADER_EPOCH: the client then requests Metadata and retries (KIP-320). An epoch ends at the first committed
entry of a later one. Without such an entry the reply is `MAX_OFFSET` (no known end), since the server may lag.
OffsetForLeaderEpoch must be served, because kafka-python would otherwise repeat the request forever. The reply for an
epoch that the cluster never had is -1; then clients apply their reset policy.

docs/explanation/other-protocols.md explains the ends of epochs, and the reply to an offset beyond the high watermark.

*Sessions* (KIP-227) would save the list of partitions in each request. With one partition, every reply has session id
0: no session. A request of a session gets FETCH_SESSION_ID_NOT_FOUND.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import trio

from consensus.protocols.kafka.connections.service import Answer, Caller, ServedApi, Service
from consensus.protocols.kafka.topic.quorum_view import cluster_response
from consensus.protocols.kafka.topic.served_topic import MAX_OFFSET, OffsetOutOfRangeError, ServedTopic, TopicState
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.limits import NO_EPOCH, NO_REPLICA, PARTITION, ZERO_UUID
from consensus.server.errors import ServerBusyError, ServerStoppedError

_FIRST_FETCH_BY_ID: Final = 13
_MAX_WAIT_MS: Final = 60_000
"""Longest wait of a Fetch; after this the reply has the available records, if any."""
_MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Size limit of the reply to a Fetch, for any requested size."""


class ConsumerService(Service):
    """A `Service` of a listener that serves one topic to consumers."""

    def __init__(self, topic: ServedTopic, *, describes_cluster: bool = True) -> None:
        """Make the service; `describes_cluster` is False if another service of the listener has DescribeCluster."""
        self._topic = topic
        answers: dict[int, Answer] = {
            ApiKey.FETCH: self.fetch,
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.METADATA: self.metadata,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
        }
        if describes_cluster:
            answers[ApiKey.DESCRIBE_CLUSTER] = self.describe_cluster
        self._apis = {key: ServedApi(*VERSIONS[key], answer) for key, answer in answers.items()}

    def apis(self) -> Mapping[int, ServedApi]:
        """Return all APIs; DescribeCluster unless another service has it."""
        return self._apis

    async def metadata(self, request: clients.MetadataRequest, caller: Caller) -> clients.MetadataResponse:
        """Return the brokers, and the topic with its leader."""
        state = self._topic.state()
        requested_topics = request.topics
        # Version 0 cannot send null: there an empty list requests all topics.
        if requested_topics is None or (not requested_topics and caller.api_version == 0):
            topics: tuple[clients.MetadataResponseTopic, ...] = (_topic(state),)
        else:
            topics = tuple(_requested_topic(state, topic) for topic in requested_topics)
        return clients.MetadataResponse(
            brokers=tuple(
                clients.MetadataResponseBroker(node_id=broker.node_id, host=broker.host, port=broker.port)
                for broker in state.brokers
            ),
            cluster_id=state.cluster_id,
            controller_id=_controller(state),
            topics=topics,
        )

    async def describe_cluster(
        self, request: admin.DescribeClusterRequest, caller: Caller
    ) -> admin.DescribeClusterResponse:
        """Return the brokers, which are the controllers as well: each server is both, on this listener."""
        del caller
        state = self._topic.state()
        brokers = ((each.node_id, each.host, each.port) for each in state.brokers)
        return cluster_response(request, state.cluster_id, _controller(state), brokers)

    async def list_offsets(self, request: clients.ListOffsetsRequest, caller: Caller) -> clients.ListOffsetsResponse:
        """Return the start, the end, or the offset of a time.

        A repeated partition is refused, as in Kafka: finding a time may need the whole log.
        """
        began_s = trio.current_time()
        named = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
        topics = []
        for topic in request.topics:
            parts = [
                await self._offset_of(topic.name, each, is_repeated=named[topic.name, each.partition_index] > 1)
                for each in topic.partitions
            ]
            topics.append(clients.ListOffsetsResponseTopic(name=topic.name, partitions=tuple(parts)))
        caller.budget.charge(began_s, self._topic.state().high_watermark)
        return clients.ListOffsetsResponse(topics=tuple(topics))

    async def _offset_of(
        self, name: str, partition: clients.ListOffsetsRequestPartition, *, is_repeated: bool
    ) -> clients.ListOffsetsResponsePartition:
        state = self._topic.state()
        index = partition.partition_index
        error = _refusal(state, index, partition.current_leader_epoch, is_known=name == state.name)
        if is_repeated:
            error = ErrorCode.INVALID_REQUEST
        found: tuple[int, int] | None = None
        if error is ErrorCode.NONE:
            try:
                match partition.timestamp:
                    case _ if partition.timestamp >= 0:
                        found = await self._topic.offset_for_time(partition.timestamp)
                    case -1:
                        found = (state.high_watermark, -1)
                    case -2 | -4:
                        found = (state.log_start_offset, -1)
                    case -3:
                        found = await self._topic.latest_timestamp()
                    case -5:
                        pass
                    case _:
                        error = ErrorCode.INVALID_REQUEST
            except (ServerBusyError, ServerStoppedError):
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if found is None:
            return clients.ListOffsetsResponsePartition(partition_index=index, error_code=error)
        offset, timestamp_ms = found
        return clients.ListOffsetsResponsePartition(partition_index=index, timestamp=timestamp_ms, offset=offset)

    async def offset_for_leader_epoch(
        self, request: clients.OffsetForLeaderEpochRequest, caller: Caller
    ) -> clients.OffsetForLeaderEpochResponse:
        """Return the ends of epochs, so that clients detect the truncation of records that they have read.

        A repeated partition is refused: each may cost a read barrier.
        """
        began_s = trio.current_time()
        named = Counter((topic.topic, each.partition) for topic in request.topics for each in topic.partitions)
        topics = []
        for topic in request.topics:
            parts = [
                await self._epoch_end(topic.topic, partition, is_repeated=named[topic.topic, partition.partition] > 1)
                for partition in topic.partitions
            ]
            topics.append(clients.OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=tuple(parts)))
        caller.budget.charge(began_s, self._topic.state().high_watermark)
        return clients.OffsetForLeaderEpochResponse(topics=tuple(topics))

    async def _epoch_end(
        self, name: str, partition: clients.OffsetForLeaderEpochRequestPartition, *, is_repeated: bool
    ) -> clients.OffsetForLeaderEpochResponsePartition:
        state = self._topic.state()
        error = _refusal(state, partition.partition, partition.current_leader_epoch, is_known=name == state.name)
        if is_repeated:
            error = ErrorCode.INVALID_REQUEST
        end: int | None = MAX_OFFSET
        if error is ErrorCode.NONE and partition.leader_epoch >= 0:
            try:
                end = await self._topic.epoch_end(partition.leader_epoch)
            except (ServerBusyError, ServerStoppedError):
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is not ErrorCode.NONE or end is None:
            return clients.OffsetForLeaderEpochResponsePartition(error_code=error, partition=partition.partition)
        return clients.OffsetForLeaderEpochResponsePartition(
            partition=partition.partition, leader_epoch=partition.leader_epoch, end_offset=end
        )

    async def fetch(self, request: clients.FetchRequest, caller: Caller) -> clients.FetchResponse:
        """Return whole batches from the requested offsets, when there are enough or the time is over."""
        if request.session_id != 0:
            return clients.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=())
        wait_s = max(0, min(request.max_wait_ms, _MAX_WAIT_MS)) / 1000
        deadline = trio.current_time() + wait_s
        while True:
            watermark, began_s = self._topic.state().high_watermark, trio.current_time()
            is_last = began_s >= deadline
            response, is_enough = await self._read(request, caller, is_last=is_last)
            caller.budget.charge(began_s, watermark)
            if is_enough or is_last:
                return response
            with trio.move_on_at(deadline):
                await self._topic.wait_beyond(watermark)

    async def _read(
        self, request: clients.FetchRequest, caller: Caller, *, is_last: bool
    ) -> tuple[clients.FetchResponse, bool]:
        """Return the present reply, and True if it need not wait: enough bytes, an error, or no possible data."""
        budget = max(0, min(request.max_bytes, _MAX_ANSWER_BYTES))
        taken, is_refused, waits = 0, False, False
        topics = []
        for topic in request.topics:
            parts = []
            for partition in topic.partitions:
                room = budget - taken if taken else max(budget, 1)
                part = await self._partition(topic, partition, caller, room, is_last=is_last)
                taken += len(part.records or b"")
                is_refused |= part.error_code != ErrorCode.NONE
                waits |= part.error_code == ErrorCode.NONE
                parts.append(part)
            topics.append(
                clients.FetchResponseTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=tuple(parts))
            )
        state = self._topic.state()
        response = clients.FetchResponse(
            responses=tuple(topics),
            node_endpoints=state.leader_endpoint(clients.FetchResponseNodeEndpoint) if is_refused else (),
        )
        return response, is_refused or not waits or taken >= max(request.min_bytes, 0)

    async def _partition(
        self,
        topic: clients.FetchRequestTopic,
        partition: clients.FetchRequestPartition,
        caller: Caller,
        room_bytes: int,
        *,
        is_last: bool,
    ) -> clients.FetchResponsePartition:
        state = self._topic.state()
        by_id = caller.api_version >= _FIRST_FETCH_BY_ID
        is_known = topic.topic_id == state.topic_id if by_id else topic.topic == state.name
        error = _refusal(state, partition.partition, partition.current_leader_epoch, is_known=is_known)
        if by_id and not is_known:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        records = b""
        if error is ErrorCode.NONE:
            if not 0 <= state.log_start_offset <= partition.fetch_offset:
                error = ErrorCode.OFFSET_OUT_OF_RANGE
            elif partition.fetch_offset > state.high_watermark:
                is_gap = partition.fetch_offset <= state.final_end
                error = _beyond(state, partition.fetch_offset) if is_last and not is_gap else ErrorCode.NONE
            elif partition.fetch_offset < state.high_watermark and room_bytes > 0:
                try:
                    records = await self._topic.read(
                        partition.fetch_offset, min(partition.partition_max_bytes, room_bytes)
                    )
                except OffsetOutOfRangeError:
                    error = ErrorCode.OFFSET_OUT_OF_RANGE
                except (ServerBusyError, ServerStoppedError):
                    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        state = self._topic.state()
        return clients.FetchResponsePartition(
            partition_index=partition.partition,
            error_code=error,
            high_watermark=state.high_watermark if error is ErrorCode.NONE else -1,
            last_stable_offset=state.high_watermark if error is ErrorCode.NONE else -1,
            log_start_offset=state.log_start_offset,
            current_leader=(
                clients.FetchResponseLeaderIdAndEpoch()
                if error is ErrorCode.NONE
                else clients.FetchResponseLeaderIdAndEpoch(leader_id=state.leader_id, leader_epoch=state.leader_epoch)
            ),
            records=records,
        )


def _refusal(state: TopicState, partition: int, epoch: int, *, is_known: bool) -> ErrorCode:
    """Return the reason why a partition is not read here, or NONE."""
    if not is_known or partition != PARTITION:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if state.leader_id != state.node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if epoch != NO_EPOCH and epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > state.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE


def _beyond(state: TopicState, offset: int) -> ErrorCode:
    knows_end = state.controller_id == state.node_id
    is_beyond = knows_end and offset > max(state.log_end_offset, state.high_watermark)
    return ErrorCode.OFFSET_OUT_OF_RANGE if is_beyond else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _controller(state: TopicState) -> int:
    """Return the leader of the quorum, if clients can connect to it."""
    return state.controller_id if any(it.node_id == state.controller_id for it in state.brokers) else NO_REPLICA


def _requested_topic(state: TopicState, requested: clients.MetadataRequestTopic) -> clients.MetadataResponseTopic:
    if requested.name == state.name or (requested.name is None and requested.topic_id == state.topic_id):
        return _topic(state)
    by_id = requested.topic_id != ZERO_UUID
    return clients.MetadataResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=requested.name,
        topic_id=requested.topic_id,
        partitions=(),
    )


def _topic(state: TopicState) -> clients.MetadataResponseTopic:
    replicas = tuple(broker.node_id for broker in state.brokers)
    partition = clients.MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if state.leader_id == NO_REPLICA else ErrorCode.NONE,
        partition_index=PARTITION,
        leader_id=state.leader_id,
        leader_epoch=state.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=replicas,
    )
    return clients.MetadataResponseTopic(
        name=state.name, topic_id=state.topic_id, is_internal=state.is_internal, partitions=(partition,)
    )
