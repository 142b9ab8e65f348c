"""The parts that the background tasks of a node in a farm share, made by `bridge.node.founded_farm`."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct, field

from bridge.core.log.records import MetaStatus
from bridge.core.publishing.publication import Pace
from bridge.node.events.alarms import Alarms, SharedAlarm
from bridge.node.events.event_log import EventLog, clock_ms
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.replica import Replica
from bridge.node.router.router import Router
from bridge.node.security.signing_keys import PublishingKey
from bridge.node.tasks.directory import Directory
from bridge.node.tasks.known_structures import KnownStructures
from bridge.node.tasks.published_store import PublishedStore


class TaskContext(Struct, frozen=True, kw_only=True):
    """The shared parts and settings."""

    cluster: str
    replica: Replica
    applied_state: AppliedState
    signer: EntrySigner
    router: Router
    keys: tuple[PublishingKey, ...]
    """One key for each master destination that this node can sign for."""
    keyless: tuple[MetaStatus, ...] = ()
    """This node's status for the masters whose leaves it serves without a signing key."""
    pace: Pace
    period_ms: int
    """Milliseconds between clock entries of this node as leader; all nodes follow the leader's period."""
    election_timeout_ms: int
    """The shortest election timeout of a server of this farm, in milliseconds."""
    published: PublishedStore
    structures: KnownStructures
    """The signed structures for clients."""
    directory: Directory | None
    """The directory; None if the settings do not name a SAM bridge."""
    trace: EventLog
    alarms: Alarms
    router_alarm: SharedAlarm
    """Failures of the router, by the task that used it."""
    request_prefix: str
    """NodeId and generation. Together with the start of a session and a number, they identify a submission uniquely."""
    reachable: Callable[[], AbstractSet[bytes]]
    """Returns the NodeIds of other members that gossip has marked neither dead nor left."""
    configuration: Mapping[str, object] = field(default_factory=dict)
    """The settings that the node reports: an allow-list without secrets."""
    clock_ms: Callable[[], int] = clock_ms

    @property
    def expected_period_s(self) -> float:
        """The farm's reporting period in seconds, or this node's setting until an entry of this run confirms it."""
        return self.period_s if self.applied_state.quorum.moved else self.period_ms / 1000

    @property
    def period_s(self) -> float:
        """The farm's reporting period in seconds."""
        return self.applied_state.farm.tuning.period_ms / 1000
