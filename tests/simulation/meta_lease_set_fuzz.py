"""Fuzzing of the Meta LeaseSet2 decoder: `python -m tests.simulation meta-lease-set-fuzz --count N`.

    a structure of the corpus ─▶ up to six mutations (bits, sizes, cuts, copies, splices)
                              ─▶ decode ─▶ encode ─▶ verify ─▶ describe

The checks of each input: only `LeaseSetError` is raised. A decoded structure is encoded to the same bytes. A signature
is valid only for signed bytes. The description is plain data. `fuzzing` checks all inputs: all four outcomes must
occur. A failing input is printed as hexadecimal, which `garlicfarm lease-set show -` reads.
"""

from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from bridge.api.json import decode as decode_json
from bridge.api.json import encode as encode_json
from bridge.api.lease_set_report import LeaseSetReport, describe, read_structure
from bridge.wire.i2p.meta_lease_set import (
    BLINDED_FLAG,
    STRUCTURE_LIMIT_BYTES,
    LeaseSetError,
    MetaLease,
    MetaLeaseSet,
    OfflineSignature,
    Verdict,
    build,
    decode,
    encode,
    verify,
)
from bridge.wire.i2p.structures import ED25519, RED_DSA, Destination, destination_from_bytes, ed25519_destination
from tests.simulation.fuzzing import FuzzError, Subject, mutated

NOW_S = 1_767_225_600
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
TRANSIENT = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
DESCRIBED_SHARE = 0.05
P256, P521, RSA_2048 = 1, 3, 4


def corpus() -> list[bytes]:
    """Return structures of every shape: key types, offline blocks, options, flags, entries and revocations."""
    key = KEY.public_key().public_bytes_raw()
    own = ed25519_destination(key, b"p" * 32)
    red = _with_certificate(own, RED_DSA)
    leases = tuple(MetaLease(bytes([number]) * 32, number, NOW_S + 900 + number) for number in range(16))
    block = OfflineSignature(NOW_S + 86_400, ED25519, TRANSIENT.public_key().public_bytes_raw(), b"")
    block = replace(block, signature=KEY.sign(block.signed_part))
    options = {"garlicfarm.demo": "true", "a": "", "ü": "x" * 200}
    structures = [
        build(own, NOW_S, leases[:1]),
        build(own, NOW_S, leases, options=options),
        build(own, NOW_S, leases[:3], offline=block, unpublished=True),
        build(red, NOW_S, leases[:2]),
        build(red, NOW_S, leases[:2], offline=block, options=options),
        replace(build(own, NOW_S, leases), revocations=(b"r" * 32,) * 4, flags=BLINDED_FLAG),
    ]
    signed = [_signed(each) for each in structures]
    unverifiable = (
        (_with_certificate(own, P256), 64),
        (_with_certificate(own, P521, bytes(4)), 132),
        (_with_certificate(own, RSA_2048, bytes(128)), 256),
        (_with_certificate(own, 99), 77),
        (destination_from_bytes(own.encoded[:384] + bytes(3)), 40),
    )
    signed += [
        replace(build(destination, NOW_S, leases[:2]), signature=b"s" * size) for destination, size in unverifiable
    ]
    return [encode(each) for each in signed]


def _with_certificate(destination: Destination, signature_type: int, excess: bytes = b"") -> Destination:
    payload = signature_type.to_bytes(2, "big") + bytes(2) + excess
    return destination_from_bytes(destination.encoded[:384] + b"\x05" + len(payload).to_bytes(2, "big") + payload)


def _signed(unsigned: MetaLeaseSet) -> MetaLeaseSet:
    # An Ed25519 signature is also a RedDSA one.
    key = KEY if unsigned.offline is None else TRANSIENT
    return replace(unsigned, signature=key.sign(unsigned.signed_part))


class MetaLeaseSets(Subject[bytes]):
    """The decoder, with its corpus."""

    expected = frozenset({"refused", *(verdict.value for verdict in Verdict)})

    def __init__(self) -> None:
        self.known = corpus()

    def make(self, random: Random) -> bytes:
        """Return one structure; half of all mutations affect only the parts after the destination's key fields."""
        data = random.choice(self.known)
        first = 384 if random.random() < 0.5 else 0
        return data[:first] + mutated(data[first:], random, self.known)

    def check(self, data: bytes, random: Random) -> str:
        try:
            structure = decode(data)
        except LeaseSetError:
            return "refused"
        if len(data) > STRUCTURE_LIMIT_BYTES:
            raise FuzzError("a structure above the size limit was accepted")
        if encode(structure) != data:
            raise FuzzError("it is encoded to other bytes")
        verification = verify(structure)
        if verification.holds and data not in self.known:
            raise FuzzError("a signature is valid for unsigned bytes")
        if data in self.known and verification.verdict is Verdict.BROKEN:
            raise FuzzError("a valid signature is rejected")
        if random.random() < DESCRIBED_SHARE:
            if decode_json(encode_json(found := describe(structure, NOW_S)), LeaseSetReport) != found:
                raise FuzzError("its description does not read back")
            if read_structure(data.hex().encode()) != data:
                raise FuzzError("its hexadecimal text is read as other bytes")
        return verification.verdict.value
