"""Messages of ØMQ Raft and their frames.

    request   = id │ type │ ident │ …                          to a ROUTER socket (its identity frame taken off)
    reply     = id │ …                                         back to the DEALER socket
    broadcast = ident │ term │ last applied │ entry …          from a PUB socket

The specification defines the frames of each message and their types (`frames`). A reply does not name its request: the
reader supplies the type of the request. In the open points of the specification, the codec behaves like the package:

* Frames after the last one of a message are ignored, except for entries.
* RequestEntries may end after the previous index or after the count. A confirmation with the next offset in the
  snapshot has a count, which may be empty, before the offset. An empty offset is an error.
* AppendEntries gets a reply with one optional number, the conflict's index (`AppendEntriesResponse`).
* A redirect has a frame for the leader, null if it is unknown. Only the redirect of a ConfigUpdate may lack this frame.
* The reply to RequestConfig has the members; the specification allows a missing frame, so here the list may be empty.
* An index in MessagePack may be a float.

Ids of requests: between peers a uint of 1 to 3 bytes; 12 bytes for an update and a change of the members; 0 to 12 for
other requests. Replies repeat them unchanged. Decoders raise `ZmqRaftError` and nothing else; the endpoint drops valid
messages of another cluster. Encoders raise it for messages that would crash the package.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, get_args, overload

from msgspec import Struct

from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.entries import entry_frames, read_entries
from consensus.protocols.zmq_raft.wire.frames import (
    DEFAULT_LIMITS,
    MAX_MESSAGE_ID,
    MAX_UINT,
    MESSAGE_ID_BYTES,
    REQUEST_ID_BYTES,
    FrameLimits,
    JsonValue,
    ZmqRaftError,
    bool_frame,
    check_size,
    json_frame,
    read_bool,
    read_json,
    read_nuint,
    read_string,
    read_uint,
    string_frame,
    uint_frame,
    whole_number,
)
from consensus.protocols.zmq_raft.wire.peers import PeersError, check_peer_id, check_peers, peer_values, read_peers

REQUEST_VOTE: Final = b"?"
APPEND_ENTRIES: Final = b"+"
INSTALL_SNAPSHOT: Final = b"$"
REQUEST_CONFIG: Final = b"^"
REQUEST_UPDATE: Final = b"="
CONFIG_UPDATE: Final = b"&"
REQUEST_ENTRIES: Final = b"<"
REQUEST_LOG_INFO: Final = b"%"
REQUEST_URL: Final = b"*"
PEER_TYPES: Final = frozenset({REQUEST_VOTE, APPEND_ENTRIES, INSTALL_SNAPSHOT})
"""Types of messages between peers; all others come from clients."""

_HEAD: Final = 3
"""Frames before the contents of a request: id, type, ident."""
_NOT_LEADER, _LAST, _MORE, _SNAPSHOT = range(4)
_REDIRECT, _ACCEPTED, _REFUSED, _BUSY, _EXPIRED = range(5)
_TRUE, _FALSE = bool_frame(value=True), bool_frame(value=False)


class _Frame(Struct, frozen=True):
    """The form of a value in one frame."""

    write: Callable[[Any], bytes]
    read: Callable[[bytes, FrameLimits], Any]


class _Layout(Struct, frozen=True):
    """The frames of one message, in order: bytes are a constant frame, all others have the name of their value."""

    message: type[Any]
    name: str
    frames: tuple[bytes | tuple[str, _Frame], ...]
    optional: int = 0
    """Number of the last frames that a message lacks if their values are the defaults of its class."""
    has_entries: bool = False
    """True if the entries follow."""
    check: Callable[[Any], None] = lambda _message: None
    """Raises `ZmqRaftError` for values that contradict each other."""

    def encode(self, message: Any) -> list[bytes]:
        """Return the frames of a message; raises `ZmqRaftError`."""
        self.check(message)
        size = len(self.frames)
        while size > len(self.frames) - self.optional and getattr(message, self.frames[size - 1][0]) in (None, ()):  # type: ignore[call-overload]
            size -= 1
        found = [
            each if isinstance(each, bytes) else each[1].write(getattr(message, each[0])) for each in self.frames[:size]
        ]
        return [*found, *entry_frames(message.entries)] if self.has_entries else found

    def decode(self, frames: Sequence[bytes], limits: FrameLimits) -> Any:
        """Return the message in these frames; raises `ZmqRaftError`."""
        _check_count(frames, len(self.frames) - self.optional, self.name)
        values = {
            each[0]: each[1].read(frame, limits)
            for each, frame in zip(self.frames, frames, strict=False)
            if not isinstance(each, bytes)
        }
        if self.has_entries:
            values["entries"] = read_entries(frames[len(self.frames) :], limits)
        message = self.message(**values)
        self.check(message)
        return message


def encode_request(request: wire.Request) -> list[bytes]:
    """Return the frames of a request, without an identity; raises `ZmqRaftError` for an invalid request."""
    if not isinstance(request, wire.CustomRequest):
        return _LAYOUTS[type(request)].encode(request)
    _check_custom(request.message_type)
    return [_checked_id(request.request_id), request.message_type, request.ident, *request.frames]


def decode_request(frames: Sequence[bytes], limits: FrameLimits = DEFAULT_LIMITS) -> wire.Request:
    """Return the request in these frames, without an identity; raises `ZmqRaftError`."""
    check_size(frames, limits)
    _check_count(frames, _HEAD, "a request")
    message_type, ident = frames[1], _ident(frames[2], limits)
    layout = _REQUESTS.get(message_type)
    if layout is not None:
        request: wire.Request = layout.decode(frames, limits)
        return request
    _check_custom(message_type)
    return wire.CustomRequest(
        request_id=_checked_id(frames[0]), message_type=message_type, ident=ident, frames=tuple(frames[_HEAD:])
    )


def encode_reply(reply: wire.Reply) -> list[bytes]:
    """Return the frames of a reply, without an identity; raises `ZmqRaftError` for an invalid reply."""
    match reply:
        case wire.CustomReply(request_id, frames):
            return [_checked_id(request_id), *frames]
        case wire.ChangeRefused(request_id, name, message):
            return [_full_id(request_id), uint_frame(_REFUSED), json_frame({"name": name, "message": message})]
        case wire.SnapshotPiece(request_id=request_id, offset=offset, total_bytes=total_bytes, data=data):
            _check_chunk(reply)
            position = json_frame([_checked(each) for each in (offset, total_bytes, reply.last_term)])
            return [_checked_id(request_id), uint_frame(_SNAPSHOT), position, uint_frame(reply.last_index), data]
        case _:
            return _LAYOUTS[type(reply)].encode(reply)


@overload
def decode_reply(
    request_type: type[wire.PeerRequest], frames: Sequence[bytes], limits: FrameLimits = DEFAULT_LIMITS
) -> wire.PeerReply: ...
@overload
def decode_reply(
    request_type: type[wire.ClientRequest], frames: Sequence[bytes], limits: FrameLimits = DEFAULT_LIMITS
) -> wire.ClientReply: ...
def decode_reply(
    request_type: type[wire.Request], frames: Sequence[bytes], limits: FrameLimits = DEFAULT_LIMITS
) -> wire.Reply:
    """Return the reply in these frames to a request of this type; raises `ZmqRaftError`."""
    check_size(frames, limits)
    if not frames:
        raise ZmqRaftError("a reply without frames")
    return _REPLIES[request_type](frames, limits)


def encode_broadcast(broadcast: wire.StateBroadcast) -> list[bytes]:
    """Return the frames of a broadcast; raises `ZmqRaftError` for an invalid broadcast."""
    return _BROADCAST.encode(broadcast)


def decode_broadcast(frames: Sequence[bytes], limits: FrameLimits = DEFAULT_LIMITS) -> wire.StateBroadcast:
    """Return the broadcast in these frames; raises `ZmqRaftError`."""
    check_size(frames, limits)
    broadcast: wire.StateBroadcast = _BROADCAST.decode(frames, limits)
    return broadcast


def _check_custom(message_type: bytes) -> None:
    if len(message_type) < 2:  # noqa: PLR2004 - one byte is the protocol's
        raise ZmqRaftError(f"a message of the type {message_type.hex() or 'empty'}, which the protocol does not have")


def _decode_update_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.UpdateReply:
    _check_count(frames, 2, "the answer to RequestUpdate")
    has_more = len(frames) > 2  # noqa: PLR2004 - id and acceptance
    if read_bool(frames[1]):
        kind: type[wire.UpdateReply] = wire.UpdateCommitted if has_more else wire.UpdateAccepted
    else:
        kind = wire.UpdateRedirect if has_more else wire.UpdateExpired
    reply: wire.UpdateReply = _LAYOUTS[kind].decode(frames, limits)
    return reply


def _decode_change_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.ChangeReply:
    _check_count(frames, 2, "the answer to ConfigUpdate")
    status, rest = read_uint(frames[1], "status"), frames[2:3]
    if status == _REFUSED and rest:
        return _change_refused(_full_id(frames[0]), read_json(rest[0], "error", limits.max_json_bytes))
    kinds: dict[int, type[wire.ChangeReply]] = {
        _REDIRECT: wire.ChangeRedirect,
        _ACCEPTED: wire.ChangeCommitted if rest else wire.ChangeAccepted,
        _BUSY: wire.ChangeBusy,
        _EXPIRED: wire.ChangeExpired,
    }
    if status not in kinds:
        raise ZmqRaftError(f"ConfigUpdate is answered with the status {status}, or without the reason of it")
    # Only this redirect may lack the leader.
    whole = frames if rest or status != _REDIRECT else [*frames, json_frame(None)]
    reply: wire.ChangeReply = _LAYOUTS[kinds[status]].decode(whole, limits)
    return reply


def _change_refused(request_id: bytes, error: JsonValue) -> wire.ChangeRefused:
    if isinstance(error, dict):
        name, message = error.get("name"), error.get("message")
        if isinstance(name, str) and isinstance(message, str):
            return wire.ChangeRefused(request_id, name, message)
    raise ZmqRaftError("the error of a ConfigUpdate is not a name and a message")


def _decode_entries_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.EntriesReply:
    _check_count(frames, 3, "the answer to RequestEntries")
    status = read_uint(frames[1], "status")
    if status > _SNAPSHOT:
        raise ZmqRaftError(f"RequestEntries is answered with the status {status}")
    if status != _SNAPSHOT:
        kind = wire.EntriesRedirect if status == _NOT_LEADER else wire.EntriesBatch
        reply: wire.EntriesReply = _LAYOUTS[kind].decode(frames, limits)
        return reply
    _check_count(frames, 5, "the answer to RequestEntries")
    position = read_json(frames[2], "position in the snapshot", limits.max_json_bytes)
    if not isinstance(position, list) or len(position) != 3:  # noqa: PLR2004 - offset, size, term
        raise ZmqRaftError("the position in the snapshot is not [offset, size, term]")
    offset, total_bytes, last_term = [whole_number(each, "position in the snapshot") for each in position]
    piece = wire.SnapshotPiece(
        request_id=_checked_id(frames[0]),
        last_index=read_uint(frames[3], "last index"),
        last_term=last_term,
        offset=offset,
        total_bytes=total_bytes,
        data=frames[4],
    )
    _check_chunk(piece)
    return piece


def _decode_custom_reply(frames: Sequence[bytes], _limits: FrameLimits) -> wire.CustomReply:
    return wire.CustomReply(_checked_id(frames[0]), tuple(frames[1:]))


def _check_count(frames: Sequence[bytes], least: int, what: str) -> None:
    if len(frames) < least:
        raise ZmqRaftError(f"{what} has {len(frames)} frames; it has {least} at least")


def _check_ends_at(last_index: int, entries: int) -> None:
    if entries > last_index:
        raise ZmqRaftError(f"{entries} entries end at index {last_index}")


def _check_append(append: wire.AppendEntriesRpc) -> None:
    if append.previous_index + len(append.entries) > MAX_UINT:
        raise ZmqRaftError(f"{len(append.entries)} entries after index {append.previous_index} end beyond {MAX_UINT}")


def _check_chunk(chunk: wire.InstallSnapshotRpc | wire.SnapshotPiece) -> None:
    if chunk.offset + len(chunk.data) > chunk.total_bytes:
        raise ZmqRaftError(f"{len(chunk.data)} bytes from {chunk.offset} on of a snapshot of {chunk.total_bytes} bytes")


def _message_id_frame(message_id: int) -> bytes:
    if not 0 <= message_id <= MAX_MESSAGE_ID:
        raise ZmqRaftError(f"a message between peers has the id {message_id}; ids are 0 to {MAX_MESSAGE_ID}")
    return uint_frame(message_id)


def _ident(frame: bytes, limits: FrameLimits) -> bytes:
    if len(frame) > limits.max_ident_bytes:
        raise ZmqRaftError(f"an ident of {len(frame)} bytes; at most {limits.max_ident_bytes} are read")
    return frame


def _full_id(request_id: bytes) -> bytes:
    if len(request_id) != REQUEST_ID_BYTES:
        raise ZmqRaftError(f"a request id of {len(request_id)} bytes; an update needs {REQUEST_ID_BYTES}")
    return request_id


def _checked_id(request_id: bytes) -> bytes:
    if len(request_id) > REQUEST_ID_BYTES:
        raise ZmqRaftError(f"a request id of {len(request_id)} bytes; it has at most {REQUEST_ID_BYTES}")
    return request_id


def _peer_id(frame: bytes, limits: FrameLimits) -> str:
    peer_id = read_string(frame, "peer's id", limits.max_peer_id_bytes)
    check_peer_id(peer_id, limits)
    return peer_id


def _leader_json(leader: str | None) -> bytes:
    if leader is not None:
        check_peer_id(leader, DEFAULT_LIMITS)
    return json_frame(leader)


def _peers_json(peers: Sequence[wire.Peer]) -> bytes:
    check_peers(peers, DEFAULT_LIMITS)
    return json_frame(peer_values(peers))


def _leader(frame: bytes, limits: FrameLimits) -> str | None:
    leader = read_json(frame, "leader's id", limits.max_json_bytes)
    if leader is None:
        return None
    if not isinstance(leader, str):
        raise ZmqRaftError("the leader's id is not a string")
    check_peer_id(leader, limits)
    return leader


def _leader_or_none(frame: bytes, limits: FrameLimits) -> str | None:
    """Return the leader in a frame that the specification ignores: errors in it are ignored too."""
    try:
        return _leader(frame, limits)
    except ZmqRaftError:
        return None


def _checked(number: int) -> JsonValue:
    return whole_number(number, "number")


def _written_update(data: bytes) -> bytes:
    if not data:
        raise ZmqRaftError("an update must contain data")
    return data


def _read_update(frame: bytes, limits: FrameLimits) -> bytes:
    if not 1 <= len(frame) <= limits.max_entry_data_bytes:
        raise ZmqRaftError(f"an update of {len(frame)} bytes; it has 1 to {limits.max_entry_data_bytes}")
    return frame


def _written_members(peers: tuple[wire.Peer, ...] | wire.MalformedPeers) -> bytes:
    if isinstance(peers, wire.MalformedPeers):
        raise ZmqRaftError(f"impossible peers are not sent: {peers.message}")
    return json_frame(peer_values(peers))


def _read_members(frame: bytes, limits: FrameLimits) -> tuple[wire.Peer, ...] | wire.MalformedPeers:
    value = read_json(frame, "list of peers", limits.max_json_bytes)
    try:
        return read_peers(value, limits)
    except PeersError as error:
        return error.malformed


def _uint(what: str) -> _Frame:
    return _Frame(uint_frame, lambda frame, _: read_uint(frame, what))


def _name(what: str) -> _Frame:
    return _Frame(lambda name: string_frame(name, what, DEFAULT_LIMITS.max_peer_id_bytes), _peer_id)


_MESSAGE_ID: Final = _Frame(
    _message_id_frame, lambda frame, _: read_uint(frame, "message's id", max_bytes=MESSAGE_ID_BYTES)
)
_REQUEST_ID: Final = _Frame(_checked_id, lambda frame, _: _checked_id(frame))
_UPDATE_ID: Final = _Frame(_full_id, lambda frame, _: _full_id(frame))
_IDENT: Final = _Frame(bytes, _ident)
_DATA: Final = _Frame(bytes, lambda frame, _: frame)
_UPDATE: Final = _Frame(_written_update, _read_update)
_MEMBERS: Final = _Frame(_written_members, _read_members)
_PEERS: Final = _Frame(
    _peers_json, lambda frame, limits: read_peers(read_json(frame, "peers", limits.max_json_bytes), limits)
)
_BOOL: Final = _Frame(bool_frame, lambda frame, _: read_bool(frame))
_LEADER: Final = _Frame(_leader_json, _leader)
_UNUSED_LEADER: Final = _Frame(_leader_json, _leader_or_none)
_COUNT: Final = _Frame(
    lambda count: b"" if count is None else uint_frame(count), lambda frame, _: read_nuint(frame, "count")
)
_IS_LAST: Final = _Frame(
    lambda is_last: uint_frame(_LAST if is_last else _MORE), lambda frame, _: read_uint(frame, "status") == _LAST
)
_COMMITTED_INDEX: Final = _Frame(
    lambda index: json_frame(_checked(index)),
    lambda frame, limits: whole_number(read_json(frame, "index", limits.max_json_bytes), "index"),
)
_URL: Final = _Frame(
    lambda url: string_frame(url, "url", DEFAULT_LIMITS.max_url_bytes),
    lambda frame, limits: read_string(frame, "url", limits.max_url_bytes),
)
_LEADER_PLACE, _CANDIDATE_PLACE = _uint("position of a leader"), _uint("position of a candidate")
_SNAPSHOT_PLACE, _LOG_NUMBER = _uint("position of a snapshot"), _uint("number of a log")
_TO_PEER: Final = ("message_id", _MESSAGE_ID)
_TO_CLIENT: Final = ("request_id", _REQUEST_ID)
_OF_UPDATE: Final = ("request_id", _UPDATE_ID)
_OF_CLUSTER: Final = ("ident", _IDENT)
_NAMED_LEADER: Final = ("leader", _name("leader's id"))
_KNOWN_LEADER: Final = ("leader", _LEADER)
_TERM: Final = ("term", _uint("term"))
_ALL: Final = (
    _Layout(
        wire.RequestVoteRpc,
        "RequestVote",
        (
            *(_TO_PEER, REQUEST_VOTE, _OF_CLUSTER, ("candidate", _name("candidate's id"))),
            *(("term", _CANDIDATE_PLACE), ("last_index", _CANDIDATE_PLACE), ("last_term", _CANDIDATE_PLACE)),
        ),
    ),
    _Layout(
        wire.AppendEntriesRpc,
        "AppendEntries",
        (
            *(_TO_PEER, APPEND_ENTRIES, _OF_CLUSTER, _NAMED_LEADER, ("term", _LEADER_PLACE)),
            *(("previous_index", _LEADER_PLACE), ("previous_term", _LEADER_PLACE), ("commit", _LEADER_PLACE)),
        ),
        has_entries=True,
        check=_check_append,
    ),
    _Layout(
        wire.InstallSnapshotRpc,
        "InstallSnapshot",
        (
            *(_TO_PEER, INSTALL_SNAPSHOT, _OF_CLUSTER, _NAMED_LEADER, ("term", _SNAPSHOT_PLACE)),
            *(("last_index", _SNAPSHOT_PLACE), ("last_term", _SNAPSHOT_PLACE), ("offset", _SNAPSHOT_PLACE)),
            *(("total_bytes", _SNAPSHOT_PLACE), ("data", _DATA)),
        ),
        check=_check_chunk,
    ),
    _Layout(wire.ConfigRequest, "RequestConfig", (_TO_CLIENT, REQUEST_CONFIG, _OF_CLUSTER)),
    _Layout(wire.LogInfoRequest, "RequestLogInfo", (_TO_CLIENT, REQUEST_LOG_INFO, _OF_CLUSTER)),
    _Layout(wire.UrlRequest, "RequestBroadcastStateUrl", (_TO_CLIENT, REQUEST_URL, _OF_CLUSTER)),
    _Layout(wire.UpdateRequest, "RequestUpdate", (_OF_UPDATE, REQUEST_UPDATE, _OF_CLUSTER, ("data", _UPDATE))),
    _Layout(wire.ChangeRequest, "ConfigUpdate", (_OF_UPDATE, CONFIG_UPDATE, _OF_CLUSTER, ("peers", _MEMBERS))),
    _Layout(
        wire.EntriesRequest,
        "RequestEntries",
        (
            *(_TO_CLIENT, REQUEST_ENTRIES, _OF_CLUSTER, ("previous_index", _uint("previous index"))),
            *(("count", _COUNT), ("snapshot_offset", _uint("offset"))),
        ),
        optional=2,
    ),
    _Layout(wire.RequestVoteResponse, "the answer to RequestVote", (_TO_PEER, _TERM, ("granted", _BOOL))),
    _Layout(
        wire.AppendEntriesResponse,
        "the answer to AppendEntries",
        (_TO_PEER, _TERM, ("success", _BOOL), ("conflict_index", _uint("conflict's index"))),
        optional=1,
    ),
    _Layout(
        wire.InstallSnapshotResponse,
        "the answer to InstallSnapshot",
        (_TO_PEER, _TERM, ("wanted_offset", _uint("offset"))),
        optional=1,
    ),
    _Layout(
        wire.ConfigReply,
        "the answer to RequestConfig",
        (_TO_CLIENT, ("is_leader", _BOOL), _KNOWN_LEADER, ("peers", _PEERS)),
        optional=1,
    ),
    _Layout(
        wire.LogInfoReply,
        "the answer to RequestLogInfo",
        (
            *(_TO_CLIENT, ("is_leader", _BOOL), _KNOWN_LEADER, ("term", _LOG_NUMBER), ("first_index", _LOG_NUMBER)),
            *(("last_applied", _LOG_NUMBER), ("commit", _LOG_NUMBER), ("last_index", _LOG_NUMBER)),
            *(("snapshot_bytes", _LOG_NUMBER), ("prune_index", _LOG_NUMBER)),
        ),
    ),
    _Layout(wire.UrlReply, "the answer to RequestBroadcastStateUrl", (_TO_CLIENT, ("url", _URL)), optional=1),
    _Layout(wire.UpdateAccepted, "an acceptance", (_OF_UPDATE, _TRUE)),
    _Layout(wire.UpdateCommitted, "a commit", (_OF_UPDATE, _TRUE, ("index", _COMMITTED_INDEX))),
    _Layout(wire.UpdateRedirect, "a redirect", (_OF_UPDATE, _FALSE, _KNOWN_LEADER)),
    _Layout(wire.UpdateExpired, "an expiry", (_OF_UPDATE, _FALSE)),
    _Layout(wire.ChangeAccepted, "an acceptance", (_OF_UPDATE, uint_frame(_ACCEPTED))),
    _Layout(wire.ChangeCommitted, "a commit", (_OF_UPDATE, uint_frame(_ACCEPTED), ("index", _COMMITTED_INDEX))),
    _Layout(wire.ChangeRedirect, "a redirect", (_OF_UPDATE, uint_frame(_REDIRECT), _KNOWN_LEADER)),
    _Layout(wire.ChangeBusy, "a refusal", (_OF_UPDATE, uint_frame(_BUSY))),
    _Layout(wire.ChangeExpired, "an expiry", (_OF_UPDATE, uint_frame(_EXPIRED))),
    _Layout(wire.EntriesRedirect, "a redirect", (_TO_CLIENT, uint_frame(_NOT_LEADER), _KNOWN_LEADER)),
    _Layout(
        wire.EntriesBatch,
        "the answer to RequestEntries",
        (_TO_CLIENT, ("is_last", _IS_LAST), ("leader", _UNUSED_LEADER), ("last_index", _uint("last index"))),
        has_entries=True,
        check=lambda batch: _check_ends_at(batch.last_index, len(batch.entries)),
    ),
)
_LAYOUTS: Final = {layout.message: layout for layout in _ALL}
_REQUESTS: Final = {layout.frames[1]: layout for layout in _ALL if issubclass(layout.message, get_args(wire.Request))}
_REPLIES: Final[dict[type[wire.Request], Callable[[Sequence[bytes], FrameLimits], wire.Reply]]] = {
    wire.RequestVoteRpc: _LAYOUTS[wire.RequestVoteResponse].decode,
    wire.AppendEntriesRpc: _LAYOUTS[wire.AppendEntriesResponse].decode,
    wire.InstallSnapshotRpc: _LAYOUTS[wire.InstallSnapshotResponse].decode,
    wire.ConfigRequest: _LAYOUTS[wire.ConfigReply].decode,
    wire.UpdateRequest: _decode_update_reply,
    wire.ChangeRequest: _decode_change_reply,
    wire.EntriesRequest: _decode_entries_reply,
    wire.LogInfoRequest: _LAYOUTS[wire.LogInfoReply].decode,
    wire.UrlRequest: _LAYOUTS[wire.UrlReply].decode,
    wire.CustomRequest: _decode_custom_reply,
}
_BROADCAST: Final = _Layout(
    wire.StateBroadcast,
    "a broadcast",
    (_OF_CLUSTER, _TERM, ("last_applied", _uint("index"))),
    has_entries=True,
    check=lambda broadcast: _check_ends_at(broadcast.last_applied, len(broadcast.entries)),
)
