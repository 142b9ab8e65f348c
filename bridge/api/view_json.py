"""FarmView as JSON and back: the stable keys that scripts may rely on (`docs/reference/json.md`).

    field name in the view      key in JSON
    leader_id                   leaderId
    counters                    an object {name: value}, names unchanged

The keys follow from the field names by one rule, so that a field cannot be forgotten or misspelt on one of the two
sides; renaming a field of the view therefore changes the interface, and a test pins every key. `schema` counts changes
that would break a reader: added keys do not raise it, and unknown ones are ignored when reading.

Reading accepts bytes from another process, which need not be of the same version: whatever is wrong with them is a
`ViewError`.
"""

from typing import Any, TypeVar

import msgspec

from bridge.api.view import FarmView

SCHEMA = 1
DOCUMENT_LIMIT_BYTES = 16 * 1024 * 1024

T = TypeVar("T")


class ViewError(ValueError):
    """A document is not what this version understands; nothing was changed by it."""


def camel(name: str) -> str:
    """The JSON key of a field."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def snake(key: str) -> str:
    """The field of a JSON key."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def encode_view(view: FarmView) -> bytes:
    """The view as one JSON document."""
    return msgspec.json.encode(view_document(view))


def view_document(view: FarmView) -> dict[str, Any]:
    """The view as what JSON consists of."""
    return {"schema": SCHEMA, **document(view)}


def document(value: object) -> dict[str, Any]:
    """Any dataclass of the operator surfaces as what JSON consists of, with the documented keys."""
    outward: dict[str, Any] = _outward(msgspec.to_builtins(value))
    return outward


def decode_view(data: bytes) -> FarmView:
    """The view in a JSON document; `ViewError` if it is none, or one of a schema that this version does not know."""
    return from_document(FarmView, checked(decode_json(data)))


def decode_json(data: bytes) -> dict[str, Any]:
    """A JSON object of bounded size; otherwise a `ViewError`."""
    if len(data) > DOCUMENT_LIMIT_BYTES:
        raise ViewError(f"document of {len(data)} bytes, at most {DOCUMENT_LIMIT_BYTES} are read")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ViewError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ViewError("not a JSON object")
    return found


def checked(found: dict[str, Any]) -> dict[str, Any]:
    """The document itself, if its schema is the one that is understood here."""
    if found.get("schema") != SCHEMA:
        raise ViewError(f"schema {found.get('schema')!r}, this version understands {SCHEMA}: use the same garlicfarm")
    return found


def from_document(kind: type[T], found: dict[str, Any]) -> T:
    """A dataclass of the operator surfaces out of its document."""
    try:
        return msgspec.convert(_inward(found), kind)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
        raise ViewError(f"not a {kind.__name__}: {error}") from error


def _outward(value: Any) -> Any:
    match value:
        case dict():
            return {
                camel(name): _counters(item) if name == "counters" else _outward(item) for name, item in value.items()
            }
        case list() | tuple():
            return [_outward(item) for item in value]
        case _:
            return value


def _counters(items: Any) -> dict[str, int]:
    return {item["name"]: item["value"] for item in items}


def _inward(value: Any) -> Any:
    match value:
        case dict():
            return {snake(key): _pairs(item) if key == "counters" else _inward(item) for key, item in value.items()}
        case list():
            return [_inward(item) for item in value]
        case _:
            return value


def _pairs(found: Any) -> Any:
    if not isinstance(found, dict):
        raise ViewError("counters are not an object")
    return [{"name": name, "value": value} for name, value in found.items()]
