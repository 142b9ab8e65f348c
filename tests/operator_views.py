"""A made-up view of a farm of five nodes, with an example of each item on the operator's screens."""

from msgspec.structs import replace

from bridge.api.verdict import verdict_of
from bridge.api.view import (
    AlarmView,
    ConditionView,
    CostFactorView,
    DirectoryView,
    EventView,
    ExclusionView,
    FarmIdentity,
    FarmView,
    FollowerView,
    GossipView,
    LeafView,
    LinkView,
    LocalFarmView,
    LookUpView,
    MemberView,
    MetaEntryView,
    NodeView,
    OtherFarmView,
    Phase,
    PipelineFactorView,
    ProcessView,
    PublishingView,
    RaftRole,
    RaftView,
    ReportView,
    ScorePartView,
    ServerRole,
    StandingView,
    VoterView,
    WeightsView,
)
from bridge.core.formation.member import MemberStatus
from bridge.core.state.farm_state import SERVERS_MAX

NOW_MS = 1_760_000_000_000
MASTER = "wkq7xjh3r2mqy5vdo4n6t5gqzc3b2e7xkfp4nq6lw2a5s7d3yueq.b32.i2p"
CHOICES = {
    1: "standby with a ready session: its score 890 is above the 880 of node-2; a change needs a lead of 100 points",
    2: "its score 880 is kept: the best of 4 is 890, of node-1; a change needs a lead of 100 points",
}
STATUSES = (MemberStatus.ALIVE, MemberStatus.ALIVE, MemberStatus.ALIVE, MemberStatus.SUSPECT, MemberStatus.DEAD)


def leaf(number: int) -> str:
    return f"leaf{number}" + "abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnop"[:47] + ".b32.i2p"


def farm_view(number: int = 1, *, leader: int = 1, servers: int = 5) -> FarmView:
    leads = number == leader
    return judged(_farm_view(number, leader, servers, leads=leads))


def largest_farm_view() -> FarmView:
    """Return the view of 64 servers with 16 places, the most of a structure."""
    view = farm_view(servers=SERVERS_MAX)
    [publishing_view] = view.publishing
    return judged(replace(view, publishing=(replace(publishing_view, entries=publishing_view.entries[:16]),)))


def judged(view: FarmView) -> FarmView:
    return replace(view, verdict=verdict_of(view))


def _farm_view(number: int, leader: int, servers: int, *, leads: bool) -> FarmView:
    return FarmView(
        taken_at_ms=NOW_MS,
        node=NodeView(
            name=f"node-{number}",
            node_id=f"{number:016x}",
            raft_id=number,
            generation=1,
            pid=4000 + number,
            version="0.1.0",
            uptime_ms=93_000,
            phase=Phase.FOUNDED,
            control_address=f"farm-state/node-{number}/control.sock",
            state_directory=f"farm-state/node-{number}",
            directory=DirectoryView(address=f"{'abc'[number % 3]}{'d' * 50}a.b32.i2p", problem=None),
        ),
        farm=FarmIdentity("1f8a0c5e", "demo", "c0ffee00c0ffee00", servers, demo=True),
        gossip=GossipView(
            servers - 1,
            30,
            servers,
            {"datagrams_dropped": 3, "pings_sent": 812},
            (OtherFarmView("10.0.0.9:7668", "77aa00ff77aa00ff"),),
        ),
        raft=RaftView(
            role=RaftRole.LEADER if leads else RaftRole.FOLLOWER,
            term=3,
            leader_id=leader,
            leader_name=f"node-{leader}",
            leader_endpoint=f"tcp://127.0.0.1:{7700 + leader}",
            first_index=1,
            last_index=218,
            commit_index=217,
            applied_index=217,
            log_time_ms=NOW_MS - 400,
            voters=tuple(
                VoterView(each, f"tcp://127.0.0.1:{7700 + each}", f"node-{each}") for each in servers_of(servers)
            ),
            learners=(VoterView(servers + 1, f"tcp://127.0.0.1:{7701 + servers}", f"node-{servers + 1}"),),
            followers=followers(leader, servers) if leads else (),
            waits=("node-5 has been dead for 3 min; removed after 10 min",) if leads else (),
            counters={"elections_started": 2},
            majorities=(tuple(servers_of(servers)),),
            election_timeout_ms=1_000,
            links=tuple(
                LinkView(each, f"node-{each}", each != servers, ("pre-vote", "transfer") if each != servers else ())
                for each in servers_of(servers)
                if each != number
            ),
        ),
        members=tuple(member(each, number, servers) for each in servers_of(servers)),
        publishing=(publishing(servers),),
        reports=tuple(report(each) for each in servers_of(servers)),
        weights=WeightsView(
            excluded=(ExclusionView(leaf(6), None),),
            costs=(CostFactorView(leaf(1), "node-1", 1.5),),
            factors=(PipelineFactorView(leaf(2), "node-2", 1.21, 1.21, 61_000),),
            through_index=170,
            formula="lag-1",
        ),
        alarms=(
            AlarmView(
                "signing-key-ends",
                "the transient signing key of node-2 ends in 6 days",
                "sign a new one: garlicfarm keys transient",
            ),
        ),
        events=tuple(
            EventView(NOW_MS - 1000 * (12 - each), "member-suspect", f"node-4 is suspected, confirmation {each}")
            for each in range(12)
        ),
        counters={"control_requests": 9},
    )


def servers_of(count: int) -> range:
    return range(1, count + 1)


def followers(leader: int, servers: int) -> tuple[FollowerView, ...]:
    """Return the followers in the leader's view; the last one never replied."""
    return tuple(
        FollowerView(each, f"node-{each}", 217 - each, 1 + each, 40 + each)
        if each != servers
        else FollowerView(each, f"node-{each}", None, None, None)
        for each in servers_of(servers)
        if each != leader
    )


def member(each: int, number: int, servers: int) -> MemberView:
    """Return one member; the later members are suspect or dead."""
    return MemberView(
        node_id=f"{each:016x}",
        name=f"node-{each}",
        status=STATUSES[(each - 1) % len(STATUSES)],
        generation=1,
        number=each,
        address=f"127.0.0.1:{7600 + each}",
        is_self=each == number,
        is_peer=each != number,
        rtt_ms=None if each == number else 0.31 * each,
        peer_count=servers - 1,
        capacity=30,
        raft_id=each,
        endpoint=f"tcp://127.0.0.1:{7700 + each}",
        server_role=ServerRole.VOTER,
    )


def publishing(servers: int) -> PublishingView:
    return PublishingView(
        master=MASTER,
        publisher_id=2,
        publisher_name="node-2",
        reason="healthiest recent state",
        published_s=NOW_MS // 1000 - 20,
        expires_s=NOW_MS // 1000 + 880,
        seconds_to_expiry=880,
        lease_set_file="farm-state/node-2/published/master.ls2",
        entries=tuple(
            MetaEntryView(leaf(each), f"node-{each}", 10 * each, NOW_MS // 1000 + 880 + each, each != servers)
            for each in servers_of(servers)
        ),
        published_by=2,
        content_hash="ab" * 32,
        standings=tuple(
            StandingView(
                raft_id=each,
                name=f"node-{each}",
                preferred=False,
                score=900 - 10 * each,
                inability="it does not have a router" if each == servers else None,
                standby=each == 1,
                parts=score_parts(each),
                choice=CHOICES.get(each, f"not chosen: its score {900 - 10 * each} is below the 880 of node-2")
                if each != servers
                else "cannot publish: it does not have a router",
            )
            for each in servers_of(servers)
        ),
        published_by_name="node-2",
        handed_over_s=NOW_MS // 1000 - 20,
        handed_over_by=2,
        handed_over_by_name="node-2",
        seen=True,
        look_ups=(LookUpView(1, "node-1", found=True, fetch_ms=310, age_ms=9_000),),
    )


def score_parts(each: int) -> tuple[ScorePartView, ...]:
    """Return the parts of the score of one server, which add up to it."""
    return (
        ScorePartView("job lag", "0ms", 300, 300),
        ScorePartView("uptime", "7m30s", 150 - 10 * each, 200),
        ScorePartView("leaves", "1 of 1 healthy", 200, 200),
        ScorePartView("bandwidth", "unknown", 125, 150),
        ScorePartView("processor", "4 %", 96, 100),
        ScorePartView("memory", "41 %", 29, 50),
    )


def conditions(each: int) -> tuple[ConditionView, ...]:
    """Return the conditions of one server's leaf; the services of the others have failed once."""
    return (
        ConditionView("router", holds=True, since_ms=86_400_000, failures=0),
        ConditionView("leaseSet", holds=True, since_ms=3_600_000, failures=0),
        ConditionView(
            "service",
            holds=True,
            since_ms=750_000 * each,
            last_error="Connection refused",
            failures=each,
        ),
    )


def report(each: int) -> ReportView:
    return ReportView(
        raft_id=each,
        name=f"node-{each}",
        age_ms=700 * each,
        stale=False,
        score=0.9 - each / 100,
        can_publish=True,
        publishing=each == 2,
        attached=False,
        clock_off=False,
        healthy_destinations=1,
        destinations=1,
        job_lag_ms=0.4,
        cpu_percent=3.5,
        memory_percent=41.0,
        masters=(MASTER,),
        leaves=(LeafView(leaf(each), None, healthy=True, load=10 * each, excluded=False, conditions=conditions(each)),),
    )


def forming_view() -> FarmView:
    """Return the view of a single node before the farm exists."""
    view = farm_view()
    return judged(
        replace(
            view,
            node=replace(view.node, raft_id=None, phase=Phase.DISCOVERING),
            farm=replace(view.farm, cluster_id=None),
            gossip=replace(view.gossip, other_farms=()),
            raft=RaftView(RaftRole.NONE, 0, None, None, None, 1, 0, 0, 0, None),
            members=(view.members[0],),
            publishing=(),
            reports=(),
            alarms=(),
            events=(),
        )
    )


def local_farm(servers: int = 5) -> LocalFarmView:
    """Return the view of `up`: all processes, the last one killed."""
    running = tuple(
        ProcessView(f"node-{each}", 4000 + each, running=True, detail="", view=farm_view(each, servers=servers))
        for each in servers_of(servers - 1)
    )
    killed = ProcessView(f"node-{servers}", 4000 + servers, running=False, detail="killed by signal 9", view=None)
    return LocalFarmView(
        NOW_MS,
        "farm-state",
        (*running, killed),
        "demonstration: throwaway keys, nothing leaves this machine",
    )
