"""Requests and responses of Kafka's protocol: each API and version, both directions, and refused frames.

kio's reader and writer implement the same schemas in other code, and must agree on all bytes.
"""

import io
import random
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader, entity_writer
from msgspec import Struct

from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode, error_name, version_for
from consensus.protocols.kafka.wire.codec import (
    UnsupportedVersionError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from consensus.protocols.kafka.wire.limits import ZERO_UUID, KafkaWireError, Limits
from consensus.protocols.kafka.wire.schemas import Direction, message_schema
from tests.effort import IS_SOAK, each_case
from tests.wire.kraft_messages import ALL, any_message, name_of

ROUNDS = 12 if IS_SOAK else 4
EPOCH = datetime.fromtimestamp(0, tz=UTC)


def kio_class(api_key: ApiKey, version: int, direction: Direction) -> Any:
    module = import_module(f"kio.schema.{api_key.name.lower()}.v{version}.{direction.value}")
    return getattr(module, message_schema(api_key, version, direction).structure.message.__name__)


def as_ours(value: Any) -> Any:
    """Return a value of kio in the product's form, with structures as dicts of the fields that the version has."""
    if is_dataclass(value):
        return {
            field.name
            + ("_ms" if str(field.metadata.get("kafka_type")).startswith(("timedelta", "datetime")) else ""): (
                ZERO_UUID
                if field.metadata.get("kafka_type") == "uuid" and getattr(value, field.name) is None
                else as_ours(getattr(value, field.name))
            )
            for field in fields(value)
        }
    if isinstance(value, tuple):
        return tuple(as_ours(element) if element is not None else ZERO_UUID for element in value)
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    return value.value if isinstance(value, Enum) else value


def as_dict(value: Any, like: Any) -> Any:
    """Return a value of the product in the form of `as_ours`: without the fields that the version lacks."""
    if isinstance(value, Struct):
        return {name: as_dict(getattr(value, name), part) for name, part in like.items()}
    if isinstance(value, tuple):
        return tuple(as_dict(element, part) for element, part in zip(value, like, strict=True))
    return value


@pytest.mark.search
@each_case("case", ALL, ids=name_of)
def test_message_round_trips_in_each_version(case: tuple[ApiKey, int, Direction]) -> None:
    api_key, version, direction = case
    for seed in range(ROUNDS):
        message = any_message(api_key, version, direction, random.Random(f"{case}{seed}"))
        if direction is Direction.REQUEST:
            frame = encode_request(api_key, version, 7, "client", message)
            incoming = decode_request(frame)
            assert (incoming.api_key, incoming.api_version, incoming.correlation_id) == (api_key, version, 7), seed
            assert incoming.client_id == "client"
            assert incoming.message == message, seed
        else:
            frame = encode_response(api_key, version, 7, message)
            assert decode_response(api_key, version, frame) == (7, message), seed


@pytest.mark.search
@each_case("case", ALL, ids=name_of)
def test_kio_reads_same_values_and_writes_same_bytes(case: tuple[ApiKey, int, Direction]) -> None:
    api_key, version, direction = case
    theirs = kio_class(api_key, version, direction)
    header = theirs.__header_schema__
    for seed in range(ROUNDS):
        message = any_message(api_key, version, direction, random.Random(f"{case}{seed}"))
        if direction is Direction.REQUEST:
            frame = encode_request(api_key, version, 7, "client", message)
        else:
            frame = encode_response(api_key, version, 7, message)

        head, head_size = entity_reader(header)(frame, 0)
        value, size = entity_reader(theirs)(frame, head_size)
        again = io.BytesIO()
        entity_writer(header)(again, head)
        entity_writer(theirs)(again, value)

        assert head.correlation_id == 7, seed
        assert head_size + size == len(frame), seed
        expected = as_ours(value)
        assert as_dict(message, expected) == expected, seed
        assert again.getvalue() == frame, seed


@pytest.mark.search
@each_case("case", ALL, ids=name_of)
def test_truncated_or_extended_message_is_refused(case: tuple[ApiKey, int, Direction]) -> None:
    api_key, version, direction = case
    message = any_message(api_key, version, direction, random.Random(f"cut {case}"))
    if direction is Direction.REQUEST:
        frame = encode_request(api_key, version, 7, "client", message)
    else:
        frame = encode_response(api_key, version, 7, message)
    read = decode_request if direction is Direction.REQUEST else partial(decode_response, api_key, version)
    sizes = range(0, min(len(frame), 200), 1 if IS_SOAK else 4)
    for changed in [frame + b"\0", *(frame[:size] for size in sizes)]:
        with pytest.raises(KafkaWireError):
            read(changed)


ALL_TOPICS_OF_LIBRDKAFKA = {
    "2.1.1": "0003 0009 00000003 0007 72646b61666b61 00 00 000000 01 00 00 00",
    "2.6.1": "0003 000c 00000003 0007 72646b61666b61 00 00 000000 01 00 00",
    "2.16.0": "0003 000d 00000003 0007 72646b61666b61 00 00 000000 01 00 00",
}
"""Metadata requests sent by `list_topics()` of confluent-kafka, by version of librdkafka."""


@pytest.mark.parametrize("recorded", ALL_TOPICS_OF_LIBRDKAFKA.values(), ids=ALL_TOPICS_OF_LIBRDKAFKA)
def test_librdkafka_metadata_request_with_extra_bytes_is_read(recorded: str) -> None:
    frame = bytes.fromhex(recorded)
    incoming = decode_request(frame)
    assert (incoming.api_key, incoming.api_version, incoming.client_id) == (ApiKey.METADATA, frame[3], "rdkafka")
    assert incoming.message == clients.MetadataRequest(topics=None, allow_auto_topic_creation=True)


@pytest.mark.parametrize("recorded", ALL_TOPICS_OF_LIBRDKAFKA.values(), ids=ALL_TOPICS_OF_LIBRDKAFKA)
def test_other_requests_with_extra_bytes_are_refused(recorded: str) -> None:
    frame = bytes.fromhex(recorded)
    head, body = frame[:18], frame[18:]
    changed = [body[:at] + bytes([2]) + body[at + 1 :] for at in (1, 2, 3, len(body) - 1)]
    changed += [b"\1" + body[1:], body + b"\0", body[:4] + body[5:] + b"\0\0", body[:2] + body]
    for other in changed:
        with pytest.raises(KafkaWireError):
            decode_request(head + other)
    for api_key, version in ((ApiKey.METADATA, 8), (ApiKey.FETCH, 12), (ApiKey.DESCRIBE_CLUSTER, 1)):
        with pytest.raises(KafkaWireError):
            decode_request(api_key.to_bytes(2) + version.to_bytes(2) + frame[4:])


@pytest.mark.parametrize("version", [1, 12])
def test_array_of_two_billion_elements_is_refused(version: int) -> None:
    head = encode_request(ApiKey.METADATA, version, 1, "", clients.MetadataRequest(topics=None))
    start = 11 if version == 12 else 10
    count = b"\xff\xff\xff\xff\x07" if version == 12 else b"\x7f\xff\xff\xff"
    with pytest.raises(KafkaWireError, match="more elements"):
        decode_request(head[:start] + count)


def test_message_with_too_many_elements_is_refused() -> None:
    topics = tuple(clients.MetadataRequestTopic(name="") for _ in range(100))
    frame = encode_request(ApiKey.METADATA, 9, 1, "", clients.MetadataRequest(topics=topics))
    assert len(decode_request(frame).message.topics) == 100
    with pytest.raises(KafkaWireError, match="more elements"):
        decode_request(frame, limits=Limits(max_request_elements=99))


def test_oversized_request_is_refused() -> None:
    with pytest.raises(KafkaWireError, match="101 bytes"):
        decode_request(bytes(101), limits=Limits(max_request_bytes=100))


def test_unknown_tagged_field_is_skipped() -> None:
    frame = encode_request(ApiKey.SASL_AUTHENTICATE, 2, 1, "", clients.SaslAuthenticateRequest(auth_bytes=b"x"))
    assert frame[-1:] == b"\0"
    incoming = decode_request(frame[:-1] + b"\x01\x63\x03abc")
    assert incoming.message == clients.SaslAuthenticateRequest(auth_bytes=b"x")


def test_tagged_field_longer_than_its_value_is_refused() -> None:
    request = clients.FetchRequest(max_wait_ms=0, min_bytes=0, topics=(), cluster_id="abc")
    frame = encode_request(ApiKey.FETCH, 17, 1, "", request)
    assert frame.endswith(b"\x01\x00\x04\x04abc")
    with pytest.raises(KafkaWireError, match="cluster_id takes 3 of the 4"):
        decode_request(frame[:-4] + b"\x03abc")


def test_unserved_api_is_refused() -> None:
    frame = encode_request(ApiKey.METADATA, 9, 1, "", clients.MetadataRequest(topics=None))
    with pytest.raises(KafkaWireError, match="API 3 is not served"):
        decode_request(frame, {ApiKey.FETCH: (4, 18)})


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_unserved_version_error_has_fields_for_response(version: int) -> None:
    frame = ApiKey.API_VERSIONS.to_bytes(2) + version.to_bytes(2, signed=True) + b"\0\0\1\0" + b"junk"
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request(frame)
    assert (caught.value.api_key, caught.value.api_version, caught.value.correlation_id) == (18, version, 256)
    answer = clients.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=())
    assert encode_response(ApiKey.API_VERSIONS, 0, 256, answer) == bytes.fromhex("00000100 0023 00000000")


def test_api_versions_response_always_has_old_header() -> None:
    answer = clients.ApiVersionsResponse(api_keys=())
    assert encode_response(ApiKey.API_VERSIONS, 3, 1, answer) == bytes.fromhex("00000001 0000 01 00000000 00")


def test_encode_refuses_value_out_of_range() -> None:
    answer = clients.ApiVersionsResponse(error_code=2**15, api_keys=())
    with pytest.raises(KafkaWireError, match="number"):
        encode_response(ApiKey.API_VERSIONS, 3, 1, answer)
    with pytest.raises(KafkaWireError, match="mechanism has 32768 bytes"):
        encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "", clients.SaslHandshakeRequest(mechanism="x" * 2**15))
    with pytest.raises(KafkaWireError, match="topics is null"):
        encode_request(ApiKey.METADATA, 0, 1, "", clients.MetadataRequest(topics=None))
    with pytest.raises(KafkaWireError, match="SaslHandshakeRequest where"):
        encode_request(ApiKey.METADATA, 0, 1, "", clients.SaslHandshakeRequest(mechanism=""))
    with pytest.raises(KafkaWireError, match="not known"):
        encode_request(ApiKey.METADATA, 14, 1, "", clients.MetadataRequest(topics=None))


def test_empty_records_are_not_null() -> None:
    partition = clients.FetchResponsePartition(partition_index=0, high_watermark=5)
    topic = clients.FetchResponseTopic(topic_id=UUID(int=1), partitions=(partition,))
    frame = encode_response(ApiKey.FETCH, 17, 1, clients.FetchResponse(responses=(topic,)))
    _, message = decode_response(ApiKey.FETCH, 17, frame)
    assert message.responses[0].partitions[0].records == b""


def test_version_for_returns_newest_common_version() -> None:
    lowest, highest = VERSIONS[ApiKey.FETCH]
    assert version_for(ApiKey.FETCH, {1: (0, 99)}) == highest
    assert version_for(ApiKey.FETCH, {1: (0, 12)}) == 12
    assert version_for(ApiKey.FETCH, {1: (0, lowest - 1)}) is None
    assert version_for(ApiKey.FETCH, {1: (highest + 1, 99)}) is None
    assert version_for(ApiKey.FETCH, {}) is None


def test_error_name_is_readable() -> None:
    assert error_name(6) == "NOT_LEADER_OR_FOLLOWER"
    assert error_name(9_999) == "error 9999"
