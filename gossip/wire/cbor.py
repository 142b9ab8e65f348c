"""CBOR (RFC 8949) for datagrams: cbor2, restricted to these types.

    unsigned integers, byte strings, text, arrays, true, false, null

In RFC 8949 a few bytes can represent large or complex values: maps, unlimited nesting, indefinite lengths. Tags mark
dates, regular expressions or shared references. cbor2 decodes all of them. Here each tag and each map is an error
before a value is made of it. Indefinite lengths, bytes after the value and arrays nested deeper than `DEPTH_LIMIT` are
errors too. A declared length does not allocate memory: cbor2 reads arrays item by item, and strings in pieces of
at most 64 KiB. No datagram is longer. Floats, negative numbers and simple values pass here; the types of
`gossip.wire.codec` refuse them.

This module sends only the shortest encoding of a number or length, but accepts longer ones. So a received value can
have several encodings. Signatures and MACs do not depend on that: they cover the receiver's own encoding of the values.
"""

from collections.abc import Iterator, Mapping
from secrets import token_bytes
from typing import Any, Final, NoReturn

import cbor2

DEPTH_LIMIT: Final = 8
FALSE, TRUE, NULL = b"\xf4", b"\xf5", b"\xf6"
_MAJOR_UNSIGNED, _MAJOR_OCTETS, _MAJOR_ARRAY = 0, 2, 4
_ONE_BYTE: Final = 24
"""Smaller numbers are in the head itself; larger ones follow the head in 1, 2, 4 or 8 bytes."""
_SHORT_NUMBERS, _SHORT_OCTETS, _SHORT_ARRAYS = (
    tuple(bytes((major << 5 | value,)) for value in range(_ONE_BYTE))
    for major in (_MAJOR_UNSIGNED, _MAJOR_OCTETS, _MAJOR_ARRAY)
)


class CborError(Exception):
    """Bytes other than exactly one value of the CBOR that datagrams use."""


def unsigned(value: int) -> bytes:
    """Return an unsigned integer of up to 64 bits."""
    return _SHORT_NUMBERS[value] if 0 <= value < _ONE_BYTE else _long_head(_MAJOR_UNSIGNED, value)


def octets(value: bytes) -> bytes:
    """Return a byte string."""
    length = len(value)
    return (_SHORT_OCTETS[length] if length < _ONE_BYTE else _long_head(_MAJOR_OCTETS, length)) + value


def array_head(length: int) -> bytes:
    """Return the head of an array of this length."""
    return _SHORT_ARRAYS[length] if length < _ONE_BYTE else _long_head(_MAJOR_ARRAY, length)


def _long_head(major: int, argument: int) -> bytes:
    if argument < 1 << 8:
        return bytes((major << 5 | _ONE_BYTE, argument))
    if argument < 1 << 16:
        return bytes((major << 5 | _ONE_BYTE + 1, argument >> 8, argument & 0xFF))
    if argument < 1 << 32:
        return bytes((major << 5 | _ONE_BYTE + 2,)) + argument.to_bytes(4, "big")
    return bytes((major << 5 | _ONE_BYTE + 3,)) + argument.to_bytes(8, "big")


class _NoTags(Mapping[int, Any]):
    """The decoders of tags for cbor2: each tag has a decoder, which refuses it."""

    def __getitem__(self, tag: int) -> Any:
        return _refuse

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _refuse(*_: object) -> NoReturn:
    raise CborError("a tag or a map")


_NO_TAGS: Final = _NoTags()
_PAIR: Final = array_head(2)
_MARK: Final = token_bytes(8)
_MARK_BYTES: Final = octets(_MARK)
"""Bytes that no sender can guess. `cbor2.loads` ignores trailing bytes, so `loads` decodes a pair of the value and
these bytes. They are the second element only if no bytes follow the value."""


def dumps(value: Any) -> bytes:
    """Return the shortest encoding of a value."""
    encoded: bytes = cbor2.dumps(value)
    return encoded


def loads(data: bytes) -> Any:
    """Decode exactly one value, or raise CborError."""
    try:
        decoded = cbor2.loads(
            _PAIR + data + _MARK_BYTES,
            max_depth=DEPTH_LIMIT + 1,
            allow_indefinite=False,
            semantic_decoders=_NO_TAGS,
            object_hook=_refuse,
        )
    except cbor2.CBORError as error:
        raise CborError(str(error)) from error
    value, mark = decoded
    if mark != _MARK:
        raise CborError("trailing bytes")
    return value
