"""Responses of the control endpoint: leader and voters, keys, identities, results of submissions.

The node makes these documents, `bridge.api.json` encodes and decodes them, and the command line and the terminal view
use them. Paged documents and the view have their own modules (`bridge.api.log`, `bridge.api.trace`, `bridge.api.view`).
"""

from enum import Enum

from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr

from bridge.api.json import Document, Record
from bridge.api.view import VerdictView, VoterView

WAIT_LIMIT_MS = 30_000
"""Maximum delay of an empty response."""

# -- the farm ----------------------------------------------------------------------------------------------------------


class ClusterAnswer(Document, frozen=True):
    """Leader and voters, for clients of the farm."""

    cluster: str
    """The name of the cluster."""
    cluster_id: str | None
    """The id of the cluster; null before the farm is created."""
    raft_id: int | None
    """Raft id of the queried node; null before its admission."""
    term: int
    """Term of the queried node."""
    commit_index: int
    """Last committed entry that the queried node knows."""
    leader_id: int | None
    """Raft id of the leader."""
    leader_name: str | None
    """Name of the leader."""
    leader_endpoint: str | None
    """Address of the leader's Raft server."""
    voters: tuple[VoterView, ...] = ()
    """The voters."""


class ServerClock(Record, frozen=True):
    """A server's clock compared with the majority time."""

    raft_id: int
    """The Raft id of the server."""
    name: str
    """Name of the server."""
    voter: bool
    """True if the clock counts for the majority time."""
    offset_ms: int | None
    """Lead of the server's clock in milliseconds; null if its last report is too old, or the offset is unknown."""


class LogTimeAnswer(Document, frozen=True):
    """The farm's time at one node."""

    log_time_ms: int
    """Log time."""
    majority_ms: int | None
    """Time reached by the clocks of a majority of the voters; null if too few reported recently."""
    latest_ms: int | None
    """Highest log time that a clock entry of the present leader could set."""
    agreed: bool
    """True if a majority of the voters' clocks agrees with the majority time."""
    clocks: tuple[ServerClock, ...] = ()
    """Each server's clock."""


class HealthAnswer(Document, frozen=True):
    """Health of the process, independent of the farm, for a supervisor that restarts it."""

    healthy: bool
    """False if a restart of the process would help."""
    reasons: tuple[str, ...]
    """Faults of this process."""
    verdict: VerdictView
    """The verdict."""


class ReadyAnswer(Document, frozen=True):
    """Readiness of the farm, as the queried node sees it."""

    ready: bool
    """True if `/readyz` answers 200; the verdict determines this."""
    verdict: VerdictView
    """The verdict."""


# -- keys --------------------------------------------------------------------------------------------------------------


class FarmKeyState(Enum):
    """Use of a gossip key at the queried node."""

    PRIMARY = "primary"
    """The node seals with it."""
    INSTALLED = "installed"
    """The node opens datagrams with it."""
    REMOVED = "removed"
    """The node refuses it."""


class FarmKeyView(Record, frozen=True):
    """One gossip key by its id; never the key itself."""

    key_id: str
    """The id of the key."""
    state: FarmKeyState
    """Use of the key at the queried node."""
    since: int
    """Epoch (logical clock of the ring) of the change that installed it."""
    opened_by: int
    """Number of members that open datagrams with it; 0 when a removal has reached every member."""
    sealed_by: int
    """Number of members that seal with it."""
    missing: tuple[str, ...] = ()
    """Running members that did not confirm that they open with it."""


class KeysAnswer(Document, frozen=True):
    """The farm's key ring at one node, and its state at the other members."""

    farm: str
    """The label of the farm."""
    epoch: int
    """Epoch (logical clock of the ring) of the choice of the sealing key."""
    primary: str
    """Id of the sealing key of the queried node."""
    members: int
    """Number of running members in gossip, the queried node included."""
    file: str
    """Path of the farm key file in the node's configuration."""
    file_epoch: int | None
    """Epoch of the key file; null if it cannot be read, or belongs to another farm."""
    keys: tuple[FarmKeyView, ...] = ()
    """The keys."""
    behind: tuple[str, ...] = ()
    """Members with another ring: the change is on its way to them, or they have a fault."""
    silent: tuple[str, ...] = ()
    """Running members that did not reply."""
    absent: tuple[str, ...] = ()
    """Members that do not run; their keys are unchanged."""
    refused: bool = False
    """True if the group has removed the keys of this node: its ring is no longer the farm's."""
    unstored: tuple[str, ...] | UnsetType = UNSET
    """Members that could not store the ring, if any: they would restart with an older ring."""
    era: int | UnsetType = UNSET
    """Number of replacements of all keys, if any; epochs count within an era."""
    file_era: int | UnsetType = UNSET
    """Era of the key file, if any."""


class KeyAnswer(Document, frozen=True):
    """A completed step of a rotation."""

    key: str
    """The id of the key."""


class FarmKeyAnswer(Document, frozen=True):
    """The current farm key file. Secret."""

    farm_key: str
    """The text of the file."""

    def __repr__(self) -> str:
        """Hide the key: the default repr of a Struct shows all fields."""
        return "FarmKeyAnswer(…)"


class InvitationUseView(Record, frozen=True):
    """A node that has redeemed an invitation."""

    name: str
    """The name that it gave."""
    id: str
    """NodeId of the node."""
    time_ms: int
    """Unix time of its request, milliseconds."""
    waits: bool
    """True until this node approves it."""


class InvitationView(Record, frozen=True):
    """An invitation of this node, without its secret."""

    id: str
    """Id of the invitation, for `invite revoke`."""
    state: str
    """`open`, `used`, `expired` or `revoked`."""
    uses_max: int
    """The number of nodes that may redeem it."""
    created_ms: int
    """Unix time of its creation, milliseconds."""
    ends_ms: int
    """Unix time of its end, milliseconds."""
    uses: tuple[InvitationUseView, ...]
    """The nodes that have redeemed it."""


class InvitationsAnswer(Document, frozen=True):
    """The invitations of this node."""

    invitations: tuple[InvitationView, ...]
    """The invitations, the oldest first."""


class InvitationAnswer(Document, frozen=True):
    """A changed invitation."""

    invitation: InvitationView
    """The invitation after the change."""


class InvitationCreated(Document, frozen=True):
    """A new invitation. Secret."""

    token: str
    """The token for `garlicfarm join`; it is shown only here."""
    addresses: tuple[str, ...]
    """The addresses of this node that a new node connects to."""
    invitation: InvitationView
    """The invitation."""

    def __repr__(self) -> str:
        """Hide the token: the default repr of a Struct shows all fields."""
        return "InvitationCreated(…)"


class KeysReplaced(Document, frozen=True):
    """All gossip keys were replaced."""

    era: int
    """The number of the replacement."""
    sealed_for: int
    """Number of members with a sealed copy of the new key."""
    away: tuple[str, ...]
    """Members among them that do not run; they get the key when they return."""
    left_out: tuple[str, ...]
    """Nodes that need the new key file."""


# -- identities --------------------------------------------------------------------------------------------------------


class IdentityView(Record, frozen=True):
    """An identity in the log or in gossip."""

    id: str
    """NodeId of the identity."""
    name: str | None
    """Name of the identity."""
    raft_id: int | None
    """Raft id; null if the log has not admitted the identity."""
    standing: str
    """Status of the identity in the farm."""
    status: str
    """Status of its process, from gossip; `unknown` without one."""
    server_role: str
    """Role in the Raft group: `voter`, `learner` or `none`."""
    reason: str | None = None
    """Reason why the identity is not admitted; null for an admitted identity."""


class ClientKeyView(Record, frozen=True):
    """A client key, admitted now or earlier."""

    id: str
    """Id of the key."""
    name: str
    """Name of the key in the farm."""
    scopes: tuple[str, ...]
    """Scopes of the key: `weights`, `operator`."""
    admitted: bool
    """True if the key is admitted now."""
    admitted_by: str | UnsetType = UNSET
    """Id of the node that admitted it, from feature level 5 on."""


class NodesAnswer(Document, frozen=True):
    """The identities of the farm."""

    level: int
    """Feature level of the farm."""
    supported_level: int
    """Feature level that the queried node supports."""
    nodes: tuple[IdentityView, ...]
    """The identities."""
    not_listed: int
    """Number of further identities that wait for approval."""
    clients: tuple[ClientKeyView, ...]
    """The client keys."""


class RetiredIdentity(Record, frozen=True):
    """A retired identity: another identity has its name."""

    id: str
    """NodeId of the retired identity."""
    raft_id: int
    """Raft id of the retired identity."""


class NodeApproved(Document, frozen=True):
    """An identity was admitted, or has taken a name."""

    name: str
    """Name of the admitted identity."""
    id: str
    """NodeId of the admitted identity."""
    raft_id: int
    """Raft id of the admitted identity."""
    retired: RetiredIdentity | None
    """The identity that had the name before; null if the name is new."""


class NodeEvicted(Document, frozen=True):
    """An identity is evicted permanently."""

    id: str
    """NodeId of the evicted identity."""
    era: int
    """The number of the replacement of keys."""
    sealed_for: int
    """Number of members with a sealed copy of the new key."""
    name: str | None
    """Former name of the evicted identity."""
    raft_id: int | None
    """Raft id of the evicted identity."""
    keys_replaced: bool
    """True if gossip distributes the new key; otherwise operators replace the key files."""
    left_out: tuple[str, ...]
    """Nodes that need the new key file."""
    votes_still: bool
    """True if the evicted server still votes, until the other voters allow its removal."""
    keys_not_replaced: str | UnsetType = UNSET
    """Reason why gossip does not distribute the new key although it could, and the action."""
    client_keys: tuple[str, ...] | UnsetType = UNSET
    """Names of the client keys that it had admitted: they keep their scopes."""
    client_keys_of_unknown: tuple[str, ...] | UnsetType = UNSET
    """Names of client keys that it may have admitted: they are older than feature level 5."""


# -- commands and submissions ------------------------------------------------------------------------------------------


class CommandAnswer(Document, frozen=True):
    """The operator's command is committed and applied."""

    kind: str
    """Kind of the command."""
    index: int
    """Place of the command in the log."""
    text: str
    """Effect of the command."""


class SubmitOutcome(Enum):
    """Result of a submission. Only `committed` is an acknowledgment."""

    COMMITTED = "committed"
    """The entry is in the log permanently."""
    REFUSED = "refused"
    """The entry is not in the log."""
    BUSY = "busy"
    """The entry is not in the log; the farm is busy."""
    UNKNOWN = "unknown"
    """The entry may be committed already, be committed later, or never be committed."""
    EXPIRED = "expired"
    """The farm has dropped the request id. The request may have been applied before; it was not applied now."""


class CheckedAnswer(Document, frozen=True):
    """The reply to the check of a command: it would be accepted now, and was not executed."""

    allowed: bool = True
    """Always true: a command that would be refused gets the refusal."""


class SubmitAnswer(Document, frozen=True, kw_only=True):
    """The reply to a submission."""

    accepted: bool = False
    """True for an acknowledgment; follows from `outcome`."""
    outcome: SubmitOutcome
    """Result of the submission."""
    index: int | None = None
    """Index of the entry in the log."""
    term: int | None = None
    """Term of the entry."""
    reason: str = ""
    """Reason of a missing commit, or of the state machine's refusal of a committed entry; otherwise empty."""
    leader_id: int | None = None
    """Raft id of the leader."""
    leader_endpoint: str | None = None
    """Address of the leader's Raft server."""
    request: str | None = None
    """Request id, so that a repetition is applied only once; null without one."""

    def __post_init__(self) -> None:
        force_setattr(self, "accepted", self.outcome is SubmitOutcome.COMMITTED)


class LeavingAnswer(Document, frozen=True):
    """The node leaves the farm and stops."""

    leaving: bool
    """Always true."""


class WithdrawnAnswer(Document, frozen=True):
    """The node has withdrawn its promise to create the farm."""

    withdrawn: bool
    """Always true."""


class ConfirmedAnswer(Document, frozen=True):
    """The node accepts a cluster as its farm."""

    confirmed: str
    """The id of the cluster."""


class LeaderAnswer(Document, frozen=True):
    """Leadership was handed over."""

    leader: str
    """Name of the present leader."""


# -- user events and queries -------------------------------------------------------------------------------------------


class EventAnswer(Document, frozen=True):
    """A user event sent to all nodes."""

    name: str
    """The name of the event."""
    nodes: int | None = None
    """Number of other nodes that gossip counts as running at this moment: stopped nodes miss the event. Nodes of older
    versions do not report it."""


class QueryAnswerView(Record, frozen=True):
    """Reply of one node to a query."""

    node: str
    """Name of the node; its NodeId if unknown."""
    id: str
    """NodeId of the replying node."""
    payload: str
    """The answer."""


class QueryAnswer(Document, frozen=True):
    """Replies of the nodes to a query."""

    name: str
    """The name of the query."""
    answers: tuple[QueryAnswerView, ...]
    """The answers, in order of the names of the nodes."""
    silent: tuple[str, ...]
    """Names of running nodes that did not reply in time."""


# -- refusals ----------------------------------------------------------------------------------------------------------


class RefusalView(Record, frozen=True):
    """A refusal of a request."""

    code: str
    """The code for programs (`docs/reference/refusals.md`)."""
    text: str
    """The text for people: the fault, and the correct form."""


class RefusalAnswer(Record, frozen=True):
    """The reply to every refused request."""

    error: RefusalView
    """The refusal."""


class Refused(Exception):  # noqa: N818 -- a refusal is an answer, not a fault
    """The request cannot be carried out; `status` and `code` are for programs, the text is for people."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
