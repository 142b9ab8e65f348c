"""An attacker with the farm's key cannot announce that a member left: the leaver signs it, and others forward it."""

import os

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.core.member import Address, Incarnation, Status
from gossip.core.messages import Leave, Message, Payload, PingRequest, VerdictUpdate
from gossip.node.group import Group
from gossip.wire.codec import encode
from gossip.wire.identity import Signer, departure_proof, sign
from gossip.wire.seal import SALT_BYTES, Sealed, SealFault
from tests.node.gossip_farm import (
    RING,
    Farm,
    in_simulated_time,
    running_farm,
    sees,
    until,
    until_all_see_all,
    until_counted,
)
from tests.node.gossip_network import MemoryNetwork

PLACE = Address("127.0.0.1", 50_000)


class Attacker:
    """An attacker with a copy of the farm's key, and an unknown identity."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.identity = Ed25519PrivateKey.generate()
        self.signer = Signer(self.identity)
        self._network = network
        self._envelope = Sealed(RING, os.urandom(SALT_BYTES), self.signer.node_id)

    def send(self, target: Group, message: Message) -> None:
        """Send a message without the signatures that a node would add."""
        datagram = self._envelope.seal(encode(message), target.node_id)
        self._network.deliver(datagram, PLACE, target.info.address)

    def send_update(self, target: Group, update: VerdictUpdate) -> None:
        """Send an update in a ping, as gossip does."""
        payload = Payload((update,))
        own = self.signer.node_id
        ping = PingRequest(own, Incarnation(1, 0), target.node_id, target.info.incarnation, 1, 0, None, payload)
        self.send(target, ping)


async def three_members(farm: Farm) -> list[Group]:
    agents = await farm.start_many(3)
    await until_all_see_all(agents)
    return agents


@pytest.mark.parametrize("proof", ["none", "of the attacker", "of its announcement", "of an earlier incarnation"])
@in_simulated_time
async def test_forged_departure_is_dropped(proof: str) -> None:
    # Given three members, and an attacker with a copy of the key
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        witness, victim, _ = await three_members(farm)
        attacker = Attacker(network)
        now = victim.info.incarnation
        proofs = {
            "none": b"",
            "of the attacker": departure_proof(attacker.identity, attacker.signer.node_id, now),
            "of its announcement": sign(victim.info, victim.identity.key).credential,
            "of an earlier incarnation": departure_proof(victim.identity.key, victim.node_id, Incarnation(1, 1 << 20)),
        }
        # When the attacker announces the departure of a member, in a ping and in a Leave
        for member in (witness, victim):
            update = VerdictUpdate(victim.node_id, now, Status.LEFT, victim.node_id, proofs[proof])
            attacker.send_update(member, update)
            attacker.send(member, Leave(victim.info))
        for member in (witness, victim):
            await until_counted(member, SealFault.FORGED)
        await trio.sleep(1)
        # Then the members ignore it and count it, and the victim does not need to refute it
        assert sees(witness, victim)
        assert victim.info.incarnation == now
        wire = witness.describe().wire
        assert wire.piggyback_left_out == 1
        assert wire.dropped[SealFault.FORGED] == 1


@in_simulated_time
async def test_signed_departure_reaches_member_that_missed_it() -> None:
    # Given a member, isolated during the departure of another member
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        witness, leaver, away = await three_members(farm)
        network.cut_off.add(away.info.address)
        await leaver.leave()
        await farm.crash(leaver)
        await until(witness, lambda: sees(witness, leaver, status=Status.LEFT))
        # When it is connected to the remaining members again
        network.cut_off.clear()
        # Then it sees the leaver as left, not as dead
        await until(away, lambda: sees(away, leaver, status=Status.LEFT))


@in_simulated_time
async def test_replayed_departure_of_returned_member_is_ignored() -> None:
    # Given a member that left once, and an attacker with its signed Leave
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        witness, member, _ = await three_members(farm)
        attacker = Attacker(network)
        before = member.info
        member.set_metadata(b"a later word of the same member")
        await until(witness, lambda: any(each.info.metadata for each in witness.members()))
        proof = departure_proof(member.identity.key, member.node_id, before.incarnation)
        # When the Leave is replayed after a later announcement of the member
        attacker.send_update(
            witness, VerdictUpdate(member.node_id, before.incarnation, Status.LEFT, member.node_id, proof)
        )
        await trio.sleep(1)
        # Then the witness still sees the member
        assert sees(witness, member)
        assert witness.describe().wire.piggyback_left_out == 0, "the signature is good; the incarnation is old"
