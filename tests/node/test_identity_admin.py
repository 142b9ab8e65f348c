"""Evictions at the leader: the server first loses its vote, and does not regain it before the eviction commits."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from msgspec.structs import replace

from bridge.api.control import CheckedAnswer, Refused
from bridge.api.control_routes import NODES_EVICT, NODES_EVICT_CHECK
from bridge.core.log.feature_level import BOUNDS_LEVEL, FIRST_LEVEL, KAFKA_LEVEL, SUPPORTED_LEVEL
from bridge.core.log.records import Eviction, KeyReplacement, Level, Scope
from bridge.core.membership.admission import Admitted, Standing
from bridge.core.membership.client_keys import Client
from bridge.core.membership.eviction import LAST_ERA, Rekeying, evict, replace_keys
from bridge.core.state.farm_state import FarmState
from bridge.node.control.identity_admin import IdentityAdmin
from bridge.node.control.orders.leading import HandOver
from bridge.node.control.routes import Call, Request, body_of
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.founded_farm import CurrentFarm
from bridge.node.membership.level_raising import LevelRaising
from bridge.wire.log.entries import decode
from consensus.core.effects import ChangeOutcome, ConfigurationResolved, Outcome, ProposalResolved
from consensus.core.model import Configuration, LogId, Server
from gossip.core.keyring import Keyring
from tests.node.partial_farm import partial_farm

LEADER, STOLEN = 1, 4
EVICT_STOLEN = Request("POST", "/v1/nodes/evict", b'{"node": "node-4"}')


def identity(number: int) -> bytes:
    """Return the NodeId of node `number`."""
    return bytes([number]) * 8


def servers(*numbers: int) -> tuple[Server, ...]:
    return tuple(Server(number, f"tcp://127.0.0.1:{number}") for number in numbers)


def admin(current: CurrentFarm, hand_over: HandOver | None = None) -> IdentityAdmin:
    """Return the identity administration of node 1, whose farm does not distribute keys by gossip."""
    agent = SimpleNamespace(node_id=identity(LEADER), keyring=None)
    member_directory = SimpleNamespace(members=tuple)
    farm_keys = SimpleNamespace(current=SimpleNamespace(expect=3, label=b"12345678"))
    parts: dict[str, Any] = {"provider": agent, "member_directory": member_directory, "farm_keys": farm_keys}
    return IdentityAdmin(**parts, trace=EventLog("a", lambda: 0), current=current, hand_over=hand_over or _no_handover)


async def _no_handover(to: str) -> str:
    raise AssertionError(f"a leader hands over to {to}")


def agent_with(ring: Keyring) -> Any:
    """Return node 1 as an agent with this key ring."""
    public_key = (9).to_bytes(32, "little")
    return SimpleNamespace(node_id=identity(LEADER), keyring=ring, public_key=public_key)


def members_at(levels: dict[int, int | None]) -> Any:
    """Return gossip members with these feature levels by server."""
    return tuple(
        SimpleNamespace(
            node_id=identity(server),
            metadata=SimpleNamespace(raft_id=server, feature_level=level, name=f"node-{server}"),
            reachable=True,
        )
        for server, level in levels.items()
    )


class _Unsigned:
    """A signer that leaves entries unsigned: this stage does not verify them."""

    def sign(self, entry: bytes) -> bytes:
        return entry


@dataclass
class FakeLeader:
    """Replica, server and applied state of a farm of four that executes requests immediately."""

    outcome: Outcome = Outcome.COMMITTED
    """Outcome of proposals."""
    leads: bool = True
    refusal: Refused | None = None
    """The error of a handover to this server; None: the handover succeeds."""
    learned: FarmState | None = None
    """The state that this node learns by a barrier as the leader; None: the state does not change."""
    learns_first: bool = False
    """True if a barrier as a follower is sufficient for this node to learn that state."""
    voters: tuple[Server, ...] = servers(1, 2, 3, 4)
    learners: tuple[Server, ...] = ()
    requested: list[tuple[str, set[int]]] = field(default_factory=list)
    """Requests in order, each with the servers that were losing the vote at that time."""
    state: FarmState = field(
        default_factory=lambda: FarmState(
            0,
            level=SUPPORTED_LEVEL,
            admitted={number: Admitted(identity(number), f"node-{number}") for number in (1, 2, 3, 4)},
        )
    )

    announced: dict[int, int | None] = field(default_factory=dict)
    """The feature level that each other server announces."""
    linked: frozenset[int] = frozenset()

    def connected(self) -> frozenset[int]:
        """Return the connected servers."""
        return self.linked

    def __post_init__(self) -> None:
        directory: Any = SimpleNamespace(members=lambda: members_at(self.announced))
        parts: dict[str, Any] = {"replica": self, "signer": _Unsigned()}
        alarms = Alarms(EventLog("a", lambda: 0))
        raising = LevelRaising(member_directory=directory, state=lambda: self.state, alarms=alarms, **parts)
        self.farm = partial_farm(self, level_raising=raising, contact_within_ms=1_000, **parts)
        self.admin = admin(CurrentFarm(self.farm), self.hand_over)
        self.server_id = LEADER
        self.role = SimpleNamespace(leader=LEADER if self.leads else 2)

    async def hand_over(self, to: str) -> str:
        await trio.lowlevel.checkpoint()
        assert not self.leads
        if self.refusal is not None:
            raise self.refusal
        self.requested.append((f"hand over to {to}", self.losing_vote))
        self.leads, self.role.leader = True, LEADER
        return "node-1"

    async def read_barrier(self) -> int:
        """Apply the entries that the former leader has committed."""
        await trio.lowlevel.checkpoint()
        self.requested.append(("barrier", self.losing_vote))
        if self.learned is not None and (self.leads or self.learns_first):
            self.state = self.learned
        return 9

    @property
    def losing_vote(self) -> set[int]:
        """Return the servers that may not vote now."""
        return set(self.farm.reconciling.losing_vote)

    @property
    def server(self) -> "FakeLeader":
        return self

    def describe(self) -> SimpleNamespace:
        """Return a description with replies of every node."""
        followers = [SimpleNamespace(server_id=number, match=9, contact_ms=1) for number in (2, 3, 4)]
        configuration = Configuration(self.voters, (), self.learners)
        raft = SimpleNamespace(
            server_id=LEADER, configuration=configuration, followers=followers, commit_index=9, last=None
        )
        return SimpleNamespace(raft=raft)

    async def change_configuration(
        self, voters: tuple[Server, ...], learners: tuple[Server, ...]
    ) -> ConfigurationResolved:
        await trio.lowlevel.checkpoint()
        self.requested.append(("change", self.losing_vote))
        self.voters, self.learners = voters, learners
        return ConfigurationResolved(change_id=1, outcome=ChangeOutcome.COMMITTED)

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        """Resolve a proposal with `outcome`; a committed entry changes the state."""
        await trio.lowlevel.checkpoint()
        self.requested.append(("eviction", self.losing_vote))
        if self.outcome is not Outcome.COMMITTED:
            return ProposalResolved(proposal_id=1, outcome=self.outcome)
        record = decode(commands[0])
        if isinstance(record, KeyReplacement):
            rekeying, _ = replace_keys(self.state.rekeying, record)
            self.state = replace(self.state, rekeying=rekeying)
            return ProposalResolved(proposal_id=1, outcome=Outcome.COMMITTED, position=LogId(9, 1), leader=LEADER)
        if isinstance(record, Level):
            self.state = replace(self.state, level=record.number)
            return ProposalResolved(proposal_id=1, outcome=Outcome.COMMITTED, position=LogId(9, 1), leader=LEADER)
        assert isinstance(record, Eviction)
        admitted, rekeying, _ = evict(self.state.admitted, self.state.rekeying, record, self.state.level)
        self.state = replace(self.state, admitted=admitted, rekeying=rekeying)
        return ProposalResolved(proposal_id=1, outcome=Outcome.COMMITTED, position=LogId(9, 1), leader=LEADER)

    async def wait_applied(self, index: int) -> int:
        await trio.lowlevel.checkpoint()
        return index


async def evict_stolen(admin: IdentityAdmin) -> dict[str, Any]:
    call = Call(EVICT_STOLEN, body_of(NODES_EVICT, EVICT_STOLEN.body))
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(await admin.handlers[NODES_EVICT](call)))
    return found


async def test_follower_takes_over_leadership_and_evicts() -> None:
    node = FakeLeader(leads=False)
    reply = await evict_stolen(node.admin)
    steps = [what for what, _ in node.requested]
    assert steps == ["barrier", "hand over to 1", "barrier", "change", "eviction"]
    assert reply["raftId"] == STOLEN


@pytest.mark.parametrize("learns_first", [False, True])
async def test_follower_judges_eviction_by_current_state(*, learns_first: bool) -> None:
    """Another operator evicts the node during the handover, or has evicted it just before."""
    node = FakeLeader(leads=False, learns_first=learns_first)
    entry = Eviction(identity(STOLEN), 1, ())
    admitted, rekeying, _ = evict(node.state.admitted, node.state.rekeying, entry, node.state.level)
    node.learned = replace(node.state, admitted=admitted, rekeying=rekeying)
    with pytest.raises(Refused, match=r"is evicted already|no identity has the name"):
        await evict_stolen(node.admin)
    handover = [] if learns_first else ["hand over to 1", "barrier"]
    assert [what for what, _ in node.requested] == ["barrier", *handover]


async def test_check_at_follower_does_not_take_over_leadership() -> None:
    node = FakeLeader(leads=False)
    call = Call(EVICT_STOLEN, body_of(NODES_EVICT_CHECK, EVICT_STOLEN.body))
    assert isinstance(await node.admin.handlers[NODES_EVICT_CHECK](call), CheckedAnswer)
    assert ([what for what, _ in node.requested], node.leads) == (["barrier"], False)


@pytest.mark.parametrize("leads", [True, False])
async def test_node_does_not_evict_itself(*, leads: bool) -> None:
    node = FakeLeader(leads=leads)
    request = Request("POST", "/v1/nodes/evict", b'{"node": "node-1"}')
    call = Call(request, body_of(NODES_EVICT, request.body))
    with pytest.raises(Refused, match="a node cannot evict itself: run the command at another voter"):
        await node.admin.handlers[NODES_EVICT](call)
    assert [what for what, _ in node.requested] == ["barrier"] * (not leads)


async def test_node_without_vote_names_the_voters() -> None:
    """If a learner could order an eviction, it would have a right of voters."""
    node = FakeLeader(leads=False, voters=servers(2, 3, 4), learners=servers(1))
    with pytest.raises(Refused, match=r"this node cannot vote or lead.*node-2, node-3, node-4"):
        await evict_stolen(node.admin)
    assert node.requested == []


async def test_failed_handover_evicts_nothing() -> None:
    node = FakeLeader(leads=False, refusal=Refused(409, "transfer-timed-out", "node-2 has the order, but still leads"))
    with pytest.raises(Refused, match="node-2 has the order, but still leads"):
        await evict_stolen(node.admin)
    assert [what for what, _ in node.requested] == ["barrier"]


async def test_order_without_known_leader_is_refused() -> None:
    node = FakeLeader(leads=False)
    node.role.leader = None
    with pytest.raises(Refused, match="none is known now"):
        await evict_stolen(node.admin)


async def test_invited_node_does_not_get_name_of_other_node() -> None:
    """Node 4 does not run. Only an operator may give its name to another identity, with `garlicfarm node approve`."""
    farm = FakeLeader(leads=False)
    metadata = SimpleNamespace(name="node-4", raft_id=None, feature_level=SUPPORTED_LEVEL)
    newcomer = SimpleNamespace(node_id=identity(9), metadata=metadata, reachable=True, key=b"")
    farm.admin.member_directory = SimpleNamespace(members=lambda: (newcomer,))  # type: ignore[assignment]
    with pytest.raises(Refused, match="node-4"):
        await farm.admin.approve_invited(identity(9))
    assert [what for what, _ in farm.requested] == ["barrier"], "no leadership was taken for a refused order"


async def test_vote_stays_removed_until_eviction_is_applied() -> None:
    leader = FakeLeader()
    reply = await evict_stolen(leader.admin)
    assert leader.requested == [("change", {STOLEN}), ("eviction", {STOLEN})]
    assert (reply["raftId"], reply["era"], reply["votesStill"]) == (STOLEN, 1, False)
    assert [each.server_id for each in leader.learners] == [STOLEN]
    # From here on the log itself prevents the vote.
    assert leader.losing_vote == set()


async def test_eviction_lists_client_keys_admitted_by_the_node() -> None:
    leader = FakeLeader()
    keys = {
        b"a" * 8: Client("hostile", bytes(32), (Scope.OPERATOR,), admitted_by=identity(STOLEN)),
        b"b" * 8: Client("removed", bytes(32), (Scope.OPERATOR,), admitted=False, admitted_by=identity(STOLEN)),
        b"c" * 8: Client("pipeline", bytes(32), (Scope.WEIGHTS,), admitted_by=identity(LEADER)),
        b"d" * 8: Client("old", bytes(32), (Scope.WEIGHTS,)),
    }
    leader.state = replace(leader.state, clients=keys)
    reply = await evict_stolen(leader.admin)
    assert reply["clientKeys"] == ["hostile"]
    assert reply["clientKeysOfUnknown"] == ["old"]


async def test_unencodable_eviction_is_refused_with_reason() -> None:
    leader = FakeLeader()
    replaced = Rekeying(era=2**53)
    leader.state = replace(leader.state, rekeying=replaced)
    with pytest.raises(
        Refused, match="this cannot be written as an entry: no server would accept this entry"
    ) as refused:
        await evict_stolen(leader.admin)
    assert refused.value.status == 409
    assert leader.requested == [("change", {STOLEN})]


async def test_eviction_without_next_era_evicts() -> None:
    leader = FakeLeader()
    leader.state = replace(leader.state, rekeying=Rekeying(era=LAST_ERA))
    reply = await evict_stolen(leader.admin)
    assert leader.state.admitted[STOLEN].standing is Standing.EVICTED
    assert (reply["era"], reply["keysReplaced"]) == (LAST_ERA, False)


@pytest.mark.parametrize(("log_era", "ring_era"), [(LAST_ERA, 0), (LAST_ERA, LAST_ERA), (0, LAST_ERA)])
async def test_eviction_without_eras_reports_remedy(log_era: int, ring_era: int) -> None:
    leader = FakeLeader()
    leader.state = replace(leader.state, rekeying=Rekeying(era=log_era))
    leader.admin.provider = agent_with(Keyring.of(b"1" * 32, era=ring_era))
    reply = await evict_stolen(leader.admin)
    assert leader.state.admitted[STOLEN].standing is Standing.EVICTED
    assert reply["keysReplaced"] is False
    assert "--reset era" in reply["keysNotReplaced"]


@pytest.mark.parametrize("stolen_level", [KAFKA_LEVEL, SUPPORTED_LEVEL, None])
async def test_hostile_voter_cannot_prevent_its_eviction(stolen_level: int | None) -> None:
    leader = FakeLeader()
    leader.state = replace(leader.state, rekeying=Rekeying(era=LAST_ERA), level=KAFKA_LEVEL)
    leader.announced = {2: SUPPORTED_LEVEL, 3: SUPPORTED_LEVEL, STOLEN: stolen_level}
    await evict_stolen(leader.admin)
    assert leader.state.admitted[STOLEN].standing is Standing.EVICTED
    assert leader.state.level == BOUNDS_LEVEL


async def test_hostile_voter_cannot_keep_first_level() -> None:
    leader = FakeLeader()
    leader.state = replace(leader.state, level=FIRST_LEVEL)
    leader.announced = {2: SUPPORTED_LEVEL, 3: SUPPORTED_LEVEL, STOLEN: FIRST_LEVEL}
    await evict_stolen(leader.admin)
    assert leader.state.admitted[STOLEN].standing is Standing.EVICTED


async def test_eviction_below_its_level_names_update() -> None:
    leader = FakeLeader()
    leader.state = replace(leader.state, rekeying=Rekeying(era=LAST_ERA), level=KAFKA_LEVEL)
    leader.announced = {2: KAFKA_LEVEL, 3: SUPPORTED_LEVEL, STOLEN: SUPPORTED_LEVEL}
    with pytest.raises(Refused, match=r"node-2 announces level 4\. Update these voters"):
        await evict_stolen(leader.admin)


async def test_eviction_advances_log_to_era_of_keys() -> None:
    leader = FakeLeader()
    leader.admin.provider = agent_with(Keyring.of(b"1" * 32, era=3))
    reply = await evict_stolen(leader.admin)
    assert (reply["era"], reply["keysReplaced"]) == (4, True)
    assert leader.state.rekeying.era == 4
    assert leader.state.admitted[STOLEN].standing is Standing.EVICTED


async def test_failed_eviction_releases_vote() -> None:
    leader = FakeLeader(outcome=Outcome.UNKNOWN)
    with pytest.raises(Refused, match="leadership changed, or no majority answers"):
        await evict_stolen(leader.admin)
    assert leader.requested == [("change", {STOLEN}), ("eviction", {STOLEN})]
    assert leader.losing_vote == set()


async def test_concurrent_evictions_of_one_node_run_in_turn() -> None:
    """The end of the first eviction must not permit the server's vote during the second one."""
    leader, refusals = FakeLeader(), list[str]()

    async def evict_or_refuse() -> None:
        try:
            await evict_stolen(leader.admin)
        except Refused as refused:
            refusals.append(refused.code)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(evict_or_refuse)
    assert leader.requested == [("change", {STOLEN}), ("eviction", {STOLEN})]
    assert refusals == ["no-such-node"], "the name is free after the first eviction"


async def test_canceled_eviction_does_not_block_next_one() -> None:
    leader = FakeLeader()
    with trio.move_on_after(0) as scope:
        await evict_stolen(leader.admin)
    assert scope.cancelled_caught
    await evict_stolen(leader.admin)
    assert leader.losing_vote == set()
