"""A node that was away while the keys were replaced: which nodes it believes about the farm's key, and which not."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.core.log.feature_level import FIRST_LEVEL, SUPPORTED_LEVEL, UnsupportedLevelError
from bridge.core.log.records import Level
from bridge.core.membership.admission import Admitted, Standing
from bridge.core.state.farm_state import FarmState
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
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
from gossip.core.member import Address
from gossip.node.state_files import NodeIdentity
from tests.authored import CLUSTER_ID, node_id, signed

HERE = Address("127.0.0.1", 7668)


def identity(number: int) -> NodeIdentity:
    """Node `number`'s."""
    return NodeIdentity.of(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def public(number: int) -> bytes:
    """Its public key."""
    return identity(number).key.public_key().public_bytes_raw()


@dataclass
class FakeAgent:
    """Gossip, as far as keys go."""

    identity: NodeIdentity
    keyring: Keyring
    changes: list[Keyring] = field(default_factory=list)

    @property
    def node_id(self) -> bytes:
        """Its name."""
        return self.identity.node_id

    async def change_keyring(self, chain: Keyring) -> None:
        """Take over a change."""
        self.keyring = self.keyring.merge(chain)
        self.changes.append(self.keyring)


class Node:
    """One of five voters, 1 to 5; server k is node k."""

    def __init__(
        self, number: int, farm_key: Path, out: frozenset[bytes] = frozenset(), *, by_gossip: bool = True
    ) -> None:
        """`out`: identities recorded as evicted. `by_gossip`: whether gossip carries keys."""
        trace = EventLog(f"node-{number}", lambda: 0)
        self.keys = FarmKeys(farm_key, load_farm_key(farm_key))
        self.agent = FakeAgent(identity(number), self.keys.filed.key_ring)
        self.halted: list[str] = []
        self.ended: list[float] = []
        """When connections were ended."""
        self.state = FarmState(
            0, admitted={each: Admitted(identity(each).node_id, f"node-{each}") for each in range(1, 6)}
        )
        self._something_new = trio.Event()
        raft = SimpleNamespace(raft=SimpleNamespace(configuration=SimpleNamespace(voter_ids=frozenset(range(1, 6)))))
        parts: dict[str, Any] = {
            "group": self.agent if by_gossip else None,
            "known": SimpleNamespace(
                admissions=SimpleNamespace(node_id_of=lambda _: None, out=out), applied_state=self
            ),
            "replica": SimpleNamespace(server=SimpleNamespace(describe=lambda: raft), leads=False),
        }
        self.identities = Identities(
            node_id=self.agent.node_id,
            farm_keys=self.keys,
            halt=self.halted.append,
            end_connections=lambda: self.ended.append(trio.current_time()),
            trace=trace,
            alarms=Alarms(trace),
            **parts,
        )

    async def news(self) -> None:
        """When the log says something."""
        await self._something_new.wait()
        self._something_new = trio.Event()

    async def log_says(self, server_id: int, standing: Standing) -> None:
        """Of a server's identity."""
        each = Admitted(identity(server_id).node_id, standing=standing)
        self.state.admitted[server_id] = each  # type: ignore[index]  # a dict here
        self._something_new.set()
        await wait_all_tasks_blocked()

    async def hear(self, offer: bytes) -> None:
        """A member refuses this node's key, and offers another one."""
        await self.identities.offered(KeyOffered(HERE, offer))


@pytest.fixture
def farm_key(tmp_path: Path) -> Path:
    """The farm's key file of before."""
    path = tmp_path / "farm.key"
    save_farm_key(path, new_farm_key(3))
    return path


def vouched(node: Node, content: EraKey, sponsor: int) -> bytes:
    """The offer of node `sponsor`."""
    label = node.keys.filed.label
    recipient = node.agent.node_id
    box = seal_key(content, node.agent.identity.key.public_key().public_bytes_raw(), label)
    return sign_offer(box, recipient, label, identity(sponsor).key)


async def test_a_key_counts_when_more_than_half_of_the_other_voters_vouch_for_it(farm_key: Path) -> None:
    away = Node(1, farm_key)
    content = EraKey(1, 9, new_key())
    for sponsor in (2, 3, 2, 3):
        await away.hear(vouched(away, content, sponsor))
    assert away.agent.changes == []
    await away.hear(vouched(away, content, 4))
    assert (away.agent.keyring.primary, away.agent.keyring.era) == (content.key, 1)


async def test_the_evicted_node_alone_convinces_no_node_however_often_and_in_whatever_name(farm_key: Path) -> None:
    away = Node(1, farm_key)
    for _ in range(20):
        await away.hear(vouched(away, EraKey(1, 9, new_key()), 5))
    await away.hear(vouched(away, EraKey(1, 9, new_key()), 9))
    forged = vouched(away, EraKey(1, 9, new_key()), 5)
    await away.hear(forged[:-96] + public(2) + forged[-64:])
    await away.hear(b"rubbish")
    assert away.agent.changes == []


async def test_offers_for_another_node_and_of_an_era_that_is_over_are_nothing(farm_key: Path) -> None:
    away, other = Node(1, farm_key), Node(2, farm_key)
    content = EraKey(1, 9, new_key())
    for sponsor in (2, 3, 4, 5):
        await other.hear(vouched(away, content, sponsor))
    assert other.agent.changes == []
    for sponsor in (2, 3, 4):
        await away.hear(vouched(away, content, sponsor))
    assert len(away.agent.changes) == 1
    for sponsor in (2, 3, 4):
        await away.hear(vouched(away, EraKey(1, 99, new_key()), sponsor))
    assert len(away.agent.changes) == 1


async def test_a_member_is_offered_the_present_key_and_an_evicted_or_unknown_node_is_not(farm_key: Path) -> None:
    sponsors = [Node(number, farm_key) for number in (2, 3, 4)]
    away = Node(1, farm_key)
    assert sponsors[0].identities.offer_to(identity(1).node_id, public(1)) == b"", "no era has begun"
    key = new_key()
    for each in sponsors:
        await each.agent.change_keyring(each.agent.keyring.rekeyed(key, 1, 9))
        each.state.admitted[5] = Admitted(identity(5).node_id, standing=Standing.EVICTED)  # type: ignore[index]  # a dict here
        assert each.identities.offer_to(identity(5).node_id, public(5)) == b""
        assert each.identities.offer_to(identity(9).node_id, public(9)) == b""
        await away.hear(each.identities.offer_to(identity(1).node_id, public(1)))
    assert away.agent.keyring.primary == key
    assert away.agent.keyring.digest == sponsors[0].agent.keyring.digest


@pytest.mark.parametrize("noted", [False, True], ids=["as news", "known before the start"])
async def test_where_no_gossip_carries_keys_an_eviction_ends_all_connections(
    farm_key: Path,
    autojump_clock: MockClock,  # noqa: ARG001 - the clock works by being asked for
    *,
    noted: bool,
) -> None:
    out = frozenset({identity(5).node_id} if noted else ())
    node = Node(1, farm_key, out, by_gossip=False)
    async with trio.open_nursery() as nursery:
        begun = trio.current_time()
        nursery.start_soon(node.identities.run)
        await wait_all_tasks_blocked()
        for standing in (Standing.MEMBER, Standing.EVICTED, Standing.EVICTED):
            await node.log_says(5, standing)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert node.ended == ([] if noted else [begun + END_CONNECTIONS_AFTER_S])


async def test_a_level_beyond_this_version_stops_the_log_and_names_the_version() -> None:
    applied_state = AppliedState(0, EventLog("node", lambda: 0), (node_id(1),), CLUSTER_ID)
    raised = range(FIRST_LEVEL + 1, SUPPORTED_LEVEL + 1)
    await applied_state.apply(1, tuple(Entry.command(1, signed(Level(number, "0.1.0"))) for number in raised))
    with pytest.raises(UnsupportedLevelError, match=r"Install garlicfarm 9\.9\.0 or newer.*nothing is lost"):
        await applied_state.apply(len(raised) + 1, (Entry.command(1, signed(Level(SUPPORTED_LEVEL + 1, "9.9.0"))),))
    assert applied_state.state.applied_index == len(raised)


@pytest.mark.parametrize("author", [None, 99], ids=["unsigned", "a stranger"])
async def test_a_level_that_no_server_of_the_farm_signed_stops_no_server(author: int | None) -> None:
    """Sent to the Raft port by a holder of the farm's key, `level` 65535 ended every node, and again at each start."""
    applied_state = AppliedState(0, EventLog("node", lambda: 0), (node_id(1),), CLUSTER_ID)
    entry = encode(Level(2**16 - 1, "9.9.0"))
    await applied_state.apply(1, (Entry.command(1, entry if author is None else signed(entry, author)),))
    assert applied_state.state.applied_index == 1
    assert applied_state.state.level == FIRST_LEVEL
    assert applied_state.refusal_of(1) is not None


async def test_a_level_that_is_not_the_next_has_no_effect_and_ends_no_server() -> None:
    trace = EventLog("node", lambda: 0)
    applied_state = AppliedState(0, trace, (node_id(1),), CLUSTER_ID)
    levels = (Level(65535, "9.9.9"), Level(2, ""))
    await applied_state.apply(1, tuple(Entry.command(1, signed(level)) for level in levels))
    assert (applied_state.state.level, applied_state.state.applied_index) == (2, 2)
    assert [event.kind for event in trace.read(0).events] == ["level-refused", "level-raised"]
