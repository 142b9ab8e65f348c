"""From message to datagram and back at another node: tokens, auths, proofs, and the reason of each refusal."""

import random
from hashlib import sha512

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import structs
from msgspec.structs import replace

from gossip.core.events import Received
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Incarnation, NodeInfo
from gossip.core.messages import (
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
)
from gossip.wire.codec import DatagramError, decode, encode
from gossip.wire.identity import Signer, conflict_proof, departure_proof, sign
from gossip.wire.seal import RefusedError, Sealed, SealFault
from gossip.wire.secure_codec import DATAGRAM_LIMIT_BYTES, SECRETS_BYTES, SecureCodec
from gossip.wire.token import TOKEN_BYTES, TOKEN_LIFETIME_MS

HOME, ELSEWHERE = Address("10.0.0.1", 7946), Address("10.0.0.9", 7946)
RING = Keyring.of(b"k" * 32)
NOW = 5_000


class Node:
    """A node's codec and the info that describes the node."""

    def __init__(self, name: str, ring: Keyring | None = RING) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32))
        signer = Signer(self.key)
        self.info = NodeInfo(signer.node_id, HOME, Incarnation(1, 0), capacity=8)
        self.codec = SecureCodec(signer, ring, sha512(name.encode()).digest()[:SECRETS_BYTES])

    def join(self, token: bytes = b"") -> bytes:
        return self.codec.outgoing(JoinReq(self.info, token))

    def take(self, datagram: bytes, source: Address = HOME, now_ms: int = NOW) -> Received:
        """Return the message of an accepted datagram."""
        return self.codec.incoming(datagram, source, now_ms).received

    def refusal_of(self, datagram: bytes) -> RefusedError:
        with pytest.raises(RefusedError) as caught:
            self.codec.incoming(datagram, HOME, NOW)
        return caught.value


def test_message_arrives_signed_with_its_source() -> None:
    alice, boris = Node("alice"), Node("boris")
    received = boris.take(alice.codec.outgoing(Broadcast(alice.info)), ELSEWHERE)
    assert structs.replace(received, size_bytes=0) == Received(ELSEWHERE, Broadcast(sign(alice.info, alice.key)))


@pytest.mark.parametrize("ring", [RING, None], ids=["sealed", "unsealed"])
def test_join_token_is_valid_for_one_applicant_and_address(ring: Keyring | None) -> None:
    seed, other_seed, alice, boris = (Node(name, ring) for name in ("seed", "other seed", "alice", "boris"))
    token = seed.codec.mint_token(HOME, alice.info.node_id, NOW)
    assert len(token) == TOKEN_BYTES
    assert seed.take(alice.join(token)).token_valid
    assert seed.take(alice.join(token), now_ms=NOW + TOKEN_LIFETIME_MS).token_valid

    assert not seed.take(alice.join()).token_valid
    assert not seed.take(alice.join(token), ELSEWHERE).token_valid
    assert not seed.take(alice.join(token), Address(HOME.host, 1)).token_valid
    assert not seed.take(alice.join(token), now_ms=NOW + TOKEN_LIFETIME_MS + 1).token_valid
    assert not seed.take(boris.join(token)).token_valid
    assert not other_seed.take(alice.join(token)).token_valid
    for position in range(TOKEN_BYTES):
        changed = bytearray(token)
        changed[position] ^= 1
        assert not seed.take(alice.join(bytes(changed))).token_valid


def test_auth_is_bound_to_token_applicant_and_key() -> None:
    seed, alice = Node("seed"), Node("alice")
    token = seed.codec.mint_token(HOME, alice.info.node_id, NOW)
    envelope = Sealed(RING, b"a third salt....", seed.info.node_id)
    plain = Sealed(RING, b"a fourth salt...", seed.info.node_id).open(alice.join(token)).plain
    genuine = decode(plain)
    assert isinstance(genuine, JoinReq)
    assert seed.take(envelope.seal(encode(genuine))).token_valid
    moved = structs.replace(genuine, source=sign(replace(alice.info, capacity=9), alice.key))
    for forged in (structs.replace(genuine, auth=b""), structs.replace(genuine, auth=b"\x00" * 32), moved):
        assert not seed.take(envelope.seal(encode(forged))).token_valid
    another_key = SecureCodec(Signer(alice.key), Keyring.of(b"x" * 32), bytes(SECRETS_BYTES))
    foreign = Sealed(Keyring.of(b"x" * 32), b"a fifth salt....", seed.info.node_id).open(
        another_key.outgoing(JoinReq(alice.info, token))
    )
    assert not seed.take(envelope.seal(foreign.plain)).token_valid


def test_join_under_key_in_rotation_is_admitted() -> None:
    seed, alice = Node("seed", Keyring.of(b"n" * 32, others=(RING.primary,), label=RING.label)), Node("alice")
    token = seed.codec.mint_token(HOME, alice.info.node_id, NOW)
    assert seed.take(alice.join(token)).token_valid


def test_holder_of_retired_key_can_read_its_refusal() -> None:
    seed, latecomer = Node("seed", Keyring.of(b"n" * 32, retired=(RING.primary,), label=RING.label)), Node("late")
    error = seed.refusal_of(latecomer.join())
    assert error.reason is SealFault.RETIRED_KEY
    assert error.outdated is not None
    applicant, used = error.outdated
    assert applicant.node_id == latecomer.info.node_id
    nak = JoinNak("swimjoin", 7119)
    assert latecomer.take(seed.codec.outgoing(nak, applicant.node_id, used)).message == nak


def test_refusals_have_their_reason() -> None:
    seed, alice, other_farm = Node("seed"), Node("alice"), Node("outsider", Keyring.of(b"s" * 32))
    envelope = Sealed(RING, b"a third salt....", seed.info.node_id)
    datagram = alice.join()
    seed.take(datagram)
    assert seed.refusal_of(datagram).reason is SealFault.REPLAY
    assert seed.refusal_of(seed.join()).reason is SealFault.ECHO
    assert seed.refusal_of(other_farm.join()).reason is SealFault.OTHER_FARM
    assert seed.refusal_of(alice.join()[:-1]).reason is SealFault.BAD_SEAL
    assert seed.refusal_of(b"").reason is SealFault.SHORT
    assert seed.refusal_of(envelope.seal(b"\x3frubbish")).reason is SealFault.MALFORMED
    assert seed.refusal_of(envelope.seal(encode(JoinReq(alice.info)))).reason is SealFault.FORGED
    assert (
        seed.refusal_of(envelope.seal(encode(Leave(sign(alice.info, alice.key))), seed.info.node_id)).reason
        is SealFault.FORGED
    )
    left = seed.take(alice.codec.outgoing(Leave(alice.info), seed.info.node_id)).message
    proof = departure_proof(alice.key, alice.info.node_id, alice.info.incarnation)
    assert left == Leave(replace(alice.info, credential=proof))


@pytest.mark.parametrize("ring", [RING, None], ids=["sealed", "unsealed"])
def test_mutated_join_raises_only_refused_error(ring: Keyring | None) -> None:
    seed_figure = random.randrange(2**32)
    dice = random.Random(seed_figure)
    seed, alice = Node("seed", ring), Node("alice", ring)
    for _ in range(400):
        datagram = bytearray(alice.join(dice.randbytes(32)))
        match dice.randrange(3):
            case 0:
                datagram = bytearray(dice.randbytes(dice.randrange(300)))
            case 1:
                del datagram[dice.randrange(len(datagram)) :]
            case _:
                datagram[dice.randrange(len(datagram))] ^= dice.randrange(1, 256)
        try:
            taken = seed.take(bytes(datagram))
        except RefusedError:
            continue
        assert ring is None, f"random seed {seed_figure}: a changed sealed datagram was accepted"
        assert not taken.token_valid


def test_datagram_fits_into_one_frame() -> None:
    alice = Node("alice")
    large = replace(alice.info, metadata=b"m" * 512)
    ping: Message = PingRequest(
        alice.info.node_id,
        Incarnation(1, 0),
        alice.info.node_id,
        Incarnation(1, 0),
        1,
        0,
        payload=Payload(sample=(large,) * 9),
    )
    assert 1000 < len(alice.codec.outgoing(ping)) <= DATAGRAM_LIMIT_BYTES


def test_message_beyond_wire_limits_raises_datagram_error() -> None:
    alice = Node("alice")
    with pytest.raises(DatagramError):
        alice.codec.outgoing(Broadcast(replace(alice.info, incarnation=Incarnation(2**63, 0))))


def test_datagram_for_one_node_is_refused_by_others() -> None:
    alice, boris, clara = Node("alice"), Node("boris"), Node("clara")
    incarnation = Incarnation(1, 0)
    for message in (
        JoinNak("swimjoin", 7117),
        JoinRedirect((ELSEWHERE,), "swimjoin", 7118),
        JoinAck(alice.info),
        Leave(alice.info),
        PingRequest(alice.info.node_id, incarnation, boris.info.node_id, incarnation, 1, 0),
        PingResponse(boris.info.node_id, alice.info.node_id, incarnation, 1, 0),
    ):
        datagram = alice.codec.outgoing(message, boris.info.node_id)
        assert clara.refusal_of(datagram).reason is SealFault.MISADDRESSED
        boris.take(datagram)
        assert boris.refusal_of(alice.codec.outgoing(message)).reason is SealFault.MISADDRESSED, (
            "does not name its receiver"
        )


def test_indirect_response_is_accepted_only_by_helper() -> None:
    target, helper, requester = Node("target"), Node("helper"), Node("requester")
    answer = PingResponse(requester.info.node_id, target.info.node_id, Incarnation(1, 0), 1, 0)
    assert helper.take(target.codec.outgoing(answer)).message == answer
    assert requester.refusal_of(target.codec.outgoing(answer)).reason is SealFault.MISADDRESSED


def test_second_instance_needs_identity_key() -> None:
    boris, forger = Node("boris"), Node("forger")
    second = Node("boris")
    second.codec = SecureCodec(Signer(second.key), RING, b"t" * SECRETS_BYTES)
    name = boris.info.node_id
    answer = PingResponse(name, name, Incarnation(1, 0), 1 << 63, 0)
    assert boris.take(second.codec.outgoing(answer, name)).message == answer

    proof = conflict_proof(second.key, b"t" * 16, 1 << 63)
    own_proof = conflict_proof(boris.key, sha512(b"boris").digest()[:16], 1 << 63)
    for forged in (b"", bytes(112), proof[:-1], conflict_proof(forger.key, b"l" * 16, 1 << 63), own_proof):
        claimed = forger.codec.outgoing(structs.replace(answer, proof=forged), name)
        assert boris.refusal_of(claimed).reason is SealFault.FORGED
    for_another_probe = structs.replace(answer, seq=7, proof=proof)
    assert boris.refusal_of(forger.codec.outgoing(for_another_probe, name)).reason is SealFault.FORGED
