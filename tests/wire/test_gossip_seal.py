"""Sealed datagrams: only nodes of the farm can read or write them, and each datagram is accepted once."""

import random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gossip.core.keyring import Keyring, farm_label, key_id
from gossip.core.member import NodeId
from gossip.wire.box import box
from gossip.wire.seal import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    VERSION,
    WINDOW,
    Envelope,
    Opened,
    RefusedError,
    Sealed,
    SealFault,
    Unsealed,
)
from tests.memory import peak_bytes

KEY, NEXT_KEY, FOREIGN_KEY = b"1" * 32, b"2" * 32, b"3" * 32
RING = Keyring.of(KEY)
PING = b"\x43" + b"a body of some length"
BORIS_KEY = Ed25519PrivateKey.from_private_bytes(b"boris".ljust(32)).public_key().public_bytes_raw()


def node(name: str, ring: Keyring = RING, salt_limit: int = 64) -> Sealed:
    return Sealed(ring, name.encode().ljust(16), NodeId(name.encode()[:8].ljust(8)), salt_limit)


def refusal(receiver: Envelope, datagram: bytes) -> SealFault:
    with pytest.raises(RefusedError) as caught:
        receiver.open(datagram)
    return caught.value.reason


def test_sealed_datagram_opens_at_another_node() -> None:
    datagram = node("alice").seal(PING)
    assert node("boris").open(datagram) == Opened(PING)
    assert len(datagram) == len(PING) + OVERHEAD_BYTES
    assert PING[1:] not in datagram


def test_sealed_datagram_has_documented_layout() -> None:
    datagram = node("alice").seal(PING)
    header, sealed = datagram[:38], datagram[38:]
    salt = b"alice".ljust(16)
    assert header == b"\x43\x01" + farm_label(KEY) + key_id(KEY) + salt + (1).to_bytes(8, "big")
    key = HKDF(SHA256(), 32, salt, b"garlic farm, gossip 1: datagram").derive(KEY)
    assert ChaCha20Poly1305(key).decrypt(bytes(4) + (1).to_bytes(8, "big"), sealed, header) == bytes(8) + PING[1:]


def test_datagrams_never_share_key_and_nonce() -> None:
    alice = node("alice")
    sealed = [alice.seal(PING), alice.seal(PING), node("alice again").seal(PING)]
    assert len({datagram[14:HEADER_BYTES] for datagram in sealed}) == 3
    assert len({datagram[HEADER_BYTES:] for datagram in sealed}) == 3


def test_datagram_of_another_farm_has_its_own_fault() -> None:
    assert refusal(node("boris"), node("outsider", Keyring.of(FOREIGN_KEY)).seal(PING)) is SealFault.OTHER_FARM
    same_label = Keyring.of(FOREIGN_KEY, label=RING.label)
    assert refusal(node("boris"), node("outsider", same_label).seal(PING)) is SealFault.UNKNOWN_KEY


def test_datagram_with_changed_bit_is_refused() -> None:
    datagram = node("alice").seal(PING)
    boris = node("boris")
    for position in range(len(datagram)):
        for bit in range(8):
            changed = bytearray(datagram)
            changed[position] ^= 1 << bit
            expected = {SealFault.OTHER_FARM, SealFault.UNKNOWN_KEY, SealFault.BAD_SEAL}
            assert refusal(boris, bytes(changed)) in ({SealFault.FOREIGN_VERSION} if position == 1 else expected)
    assert boris.open(datagram) == Opened(PING)


def test_truncated_datagram_is_refused() -> None:
    datagram = node("alice").seal(PING)
    for length in range(len(datagram)):
        assert refusal(node("boris"), datagram[:length]) in {SealFault.SHORT, SealFault.BAD_SEAL}


def test_repeated_datagram_is_replay() -> None:
    alice, boris = node("alice"), node("boris")
    first, second = alice.seal(PING), alice.seal(PING)
    boris.open(second)
    boris.open(first)
    assert refusal(boris, first) is SealFault.REPLAY
    assert refusal(boris, second) is SealFault.REPLAY


def test_datagrams_are_accepted_in_any_order_within_window() -> None:
    seed = random.randrange(2**32)
    alice, boris = node("alice"), node("boris")
    datagrams = [alice.seal(PING) for _ in range(WINDOW + 1)]
    oldest, rest = datagrams[0], datagrams[1:]
    random.Random(seed).shuffle(rest)
    for datagram in rest:
        boris.open(datagram)
    assert {refusal(boris, datagram) for datagram in rest} == {SealFault.REPLAY}, f"random seed {seed}"
    assert refusal(boris, oldest) is SealFault.REPLAY


def test_own_datagram_is_echo() -> None:
    alice = node("alice")
    assert refusal(alice, alice.seal(PING)) is SealFault.ECHO


def test_replay_memory_is_bounded_and_ignores_forgeries() -> None:
    boris = node("boris", salt_limit=4)
    first = node("alice").seal(PING)
    boris.open(first)
    for number in range(50):
        refusal(boris, node(f"forger {number}").seal(PING)[:-1] + b"\x00")
    assert len(boris._salts) == 1
    assert refusal(boris, first) is SealFault.REPLAY
    for number in range(50):
        boris.open(node(f"member {number}").seal(PING))
    assert len(boris._salts) == 4


def test_forged_counter_does_not_move_window() -> None:
    alice, boris = node("alice"), node("boris")
    boris.open(alice.seal(PING))
    forged = bytearray(alice.seal(PING))
    forged[HEADER_BYTES - 8 : HEADER_BYTES] = b"\xff" * 8
    assert refusal(boris, bytes(forged)) is SealFault.BAD_SEAL
    boris.open(alice.seal(PING))


def test_both_keys_open_during_rotation() -> None:
    old, new = Keyring.of(KEY, others=(NEXT_KEY,)), Keyring.of(NEXT_KEY, others=(KEY,), label=RING.label)
    assert node("boris", new).open(node("alice", old).seal(PING)) == Opened(PING, outdated_key_id=key_id(KEY))
    assert node("alice", old).open(node("boris", new).seal(PING)).plain == PING


def test_retired_key_opens_only_join_requests() -> None:
    rotated = node("seed", Keyring.of(NEXT_KEY, retired=(KEY,), label=RING.label))
    latecomer = node("latecomer")
    assert refusal(rotated, latecomer.seal(PING)) is SealFault.RETIRED_KEY
    opened = rotated.open(latecomer.seal(b"\x3fjoin"))
    assert opened == Opened(b"\x3fjoin", key_id(KEY))
    nak = rotated.seal(b"\x42nak", reply_key_id=opened.retired_key_id)
    assert latecomer.open(nak) == Opened(b"\x42nak")


def test_random_bytes_are_refused_in_bounded_memory() -> None:
    seed = random.randrange(2**32)
    dice, boris = random.Random(seed), node("boris")
    prefix = b"\x43" + RING.label + key_id(KEY)

    def refuse_random_bytes() -> None:
        for number in range(2000):
            rubbish = dice.randbytes(dice.randrange(200))
            refusal(boris, rubbish if number % 2 else prefix + rubbish)

    assert peak_bytes(refuse_random_bytes) < 1_000_000, f"random seed {seed}"
    assert len(boris._salts) == 0


def test_keyring_error_and_repr_do_not_show_keys() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Keyring.of(b"short")
    with pytest.raises(ValueError, match="twice"):
        Keyring.of(KEY, (KEY,))
    with pytest.raises(ValueError, match="label"):
        Keyring.of(KEY, label=b"x")
    assert KEY.hex() not in repr(RING)
    assert repr(KEY) not in repr(RING)


def test_unsealed_datagrams_are_code_version_and_body() -> None:
    assert Unsealed().seal(PING) == PING[:1] + bytes([VERSION]) + PING[1:]
    assert Unsealed().open(Unsealed().seal(PING)) == Opened(PING, names_receiver=True)
    assert refusal(Unsealed(), b"") is refusal(Unsealed(), PING[:1]) is SealFault.SHORT


@pytest.mark.parametrize("version", [0, VERSION + 1, 255])
def test_foreign_version_is_reported_before_opening(version: int) -> None:
    sealed, boxed, clear = node("alice").seal(PING), box(PING, BORIS_KEY, farm_label(KEY)), Unsealed().seal(PING)
    pairs: list[tuple[Envelope, bytes]] = [(node("boris"), sealed), (node("boris"), boxed), (Unsealed(), clear)]
    for envelope, datagram in pairs:
        foreign = datagram[:1] + bytes([version]) + datagram[2:]
        for each in (foreign, foreign[:12]):  # the length of the rest depends on the version
            with pytest.raises(RefusedError) as caught:
                envelope.open(each)
            assert (caught.value.reason, caught.value.version) == (SealFault.FOREIGN_VERSION, version)
    of_other_farm = node("outsider", Keyring.of(FOREIGN_KEY)).seal(PING)
    assert refusal(node("boris"), of_other_farm[:1] + bytes([version]) + of_other_farm[2:]) is SealFault.OTHER_FARM


def test_joins_under_retired_key_keep_replay_windows() -> None:
    new = Keyring.of(NEXT_KEY, retired=(KEY,), label=RING.label)
    boris = node("boris", new, salt_limit=4)
    datagram = node("alice", new).seal(PING)
    boris.open(datagram)
    for number in range(8):
        assert boris.open(node(f"old {number}").seal(b"\x3fjoin")).retired_key_id == key_id(KEY)
    assert refusal(boris, datagram) is SealFault.REPLAY
    assert len(boris._salts) == 1
