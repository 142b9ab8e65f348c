"""Signatures of gossip: only a node itself announces, moves or revives itself, or announces its departure."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import structs
from msgspec.structs import replace

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
from tests.effort import each_case
from tests.wire.gossip_messages import EXAMPLES, VERDICT

ALICE_KEY = Ed25519PrivateKey.from_private_bytes(b"alice".ljust(32))
BORIS_KEY = Ed25519PrivateKey.from_private_bytes(b"boris".ljust(32))


def node_info(key: Ed25519PrivateKey) -> NodeInfo:
    node_id = node_id_of(key.public_key().public_bytes_raw())
    return NodeInfo(node_id, Address("10.0.0.1", 7946), Incarnation(3, 1), capacity=30, metadata=b"router")


ALICE, BORIS = node_info(ALICE_KEY), node_info(BORIS_KEY)
SIGNED = sign(ALICE, ALICE_KEY)


def ping(payload: Payload) -> PingRequest:
    return PingRequest(
        ALICE.node_id, ALICE.incarnation, BORIS.node_id, BORIS.incarnation, seq=1, ttl=0, payload=payload
    )


def test_signed_info_carries_key_and_signature() -> None:
    assert verify(SIGNED)
    assert len(SIGNED.credential) == CREDENTIAL_BYTES == 96
    assert replace(SIGNED, credential=b"") == ALICE


@each_case(
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
def test_changed_info_does_not_verify(changed: NodeInfo) -> None:
    assert not verify(changed)


def test_key_of_another_node_cannot_sign() -> None:
    with pytest.raises(ValueError, match="belongs to"):
        sign(ALICE, BORIS_KEY)


@pytest.mark.parametrize("kind", [JoinReq, JoinAck, Broadcast, Leave])
def test_message_with_changed_source_address_is_refused(kind: type[JoinReq | JoinAck | Broadcast | Leave]) -> None:
    forged: Message = kind(replace(SIGNED, address=Address("10.6.6.6", 666)))
    with pytest.raises(ForgedError, match=ALICE.node_id.hex()):
        Verifier().authenticate(forged)


def test_presence_signature_is_refused_as_leave() -> None:
    with pytest.raises(ForgedError):
        Verifier().authenticate(Leave(SIGNED))
    leaving = Signer(ALICE_KEY).endorse(Leave(ALICE))
    assert Verifier().authenticate(leaving) == (leaving, 0)
    assert isinstance(leaving, Leave)
    assert replace(leaving.source, credential=b"") == ALICE
    assert not verify(leaving.source, SignatureUse.PRESENCE)


def test_relayed_departure_needs_proof_of_its_incarnation() -> None:
    proof = departure_proof(ALICE_KEY, ALICE.node_id, ALICE.incarnation)
    departure = VerdictUpdate(ALICE.node_id, ALICE.incarnation, Status.LEFT, ALICE.node_id, proof)
    forged = (
        structs.replace(departure, proof=b""),
        structs.replace(departure, proof=proof[:-1]),
        structs.replace(departure, proof=SIGNED.credential),
        structs.replace(departure, proof=sign(ALICE, ALICE_KEY, SignatureUse.LEAVING).credential),
        structs.replace(departure, proof=departure_proof(BORIS_KEY, BORIS.node_id, ALICE.incarnation)),
        structs.replace(departure, incarnation=ALICE.incarnation.raised()),
        structs.replace(departure, incarnation=Incarnation(4, 1)),
        structs.replace(departure, node_id=BORIS.node_id, accuser=BORIS.node_id),
    )
    verifier = Verifier()
    assert verifier.authenticate(ping(Payload((departure,)))) == (ping(Payload((departure,))), 0)
    assert verifier.authenticate(ping(Payload((departure, *forged)))) == (ping(Payload((departure,))), len(forged))


def test_signer_proves_only_own_departure() -> None:
    signer = Signer(ALICE_KEY)
    own = VerdictUpdate(ALICE.node_id, ALICE.incarnation, Status.LEFT, ALICE.node_id)
    others = VerdictUpdate(BORIS.node_id, BORIS.incarnation, Status.LEFT, BORIS.node_id)
    endorsed = signer.endorse(ping(Payload((own, others, VERDICT))))
    assert isinstance(endorsed, PingRequest)
    proved = structs.replace(own, proof=departure_proof(ALICE_KEY, ALICE.node_id, ALICE.incarnation))
    assert endorsed.payload.updates == (proved, VERDICT)
    leaving = signer.endorse(Leave(ALICE))
    assert isinstance(leaving, Leave)
    assert leaving.source.credential == proved.proof, "the leave and all relayed departures share one signature"


def test_forged_updates_are_removed_from_ping_and_counted() -> None:
    forged = replace(SIGNED, incarnation=Incarnation(9, 9))
    payload = Payload((AliveUpdate(SIGNED), AliveUpdate(forged), VERDICT), 3, 2, sample=(forged, SIGNED))
    kept = Payload((AliveUpdate(SIGNED), VERDICT), 3, 2, sample=(SIGNED,))
    assert Verifier().authenticate(ping(payload)) == (ping(kept), 2)
    response = PingResponse(ALICE.node_id, BORIS.node_id, BORIS.incarnation, seq=1, ttl=0, payload=payload)
    assert Verifier().authenticate(response) == (structs.replace(response, payload=kept), 2)
    assert Verifier().authenticate(JoinAck(SIGNED, (forged,))) == (JoinAck(SIGNED), 1)


def test_verifier_caches_only_valid_infos_up_to_limit() -> None:
    verifier = Verifier(limit=2)
    infos = [sign(replace(ALICE, capacity=capacity), ALICE_KEY) for capacity in (1, 2, 3)]
    assert all(verifier.holds(info) for info in infos)
    assert [info for info, _ in verifier.verified.values()] == infos[1:]
    assert not verifier.holds(replace(SIGNED, capacity=9))
    assert len(verifier.verified) == 2
    assert verifier.holds(infos[1])
    assert verifier.holds(infos[0])
    assert [info for info, _ in verifier.verified.values()] == [infos[1], infos[0]]


def test_signer_signs_only_own_infos() -> None:
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


def test_node_id_is_hash_of_key() -> None:
    assert Signer(ALICE_KEY).node_id == ALICE.node_id != NodeId(b"\x00" * 8)


@each_case("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_signer_changes_only_credentials(message: Message) -> None:
    """The signer keeps all other fields of a message and of its payload."""
    signer = Signer(Ed25519PrivateKey.from_private_bytes(b"the identity key of another node"))
    endorsed = signer.endorse(message)
    assert [
        each.name
        for each in structs.fields(message)
        if each.name not in {"sample", "payload"} and getattr(endorsed, each.name) != getattr(message, each.name)
    ] == []
    if isinstance(message, PingRequest | PingResponse) and isinstance(endorsed, PingRequest | PingResponse):
        before, after = message.payload, endorsed.payload
        assert (after.user_messages, after.keys_digest, after.capacity) == (
            before.user_messages,
            before.keys_digest,
            before.capacity,
        )
