"""A holder of the farm's key cannot announce that a member left: the leaver signs it, and others pass that on."""

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


class KeyThief:
    """Holds a copy of the farm's key, and an identity of its own that no member has."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.identity = Ed25519PrivateKey.generate()
        self.signer = Signer(self.identity)
        self._network = network
        self._envelope = Sealed(RING, os.urandom(SALT_BYTES), self.signer.node_id)

    def say(self, target: Group, message: Message) -> None:
        """As it stands, without the signatures that a node would add."""
        datagram = self._envelope.seal(encode(message), target.node_id)
        self._network.deliver(datagram, PLACE, target.info.address)

    def tell(self, target: Group, update: VerdictUpdate) -> None:
        """In a ping, as gossip is told."""
        payload = Payload((update,))
        own = self.signer.node_id
        ping = PingRequest(own, Incarnation(1, 0), target.node_id, target.info.incarnation, 1, 0, None, payload)
        self.say(target, ping)


async def three_members(farm: Farm) -> list[Group]:
    agents = await farm.start_many(3)
    await until_all_see_all(agents)
    return agents


@pytest.mark.parametrize("proof", ["none", "of the thief", "of its announcement", "of an earlier incarnation"])
@in_simulated_time
async def test_a_living_member_is_not_believed_to_have_left_because_a_holder_of_the_key_says_so(proof: str) -> None:
    # Given: three members, and a stranger with a copy of the key.
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        witness, victim, _ = await three_members(farm)
        thief = KeyThief(network)
        now = victim.info.incarnation
        proofs = {
            "none": b"",
            "of the thief": departure_proof(thief.identity, thief.signer.node_id, now),
            "of its announcement": sign(victim.info, victim.identity.key).credential,
            "of an earlier incarnation": departure_proof(victim.identity.key, victim.node_id, Incarnation(1, 1 << 20)),
        }
        # When: it spreads that the victim left, in a ping and in a Leave.
        for member in (witness, victim):
            told = VerdictUpdate(victim.node_id, now, Status.LEFT, victim.node_id, proofs[proof])
            thief.tell(member, told)
            thief.say(member, Leave(victim.info))
        for member in (witness, victim):
            await until_counted(member, SealFault.FORGED)
        await trio.sleep(1)
        # Then: no member believes it, the victim does not have to refute, and it was counted.
        assert sees(witness, victim)
        assert victim.info.incarnation == now
        wire = witness.describe().wire
        assert wire.piggyback_left_out == 1
        assert wire.dropped[SealFault.FORGED] == 1


@in_simulated_time
async def test_a_member_that_missed_the_leave_learns_of_it_from_others_with_the_leaver_s_signature() -> None:
    # Given: a member that is cut off while another leaves.
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        teller, leaver, away = await three_members(farm)
        network.cut_off.add(away.info.address)
        await leaver.leave()
        await farm.crash(leaver)
        await until(teller, lambda: sees(teller, leaver, status=Status.LEFT))
        # When: it hears the others again, of whom the leaver is none.
        network.cut_off.clear()
        # Then: it knows that the leaver left, and did not merely die.
        await until(away, lambda: sees(away, leaver, status=Status.LEFT))


@in_simulated_time
async def test_a_recorded_leave_does_not_bury_the_member_that_has_come_back() -> None:
    # Given: a member that left once; a holder of the key kept its signed Leave.
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        witness, member, _ = await three_members(farm)
        thief = KeyThief(network)
        before = member.info
        member.set_metadata(b"a later word of the same member")
        await until(witness, lambda: any(each.info.metadata for each in witness.members()))
        proof = departure_proof(member.identity.key, member.node_id, before.incarnation)
        # When: it is played after the member has said something else since.
        thief.tell(witness, VerdictUpdate(member.node_id, before.incarnation, Status.LEFT, member.node_id, proof))
        await trio.sleep(1)
        # Then: nothing happens.
        assert sees(witness, member)
        assert witness.describe().wire.piggyback_left_out == 0, "the signature is good; the incarnation is old"
