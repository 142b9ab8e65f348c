"""The slice of CBOR that datagrams use, read and written item by item.

RFC 8949 lets a few bytes stand for very much: tags that become dates, fractions, regular expressions or shared
references, declared lengths of 2^64, indefinite lengths, nesting without end, floats, many spellings of one number.
cbor2 decodes all of it faithfully, each with its own exceptions, and which of its versions can be told to refuse what
differs. So what comes from outside is not given to it: a `Reader` is told by its caller which item must come next, and
takes that or raises. It knows only what our messages are made of:

    unsigned integers, byte strings, text, arrays, true, false, null

in their shortest spelling and of definite length. Nothing is built that the caller did not ask for and bound (`loads`,
which takes what comes, bounds the depth), and each value has exactly one spelling. It is also faster than to check the
bytes, have a tree of lists made of them and check that: most datagrams are read once and answered.
"""

from typing import Any, Final

import cbor2

_ONE_BYTE_ARGUMENT, _TWO_BYTE_ARGUMENT, _FOUR_BYTE_ARGUMENT, _EIGHT_BYTE_ARGUMENT = range(24, 28)
_SHORTEST: Final = {24: 24, 25: 1 << 8, 26: 1 << 16, 27: 1 << 32}
"""What an argument of each width must at least be: less has a shorter spelling."""

_MAJOR_UNSIGNED, _MAJOR_OCTETS, _MAJOR_TEXT, _MAJOR_ARRAY = 0, 2, 3, 4
_SHORT_HEADS: Final = tuple(tuple(bytes([major << 5 | short]) for short in range(24)) for major in range(8))
FALSE, TRUE, NULL, EMPTY_ARRAY = b"\xf4", b"\xf5", b"\xf6", b"\x80"


DEPTH_LIMIT: Final = 8


class CborError(Exception):
    """Not in the slice of CBOR that datagrams use, or not the item that must come."""


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
    """Decode exactly one value of the slice, for those who look at its shape themselves; or raise `CborError`."""
    reader = Reader(data)
    try:
        value = reader.value()
    except IndexError:
        raise CborError("ends early") from None
    reader.end()
    return value


class Reader:
    """Takes one value apart, from its first byte to its last.

    Reading beyond the end of the bytes is `CborError`, or for the head of an item an `IndexError` of Python's own: a
    check before each would cost more than the reading. Callers treat both as the same.
    """

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    def unsigned(self, limit: int) -> int:
        """An unsigned integer up to `limit`."""
        value = self._data[self._position]
        if value < _ONE_BYTE_ARGUMENT:
            self._position += 1
        else:
            value = self._argument(_MAJOR_UNSIGNED)
        if value > limit:
            raise CborError(f"an integer beyond {limit}")
        return value

    def octets(self, limit: int, least: int = 0) -> bytes:
        """A byte string of `least` to `limit` bytes."""
        return self._string(_MAJOR_OCTETS, limit, least)

    def short_octets(self, length: int) -> bytes:
        """A byte string of exactly so many bytes, fewer than 24."""
        position = self._position
        self._position = end = position + 1 + length
        value = self._data[position + 1 : end]
        if self._data[position] != _MAJOR_OCTETS << 5 | length or len(value) != length:
            raise CborError(f"expected {length} bytes")
        return value

    def text(self, limit: int, least: int = 0) -> str:
        """Text of `least` to `limit` characters."""
        try:
            value = self._string(_MAJOR_TEXT, 4 * limit, least).decode()
        except UnicodeDecodeError as error:
            raise CborError("text is not UTF-8") from error
        if not least <= len(value) <= limit:
            raise CborError(f"text of {len(value)} characters instead of {least} to {limit}")
        return value

    def _string(self, major: int, limit: int, least: int) -> bytes:
        length = self._argument(major)
        if not least <= length <= limit:
            raise CborError(f"a string of {length} bytes instead of {least} to {limit}")
        start = self._position
        self._position = end = start + length
        value = self._data[start:end]
        if len(value) != length:
            raise CborError("declares more than the datagram holds")
        return value

    def array(self, limit: int) -> int:
        """The head of an array of up to `limit` elements, which are then the caller's to read; returns their number."""
        length = self._argument(_MAJOR_ARRAY)
        if length > limit:
            raise CborError(f"an array of {length} instead of up to {limit}")
        return length

    def fields(self, count: int) -> None:
        """The head of an array of exactly so many elements."""
        if self._argument(_MAJOR_ARRAY) != count:
            raise CborError(f"expected an array of {count}")

    def boolean(self) -> bool:
        """True or false."""
        return self.takes(TRUE) or not self._require(FALSE)

    def takes(self, spelling: bytes) -> bool:
        """Whether the next byte is this one; if so it is taken."""
        if self._data[self._position] != spelling[0]:
            return False
        self._position += 1
        return True

    def _require(self, spelling: bytes) -> bool:
        if not self.takes(spelling):
            raise CborError("expected true or false")
        return True

    def rest(self) -> bytes:
        """All that is left, taken unread."""
        rest = self._data[self._position :]
        self._position = len(self._data)
        return rest

    def value(self, depth: int = DEPTH_LIMIT) -> Any:
        """Whatever comes, of the types above; arrays lie in one another at most `depth` deep."""
        first = self._data[self._position]
        match first >> 5:
            case 0:
                return self._argument(_MAJOR_UNSIGNED)
            case 2:
                return self.octets(len(self._data))
            case 3:
                return self.text(len(self._data))
            case 4 if depth > 0:
                # Each element takes a byte at least: a length that is a lie ends with the bytes.
                return [self.value(depth - 1) for _ in range(self.array(len(self._data)))]
            case 7:
                return None if self.takes(NULL) else self.boolean()
            case _:
                raise CborError("nested too deep, or a type that datagrams do not use")

    def end(self) -> None:
        """Nothing may follow."""
        if self._position != len(self._data):
            raise CborError("trailing bytes")

    def _argument(self, major: int) -> int:
        """The number in the head of an item that must be of this major type."""
        position = self._position
        short = self._data[position] - (major << 5)
        if 0 <= short < _ONE_BYTE_ARGUMENT:
            self._position = position + 1
            return short
        if not _ONE_BYTE_ARGUMENT <= short <= _EIGHT_BYTE_ARGUMENT:
            raise CborError("another type, or an indefinite length")
        self._position = end = position + 1 + (1 << (short - _ONE_BYTE_ARGUMENT))
        value = int.from_bytes(self._data[position + 1 : end], "big")
        if end > len(self._data):
            raise CborError("ends early")
        if value < _SHORTEST[short]:
            raise CborError("not the shortest spelling")
        return value
