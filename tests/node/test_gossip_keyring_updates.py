"""Keyring updates count from members that the application permits, once, and are never sealed for another node."""

import os

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.core.effects import KeyringUpdateRefused
from gossip.core.member import Address, NodeId
from gossip.core.messages import KeyringUpdate
from gossip.node.group import Group
from gossip.node.limits import Loss
from gossip.wire.box import MARK, BoxError, box, is_boxed, unbox
from gossip.wire.codec import Code, encode
from gossip.wire.identity import Signer, sign_keys
from gossip.wire.seal import ANY_NODE, SALT_BYTES, Sealed, SealFault, prefix
from tests.node.gossip_farm import RING, in_simulated_time, new_events, running_farm, until_all_see_all, until_counted
from tests.node.gossip_network import MemoryNetwork

PLACE = Address("127.0.0.1", 50_000)
LABEL = RING.label


def rotated(agent: Group, key: bytes) -> KeyringUpdate:
    """What an operator's first step would tell."""
    chain = agent.keyring
    assert chain is not None
    return KeyringUpdate(chain.install(key).use(key))


def primary(agent: Group) -> bytes:
    chain = agent.keyring
    assert chain is not None
    return chain.primary


def sealed(news: KeyringUpdate) -> bytes:
    """With a copy of the farm's key."""
    return Sealed(RING, os.urandom(SALT_BYTES), ANY_NODE).seal(encode(news))


def told_of_refusals(agent: Group) -> list[KeyringUpdateRefused]:
    return [event for event in new_events(agent) if isinstance(event, KeyringUpdateRefused)]


@in_simulated_time
async def test_keys_told_by_a_copy_of_the_key_alone_are_dropped_counted_and_told() -> None:
    # Given: a group that lets its three members tell keys, and a stranger with a copy of its key.
    network, members = MemoryNetwork(), set[NodeId]()
    async with running_farm(network) as farm:
        agents = await farm.start_many(3, may_tell_keys=lambda node_id: node_id in members)
        members.update(agent.node_id for agent in agents)
        await until_all_see_all(agents)
        thief = Ed25519PrivateKey.generate()
        news = rotated(agents[0], b"x" * 32)
        told_of_refusals(agents[0])
        # When: it tells keys unsigned, in a member's name, and signed by an identity of its own, a hundred times.
        for forged in (news, KeyringUpdate(news.keyring, agents[1].node_id, sign_keys(news, thief).credential)):
            network.deliver(sealed(forged), PLACE, agents[0].info.address)
        await until_counted(agents[0], SealFault.FORGED, 2)
        for _ in range(100):
            network.deliver(sealed(sign_keys(news, thief)), PLACE, agents[0].info.address)
        await until_counted(agents[0], Loss.KEYRING_OF_A_STRANGER, 100)
        # Then: no member seals with it, and the application heard of it, once.
        await trio.sleep(5)
        assert {primary(agent) for agent in agents} == {RING.primary}
        assert told_of_refusals(agents[0]) == [KeyringUpdateRefused(Signer(thief).node_id, PLACE)]


@in_simulated_time
async def test_recorded_key_news_of_a_member_changes_nothing_when_it_is_played_again() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agents = await farm.start_many(2)
        await until_all_see_all(agents)
        first = sign_keys(rotated(agents[0], b"1" * 32), agents[0].identity.key)
        network.deliver(sealed(first), PLACE, agents[1].info.address)
        await trio.sleep(1)
        assert {primary(agent) for agent in agents} == {b"1" * 32}
        await agents[0].change_keyring(rotated(agents[0], b"2" * 32).keyring)
        await trio.sleep(1)
        rings = [agent.keyring for agent in agents]
        # When: the first news is played again, while the key that it was sealed with still opens.
        for agent in agents:
            network.deliver(sealed(first), PLACE, agent.info.address)
        await trio.sleep(1)
        # Then: the ring is the one of the second.
        assert [agent.keyring for agent in agents] == rings
        assert {primary(agent) for agent in agents} == {b"2" * 32}


@in_simulated_time
async def test_a_member_that_was_deaf_for_a_whole_rotation_gets_the_ring_in_a_box_of_its_own() -> None:
    # Given: a member to which nothing comes while the others rotate.
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        deaf = agents[2]
        network.cut_off.add(deaf.info.address)
        chain = rotated(agents[0], b"n" * 32).keyring
        await agents[0].change_keyring(chain)
        await trio.sleep(1)
        await agents[0].change_keyring(chain.remove(RING.primary))
        await trio.sleep(1)
        # When: it is back with a key that opens nothing any more.
        network.sent.clear()
        network.cut_off.clear()
        await until_all_see_all(agents)
        await trio.sleep(5)
        # Then: it has the ring, which no datagram sealed with the old key has told.
        assert {primary(agent) for agent in agents} == {b"n" * 32}
        boxes = [each for _, target, each in network.sent if is_boxed(each, LABEL) and target == deaf.info.address]
        assert boxes
        assert all(each.startswith(prefix(Code.KEYRING_UPDATE, LABEL) + MARK) for each in boxes)


@in_simulated_time
async def test_no_box_is_made_for_a_member_that_may_not_send_keys_itself() -> None:
    network, members = MemoryNetwork(), set[NodeId]()
    async with running_farm(network) as farm:
        agents = await farm.start_many(2, may_tell_keys=lambda node_id: node_id in members)
        await until_all_see_all(agents)
        members.add(agents[0].node_id)
        chain = rotated(agents[0], b"n" * 32).keyring
        network.cut_off.add(agents[1].info.address)
        await agents[0].change_keyring(chain)
        await agents[0].change_keyring(chain.remove(RING.primary))
        network.cut_off.clear()
        await trio.sleep(30)
        assert primary(agents[1]) == RING.primary
        boxed_for = {target for _, target, each in network.sent if is_boxed(each, LABEL)}
        assert boxed_for == {agents[0].info.address}


def test_a_box_opens_for_its_identity_alone_and_no_bit_of_it_can_be_changed() -> None:
    recipient, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    datagram = box(b"\x47news", recipient.public_key().public_bytes_raw(), LABEL)
    assert unbox(datagram, recipient) == b"\x47news"
    damaged = [datagram[:at] + bytes([datagram[at] ^ 1]) + datagram[at + 1 :] for at in range(len(datagram))]
    for each in (*damaged, datagram[:-1], datagram + b"\x00", b"", datagram[:20]):
        with pytest.raises(BoxError):
            unbox(each, recipient)
    with pytest.raises(BoxError):
        unbox(datagram, other)
    with pytest.raises(BoxError):
        box(b"\x47news", b"\x01" + bytes(31), LABEL)
