"""The I2CP messages that a farm's node exchanges with its router, as values (I2P's client protocol, I2CP).

    client ─▶ router                                  router ─▶ client
    GetDate 32            version, credentials        SetDate 33               the router's clock and version
    CreateSession 1       a signed SessionConfig      SessionStatus 20         created, refused, …
    CreateLeaseSet2 41    the signed structure        RequestVariableLeaseSet 37   requests a lease set
    HostLookup 38         a hash, and a timeout       HostReply 39             its destination, or the failure
    DestroySession 3                                  Disconnect 30            the end, and the reason (either side)

A node sends and receives no payload. Messages of all other types become `Unhandled`, with the type and the unparsed
body.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from msgspec import Struct

from bridge.wire.i2p.i2cp_session import SessionConfig

NO_SESSION: Final = 0xFFFF
"""The session id of a request outside of sessions."""


class I2cpError(ValueError):
    """The bytes are not an I2CP message of a router, or a message cannot be written."""


class Status(IntEnum):
    """The status of a session."""

    DESTROYED = 0
    CREATED = 1
    UPDATED = 2
    INVALID = 3
    REFUSED = 4
    DUPLICATE_DESTINATION = 5


@dataclass(frozen=True, slots=True)
class GetDate:
    """The client's greeting. `options` carry user and password if the router requires them."""

    version: str
    options: dict[str, str] | None = field(default=None, repr=False)


class SetDate(Struct, frozen=True):
    """The router's answer: its clock, and the version of its protocol."""

    date_ms: int
    version: str | None = None


class CreateSession(Struct, frozen=True):
    """Make a session for a destination."""

    config: SessionConfig


class SessionStatus(Struct, frozen=True):
    """The status of a session; `status` is a `Status` if it is a known one."""

    session_id: int
    status: int


class DestroySession(Struct, frozen=True):
    """End a session."""

    session_id: int


class CreateLeaseSet2(Struct, frozen=True):
    """A signed Meta LeaseSet2 for the router to publish.

    `private_key_count`: i2pd reads the number of private keys, 0, after a structure of any kind. A Java router does not
    read it for this kind, and drops a session that sends more.
    """

    session_id: int
    structure: bytes
    private_key_count: bool = False


class RequestVariableLeaseSet(Struct, frozen=True):
    """The router has tunnels for the session and requests a lease set. It ends sessions that do not reply."""

    session_id: int
    tunnels: int


class HostLookup(Struct, frozen=True):
    """Request the destination with this hash. The router searches the network for at most `timeout_ms`."""

    session_id: int
    request_id: int
    timeout_ms: int
    destination_hash: bytes


class HostReply(Struct, frozen=True):
    """The answer; `destination` is present exactly if `result` is 0. These are untrusted bytes, not parsed here."""

    session_id: int
    request_id: int
    result: int
    destination: bytes | None = None


class Disconnect(Struct, frozen=True):
    """The end of the connection."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unhandled:
    """A message of a type that a farm does not use."""

    kind: int
    body: bytes = field(repr=False)


ClientMessage = GetDate | CreateSession | DestroySession | CreateLeaseSet2 | HostLookup | Disconnect
RouterMessage = SetDate | SessionStatus | RequestVariableLeaseSet | HostReply | Disconnect | Unhandled
