"""Messages to bytes, the opposite of `decoder.py`.

The encoder drops piggybacked gossip (samples, user messages, updates, redirect addresses) if a datagram would be too
large. A message that still does not fit raises `DatagramError`. The core budgets its gossip too, but only the wire has
the true size of credentials and addresses. A datagram above the limit would be fragmented, and lost as a whole.

Pings are frequent, and are written piece by piece, which is faster; all other messages use `cbor2.dumps`.
"""

from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, assert_never

from msgspec.structs import replace

from gossip.core.keyring import Keyring
from gossip.core.member import (
    CREDENTIAL_LIMIT_BYTES,
    METADATA_LIMIT_BYTES,
    NODE_ID_BYTES,
    Address,
    Incarnation,
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
from gossip.wire.cbor import FALSE, NULL, TRUE, array_head, dumps, octets, unsigned
from gossip.wire.decoder import (
    INCARNATION_LIMIT,
    INFOS_REMEMBERED,
    PAYLOAD_FIELDS,
    PING_REQUEST_FIELDS,
    PING_RESPONSE_FIELDS,
    QUIET_PAYLOADS_REMEMBERED,
    Code,
    DatagramError,
)

_NODE_ID: Final = octets(bytes(NODE_ID_BYTES))[:1]
"""The head of a node id; the id itself follows."""
_REQUEST: Final = bytes([Code.PING_REQUEST]) + array_head(PING_REQUEST_FIELDS) + _NODE_ID
_RESPONSE: Final = bytes([Code.PING_RESPONSE]) + array_head(PING_RESPONSE_FIELDS) + _NODE_ID
_PAYLOAD: Final = array_head(PAYLOAD_FIELDS)
_ALIVE: Final = array_head(2) + unsigned(Status.ALIVE)


def encode(message: Message, limit_bytes: int | None = None) -> bytes:
    """Return the datagram for `message`; with a limit, drop piggybacked gossip until it fits."""
    encoded = _encode(message)
    while limit_bytes is not None and len(encoded) > limit_bytes:
        message = _shortened(message, len(encoded), limit_bytes)
        encoded = _encode(message)
    return encoded


def encode_node_info(info: NodeInfo) -> bytes:
    """Return the only encoding of a node info on the wire, which signatures and join auths cover."""
    if len(info.metadata) > METADATA_LIMIT_BYTES or len(info.credential) > CREDENTIAL_LIMIT_BYTES:
        raise DatagramError(f"metadata above {METADATA_LIMIT_BYTES} or credential above {CREDENTIAL_LIMIT_BYTES} bytes")
    address, incarnation = _address_out(info.address), _incarnation_out(info.incarnation)
    return dumps((info.node_id, *address, *incarnation, info.capacity, info.metadata, info.credential))


def encode_keyring(keyring: Keyring) -> bytes:
    """Return the only encoding of a keyring on the wire, which signatures cover."""
    return dumps(_keyring_out(keyring))


def pack_address(host: str) -> bytes:
    """Return the host as 4 or 16 bytes (network order); the port is a separate field."""
    try:
        return ip_address(host).packed
    except ValueError as error:
        raise DatagramError(f"{host!r} is not a numeric address") from error


def _encode(message: Message) -> bytes:
    if isinstance(message, PingRequest):
        return _ping_request_out(message)
    if isinstance(message, PingResponse):
        return _ping_response_out(message)
    code, body = _body_out(message)
    return bytes([code]) + dumps(body)


def _ping_request_out(message: PingRequest) -> bytes:
    return b"".join(
        (
            _REQUEST,
            message.source_id,
            _incarnation_bytes(message.source_incarnation),
            _NODE_ID,
            message.target_id,
            _incarnation_bytes(message.target_incarnation),
            unsigned(message.seq),
            unsigned(message.ttl),
            NULL if message.requester is None else dumps(_address_out(message.requester)),
            _payload_bytes(message.payload),
        )
    )


def _ping_response_out(message: PingResponse) -> bytes:
    return b"".join(
        (
            _RESPONSE,
            message.source_id,
            _NODE_ID,
            message.target_id,
            _incarnation_bytes(message.target_incarnation),
            unsigned(message.seq),
            unsigned(message.ttl),
            TRUE if message.nack else FALSE,
            octets(message.proof),
            _payload_bytes(message.payload),
        )
    )


@lru_cache(maxsize=INFOS_REMEMBERED)
def _incarnation_bytes(incarnation: Incarnation) -> bytes:
    return b"".join(map(unsigned, _incarnation_out(incarnation)))


def _payload_bytes(payload: Payload) -> bytes:
    updates, sample, user_messages = payload.updates, payload.sample, payload.user_messages
    if not (updates or sample or user_messages):
        return _quiet_payload_bytes(payload.capacity, payload.peer_count, payload.keys_digest)
    pieces = (
        _PAYLOAD,
        array_head(len(updates)),
        *map(_update_bytes, updates),
        _counts_bytes(payload.capacity, payload.peer_count),
        array_head(len(sample)),
        *map(_info_bytes, sample),
        array_head(len(user_messages)),
        *map(_user_message_bytes, user_messages),
        octets(payload.keys_digest),
    )
    return octets(b"".join(pieces))


@lru_cache(maxsize=QUIET_PAYLOADS_REMEMBERED)
def _quiet_payload_bytes(capacity: int, peer_count: int, keys_digest: bytes) -> bytes:
    return octets(dumps(((), capacity, peer_count, (), (), keys_digest)))


@lru_cache(maxsize=QUIET_PAYLOADS_REMEMBERED)
def _counts_bytes(capacity: int, peer_count: int) -> bytes:
    return unsigned(capacity) + unsigned(peer_count)


def _update_bytes(update: Update) -> bytes:
    if isinstance(update, AliveUpdate):
        return _ALIVE + _info_bytes(update.info)
    match update:
        case VerdictUpdate(node_id, incarnation, Status.LEFT, _, proof):
            return dumps((int(Status.LEFT), node_id, *_incarnation_out(incarnation), proof))
        case VerdictUpdate(node_id, incarnation, status, accuser):
            return dumps((int(status), node_id, *_incarnation_out(incarnation), accuser))
        case _:
            assert_never(update)


@lru_cache(maxsize=INFOS_REMEMBERED)
def _info_bytes(info: NodeInfo) -> bytes:
    return octets(encode_node_info(info))


def _user_message_bytes(user_message: UserMessage) -> bytes:
    match user_message:
        case UserEvent(message_id, name, body):
            return dumps((0, _message_id_out(message_id), name, body))
        case Query(message_id, name, body, address, timeout_ms):
            return dumps((1, _message_id_out(message_id), name, body, _address_out(address), timeout_ms))
        case _:
            assert_never(user_message)


def _body_out(
    message: JoinReq | JoinNak | JoinRedirect | JoinAck | Leave | Broadcast | QueryReply | KeyringUpdate,
) -> tuple[Code, tuple[Any, ...]]:
    code: Code
    body: tuple[Any, ...]
    match message:
        case JoinReq(source, token, auth, peer_count, clock):
            code, body = Code.JOIN_REQ, (encode_node_info(source), token, auth, peer_count, clock)
        case JoinNak(domain, reason, etag, generation):
            code, body = Code.JOIN_NAK, (domain, reason, etag, generation)
        case JoinRedirect(addresses, domain, reason, etag, generation):
            packed = [_address_out(address) for address in addresses]
            code, body = Code.JOIN_REDIRECT, (packed, domain, reason, etag, generation)
        case JoinAck(description, sample, clock, generation):
            infos = [encode_node_info(info) for info in sample]
            code, body = Code.JOIN_ACK, (encode_node_info(description), infos, clock, generation)
        case Leave(source):
            code, body = Code.LEAVE, (encode_node_info(source),)
        case Broadcast(source):
            code, body = Code.BROADCAST, (encode_node_info(source),)
        case QueryReply(query_id, responder, answer):
            code, body = Code.QUERY_REPLY, (_message_id_out(query_id), responder, answer)
        case KeyringUpdate(keyring, sender, credential):
            code, body = Code.KEYRING_UPDATE, (_keyring_out(keyring), sender, credential)
        case _:
            assert_never(message)
    return code, body


def _message_id_out(message_id: UserMessageId) -> tuple[Any, ...]:
    return message_id.time, message_id.origin, message_id.generation


def _keyring_out(keyring: Keyring) -> tuple[Any, ...]:
    primary = [each.key for each in keyring.keys].index(keyring.primary)
    fields = keyring.used_at, primary, [(each.since, each.key, each.retired) for each in keyring.keys]
    return (*fields, keyring.era) if keyring.era else fields


def _incarnation_out(incarnation: Incarnation) -> tuple[int, int]:
    if incarnation.generation > INCARNATION_LIMIT or incarnation.number > INCARNATION_LIMIT:
        raise DatagramError("an incarnation beyond what peers accept")
    return incarnation.generation, incarnation.number


def _address_out(address: Address) -> tuple[bytes, int]:
    return pack_address(address.host), address.port


_NO_PAYLOAD: Final = Payload()
"""The payload of an ack for an unproved address, if even the sender's room for peers does not fit."""


def _shortened(message: Message, size_bytes: int, limit_bytes: int) -> Message:
    """Return the message with one piece of piggybacked gossip less."""
    match message:
        case PingRequest(payload=payload) | PingResponse(payload=payload) if payload.updates or (
            payload.sample or payload.user_messages
        ):
            return replace(message, payload=_shortened_payload(payload))
        case PingResponse(payload=payload) if payload != _NO_PAYLOAD:
            return replace(message, payload=_NO_PAYLOAD)
        case JoinAck(sample=sample) if sample:
            return replace(message, sample=sample[:-1])
        case JoinRedirect(addresses=addresses) if addresses:
            return replace(message, addresses=addresses[:-1])
        case _:
            raise DatagramError(f"{type(message).__name__} of {size_bytes} bytes does not fit into {limit_bytes}")


def _shortened_payload(payload: Payload) -> Payload:
    """Drop the last sample first (anti-entropy repeats), then user messages, then updates."""
    if payload.sample:
        return replace(payload, sample=payload.sample[:-1])
    if payload.user_messages:
        return replace(payload, user_messages=payload.user_messages[:-1])
    return replace(payload, updates=payload.updates[:-1])
