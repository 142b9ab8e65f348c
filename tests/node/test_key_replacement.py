"""Replacing all keys after a key file was copied.

The first part records the datagrams of a farm and decrypts them with the copied key. The second part sends the request
to the leader. The leader refuses it without a majority and, unless forced, if a member would not get the new key.
"""

import os
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest
import trio
from msgspec.structs import replace

from bridge.api.control import Refused
from bridge.api.control_routes import KEYS_REPLACE, KEYS_REPLACE_CHECK, Route
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.records import KeyReplacement
from bridge.core.membership.admission import Admitted
from bridge.core.state.farm_state import FarmState
from bridge.node.control import identity_admin
from bridge.node.control.identity_admin import IdentityAdmin
from bridge.node.control.orders.era_sealing import seal_era
from bridge.node.control.routes import Call, Request, body_of
from bridge.node.events.event_log import EventLog
from bridge.node.founded_farm import CurrentFarm
from bridge.wire.keys.box import open_key
from bridge.wire.log.entries import decode
from consensus.core.effects import Outcome, ProposalResolved
from consensus.core.model import Configuration, LogId, Server
from gossip.core.keyring import Keyring
from gossip.core.member import NodeId
from gossip.node.group import Group
from gossip.node.key_manager import KeyManager
from gossip.wire.seal import SALT_BYTES, RefusedError, Sealed
from tests.node.gossip_farm import RING, in_simulated_time, running_farm, sees, until_all_see_all
from tests.node.gossip_network import MemoryNetwork
from tests.node.partial_farm import partial_farm

OLD = bytes(RING.primary)


def readable(network: MemoryNetwork, keys: Keyring, names: list[NodeId]) -> tuple[int, int]:
    """Return the number of recorded datagrams that these keys open, and the number of all recorded datagrams.

    The function tries to open each datagram in the name of each node.
    """
    readers = [Sealed(keys, os.urandom(SALT_BYTES), name) for name in names]
    opened = 0
    for _, _, datagram in network.sent:
        for reader in readers:
            try:
                reader.open(datagram)
            except RefusedError:
                continue
            opened += 1
            break
    return opened, len(network.sent)


async def replace_all(agents: list[Group]) -> None:
    """Seal a new key for each agent, as the leader does, and begin the era at each agent, as a server does."""
    chain = agents[0].keyring
    assert chain is not None
    admitted = {
        number: Admitted(agent.node_id, f"node-{number}", agent.public_key) for number, agent in enumerate(agents, 1)
    }
    sealed = seal_era(FarmState(0, admitted=admitted), chain, agents[0], RING.label, {})
    assert (sealed.era, sealed.left_out) == (1, ())
    for agent in agents:
        content = open_key(dict(sealed.boxes)[agent.node_id], agent.identity.key, RING.label)
        own = agent.keyring
        assert own is not None
        await agent.change_keyring(own.rekeyed(content.key, content.era, content.used_at))


@in_simulated_time
async def test_copied_key_opens_nothing_after_replacement() -> None:
    # Given: a farm whose datagrams are recorded by the holder of a copied key.
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        names = [agent.node_id for agent in agents]
        opened, recorded = readable(network, RING, names)
        assert opened == recorded > 0, "before the replacement, the copied key opens everything"
        # When: the keys are replaced, and the farm runs for another minute.
        await replace_all(agents)
        network.sent.clear()
        await trio.sleep(60)
        # Then: the copied key opens no later datagram, and no member was lost.
        opened, recorded = readable(network, RING, names)
        assert (opened, recorded > 100) == (0, True)
        assert all(sees(agent, *[other for other in agents if other is not agent]) for agent in agents)


@in_simulated_time
async def test_copied_key_follows_rotation() -> None:
    """`keys rotate` does not help against a copied key file: it sends the next key encrypted with the present key."""
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agents = await farm.start_many(3)
        await until_all_see_all(agents)
        room = KeyManager(agents[0])
        network.sent.clear()
        fresh = await room.install()
        await trio.sleep(5)
        opened, recorded = readable(network, RING, [agent.node_id for agent in agents])
        assert opened == recorded > 0
        await room.use(fresh)
        await trio.sleep(5)
        chain = agents[1].keyring
        assert chain is not None
        # The holder of the copied key also gets the key that encrypts after the last step.
        both = Keyring.of(OLD, (chain.primary,))
        opened, recorded = readable(network, both, [agent.node_id for agent in agents])
        assert opened == recorded


# -- at the leader -----------------------------------------------------------------------------------------------------

LEADER = 1
KEYS = {number: bytes([number]) * 32 for number in (1, 2, 3)}
REPLACE = Request("POST", "/v1/keys/replace", b"{}")


def identity(number: int) -> bytes:
    """Return the NodeId of node `number`."""
    return bytes([number]) * 8


class Leader:
    """Replica, server, applied state and signer in one object, for a farm of three; two of its servers reply."""

    leads = True

    def __init__(self, **changes: Any) -> None:
        ring = Keyring.of(os.urandom(32))
        agent = SimpleNamespace(node_id=identity(LEADER), keyring=ring, public_key=_point())
        member_directory = SimpleNamespace(members=tuple, endpoint_of=lambda _: "tcp://10.0.0.2:7669")
        farm_keys = SimpleNamespace(current=SimpleNamespace(expect=3, label=ring.label))
        admitted = {number: Admitted(identity(number), f"node-{number}", _point()) for number in (1, 2, 3)}
        self.state = replace(FarmState(0, level=SUPPORTED_LEVEL, admitted=admitted), **changes)
        self.answering: tuple[int, ...] = (2,)
        self.proposed: list[object] = []
        farm = partial_farm(self, replica=self, signer=self, contact_within_ms=1_000)
        parts: dict[str, Any] = {"provider": agent, "member_directory": member_directory, "farm_keys": farm_keys}
        current = CurrentFarm(farm)
        self.admin = IdentityAdmin(**parts, trace=EventLog("a", lambda: 0), current=current, hand_over=self.hand_over)

    async def hand_over(self, to: str) -> str:
        """Refuse to move leadership."""
        await trio.lowlevel.checkpoint()
        raise Refused(409, "not-leader", f"server {to} cannot lead now")

    @property
    def server(self) -> "Leader":
        """Return the server of the replica."""
        return self

    def sign(self, entry: bytes) -> bytes:
        return entry

    def describe(self) -> SimpleNamespace:
        """Return a description with the replying followers."""
        voters = tuple(Server(number, f"tcp://127.0.0.1:{number}") for number in (1, 2, 3))
        followers = [SimpleNamespace(server_id=number, match=9, contact_ms=1) for number in self.answering]
        return SimpleNamespace(
            raft=SimpleNamespace(
                server_id=LEADER, configuration=Configuration(voters), followers=followers, commit_index=9, last=None
            )
        )

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        await trio.lowlevel.checkpoint()
        record = decode(commands[0])
        assert isinstance(record, KeyReplacement)
        self.proposed.append(record)
        rekeying = replace(self.state.rekeying, era=record.era, boxes={})
        self.state = replace(self.state, rekeying=rekeying)
        return ProposalResolved(proposal_id=1, outcome=Outcome.COMMITTED, position=LogId(9, 1), leader=LEADER)

    async def wait_applied(self, index: int) -> int:
        await trio.lowlevel.checkpoint()
        return index

    async def read_barrier(self) -> int:
        return await self.wait_applied(9)

    async def replace_keys(self, body: bytes = b"{}", route: Route[Any] = KEYS_REPLACE) -> dict[str, Any]:
        request = Request("POST", route.path, body)
        call = Call(request, body_of(route, body))
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(await self.admin.handlers[route](call)))
        return found


def _point() -> bytes:
    return (9).to_bytes(32, "little")


async def test_reply_counts_sealed_boxes_and_lists_absent_nodes() -> None:
    leader = Leader()
    assert await leader.replace_keys() == {
        "schema": 1,
        "era": 1,
        "sealedFor": 3,
        "away": ["node-2", "node-3"],
        "leftOut": [],
    }


async def test_leader_seals_each_box_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Mock(wraps=seal_era)
    monkeypatch.setattr(identity_admin, "seal_era", seal)
    await Leader().replace_keys()
    assert seal.call_count == 1


async def test_member_without_public_key_is_left_out_only_by_force() -> None:
    leader = Leader()
    admitted = {**leader.state.admitted, 3: Admitted(identity(3), "node-3")}
    leader.state = replace(leader.state, admitted=admitted)
    with pytest.raises(Refused, match=r"1 of 3 members would not get a key.*: node-3\. Start them once"):
        await leader.replace_keys(route=KEYS_REPLACE_CHECK)
    with pytest.raises(Refused, match=r"1 of 3 members would not get a key.*: node-3\. Start them once"):
        await leader.replace_keys()
    await leader.replace_keys(b'{"force": true}', KEYS_REPLACE_CHECK)
    assert leader.proposed == []
    reply = await leader.replace_keys(b'{"force": true}')
    assert (reply["sealedFor"], reply["leftOut"]) == (2, ["node-3"])


async def test_replacement_without_majority_is_refused() -> None:
    leader = Leader()
    leader.answering = ()
    with pytest.raises(Refused, match="1 of 3 voters answer, less than a majority"):
        await leader.replace_keys(b'{"force": true}')
    assert leader.proposed == []


async def test_failed_handover_replaces_no_keys() -> None:
    leader = Leader()
    leader.leads = False
    made = cast("Any", leader)
    made.server_id, made.role = LEADER, SimpleNamespace(leader=2)
    with pytest.raises(Refused, match=f"server {LEADER} cannot lead now"):
        await leader.replace_keys()
    assert leader.proposed == []
