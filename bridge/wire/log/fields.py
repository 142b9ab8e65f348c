"""The ranges of the members of application entries, which all servers check alike.

A value outside of its range makes the whole entry foreign, on all servers, because the check is a function of the
bytes. So the ranges are wide: they include all possible values, not only sensible ones.
"""

import base64
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from bridge.core.log.hashes import HASH_CHARACTERS
from bridge.core.log.records import NAME
from bridge.wire.i2p.structures import I2pError, destination_from_base64

ENTRY_LIMIT_BYTES: Final = 65_536
BRACKETS_LIMIT: Final = 256
"""Limits nesting by the bytes alone: the depth at which a parser gives up depends on its caller's stack."""

Milliseconds = Annotated[int, Meta(ge=0, lt=2**53)]
Seconds = Annotated[int, Meta(ge=0, lt=2**32)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
ServerId = Annotated[int, Meta(ge=0, lt=2**31)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Lag = Annotated[float, Meta(ge=0, le=1e9)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Request = Annotated[str, Meta(max_length=128)]
DestinationText = Annotated[str, Meta(max_length=2048)]
StructureText = Annotated[str, Meta(max_length=32_768)]
HashText = Annotated[str, Meta(pattern=f"^[a-z2-7]{{{HASH_CHARACTERS}}}\\Z")]
"""Base32 of a hash of 32 bytes: the part before `.b32.i2p` of an address."""
NodeName = Annotated[str, Meta(pattern=f"^{NAME}\\Z")]
Factor = Annotated[float, Meta(ge=-1e9, le=1e9)]
ABSENT: Final = Raw()
"""The default of a member that a later version added: a `Raw`, read with `value_or_none`.

Older versions skip such a member, and skipping accepts more values than decoding does, even as `Any`: numbers out of
range and text that is not UTF-8. The entry would be foreign in one version and not in another."""


class ApplicationError(ValueError):
    """The record cannot be an entry: it exceeds the limits that every server checks."""


def value_or_none(member: Raw) -> Any:
    """Return the value of a member that older versions skip; None if it is absent, or decoding refuses it."""
    try:
        return msgspec.json.decode(member) if member else None
    except ValueError:
        return None


def octets(text: str, size: int) -> bytes:
    """The bytes in a canonical base64 text; `ApplicationError` if they are not `size`."""
    try:
        value = base64.b64decode(text, validate=True)
    except ValueError:
        value = b""
    if len(value) != size or base64.b64encode(value).decode("ascii") != text:
        raise ApplicationError(f"{text[:44]!r} is not {size} bytes in base64")
    return value


def checked_destination(destination: str) -> str:
    """Return the text unchanged if it is a destination: the publisher must be able to rely on its hash."""
    try:
        destination_from_base64(destination)
    except I2pError as error:
        raise ApplicationError(f"destination {destination[:16]!r}…: {error}") from None
    return destination
