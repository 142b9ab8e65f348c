"""Key offers to a node that was offline during a key replacement: accepted and rejected sponsors."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import structs
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.api.alarms import KEY_RETIRED
from bridge.core.log.feature_level import FIRST_LEVEL, SUPPORTED_LEVEL, UnsupportedLevelError
from bridge.core.log.records import Level
from bridge.core.membership.admission import Admitted, Standing
from bridge.core.membership.eviction import Rekeying
from bridge.core.state.farm_state import FarmState
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership.farm_peers import KnownFarm
from bridge.node.membership.identities import END_CONNECTIONS_AFTER_S, Identities
from bridge.node.raft.applied_state import AppliedState
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import load_farm_key, save_farm_key
from bridge.wire.keys.box import EraKey, new_key, seal_key, sign_offer
from bridge.wire.keys.farm_key import new_farm_key
from bridge.wire.log.entries import encode
from consensus.core.model import Entry
from gossip.core.effects import KeyOffered
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Incarnation, NodeInfo
from gossip.node.state_files import NodeIdentity
from tests.authored import CLUSTER_ID, node_id, signed

HERE = Address("127.0.0.1", 7668)


def identity(number: int) -> NodeIdentity:
    return NodeIdentity.of(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def public(number: int) -> bytes:
    return identity(number).key.public_key().public_bytes_raw()


def info(number: int) -> NodeInfo:
    each = identity(number)
    return NodeInfo(each.node_id, HERE, Incarnation(1, 0), capacity=8, credential=public(number) + bytes(64))


@dataclass
class FakeAgent:
    """The parts of gossip that keys need."""

    identity: NodeIdentity
    keyring: Keyring
    changes: list[Keyring] = field(default_factory=list)
    disk: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    """A test holds it to delay the storage of rings."""

    @property
    def node_id(self) -> bytes:
        return self.identity.node_id

    async def change_keyring(self, chain: Keyring) -> None:
        """Merge a changed ring."""
        async with self.disk:
            self.keyring = self.keyring.merge(chain)
        self.changes.append(self.keyring)


@dataclass
class FakeAdmissions:
    """A file of admissions; `news` writes it."""

    out: frozenset[bytes]
    node: "Node"

    def node_id_of(self, _: int) -> None:
        return None

    async def news(self) -> None:
        """Store the retired and evicted identities of the log."""
        await trio.lowlevel.checkpoint()
        self.out |= {each.node_id for each in self.node.state.admitted.values() if each.is_out}


class Node:
    """One of five voters, 1 to 5; server k is node k."""

    def __init__(
        self, number: int, farm_key: Path, out: frozenset[bytes] = frozenset(), *, by_gossip: bool = True
    ) -> None:
        """Create a node; `out`: identities recorded as evicted; `by_gossip`: gossip carries keys."""
        trace = EventLog(f"node-{number}", lambda: 0)
        self.keys = FarmKeys(farm_key, load_farm_key(farm_key))
        self.agent = FakeAgent(identity(number), self.keys.filed.key_ring)
        self.halted: list[str] = []
        self.outdated: list[NodeInfo] = []
        self.ended: list[float] = []
        """Times when connections were closed."""
        self.state = FarmState(
            0, admitted={each: Admitted(identity(each).node_id, f"node-{each}") for each in range(1, 6)}
        )
        self.admissions = FakeAdmissions(out, self)
        fakes: Any = None, self.admissions, self
        self._changed = trio.Event()
        raft = SimpleNamespace(raft=SimpleNamespace(configuration=SimpleNamespace(voter_ids=frozenset(range(1, 6)))))
        parts: dict[str, Any] = {
            "group": self.agent if by_gossip else None,
            "known": KnownFarm(*fakes),
            "replica": SimpleNamespace(server=SimpleNamespace(describe=lambda: raft), leads=False),
        }
        self.identities = Identities(
            node_id=self.agent.node_id,
            farm_keys=self.keys,
            halt=self.halted.append,
            end_connections=lambda: self.ended.append(trio.current_time()),
            learn_outdated=self.outdated.append,
            trace=trace,
            alarms=Alarms(trace),
            **parts,
        )

    async def news(self) -> None:
        """Wait for the next change of the log."""
        await self._changed.wait()

    async def set_standing(self, server_id: int, standing: Standing) -> None:
        """Change `Admitted.standing` of a server's identity, as an entry of the log does."""
        each = Admitted(identity(server_id).node_id, standing=standing)
        self.state.admitted[server_id] = each  # type: ignore[index]  # a dict here
        self.put_entry()
        await wait_all_tasks_blocked()

    def put_entry(self) -> None:
        """Apply one more entry."""
        self.state = structs.replace(self.state, applied_index=self.state.applied_index + 1)
        self._changed.set()
        self._changed = trio.Event()

    async def receive_offer(self, offer: bytes) -> None:
        """Receive a key offered by a member that refuses this node's key."""
        await self.identities.offered(KeyOffered(HERE, offer))


@pytest.fixture
def farm_key(tmp_path: Path) -> Path:
    path = tmp_path / "farm.key"
    save_farm_key(path, new_farm_key(3))
    return path


def vouched(node: Node, content: EraKey, sponsor: int) -> bytes:
    """Return the offer of node `sponsor`."""
    label = node.keys.filed.label
    recipient = node.agent.node_id
    box = seal_key(content, node.agent.identity.key.public_key().public_bytes_raw(), label)
    return sign_offer(box, recipient, label, identity(sponsor).key)


async def test_key_needs_vouchers_of_majority_of_other_voters(farm_key: Path) -> None:
    away = Node(1, farm_key)
    content = EraKey(1, 9, new_key())
    for sponsor in (2, 3, 2, 3):
        await away.receive_offer(vouched(away, content, sponsor))
    assert away.agent.changes == []
    await away.receive_offer(vouched(away, content, 4))
    assert (away.agent.keyring.primary, away.agent.keyring.era) == (content.key, 1)


async def test_offers_of_single_or_unknown_sponsor_are_rejected(farm_key: Path) -> None:
    away = Node(1, farm_key)
    for _ in range(20):
        await away.receive_offer(vouched(away, EraKey(1, 9, new_key()), 5))
    await away.receive_offer(vouched(away, EraKey(1, 9, new_key()), 9))
    forged = vouched(away, EraKey(1, 9, new_key()), 5)
    await away.receive_offer(forged[:-96] + public(2) + forged[-64:])
    await away.receive_offer(b"rubbish")
    assert away.agent.changes == []


async def test_offer_for_other_node_or_past_era_is_ignored(farm_key: Path) -> None:
    away, other = Node(1, farm_key), Node(2, farm_key)
    content = EraKey(1, 9, new_key())
    for sponsor in (2, 3, 4, 5):
        await other.receive_offer(vouched(away, content, sponsor))
    assert other.agent.changes == []
    for sponsor in (2, 3, 4):
        await away.receive_offer(vouched(away, content, sponsor))
    assert len(away.agent.changes) == 1
    for sponsor in (2, 3, 4):
        await away.receive_offer(vouched(away, EraKey(1, 99, new_key()), sponsor))
    assert len(away.agent.changes) == 1


async def test_current_key_is_offered_only_to_members(farm_key: Path) -> None:
    sponsors = [Node(number, farm_key) for number in (2, 3, 4)]
    away = Node(1, farm_key)
    assert sponsors[0].identities.offer_to(info(1)) == b"", "there is no era yet"
    key = new_key()
    for each in sponsors:
        await each.agent.change_keyring(each.agent.keyring.rekeyed(key, 1, 9))
        each.state.admitted[5] = Admitted(identity(5).node_id, standing=Standing.EVICTED)  # type: ignore[index]  # a dict here
        assert each.identities.offer_to(info(5)) == b""
        assert each.identities.offer_to(info(9)) == b""
        await away.receive_offer(each.identities.offer_to(info(1)))
        assert each.outdated == [info(1)]
    assert away.agent.keyring.primary == key
    assert away.agent.keyring.digest == sponsors[0].agent.keyring.digest


@pytest.mark.parametrize("recorded", [False, True], ids=["during the run", "before the start"])
async def test_eviction_without_gossip_ends_all_connections(
    farm_key: Path, autojump_clock: MockClock, *, recorded: bool
) -> None:
    out = frozenset({identity(5).node_id} if recorded else ())
    node = Node(1, farm_key, out, by_gossip=False)
    async with trio.open_nursery() as nursery:
        started = trio.current_time()
        nursery.start_soon(node.identities.run)
        await wait_all_tasks_blocked()
        for standing in (Standing.MEMBER, Standing.EVICTED, Standing.EVICTED):
            await node.set_standing(5, standing)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert node.ended == ([] if recorded else [started + END_CONNECTIONS_AFTER_S])


async def test_eviction_during_storage_of_new_key_is_followed(farm_key: Path) -> None:
    """A wait that begins after the storage would miss the entry, and the node would follow the eviction later."""
    node, content = Node(1, farm_key), EraKey(1, 9, new_key())
    box = seal_key(content, public(1), node.keys.filed.label)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, node.agent.disk:
            nursery.start_soon(node.identities.run)
            await wait_all_tasks_blocked()
            node.state = structs.replace(node.state, rekeying=Rekeying(1, {node.agent.node_id.hex(): box}))
            node.put_entry()
            await wait_all_tasks_blocked()
            # The node does not use the key from the log before it has stored the key.
            with trio.move_on_after(0):
                await node.identities.wait_era()
                raise AssertionError("the era began before its key was stored")
            node.state.admitted[1] = Admitted(node.agent.node_id, standing=Standing.EVICTED)  # type: ignore[index]
            node.put_entry()
        await node.identities.wait_era()
    assert node.agent.keyring.primary == content.key
    assert len(node.halted) == 1


async def test_evicted_node_stores_eviction_before_it_stops(farm_key: Path) -> None:
    node = Node(1, farm_key)
    node.state.admitted[1] = Admitted(node.agent.node_id, standing=Standing.EVICTED)  # type: ignore[index]
    with trio.fail_after(60):
        await node.identities.run()
    assert node.agent.node_id in node.admissions.out
    assert "was evicted" in node.halted[0]


async def test_evicted_node_stops_after_restart_without_leader(farm_key: Path) -> None:
    node = Node(1, farm_key, out=frozenset({identity(1).node_id}))
    with trio.fail_after(60):
        await node.identities.run()
    assert "was retired or evicted" in node.halted[0]


async def test_alarm_of_unusable_key_ends_with_received_keyring(farm_key: Path) -> None:
    node, key = Node(1, farm_key), new_key()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.identities.run)
            node.state = structs.replace(node.state, rekeying=Rekeying(1, {identity(2).node_id.hex(): b"sealed"}))
            await node.identities.wait_era()
            assert [each.kind for each in node.identities.alarms.active()] == [KEY_RETIRED.kind]
            await node.agent.change_keyring(node.agent.keyring.rekeyed(key, 1, 9))
            node.put_entry()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert node.identities.alarms.active() == ()


async def test_unsupported_level_stops_log_naming_version() -> None:
    applied_state = AppliedState(0, EventLog("node", lambda: 0), (node_id(1),), CLUSTER_ID)
    raised = range(FIRST_LEVEL + 1, SUPPORTED_LEVEL + 1)
    await applied_state.apply(1, tuple(Entry.command(1, signed(Level(number, "0.1.0"))) for number in raised))
    with pytest.raises(UnsupportedLevelError, match=r"Install garlicfarm 9\.9\.0 or newer.*nothing is lost"):
        await applied_state.apply(len(raised) + 1, (Entry.command(1, signed(Level(SUPPORTED_LEVEL + 1, "9.9.0"))),))
    assert applied_state.state.applied_index == len(raised)


@pytest.mark.parametrize("author", [None, 99], ids=["unsigned", "unknown"])
async def test_level_without_member_signature_does_not_stop_server(author: int | None) -> None:
    """Given `level` 65535 without a member's signature, then a node ignores it: it would end every node repeatedly."""
    applied_state = AppliedState(0, EventLog("node", lambda: 0), (node_id(1),), CLUSTER_ID)
    entry = encode(Level(2**16 - 1, "9.9.0"))
    await applied_state.apply(1, (Entry.command(1, entry if author is None else signed(entry, author)),))
    assert applied_state.state.applied_index == 1
    assert applied_state.state.level == FIRST_LEVEL
    assert applied_state.refusal_of(1) is not None


async def test_level_other_than_next_is_refused() -> None:
    trace = EventLog("node", lambda: 0)
    applied_state = AppliedState(0, trace, (node_id(1),), CLUSTER_ID)
    levels = (Level(65535, "9.9.9"), Level(2, ""))
    await applied_state.apply(1, tuple(Entry.command(1, signed(level)) for level in levels))
    assert (applied_state.state.level, applied_state.state.applied_index) == (2, 2)
    assert [event.kind for event in trace.read(0).events] == ["level-refused", "level-raised"]
