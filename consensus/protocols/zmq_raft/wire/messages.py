"""The messages of ØMQ Raft, one class each, with the decoded values of its frames.

Between peers (DEALER to ROUTER and back; `message_id` pairs a reply with its request):

    RequestVote 0x3f      AppendEntries 0x2b      InstallSnapshot 0x24

From clients, each with the reply or replies that the specification permits (`request_id` pairs them):

    ConfigRequest 0x5e    ConfigReply                       any peer replies
    UpdateRequest 0x3d    UpdateAccepted* UpdateCommitted   or UpdateRedirect, UpdateExpired
    ChangeRequest 0x26    ChangeAccepted* ChangeCommitted   or ChangeRedirect, ChangeRefused, ChangeBusy, ChangeExpired
    EntriesRequest 0x3c   EntriesBatch*, SnapshotPiece*     or EntriesRedirect
    LogInfoRequest 0x25   LogInfoReply                      any peer replies
    UrlRequest 0x2a       UrlReply
    CustomRequest         of a type of two bytes or more: for the service's own state machine

`StateBroadcast` comes by PUB. `codec` has the frames and their types, and `request_ids` the freshness of requests.
Entries are the core's `Entry` (`entries`): the data of an update begins with its request id.
"""

from msgspec import Struct

from consensus.core.model import Entry, Index, Term

MessageId = int
"""1 to 16777215, then 0: the number of a request between peers."""
RequestId = bytes
"""First frame of a client's message: 12 bytes for updates, at most 12 otherwise; the reply repeats it."""


class Peer(Struct, frozen=True):
    """A member as the protocol lists it; `url` is `tcp://IP:port` of its ROUTER socket."""

    peer_id: str
    url: str


class RequestVoteRpc(Struct, frozen=True, kw_only=True):
    """RequestVote RPC, 0x3f."""

    message_id: MessageId
    ident: bytes
    candidate: str
    term: Term
    last_index: Index
    last_term: Term


class RequestVoteResponse(Struct, frozen=True):
    """The reply to RequestVote."""

    message_id: MessageId
    term: Term
    granted: bool


class AppendEntriesRpc(Struct, frozen=True, kw_only=True):
    """AppendEntries RPC, 0x2b; without entries it is a heartbeat."""

    message_id: MessageId
    ident: bytes
    leader: str
    term: Term
    previous_index: Index
    previous_term: Term
    commit: Index
    entries: tuple[Entry, ...] = ()


class AppendEntriesResponse(Struct, frozen=True, kw_only=True):
    """Reply to AppendEntries.

    `conflict_index` is the index for the leader's next attempt; without it the leader steps back by one entry. The
    package sends this index in frame 4, although the specification has the conflict's term there. Frame 5 is never
    sent.
    """

    message_id: MessageId
    term: Term
    success: bool
    conflict_index: Index | None = None


class InstallSnapshotRpc(Struct, frozen=True, kw_only=True):
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


class InstallSnapshotResponse(Struct, frozen=True):
    """Reply to InstallSnapshot. `wanted_offset` is set if the transfer must not continue after this chunk."""

    message_id: MessageId
    term: Term
    wanted_offset: int | None = None


PeerRequest = RequestVoteRpc | AppendEntriesRpc | InstallSnapshotRpc
PeerReply = RequestVoteResponse | AppendEntriesResponse | InstallSnapshotResponse


class ConfigRequest(Struct, frozen=True):
    """RequestConfig RPC, 0x5e: a query for the members and the leader."""

    request_id: RequestId
    ident: bytes


class ConfigReply(Struct, frozen=True, kw_only=True):
    """Reply to ConfigRequest. During a change of the configuration, `peers` has the old and the new members."""

    request_id: RequestId
    is_leader: bool
    leader: str | None
    peers: tuple[Peer, ...]


class UpdateRequest(Struct, frozen=True):
    """RequestUpdate RPC, 0x3d: commit `data` once, for any number of repetitions of this request id."""

    request_id: RequestId
    ident: bytes
    data: bytes


class UpdateAccepted(Struct, frozen=True):
    """The update is accepted but not committed yet; the client continues to wait."""

    request_id: RequestId


class UpdateCommitted(Struct, frozen=True):
    """The update is committed at `index`."""

    request_id: RequestId
    index: Index


class UpdateRedirect(Struct, frozen=True):
    """The refusal of an UpdateRequest: this peer does not lead; `leader` does, if it is known."""

    request_id: RequestId
    leader: str | None


class UpdateExpired(Struct, frozen=True):
    """The final refusal of an update: its request id is too old, or too far in the future."""

    request_id: RequestId


class MalformedPeers(Struct, frozen=True):
    """A client's malformed list of peers: the name and the message of the error for the client."""

    name: str
    message: str


class ChangeRequest(Struct, frozen=True):
    """ConfigUpdate RPC, 0x26: make `peers` the members."""

    request_id: RequestId
    ident: bytes
    peers: tuple[Peer, ...] | MalformedPeers


class ChangeAccepted(Struct, frozen=True):
    """The change is accepted, but C_old,new is not committed yet."""

    request_id: RequestId


class ChangeCommitted(Struct, frozen=True):
    """C_old,new is committed, at `index`."""

    request_id: RequestId
    index: Index


class ChangeRedirect(Struct, frozen=True):
    """The refusal of a ChangeRequest: this peer does not lead; `leader` does, if it is known."""

    request_id: RequestId
    leader: str | None


class ChangeRefused(Struct, frozen=True):
    """The final refusal of a change: the name and the message of an error."""

    request_id: RequestId
    name: str
    message: str


class ChangeBusy(Struct, frozen=True):
    """Another change is under way; the client tries again later."""

    request_id: RequestId


class ChangeExpired(Struct, frozen=True):
    """The final refusal of a change: its request id is too old, or too far in the future."""

    request_id: RequestId


class EntriesRequest(Struct, frozen=True, kw_only=True):
    """RequestEntries RPC, 0x3c: entries after `previous_index`; also sent again, to confirm a message of the reply.

    `count` None: all committed entries. 0: stop. `snapshot_offset` is the first requested byte of the snapshot, if the
    requested entries are compacted. None: from the beginning; in a confirmation, the offset is not checked.
    """

    request_id: RequestId
    ident: bytes
    previous_index: Index
    count: int | None = None
    snapshot_offset: int | None = None


class EntriesBatch(Struct, frozen=True, kw_only=True):
    """Entries up to `last_index`; `is_last` ends the reply. Without entries `last_index` is the end of the log."""

    request_id: RequestId
    is_last: bool
    last_index: Index
    entries: tuple[Entry, ...] = ()
    leader: str | None = None
    """Frame 3 is unused in this reply; a server of the npm package puts its leader there, or null if it leads."""


class SnapshotPiece(Struct, frozen=True, kw_only=True):
    """Bytes of the snapshot that covers all entries up to `last_index`, which has `last_term`."""

    request_id: RequestId
    last_index: Index
    last_term: Term
    offset: int
    total_bytes: int
    data: bytes


class EntriesRedirect(Struct, frozen=True):
    """The refusal of an EntriesRequest: this peer does not lead; `leader` does, if it is known."""

    request_id: RequestId
    leader: str | None


class LogInfoRequest(Struct, frozen=True):
    """RequestLogInfo RPC, 0x25: a query for the state of this peer's own log."""

    request_id: RequestId
    ident: bytes


class LogInfoReply(Struct, frozen=True, kw_only=True):
    """The reply to LogInfoRequest. A snapshot may replace entries up to `prune_index`: their ids are not fresh."""

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


class UrlRequest(Struct, frozen=True):
    """RequestBroadcastStateUrl RPC, 0x2a: a query for the PUB socket of the broadcast state machine."""

    request_id: RequestId
    ident: bytes


class UrlReply(Struct, frozen=True):
    """Reply to UrlRequest; None: query the leader."""

    request_id: RequestId
    url: str | None


class CustomRequest(Struct, frozen=True, kw_only=True):
    """ClientDispatch RPC of any other type (two bytes at least), for the service's state machine."""

    request_id: RequestId
    message_type: bytes
    ident: bytes
    frames: tuple[bytes, ...]


class CustomReply(Struct, frozen=True):
    """The reply of the service's state machine, with any frames."""

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


class StateBroadcast(Struct, frozen=True, kw_only=True):
    """Message of the leader's PUB socket after entries were applied, and twice a second without any.

    `entries` end at `last_applied`.
    """

    ident: bytes
    term: Term
    last_applied: Index
    entries: tuple[Entry, ...] = ()
