"""Bytes to messages: every datagram becomes a message or a `DatagramError`.

One pass, in the order of the bytes: the reader (`cbor.py`) is told which item must come next and under which limit, and
what comes is that item, in its one spelling, or an error.
"""

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, TypeVar

from gossip.core.keyring import DIGEST_BYTES, ERA_LIMIT, KEY_BYTES, KEYS_LIMIT, DatedKey, Keyring
from gossip.core.member import (
    CREDENTIAL_LIMIT_BYTES,
    METADATA_LIMIT_BYTES,
    NODE_ID_BYTES,
    Address,
    Incarnation,
    NodeId,
    NodeInfo,
    Status,
)
from gossip.core.messages import (
    AliveUpdate,
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    KeyringUpdate,
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    Query,
    QueryReply,
    Update,
    UserEvent,
    UserMessage,
    UserMessageId,
    VerdictUpdate,
)
from gossip.core.user_events import BODY_LIMIT_BYTES, NAME_LIMIT_CHARACTERS, QUERY_TIMEOUT_LIMIT_MS
from gossip.wire.cbor import NULL, CborError, Reader
from gossip.wire.layout import (
    ADDRESSES_LIMIT,
    AUTH_LIMIT_BYTES,
    CAPACITY_LIMIT,
    DOMAIN_LIMIT_CHARACTERS,
    ERROR_CODE_LIMIT,
    ETAG_LIMIT_BYTES,
    INCARNATION_LIMIT,
    INFO_LIMIT_BYTES,
    INFOS_REMEMBERED,
    PACKED_ADDRESS_BYTES,
    PORT_LIMIT,
    PROOF_LIMIT_BYTES,
    RUMOURS_LIMIT,
    SAMPLE_LIMIT,
    SEQUENCE_LIMIT,
    TTL_LIMIT,
    UPDATES_LIMIT,
    Code,
    DatagramError,
)

Element = TypeVar("Element")
_STATUSES: Final = tuple(Status)
_ALIVE_FIELDS, _VERDICT_FIELDS = 2, 5
_BROADCAST_FIELDS, _QUERY_FIELDS = 4, 6


_QUIET_PAYLOAD_BYTES: Final = 32
"""Room for all that a payload without news, sample and user messages says."""
_QUIET_PAYLOADS_REMEMBERED: Final = 256


def decode(datagram: bytes) -> Message:
    """The message that a datagram holds, or `DatagramError`."""
    if not datagram:
        raise DatagramError("empty")
    decoder = _DECODERS.get(datagram[0])
    if decoder is None:
        raise DatagramError(f"unknown message code {datagram[0]}")
    reader = Reader(datagram, 1)
    try:
        message = decoder(reader)
        reader.end()
    except IndexError:
        raise DatagramError("body: ends early") from None
    except CborError as error:
        raise DatagramError(f"body: {error}") from error
    return message


def _several(reader: Reader, element: Callable[[Reader], Element], limit: int) -> tuple[Element, ...]:
    count = reader.array(limit)
    return tuple([element(reader) for _ in range(count)]) if count else ()


def _text(reader: Reader, limit: int, least: int = 0) -> str:
    value = reader.text(limit, least)
    if not value.isprintable():
        raise DatagramError("expected printable characters")
    return value


def _node_id(reader: Reader) -> NodeId:
    return NodeId(reader.short_octets(NODE_ID_BYTES))


def _incarnation(reader: Reader) -> Incarnation:
    return _shared(reader.unsigned(INCARNATION_LIMIT), reader.unsigned(INCARNATION_LIMIT))


@lru_cache(maxsize=INFOS_REMEMBERED)
def _shared(generation: int, number: int) -> Incarnation:
    """Most members of a large group are in the same first life: they share one object."""
    return Incarnation(generation, number)


def _address(reader: Reader) -> Address:
    reader.fields(2)
    return _endpoint(reader)


def _endpoint(reader: Reader) -> Address:
    """Packed address and port, in place."""
    packed = reader.octets(max(PACKED_ADDRESS_BYTES))
    if len(packed) not in PACKED_ADDRESS_BYTES:
        raise DatagramError("an address has 4 or 16 bytes")
    return Address(_host(packed), reader.unsigned(PORT_LIMIT))


@lru_cache(maxsize=INFOS_REMEMBERED)
def _host(packed: bytes) -> str:
    return str(ip_address(packed))


def _info(reader: Reader) -> NodeInfo:
    return _info_in(reader.octets(INFO_LIMIT_BYTES))


def decode_node_info(encoded: bytes) -> NodeInfo:
    """An info that came alone; raises `DatagramError` only. Whether its node said so is the question of `identity`."""
    if len(encoded) > INFO_LIMIT_BYTES:
        raise DatagramError(f"a node info has at most {INFO_LIMIT_BYTES} bytes")
    try:
        return _info_in(encoded)
    except IndexError:
        raise DatagramError("no node info: ends early") from None
    except CborError as error:
        raise DatagramError(f"no node info: {error}") from None


@lru_cache(maxsize=INFOS_REMEMBERED)
def _info_in(encoded: bytes) -> NodeInfo:
    """The info of these bytes: one spelling is one info, and most of what is told was told before."""
    reader = Reader(encoded)
    reader.fields(8)
    info = NodeInfo(
        node_id=_node_id(reader),
        address=_endpoint(reader),
        incarnation=_incarnation(reader),
        capacity=reader.unsigned(CAPACITY_LIMIT),
        metadata=reader.octets(METADATA_LIMIT_BYTES),
        credential=reader.octets(CREDENTIAL_LIMIT_BYTES),
    )
    reader.end()
    return info


def _update(reader: Reader) -> Update:
    count = reader.array(_VERDICT_FIELDS)
    status = _STATUSES[reader.unsigned(len(_STATUSES) - 1)]
    if count != (_ALIVE_FIELDS if status is Status.ALIVE else _VERDICT_FIELDS):
        raise DatagramError("expected an update")
    if status is Status.ALIVE:
        return AliveUpdate(_info(reader))
    node_id, incarnation = _node_id(reader), _incarnation(reader)
    if status is Status.LEFT:
        return VerdictUpdate(node_id, incarnation, status, node_id, reader.octets(CREDENTIAL_LIMIT_BYTES))
    return VerdictUpdate(node_id, incarnation, status, accuser=_node_id(reader))


def _last_payload(reader: Reader) -> Payload:
    """The payload that ends a ping. While nothing happens, members say the same few bytes again and again."""
    encoded = reader.rest()
    return _quiet_payload(encoded) if len(encoded) <= _QUIET_PAYLOAD_BYTES else _payload(encoded)


def _payload(encoded: bytes) -> Payload:
    reader = Reader(encoded)
    payload = _payload_fields(reader)
    reader.end()
    return payload


_quiet_payload: Final = lru_cache(maxsize=_QUIET_PAYLOADS_REMEMBERED)(_payload)


def _payload_fields(reader: Reader) -> Payload:
    reader.fields(6)
    return Payload(
        _several(reader, _update, UPDATES_LIMIT),
        reader.unsigned(CAPACITY_LIMIT),
        reader.unsigned(CAPACITY_LIMIT),
        _several(reader, _info, SAMPLE_LIMIT),
        _several(reader, _user_message, RUMOURS_LIMIT),
        reader.octets(DIGEST_BYTES),
    )


def _rumour_id(reader: Reader) -> UserMessageId:
    reader.fields(3)
    return UserMessageId(reader.unsigned(INCARNATION_LIMIT), _node_id(reader), reader.unsigned(INCARNATION_LIMIT))


def _user_message(reader: Reader) -> UserMessage:
    count = reader.array(_QUERY_FIELDS)
    is_query = reader.unsigned(1) == 1
    if count != (_QUERY_FIELDS if is_query else _BROADCAST_FIELDS):
        raise DatagramError("expected a user message")
    told = _rumour_id(reader), _text(reader, NAME_LIMIT_CHARACTERS, least=1), reader.octets(BODY_LIMIT_BYTES)
    if not is_query:
        return UserEvent(*told)
    return Query(*told, _address(reader), reader.unsigned(QUERY_TIMEOUT_LIMIT_MS))


def _query_reply(reader: Reader) -> Message:
    reader.fields(3)
    return QueryReply(_rumour_id(reader), _node_id(reader), reader.octets(BODY_LIMIT_BYTES))


def _chain_key(reader: Reader) -> DatedKey:
    reader.fields(3)
    return DatedKey(
        reader.unsigned(INCARNATION_LIMIT), reader.octets(KEY_BYTES, least=KEY_BYTES), retired=reader.boolean()
    )


_CHAIN_FIELDS = 3
"""Without the era, which is the fourth."""


def _key_news(reader: Reader) -> Message:
    reader.fields(3)
    return KeyringUpdate(_chain(reader), _node_id(reader), reader.octets(CREDENTIAL_LIMIT_BYTES))


def _chain(reader: Reader) -> Keyring:
    count = reader.array(4)
    has_era = count == _CHAIN_FIELDS + 1
    if not has_era and count != _CHAIN_FIELDS:
        raise DatagramError("expected two numbers and keys, and perhaps an era")
    used_at, primary = reader.unsigned(INCARNATION_LIMIT), reader.unsigned(KEYS_LIMIT)
    chain_keys = _several(reader, _chain_key, KEYS_LIMIT)
    if list(chain_keys) != sorted(chain_keys) or primary >= len(chain_keys):
        raise DatagramError("expected keys in their order, one of them the primary")
    era = reader.unsigned(ERA_LIMIT - 1) if has_era else 0
    chain = Keyring(chain_keys, chain_keys[primary].key, used_at, era)
    if not chain.is_sound() or has_era != (era > 0):
        raise DatagramError("no keyring")
    return chain


def _join_req(reader: Reader) -> Message:
    reader.fields(5)
    return JoinReq(
        _info(reader),
        token=reader.octets(ETAG_LIMIT_BYTES),
        auth=reader.octets(AUTH_LIMIT_BYTES),
        peer_count=reader.unsigned(CAPACITY_LIMIT),
        clock=reader.unsigned(INCARNATION_LIMIT),
    )


def _join_nak(reader: Reader) -> Message:
    reader.fields(4)
    return JoinNak(
        _text(reader, DOMAIN_LIMIT_CHARACTERS),
        reader.unsigned(ERROR_CODE_LIMIT),
        reader.octets(ETAG_LIMIT_BYTES),
        reader.unsigned(INCARNATION_LIMIT),
    )


def _join_redirect(reader: Reader) -> Message:
    reader.fields(5)
    return JoinRedirect(
        _several(reader, _address, ADDRESSES_LIMIT),
        _text(reader, DOMAIN_LIMIT_CHARACTERS),
        reader.unsigned(ERROR_CODE_LIMIT),
        reader.octets(ETAG_LIMIT_BYTES),
        reader.unsigned(INCARNATION_LIMIT),
    )


def _join_ack(reader: Reader) -> Message:
    reader.fields(4)
    return JoinAck(
        _info(reader),
        _several(reader, _info, SAMPLE_LIMIT),
        clock=reader.unsigned(INCARNATION_LIMIT),
        receiver_generation=reader.unsigned(INCARNATION_LIMIT),
    )


def _leave(reader: Reader) -> Message:
    reader.fields(1)
    return Leave(_info(reader))


def _ping_request(reader: Reader) -> Message:
    reader.fields(10)
    return PingRequest(
        _node_id(reader),
        _incarnation(reader),
        _node_id(reader),
        _incarnation(reader),
        reader.unsigned(SEQUENCE_LIMIT),
        reader.unsigned(TTL_LIMIT),
        None if reader.takes(NULL) else _address(reader),
        _last_payload(reader),
    )


def _ping_response(reader: Reader) -> Message:
    reader.fields(9)
    return PingResponse(
        _node_id(reader),
        _node_id(reader),
        _incarnation(reader),
        reader.unsigned(SEQUENCE_LIMIT),
        reader.unsigned(TTL_LIMIT),
        reader.boolean(),
        proof=reader.octets(PROOF_LIMIT_BYTES),
        payload=_last_payload(reader),
    )


def _broadcast(reader: Reader) -> Message:
    reader.fields(1)
    return Broadcast(_info(reader))


_DECODERS: Final[dict[int, Callable[[Reader], Message]]] = {
    Code.JOIN_REQ: _join_req,
    Code.JOIN_ACK: _join_ack,
    Code.JOIN_REDIRECT: _join_redirect,
    Code.JOIN_NAK: _join_nak,
    Code.PING_REQUEST: _ping_request,
    Code.PING_RESPONSE: _ping_response,
    Code.LEAVE: _leave,
    Code.QUERY_REPLY: _query_reply,
    Code.KEYRING_UPDATE: _key_news,
    Code.BROADCAST: _broadcast,
}
