"""I2CP messages ⇄ bytes, and the frames that carry them.

    stream:  2a, once, from the client │ frame │ frame │ …
    frame:   body's length 4 │ type 1 │ body

`FrameReader` is fed with whatever arrives and gives whole frames back. A length is judged before anything is kept for
it, so a peer can make this side hold one frame of at most 128 KiB, and no more. `decode` turns a frame into a message;
`I2cpError` is the only error of both, and after it the stream is of no use any more.

Bytes behind the last field of a router's message are passed over: the protocol grows by appending fields, and a router
that was updated must not cut a farm off. What a client sends is read to its last byte.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, assert_never

from bridge.wire.i2p.field_reader import FieldReader
from bridge.wire.i2p.i2cp_messages import (
    CreateLeaseSet2,
    CreateSession,
    DestroySession,
    Disconnect,
    GetDate,
    HostLookup,
    HostReply,
    I2cpError,
    Message,
    RequestVariableLeaseSet,
    SessionStatus,
    SetDate,
    Unhandled,
)
from bridge.wire.i2p.i2cp_session import SessionConfig
from bridge.wire.i2p.meta_lease_set import STORE_TYPE, LeaseSetError
from bridge.wire.i2p.meta_lease_set import decode as decode_structure
from bridge.wire.i2p.structures import HASH_BYTES, I2pError, encode_mapping

PROTOCOL_BYTE: Final = b"\x2a"
FRAME_LIMIT_BYTES: Final = 131_072
"""What a Java router sends at most; i2pd keeps to half of it."""
HEADER_BYTES: Final = 5


class Kind(IntEnum):
    """The types of the messages that a farm has a use for."""

    CREATE_SESSION = 1
    DESTROY_SESSION = 3
    SESSION_STATUS = 20
    DISCONNECT = 30
    GET_DATE = 32
    SET_DATE = 33
    REQUEST_VARIABLE_LEASE_SET = 37
    HOST_LOOKUP = 38
    HOST_REPLY = 39
    CREATE_LEASE_SET_2 = 41


_FROM_CLIENTS: Final = frozenset({Kind.GET_DATE, Kind.CREATE_SESSION, Kind.DESTROY_SESSION, Kind.HOST_LOOKUP})
_LEASE_BYTES: Final = 44
_TEXT_LIMIT_BYTES: Final = 255
_LOOKUP_OF_HASH: Final = 0
_NO_PRIVATE_KEYS: Final = b"\0"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message, still in bytes."""

    kind: int
    body: bytes


class FrameReader:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what arrived. Frames must be taken out until there is none before more is fed."""
        self._held += data

    def next_frame(self) -> Frame | None:
        """The next whole frame; None until more arrives."""
        if len(self._held) < HEADER_BYTES:
            return None
        size = int.from_bytes(self._held[:4], "big")
        if size > FRAME_LIMIT_BYTES:
            raise I2cpError(f"a message of {size} bytes is announced; no router sends more than {FRAME_LIMIT_BYTES}")
        end = HEADER_BYTES + size
        if len(self._held) < end:
            return None
        frame = Frame(self._held[4], bytes(self._held[HEADER_BYTES:end]))
        del self._held[:end]
        return frame


def encode(message: Message) -> bytes:
    """The frame that carries a message."""
    try:
        kind, body = _encode(message)
    except OverflowError:
        raise I2cpError(f"a number in the {type(message).__name__} does not fit its field") from None
    except I2pError as error:
        raise I2cpError(f"the {type(message).__name__} cannot be written: {error}") from None
    if len(body) > FRAME_LIMIT_BYTES:
        raise I2cpError(f"a {type(message).__name__} of {len(body)} bytes is larger than a message may be")
    return len(body).to_bytes(4, "big") + bytes([kind]) + body


def _encode(message: Message) -> tuple[int, bytes]:  # noqa: C901, PLR0911 -- one case for each message
    match message:
        case GetDate(version, options):
            return Kind.GET_DATE, _text(version) + (b"" if options is None else encode_mapping(options))
        case SetDate(date_ms, version):
            return Kind.SET_DATE, date_ms.to_bytes(8, "big") + (b"" if version is None else _text(version))
        case CreateSession(config):
            return Kind.CREATE_SESSION, config.signed_part + config.signature
        case SessionStatus(session_id, status):
            return Kind.SESSION_STATUS, session_id.to_bytes(2, "big") + status.to_bytes(1, "big")
        case DestroySession(session_id):
            return Kind.DESTROY_SESSION, session_id.to_bytes(2, "big")
        case CreateLeaseSet2(session_id, structure, private_key_count):
            head = session_id.to_bytes(2, "big") + bytes([STORE_TYPE])
            return Kind.CREATE_LEASE_SET_2, head + structure + (_NO_PRIVATE_KEYS if private_key_count else b"")
        case RequestVariableLeaseSet(session_id, tunnels):
            head = session_id.to_bytes(2, "big") + tunnels.to_bytes(1, "big")
            return Kind.REQUEST_VARIABLE_LEASE_SET, head + bytes(_LEASE_BYTES * tunnels)
        case HostLookup(session_id, request_id, timeout_ms, destination_hash):
            numbers = session_id.to_bytes(2, "big") + request_id.to_bytes(4, "big") + timeout_ms.to_bytes(4, "big")
            return Kind.HOST_LOOKUP, numbers + bytes([_LOOKUP_OF_HASH]) + destination_hash
        case HostReply(session_id, request_id, result, destination):
            numbers = session_id.to_bytes(2, "big") + request_id.to_bytes(4, "big") + result.to_bytes(1, "big")
            return Kind.HOST_REPLY, numbers + (destination or b"")
        case Disconnect(reason):
            return Kind.DISCONNECT, _text(reason)
        case Unhandled(kind, body):
            return kind, body
        case _:
            assert_never(message)


def decode(frame: Frame) -> Message:
    """The message in a frame; raises `I2cpError` only."""
    reader = FieldReader(frame.body)
    try:
        message = _decode(frame, reader)
        if frame.kind in _FROM_CLIENTS and reader.rest():
            raise I2cpError(f"bytes follow a {type(message).__name__}")
    except I2pError as error:
        raise I2cpError(f"a message of type {frame.kind} cannot be read: {error}") from None
    return message


def _decode(frame: Frame, reader: FieldReader) -> Message:  # noqa: C901, PLR0911 -- one case for each message
    match frame.kind:
        case Kind.GET_DATE:
            return GetDate(_read_text(reader, "the version"), None if reader.is_at_end else reader.mapping())
        case Kind.SET_DATE:
            date_ms = reader.number(8, "the date")
            return SetDate(date_ms, None if reader.is_at_end else _read_text(reader, "the version"))
        case Kind.CREATE_SESSION:
            config = SessionConfig(reader.destination(), reader.mapping(), reader.number(8, "the creation date"))
            signature = reader.take(config.signature_bytes, "the signature")
            return CreateSession(SessionConfig(config.destination, config.options, config.created_ms, signature))
        case Kind.SESSION_STATUS:
            return SessionStatus(_session(reader), reader.number(1, "the status"))
        case Kind.DESTROY_SESSION:
            return DestroySession(_session(reader))
        case Kind.CREATE_LEASE_SET_2:
            return _read_lease_set(reader)
        case Kind.REQUEST_VARIABLE_LEASE_SET:
            request = RequestVariableLeaseSet(_session(reader), reader.number(1, "the number of leases"))
            reader.take(_LEASE_BYTES * request.tunnels, "the leases")
            return request
        case Kind.HOST_LOOKUP:
            return _read_lookup(reader)
        case Kind.HOST_REPLY:
            return _read_host_reply(reader)
        case Kind.DISCONNECT:
            return Disconnect(_read_text(reader, "the reason"))
        case kind:
            return Unhandled(kind, frame.body)


def _session(reader: FieldReader) -> int:
    return reader.number(2, "the session id")


def _read_lookup(reader: FieldReader) -> HostLookup:
    session_id, request_id = _session(reader), reader.number(4, "the request id")
    timeout_ms, kind = reader.number(4, "the timeout"), reader.number(1, "the kind of name")
    if kind != _LOOKUP_OF_HASH:
        raise I2cpError(f"a lookup of kind {kind}, not of a hash")
    return HostLookup(session_id, request_id, timeout_ms, reader.take(HASH_BYTES, "the hash"))


def _read_host_reply(reader: FieldReader) -> HostReply:
    session_id, request_id = _session(reader), reader.number(4, "the request id")
    result = reader.number(1, "the result")
    if result:
        return HostReply(session_id, request_id, result)
    return HostReply(session_id, request_id, result, reader.rest())


def _read_lease_set(reader: FieldReader) -> CreateLeaseSet2:
    session_id, store_type = _session(reader), reader.number(1, "the store type")
    if store_type != STORE_TYPE:
        raise I2cpError(f"a lease set of store type {store_type}, not a Meta LeaseSet2")
    rest = reader.rest()
    # How long the structure is follows from what is in it, so the count behind it is found by what else makes sense.
    counted = rest.endswith(_NO_PRIVATE_KEYS) and not _is_structure(rest) and _is_structure(rest[:-1])
    if not counted and not _is_structure(rest):
        raise I2cpError("the lease set is no Meta LeaseSet2")
    return CreateLeaseSet2(session_id, rest[:-1] if counted else rest, counted)


def _is_structure(data: bytes) -> bool:
    try:
        decode_structure(data)
    except LeaseSetError:
        return False
    return True


def _text(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise I2cpError("a text is not valid Unicode") from None
    if len(data) > _TEXT_LIMIT_BYTES:
        raise I2cpError(f"a text has at most {_TEXT_LIMIT_BYTES} bytes, not {len(data)}")
    return bytes([len(data)]) + data


def _read_text(reader: FieldReader, what: str) -> str:
    data = reader.take(reader.number(1, f"the length of {what}"), what)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise I2cpError(f"{what} is not UTF-8") from None
