"""What the control endpoint answers, as values: pages of log and trace, who leads, how a submission ended.

The node's composition root produces these values, the wire floor turns them into JSON and back, and the command line
and the terminal view consume them, so that both ends of the control socket speak about the same things.

Reading is by position, never by session: a reader says from where it wants to go on, and a page says where the next one
begins. A slow reader therefore costs the node nothing; what it misses of the bounded trace is counted in `lost`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bridge.api.view import VoterView

WAIT_LIMIT_MS = 30_000
"""How long an answer that would be empty may be held back."""

Scalar = str | int | float | bool | None
"""What a trace event may carry: facts, not structures, so that its data are columns of a table."""


class EntryKind(Enum):
    """What a log entry is to its reader."""

    APPLICATION = "application"
    CONFIGURATION = "configuration"
    NO_OP = "no-op"


@dataclass(frozen=True, slots=True)
class LogEntryView:
    """One committed entry. `log_time_ms` is the farm's log time after it was applied."""

    index: int
    term: int
    kind: EntryKind
    log_time_ms: int | None
    value: bytes


@dataclass(frozen=True, slots=True)
class LogPage:
    """Committed entries in order, and where the log begins and ends on this node."""

    first_index: int
    last_index: int
    commit_index: int
    next_index: int
    entries: tuple[LogEntryView, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that happened on a node, for people and for the pipeline."""

    cursor: int
    time_ms: int
    log_time_ms: int | None
    kind: str
    node: str
    data: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order. `lost` were overwritten before this reader came for them."""

    next_cursor: int
    lost: int
    events: tuple[TraceEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """Who leads, where, and who votes: what a client of the farm needs to find its way."""

    cluster: str
    cluster_id: str | None
    raft_id: int | None
    term: int
    commit_index: int
    leader_id: int | None
    leader_name: str | None
    leader_endpoint: str | None
    voters: tuple[VoterView, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerClock:
    """A server's clock beside the majority time; None: it did not report lately, or nobody can say."""

    raft_id: int
    name: str
    voter: bool
    offset_ms: int | None


@dataclass(frozen=True, slots=True)
class LogTimeAnswer:
    """The farm's time as one node knows it. `majority_ms`: what the clocks of a majority of the voters have reached."""

    log_time_ms: int
    majority_ms: int | None
    latest_ms: int | None
    """Where a clock entry of the present leader could bring log time at most."""
    agreed: bool
    """A majority of the voters' clocks agrees with the majority time."""
    clocks: tuple[ServerClock, ...] = ()


class FarmKeyState(Enum):
    """What the asked node does with a gossip key: seals with it, opens with it, or refuses it."""

    PRIMARY = "primary"
    INSTALLED = "installed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class FarmKeyView:
    """One gossip key by its id; never the key itself. `since` is by the ring's own clock."""

    key_id: str
    state: FarmKeyState
    since: int
    opened_by: int
    """How many members open datagrams with it; none, once a removal has reached everybody."""
    sealed_by: int
    missing: tuple[str, ...] = ()
    """Members that run and did not confirm that they open with it."""


@dataclass(frozen=True, slots=True)
class KeysAnswer:
    """The farm's key ring as one node has it, and how far the others agree."""

    farm: str
    epoch: int
    primary: str
    members: int
    """Members that run, as far as gossip knows; the asked one among them."""
    file: str
    file_epoch: int | None
    """The epoch of the farm key file that this node's configuration names; none if it cannot be read."""
    keys: tuple[FarmKeyView, ...] = ()
    behind: tuple[str, ...] = ()
    """Members that have another ring, for a moment or because something is wrong."""
    silent: tuple[str, ...] = ()
    """Members that run and did not answer."""
    absent: tuple[str, ...] = ()
    """Members that do not run, and have what keys they had."""
    refused: bool = False
    """The group has removed the keys of this node: what it shows is not the farm's ring any more."""


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What an operator asked for is in the log and granted; `text` says it in words."""

    kind: str
    index: int
    text: str


class SubmitOutcome(Enum):
    """How a submission ended. Only `committed` is an acknowledgement; after `unknown` it may still be committed.

    `expired`: the farm has forgotten the request. Whether it was applied before is not known; now it was not.
    """

    COMMITTED = "committed"
    REFUSED = "refused"
    BUSY = "busy"
    UNKNOWN = "unknown"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """The answer to one submission."""

    outcome: SubmitOutcome
    index: int | None = None
    term: int | None = None
    reason: str = ""
    """Why it is not committed; of a command that is, why the state machine refused it (empty: it did not)."""
    leader_id: int | None = None
    leader_endpoint: str | None = None
    request: str | None = None
    """The request id under which it may be repeated without being applied twice; None if it had none."""


class Refused(Exception):  # noqa: N818 -- a refusal is an answer, not a fault
    """The request is not one that can be carried out; `status` and `code` are for programs, the text for people."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
