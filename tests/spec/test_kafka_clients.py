"""Producers and consumer groups of Kafka in the farm's state (`bridge.core.state.kafka_clients`)."""

import pytest
from msgspec.structs import replace

from bridge.core.farm.state_machine import Farm
from bridge.core.log.feature_level import BOUNDS_LEVEL, KAFKA_LEVEL
from bridge.core.log.records import Author, Foreign, GroupOffset, ProducerStart, ProvenRecord, Record
from bridge.core.state import kafka_clients
from bridge.core.state.kafka_clients import (
    GROUP_EXPIRY_MS,
    GROUPS_MAX,
    GROUPS_OF_ALL_MAX,
    PRODUCER_EXPIRY_MS,
    PRODUCERS_MAX,
    PRODUCERS_OF_ALL_MAX,
    RUNS_MAX,
    SEQUENCES,
    SKIPPED_MAX,
    KafkaClients,
    NotedOffset,
    Owner,
    Produced,
    ProducedStatus,
    Producer,
    principal_hash,
    produced_in,
)
from bridge.node.raft.farm_content import objection_to_state

BASE_MS = 1_700_000_000_000
MEMBER, UNKNOWN = bytes([1]) * 8, bytes([9]) * 8
ALICE, BOB = (principal_hash(b"farm", f"User:{name}") for name in ("alice", "bob"))
ID = 7
NEW, DUPLICATE = ProducedStatus.NEW, ProducedStatus.DUPLICATE


def clients(sequence: int = 0) -> KafkaClients:
    return KafkaClients({ID: Producer("one", BASE_MS, sequence=sequence)})


def admit_entry(tables: KafkaClients, sequence: int, index: int, epoch: int = 0) -> tuple[KafkaClients, ProducedStatus]:
    return tables.admit(Produced(ID, epoch, sequence), index, BASE_MS)


def test_producer_in_entry_has_one_spelling() -> None:
    assert produced_in("kafka:7.0.12") == Produced(7, 0, 12)
    assert str(Produced(7, 0, 12)) == "kafka:7.0.12"
    for text in (
        None,
        "",
        "kafka:",
        "kafka:7.0",
        "kafka:07.0.12",
        "kafka:7.0.-1",
        "kafka:7.0.2147483648",
        "zmq:7.0.12",
    ):
        assert produced_in(text) is None


def test_next_sequence_admitted_and_copy_skipped() -> None:
    tables = clients()
    for sequence in range(3):
        tables, verdict = admit_entry(tables, sequence, 20 + sequence)
        assert verdict is NEW
    tables, verdict = admit_entry(tables, 1, 23)
    assert verdict is DUPLICATE
    assert tables.producers[ID].index_of(Produced(ID, 0, 1)) == 21
    assert (tables.is_skipped(23), tables.is_skipped(22)) == (True, False)


def test_sequence_out_of_order_not_admitted() -> None:
    tables, verdict = admit_entry(clients(), 1, 20)
    assert verdict is ProducedStatus.OUT_OF_ORDER
    assert admit_entry(tables, 0, 21)[1] is NEW


def test_sequences_wrap_to_zero() -> None:
    tables, verdict = admit_entry(clients(sequence=SEQUENCES - 1), SEQUENCES - 1, 20)
    assert verdict is NEW
    tables, verdict = admit_entry(tables, 0, 21)
    assert verdict is NEW
    assert admit_entry(tables, SEQUENCES - 1, 22)[1] is DUPLICATE
    assert tables.producers[ID].index_of(Produced(ID, 0, 0)) == 21


def test_higher_epoch_fences_earlier_one() -> None:
    tables, _ = admit_entry(clients(sequence=5), 5, 20)
    assert admit_entry(tables, 6, 21, epoch=1)[1] is ProducedStatus.OUT_OF_ORDER
    tables, verdict = admit_entry(tables, 0, 21, epoch=1)
    assert verdict is NEW
    assert admit_entry(tables, 6, 22, epoch=0)[1] is ProducedStatus.FENCED
    assert tables.producers[ID].index_of(Produced(ID, 0, 5)) is None


def test_indexes_of_latest_runs_are_kept() -> None:
    tables = clients()
    for sequence in range(RUNS_MAX + 1):
        tables, _ = admit_entry(tables, sequence, 20 + 2 * sequence)
    producer = tables.producers[ID]
    assert producer.index_of(Produced(ID, 0, 0)) is None
    assert producer.index_of(Produced(ID, 0, RUNS_MAX)) == 20 + 2 * RUNS_MAX


def test_producer_idle_for_day_expires() -> None:
    produced = Produced(ID, 0, 0)
    assert clients().judge(produced, BASE_MS + PRODUCER_EXPIRY_MS) is NEW
    assert clients().judge(produced, BASE_MS + PRODUCER_EXPIRY_MS + 1) is ProducedStatus.UNKNOWN
    assert set(clients().with_producer("two", 9, BASE_MS + PRODUCER_EXPIRY_MS + 1).producers) == {9}


def test_least_recently_used_producer_dropped() -> None:
    tables = clients()
    for number in range(PRODUCERS_MAX):
        tables = tables.with_producer(f"more {number}", 100 + number, BASE_MS + 1)
    assert len(tables.producers) == PRODUCERS_MAX
    assert tables.judge(Produced(ID, 0, 0), BASE_MS + 1) is ProducedStatus.UNKNOWN
    assert tables.id_of("more 3") == 103
    assert tables.id_of("none") is None


def test_latest_skipped_entries_are_kept() -> None:
    tables = clients()
    for index in range(SKIPPED_MAX + 1):
        tables, _ = tables.admit(Produced(ID, 0, 5), 100 + index, BASE_MS)
    assert len(tables.skipped) <= SKIPPED_MAX
    assert tables.is_skipped(100 + SKIPPED_MAX)
    assert not tables.is_skipped(100)


def test_group_beyond_limit_waits_for_expired_one() -> None:
    tables = KafkaClients()
    for number in range(GROUPS_MAX):
        tables = tables.noted(f"group {number}", NotedOffset(1, -1, "", BASE_MS + number))
    assert tables.group_refusal("late", BASE_MS) is not None
    assert tables.noted("late", NotedOffset(1, -1, "", BASE_MS)) == tables
    assert tables.noted("group 5", NotedOffset(2, 3, "x", BASE_MS)).groups["group 5"].offset == 2
    later_ms = BASE_MS + GROUP_EXPIRY_MS + 1
    assert tables.group_refusal("late", later_ms) is None
    after = tables.noted("late", NotedOffset(1, -1, "", later_ms))
    assert "late" in after.groups
    assert "group 0" not in after.groups


class Story:
    """A farm with one member, and its applied log."""

    def __init__(self, level: int = KAFKA_LEVEL) -> None:
        self.farm = Farm(BASE_MS, founders=(MEMBER,))
        self.farm.state = replace(self.farm.state, level=level)
        self.index = 0

    def append(self, record: Record, author: bytes | None = MEMBER) -> int:
        """Append one entry, and return its index."""
        self.index += 1
        proof = None if author is None else Author(author, self.index)
        self.farm.apply(self.index, 1, ProvenRecord(record, proof))
        return self.index

    @property
    def tables(self) -> KafkaClients:
        return self.farm.state.kafka


def test_producer_id_is_index_of_its_first_entry() -> None:
    story = Story()
    story.append(Foreign("any"))
    index = story.append(ProducerStart("name"))
    assert story.tables.id_of("name") == index == 2
    first = story.append(Foreign("any", f"kafka:{index}.0.0"))
    story.append(Foreign("any", f"kafka:{index}.0.0"))
    assert story.tables.producers[index].index_of(Produced(index, 0, 0)) == first
    assert story.tables.skipped == (first + 1,)


@pytest.mark.parametrize("author", [None, UNKNOWN], ids=["unsigned", "unknown"])
def test_producer_and_offset_need_member_as_author(author: bytes | None) -> None:
    story = Story()
    index = story.append(ProducerStart("name"))
    before = story.tables
    story.append(ProducerStart("other"), author)
    story.append(GroupOffset("group", 5), author)
    story.append(Foreign("any", f"kafka:{index}.0.0"), author)
    assert story.tables == before


def test_kafka_entries_below_level_ignored() -> None:
    story = Story(KAFKA_LEVEL - 1)
    story.append(ProducerStart("name"))
    story.append(GroupOffset("group", 5))
    story.append(Foreign("any", "kafka:1.0.0"))
    assert story.tables == KafkaClients()


@pytest.mark.parametrize("level", [KAFKA_LEVEL - 1, KAFKA_LEVEL])
def test_copied_request_skipped_from_level_on(level: int) -> None:
    story = Story(level)
    story.append(Foreign("any", "client-0-1"), None)
    copy = story.append(Foreign("any", "client-0-1"), None)
    story.append(Foreign("any", "client-0-2"), None)
    assert story.tables.skipped == ((copy,) if level == KAFKA_LEVEL else ())


def test_entry_names_user_of_its_producer() -> None:
    produced = Produced(7, 0, 12, ALICE)
    assert produced_in(str(produced)) == produced
    for wrong in (ALICE[1:], ALICE.upper(), f"{ALICE}.{ALICE}"):
        assert produced_in(f"kafka:7.0.12.{wrong}") is None


def test_user_hash_differs_per_farm() -> None:
    assert len({ALICE, BOB, principal_hash(b"another farm", "User:alice")}) == 3
    assert principal_hash(b"farm", None) == ""


def test_other_user_cannot_use_producer_sequence() -> None:
    story = Story(BOUNDS_LEVEL)
    producer = story.append(ProducerStart("name", principal=ALICE))
    story.append(Foreign("alice 0", str(Produced(producer, 0, 0, ALICE))))
    for stolen in (Produced(producer, 0, 1, BOB), Produced(producer, 1, 0, BOB), Produced(producer, 0, 1)):
        assert story.tables.judge(stolen, BASE_MS) is ProducedStatus.FOREIGN
        taken = story.append(Foreign("stolen", str(stolen)))
        assert story.tables.is_skipped(taken)
    own = story.append(Foreign("alice 1", str(Produced(producer, 0, 1, ALICE))))
    assert not story.tables.is_skipped(own)


def test_producer_below_level_lacks_owner() -> None:
    story = Story(KAFKA_LEVEL)
    producer = story.append(ProducerStart("name", principal=ALICE))
    assert story.tables.producers[producer].principal == ""
    story.append(Foreign("an application's", f"kafka:{producer}.0.0.{BOB}"))
    assert story.tables.producers[producer].sequence == 0


def test_unowned_producer_belongs_to_next_user() -> None:
    story = Story(KAFKA_LEVEL)
    producer = story.append(ProducerStart("name"))
    story.farm.state = replace(story.farm.state, level=BOUNDS_LEVEL)
    story.append(Foreign("alice 0", str(Produced(producer, 0, 0, ALICE))))
    assert story.tables.judge(Produced(producer, 0, 1, BOB), BASE_MS) is ProducedStatus.FOREIGN


def test_other_user_cannot_move_group_offset() -> None:
    story = Story(BOUNDS_LEVEL)
    story.append(GroupOffset("group", 1, principal=ALICE))
    story.append(GroupOffset("group", 2, principal=BOB))
    assert story.tables.groups["group"].offset == 1
    assert story.tables.group_refusal("group", BASE_MS, Owner(BOB, MEMBER)) == "the group group belongs to another user"
    story.append(GroupOffset("group", 3, principal=ALICE))
    assert story.tables.groups["group"].offset == 3


@pytest.mark.parametrize("offset", [2, 2**31, 2**53 - 1])
def test_offset_beyond_log_end_ignored(offset: int) -> None:
    story = Story(BOUNDS_LEVEL)
    story.append(GroupOffset("group", offset))
    assert story.tables.groups == {}
    story.append(GroupOffset("group", 2))
    assert story.tables.groups["group"].offset == 2


def test_group_offset_omits_leader_epoch_beyond_log_term() -> None:
    story = Story(BOUNDS_LEVEL)
    story.append(GroupOffset("group", 1, 2**31 - 1))
    assert story.tables.groups["group"].leader_epoch == -1
    story.append(GroupOffset("group", 1, 1))
    assert story.tables.groups["group"].leader_epoch == 1


def test_group_offset_replaced() -> None:
    story = Story()
    story.append(GroupOffset("group", 5))
    story.append(GroupOffset("group", 3, 2, "back"))
    assert story.tables.groups == {"group": NotedOffset(3, 2, "back", BASE_MS)}


@pytest.mark.parametrize(
    "tables",
    [
        KafkaClients({0: Producer("x", 0)}),
        KafkaClients({1: Producer("x", 0, epoch=kafka_clients.EPOCH_MAX + 1)}),
        KafkaClients({1: Producer("x", 0, sequence=SEQUENCES)}),
        KafkaClients({1: Producer("x", 0, runs=(kafka_clients.Run(0, 1, 1),) * (RUNS_MAX + 1))}),
        KafkaClients({number: Producer("x", 0) for number in range(1, PRODUCERS_OF_ALL_MAX + 2)}),
        KafkaClients(groups={"x": NotedOffset(-1, -1, "", 0)}),
        KafkaClients(groups={str(number): NotedOffset(0, -1, "", 0) for number in range(GROUPS_OF_ALL_MAX + 1)}),
        KafkaClients(skipped=tuple(range(SKIPPED_MAX + 1))),
    ],
    ids=["id", "epoch", "sequence", "runs", "producers", "offset", "groups", "skipped"],
)
def test_tables_out_of_bounds_refused(tables: KafkaClients) -> None:
    state = Farm(BASE_MS, founders=(MEMBER,)).state
    assert objection_to_state(state, 30_000) is None
    assert objection_to_state(replace(state, kafka=tables), 30_000) is not None
