"""Records of Kafka's producers, committed to the farm's log like entries of `garlicfarm submit`, one per record.

    batch ─▶ each record: a JSON object for submit? within the user's scopes? ─▶ else refused as a whole
          ─▶ no producer id: signed if it acts on the farm ─▶ submitted once ─▶ committed │ fate unknown: timed out
          ─▶ producer id:    names `kafka:ID.EPOCH.SEQUENCE`, then `.USER` if the client has a name
                             ─▶ signed by this node ─▶ submitted, repeated while its fate is unknown
                             ─▶ applied: the table of producers has the positions of the first copies

The record's value is committed. If the batch has a producer id, `request` is added in front and a proof at the end. A
record's key, headers and timestamp are dropped, since an entry does not have them.

*Exactly once.* The table of producers in the farm's state (`bridge.core.state.kafka_clients`) decides for all nodes
alike. This module queries the table first, so that most repetitions do not make a second entry; the table skips the
others. This node may lag the leader, so it checks any result except new and duplicate again after a read barrier. A
producer belongs to the user that started it. Batches of another user under its id are refused, here and by the state
machine. Batches of one producer are processed one by one.

*Partial batches.* A batch is submitted in pieces, and a part of a canceled batch may be committed. When the batch is
repeated, its known records are skipped. The records may then be apart in the log; the reply has the first position.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from secrets import token_hex
from typing import Final, assert_never

import trio

from bridge.api.alarms import KAFKA_LEVEL_LOW
from bridge.api.control import SubmitOutcome
from bridge.core.log.feature_level import BOUNDS_LEVEL, KAFKA_LEVEL
from bridge.core.log.records import Foreign, ProducerStart, request_of
from bridge.core.state.kafka_clients import SEQUENCES, ProducedStatus, principal_hash
from bridge.core.state.kafka_clients import Produced as ProducedEntry
from bridge.node.events.alarms import Alarms
from bridge.node.founded_farm import NO_SERVER, CurrentFarm, FoundedFarm
from bridge.node.kafka.counters import ProduceRefusal, TopicEvent
from bridge.node.kafka.listed_users import ListedUsers
from bridge.node.raft.client_scopes import needed_scope
from bridge.node.raft.submitting import entry_refusal, sealed
from bridge.wire.log.entries import decode, encode
from bridge.wire.log.proof import ends_like_proof
from consensus import NotLeaderError, ServerBusyError, ServerStoppedError
from consensus.protocols.kafka import ErrorCode, Produced, ProduceRefusedError, ProducerId, RecordBatch

BATCH_RECORDS: Final = 10_000
"""The limit of records for one request (`ServedTopic.max_batch_records`)."""
HELD_BYTES: Final = 16 * 1024 * 1024
PIECE_ENTRIES: Final = 256
PIECE_BYTES: Final = 512 * 1024
"""The maximum bytes of one proposal: the leader's other work waits for one proposal at most."""


class Producing:
    """The handler of producers' requests. `users` may produce; None permits no client."""

    def __init__(self, current: CurrentFarm, users: ListedUsers | None, alarms: Alarms) -> None:
        self._current = current
        self._users = users
        self._alarms = alarms
        self._batches_of: dict[int, trio.Lock] = {}
        """Locks by producer id, each held while a batch of its producer is in progress."""
        self._pending_bytes = 0
        """Bytes of the record values of batches in progress."""
        self.counters: Counter[TopicEvent | ProduceRefusal] = Counter()
        """Committed and duplicate records, started producers, and refusals by reason."""

    async def append(self, batch: RecordBatch, principal: str | None) -> Produced:
        """Have a batch committed; see `ServedTopic.append`."""
        values = self._checked(batch, principal)
        farm = self._ready()
        size_bytes = sum(map(len, values))
        if self._pending_bytes and self._pending_bytes + size_bytes > HELD_BYTES:
            raise ServerBusyError("too many bytes of clients' records wait for their commit")
        self._pending_bytes += size_bytes
        try:
            return await self._append(farm, batch, values, owner_in(farm, principal))
        finally:
            self._pending_bytes -= size_bytes

    async def _append(self, farm: FoundedFarm, batch: RecordBatch, values: tuple[bytes, ...], owner: str) -> Produced:
        if batch.producer_id < 0:
            return await self._append_once(farm, values)
        lock = self._batches_of.setdefault(batch.producer_id, trio.Lock())
        try:
            async with lock:
                return await self._append_sequence(farm, batch, values, owner)
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._batches_of.pop(batch.producer_id, None)

    async def new_producer_id(self, principal: str | None) -> ProducerId:
        """Start a producer; see `ServedTopic.new_producer_id`.

        Its id is the index of an entry `{"kafkaProducer":…}` of this node. A repeated entry is harmless: only the first
        copy has an effect.
        """
        if self._users is None or not self._users.scopes_of(principal):
            raise self._refused(
                ProduceRefusal.OUT_OF_SCOPE,
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                f"{principal or 'an unknown client'} needs a scope in kafka.users to produce",
            )
        farm = self._ready()
        name = f"{farm.signer.node_id.hex()}-{token_hex(8)}"
        start = ProducerStart(name, principal=owner_in(farm, principal))
        await self._submit(farm, (farm.signer.sign(encode(start)),), repeat_unknown=True)
        producer_id = farm.state.kafka.id_of(name)
        if producer_id is None:
            raise self._refused(
                ProduceRefusal.UNKNOWN,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "the entry of the new producer did not take effect",
            )
        self.counters[TopicEvent.PRODUCED_PRODUCERS] += 1
        return ProducerId(producer_id, 0)

    def _checked(self, batch: RecordBatch, principal: str | None) -> tuple[bytes, ...]:
        """Return the entries of a batch; raise `ProduceRefusedError` if one of them is not permitted."""
        scopes = frozenset() if self._users is None else self._users.scopes_of(principal)
        values = []
        for number, record in enumerate(batch.records):
            value = record.value or b""
            refusal = entry_refusal(value)
            if refusal is None and batch.producer_id >= 0:
                refusal = _cannot_be_sealed(value)
            if refusal is not None:
                raise self._refused(
                    ProduceRefusal.INVALID, ErrorCode.INVALID_RECORD, f"record {number} of the batch: {refusal}"
                )
            scope = needed_scope(value)
            if scope not in scopes:
                text = f"record {number} of the batch needs the scope {scope.value}, which {principal} does not have"
                raise self._refused(ProduceRefusal.OUT_OF_SCOPE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
            values.append(value)
        return tuple(values)

    def _ready(self) -> FoundedFarm:
        farm = self._current.farm
        if farm is None:
            raise ServerStoppedError(NO_SERVER)
        if not has_level(farm, self._alarms):
            text = f"the farm has feature level {farm.state.level}; producers need {KAFKA_LEVEL}"
            raise self._refused(ProduceRefusal.EARLY, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        return farm

    async def _append_once(self, farm: FoundedFarm, values: tuple[bytes, ...]) -> Produced:
        """Submit records without a producer id.

        Copies are not detectable, so records with an unknown outcome are not repeated: the client decides.
        """
        entries = tuple(self._signed(farm, value) for value in values)
        offsets = []
        for piece in _pieces(entries):
            last = await self._submit(farm, piece, repeat_unknown=False)
            offsets.append(last - len(piece))
            self.counters[TopicEvent.PRODUCED_RECORDS] += len(piece)
        return Produced(offsets[0], -1)

    async def _append_sequence(
        self, farm: FoundedFarm, batch: RecordBatch, values: tuple[bytes, ...], owner: str
    ) -> Produced:
        named = tuple(
            ProducedEntry(batch.producer_id, batch.producer_epoch, (batch.base_sequence + place) % SEQUENCES, owner)
            for place in range(len(values))
        )
        known = await self._known(farm, named)
        entries = tuple(
            self._sealed(farm, value, name) for value, name in zip(values[known:], named[known:], strict=True)
        )
        done = known
        for piece in _pieces(entries):
            await self._submit(farm, piece, repeat_unknown=True)
            done += len(piece)
            status = farm.state.kafka.judge(named[done - 1], farm.state.log_time_ms)
            if status is not ProducedStatus.DUPLICATE:
                raise self._out_of_order(status, named[done - 1])
            self.counters[TopicEvent.PRODUCED_RECORDS] += len(piece)
        self.counters[TopicEvent.PRODUCED_DUPLICATES] += known
        producer = farm.state.kafka.producer(batch.producer_id, farm.state.log_time_ms)
        index = None if producer is None else producer.index_of(named[0])
        if index is None:
            text = "these records are already committed, and their offset is no longer stored"
            raise self._refused(ProduceRefusal.FORGOTTEN, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, text)
        return Produced(index - 1, -1)

    async def _known(self, farm: FoundedFarm, named: tuple[ProducedEntry, ...]) -> int:
        """Return the number of leading records committed before.

        Raise `ProduceRefusedError` if the remaining records cannot be accepted, and `ServerBusyError` without a known
        leader.
        """
        for is_last in (False, True):
            state = farm.state
            known = 0
            status = ProducedStatus.DUPLICATE
            for name in named:
                status = state.kafka.judge(name, state.log_time_ms)
                if status is not ProducedStatus.DUPLICATE:
                    break
                known += 1
            if status in {ProducedStatus.NEW, ProducedStatus.DUPLICATE}:
                return known
            if is_last:
                raise self._out_of_order(status, named[known])
            try:
                await farm.replica.read_barrier()
            except NotLeaderError as error:
                raise ServerBusyError("no leader is known now") from error
        return 0

    def _signed(self, farm: FoundedFarm, value: bytes) -> bytes:
        try:
            return farm.signer.sign_for_operator(value)
        except ValueError as error:
            raise self._refused(
                ProduceRefusal.INVALID, ErrorCode.INVALID_RECORD, f"the entry cannot be signed: {error}"
            ) from error

    def _sealed(self, farm: FoundedFarm, value: bytes, name: ProducedEntry) -> bytes:
        entry = sealed(value, str(name))
        record = decode(entry)
        if request_of(record) == str(name):
            # If the entry cannot be signed, the error below applies, too.
            with suppress(ValueError):
                return farm.signer.vouch(entry) if isinstance(record, Foreign) else farm.signer.sign(entry)
        text = "the producer's number and this node's proof cannot be put into the entry: it is too large or too nested"
        raise self._refused(ProduceRefusal.INVALID, ErrorCode.INVALID_RECORD, text)

    async def _submit(self, farm: FoundedFarm, entries: tuple[bytes, ...], *, repeat_unknown: bool) -> int:
        """Have adjacent entries committed, and applied here; return the index of the last."""
        answer = await farm.replica.submit_all(entries, repeat_unknown=repeat_unknown)
        match answer.outcome:
            case SubmitOutcome.COMMITTED if answer.index is not None:
                await farm.replica.server.wait_applied(answer.index)
                return answer.index
            case SubmitOutcome.COMMITTED | SubmitOutcome.UNKNOWN | SubmitOutcome.EXPIRED:
                raise self._refused(ProduceRefusal.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT, answer.reason)
            case SubmitOutcome.BUSY:
                raise ServerBusyError(answer.reason)
            case SubmitOutcome.REFUSED:
                raise self._refused(ProduceRefusal.NO_LEADER, ErrorCode.NOT_LEADER_OR_FOLLOWER, answer.reason)
            case _:
                assert_never(answer.outcome)

    def _out_of_order(self, status: ProducedStatus, named: ProducedEntry) -> ProduceRefusedError:
        match status:
            case ProducedStatus.UNKNOWN:
                text = f"producer {named.producer_id} is unknown: not started, unused for a day, or displaced"
                return self._refused(ProduceRefusal.EXPIRED, ErrorCode.UNKNOWN_PRODUCER_ID, text)
            case ProducedStatus.FENCED:
                text = f"producer {named.producer_id} has left epoch {named.epoch}"
                return self._refused(ProduceRefusal.FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, text)
            case ProducedStatus.FOREIGN:
                text = f"producer {named.producer_id} belongs to another user: request a separate producer id"
                return self._refused(ProduceRefusal.FOREIGN, ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)
            case ProducedStatus.OUT_OF_ORDER | ProducedStatus.NEW | ProducedStatus.DUPLICATE:
                text = f"sequence {named.sequence} is not the next one of producer {named.producer_id}"
                return self._refused(ProduceRefusal.OUT_OF_ORDER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
            case _:
                assert_never(status)

    def _refused(self, reason: ProduceRefusal, error_code: ErrorCode, text: str) -> ProduceRefusedError:
        self.counters[reason] += 1
        return ProduceRefusedError(error_code, text)


def owner_in(farm: FoundedFarm, principal: str | None) -> str:
    """Return the hash of the user's name for entries of this farm; empty without a name, and below `BOUNDS_LEVEL`."""
    if farm.state.level < BOUNDS_LEVEL:
        return ""
    return principal_hash(farm.known.founding.cluster_id, principal)


def has_level(farm: FoundedFarm, alarms: Alarms) -> bool:
    """Return True if the farm's state has tables for Kafka's clients; otherwise set an alarm with the needed level.

    Until a starting node has applied its log, its level is low. This does not raise the alarm.
    """
    level = farm.state.level
    if level >= KAFKA_LEVEL:
        alarms.clear(KAFKA_LEVEL_LOW)
        return True
    if farm.has_recent_state:
        alarms.set(
            KAFKA_LEVEL_LOW,
            f"clients of the Kafka listener cannot write yet: the farm has feature level {level}, and producers and"
            f" consumer groups need level {KAFKA_LEVEL}",
        )
    return False


def _cannot_be_sealed(value: bytes) -> str | None:
    if ends_like_proof(value):
        return "an entry with its own proof cannot carry a producer's number: produce it with enable.idempotence=false"
    if request_of(decode(value)) is not None:
        return (
            "an entry that names a request cannot carry a producer's number: leave `request` out, or produce it with"
            " enable.idempotence=false"
        )
    return None


def _pieces(entries: tuple[bytes, ...]) -> Iterator[tuple[bytes, ...]]:
    piece: list[bytes] = []
    size_bytes = 0
    for entry in entries:
        if piece and (len(piece) >= PIECE_ENTRIES or size_bytes + len(entry) > PIECE_BYTES):
            yield tuple(piece)
            piece, size_bytes = [], 0
        piece.append(entry)
        size_bytes += len(entry)
    if piece:
        yield tuple(piece)
