"""Events: the inputs of `step(event, now)` of a `Raft`."""

from dataclasses import dataclass

from consensus.core.features import Extensions
from consensus.core.messages import AppendEntries, Message
from consensus.core.model import Configuration, Entry, Index, LogId, ServerId, SnapshotDescription


@dataclass(frozen=True, slots=True)
class Received:
    """A message from another server."""

    sender: ServerId
    message: Message


@dataclass(frozen=True, slots=True)
class Rejected:
    """An append whose entries the state machine cannot take: it is refused and has no other effect."""

    sender: ServerId
    append: AppendEntries


@dataclass(frozen=True, slots=True)
class AppendNotSent:
    """The transport kept back the append with this correlation: the peer lacks the entries from `next_index` on.

    The peer has not replied, so this counts neither for check-quorum nor for a read; only its progress changes.
    """

    peer: ServerId
    correlation: int
    next_index: Index


@dataclass(frozen=True, slots=True)
class AnswerArriving:
    """Bytes of the peer's reply to the request with this correlation arrive, but not all of them yet.

    On a slow link a large reply takes longer than the timeout of the peer. Arriving bytes count as contact.
    """

    peer: ServerId
    correlation: int


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """`core.deadline` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A client's request to append `commands`, in order. `proposal_id` comes back in the one `ProposalResolved`.

    With `report_accepted` a `ProposalAccepted` precedes it, unless the proposal is refused. With `control` they are
    records of the protocol instead of commands.
    """

    proposal_id: int
    commands: tuple[bytes, ...]
    report_accepted: bool = False
    control: bool = False


@dataclass(frozen=True, slots=True)
class Persisted:
    """Persist effects up to and including `number` are durable."""

    number: int


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """The answer to `ReadEntries`: entries from `first` on. Empty when the range no longer exists (truncated since)."""

    request_id: int
    first: Index
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class PeerExtensions:
    """The extensions that `peer` supports according to the handshake."""

    peer: ServerId
    extensions: Extensions


@dataclass(frozen=True, slots=True)
class ChangeConfiguration:
    """A caller's request to change the member set to `target`, which is not joint.

    `change_id` comes back in one `ConfigurationResolved`. `head` is stored with the first configuration that the change
    appends (`entry_data`), such as the id of a client's request.
    """

    change_id: int
    target: Configuration
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class SnapshotWanted:
    """The state machine is at `index`: the core answers by `TakeSnapshot`, unless a snapshot covers that already."""

    index: Index


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The snapshot requested by `TakeSnapshot` is durable; entries from `first_kept` on should be kept."""

    snapshot: SnapshotDescription
    first_kept: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRead:
    """The answer to `ReadSnapshot`: bytes from `offset` on, `done` if they are the last. None: it was replaced."""

    request_id: int
    last: LogId
    offset: int
    data: bytes | None
    done: bool


@dataclass(frozen=True, slots=True)
class SnapshotChecked:
    """The reply to `CheckSnapshot`: the description of the received chunks; None if they are damaged."""

    request_id: int
    snapshot: SnapshotDescription | None
    objection: str | None = None
    """The reason why the state machine cannot take it, although its checksums match."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The disk has become full, or has space again."""

    full: bool


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """A client wants to read what was acknowledged before now; answered by one `ReadReady` or `ReadRefused`."""

    read_id: int


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Hand leadership to `target` (None: the voter with the longest log); answered by one `TransferEnded`."""

    transfer_id: int
    target: ServerId | None = None


@dataclass(frozen=True, slots=True)
class ClusterIdKnown:
    """The state machine has learned which cluster this is; requests of another are refused from now on."""

    cluster_id: str


SnapshotEvent = SnapshotWanted | SnapshotTaken | SnapshotRead | SnapshotChecked
StorageEvent = SnapshotEvent | DiskSpace
Requested = Proposed | ChangeConfiguration | ReadRequested | TransferLeadership
Learned = PeerExtensions | ClusterIdKnown | AppendNotSent | AnswerArriving
Event = Received | Rejected | DeadlineReached | Requested | Persisted | EntriesRead | Learned | StorageEvent
