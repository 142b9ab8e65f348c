"""The farm's log entries as values: the meaning of the JSON of an application entry.

`bridge.core.log.kinds` lists the kinds, with their authors and names. Each field declares its JSON
(`bridge.core.log.fields`); the fields of a report have theirs in `bridge.wire.log.reports`.

`bridge.wire.log.entries` decodes the JSON. The state machine sees only these values, each with the author whose
signature the decoder has verified (`ProvenRecord`), or without an author. The decoder ignores unknown members; they
stay in the log. `None` is an unknown figure.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from bridge.core.log.fields import (
    BOXES,
    DERIVED,
    PRINCIPAL,
    PUBLIC_KEY,
    Count,
    DestinationText,
    Era,
    Factor,
    HashText,
    Json,
    Milliseconds,
    Name,
    NewServerId,
    NodeName,
    Request,
    Seconds,
    ServerId,
    hex_id,
)
from bridge.core.log.figures import RouterStatus

FACTORS_MAX = 1024
"""Leaves in one entry of factors, and the share of one author in the table (`bridge.core.log.weights`)."""


class PublishConfig(Enum):
    """An operator's setting for this server: never publish, publish if chosen, or be preferred in the choice."""

    OFF = "off"
    AUTO = "auto"
    ON = "on"


class MetaStatus(Struct, frozen=True):
    """`meta`: the sender's part in publishing one master destination (base64 as in I2P)."""

    destination: str
    publish_config: PublishConfig
    publishing: bool
    last_published_time_ms: int
    last_published_lease_set: str | None = None
    can_sign_until_s: int | None = None
    """Expiry of its (transient) signing key, in seconds since the epoch; None if it lacks a key and cannot publish."""
    publish_failure: str | None = None
    """The reason why its router refused the last structure, or refuses all. The choice of the publisher ignores it."""
    standby: bool = False
    """True if it keeps a session with tunnels, to publish without delay. Decisions of the log ignore it."""


class LeafFault(Enum):
    """A condition of a healthy leaf that does not hold."""

    ROUTER = "router"
    """The router does not answer, or does not exist."""
    LEASE_SET = "leaseSet"
    """No lease set of the leaf is found, so its tunnels do not work."""
    SERVICE = "service"
    """The local service does not answer its probe."""


class ConditionStatus(Struct, frozen=True):
    """The recent past of a condition. No decision of the log depends on it."""

    condition: LeafFault
    age_ms: int | None = None
    """Milliseconds since it began to hold, or to fail; None while it is not known."""
    failures: int = 0
    """Number of times that it began to fail since the start of the node."""
    last_error: str | None = None
    """The reason of the last failure, also if it holds again."""


class LeafStatus(Struct, frozen=True, cache_hash=True):
    """One element of `destinations`: a destination served by the sender's router."""

    destination: str
    healthy: bool
    """Router reachable, tunnels up, and the local service answers its probe."""
    master_hash: str | None = None
    """Base32 of the master that it belongs to; None: every master of its report."""
    uptime_ms: int | None = None
    configured_tunnels: int | None = None
    current_tunnels: int | None = None
    configured_bandwidth_bytes_per_s: int | None = None
    current_bandwidth_bytes_per_s: int | None = None
    configured_connections: int | None = None
    current_connections: int | None = None
    faults: tuple[LeafFault, ...] = ()
    """The failed conditions. The choice of leaves uses only `healthy`."""
    conditions: tuple[ConditionStatus, ...] = ()
    """At most one of each condition, in their fixed order; empty in reports of older versions."""


class Measurement(Struct, frozen=True):
    """A look-up of another server's destination by the sender's router: its result and its duration."""

    destination_hash: str
    """Base32."""
    reachable: bool
    fetch_ms: int | None = None


class ReportedDirectory(Struct, frozen=True):
    """`directory`: the sender's I2P destination that returns signed structures to clients. For information only."""

    destination_hash: str | None = None
    """Base32; None before its first session."""
    problem: str | None = None
    """The reason why it does not serve now; None while it serves."""


class Report(Struct, frozen=True, cache_hash=True):
    """One server's application entry."""

    cluster: str
    date_ms: int
    server_id: int
    router: RouterStatus
    masters: tuple[MetaStatus, ...] = ()
    """Part of the server in each master destination that it serves; empty if it does not name any."""
    destinations: tuple[LeafStatus, ...] = ()
    remote_destinations: tuple[Measurement, ...] = ()
    """Measurements of leaves of other servers since its last report."""
    remote_metas: tuple[Measurement, ...] = ()
    """Measurements of master destinations."""
    request: str | None = None
    directory: ReportedDirectory | None = None
    """The directory of the sender; None without a SAM bridge."""

    def part_in(self, master: str) -> MetaStatus | None:
        """Return its part in publishing `master`."""
        for each in self.masters:  # quicker than a generator; this is called for all servers per report
            if each.destination == master:
                return each
        return None


class Clock(Struct, frozen=True):
    """The leader's clock entry: log time becomes `time_ms`, within the limit of `bridge.core.log.voter_clocks`.

    `period_ms` is the farm's reporting period from here on: the leader's setting applies to all servers.
    """

    time_ms: Annotated[int, Json(Milliseconds, "time")]
    server_id: Annotated[int, Json(ServerId, "id")]
    period_ms: Annotated[int | None, Json(Milliseconds, "period")] = None


class Publication(Struct, frozen=True):
    """A plan that the publisher has committed before it signs the structure.

    The commit fences a deposed publisher and orders the timestamps.
    """

    master: Annotated[str, Json(DestinationText)]
    server_id: Annotated[int, Json(ServerId, "id")]
    published_s: Annotated[int, Json(Seconds, "published")]
    content_hash: Annotated[str, Json(Request, "contentHash")]


class Admission(Struct, frozen=True):
    """The leader admits an identity, or records the name of one: see `bridge.core.membership.admission`."""

    node_id: Annotated[bytes, hex_id("node")]
    name: NodeName
    key: Annotated[bytes | None, PUBLIC_KEY] = None
    """Public key of the identity."""
    server_id: Annotated[int, Json(NewServerId, "server", is_first=True)] = 0
    """The Raft id that the entry assigns, or that the identity already has; the leader's signature covers it."""


class Approval(Struct, frozen=True):
    """The identity `node_id` takes `name` from the identity `replaces`: see `bridge.core.membership.admission`."""

    node_id: Annotated[bytes, hex_id("node")]
    name: NodeName
    replaces: Annotated[bytes, hex_id("replaces")]
    key: Annotated[bytes | None, PUBLIC_KEY] = None
    server_id: Annotated[int, Json(NewServerId, "server", is_first=True)] = 0
    """The Raft id that the entry assigns, or that the identity already has; the leader's signature covers it."""


class Eviction(Struct, frozen=True):
    """The identity `node_id` is evicted, and an era of gossip keys begins: see `bridge.core.membership.eviction`."""

    node_id: Annotated[bytes, hex_id("node")]
    era: Era
    boxes: Annotated[tuple[tuple[bytes, bytes], ...], BOXES]
    """NodeId, and the era's key sealed for it."""


class KeyReplacement(Struct, frozen=True):
    """An era of gossip keys begins without an eviction: see `bridge.core.membership.eviction`."""

    era: Era
    boxes: Annotated[tuple[tuple[bytes, bytes], ...], BOXES]
    """NodeId, and the era's key sealed for it."""


class Level(Struct, frozen=True):
    """The farm reaches feature level `number`, which `version` introduced (`bridge.core.log.feature_level`)."""

    number: Annotated[int, Meta(ge=1, lt=2**16)]
    version: Annotated[str, Meta(max_length=32)]


class Exclusion(Struct, frozen=True):
    """The leaf with this hash (base32, as in its address) is excluded from all structures, or included again."""

    leaf_hash: Annotated[str, Json(HashText, "hash")]
    excluded: bool
    request: str | None = None


class CostFactor(Struct, frozen=True):
    """An operator's factor on the cost of a leaf, until the next one; 1 removes it."""

    leaf_hash: Annotated[str, Json(HashText, "hash")]
    factor: Factor
    request: str | None = None


class Force(Struct, frozen=True):
    """The publisher of `master` publishes it again, changed or not."""

    master: DestinationText
    request: str | None = None


class Factors(Struct, frozen=True):
    """The pipeline's result from the log up to `through_index`: a factor on the cost of each leaf that it names."""

    through_index: Annotated[int, Json(Count, "throughIndex")]
    formula: Annotated[str, Meta(max_length=200)]
    factors: Annotated[Mapping[str, float], Json(Annotated[dict[HashText, Factor], Meta(max_length=FACTORS_MAX)])]
    request: str | None = None


class Foreign(Struct, frozen=True):
    """An application entry that the farm's state machine does not know."""

    reason: str
    request: str | None = None
    """The sender's name of the request, which distinguishes a repetition from a second entry."""


class Removal(Struct, frozen=True):
    """The leader must remove this server from the group, alive or not. With `removed` false, it may join again."""

    server_id: Annotated[int, Json(ServerId, "server")]
    removed: bool
    request: str | None = None


class Scope(Enum):
    """Rights of a client key's entries."""

    WEIGHTS = "weights"
    """The pipeline's factors."""
    OPERATOR = "operator"
    """An operator's commands: exclusions, costs, forced publications, removals, corrections of log time."""


_SCOPES = Annotated[list[Scope], Meta(max_length=len(Scope))]


def _in_order(scopes: Collection[Scope]) -> tuple[Scope, ...]:
    return tuple(each for each in Scope if each in scopes)


class ClientKey(Struct, frozen=True):
    """A client key may now, or may no longer, write entries of these scopes (`bridge.core.membership.client_keys`)."""

    node_id: Annotated[bytes, DERIVED]
    """Name of the key as an author, derived from the key as for servers."""
    name: NodeName
    key: Annotated[bytes, PUBLIC_KEY]
    scopes: Annotated[tuple[Scope, ...], Json(_SCOPES, read=_in_order, write=list)]
    admitted: bool
    request: str | None = None


class Correction(Struct, frozen=True):
    """Log time goes back to the time of a majority of the voters' clocks (`bridge.core.farm.log_time_correction`)."""

    time_ms: Annotated[int, Json(Milliseconds, "clock")]
    request: str | None = None


IdentityRecord = Admission | Approval | Eviction | KeyReplacement | Level
"""The leader's entries about members of the farm, and about its feature level."""

OperatorCommand = Exclusion | CostFactor | Force | Factors | Removal | ClientKey | Correction
"""The commands of operators and of the pipeline about publishing, servers and client keys."""


class ProducerStart(Struct, frozen=True):
    """A Kafka producer begins; its id is the entry's index. `name` is unique, so that its node finds the entry."""

    name: Name
    request: str | None = None
    principal: Annotated[str, PRINCIPAL] = ""
    """The producer's user (`bridge.core.state.kafka_clients.principal_hash`); empty in entries below `BOUNDS_LEVEL`."""


class GroupOffset(Struct, frozen=True):
    """The position of a Kafka consumer group. `leader_epoch` is -1 if its client did not send it."""

    group: Annotated[str, Meta(min_length=1, max_length=255)]
    offset: Count
    leader_epoch: Annotated[int, Json(Annotated[int, Meta(ge=-1, lt=2**31)], "epoch")] = -1
    metadata: Annotated[str, Meta(max_length=1024)] = ""
    request: str | None = None
    principal: Annotated[str, PRINCIPAL] = ""
    """The user of the group's client, as a hash like `ProducerStart.principal`; empty below `BOUNDS_LEVEL`."""


KafkaRecord = ProducerStart | GroupOffset
"""Entries that nodes write for clients of their Kafka listeners."""

ServerRecord = Report | Clock | Publication
"""Records that contain the Raft id of their author."""

LeadersRecord = Clock | IdentityRecord
"""Entries that only the leader writes."""

EntryRecord = ServerRecord | IdentityRecord | OperatorCommand | KafkaRecord
Record = EntryRecord | Foreign


def request_of(record: Record) -> str | None:
    """Return the sender's name of the request; None for kinds without one."""
    return None if isinstance(record, Clock | Publication | IdentityRecord) else record.request


class Author(Struct, frozen=True):
    """The verified signer of an entry, and the entry's number by this signer (`bridge.core.membership.authors`)."""

    node_id: bytes
    number: int


class ProvenRecord(Struct, frozen=True):
    """A record of the log with its bytes, and with its author if its proof is valid."""

    record: Record
    author: Author | None = None
    forged: bool = False
    """True if the entry ends like a proof but the signature does not verify."""
    data: bytes = b""
    """The entry's bytes; kept if others check the signature again (`bridge.core.membership.admission`)."""
