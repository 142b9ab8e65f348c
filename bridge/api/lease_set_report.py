"""The report of `garlicfarm lease-set show` about a Meta LeaseSet2.

    file ──▶ read_structure ──▶ bytes ──▶ meta_lease_set.decode ──▶ describe ──▶ LeaseSetReport

Times are seconds since the epoch unless their name has another unit. `remaining`, `expired` and `acceptable` are as of
`now_s`. Hashes and keys are hexadecimal. `signature.verified` alone decides the command's exit code.
"""

import re
from collections.abc import Mapping
from typing import Final

from bridge.api.json import Document, Record
from bridge.wire.i2p.meta_lease_set import (
    STRUCTURE_LIMIT_BYTES,
    LeaseSetError,
    MetaLease,
    MetaLeaseSet,
    OfflineSignature,
    check_acceptable_to_java_router,
    encode,
    verify,
)
from bridge.wire.i2p.structures import SIGNATURE_TYPES, address_of

STORE_TYPE_NAMES: Final = {0: "unknown", 1: "LeaseSet", 3: "LeaseSet2", 5: "EncryptedLeaseSet", 7: "MetaLeaseSet"}
INPUT_LIMIT_BYTES: Final = 4 * STRUCTURE_LIMIT_BYTES
"""Limit for a file of hexadecimal text: with a blank after each byte, it has three times the bytes of the structure."""

_HEX = re.compile(rb"(?:0[xX])?[0-9A-Fa-f\s:]+")


class DestinationReport(Record, frozen=True):
    """Destination of the structure."""

    address: str
    """`.b32.i2p` address of the destination."""
    hash: str
    """Hash of the destination."""
    base64: str
    """The destination in base64."""
    signature_type: int
    """The number of its signature type."""
    signature_type_name: str
    """The name of its signature type."""


class OfflineReport(Record, frozen=True):
    """The transient key that signs for the destination."""

    expires: int
    """End of the validity of the key."""
    signature_type: int
    """The number of its signature type."""
    signature_type_name: str
    """The name of its signature type."""
    transient_key: str
    """Public half of the key."""
    expired: bool
    """True if the validity of the key has ended."""


class EntryReport(Record, frozen=True):
    """One entry of the structure."""

    address: str
    """The address of the leaf."""
    hash: str
    """The hash of the leaf."""
    flags: int
    """The 24 bits of the entry's flags."""
    type: int
    """Number of the kind of structure under the hash."""
    type_name: str
    """Name of the kind of structure under the hash."""
    cost: int
    """A lower cost is preferred: 0 to 200 in the structures of a farm; the format has room for 0 to 255."""
    end: int
    """End of the entry, seconds since the epoch."""
    remaining: int
    """Seconds until its end; negative after its end."""


class SignatureReport(Record, frozen=True):
    """Result of the verification of the signature."""

    verified: bool
    """True if the signature is valid."""
    verdict: str
    """The outcome in one word."""
    reason: str
    """The outcome in a sentence."""
    signed_by: str
    """Key of the signature."""


class AcceptableReport(Record, frozen=True):
    """Acceptance of the structure by a router."""

    java_router: bool
    """True if a Java router accepts the structure now."""
    reasons: list[str]
    """Reasons of the router's refusal, as text."""


class LeaseSetReport(Document, frozen=True):
    """A decoded structure."""

    destination: DestinationReport
    """Destination of the structure."""
    published: int
    """The second of publication."""
    expires: int
    """End of the structure, by its header."""
    flags: int
    """The 16 bits of its header."""
    unpublished: bool
    """Bit 1 of the flags: floodfills do not hand the structure out."""
    blinded: bool
    """Bit 2 of the flags: the structure is blinded when it is published."""
    demo: bool
    """True if a demonstration made the structure."""
    offline: OfflineReport | None
    """Transient key of the signature; null if the destination's own key signed."""
    options: Mapping[str, str]
    """The options in the structure, by key."""
    entries: list[EntryReport]
    """Entries of the structure."""
    revocations: list[str]
    """The hashes of revoked entries."""
    signature: SignatureReport
    """Verification of its signature."""
    acceptable: AcceptableReport
    """Acceptance of the structure by a router."""
    size_bytes: int
    """The length of the structure."""


def read_structure(content: bytes) -> bytes:
    """Return the structure's bytes, from a file of bytes or of hexadecimal text.

    A binary structure never consists only of hexadecimal digits and blanks, because the certificate of its destination
    contains zero bytes.
    """
    if len(content) > INPUT_LIMIT_BYTES:
        raise LeaseSetError(f"the file has {len(content)} bytes, a Meta LeaseSet2 has at most {STRUCTURE_LIMIT_BYTES}")
    if not content.strip():
        raise LeaseSetError("the file is empty")
    if _HEX.fullmatch(content) is None:
        return content
    digits = re.sub(rb"[\s:]", b"", content.strip())
    digits = digits[2:] if digits[:2].lower() == b"0x" else digits
    try:
        return bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        raise LeaseSetError("the hexadecimal text has an odd number of digits: it was cut") from None


def describe(structure: MetaLeaseSet, now_s: int) -> LeaseSetReport:
    """Describe a decoded structure."""
    verification = verify(structure)
    reasons = check_acceptable_to_java_router(structure, now_s)
    destination = structure.destination
    return LeaseSetReport(
        destination=DestinationReport(
            address=destination.address,
            hash=destination.hash.hex(),
            base64=destination.base64,
            signature_type=destination.signature_type,
            signature_type_name=_signature_type_name(destination.signature_type),
        ),
        published=structure.published_s,
        expires=structure.published_s + structure.expires_after_s,
        flags=structure.flags,
        unpublished=structure.is_unpublished,
        blinded=structure.is_blinded,
        demo=structure.is_demo,
        offline=None if structure.offline is None else _offline(structure.offline, now_s),
        options=dict(structure.options),
        entries=[_entry(lease, now_s) for lease in structure.leases],
        revocations=[revocation.hex() for revocation in structure.revocations],
        signature=SignatureReport(
            verification.holds, verification.verdict.value, verification.reason, verification.signed_by
        ),
        acceptable=AcceptableReport(not reasons, reasons),
        size_bytes=len(encode(structure)),
    )


def _offline(offline: OfflineSignature, now_s: int) -> OfflineReport:
    return OfflineReport(
        expires=offline.expires_s,
        signature_type=offline.signature_type,
        signature_type_name=_signature_type_name(offline.signature_type),
        transient_key=offline.transient_key.hex(),
        expired=offline.expires_s <= now_s,
    )


def _entry(lease: MetaLease, now_s: int) -> EntryReport:
    return EntryReport(
        address=address_of(lease.destination_hash),
        hash=lease.destination_hash.hex(),
        flags=lease.flags,
        type=lease.store_type,
        type_name=STORE_TYPE_NAMES.get(lease.store_type, f"type {lease.store_type}"),
        cost=lease.cost,
        end=lease.ends_s,
        remaining=lease.ends_s - now_s,
    )


def _signature_type_name(signature_type: int) -> str:
    name, _, _ = SIGNATURE_TYPES.get(signature_type, (f"type {signature_type}", 0, 0))
    return name
