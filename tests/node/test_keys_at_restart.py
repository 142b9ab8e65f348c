"""Nodes whose gossip keys are accepted in the seconds between a start and the first log entries."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.core.formation.founding import FormationState, Founder, Founding, Promise
from bridge.node import app, joined_node
from bridge.node.events.alarms import NodeStopped
from bridge.node.events.event_log import EventLog
from bridge.node.membership.admissions import FILE_NAME as ADMISSIONS
from bridge.node.membership.admissions import AdmissionStore
from bridge.node.membership.farm_peers import FarmPeers, KnownFarm
from bridge.node.membership.forming import FILE_NAME as FORMATION
from bridge.node.membership.membership_provider import GroupKeys
from bridge.node.raft.applied_state import AppliedState
from bridge.node.security.key_files import save_farm_key
from bridge.node.settings.configuration import load_configuration
from bridge.wire.keys.farm_key import new_farm_key
from bridge.wire.membership.formation_state import encode_formation_state
from gossip.core.member import Address, NodeId
from gossip.core.messages import KeyringUpdate
from gossip.node.group import Group
from gossip.node.limits import Loss
from gossip.node.state_files import NodeIdentity, load_identity
from gossip.wire.codec import encode
from gossip.wire.identity import sign_keys
from gossip.wire.seal import ANY_NODE, SALT_BYTES, Sealed
from tests.authored import node_id
from tests.end_to_end.settings import LOOPBACK, free_port, node_toml
from tests.node.gossip_farm import RING, in_simulated_time, running_farm, until_all_see_all, until_counted
from tests.node.gossip_network import MemoryNetwork

UNKNOWN, OTHER_FOUNDER, ADMITTED, EVICTED = (node_id(number) for number in (9, 2, 4, 5))


def founding_of(*founders: bytes) -> Founding:
    return Founding(tuple(Founder(each, 0, bytes(16)) for each in sorted(founders)))


def peers_without_farm() -> FarmPeers:
    return FarmPeers(NodeIdentity.of(Ed25519PrivateKey.generate()), None)


def chosen(agent: Group) -> bytes:
    chain = agent.keyring
    assert chain is not None
    return chain.primary


@in_simulated_time
async def test_restarted_node_takes_keys_only_from_founders(tmp_path: Path) -> None:
    # Given: a restarted node of a farm, without its log yet.
    network, peers = MemoryNetwork(), peers_without_farm()
    async with running_farm(network) as farm:
        founder = await farm.start()
        node = await farm.start(founder, may_send_keys=peers.may_send_keys)
        founding = founding_of(founder.node_id, node.node_id)
        admissions = AdmissionStore(tmp_path, founding, node.node_id, founded=True)
        state = AppliedState(0, EventLog("node", lambda: 0), founding.founders, founding.cluster_id)
        peers.farm = KnownFarm(founding, admissions, state)
        await until_all_see_all([founder, node])
        chain = node.keyring
        assert chain is not None
        # When: an unknown node with a copy of the farm's key sends keys, signed by its own identity.
        update = sign_keys(KeyringUpdate(chain.install(b"x" * 32).use(b"x" * 32)), Ed25519PrivateKey.generate())
        sealed = Sealed(RING, os.urandom(SALT_BYTES), ANY_NODE).seal(encode(update))
        network.deliver(sealed, Address("127.0.0.1", 50_000), node.info.address)
        # Then: they are dropped and counted.
        await until_counted(node, Loss.KEYRING_UNAUTHORIZED)
        assert chosen(node) == RING.primary
        # And keys from a founder are used.
        await founder.change_keyring(chain.install(b"n" * 32).use(b"n" * 32))
        await trio.sleep(1)
        assert chosen(node) == b"n" * 32


def test_node_without_farm_accepts_any_signer() -> None:
    assert peers_without_farm().may_send_keys(UNKNOWN)


@pytest.mark.parametrize("stored_state", ["as founder", "as later member", "without farm"])
def test_stored_farm_decides_from_first_datagram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored_state: str
) -> None:
    """The test starts a whole node, and records the first decisions for gossip."""
    directory, key_file = tmp_path / "node-1", tmp_path / "farm.key"
    save_farm_key(key_file, new_farm_key(2))
    gossip, consensus = (f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
    node = node_toml(directory, farm_key=key_file, gossip=gossip, consensus=consensus, seeds=[])
    own_id = load_identity(directory).node_id
    if stored_state == "as founder":
        founding = founding_of(own_id, OTHER_FOUNDER)
        state = FormationState(Promise(founding.founders, 0, bytes(16)), founding)
    else:
        founding = founding_of(OTHER_FOUNDER)
        state = FormationState(known=founding)
    if stored_state != "without farm":
        (directory / FORMATION).write_bytes(encode_formation_state(state))
        (directory / ADMISSIONS).write_text(
            f'{{"cluster": "{founding.cluster_id.hex()}", "out": ["{EVICTED.hex()}"],'
            f' "servers": {{"4": "{ADMITTED.hex()}", "5": "{EVICTED.hex()}"}}}}'
        )
    signers = (OTHER_FOUNDER, ADMITTED, EVICTED, UNKNOWN)
    accepted: list[bool] = []

    @asynccontextmanager
    async def open_membership(_settings: object, _metadata: bytes, keys: GroupKeys, _: object) -> AsyncIterator[None]:
        accepted.extend(keys.may_send_keys(NodeId(each)) for each in signers)
        await trio.lowlevel.checkpoint()
        raise NodeStopped("the story ends here")
        yield

    monkeypatch.setattr(joined_node, "open_membership", open_membership)
    with pytest.raises(ExceptionGroup):
        trio.run(partial(app.run_node, load_configuration(node.configuration), ends_within=lambda _: None))
    assert accepted == ([True] * 4 if stored_state == "without farm" else [True, True, False, False])
