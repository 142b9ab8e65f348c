"""KRaft messages with random values, made from the schemas: for round trips and as seeds of fuzzing."""

import random
from typing import Any, Final
from uuid import UUID

from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.schemas import Direction, Field, Kind, Structure, message_schema

_RANGES: Final = {
    Kind.INT8: (-(2**7), 2**7 - 1),
    Kind.INT16: (-(2**15), 2**15 - 1),
    Kind.UINT16: (0, 2**16 - 1),
    Kind.INT32: (-(2**31), 2**31 - 1),
    Kind.INT64: (-(2**63), 2**63 - 1),
}
_ERRORS: Final = [*ErrorCode]
ALL: Final = [
    (ApiKey(api_key), version, direction)
    for api_key, (lowest, highest) in VERSIONS.items()
    for version in range(lowest, highest + 1)
    for direction in Direction
]
"""Every message in every version of the codec."""


def name_of(case: tuple[ApiKey, int, Direction]) -> str:
    """Return the test id of an element of `ALL`."""
    api_key, version, direction = case
    return f"{api_key.name.lower()}-{direction.value}-v{version}"


def any_message(api_key: ApiKey, version: int, direction: Direction, source: random.Random) -> Any:
    return _any_structure(message_schema(api_key, version, direction).structure, source)


def _any_structure(structure: Structure, source: random.Random) -> Any:
    fields = [field for field in structure.tagged if source.random() < 0.7]
    return structure.message(**{field.name: _any_value(field, source) for field in (*structure.fields, *fields)})


def _any_value(field: Field, source: random.Random) -> Any:
    if field.nullable and field.tag is None and source.random() < 0.3:
        return None
    if field.is_array:
        return tuple(_any_element(field, source) for _ in range(source.choice((0, 1, 1, 2, 3))))
    return _any_element(field, source)


def _any_element(field: Field, source: random.Random) -> Any:
    if field.structure is not None:
        return _any_structure(field.structure, source)
    if field.kind not in _RANGES:
        return _any_plain(field.kind, source)
    if field.name == "error_code":
        return int(source.choice(_ERRORS))
    if field.name.endswith("_ms"):  # kio accepts whole seconds within the range of a date
        return 1_000 * source.randrange(2_000_000)
    lowest, highest = _RANGES[field.kind]
    return source.choice((lowest, -1 if lowest else 0, 0, 1, source.randint(lowest, highest), highest))


def _any_plain(kind: Kind, source: random.Random) -> str | bytes | bool | UUID:
    match kind:
        case Kind.STRING:
            return source.choice(("", "a", "topic-é", "x" * 127, "y" * 128, "z" * 300))
        case Kind.BYTES:
            return source.randbytes(source.choice((0, 1, 126, 127, 20_000)))
        case Kind.BOOL:
            return source.random() < 0.5
        case _:
            return UUID(int=source.choice((0, 1, source.getrandbits(128))))
