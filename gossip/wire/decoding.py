"""Bytes to messages: every datagram becomes a message or a `DatagramError`.

The CBOR is scanned before it is built (`cbor.py`); here each array must have exactly its fields, and each field is
taken under its own limit.
"""

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, TypeVar

from gossip.core.keychain import DIGEST_BYTES, KEY_BYTES, KEYS_LIMIT, ChainKey, KeyChain
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
    KeyNews,
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    Query,
    QueryReply,
    Rumour,
    RumourId,
    Update,
    UserBroadcast,
    VerdictUpdate,
)
from gossip.core.rumours import BODY_LIMIT_BYTES, NAME_LIMIT_CHARACTERS, QUERY_TIMEOUT_LIMIT_MS
from gossip.wire import cbor
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


def decode(datagram: bytes) -> Message:
    """The message that a datagram holds, or `DatagramError`."""
    if not datagram:
        raise DatagramError("empty")
    decoder = _DECODERS.get(datagram[0])
    if decoder is None:
        raise DatagramError(f"unknown message code {datagram[0]}")
    return decoder(_loaded(datagram[1:]))


def _loaded(data: bytes) -> Any:
    try:
        return cbor.loads(data)
    except cbor.CborError as error:
        raise DatagramError(f"body: {error}") from error


def _fields(value: Any, count: int) -> list[Any]:
    """The elements of an array that must have exactly so many."""
    if not isinstance(value, list) or len(value) != count:
        raise DatagramError(f"expected an array of {count}")
    return value


def _several(value: Any, element: Callable[[Any], Element], limit: int) -> tuple[Element, ...]:
    if not isinstance(value, list) or len(value) > limit:
        raise DatagramError(f"expected an array of up to {limit}")
    return tuple([element(each) for each in value]) if value else ()


def _integer(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:  # a bool is an int to isinstance
        raise DatagramError(f"expected an integer up to {limit}")
    return value


def _octets(value: Any, limit: int, least: int = 0) -> bytes:
    if not isinstance(value, bytes) or not least <= len(value) <= limit:
        raise DatagramError(f"expected {least} to {limit} bytes")
    return value


def _domain(value: Any) -> str:
    if not isinstance(value, str) or len(value) > DOMAIN_LIMIT_CHARACTERS or not value.isprintable():
        raise DatagramError(f"expected up to {DOMAIN_LIMIT_CHARACTERS} printable characters")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DatagramError("expected true or false")
    return value


def _node_id(value: Any) -> NodeId:
    return NodeId(_octets(value, NODE_ID_BYTES, least=NODE_ID_BYTES))


def _incarnation(generation: Any, number: Any) -> Incarnation:
    return Incarnation(_integer(generation, INCARNATION_LIMIT), _integer(number, INCARNATION_LIMIT))


def _address(value: Any) -> Address:
    packed, port = _fields(value, 2)
    return _endpoint(packed, port)


def _endpoint(packed: Any, port: Any) -> Address:
    if not isinstance(packed, bytes) or len(packed) not in PACKED_ADDRESS_BYTES:
        raise DatagramError("an address has 4 or 16 bytes")
    return Address(_host(packed), _integer(port, PORT_LIMIT))


@lru_cache(maxsize=INFOS_REMEMBERED)
def _host(packed: bytes) -> str:
    return str(ip_address(packed))


def _info(value: Any) -> NodeInfo:
    return _info_in(_octets(value, INFO_LIMIT_BYTES))


@lru_cache(maxsize=INFOS_REMEMBERED)
def _info_in(encoded: bytes) -> NodeInfo:
    """The info of these bytes: one spelling is one info, and most of what is told was told before."""
    node_id, packed, port, generation, number, capacity, metadata, credential = _fields(_loaded(encoded), 8)
    return NodeInfo(
        node_id=_node_id(node_id),
        address=_endpoint(packed, port),
        incarnation=_incarnation(generation, number),
        capacity=_integer(capacity, CAPACITY_LIMIT),
        metadata=_octets(metadata, METADATA_LIMIT_BYTES),
        credential=_octets(credential, CREDENTIAL_LIMIT_BYTES),
    )


def _update(value: Any) -> Update:
    if not isinstance(value, list) or not value:
        raise DatagramError("expected an update")
    status = _STATUSES[_integer(value[0], len(_STATUSES) - 1)]
    if status is Status.ALIVE:
        return AliveUpdate(_info(_fields(value, 2)[1]))
    _, node_id, generation, number, accuser = _fields(value, 5)
    return VerdictUpdate(_node_id(node_id), _incarnation(generation, number), status, accuser=_node_id(accuser))


def _payload(value: Any) -> Payload:
    updates, capacity, peer_count, sample, rumours, digest = _fields(value, 6)
    return Payload(
        updates=_several(updates, _update, UPDATES_LIMIT),
        capacity=_integer(capacity, CAPACITY_LIMIT),
        peer_count=_integer(peer_count, CAPACITY_LIMIT),
        sample=_several(sample, _info, SAMPLE_LIMIT),
        rumours=_several(rumours, _rumour, RUMOURS_LIMIT),
        keys_digest=_octets(digest, DIGEST_BYTES),
    )


def _rumour_id(value: Any) -> RumourId:
    time, origin, generation = _fields(value, 3)
    return RumourId(_integer(time, INCARNATION_LIMIT), _node_id(origin), _integer(generation, INCARNATION_LIMIT))


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= NAME_LIMIT_CHARACTERS or not value.isprintable():
        raise DatagramError(f"expected 1 to {NAME_LIMIT_CHARACTERS} printable characters")
    return value


def _rumour(value: Any) -> Rumour:
    if not isinstance(value, list) or not value:
        raise DatagramError("expected a rumour")
    if _integer(value[0], 1) == 0:
        _, rumour_id, name, body = _fields(value, 4)
        return UserBroadcast(_rumour_id(rumour_id), _name(name), _octets(body, BODY_LIMIT_BYTES))
    _, rumour_id, name, body, address, timeout_ms = _fields(value, 6)
    return Query(
        _rumour_id(rumour_id),
        _name(name),
        _octets(body, BODY_LIMIT_BYTES),
        _address(address),
        _integer(timeout_ms, QUERY_TIMEOUT_LIMIT_MS),
    )


def _query_reply(body: Any) -> Message:
    query_id, responder, answer = _fields(body, 3)
    return QueryReply(_rumour_id(query_id), _node_id(responder), _octets(answer, BODY_LIMIT_BYTES))


def _chain_key(value: Any) -> ChainKey:
    since, key, retired = _fields(value, 3)
    return ChainKey(
        _integer(since, INCARNATION_LIMIT), _octets(key, KEY_BYTES, least=KEY_BYTES), retired=_boolean(retired)
    )


def _key_news(body: Any) -> Message:
    used_at, floor, primary, keys = _fields(body, 4)
    chain_keys = _several(keys, _chain_key, KEYS_LIMIT)
    if list(chain_keys) != sorted(chain_keys) or not chain_keys:
        raise DatagramError("expected keys in their order")
    sealing = chain_keys[_integer(primary, len(chain_keys) - 1)].key
    chain = KeyChain(chain_keys, sealing, _integer(used_at, INCARNATION_LIMIT), _integer(floor, INCARNATION_LIMIT))
    if not chain.is_sound():
        raise DatagramError("no key chain")
    return KeyNews(chain)


def _join_req(body: Any) -> Message:
    source, token, auth, peer_count, clock = _fields(body, 5)
    return JoinReq(
        _info(source),
        token=_octets(token, ETAG_LIMIT_BYTES),
        auth=_octets(auth, AUTH_LIMIT_BYTES),
        peer_count=_integer(peer_count, CAPACITY_LIMIT),
        clock=_integer(clock, INCARNATION_LIMIT),
    )


def _join_nak(body: Any) -> Message:
    domain, code, etag = _fields(body, 3)
    return JoinNak(_domain(domain), _integer(code, ERROR_CODE_LIMIT), _octets(etag, ETAG_LIMIT_BYTES))


def _join_redirect(body: Any) -> Message:
    addresses, domain, code, etag = _fields(body, 4)
    return JoinRedirect(
        _several(addresses, _address, ADDRESSES_LIMIT),
        _domain(domain),
        _integer(code, ERROR_CODE_LIMIT),
        _octets(etag, ETAG_LIMIT_BYTES),
    )


def _join_ack(body: Any) -> Message:
    description, sample, clock = _fields(body, 3)
    return JoinAck(_info(description), _several(sample, _info, SAMPLE_LIMIT), clock=_integer(clock, INCARNATION_LIMIT))


def _leave(body: Any) -> Message:
    return Leave(_info(_fields(body, 1)[0]))


def _ping_request(body: Any) -> Message:
    source_id, generation, number, target_id, target_generation, target_number, *rest = _fields(body, 10)
    seq, ttl, requester, payload = rest
    return PingRequest(
        _node_id(source_id),
        _incarnation(generation, number),
        _node_id(target_id),
        _incarnation(target_generation, target_number),
        seq=_integer(seq, SEQUENCE_LIMIT),
        ttl=_integer(ttl, TTL_LIMIT),
        requester=None if requester is None else _address(requester),
        payload=_payload(payload),
    )


def _ping_response(body: Any) -> Message:
    source_id, target_id, generation, number, seq, ttl, nack, payload = _fields(body, 8)
    return PingResponse(
        source_id=_node_id(source_id),
        target_id=_node_id(target_id),
        target_incarnation=_incarnation(generation, number),
        seq=_integer(seq, SEQUENCE_LIMIT),
        ttl=_integer(ttl, TTL_LIMIT),
        nack=_boolean(nack),
        payload=_payload(payload),
    )


def _broadcast(body: Any) -> Message:
    return Broadcast(_info(_fields(body, 1)[0]))


_DECODERS: Final[dict[int, Callable[[Any], Message]]] = {
    Code.JOIN_REQ: _join_req,
    Code.JOIN_ACK: _join_ack,
    Code.JOIN_REDIRECT: _join_redirect,
    Code.JOIN_NAK: _join_nak,
    Code.PING_REQUEST: _ping_request,
    Code.PING_RESPONSE: _ping_response,
    Code.LEAVE: _leave,
    Code.QUERY_REPLY: _query_reply,
    Code.KEY_NEWS: _key_news,
    Code.BROADCAST: _broadcast,
}
