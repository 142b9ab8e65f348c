"""Meta LeaseSet2: the structure that a farm publishes (I2P proposal 123; store type 7).

    destination │ published 4 │ expires 2 │ flags 2 │ [offline block] │ Mapping
    │ count 1 │ count times (hash 32, flags 3, cost 1, end 4) │ revocations 1 │ each 32 │ signature

    offline block (flags bit 0):  expires 4 │ signature type 2 │ transient key │ signature by the destination's key
    flags bit 1: unpublished (no floodfill answers for it)      bit 2: blinded when published      others: zero

Times are seconds; `expires` is an offset from `published`. Lower cost is preferred. The signature covers one byte 0x07
and then everything before the signature. The destination's key makes it, or, with an offline block, a transient key
that the destination's key has signed. So the key of the farm's identity never needs to be on a router.

    build ──▶ sign ──▶ encode        decode ──▶ verify ──▶ Verification
                                            └──▶ check_acceptable_to_java_router ──▶ reasons

Decoding and verifying are separate: a structure with an unknown signature type can still be shown. `decode` accepts
exactly the bytes that `encode` can produce again: routers encode a structure again before they verify it.
"""

from enum import Enum
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.wire.i2p.field_reader import FieldReader
from bridge.wire.i2p.structures import (
    ED25519,
    HASH_BYTES,
    RED_DSA,
    SIGNATURE_TYPES,
    Destination,
    I2pError,
    encode_mapping,
)

STORE_TYPE: Final = 7
LEASES_LIMIT: Final = 16
STRUCTURE_LIMIT_BYTES: Final = 65_536
STRUCTURE_SUFFIX: Final = ".meta-ls2"
"""Suffix of a file with a structure, after the letters of the address."""
LEASE_OF_LEASE_SET_2: Final = 3
DEMO_OPTION: Final = ("garlicfarm.demo", "true")
"""Mark of a demonstration's structure; a node does not hand such a structure to a router of the real network."""

OFFLINE_FLAG: Final = 1
UNPUBLISHED_FLAG: Final = 2
BLINDED_FLAG: Final = 4
_EXPIRES_LIMIT_S: Final = 0xFFFF
_VERIFIABLE: Final = (ED25519, RED_DSA)
_JAVA_AGE_LIMIT_S: Final = 10 * 60
_JAVA_CLOCK_FUDGE_S: Final = 60


class LeaseSetError(ValueError):
    """The bytes are not a Meta LeaseSet2, or a router would not accept a Meta LeaseSet2 of the given parts."""


class Verdict(Enum):
    """Result of a check of the signatures."""

    HOLDS = "holds"
    BROKEN = "broken"
    CANNOT_VERIFY = "cannot verify"


class OfflineSignature(Struct, frozen=True):
    """The destination's signature that a transient key may sign for it until `expires_s`."""

    expires_s: int
    signature_type: int
    transient_key: bytes
    signature: bytes

    @property
    def signed_part(self) -> bytes:
        """The bytes that the destination's key signed."""
        return self.expires_s.to_bytes(4, "big") + self.signature_type.to_bytes(2, "big") + self.transient_key


class MetaLease(Struct, frozen=True):
    """One leaf: the hash of its destination, its cost, and the end of this entry. Clients look up its lease set."""

    destination_hash: bytes
    cost: int
    ends_s: int
    flags: int = LEASE_OF_LEASE_SET_2

    @property
    def store_type(self) -> int:
        """The kind of lease set that the hash names (3: LeaseSet2)."""
        return self.flags & 0xFF


class MetaLeaseSet(Struct, frozen=True):
    """The structure, with `signature` empty until it is signed."""

    destination: Destination
    published_s: int
    expires_after_s: int
    leases: tuple[MetaLease, ...]
    flags: int = 0
    offline: OfflineSignature | None = None
    options: dict[str, str] = field(default_factory=dict)
    revocations: tuple[bytes, ...] = ()
    signature: bytes = b""

    @property
    def signature_type(self) -> int:
        """Signature type of the key that signs the structure: the transient key, if any, or the destination's key."""
        return self.destination.signature_type if self.offline is None else self.offline.signature_type

    @property
    def signed_part(self) -> bytes:
        """The bytes that the signature covers."""
        return bytes([STORE_TYPE]) + _encode_unsigned(self)

    @property
    def is_unpublished(self) -> bool:
        """True if it is marked as not for publishing: a floodfill keeps it and does not hand it out."""
        return bool(self.flags & UNPUBLISHED_FLAG)

    @property
    def is_blinded(self) -> bool:
        """True if publication blinds and encrypts it."""
        return bool(self.flags & BLINDED_FLAG)

    @property
    def is_demo(self) -> bool:
        """True if a demonstration signed it."""
        key, value = DEMO_OPTION
        return self.options.get(key) == value


class Verification(Struct, frozen=True):
    """The outcome of `verify`; `reason` is a sentence for an operator."""

    verdict: Verdict
    reason: str
    signed_by: str
    """`destination` or `transient key`."""
    transient_expires_s: int | None = None

    @property
    def holds(self) -> bool:
        """True if every signature in the structure is valid."""
        return self.verdict is Verdict.HOLDS


def build(
    destination: Destination,
    published_s: int,
    leases: tuple[MetaLease, ...],
    *,
    offline: OfflineSignature | None = None,
    options: dict[str, str] | None = None,
    unpublished: bool = False,
) -> MetaLeaseSet:
    """Put an unsigned structure together; it expires with its last entry."""
    if not 1 <= len(leases) <= LEASES_LIMIT:
        raise LeaseSetError(f"a Meta LeaseSet2 has 1 to {LEASES_LIMIT} entries, not {len(leases)}")
    if len({lease.destination_hash for lease in leases}) != len(leases):
        raise LeaseSetError("a destination appears twice among the entries")
    expires_after_s = max(lease.ends_s for lease in leases) - published_s
    if not 1 <= expires_after_s <= _EXPIRES_LIMIT_S:
        raise LeaseSetError(
            f"the last entry ends {expires_after_s} s after publication; 1 to {_EXPIRES_LIMIT_S} s can be written"
        )
    if offline is not None and offline.expires_s <= published_s:
        raise LeaseSetError("the transient signing key had expired before publication: have a new one signed")
    unsigned = MetaLeaseSet(
        destination=destination,
        published_s=published_s,
        expires_after_s=expires_after_s,
        leases=leases,
        flags=(0 if offline is None else OFFLINE_FLAG) | (UNPUBLISHED_FLAG if unpublished else 0),
        offline=offline,
        options=options or {},
    )
    _encode_unsigned(unsigned)
    return unsigned


def sign(unsigned: MetaLeaseSet, private_key: Ed25519PrivateKey) -> MetaLeaseSet:
    """Sign with the destination's key, or with the transient key that `unsigned.offline` names."""
    offline = unsigned.offline
    named_key = unsigned.destination.signing_key if offline is None else offline.transient_key
    if unsigned.signature_type != ED25519 or private_key.public_key().public_bytes_raw() != named_key:
        raise LeaseSetError("the private key does not belong to the key that the structure names as its signer")
    return replace(unsigned, signature=private_key.sign(unsigned.signed_part))


def verify(structure: MetaLeaseSet) -> Verification:
    """Check the signature and, before it, the destination's signature over a transient key.

    The expiry of a transient key is not checked here: that needs a clock, and a signature of last week is still valid.
    """
    offline = structure.offline
    if offline is None:
        signing_key, signed_by, expires_s = structure.destination.signing_key, "destination", None
    else:
        signing_key, signed_by, expires_s = offline.transient_key, "transient key", offline.expires_s
    involved = {structure.destination.signature_type, structure.signature_type}
    if strange := sorted(involved.difference(_VERIFIABLE)):
        names = ", ".join(SIGNATURE_TYPES.get(number, (f"type {number}", 0, 0))[0] for number in strange)
        reason = f"cannot verify signatures of {names}; Ed25519 and RedDSA can be checked here"
        return Verification(Verdict.CANNOT_VERIFY, reason, signed_by, expires_s)
    if offline is not None and not verify_offline(structure.destination, offline):
        reason = "the destination did not sign this transient key"
        return Verification(Verdict.BROKEN, reason, signed_by, expires_s)
    if not is_signed(signing_key, structure.signature, structure.signed_part):
        return Verification(Verdict.BROKEN, f"the signature is not the {signed_by}'s", signed_by, expires_s)
    return Verification(Verdict.HOLDS, f"signed by the {signed_by}", signed_by, expires_s)


def verify_offline(destination: Destination, offline: OfflineSignature) -> bool:
    """Return True if the destination signed the transient key and its expiry."""
    return destination.signature_type in _VERIFIABLE and is_signed(
        destination.signing_key, offline.signature, offline.signed_part
    )


def is_signed(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """Return True if the Ed25519 or RedDSA key signed the data."""
    # RedDSA signatures have the same verification equation as Ed25519 ones; only keys and nonces are made differently.
    # As in a Java router, the equation does not have the cofactor, and S is below the group's order.
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_acceptable_to_java_router(
    structure: MetaLeaseSet, now_s: int, previous: MetaLeaseSet | None = None
) -> list[str]:
    """Return the reasons why a Java router would refuse to keep or publish the structure; empty if it accepts it."""
    reasons: list[str] = []
    ends = [lease.ends_s for lease in structure.leases]
    if not 1 <= len(ends) <= LEASES_LIMIT:
        reasons.append(f"it has {len(ends)} entries; 1 to {LEASES_LIMIT} are allowed")
    if min([structure.published_s, *ends]) < now_s - _JAVA_AGE_LIMIT_S:
        reasons.append("its publication or its earliest end is more than 10 minutes ago")
    if structure.published_s > now_s + _JAVA_CLOCK_FUDGE_S:
        reasons.append(f"it is published {structure.published_s - now_s} s from now, more than {_JAVA_CLOCK_FUDGE_S} s")
    if max(ends, default=0) > now_s + _EXPIRES_LIMIT_S + _JAVA_CLOCK_FUDGE_S:
        reasons.append("its latest end is too far in the future")
    if previous is not None and structure.published_s <= previous.published_s:
        reasons.append("its timestamp is not after the timestamp of the replaced structure")
    if structure.is_unpublished:
        reasons.append("it is marked unpublished: a floodfill does not hand it out")
    reasons.extend(_rewritten_by_java(structure))
    if structure.offline is not None and structure.offline.expires_s <= now_s:
        reasons.append("the transient key that signed it has expired")
    verification = verify(structure)
    if verification.verdict is Verdict.BROKEN:
        reasons.append(verification.reason)
    return reasons


def _rewritten_by_java(structure: MetaLeaseSet) -> list[str]:
    """Return the parts that a Java router rewrites before the verification, which makes the signature invalid."""
    texts = [text for pair in structure.options.items() for text in pair]
    found = {
        "it has revocations": bool(structure.revocations),
        "an entry has upper flag bits": any(lease.flags >> 8 for lease in structure.leases),
        "an option is not plain ASCII": not all(text.isascii() for text in texts),
    }
    return [f"{what}, so a Java router cannot verify it" for what, there in found.items() if there]


def encode(structure: MetaLeaseSet) -> bytes:
    """Return the bytes of a signed structure."""
    expected_bytes = SIGNATURE_TYPES.get(structure.signature_type, ("", 0, len(structure.signature)))[2]
    if not structure.signature or len(structure.signature) != expected_bytes:
        raise LeaseSetError("the structure is not signed: sign it before it is encoded")
    return _encode_unsigned(structure) + structure.signature


def _encode_unsigned(structure: MetaLeaseSet) -> bytes:
    if (structure.offline is not None) != bool(structure.flags & OFFLINE_FLAG):
        raise LeaseSetError("the offline flag and the offline block do not agree")
    if any(len(revocation) != HASH_BYTES for revocation in structure.revocations):
        raise LeaseSetError(f"a revocation has {HASH_BYTES} bytes")
    try:
        parts = [
            structure.destination.encoded,
            structure.published_s.to_bytes(4, "big"),
            structure.expires_after_s.to_bytes(2, "big"),
            structure.flags.to_bytes(2, "big"),
            b"" if structure.offline is None else _encode_offline(structure.destination, structure.offline),
            encode_mapping(structure.options),
            bytes([len(structure.leases)]),
            *(_encode_lease(lease) for lease in structure.leases),
            bytes([len(structure.revocations)]),
            *structure.revocations,
        ]
    except OverflowError:
        raise LeaseSetError("a time, cost or flag of the structure does not fit its field") from None
    except ValueError as error:
        # A ValueError is either an I2pError, or the error of `bytes([256])` for a table that is too long.
        raise LeaseSetError(f"the structure cannot be written: {error}") from None
    return b"".join(parts)


def _encode_offline(destination: Destination, offline: OfflineSignature) -> bytes:
    # Both lengths are checked against the types, because a field of another length would shift all later fields.
    _, key_bytes, _ = SIGNATURE_TYPES.get(offline.signature_type, ("", 0, 0))
    _, _, signature_bytes = SIGNATURE_TYPES.get(destination.signature_type, ("", 0, 0))
    if (len(offline.transient_key), len(offline.signature)) != (key_bytes, signature_bytes) or not key_bytes:
        raise LeaseSetError(
            "the transient key or its signature by the destination does not have the length of its type"
        )
    return offline.signed_part + offline.signature


def _encode_lease(lease: MetaLease) -> bytes:
    if len(lease.destination_hash) != HASH_BYTES:
        raise LeaseSetError(f"an entry names its destination by {HASH_BYTES} bytes, not {len(lease.destination_hash)}")
    return (
        lease.destination_hash
        + lease.flags.to_bytes(3, "big")
        + lease.cost.to_bytes(1, "big")
        + lease.ends_s.to_bytes(4, "big")
    )


def decode(data: bytes) -> MetaLeaseSet:
    """Parse a structure that must fill `data` exactly; raise `LeaseSetError` only. It is not verified."""
    if len(data) > STRUCTURE_LIMIT_BYTES:
        raise LeaseSetError(f"a Meta LeaseSet2 has at most {STRUCTURE_LIMIT_BYTES} bytes, not {len(data)}")
    try:
        return _decode(FieldReader(data))
    except I2pError as error:
        raise LeaseSetError(str(error)) from None


def _decode(reader: FieldReader) -> MetaLeaseSet:
    destination = reader.destination()
    published_s = reader.number(4, "the publication time")
    expires_after_s = reader.number(2, "the expiry")
    flags = reader.number(2, "the flags")
    offline = _decode_offline(reader, destination) if flags & OFFLINE_FLAG else None
    options = reader.mapping()
    leases = tuple(_decode_lease(reader) for _ in range(reader.number(1, "the number of entries")))
    revocations = tuple(
        reader.take(HASH_BYTES, "a revocation") for _ in range(reader.number(1, "the number of revocations"))
    )
    structure = MetaLeaseSet(
        destination=destination,
        published_s=published_s,
        expires_after_s=expires_after_s,
        leases=leases,
        flags=flags,
        offline=offline,
        options=options,
        revocations=revocations,
        signature=reader.rest(),
    )
    # The length of a signature of an unknown type is unknown, so it gets all remaining bytes.
    _, _, expected_bytes = SIGNATURE_TYPES.get(structure.signature_type, ("", 0, len(structure.signature)))
    if not structure.signature or len(structure.signature) != expected_bytes:
        raise LeaseSetError(f"{len(structure.signature)} bytes remain for a signature of {expected_bytes} bytes")
    return structure


def _decode_offline(reader: FieldReader, destination: Destination) -> OfflineSignature:
    expires_s = reader.number(4, "the transient key's expiry")
    signature_type = reader.number(2, "the transient key's type")
    for number in (signature_type, destination.signature_type):
        if number not in SIGNATURE_TYPES:
            raise LeaseSetError(f"signature type {number} is unknown, so the length of the offline block is unknown")
    transient_key = reader.take(SIGNATURE_TYPES[signature_type][1], "the transient key")
    signature = reader.take(SIGNATURE_TYPES[destination.signature_type][2], "the offline signature")
    return OfflineSignature(expires_s, signature_type, transient_key, signature)


def _decode_lease(reader: FieldReader) -> MetaLease:
    return MetaLease(
        destination_hash=reader.take(HASH_BYTES, "an entry's hash"),
        flags=reader.number(3, "an entry's flags"),
        cost=reader.number(1, "an entry's cost"),
        ends_s=reader.number(4, "an entry's end"),
    )
