"""Requests of producers to a topic of one partition: Produce and InitProducerId.

    Produce ─▶ allowed? ─▶ one whole batch, valid CRC, no transaction ─▶ ServedTopic.append ─▶ committed ─▶ base offset

A batch gets its reply when its records are committed, for any `acks` except 0. A Raft leader does not have a weaker
state to report. With `acks` 0 the leader does not reply, so the client does not see refusals.

*Idempotence.* The topic stores the last batches of each producer id, and replies to a repeated one with its offset
(KIP-98). After the client's timeout the reply is REQUEST_TIMED_OUT, and the batch may still be committed later. A
producer with an id can safely repeat the batch; a producer without an id may write it twice.

*Producer ids.* Clients send InitProducerId to any server, and some repeat it there until they get an id. If only the
leader can give an id, another server requests it from the leader.

*Transactions* are not served: they lack a coordinator, and their requests are refused.

A server whose topic refuses records of clients still advertises Produce, because clients derive the supported format of
records from it. The reply is TOPIC_AUTHORIZATION_FAILED, an error that clients report immediately instead of retrying.
"""

from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final

import trio

from consensus.protocols.kafka.connections.connection import KafkaConnectionError
from consensus.protocols.kafka.connections.service import Caller, ServedApi, Service
from consensus.protocols.kafka.topic.served_topic import Produced, ProduceRefusedError, ServedTopic, TopicState
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.limits import PARTITION, KafkaWireError
from consensus.protocols.kafka.wire.record_batches import batch_heads, read_batches
from consensus.protocols.kafka.wire.records import RecordBatch
from consensus.server.errors import ServerBusyError, ServerStoppedError

_FIRST_PRODUCE_BY_ID: Final = 13
_MAX_TIMEOUT_MS: Final = 120_000
_ACKS: Final = (-1, 0, 1)
_LATER: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""Temporary error of InitProducerId: all clients repeat the request, some of them always at the same server.

After COORDINATOR_NOT_AVAILABLE, Java's client and kafka-python look for the coordinator of a transactional id that they
do not have; kafka-python repeats this forever. Java's older clients fail after REQUEST_TIMED_OUT.
"""
_TEMPORARY: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT}
)
"""The topic's errors that become `_LATER`."""
FORWARDING_CLIENT: Final = "forwarded"
"""The client id of a request that another server forwards."""
Forward = Callable[[clients.InitProducerIdRequest], Awaitable[clients.InitProducerIdResponse]]
"""Requests a producer id from the leader; raises `KafkaConnectionError` or `KafkaWireError`."""


class ProduceService(Service):
    """A `Service` of a listener that appends the records of clients to one topic."""

    def __init__(self, topic: ServedTopic, forward: Forward | None = None) -> None:
        """Make the service; `forward` requests a producer id from the leader, if only the leader can give one."""
        self._topic = topic
        self._forward = forward

    def apis(self) -> Mapping[int, ServedApi]:
        """Return Produce and InitProducerId."""
        return {
            ApiKey.PRODUCE: ServedApi(*VERSIONS[ApiKey.PRODUCE], self.produce),
            ApiKey.INIT_PRODUCER_ID: ServedApi(*VERSIONS[ApiKey.INIT_PRODUCER_ID], self.init_producer_id),
        }

    async def produce(self, request: clients.ProduceRequest, caller: Caller) -> clients.ProduceResponse | None:
        """Commit the batch of a request; refuse each further partition in it."""
        deadline = trio.current_time() + max(0, min(request.timeout_ms, _MAX_TIMEOUT_MS)) / 1000
        topics = []
        is_named = False
        endpoints: tuple[clients.ProduceResponseNodeEndpoint, ...] = ()
        for topic in request.topic_data:
            parts = []
            for partition in topic.partition_data:
                try:
                    self._check_place(request, topic, partition, caller)
                    _check_once(is_repeated=is_named)
                    is_named = True
                    produced = await self._append(self._batch_of(partition), caller, deadline)
                except ProduceRefusedError as error:
                    parts.append(self._refused(partition.index, error))
                    state = self._topic.state()
                    leads = state.leader_id == state.node_id
                    endpoints = () if leads else state.leader_endpoint(clients.ProduceResponseNodeEndpoint)
                else:
                    parts.append(self._taken(partition.index, produced))
            topics.append(
                clients.ProduceResponseTopic(name=topic.name, topic_id=topic.topic_id, partition_responses=tuple(parts))
            )
        if request.acks == 0:
            return None
        return clients.ProduceResponse(responses=tuple(topics), node_endpoints=endpoints)

    async def init_producer_id(
        self, request: clients.InitProducerIdRequest, caller: Caller
    ) -> clients.InitProducerIdResponse:
        """Return a new id. A client with an id also gets a new one, so its numbers restart."""
        error = ErrorCode.NONE
        state = self._topic.state()
        if request.transactional_id is not None:
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not state.takes_records:
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        elif state.leader_id != state.node_id:
            return await self._of_leader(request, caller)
        if error is ErrorCode.NONE:
            try:
                # A forwarding server logs in as itself, and does not send the name of the original client.
                principal = None if caller.client_id == FORWARDING_CLIENT else caller.principal
                given = await self._topic.new_producer_id(principal)
            except ProduceRefusedError as refused:
                error = _LATER if refused.error_code in _TEMPORARY else refused.error_code
            except (ServerBusyError, ServerStoppedError):
                error = _LATER
            else:
                return clients.InitProducerIdResponse(
                    producer_id=given.producer_id, producer_epoch=given.producer_epoch
                )
        return clients.InitProducerIdResponse(error_code=error, producer_epoch=-1)

    async def _of_leader(
        self, request: clients.InitProducerIdRequest, caller: Caller
    ) -> clients.InitProducerIdResponse:
        # A forwarded request is not forwarded again: two servers that each consider the other one the leader would
        # forward without end.
        if self._forward is not None and caller.client_id != FORWARDING_CLIENT:
            try:
                return await self._forward(request)
            except (KafkaConnectionError, KafkaWireError):
                pass  # the client retries; by then another leader may be known
        return clients.InitProducerIdResponse(error_code=_LATER, producer_epoch=-1)

    def _check_place(
        self,
        request: clients.ProduceRequest,
        topic: clients.ProduceRequestTopic,
        partition: clients.ProduceRequestPartition,
        caller: Caller,
    ) -> None:
        """Raise `ProduceRefusedError` unless this is the topic's partition, and this server accepts its records."""
        by_id = caller.api_version >= _FIRST_PRODUCE_BY_ID
        _check_place(self._topic.state(), request, topic, partition, by_id=by_id)

    def _batch_of(self, partition: clients.ProduceRequestPartition) -> RecordBatch:
        """Return the one batch of a partition, if the topic may take it; raises `ProduceRefusedError`.

        Batches and records are counted by the heads, before decompression: a small request may have hundreds of
        compressed batches, each with 100,000 records.
        """
        records, most = partition.records or b"", self._topic.max_batch_records
        try:
            heads = [head for _, head in islice(batch_heads(records), 2)]
            if len(heads) != 1:
                text = "a request must have exactly one record batch: send each batch in its own request"
                raise ProduceRefusedError(ErrorCode.INVALID_RECORD, text)
            if heads[0].count > most:
                text = f"a batch has at most {most} records here, this one has {heads[0].count}: send smaller batches"
                raise ProduceRefusedError(ErrorCode.MESSAGE_TOO_LARGE, text)
            [batch] = read_batches(records)
        except KafkaWireError as error:
            raise ProduceRefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if batch.is_control or batch.is_transactional or not batch.records:
            text = "clients may only write batches of records: no control records, transactions or empty batches"
            raise ProduceRefusedError(ErrorCode.INVALID_RECORD, text)
        return batch

    async def _append(self, batch: RecordBatch, caller: Caller, deadline: float) -> Produced:
        try:
            with trio.fail_at(deadline):
                return await self._topic.append(batch, caller.principal)
        except trio.TooSlowError as error:
            text = "the records were not committed in time, but may still be committed"
            raise ProduceRefusedError(ErrorCode.REQUEST_TIMED_OUT, text) from error
        except (ServerBusyError, ServerStoppedError) as error:
            text = "the server is busy or stops: send the records again"
            raise ProduceRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text) from error

    def _taken(self, index: int, produced: Produced) -> clients.ProduceResponsePartition:
        return clients.ProduceResponsePartition(
            index=index,
            base_offset=produced.base_offset,
            log_append_time_ms=produced.log_append_time_ms,
            log_start_offset=self._topic.state().log_start_offset,
        )

    def _refused(self, index: int, error: ProduceRefusedError) -> clients.ProduceResponsePartition:
        state = self._topic.state()
        return clients.ProduceResponsePartition(
            index=index,
            error_code=error.error_code,
            base_offset=-1,
            error_message=str(error),
            current_leader=clients.ProduceResponseLeaderIdAndEpoch(
                leader_id=state.leader_id, leader_epoch=state.leader_epoch
            ),
        )


def _check_place(
    state: TopicState,
    request: clients.ProduceRequest,
    topic: clients.ProduceRequestTopic,
    partition: clients.ProduceRequestPartition,
    *,
    by_id: bool,
) -> None:
    is_known = topic.topic_id == state.topic_id if by_id else topic.name == state.name
    if request.acks not in _ACKS:
        raise ProduceRefusedError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or all (-1), not {request.acks}")
    if request.transactional_id is not None:
        text = "transactions are not served: produce without a transactional id"
        raise ProduceRefusedError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
    if by_id and not is_known:
        raise ProduceRefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"a topic with the id {topic.topic_id} does not exist")
    if not is_known or partition.index != PARTITION:
        text = f"the only topic is {state.name}, with the partition 0"
        raise ProduceRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if not state.takes_records:
        text = f"{state.name} is read-only here: producing is switched off in this server's settings"
        raise ProduceRefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    if state.leader_id != state.node_id:
        text = f"server {state.leader_id} takes records" if state.leader_id >= 0 else "no leader is known now"
        raise ProduceRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)


def _check_once(*, is_repeated: bool) -> None:
    if is_repeated:
        text = "this request names the partition twice: send one batch in each request"
        raise ProduceRefusedError(ErrorCode.INVALID_RECORD, text)
