"""Each table of a farm's state, declared once: its author, the share of one author, its limit, its release.

    FarmState.servers                       a field
    VoterClocks.majorities.item             the tuples within a tuple
    Farm.sessions                           a table of the state machine outside of its state

With only a limit, one author could use up a table: a member, a client key, a user of Kafka or a leader. Then other
authors would not get a place, permanently if rows are never dropped. So each table has a share for one author, and a
rule to free its places (`Release`). `bounds` checks the sizes in a snapshot against the limits here.

The module that owns a table enforces its share, from `BOUNDS_LEVEL` on. `tests/spec/test_table_shares.py` walks over
all fields of the state and fails for a table without a declaration. For each declaration it lets one author submit
until the farm refuses. It requires that another author still gets a place, and that a place becomes free by the
declared rule. `docs/reference/limits.md` lists the declarations for operators.
"""

from collections.abc import Iterator, Mapping
from enum import Enum

from msgspec import Struct

from bridge.core.log.records import FACTORS_MAX, LeafFault, Scope
from bridge.core.log.weights import (
    COST_FACTORS_MAX,
    COST_FACTORS_OF_ALL_MAX,
    EXCLUSIONS_MAX,
    EXCLUSIONS_OF_ALL_MAX,
    FACTORS_OF_ALL_MAX,
)
from bridge.core.membership.admission import ADMITTED_MAX, ADMITTED_OF_LEADER_MAX
from bridge.core.membership.authors import NUMBERED_MAX
from bridge.core.membership.client_keys import CLIENTS_MAX, CLIENTS_OF_SERVER_MAX
from bridge.core.state import kafka_clients
from bridge.core.state.farm_state import (
    AUTHOR_SESSIONS_MAX,
    LEAVES_PER_SERVER_MAX,
    MASTERS_MAX,
    MASTERS_OF_SERVER_MAX,
    SERVERS_MAX,
    SESSION_LIMITS,
    places_in,
)
from bridge.core.state.reqids import REQIDS_MAX, REQIDS_OF_AUTHOR_MAX

AUTHORS_MAX = 4 * (ADMITTED_MAX + CLIENTS_MAX)
"""Limit of authors.

It exceeds the number of admitted identities and client keys, because a recovered farm keeps the numbers of earlier
authors.
"""
REPORTED_MAX = 1024
"""Leaves and measurements of one report; an entry of 64 KiB holds fewer."""


class Release(Enum):
    """Event that frees a place."""

    LOG_TIME = "log time"
    """An unused row is deleted after a while."""
    REPLACED = "replaced"
    """The next row of the same author takes its place."""
    COMMAND = "command"
    """An operator's command ends the row."""
    WITH_ROW = "with its row"
    """The table is part of a row of another table, and is dropped with that row."""


class Table(Struct, frozen=True):
    """The declaration of one table."""

    words: str
    author: str
    share: int
    """Maximum number of rows of one author."""
    most: int
    """Maximum number of all rows."""
    releases: tuple[Release, ...]
    how: str
    """The rule that frees a place, as text."""


def _of_row(words: str, author: str, most: int) -> Table:
    return Table(words, author, most, most, (Release.WITH_ROW, Release.REPLACED), f"replaced whole by {author}")


def _beside(words: str, table: str, most: int) -> Table:
    return Table(words, f"the share of {table}", most, most, (Release.WITH_ROW,), f"dropped with the row of {table}")


TABLES: dict[str, Table] = {
    "FarmState.servers": Table(
        "the number of servers",
        "the server that reports",
        1,
        SERVERS_MAX,
        (Release.REPLACED, Release.LOG_TIME),
        "its next report; an hour without a report; in a full table a row of a nonvoting server, the oldest report"
        " first",
    ),
    "FarmState.masters": Table(
        "the number of masters",
        "a server that reports it",
        MASTERS_OF_SERVER_MAX,
        MASTERS_MAX,
        (Release.LOG_TIME,),
        "an hour after its last publication, if no server reports it. In a full table, the first master of each"
        " server has priority, then the other masters within the share, then further masters",
    ),
    "FarmState.admitted": Table(
        "the number of admitted identities",
        "the leader that signs the admission",
        ADMITTED_OF_LEADER_MAX,
        ADMITTED_MAX,
        (Release.LOG_TIME, Release.COMMAND),
        "30 minutes without an entry or a report; `node evict`, or `node approve` of a successor: rows of evicted and"
        " replaced identities give way first",
    ),
    "FarmState.admitted_by": _beside("the number of admissions with a leader", "admitted identities", ADMITTED_MAX),
    "FarmState.removed": _beside("the number of removed servers", "admitted identities", ADMITTED_MAX),
    "FarmState.clients": Table(
        "the number of client keys",
        "the server that signs the admission",
        CLIENTS_OF_SERVER_MAX,
        CLIENTS_MAX,
        (Release.COMMAND,),
        "`node remove-client`; rows of removed keys give way",
    ),
    "Client.scopes": _of_row("the number of scopes of a client key", "an operator's next command", len(Scope)),
    "FarmState.numbers": Table(
        "the number of numbered authors",
        "the author itself",
        1,
        AUTHORS_MAX,
        (Release.REPLACED,),
        f"above {NUMBERED_MAX} rows, the row of a former author gives way",
    ),
    "Rekeying.boxes": _of_row("the number of boxes with a new key", "the next era", ADMITTED_MAX),
    "VoterClocks.readings": Table(
        "the number of voters' clocks",
        "the server that reports",
        1,
        ADMITTED_MAX,
        (Release.REPLACED, Release.COMMAND),
        "its next report; the end of its vote",
    ),
    "VoterClocks.majorities": _of_row("the number of sets of voters", "the next configuration", 2),
    "VoterClocks.majorities.item": _of_row("the number of voters", "the next configuration", ADMITTED_MAX),
    "Weights.excluded": Table(
        "the number of excluded leaves",
        "the node or client key that signs the command",
        EXCLUSIONS_MAX,
        EXCLUSIONS_OF_ALL_MAX,
        (Release.COMMAND,),
        "`publish include`, at any node",
    ),
    "Weights.excluded_by": _beside("the number of exclusions with an author", "excluded leaves", EXCLUSIONS_OF_ALL_MAX),
    "Weights.costs": Table(
        "the number of cost factors",
        "the node or client key that signs the command",
        COST_FACTORS_MAX,
        COST_FACTORS_OF_ALL_MAX,
        (Release.COMMAND,),
        "`publish cost` with the factor 1, at any node",
    ),
    "Weights.costs_by": _beside("the number of cost factors with an author", "cost factors", COST_FACTORS_OF_ALL_MAX),
    "Weights.factors": Table(
        "the number of factors",
        "the node or client key that signs the entry",
        FACTORS_MAX,
        FACTORS_OF_ALL_MAX,
        (Release.LOG_TIME,),
        "10 minutes of log time without another entry for the leaf",
    ),
    "KafkaClients.producers": Table(
        "the number of producers",
        "the Kafka user, and the node of its requests",
        kafka_clients.PRODUCERS_OF_USER_MAX,
        kafka_clients.PRODUCERS_OF_ALL_MAX,
        (Release.REPLACED, Release.LOG_TIME),
        "the producer of the same user or node with the oldest record gives way; a day without a record",
    ),
    "Producer.runs": _of_row("the number of runs of a producer", "its later records", kafka_clients.RUNS_MAX),
    "KafkaClients.groups": Table(
        "the number of consumer groups",
        "the Kafka user, and the node that writes for it",
        kafka_clients.GROUPS_MAX,
        kafka_clients.GROUPS_OF_ALL_MAX,
        (Release.LOG_TIME,),
        "a week without an offset",
    ),
    "KafkaClients.skipped": Table(
        "the number of skipped entries",
        "the Kafka user, node or client key of the entry; all unknown authors are one",
        kafka_clients.SKIPPED_MAX // 2,
        kafka_clients.SKIPPED_MAX,
        (Release.REPLACED,),
        "the older half of the rows of the author with the most rows",
    ),
    "KafkaClients.skipped_of": _beside(
        "the number of authors of skipped entries", "skipped entries", kafka_clients.SKIPPED_MAX
    ),
    "Farm.sessions": Table(
        "the number of sessions",
        "the node or client key that signs the request; all unknown signers are one",
        AUTHOR_SESSIONS_MAX,
        SESSION_LIMITS.sessions_max,
        (Release.LOG_TIME, Release.REPLACED),
        "an hour without a request; sessions beyond the share, and sessions of unknown signers, give way to any other",
    ),
    "Farm.reqids": Table(
        "the number of reqids",
        "the node or client key that signs the update; all unknown signers are one, with a separate table",
        REQIDS_OF_AUTHOR_MAX,
        REQIDS_MAX,
        (Release.LOG_TIME,),
        "7 hours 45 minutes after the second in the reqid",
    ),
    "Report.masters": _of_row("the number of masters of a server", "its next report", MASTERS_MAX),
    "Report.destinations": _of_row("a server's leaves", "its next report", LEAVES_PER_SERVER_MAX),
    "Report.remote_destinations": _of_row("the number of measurements of leaves", "its next report", REPORTED_MAX),
    "Report.remote_metas": _of_row("the number of measurements of masters", "its next report", REPORTED_MAX),
    "LeafStatus.faults": _of_row("the number of faults of a leaf", "its server's next report", len(LeafFault)),
    "LeafStatus.conditions": _of_row("the number of conditions of a leaf", "its server's next report", len(LeafFault)),
    "MasterState.leaves": _of_row(
        "a master's leaves", "each report and clock entry", SERVERS_MAX * LEAVES_PER_SERVER_MAX
    ),
}


class UndeclaredTableError(LookupError):
    """A table of the state without a declaration in `TABLES`."""


def declared_table(place: str) -> Table:
    """Return the declaration of a table; raise `UndeclaredTableError`."""
    try:
        return TABLES[place]
    except KeyError:
        raise UndeclaredTableError(
            f"{place} is a table of the state without a declared share per author and rule of release: declare it in"
            " bridge/core/state/tables.py"
        ) from None


def tables_in(value: Struct) -> Iterator[tuple[str, int]]:
    """Yield each table of a Struct, nested ones included, with its place and its number of rows."""
    for place, each in places_in(value):
        if isinstance(each, Mapping | tuple):
            yield place, len(each)
