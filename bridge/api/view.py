"""The view: one immutable picture of the farm as one node sees it at one moment.

    Swim.describe()  ─┐
    Raft.describe()  ─┼─▶ FarmView ─▶ control endpoint ─▶ terminal view, `--json`, metrics
    farm, publisher  ─┘

Every operator surface shows a `FarmView` and nothing else, so that two surfaces can never disagree and nothing is
computed twice. It is plain data: identifiers are already text (node ids in hexadecimal, destinations as `….b32.i2p`),
times carry their unit in the name, and what is not known is None, never a made-up figure. Nothing in it is secret.

Three clocks occur and are kept apart: `taken_at_ms` and event times are the node's own clock (milliseconds since the
epoch), `log_time_ms` is the farm's agreed time, and ages and round-trip times are durations.

Counters are (name, value) pairs, ordered by name; a name is lower-case words joined by `_`, the same word that the
metric of that counter has.
"""

from dataclasses import dataclass
from enum import Enum

from bridge.core.membership.reconcile import MemberStatus


class Phase(Enum):
    """How far a node has come on its way into a farm."""

    DISCOVERING = "discovering"
    """Looking for other routers of this farm."""
    FORMING = "forming"
    """Enough founders are in sight; promises are being made."""
    FOUNDED = "founded"
    """A voter of a farm that has its first configuration."""
    OBSERVER = "observer"
    """Knows the farm, follows it, and does not vote."""
    STOPPING = "stopping"
    """Says goodbye to its peers."""


class ServerRole(Enum):
    """What a member is in the Raft group."""

    NONE = "none"
    """Not admitted, or no server yet."""
    VOTER = "voter"
    LEARNER = "learner"
    """Gets the log and does not vote."""
    REMOVED = "removed"
    """Was admitted, and is not in the group now."""


class RaftRole(Enum):
    """What a server is in Raft; `none` before the farm is founded and for nodes outside of the configuration."""

    NONE = "none"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class CounterView:
    """A number that only grows while the process lives."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """The node that took the picture."""

    name: str
    node_id: str
    raft_id: int | None
    generation: int
    pid: int
    version: str
    uptime_ms: int
    phase: Phase
    control_address: str
    state_directory: str


@dataclass(frozen=True, slots=True)
class FarmIdentity:
    """Which farm this is. `label` is the public hash of the farm key; `cluster_id` exists once it is founded."""

    label: str
    cluster: str
    cluster_id: str | None
    expect: int
    demo: bool
    """Throwaway master and leaves: a demonstration that never leaves the machine."""
    level: int | None = None
    """The feature level that all servers have agreed on; None before this node has the log."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member as gossip knows it. `name`, `raft_id` and `endpoint` come from its signed metadata."""

    node_id: str
    name: str
    status: MemberStatus
    generation: int
    number: int
    address: str | None
    """Where it listens for gossip; None where there is none."""
    is_self: bool
    is_peer: bool
    """Probed by this node; others are only known by hearsay."""
    rtt_ms: float | None = None
    peer_count: int | None = None
    capacity: int | None = None
    raft_id: int | None = None
    endpoint: str | None = None
    server_role: ServerRole = ServerRole.NONE


@dataclass(frozen=True, slots=True)
class GossipView:
    """This node's place in the overlay."""

    peer_count: int
    capacity: int
    known_count: int
    counters: tuple[CounterView, ...] = ()


@dataclass(frozen=True, slots=True)
class VoterView:
    """A member of Raft's configuration, voter or learner."""

    raft_id: int
    endpoint: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class FollowerView:
    """A follower as its leader sees it; only the leader's view has any."""

    raft_id: int
    name: str | None
    match_index: int | None
    lag_entries: int | None
    last_contact_ms: int | None
    """How long ago it last answered; None, like all that is known by its answers, if it never did in this term."""


@dataclass(frozen=True, slots=True)
class LinkView:
    """This node's own connection to another server, by which it asks; who asks us has another."""

    raft_id: int
    name: str | None
    connected: bool
    extensions: tuple[str, ...]
    """What the last handshake agreed on beyond the protocol's own words; none of a server of another make."""


@dataclass(frozen=True, slots=True)
class RaftView:
    """This node's replica."""

    role: RaftRole
    term: int
    leader_id: int | None
    leader_name: str | None
    leader_endpoint: str | None
    first_index: int
    last_index: int
    commit_index: int
    applied_index: int
    log_time_ms: int | None
    voters: tuple[VoterView, ...] = ()
    learners: tuple[VoterView, ...] = ()
    followers: tuple[FollowerView, ...] = ()
    waits: tuple[str, ...] = ()
    """What the leader waits for before it changes the group, in words; empty on other nodes."""
    counters: tuple[CounterView, ...] = ()
    transfer_target: int | None = None
    """To whom this leader is handing leadership right now."""
    links: tuple[LinkView, ...] = ()


@dataclass(frozen=True, slots=True)
class MetaEntryView:
    """One entry of the published Meta LS2. A lower cost is preferred by those who resolve it."""

    destination: str
    name: str | None
    cost: int
    end_s: int
    healthy: bool


@dataclass(frozen=True, slots=True)
class StandingView:
    """How a server stands as a candidate to publish a master."""

    raft_id: int
    name: str | None
    preferred: bool
    """Its operator set publish = "on"."""
    score: int
    inability: str | None
    """Why it cannot publish now, in words; None if it can."""


@dataclass(frozen=True, slots=True)
class PublishingView:
    """What is published for one master destination, and by whom."""

    master: str
    publisher_id: int | None
    publisher_name: str | None
    reason: str
    """Why that server was chosen, in words."""
    published_s: int | None = None
    expires_s: int | None = None
    seconds_to_expiry: int | None = None
    """Until the earliest entry ends, by log time; negative when it has."""
    lease_set_file: str | None = None
    """Where this node's router keeps the structure, if it is of the file kind and has one."""
    entries: tuple[MetaEntryView, ...] = ()
    published_by: int | None = None
    """Who made the last accepted publication."""
    content_hash: str | None = None
    forced: bool = False
    """An operator wants it published anew, and that is still to come."""
    standings: tuple[StandingView, ...] = ()


@dataclass(frozen=True, slots=True)
class LeafView:
    """One destination as its server reported it."""

    destination: str
    master: str | None
    """The master behind which it stands; None: every one of its server's."""
    healthy: bool
    load: int
    """0 … 100; what operators and pipeline add makes it the cost."""
    excluded: bool


@dataclass(frozen=True, slots=True)
class ReportView:
    """The latest application entry of one server, as the state machine judges it."""

    raft_id: int
    name: str | None
    age_ms: int
    stale: bool
    score: float | None
    """What the publisher's choice compares; higher is healthier. None when the server cannot be chosen."""
    can_publish: bool
    publishing: bool
    attached: bool
    clock_off: bool
    healthy_destinations: int
    destinations: int
    job_lag_ms: float | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    masters: tuple[str, ...] = ()
    """Which master destinations it names; none: it serves all."""
    leaves: tuple[LeafView, ...] = ()


@dataclass(frozen=True, slots=True)
class ExclusionView:
    """A leaf that an operator keeps out of every structure."""

    destination: str
    name: str | None


@dataclass(frozen=True, slots=True)
class CostFactorView:
    """An operator's factor on a leaf's cost."""

    destination: str
    name: str | None
    factor: float


@dataclass(frozen=True, slots=True)
class PipelineFactorView:
    """The pipeline's factor on a leaf's cost: what was said, how long ago by log time, and what is left of it."""

    destination: str
    name: str | None
    factor: float
    said: float
    age_ms: int


@dataclass(frozen=True, slots=True)
class WeightsView:
    """What operators and the pipeline add to the reports."""

    excluded: tuple[ExclusionView, ...] = ()
    costs: tuple[CostFactorView, ...] = ()
    factors: tuple[PipelineFactorView, ...] = ()
    through_index: int = 0
    formula: str = ""


@dataclass(frozen=True, slots=True)
class AlarmView:
    """Something that an operator must see: what it is, in words, and what to do."""

    kind: str
    text: str
    action: str


@dataclass(frozen=True, slots=True)
class EventView:
    """One line of the recent past."""

    time_ms: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class FarmView:
    """The whole picture."""

    taken_at_ms: int
    node: NodeView
    farm: FarmIdentity
    gossip: GossipView
    raft: RaftView
    members: tuple[MemberView, ...] = ()
    publishing: tuple[PublishingView, ...] = ()
    reports: tuple[ReportView, ...] = ()
    weights: WeightsView = WeightsView()
    removed: tuple[int, ...] = ()
    """Raft ids of servers that an operator took out of the farm."""
    alarms: tuple[AlarmView, ...] = ()
    events: tuple[EventView, ...] = ()
    """Oldest first."""
    counters: tuple[CounterView, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process of a local farm, and the last picture that its node gave (None while it does not answer)."""

    name: str
    pid: int | None
    running: bool
    detail: str
    """How it ended, or nothing while it runs."""
    view: FarmView | None = None


@dataclass(frozen=True, slots=True)
class LocalFarmView:
    """What `garlicfarm up` shows: every process that it started."""

    taken_at_ms: int
    state_directory: str
    processes: tuple[ProcessView, ...]
    notice: str = ""
    program: str = "garlicfarm"
    """How the reader's shell calls this program."""


def best_view(farm: LocalFarmView) -> FarmView | None:
    """The picture to show for a whole local farm: the leader's of the highest term, else that with the longest log."""
    views = [process.view for process in farm.processes if process.running and process.view is not None]
    if not views:
        return None

    def rank(view: FarmView) -> tuple[bool, int, int]:
        return (view.raft.role is RaftRole.LEADER, view.raft.term, view.raft.commit_index)

    return max(views, key=rank)


def counters(values: dict[str, int]) -> tuple[CounterView, ...]:
    """Counters in their one order."""
    return tuple(CounterView(name, value) for name, value in sorted(values.items()))
