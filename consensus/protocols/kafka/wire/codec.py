"""Kafka's requests and responses as frames, without the four bytes of length before each on a stream.

    request     API key int16 │ API version int16 │ correlation id int32 │ client id │ [tagged fields] │ message
    response    correlation id int32 │ [tagged fields] │ message

A header has tagged fields if its message has a flexible version. Two parts always have the old form: the length of the
client id (16 bits), and the header of the response to ApiVersions. A response does not contain its API and version:
responses come in the order of the requests, and the correlation id confirms this order.

*Refusals.* An unknown API, an unsupported version, and trailing bytes are `KafkaWireError`s; a listener closes the
connection. An unsupported version is an `UnsupportedVersionError`, since ApiVersions has a reply to it: version 0 with
error 35 and the served versions.

*librdkafka's request for all topics* is the one exception. From version 9 of Metadata on, librdkafka reserves four
bytes for the count of the topics. It writes null into the first, and sends the other three as well:

    null │ 00 00 00 │ may topics be made? │ [operations on the cluster? up to version 10] │ 00 │ no tagged fields

(recorded from 2.1.1 to 2.16.0). Kafka accepts it, since it ignores trailing bytes. No version allows these bytes, so
they are unambiguous, and the three extra bytes are skipped.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError, Limits
from consensus.protocols.kafka.wire.schemas import Direction, MessageSchema, message_schema
from consensus.protocols.kafka.wire.serialization import Cursor, structure_reader, write_structure

_REQUEST_HEAD: Final = struct.Struct(">hhih")
_RESPONSE_HEAD: Final = struct.Struct(">i")
_NO_TAGGED_FIELDS: Final = b"\x00"
_FREE_BYTES: Final = 3
_SIZE_WITH_FREE_BYTES: Final[Mapping[int, int]] = {9: 8, 10: 8, 11: 7, 12: 7, 13: 7}
"""Size of librdkafka's request for all topics without its header, by version of Metadata."""


class UnsupportedVersionError(KafkaWireError):
    """A request of a served API in an unsupported version."""

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        super().__init__(f"version {api_version} of API {api_key} is not served")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


class ApiRequest(Struct, frozen=True):
    """A decoded request. `message` is an instance of the API's class in `messages_*`."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str
    """Empty if the client sent null."""
    message: Any


def decode_request(
    frame: bytes, served: Mapping[int, tuple[int, int]] = VERSIONS, limits: Limits = DEFAULT_LIMITS
) -> ApiRequest:
    """Decode a request of a served API and version (both ends included).

    Raises `KafkaWireError`, and for an unsupported version `UnsupportedVersionError`.
    """
    _check_size(frame, limits.max_request_bytes)
    cursor = Cursor(frame, 0, limits.max_request_elements)
    api_number, version, correlation_id, client_id_bytes = _REQUEST_HEAD.unpack_from(
        frame, cursor.take(_REQUEST_HEAD.size)
    )
    if api_number not in served or api_number not in VERSIONS:
        raise KafkaWireError(f"API {api_number} is not served")
    lowest, highest = served[api_number]
    if not max(lowest, VERSIONS[api_number][0]) <= version <= min(highest, VERSIONS[api_number][1]):
        raise UnsupportedVersionError(api_number, version, correlation_id)
    client_id = _client_id(cursor, client_id_bytes)
    api_key = ApiKey(api_number)
    schema = message_schema(api_key, version, Direction.REQUEST)
    _skip_header_fields(cursor, schema)
    if api_key is ApiKey.METADATA and _has_free_bytes(cursor, version):
        cursor.take(_FREE_BYTES)
    return ApiRequest(api_key, version, correlation_id, client_id, _message(cursor, schema))


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str, message: Any) -> bytes:
    """Encode a request; raises `KafkaWireError` if the codec lacks the version, or the version lacks the message."""
    schema = _known_schema(api_key, version, Direction.REQUEST)
    encoded_id = client_id.encode(errors="replace")
    try:
        head = _REQUEST_HEAD.pack(api_key, version, correlation_id, len(encoded_id))
    except struct.error as error:
        raise KafkaWireError(f"the header of a request cannot have this: {error}") from error
    parts = [head, encoded_id]
    if schema.flexible_header:
        parts.append(_NO_TAGGED_FIELDS)
    write_structure(schema.structure, message, parts)
    return b"".join(parts)


def decode_response(api_key: int, version: int, frame: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[int, Any]:
    """Return the correlation id and the message of a response to a request of this API and version."""
    schema = _known_schema(api_key, version, Direction.RESPONSE)
    _check_size(frame, limits.max_response_bytes)
    cursor = Cursor(frame, 0, limits.max_elements)
    (correlation_id,) = _RESPONSE_HEAD.unpack_from(frame, cursor.take(_RESPONSE_HEAD.size))
    _skip_header_fields(cursor, schema)
    return correlation_id, _message(cursor, schema)


def encode_response(api_key: int, version: int, correlation_id: int, message: Any) -> bytes:
    """Encode a response; raises `KafkaWireError` if the codec lacks the version, or the version lacks the message."""
    schema = _known_schema(api_key, version, Direction.RESPONSE)
    try:
        parts = [_RESPONSE_HEAD.pack(correlation_id)]
    except struct.error as error:
        raise KafkaWireError(f"the header of a response cannot have this: {error}") from error
    if schema.flexible_header:
        parts.append(_NO_TAGGED_FIELDS)
    write_structure(schema.structure, message, parts)
    return b"".join(parts)


def _check_size(frame: bytes, max_bytes: int) -> None:
    if len(frame) > max_bytes:
        raise KafkaWireError(f"a message of {len(frame)} bytes: {max_bytes} are read at most")


def _client_id(cursor: Cursor, length: int) -> str:
    if length < -1:
        raise KafkaWireError(f"the length of the client id is {length}")
    if length <= 0:
        return ""
    start = cursor.take(length)
    try:
        return cursor.data[start : start + length].decode()
    except UnicodeDecodeError as error:
        raise KafkaWireError("the client id is not UTF-8") from error


def _skip_header_fields(cursor: Cursor, schema: MessageSchema) -> None:
    if schema.flexible_header:
        cursor.skip_tagged_fields()


def _has_free_bytes(cursor: Cursor, version: int) -> bool:
    if cursor.end - cursor.position != _SIZE_WITH_FREE_BYTES.get(version):
        return False
    body = cursor.data[cursor.position :]
    return body.startswith(bytes(1 + _FREE_BYTES)) and body.endswith(bytes(2))


def _message(cursor: Cursor, schema: MessageSchema) -> Any:
    message = structure_reader(schema.structure)(cursor)
    if cursor.position != cursor.end:
        raise KafkaWireError(f"{cursor.end - cursor.position} bytes follow {type(message).__name__}")
    return message


def _known_schema(api_key: int, version: int, direction: Direction) -> MessageSchema:
    lowest, highest = VERSIONS.get(api_key, (0, -1))
    if not lowest <= version <= highest:
        raise KafkaWireError(f"version {version} of API {api_key} is not known")
    return message_schema(ApiKey(api_key), version, direction)
