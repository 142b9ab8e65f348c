"""The types of ØMQ Raft's frames, the one error of its decoders, and their limits.

    bytes, string   unchanged; a string is UTF-8, and a name has at least one byte
    uint            1 to 8 bytes, the least significant first; an empty frame is an error
    nuint           a uint; an empty frame is the value `None`
    bool            an empty frame or a first byte of 0 is false
    json            MessagePack (`json_frame`)

A uint is written in as few bytes as it needs, zero in one. Numbers above 2**53 - 1 are refused in both directions:
JavaScript does not have larger whole numbers, and they crash the npm package `zmq-raft`. The package writes numbers
from 2**31 on in MessagePack as floats, so a whole float is read as a number.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

MAX_UINT: Final = 2**53 - 1
MAX_UINT_BYTES: Final = 8
REQUEST_ID_BYTES: Final = 12
MESSAGE_ID_BYTES: Final = 3
MAX_MESSAGE_ID: Final = 2 ** (8 * MESSAGE_ID_BYTES) - 1

JsonValue = None | bool | int | float | str | bytes | list["JsonValue"] | dict["JsonValue", "JsonValue"]


class ZmqRaftError(ValueError):
    """Frames that are not a message of ØMQ Raft; the text is the reason."""


class FrameLimits(Struct, frozen=True):
    """Limits of one message. The package sends appends of about 64 KiB, or one entry of up to 10 MiB."""

    max_frames: int = 20_000
    max_message_bytes: int = 64 * 1024 * 1024
    max_entry_data_bytes: int = 10 * 1024 * 1024
    max_peers: int = 64
    max_peer_id_bytes: int = 128
    max_url_bytes: int = 256
    max_json_bytes: int = 64 * 1024
    max_ident_bytes: int = 1024
    max_configurations_bytes: int = 256 * 1024
    """Limit of all configurations in one message: reading them takes thirty times longer than reading updates."""


DEFAULT_LIMITS: Final = FrameLimits()


def check_size(frames: Sequence[bytes], limits: FrameLimits) -> None:
    """Raise `ZmqRaftError` for a message of too many frames or bytes."""
    if len(frames) > limits.max_frames:
        raise ZmqRaftError(f"a message of {len(frames)} frames; at most {limits.max_frames} are read")
    if (size := sum(map(len, frames))) > limits.max_message_bytes:
        raise ZmqRaftError(f"a message of {size} bytes; at most {limits.max_message_bytes} are read")


def uint_frame(number: int) -> bytes:
    """Encode a number from 0 to 2**53 - 1; raises `ZmqRaftError` for any other."""
    if not 0 <= number <= MAX_UINT:
        raise ZmqRaftError(f"{number} does not fit into a frame: the protocol's numbers are 0 to {MAX_UINT}")
    return number.to_bytes((number.bit_length() + 7) // 8 or 1, "little")


def read_uint(frame: bytes, what: str, *, max_bytes: int = MAX_UINT_BYTES) -> int:
    """Decode a `uint_frame`; zero bytes at the end are permitted. Raises `ZmqRaftError`."""
    if not 1 <= len(frame) <= max_bytes:
        raise ZmqRaftError(f"the {what} has {len(frame)} bytes; a number has 1 to {max_bytes}")
    number = int.from_bytes(frame, "little")
    if number > MAX_UINT:
        raise ZmqRaftError(f"the {what} is {number}, beyond {MAX_UINT}")
    return number


def read_nuint(frame: bytes, what: str) -> int | None:
    """Return a number, or None for an empty frame; raises `ZmqRaftError`."""
    return read_uint(frame, what) if frame else None


def bool_frame(value: bool) -> bytes:  # noqa: FBT001 - the value is what the function is about
    """Return one byte, or none for False."""
    return b"\x01" if value else b""


def read_bool(frame: bytes) -> bool:
    """Return True if the first byte is present and not 0."""
    return frame[:1] not in (b"", b"\x00")


def read_string(frame: bytes, what: str, max_bytes: int) -> str:
    """Decode UTF-8 of 1 to `max_bytes` bytes; raises `ZmqRaftError`."""
    if not 1 <= len(frame) <= max_bytes:
        raise ZmqRaftError(f"the {what} has {len(frame)} bytes; it has 1 to {max_bytes}")
    try:
        return frame.decode()
    except UnicodeDecodeError as error:
        raise ZmqRaftError(f"the {what} is not UTF-8") from error


def string_frame(text: str, what: str, max_bytes: int) -> bytes:
    """Encode a text that `read_string` accepts; raises `ZmqRaftError`."""
    try:
        frame = text.encode()
    except UnicodeEncodeError as error:
        raise ZmqRaftError(f"the {what} cannot be written as UTF-8") from error
    if not 1 <= len(frame) <= max_bytes:
        raise ZmqRaftError(f"the {what} has {len(frame)} bytes; it has 1 to {max_bytes}")
    return frame


def json_frame(value: JsonValue) -> bytes:
    """Encode a value in MessagePack, in the shortest form of each of its parts; raises `ZmqRaftError`."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError as error:
        raise ZmqRaftError("a text cannot be written as UTF-8") from error


def read_json(frame: bytes, what: str, max_bytes: int) -> JsonValue:
    """Decode a `json_frame`; raises `ZmqRaftError`."""
    if len(frame) > max_bytes:
        raise ZmqRaftError(f"the {what} has {len(frame)} bytes; at most {max_bytes} are read")
    try:
        value: JsonValue = msgspec.msgpack.decode(frame, ext_hook=_no_extension)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ZmqRaftError(f"the {what} is not MessagePack: {error}") from error
    return value


def whole_number(value: object, what: str) -> int:
    """Return a number from MessagePack, even if written as a float; raises `ZmqRaftError`.

    NaN and infinities are not whole, and true is not a number here, unlike in Python.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_UINT:
        raise ZmqRaftError(f"the {what} is not a number from 0 to {MAX_UINT}")
    return value


def _no_extension(code: int, _data: memoryview) -> object:
    raise ZmqRaftError(f"MessagePack of the extension type {code}, which the protocol does not have")
