"""The document's seventeen messages (I2P proposal 150), one class each, and this project's extension messages.

Requests share one layout (a 45-byte header and zero or more log entries), replies another (26 bytes). The type byte and
the permitted log entries distinguish the messages of one layout:

    RequestVoteRequest     1 → 2    none                    candidate → server
    AppendEntriesRequest   3 → 4    applications, configurations    leader → follower
    ClientRequest          5 → 4    applications            client → any server
    AddServerRequest       6 → 7    one server              client → leader
    RemoveServerRequest    8 → 9    one server              follower → leader
    SyncLogRequest        10 → 11   one log pack            leader → new server
    JoinClusterRequest    12 → 13   one configuration       leader → new server
    LeaveClusterRequest   14 → 15   none                    leader → removed server
    InstallSnapshotRequest 16 → 17  one snapshot chunk      leader → follower
    PreVoteRequest        64 → 65   none                    an extension
    TimeoutNowRequest     66 → 67   none                    leader → its successor, an extension
    TransferVoteRequest   68 → 69   none                    the successor's RequestVoteRequest, an extension
    ReadIndexRequest      70 → 71   none                    client → any server, an extension

Codes 64 to 127 belong to this project's extensions. A message of an extension goes only to servers that support it.
"""

from collections.abc import Callable
from enum import IntEnum

from msgspec import Struct

from consensus.core.model import ComparedInPart, Entry
from consensus.protocols.garlic_farm.wire.values import (
    ClusterServer,
    Configuration,
    LogEntry,
    LogPack,
    SnapshotSyncRequest,
    WireEntry,
)


class MessageType(IntEnum):
    """A message's first byte."""

    REQUEST_VOTE_REQUEST = 1
    REQUEST_VOTE_RESPONSE = 2
    APPEND_ENTRIES_REQUEST = 3
    APPEND_ENTRIES_RESPONSE = 4
    CLIENT_REQUEST = 5
    ADD_SERVER_REQUEST = 6
    ADD_SERVER_RESPONSE = 7
    REMOVE_SERVER_REQUEST = 8
    REMOVE_SERVER_RESPONSE = 9
    SYNC_LOG_REQUEST = 10
    SYNC_LOG_RESPONSE = 11
    JOIN_CLUSTER_REQUEST = 12
    JOIN_CLUSTER_RESPONSE = 13
    LEAVE_CLUSTER_REQUEST = 14
    LEAVE_CLUSTER_RESPONSE = 15
    INSTALL_SNAPSHOT_REQUEST = 16
    INSTALL_SNAPSHOT_RESPONSE = 17
    PRE_VOTE_REQUEST = 64
    PRE_VOTE_RESPONSE = 65
    TIMEOUT_NOW_REQUEST = 66
    TIMEOUT_NOW_RESPONSE = 67
    TRANSFER_VOTE_REQUEST = 68
    TRANSFER_VOTE_RESPONSE = 69
    READ_INDEX_REQUEST = 70
    READ_INDEX_RESPONSE = 71


class Request(ComparedInPart, frozen=True, kw_only=True):
    """The fields of every request; fields that are 0 in a client's request have defaults.

    `last_log_*` is the position before the entries, or the last position of a candidate's log.
    """

    REPEATED = frozenset({"log"})

    source: int = 0
    destination: int = 0
    term: int = 0
    last_log_term: int = 0
    last_log_index: int = 0
    commit_index: int = 0
    entries: tuple[WireEntry, ...] = ()
    log: bytes = b""
    """The bytes of `entries`, if available and all of them are applications."""


class Reply(Struct, frozen=True, kw_only=True, gc=False):
    """The fields of every reply. `destination` names the leader in types 4, 7, 9 and 71, if known."""

    source: int
    destination: int
    term: int
    next_index: int
    accepted: bool


class RequestVoteRequest(Request, frozen=True):
    """A candidate's request for a vote."""


class AppendEntriesRequest(Request, frozen=True):
    """The leader's entries for a follower; without entries a heartbeat."""


class ClientRequest(Request, frozen=True):
    """A client's application entries; without any a query for the leader."""


class AddServerRequest(Request, frozen=True):
    """A request to add a server to the cluster, mostly from that server."""


class RemoveServerRequest(Request, frozen=True):
    """A server's request for the removal of a server; our servers accept only a request for its own removal."""


class SyncLogRequest(Request, frozen=True):
    """A run of the leader's log, for a new server."""


class JoinClusterRequest(Request, frozen=True):
    """A leader's invitation to a new server."""


class LeaveClusterRequest(Request, frozen=True):
    """A leader's announcement to a server of its removal."""


class InstallSnapshotRequest(Request, frozen=True):
    """A chunk of the leader's snapshot, for a follower."""


class PreVoteRequest(Request, frozen=True):
    """A query before a candidacy: would the recipient vote for the sender in `term`? No term or vote changes."""


class TimeoutNowRequest(Request, frozen=True):
    """A leader's order to the recipient to campaign immediately."""


class TransferVoteRequest(Request, frozen=True):
    """A RequestVoteRequest caused by the leader: voters may grant it although they are in contact with the leader."""


class ReadIndexRequest(Request, frozen=True):
    """A client's request for the read index: a state at this index includes every entry acknowledged before."""


class RequestVoteResponse(Reply, frozen=True):
    """The reply to RequestVoteRequest; `accepted` is the vote."""


class AppendEntriesResponse(Reply, frozen=True):
    """The reply to AppendEntriesRequest and ClientRequest."""


class AddServerResponse(Reply, frozen=True):
    """The reply to AddServerRequest."""


class RemoveServerResponse(Reply, frozen=True):
    """The reply to RemoveServerRequest."""


class SyncLogResponse(Reply, frozen=True):
    """The reply to SyncLogRequest."""


class JoinClusterResponse(Reply, frozen=True):
    """The reply to JoinClusterRequest."""


class LeaveClusterResponse(Reply, frozen=True):
    """The reply to LeaveClusterRequest."""


class InstallSnapshotResponse(Reply, frozen=True):
    """`next_index` is the byte offset of the next chunk, or 2^63 - 1 if the snapshot is installed or was not needed."""


class PreVoteResponse(Reply, frozen=True):
    """`accepted`: the candidate would get the vote."""


class TimeoutNowResponse(Reply, frozen=True):
    """`accepted`: the campaign began."""


class TransferVoteResponse(Reply, frozen=True):
    """The reply to TransferVoteRequest; `accepted` is the vote."""


class ReadIndexResponse(Reply, frozen=True):
    """`accepted` by the leader: `next_index` is one beyond the index. Otherwise `destination` is the server to try."""


Message = Request | Reply
MembershipRequest = AddServerRequest | RemoveServerRequest | SyncLogRequest | JoinClusterRequest | LeaveClusterRequest
"""The requests that exist only to add and remove servers.

A newcomer also gets AppendEntries and InstallSnapshot, as any follower does.
"""


class MessageKind(Struct, frozen=True):
    """A kind of request: its permitted entries and its reply."""

    request: type[Request]
    reply: type[Reply]
    entries_rule: str
    permits: Callable[[tuple[WireEntry, ...]], bool]


def _none(entries: tuple[WireEntry, ...]) -> bool:
    return not entries


def _applications(entries: tuple[WireEntry, ...]) -> bool:
    return all(isinstance(entry, Entry) for entry in entries)


def _of_a_log(entries: tuple[WireEntry, ...]) -> bool:
    return all(isinstance(entry, Entry) or isinstance(entry.value, Configuration) for entry in entries)


def _single(kind: type) -> Callable[[tuple[WireEntry, ...]], bool]:
    return lambda entries: len(entries) == 1 and isinstance(entries[0], LogEntry) and type(entries[0].value) is kind


def _single_server(*, endpoint: bool) -> Callable[[tuple[WireEntry, ...]], bool]:
    def permits(entries: tuple[WireEntry, ...]) -> bool:
        match entries:
            case (LogEntry(value=ClusterServer(endpoint=found)),):
                return (found is not None) is endpoint
            case _:
                return False

    return permits


_TYPE = MessageType
EXCHANGES: dict[MessageType, MessageKind] = {
    _TYPE.REQUEST_VOTE_REQUEST: MessageKind(RequestVoteRequest, RequestVoteResponse, "no log entry", _none),
    _TYPE.APPEND_ENTRIES_REQUEST: MessageKind(
        AppendEntriesRequest, AppendEntriesResponse, "application and configuration entries only", _of_a_log
    ),
    _TYPE.CLIENT_REQUEST: MessageKind(ClientRequest, AppendEntriesResponse, "application entries only", _applications),
    _TYPE.ADD_SERVER_REQUEST: MessageKind(
        AddServerRequest, AddServerResponse, "one cluster server with its endpoint", _single_server(endpoint=True)
    ),
    _TYPE.REMOVE_SERVER_REQUEST: MessageKind(
        RemoveServerRequest, RemoveServerResponse, "one cluster server, the id alone", _single_server(endpoint=False)
    ),
    _TYPE.SYNC_LOG_REQUEST: MessageKind(SyncLogRequest, SyncLogResponse, "one log pack", _single(LogPack)),
    _TYPE.JOIN_CLUSTER_REQUEST: MessageKind(
        JoinClusterRequest, JoinClusterResponse, "one configuration", _single(Configuration)
    ),
    _TYPE.LEAVE_CLUSTER_REQUEST: MessageKind(LeaveClusterRequest, LeaveClusterResponse, "no log entry", _none),
    _TYPE.INSTALL_SNAPSHOT_REQUEST: MessageKind(
        InstallSnapshotRequest, InstallSnapshotResponse, "one snapshot chunk", _single(SnapshotSyncRequest)
    ),
    _TYPE.PRE_VOTE_REQUEST: MessageKind(PreVoteRequest, PreVoteResponse, "no log entry", _none),
    _TYPE.TIMEOUT_NOW_REQUEST: MessageKind(TimeoutNowRequest, TimeoutNowResponse, "no log entry", _none),
    _TYPE.TRANSFER_VOTE_REQUEST: MessageKind(TransferVoteRequest, TransferVoteResponse, "no log entry", _none),
    _TYPE.READ_INDEX_REQUEST: MessageKind(ReadIndexRequest, ReadIndexResponse, "no log entry", _none),
}

REPLY_TYPES: dict[type[Reply], MessageType] = {
    exchange.reply: MessageType(message_type + 1)
    for message_type, exchange in EXCHANGES.items()
    if message_type is not _TYPE.CLIENT_REQUEST
}
"""Type of each reply: the next number after its request. A client gets the reply to AppendEntries."""
REQUEST_TYPES: dict[type[Request], MessageType] = {
    exchange.request: message_type for message_type, exchange in EXCHANGES.items()
}
ANSWERS: dict[type[Request], type[Reply]] = {exchange.request: exchange.reply for exchange in EXCHANGES.values()}
