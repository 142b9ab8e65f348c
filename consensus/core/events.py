"""Events: the inputs of `step(event, now)` of a `Raft`."""

from msgspec import Struct

from consensus.core.features import Extensions
from consensus.core.messages import AppendEntries, Message
from consensus.core.model import Configuration, Entry, Index, LogId, ServerId, SnapshotDescription


class Received(Struct, frozen=True):
    """A message from another server."""

    sender: ServerId
    message: Message


class Rejected(Struct, frozen=True):
    """An append with entries that the state machine cannot apply. The append is refused, without another effect."""

    sender: ServerId
    append: AppendEntries


class AppendNotSent(Struct, frozen=True):
    """The transport did not send the append with this correlation, because the peer lacks entries from `next_index` on.

    This is not a reply, so it counts neither for check-quorum nor for a read. Only the peer's progress changes.
    """

    peer: ServerId
    correlation: int
    next_index: Index


class AnswerArriving(Struct, frozen=True):
    """Part of the peer's reply to the request with this correlation has arrived.

    On a slow link, a large reply takes longer than the timeout. Arriving bytes count as contact with the peer.
    """

    peer: ServerId
    correlation: int


class PeerEnded(Struct, frozen=True):
    """The peer's process has ended: its connection broke, and its address refuses a new one.

    A broken network can have the same effect, so this is evidence and not proof (`ServerRole.leader_ended`).
    """

    peer: ServerId


class DeadlineReached(Struct, frozen=True):
    """The time `Raft.deadline` has been reached."""


class Proposed(Struct, frozen=True, kw_only=True):
    """A client's request to append `commands`, in order. The `ProposalResolved` of this request repeats `proposal_id`.

    With `report_accepted`, a `ProposalAccepted` precedes the `ProposalResolved`, unless the proposal is refused. With
    `control`, `commands` contains records of the protocol.
    """

    proposal_id: int
    commands: tuple[bytes, ...]
    report_accepted: bool = False
    control: bool = False


class Persisted(Struct, frozen=True):
    """Persist effects up to and including `number` are durable."""

    number: int


class EntriesRead(Struct, frozen=True):
    """The reply to `ReadEntries`: entries from `first` on. Empty if the range was truncated after the request."""

    request_id: int
    first: Index
    entries: tuple[Entry, ...]


class PeerExtensions(Struct, frozen=True):
    """The extensions that `peer` supports according to the handshake."""

    peer: ServerId
    extensions: Extensions


class ChangeConfiguration(Struct, frozen=True):
    """A caller's request to change the member set to `target`, which is not joint.

    The `ConfigurationResolved` of this request repeats `change_id`. `head`, such as the id of a client's request, is
    stored with the first configuration that the change appends (`entry_data`).
    """

    change_id: int
    target: Configuration
    head: bytes = b""


class SnapshotWanted(Struct, frozen=True):
    """The state machine is at `index`: the core returns `TakeSnapshot`, unless a snapshot already covers this index."""

    index: Index


class SnapshotTaken(Struct, frozen=True):
    """The snapshot requested by `TakeSnapshot` is durable; the log keeps entries from `first_kept` on."""

    snapshot: SnapshotDescription
    first_kept: Index


class SnapshotRead(Struct, frozen=True, kw_only=True):
    """The reply to `ReadSnapshot`: bytes from `offset` on, or None if the snapshot was replaced.

    `done` is True if these bytes are the last.
    """

    request_id: int
    last: LogId
    offset: int
    data: bytes | None
    done: bool


class SnapshotChecked(Struct, frozen=True):
    """The reply to `CheckSnapshot`: the description of the received chunks; None if they are damaged."""

    request_id: int
    snapshot: SnapshotDescription | None
    objection: str | None = None
    """The reason why the state machine cannot restore the snapshot, although the checksums match."""


class DiskSpace(Struct, frozen=True):
    """The disk became full, or has space again."""

    full: bool


class ReadRequested(Struct, frozen=True):
    """A client's linearizable read; the core returns one `ReadReady` or `ReadRefused`."""

    read_id: int


class TransferLeadership(Struct, frozen=True):
    """Hand leadership to `target` (None: the voter with the longest log). One `TransferEnded` reports the result."""

    transfer_id: int
    target: ServerId | None = None


class ClusterIdKnown(Struct, frozen=True):
    """The state machine has applied this cluster's id; requests with a different id are refused from now on."""

    cluster_id: str


SnapshotEvent = SnapshotWanted | SnapshotTaken | SnapshotRead | SnapshotChecked
StorageEvent = SnapshotEvent | DiskSpace
Requested = Proposed | ChangeConfiguration | ReadRequested | TransferLeadership
Learned = PeerExtensions | PeerEnded | ClusterIdKnown | AppendNotSent | AnswerArriving
Event = Received | Rejected | DeadlineReached | Requested | Persisted | EntriesRead | Learned | StorageEvent
