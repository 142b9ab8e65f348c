"""The common part of all key files: typed and bounded TOML, and errors without key material.

Errors about a key file appear on an operator's screen, so they must not contain a part of a key. In a damaged file, a
part of a key may be anywhere, also in the fields and values that msgspec quotes in messages. So an error has only line
and column from the TOML parser, and only the place, types and declared names from msgspec.
"""

import base64
import binascii
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec

from bridge.core.log.fields import NAME, NAME_FORM

KEY_BYTES: Final = 32
TEXT_LIMIT: Final = 65_536
VERSION: Final = 1
"""The version of the files of named keys."""
_QUOTED: Final = re.compile(r" (?:'.*'|\".*\")", re.DOTALL)

Shape = TypeVar("Shape", bound=msgspec.Struct)


class KeyTextError(ValueError):
    """The text is not the expected key file. The message never contains key material."""


def parse(text: str, shape: type[Shape], what: str) -> Shape:
    """Read TOML into `shape`; `what` names the file's kind in errors."""
    if len(text) > TEXT_LIMIT:
        raise KeyTextError(f"this is not a {what}: it has {len(text)} characters, a key file has at most {TEXT_LIMIT}")
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        place = str(error).rpartition("(")[2].rstrip(")")
        raise KeyTextError(f"this is not a {what}: not TOML {place}".rstrip()) from None
    try:
        return msgspec.convert(table, shape)
    except msgspec.ValidationError as error:
        raise KeyTextError(f"this is not a valid {what}: {_unquoted(str(error), shape)}") from None
    except UnicodeEncodeError:
        raise KeyTextError(f"this is not a valid {what}: a name in it is not valid Unicode") from None


def _unquoted(reason: str, shape: type[msgspec.Struct]) -> str:
    """Return the reason of msgspec without quotations from the file.

    The place in a reason (`$.offline`) contains only names of declared fields.
    """
    problem, at, place = reason.rpartition(" - at ")
    if not at:
        problem, place = reason, ""
    if "unknown field" in problem:
        names = ", ".join(each.encode_name for each in msgspec.structs.fields(shape))
        problem = f"it has an unknown field (known are {names})"
    return _QUOTED.sub("", problem) + at + place


def encode_key(key: bytes) -> str:
    """Return key bytes as text."""
    return base64.b64encode(key).decode("ascii")


def decode_key(text: str, what: str, size: int = KEY_BYTES) -> bytes:
    """Return the bytes of an encoded key; the error names the field, not the value."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise KeyTextError(f"`{what}` is not base64") from None
    if len(key) != size:
        raise KeyTextError(f"`{what}` has {len(key)} bytes where {size} belong: the file was cut or changed")
    return key


class NamedKeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """The common fields of the files of named keys."""

    version: int
    name: str
    public_key: str

    def __repr__(self) -> str:
        """Omit the keys, because the repr of a Struct shows its fields."""
        return f"{type(self).__name__}({self.name!r})"


def other_version(found: int, own: int) -> str:
    """Return the end of an error about a file or token of another version."""
    return f"has version {found}, this garlicfarm reads version {own}: use a garlicfarm that reads version {found}"


@contextmanager
def advised(remedy: str) -> Iterator[None]:
    """Append the remedy to the `KeyTextError` that the block raises."""
    try:
        yield
    except KeyTextError as error:
        raise KeyTextError(f"{error}. {remedy}") from None


def check_name(name: str) -> None:
    """Raise `KeyTextError` for a name that no key can have."""
    if re.fullmatch(NAME, name) is None:
        raise KeyTextError(f"name {name[:40]!r}: {NAME_FORM}")


def check_file(file: NamedKeyFile, what: str, public_key: str) -> None:
    """Raise `KeyTextError` for another version, an invalid name, or a public key other than `public_key`."""
    if file.version != VERSION:
        raise KeyTextError(f"this {what} {other_version(file.version, VERSION)}")
    if file.public_key != public_key or re.fullmatch(NAME, file.name) is None:
        raise KeyTextError(f"this {what} was changed: its name or a key differs from the original; copy it again")
