"""The records of a node's history, and its limits.

    Row           a subject: the verdict, the leader, a master, an alarm, a node, a leaf; or a series of figures
    StateRecord   the state of a row from a time on; None if the row ends
    Sample        the means of the figures of one minute
    Break         the node did not observe before this record: it was not running, its clock changed, it was suspended

The states of all rows between two records are known, so a row needs a record only when it changes. A sample is recorded
in each minute, even without figures, to show that the node was observing until then.
"""

from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct

MINUTE_MS: Final = 60_000
NAME_LIMIT_BYTES: Final = 100
TEXT_LIMIT_BYTES: Final = 200
NODES_MAX: Final = 64
"""Limit of recorded nodes. Servers have precedence over other members."""
LEAVES_MAX: Final = 160
ALARMS_MAX: Final = 64
SERIES_MAX: Final = 2 * NODES_MAX + 1
"""The round trip to each node, the lag of each follower, the lag of commits."""
ROWS_MAX: Final = 320
"""Limit of rows; the verdict, the leader, all masters, alarms, nodes and leaves need fewer."""
SEVERITIES: Final = 3
LATEST_MS: Final = 2**47
"""Limit of a time in milliseconds since the epoch: the year 6429."""


class RowKind(Enum):
    """Subject of a row of states."""

    VERDICT = "verdict"
    """The verdict, as text."""
    LEADER = "leader"
    """The leader's name; empty without a leader."""
    PUBLISHER = "publisher"
    """The name of a master's publisher; empty without one."""
    ALARM = "alarm"
    """The cause of an active alarm, as text. An alarm without a state is not active."""
    NODE = "node"
    """The status of a member in gossip."""
    LEAF = "leaf"
    """`healthy`, the faults as text, or `excluded by an operator`."""


class SeriesKind(Enum):
    """Subject of a series of figures."""

    ROUND_TRIP = "roundTrip"
    """The round trip of gossip to a member, in milliseconds."""
    COMMIT_LAG = "commitLag"
    """From the submission of an entry of this node until it is committed, in milliseconds."""
    FOLLOWER_LAG = "followerLag"
    """Number of entries that a follower lacks, while this node leads."""


class BreakCause(Enum):
    """Reason why the node did not observe."""

    START = "start"
    """The process started: the node did not run before."""
    CLOCK_BACK = "clock back"
    """The clock of this machine moved back; the record has the new time."""
    PAUSE = "pause"
    """Several minutes passed between two checks: the machine was suspended, or its clock moved forward."""


class Row(NamedTuple):
    """Identity of a row or a series."""

    kind: RowKind | SeriesKind
    name: str | None = None
    """Name of the member, address of the master or the leaf, kind of the alarm; None if there is one such row."""
    owner: str | None = None
    """The server of a leaf."""


class State(NamedTuple):
    """State of a row."""

    text: str
    severity: int
    """0 ok, 1 warning, 2 critical: the place in `bridge.api.view.Severity`."""


class StateRecord(Struct, frozen=True):
    """The state of a row from `time_ms` on; None ends it."""

    time_ms: int
    row: Row
    state: State | None


class Sample(Struct, frozen=True):
    """The means of one minute."""

    time_ms: int
    """The last observation in the minute."""
    minute: int
    """Minutes since the epoch."""
    values: tuple[tuple[Row, float], ...]


class Break(Struct, frozen=True):
    """The node observes again from `time_ms` on; the states of all rows follow."""

    time_ms: int
    cause: BreakCause
    last_ms: int
    """Time of the last observation before the break; 0 at a start: then this time is the previous record's."""


Record = StateRecord | Sample | Break


def cut(text: str, limit_bytes: int) -> str:
    """Return the text, or its beginning and `…` if it does not fit."""
    if len(text) * 4 <= limit_bytes:
        return text
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= limit_bytes:
        return text
    return encoded[: limit_bytes - 3].decode(errors="ignore") + "…"
