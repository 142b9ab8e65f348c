"""The parts that the background tasks of a node in a farm share, made by `bridge.node.app`."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from bridge.core.log.records import MetaStatus
from bridge.core.publishing.publication import Pace
from bridge.node.events.alarms import Alarms, SharedAlarm
from bridge.node.events.event_log import EventLog, clock_ms
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.replica import Replica
from bridge.node.router.router import Router
from bridge.node.security.signing_keys import HeldKey
from bridge.node.tasks.published_store import PublishedStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The parts, and what they are told."""

    cluster: str
    replica: Replica
    applied_state: AppliedState
    signer: EntrySigner
    router: Router
    keys: tuple[HeldKey, ...]
    """One for each master destination that this node can sign for."""
    keyless: tuple[MetaStatus, ...] = ()
    """Its part in the masters whose leaves it serves and which it cannot sign for."""
    pace: Pace
    period_ms: int
    """The period that this node writes into clock entries while it leads; all follow the leader's."""
    election_timeout_ms: int
    """The shortest that a server of this farm may draw."""
    published: PublishedStore
    trace: EventLog
    alarms: Alarms
    router_alarm: SharedAlarm
    """What the router did not do, by who asked for it."""
    request_prefix: str
    """NodeId and generation: with the birth of a session and a number behind it, it names a submission for ever."""
    reachable: Callable[[], AbstractSet[bytes]]
    """NodeIds of the other members that gossip does not hold for dead."""
    configuration: Mapping[str, object] = field(default_factory=dict)
    """What of its settings the node reports: an allow-list without secrets."""
    clock_ms: Callable[[], int] = clock_ms

    @property
    def expected_period_s(self) -> float:
        """The farm's reporting period, or this node's setting while no entry of this life has told it."""
        return self.period_s if self.applied_state.quorum.moved else self.period_ms / 1000

    @property
    def period_s(self) -> float:
        """The farm's reporting period."""
        return self.applied_state.farm.tuning.period_ms / 1000
