"""The farm's log entries as values: what the JSON of an application entry means.

Five kinds of JSON object travel as application entries of the Raft log. A member tells them apart:

    report        `router` / `destinations` / `meta`  one server's state (I2P proposal 150, application layer)
    clock         `clock`                             the leader's advance of log time
    publication   `publication`                       the publisher's commitment, before it signs and hands over
    admission     `admission`                         an identity that belongs to the farm from here on
    foreign       anything else that is a JSON object kept in the log; the state machine only notes its `request`

The decoder lives on the wire floor; the state machine sees only these values. Unknown members are ignored there and
stay in the log. What a router kind cannot tell is `None`: unknown, never invented.
"""

from dataclasses import dataclass
from enum import Enum


class PublishConfig(Enum):
    """What an operator allows this server: never publish, publish if chosen, or publish whenever able."""

    OFF = "off"
    AUTO = "auto"
    ON = "on"


@dataclass(frozen=True, slots=True)
class MetaStatus:
    """`meta`: the sender's part in publishing one master destination (base64 as in I2P)."""

    destination: str
    publish_config: PublishConfig
    publishing: bool
    last_published_time_ms: int
    last_published_lease_set: str | None = None
    can_sign_until_s: int | None = None
    """Second at which its (transient) signing key ends; None when it holds no key and so can never publish."""


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """`router`: the sender's router. `attached` is false for a node that has no router."""

    attached: bool
    uptime_ms: int | None = None
    job_lag_ms: float | None = None
    """Lag of the router's job queue, or of the node's own event loop when the router kind cannot tell."""
    exploratory_tunnels: int | None = None
    participating_tunnels: int | None = None
    configured_bandwidth_bytes_per_s: int | None = None
    current_bandwidth_bytes_per_s: int | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    last_published_router_info: str | None = None


@dataclass(frozen=True, slots=True)
class LeafStatus:
    """One element of `destinations`: a destination served by the sender's router."""

    destination: str
    healthy: bool
    """Router reachable, tunnels up, and the local service answers its probe."""
    uptime_ms: int | None = None
    configured_tunnels: int | None = None
    current_tunnels: int | None = None
    configured_bandwidth_bytes_per_s: int | None = None
    current_bandwidth_bytes_per_s: int | None = None
    configured_connections: int | None = None
    current_connections: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One server's application entry."""

    cluster: str
    date_ms: int
    server_id: int
    router: RouterStatus
    meta: MetaStatus | None = None
    destinations: tuple[LeafStatus, ...] = ()
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Clock:
    """The leader's clock entry: log time becomes max(previous, `time_ms`).

    `period_ms` is the farm's reporting period from here on: the leader's setting, and through the log everybody's.
    """

    time_ms: int
    server_id: int
    period_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """The publisher commits to a structure before it signs it: fences a deposed publisher, orders the seconds."""

    master: str
    server_id: int
    published_s: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class Admission:
    """The leader admits an identity, or records the name of one: see `bridge.core.admission`."""

    node_id: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """An application entry that the farm's state machine does not know."""

    reason: str
    request: str | None = None
    """What its sender calls it, so that a repetition of it is told from a second one."""


Record = Report | Clock | Publication | Admission | Foreign
