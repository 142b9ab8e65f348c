"""Schemas of messages, taken from the library kio, which generates the schemas of all versions from Kafka's own.

    kio.schema.fetch.v17.request.FetchRequest ──┐
                                                ├─▶ Structure(fields…), once for each (API, version, direction)
    messages_clients.FetchRequest ──────────────┘

kio defines the order of the fields of a version, their types, and which fields may be null or are tagged. Our Struct is
the result class and has the values of omitted fields. Fields match by name; kio's durations and times have `_ms`
here.

*Only kio's schemas are used, and not its reader.* That reader allocates for the announced number of array elements
before it reads the first. Five hostile bytes announce 2,147,483,647 of them, which aborts the process. A check in front
of that reader would have to read the whole message itself. `serialization` is our reader; it builds our classes
directly, without kio's objects and without dates, whose range is narrower than the wire's.

A module of kio is loaded at the first use of its API and version: each takes 0.2 to 0.3 MB.
"""

import dataclasses
import sys
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from types import MappingProxyType, NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.limits import KafkaWireError

TIMES: Final = frozenset({"timedelta_i32", "timedelta_i64", "datetime_i64"})


class Direction(Enum):
    """One of the two messages of an API."""

    REQUEST = "request"
    RESPONSE = "response"


class Kind(Enum):
    """Encoding of a value; for numbers and the UUID, which have a fixed size, the code of `struct`."""

    INT8 = "b"
    INT16 = "h"
    UINT16 = "H"
    INT32 = "i"
    INT64 = "q"
    BOOL = "?"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    STRUCTURE = "structure"


_KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "int8": Kind.INT8,
        "int16": Kind.INT16,
        "error_code": Kind.INT16,
        "uint16": Kind.UINT16,
        "int32": Kind.INT32,
        "timedelta_i32": Kind.INT32,
        "int64": Kind.INT64,
        "timedelta_i64": Kind.INT64,
        "datetime_i64": Kind.INT64,
        "bool": Kind.BOOL,
        "uuid": Kind.UUID,
        "string": Kind.STRING,
        "bytes": Kind.BYTES,
        "records": Kind.BYTES,
    }
)
FIXED_SIZE: Final = frozenset(_KINDS.values()) - {Kind.STRING, Kind.BYTES}


class Field(Struct, frozen=True):
    """A field of a structure in one version; `name` is the name in our class."""

    name: str
    kind: Kind
    is_array: bool
    nullable: bool
    """True if the string, the bytes or the array may be null; numbers and UUIDs never are."""
    tag: int | None
    structure: "Structure | None"
    """Structure of a field, or of the elements of an array, of kind `STRUCTURE`."""
    default: Any
    """Value of an omitted tagged field."""


class Structure(Struct, frozen=True, eq=False):
    """A message, or a part of one, in one version: its fields in the order of the wire, the tagged ones last.

    Structures are compared by identity, so that a look-up by this key is fast.
    """

    message: type[Any]
    flexible: bool
    """Lengths are varints, and tagged fields follow (KIP-482)."""
    fields: tuple[Field, ...]
    tagged: tuple[Field, ...]


class MessageSchema(Struct, frozen=True):
    """A message in one version, and whether its header has tagged fields."""

    structure: Structure
    flexible_header: bool


@cache
def message_schema(api_key: ApiKey, version: int, direction: Direction) -> MessageSchema:
    """Return the schema of a version within `apis.VERSIONS`; load kio's module and ours on the first call."""
    own_class = message_class(api_key, direction)
    module = import_module(f"kio.schema.{api_key.name.lower()}.v{version}.{direction.value}")
    theirs = getattr(module, own_class.__name__)
    # The header of the response to ApiVersions is always the old one: a client reads it before it knows any version.
    old_header = api_key is ApiKey.API_VERSIONS and direction is Direction.RESPONSE
    return MessageSchema(_structure(theirs, own_class), flexible_header=theirs.__flexible__ and not old_header)


@cache
def record_structure(own_class: type[Struct], module: str) -> Structure:
    """Return the schema of version 0 of a control record, from a module of kio."""
    theirs = getattr(import_module(f"kio.schema.{module}.v0.data"), own_class.__name__)
    return _structure(theirs, own_class)


def message_class(api_key: ApiKey, direction: Direction) -> type[Any]:
    """Return the class of a message, the same for all versions."""
    request, response = import_module(f"{__package__}.messages_{api_key.subject}").MESSAGES[api_key]
    cls: type[Any] = request if direction is Direction.REQUEST else response
    return cls


def api_key_of(request: Any) -> ApiKey:
    """Return the API of a request; raises `KafkaWireError` for any other object."""
    messages = getattr(sys.modules[type(request).__module__], "MESSAGES", {})
    found = (api_key for api_key, (kind, _) in messages.items() if kind is type(request))
    api_key: ApiKey | None = next(found, None)
    if api_key is None:
        raise KafkaWireError(f"{type(request).__name__} is not a Kafka request")
    return api_key


def _structure(theirs: type[Any], own_class: type[Any]) -> Structure:
    hints = get_type_hints(own_class)
    defaults = {field.name: field.default for field in msgspec.structs.fields(own_class)}
    fields = [_field(field, hints, defaults) for field in dataclasses.fields(theirs)]
    return Structure(
        message=own_class,
        flexible=theirs.__flexible__,
        fields=tuple(field for field in fields if field.tag is None),
        tagged=tuple(sorted((field for field in fields if field.tag is not None), key=lambda field: field.tag or 0)),
    )


def _field(theirs: dataclasses.Field[Any], hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> Field:
    kafka_type = theirs.metadata.get("kafka_type")
    name = theirs.name + "_ms" if kafka_type in TIMES else theirs.name
    their_type, nullable = _without_none(theirs.type)
    our_type, _ = _without_none(hints[name])
    is_array = get_origin(their_type) is tuple
    if is_array:
        their_type, _ = _without_none(get_args(their_type)[0])
        our_type = get_args(our_type)[0]
    kind = Kind.STRUCTURE if kafka_type is None else _KINDS[kafka_type]
    return Field(
        name=name,
        kind=kind,
        is_array=is_array,
        nullable=nullable and (is_array or kind not in FIXED_SIZE),
        tag=theirs.metadata.get("tag"),
        structure=_structure(their_type, our_type) if kafka_type is None else None,
        default=defaults[name],
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    parts = get_args(annotation)
    if NoneType not in parts:
        return annotation, False
    (part,) = (part for part in parts if part is not NoneType)
    return part, True
