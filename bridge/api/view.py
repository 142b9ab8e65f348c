"""The view: what one node knows of the farm at one moment.

    gossip's description ─┐
    Raft's description   ─┼─▶ build_view ─▶ FarmView ─▶ control endpoint ─▶ terminal view, `--json`, metrics
    the farm's state     ─┘

Every operator surface shows a `FarmView` and nothing else, so that two surfaces cannot disagree and nothing is computed
twice. It is plain data: identifiers are text (node ids in hexadecimal, destinations as `….b32.i2p`), times carry their
unit in the name, and what is not known is null, never a made-up figure. Nothing in it is secret.

Three clocks occur and are kept apart: `taken_at_ms` and the times of events are by the node's own clock (milliseconds
since the epoch), `log_time_ms` is the farm's agreed time, and ages and round-trip times are durations.

Counters are objects of names and values, ordered by name; a name is lower-case words joined by `_`, the same word that
the metric of that counter has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from msgspec import UNSET, UnsetType

from bridge.api.json import Document, Record
from bridge.core.formation.member import MemberStatus
from bridge.core.log.figures import FIGURES


class Phase(Enum):
    """How far a node has come on its way into a farm."""

    DISCOVERING = "discovering"
    """Looking for other nodes of this farm."""
    FORMING = "forming"
    """It hears enough founders; they make their promises."""
    FOUNDED = "founded"
    """A voter of a farm that has its first configuration."""
    OBSERVER = "observer"
    """Knows the farm, follows it, and does not vote."""
    STOPPING = "stopping"
    """The node announces its departure to its peers."""


class ServerRole(Enum):
    """What a member is in the Raft group."""

    NONE = "none"
    """Not admitted, or no server yet."""
    VOTER = "voter"
    """Votes, and counts for a majority."""
    LEARNER = "learner"
    """Gets the log and does not vote."""
    REMOVED = "removed"
    """Was admitted, and is not in the group now."""


class RaftRole(Enum):
    """Role of a server in Raft; `none` before the farm exists and for nodes outside the configuration."""

    NONE = "none"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Severity(Enum):
    """How much a verdict matters."""

    OK = "ok"
    """Nothing is wrong."""
    WARNING = "warning"
    """The farm does its work, or is about to; look at it before something else fails."""
    CRITICAL = "critical"
    """The farm does not do its work, or soon will not: act now."""


class VerdictKind(Enum):
    """What a verdict is about, in the order of precedence (`docs/reference/verdicts.md`)."""

    STOPPING = "stopping"
    FOREIGN_KEY = "foreign-key"
    WAITING = "waiting"
    NO_QUORUM = "no-quorum"
    ELECTING = "electing"
    NOT_PUBLISHED = "not-published"
    NO_HEALTHY_LEAF = "no-healthy-leaf"
    DEGRADED = "degraded"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    """The node that was asked is of a version that gives no verdict."""


class VerdictView(Record, frozen=True):
    """How the farm is, as the asked node sees it."""

    kind: VerdictKind
    """What it is about."""
    severity: Severity
    """How much it matters."""
    text: str
    """The verdict in one line; it names servers."""
    can_lose: int | None
    """How many servers may fail, whichever they are, before the farm loses its quorum, its last server that can publish
    or its last healthy leaf; null if the asked node is not a server of the farm."""
    voters: int
    """How many servers vote."""
    ready: bool
    """`/readyz` answers 200."""
    advice: str
    """What to do, in words."""


NO_VERDICT = VerdictView(
    kind=VerdictKind.UNKNOWN,
    severity=Severity.WARNING,
    text="Unknown: the node does not report a verdict",
    can_lose=None,
    voters=0,
    ready=False,
    advice="use the same version of garlicfarm as the node",
)


class NodeView(Record, frozen=True):
    """The node that was asked."""

    name: str
    """What operators call the node."""
    node_id: str
    """Its NodeId, in hexadecimal."""
    raft_id: int | None
    """Its Raft id; null before the log has admitted it."""
    generation: int
    """How often it was started with this state directory."""
    pid: int
    """Its process."""
    version: str
    """The version of garlicfarm that it runs."""
    uptime_ms: int
    """Milliseconds since it started."""
    phase: Phase
    """How far it has come on its way into a farm."""
    control_address: str
    """The path of its control socket."""
    state_directory: str
    """The path of its state directory."""
    zmq_address: str | None = None
    """Where ØMQ Raft clients read the farm's log; null where they cannot."""
    kafka_address: str | None = None
    """Where Kafka's clients read the farm's log; null where they cannot."""


class FarmIdentity(Record, frozen=True):
    """Which farm this is."""

    label: str
    """The public hash of the farm key, in hexadecimal."""
    cluster: str
    """The name of the cluster, as the farm key file says it."""
    cluster_id: str | None
    """The id of the cluster, in hexadecimal; null before the farm is created."""
    expect: int
    """Number of nodes that create the farm."""
    demo: bool
    """Throwaway master and leaves: a demonstration that never leaves the machine."""
    level: int | None = None
    """The feature level that all servers have agreed on; null before this node has the log."""


class MemberView(Record, frozen=True):
    """One member as gossip knows it. `name`, `raft_id` and `endpoint` come from its signed metadata."""

    node_id: str
    """Its NodeId, in hexadecimal."""
    name: str
    """What operators call it; its NodeId while its metadata is not known."""
    status: MemberStatus
    """What gossip knows of its process."""
    generation: int
    """The first part of its incarnation: how often it was started."""
    number: int
    """The second part of its incarnation: how often it has contradicted a suspicion, or changed its metadata."""
    address: str | None
    """Where it listens for gossip; null where there is none."""
    is_self: bool
    """It is the node that was asked."""
    is_peer: bool
    """The asked node probes it; of the others it knows through its peers."""
    rtt_ms: float | None = None
    """Round-trip time of the last probes, milliseconds; null without a measurement, and of a dead or left member."""
    peer_count: int | None = None
    """How many members it probes; null if it has not told."""
    capacity: int | None = None
    """How many members it is willing to probe; null if it has not told."""
    raft_id: int | None = None
    """Its Raft id, as it says itself; null if it has none."""
    endpoint: str | None = None
    """Where its Raft server listens; null if its metadata is not known."""
    server_role: ServerRole = ServerRole.NONE
    """What it is in the Raft group."""
    status_age_ms: int | None = None
    """Milliseconds since gossip gave it this status; null if that is not known, and for the asked node."""
    certificate: str | None = None
    """The SHA-256 of its TLS certificate, in hexadecimal; null if it has not told."""
    evicted: bool = False
    """The log has evicted this identity: it is not a part of the farm, and no surface counts it."""
    level: int | None = None
    """The highest feature level that it supports, as it says itself; null if its metadata is not known."""


class OtherFarmView(Record, frozen=True):
    """A sender of gossip under another farm's key. Nothing proves the address, and nothing of it is read."""

    address: str
    """From where it comes."""
    label: str
    """The public hash of that farm's key, in hexadecimal."""


class GossipView(Record, frozen=True):
    """The asked node's place in gossip."""

    peer_count: int
    """How many members it probes."""
    capacity: int
    """How many members it is willing to probe."""
    known_count: int
    """How many members it knows, itself included."""
    counters: Mapping[str, int] = {}
    """What gossip has counted since the process started."""
    other_farms: tuple[OtherFarmView, ...] = ()
    """The last senders of gossip under another farm's key, each heard within a minute; at most eight."""


class VoterView(Record, frozen=True):
    """A member of Raft's configuration, voter or learner."""

    raft_id: int
    """Its Raft id."""
    endpoint: str
    """Where its Raft server listens."""
    name: str | None = None
    """What operators call it; null if it is not known."""
    evicted: bool = False
    """Its identity is never admitted again; it leaves the configuration as soon as enough other voters are there."""


class FollowerView(Record, frozen=True):
    """A follower as its leader knows it; only the leader's view has any."""

    raft_id: int
    """Its Raft id."""
    name: str | None
    """What operators call it; null if it is not known."""
    match_index: int | None
    """The last entry that it is known to have; null before it has answered in this term."""
    lag_entries: int | None
    """How many entries of the leader's log it lacks; null before it has answered in this term."""
    last_contact_ms: int | None
    """Milliseconds since it last answered; null if it has not answered in this term."""


class LinkView(Record, frozen=True):
    """The asked node's own connection to another server; requests of the other one come by a second connection."""

    raft_id: int
    """The Raft id of the other server."""
    name: str | None
    """What operators call it; null if it is not known."""
    connected: bool
    """The connection is open now."""
    extensions: tuple[str, ...]
    """What the last handshake agreed on beyond the protocol's own messages; none with a server of another make."""


class RaftView(Record, frozen=True):
    """The asked node's replica of the log."""

    role: RaftRole
    """What it is in Raft."""
    term: int
    """The term that it knows."""
    leader_id: int | None
    """The Raft id of the leader; null while none is known."""
    leader_name: str | None
    """What operators call the leader; null if it is not known."""
    leader_endpoint: str | None
    """Where the leader's Raft server listens; null if it is not known."""
    first_index: int
    """The first entry that its log still holds; a snapshot covers those before."""
    last_index: int
    """The last entry of its log."""
    commit_index: int
    """The last entry that it knows to be committed."""
    applied_index: int
    """The last entry that its state machine has applied."""
    log_time_ms: int | None
    """The farm's agreed time, milliseconds since the epoch; null before this node has the log."""
    voters: tuple[VoterView, ...] = ()
    """The servers that vote."""
    learners: tuple[VoterView, ...] = ()
    """The servers that get the log and do not vote."""
    followers: tuple[FollowerView, ...] = ()
    """On the leader only: the other servers, as it knows them."""
    waits: tuple[str, ...] = ()
    """On the leader only: what it waits for before it changes the group, in words."""
    counters: Mapping[str, int] = {}
    """What the replica has counted since the process started."""
    transfer_target: int | None = None
    """The Raft id of the server to which this leader is handing leadership now; null if it is not."""
    links: tuple[LinkView, ...] = ()
    """This node's connections to the other servers, in order of their ids."""
    majorities: tuple[tuple[int, ...], ...] = ()
    """The sets of voters, by Raft id, of which each must agree by a majority: two while the group changes."""
    election_timeout_ms: int = 0
    """The shortest election timeout that a server of this farm draws."""
    leaderless_ms: int | None = None
    """For how long this node has known no leader; null while it knows one, and before it has the log."""
    stands_still: bool = False
    """No clock entry was committed for several reporting periods: there is no quorum, as this node sees it."""


class MetaEntryView(Record, frozen=True):
    """One entry of the published Meta LeaseSet2."""

    destination: str
    """The address of the leaf."""
    name: str | None
    """The server of the leaf; null if no server reports it now."""
    cost: int
    """0 to 200; routers that resolve the structure prefer a lower cost."""
    end_s: int
    """When the entry ends, seconds since the epoch."""
    healthy: bool
    """The state machine judges the leaf to be healthy, and gossip does not hold its server for dead."""
    faults: tuple[str, ...] | UnsetType = UNSET
    """Which conditions do not hold, as its server reported (`router`, `leaseSet`, `service`); left out if none."""


class StandingView(Record, frozen=True):
    """A server as a candidate to publish a master."""

    raft_id: int
    """Its Raft id."""
    name: str | None
    """What operators call it; null if it is not known."""
    preferred: bool
    """Its operator set publish = "on"."""
    score: int
    """What the election of the publisher compares; higher is healthier."""
    inability: str | None
    """Why it cannot publish now, in words; null if it can."""
    failure: str | UnsetType = UNSET
    """Why its router did not take its last structure, or never takes one, in its words; left out if it did."""


class PublishingView(Record, frozen=True):
    """What is published for one master destination, and by which server."""

    master: str
    """The address of the master."""
    publisher_id: int | None
    """The Raft id of the publisher; null while no server can publish."""
    publisher_name: str | None
    """What operators call the publisher; null if it is not known."""
    reason: str
    """Why that server is the publisher, in words."""
    published_s: int | None = None
    """The second of the last accepted publication, since the epoch; null before the first one."""
    expires_s: int | None = None
    """When the first entry ends, seconds since the epoch."""
    seconds_to_expiry: int | None = None
    """Seconds until the first entry ends, by log time; negative when it has ended."""
    lease_set_file: str | None = None
    """Where this node's router keeps the structure, if it is of the file kind and has one."""
    entries: tuple[MetaEntryView, ...] = ()
    """What the structure lists."""
    published_by: int | None = None
    """The Raft id of the server that made the publication that is shown."""
    content_hash: str | None = None
    """The hash of the content of the last accepted publication, in hexadecimal."""
    forced: bool = False
    """An operator has ordered a new publication, and it has not happened yet."""
    standings: tuple[StandingView, ...] = ()
    """Every server as a candidate to publish this master."""
    published_by_name: str | None = None
    """What operators call the server that made the publication that is shown."""
    without_quorum: bool = False
    """There is no quorum: `publisherId` is the server that publishes by itself, as this node sees it. What this node
    has signed itself since is shown in place of what the log has accepted last."""


class LeafView(Record, frozen=True):
    """One destination as its server reported it."""

    destination: str
    """The address of the leaf."""
    master: str | None
    """The address of the master behind which it stands; null: behind each one that its server names."""
    healthy: bool
    """Its server reports it as healthy."""
    load: int
    """0 to 100; what operators and the pipeline add makes it the cost."""
    excluded: bool
    """An operator keeps it out of every structure."""
    faults: tuple[str, ...] | UnsetType = UNSET
    """Which conditions do not hold, as its server reported (`router`, `leaseSet`, `service`); left out if none."""


class ReportView(Record, frozen=True):
    """The latest application entry of one server, as the state machine judges it."""

    raft_id: int
    """The Raft id of the server."""
    name: str | None
    """What operators call it; null if it is not known."""
    age_ms: int
    """Milliseconds of log time since the entry."""
    stale: bool
    """It is too old to be relied on."""
    score: float | None
    """What the election of the publisher compares; higher is healthier. Null when the server cannot be elected."""
    can_publish: bool
    """The server can publish now."""
    publishing: bool
    """The server is the publisher of a master."""
    attached: bool
    """The server has its router."""
    clock_off: bool
    """The server's clock is too far from those of the others."""
    healthy_destinations: int
    """How many of its leaves it reports as healthy."""
    destinations: int
    """How many leaves it reports."""
    # Figures of `bridge.core.log.figures`, which has their meaning; null if a figure is not reported.
    job_lag_ms: float | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    masters: tuple[str, ...] = ()
    """The addresses of the masters that it names; none: it serves all."""
    leaves: tuple[LeafView, ...] = ()
    """Its leaves."""


SHOWN: Final = tuple(each for each in FIGURES.values() if each.name in ReportView.__struct_fields__)
"""The figures of the view; commands, screens and metrics show them all."""


class ExclusionView(Record, frozen=True):
    """A leaf that an operator keeps out of every structure."""

    destination: str
    """The address of the leaf."""
    name: str | None
    """The server of the leaf; null if no server reports it now."""


class CostFactorView(Record, frozen=True):
    """An operator's factor on a leaf's cost."""

    destination: str
    """The address of the leaf."""
    name: str | None
    """The server of the leaf; null if no server reports it now."""
    factor: float
    """0.1 to 10; by this the cost is multiplied."""


class PipelineFactorView(Record, frozen=True):
    """The pipeline's factor on a leaf's cost, which fades with time."""

    destination: str
    """The address of the leaf."""
    name: str | None
    """The server of the leaf; null if no server reports it now."""
    factor: float
    """The factor as it counts now."""
    said: float
    """The factor as the pipeline has set it."""
    age_ms: int
    """Milliseconds of log time since the pipeline has set it."""


class WeightsView(Record, frozen=True):
    """What operators and the pipeline add to the reports."""

    excluded: tuple[ExclusionView, ...] = ()
    """The leaves that no structure lists."""
    costs: tuple[CostFactorView, ...] = ()
    """The factors of operators."""
    factors: tuple[PipelineFactorView, ...] = ()
    """The factors of the pipeline."""
    through_index: int = 0
    """The entry of the log up to which the pipeline's last factors were computed."""
    formula: str = ""
    """The name of the formula by which the pipeline computes its factors."""


class AlarmView(Record, frozen=True):
    """Something that an operator must see."""

    kind: str
    """The name of the alarm (`docs/reference/alarms.md`)."""
    text: str
    """What happened, in words."""
    action: str
    """What to do, in words."""
    severity: Severity = Severity.WARNING
    """How much it matters: critical if the farm or this node does not do its work; otherwise a warning."""


class EventView(Record, frozen=True):
    """One line of the recent past."""

    time_ms: int
    """By the node's own clock, milliseconds since the epoch."""
    kind: str
    """The name of the event."""
    text: str
    """The event as one line."""


class FarmView(Document, frozen=True):
    """All that one node knows of the farm at one moment."""

    taken_at_ms: int
    """When the node was asked, by its own clock, milliseconds since the epoch."""
    node: NodeView
    """The node that was asked."""
    farm: FarmIdentity
    """Which farm this is."""
    gossip: GossipView
    """The node's place in gossip."""
    raft: RaftView
    """The node's replica of the log."""
    verdict: VerdictView = NO_VERDICT
    """How the farm is, in one line."""
    members: tuple[MemberView, ...] = ()
    """The members that gossip knows, in order of their names."""
    publishing: tuple[PublishingView, ...] = ()
    """What is published, for each master."""
    reports: tuple[ReportView, ...] = ()
    """The latest application entry of each server."""
    weights: WeightsView = WeightsView()
    """What operators and the pipeline add to the reports."""
    removed: tuple[int, ...] = ()
    """The Raft ids of servers that an operator took out of the farm."""
    alarms: tuple[AlarmView, ...] = ()
    """The active alarms, the gravest first."""
    events: tuple[EventView, ...] = ()
    """The recent past, oldest first."""
    counters: Mapping[str, int] = {}
    """What the node has counted since the process started."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process of a local farm, and the last view that its node gave (None while it does not answer)."""

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


def counted_members(view: FarmView) -> tuple[MemberView, ...]:
    """Return the members that count as a part of the farm: all but evicted identities."""
    return tuple(each for each in view.members if not each.evicted)


def best_view(farm: LocalFarmView) -> FarmView | None:
    """The view to show for a whole local farm: the leader's of the highest term, else that with the longest log."""
    views = [process.view for process in farm.processes if process.running and process.view is not None]
    if not views:
        return None

    def rank(view: FarmView) -> tuple[bool, int, int]:
        return (view.raft.role is RaftRole.LEADER, view.raft.term, view.raft.commit_index)

    return max(views, key=rank)
