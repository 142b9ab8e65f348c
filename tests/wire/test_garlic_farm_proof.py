"""The proof of a handshake: its signed bytes, and its rejection in any other handshake."""

import hashlib
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec.structs import replace

from consensus.protocols.garlic_farm.wire.digest import Algorithm, Authorization
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.peers import Claim, ListedPeers
from consensus.protocols.garlic_farm.wire.proof import (
    ConnectionRole,
    Proof,
    ProofDirection,
    i2p_channel,
    parse_proof,
    tls_channel,
)
from consensus.protocols.garlic_farm.wire.upgrade import HandshakeExchange, Identity
from tests.effort import each_case

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
FIELDS: dict[str, Any] = dict(  # noqa: C408 - names of parameters
    direction=ProofDirection.REQUEST,
    role=ConnectionRole.SERVER,
    own_id=1,
    other_id=2,
    cluster_id="cluster-a",
    nonce="00ff",
    client_nonce="c0",
    nonce_count=10,
    channel=tls_channel(bytes(32)),
    offered="garlicfarm.raft.v1, garlicfarm.prevote.v1",
    chosen="",
    lease_ms=400,
    introductions=("first", "second"),
)
OTHER: dict[str, Any] = {
    "direction": ProofDirection.ANSWER,
    "role": ConnectionRole.CLIENT,
    "own_id": 3,
    "other_id": None,
    "cluster_id": "cluster-b",
    "nonce": "00fe",
    "client_nonce": "c1",
    "nonce_count": 11,
    "channel": i2p_channel("name.b32.i2p"),
    "offered": "garlicfarm.prevote.v1",
    "chosen": "garlicfarm.raft.v1",
    "lease_ms": None,
    "introductions": ("first",),
}


def signed(**changed: Any) -> bytes:
    """Return the signed bytes of the handshake with these fields, except the changed ones."""
    all_fields = FIELDS | changed
    channel, offered, nonce, client_nonce, count = (
        all_fields[name] for name in ("channel", "offered", "nonce", "client_nonce", "nonce_count")
    )
    login = Authorization("farm", "private", nonce, "/", count, client_nonce, Algorithm.SHA_256, "00")
    signer = Identity(*(all_fields[name] for name in ("cluster_id", "own_id", "lease_ms", "introductions")))
    others = (all_fields[name] for name in ("other_id", "direction", "role", "chosen"))
    return HandshakeExchange(login, channel, offered).signed_by(signer, *others)


def proof() -> Proof:
    return Proof(ConnectionRole.SERVER, PUBLIC, KEY.sign(signed()))


def test_signed_bytes_contain_all_fields_with_lengths() -> None:
    expected = b"garlic farm handshake 1\x00"
    for field in (
        b"request", b"server", b"1", b"2", b"cluster-a", b"00ff", b"c0", b"0000000a", b"tls " + b"00" * 32,
        b"garlicfarm.raft.v1, garlicfarm.prevote.v1", b"", b"400", hashlib.sha256(b"first,second").digest(),
    ):  # fmt: skip
        expected += len(field).to_bytes(2, "big") + field
    assert signed() == expected


def test_proof_round_trips_through_header() -> None:
    header = proof().header()
    assert header.startswith("1 server ")
    assert parse_proof(header) == proof()
    assert parse_proof(header).holds(signed())


@each_case("field", list(FIELDS))
def test_proof_is_invalid_if_one_field_differs(field: str) -> None:
    assert not proof().holds(signed(**{field: OTHER[field]}))


def test_proof_is_invalid_if_bytes_move_to_next_field() -> None:
    assert not proof().holds(signed(nonce="00", client_nonce="ffc0"))


def test_signature_of_another_key_is_invalid() -> None:
    other_key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    assert not replace(proof(), signature=other_key.sign(signed())).holds(signed())
    assert not replace(proof(), public_key=b"\xff" * 32).holds(signed()), "an invalid key cannot sign"


@pytest.mark.parametrize("sign", [0, 0x80])
def test_neutral_element_as_key_is_refused(sign: int) -> None:
    """OpenSSL accepts one signature for every text if public key and signature point are the neutral element."""
    key = bytes([1]) + bytes(30) + bytes([sign])
    forged = Proof(ConnectionRole.SERVER, key, bytes([1]) + bytes(63))
    if not sign:
        Ed25519PublicKey.from_public_bytes(key).verify(forged.signature, b"whatever")
    assert not forged.holds(signed())


@each_case(
    "header",
    [
        "",
        "1 server",
        proof().header().replace("1 ", "2 ", 1),
        proof().header().replace("server", "leader"),
        proof().header() + "=",
        proof().header() + " more",
        proof().header()[:-1],
        proof().header().replace("_", "/").replace("-", "+") + "A",
        " " + proof().header(),
        "1 server " + "A" * 42 + "B " + "A" * 86,
    ],
)
def test_invalid_proof_header_is_malformed(header: str) -> None:
    with pytest.raises(GarlicFarmError) as refused:
        parse_proof(header)
    assert refused.value.fault is Fault.MALFORMED


def test_field_beyond_65535_bytes_is_refused() -> None:
    with pytest.raises(GarlicFarmError, match="more than 65535 bytes"):
        signed(offered="x" * 65_536)


def test_i2p_channel_ignores_case() -> None:
    assert i2p_channel("Name.B32.I2P") == i2p_channel("name.b32.i2p")


def test_listed_peers_refuse_claims_of_unlisted_keys() -> None:
    unlisted = bytes(32)
    peers = ListedPeers(KEY, {2: PUBLIC})
    assert peers.judge(Claim(ConnectionRole.SERVER, PUBLIC, 2)) is None
    assert peers.judge(Claim(ConnectionRole.CLIENT, unlisted, None)) is None, "it does not claim an id"
    for claim in (Claim(ConnectionRole.SERVER, unlisted, 2), Claim(ConnectionRole.CLIENT, PUBLIC, 3)):
        refusal = peers.judge(claim)
        assert refusal is not None
        assert refusal.fault is Fault.UNKNOWN_IDENTITY
