"""The exchange between a client and a directory: one request and one reply over one stream.

    request   version 1 │ hash of the address 32                                          33 bytes
    reply     version 1 │ status 1 │ length 2, big-endian │ structure                     4 to 65,539 bytes

    status    0 structure    1 no such address here    2 nothing published yet    3 too many requests

Only a reply with status 0 has a structure: a Meta LeaseSet2, which the client verifies. The request names the address,
so a directory does not reveal which addresses one farm serves. The request has a fixed length. The client keeps its
side of the stream open until it has the reply, because routers drop bytes that arrive on a half-closed SAM stream. A
receiver reads in parts: `reply_bytes_missing` returns the size of the next part.

Both sides check structures with `verified_structure`, and a client allows a larger clock difference than a directory.
So a directory does not return a structure whose signature or times clients refuse.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from bridge.wire.i2p.meta_lease_set import LeaseSetError, MetaLeaseSet, Verification, decode, verify
from bridge.wire.i2p.structures import HASH_BYTES, address_of

VERSION: Final = 1
REQUEST_BYTES: Final = 1 + HASH_BYTES
REPLY_HEADER_BYTES: Final = 4
STRUCTURE_LIMIT_BYTES: Final = 0xFFFF
REPLY_LIMIT_BYTES: Final = REPLY_HEADER_BYTES + STRUCTURE_LIMIT_BYTES
CLOCK_FUDGE_S: Final = 60
"""Seconds that a structure may be ahead of the receiver's clock, as in routers."""
_CHECKED_STRUCTURES: Final = 4
"""Number of structures whose checks are stored: a standby checks the structure in force every second."""


class ExchangeError(ValueError):
    """The bytes are not a request or a reply, or the given parts do not form one."""


class ReplyStatus(IntEnum):
    """The outcome of a request, as its byte in the reply."""

    STRUCTURE = 0
    UNKNOWN_ADDRESS = 1
    NOTHING_PUBLISHED = 2
    TOO_MANY_REQUESTS = 3


class StructureReply(Struct, frozen=True):
    """A reply; `structure` is empty unless the status is `STRUCTURE`. It is not verified."""

    status: ReplyStatus
    structure: bytes = b""

    def __post_init__(self) -> None:
        if len(self.structure) > STRUCTURE_LIMIT_BYTES:
            raise ExchangeError(f"a reply carries at most {STRUCTURE_LIMIT_BYTES} bytes, not {len(self.structure)}")
        if bool(self.structure) != (self.status is ReplyStatus.STRUCTURE):
            raise ExchangeError(f"a reply with status {self.status} has {len(self.structure)} bytes of structure")


def encode_request(address_hash: bytes) -> bytes:
    """Return the request for the structure of an address."""
    if len(address_hash) != HASH_BYTES:
        raise ExchangeError(f"the hash of an address has {HASH_BYTES} bytes, not {len(address_hash)}")
    return bytes([VERSION]) + address_hash


def decode_request(data: bytes) -> bytes:
    """Return the hash of the address that a request names; raise `ExchangeError` only."""
    if len(data) != REQUEST_BYTES:
        raise ExchangeError(f"a request has {REQUEST_BYTES} bytes, not {len(data)}")
    _check_version(data[0])
    return data[1:]


def encode_reply(reply: StructureReply) -> bytes:
    """Return the bytes of a reply."""
    return bytes([VERSION, reply.status]) + len(reply.structure).to_bytes(2, "big") + reply.structure


def decode_reply(data: bytes) -> StructureReply:
    """Parse a reply that must fill `data` exactly; raise `ExchangeError` only."""
    if missing := reply_bytes_missing(data):
        raise ExchangeError(f"the reply ends {missing} bytes too early")
    return StructureReply(_status(data[1]), data[REPLY_HEADER_BYTES:])


def reply_bytes_missing(received: bytes) -> int:
    """Return the number of bytes that are certainly missing from the start of a reply; 0 if it is complete.

    An invalid byte of the header is refused as soon as it arrives. Raise `ExchangeError` only.
    """
    if received:
        _check_version(received[0])
    if len(received) > 1:
        _status(received[1])
    if len(received) < REPLY_HEADER_BYTES:
        return REPLY_HEADER_BYTES - len(received)
    length = int.from_bytes(received[2:REPLY_HEADER_BYTES], "big")
    if bool(length) != (received[1] == ReplyStatus.STRUCTURE):
        raise ExchangeError(f"a reply with status {received[1]} announces {length} bytes of structure")
    missing = REPLY_HEADER_BYTES + length - len(received)
    if missing < 0:
        raise ExchangeError(f"{-missing} bytes follow the reply")
    return missing


def verified_structure(
    address_hash: bytes, data: bytes, now_s: int, *, clock_fudge_s: int = CLOCK_FUDGE_S
) -> MetaLeaseSet:
    """Return the structure if it is the address's own and valid at `now_s`; raise `ExchangeError` only."""
    try:
        structure = _decoded(data)
    except LeaseSetError as error:
        raise ExchangeError(f"this is not a Meta LeaseSet2: {error}") from None
    if structure.destination.hash != address_hash:
        raise ExchangeError(f"the structure is for {structure.destination.address}, not for {address_of(address_hash)}")
    verification = _verification(data)
    if not verification.holds:
        raise ExchangeError(f"the signature of the structure does not hold: {verification.reason}")
    if not structure.leases:
        raise ExchangeError("the structure is empty")
    if verification.transient_expires_s is not None and verification.transient_expires_s <= now_s:
        raise ExchangeError(f"the key that signed it ended {now_s - verification.transient_expires_s} s ago")
    if structure.published_s > now_s + clock_fudge_s:
        raise ExchangeError(
            f"the structure is published {structure.published_s - now_s} s from now; check the clock of this machine"
        )
    if structure.published_s + structure.expires_after_s <= now_s:
        raise ExchangeError(f"the structure expired {now_s - structure.published_s - structure.expires_after_s} s ago")
    return structure


@lru_cache(_CHECKED_STRUCTURES)
def _decoded(data: bytes) -> MetaLeaseSet:
    return decode(data)


@lru_cache(_CHECKED_STRUCTURES)
def _verification(data: bytes) -> Verification:
    return verify(_decoded(data))


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ExchangeError(f"the other side uses version {version} of the exchange; this side reads {VERSION}")


def _status(number: int) -> ReplyStatus:
    try:
        return ReplyStatus(number)
    except ValueError:
        raise ExchangeError(f"status {number} of the reply is unknown") from None
