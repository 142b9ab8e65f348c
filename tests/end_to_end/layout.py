"""A reader and verifier of Meta LeaseSet2s that uses only the layout and Ed25519, independent of the code under test.

destination (384 + certificate) │ published 4 │ expires 2 │ flags 2 │ offline block │ options │ count │ entries
entry: hash 32 │ flags 3 │ cost 1 │ end 4                            │ revocations 1 │ signature 64
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ED25519 = 7
KEYS_BYTES = 384
SIGNATURE_BYTES = 64
ENTRY_BYTES = 40


@dataclass(frozen=True)
class Read:
    """The content of a structure with two valid signatures."""

    destination: bytes
    published_s: int
    entries: tuple[bytes, ...]
    """Hashes of the destinations."""
    ends_s: int
    """The earliest end of an entry, or of the structure, in seconds."""

    @property
    def hash(self) -> bytes:
        """Return the hash of the destination, the key of a look-up."""
        return sha256(self.destination).digest()


def read_meta_lease_set(path: Path) -> Read:
    """Read and verify a file; raise InvalidSignature, or AssertionError for bytes with another layout."""
    content = path.read_bytes()

    def number(at: int, size: int) -> int:
        return int.from_bytes(content[at : at + size], "big")

    certificate_bytes = number(KEYS_BYTES + 1, 2)
    assert (content[KEYS_BYTES], number(KEYS_BYTES + 3, 2)) == (5, ED25519)
    at = KEYS_BYTES + 3 + certificate_bytes
    destination = content[:at]
    published_s, flags = number(at, 4), number(at + 6, 2)
    expires_s = published_s + number(at + 4, 2)
    at += 8
    assert flags == 1, "an offline block, and nothing else"
    block = content[at : at + 4 + 2 + 32]
    transient_expires_s, transient_type = number(at, 4), number(at + 4, 2)
    block_signature = content[at + 38 : at + 38 + SIGNATURE_BYTES]
    assert transient_type == ED25519
    assert transient_expires_s > published_s
    at += 38 + SIGNATURE_BYTES
    at += 2 + number(at, 2)
    count = content[at]
    at += 1
    entries = tuple(content[at + n * ENTRY_BYTES : at + n * ENTRY_BYTES + 32] for n in range(count))
    ends_s = (number(at + n * ENTRY_BYTES + 36, 4) for n in range(count))
    earliest_end_s = min((expires_s, *ends_s))
    at += count * ENTRY_BYTES
    assert content[at] == 0, "no revocations"
    assert len(content) == at + 1 + SIGNATURE_BYTES

    master_key = Ed25519PublicKey.from_public_bytes(destination[KEYS_BYTES - 32 : KEYS_BYTES])
    master_key.verify(block_signature, block)
    transient_key = Ed25519PublicKey.from_public_bytes(block[6:])
    transient_key.verify(content[-SIGNATURE_BYTES:], b"\x07" + content[:-SIGNATURE_BYTES])
    return Read(destination, published_s, entries, earliest_end_s)
