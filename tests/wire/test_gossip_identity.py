"""The author of an announcement: only a node itself announces it, moves it, revives it or says that it leaves."""

from dataclasses import fields, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.messages import (
    AliveUpdate,
    Broadcast,
    JoinAck,
    JoinReq,
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    VerdictUpdate,
)
from gossip.wire.identity import (
    CREDENTIAL_BYTES,
    ForgedError,
    SignatureUse,
    Signer,
    Verifier,
    departure_proof,
    node_id_of,
    sign,
    verify,
)
from tests.wire.gossip_messages import EXAMPLES, VERDICT

ALICE_KEY = Ed25519PrivateKey.from_private_bytes(b"alice".ljust(32))
BORIS_KEY = Ed25519PrivateKey.from_private_bytes(b"boris".ljust(32))


def described(key: Ed25519PrivateKey) -> NodeInfo:
    node_id = node_id_of(key.public_key().public_bytes_raw())
    return NodeInfo(node_id, Address("10.0.0.1", 7946), Incarnation(3, 1), capacity=30, metadata=b"router")


ALICE, BORIS = described(ALICE_KEY), described(BORIS_KEY)
SIGNED = sign(ALICE, ALICE_KEY)


def ping(payload: Payload) -> PingRequest:
    return PingRequest(
        ALICE.node_id, ALICE.incarnation, BORIS.node_id, BORIS.incarnation, seq=1, ttl=0, payload=payload
    )


def test_a_signed_info_verifies_and_carries_key_and_signature() -> None:
    assert verify(SIGNED)
    assert len(SIGNED.credential) == CREDENTIAL_BYTES == 96
    assert replace(SIGNED, credential=b"") == ALICE


@pytest.mark.parametrize(
    "changed",
    [
        replace(SIGNED, address=Address("10.0.0.2", 7946)),
        replace(SIGNED, address=Address("10.0.0.1", 7947)),
        replace(SIGNED, incarnation=Incarnation(4, 1)),
        replace(SIGNED, incarnation=Incarnation(3, 2)),
        replace(SIGNED, capacity=31),
        replace(SIGNED, metadata=b"another"),
        replace(SIGNED, node_id=BORIS.node_id),
        replace(SIGNED, credential=b""),
        replace(SIGNED, credential=SIGNED.credential[:-1]),
        replace(SIGNED, credential=SIGNED.credential + b"\x00"),
        replace(SIGNED, credential=sign(BORIS, BORIS_KEY).credential),
        replace(SIGNED, credential=b"\x00" * 96),
    ],
)
def test_an_info_changed_anywhere_does_not_verify(changed: NodeInfo) -> None:
    assert not verify(changed)


def test_a_key_that_another_node_owns_cannot_sign() -> None:
    with pytest.raises(ValueError, match="belongs to"):
        sign(ALICE, BORIS_KEY)


@pytest.mark.parametrize("kind", [JoinReq, JoinAck, Broadcast, Leave])
def test_a_message_that_speaks_for_another_node_is_forged(kind: type[JoinReq | JoinAck | Broadcast | Leave]) -> None:
    forged: Message = kind(replace(SIGNED, address=Address("10.6.6.6", 666)))
    with pytest.raises(ForgedError, match=ALICE.node_id.hex()):
        Verifier().authenticate(forged)


def test_an_info_seen_elsewhere_does_not_serve_as_its_node_s_leave() -> None:
    with pytest.raises(ForgedError):
        Verifier().authenticate(Leave(SIGNED))
    leaving = Signer(ALICE_KEY).endorse(Leave(ALICE))
    assert Verifier().authenticate(leaving) == (leaving, 0)
    assert isinstance(leaving, Leave)
    assert replace(leaving.source, credential=b"") == ALICE
    assert not verify(leaving.source, SignatureUse.PRESENCE)


def test_a_departure_told_by_others_counts_with_the_leaver_s_signature_over_that_incarnation_only() -> None:
    proof = departure_proof(ALICE_KEY, ALICE.node_id, ALICE.incarnation)
    told = VerdictUpdate(ALICE.node_id, ALICE.incarnation, Status.LEFT, ALICE.node_id, proof)
    forged = (
        replace(told, proof=b""),
        replace(told, proof=proof[:-1]),
        replace(told, proof=SIGNED.credential),
        replace(told, proof=sign(ALICE, ALICE_KEY, SignatureUse.LEAVING).credential),
        replace(told, proof=departure_proof(BORIS_KEY, BORIS.node_id, ALICE.incarnation)),
        replace(told, incarnation=ALICE.incarnation.raised()),
        replace(told, incarnation=Incarnation(4, 1)),
        replace(told, node_id=BORIS.node_id, accuser=BORIS.node_id),
    )
    verifier = Verifier()
    assert verifier.authenticate(ping(Payload((told,)))) == (ping(Payload((told,))), 0)
    assert verifier.authenticate(ping(Payload((told, *forged)))) == (ping(Payload((told,))), len(forged))


def test_a_node_signs_its_own_departure_once_and_tells_no_other_without_its_proof() -> None:
    signer = Signer(ALICE_KEY)
    own = VerdictUpdate(ALICE.node_id, ALICE.incarnation, Status.LEFT, ALICE.node_id)
    others = VerdictUpdate(BORIS.node_id, BORIS.incarnation, Status.LEFT, BORIS.node_id)
    endorsed = signer.endorse(ping(Payload((own, others, VERDICT))))
    assert isinstance(endorsed, PingRequest)
    proved = replace(own, proof=departure_proof(ALICE_KEY, ALICE.node_id, ALICE.incarnation))
    assert endorsed.payload.updates == (proved, VERDICT)
    leaving = signer.endorse(Leave(ALICE))
    assert isinstance(leaving, Leave)
    assert leaving.source.credential == proved.proof, "one signature serves the leave and all who tell of it"


def test_forged_updates_are_left_out_and_counted_while_the_ping_counts() -> None:
    forged = replace(SIGNED, incarnation=Incarnation(9, 9))
    payload = Payload((AliveUpdate(SIGNED), AliveUpdate(forged), VERDICT), 3, 2, sample=(forged, SIGNED))
    kept = Payload((AliveUpdate(SIGNED), VERDICT), 3, 2, sample=(SIGNED,))
    assert Verifier().authenticate(ping(payload)) == (ping(kept), 2)
    response = PingResponse(ALICE.node_id, BORIS.node_id, BORIS.incarnation, seq=1, ttl=0, payload=payload)
    assert Verifier().authenticate(response) == (replace(response, payload=kept), 2)
    assert Verifier().authenticate(JoinAck(SIGNED, (forged,))) == (JoinAck(SIGNED), 1)


def test_what_was_verified_is_remembered_within_the_limit_and_what_was_forged_is_not() -> None:
    verifier = Verifier(limit=2)
    infos = [sign(replace(ALICE, capacity=capacity), ALICE_KEY) for capacity in (1, 2, 3)]
    assert all(verifier.holds(info) for info in infos)
    assert [info for info, _ in verifier.verified.values()] == infos[1:]
    assert not verifier.holds(replace(SIGNED, capacity=9))
    assert len(verifier.verified) == 2
    assert verifier.holds(infos[1])
    assert verifier.holds(infos[0])
    assert [info for info, _ in verifier.verified.values()] == [infos[1], infos[0]]


def test_our_own_infos_are_signed_on_their_way_out_and_those_of_others_travel_as_they_came() -> None:
    signer = Signer(ALICE_KEY)
    signed_boris = sign(BORIS, BORIS_KEY)
    unprovable = replace(BORIS, capacity=7)
    out = signer.endorse(
        ping(Payload((AliveUpdate(ALICE), VERDICT, AliveUpdate(unprovable)), sample=(signed_boris, BORIS)))
    )
    assert out == ping(Payload((AliveUpdate(SIGNED), VERDICT), sample=(signed_boris,)))
    assert Verifier().authenticate(out) == (out, 0)
    for message in (JoinReq(ALICE), JoinAck(ALICE, (signed_boris,)), Broadcast(ALICE)):
        endorsed = signer.endorse(message)
        assert Verifier().authenticate(endorsed) == (endorsed, 0)


def test_a_node_s_name_is_the_hash_of_its_key() -> None:
    assert Signer(ALICE_KEY).node_id == ALICE.node_id != NodeId(b"\x00" * 8)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_signing_changes_nothing_but_credentials(message: Message) -> None:
    """What travels beside the infos must come out of the signer as it went in."""
    signer = Signer(Ed25519PrivateKey.from_private_bytes(b"the identity key of another node"))
    endorsed = signer.endorse(message)
    assert [
        each.name
        for each in fields(message)
        if each.name not in {"sample", "payload"} and getattr(endorsed, each.name) != getattr(message, each.name)
    ] == []
    if isinstance(message, PingRequest | PingResponse) and isinstance(endorsed, PingRequest | PingResponse):
        before, after = message.payload, endorsed.payload
        assert (after.user_messages, after.keys_digest, after.capacity) == (
            before.user_messages,
            before.keys_digest,
            before.capacity,
        )
