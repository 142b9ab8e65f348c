"""Records produced by Kafka clients: which users may produce, once per sequence, and the error codes of the replies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from bridge.api.alarms import KAFKA_LEVEL_LOW
from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.log.feature_level import BOUNDS_LEVEL, REQIDS_LEVEL
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Exclusion, ProducerStart
from bridge.core.state.kafka_clients import PRODUCER_EXPIRY_MS
from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka import producing as producing_module
from bridge.node.kafka.counters import TopicEvent
from bridge.node.kafka.listed_users import ListedUser, ListedUsers
from bridge.node.kafka.producing import Producing
from bridge.node.raft.client_scopes import CommitScope
from bridge.node.raft.replica import Replica
from bridge.wire.log.entries import EntryReader, encode
from consensus import ServerBusyError, ServerStoppedError
from consensus.protocols.kafka import ErrorCode, Produced, ProduceRefusedError, ProducerId, Record, RecordBatch
from tests.authored import CLUSTER_ID, node_id, signed
from tests.node.farm_stage import LEAF, OWN, Stage
from tests.node.kafka_farm import farm_of, stage_at

USERS = ListedUsers(
    Path("users"),
    (
        ListedUser("reader", None, frozenset()),
        ListedUser("writer", None, frozenset({CommitScope.SUBMIT})),
        ListedUser("second", None, frozenset({CommitScope.SUBMIT})),
        ListedUser("operator", None, frozenset({CommitScope.OPERATOR})),
    ),
    by_certificate=True,
)
READER, WRITER, SECOND_WRITER, OPERATOR = "User:reader", "User:writer", "User:second", "User:operator"
EXCLUSION = encode(Exclusion(hash_of(LEAF.base64), excluded=True))
NOTE = b'{"note": 1}'


pytestmark = pytest.mark.usefixtures("machine_clock")


def producing_of(stage: Stage, users: ListedUsers | None = USERS) -> Producing:
    return Producing(CurrentFarm(farm_of(stage)), users, stage.alarms)


def batch_of(*values: bytes | None, producer: ProducerId | None = None, sequence: int = 0) -> RecordBatch:
    records = tuple(Record(0, b"key", value) for value in values)
    if producer is None:
        return RecordBatch(0, -1, records)
    return RecordBatch(
        0, -1, records, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=sequence
    )


async def refusal_of(producing: Producing, batch: RecordBatch, user: str | None = WRITER) -> tuple[ErrorCode, str]:
    with pytest.raises(ProduceRefusedError) as caught:
        await producing.append(batch, user)
    return ErrorCode(caught.value.error_code), str(caught.value)


def notes(stage: Stage) -> list[int]:
    """Return the notes in the log, without skipped entries."""
    state = stage.applied_state.state
    return [
        json.loads(entry)["note"]
        for index, entry in enumerate(stage.log, start=1)
        if b'"note"' in entry and not state.kafka.is_skipped(index)
    ]


async def test_record_without_producer_is_stored_unchanged() -> None:
    stage = stage_at()
    await stage.append(b"{}")
    producing = producing_of(stage)
    assert await producing.append(batch_of(NOTE, b'{"note": 2}'), WRITER) == Produced(1, -1)
    assert stage.log[1:] == [NOTE, b'{"note": 2}']
    assert producing.counters == {TopicEvent.PRODUCED_RECORDS: 2}


async def test_record_acting_on_farm_is_signed_by_node() -> None:
    stage = stage_at()
    await producing_of(stage).append(batch_of(EXCLUSION), OPERATOR)
    [entry] = stage.log
    read = EntryReader(CLUSTER_ID).read(entry)
    assert read.author is not None
    assert read.author.node_id == node_id(OWN)
    assert stage.applied_state.state.weights.excluded


async def test_producer_id_is_index_of_its_entry() -> None:
    stage = stage_at()
    await stage.append(b"{}")
    producing = producing_of(stage)
    assert await producing.new_producer_id(WRITER) == ProducerId(2, 0)
    assert await producing.new_producer_id(OPERATOR) == ProducerId(3, 0)
    names = {record.name for _, record in stage.records(ProducerStart) if isinstance(record, ProducerStart)}
    assert len(names) == 2


async def test_producer_id_of_other_user_is_refused() -> None:
    stage = stage_at(BOUNDS_LEVEL)
    producing = producing_of(stage)
    producer = await producing.new_producer_id(WRITER)
    await producing.append(batch_of(NOTE, producer=producer), WRITER)
    # When another user sends the next sequence, or a higher epoch, at any node
    for stolen in (producer, replace(producer, producer_epoch=1)):
        sequence = 1 - stolen.producer_epoch
        batch = batch_of(b'{"note": 9}', producer=stolen, sequence=sequence)
        code, text = await refusal_of(producing_of(stage), batch, SECOND_WRITER)
        assert code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert text == "producer 1 belongs to another user: request a separate producer id"
    # Then the owner's record is in the log under the producer id
    await producing.append(batch_of(b'{"note": 2}', producer=producer, sequence=1), WRITER)
    assert notes(stage) == [1, 2]


async def test_producer_records_commit_in_order_once() -> None:
    stage = stage_at()
    producing = producing_of(stage)
    producer = await producing.new_producer_id(WRITER)
    first = batch_of(NOTE, b'{"note": 2}', producer=producer)
    second = batch_of(b'{"note": 3}', producer=producer, sequence=2)
    assert await producing.append(first, WRITER) == Produced(1, -1)
    assert await producing.append(second, WRITER) == Produced(3, -1)
    # When the batches are sent again, to this node or to another one
    assert await producing.append(first, WRITER) == Produced(1, -1)
    assert await producing_of(stage).append(second, WRITER) == Produced(3, -1)
    # Then the replies give the same offsets, and no second entry is written
    assert notes(stage) == [1, 2, 3]
    assert len(stage.log) == 4
    assert producing.counters[TopicEvent.PRODUCED_DUPLICATES] == 2


async def test_partly_committed_batch_is_completed_on_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_at()
    monkeypatch.setattr(producing_module, "PIECE_ENTRIES", 2)
    producing = producing_of(stage)
    producer = await producing.new_producer_id(WRITER)
    batch = batch_of(*(b'{"note": %d}' % number for number in range(5)), producer=producer)
    stage.replica.taken = lambda entry: (
        SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason="lost") if b'"note": 2' in entry else None
    )
    assert (await refusal_of(producing, batch))[0] is ErrorCode.REQUEST_TIMED_OUT
    stage.replica.taken = lambda _: None
    assert await producing.append(batch, WRITER) == Produced(1, -1)
    assert notes(stage) == [0, 1, 2, 3, 4]


async def test_duplicate_of_unknown_outcome_counts_once() -> None:
    stage = stage_at()
    producing = producing_of(stage)
    producer = await producing.new_producer_id(WRITER)

    await producing.append(batch_of(NOTE, producer=producer), WRITER)
    await stage.append(stage.log[1])
    assert notes(stage) == [1]
    assert stage.applied_state.is_skipped(3, stage.log[2])


async def test_sequence_gap_is_checked_again_after_read_barrier() -> None:
    stage, leader = stage_at(), stage_at()
    producing = producing_of(stage)
    producer = await producing.new_producer_id(WRITER)
    first, second = batch_of(NOTE, producer=producer), batch_of(b'{"note": 2}', producer=producer, sequence=1)
    # Given that another node committed the first batch, and this node has not applied it yet
    other = producing_of(leader)
    await leader.append(stage.log[0])
    await other.append(first, WRITER)

    async def catch_up() -> None:
        for entry in leader.log[len(stage.log) :]:
            await stage.append(entry)

    stage.replica.barrier = catch_up
    assert await producing.append(second, WRITER) == Produced(2, -1)
    assert notes(stage) == [1, 2]


@pytest.mark.parametrize(
    ("change", "sequence", "error"),
    [
        (lambda producer: producer, 5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (lambda producer: replace(producer, producer_epoch=1), 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (lambda producer: replace(producer, producer_id=77), 0, ErrorCode.UNKNOWN_PRODUCER_ID),
    ],
)
async def test_invalid_producer_sequence_is_refused(
    change: Callable[[ProducerId], ProducerId], sequence: int, error: ErrorCode
) -> None:
    stage = stage_at()
    producing = producing_of(stage)
    producer = change(await producing.new_producer_id(WRITER))
    assert (await refusal_of(producing, batch_of(NOTE, producer=producer, sequence=sequence)))[0] is error
    assert notes(stage) == []


async def test_producer_expires_after_one_day() -> None:
    stage = stage_at()
    producing = producing_of(stage)
    producer = await producing.new_producer_id(WRITER)
    farm = stage.applied_state.farm
    farm.state = replace(farm.state, log_time_ms=farm.state.log_time_ms + PRODUCER_EXPIRY_MS + 1)
    code, text = await refusal_of(producing, batch_of(NOTE, producer=producer))
    assert code is ErrorCode.UNKNOWN_PRODUCER_ID
    assert "unused for a day" in text


async def test_raised_epoch_restarts_sequence_and_fences_old_epoch() -> None:
    stage = stage_at()
    producing = producing_of(stage)
    producer = await producing.new_producer_id(WRITER)
    await producing.append(batch_of(NOTE, producer=producer), WRITER)
    raised = replace(producer, producer_epoch=1)
    await producing.append(batch_of(b'{"note": 2}', producer=raised), WRITER)
    assert (await refusal_of(producing, batch_of(NOTE, producer=producer, sequence=1)))[0] is (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((NOTE, b"no JSON"), "record 1 of the batch: the entry is not JSON"),
        ((None,), "record 0 of the batch: the entry is not JSON"),
        ((b"[1]",), "record 0 of the batch: the entry is not a JSON object"),
        ((b'{"clock":{"time":1,"id":1}}',), "written by the leader alone"),
        ((encode(ProducerStart("p")),), "written by nodes alone"),
        ((b'{"x":"' + b"x" * 65_536 + b'"}',), "bytes, at most"),
    ],
)
async def test_invalid_record_is_refused_with_its_number(values: tuple[bytes, ...], message: str) -> None:
    stage = stage_at()
    code, text = await refusal_of(producing_of(stage), batch_of(*values))
    assert code is ErrorCode.INVALID_RECORD
    assert message in text
    assert stage.log == [], "a batch is all or nothing"


async def test_producer_number_needs_plain_json_entry() -> None:
    stage = stage_at()
    producing = producing_of(stage)
    producer = await producing.new_producer_id(WRITER)
    for value in (signed(EXCLUSION), b'{"request":"client-0-1"}', b"{" + b'"a":[' * 40 + b"1" + b"]" * 40 + b"}"):
        code, text = await refusal_of(producing, batch_of(value, producer=producer))
        assert code is ErrorCode.INVALID_RECORD, text
    assert (await producing.append(batch_of(signed(EXCLUSION)), WRITER)).base_offset == 1


async def test_scope_permits_only_its_kind_of_entry() -> None:
    producing = producing_of(stage_at())
    for user, value in ((READER, NOTE), (None, NOTE), ("User:stranger", NOTE), (WRITER, EXCLUSION), (OPERATOR, NOTE)):
        code, text = await refusal_of(producing, batch_of(value), user)
        assert code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "needs the scope" in text
    for user in (READER, None):
        with pytest.raises(ProduceRefusedError) as caught:
            await producing.new_producer_id(user)
        assert caught.value.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (await refusal_of(producing_of(stage_at(), None), batch_of(NOTE)))[0] is ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (SubmitOutcome.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT),
        (SubmitOutcome.EXPIRED, ErrorCode.REQUEST_TIMED_OUT),
        (SubmitOutcome.REFUSED, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_uncommitted_batch_error_lets_client_retry(outcome: SubmitOutcome, error: ErrorCode) -> None:
    stage = stage_at()
    stage.replica.taken = lambda _: SubmitAnswer(outcome=outcome, reason="because")
    assert await refusal_of(producing_of(stage), batch_of(NOTE)) == (error, "because")
    stage.replica.taken = lambda _: SubmitAnswer(outcome=SubmitOutcome.BUSY, reason="because")
    with pytest.raises(ServerBusyError):
        await producing_of(stage).append(batch_of(NOTE), WRITER)


async def test_bytes_waiting_for_commit_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing_module, "HELD_BYTES", 2 * len(NOTE))
    stage = stage_at()
    gate = trio.Event()

    class SlowReplica:
        server = stage.server

        async def submit_all(self, commands: tuple[bytes, ...], *, repeat_unknown: bool) -> SubmitAnswer:
            await gate.wait()
            return await stage.replica.submit_all(commands, repeat_unknown=repeat_unknown)

    farm = replace(farm_of(stage), replica=cast("Replica", SlowReplica()))
    producing = Producing(CurrentFarm(farm), USERS, stage.alarms)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(producing.append, batch_of(NOTE), WRITER)
        await wait_all_tasks_blocked()
        with pytest.raises(ServerBusyError):
            await producing.append(batch_of(NOTE), WRITER)
        gate.set()
    await producing.append(batch_of(NOTE, NOTE, NOTE), WRITER)
    assert len(stage.log) == 5, "one batch of any size is accepted"


async def test_producing_without_farm_or_level_is_refused() -> None:
    stage = stage_at(REQIDS_LEVEL)
    producing = producing_of(stage)
    assert (await refusal_of(producing, batch_of(NOTE)))[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.alarm(KAFKA_LEVEL_LOW.kind) is None, "a starting node has not applied its log"
    await stage.append(b"{}")
    assert (await refusal_of(producing, batch_of(NOTE)))[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "feature level 3" in (stage.alarm(KAFKA_LEVEL_LOW.kind) or "")
    with pytest.raises(ServerStoppedError):
        await Producing(CurrentFarm(), USERS, stage.alarms).append(batch_of(NOTE), WRITER)
