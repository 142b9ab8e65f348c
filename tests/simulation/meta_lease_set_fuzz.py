"""Fuzzing of the Meta LeaseSet2 decoder: `python -m tests.simulation meta-lease-set-fuzz --count N`.

    a structure of the corpus ─▶ up to six mutations (bits, sizes, cuts, copies, splices)
                              ─▶ decode ─▶ encode ─▶ verify ─▶ describe

What must hold for each input: nothing is raised but `LeaseSetError`; what was decoded is encoded to the very same
bytes; a signature holds only over bytes that were signed; the description is plain data. And for all of them: the
process stays within its memory, no input takes long, and all four outcomes occur, for a fuzz that never gets past the
first field says nothing. A failing input is printed as hexadecimal, which `garlicfarm lease-set show -` reads.
"""

import argparse
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.wire.i2p import ED25519, RED_DSA, Destination, destination_from_bytes, ed25519_destination
from bridge.wire.lease_set_report import describe, read_structure
from bridge.wire.meta_lease_set import (
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

NOW_S = 1_767_225_600
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
TRANSIENT = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
MUTATIONS_MAX = 6
OUTCOMES = frozenset({"refused", *(verdict.value for verdict in Verdict)})
SIZES = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)
MEMORY_GROWTH_LIMIT_MIB = 32
SLOWEST_LIMIT_S = 1.0
"""A thousand times what an input takes: only a decoder whose work explodes reaches it."""
DESCRIBED_SHARE = 0.05
P256, P521, RSA_2048 = 1, 3, 4


class FuzzError(AssertionError):
    """Something that must hold did not."""


@dataclass(slots=True)
class Tally:
    """What became of the inputs."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    """Processor time of the slowest input."""

    def lines(self) -> list[str]:
        """For the report."""
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.outcomes.items()))
        return [
            f"{self.inputs:,} inputs: {outcomes}",
            f"slowest input {self.slowest_s * 1000:.1f} ms of processor time",
        ]


def corpus() -> list[bytes]:
    """Structures of every shape: types of keys, offline blocks, options, flags, numbers of entries and revocations."""
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
    # An Ed25519 signature is a RedDSA one as well.
    key = KEY if unsigned.offline is None else TRANSIENT
    return replace(unsigned, signature=key.sign(unsigned.signed_part))


def mutated(known: Sequence[bytes], random: Random) -> bytes:
    """One input. Some stay as they are, so that what must be accepted is seen to be."""
    data = bytearray(random.choice(known))
    for _ in range(random.randint(0, MUTATIONS_MAX)):
        _mutate(data, known, random)
    return bytes(data)


def _mutate(data: bytearray, known: Sequence[bytes], random: Random) -> None:
    # Half of all mutations go behind the key fields of the destination, where the structure is.
    first = min(384, len(data)) if random.random() < 0.5 else 0
    at = random.randint(first, len(data))
    match random.randrange(8):
        case 0 if at < len(data):
            data[at] ^= 1 << random.randrange(8)
        case 1 if at < len(data):
            data[at] = random.choice(SIZES)
        case 2 if at + 1 < len(data):
            data[at : at + 2] = random.choice((b"\0\0", b"\xff\xff", random.randbytes(2)))
        case 3:
            del data[at:]
        case 4:
            data[at:at] = random.randbytes(random.choice((1, 2, 32, 40, 64)))
        case 5:
            size = random.choice((1, 32, 40, 64))
            del data[at : at + size]
        case 6:
            other = random.choice(known)
            data[at:] = other[random.randint(0, len(other)) :]
        case _:
            data += random.choice((b"", bytes(random.choice((1, 64, 65_536))), data[at:]))


def check(data: bytes, known: frozenset[bytes], random: Random) -> str:
    """The outcome of one input; raises `FuzzError`, or whatever the decoder should not have raised."""
    try:
        structure = decode(data)
    except LeaseSetError:
        return "refused"
    if len(data) > STRUCTURE_LIMIT_BYTES:
        raise FuzzError("more bytes than a structure may have were taken")
    if encode(structure) != data:
        raise FuzzError("it is encoded to other bytes")
    verification = verify(structure)
    if verification.holds and data not in known:
        raise FuzzError("a signature holds over bytes that nobody signed")
    if data in known and verification.verdict is Verdict.BROKEN:
        raise FuzzError("a good signature does not hold")
    if random.random() < DESCRIBED_SHARE:
        found = describe(structure, NOW_S)
        if json.loads(json.dumps(found)) != found:
            raise FuzzError("its description is not plain data")
        if read_structure(data.hex().encode()) != data:
            raise FuzzError("its hexadecimal text is read as something else")
    return verification.verdict.value


def fuzz(seed: int, count: int, tally: Tally) -> None:
    """`count` inputs; a failure names the seed and the input."""
    random = Random(seed)
    known = corpus()
    known_set = frozenset(known)
    for _ in range(count):
        data = mutated(known, random)
        began = time.process_time()
        try:
            outcome = check(data, known_set, random)
        except Exception as error:
            raise FuzzError(f"seed {seed}: {type(error).__name__}: {error}: {data.hex()}") from error
        tally.slowest_s = max(tally.slowest_s, time.process_time() - began)
        tally.inputs += 1
        tally.outcomes[outcome] += 1


def main(arguments: Sequence[str]) -> int:
    """Fuzz; 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation meta-lease-set-fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default 0)")
    options = parser.parse_args(arguments)
    tally = Tally()
    began = time.monotonic()
    try:
        fuzz(options.seed, options.count // 10, tally)
        settled_mib = _resident_mib()
        fuzz(options.seed + 1, options.count - tally.inputs, tally)
    except FuzzError as error:
        _say([str(error), *tally.lines()])
        return 1
    grown_mib = _resident_mib() - settled_mib
    _say([*tally.lines(), f"{time.monotonic() - began:.0f} s; memory at most {_resident_mib():.0f} MiB"])
    _say([f"memory grew by {grown_mib:.1f} MiB over the last nine tenths (limit {MEMORY_GROWTH_LIMIT_MIB})"])
    if missing := sorted(OUTCOMES - tally.outcomes.keys()):
        _say([f"never seen: {', '.join(missing)}: these inputs say too little"])
        return 1
    return 0 if grown_mib <= MEMORY_GROWTH_LIMIT_MIB and tally.slowest_s <= SLOWEST_LIMIT_S else 1


def _resident_mib() -> float:
    """The most memory that this process had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
