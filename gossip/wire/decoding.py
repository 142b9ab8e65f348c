"""Bytes to messages: every datagram becomes a message or a `DatagramError`.

The CBOR is scanned before it is built (`cbor.py`); here each field is taken from the front of its array, one by one,
under its own limit, and an array that has fields left over is refused like one that lacks some.
"""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, TypeVar

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
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    Update,
    VerdictUpdate,
)
from gossip.wire import cbor
from gossip.wire.layout import (
    ADDRESSES_LIMIT,
    AUTH_LIMIT_BYTES,
    CAPACITY_LIMIT,
    DOMAIN_LIMIT_CHARACTERS,
    ERROR_CODE_LIMIT,
    ETAG_LIMIT_BYTES,
    INCARNATION_LIMIT,
    PACKED_ADDRESS_BYTES,
    PORT_LIMIT,
    SAMPLE_LIMIT,
    SEQUENCE_LIMIT,
    TTL_LIMIT,
    UPDATES_LIMIT,
    Code,
    DatagramError,
)

Element = TypeVar("Element")


def decode(datagram: bytes) -> Message:
    """The message that a datagram holds, or `DatagramError`."""
    if not datagram:
        raise DatagramError("empty")
    decoder = _DECODERS.get(datagram[0])
    if decoder is None:
        raise DatagramError(f"unknown message code {datagram[0]}")
    try:
        body = cbor.loads(datagram[1:])
    except cbor.CborError as error:
        raise DatagramError(f"body: {error}") from error
    return _whole(decoder, body)


@dataclass(slots=True)
class _Fields:
    """An array's values, taken from the front, each under its limit."""

    values: list[Any]
    taken: int = 0

    def next(self) -> Any:
        if self.taken >= len(self.values):
            raise DatagramError("a field is missing")
        self.taken += 1
        return self.values[self.taken - 1]

    def integer(self, limit: int) -> int:
        value = self.next()
        if type(value) is not int or not 0 <= value <= limit:  # a bool is an int to isinstance
            raise DatagramError(f"expected an integer up to {limit}")
        return value

    def octets(self, limit: int, least: int = 0) -> bytes:
        value = self.next()
        if not isinstance(value, bytes) or not least <= len(value) <= limit:
            raise DatagramError(f"expected {least} to {limit} bytes")
        return value

    def domain(self) -> str:
        value = self.next()
        if not isinstance(value, str) or len(value) > DOMAIN_LIMIT_CHARACTERS or not value.isprintable():
            raise DatagramError(f"expected up to {DOMAIN_LIMIT_CHARACTERS} printable characters")
        return value

    def boolean(self) -> bool:
        value = self.next()
        if not isinstance(value, bool):
            raise DatagramError("expected true or false")
        return value

    def node_id(self) -> NodeId:
        return NodeId(self.octets(NODE_ID_BYTES, least=NODE_ID_BYTES))

    def incarnation(self) -> Incarnation:
        return Incarnation(self.integer(INCARNATION_LIMIT), self.integer(INCARNATION_LIMIT))

    def nested(self, element: "Callable[[_Fields], Element]") -> Element:
        return _whole(element, self.next())

    def several(self, element: "Callable[[_Fields], Element]", limit: int) -> tuple[Element, ...]:
        values = self.next()
        if not isinstance(values, list) or len(values) > limit:
            raise DatagramError(f"expected an array of up to {limit}")
        return tuple(_whole(element, value) for value in values)


def _whole(element: Callable[[_Fields], Element], value: Any) -> Element:
    """What `element` reads from an array, of which nothing may be left."""
    if not isinstance(value, list):
        raise DatagramError("expected an array")
    fields = _Fields(value)
    result = element(fields)
    if fields.taken != len(value):
        raise DatagramError("a field too many")
    return result


def _address(fields: _Fields) -> Address:
    packed = fields.octets(max(PACKED_ADDRESS_BYTES))
    if len(packed) not in PACKED_ADDRESS_BYTES:
        raise DatagramError("an address has 4 or 16 bytes")
    return Address(str(ip_address(packed)), fields.integer(PORT_LIMIT))


def _info(fields: _Fields) -> NodeInfo:
    return NodeInfo(
        node_id=fields.node_id(),
        address=fields.nested(_address),
        incarnation=fields.incarnation(),
        capacity=fields.integer(CAPACITY_LIMIT),
        metadata=fields.octets(METADATA_LIMIT_BYTES),
        credential=fields.octets(CREDENTIAL_LIMIT_BYTES),
    )


def _update(fields: _Fields) -> Update:
    status = Status(fields.integer(max(Status)))
    if status is Status.ALIVE:
        return AliveUpdate(fields.nested(_info))
    return VerdictUpdate(fields.node_id(), fields.incarnation(), status, accuser=fields.node_id())


def _payload(fields: _Fields) -> Payload:
    return Payload(
        updates=fields.several(_update, UPDATES_LIMIT),
        capacity=fields.integer(CAPACITY_LIMIT),
        peer_count=fields.integer(CAPACITY_LIMIT),
        sample=fields.several(_info, SAMPLE_LIMIT),
    )


def _join_req(fields: _Fields) -> Message:
    return JoinReq(
        fields.nested(_info),
        token=fields.octets(ETAG_LIMIT_BYTES),
        auth=fields.octets(AUTH_LIMIT_BYTES),
        peer_count=fields.integer(CAPACITY_LIMIT),
    )


def _join_nak(fields: _Fields) -> Message:
    return JoinNak(fields.domain(), fields.integer(ERROR_CODE_LIMIT), fields.octets(ETAG_LIMIT_BYTES))


def _join_redirect(fields: _Fields) -> Message:
    return JoinRedirect(
        fields.several(_address, ADDRESSES_LIMIT),
        fields.domain(),
        fields.integer(ERROR_CODE_LIMIT),
        fields.octets(ETAG_LIMIT_BYTES),
    )


def _join_ack(fields: _Fields) -> Message:
    return JoinAck(fields.nested(_info), fields.several(_info, SAMPLE_LIMIT))


def _leave(fields: _Fields) -> Message:
    return Leave(fields.nested(_info))


def _ping_request(fields: _Fields) -> Message:
    source_id, source_incarnation = fields.node_id(), fields.incarnation()
    target_id, target_incarnation = fields.node_id(), fields.incarnation()
    return PingRequest(
        source_id,
        source_incarnation,
        target_id,
        target_incarnation,
        seq=fields.integer(SEQUENCE_LIMIT),
        ttl=fields.integer(TTL_LIMIT),
        requester=_requester(fields),
        payload=fields.nested(_payload),
    )


def _requester(fields: _Fields) -> Address | None:
    value = fields.next()
    return None if value is None else _whole(_address, value)


def _ping_response(fields: _Fields) -> Message:
    return PingResponse(
        source_id=fields.node_id(),
        target_id=fields.node_id(),
        target_incarnation=fields.incarnation(),
        seq=fields.integer(SEQUENCE_LIMIT),
        ttl=fields.integer(TTL_LIMIT),
        nack=fields.boolean(),
        payload=fields.nested(_payload),
    )


def _broadcast(fields: _Fields) -> Message:
    return Broadcast(fields.nested(_info))


_DECODERS: Final[dict[int, Callable[[_Fields], Message]]] = {
    Code.JOIN_REQ: _join_req,
    Code.JOIN_ACK: _join_ack,
    Code.JOIN_REDIRECT: _join_redirect,
    Code.JOIN_NAK: _join_nak,
    Code.PING_REQUEST: _ping_request,
    Code.PING_RESPONSE: _ping_response,
    Code.LEAVE: _leave,
    Code.BROADCAST: _broadcast,
}
