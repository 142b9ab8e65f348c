"""The messages of ØMQ Raft, one class each, with the values that its frames stand for.

Between peers (DEALER to ROUTER and back; `message_id` pairs a reply with its request):

    RequestVote 0x3f      AppendEntries 0x2b      InstallSnapshot 0x24

From clients, each with the reply or replies that the text permits (`request_id` pairs them):

    ConfigRequest 0x5e    ConfigReply                       any peer answers
    UpdateRequest 0x3d    UpdateAccepted* UpdateCommitted   or UpdateRedirect, UpdateExpired
    ChangeRequest 0x26    ChangeAccepted* ChangeCommitted   or ChangeRedirect, ChangeRefused, ChangeBusy, ChangeExpired
    EntriesRequest 0x3c   EntriesBatch*, SnapshotPiece*     or EntriesRedirect
    LogInfoRequest 0x25   LogInfoReply                      any peer answers
    UrlRequest 0x2a       UrlReply
    CustomRequest         of a type of two bytes or more: for a state machine of the service's own

`StateBroadcast` comes by PUB. The frames and what their types mean are in `codec`; which requests are fresh is in
`request_ids`. Entries are the core's (`entries`): the id of the request that caused one is the head of its data.
"""

from dataclasses import dataclass

from consensus.core.model import Entry, Index, Term

MessageId = int
"""1 to 16777215, then 0: the number of a request between peers."""
RequestId = bytes
"""What a client sent as the first frame: 12 bytes for updates, at most 12 otherwise; it comes back as it was."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the protocol lists it; `url` is `tcp://IP:port` of its ROUTER socket."""

    peer_id: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVoteRpc:
    """RequestVote RPC, 0x3f."""

    message_id: MessageId
    ident: bytes
    candidate: str
    term: Term
    last_index: Index
    last_term: Term


@dataclass(frozen=True, slots=True)
class RequestVoteResponse:
    """Answer to RequestVote."""

    message_id: MessageId
    term: Term
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntriesRpc:
    """AppendEntries RPC, 0x2b; without entries it is a heartbeat."""

    message_id: MessageId
    ident: bytes
    leader: str
    term: Term
    previous_index: Index
    previous_term: Term
    commit: Index
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntriesResponse:
    """Answer to AppendEntries.

    `conflict_index` is from where the leader should try, in frame 4: there the package sends and reads it, although
    the text has the conflict's term there. None: the leader steps back by one entry. Frame 5 is never sent.
    """

    message_id: MessageId
    term: Term
    success: bool
    conflict_index: Index | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshotRpc:
    """InstallSnapshot RPC, 0x24: the bytes from `offset` on of a snapshot of `total_bytes`."""

    message_id: MessageId
    ident: bytes
    leader: str
    term: Term
    last_index: Index
    last_term: Term
    offset: int
    total_bytes: int
    data: bytes


@dataclass(frozen=True, slots=True)
class InstallSnapshotResponse:
    """Answer to InstallSnapshot; `wanted_offset` if the transfer is to go on elsewhere than behind this chunk."""

    message_id: MessageId
    term: Term
    wanted_offset: int | None = None


PeerRequest = RequestVoteRpc | AppendEntriesRpc | InstallSnapshotRpc
PeerReply = RequestVoteResponse | AppendEntriesResponse | InstallSnapshotResponse


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """RequestConfig RPC, 0x5e, asks who the members are and which of them leads."""

    request_id: RequestId
    ident: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReply:
    """Answer to ConfigRequest. While the configuration changes, `peers` are those of both, old and new."""

    request_id: RequestId
    is_leader: bool
    leader: str | None
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """RequestUpdate RPC, 0x3d: have `data` committed, once, however often this request id is sent."""

    request_id: RequestId
    ident: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class UpdateAccepted:
    """The update is on its way and not committed; the client goes on waiting."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class UpdateCommitted:
    """The update is committed at `index`."""

    request_id: RequestId
    index: Index


@dataclass(frozen=True, slots=True)
class UpdateRedirect:
    """This peer does not lead; `leader` does, if it is known."""

    request_id: RequestId
    leader: str | None


@dataclass(frozen=True, slots=True)
class UpdateExpired:
    """The request id is too old, or too far in the future: final."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class MalformedPeers:
    """What a client sent in place of a list of peers: the name and the message of the error that it gets."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """ConfigUpdate RPC, 0x26: make `peers` the members."""

    request_id: RequestId
    ident: bytes
    peers: tuple[Peer, ...] | MalformedPeers


@dataclass(frozen=True, slots=True)
class ChangeAccepted:
    """The change is on its way: C_old,new is not committed."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class ChangeCommitted:
    """C_old,new is committed, at `index`."""

    request_id: RequestId
    index: Index


@dataclass(frozen=True, slots=True)
class ChangeRedirect:
    """This peer does not lead; `leader` does, if it is known."""

    request_id: RequestId
    leader: str | None


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """The peers cannot be a configuration: the name and the message of an error."""

    request_id: RequestId
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ChangeBusy:
    """Another change is under way; the client tries again later."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class ChangeExpired:
    """The request id is too old, or too far in the future: final."""

    request_id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesRequest:
    """RequestEntries RPC, 0x3c: what follows `previous_index`; also sent again, to confirm a message of the answer.

    `count` None: all that is committed. 0: stop. `snapshot_offset`: from which byte of the snapshot on, if the entries
    asked for are compacted; None: from its beginning, or, in a confirmation, unchecked.
    """

    request_id: RequestId
    ident: bytes
    previous_index: Index
    count: int | None = None
    snapshot_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesBatch:
    """Entries up to `last_index`; `is_last` ends the answer. Without entries `last_index` is what the log ends at."""

    request_id: RequestId
    is_last: bool
    last_index: Index
    entries: tuple[Entry, ...] = ()
    leader: str | None = None
    """Frame 3 has no meaning in this answer; the package puts the leader that it follows there, null for a leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPiece:
    """Bytes of the snapshot that stands for all entries up to `last_index`, which is of `last_term`."""

    request_id: RequestId
    last_index: Index
    last_term: Term
    offset: int
    total_bytes: int
    data: bytes


@dataclass(frozen=True, slots=True)
class EntriesRedirect:
    """This peer does not lead; `leader` does, if it is known."""

    request_id: RequestId
    leader: str | None


@dataclass(frozen=True, slots=True)
class LogInfoRequest:
    """RequestLogInfo RPC, 0x25, asks how this peer's own log is."""

    request_id: RequestId
    ident: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogInfoReply:
    """Answer to LogInfoRequest. Up to `prune_index` no request id is fresh, so a snapshot may replace the entries."""

    request_id: RequestId
    is_leader: bool
    leader: str | None
    term: Term
    first_index: Index
    last_applied: Index
    commit: Index
    last_index: Index
    snapshot_bytes: int
    prune_index: Index


@dataclass(frozen=True, slots=True)
class UrlRequest:
    """RequestBroadcastStateUrl RPC, 0x2a, asks where the broadcast state machine has its PUB socket."""

    request_id: RequestId
    ident: bytes


@dataclass(frozen=True, slots=True)
class UrlReply:
    """Answer to UrlRequest; None: ask the leader."""

    request_id: RequestId
    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRequest:
    """ClientDispatch RPC of any other type (two bytes at least), for the service's state machine."""

    request_id: RequestId
    message_type: bytes
    ident: bytes
    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CustomReply:
    """The answer of the service's state machine, whatever frames that has."""

    request_id: RequestId
    frames: tuple[bytes, ...]


ClientRequest = (
    ConfigRequest | UpdateRequest | ChangeRequest | EntriesRequest | LogInfoRequest | UrlRequest | CustomRequest
)
UpdateReply = UpdateAccepted | UpdateCommitted | UpdateRedirect | UpdateExpired
ChangeReply = ChangeAccepted | ChangeCommitted | ChangeRedirect | ChangeRefused | ChangeBusy | ChangeExpired
EntriesReply = EntriesBatch | SnapshotPiece | EntriesRedirect
ClientReply = ConfigReply | UpdateReply | ChangeReply | EntriesReply | LogInfoReply | UrlReply | CustomReply
Request = PeerRequest | ClientRequest
Reply = PeerReply | ClientReply


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBroadcast:
    """What the leader's PUB socket sends when entries were applied, and twice a second without any.

    `entries` end at `last_applied`.
    """

    ident: bytes
    term: Term
    last_applied: Index
    entries: tuple[Entry, ...] = ()
