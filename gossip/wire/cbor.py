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
_ONE_BYTE_ARGUMENT, _EIGHT_BYTE_ARGUMENT = 24, 27
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


class CborError(Exception):
    """Not in the slice of CBOR that datagrams use."""


def dumps(value: Any) -> bytes:
    """Encode values of the slice (the shortest spelling is what cbor2 writes)."""
    encoded: bytes = cbor2.dumps(value)
    return encoded


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


def _scan(data: bytes) -> None:
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
            width = _WIDTHS[data[position]]
            if width:
                position += width
                continue
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
