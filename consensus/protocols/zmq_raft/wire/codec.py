"""Messages of ØMQ Raft and their frames.

    request   = id │ type │ ident │ …                          to a ROUTER socket (its identity frame taken off)
    reply     = id │ …                                         back to the DEALER socket
    broadcast = ident │ term │ last applied │ entry …          from a PUB socket

The specification defines the frames of each message and their types (`frames`). A reply does not name its request: the
reader supplies the type of the request. In the specification's open points, the codec acts like the npm package:

* Frames after the last one of a message are ignored, except for entries.
* RequestEntries may end after the previous index or after the count. A confirmation with the next offset in the
  snapshot has a count, which may be empty, before the offset. An empty offset is an error.
* AppendEntries gets a reply with one optional number, the conflict's index (`AppendEntriesResponse`).
* A redirect has a frame for the leader, null if it is unknown. Only the redirect of a ConfigUpdate may lack this frame.
* The reply to RequestConfig has the members; the specification allows a missing frame, so here the list may be empty.
* An index in MessagePack may be a float.

Request ids between peers are a uint of 1 to 3 bytes. A client's id has 12 bytes for an update or a change of the
members, and 0 to 12 for other requests. Replies repeat them unchanged. Decoders raise `ZmqRaftError` and nothing else;
the endpoint drops valid messages of another cluster. Encoders raise it for messages that would crash the package.
"""

from collections.abc import Callable, Sequence
from typing import Final, assert_never, overload

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
_NO_COUNT: Final = b""


def encode_request(  # noqa: C901 - one case per request
    request: wire.Request,
) -> list[bytes]:
    """Return the frames of a request, without an identity; raises `ZmqRaftError` for an invalid request."""
    match request:
        case wire.AppendEntriesRpc() | wire.RequestVoteRpc() | wire.InstallSnapshotRpc():
            return _encode_peer_request(request)
        case wire.UpdateRequest(request_id, ident, data):
            if not data:
                raise ZmqRaftError("an update must contain data")
            return [_full_id(request_id), REQUEST_UPDATE, ident, data]
        case wire.EntriesRequest(
            request_id=request_id, ident=ident, previous_index=previous_index, count=count, snapshot_offset=offset
        ):
            frames = [_checked_id(request_id), REQUEST_ENTRIES, ident, uint_frame(previous_index)]
            if count is not None or offset is not None:
                frames.append(_NO_COUNT if count is None else uint_frame(count))
            if offset is not None:
                frames.append(uint_frame(offset))
            return frames
        case wire.ChangeRequest(request_id, ident, peers):
            if isinstance(peers, wire.MalformedPeers):
                raise ZmqRaftError(f"impossible peers are not sent: {peers.message}")
            return [_full_id(request_id), CONFIG_UPDATE, ident, json_frame(peer_values(peers))]
        case wire.ConfigRequest() | wire.LogInfoRequest() | wire.UrlRequest():
            return [_checked_id(request.request_id), _QUERY_CODES[type(request)], request.ident]
        case wire.CustomRequest(
            request_id=request_id, message_type=message_type, ident=ident, frames=frames_of_its_own
        ):
            if len(message_type) < 2:  # noqa: PLR2004 - one byte is the protocol's
                raise ZmqRaftError("a message type of a service's own has two bytes at least")
            return [_checked_id(request_id), message_type, ident, *frames_of_its_own]
        case _:
            assert_never(request)


def decode_request(frames: Sequence[bytes], limits: FrameLimits = DEFAULT_LIMITS) -> wire.Request:
    """Return the request in these frames, without an identity; raises `ZmqRaftError`."""
    check_size(frames, limits)
    if len(frames) < _HEAD:
        raise ZmqRaftError(f"a request of {len(frames)} frames; each has an id, a type and an ident")
    message_type, ident = frames[1], _ident(frames[2], limits)
    decode = _REQUESTS.get(message_type)
    if decode is not None:
        return decode(frames, limits)
    if len(message_type) < 2:  # noqa: PLR2004 - one byte is the protocol's
        raise ZmqRaftError(f"a message of the type {message_type.hex() or 'empty'}, which the protocol does not have")
    return wire.CustomRequest(
        request_id=_checked_id(frames[0]), message_type=message_type, ident=ident, frames=tuple(frames[_HEAD:])
    )


def encode_reply(reply: wire.Reply) -> list[bytes]:  # noqa: C901, PLR0911, PLR0912 - one case per reply
    """Return the frames of a reply, without an identity; raises `ZmqRaftError` for an invalid reply."""
    match reply:
        case wire.AppendEntriesResponse(
            message_id=message_id, term=term, success=success, conflict_index=conflict_index
        ):
            frames = [_message_id_frame(message_id), uint_frame(term), bool_frame(success)]
            return frames if conflict_index is None else [*frames, uint_frame(conflict_index)]
        case wire.RequestVoteResponse(message_id, term, granted):
            return [_message_id_frame(message_id), uint_frame(term), bool_frame(granted)]
        case wire.InstallSnapshotResponse(message_id, term, wanted_offset):
            frames = [_message_id_frame(message_id), uint_frame(term)]
            return frames if wanted_offset is None else [*frames, uint_frame(wanted_offset)]
        case wire.UpdateAccepted(request_id):
            return [_full_id(request_id), _TRUE]
        case wire.UpdateCommitted(request_id, index):
            return [_full_id(request_id), _TRUE, _number_json(index)]
        case wire.UpdateRedirect(request_id, leader):
            return [_full_id(request_id), _FALSE, _leader_json(leader)]
        case wire.UpdateExpired(request_id):
            return [_full_id(request_id), _FALSE]
        case wire.ConfigReply(request_id=request_id, is_leader=is_leader, leader=leader, peers=peers):
            frames = [_checked_id(request_id), bool_frame(is_leader), _leader_json(leader)]
            return [*frames, _peers_json(peers)] if peers else frames
        case wire.UrlReply(request_id, url):
            limit = DEFAULT_LIMITS.max_url_bytes
            return [_checked_id(request_id), *([] if url is None else [string_frame(url, "url", limit)])]
        case wire.CustomReply(request_id, frames_of_its_own):
            return [_checked_id(request_id), *frames_of_its_own]
        case wire.LogInfoReply():
            return _encode_log_info(reply)
        case wire.EntriesBatch() | wire.SnapshotPiece() | wire.EntriesRedirect():
            return _encode_entries_reply(reply)
        case _:
            return _encode_change_reply(reply)


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
    numbers = [uint_frame(broadcast.term), uint_frame(broadcast.last_applied)]
    return [broadcast.ident, *numbers, *entry_frames(broadcast.entries)]


def decode_broadcast(frames: Sequence[bytes], limits: FrameLimits = DEFAULT_LIMITS) -> wire.StateBroadcast:
    """Return the broadcast in these frames; raises `ZmqRaftError`."""
    check_size(frames, limits)
    _check_count(frames, 3, "a broadcast")
    term, last_applied = read_uint(frames[1], "term"), read_uint(frames[2], "index")
    _check_ends_at(last_applied, len(frames) - 3)
    return wire.StateBroadcast(
        ident=_ident(frames[0], limits), term=term, last_applied=last_applied, entries=read_entries(frames[3:], limits)
    )


def _encode_peer_request(request: wire.PeerRequest) -> list[bytes]:
    limit = DEFAULT_LIMITS.max_peer_id_bytes
    message_id = _message_id_frame(request.message_id)
    match request:
        case wire.AppendEntriesRpc():
            return [
                message_id,
                APPEND_ENTRIES,
                request.ident,
                string_frame(request.leader, "leader's id", limit),
                uint_frame(request.term),
                uint_frame(request.previous_index),
                uint_frame(request.previous_term),
                uint_frame(request.commit),
                *entry_frames(request.entries),
            ]
        case wire.RequestVoteRpc():
            return [
                message_id,
                REQUEST_VOTE,
                request.ident,
                string_frame(request.candidate, "candidate's id", limit),
                uint_frame(request.term),
                uint_frame(request.last_index),
                uint_frame(request.last_term),
            ]
        case wire.InstallSnapshotRpc():
            _check_chunk(request.offset, len(request.data), request.total_bytes)
            return [
                message_id,
                INSTALL_SNAPSHOT,
                request.ident,
                string_frame(request.leader, "leader's id", limit),
                uint_frame(request.term),
                uint_frame(request.last_index),
                uint_frame(request.last_term),
                uint_frame(request.offset),
                uint_frame(request.total_bytes),
                request.data,
            ]
        case _:
            assert_never(request)


def _decode_append(frames: Sequence[bytes], limits: FrameLimits) -> wire.AppendEntriesRpc:
    _check_count(frames, 8, "AppendEntries")
    message_id, leader = _message_id(frames[0]), _peer_id(frames[3], limits)
    term, previous_index, previous_term, commit = [read_uint(frame, "position of a leader") for frame in frames[4:8]]
    if previous_index + len(frames) - 8 > MAX_UINT:
        raise ZmqRaftError(f"{len(frames) - 8} entries after index {previous_index} end beyond {MAX_UINT}")
    entries = read_entries(frames[8:], limits)
    return wire.AppendEntriesRpc(
        message_id=message_id,
        ident=frames[2],
        leader=leader,
        term=term,
        previous_index=previous_index,
        previous_term=previous_term,
        commit=commit,
        entries=entries,
    )


def _decode_vote(frames: Sequence[bytes], limits: FrameLimits) -> wire.RequestVoteRpc:
    _check_count(frames, 7, "RequestVote")
    term, last_index, last_term = [read_uint(frame, "position of a candidate") for frame in frames[4:7]]
    candidate = _peer_id(frames[3], limits)
    return wire.RequestVoteRpc(
        message_id=_message_id(frames[0]),
        ident=frames[2],
        candidate=candidate,
        term=term,
        last_index=last_index,
        last_term=last_term,
    )


def _decode_install(frames: Sequence[bytes], limits: FrameLimits) -> wire.InstallSnapshotRpc:
    _check_count(frames, 10, "InstallSnapshot")
    term, last_index, last_term, offset, total_bytes = [
        read_uint(frame, "position of a snapshot") for frame in frames[4:9]
    ]
    data = frames[9]
    _check_chunk(offset, len(data), total_bytes)
    leader, message_id = _peer_id(frames[3], limits), _message_id(frames[0])
    return wire.InstallSnapshotRpc(
        message_id=message_id,
        ident=frames[2],
        leader=leader,
        term=term,
        last_index=last_index,
        last_term=last_term,
        offset=offset,
        total_bytes=total_bytes,
        data=data,
    )


def _decode_update(frames: Sequence[bytes], limits: FrameLimits) -> wire.UpdateRequest:
    _check_count(frames, 4, "RequestUpdate")
    if not 1 <= len(frames[3]) <= limits.max_entry_data_bytes:
        raise ZmqRaftError(f"an update of {len(frames[3])} bytes; it has 1 to {limits.max_entry_data_bytes}")
    return wire.UpdateRequest(_full_id(frames[0]), frames[2], frames[3])


def _decode_change(frames: Sequence[bytes], limits: FrameLimits) -> wire.ChangeRequest:
    _check_count(frames, 4, "ConfigUpdate")
    request_id = _full_id(frames[0])
    value = read_json(frames[3], "list of peers", limits.max_json_bytes)
    peers: tuple[wire.Peer, ...] | wire.MalformedPeers
    try:
        peers = read_peers(value, limits)
    except PeersError as error:
        peers = error.malformed
    return wire.ChangeRequest(request_id, frames[2], peers)


def _decode_entries_request(frames: Sequence[bytes], _limits: FrameLimits) -> wire.EntriesRequest:
    _check_count(frames, 4, "RequestEntries")
    return wire.EntriesRequest(
        request_id=_checked_id(frames[0]),
        ident=frames[2],
        previous_index=read_uint(frames[3], "previous index"),
        count=read_nuint(frames[4], "count") if len(frames) > _HEAD + 1 else None,
        snapshot_offset=_optional_uint(frames, 5, "offset"),
    )


def _decode_query(frames: Sequence[bytes], _limits: FrameLimits) -> wire.Request:
    return _QUERIES[frames[1]](_checked_id(frames[0]), frames[2])


_QUERIES: Final[dict[bytes, type[wire.ConfigRequest | wire.LogInfoRequest | wire.UrlRequest]]] = {
    REQUEST_CONFIG: wire.ConfigRequest,
    REQUEST_LOG_INFO: wire.LogInfoRequest,
    REQUEST_URL: wire.UrlRequest,
}
_QUERY_CODES: Final = {query: code for code, query in _QUERIES.items()}


_REQUESTS: Final[dict[bytes, Callable[[Sequence[bytes], FrameLimits], wire.Request]]] = {
    REQUEST_VOTE: _decode_vote,
    APPEND_ENTRIES: _decode_append,
    INSTALL_SNAPSHOT: _decode_install,
    REQUEST_UPDATE: _decode_update,
    CONFIG_UPDATE: _decode_change,
    REQUEST_ENTRIES: _decode_entries_request,
    **dict.fromkeys(_QUERIES, _decode_query),
}


def _encode_change_reply(reply: wire.ChangeReply) -> list[bytes]:
    request_id = _full_id(reply.request_id)
    match reply:
        case wire.ChangeAccepted():
            return [request_id, uint_frame(_ACCEPTED)]
        case wire.ChangeCommitted():
            return [request_id, uint_frame(_ACCEPTED), _number_json(reply.index)]
        case wire.ChangeRedirect():
            return [request_id, uint_frame(_REDIRECT), _leader_json(reply.leader)]
        case wire.ChangeRefused():
            return [request_id, uint_frame(_REFUSED), json_frame({"name": reply.name, "message": reply.message})]
        case wire.ChangeBusy():
            return [request_id, uint_frame(_BUSY)]
        case wire.ChangeExpired():
            return [request_id, uint_frame(_EXPIRED)]
        case _:
            assert_never(reply)


def _encode_entries_reply(reply: wire.EntriesReply) -> list[bytes]:
    request_id = _checked_id(reply.request_id)
    match reply:
        case wire.EntriesBatch(is_last=is_last, last_index=last_index, entries=entries, leader=leader):
            _check_ends_at(last_index, len(entries))
            status = uint_frame(_LAST if is_last else _MORE)
            return [request_id, status, _leader_json(leader), uint_frame(last_index), *entry_frames(entries)]
        case wire.SnapshotPiece(
            last_index=last_index, last_term=last_term, offset=offset, total_bytes=total_bytes, data=data
        ):
            _check_chunk(offset, len(data), total_bytes)
            position = json_frame([_checked(offset), _checked(total_bytes), _checked(last_term)])
            return [request_id, uint_frame(_SNAPSHOT), position, uint_frame(last_index), data]
        case wire.EntriesRedirect(_, leader):
            return [request_id, uint_frame(_NOT_LEADER), _leader_json(leader)]
        case _:
            assert_never(reply)


def _encode_log_info(reply: wire.LogInfoReply) -> list[bytes]:
    return [
        _checked_id(reply.request_id),
        bool_frame(reply.is_leader),
        _leader_json(reply.leader),
        uint_frame(reply.term),
        uint_frame(reply.first_index),
        uint_frame(reply.last_applied),
        uint_frame(reply.commit),
        uint_frame(reply.last_index),
        uint_frame(reply.snapshot_bytes),
        uint_frame(reply.prune_index),
    ]


def _decode_append_reply(frames: Sequence[bytes], _limits: FrameLimits) -> wire.AppendEntriesResponse:
    _check_count(frames, 3, "the answer to AppendEntries")
    conflict_index = _optional_uint(frames, 3, "conflict's index")
    term, success = read_uint(frames[1], "term"), read_bool(frames[2])
    return wire.AppendEntriesResponse(
        message_id=_message_id(frames[0]), term=term, success=success, conflict_index=conflict_index
    )


def _decode_vote_reply(frames: Sequence[bytes], _limits: FrameLimits) -> wire.RequestVoteResponse:
    _check_count(frames, 3, "the answer to RequestVote")
    return wire.RequestVoteResponse(_message_id(frames[0]), read_uint(frames[1], "term"), read_bool(frames[2]))


def _decode_install_reply(frames: Sequence[bytes], _limits: FrameLimits) -> wire.InstallSnapshotResponse:
    _check_count(frames, 2, "the answer to InstallSnapshot")
    next_offset = _optional_uint(frames, 2, "offset")
    return wire.InstallSnapshotResponse(_message_id(frames[0]), read_uint(frames[1], "term"), next_offset)


def _decode_config_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.ConfigReply:
    _check_count(frames, 3, "the answer to RequestConfig")
    lists = [read_peers(read_json(frame, "peers", limits.max_json_bytes), limits) for frame in frames[3:4]]
    leader = _leader(frames[2], limits)
    return wire.ConfigReply(
        request_id=_checked_id(frames[0]),
        is_leader=read_bool(frames[1]),
        leader=leader,
        peers=lists[0] if lists else (),
    )


def _decode_update_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.UpdateReply:
    _check_count(frames, 2, "the answer to RequestUpdate")
    request_id, rest = _full_id(frames[0]), frames[2:3]
    if read_bool(frames[1]):
        return wire.UpdateCommitted(request_id, _index(rest[0], limits)) if rest else wire.UpdateAccepted(request_id)
    return wire.UpdateRedirect(request_id, _leader(rest[0], limits)) if rest else wire.UpdateExpired(request_id)


def _decode_change_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.ChangeReply:
    _check_count(frames, 2, "the answer to ConfigUpdate")
    request_id, status, rest = _full_id(frames[0]), read_uint(frames[1], "status"), frames[2:3]
    if status == _REDIRECT:
        return wire.ChangeRedirect(request_id, _leader(rest[0], limits) if rest else None)
    if status == _ACCEPTED:
        return wire.ChangeCommitted(request_id, _index(rest[0], limits)) if rest else wire.ChangeAccepted(request_id)
    if status == _REFUSED and rest:
        return _change_refused(request_id, read_json(rest[0], "error", limits.max_json_bytes))
    if status == _BUSY:
        return wire.ChangeBusy(request_id)
    if status == _EXPIRED:
        return wire.ChangeExpired(request_id)
    raise ZmqRaftError(f"ConfigUpdate is answered with the status {status}, or without the reason of it")


def _change_refused(request_id: bytes, error: JsonValue) -> wire.ChangeRefused:
    if isinstance(error, dict):
        name, message = error.get("name"), error.get("message")
        if isinstance(name, str) and isinstance(message, str):
            return wire.ChangeRefused(request_id, name, message)
    raise ZmqRaftError("the error of a ConfigUpdate is not a name and a message")


def _decode_entries_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.EntriesReply:
    _check_count(frames, 3, "the answer to RequestEntries")
    request_id, status = _checked_id(frames[0]), read_uint(frames[1], "status")
    if status == _NOT_LEADER:
        return wire.EntriesRedirect(request_id, _leader(frames[2], limits))
    if status > _SNAPSHOT:
        raise ZmqRaftError(f"RequestEntries is answered with the status {status}")
    _check_count(frames, 5 if status == _SNAPSHOT else 4, "the answer to RequestEntries")
    last_index = read_uint(frames[3], "last index")
    if status == _SNAPSHOT:
        position = read_json(frames[2], "position in the snapshot", limits.max_json_bytes)
        if not isinstance(position, list) or len(position) != 3:  # noqa: PLR2004 - offset, size, term
            raise ZmqRaftError("the position in the snapshot is not [offset, size, term]")
        offset, total_bytes, last_term = [whole_number(each, "position in the snapshot") for each in position]
        _check_chunk(offset, len(frames[4]), total_bytes)
        return wire.SnapshotPiece(
            request_id=request_id,
            last_index=last_index,
            last_term=last_term,
            offset=offset,
            total_bytes=total_bytes,
            data=frames[4],
        )
    _check_ends_at(last_index, len(frames) - 4)
    leader = _leader_or_none(frames[2], limits)
    return wire.EntriesBatch(
        request_id=request_id,
        is_last=status == _LAST,
        last_index=last_index,
        entries=read_entries(frames[4:], limits),
        leader=leader,
    )


def _decode_log_info_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.LogInfoReply:
    _check_count(frames, 10, "the answer to RequestLogInfo")
    term, first, applied, commit, last, size, prune = [read_uint(frame, "number of a log") for frame in frames[3:10]]
    return wire.LogInfoReply(
        request_id=_checked_id(frames[0]),
        is_leader=read_bool(frames[1]),
        leader=_leader(frames[2], limits),
        term=term,
        first_index=first,
        last_applied=applied,
        commit=commit,
        last_index=last,
        snapshot_bytes=size,
        prune_index=prune,
    )


def _decode_url_reply(frames: Sequence[bytes], limits: FrameLimits) -> wire.UrlReply:
    url = read_string(frames[1], "url", limits.max_url_bytes) if len(frames) > 1 else None
    return wire.UrlReply(_checked_id(frames[0]), url)


def _decode_custom_reply(frames: Sequence[bytes], _limits: FrameLimits) -> wire.CustomReply:
    return wire.CustomReply(_checked_id(frames[0]), tuple(frames[1:]))


_REPLIES: Final[dict[type[wire.Request], Callable[[Sequence[bytes], FrameLimits], wire.Reply]]] = {
    wire.RequestVoteRpc: _decode_vote_reply,
    wire.AppendEntriesRpc: _decode_append_reply,
    wire.InstallSnapshotRpc: _decode_install_reply,
    wire.ConfigRequest: _decode_config_reply,
    wire.UpdateRequest: _decode_update_reply,
    wire.ChangeRequest: _decode_change_reply,
    wire.EntriesRequest: _decode_entries_reply,
    wire.LogInfoRequest: _decode_log_info_reply,
    wire.UrlRequest: _decode_url_reply,
    wire.CustomRequest: _decode_custom_reply,
}


def _check_count(frames: Sequence[bytes], least: int, what: str) -> None:
    if len(frames) < least:
        raise ZmqRaftError(f"{what} has {len(frames)} frames; it has {least} at least")


def _check_ends_at(last_index: int, entries: int) -> None:
    if entries > last_index:
        raise ZmqRaftError(f"{entries} entries end at index {last_index}")


def _check_chunk(offset: int, size: int, total_bytes: int) -> None:
    if offset + size > total_bytes:
        raise ZmqRaftError(f"{size} bytes from {offset} on of a snapshot of {total_bytes} bytes")


def _message_id_frame(message_id: int) -> bytes:
    if not 0 <= message_id <= MAX_MESSAGE_ID:
        raise ZmqRaftError(f"a message between peers has the id {message_id}; ids are 0 to {MAX_MESSAGE_ID}")
    return uint_frame(message_id)


def _message_id(frame: bytes) -> int:
    return read_uint(frame, "message's id", max_bytes=MESSAGE_ID_BYTES)


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


def _number_json(number: int) -> bytes:
    return json_frame(_checked(number))


def _index(frame: bytes, limits: FrameLimits) -> int:
    return whole_number(read_json(frame, "index", limits.max_json_bytes), "index")


def _optional_uint(frames: Sequence[bytes], place: int, what: str) -> int | None:
    return read_uint(frames[place], what) if len(frames) > place else None
