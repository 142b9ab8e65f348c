"""The slice of CBOR that datagrams use, checked before cbor2 sees a byte of it.

RFC 8949 lets a few bytes stand for very much: tags that become dates, fractions, regular expressions or shared
references, declared lengths of 2^64, indefinite lengths, nesting without end, floats, many spellings of one number.
cbor2 decodes all of it faithfully, each with its own exceptions, and which of its versions can be told to refuse what
differs. So `loads` first walks the heads with a scanner that knows only what our messages are made of:

    unsigned integers, byte strings, text, arrays, true, false, null

in their shortest spelling, of definite length that fits the bytes at hand, at most `DEPTH_LIMIT` deep and of at most
`ITEM_LIMIT` items, with nothing behind them. Whatever passes is small (its size is bounded by the datagram's) and has
exactly one spelling, and only that reaches cbor2.
"""

from typing import Any, Final

import cbor2

DEPTH_LIMIT: Final = 8
ITEM_LIMIT: Final = 4096

_SIMPLE: Final = 7
_FALSE_TRUE_NULL: Final = frozenset({20, 21, 22})
_ONE_BYTE_ARGUMENT, _TWO_BYTE_ARGUMENT, _FOUR_BYTE_ARGUMENT, _EIGHT_BYTE_ARGUMENT = range(24, 28)
_SHORTEST: Final = {24: 24, 25: 1 << 8, 26: 1 << 16, 27: 1 << 32}
_WIDTHS: Final = (
    *((1,) * 24 + (0,) * 8),  # unsigned integers that are their own head
    *((0,) * 32),
    *(tuple(range(1, 25)) + (0,) * 8) * 2,  # byte strings and text of up to 23 bytes
    *((1,) + (0,) * 31),  # the empty array
    *((0,) * 64),
    *((0,) * 20 + (1,) * 3 + (0,) * 9),  # false, true, null
)
"""How many bytes an item takes, by its first byte; 0 where that needs a closer look."""


_MAJOR_UNSIGNED, _MAJOR_OCTETS, _MAJOR_ARRAY = 0, 2, 4
_LONGER_OCTETS: Final = _MAJOR_OCTETS << 5 | _ONE_BYTE_ARGUMENT
_SHORT_HEADS: Final = tuple(tuple(bytes([major << 5 | short]) for short in range(24)) for major in range(8))
FALSE, TRUE, NULL, EMPTY_ARRAY = b"\xf4", b"\xf5", b"\xf6", b"\x80"


class CborError(Exception):
    """Not in the slice of CBOR that datagrams use."""


def dumps(value: Any) -> bytes:
    """Encode values of the slice (the shortest spelling is what cbor2 writes)."""
    encoded: bytes = cbor2.dumps(value)
    return encoded


def unsigned(value: int) -> bytes:
    """An unsigned integer of up to 64 bits."""
    return _SHORT_HEADS[_MAJOR_UNSIGNED][value] if 0 <= value < _ONE_BYTE_ARGUMENT else _long_head(0, value)


def octets(value: bytes) -> bytes:
    """A byte string."""
    length = len(value)
    head = _SHORT_HEADS[_MAJOR_OCTETS][length] if length < _ONE_BYTE_ARGUMENT else _long_head(_MAJOR_OCTETS, length)
    return head + value


def array_head(length: int) -> bytes:
    """What comes before so many elements."""
    return _SHORT_HEADS[_MAJOR_ARRAY][length] if length < _ONE_BYTE_ARGUMENT else _long_head(_MAJOR_ARRAY, length)


def _long_head(major: int, argument: int) -> bytes:
    if argument < 1 << 8:
        return bytes((major << 5 | _ONE_BYTE_ARGUMENT, argument))
    if argument < 1 << 16:
        return bytes((major << 5 | _TWO_BYTE_ARGUMENT, argument >> 8, argument & 0xFF))
    if argument < 1 << 32:
        return bytes((major << 5 | _FOUR_BYTE_ARGUMENT,)) + argument.to_bytes(4, "big")
    return bytes((major << 5 | _EIGHT_BYTE_ARGUMENT,)) + argument.to_bytes(8, "big")


def loads(data: bytes) -> Any:
    """Decode exactly one value of the slice, or raise `CborError`."""
    _scan(data)
    try:
        return cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError) as error:  # what the scanner leaves open: text that is not UTF-8
        raise CborError("text is not UTF-8") from error


def _head(data: bytes, position: int) -> tuple[int, int, int]:
    """Major type, argument, and where the next byte is."""
    if position >= len(data):
        raise CborError("ends early")
    major, argument = data[position] >> 5, data[position] & 0x1F
    position += 1
    if argument < _ONE_BYTE_ARGUMENT:
        return major, argument, position
    if argument > _EIGHT_BYTE_ARGUMENT or major == _SIMPLE:
        raise CborError("indefinite length, float or reserved")
    end = position + (1 << (argument - _ONE_BYTE_ARGUMENT))
    if end > len(data):
        raise CborError("ends early")
    value = int.from_bytes(data[position:end], "big")
    if value < _SHORTEST[argument]:
        raise CborError("not the shortest spelling")
    return major, value, end


def _item(data: bytes, position: int) -> tuple[int, int]:
    """Where the item at `position` ends (or its first element begins), and how many elements it has."""
    major, argument, position = _head(data, position)
    match major:
        case 0:
            return position, 0
        case 2 | 3 if argument <= len(data) - position:
            return position + argument, 0
        case 4 if argument <= len(data) - position:
            return position, argument
        case 2 | 3 | 4:
            raise CborError("declares more than the datagram holds")
        case 7 if argument in _FALSE_TRUE_NULL:
            return position, 0
        case _:
            raise CborError("a type that datagrams do not use")


def _scan(data: bytes) -> None:  # noqa: C901 - a call for each item would double its time
    """Walk over one value, and nothing behind it, without building anything.

    Every datagram passes here, so the items that a table knows by their first byte are stepped over in place.
    """
    position = 0
    items = remaining = 1
    outer: list[int] = []
    try:
        while True:
            while not remaining:
                if not outer:
                    if position != len(data):
                        raise CborError("trailing bytes" if position < len(data) else "ends early")
                    return
                remaining = outer.pop()
            remaining -= 1
            first = data[position]
            width = _WIDTHS[first]
            if width:
                position += width
                continue
            if first == _LONGER_OCTETS and data[position + 1] >= _ONE_BYTE_ARGUMENT:
                position += 2 + data[position + 1]
                continue
            if first >> 5 == _MAJOR_ARRAY and first & 0x1F < _ONE_BYTE_ARGUMENT:
                position, elements = position + 1, first & 0x1F
            else:
                position, elements = _item(data, position)
            if elements:
                items += elements
                outer.append(remaining)
                remaining = elements
                if items > ITEM_LIMIT:
                    raise CborError("too many items")
                if len(outer) >= DEPTH_LIMIT:
                    raise CborError("nested too deep")
    except IndexError:
        raise CborError("ends early") from None
