"""A gossip key sealed to one identity, and a signed offer of the key from another member."""

from hashlib import sha512

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.log.fields import BOX_BYTES
from bridge.wire.keys.box import OFFER_BYTES, EraKey, KeyBoxError, open_key, read_offer, seal_key, sign_offer
from gossip.wire.box import x25519_public
from gossip.wire.identity import node_id_of
from tests.effort import each_case

LABEL = b"the farm"
CONTENT = EraKey(3, 17, bytes(range(32)))


def identity(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def public(number: int) -> bytes:
    return identity(number).public_key().public_bytes_raw()


def test_box_opens_only_for_recipient_in_its_farm() -> None:
    box = seal_key(CONTENT, public(1), LABEL)
    assert len(box) == BOX_BYTES
    assert open_key(box, identity(1), LABEL) == CONTENT
    assert CONTENT.key not in box
    for other, label in ((identity(2), LABEL), (identity(1), b"another!")):
        with pytest.raises(KeyBoxError, match="sealed for another node"):
            open_key(box, other, label)


def test_boxes_of_one_key_differ_completely() -> None:
    first, second = (seal_key(CONTENT, public(1), LABEL) for _ in range(2))
    assert first[:32] != second[:32]
    assert first[32:] != second[32:]


@given(st.binary(min_size=32, max_size=32))
def test_x25519_public_key_matches_secret_scalar(seed: bytes) -> None:
    signing = Ed25519PrivateKey.from_private_bytes(seed)
    scalar = sha512(seed).digest()[:32]
    expected = X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw()
    assert x25519_public(signing.public_key().public_bytes_raw()) == expected


@each_case(
    "weak", [bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little"), b"\xff" * 32, b"short"]
)
def test_weak_public_keys_are_refused(weak: bytes) -> None:
    with pytest.raises(KeyBoxError):
        seal_key(CONTENT, weak, LABEL)


@given(st.binary(max_size=2 * BOX_BYTES))
def test_random_bytes_raise_key_box_error(rubbish: bytes) -> None:
    with pytest.raises(KeyBoxError):
        open_key(rubbish, identity(1), LABEL)
    with pytest.raises(KeyBoxError):
        read_offer(rubbish, bytes(8), LABEL)


def test_offer_is_bound_to_signer_and_recipient() -> None:
    box, recipient = seal_key(CONTENT, public(1), LABEL), node_id_of(public(1))
    offer = sign_offer(box, recipient, LABEL, identity(2))
    assert len(offer) == OFFER_BYTES <= 256
    read = read_offer(offer, recipient, LABEL)
    assert (read.box, read.sponsor) == (box, node_id_of(public(2)))
    with pytest.raises(KeyBoxError, match="not its author's"):
        read_offer(offer, node_id_of(public(3)), LABEL)
    with pytest.raises(KeyBoxError, match="not its author's"):
        read_offer(offer[:BOX_BYTES] + public(3) + offer[BOX_BYTES + 32 :], recipient, LABEL)
    for place in range(0, OFFER_BYTES, 7):
        damaged = bytearray(offer)
        damaged[place] ^= 0x10
        with pytest.raises(KeyBoxError):
            read_offer(bytes(damaged), recipient, LABEL)
