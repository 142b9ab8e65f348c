"""The kinds of log entries, declared once.

    member    the member of a JSON object that makes an entry one of this kind
    record    the class in `bridge.core.log.records`, whose fields define the JSON
    level     the lowest feature level that gives it an effect (`bridge.core.log.feature_level`)
    counter   the counter of such entries, with its meaning
    scope     the scope of client keys that may write it; servers do not need one (`bridge.core.membership.authors`)
    command   the operator's command for such an entry
    name      the name in events, keys of the Kafka topic and tables of the pipeline
    type      the name in `garlicfarm log --type`

Decoder, rules, counters and words derive from this table. Some kinds have several different names, because events,
metrics and tables of existing farms contain older names.

A new kind needs its class in `bridge.core.log.records`, a row here, its effect in `bridge.core.farm`, and its sentences
in `bridge.api.entry_words` (entry) and `bridge.api.events` (change). An operator's command also needs its order in
`bridge.api.requests` and the conversion in `bridge.node.control.operator_commands`.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from bridge.core.log.feature_level import EVICTION_LEVEL, FIRST_LEVEL, KAFKA_LEVEL
from bridge.core.log.records import (
    Admission,
    Approval,
    ClientKey,
    Clock,
    Correction,
    CostFactor,
    Eviction,
    Exclusion,
    Factors,
    Force,
    Foreign,
    GroupOffset,
    KeyReplacement,
    Level,
    ProducerStart,
    Publication,
    Record,
    Removal,
    Report,
    Scope,
)
from consensus import CountedReason


class EntryCounter(CountedReason):
    """Applied entries by kind."""

    REPORTS = "reports", "reports of servers about themselves; if it does not grow, no server reports: check the leader"
    CLOCKS = "clocks", "clock entries: the leader advances log time with them, one in each reporting period"
    PUBLICATIONS = "publications", "publications; one for each new structure of a master"
    ADMISSIONS = "admissions", "admissions of identities; one for each node that has joined"
    APPROVALS = "approvals", "approvals of identities that took the name of another identity"
    EVICTIONS = "evictions", "evictions; if you did not evict a node, see the author in the entry"
    KEY_REPLACEMENTS = "key_replacements", "replacements of all gossip keys"
    LEVELS = "levels", "increases of the feature level, after updates of the nodes"
    EXCLUSIONS = "exclusions", "exclusions of leaves by operators, and their ends"
    COST_FACTORS = "cost_factors", "cost factors of leaves that operators have set"
    FORCED_PUBLICATIONS = "forced_publications", "publications forced by operators"
    PIPELINE_FACTORS = (
        "pipeline_factors",
        "factors of the pipeline; if it does not grow while the pipeline runs, the farm refuses them",
    )
    REMOVALS = "removals", "removals of servers by operators, and their ends"
    CLIENT_KEYS = "client_keys", "admissions and removals of client keys"
    KAFKA_PRODUCERS = "kafka_producers", "registrations of Kafka's producers"
    KAFKA_OFFSETS = "kafka_offsets", "offsets that Kafka's consumer groups have committed"
    LOG_TIME_CORRECTIONS = "log_time_corrections", "corrections of log time by operators"
    FOREIGN_ENTRIES = "foreign_entries", "entries of users, which do not change the farm"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of entry."""

    member: str
    record: type[Any]
    level: int
    counter: EntryCounter
    scope: Scope | None = None
    command: str = ""
    name: str = ""
    """The name; by default the member."""
    type: str = ""
    """The type; by default the name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.member)
        object.__setattr__(self, "type", self.type or self.name)


KINDS: Final = (
    Kind("router", Report, FIRST_LEVEL, EntryCounter.REPORTS, name="report"),
    Kind("clock", Clock, FIRST_LEVEL, EntryCounter.CLOCKS),
    Kind("publication", Publication, FIRST_LEVEL, EntryCounter.PUBLICATIONS),
    Kind("admission", Admission, FIRST_LEVEL, EntryCounter.ADMISSIONS, None, "`garlicfarm node approve`"),
    Kind("approval", Approval, EVICTION_LEVEL, EntryCounter.APPROVALS, None, "`garlicfarm node approve`"),
    Kind("eviction", Eviction, EVICTION_LEVEL, EntryCounter.EVICTIONS, None, "`garlicfarm node evict`"),
    Kind(
        member="rekeying",
        record=KeyReplacement,
        level=EVICTION_LEVEL,
        counter=EntryCounter.KEY_REPLACEMENTS,
        command="`garlicfarm keys replace`",
        type="key-replacement",
    ),
    Kind("level", Level, FIRST_LEVEL, EntryCounter.LEVELS),
    Kind(
        "exclusion", Exclusion, EVICTION_LEVEL, EntryCounter.EXCLUSIONS, Scope.OPERATOR, "`garlicfarm publish exclude`"
    ),
    Kind("cost", CostFactor, EVICTION_LEVEL, EntryCounter.COST_FACTORS, Scope.OPERATOR, "`garlicfarm publish cost`"),
    Kind(
        "force", Force, EVICTION_LEVEL, EntryCounter.FORCED_PUBLICATIONS, Scope.OPERATOR, "`garlicfarm publish force`"
    ),
    Kind("factors", Factors, EVICTION_LEVEL, EntryCounter.PIPELINE_FACTORS, Scope.WEIGHTS),
    Kind("removal", Removal, EVICTION_LEVEL, EntryCounter.REMOVALS, Scope.OPERATOR, "`garlicfarm servers remove`"),
    Kind(
        member="client",
        record=ClientKey,
        level=EVICTION_LEVEL,
        counter=EntryCounter.CLIENT_KEYS,
        command="`garlicfarm node admit-client`",
        type="client-key",
    ),
    Kind(
        member="correction",
        record=Correction,
        level=EVICTION_LEVEL,
        counter=EntryCounter.LOG_TIME_CORRECTIONS,
        scope=Scope.OPERATOR,
        command="`garlicfarm log-time back`",
    ),
    Kind(
        member="kafkaProducer",
        record=ProducerStart,
        level=KAFKA_LEVEL,
        counter=EntryCounter.KAFKA_PRODUCERS,
        name="producer",
        type="kafka-producer",
    ),
    Kind("kafkaOffset", GroupOffset, KAFKA_LEVEL, EntryCounter.KAFKA_OFFSETS, name="offset", type="kafka-offset"),
)
FOREIGN: Final = Kind("", Foreign, FIRST_LEVEL, EntryCounter.FOREIGN_ENTRIES, name="foreign", type="other")
"""JSON objects without a member of another kind."""
ALL_KINDS: Final = (*KINDS, FOREIGN)
_BY_MEMBER: Final = {each.member: each for each in KINDS}
_BY_RECORD: Final = {each.record: each for each in ALL_KINDS}


def kind_of(record: Record) -> Kind:
    """Return the kind of a record."""
    return _BY_RECORD[type(record)]


def kinds_in(members: AbstractSet[str]) -> list[Kind]:
    """Return the kinds that the members of an object name.

    If members of several kinds are present, kinds of earlier levels have precedence over kinds from `KAFKA_LEVEL` on.
    An older version ignores the member of an unknown kind. Kinds of one level, and all kinds below `KAFKA_LEVEL`, have
    equal precedence; the caller treats an object with several of them as foreign.
    """
    named = [_BY_MEMBER[each] for each in _BY_MEMBER.keys() & members]
    if len(named) > 1:
        oldest = min(map(_generation, named))
        named = [each for each in KINDS if each in named and _generation(each) == oldest]
    return named


def _generation(kind: Kind) -> int:
    return kind.level if kind.level >= KAFKA_LEVEL else FIRST_LEVEL
