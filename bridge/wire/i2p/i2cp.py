"""A client's half of I2CP: its messages to bytes, a router's from bytes, and the frames that carry them.

    stream:  2a, once, from the client │ frame │ frame │ …
    frame:   body's length 4 │ type 1 │ body

`FrameReader` takes received bytes and returns whole frames. It refuses a frame of more than 128 KiB when it has the
frame's length. So it stores at most one frame and the last received bytes. `decode` turns a frame into a message. Both
raise only `I2cpError`; after this error the stream cannot be used any more.

Bytes after the last field of a router's message are ignored: the protocol is extended by appending fields, and an
updated router must remain usable.
"""

from enum import IntEnum
from typing import Final, assert_never

from msgspec import Struct

from bridge.wire.i2p import i2cp_messages as messages
from bridge.wire.i2p.field_reader import FieldReader
from bridge.wire.i2p.meta_lease_set import STORE_TYPE
from bridge.wire.i2p.structures import I2pError, encode_mapping

PROTOCOL_BYTE: Final = b"\x2a"
FRAME_LIMIT_BYTES: Final = 131_072
"""Largest frame of a Java router; i2pd sends at most half of it."""
HEADER_BYTES: Final = 5
DATE_LIMIT_MS: Final = 2**63
"""Later dates of a router's clock are refused: the node adds the passed time, and the sum must fit into 64 bits."""


class MessageType(IntEnum):
    """The types of the messages that a farm uses."""

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


LEASE_BYTES: Final = 44
_TEXT_LIMIT_BYTES: Final = 255
_LOOKUP_OF_HASH: Final = 0
_NO_PRIVATE_KEYS: Final = b"\0"


class Frame(Struct, frozen=True):
    """One message, still in bytes."""

    kind: int
    body: bytes


class FrameReader:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._unparsed = bytearray()

    def feed(self, data: bytes) -> None:
        """Take received bytes. The caller must take out all whole frames before it feeds more bytes."""
        self._unparsed += data

    def next_frame(self) -> Frame | None:
        """Return the next whole frame; None until more bytes arrive."""
        if len(self._unparsed) < HEADER_BYTES:
            return None
        size = int.from_bytes(self._unparsed[:4], "big")
        if size > FRAME_LIMIT_BYTES:
            raise messages.I2cpError(
                f"a message of {size} bytes is announced; no router sends more than {FRAME_LIMIT_BYTES}"
            )
        end = HEADER_BYTES + size
        if len(self._unparsed) < end:
            return None
        frame = Frame(self._unparsed[4], bytes(self._unparsed[HEADER_BYTES:end]))
        del self._unparsed[:end]
        return frame


def encode(message: messages.ClientMessage) -> bytes:
    """Return the frame that carries a client's message."""
    try:
        kind, body = _encode(message)
    except OverflowError:
        raise messages.I2cpError(f"a number in the {type(message).__name__} does not fit its field") from None
    except I2pError as error:
        raise messages.I2cpError(f"the {type(message).__name__} cannot be written: {error}") from None
    return framed(kind, body)


def framed(kind: int, body: bytes) -> bytes:
    """Return a body with its length and type."""
    if len(body) > FRAME_LIMIT_BYTES:
        raise messages.I2cpError(f"a message of {len(body)} bytes is larger than a message may be")
    return len(body).to_bytes(4, "big") + bytes([kind]) + body


def _encode(message: messages.ClientMessage) -> tuple[int, bytes]:
    match message:
        case messages.GetDate(version, options):
            return MessageType.GET_DATE, text_field(version) + (b"" if options is None else encode_mapping(options))
        case messages.CreateSession(config):
            return MessageType.CREATE_SESSION, config.encoded
        case messages.DestroySession(session_id):
            return MessageType.DESTROY_SESSION, session_id.to_bytes(2, "big")
        case messages.CreateLeaseSet2(session_id, structure, private_key_count):
            head = session_id.to_bytes(2, "big") + bytes([STORE_TYPE])
            return MessageType.CREATE_LEASE_SET_2, head + structure + (_NO_PRIVATE_KEYS if private_key_count else b"")
        case messages.HostLookup(session_id, request_id, timeout_ms, destination_hash):
            numbers = session_id.to_bytes(2, "big") + request_id.to_bytes(4, "big") + timeout_ms.to_bytes(4, "big")
            return MessageType.HOST_LOOKUP, numbers + bytes([_LOOKUP_OF_HASH]) + destination_hash
        case messages.Disconnect(reason):
            return MessageType.DISCONNECT, text_field(reason)
        case _:
            assert_never(message)


def decode(frame: Frame) -> messages.RouterMessage:
    """Return the router's message in a frame; raise `I2cpError` only."""
    try:
        return _decode(frame, FieldReader(frame.body))
    except I2pError as error:
        raise messages.I2cpError(f"a message of type {frame.kind} cannot be read: {error}") from None


def _decode(frame: Frame, reader: FieldReader) -> messages.RouterMessage:
    match frame.kind:
        case MessageType.SET_DATE:
            date_ms = reader.number(8, "the date")
            if date_ms > DATE_LIMIT_MS:
                raise messages.I2cpError(f"a date of {date_ms} ms")
            return messages.SetDate(date_ms, None if reader.is_at_end else read_text(reader, "the version"))
        case MessageType.SESSION_STATUS:
            return messages.SessionStatus(reader.number(2, "the session id"), reader.number(1, "the status"))
        case MessageType.REQUEST_VARIABLE_LEASE_SET:
            session_id, tunnels = reader.number(2, "the session id"), reader.number(1, "the number of leases")
            reader.take(LEASE_BYTES * tunnels, "the leases")
            return messages.RequestVariableLeaseSet(session_id, tunnels)
        case MessageType.HOST_REPLY:
            session_id, request_id = reader.number(2, "the session id"), reader.number(4, "the request id")
            result = reader.number(1, "the result")
            return messages.HostReply(session_id, request_id, result, None if result else reader.rest())
        case MessageType.DISCONNECT:
            return messages.Disconnect(read_text(reader, "the reason"))
        case kind:
            return messages.Unhandled(kind, frame.body)


def text_field(text: str) -> bytes:
    """Return a text after its length."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise messages.I2cpError("a text is not valid Unicode") from None
    if len(data) > _TEXT_LIMIT_BYTES:
        raise messages.I2cpError(f"a text has at most {_TEXT_LIMIT_BYTES} bytes, not {len(data)}")
    return bytes([len(data)]) + data


def read_text(reader: FieldReader, what: str) -> str:
    """Return the next text."""
    data = reader.take(reader.number(1, f"the length of {what}"), what)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise messages.I2cpError(f"{what} is not UTF-8") from None
