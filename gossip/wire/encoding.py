"""Messages to bytes, within a size.

Gossip that rides on a message (samples, updates, redirect addresses) is what gives way when a datagram would grow too
large; the message itself never does. The core budgets its gossip too, but only this floor knows the true size of
credentials and addresses, and a datagram above the limit would be fragmented and lost as a whole.
"""

from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, assert_never

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
from gossip.wire import cbor
from gossip.wire.layout import INCARNATION_LIMIT, INFOS_REMEMBERED, Code, DatagramError

_NODE_ID: Final = cbor.octets(bytes(NODE_ID_BYTES))[:1]
"""The head of a node id; the id itself follows."""

_REQUEST_FIELDS: Final = 10
_RESPONSE_FIELDS: Final = 9
_PAYLOAD_FIELDS: Final = 6
_REQUEST: Final = bytes([Code.PING_REQUEST]) + cbor.array_head(_REQUEST_FIELDS) + _NODE_ID
_RESPONSE: Final = bytes([Code.PING_RESPONSE]) + cbor.array_head(_RESPONSE_FIELDS) + _NODE_ID


def encode(message: Message, limit_bytes: int | None = None) -> bytes:
    """The datagram for `message`; with a limit, riding gossip is shortened until it fits."""
    encoded = _encode(message)
    while limit_bytes is not None and len(encoded) > limit_bytes:
        message = _shortened(message, len(encoded), limit_bytes)
        encoded = _encode(message)
    return encoded


@lru_cache(maxsize=INFOS_REMEMBERED)
def encode_node_info(info: NodeInfo) -> bytes:
    """The one spelling of a node info, as it travels and as signatures and join auths cover it."""
    if len(info.metadata) > METADATA_LIMIT_BYTES or len(info.credential) > CREDENTIAL_LIMIT_BYTES:
        raise DatagramError(f"metadata above {METADATA_LIMIT_BYTES} or credential above {CREDENTIAL_LIMIT_BYTES} bytes")
    return cbor.dumps(
        [
            info.node_id,
            *_address_out(info.address),
            *_incarnation_out(info.incarnation),
            info.capacity,
            info.metadata,
            info.credential,
        ]
    )


@lru_cache(maxsize=INFOS_REMEMBERED)
def _wrapped(info: NodeInfo) -> bytes:
    return cbor.octets(encode_node_info(info))


def pack_address(address: Address) -> bytes:
    """The address as 4 or 16 bytes (network order); the port travels beside it."""
    return _packed(address.host)


@lru_cache(maxsize=INFOS_REMEMBERED)
def _packed(host: str) -> bytes:
    try:
        return ip_address(host).packed
    except ValueError as error:
        raise DatagramError(f"{host!r} is not a numeric address") from error


def _encode(message: Message) -> bytes:
    if isinstance(message, PingRequest):
        return _ping_request(message)
    if isinstance(message, PingResponse):
        return _ping_response(message)
    code, body = _body_out(message)
    return bytes([code]) + cbor.dumps(body)


def _ping_request(message: PingRequest) -> bytes:
    """Nearly every datagram is a ping or its answer: these are put together piece by piece, in half the time."""
    return b"".join(
        (
            *(_REQUEST, message.source_id, *_incarnation_pieces(message.source_incarnation)),
            *(_NODE_ID, message.target_id, *_incarnation_pieces(message.target_incarnation)),
            *(cbor.unsigned(message.seq), cbor.unsigned(message.ttl)),
            cbor.NULL if message.requester is None else cbor.dumps(_address_out(message.requester)),
            *_payload_pieces(message.payload),
        )
    )


def _ping_response(message: PingResponse) -> bytes:
    return b"".join(
        (
            *(_RESPONSE, message.source_id, _NODE_ID, message.target_id),
            *_incarnation_pieces(message.target_incarnation),
            *(cbor.unsigned(message.seq), cbor.unsigned(message.ttl), cbor.TRUE if message.nack else cbor.FALSE),
            cbor.octets(message.proof),
            *_payload_pieces(message.payload),
        )
    )


def _incarnation_pieces(incarnation: Incarnation) -> tuple[bytes, bytes]:
    generation, number = _incarnation_out(incarnation)
    return cbor.unsigned(generation), cbor.unsigned(number)


def _payload_pieces(payload: Payload) -> tuple[bytes, ...]:
    return (
        cbor.array_head(_PAYLOAD_FIELDS),
        cbor.dumps([_update_out(update) for update in payload.updates]) if payload.updates else cbor.EMPTY_ARRAY,
        *(cbor.unsigned(payload.capacity), cbor.unsigned(payload.peer_count), cbor.array_head(len(payload.sample))),
        *map(_wrapped, payload.sample),
        cbor.dumps([_rumour_out(user_message) for user_message in payload.user_messages])
        if payload.user_messages
        else cbor.EMPTY_ARRAY,
        cbor.octets(payload.keys_digest),
    )


def _body_out(
    message: JoinReq | JoinNak | JoinRedirect | JoinAck | Leave | Broadcast | QueryReply | KeyringUpdate,
) -> tuple[Code, list[Any]]:
    code: Code
    body: list[Any]
    match message:
        case JoinReq(source, token, auth, peer_count, clock):
            code, body = Code.JOIN_REQ, [encode_node_info(source), token, auth, peer_count, clock]
        case JoinNak(domain, reason, etag, generation):
            code, body = Code.JOIN_NAK, [domain, reason, etag, generation]
        case JoinRedirect(addresses, domain, reason, etag, generation):
            told = [_address_out(address) for address in addresses]
            code, body = Code.JOIN_REDIRECT, [told, domain, reason, etag, generation]
        case JoinAck(description, sample, clock, generation):
            infos = [encode_node_info(info) for info in sample]
            code, body = Code.JOIN_ACK, [encode_node_info(description), infos, clock, generation]
        case Leave(source):
            code, body = Code.LEAVE, [encode_node_info(source)]
        case Broadcast(source):
            code, body = Code.BROADCAST, [encode_node_info(source)]
        case QueryReply(query_id, responder, answer):
            code, body = Code.QUERY_REPLY, [_rumour_id_out(query_id), responder, answer]
        case KeyringUpdate(chain, teller, credential):
            code, body = Code.KEYRING_UPDATE, [_chain_out(chain), teller, credential]
        case _:
            assert_never(message)
    return code, body


def _incarnation_out(incarnation: Incarnation) -> tuple[int, int]:
    if incarnation.generation > INCARNATION_LIMIT or incarnation.number > INCARNATION_LIMIT:
        raise DatagramError("an incarnation beyond what peers accept")
    return incarnation.generation, incarnation.number


def _address_out(address: Address) -> list[Any]:
    return [pack_address(address), address.port]


def _update_out(update: Update) -> list[Any]:
    match update:
        case AliveUpdate(info):
            return [int(Status.ALIVE), encode_node_info(info)]
        case VerdictUpdate(node_id, incarnation, Status.LEFT, _, proof):
            return [int(Status.LEFT), node_id, *_incarnation_out(incarnation), proof]
        case VerdictUpdate(node_id, incarnation, status, accuser):
            return [int(status), node_id, *_incarnation_out(incarnation), accuser]
        case _:
            assert_never(update)


def _rumour_id_out(message_id: UserMessageId) -> list[Any]:
    return [message_id.time, message_id.origin, message_id.generation]


def _rumour_out(user_message: UserMessage) -> list[Any]:
    match user_message:
        case UserEvent(message_id, name, body):
            return [0, _rumour_id_out(message_id), name, body]
        case Query(message_id, name, body, address, timeout_ms):
            return [1, _rumour_id_out(message_id), name, body, _address_out(address), timeout_ms]
        case _:
            assert_never(user_message)


def _chain_out(chain: Keyring) -> list[Any]:
    primary = [each.key for each in chain.keys].index(chain.primary)
    told: list[Any] = [chain.used_at, primary, [[each.since, each.key, each.retired] for each in chain.keys]]
    return [*told, chain.era] if chain.era else told


def encode_chain(chain: Keyring) -> bytes:
    """The one spelling of a keyring, as it travels and as signatures cover it."""
    return cbor.dumps(_chain_out(chain))


def _shortened(message: Message, size_bytes: int, limit_bytes: int) -> Message:
    """The message with one piece of riding gossip less."""
    match message:
        case PingRequest(payload=payload) | PingResponse(payload=payload) if payload.updates or (
            payload.sample or payload.user_messages
        ):
            return replace(message, payload=_shortened_payload(payload))
        case JoinAck(sample=sample) if sample:
            return replace(message, sample=sample[:-1])
        case JoinRedirect(addresses=addresses) if addresses:
            return replace(message, addresses=addresses[:-1])
        case _:
            raise DatagramError(f"{type(message).__name__} of {size_bytes} bytes does not fit into {limit_bytes}")


def _shortened_payload(payload: Payload) -> Payload:
    """The last sample goes first (anti-entropy repeats), then user messages, then news."""
    if payload.sample:
        return replace(payload, sample=payload.sample[:-1])
    if payload.user_messages:
        return replace(payload, user_messages=payload.user_messages[:-1])
    return replace(payload, updates=payload.updates[:-1])
