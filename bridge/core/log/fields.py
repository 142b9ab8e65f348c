"""The fields of log records in JSON: key, type, range, and the form of values that JSON lacks.

A record declares each of its fields once, and `RecordJson` derives decoder and encoder from the declarations:

    time_ms: Annotated[int, Json(Milliseconds, "time")]
                         │        │             └ key in the entry; without one it is the name of the field
                         │        └ type and range in JSON
                         └ type in the record

A field without `Json` is written under its own name, with its annotated type. `request` is not in the object of the
record, but next to it in the entry.

A value outside its range makes the whole entry foreign, on all servers alike. So the ranges include all possible
values, not only sensible ones.

The records are not themselves the Structs of their JSON. A snapshot stores some of them under the names of their
fields, and a Struct has one name per field for all formats. A Struct would also read a member `request` within the
object, which all versions ignore.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_args, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Raw, Struct, defstruct, structs
from msgspec.structs import replace

from bridge.core.formation.founding import NODE_ID_BYTES, PUBLIC_KEY_BYTES
from bridge.core.log.hashes import HASH_CHARACTERS

ENTRY_LIMIT_BYTES: Final = 65_536
BRACKETS_LIMIT: Final = 256
"""Limit of nesting by the number of brackets: the maximum depth of a parser depends on its caller's stack."""
BOXES_LIMIT: Final = 256
"""The most boxes of one entry, so that it stays below `ENTRY_LIMIT_BYTES`."""
BOX_BYTES: Final = 92
"""A key of X25519 (32), an era (4), its time (8), its key (32) and a tag (16): see `bridge.wire.keys.box`."""
PRINCIPAL_CHARACTERS: Final = 32
_PRINCIPAL_DIGITS: Final = frozenset("0123456789abcdef")

NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,31}"
"""The names of nodes, clusters and client keys, as a regular expression."""
NAME_FORM: Final = "1 to 32 letters, digits, `.`, `_` or `-`, with a letter or digit first"
"""The text of error messages about this rule."""

Milliseconds = Annotated[int, Meta(ge=0, lt=2**53)]
Seconds = Annotated[int, Meta(ge=0, lt=2**32)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
ServerId = Annotated[int, Meta(ge=0, lt=2**31)]
NewServerId = Annotated[int, Meta(ge=1, lt=2**31)]
Era = Annotated[int, Meta(ge=1, lt=2**32)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Request = Annotated[str, Meta(max_length=128)]
DestinationText = Annotated[str, Meta(max_length=2048)]
StructureText = Annotated[str, Meta(max_length=32_768)]
HashText = Annotated[str, Meta(pattern=f"^[a-z2-7]{{{HASH_CHARACTERS}}}\\Z")]
"""Base32 of a hash of 32 bytes: the part before `.b32.i2p` of an address."""
NodeName = Annotated[str, Meta(pattern=f"^{NAME}\\Z")]
Factor = Annotated[float, Meta(ge=-1e9, le=1e9)]
_NodeIdText = Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * NODE_ID_BYTES}}}\\Z")]
_KeyText = Annotated[str, Meta(min_length=4 * -(-PUBLIC_KEY_BYTES // 3), max_length=4 * -(-PUBLIC_KEY_BYTES // 3))]
_BoxText = Annotated[str, Meta(max_length=4 * -(-BOX_BYTES // 3))]
ABSENT: Final = Raw()
"""The default of a member that a later version added: a `Raw`, read with `value_or_none`.

Older versions skip such a member. Skipping accepts values that decoding refuses, even as `Any`: numbers out of range,
and text that is not UTF-8. With decoding, the entry would be foreign in one version and not in another.
"""


class ApplicationError(ValueError):
    """The record cannot be an entry: it exceeds the limits that every server checks."""


def value_or_none(member: Raw) -> Any:
    """Return the value of a member that older versions skip; None if it is absent, or decoding refuses it."""
    try:
        return msgspec.json.decode(member) if member else None
    except ValueError:
        return None


def octets(text: str, size: int) -> bytes:
    """Return the bytes in a canonical base64 text; `ApplicationError` if they are not `size`."""
    try:
        value = base64.b64decode(text, validate=True)
    except ValueError:
        value = b""
    if len(value) != size or base64.b64encode(value).decode("ascii") != text:
        raise ApplicationError(f"{text[:44]!r} is not {size} bytes in base64")
    return value


def is_principal(text: str) -> bool:
    """Return True if this may come from `bridge.core.state.kafka_clients.principal_hash`."""
    return len(text) == PRINCIPAL_CHARACTERS and _PRINCIPAL_DIGITS.issuperset(text)


def _unchanged(value: Any) -> Any:
    return value


class Json(Struct, frozen=True):
    """The form of a field in JSON."""

    type: Any
    """Type and range in JSON; `| None` for a field with this default."""
    key: str = ""
    read: Callable[[Any], Any] = _unchanged
    """Converts the value in JSON to the field's value; raises `ValueError`."""
    write: Callable[[Any], Any] = _unchanged
    is_first: bool = False
    """The member is written first, and required even if the field has a default."""


DERIVED: Final = Json(None)
"""A field that is not in JSON: bytes that follow from the others (`bridge.wire.log.entries`)."""


def hex_id(key: str) -> Json:
    """Return the form of a NodeId: hexadecimal."""
    return Json(_NodeIdText, key, bytes.fromhex, bytes.hex)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _read_boxes(boxes: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((bytes.fromhex(each), octets(box, BOX_BYTES)) for each, box in boxes.items())


def _read_principal(member: Raw) -> str:
    value = value_or_none(member)
    return value if isinstance(value, str) and is_principal(value) else ""


def _read_key(text: str | None) -> bytes | None:
    return None if text is None else octets(text, PUBLIC_KEY_BYTES)


PUBLIC_KEY: Final = Json(_KeyText, read=_read_key, write=lambda key: None if key is None else _text(key))
"""An Ed25519 key, or None: base64."""
BOXES: Final = Json(
    Annotated[dict[_NodeIdText, _BoxText], Meta(max_length=BOXES_LIMIT)],
    read=_read_boxes,
    write=lambda boxes: {each.hex(): _text(box) for each, box in boxes},
)
"""Pairs of NodeId and box (`bridge.wire.keys.box`): an object of texts in base64."""
PRINCIPAL: Final = Json(
    Raw, read=_read_principal, write=lambda principal: Raw(msgspec.json.encode(principal)) if principal else ABSENT
)
"""The hash of a user. Older versions ignore the member, so a value that is not such a hash is ignored, too."""


class RecordJson:
    """The JSON of one class of records: `{member: {…}, "request": …}`, the request only if the class has one."""

    def __init__(self, member: str, record: type) -> None:
        self._member = member
        self._record = record
        hints = get_type_hints(record, include_extras=True)
        self._has_request = hints.pop("request", None) is not None
        forms = {name: _form_of(name, hint) for name, hint in hints.items()}
        self._derived = {name: b"" for name, form in forms.items() if form.type is None}
        written = ((name, form) for name, form in forms.items() if form.type is not None)
        self._forms = dict(sorted(written, key=lambda item: not item[1].is_first))
        self._reads = [(name, form.read) for name, form in self._forms.items() if form.read is not _unchanged]
        defaults = {each.name: each.default for each in structs.fields(record)}
        members = [_member_of(form, defaults[name]) for name, form in self._forms.items()]
        self._body = defstruct(record.__name__, members, omit_defaults=True, kw_only=True)
        request = [("request", Request | None, None)] if self._has_request else []
        self._entry = defstruct("Entry", [(member, self._body), *request], omit_defaults=True)
        self._decoder = msgspec.json.Decoder(self._entry)

    def decode(self, data: bytes) -> Any:
        """Return the record in an entry; raise `ValueError`."""
        entry: Any = self._decoder.decode(data)
        body = structs.astuple(getattr(entry, self._member))
        values = dict(zip(self._forms, body, strict=True)) | self._derived
        for name, read in self._reads:
            values[name] = read(values[name])
        if self._has_request:
            values["request"] = entry.request
        return self._record(**values)

    def entry_of(self, record: Any) -> Struct:
        """Return the Struct that encodes to the JSON of a record."""
        body = self._body(**{form.key: form.write(getattr(record, name)) for name, form in self._forms.items()})
        return self._entry(body, record.request) if self._has_request else self._entry(body)


def _form_of(name: str, hint: Any) -> Json:
    form = next((each for each in get_args(hint) if isinstance(each, Json)), Json(hint))
    return replace(form, key=form.key or name)


def _member_of(form: Json, default: Any) -> tuple[Any, ...]:
    if default is NODEFAULT or form.is_first:
        return form.key, form.type
    return form.key, form.type | None if default is None else form.type, form.write(default)
