"""Messages to bytes and back: one code byte and one CBOR array in the order of the message's fields.

The RFC (named in docs/explanation/gossip.md) defines messages and their fields, but not their codes and encoding. These
are in docs/reference/gossip-protocol.md ("Messages", "Bodies").

    fields  ──▶ `_BODIES`: message, type and limit of each field on the wire, conversions to the core's types
    decode  bytes ──cbor2──▶ lists ──msgspec.convert, by the types──▶ values ──▶ message
    encode  message ──▶ values ──cbor2──▶ bytes; frequent messages (pings) piece by piece

`cbor.py` has the refused types. Any host can send a datagram, so `decode` either returns a message or raises
`DatagramError`. The encoder drops piggybacked gossip (samples, user messages, updates, redirect addresses) if a
datagram would be too large. A message that still does not fit raises `DatagramError`. The core budgets its gossip too,
but only the wire has the true size of credentials and addresses. A datagram above the limit would be fragmented, and
lost with any of its fragments.

`identity.py` decides whether a node really signed its info, and `seal.py` whether the sender has the farm's key.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar, Final, NamedTuple, assert_never

from msgspec import Meta, Struct, ValidationError, convert, defstruct, structs
from msgspec.structs import replace

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
from gossip.wire.cbor import FALSE, NULL, TRUE, CborError, array_head, dumps, loads, octets, unsigned

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
    """Bytes that are not a message, or a message that cannot be encoded or does not fit into a datagram."""


_NodeId = Annotated[NodeId, Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
_Number = Annotated[int, Meta(ge=0, le=INCARNATION_LIMIT)]
_Long = Annotated[int, Meta(ge=0)]
"""A number of up to 64 bits, the limit of CBOR for a number without a tag."""
_Count = Annotated[int, Meta(ge=0, le=CAPACITY_LIMIT)]
_Ttl = Annotated[int, Meta(ge=0, le=TTL_LIMIT)]
_Packed = Annotated[bytes, Meta(min_length=min(_PACKED_ADDRESS_BYTES), max_length=max(_PACKED_ADDRESS_BYTES))]
_Port = Annotated[int, Meta(ge=0, le=PORT_LIMIT)]
_InfoBytes = Annotated[bytes, Meta(max_length=INFO_LIMIT_BYTES)]
_Credential = Annotated[bytes, Meta(max_length=CREDENTIAL_LIMIT_BYTES)]
_Metadata = Annotated[bytes, Meta(max_length=METADATA_LIMIT_BYTES)]
_Sample = Annotated[tuple[_InfoBytes, ...], Meta(max_length=SAMPLE_LIMIT)]
_Auth = Annotated[bytes, Meta(max_length=AUTH_LIMIT_BYTES)]
_Proof = Annotated[bytes, Meta(max_length=PROOF_LIMIT_BYTES)]
_Etag = Annotated[bytes, Meta(max_length=ETAG_LIMIT_BYTES)]
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT_CHARACTERS)]
_Body = Annotated[bytes, Meta(max_length=BODY_LIMIT_BYTES)]
_PayloadBytes = Annotated[bytes, Meta(max_length=PAYLOAD_LIMIT_BYTES)]
_Address = tuple[_Packed, _Port]
_MessageId = tuple[_Number, _NodeId, _Number]
_BYTES: Final = (bytes,)
"""Prevents `convert` from accepting base64 text instead of bytes."""


class _Fields(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """An array with exactly these elements."""


class _Alive(_Fields, tag=int(Status.ALIVE)):
    info: _InfoBytes

    def update(self) -> Update:
        return AliveUpdate(_info(self.info))


class _Suspect(_Fields, tag=int(Status.SUSPECT)):
    status: ClassVar[Status] = Status.SUSPECT
    node_id: _NodeId
    generation: _Number
    number: _Number
    accuser: _NodeId

    def update(self) -> Update:
        return VerdictUpdate(self.node_id, _incarnation(self.generation, self.number), self.status, self.accuser)


class _Dead(_Suspect, tag=int(Status.DEAD)):
    status: ClassVar[Status] = Status.DEAD


class _Left(_Fields, tag=int(Status.LEFT)):
    node_id: _NodeId
    generation: _Number
    number: _Number
    proof: _Credential

    def update(self) -> Update:
        incarnation = _incarnation(self.generation, self.number)
        return VerdictUpdate(self.node_id, incarnation, Status.LEFT, self.node_id, self.proof)


class _UserEvent(_Fields, tag=0):
    message_id: _MessageId
    name: _Name
    body: _Body

    def user_message(self) -> UserMessage:
        return UserEvent(UserMessageId(*self.message_id), _printable(self.name), self.body)


class _Query(_UserEvent, tag=1):
    address: _Address
    timeout_ms: Annotated[int, Meta(ge=0, le=QUERY_TIMEOUT_LIMIT_MS)]

    def user_message(self) -> UserMessage:
        message_id, name = UserMessageId(*self.message_id), _printable(self.name)
        return Query(message_id, name, self.body, _address_in(self.address), self.timeout_ms)


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


class _NodeInfo(_Fields):
    node_id: _NodeId
    packed: _Packed
    port: _Port
    generation: _Number
    number: _Number
    capacity: _Count
    metadata: _Metadata
    credential: _Credential

    def info(self) -> NodeInfo:
        address, incarnation = _address_in((self.packed, self.port)), _incarnation(self.generation, self.number)
        return NodeInfo(self.node_id, address, incarnation, self.capacity, self.metadata, self.credential)


class _Payload(_Fields):
    updates: Annotated[tuple[_Alive | _Suspect | _Dead | _Left, ...], Meta(max_length=UPDATES_LIMIT)]
    capacity: _Count
    peer_count: _Count
    sample: _Sample
    user_messages: Annotated[tuple[_UserEvent | _Query, ...], Meta(max_length=USER_MESSAGES_LIMIT)]
    keys_digest: Annotated[bytes, Meta(max_length=DIGEST_BYTES)]

    def payload(self) -> Payload:
        return Payload(
            tuple([each.update() for each in self.updates]),
            self.capacity,
            self.peer_count,
            _infos(self.sample),
            tuple([each.user_message() for each in self.user_messages]),
            self.keys_digest,
        )


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
    payload: _PayloadBytes

    def message(self) -> Message:
        return PingRequest(
            self.source_id,
            _incarnation(self.source_generation, self.source_number),
            self.target_id,
            _incarnation(self.target_generation, self.target_number),
            self.seq,
            self.ttl,
            None if self.requester is None else _address_in(self.requester),
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
    payload: _PayloadBytes

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


class _Field(NamedTuple):
    """A field with different types on the wire and in the core."""

    wire: Any
    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]


class _Message:
    """The fields of a message, in the same order on the wire and in the core."""

    def __init__(self, message: type[Message], *fields: Any) -> None:
        types = [getattr(each, "wire", each) for each in fields]
        named = zip(message.__struct_fields__, types, strict=True)
        self.wire: Any = defstruct(f"_{message.__name__}", list(named), bases=(_Fields,), gc=False)
        self.message = message
        self._converted = [(at, each) for at, each in enumerate(fields) if isinstance(each, _Field)]

    def decode(self, fields: Struct) -> Message:
        values = list(structs.astuple(fields))
        for at, field in self._converted:
            values[at] = field.decode(values[at])
        return self.message(*values)

    def encode(self, message: Message) -> bytes:
        values = list(structs.astuple(message))
        for at, field in self._converted:
            values[at] = field.encode(values[at])
        return dumps(values)


def decode(datagram: bytes) -> Message:
    """Return the message in a datagram, or raise DatagramError."""
    found = _DECODERS.get(datagram[0]) if datagram else None
    if found is None:
        raise DatagramError(f"unknown message code {datagram[:1].hex()}")
    fields, message = found
    return message(_converted(datagram[1:], fields))


def decode_stored_keyring(encoded: bytes) -> Keyring:
    """Return the keyring in a stored KeyringUpdate, with times out of range repaired; raise only DatagramError."""
    if encoded[:1] != bytes([Code.KEYRING_UPDATE]):
        raise DatagramError("not a keyring")
    keyring: _Keyring = _converted(encoded[1:], _BODIES[Code.KEYRING_UPDATE].wire).keyring
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


def _infos(encoded: Sequence[bytes]) -> tuple[NodeInfo, ...]:
    return tuple([_info(each) for each in encoded])


def _payload(encoded: bytes) -> Payload:
    """Return the payload of these bytes; without events, members repeat the same few payloads."""
    return _quiet_payload(encoded) if len(encoded) <= _QUIET_PAYLOAD_BYTES else _new_payload(encoded)


def _new_payload(encoded: bytes) -> Payload:
    payload: Payload = _converted(encoded, _Payload).payload()
    return payload


_quiet_payload: Final = lru_cache(maxsize=QUIET_PAYLOADS_REMEMBERED)(_new_payload)


@lru_cache(maxsize=INFOS_REMEMBERED)
def _incarnation(generation: int, number: int) -> Incarnation:
    """Return one shared object per incarnation: most members of a large group still have the first incarnation."""
    return Incarnation(generation, number)


_shared: Final = lru_cache(maxsize=INFOS_REMEMBERED)(int)
"""Return one shared object per port: most members use the default port."""


def _address_in(fields: tuple[bytes, int]) -> Address:
    packed, port = fields
    if len(packed) not in _PACKED_ADDRESS_BYTES:
        raise DatagramError("an address has 4 or 16 bytes")
    return Address(str(ip_address(packed)), _shared(port))


def _printable(text: str) -> str:
    if not text.isprintable():
        raise DatagramError("expected printable characters")
    return text


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
    code = _CODES[type(message)]
    return bytes([code]) + _BODIES[code].encode(message)


def _ping_request_out(message: PingRequest) -> bytes:
    return b"".join(
        (
            _REQUEST,
            message.source_id,
            _incarnation_bytes(message.source_incarnation),
            _NODE_ID_HEAD,
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
            _NODE_ID_HEAD,
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
        _PAYLOAD_HEAD,
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
            return dumps((0, structs.astuple(message_id), name, body))
        case Query(message_id, name, body, address, timeout_ms):
            return dumps((1, structs.astuple(message_id), name, body, _address_out(address), timeout_ms))
        case _:
            assert_never(user_message)


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


_NODE_ID_HEAD: Final = octets(bytes(NODE_ID_BYTES))[:1]
"""The head of a node id; the id itself follows."""
_REQUEST: Final = bytes([Code.PING_REQUEST]) + array_head(len(_PingRequest.__struct_fields__)) + _NODE_ID_HEAD
_RESPONSE: Final = bytes([Code.PING_RESPONSE]) + array_head(len(_PingResponse.__struct_fields__)) + _NODE_ID_HEAD
_PAYLOAD_HEAD: Final = array_head(len(_Payload.__struct_fields__))
_ALIVE: Final = array_head(2) + unsigned(Status.ALIVE)
_SOURCE: Final = _Field(_InfoBytes, _info, encode_node_info)
_SAMPLED: Final = _Field(_Sample, _infos, lambda infos: [encode_node_info(info) for info in infos])
_ADDRESSES: Final = _Field(
    Annotated[tuple[_Address, ...], Meta(max_length=ADDRESSES_LIMIT)],
    lambda found: tuple([_address_in(each) for each in found]),
    lambda addresses: [_address_out(each) for each in addresses],
)
_DOMAIN: Final = _Field(Annotated[str, Meta(max_length=DOMAIN_LIMIT_CHARACTERS)], _printable, str)
_QUERY_ID: Final = _Field(_MessageId, lambda found: UserMessageId(*found), structs.astuple)
_BODIES: Final[dict[int, _Message]] = {
    Code.JOIN_REQ: _Message(JoinReq, _SOURCE, _Etag, _Auth, _Count, _Number),
    Code.JOIN_ACK: _Message(JoinAck, _SOURCE, _SAMPLED, _Number, _Number),
    Code.JOIN_REDIRECT: _Message(JoinRedirect, _ADDRESSES, _DOMAIN, _Long, _Etag, _Number),
    Code.JOIN_NAK: _Message(JoinNak, _DOMAIN, _Long, _Etag, _Number),
    Code.LEAVE: _Message(Leave, _SOURCE),
    Code.QUERY_REPLY: _Message(QueryReply, _QUERY_ID, _NodeId, _Body),
    Code.KEYRING_UPDATE: _Message(
        KeyringUpdate, _Field(_Keyring, _Keyring.keyring, _keyring_out), _NodeId, _Credential
    ),
    Code.BROADCAST: _Message(Broadcast, _SOURCE),
}
"""The bodies of all messages except pings."""
_CODES: Final = {body.message: code for code, body in _BODIES.items()}
_DECODERS: Final[dict[int, tuple[Any, Callable[[Any], Message]]]] = {
    Code.PING_REQUEST: (_PingRequest, _PingRequest.message),
    Code.PING_RESPONSE: (_PingResponse, _PingResponse.message),
    **{code: (body.wire, body.decode) for code, body in _BODIES.items()},
}
"""The types of the fields on the wire, and the function that makes the message."""
