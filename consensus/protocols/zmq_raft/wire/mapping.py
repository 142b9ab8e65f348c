"""The core's messages as ØMQ Raft's peers say them, and back.

    core                              wire
    RequestVote, VoteReply            RequestVote and its response
    AppendEntries                     AppendEntries, without `encoded`
    AppendReply, success              success, if it covers all that was sent; else no response at all
    AppendReply, failure              failure; the hint is the conflict's index, if it lies below what was sent
    InstallSnapshot                   InstallSnapshot with the whole size, and without the configuration
    SnapshotReply, accepted           response without an offset; to the last chunk: the snapshot is installed
    SnapshotReply, refused            response with the offset that is wanted; none if it is the one that was sent
    both, of a term below the asked   no response at all: this leader is refused, and must not count the answer
    correlation                       message id, which the transport chooses

*Why some replies are not sent.* A leader that hears success takes all that it sent for stored. The core says more: how
far a log is equal and durable, which is less than was sent while a disk is slow or full. Such an answer has no form on
the wire. Without an answer the leader sends the same message again, and then the follower may have got further. The
same goes for a chunk that the follower cannot take now: an answer that wants the same chunk again would come back at
the speed of the network.

*What a missing conflict index means.* The package sends one only if the follower's log ends before `previous`. Without
it the entry at `previous` has another term, and the leader tries one entry earlier.

*What the core wants and the wire lacks* comes from the transport: the snapshot's size when sending, and the
configuration in force at its last entry when receiving. The requests of fetching followers, pre-votes and TimeoutNow
have no message here; `ZMQ_RAFT` in `core.features` rules them out.
"""

from typing import assert_never

from consensus.core import messages as core
from consensus.core.model import Configuration, LogId, ServerId
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError


def peer_id(server_id: ServerId) -> str:
    """The core's id of a server as the protocol has it; raises `ZmqRaftError` for an id of another protocol."""
    if not isinstance(server_id, str):
        raise ZmqRaftError(f"{server_id!r} is not a string: it is the id of a server in another protocol")
    return server_id


def request_to_wire(
    request: core.Request, message_id: wire.MessageId, ident: bytes, snapshot_bytes: int = 0
) -> wire.PeerRequest:
    """A request as it is sent to any peer; `snapshot_bytes` is the size of the whole snapshot, for a chunk of it.

    Raises `ZmqRaftError` for a request that the protocol has no message for.
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
                raise ZmqRaftError(f"a chunk that is not the last ends at {offset + len(data)} of {total_bytes} bytes")
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
    """A peer's request as the core takes it; the configuration is the one in force at a snapshot's last entry."""
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


def reply_to_wire(reply: core.Reply, asked: wire.PeerRequest) -> wire.PeerReply | None:
    """The answer to `asked`; None if the protocol says this by not answering.

    Raises `ZmqRaftError` for an answer that does not belong to this request.
    """
    match reply, asked:
        case core.VoteReply(term=term, granted=granted), wire.RequestVoteRpc(message_id=message_id):
            return wire.RequestVoteResponse(message_id, term, granted)
        case core.AppendReply(), wire.AppendEntriesRpc():
            return _append_reply_to_wire(reply, asked)
        case core.SnapshotReply(), wire.InstallSnapshotRpc():
            return _snapshot_reply_to_wire(reply, asked)
        case _:
            raise _no_answer(reply, asked)


def reply_from_wire(reply: wire.PeerReply, asked: core.Request) -> core.Reply:
    """A peer's answer to `asked` as the core takes it; raises `ZmqRaftError` if it answers another kind of request."""
    match reply, asked:
        case wire.RequestVoteResponse(_, term, granted), core.RequestVote():
            return core.VoteReply(term=term, granted=granted, correlation=asked.correlation)
        case wire.AppendEntriesResponse(term=term, success=success, conflict_index=conflict_index), core.AppendEntries(
            previous=previous
        ):
            if success:
                next_index = previous.index + len(asked.entries) + 1
            else:
                next_index = max(1, previous.index if conflict_index is None else conflict_index)
            return core.AppendReply(term=term, success=success, next_index=next_index, correlation=asked.correlation)
        case wire.InstallSnapshotResponse(_, term, wanted_offset), core.InstallSnapshot(offset=offset, data=data):
            accepted = wanted_offset is None
            next_offset = offset + len(data) if wanted_offset is None else wanted_offset
            return core.SnapshotReply(
                term=term,
                accepted=accepted,
                next_offset=next_offset,
                installed=accepted and asked.done,
                correlation=asked.correlation,
            )
        case _:
            raise _no_answer(reply, asked)


def is_last_chunk(request: wire.InstallSnapshotRpc) -> bool:
    """Whether nothing of the snapshot follows this chunk."""
    return request.offset + len(request.data) == request.total_bytes


def _append_reply_to_wire(reply: core.AppendReply, asked: wire.AppendEntriesRpc) -> wire.AppendEntriesResponse | None:
    if reply.term < asked.term:
        return None
    if reply.success:
        is_whole = reply.next_index - 1 >= asked.previous_index + len(asked.entries)
        return (
            wire.AppendEntriesResponse(message_id=asked.message_id, term=reply.term, success=True) if is_whole else None
        )
    hint = reply.next_index if 1 <= reply.next_index <= asked.previous_index else None
    return wire.AppendEntriesResponse(message_id=asked.message_id, term=reply.term, success=False, conflict_index=hint)


def _snapshot_reply_to_wire(
    reply: core.SnapshotReply, asked: wire.InstallSnapshotRpc
) -> wire.InstallSnapshotResponse | None:
    if reply.term < asked.term:
        return None
    if reply.accepted:
        # A package leader that is told more goes on sending all the same: it installs only by its own last chunk.
        unfinished = is_last_chunk(asked) and not reply.installed
        return None if unfinished else wire.InstallSnapshotResponse(asked.message_id, reply.term)
    if reply.term == asked.term and reply.next_offset == asked.offset:
        return None
    return wire.InstallSnapshotResponse(asked.message_id, reply.term, reply.next_offset)


def _no_answer(reply: core.Reply | wire.PeerReply, asked: core.Request | wire.PeerRequest) -> ZmqRaftError:
    return ZmqRaftError(f"{type(reply).__name__} does not answer {type(asked).__name__}")
