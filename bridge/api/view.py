"""The view: one node's knowledge of the farm at one moment.

    gossip's description ─┐
    Raft's description   ─┼─▶ build_view ─▶ FarmView ─▶ control endpoint ─▶ terminal view, `--json`, metrics
    the farm's state     ─┘

Every operator surface takes the state of the farm from a `FarmView`. So two surfaces cannot disagree, and nothing is
computed twice. A view is plain data, and nothing in it is secret. Identifiers are text (node ids in hexadecimal,
destinations as `….b32.i2p`), the names of times contain the unit, and unknown values are null.

There are three kinds of time: `taken_at_ms` and the times of events use the node's own clock (milliseconds since the
epoch). `log_time_ms` is the farm's agreed time. Ages and round-trip times are durations.

Counters are objects of names and values, ordered by name. A name consists of lower-case words joined by `_`, as in the
metric of the counter.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from bridge.api.json import Document, Record
from bridge.core.formation.member import MemberStatus
from bridge.core.log.figures import FIGURES


class Phase(Enum):
    """Progress of a node toward a place in a farm."""

    DISCOVERING = "discovering"
    """The node searches for other nodes of this farm."""
    FORMING = "forming"
    """The node reaches enough nodes to create the farm; these nodes promise each other to create it."""
    FOUNDED = "founded"
    """The node is a voter of a created farm."""
    OBSERVER = "observer"
    """The node knows the farm, follows it, and does not vote."""
    STOPPING = "stopping"
    """The node announces its departure to its peers."""


class ServerRole(Enum):
    """Role of a member in the Raft group."""

    NONE = "none"
    """The member is not admitted, or the queried node does not have the log."""
    VOTER = "voter"
    """The member votes, and counts for a majority."""
    LEARNER = "learner"
    """The member receives the log and does not vote."""
    REMOVED = "removed"
    """The member is admitted, and is not in the group now."""


class RaftRole(Enum):
    """Role of a server in Raft; `none` before the farm exists and for nodes outside the configuration."""

    NONE = "none"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Severity(Enum):
    """Severity of a verdict."""

    OK = "ok"
    """The farm works."""
    WARNING = "warning"
    """The farm works, or is starting; check it before another part fails."""
    CRITICAL = "critical"
    """The farm does not work, or will stop soon: act now."""


class VerdictKind(Enum):
    """Kind of a verdict, in the order of precedence (`docs/reference/verdicts.md`)."""

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
    """The version of the queried node does not report verdicts."""


class VerdictView(Record, frozen=True):
    """Health of the farm, as the queried node sees it."""

    kind: VerdictKind
    """Kind of the verdict."""
    severity: Severity
    """Severity of the verdict."""
    text: str
    """The verdict in one line; it names servers."""
    can_lose: int | None
    """Number of servers, in any combination, that may fail. The others still have a quorum, a server that can publish,
    and a healthy leaf. Null if the queried node is not a server of the farm."""
    voters: int
    """Number of voters."""
    ready: bool
    """`/readyz` answers 200."""
    advice: str
    """Action for the operator."""


NO_VERDICT = VerdictView(
    kind=VerdictKind.UNKNOWN,
    severity=Severity.WARNING,
    text="Unknown: the node does not report a verdict",
    can_lose=None,
    voters=0,
    ready=False,
    advice="use the same version of garlicfarm as the node",
)


class DirectoryView(Record, frozen=True):
    """The directory of a node: an I2P destination that returns signed structures to clients."""

    address: str | None
    """Address of the directory; null before its first session."""
    problem: str | None
    """Reason why the directory does not serve now; null if it serves."""


class NodeView(Record, frozen=True):
    """The queried node."""

    name: str
    """Name of the node."""
    node_id: str
    """NodeId of the node."""
    raft_id: int | None
    """Raft id; null before the admission of the node."""
    generation: int
    """Number of starts of the node with this state directory."""
    pid: int
    """Process id."""
    version: str
    """Version of garlicfarm on the node."""
    uptime_ms: int
    """Milliseconds since its start."""
    phase: Phase
    """Progress of the node toward a place in a farm."""
    control_address: str
    """The path of its control socket."""
    state_directory: str
    """The path of its state directory."""
    zmq_address: str | None = None
    """Address where ØMQ Raft clients read the farm's log; null without such an endpoint."""
    kafka_address: str | None = None
    """Address where Kafka clients read the farm's log; null without such a listener."""
    directory: DirectoryView | None = None
    """Directory of the node now; null if the settings do not name a SAM bridge, and while the node is not a server."""


class FarmIdentity(Record, frozen=True):
    """Identity of the farm."""

    label: str
    """The public hash of the farm key."""
    cluster: str
    """Name of the cluster in the farm key file."""
    cluster_id: str | None
    """The id of the cluster; null before the farm is created."""
    expect: int
    """Number of nodes that create the farm."""
    demo: bool
    """The master and leaves are throwaway keys: a demonstration that never leaves the machine."""
    level: int | None = None
    """Feature level of the farm; null before this node has the log."""


class MemberView(Record, frozen=True):
    """A member, from gossip and its signed metadata. `name` comes from the log once recorded there."""

    node_id: str
    """NodeId of the member."""
    name: str
    """Name of the member; the NodeId while the metadata is unknown."""
    status: MemberStatus
    """Status of its process, from gossip."""
    generation: int
    """First part of its incarnation: the number of its starts."""
    number: int
    """Second part of its incarnation: the number of refuted suspicions and changes of its metadata."""
    address: str | None
    """Gossip address; null if the member does not have one."""
    is_self: bool
    """The member is the queried node."""
    is_peer: bool
    """The queried node probes it. Members that are not peers are known from the reports of peers."""
    rtt_ms: float | None = None
    """Round-trip time of the last probes, milliseconds; null without a measurement, and for a dead or left member."""
    peer_count: int | None = None
    """Number of members that it probes."""
    capacity: int | None = None
    """Number of members that it would probe at most."""
    raft_id: int | None = None
    """Raft id, from the member's metadata, or from the log until the member sends one; null without one."""
    endpoint: str | None = None
    """Address of its Raft server; null if its metadata is unknown."""
    server_role: ServerRole = ServerRole.NONE
    """Role of the member in the Raft group."""
    status_age_ms: int | None = None
    """Milliseconds since gossip gave it this status; null if unknown, and for the queried node."""
    certificate: str | None = None
    """SHA-256 of its TLS certificate."""
    evicted: bool = False
    """The log has evicted this identity: it is not a part of the farm, and does not count."""
    level: int | None = None
    """Highest feature level that it supports, from its own metadata."""


class OtherFarmView(Record, frozen=True):
    """A sender of gossip under another farm's key. The address is not authenticated, and the gossip is not read."""

    address: str
    """Address of the sender."""
    label: str
    """The public hash of the other farm's key."""


class GossipView(Record, frozen=True):
    """Gossip of the queried node."""

    peer_count: int
    """Number of members that it probes."""
    capacity: int
    """Number of members that it would probe at most."""
    known_count: int
    """Number of known members, the queried node included."""
    counters: Mapping[str, int] = {}
    """Counters of gossip since the process started."""
    other_farms: tuple[OtherFarmView, ...] = ()
    """The last senders of gossip under another farm's key within a minute; at most eight."""


class VoterView(Record, frozen=True):
    """A member of Raft's configuration, voter or learner."""

    raft_id: int
    """Raft id of the server."""
    endpoint: str
    """Address of its Raft server."""
    name: str | None = None
    """Name of the server."""
    evicted: bool = False
    """The identity is never admitted again; the server leaves the configuration when enough other voters are present.
    """


class FollowerView(Record, frozen=True):
    """A follower, from its leader; only the leader's view has followers."""

    raft_id: int
    """Raft id of the follower."""
    name: str | None
    """Name of the follower."""
    match_index: int | None
    """Last entry that it has, as known to the leader; null before its first reply in this term."""
    lag_entries: int | None
    """Number of entries of the leader's log that it lacks; null before its first reply in this term."""
    last_contact_ms: int | None
    """Milliseconds since its last reply; null before its first reply in this term."""


class LinkView(Record, frozen=True):
    """Connection of the queried node to another server; the other server's requests use a second connection."""

    raft_id: int
    """The Raft id of the other server."""
    name: str | None
    """Name of the other server."""
    connected: bool
    """The connection is open now."""
    extensions: tuple[str, ...]
    """Protocol extensions agreed in the last handshake; empty for a server of another implementation."""


class RaftView(Record, frozen=True):
    """Replica of the log at the queried node."""

    role: RaftRole
    """Role of the node in Raft."""
    term: int
    """Term of the node."""
    leader_id: int | None
    """Raft id of the leader."""
    leader_name: str | None
    """Name of the leader."""
    leader_endpoint: str | None
    """Address of the leader's Raft server."""
    first_index: int
    """First entry in its log; a snapshot covers the earlier entries."""
    last_index: int
    """The last entry of its log."""
    commit_index: int
    """Last committed entry that it knows."""
    applied_index: int
    """Last entry applied by its state machine."""
    log_time_ms: int | None
    """The farm's agreed time; null before this node has the log."""
    voters: tuple[VoterView, ...] = ()
    """The voters."""
    learners: tuple[VoterView, ...] = ()
    """The servers that receive the log and do not vote."""
    followers: tuple[FollowerView, ...] = ()
    """On the leader only: the other servers."""
    waits: tuple[str, ...] = ()
    """On the leader only: the conditions for its next changes of the group."""
    counters: Mapping[str, int] = {}
    """Counters of the replica since the process started."""
    transfer_target: int | None = None
    """Raft id of the server that will take over leadership from this leader; null without a transfer in progress."""
    links: tuple[LinkView, ...] = ()
    """This node's connections to the other servers, in order of their ids."""
    majorities: tuple[tuple[int, ...], ...] = ()
    """Sets of voters, by Raft id; a decision needs a majority in each: two while the group changes."""
    election_timeout_ms: int = 0
    """Shortest election timeout of a server of this farm."""
    leaderless_ms: int | None = None
    """Time without a known leader; null while this node knows one, and before it has the log."""
    stands_still: bool = False
    """This node has not applied a clock entry for several reporting periods, so the farm probably lacks a quorum."""
    udp_blocked: tuple[int, ...] = ()
    """Raft ids of the servers that Raft reaches, although gossip marks them dead or does not list them. The
    contradiction has lasted for at least 10 s and two election timeouts."""
    not_reporting: tuple[int, ...] = ()
    """Raft ids of the servers that gossip and Raft reach, although their last report is outdated. The contradiction
    has lasted for at least 10 s and two election timeouts."""


class MetaEntryView(Record, frozen=True):
    """One entry of the published Meta LeaseSet2."""

    destination: str
    """The address of the leaf."""
    name: str | None
    """The server of the leaf; null if no server reports it now."""
    cost: int
    """0 to 200; routers that resolve the structure prefer a lower cost."""
    end_s: int
    """End of the entry."""
    healthy: bool
    """The state machine judges the leaf healthy, and gossip does not report its server dead."""
    faults: tuple[str, ...] | UnsetType = UNSET
    """Failed conditions in the last report of the leaf's server (`router`, `leaseSet`, `service`), after `server` if
    this server is down or does not report. Left out if empty."""


class ScorePartView(Record, frozen=True):
    """The part of one figure in the score of a candidate."""

    label: str
    """The figure: job lag, uptime, leaves, bandwidth, processor or memory."""
    value: str
    """Value of the figure in the server's report."""
    points: int
    """Points of the figure in the score."""
    maximum: int
    """Points of the best value."""


class StandingView(Record, frozen=True):
    """A server as a candidate to publish a master."""

    raft_id: int
    """Raft id of the server."""
    name: str | None
    """Name of the server."""
    preferred: bool
    """The server has the setting publish = "on"."""
    score: int
    """Score in the election of the publisher; higher is healthier."""
    inability: str | None
    """Reason why it cannot publish now; null if it can."""
    failure: str | UnsetType = UNSET
    """Reason why the server's router did not accept the last structure, or does not accept any; otherwise left out."""
    standby: bool = False
    """True if its router keeps a session ready, to publish without delay if it becomes the publisher."""
    parts: tuple[ScorePartView, ...] = ()
    """Parts of the score, in the order of the formula; the sum of their points is the score."""
    choice: str = ""
    """Reason why the server is, or is not, the publisher."""


class LookUpView(Record, frozen=True):
    """The last look-up of a master by the router of a node."""

    raft_id: int
    """Raft id of the node."""
    name: str | None
    """Name of the node."""
    found: bool
    """The router found a structure of the master, the newest or an earlier structure that is still valid."""
    fetch_ms: int | None
    """Duration of the look-up; null if nothing was found."""
    age_ms: int
    """Milliseconds of log time since the report with the result."""


class PublishingView(Record, frozen=True):
    """Publication of one master destination."""

    master: str
    """The address of the master."""
    publisher_id: int | None
    """Raft id of the publisher; null while no server can publish."""
    publisher_name: str | None
    """Name of the publisher."""
    reason: str
    """Reason why the server `publisherId` is the publisher."""
    published_s: int | None = None
    """The timestamp of the last publication that the log accepted; null before the first one. `handedOverS` shows
    if a router accepted it."""
    expires_s: int | None = None
    """End of the last structure that a router accepted; null without one."""
    seconds_to_expiry: int | None = None
    """Seconds until `expiresS`, by log time; negative after it."""
    lease_set_file: str | None = None
    """File with the structure, if this node has a router of kind `file` and has a structure."""
    entries: tuple[MetaEntryView, ...] = ()
    """Entries of the structure."""
    published_by: int | None = None
    """Raft id of the server that made the shown publication."""
    content_hash: str | None = None
    """The hash of the content of the last accepted publication."""
    forced: bool = False
    """An operator has requested a new publication, which is pending."""
    standings: tuple[StandingView, ...] = ()
    """Every server as a candidate to publish this master."""
    published_by_name: str | None = None
    """Name of the server that made the shown publication."""
    without_quorum: bool = False
    """The farm lacks a quorum: `publisherId` is the server that publishes alone, as this node sees it. The view shows
    the structure that this node has signed since, instead of the last one in the log."""
    handed_over_s: int | None = None
    """Timestamp of the last structure that a router accepted, in seconds; null without one. The node knows it from
    reports, so it may be a reporting period old, except on the publisher itself."""
    handed_over_by: int | None = None
    """Raft id of the server whose router accepted the structure of `handedOverS`."""
    handed_over_by_name: str | None = None
    """Name of the server `handedOverBy`."""
    seen: bool | None = None
    """True if a look-up by another node's router has found a structure since the hand-over. False if no look-up has
    found a structure after enough time. Null until a look-up decides. Only Java routers look up a Meta LeaseSet2."""
    look_ups: tuple[LookUpView, ...] = ()
    """The last look-ups by the routers of the other nodes."""


class ConditionView(Record, frozen=True):
    """A condition of a healthy leaf, from its server's report."""

    condition: str
    """`router`, `leaseSet` or `service`."""
    holds: bool
    """The condition holds."""
    since_ms: int | None = None
    """Milliseconds of log time since it began to hold, or to fail."""
    last_error: str | None = None
    """Reason of its last failure, also if it holds again; at most 200 printable characters. Null without one."""
    failures: int | None = None
    """Number of times that the condition began to fail since the node's start."""


class LeafView(Record, frozen=True):
    """A destination, from its server's report."""

    destination: str
    """The address of the leaf."""
    master: str | None
    """Address of the leaf's master; null if the leaf belongs to all masters of its server."""
    healthy: bool
    """The server reports the leaf healthy."""
    load: int
    """Load, 0 to 100; the factors of operators and the pipeline turn it into the cost."""
    excluded: bool
    """An operator excludes it from every structure."""
    faults: tuple[str, ...] | UnsetType = UNSET
    """Failed conditions in the report of the leaf's server (`router`, `leaseSet`, `service`); left out if empty."""
    conditions: tuple[ConditionView, ...] | UnsetType = UNSET
    """The state of its known conditions; left out if empty. The lease set is not known before its first look-up, and
    while the router does not reply."""


class ReportView(Record, frozen=True):
    """Latest report of a server, judged by the state machine."""

    raft_id: int
    """The Raft id of the server."""
    name: str | None
    """Name of the server."""
    age_ms: int
    """Milliseconds of log time since the entry."""
    stale: bool
    """The report is too old."""
    score: float | None
    """Score in the election of the publisher; higher is healthier. Null if the server cannot be elected."""
    can_publish: bool
    """The server can publish now."""
    publishing: bool
    """The server is the publisher of a master."""
    attached: bool
    """The server is connected to its router."""
    clock_off: bool
    """The server's clock differs too much from the other clocks."""
    healthy_destinations: int
    """Number of its healthy leaves, from its report."""
    destinations: int
    """Number of its leaves, from its report."""
    # Figures of `bridge.core.log.figures`, which has their meaning; null if a figure is not reported.
    job_lag_ms: float | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    masters: tuple[str, ...] = ()
    """Addresses of its masters; empty if it serves all masters."""
    leaves: tuple[LeafView, ...] = ()
    """Leaves of the server."""
    directory: DirectoryView | None = None
    """Directory of the server; null if the server does not use a SAM bridge, or has an older version."""


SHOWN: Final = tuple(each for each in FIGURES.values() if each.name in ReportView.__struct_fields__)
"""The figures of the view; commands, screens and metrics show them all."""


class ExclusionView(Record, frozen=True):
    """A leaf excluded from every structure by an operator."""

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
    """Multiplier of the cost, 0.1 to 10."""


class PipelineFactorView(Record, frozen=True):
    """The pipeline's factor on a leaf's cost, which fades with time."""

    destination: str
    """The address of the leaf."""
    name: str | None
    """The server of the leaf; null if no server reports it now."""
    factor: float
    """The present factor."""
    said: float
    """The factor set by the pipeline."""
    age_ms: int
    """Milliseconds of log time since the pipeline set it."""


class WeightsView(Record, frozen=True):
    """Exclusions and factors of operators and the pipeline."""

    excluded: tuple[ExclusionView, ...] = ()
    """The excluded leaves."""
    costs: tuple[CostFactorView, ...] = ()
    """The factors of operators."""
    factors: tuple[PipelineFactorView, ...] = ()
    """The factors of the pipeline."""
    through_index: int = 0
    """Last log entry used for the pipeline's last factors."""
    formula: str = ""
    """Name of the formula of the pipeline's factors."""


class AlarmView(Record, frozen=True):
    """An active alarm."""

    kind: str
    """The name of the alarm (`docs/reference/alarms.md`)."""
    text: str
    """Cause of the alarm."""
    action: str
    """Action for the operator."""
    severity: Severity = Severity.WARNING
    """Critical if the farm or this node does not work; otherwise a warning."""


class EventView(Record, frozen=True):
    """A recent event."""

    time_ms: int
    """Time of the node's clock."""
    kind: str
    """The name of the event."""
    text: str
    """The event as one line."""


class FarmView(Document, frozen=True):
    """The state of the farm at one moment, as one node knows it."""

    taken_at_ms: int
    """Time of the query, by the node's clock."""
    node: NodeView
    """The queried node."""
    farm: FarmIdentity
    """Identity of the farm."""
    gossip: GossipView
    """Gossip of the node."""
    raft: RaftView
    """The node's replica of the log."""
    verdict: VerdictView = NO_VERDICT
    """The verdict."""
    members: tuple[MemberView, ...] = ()
    """The members in gossip, in order of their names."""
    publishing: tuple[PublishingView, ...] = ()
    """The publication of each master."""
    reports: tuple[ReportView, ...] = ()
    """The latest report of each server."""
    weights: WeightsView = WeightsView()
    """Exclusions and factors of operators and the pipeline."""
    removed: tuple[int, ...] = ()
    """Raft ids of servers removed by an operator."""
    alarms: tuple[AlarmView, ...] = ()
    """The active alarms, the most severe first."""
    events: tuple[EventView, ...] = ()
    """The recent events, oldest first."""
    counters: Mapping[str, int] = {}
    """Counters of the node since the process started."""


class ProcessView(Struct, frozen=True):
    """One process of a local farm, and the last view of its node (None while the node does not reply)."""

    name: str
    pid: int | None
    running: bool
    detail: str
    """Text about the end of the process; empty while it runs."""
    view: FarmView | None = None


class LocalFarmView(Struct, frozen=True):
    """The processes that `garlicfarm up` started."""

    taken_at_ms: int
    state_directory: str
    processes: tuple[ProcessView, ...]
    notice: str = ""
    program: str = "garlicfarm"
    """The command that starts this program in the reader's shell."""
    client: str = ""
    """The command of a client that reaches the leaves."""


def counted_members(view: FarmView) -> tuple[MemberView, ...]:
    """Return the members that count as a part of the farm: all but evicted identities."""
    return tuple(each for each in view.members if not each.evicted)


def best_view(farm: LocalFarmView) -> FarmView | None:
    """Return the view for a whole local farm: a leader's if there is one, with the highest term.

    Among views of one term, the view with the highest commit index has precedence.
    """
    views = [process.view for process in farm.processes if process.running and process.view is not None]
    if not views:
        return None

    def rank(view: FarmView) -> tuple[bool, int, int]:
        return (view.raft.role is RaftRole.LEADER, view.raft.term, view.raft.commit_index)

    return max(views, key=rank)
