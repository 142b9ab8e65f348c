"""The stream that a farm's node sends to a router, for fixed keys and times."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.wire.i2p.destination_keys import MasterKey, SigningKey
from bridge.wire.i2p.i2cp import encode
from bridge.wire.i2p.i2cp_messages import (
    NO_SESSION,
    ClientMessage,
    CreateLeaseSet2,
    CreateSession,
    DestroySession,
    Disconnect,
    GetDate,
    HostLookup,
)
from bridge.wire.i2p.meta_lease_set import MetaLease, OfflineSignature
from bridge.wire.i2p.meta_lease_set import encode as encode_structure
from bridge.wire.i2p.structures import ED25519, ed25519_destination

SESSION = 4660
HASH = bytes(range(32))


def master() -> MasterKey:
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
    return MasterKey(ed25519_destination(key.public_key().public_bytes_raw(), bytes(range(0xA0, 0xC0))), key)


def keys(now_s: int) -> dict[str, SigningKey]:
    owner, transient = master(), Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    unsigned = OfflineSignature(now_s + 86_400, ED25519, transient.public_key().public_bytes_raw(), b"")
    offline = OfflineSignature(
        unsigned.expires_s, ED25519, unsigned.transient_key, owner.private_key.sign(unsigned.signed_part)
    )
    return {"master": owner.as_signing_key(), "transient": SigningKey(owner.destination, transient, offline)}


def stream(key: SigningKey, now_s: int) -> bytes:
    """Return all messages of a node to a Java router during a connection, without the first byte."""
    leases = tuple(MetaLease(bytes([number]) * 32, number, now_s + 900 + number) for number in range(3))
    sent: tuple[ClientMessage, ...] = (
        GetDate("0.9.64", {"i2cp.username": "farm", "i2cp.password": "word"}),
        CreateSession(key.sign_session(now_s * 1000)),
        CreateLeaseSet2(SESSION, encode_structure(key.sign(now_s, leases))),
        GetDate("0.9.64"),
        HostLookup(NO_SESSION, 5, 15_000, HASH),
        DestroySession(SESSION),
        Disconnect("the farm's node is done"),
    )
    return b"".join(encode(message) for message in sent)


def expected_output(key: SigningKey) -> list[str]:
    """Return the expected output of a reader of the stream."""
    address, offline = key.destination.address, str(key.offline is not None).lower()
    return [
        "GetDate version=0.9.64 options=2",
        f"CreateSession verifies=true destination={address} type=7 offline={offline}",
        f"CreateLeaseSet2 session={SESSION} type=7 verifies=true leases=3",
        "GetDate version=0.9.64 options=0",
        f"HostLookup session=65535 request=5 timeout=15000 hash={HASH.hex()}",
        f"DestroySession session={SESSION}",
        "Disconnect reason=the farm's node is done",
        "end",
    ]
