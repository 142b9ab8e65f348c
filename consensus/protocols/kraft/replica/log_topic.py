"""The log of a quorum as a topic of one partition: clients read committed records, and the leader accepts new ones.

    read ─▶ committed entries of this server ─▶ whole record batches
    append ─▶ was this batch written? ─▶ submit ─▶ committed ─▶ its offset
                 └─ yes: its first offset

*Idempotence.* The leader takes the batches of a producer one at a time. It checks a batch only when the outcome of the
previous one is known, even if the client of the previous one no longer waits. Otherwise a batch repeated after its
timeout would be written twice. The reply to a batch does not wait until the batch is applied. But the check of the next
batch waits for this, because the state machine has the table of producers.

A producer belongs to the user who requested its id; batches of other users are refused. The request for an id does not
contain the user if another server passes it on. Then the id belongs to its first writer: before the first batch, the
leader commits the user. The table is complete only when this leader has committed an entry of its term, so the first
batch in each term waits for that. Then a batch is new, known, or out of order.
"""

from collections.abc import Callable
from typing import Final

import trio
from msgspec.structs import replace

from consensus.core.effects import Outcome, ProposalResolved
from consensus.core.entry_data import ENTRY_HEAD
from consensus.core.model import LogId, ReplicaKey, ServerId
from consensus.protocols.kafka.connections.connection import (
    DialOptions,
    KafkaConnectionError,
    open_connection,
)
from consensus.protocols.kafka.topic.epoch_ends import end_of_term
from consensus.protocols.kafka.topic.produce_service import FORWARDING_CLIENT
from consensus.protocols.kafka.topic.served_topic import (
    Broker,
    GroupOffsets,
    OffsetOutOfRangeError,
    Produced,
    ProduceRefusedError,
    ProducerId,
    TopicState,
)
from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.messages_clients import InitProducerIdRequest, InitProducerIdResponse
from consensus.protocols.kafka.wire.records import RecordBatch
from consensus.protocols.kraft.operators.settings import BATCH_BYTES, BATCH_RECORDS
from consensus.protocols.kraft.replica.kept_records import metadata_objection
from consensus.protocols.kraft.replica.quorum_names import QuorumNames
from consensus.protocols.kraft.replica.state_machine import (
    NEW_PRODUCER,
    PRODUCER_OWNER,
    QuorumLog,
    owner_data,
    owner_of,
)
from consensus.protocols.kraft.replica.time_index import TimeIndex
from consensus.protocols.kraft.wire.entries import (
    batch_continues_after,
    batches_of,
    control_data,
    data_of,
    next_sequence,
)
from consensus.server.errors import NotLeaderError
from consensus.server.pending_calls import CallbackResult
from consensus.server.server import ConsensusServer

_AHEAD_MS: Final = 3_600_000
"""Kafka's `log.message.timestamp.after.max.ms`."""
_READ_ENTRIES: Final = 512
"""Limit of the entries in one read. Commits wait for some milliseconds while the entries are read and encoded."""


class LogTopic:
    """`ServedTopic` over a server."""

    max_batch_records: Final = BATCH_RECORDS

    def __init__(
        self,
        server: ConsensusServer,
        machine: QuorumLog,
        names: QuorumNames,
        cluster_id: str,
        unix_ms: Callable[[], int],
        connection: DialOptions,
        *,
        takes_records: bool = True,
        is_metadata: bool = False,
    ) -> None:
        """Make the topic; with `is_metadata` it accepts only records for Kafka's controllers (`kept_records`)."""
        self._server = server
        self._machine = machine
        self._names = names
        self._cluster_id = cluster_id
        self._unix_ms = unix_ms
        self._connection = replace(connection, client_id=FORWARDING_CLIENT)
        self._takes_records = takes_records
        self._is_metadata = is_metadata
        self._producing: dict[int, trio.Lock] = {}
        self._unanswered: dict[int, CallbackResult[ProposalResolved]] = {}
        self._ready_term = -1
        self._times = TimeIndex(server.read, lambda: (server.soft_state().log_start.index, server.commit_index))

    def state(self) -> TopicState:
        """See `ServedTopic.state`."""
        raft, role = self._server.soft_state(), self._server.role
        nodes = [server.server_id for server in raft.configuration.voters]
        found = [(key, self._names.endpoint(key)) for key in nodes if isinstance(key, ReplicaKey)]
        leader_id, topic = _id_of(role.leader), self._names.topic()
        return TopicState(
            name=topic.name,
            topic_id=topic.id,
            cluster_id=self._cluster_id,
            node_id=self._names.local().id,
            leader_id=leader_id,
            leader_epoch=role.term,
            controller_id=leader_id,
            brokers=tuple(Broker(key.id, *where) for key, where in found if where is not None),
            log_start_offset=raft.log_start.index,
            high_watermark=self._server.commit_index,
            # Internal only if clients may not write: clients such as kafka-python do not write to internal topics.
            is_internal=not self._takes_records,
            takes_records=self._takes_records,
            log_end_offset=raft.last.index,
        )

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """See `ServedTopic.read`."""
        self._check(offset)
        entries = await self._server.read(offset + 1, _READ_ENTRIES, max(1, max_bytes))
        if not entries:
            return b""
        while all(map(batch_continues_after, entries)):
            more = await self._server.read(offset + 1 + len(entries), _READ_ENTRIES, max(1, max_bytes))
            if not more:
                break
            entries += more
        return batches_of(offset + 1, entries)

    async def wait_beyond(self, offset: int) -> None:
        """See `ServedTopic.wait_beyond`."""
        await self._server.wait_commit(offset + 1)

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """See `ServedTopic.offset_for_time`."""
        return await self._times.first(timestamp_ms)

    async def latest_timestamp(self) -> tuple[int, int] | None:
        """See `ServedTopic.latest_timestamp`."""
        return await self._times.latest()

    async def epoch_end(self, epoch: int) -> int | None:
        """See `ServedTopic.epoch_end`."""
        server = self._server
        return await end_of_term(server, epoch, lambda: server.commit_index, server.read_barrier)

    async def append(self, batch: RecordBatch, principal: str | None) -> Produced:
        """See `ServedTopic.append`."""
        if not self._takes_records:
            raise ProduceRefusedError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, "this log does not accept records from clients"
            )
        if batch.is_control or batch.is_transactional:
            raise ProduceRefusedError(
                ErrorCode.INVALID_RECORD, "the log does not accept control records or transactions"
            )
        found = metadata_objection(batch) if self._is_metadata else None
        if found is not None:
            raise ProduceRefusedError(ErrorCode.INVALID_RECORD, f"this would end Kafka's controllers: {found}")
        if batch.producer_id < 0:
            return await self._append(batch)
        latest_ms = max([record.timestamp_ms for record in batch.records])
        if latest_ms > self._unix_ms() + _AHEAD_MS:
            # Such a time would advance the log's time, and the producers of other users would expire.
            text = (
                f"a record has the time {latest_ms} ms, more than an hour after the leader's clock: check both clocks"
            )
            raise ProduceRefusedError(ErrorCode.INVALID_TIMESTAMP, text)
        lock = self._producing.get(batch.producer_id)
        if lock is None:
            lock = self._producing[batch.producer_id] = trio.Lock()
            lock.acquire_nowait()  # a single producer need not wait for a turn of the event loop
        else:
            await lock.acquire()
        try:
            if (abandoned := self._unanswered.get(batch.producer_id)) is not None:
                await abandoned.wait()
            await self._be_ready()
            await self._check_owner(batch.producer_id, owner_of(principal))
            return self._known(batch) or await self._append(batch)
        finally:
            lock.release()
            if not lock.locked():
                del self._producing[batch.producer_id]

    async def query_leader(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Return the leader's reply, for a server that does not lead. Raises `KafkaConnectionError`."""
        leader = self._server.role.leader
        where = self._names.endpoint(leader) if isinstance(leader, ReplicaKey) else None
        if where is None:
            raise KafkaConnectionError("no leader is known now")
        async with open_connection(*where, self._connection) as connection:
            response: InitProducerIdResponse = await connection.ask(request)
        return response

    async def new_producer_id(self, principal: str | None) -> ProducerId:
        """See `ServedTopic.new_producer_id`. The id is the index of its entry."""
        if not self._takes_records:
            raise ProduceRefusedError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "this log does not accept records from clients"
            )
        if self._is_metadata:
            text = "with Kafka's controllers a producer cannot be idempotent: produce with enable.idempotence=false"
            raise ProduceRefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
        answer = await self._submit(
            (control_data(NEW_PRODUCER, owner_of(principal).encode(), self._unix_ms()),), control=True
        )
        return ProducerId(answer, 0)

    def groups(self) -> GroupOffsets | None:
        """Return None: a quorum's log does not keep offsets of groups."""
        return None

    def _check(self, offset: int) -> None:
        start, end = self._server.soft_state().log_start.index, self._server.commit_index
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(f"offset {offset} is not between {start} and {end}")

    async def _be_ready(self) -> None:
        """Wait until the table of producers has all committed records, including those by earlier leaders."""
        await self._server.wait_applied(self._server.commit_index)
        term = self._server.role.term
        if term == self._ready_term:
            return
        try:
            await self._server.read_barrier()
        except NotLeaderError as error:
            raise ProduceRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another server leads") from error
        self._ready_term = term

    async def _check_owner(self, producer_id: int, owner: str) -> None:
        """Raise `ProduceRefusedError` if the producer belongs to another user.

        A producer without an owner becomes this user's. The owner is in the log before the batch, so the next leader
        refuses batches of other users, too.
        """
        producer = self._machine.producers.get(producer_id)
        if producer is not None and owner and not producer.owner:
            claim = control_data(PRODUCER_OWNER, owner_data(producer_id, owner), self._unix_ms())
            await self._server.wait_applied(await self._submit((claim,), control=True))
            producer = self._machine.producers.get(producer_id)
        if producer is not None and producer.owner != owner:
            text = f"producer {producer_id} belongs to another user: request a separate producer id"
            raise ProduceRefusedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)

    def _known(self, batch: RecordBatch) -> Produced | None:
        """Return the earlier reply to a repeated batch, or None for the next one. Raises `ProduceRefusedError`."""
        producer = self._machine.producers.get(batch.producer_id)
        if producer is None:
            raise ProduceRefusedError(
                ErrorCode.UNKNOWN_PRODUCER_ID,
                f"producer {batch.producer_id} did not get its id here, or has not written for a long time",
            )
        if batch.producer_epoch < producer.epoch:
            raise ProduceRefusedError(ErrorCode.INVALID_PRODUCER_EPOCH, "a later epoch of this producer has written")
        last = next_sequence(batch.base_sequence, len(batch.records) - 1)
        is_new_epoch = batch.producer_epoch > producer.epoch or not producer.batches
        if not is_new_epoch:
            for written in producer.batches:
                if (written.first_sequence, written.last_sequence) == (batch.base_sequence, last):
                    return Produced(written.base_offset, -1)
        expected = 0 if is_new_epoch else next_sequence(producer.batches[-1].last_sequence)
        if batch.base_sequence != expected:
            raise ProduceRefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} sends sequence {batch.base_sequence}; {expected} is the next",
            )
        return None

    async def _append(self, batch: RecordBatch) -> Produced:
        commands = data_of(batch)
        size_bytes = sum([len(command) + ENTRY_HEAD.size for command in commands])
        if len(commands) > self.max_batch_records or size_bytes > BATCH_BYTES:
            # A follower could fetch such a batch only in parts, and would treat each part as a batch.
            text = f"a batch has at most {self.max_batch_records} records and {BATCH_BYTES} bytes here"
            raise ProduceRefusedError(ErrorCode.MESSAGE_TOO_LARGE, text)
        last = await self._submit(commands, producer_id=batch.producer_id)
        return Produced(last - len(commands), -1)

    async def _submit(self, commands: tuple[bytes, ...], *, control: bool = False, producer_id: int = -1) -> int:
        """Commit commands; return the index of the last. Raises `ProduceRefusedError`.

        If canceled, it leaves the producer's entry in `_unanswered` until the fate of the commands is known.
        """
        result: CallbackResult[ProposalResolved] = CallbackResult()

        def take(answer: ProposalResolved) -> None:
            self._unanswered.pop(producer_id, None)
            result.give(answer)

        if producer_id >= 0:
            self._unanswered[producer_id] = result
        try:
            self._server.submit(commands, take, control=control)
        except ValueError as error:
            self._unanswered.pop(producer_id, None)
            raise ProduceRefusedError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
        match await result.wait():
            case ProposalResolved(outcome=Outcome.COMMITTED, position=LogId(index=index)):
                return index
            case ProposalResolved(outcome=Outcome.BUSY):
                raise ProduceRefusedError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too much waits to be committed")
            case _:
                text = "another server leads, or none does now"
                raise ProduceRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)


def _id_of(leader: ServerId | None) -> int:
    return leader.id if isinstance(leader, ReplicaKey) else -1
