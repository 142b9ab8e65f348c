"""What `garlicfarm lease-set show` tells about a Meta LeaseSet2, as plain data with stable keys.

    file ──▶ read_structure ──▶ bytes ──▶ meta_lease_set.decode ──▶ describe ──▶ dict

Keys (times in seconds since the epoch unless the name says otherwise; additions are possible, removals are not):

    destination          {address, hash, base64, signatureType, signatureTypeName}
    published            second of publication
    expires              last second that the structure claims
    flags                the 16 bits of its header
    unpublished, blinded flags bits 1 and 2
    demo                 made by a demonstration
    offline              null, or {expires, signatureType, signatureTypeName, transientKey, expired}
    options              the mapping
    entries              [{address, hash, flags, type, typeName, cost, end, remaining}]
    revocations          [hash]
    signature            {verified, verdict, reason, signedBy}
    acceptable           {javaRouter, reasons}
    sizeBytes            length of the structure

`remaining`, `expired` and `acceptable` are as of `now_s`. Hashes and keys are hexadecimal. `verified` alone decides the
command's exit code.
"""

import re
from typing import Any, Final

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
"""A file of hexadecimal text with blanks between the bytes is three times as long as what it stands for."""

_HEX = re.compile(rb"(?:0[xX])?[0-9A-Fa-f\s:]+")


def read_structure(content: bytes) -> bytes:
    """The structure's bytes, from a file that holds them as they are or as hexadecimal text.

    No structure is made of hexadecimal digits and blanks only: its destination ends in a certificate with zero bytes.
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


def describe(structure: MetaLeaseSet, now_s: int) -> dict[str, Any]:
    """Describe a decoded structure; see the module for the keys."""
    verification = verify(structure)
    reasons = check_acceptable_to_java_router(structure, now_s)
    return {
        "destination": {
            "address": structure.destination.address,
            "hash": structure.destination.hash.hex(),
            "base64": structure.destination.base64,
            "signatureType": structure.destination.signature_type,
            "signatureTypeName": _signature_type_name(structure.destination.signature_type),
        },
        "published": structure.published_s,
        "expires": structure.published_s + structure.expires_after_s,
        "flags": structure.flags,
        "unpublished": structure.is_unpublished,
        "blinded": structure.is_blinded,
        "demo": structure.is_demo,
        "offline": None if structure.offline is None else _offline(structure.offline, now_s),
        "options": dict(structure.options),
        "entries": [_entry(lease, now_s) for lease in structure.leases],
        "revocations": [revocation.hex() for revocation in structure.revocations],
        "signature": {
            "verified": verification.holds,
            "verdict": verification.verdict.value,
            "reason": verification.reason,
            "signedBy": verification.signed_by,
        },
        "acceptable": {"javaRouter": not reasons, "reasons": reasons},
        "sizeBytes": len(encode(structure)),
    }


def _offline(offline: OfflineSignature, now_s: int) -> dict[str, Any]:
    return {
        "expires": offline.expires_s,
        "signatureType": offline.signature_type,
        "signatureTypeName": _signature_type_name(offline.signature_type),
        "transientKey": offline.transient_key.hex(),
        "expired": offline.expires_s <= now_s,
    }


def _entry(lease: MetaLease, now_s: int) -> dict[str, Any]:
    return {
        "address": address_of(lease.destination_hash),
        "hash": lease.destination_hash.hex(),
        "flags": lease.flags,
        "type": lease.store_type,
        "typeName": STORE_TYPE_NAMES.get(lease.store_type, f"type {lease.store_type}"),
        "cost": lease.cost,
        "end": lease.ends_s,
        "remaining": lease.ends_s - now_s,
    }


def _signature_type_name(signature_type: int) -> str:
    name, _, _ = SIGNATURE_TYPES.get(signature_type, (f"type {signature_type}", 0, 0))
    return name
