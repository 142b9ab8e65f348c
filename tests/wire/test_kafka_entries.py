"""The JSON of entries for Kafka's clients (`bridge.core.log.records`)."""

import pytest

from bridge.core.log.records import Foreign, GroupOffset, ProducerStart, Report, request_of
from bridge.core.state.farm_state import FarmState
from bridge.core.state.kafka_clients import KafkaClients, NotedOffset, Producer, Run
from bridge.wire.log.entries import decode, encode
from bridge.wire.log.snapshot import FarmSnapshot, decode_farm_at_once, encode_farm
from tests.effort import each_case


@each_case(
    "record",
    [
        ProducerStart("n"),
        ProducerStart("n", "c-1-2"),
        GroupOffset("g", 5),
        GroupOffset("g", 5, 2, "m", "c-1-2"),
        ProducerStart("n", principal="0a" * 16),
        GroupOffset("g", 5, principal="0a" * 16),
    ],
    ids=["producer", "producer with request", "offset", "offset with all", "producer of a user", "offset of a user"],
)
def test_kafka_entry_round_trips(record: ProducerStart | GroupOffset) -> None:
    assert decode(encode(record)) == record


def test_entry_with_another_known_kind_has_that_kind() -> None:
    # Versions without Kafka's entries decode it this way.
    known = b'{"clock":{"time":5,"id":1}'
    assert decode(known + b',"kafkaProducer":{"name":"x"}}') == decode(known + b"}")
    assert not isinstance(decode(known + b"}"), Foreign | Report)


@pytest.mark.parametrize(
    "entry",
    [
        b'{"kafkaProducer":{"name":""},"request":"c-1-2"}',
        b'{"kafkaOffset":{"group":"g","offset":-1},"request":"c-1-2"}',
        b'{"kafkaOffset":{"group":"g","offset":1},"kafkaProducer":{"name":"x"},"request":"c-1-2"}',
    ],
    ids=["no name", "offset", "both kinds"],
)
def test_entry_out_of_range_is_foreign_with_its_request(entry: bytes) -> None:
    found = decode(entry)
    assert isinstance(found, Foreign)
    assert request_of(found) == "c-1-2"


MALFORMED = [b"7", b"null", b'"bogus"', b'{"a":[]}', b"1e999", b"1" * 400, b'"\xff\xfe"', b'"' + b"0a" * 16 + b'\\n"']


@each_case("value", MALFORMED)
def test_malformed_principal_is_ignored(value: bytes) -> None:
    # Versions below level 5 skip this member, and an old log must keep its meaning.
    producer = b'{"kafkaProducer":{"name":"n","principal":%b}}' % value
    offset = b'{"kafkaOffset":{"group":"g","offset":5,"principal":%b}}' % value
    assert (decode(producer), decode(offset)) == (ProducerStart("n"), GroupOffset("g", 5))


def test_kafka_tables_round_trip_in_snapshot() -> None:
    tables = KafkaClients({5: Producer("n", 7, 1, 2, (Run(1, 20, 1),))}, {"g": NotedOffset(3, -1, "m", 9)}, (21, 22))
    state = FarmState(0, level=4, kafka=tables)
    assert decode_farm_at_once(encode_farm(FarmSnapshot(state, 30_000, b""))).farm == state
