"""The view of a node, which only combines the reports of the node's parts."""

from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from bridge.api.building.build_view import OTHERS_MAX, ViewInputs, build_view, encode_whole_view
from bridge.api.building.log_part import FarmInputs, LocalView, ServerLink
from bridge.api.farm_facts import server_members
from bridge.api.json import encode
from bridge.api.observations.history import figures, observed
from bridge.api.observations.perspectives import extract
from bridge.api.verdict import concerns_of
from bridge.api.view import (
    AlarmView,
    ConditionView,
    CostFactorView,
    ExclusionView,
    FarmIdentity,
    FarmView,
    LookUpView,
    NodeView,
    Phase,
    PipelineFactorView,
    RaftRole,
    Severity,
    VerdictKind,
    WeightsView,
    counted_members,
)
from bridge.core.formation.member import MemberStatus, NodeMetadata, RoleHint
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import (
    ConditionStatus,
    CostFactor,
    Exclusion,
    Factors,
    Force,
    LeafFault,
    Measurement,
    Publication,
    PublishConfig,
)
from bridge.core.membership.admission import Admitted, Standing
from bridge.core.publishing.arrival import LookUps
from bridge.core.publishing.entries import LeafEntry
from bridge.core.publishing.publication import Pace, PlannedPublication
from bridge.core.state.farm_state import Choice, FarmTuning
from consensus.core.effects import Role
from consensus.core.model import ORIGIN, Configuration, LogId, Server
from consensus.core.replication.progress import ProgressState
from consensus.core.status import FollowerProgress, RaftDescription
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.membership import Description as GossipDescription
from gossip.core.membership import Member, MemberRecord
from gossip.core.options import SwimOptions as GossipTuning
from gossip.core.swim import Swim
from tests.effort import each_case
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, TUNING, Log, leaf, report

ENDS_MS = 1_000_000
PACE = Pace.of_period(PERIOD_MS)
OWN, B, C = (NodeId(bytes([0] * 7 + [number])) for number in (1, 2, 3))


def info(node_id: NodeId, host: str = "10.0.0.1") -> NodeInfo:
    return NodeInfo(node_id, Address(host, 7668), Incarnation(4, 2), capacity=30)


def member(node_id: NodeId, status: Status = Status.ALIVE, host: str = "10.0.0.2") -> Member:
    return MemberRecord(
        info=info(node_id, host),
        status=status,
        incarnation=Incarnation(5, 1),
        is_peer=True,
        since_ms=0,
        mentioned_ms=0,
        round_trip_ms=3,
    )


def metadata(name: str, raft_id: int | None, endpoint: str) -> NodeMetadata:
    return NodeMetadata("demo", name, RoleHint.VOTER, raft_id, endpoint, None)


def gossip(*members: Member, leaving: bool = False) -> GossipDescription:
    own = Swim(info(OWN), GossipTuning.lan(), Random(1), 0).describe()
    return replace(own, members=members, peer_count=len(members), leaving=leaving)


NODE = NodeView(
    name="m",
    node_id=OWN.hex(),
    raft_id=1,
    generation=4,
    pid=1,
    version="1",
    uptime_ms=0,
    phase=Phase.FOUNDED,
    control_address="/control.sock",
    state_directory="/",
)
INPUTS = ViewInputs(
    taken_at_ms=BASE_MS,
    node=NODE,
    farm=FarmIdentity("label", "demo", None, 3, demo=False),
    endpoint="tcp://10.0.0.1:7669",
    gossip=gossip(),
    gossip_counters={"b": 2, "a": 1},
    metadata_of=lambda _: None,
    log=None,
    address_of=lambda destination: f"{destination}.b32.i2p",
)
RAFT = RaftDescription(
    server_id=1,
    role=Role.LEADER,
    term=7,
    voted_for=None,
    leader=1,
    last=LogId(20, 7),
    durable_index=20,
    commit_index=19,
    applied_index=19,
    pending_proposals=0,
    followers=(FollowerProgress(2, 15, 16, 0, 40, next(iter(ProgressState)), 40),),
    configuration=Configuration((Server(1, "tcp://one:1"), Server(2, "tcp://two:2"))),
    change=None,
    log_start=ORIGIN,
    snapshot=None,
    disk_full=False,
    pending_reads=0,
    transfer_target=None,
    extensions=(),
    dropped=(),
)


def farm_inputs(log: Log, **changes: object) -> FarmInputs:
    made = FarmInputs(
        state=log.farm.state,
        tuning=TUNING,
        pace=PACE,
        log_time_ms=log.farm.state.log_time_ms,
        raft=RAFT,
        first_index=1,
        applied_index=18,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # names of fields


def view_of(log: Log, **changes: object) -> FarmView:
    known = {B: metadata("b", 2, "tcp://10.0.0.2:7669")}
    return build_view(replace(INPUTS, gossip=gossip(member(B)), metadata_of=known.get, log=farm_inputs(log, **changes)))


def test_view_without_farm_shows_only_gossip() -> None:
    view = build_view(INPUTS)
    assert (view.raft.role, view.raft.leader_id, view.raft.log_time_ms) == (RaftRole.NONE, None, None)
    assert (view.publishing, view.reports) == ((), ())
    assert [(each.name, each.is_self) for each in view.members] == [("m", True)]
    assert list(view.gossip.counters.items()) == [("a", 1), ("b", 2)]


def test_members_sorted_by_name_or_node_id() -> None:
    known = {B: metadata("z", 2, "tcp://10.0.0.2:7669")}
    members = (member(B, Status.SUSPECT), member(C, Status.DEAD, "fe80::1"))
    view = build_view(replace(INPUTS, gossip=gossip(*members), metadata_of=known.get))
    assert [(each.name, each.status) for each in view.members] == [
        (C.hex(), MemberStatus.DEAD),
        ("m", MemberStatus.ALIVE),
        ("z", MemberStatus.SUSPECT),
    ]
    assert [each.address for each in view.members] == ["[fe80::1]:7668", "10.0.0.1:7668", "10.0.0.2:7668"]
    assert [each.raft_id for each in view.members] == [None, 1, 2]
    assert view.gossip.known_count == 3


def large_group(seed: int) -> ViewInputs:
    """Return a group with more members than a view for the verdict; some are admitted, and some names are unknown."""
    random = Random(seed)
    ids = [NodeId(random.randbytes(8)) for _ in range(random.randint(OTHERS_MAX, 4 * OTHERS_MAX))]
    names = {each: f"n-{random.randrange(1000)}" for each in ids if random.random() < 0.8}
    statuses = random.choice([[*Status], [Status.DEAD], [Status.ALIVE]])
    members = (member(each, random.choice(statuses)) for each in ids)
    known = {each: metadata(name, None, "tcp://10.0.0.2:7669") for each, name in names.items()}
    admitted = {number: Admitted(each, names.get(each)) for number, each in enumerate(ids[-3:], start=2)}
    log = published_log()
    node = replace(NODE, phase=random.choice([*Phase]))
    inputs = replace(INPUTS, node=node, gossip=gossip(*members), metadata_of=known.get)
    in_farm = farm_inputs(log, state=replace(log.farm.state, admitted=admitted))
    return replace(inputs, log=in_farm) if random.random() < 0.7 else inputs


@each_case("seed", range(12))
def test_view_for_verdict_yields_facts_of_whole_view(seed: int) -> None:
    inputs = large_group(seed)
    whole, short = build_view(inputs), build_view(inputs, OTHERS_MAX)
    assert len(short.members) < len(whole.members)
    for facts in (concerns_of, observed, extract, lambda view: (view.verdict, [*figures(view)])):
        assert facts(short) == facts(whole), f"seed {seed}"


@pytest.mark.parametrize("status", [Status.ALIVE, Status.DEAD])
def test_view_for_verdict_has_nodes_that_create_farm(status: Status) -> None:
    ids = [NodeId(number.to_bytes(8, "big")) for number in range(10, 10 + 3 * OTHERS_MAX)]
    known = {each: metadata("a", None, "tcp://a:1") for each in ids}
    members = (*(member(each, status) for each in ids), member(B), member(C))
    node = replace(NODE, phase=Phase.FORMING)
    inputs = replace(INPUTS, node=node, gossip=gossip(*members), metadata_of=known.get)
    assert build_view(inputs, OTHERS_MAX).verdict == build_view(inputs).verdict


@each_case("seed", range(12))
def test_encoded_view_equals_document_of_view(seed: int) -> None:
    for inputs in (large_group(seed), INPUTS):
        assert encode_whole_view(inputs, build_view(inputs, OTHERS_MAX)) == encode(build_view(inputs)), f"seed {seed}"


def test_restarted_server_keeps_id_until_its_metadata_has_one() -> None:
    log = published_log()
    state = replace(log.farm.state, admitted={2: Admitted(B, "b")})
    known = {B: metadata("b", None, "tcp://10.0.0.2:7669")}
    inputs = replace(INPUTS, gossip=gossip(member(B)), metadata_of=known.get)
    view = build_view(replace(inputs, log=replace(farm_inputs(log), state=state)))
    assert [each.raft_id for each in view.members if not each.is_self] == [2]


@each_case("is_known", [True, False])
def test_server_without_applied_admission_is_a_server(*, is_known: bool) -> None:
    log = Log()
    state = replace(log.farm.state, admitted={1: Admitted(OWN, "m")})
    view = view_of(log, state=state, unapplied={2: Admitted(B)} if is_known else {})
    assert server_members(view.members).keys() == ({1, 2} if is_known else {1})


def test_renamed_member_keeps_name_until_log_has_new_one() -> None:
    log = published_log()
    state = replace(log.farm.state, admitted={2: Admitted(B, "box-2")})
    known = {B: metadata("site-b", 2, "tcp://10.0.0.2:7669")}
    inputs = replace(INPUTS, gossip=gossip(member(B)), metadata_of=known.get)
    view = build_view(replace(inputs, log=replace(farm_inputs(log), state=state)))
    assert [each.name for each in view.members if not each.is_self] == ["box-2"]
    assert {each.name for each in view.raft.voters if each.raft_id == 2} <= {"box-2"}


def test_member_with_i2p_endpoint_lacks_gossip_address() -> None:
    known = {B: metadata("z", 2, f"tcp://{'b' * 52}.b32.i2p:7669")}
    own = f"tcp://{'a' * 52}.b32.i2p:7669"
    view = build_view(replace(INPUTS, gossip=gossip(member(B)), metadata_of=known.get, endpoint=own))
    assert [each.address for each in view.members] == [None, None]
    assert view.members[1].endpoint is not None


def test_leaving_node_shown_as_left() -> None:
    assert build_view(replace(INPUTS, gossip=gossip(leaving=True))).members[0].status is MemberStatus.LEFT


def test_raft_view_has_names_and_follower_lag() -> None:
    raft = view_of(Log()).raft
    assert (raft.role, raft.term, raft.leader_name) == (RaftRole.LEADER, 7, "m")
    assert raft.leader_endpoint == INPUTS.endpoint
    assert (raft.first_index, raft.last_index, raft.commit_index, raft.applied_index) == (1, 20, 19, 18)
    assert [(each.raft_id, each.name) for each in raft.voters] == [(1, "m"), (2, "b")]
    [follower] = raft.followers
    assert (follower.name, follower.match_index, follower.lag_entries, follower.last_contact_ms) == ("b", 15, 5, 40)


def test_voter_is_shown_with_address_of_its_member() -> None:
    log = Log()
    state = replace(log.farm.state, admitted={1: Admitted(OWN, "m"), 2: Admitted(B, "b")})
    assert [each.endpoint for each in view_of(log, state=state).raft.voters] == [
        "tcp://10.0.0.1:7669",
        "tcp://10.0.0.2:7669",
    ]
    unseen = build_view(replace(INPUTS, log=replace(farm_inputs(log), state=state)))
    assert [each.endpoint for each in unseen.raft.voters] == ["tcp://10.0.0.1:7669", "tcp://two:2"]


def test_evicted_voter_marked_until_out_of_configuration() -> None:
    log = Log()
    evicted = Admitted(B, "b", standing=Standing.EVICTED)
    state = replace(log.farm.state, admitted={1: Admitted(OWN, "m"), 2: evicted})
    view = build_view(replace(INPUTS, gossip=gossip(member(B)), log=replace(farm_inputs(log), state=state)))
    assert [(each.name, each.evicted) for each in view.raft.voters] == [("m", False), ("b", True)]


@each_case(
    ("standing", "is_published", "has_leaf", "shown"),
    [
        *((standing, True, False, 1) for standing in (Standing.EVICTED, Standing.RETIRED)),
        *((standing, False, True, 1) for standing in (Standing.EVICTED, Standing.RETIRED)),
        *((standing, True, True, 2) for standing in (Standing.EVICTED, Standing.RETIRED)),
        (Standing.MEMBER, False, False, 2),
    ],
)
def test_master_of_outsiders_needs_leaf_of_another_server(
    *, standing: Standing, is_published: bool, has_leaf: bool, shown: int
) -> None:
    log = Log(report(1), report(2, destination="another"), report(3, masters=()))
    if is_published:
        log.append(Publication("another", 2, BASE_MS // 1000, "00"))
    third = Standing.MEMBER if has_leaf else standing
    admitted = {1: Admitted(OWN, "m"), 2: Admitted(B, "b", standing=standing), 3: Admitted(C, "c", standing=third)}
    view = view_of(log, state=replace(log.farm.state, admitted=admitted))
    assert len(view.publishing) == shown
    texts = [each.text for each in concerns_of(view) if each.kind is VerdictKind.DEGRADED]
    assert any("another master (another.b32.i2p) is not published" in each for each in texts) is (shown > 1)


def test_evicted_identity_is_marked_among_members() -> None:
    log = Log()
    state = replace(log.farm.state, admitted={1: Admitted(OWN, "m"), 2: Admitted(B, "b", standing=Standing.EVICTED)})
    inputs = replace(INPUTS, gossip=gossip(member(B), member(C)), log=replace(farm_inputs(log), state=state))
    view = build_view(inputs)
    assert [each.evicted for each in view.members] == [each.node_id == B.hex() for each in view.members]
    assert B.hex() not in {each.node_id for each in counted_members(view)}


@pytest.mark.parametrize("status", [Status.DEAD, Status.LEFT])
def test_dead_or_left_member_lacks_round_trip_time(status: Status) -> None:
    members = build_view(replace(INPUTS, gossip=gossip(member(B, status), member(C)))).members
    assert {each.node_id: each.rtt_ms for each in members if not each.is_self} == {B.hex(): None, C.hex(): 3.0}


def test_view_alarms_sorted_by_severity() -> None:
    alarms = (AlarmView("certificate", "ends", "renew"), AlarmView("no-quorum", "nothing", "start the others"))
    shown = build_view(replace(INPUTS, alarms=alarms)).alarms
    assert [(each.kind, each.severity) for each in shown] == [
        ("no-quorum", Severity.CRITICAL),
        ("certificate", Severity.WARNING),
    ]


def test_link_shows_negotiated_extensions() -> None:
    links = (ServerLink(2, connected=True, extensions=("pre-vote",)), ServerLink(9, connected=False, extensions=()))
    shown = view_of(Log(), links=links).raft.links
    assert [(each.name, each.connected, each.extensions) for each in shown] == [
        ("b", True, ("pre-vote",)),
        (None, False, ()),
    ]


def test_follower_without_reply_lacks_figures() -> None:
    unresponsive = replace(RAFT, followers=(replace(RAFT.followers[0], match=0, contact_ms=None),))
    [follower] = view_of(Log(), raft=unresponsive).raft.followers
    assert (follower.match_index, follower.lag_entries, follower.last_contact_ms) == (None, None, None)


def test_report_shown_with_age_score_and_publishing() -> None:
    log = Log(report(1), report(2, attached=False))
    own, other = view_of(log, log_time_ms=BASE_MS + 10_000).reports
    assert (own.name, own.age_ms, own.can_publish, own.publishing) == ("m", 10_000, True, True)
    assert own.score is not None
    assert (other.name, other.can_publish, other.publishing, other.score) == ("b", False, False, None)
    assert (other.attached, other.destinations, other.healthy_destinations) == (False, 1, 1)


def test_report_age_is_never_negative() -> None:
    log = Log(report(1, BASE_MS + 5_000))
    assert view_of(log, log_time_ms=BASE_MS).reports[0].age_ms == 0


def test_publication_shown_with_owners_and_time_left() -> None:
    log = Log(report(1), report(2, destinations=(leaf("leaf02", healthy=False), leaf("leaf03"))))
    second = BASE_MS // 1000
    log.append(Publication(MASTER, 1, second, "00"), report(1, last_published_time_ms=BASE_MS))
    [published] = view_of(log, lease_set_files={MASTER: "/published/x.meta-ls2"}).publishing
    assert (published.master, published.publisher_name, published.published_s) == (f"{MASTER}.b32.i2p", "m", second)
    assert published.lease_set_file == "/published/x.meta-ls2"
    assert {each.destination: each.name for each in published.entries} == {"leaf01.b32.i2p": "m", "leaf03.b32.i2p": "b"}
    assert published.expires_s == min(each.end_s for each in published.entries)
    assert published.seconds_to_expiry == published.expires_s - second


def test_accepted_publication_is_not_shown_as_handed_over() -> None:
    log = Log(report(1), Publication(MASTER, 1, BASE_MS // 1000, "00"))
    [master] = view_of(log).publishing
    assert master.published_s is not None
    assert (master.handed_over_s, master.handed_over_by, master.expires_s, master.seen) == (None, None, None, None)


def test_own_hand_over_shown_before_its_report() -> None:
    log = Log(report(1), report(2, last_published_time_ms=BASE_MS - 9_000))
    [master] = view_of(log, handed_over={MASTER: BASE_MS // 1000}).publishing
    assert (master.handed_over_s, master.handed_over_by_name) == (BASE_MS // 1000, "m")
    [reported] = view_of(log, handed_over={MASTER: BASE_MS // 1000 - 10}).publishing
    assert (reported.handed_over_s, reported.handed_over_by_name) == (BASE_MS // 1000 - 9, "b")


def test_look_ups_of_other_nodes_are_shown() -> None:
    log, look_ups = Log(), LookUps()
    log.append(report(1, last_published_time_ms=BASE_MS), report(2))
    for server_id in (1, 2):
        found = Measurement(hash_of(MASTER), reachable=True, fetch_ms=310)
        look_ups.note(replace(report(server_id), remote_metas=(found,)), BASE_MS)
    [master] = view_of(log, look_ups=look_ups, log_time_ms=BASE_MS + 7_000).publishing
    assert master.seen
    assert master.look_ups == (LookUpView(2, "b", found=True, fetch_ms=310, age_ms=7_000),)


def test_master_before_first_publication_lacks_entries() -> None:
    log = Log(report(1))
    [master] = view_of(log).publishing
    assert (master.publisher_id, master.entries, master.expires_s, master.seconds_to_expiry) == (1, (), None, None)
    assert master.reason == "its score is 1000, and no other server can publish"


def test_reason_is_choice_of_publisher() -> None:
    log = Log(report(1), report(2), report(3, attached=False))
    [master] = view_of(log).publishing
    assert [each.choice for each in master.standings] == [
        master.reason,
        "not chosen: its score 1000 equals the 1000 of m; a change needs a lead of 100 points",
        "cannot publish: it does not have a router",
    ]
    assert all(sum(part.points for part in each.parts) == each.score for each in master.standings)


def test_leaf_shown_with_conditions_unless_unknown() -> None:
    log = Log()
    failed = replace(leaf("leaf02", healthy=False), faults=(LeafFault.SERVICE,))
    log.append(report(1), report(2, destinations=(failed, leaf("leaf03", healthy=False))))
    own, other = view_of(log).reports
    assert [(each.condition, each.holds) for each in own.leaves[0].conditions or ()] == [
        ("router", True),
        ("leaseSet", True),
        ("service", True),
    ]
    assert [each.holds for each in other.leaves[0].conditions or ()] == [True, True, False]
    assert other.leaves[1].conditions is UNSET


def test_age_of_condition_advances_with_log_time() -> None:
    log = Log()
    conditions = (
        ConditionStatus(LeafFault.ROUTER, 60_000),
        ConditionStatus(LeafFault.LEASE_SET, None, 2, "not found"),
        ConditionStatus(LeafFault.SERVICE, 5_000, 3, "refused\x1b[2J\n"),
    )
    failed = replace(leaf("leaf01", healthy=False), faults=(LeafFault.SERVICE,), conditions=conditions)
    log.append(report(1, destinations=(failed,)))
    [own] = view_of(log, log_time_ms=BASE_MS + 1_000).reports
    assert own.leaves[0].conditions == (
        ConditionView("router", holds=True, since_ms=61_000, last_error=None, failures=0),
        ConditionView("service", holds=False, since_ms=6_000, last_error="refused?[2J?", failures=3),
    )


def test_unable_servers_shown_with_reasons() -> None:
    log = Log(report(1, attached=False), report(2, can_sign_until_s=None))
    [master] = view_of(log).publishing
    assert master.publisher_id is None
    assert master.reason == "no server can publish: it does not have a router; it does not have a valid signing key"


@pytest.mark.parametrize("standing", [Standing.EVICTED, Standing.RETIRED])
def test_unable_outsider_is_not_a_candidate(standing: Standing) -> None:
    log = Log(report(1, attached=False), report(2, can_sign_until_s=None))
    state = replace(log.farm.state, admitted={1: Admitted(OWN, "m"), 2: Admitted(B, "b", standing=standing)})
    [master] = view_of(log, state=state).publishing
    assert [each.raft_id for each in master.standings] == [1]
    assert master.reason == "no server can publish: it does not have a router"


def test_choice_contradicting_reports_still_shown() -> None:
    log = Log(report(1, attached=False))
    state = log.farm.state
    masters = {MASTER: replace(state.masters[MASTER], choice=Choice(1))}
    [master] = view_of(log, state=replace(state, masters=masters), tuning=FarmTuning()).publishing
    assert master.reason == "no server can publish: it does not have a router"


def test_healthy_leaf_shown_healthy_at_any_cost() -> None:
    # A leaf at the highest load has the same cost as an idle unhealthy leaf.
    log = Log()
    busy = replace(leaf("leaf01", load=1.0), current_tunnels=0)
    log.append(report(1, job_lag_ms=10_000, destinations=(busy,)))
    log.append(Publication(MASTER, 1, BASE_MS // 1000, "00"))
    [published] = view_of(log).publishing
    assert [(each.cost, each.healthy) for each in published.entries] == [(100, True)]


def test_view_shows_weights_loads_and_factor_ages() -> None:
    log = Log(
        report(1),
        report(2),
        Exclusion(hash_of("leaf02"), excluded=True),
        CostFactor(hash_of("leaf01"), 2.5),
        Factors(2, "lag-1", {hash_of("leaf01"): 2.0}),
    )
    log.clock(PERIOD_MS)
    log.append(report(1, BASE_MS + PERIOD_MS, publish_config=PublishConfig.OFF), Force(MASTER))
    view = view_of(log, log_time_ms=BASE_MS + PERIOD_MS + 5_000)
    one, two = f"{hash_of('leaf01')}.b32.i2p", f"{hash_of('leaf02')}.b32.i2p"
    assert view.weights == WeightsView(
        excluded=(ExclusionView(two, "b"),),
        costs=(CostFactorView(one, "m", 2.5),),
        factors=(PipelineFactorView(one, "m", factor=1.1, said=1.1, age_ms=PERIOD_MS + 5_000),),
        through_index=2,
        formula="lag-1",
    )
    assert [(leaf.destination, leaf.load, leaf.excluded) for each in view.reports for leaf in each.leaves] == [
        ("leaf01.b32.i2p", 0, False),
        ("leaf02.b32.i2p", 0, True),
    ]
    [published] = view.publishing
    assert published.forced
    assert [(each.raft_id, each.score, each.inability) for each in published.standings] == [
        (1, 1000, "publishConfig is off"),
        (2, 1000, None),
    ]


def test_leaf_of_dead_server_not_shown_healthy() -> None:
    log = published_log()
    alive = view_in(log, Status.ALIVE)
    dead = view_in(log, Status.DEAD)
    assert [entry.healthy for entry in alive.publishing[0].entries] == [True, True]
    assert [entry.healthy for entry in dead.publishing[0].entries] == [True, False]
    assert [entry.faults for entry in alive.publishing[0].entries] == [UNSET, UNSET]
    assert [entry.faults for entry in dead.publishing[0].entries] == [UNSET, ("server",)]
    for each in (1, 2):
        failing = replace(leaf(f"leaf{each:02}", healthy=False), faults=(LeafFault.SERVICE,))
        log.append(report(each, log.farm.state.log_time_ms, destinations=(failing,)))
    failing_too = view_in(log, Status.DEAD).publishing[0].entries
    assert [entry.faults for entry in failing_too] == [("service",), ("server", "service")]


def test_publication_without_quorum_shown_if_newer() -> None:
    log = published_log()
    [destination] = log.farm.state.masters
    accepted = log.farm.state.masters[destination].publication
    assert accepted is not None
    later = replace(accepted, server_id=1, published_s=accepted.published_s + 90)
    entries = (LeafEntry("leaf01", 9, later.published_s + 900),)
    alone = LocalView(log.farm.state, {destination: 1}, {destination: PlannedPublication(later, entries)})
    view = view_in(
        log, Status.DEAD, alone=alone, stands_still=True, raft=replace(RAFT, leader=None, role=Role.FOLLOWER)
    )
    [shown] = view.publishing
    assert (shown.published_s, shown.published_by, len(shown.entries)) == (later.published_s, 1, 1)
    assert (shown.publisher_id, shown.without_quorum) == (1, True)
    assert view.verdict.text.startswith("No quorum: publishing from m alone")
    # A publication older than the accepted one is not shown.
    stale = replace(later, published_s=accepted.published_s - 1)
    older = LocalView(log.farm.state, {destination: 1}, {destination: PlannedPublication(stale, entries)})
    assert view_in(log, Status.DEAD, alone=older).publishing[0].published_s == accepted.published_s


def published_log() -> Log:
    """Return a log with servers 1 and 2, a leaf of each, and an accepted publication."""
    log = Log(report(1), report(2))
    log.clock(PERIOD_MS)
    log.append(Publication(MASTER, log.publisher or 0, log.farm.state.log_time_ms // 1000, "ab"))
    return log


def view_in(log: Log, other: Status, **changes: object) -> FarmView:
    """Return the view of server 1 while server 2 has this status in gossip."""
    state = replace(log.farm.state, admitted={1: Admitted(OWN, "m"), 2: Admitted(B, "b")})
    inputs = replace(farm_inputs(log, **changes), state=state)
    known = {B: metadata("b", 2, "tcp://10.0.0.2:7669")}
    return build_view(replace(INPUTS, gossip=gossip(member(B, other)), metadata_of=known.get, log=inputs))
