"""The one encoder and the one decoder of JSON that leaves or enters a node (`docs/reference/json.md`).

    Record      an object inside a document; keys are the names of its fields in lowerCamelCase
    Document    a whole document: a record that begins with `"schema": 1`
    RequestBody what a client sends; a key that this version does not know is refused, since it would have no effect

`schema` counts changes that would break a reader: added keys do not raise it, and unknown keys are ignored when a
document is read. The keys follow from the names of the fields, so renaming a field changes the interface; a test pins
every key and the order of the keys.

The bytes come from another process, which may run another version: whatever is wrong with them is a `DocumentError`.
"""

from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

SCHEMA: Final = 1
DOCUMENT_LIMIT_BYTES: Final = 16 * 1024 * 1024


class Record(Struct, frozen=True, gc=False, rename="camel"):
    """An object of JSON."""


class Document(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """An object of JSON that stands alone: `schema` comes first in it."""


class RequestBody(Struct, frozen=True, gc=False, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The body of a request. It has no `schema`, and no key may stand in it that this version does not know."""


class DocumentError(ValueError):
    """A document is not what this version understands; nothing was changed by it."""


class _SchemaHead(Struct):
    schema: Any = None


S = TypeVar("S", bound=Struct)
_ENCODER = msgspec.json.Encoder()
_HEAD = msgspec.json.Decoder(_SchemaHead)


def encode(document: Struct) -> bytes:
    r"""The document as one line of JSON.

    JSON has no letter for a byte of a file's name that is no text. What is told spells it, `\udcff`, as terminals do.
    What is asked for would be something else then: of a `RequestBody` it is a `UnicodeEncodeError`.
    """
    try:
        return _ENCODER.encode(document)
    except UnicodeEncodeError:
        if isinstance(document, RequestBody):
            raise
        return _ENCODER.encode(_spelled(msgspec.to_builtins(document)))


def _spelled(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_spelled(key): _spelled(each) for key, each in value.items()}
        case list() | tuple():
            return [_spelled(each) for each in value]
        case _:
            return value


def decode(data: bytes, kind: type[S]) -> S:
    """The document of this kind in `data`; `DocumentError` if it is another one, or of another schema."""
    if len(data) > DOCUMENT_LIMIT_BYTES:
        raise DocumentError(f"document of {len(data)} bytes, at most {DOCUMENT_LIMIT_BYTES} are read")
    try:
        if issubclass(kind, Document) and (schema := _HEAD.decode(data).schema) != SCHEMA:
            raise DocumentError(f"schema {schema!r}, this version understands {SCHEMA}: use the same garlicfarm")
        found: S = _decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        raise DocumentError(f"not a {kind.__name__}: {error}") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DocumentError(f"not JSON: {error}") from error
    return found


@cache
def _decoder(kind: type[S]) -> "msgspec.json.Decoder[S]":
    return msgspec.json.Decoder(kind)
