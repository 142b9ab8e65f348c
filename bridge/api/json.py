"""The one encoder and the one decoder of JSON that leaves or enters a node (`docs/reference/json.md`).

    Record        an object inside a document; keys are the names of its fields in lowerCamelCase
    Document      a whole document: a record that begins with `"schema": 1`
    RequestBody   the body of a client's request; an unknown key is refused, since it would not have an effect

`schema` counts changes that would break a reader: added keys do not raise it, and readers ignore unknown keys. The keys
follow from the names of the fields, so renaming a field changes the interface.

The bytes come from another process, which may run another version: any error in them is a `DocumentError`.
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
    """A complete document of JSON: `schema` is its first key."""


class RequestBody(Struct, frozen=True, gc=False, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The body of a request. It lacks `schema`, and a key unknown to this version is refused."""


class DocumentError(ValueError):
    """A document that this version does not understand, and therefore ignores."""


class _SchemaHead(Struct):
    schema: Any = None


S = TypeVar("S", bound=Struct)
_ENCODER = msgspec.json.Encoder()
_HEAD = msgspec.json.Decoder(_SchemaHead)


def encode(document: Struct | tuple[Struct, ...]) -> bytes:
    r"""Return the document, or several records as an array, as one line of JSON.

    JSON cannot represent bytes of a file's name that are not text. Documents for readers contain escapes such as
    `\udcff`, as terminals show them. In a `RequestBody` the escape would change the request, so encoding raises
    `UnicodeEncodeError`.
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
    """Return the document of this kind in `data`; raise `DocumentError` for another kind or schema."""
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
