"""Messages to bytes, within a size.

Gossip that rides on a message (samples, updates, redirect addresses) is what gives way when a datagram would grow too
large; the message itself never does. The core budgets its gossip too, but only this floor knows the true size of
credentials and addresses, and a datagram above the limit would be fragmented and lost as a whole.
"""

from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, assert_never

from gossip.core.member import (
    CREDENTIAL_LIMIT_BYTES,
    METADATA_LIMIT_BYTES,
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
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    Update,
    VerdictUpdate,
)
from gossip.wire import cbor
from gossip.wire.layout import INCARNATION_LIMIT, INFOS_REMEMBERED, Code, DatagramError


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
    code, body = _body_out(message)
    return bytes([code]) + cbor.dumps(body)


def _body_out(message: Message) -> tuple[Code, list[Any]]:
    code: Code
    body: list[Any]
    match message:
        case JoinReq(source, token, auth, peer_count):
            code, body = Code.JOIN_REQ, [encode_node_info(source), token, auth, peer_count]
        case JoinNak(domain, reason, etag):
            code, body = Code.JOIN_NAK, [domain, reason, etag]
        case JoinRedirect(addresses, domain, reason, etag):
            code, body = Code.JOIN_REDIRECT, [[_address_out(address) for address in addresses], domain, reason, etag]
        case JoinAck(description, sample):
            code, body = Code.JOIN_ACK, [encode_node_info(description), [encode_node_info(info) for info in sample]]
        case Leave(source):
            code, body = Code.LEAVE, [encode_node_info(source)]
        case PingRequest():
            code, body = (
                Code.PING_REQUEST,
                [
                    message.source_id,
                    *_incarnation_out(message.source_incarnation),
                    message.target_id,
                    *_incarnation_out(message.target_incarnation),
                    message.seq,
                    message.ttl,
                    None if message.requester is None else _address_out(message.requester),
                    _payload_out(message.payload),
                ],
            )
        case PingResponse():
            code, body = (
                Code.PING_RESPONSE,
                [
                    message.source_id,
                    message.target_id,
                    *_incarnation_out(message.target_incarnation),
                    message.seq,
                    message.ttl,
                    message.nack,
                    _payload_out(message.payload),
                ],
            )
        case Broadcast(source):
            code, body = Code.BROADCAST, [encode_node_info(source)]
        case _:
            assert_never(message)
    return code, body


def _incarnation_out(incarnation: Incarnation) -> tuple[int, int]:
    if max(incarnation.generation, incarnation.number) > INCARNATION_LIMIT:
        raise DatagramError("an incarnation beyond what peers accept")
    return incarnation.generation, incarnation.number


def _address_out(address: Address) -> list[Any]:
    return [pack_address(address), address.port]


def _update_out(update: Update) -> list[Any]:
    match update:
        case AliveUpdate(info):
            return [int(Status.ALIVE), encode_node_info(info)]
        case VerdictUpdate(node_id, incarnation, status, accuser):
            return [int(status), node_id, *_incarnation_out(incarnation), accuser]
        case _:
            assert_never(update)


def _payload_out(payload: Payload) -> list[Any]:
    return [
        [_update_out(update) for update in payload.updates],
        payload.capacity,
        payload.peer_count,
        [encode_node_info(info) for info in payload.sample],
    ]


def _shortened(message: Message, size_bytes: int, limit_bytes: int) -> Message:
    """The message with one piece of riding gossip less: the last sample first (anti-entropy repeats), then news."""
    match message:
        case PingRequest(payload=Payload(sample=sample) as payload) if sample:
            return replace(message, payload=replace(payload, sample=sample[:-1]))
        case PingResponse(payload=Payload(sample=sample) as payload) if sample:
            return replace(message, payload=replace(payload, sample=sample[:-1]))
        case PingRequest(payload=Payload(updates=updates) as payload) if updates:
            return replace(message, payload=replace(payload, updates=updates[:-1]))
        case PingResponse(payload=Payload(updates=updates) as payload) if updates:
            return replace(message, payload=replace(payload, updates=updates[:-1]))
        case JoinAck(sample=sample) if sample:
            return replace(message, sample=sample[:-1])
        case JoinRedirect(addresses=addresses) if addresses:
            return replace(message, addresses=addresses[:-1])
        case _:
            raise DatagramError(f"{type(message).__name__} of {size_bytes} bytes does not fit into {limit_bytes}")
