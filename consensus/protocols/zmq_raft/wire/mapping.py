"""The core's messages as messages of ØMQ Raft's peers, and back.

    core                              wire
    RequestVote, VoteReply            RequestVote and its response
    AppendEntries                     AppendEntries, without `encoded`
    AppendReply, success              success, if it covers all sent entries; otherwise no response
    AppendReply, failure              failure; the hint is the conflict's index, if it lies below the sent entries
    InstallSnapshot                   InstallSnapshot with the whole size, and without the configuration
    SnapshotReply, accepted           response without an offset; to the last chunk only if the snapshot is installed
    SnapshotReply, refused            response with the wanted offset; in the same term, none if it is the chunk's
    reply below the request's term    no response: the follower refused the request, so the leader must not process it
    correlation                       message id, chosen by the transport

The reason for omitted replies is in docs/explanation/other-protocols.md, 'ØMQ Raft'.

*A missing conflict index.* The npm package sends an index only if the follower's log ends before `previous`. Otherwise
the entry at `previous` has another term, and the leader tries one entry earlier.

The transport adds the snapshot's size when sending, and the configuration at the snapshot's last entry when receiving.
The protocol lacks messages for fetches, pre-votes and TimeoutNow; `ZMQ_RAFT` in `core.features` excludes them.
"""

from typing import assert_never

from consensus.core import messages as core
from consensus.core.model import Configuration, LogId, ServerId
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError


def peer_id(server_id: ServerId) -> str:
    """Return the core's id of a server in the protocol's form; raises `ZmqRaftError` for an id of another protocol."""
    if not isinstance(server_id, str):
        raise ZmqRaftError(f"{server_id!r} is not a string: it is the id of a server in another protocol")
    return server_id


def request_to_wire(
    request: core.Request, message_id: wire.MessageId, ident: bytes, snapshot_bytes: int = 0
) -> wire.PeerRequest:
    """Return the wire form of a request to a peer; `snapshot_bytes` is the size of a chunk's whole snapshot.

    Raises `ZmqRaftError` for a request without a message in the protocol, and for an id of another protocol. It also
    raises this error if a chunk reaches the snapshot's end and is not the last.
    """
    match request:
        case core.AppendEntries(term=term, leader=leader, previous=previous, entries=entries, commit=commit):
            return wire.AppendEntriesRpc(
                message_id=message_id,
                ident=ident,
                leader=peer_id(leader),
                term=term,
                previous_index=previous.index,
                previous_term=previous.term,
                commit=commit,
                entries=entries,
            )
        case core.RequestVote(term=term, candidate=candidate, last=last, pre_vote=False, transfer=False):
            return wire.RequestVoteRpc(
                message_id=message_id,
                ident=ident,
                candidate=peer_id(candidate),
                term=term,
                last_index=last.index,
                last_term=last.term,
            )
        case core.InstallSnapshot(term=term, leader=leader, last=last, offset=offset, data=data):
            total_bytes = offset + len(data) if request.done else snapshot_bytes
            if not request.done and offset + len(data) >= total_bytes:
                end = offset + len(data)
                raise ZmqRaftError(f"the chunk ends at {end} of {total_bytes} bytes, but is not the last")
            return wire.InstallSnapshotRpc(
                message_id=message_id,
                ident=ident,
                leader=peer_id(leader),
                term=term,
                last_index=last.index,
                last_term=last.term,
                offset=offset,
                total_bytes=total_bytes,
                data=data,
            )
        case _:
            raise ZmqRaftError(f"the protocol does not have a message for {type(request).__name__}")


def request_from_wire(
    request: wire.PeerRequest, correlation: int, snapshot_configuration: Configuration
) -> core.Request:
    """Return the core form of a peer's request; `snapshot_configuration` is in effect at a snapshot's last entry."""
    match request:
        case wire.AppendEntriesRpc():
            previous = LogId(request.previous_index, request.previous_term)
            return core.AppendEntries(
                term=request.term,
                leader=request.leader,
                previous=previous,
                entries=request.entries,
                commit=request.commit,
                correlation=correlation,
            )
        case wire.RequestVoteRpc():
            last = LogId(request.last_index, request.last_term)
            return core.RequestVote(term=request.term, candidate=request.candidate, last=last, correlation=correlation)
        case wire.InstallSnapshotRpc():
            return core.InstallSnapshot(
                term=request.term,
                leader=request.leader,
                last=LogId(request.last_index, request.last_term),
                configuration=snapshot_configuration,
                offset=request.offset,
                data=request.data,
                done=is_last_chunk(request),
                correlation=correlation,
            )
        case _:
            assert_never(request)


def reply_to_wire(reply: core.Reply, request: wire.PeerRequest) -> wire.PeerReply | None:
    """Return the reply to `request`; None if the protocol omits it.

    Raises `ZmqRaftError` for a reply that does not belong to this request.
    """
    match reply, request:
        case core.VoteReply(term=term, granted=granted), wire.RequestVoteRpc(message_id=message_id):
            return wire.RequestVoteResponse(message_id, term, granted)
        case core.AppendReply(), wire.AppendEntriesRpc():
            return _append_reply_to_wire(reply, request)
        case core.SnapshotReply(), wire.InstallSnapshotRpc():
            return _snapshot_reply_to_wire(reply, request)
        case _:
            raise _no_answer(reply, request)


def reply_from_wire(reply: wire.PeerReply, request: core.Request) -> core.Reply:
    """Return the core form of a peer's reply to `request`; raises `ZmqRaftError` for another kind of request."""
    match reply, request:
        case wire.RequestVoteResponse(_, term, granted), core.RequestVote():
            return core.VoteReply(term=term, granted=granted, correlation=request.correlation)
        case wire.AppendEntriesResponse(term=term, success=success, conflict_index=conflict_index), core.AppendEntries(
            previous=previous
        ):
            if success:
                next_index = previous.index + len(request.entries) + 1
            else:
                next_index = max(1, previous.index if conflict_index is None else conflict_index)
            return core.AppendReply(term=term, success=success, next_index=next_index, correlation=request.correlation)
        case wire.InstallSnapshotResponse(_, term, wanted_offset), core.InstallSnapshot(offset=offset, data=data):
            accepted = wanted_offset is None
            next_offset = offset + len(data) if wanted_offset is None else wanted_offset
            return core.SnapshotReply(
                term=term,
                accepted=accepted,
                next_offset=next_offset,
                installed=accepted and request.done,
                correlation=request.correlation,
            )
        case _:
            raise _no_answer(reply, request)


def is_last_chunk(request: wire.InstallSnapshotRpc) -> bool:
    """Return True if this is the last chunk of the snapshot."""
    return request.offset + len(request.data) == request.total_bytes


def _append_reply_to_wire(reply: core.AppendReply, request: wire.AppendEntriesRpc) -> wire.AppendEntriesResponse | None:
    if reply.term < request.term:
        return None
    if reply.success:
        is_whole = reply.next_index - 1 >= request.previous_index + len(request.entries)
        return (
            wire.AppendEntriesResponse(message_id=request.message_id, term=reply.term, success=True)
            if is_whole
            else None
        )
    hint = reply.next_index if 1 <= reply.next_index <= request.previous_index else None
    return wire.AppendEntriesResponse(
        message_id=request.message_id, term=reply.term, success=False, conflict_index=hint
    )


def _snapshot_reply_to_wire(
    reply: core.SnapshotReply, request: wire.InstallSnapshotRpc
) -> wire.InstallSnapshotResponse | None:
    if reply.term < request.term:
        return None
    if reply.accepted:
        # The protocol cannot report an installation early. A leader of the package sends all chunks, and regards the
        # snapshot as installed after the response to the last one.
        unfinished = is_last_chunk(request) and not reply.installed
        return None if unfinished else wire.InstallSnapshotResponse(request.message_id, reply.term)
    if reply.term == request.term and reply.next_offset == request.offset:
        return None
    return wire.InstallSnapshotResponse(request.message_id, reply.term, reply.next_offset)


def _no_answer(reply: core.Reply | wire.PeerReply, request: core.Request | wire.PeerRequest) -> ZmqRaftError:
    return ZmqRaftError(f"{type(reply).__name__} does not answer {type(request).__name__}")
