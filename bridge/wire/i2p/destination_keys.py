"""Keys of the master destination: the farm's identity, and the short-lived keys that sign for it on the nodes.

    master key file (offline)                    signing key file (one per node)
    destination, private key   ── sign_transient ──▶   destination, transient private key, offline block, expiry,
                                                       session configuration

A holder of the master's private key can publish as the farm permanently. So this key is not on the nodes: each node has
its own transient key, which the master signed for some days (30 by default). A thief of a node can use the node's key
only until it expires. A farm without an offline machine may put the master key file on its nodes: they accept it as a
signing key.

i2pd opens a session only if the master key has signed the session's configuration (`bridge.wire.i2p.i2cp_session`). So
the master key signs a session configuration when it signs a transient key. Key files of older versions do not contain a
session configuration.

The keys of a demonstration carry a mark. Every structure signed with them repeats the mark as an option, so that no
node hands the structure to a router of the real network.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta, Struct
from msgspec.structs import replace

from bridge.core.publishing.entries import LeafEntry
from bridge.wire.i2p.i2cp_session import META_SESSION_OPTIONS, SessionConfig, decode_session, offline_options
from bridge.wire.i2p.meta_lease_set import (
    DEMO_OPTION,
    MetaLease,
    MetaLeaseSet,
    OfflineSignature,
    build,
    encode,
    sign,
    verify_offline,
)
from bridge.wire.i2p.structures import (
    ED25519,
    PADDING_SEED_BYTES,
    Destination,
    I2pError,
    base64_decode,
    base64_encode,
    destination_from_base64,
    ed25519_destination,
)
from bridge.wire.keys.text import KeyTextError, decode_key, encode_key, other_version, parse

VERSION: Final = 1
TRANSIENT_LIFE_S: Final = 30 * 86_400
TRANSIENT_ALARM_S: Final = 7 * 86_400
_SIGNATURE_BYTES: Final = 64


class DestinationKeyError(ValueError):
    """The text is not a key file of a destination. The message never contains key material."""


class MasterKey(Struct, frozen=True):
    """The master destination with its private key."""

    destination: Destination
    private_key: Ed25519PrivateKey
    demo: bool = False

    def __repr__(self) -> str:
        return f"MasterKey({self.destination.address}, demo={self.demo})"

    def sign_transient(self, now_s: int, life_s: int = TRANSIENT_LIFE_S) -> "SigningKey":
        """Make a transient key for one node, and sign it and a session configuration with the master key."""
        expires_s = now_s + life_s
        if life_s <= 0 or not 0 <= expires_s < 1 << 32:
            raise DestinationKeyError(f"a transient key cannot end at second {expires_s}, {life_s} s from now")
        transient = Ed25519PrivateKey.generate()
        unsigned = OfflineSignature(expires_s, ED25519, transient.public_key().public_bytes_raw(), b"")
        offline = replace(unsigned, signature=self.private_key.sign(unsigned.signed_part))
        session = self.as_signing_key().sign_session(now_s * 1000)
        return SigningKey(self.destination, transient, offline, self.demo, session)

    def as_signing_key(self) -> "SigningKey":
        """Return the master key as a node's signing key, for farms that cannot keep it elsewhere."""
        return SigningKey(self.destination, self.private_key, None, self.demo)


class SigningKey(Struct, frozen=True):
    """A node's signing key: a transient key signed by the master; or the master key itself, without `offline`."""

    destination: Destination
    private_key: Ed25519PrivateKey
    offline: OfflineSignature | None
    demo: bool = False
    session: SessionConfig | None = None
    """With a transient key: a session configuration that the master signed, for i2pd."""

    def __repr__(self) -> str:
        return f"SigningKey({self.destination.address}, expires_s={self.expires_s}, demo={self.demo})"

    @property
    def expires_s(self) -> int | None:
        """The expiration of the key, in seconds since the epoch; None for a master key."""
        return None if self.offline is None else self.offline.expires_s

    @property
    def can_sign_until_s(self) -> int:
        """The expiration of the key, in seconds since the epoch; the largest timestamp if it does not expire."""
        return (1 << 32) - 1 if self.offline is None else self.offline.expires_s

    def publication(self, published_s: int, entries: Sequence[LeafEntry]) -> bytes:
        """Return the signed structure of an accepted publication, for the router."""
        leases = tuple(
            MetaLease(destination_from_base64(entry.destination).hash, entry.cost, entry.end_s) for entry in entries
        )
        return encode(self.sign(published_s, leases))

    def sign(self, published_s: int, leases: tuple[MetaLease, ...]) -> MetaLeaseSet:
        """Build and sign a Meta LeaseSet2 of the destination."""
        options = dict([DEMO_OPTION]) if self.demo else {}
        return sign(
            build(self.destination, published_s, leases, offline=self.offline, options=options), self.private_key
        )

    def sign_session(self, created_ms: int, options: Mapping[str, str] = META_SESSION_OPTIONS) -> SessionConfig:
        """Return the configuration of a session for the destination, signed by this key."""
        complete = {**options, **({} if self.offline is None else offline_options(self.offline))}
        return SessionConfig(self.destination, complete, created_ms).signed(self.private_key)


def new_master_key(*, demo: bool = False) -> MasterKey:
    """Make a new destination at random."""
    private_key = Ed25519PrivateKey.generate()
    destination = ed25519_destination(private_key.public_key().public_bytes_raw(), os.urandom(PADDING_SEED_BYTES))
    return MasterKey(destination, private_key, demo)


class _Offline(Struct, forbid_unknown_fields=True):
    expires: Annotated[int, Meta(ge=0, lt=2**32)]
    signature: str
    session: str | None = None


class _DestinationFile(Struct, forbid_unknown_fields=True):
    version: int
    kind: Literal["master", "transient"]
    destination: str
    private_key: str
    demo: bool = False
    offline: _Offline | None = None

    def __repr__(self) -> str:
        # The repr of a Struct would show the key.
        return f"_DestinationFile({self.kind})"


def parse_master_key(text: str) -> MasterKey:
    """Read a master key file."""
    try:
        file = _parse(text)
        if file.kind != "master" or file.offline is not None:
            raise DestinationKeyError(
                'this is a transient signing key file; the master key file is needed here (it has kind = "master")'
            )
        return _master(file)
    except (KeyTextError, I2pError) as error:
        raise DestinationKeyError(f"the key file cannot be used: {error}") from None


def parse_signing_key(text: str) -> SigningKey:
    """Return the signing key from the text of a signing key file or of a master key file.

    Verify the master's signature of a transient key.
    """
    try:
        file = _parse(text)
        if file.kind == "master":
            return _master(file).as_signing_key()
        return _transient(file)
    except (KeyTextError, I2pError) as error:
        raise DestinationKeyError(f"the key file cannot be used: {error}") from None


def master_key_text(key: MasterKey) -> str:
    """Return the text of a master key file."""
    return (
        f"# The master key of {key.destination.address}. A holder of this file can act as that destination"
        " permanently.\n# Keep it off the nodes and back it up: nothing can replace it.\n"
        + _text("master", key.destination, key.private_key, demo=key.demo)
    )


def signing_key_text(key: SigningKey) -> str:
    """Return the text of one node's signing key file."""
    if key.offline is None:
        return master_key_text(MasterKey(key.destination, key.private_key, key.demo))
    end = datetime.fromtimestamp(key.offline.expires_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"# A transient signing key of {key.destination.address}, for one router. It ends {end}.\n"
        + _text("transient", key.destination, key.private_key, demo=key.demo)
        + "\n[offline]\n"
        f"expires = {key.offline.expires_s}\n"
        f'signature = "{encode_key(key.offline.signature)}"\n'
        + ("" if key.session is None else f'session = "{base64_encode(key.session.encoded)}"\n')
    )


def _text(kind: str, destination: Destination, private_key: Ed25519PrivateKey, *, demo: bool) -> str:
    return (
        f"version = {VERSION}\n"
        f'kind = "{kind}"\n'
        f"demo = {str(demo).lower()}\n"
        f'destination = "{destination.base64}"\n'
        f'private_key = "{encode_key(private_key.private_bytes_raw())}"\n'
    )


def _parse(text: str) -> _DestinationFile:
    file = parse(text, _DestinationFile, "key file of a destination")
    if file.version != VERSION:
        raise KeyTextError(f"it {other_version(file.version, VERSION)}")
    return file


def _private_key(file: _DestinationFile) -> tuple[Destination, Ed25519PrivateKey]:
    destination = destination_from_base64(file.destination)
    if destination.signature_type != ED25519:
        raise KeyTextError(
            f"the destination signs with type {destination.signature_type}; only Ed25519 (7) can be used"
        )
    return destination, Ed25519PrivateKey.from_private_bytes(decode_key(file.private_key, "private_key"))


def _master(file: _DestinationFile) -> MasterKey:
    destination, private_key = _private_key(file)
    if private_key.public_key().public_bytes_raw() != destination.signing_key:
        raise KeyTextError("`private_key` does not belong to `destination`")
    return MasterKey(destination, private_key, file.demo)


def _transient(file: _DestinationFile) -> SigningKey:
    destination, private_key = _private_key(file)
    if file.offline is None:
        raise KeyTextError("the [offline] table with the master's signature is missing")
    offline = OfflineSignature(
        file.offline.expires,
        ED25519,
        private_key.public_key().public_bytes_raw(),
        decode_key(file.offline.signature, "offline.signature", _SIGNATURE_BYTES),
    )
    if not verify_offline(destination, offline):
        raise KeyTextError(
            "the master did not sign this key and expiry; make a new key on the machine with the master key"
        )
    session = None if file.offline.session is None else _session(destination, file.offline.session)
    return SigningKey(destination, private_key, offline, file.demo, session)


def _session(destination: Destination, text: str) -> SessionConfig:
    session = decode_session(base64_decode(text))
    if session.destination != destination or not session.is_signed_by_destination:
        raise KeyTextError(
            "the master did not sign `offline.session`; make a new key on the machine with the master key"
        )
    return session
