"""The farm's log entries as values: what the JSON of an application entry means.

These kinds of JSON object travel as application entries of the Raft log. A member tells them apart:

    report        `router` / `destinations` / `meta`  one server's state (I2P proposal 150, application layer)
    clock         `clock`                             the leader's advance of log time
    publication   `publication`                       the publisher's commitment, before it signs and hands over
    admission     `admission`                         an identity that belongs to the farm from here on
    exclusion     `exclusion`                         an operator keeps a leaf out of every structure, or lets it in
    cost          `cost`                              an operator makes a leaf dearer or cheaper
    force         `force`                             an operator has a master published anew
    factors       `factors`                           the pipeline's factors on the costs of leaves
    removal       `removal`                           an operator removes a server from the farm, or allows it back
    correction    `correction`                        an operator sets log time back to the clocks of a majority
    approval      `approval`                          an operator gives a name to another identity
    eviction      `eviction`                          an operator excludes an identity; new gossip keys for the others
    rekeying      `rekeying`                          an operator replaces the gossip keys of all members
    level         `level`                             the kinds of entries that all servers understand from here on
    client        `client`                            an operator admits a client key with scopes, or removes it
    producer      `kafkaProducer`                     a producer of Kafka's begins (`bridge.core.state.kafka_clients`)
    offset        `kafkaOffset`                       how far a consumer group of Kafka's has read
    foreign       any other JSON object               kept in the log; the state machine only notes its `request`

The wire floor decodes the JSON; the state machine sees only these values, each with the author whose signature the
decoder has verified (`ProvenRecord`), or without one. The decoder ignores unknown members; they stay in the log. `None`
is a figure that this kind of router cannot tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,31}"
"""What nodes, clusters and client keys are called, as a regular expression."""


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
    publish_failure: str | None = None
    """Why its router did not take the last structure, or never takes one. It decides nothing: `publish_config` does."""


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


class LeafFault(Enum):
    """A condition of a healthy leaf that does not hold."""

    ROUTER = "router"
    """The router does not answer, or there is none."""
    LEASE_SET = "leaseSet"
    """No lease set of the leaf is found, so its tunnels do not stand."""
    SERVICE = "service"
    """The local service does not answer its probe."""


@dataclass(frozen=True, slots=True)
class LeafStatus:
    """One element of `destinations`: a destination served by the sender's router."""

    destination: str
    healthy: bool
    """Router reachable, tunnels up, and the local service answers its probe."""
    master_hash: str | None = None
    """Base32 of the master that it stands behind; None: every master of its report."""
    uptime_ms: int | None = None
    configured_tunnels: int | None = None
    current_tunnels: int | None = None
    configured_bandwidth_bytes_per_s: int | None = None
    current_bandwidth_bytes_per_s: int | None = None
    configured_connections: int | None = None
    current_connections: int | None = None
    faults: tuple[LeafFault, ...] = ()
    """Which conditions do not hold. They decide nothing: `healthy` does."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the sender's router saw of a destination that it does not serve: whether a lease set is found, how fast."""

    destination_hash: str
    """Base32."""
    reachable: bool
    fetch_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One server's application entry."""

    cluster: str
    date_ms: int
    server_id: int
    router: RouterStatus
    masters: tuple[MetaStatus, ...] = ()
    """Its part in each master destination that it serves; none if it names none."""
    destinations: tuple[LeafStatus, ...] = ()
    remote_destinations: tuple[Measurement, ...] = ()
    """What it measured of leaves of other servers since its last report."""
    remote_metas: tuple[Measurement, ...] = ()
    """The same of master destinations."""
    request: str | None = None

    def part_in(self, master: str) -> MetaStatus | None:
        """Its part in publishing `master`."""
        return next((each for each in self.masters if each.destination == master), None)


@dataclass(frozen=True, slots=True)
class Clock:
    """The leader's clock entry: log time becomes `time_ms`, within the limit of `bridge.core.log.voter_clocks`.

    `period_ms` is the farm's reporting period from here on: the leader's setting applies to all servers.
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
    """The leader admits an identity, or records the name of one: see `bridge.core.membership.admission`."""

    node_id: bytes
    name: str
    key: bytes | None = None
    """Its public key."""
    server_id: int = 0
    """The Raft id that it gives out, or that the identity has; named here so that the leader's signature covers it."""


@dataclass(frozen=True, slots=True)
class Approval:
    """The identity `node_id` takes `name` from the identity `replaces`: see `bridge.core.membership.admission`."""

    node_id: bytes
    name: str
    replaces: bytes
    key: bytes | None = None
    server_id: int = 0
    """As in an admission."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """The identity `node_id` is evicted, and an era of gossip keys begins: see `bridge.core.membership.eviction`."""

    node_id: bytes
    era: int
    boxes: tuple[tuple[bytes, bytes], ...]
    """NodeId, and the era's key sealed for it."""


@dataclass(frozen=True, slots=True)
class KeyReplacement:
    """An era of gossip keys begins without an eviction: see `bridge.core.membership.eviction`."""

    era: int
    boxes: tuple[tuple[bytes, bytes], ...]
    """NodeId, and the era's key sealed for it."""


@dataclass(frozen=True, slots=True)
class Level:
    """All servers understand feature level `number`, which `version` brought (`bridge.core.log.feature_level`)."""

    number: int
    version: str


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The leaf with this hash (base32, as in its address) is excluded from all structures, or admitted again."""

    leaf_hash: str
    excluded: bool
    request: str | None = None


@dataclass(frozen=True, slots=True)
class CostFactor:
    """An operator's factor on the cost of a leaf, until the next one; 1 removes it."""

    leaf_hash: str
    factor: float
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Force:
    """The publisher of `master` publishes it anew, changed or not."""

    master: str
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Factors:
    """The pipeline's result from the log up to `through_index`: a factor on the cost of each leaf that it names."""

    through_index: int
    formula: str
    factors: Mapping[str, float]
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """An application entry that the farm's state machine does not know."""

    reason: str
    request: str | None = None
    """The sender's name of the request, which tells a repetition from a second entry."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The server with this Raft id no longer belongs to the group, alive or not; or it may come back."""

    server_id: int
    removed: bool
    request: str | None = None


class Scope(Enum):
    """What entries of a client key may do."""

    WEIGHTS = "weights"
    """The pipeline's factors."""
    OPERATOR = "operator"
    """An operator's commands: exclusions, costs, forced publications, removals."""


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A client key may now, or may no longer, write entries of these scopes (`bridge.core.membership.client_keys`)."""

    node_id: bytes
    """Its name as an author, derived from the key as for servers."""
    name: str
    key: bytes
    scopes: tuple[Scope, ...]
    admitted: bool
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """Log time goes back to the time of a majority of the voters' clocks (`bridge.core.farm.log_time_correction`)."""

    time_ms: int
    request: str | None = None


IdentityRecord = Admission | Approval | Eviction | KeyReplacement | Level
"""What the leader writes about who belongs to the farm, and about what its servers support."""

OperatorCommand = Exclusion | CostFactor | Force | Factors | Removal | ClientKey | Correction
"""The commands of operators and of the pipeline about publishing, servers and client keys."""


@dataclass(frozen=True, slots=True)
class ProducerStart:
    """A producer of Kafka's begins; its id is the entry's index. `name` is unique, so that its node finds it."""

    name: str
    request: str | None = None
    principal: str = ""
    """Its user (`bridge.core.state.kafka_clients.principal_hash`); entries below `BOUNDS_LEVEL` have none."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """How far a consumer group of Kafka's has read. `leader_epoch` is -1 if its client did not say it."""

    group: str
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    request: str | None = None
    principal: str = ""
    """As in `ProducerStart`."""


KafkaRecord = ProducerStart | GroupOffset
"""What nodes write for clients of their Kafka listeners."""

Record = Report | Clock | Publication | IdentityRecord | OperatorCommand | KafkaRecord | Foreign


def request_of(record: Record) -> str | None:
    """The sender's name of the request; None for records that only servers write, which are never submitted twice."""
    return None if isinstance(record, Clock | Publication | IdentityRecord) else record.request


_KINDS: dict[type[Record], str] = {
    Report: "report",
    Clock: "clock",
    Publication: "publication",
    Admission: "admission",
    Approval: "approval",
    Eviction: "eviction",
    KeyReplacement: "rekeying",
    Level: "level",
    Exclusion: "exclusion",
    CostFactor: "cost",
    Force: "force",
    Factors: "factors",
    Removal: "removal",
    ClientKey: "client",
    ProducerStart: "producer",
    GroupOffset: "offset",
    Correction: "correction",
    Foreign: "foreign",
}


def kind_of(record: Record) -> str:
    """The record's name in the table above."""
    return _KINDS[type(record)]


@dataclass(frozen=True, slots=True)
class Author:
    """The verified signer of an entry, and the signer's number of it (`bridge.core.membership.authors`)."""

    node_id: bytes
    number: int


@dataclass(frozen=True, slots=True)
class ProvenRecord:
    """A record as the log holds it: with its author if its proof holds, and with its bytes."""

    record: Record
    author: Author | None = None
    forged: bool = False
    """It ends like a proof, and the signature does not verify."""
    data: bytes = b""
    """The entry's bytes; kept where others check the signature again (`bridge.core.membership.admission`)."""
