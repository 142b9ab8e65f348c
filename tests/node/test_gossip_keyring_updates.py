"""Keyring updates are accepted only from permitted members and take effect once.

A box is a keyring encrypted for one member, which must have permission. Only this member can open the box.
"""

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
    """Return one update with the first two steps of a rotation: install the key and use it."""
    chain = agent.keyring
    assert chain is not None
    return KeyringUpdate(chain.install(key).use(key))


def primary(agent: Group) -> bytes:
    chain = agent.keyring
    assert chain is not None
    return chain.primary


def sealed(update: KeyringUpdate) -> bytes:
    return Sealed(RING, os.urandom(SALT_BYTES), ANY_NODE).seal(encode(update))


def new_refusals(agent: Group) -> list[KeyringUpdateRefused]:
    return [event for event in new_events(agent) if isinstance(event, KeyringUpdateRefused)]


@in_simulated_time
async def test_keyring_update_without_permission_is_dropped() -> None:
    # Given a group that accepts keys from its three members, and an attacker with a copy of its key
    network, members = MemoryNetwork(), set[NodeId]()
    async with running_farm(network) as farm:
        agents = await farm.start_many(3, may_send_keys=lambda node_id: node_id in members)
        members.update(agent.node_id for agent in agents)
        await until_all_see_all(agents)
        attacker = Ed25519PrivateKey.generate()
        update = rotated(agents[0], b"x" * 32)
        new_refusals(agents[0])
        # When the attacker sends keys unsigned, in a member's name, and a hundred times signed by its own identity
        for forged in (
            update,
            KeyringUpdate(update.keyring, agents[1].node_id, sign_keys(update, attacker).credential),
        ):
            network.deliver(sealed(forged), PLACE, agents[0].info.address)
        await until_counted(agents[0], SealFault.FORGED, 2)
        for _ in range(100):
            network.deliver(sealed(sign_keys(update, attacker)), PLACE, agents[0].info.address)
        await until_counted(agents[0], Loss.KEYRING_UNAUTHORIZED, 100)
        # Then no member seals with the key, and the application receives one event
        await trio.sleep(5)
        assert {primary(agent) for agent in agents} == {RING.primary}
        assert new_refusals(agents[0]) == [KeyringUpdateRefused(Signer(attacker).node_id, PLACE)]


@in_simulated_time
async def test_replayed_keyring_update_is_ignored() -> None:
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
        # When the first update is replayed, while its sealing key still opens datagrams
        for agent in agents:
            network.deliver(sealed(first), PLACE, agent.info.address)
        await trio.sleep(1)
        # Then the second update still determines the ring
        assert [agent.keyring for agent in agents] == rings
        assert {primary(agent) for agent in agents} == {b"2" * 32}


@in_simulated_time
async def test_member_isolated_during_rotation_receives_ring_in_box() -> None:
    # Given a member that does not receive datagrams while the others rotate
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        isolated = agents[2]
        network.cut_off.add(isolated.info.address)
        chain = rotated(agents[0], b"n" * 32).keyring
        await agents[0].change_keyring(chain)
        await trio.sleep(1)
        await agents[0].change_keyring(chain.remove(RING.primary))
        await trio.sleep(1)
        # When it is connected again, and the others have retired its key
        network.sent.clear()
        network.cut_off.clear()
        await until_all_see_all(agents)
        await trio.sleep(5)
        # Then it has received the ring, but not in a datagram sealed with the old key
        assert {primary(agent) for agent in agents} == {b"n" * 32}
        boxes = [each for _, target, each in network.sent if is_boxed(each, LABEL) and target == isolated.info.address]
        assert boxes
        assert all(each.startswith(prefix(Code.KEYRING_UPDATE, LABEL) + MARK) for each in boxes)


@in_simulated_time
async def test_box_is_not_made_for_member_without_permission() -> None:
    network, members = MemoryNetwork(), set[NodeId]()
    async with running_farm(network) as farm:
        agents = await farm.start_many(2, may_send_keys=lambda node_id: node_id in members)
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


def test_box_opens_only_unchanged_for_its_identity() -> None:
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
