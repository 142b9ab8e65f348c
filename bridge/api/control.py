"""What the control endpoint answers: leader and voters, keys, identities, how a submission ended.

The node makes these documents, `bridge.api.json` turns them into bytes and back, and the command line and the terminal
view use them, so that both ends of the control socket speak about the same things. What is read page by page has
modules of its own (`bridge.api.log`, `bridge.api.trace`), and so has the view.
"""

from enum import Enum

from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr

from bridge.api.json import Document, Record
from bridge.api.view import VerdictView, VoterView

WAIT_LIMIT_MS = 30_000
"""How long an answer that would be empty may be held back."""

# -- the farm ----------------------------------------------------------------------------------------------------------


class ClusterAnswer(Document, frozen=True):
    """Who leads, where, and who votes: what a client of the farm needs to find its way."""

    cluster: str
    """The name of the cluster."""
    cluster_id: str | None
    """The id of the cluster, in hexadecimal; null before the farm is created."""
    raft_id: int | None
    """The Raft id of the asked node; null before the log has admitted it."""
    term: int
    """The term that the asked node knows."""
    commit_index: int
    """The last entry that the asked node knows to be committed."""
    leader_id: int | None
    """The Raft id of the leader; null while none is known."""
    leader_name: str | None
    """What operators call the leader; null if it is not known."""
    leader_endpoint: str | None
    """Where the leader's Raft server listens; null if it is not known."""
    voters: tuple[VoterView, ...] = ()
    """The servers that vote."""


class ServerClock(Record, frozen=True):
    """A server's clock beside the majority time."""

    raft_id: int
    """The Raft id of the server."""
    name: str
    """What operators call it."""
    voter: bool
    """Its clock counts for the majority time."""
    offset_ms: int | None
    """Milliseconds by which its clock is ahead; null if it has not reported lately, or the asked node cannot tell."""


class LogTimeAnswer(Document, frozen=True):
    """The farm's time as one node knows it."""

    log_time_ms: int
    """Log time, milliseconds since the epoch."""
    majority_ms: int | None
    """What the clocks of a majority of the voters have reached; null if too few have reported lately."""
    latest_ms: int | None
    """Where a clock entry of the present leader could bring log time at most."""
    agreed: bool
    """A majority of the voters' clocks agrees with the majority time."""
    clocks: tuple[ServerClock, ...] = ()
    """Each server's clock."""


class HealthAnswer(Document, frozen=True):
    """Whether the process works, whatever the farm does: what a supervisor restarts a process for."""

    healthy: bool
    """A restart would not help."""
    reasons: tuple[str, ...]
    """What does not work in this process, in words."""
    verdict: VerdictView
    """How the farm is."""


class ReadyAnswer(Document, frozen=True):
    """Whether the farm does its work, as the asked node sees it."""

    ready: bool
    """As the verdict says."""
    verdict: VerdictView
    """How the farm is."""


# -- keys --------------------------------------------------------------------------------------------------------------


class FarmKeyState(Enum):
    """What the asked node does with a gossip key."""

    PRIMARY = "primary"
    """It seals with it."""
    INSTALLED = "installed"
    """It opens with it."""
    REMOVED = "removed"
    """It refuses it."""


class FarmKeyView(Record, frozen=True):
    """One gossip key by its id; never the key itself."""

    key_id: str
    """The id of the key, in hexadecimal."""
    state: FarmKeyState
    """What the asked node does with it."""
    since: int
    """The change of the ring that installed it, by the ring's own clock."""
    opened_by: int
    """How many members open datagrams with it; none, once a removal has reached every member."""
    sealed_by: int
    """How many members seal with it."""
    missing: tuple[str, ...] = ()
    """Members that run and did not confirm that they open with it."""


class KeysAnswer(Document, frozen=True):
    """The farm's key ring as one node has it, and how far the others agree."""

    farm: str
    """The label of the farm, in hexadecimal."""
    epoch: int
    """The change of the ring that chose the sealing key, by the ring's own clock."""
    primary: str
    """The id of the key that the asked node seals with."""
    members: int
    """How many members run, as far as gossip knows; the asked one among them."""
    file: str
    """The path of the farm key file that the node's configuration names."""
    file_epoch: int | None
    """The epoch of that file; null if it cannot be read, or is another farm's."""
    keys: tuple[FarmKeyView, ...] = ()
    """The keys."""
    behind: tuple[str, ...] = ()
    """Members that have another ring, for a moment or because something is wrong."""
    silent: tuple[str, ...] = ()
    """Members that run and did not answer."""
    absent: tuple[str, ...] = ()
    """Members that do not run, and have what keys they had."""
    refused: bool = False
    """The group has removed the keys of this node: what it shows is not the farm's ring any more."""
    unstored: tuple[str, ...] | UnsetType = UNSET
    """Members that could not store the ring, if there are any: after a restart they would come with an older one."""
    era: int | UnsetType = UNSET
    """How often all keys were replaced, if ever; within an era the epochs count."""
    file_era: int | UnsetType = UNSET
    """The era of the key file, if it has one."""


class KeyAnswer(Document, frozen=True):
    """A step of a rotation was taken."""

    key: str
    """The id of the key."""


class FarmKeyAnswer(Document, frozen=True):
    """The current farm key file. Secret."""

    farm_key: str
    """The text of the file."""

    def __repr__(self) -> str:
        """Without the key: the repr of a Struct shows its fields."""
        return "FarmKeyAnswer(…)"


class KeysReplaced(Document, frozen=True):
    """All gossip keys were replaced."""

    era: int
    """The number of the replacement."""
    sealed_for: int
    """For how many members the new key is sealed."""
    away: tuple[str, ...]
    """Those of them that do not run; they get it when they are back."""
    left_out: tuple[str, ...]
    """Nodes that need the new key file."""


# -- identities --------------------------------------------------------------------------------------------------------


class IdentityView(Record, frozen=True):
    """One identity that the log or gossip knows."""

    id: str
    """Its NodeId, in hexadecimal."""
    name: str | None
    """What operators call it."""
    raft_id: int | None
    """Its Raft id; null if the log has not admitted it."""
    standing: str
    """What it is to the farm, in words."""
    status: str
    """What gossip knows of its process; `unknown` if nothing."""
    server_role: str
    """What it is in the Raft group: `voter`, `learner` or `none`."""
    reason: str | None = None
    """Why it is not admitted, in words; null if it is."""


class ClientKeyView(Record, frozen=True):
    """A client key that was ever admitted."""

    id: str
    """Its id, in hexadecimal."""
    name: str
    """What the farm calls it."""
    scopes: tuple[str, ...]
    """What it may do: `weights`, `operator`."""
    admitted: bool
    """It may do so now."""
    admitted_by: str | UnsetType = UNSET
    """The id of the node that admitted it, from feature level 5 on."""


class NodesAnswer(Document, frozen=True):
    """Who belongs to the farm."""

    level: int
    """The feature level that all servers have agreed on."""
    supported_level: int
    """The feature level that the asked node supports."""
    nodes: tuple[IdentityView, ...]
    """The identities."""
    not_listed: int
    """How many more wait for approval."""
    clients: tuple[ClientKeyView, ...]
    """The client keys."""


class RetiredIdentity(Record, frozen=True):
    """An identity whose name another one has taken."""

    id: str
    """Its NodeId, in hexadecimal."""
    raft_id: int
    """Its Raft id."""


class NodeApproved(Document, frozen=True):
    """An identity was admitted, or has taken a name."""

    name: str
    """What operators call it."""
    id: str
    """Its NodeId, in hexadecimal."""
    raft_id: int
    """Its Raft id."""
    retired: RetiredIdentity | None
    """The identity that had the name before; null if the name is new."""


class NodeEvicted(Document, frozen=True):
    """An identity is evicted permanently."""

    id: str
    """Its NodeId, in hexadecimal."""
    era: int
    """The number of the replacement of keys."""
    sealed_for: int
    """For how many members the new key is sealed."""
    name: str | None
    """What operators called it."""
    raft_id: int | None
    """Its Raft id."""
    keys_replaced: bool
    """Gossip carries the new key; otherwise operators replace the key files."""
    left_out: tuple[str, ...]
    """Nodes that need the new key file."""
    votes_still: bool
    """Its server still votes, until the rest of the group allows its removal."""
    keys_not_replaced: str | UnsetType = UNSET
    """Why gossip carries no new key although it could, and what to do."""
    client_keys: tuple[str, ...] | UnsetType = UNSET
    """Names of the admitted client keys that it had admitted: they keep their scopes."""
    client_keys_of_unknown: tuple[str, ...] | UnsetType = UNSET
    """Names of those that may be its own: they were admitted before the farm had feature level 5."""


# -- what operators order ----------------------------------------------------------------------------------------------


class CommandAnswer(Document, frozen=True):
    """What an operator has ordered is in the log, and the state machine has carried it out."""

    kind: str
    """Which command it was."""
    index: int
    """Its place in the log."""
    text: str
    """What it does, in words."""


class SubmitOutcome(Enum):
    """How a submission ended. Only `committed` is an acknowledgement."""

    COMMITTED = "committed"
    """It is in the log permanently."""
    REFUSED = "refused"
    """It is not in the log."""
    BUSY = "busy"
    """It is not in the log; the farm is busy."""
    UNKNOWN = "unknown"
    """It may be committed, now or later, or not."""
    EXPIRED = "expired"
    """The farm has forgotten the request. Whether it was applied before is not known; now it was not."""


class CheckedAnswer(Document, frozen=True):
    """The answer to an order with `check=1`: it would not be refused now, and was not carried out."""

    allowed: bool = True
    """Always true: what would be refused is answered by the refusal."""


class SubmitAnswer(Document, frozen=True, kw_only=True):
    """The answer to one submission."""

    accepted: bool = False
    """Whether it is an acknowledgement; follows from `outcome`."""
    outcome: SubmitOutcome
    """How it ended."""
    index: int | None = None
    """Its place in the log; null if it is not known to be there."""
    term: int | None = None
    """The term of its entry; null if it is not known to be in the log."""
    reason: str = ""
    """Why it is not committed; if it is, why the state machine refused it (empty: it did not)."""
    leader_id: int | None = None
    """The Raft id of the leader; null if it is not known."""
    leader_endpoint: str | None = None
    """Where the leader's Raft server listens; null if it is not known."""
    request: str | None = None
    """The request id under which it may be repeated without being applied twice; null if it had none."""

    def __post_init__(self) -> None:
        force_setattr(self, "accepted", self.outcome is SubmitOutcome.COMMITTED)


class LeavingAnswer(Document, frozen=True):
    """The node leaves the farm and stops."""

    leaving: bool
    """It does."""


class WithdrawnAnswer(Document, frozen=True):
    """The node has taken back its promise to create the farm."""

    withdrawn: bool
    """It has."""


class ConfirmedAnswer(Document, frozen=True):
    """The node takes a cluster for its farm."""

    confirmed: str
    """The id of the cluster, in hexadecimal."""


class LeaderAnswer(Document, frozen=True):
    """Leadership was handed over."""

    leader: str
    """The name of the node that leads now."""


# -- user events and queries -------------------------------------------------------------------------------------------


class EventAnswer(Document, frozen=True):
    """A user event is on its way to all nodes."""

    name: str
    """The name of the event."""


class QueryAnswerView(Record, frozen=True):
    """What one node has answered to a query."""

    node: str
    """What operators call the node; its NodeId if that is not known."""
    id: str
    """Its NodeId, in hexadecimal."""
    payload: str
    """The answer."""


class QueryAnswer(Document, frozen=True):
    """What the nodes have answered to a query."""

    name: str
    """The name of the query."""
    answers: tuple[QueryAnswerView, ...]
    """The answers, in order of the names of the nodes."""
    silent: tuple[str, ...]
    """The names of nodes that run and have not answered in time."""


# -- refusals ----------------------------------------------------------------------------------------------------------


class RefusalView(Record, frozen=True):
    """Why a request was refused."""

    code: str
    """For programs (`docs/reference/refusals.md`)."""
    text: str
    """For people: what was wrong, and what would be right."""


class RefusalAnswer(Record, frozen=True):
    """The answer to every request that was refused."""

    error: RefusalView
    """Why."""


class Refused(Exception):  # noqa: N818 -- a refusal is an answer, not a fault
    """The request cannot be carried out; `status` and `code` are for programs, the text is for people."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
