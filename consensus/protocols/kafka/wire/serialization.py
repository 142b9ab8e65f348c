"""Reading and writing structures by their schemas: each structure gets two functions, made once.

    number, UUID                    of fixed size, big-endian; adjacent ones are read and written in one piece
    string                          length (int16; flexible: varint of length + 1), UTF-8
    bytes, records                  length (int32; flexible: varint of length + 1), unchanged
    array                           count (int32; flexible: varint of count + 1), the elements
    null                            length or count -1; flexible: 0
    structure                       its fields; flexible: then a count of tagged fields, each tag, length, value

A tagged field with its default is not written, and an unknown one is skipped (KIP-482).

*Hostile bytes.* An announced number never causes an allocation: a string or bytes must lie within the message, and an
array grows as its elements are read. `Limits` bounds all arrays and tagged fields of a message together. Structures are
not recursive, so the schema bounds the depth.
"""

import struct
from collections.abc import Callable
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kafka.wire.schemas import FIXED_SIZE, Field, Kind, Structure

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_MAX_STRING_BYTES: Final = 2**15 - 1
_MAX_VARINT: Final = 2**31 - 1
_MAX_VARINT_BYTES: Final = 5


class Cursor:
    """The position of the reader in a message, and the remaining number of array elements."""

    __slots__ = ("data", "elements_left", "end", "position")

    def __init__(self, data: bytes, position: int, max_elements: int) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self.elements_left = max_elements

    def take(self, size: int) -> int:
        """Skip `size` bytes; return the place of their beginning."""
        start = self.position
        if size > self.end - start:
            raise KafkaWireError(f"{size} bytes are announced at byte {start}, and there are {self.end - start}")
        self.position = start + size
        return start

    def varint(self) -> int:
        """Return an unsigned varint, of at most 31 bits."""
        # Nearly all varints have one byte, and a message of the quorum has two dozen of them.
        position = self.position
        if position < self.end and (byte := self.data[position]) < 0x80:  # noqa: PLR2004 - no bit says that more follows
            self.position = position + 1
            return byte
        value = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self.data[self.take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
                break
        else:
            raise KafkaWireError(f"the varint before byte {self.position} does not end")
        if value > _MAX_VARINT:
            raise KafkaWireError(f"the varint before byte {self.position} is {value}, more than any length")
        return value

    def spend(self, elements: int) -> None:
        """Count announced elements; each takes a byte or more."""
        self.elements_left -= elements
        if self.elements_left < 0:
            raise KafkaWireError("the arrays of the message have more elements than the limit")

    def skip_tagged_fields(self) -> None:
        """Skip all tagged fields."""
        count = self.varint()
        if not count:
            return
        self.spend(count)
        for _ in range(count):
            self.varint()
            self.take(self.varint())


Read = Callable[[Cursor], Any]
Write = Callable[[Any, list[bytes]], None]
_ReadStep = Callable[[Cursor, dict[str, Any]], None]


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


@lru_cache(maxsize=256)
def _uuid(data: bytes) -> UUID:
    """Return a UUID of the wire from a cache: messages repeat the same few, and a lookup is faster."""
    return UUID(bytes=data)


def encode_varint(value: int) -> bytes:
    """Return an unsigned varint."""
    if value < 0x80:  # noqa: PLR2004 - fits into one byte
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 0x80:  # noqa: PLR2004 - more follows
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def write_structure(structure: Structure, message: Any, parts: list[bytes]) -> None:
    """Add a message's bytes to `parts`; raises `KafkaWireError` for a value that the schema cannot express."""
    if type(message) is not structure.message:
        raise KafkaWireError(f"{type(message).__name__} where {structure.message.__name__} belongs")
    try:
        structure_writer(structure)(message, parts)
    except struct.error as error:
        raise KafkaWireError(
            f"{structure.message.__name__} has a number that its field cannot have: {error}"
        ) from error
    except UnicodeEncodeError as error:
        raise KafkaWireError(f"{structure.message.__name__} has a string that is not Unicode: {error}") from error


@cache
def structure_reader(structure: Structure) -> Read:
    """Return the reader of this structure."""
    steps = tuple(_read_step(run, flexible=structure.flexible) for run in _runs(structure.fields))
    tagged = {field.tag: (field.name, _value_reader(field, flexible=True)) for field in structure.tagged}
    make, flexible = structure.message, structure.flexible

    def read(cursor: Cursor) -> Any:
        values: dict[str, Any] = {}
        for step in steps:
            step(cursor, values)
        if flexible:
            if tagged:
                _read_tagged_fields(cursor, tagged, values)
            else:
                cursor.skip_tagged_fields()
        return make(**values)

    return read


@cache
def structure_writer(structure: Structure) -> Write:
    """Return the writer of this structure."""
    steps = tuple(_write_step(run, flexible=structure.flexible) for run in _runs(structure.fields))
    tagged = tuple((field, attrgetter(field.name), _value_writer(field, flexible=True)) for field in structure.tagged)
    flexible = structure.flexible

    def write(message: Any, parts: list[bytes]) -> None:
        for step in steps:
            step(message, parts)
        if tagged:
            _write_tagged_fields(message, parts, tagged)
        elif flexible:
            parts.append(_ONE_BYTE[0])

    return write


def _runs(fields: tuple[Field, ...]) -> list[list[Field]]:
    """Return the fields in order, adjacent ones of fixed size together."""
    runs: list[list[Field]] = []
    for field in fields:
        if runs and _is_fixed(field) and _is_fixed(runs[-1][-1]):
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def _is_fixed(field: Field) -> bool:
    return not field.is_array and field.kind in FIXED_SIZE


def _layout(run: list[Field]) -> struct.Struct:
    return struct.Struct(">" + "".join(field.kind.value for field in run))


def _read_step(run: list[Field], *, flexible: bool) -> _ReadStep:
    if not _is_fixed(run[0]):
        name, read_value = run[0].name, _value_reader(run[0], flexible=flexible)

        def read_one(cursor: Cursor, values: dict[str, Any]) -> None:
            values[name] = read_value(cursor)

        return read_one
    layout = _layout(run)
    size, unpack = layout.size, layout.unpack_from
    names = tuple(field.name for field in run)
    uuids = tuple(field.name for field in run if field.kind is Kind.UUID)

    def read_fixed(cursor: Cursor, values: dict[str, Any]) -> None:
        values.update(zip(names, unpack(cursor.data, cursor.take(size)), strict=True))
        for name in uuids:
            values[name] = _uuid(values[name])

    return read_fixed


def _write_step(run: list[Field], *, flexible: bool) -> Write:
    if not _is_fixed(run[0]):
        get, write_value = attrgetter(run[0].name), _value_writer(run[0], flexible=flexible)

        def write_one(message: Any, parts: list[bytes]) -> None:
            write_value(get(message), parts)

        return write_one
    pack = _layout(run).pack
    get = attrgetter(*[field.name + ".bytes" if field.kind is Kind.UUID else field.name for field in run])

    def write_fixed(message: Any, parts: list[bytes]) -> None:
        parts.append(pack(get(message)))

    def write_several(message: Any, parts: list[bytes]) -> None:
        parts.append(pack(*get(message)))

    return write_fixed if len(run) == 1 else write_several


def _value_reader(field: Field, *, flexible: bool) -> Read:
    read_element = _element_reader(field, flexible=flexible)
    if not field.is_array:
        return read_element
    name, nullable = field.name, field.nullable

    def read_array(cursor: Cursor) -> tuple[Any, ...] | None:
        count = _read_length(cursor, _INT32, flexible=flexible)
        if count < 0:
            _check_null(name, nullable=nullable)
            return None
        cursor.spend(count)
        return tuple([read_element(cursor) for _ in range(count)])

    return read_array


def _value_writer(field: Field, *, flexible: bool) -> Write:
    write_element = _element_writer(field, flexible=flexible)
    if not field.is_array:
        return write_element
    name, nullable = field.name, field.nullable

    def write_array(value: tuple[Any, ...] | None, parts: list[bytes]) -> None:
        if value is None:
            parts.append(_null_length(name, _INT32, nullable=nullable, flexible=flexible))
            return
        parts.append(_length(len(value), _INT32, flexible=flexible))
        for element in value:
            write_element(element, parts)

    return write_array


def _element_reader(field: Field, *, flexible: bool) -> Read:
    """Return the reader of the field, or of the elements of its array, which are never null."""
    nullable = field.nullable and not field.is_array
    if field.structure is not None:
        return structure_reader(field.structure)
    if field.kind is Kind.STRING:
        return _string_reader(field.name, nullable=nullable, flexible=flexible)
    if field.kind is Kind.BYTES:
        return _bytes_reader(field.name, nullable=nullable, flexible=flexible)
    layout = struct.Struct(">" + field.kind.value)
    is_uuid = field.kind is Kind.UUID

    def read_fixed(cursor: Cursor) -> Any:
        (value,) = layout.unpack_from(cursor.data, cursor.take(layout.size))
        return _uuid(value) if is_uuid else value

    return read_fixed


def _string_reader(name: str, *, nullable: bool, flexible: bool) -> Read:
    def read(cursor: Cursor) -> str | None:
        length = _read_length(cursor, _INT16, flexible=flexible)
        if length < 0:
            _check_null(name, nullable=nullable)
            return None
        if length > _MAX_STRING_BYTES:
            raise KafkaWireError(f"{name} has {length} bytes: strings have at most {_MAX_STRING_BYTES}")
        start = cursor.take(length)
        try:
            return cursor.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise KafkaWireError(f"{name} is not UTF-8") from error

    return read


def _bytes_reader(name: str, *, nullable: bool, flexible: bool) -> Read:
    def read(cursor: Cursor) -> bytes | None:
        length = _read_length(cursor, _INT32, flexible=flexible)
        if length < 0:
            _check_null(name, nullable=nullable)
            return None
        start = cursor.take(length)
        return cursor.data[start : start + length]

    return read


def _element_writer(field: Field, *, flexible: bool) -> Write:
    nullable = field.nullable and not field.is_array
    if field.structure is not None:
        return structure_writer(field.structure)
    if field.kind is Kind.STRING:
        return _string_writer(field.name, nullable=nullable, flexible=flexible)
    if field.kind is Kind.BYTES:
        return _bytes_writer(field.name, nullable=nullable, flexible=flexible)
    pack = struct.Struct(">" + field.kind.value).pack
    is_uuid = field.kind is Kind.UUID

    def write_fixed(value: Any, parts: list[bytes]) -> None:
        parts.append(pack(value.bytes if is_uuid else value))

    return write_fixed


def _string_writer(name: str, *, nullable: bool, flexible: bool) -> Write:
    def write(value: str | None, parts: list[bytes]) -> None:
        if value is None:
            parts.append(_null_length(name, _INT16, nullable=nullable, flexible=flexible))
            return
        encoded = value.encode()
        if len(encoded) > _MAX_STRING_BYTES:
            raise KafkaWireError(f"{name} has {len(encoded)} bytes: strings have at most {_MAX_STRING_BYTES}")
        parts.append(_length(len(encoded), _INT16, flexible=flexible))
        parts.append(encoded)

    return write


def _bytes_writer(name: str, *, nullable: bool, flexible: bool) -> Write:
    def write(value: bytes | None, parts: list[bytes]) -> None:
        if value is None:
            parts.append(_null_length(name, _INT32, nullable=nullable, flexible=flexible))
            return
        parts.append(_length(len(value), _INT32, flexible=flexible))
        parts.append(value)

    return write


def _read_tagged_fields(cursor: Cursor, tagged: dict[int | None, tuple[str, Read]], values: dict[str, Any]) -> None:
    count = cursor.varint()
    cursor.spend(count)
    for _ in range(count):
        tag, size = cursor.varint(), cursor.varint()
        start = cursor.take(size)
        if tag not in tagged:
            continue
        name, read_value = tagged[tag]
        cursor.position, outer_end, cursor.end = start, cursor.end, start + size
        values[name] = read_value(cursor)
        if cursor.position != cursor.end:
            raise KafkaWireError(f"{name} takes {cursor.position - start} of the {size} bytes of its tagged field")
        cursor.end = outer_end


def _write_tagged_fields(
    message: Any, parts: list[bytes], tagged: tuple[tuple[Field, Callable[[Any], Any], Write], ...]
) -> None:
    written: list[bytes] = []
    count = 0
    for field, get, write_value in tagged:
        value = get(message)
        if value == field.default:
            continue
        encoded: list[bytes] = []
        write_value(value, encoded)
        joined = b"".join(encoded)
        written += (encode_varint(field.tag or 0), encode_varint(len(joined)), joined)
        count += 1
    parts.append(encode_varint(count))
    parts += written


def _read_length(cursor: Cursor, layout: struct.Struct, *, flexible: bool) -> int:
    """Return a length or count; -1: null."""
    if flexible:
        return cursor.varint() - 1
    (length,) = layout.unpack_from(cursor.data, cursor.take(layout.size))
    if length < -1:
        raise KafkaWireError(f"the length before byte {cursor.position} is {length}")
    return int(length)


def _length(length: int, layout: struct.Struct, *, flexible: bool) -> bytes:
    return encode_varint(length + 1) if flexible else layout.pack(length)


def _check_null(name: str, *, nullable: bool) -> None:
    if not nullable:
        raise KafkaWireError(f"{name} is null, which it cannot be in this version")


def _null_length(name: str, layout: struct.Struct, *, nullable: bool, flexible: bool) -> bytes:
    _check_null(name, nullable=nullable)
    return _length(-1, layout, flexible=flexible)
