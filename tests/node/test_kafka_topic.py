"""The farm's log as a topic: offset = index - 1, a key of kind and server, and entries hidden from readers."""

import dataclasses
from collections.abc import AsyncIterator

import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Clock, Exclusion, GroupOffset, ProducerStart
from bridge.core.state.reqids import request_text
from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka import farm_batches
from bridge.node.kafka.farm_batches import CONTROL_TYPE, batches_of, key_of
from bridge.node.kafka.farm_topic import PRESENT_S, FarmTopic
from bridge.node.kafka.producing import Producing
from bridge.node.raft.submitting import sealed
from bridge.node.settings.clients import KafkaPeer
from bridge.wire.log.entries import encode
from consensus import FollowerProgress, ServerStoppedError
from consensus.core.entry_data import configuration_entry, no_op_entry
from consensus.core.model import Entry, LogId, NoOp, SnapshotDescription
from consensus.core.replication.progress import ProgressState
from consensus.protocols.kafka import Broker, ConsumerService, ErrorCode, OffsetOutOfRangeError
from consensus.protocols.kafka.wire.messages_clients import FetchRequest, FetchRequestPartition, FetchRequestTopic
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.sessions import RequestId
from gossip import Address
from tests.authored import CLUSTER_ID, signed
from tests.node.farm_stage import CONFIGURATION, LEAF, NOW_MS, OTHER, OWN, Stage, rival_report
from tests.node.kafka_farm import HERE, SETTINGS, batches, farm_of, named_stage, stage_at, topic_of
from tests.node.kraft_topic import caller

EXCLUSION = Exclusion(hash_of(LEAF.base64), excluded=True)


pytestmark = pytest.mark.usefixtures("machine_clock")


async def test_record_has_key_of_kind_and_server_log_time_and_term() -> None:
    # Given a log with entries of the farm, and with foreign entries
    stage = Stage()
    await stage.append(b'{"note": 1}')
    await stage.append_record(rival_report())
    await stage.append(signed(EXCLUSION))
    await stage.append_record(Clock(NOW_MS + 2_000, OWN))
    await stage.append(b"not \xff JSON")
    # When the topic is read from the start
    [batch] = await batches(topic_of(stage))
    # Then each entry is a record, with its kind and server as the key and log time as its timestamp
    assert (batch.base_offset, batch.leader_epoch, batch.is_control) == (0, 1, False)
    assert [each.key for each in batch.records] == [b"foreign", b"report/2", b"exclusion", b"clock/1", b"foreign"]
    assert [each.value for each in batch.records] == stage.log
    assert [each.timestamp_ms for each in batch.records] == [NOW_MS] * 3 + [NOW_MS + 2_000] * 2
    assert {each.headers for each in batch.records} == {(("term", b"1"),)}


async def test_escaped_kind_is_recognized() -> None:
    stage = Stage()
    report = signed(rival_report())
    hidden = report.replace(b'"router"', b'"\\u0072outer"')
    assert hidden != report
    assert key_of(1, Entry.command(1, hidden), stage.applied_state) == f"report/{OTHER}".encode()


@pytest.mark.parametrize(
    "entry",
    [
        configuration_entry(4, CONFIGURATION),
        no_op_entry(4, NoOp(OWN)),
        Entry.command(4, b""),
        Entry.command(4, encode(ProducerStart("p"))),
        Entry.command(4, encode(GroupOffset("readers", 7))),
    ],
)
async def test_entry_hidden_from_readers_is_control_record(entry: Entry) -> None:
    [batch] = read_batches(await batches_of(9, (entry,), stage_at().applied_state))
    assert (batch.base_offset, batch.leader_epoch, batch.is_control) == (8, 4, True)
    [record] = batch.records
    version = 1
    assert record.key == version.to_bytes(2, "big") + CONTROL_TYPE.to_bytes(2, "big"), "see CONTROL_KEY"


async def test_duplicate_is_control_record_for_both_id_forms() -> None:
    stage = stage_at()
    update = sealed(b'{"note": 1}', request_text((NOW_MS // 1000).to_bytes(4, "big") + bytes(8)))
    request = sealed(b'{"note": 2}', RequestId("client", 0, 1))
    for entry in (update, update, request, request, b'{"note": 3}'):
        await stage.append(entry)
    found = await batches(topic_of(stage, dataclasses.replace(SETTINGS, control_records=True)))
    read = [(each.base_offset + place, each.is_control) for each in found for place in range(len(each.records))]
    assert read == [(0, False), (1, True), (2, False), (3, True), (4, False)]


NOTED = signed(encode(GroupOffset("readers", 1)))
"""An entry hidden from readers."""


async def stage_with_gaps() -> Stage:
    """Return a stage with records at the offsets 1, 2 and 5 of eight."""
    stage = stage_at()
    for entry in (NOTED, b'{"note": 1}', b'{"note": 2}', NOTED, NOTED, b'{"note": 5}', NOTED, NOTED):
        await stage.append(entry)
    return stage


async def test_hidden_entries_are_skipped() -> None:
    topic = topic_of(await stage_with_gaps())
    for _ in range(2):
        for offset, expected in enumerate([[1, 5], [1, 5], [1, 5], [5], [5], [5]]):
            found = await batches(topic, offset)
            assert [each.base_offset for each in found] == expected, offset
            assert not any(each.is_control for each in found)


async def test_gap_is_served_from_cache() -> None:
    stage = await stage_with_gaps()
    topic = topic_of(stage)
    await batches(topic, 0)
    stage.log[:] = [b"{}"] * 8
    assert [each.base_offset for each in await batches(topic, 4, 1)] == [5]


async def test_high_watermark_follows_last_record() -> None:
    stage = await stage_with_gaps()
    topic = topic_of(stage)
    state = topic.state()
    assert (state.high_watermark, state.final_end, state.log_end_offset) == (6, 8, 8)
    assert await topic.read(6, 1) == b""
    every = topic_of(stage, dataclasses.replace(SETTINGS, control_records=True))
    assert every.state().high_watermark == 8
    assert [len(each.records) for each in await batches(every)] == [1, 2, 2, 1, 2]


async def test_high_watermark_after_snapshot_is_at_least_its_end() -> None:
    stage = await stage_with_gaps()
    image = b"".join(stage.applied_state.snapshot())

    async def state() -> AsyncIterator[bytes]:
        yield image

    await stage.applied_state.restore(LogId(8, 1), state())
    topic = topic_of(stage)
    assert topic.state().high_watermark == 8
    assert [each.base_offset for each in await batches(topic, 2)] == [2, 5]
    assert await topic.read(6, 1000) == b""


async def test_reader_in_final_gap_waits_for_record() -> None:
    stage = await stage_with_gaps()
    service = ConsumerService(topic_of(stage))
    partition = FetchRequestPartition(partition=0, fetch_offset=8, partition_max_bytes=1_000)
    topic = FetchRequestTopic(topic="farm-log", partitions=(partition,))

    async def fetched(max_wait_ms: int) -> tuple[int, int]:
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=(topic,))
        part = (await service.fetch(request, caller(12))).responses[0].partitions[0]
        return part.error_code, len(read_batches(part.records or b""))

    assert await fetched(0) == (ErrorCode.NONE, 0), "a client that reads control records may be at offset 8"
    async with trio.open_nursery() as nursery:
        found: list[tuple[int, int]] = []

        async def fetch_once() -> None:
            found.append(await fetched(60_000))

        nursery.start_soon(fetch_once)
        await stage.append(NOTED)
        await wait_all_tasks_blocked()
        assert found == []
        await stage.append(b'{"note": 9}')
    assert found == [(ErrorCode.NONE, 1)]


async def test_batch_ends_at_term_change_or_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    applied_state = Stage().applied_state
    monkeypatch.setattr(farm_batches, "BATCH_RECORDS", 3)
    entries = tuple(Entry.command(1 + place // 5, b"{}") for place in range(10))
    found = read_batches(await batches_of(1, entries, applied_state))
    assert [(each.base_offset, len(each.records), each.leader_epoch) for each in found] == [
        (0, 3, 1),
        (3, 2, 1),
        (5, 3, 2),
        (8, 2, 2),
    ]
    monkeypatch.setattr(farm_batches, "BATCH_BYTES", 10)
    assert len(read_batches(await batches_of(1, entries, applied_state))) == 10


async def test_encoding_many_batches_yields_to_other_tasks(nursery: trio.Nursery) -> None:
    applied_state, turns = Stage().applied_state, 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    entries = (Entry.command(1, b"{}"),) * (10 * farm_batches.CHECKPOINT_ENTRIES)
    nursery.start_soon(others)
    await batches_of(1, entries, applied_state)
    assert turns >= 5


async def test_node_reports_itself_as_leader_of_applied_entries() -> None:
    stage = named_stage()
    await stage.append(b"{}")
    peers = tuple(KafkaPeer(name, Address(f"node-{name}", 9092)) for name in ("two", "one", "unknown"))
    topic = topic_of(stage, dataclasses.replace(SETTINGS, peers=peers, write=True))
    stage.lead(2)
    state = topic.state()
    assert (state.name, state.cluster_id, state.is_internal, state.takes_records) == (
        "farm-log",
        CLUSTER_ID.hex(),
        False,
        True,
    )
    assert (state.node_id, state.leader_id, state.leader_epoch, state.controller_id) == (OWN, OWN, 2, 2)
    assert state.brokers == (Broker(OWN, "127.0.0.1", 9092), Broker(2, "node-two", 9092))
    assert (state.log_start_offset, state.high_watermark, state.log_end_offset) == (0, 1, 1)
    other_name = topic_of(stage, dataclasses.replace(SETTINGS, topic="other")).state()
    assert topic_of(stage).state().topic_id == state.topic_id != other_name.topic_id
    stage.lose_quorum()
    assert topic.state().controller_id == -1


async def test_peer_without_contact_is_not_a_broker() -> None:
    # Given a farm of three listeners, and no gossip contact with the two others
    stage = named_stage()
    peers = tuple(KafkaPeer(name, Address(f"node-{name}", 9092)) for name in ("two", "three"))
    settings = dataclasses.replace(SETTINGS, peers=peers)
    admitted = stage.applied_state.farm.state.admitted
    in_contact: set[int] = set()

    def is_in_contact(node_id: bytes, within_s: float) -> bool:
        assert within_s == PRESENT_S
        return node_id in {admitted[number].node_id for number in in_contact}

    farm = replace(farm_of(stage), in_contact=is_in_contact)
    topic = FarmTopic(CurrentFarm(farm), settings, HERE, Producing(CurrentFarm(farm), None, stage.alarms), None)

    def brokers() -> list[int]:
        return [each.node_id for each in topic.state().brokers]

    # Then only this node is a broker; a peer in gossip contact, the leader, and a replying follower become brokers
    assert brokers() == [OWN]
    in_contact.add(3)
    assert brokers() == [OWN, 3]
    in_contact.clear()
    stage.lead(2)
    assert brokers() == [OWN, 2]
    stage.lead(OWN)
    stage.server.followers = tuple(
        FollowerProgress(number, 1, 2, 1, contact_ms, ProgressState.REPLICATING, 0)
        for number, contact_ms in ((2, round(PRESENT_S * 1000) - 1), (3, round(PRESENT_S * 1000)))
    )
    assert brokers() == [OWN, 2]


async def test_topic_of_non_server_lacks_leader() -> None:
    topic = topic_of(Stage(), is_server=False)
    state = topic.state()
    assert (state.node_id, state.leader_id, state.leader_epoch, state.high_watermark) == (0, -1, -1, 0)
    assert state.brokers == (Broker(0, *("127.0.0.1", 9092)),)
    for ask in (topic.read(0, 1), topic.offset_for_time(0), topic.latest_timestamp()):
        with pytest.raises(ServerStoppedError, match="not a server of a farm yet"):
            await ask


async def test_topic_lacks_leader_until_snapshot_is_restored() -> None:
    stage = stage_at()
    await stage.append(b"{}")
    stage.server.snapshot = SnapshotDescription(LogId(9, 1), CONFIGURATION, 1, 0)
    state = topic_of(stage).state()
    assert (state.node_id, state.leader_id) == (OWN, -1)
    assert (state.log_start_offset, state.high_watermark) == (9, 9)


async def test_compacted_or_unapplied_offset_is_out_of_range() -> None:
    stage = stage_at()
    for _ in range(4):
        await stage.append(b"{}")
    topic = topic_of(stage)
    assert [each.base_offset for each in await batches(topic, 0)] == [0]
    stage.server.snapshot = SnapshotDescription(LogId(2, 1), CONFIGURATION, 1, 0)
    for offset in (-1, 0, 1, 5):
        with pytest.raises(OffsetOutOfRangeError):
            await topic.read(offset, 100)
    assert topic.state().log_start_offset == 2
    assert await topic.read(4, 100) == b""


async def test_batch_cache_is_separate_per_farm() -> None:
    stage, other = stage_at(), stage_at()
    for number in range(3):
        await stage.append(b'{"note": %d}' % number)
        await other.append(b'{"other": %d}' % number)
    current = CurrentFarm(farm_of(stage))
    topic = FarmTopic(current, SETTINGS, HERE, Producing(current, None, stage.alarms), None)
    first = await topic.read(0, 1_000)
    stage.log.clear()
    stage.log += [b"changed"] * 3
    assert await topic.read(0, 1_000) == first
    current.farm = farm_of(other)
    [batch] = await batches(topic)
    assert batch.records[0].value == b'{"other": 0}'


async def test_offset_for_time_after_log_time_was_set_back() -> None:
    stage = stage_at()
    topic = topic_of(stage)

    async def tick(log_time_ms: int) -> None:
        await stage.append(b"{}")
        await stage.append_record(replace(rival_report(), server_id=OWN, date_ms=log_time_ms, request=None))
        await stage.append_record(Clock(log_time_ms, OWN))

    for second in (2, 4, 6):
        await tick(NOW_MS + second * 1000)
    assert await topic.offset_for_time(0) == (0, NOW_MS)
    assert await topic.offset_for_time(NOW_MS + 1) == (2, NOW_MS + 2_000)
    assert await topic.offset_for_time(NOW_MS + 4_000) == (5, NOW_MS + 4_000)
    assert await topic.offset_for_time(NOW_MS + 6_001) is None
    assert await topic.latest_timestamp() == (8, NOW_MS + 6_000)

    # When log time goes back, and then advances again
    applied = stage.applied_state
    applied.farm.state = replace(applied.state, log_time_ms=NOW_MS + 3_000)
    await stage.append(b"{}")
    applied._note_log_time(10)
    for second in (5, 7):
        await tick(NOW_MS + second * 1000)
    assert await topic.offset_for_time(NOW_MS + 5_000) == (8, NOW_MS + 6_000)
    assert await topic.offset_for_time(NOW_MS + 6_500) == (15, NOW_MS + 7_000)
    assert await topic.latest_timestamp() == (15, NOW_MS + 7_000)

    # And the offset of a time before the log's start is the start of the log
    stage.server.snapshot = SnapshotDescription(LogId(12, 1), CONFIGURATION, 1, 0)
    found = await topic.offset_for_time(NOW_MS)
    assert found is not None
    assert found[0] == 12


async def test_reader_at_end_waits_across_farm_change() -> None:
    stage = stage_at()
    await stage.append(b"{}")
    current = CurrentFarm()
    topic = FarmTopic(current, SETTINGS, HERE, Producing(current, None, stage.alarms), None)
    returned = trio.Event()

    async def wait() -> None:
        await topic.wait_beyond(1)
        returned.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        with current.of(farm_of(stage)):
            await wait_all_tasks_blocked()
            assert not returned.is_set()
            await stage.append(b"{}")
            with trio.fail_after(60):
                await returned.wait()


def test_stored_form_of_group_and_producer_entries_is_fixed() -> None:
    assert encode(ProducerStart("p")) == b'{"kafkaProducer":{"name":"p"}}'
    assert encode(GroupOffset("g", 7)) == b'{"kafkaOffset":{"group":"g","offset":7}}'
