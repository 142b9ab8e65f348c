"""The port by which a handshake asks whether a proven key may have the Raft id that it claims.

    handshake ── Claim(id, role, key, admissions) ──▶ PeerDirectory ──▶ None (it may) │ Refusal(fault, sentence)

This package knows keys and signatures. The embedding program knows which identity has which id: from a founding, a log
or a list. It also signs for its own server, so that the private key stays with it. `ListedPeers` is the directory of a
group whose keys are all known beforehand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole


@dataclass(frozen=True, slots=True)
class Claim:
    """A key that has signed the handshake, and what it wants to be taken for."""

    server_id: int | None
    """None: it claims no id, as before a cluster exists, and as a client that is no server."""
    role: ConnectionRole
    public_key: bytes
    admissions: tuple[bytes, ...] = ()
    """What it shows to a server whose log does not tell of it yet; opaque here, nearest first."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a claim does not hold. The text is for the operator: which peer, why, what to do."""

    fault: Fault
    text: str


@dataclass(frozen=True, slots=True)
class ProvenPeer:
    """The peer at the other end of a connection: its signature holds, and the directory accepts its claim."""

    role: ConnectionRole
    public_key: bytes
    server_id: int | None
    admissions: tuple[bytes, ...] = field(default=(), compare=False, repr=False)
    """What it showed: the directory judges it again when it knows more."""

    @property
    def claim(self) -> Claim:
        """The claim that was accepted."""
        return Claim(self.server_id, self.role, self.public_key, self.admissions)

    @property
    def is_member(self) -> bool:
        """Whether it has a Raft id, in whichever role. A key alone proves nothing: keys cost nothing to make."""
        return self.server_id is not None

    @property
    def is_server(self) -> bool:
        """Whether it may say what only a server says."""
        return self.role is ConnectionRole.SERVER and self.is_member


class PeerDirectory(Protocol):
    """Knows which keys belong to which ids. An answer counts for one handshake: ask again at the next."""

    @property
    def public_key(self) -> bytes:
        """The public key of the own identity (32 bytes)."""
        ...

    def sign(self, data: bytes) -> bytes:
        """An Ed25519 signature by the own identity (64 bytes)."""
        ...

    def admissions(self) -> tuple[bytes, ...]:
        """What to show to a server that does not know the own id yet, nearest first."""
        ...

    def judge(self, claim: Claim) -> Refusal | None:
        """Why this claim is refused; None if it is accepted."""
        ...

    def voucher_of(self, claim: Claim) -> bytes | None:
        """The identity on whose share an accepted peer counts; None if the peer has a share of its own.

        A peer that only another one's signature shows has none, or a member could make any number of peers.
        """
        ...


class ListedPeers:
    """The directory of servers whose public keys are known from the start; no server joins or is removed."""

    def __init__(self, key: Ed25519PrivateKey, keys: Mapping[int, bytes]) -> None:
        """`keys` are the public keys by Raft id; it may be filled later."""
        self._key = key
        self._keys = keys
        self._public_key = key.public_key().public_bytes_raw()

    @property
    def public_key(self) -> bytes:
        """The public key of the own identity."""
        return self._public_key

    def sign(self, data: bytes) -> bytes:
        """A signature by the own identity."""
        return self._key.sign(data)

    def admissions(self) -> tuple[bytes, ...]:
        """No server needs any."""
        return ()

    def judge(self, claim: Claim) -> Refusal | None:
        """Whether the list names this key for this id."""
        if claim.server_id is None or self._keys.get(claim.server_id) == claim.public_key:
            return None
        return Refusal(
            Fault.UNKNOWN_IDENTITY, f"server {claim.server_id} is not known by the key {claim.public_key.hex()[:16]}…"
        )

    def voucher_of(self, claim: Claim) -> bytes | None:
        """None: the list names every server."""
        del claim
        return None
