"""The handshake's interface to check that a proven key may have the Raft id that it claims.

    handshake ── Claim(role, key, id, admissions) ──▶ PeerDirectory ──▶ None (it may) │ Refusal(fault, sentence)

This package handles keys and signatures. The embedding program maps identities to ids: from a founding, a log or a
list. It also signs for its own server, so that the private key stays with it. `ListedPeers` is the directory of a group
with a complete list of keys.
"""

from collections.abc import Mapping
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole


class Claim(Struct, frozen=True):
    """A key that has signed the handshake, and its claim."""

    role: ConnectionRole
    public_key: bytes
    server_id: int | None
    """The claimed id; None before a cluster exists, or for a client that is not a server."""
    admissions: tuple[bytes, ...] = ()
    """Admissions for a server whose log does not contain the key yet; not decoded here.

    The first admits this key, and each further admission admits the signer of the admission before.
    """

    @property
    def is_member(self) -> bool:
        """Return True if it has a Raft id, in any role. A key alone proves nothing, because anyone can make keys."""
        return self.server_id is not None

    @property
    def is_server(self) -> bool:
        """Return True if it may send messages of servers."""
        return self.role is ConnectionRole.SERVER and self.is_member


class ProvenPeer(Claim, frozen=True):
    """The peer at the other end of a connection: its signature holds, and the directory accepts its claim.

    The directory checks the admissions again when it has more data.
    """


class Refusal(Struct, frozen=True):
    """Reason for refusing a claim. The text is for the operator: peer, reason, remedy."""

    fault: Fault
    text: str


class PeerDirectory(Protocol):
    """Maps keys to ids. A result is valid for one handshake only."""

    @property
    def public_key(self) -> bytes:
        """The public key of the own identity (32 bytes)."""
        ...

    def sign(self, data: bytes) -> bytes:
        """Return an Ed25519 signature by the own identity (64 bytes)."""
        ...

    def admissions(self) -> tuple[bytes, ...]:
        """Return the admissions for a server whose log does not contain this server yet, as in `Claim.admissions`."""
        ...

    def judge(self, claim: Claim) -> Refusal | None:
        """Return the reason why this claim is refused; None if it is accepted."""
        ...

    def voucher_of(self, claim: Claim) -> bytes | None:
        """Return the identity against whose limit of connections an accepted peer counts; None if it has its own limit.

        A peer that only another member's signature introduces does not have its own limit, because a member could
        invent any number of peers.
        """
        ...


class ListedPeers:
    """The directory of servers with a fixed list of public keys; no server joins or is removed."""

    def __init__(self, key: Ed25519PrivateKey, keys: Mapping[int, bytes]) -> None:
        """Make a directory; `keys` maps Raft ids to public keys, and may be filled until the first handshake."""
        self._key = key
        self._keys = keys
        self._public_key = key.public_key().public_bytes_raw()

    @property
    def public_key(self) -> bytes:
        """The public key of the own identity."""
        return self._public_key

    def sign(self, data: bytes) -> bytes:
        """Return a signature by the own identity."""
        return self._key.sign(data)

    def admissions(self) -> tuple[bytes, ...]:
        """Return an empty tuple: no server needs admissions."""
        return ()

    def judge(self, claim: Claim) -> Refusal | None:
        """Return None if the claim lacks an id, or the list has this key for the claimed id; else a refusal."""
        if claim.server_id is None or self._keys.get(claim.server_id) == claim.public_key:
            return None
        return Refusal(
            Fault.UNKNOWN_IDENTITY,
            f"the key {claim.public_key.hex()[:16]}… is not the listed key of server {claim.server_id}",
        )

    def voucher_of(self, claim: Claim) -> bytes | None:
        """Return None: the list names every server."""
        del claim
        return None
