"""Messages as bytes, and a reader that finds them in a stream.

    request = type 1 │ source 4 │ destination 4 │ term 8 │ last log term 8 │ last log index 8
              │ commit index 8 │ log size 4 │ log entries                                        (45 bytes and the log)
    reply   = type 1 │ source 4 │ destination 4 │ term 8 │ next index 8 │ accepted 1           (26 bytes)

A connection carries requests in one direction and replies in the other, so a reader expects one of the two. A message
of the other kind is a violation of the protocol. The log's size is checked with the header, before any allocation.
"""

import struct
from typing import NoReturn

from consensus.protocols.garlic_farm.wire.entries import decode_entries, encode_entries
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError, malformed, too_large
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS, LONG_MAX, MessageLimits
from consensus.protocols.garlic_farm.wire.messages import (
    EXCHANGES,
    REPLY_TYPES,
    REQUEST_TYPES,
    MessageType,
    Reply,
    Request,
)
from consensus.protocols.garlic_farm.wire.values import LogEntry, checked_id, checked_long

REQUEST_HEADER = struct.Struct(">BiiQQQQI")
REPLY = struct.Struct(">BiiQQB")
_REPLY_CLASSES = {message_type: reply for reply, message_type in REPLY_TYPES.items()}
_HEADER_BYTES = REQUEST_HEADER.size
_LOG_SIZE = struct.Struct(f">{_HEADER_BYTES - 4}xI")
_TAKE_APPLICATIONS = frozenset({MessageType.APPEND_ENTRIES_REQUEST, MessageType.CLIENT_REQUEST})
READ_AHEAD_BYTES = 65_536
"""Maximum number of bytes that a reader holds beyond one whole message."""


def encode_request(request: Request, limits: MessageLimits = DEFAULT_LIMITS, log: bytes | None = None) -> bytes:
    """Return a request's bytes; `log` are the bytes of its entries (`encode_log`), if they are known."""
    message_type = REQUEST_TYPES[type(request)]
    if log is None:
        log = encode_log(request, limits)
    return (
        REQUEST_HEADER.pack(
            message_type,
            checked_id(request.source, "source"),
            checked_id(request.destination, "destination"),
            checked_long(request.term, "term"),
            checked_long(request.last_log_term, "last log term"),
            checked_long(request.last_log_index, "last log index"),
            checked_long(request.commit_index, "commit index"),
            len(log),
        )
        + log
    )


def encode_log(request: Request, limits: MessageLimits = DEFAULT_LIMITS) -> bytes:
    """Return the bytes of a request's entries."""
    _check_entries(REQUEST_TYPES[type(request)], request)
    return encode_entries(request.entries, limits)


def decode_request(data: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> Request:
    """Decode a request from exactly `data`."""
    size = request_size(data, limits)
    if size is None or len(data) != size:
        raise malformed(f"{len(data)} bytes are not exactly one request")
    return _decode_whole(data, 0, data[REQUEST_HEADER.size :], limits)


def _decode_whole(data: bytes | bytearray, at: int, log: bytes, limits: MessageLimits) -> Request:
    """Return the request with its header at `at` and the entries `log`. The caller has checked its size and type."""
    type_byte, source, destination, term, last_log_term, last_log_index, commit_index, _ = REQUEST_HEADER.unpack_from(
        data, at
    )
    if (largest := max(term, last_log_term, last_log_index, commit_index)) > LONG_MAX:
        raise malformed(f"a term or index of the header {largest} is outside 0 … 2^63-1")
    exchange = EXCHANGES[type_byte]
    entries = decode_entries(log, limits)
    applications = LogEntry not in map(type, entries)
    if not (applications and type_byte in _TAKE_APPLICATIONS) and not exchange.permits(entries):
        raise _wrong_entries(MessageType(type_byte))
    return exchange.request(
        source=source,
        destination=destination,
        term=term,
        last_log_term=last_log_term,
        last_log_index=last_log_index,
        commit_index=commit_index,
        entries=entries,
        # Followers store the received bytes. A client's entries get new heads from the leader, so their bytes are not
        # kept.
        log=log if applications and type_byte == MessageType.APPEND_ENTRIES_REQUEST else b"",
    )


def encode_reply(reply: Reply) -> bytes:
    """Return a reply's bytes."""
    return REPLY.pack(
        REPLY_TYPES[type(reply)],
        checked_id(reply.source, "source"),
        checked_id(reply.destination, "destination"),
        checked_long(reply.term, "term"),
        checked_long(reply.next_index, "next index"),
        reply.accepted,
    )


def decode_reply(data: bytes) -> Reply:
    """Decode a reply from exactly `data`."""
    if len(data) != REPLY.size:
        raise malformed(f"{len(data)} bytes are not exactly one reply of {REPLY.size}")
    type_byte, source, destination, term, next_index, accepted = REPLY.unpack(data)
    if type_byte not in _REPLY_CLASSES:
        _wrong_type(type_byte, "reply")
    if accepted > 1:
        raise malformed(f"a reply's accepted byte is {accepted}, neither 0 nor 1")
    return _REPLY_CLASSES[type_byte](
        source=source,
        destination=destination,
        term=checked_long(term, "term"),
        next_index=checked_long(next_index, "next index"),
        accepted=accepted == 1,
    )


def request_size(data: bytes | bytearray, limits: MessageLimits = DEFAULT_LIMITS, at: int = 0) -> int | None:
    """Return the length of the request that begins at `at`, or None while its header is incomplete."""
    if len(data) > at and data[at] not in EXCHANGES:
        _wrong_type(data[at], "request")
    if len(data) - at < _HEADER_BYTES:
        return None
    log_size: int = _LOG_SIZE.unpack_from(data, at)[0]
    if log_size > limits.log_bytes:
        raise too_large(f"a request announces {log_size} bytes of log entries; the limit is {limits.log_bytes}")
    return _HEADER_BYTES + log_size


class _MessageReader:
    """A reader of bytes that yields whole messages; the common part of both directions."""

    __slots__ = ("_at", "_buffer", "_capacity_bytes")

    def __init__(self, message_bytes_max: int) -> None:
        self._capacity_bytes = message_bytes_max + READ_AHEAD_BYTES
        self._buffer = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes. Read all complete messages before the next call."""
        if len(self._buffer) - self._at + len(data) > self._capacity_bytes:
            raise too_large("more bytes arrived than one message and the read-ahead hold")
        self._free_taken()
        self._buffer += data

    def _free_taken(self) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0

    def discard(self) -> None:
        """Free the held bytes: the connection will not be read again."""
        self._buffer, self._at = bytearray(), 0

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer) - self._at


class RequestReader(_MessageReader):
    """Finds requests in the bytes of a connection."""

    __slots__ = ("_limits", "request_bytes")

    def __init__(self, limits: MessageLimits = DEFAULT_LIMITS) -> None:
        super().__init__(REQUEST_HEADER.size + limits.log_bytes)
        self._limits = limits
        self.request_bytes = 0
        """Size of the last request that `next` returned."""

    @property
    def announced_bytes(self) -> int:
        """Return the size of the incomplete request according to its header; 0 before the header is complete."""
        return request_size(self._buffer, self._limits, self._at) or 0

    def next(self) -> Request | None:
        """Return the next whole request, or None until more bytes come."""
        size, at = request_size(self._buffer, self._limits, self._at), self._at
        if size is None or len(self._buffer) - at < size:
            return None
        self._at, self.request_bytes = at + size, size
        # A copy, so that entries do not keep other received bytes in memory.
        log = bytes(memoryview(self._buffer)[at + _HEADER_BYTES : at + size])
        head: bytes | bytearray = self._buffer
        if size > READ_AHEAD_BYTES:
            # Otherwise the request's bytes would stay in the buffer, outside of any budget, until the peer sends more.
            head, at = bytes(head[at : at + _HEADER_BYTES]), 0
            self._free_taken()
        return _decode_whole(head, at, log, self._limits)


class ReplyReader(_MessageReader):
    """Finds replies in the bytes of a connection."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(REPLY.size)

    def next(self) -> Reply | None:
        """Return the next whole reply, or None until more bytes come."""
        if self.buffered_bytes and self._buffer[self._at] not in _REPLY_CLASSES:
            _wrong_type(self._buffer[self._at], "reply")
        if self.buffered_bytes < REPLY.size:
            return None
        self._at += REPLY.size
        return decode_reply(bytes(memoryview(self._buffer)[self._at - REPLY.size : self._at]))


def _wrong_type(type_byte: int, expected: str) -> NoReturn:
    if type_byte in EXCHANGES or type_byte in _REPLY_CLASSES:
        text = f"{_spoken(MessageType(type_byte))} arrived instead of a {expected}"
        raise GarlicFarmError(Fault.OUT_OF_TURN, text)
    raise malformed(f"message type {type_byte} is unknown")


def _check_entries(message_type: MessageType, request: Request) -> None:
    if not EXCHANGES[message_type].permits(request.entries):
        raise _wrong_entries(message_type)


def _wrong_entries(message_type: MessageType) -> GarlicFarmError:
    return malformed(f"{_spoken(message_type)} must carry {EXCHANGES[message_type].entries_rule}")


def _spoken(message_type: MessageType) -> str:
    return message_type.name.replace("_", " ").lower()
