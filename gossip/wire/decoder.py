"""Bytes to messages: one code byte and one CBOR array in the order of the message's fields.

The RFC (named in docs/explanation/gossip.md) defines messages and their fields, but not their codes and encoding. These
are in docs/reference/gossip-protocol.md ("Messages", "Bodies").

cbor2 decodes a datagram to lists (`cbor.py` has the refused types). `msgspec.convert` checks them against the structs
below, which hold the type and the limit of each field, and the structs make the core's messages. Any host can send a
datagram, so `decode` either returns a message or raises `DatagramError`.

`encoder.py` is the opposite direction, `identity.py` decides whether a node really signed its info, and `seal.py`
whether the sender has the farm's key.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct, ValidationError, convert

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
    BODY_LIMIT_BYTES,
    NAME_LIMIT_CHARACTERS,
    QUERY_TIMEOUT_LIMIT_MS,
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
from gossip.wire.cbor import CborError, loads

INCARNATION_LIMIT: Final = (1 << 63) - 1
CAPACITY_LIMIT: Final = (1 << 32) - 1
TTL_LIMIT: Final = 255
PORT_LIMIT: Final = 65_535
DOMAIN_LIMIT_CHARACTERS: Final = 32
ETAG_LIMIT_BYTES: Final = 256
AUTH_LIMIT_BYTES: Final = 64
PROOF_LIMIT_BYTES: Final = 128
UPDATES_LIMIT: Final = 128
SAMPLE_LIMIT: Final = 64
ADDRESSES_LIMIT: Final = 64
USER_MESSAGES_LIMIT: Final = 32
INFO_LIMIT_BYTES: Final = 1024
PAYLOAD_LIMIT_BYTES: Final = 65_535
"""More than any datagram holds."""
INFOS_REMEMBERED: Final = 1024
"""The number of infos cached in each direction; the least recently used is dropped first."""
_PACKED_ADDRESS_BYTES: Final = (4, 16)
_QUIET_PAYLOAD_BYTES: Final = 32
"""Room for a payload without updates, sample and user messages."""
QUIET_PAYLOADS_REMEMBERED: Final = 256


class Code(IntEnum):
    """First byte of a datagram."""

    JOIN_REQ = 63
    JOIN_ACK = 64
    JOIN_REDIRECT = 65
    JOIN_NAK = 66
    PING_REQUEST = 67
    PING_RESPONSE = 68
    LEAVE = 69
    QUERY_REPLY = 70
    KEYRING_UPDATE = 71
    BROADCAST = 250


class DatagramError(Exception):
    """These bytes are not a message, or, while encoding, the message does not fit into a datagram."""


_NodeId = Annotated[NodeId, Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
_Number = Annotated[int, Meta(ge=0, le=INCARNATION_LIMIT)]
_Long = Annotated[int, Meta(ge=0)]
"""A number of up to 64 bits, the limit of CBOR for a number without a tag."""
_Count = Annotated[int, Meta(ge=0, le=CAPACITY_LIMIT)]
_Ttl = Annotated[int, Meta(ge=0, le=TTL_LIMIT)]
_Packed = Annotated[bytes, Meta(min_length=min(_PACKED_ADDRESS_BYTES), max_length=max(_PACKED_ADDRESS_BYTES))]
_Port = Annotated[int, Meta(ge=0, le=PORT_LIMIT)]
_Info = Annotated[bytes, Meta(max_length=INFO_LIMIT_BYTES)]
_Credential = Annotated[bytes, Meta(max_length=CREDENTIAL_LIMIT_BYTES)]
_Proof = Annotated[bytes, Meta(max_length=PROOF_LIMIT_BYTES)]
_Domain = Annotated[str, Meta(max_length=DOMAIN_LIMIT_CHARACTERS)]
_Etag = Annotated[bytes, Meta(max_length=ETAG_LIMIT_BYTES)]
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT_CHARACTERS)]
_Body = Annotated[bytes, Meta(max_length=BODY_LIMIT_BYTES)]
_Payload = Annotated[bytes, Meta(max_length=PAYLOAD_LIMIT_BYTES)]


class _Fields(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """An array with exactly these elements."""


class _Address(_Fields):
    packed: _Packed
    port: _Port

    def address(self) -> Address:
        return Address(_host(self.packed), self.port)


class _NodeInfo(_Fields):
    node_id: _NodeId
    packed: _Packed
    port: _Port
    generation: _Number
    number: _Number
    capacity: _Count
    metadata: Annotated[bytes, Meta(max_length=METADATA_LIMIT_BYTES)]
    credential: _Credential

    def info(self) -> NodeInfo:
        address = Address(_host(self.packed), self.port)
        incarnation = _incarnation(self.generation, self.number)
        return NodeInfo(self.node_id, address, incarnation, self.capacity, self.metadata, self.credential)


class _Alive(_Fields, tag=int(Status.ALIVE)):
    info: _Info

    def update(self) -> Update:
        return _alive(self.info)


class _Verdict(_Fields):
    node_id: _NodeId
    generation: _Number
    number: _Number

    def incarnation(self) -> Incarnation:
        return _incarnation(self.generation, self.number)


class _Suspect(_Verdict, tag=int(Status.SUSPECT)):
    status: ClassVar[Status] = Status.SUSPECT
    accuser: _NodeId

    def update(self) -> Update:
        return VerdictUpdate(self.node_id, self.incarnation(), self.status, self.accuser)


class _Dead(_Suspect, tag=int(Status.DEAD)):
    status: ClassVar[Status] = Status.DEAD


class _Left(_Verdict, tag=int(Status.LEFT)):
    proof: _Credential

    def update(self) -> Update:
        node_id = self.node_id
        return VerdictUpdate(node_id, self.incarnation(), Status.LEFT, node_id, self.proof)


class _UserMessageId(_Fields):
    time: _Number
    origin: _NodeId
    generation: _Number

    def message_id(self) -> UserMessageId:
        return UserMessageId(self.time, self.origin, self.generation)


class _UserEvent(_Fields, tag=0):
    message_id: _UserMessageId
    name: _Name
    body: _Body

    def user_message(self) -> UserMessage:
        return UserEvent(self.message_id.message_id(), _printable(self.name), self.body)


class _Query(_Fields, tag=1):
    message_id: _UserMessageId
    name: _Name
    body: _Body
    address: _Address
    timeout_ms: Annotated[int, Meta(ge=0, le=QUERY_TIMEOUT_LIMIT_MS)]

    def user_message(self) -> UserMessage:
        message_id, name = self.message_id.message_id(), _printable(self.name)
        return Query(message_id, name, self.body, self.address.address(), self.timeout_ms)


class _PayloadFields(_Fields):
    updates: Annotated[tuple[_Alive | _Suspect | _Dead | _Left, ...], Meta(max_length=UPDATES_LIMIT)]
    capacity: _Count
    peer_count: _Count
    sample: Annotated[tuple[_Info, ...], Meta(max_length=SAMPLE_LIMIT)]
    user_messages: Annotated[tuple[_UserEvent | _Query, ...], Meta(max_length=USER_MESSAGES_LIMIT)]
    keys_digest: Annotated[bytes, Meta(max_length=DIGEST_BYTES)]


class _DatedKey(_Fields):
    since: _Long
    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    retired: bool

    def __repr__(self) -> str:
        """Return a text without the key: the repr of a Struct shows its fields."""
        return f"_DatedKey({self.since}, retired={self.retired})"


class _Keyring(_Fields):
    """A keyring. Its times are not bounded here, because earlier versions stored times out of range.

    `keyring` and `stored` check the times.
    """

    used_at: _Long
    primary: Annotated[int, Meta(ge=0, lt=KEYS_LIMIT)]
    keys: Annotated[tuple[_DatedKey, ...], Meta(max_length=KEYS_LIMIT)]
    era: Annotated[int, Meta(ge=0, lt=ERA_LIMIT)] = 0

    def keyring(self) -> Keyring:
        found = self._found()
        if list(found.keys) != sorted(found.keys):
            raise DatagramError("expected keys in their order")
        return _sound(found)

    def stored(self) -> Keyring:
        """Return a keyring of this node's file, with times out of range repaired."""
        return _sound(self._found().repaired())

    def _found(self) -> Keyring:
        keys = tuple([DatedKey(each.since, each.key, each.retired) for each in self.keys])
        if self.primary >= len(keys):
            raise DatagramError("a keyring without its primary key")
        return Keyring(keys, keys[self.primary].key, self.used_at, self.era)


def _sound(keyring: Keyring) -> Keyring:
    if not keyring.is_sound():
        raise DatagramError("not a sound keyring")
    return keyring


class _JoinReq(_Fields):
    source: _Info
    token: _Etag
    auth: Annotated[bytes, Meta(max_length=AUTH_LIMIT_BYTES)]
    peer_count: _Count
    clock: _Number

    def message(self) -> Message:
        return JoinReq(_info(self.source), self.token, self.auth, self.peer_count, self.clock)


class _JoinAck(_Fields):
    description: _Info
    sample: Annotated[tuple[_Info, ...], Meta(max_length=SAMPLE_LIMIT)]
    clock: _Number
    receiver_generation: _Number

    def message(self) -> Message:
        return JoinAck(_info(self.description), _infos(self.sample), self.clock, self.receiver_generation)


class _JoinRedirect(_Fields):
    addresses: Annotated[tuple[_Address, ...], Meta(max_length=ADDRESSES_LIMIT)]
    domain: _Domain
    code: _Long
    etag: _Etag
    receiver_generation: _Number

    def message(self) -> Message:
        addresses = tuple([each.address() for each in self.addresses])
        return JoinRedirect(addresses, _printable(self.domain), self.code, self.etag, self.receiver_generation)


class _JoinNak(_Fields):
    domain: _Domain
    code: _Long
    etag: _Etag
    receiver_generation: _Number

    def message(self) -> Message:
        return JoinNak(_printable(self.domain), self.code, self.etag, self.receiver_generation)


class _PingRequest(_Fields):
    source_id: _NodeId
    source_generation: _Number
    source_number: _Number
    target_id: _NodeId
    target_generation: _Number
    target_number: _Number
    seq: _Long
    ttl: _Ttl
    requester: _Address | None
    payload: _Payload

    def message(self) -> Message:
        return PingRequest(
            self.source_id,
            _incarnation(self.source_generation, self.source_number),
            self.target_id,
            _incarnation(self.target_generation, self.target_number),
            self.seq,
            self.ttl,
            None if self.requester is None else self.requester.address(),
            _payload(self.payload),
        )


class _PingResponse(_Fields):
    source_id: _NodeId
    target_id: _NodeId
    target_generation: _Number
    target_number: _Number
    seq: _Long
    ttl: _Ttl
    nack: bool
    proof: _Proof
    payload: _Payload

    def message(self) -> Message:
        return PingResponse(
            self.source_id,
            self.target_id,
            _incarnation(self.target_generation, self.target_number),
            self.seq,
            self.ttl,
            self.nack,
            _payload(self.payload),
            self.proof,
        )


class _Leave(_Fields):
    source: _Info

    def message(self) -> Message:
        return Leave(_info(self.source))


class _QueryReply(_Fields):
    query_id: _UserMessageId
    responder: _NodeId
    body: _Body

    def message(self) -> Message:
        return QueryReply(self.query_id.message_id(), self.responder, self.body)


class _KeyringUpdate(_Fields):
    keyring: _Keyring
    sender: _NodeId
    credential: _Credential

    def message(self) -> Message:
        return KeyringUpdate(self.keyring.keyring(), self.sender, self.credential)


class _Broadcast(_Fields):
    source: _Info

    def message(self) -> Message:
        return Broadcast(_info(self.source))


_BODIES: Final = {
    Code.JOIN_REQ: _JoinReq,
    Code.JOIN_ACK: _JoinAck,
    Code.JOIN_REDIRECT: _JoinRedirect,
    Code.JOIN_NAK: _JoinNak,
    Code.PING_REQUEST: _PingRequest,
    Code.PING_RESPONSE: _PingResponse,
    Code.LEAVE: _Leave,
    Code.QUERY_REPLY: _QueryReply,
    Code.KEYRING_UPDATE: _KeyringUpdate,
    Code.BROADCAST: _Broadcast,
}
_BYTES: Final = (bytes,)
"""Prevents `convert` from accepting base64 text instead of bytes."""


def decode(datagram: bytes) -> Message:
    """Return the message in a datagram, or raise DatagramError."""
    body = _BODIES.get(datagram[0]) if datagram else None  # type: ignore[call-overload]
    if body is None:
        raise DatagramError(f"unknown message code {datagram[:1].hex()}")
    return _converted(datagram[1:], body).message()  # type: ignore[no-any-return]


def decode_stored_keyring(encoded: bytes) -> Keyring:
    """Return the keyring in a stored KeyringUpdate, with times out of range repaired; raise only DatagramError."""
    if encoded[:1] != bytes([Code.KEYRING_UPDATE]):
        raise DatagramError("not a keyring")
    keyring: _Keyring = _converted(encoded[1:], _KeyringUpdate).keyring
    return keyring.stored()


def decode_node_info(encoded: bytes) -> NodeInfo:
    """Return a node info from bytes outside a message; raise only DatagramError. `identity` checks the signature."""
    if len(encoded) > INFO_LIMIT_BYTES:
        raise DatagramError(f"a node info has at most {INFO_LIMIT_BYTES} bytes")
    return _info(encoded)


def _converted(encoded: bytes, fields: Any) -> Any:
    try:
        return convert(loads(encoded), fields, builtin_types=_BYTES)
    except (CborError, ValidationError) as error:
        raise DatagramError(f"not as expected: {error}") from error


@lru_cache(maxsize=INFOS_REMEMBERED)
def _info(encoded: bytes) -> NodeInfo:
    """Return the info of these bytes. Most received infos repeat."""
    info: NodeInfo = _converted(encoded, _NodeInfo).info()
    return info


@lru_cache(maxsize=INFOS_REMEMBERED)
def _alive(encoded: bytes) -> AliveUpdate:
    return AliveUpdate(_info(encoded))


def _infos(encoded: Sequence[bytes]) -> tuple[NodeInfo, ...]:
    return tuple([_info(each) for each in encoded])


def _payload(encoded: bytes) -> Payload:
    """Return the payload of these bytes; without events, members repeat the same few payloads."""
    return _quiet_payload(encoded) if len(encoded) <= _QUIET_PAYLOAD_BYTES else _new_payload(encoded)


def _new_payload(encoded: bytes) -> Payload:
    fields: _PayloadFields = _converted(encoded, _PayloadFields)
    return Payload(
        tuple([each.update() for each in fields.updates]),
        fields.capacity,
        fields.peer_count,
        _infos(fields.sample),
        tuple([each.user_message() for each in fields.user_messages]),
        fields.keys_digest,
    )


_quiet_payload: Final = lru_cache(maxsize=QUIET_PAYLOADS_REMEMBERED)(_new_payload)


@lru_cache(maxsize=INFOS_REMEMBERED)
def _incarnation(generation: int, number: int) -> Incarnation:
    """Return one shared object per incarnation: most members of a large group still have the first incarnation."""
    return Incarnation(generation, number)


def _host(packed: bytes) -> str:
    if len(packed) not in _PACKED_ADDRESS_BYTES:
        raise DatagramError("an address has 4 or 16 bytes")
    return str(ip_address(packed))


def _printable(text: str) -> str:
    if not text.isprintable():
        raise DatagramError("expected printable characters")
    return text


PING_REQUEST_FIELDS: Final = len(_PingRequest.__struct_fields__)
PING_RESPONSE_FIELDS: Final = len(_PingResponse.__struct_fields__)
PAYLOAD_FIELDS: Final = len(_PayloadFields.__struct_fields__)
