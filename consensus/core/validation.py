"""Checks of received messages before any other part processes them: a message from a correct server always passes them.

Peers are authenticated, but a faulty peer, another version or a stolen key must not break a replica. A message in
another server's name, or with numbers out of range or out of order, is dropped and counted. A request always gets a
reply, here a refusal, which no leader counts toward its majority (`append_receiver.refuse_leader`). Impossible terms
are refused here, so they are never adopted.
"""

from typing import assert_never, get_args

from consensus.core.drops import Drop
from consensus.core.entry_data import EntryDataError, decode_configuration, decode_no_op
from consensus.core.features import Features, Strategy
from consensus.core.messages import (
    AppendAnswer,
    AppendEntries,
    AppendReply,
    AppendRequest,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchMessage,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from consensus.core.model import (
    COMMAND,
    MAX_NUMBER,
    Entry,
    EntryKind,
    LogId,
    NoOp,
    ServerId,
    Term,
    possible_configuration,
    possible_id,
)

_OF_FETCHES = frozenset(get_args(FetchMessage))
_OF_APPENDS = frozenset(get_args(AppendRequest | AppendAnswer))
_MAX_NAMED_SERVERS = 1024
_OF_APPEND_ENTRIES = (Drop.APPEND_TERM_ORDER, Drop.APPEND_COMMAND_HEAD)
_OF_FETCHED_ENTRIES = (Drop.FETCH_REPLY_TERM_ORDER, Drop.FETCH_REPLY_COMMAND_HEAD)


def implausible(server_id: ServerId, sender: ServerId, message: Message, features: Features) -> Drop | None:
    """Return the reason to drop the message; None if it is plausible."""
    if sender == server_id:
        return Drop.OWN_NAME
    if not 0 <= message.term <= MAX_NUMBER:
        return Drop.TERM_RANGE
    if type(message) in (_OF_FETCHES if features.replication is Strategy.APPEND else _OF_APPENDS):
        return Drop.OTHER_STRATEGY
    return _fault(sender, message, features)


def _fault(sender: ServerId, message: Message, features: Features) -> Drop | None:
    fault: Drop | None = None
    match message:
        case AppendReply(next_index=next_index):
            fault = None if 1 <= next_index <= MAX_NUMBER else Drop.APPEND_REPLY_RANGE
        case AppendEntries():
            fault = _fault_of_append(sender, message, features)
        case RequestVote():
            fault = _fault_of_vote(sender, message)
        case InstallSnapshot():
            fault = _fault_of_snapshot(sender, message)
        case SnapshotReply(next_offset=next_offset):
            fault = None if 0 <= next_offset <= MAX_NUMBER else Drop.SNAPSHOT_REPLY_RANGE
        case TimeoutNow(leader=leader):
            fault = None if leader == sender else Drop.TRANSFER_IN_OTHER_NAME
        case VoteReply() | TimeoutNowReply():
            pass
        case _:
            fault = _fault_of_fetches(sender, message, features)
    return fault


def _fault_of_fetches(sender: ServerId, message: FetchMessage, features: Features) -> Drop | None:
    fault: Drop | None = None
    match message:
        case Fetch():
            fault = _fault_of_fetch(sender, message)
        case FetchReply():
            fault = _fault_of_fetch_reply(message, features)
        case FetchSnapshot() | FetchSnapshotReply():
            fault = _fault_of_chunks(sender, message)
        case BeginQuorumEpoch(leader=leader) | EndQuorumEpoch(leader=leader):
            fault = None if leader == sender else Drop.ANNOUNCEMENT_IN_OTHER_NAME
        case BeginQuorumEpochReply() | EndQuorumEpochReply():
            pass
        case _:
            assert_never(message)
    return fault


def _fault_of_vote(sender: ServerId, request: RequestVote) -> Drop | None:
    if request.candidate != sender:
        return Drop.VOTE_REQUEST_IN_OTHER_NAME
    if not _possible_position(request.last) or request.last.term > request.term:
        return Drop.VOTE_REQUEST_POSITION
    return None


def _fault_of_append(sender: ServerId, append: AppendEntries, features: Features) -> Drop | None:
    if append.leader != sender:
        return Drop.APPEND_IN_OTHER_NAME
    if not _possible_position(append.previous) or append.previous.index + len(append.entries) > MAX_NUMBER:
        return Drop.APPEND_POSITION
    if not 0 <= append.commit <= MAX_NUMBER:
        return Drop.COMMIT_RANGE
    if append.term == 0:
        return Drop.APPEND_TERM_ORDER
    return _fault_of_entries(_OF_APPEND_ENTRIES, append.previous.term, append.entries, append.term, features)


def _fault_of_chunks(sender: ServerId, message: FetchSnapshot | FetchSnapshotReply) -> Drop | None:
    if not _possible_position(message.snapshot) or not 0 <= message.offset <= MAX_NUMBER:
        return Drop.SNAPSHOT_POSITION
    match message:
        case FetchSnapshot():
            if message.replica != sender:
                return Drop.FETCH_IN_OTHER_NAME
            if not 0 < message.max_bytes <= MAX_NUMBER:
                return Drop.FETCH_RANGE
        case FetchSnapshotReply(error=None):
            if not message.offset + len(message.data) <= message.size_bytes <= MAX_NUMBER:
                return Drop.CHUNK_BEYOND_SNAPSHOT
        case FetchSnapshotReply():
            pass
    return None


def _fault_of_fetch(sender: ServerId, fetch: Fetch) -> Drop | None:
    if fetch.replica != sender:
        return Drop.FETCH_IN_OTHER_NAME
    if not _possible_position(fetch.position) or fetch.position.term > fetch.term:
        return Drop.FETCH_POSITION
    if not all(0 <= number <= MAX_NUMBER for number in (fetch.commit, fetch.max_wait_ms, fetch.max_bytes)):
        return Drop.FETCH_RANGE
    return None


def _fault_of_fetch_reply(reply: FetchReply, features: Features) -> Drop | None:
    if not 0 <= reply.commit <= MAX_NUMBER:
        return Drop.COMMIT_RANGE
    if reply.diverging is not None and not _possible_position(reply.diverging):
        return Drop.FETCH_REPLY_DIVERGENCE
    if reply.snapshot is not None and (reply.snapshot.index == 0 or not _possible_position(reply.snapshot)):
        return Drop.FETCH_REPLY_SNAPSHOT
    parts_present = (
        reply.entries != (),
        reply.diverging is not None,
        reply.snapshot is not None,
        reply.error is not None,
    )
    if sum(parts_present) > 1:
        return Drop.AMBIGUOUS_FETCH_REPLY
    return _fault_of_entries(_OF_FETCHED_ENTRIES, 0, reply.entries, reply.term, features)


def _fault_of_entries(
    reasons: tuple[Drop, Drop], previous: Term, entries: tuple[Entry, ...], latest: Term, features: Features
) -> Drop | None:
    """Return a fault of the entries: terms rise from the previous entry's to the sender's, records are readable."""
    wrong_order, wrong_command = reasons
    earlier, head_bytes = previous, features.command_head_bytes
    for entry in entries:
        term = entry.term
        if term < earlier or term == 0:
            return wrong_order
        earlier = term
        if entry.kind != COMMAND:
            fault = _fault_of_data(entry, features)
            if fault is not None:
                return fault
        elif head_bytes and len(entry.data) <= head_bytes:
            return wrong_command
    if earlier > latest:
        return wrong_order
    return None


def _fault_of_data(entry: Entry, features: Features) -> Drop | None:
    if entry.kind == EntryKind.CONTROL and not features.control_records:
        return Drop.UNSUPPORTED_CONTROL_RECORD
    if entry.kind == EntryKind.CONFIGURATION and not _is_possible_configuration(entry.data):
        return Drop.ENTRY_CONFIGURATION
    if entry.kind == EntryKind.NO_OP and not _is_possible_no_op(entry.data):
        return Drop.ENTRY_NO_OP
    return None


def _fault_of_snapshot(sender: ServerId, chunk: InstallSnapshot) -> Drop | None:
    if chunk.leader != sender:
        return Drop.SNAPSHOT_IN_OTHER_NAME
    if not _possible_position(chunk.last) or not chunk.last.index or chunk.last.term > chunk.term:
        return Drop.SNAPSHOT_OF_POSITION
    if not 0 <= chunk.offset <= MAX_NUMBER - len(chunk.data) or not (chunk.data or chunk.done):
        return Drop.SNAPSHOT_CHUNK_RANGE
    if not possible_configuration(chunk.configuration):
        return Drop.SNAPSHOT_CONFIGURATION
    return None


def _possible_position(position: LogId) -> bool:
    return 0 <= position.index <= MAX_NUMBER and (position.term >= 1 if position.index else position.term == 0)


def _is_possible_configuration(data: bytes) -> bool:
    try:
        return possible_configuration(decode_configuration(data))
    except EntryDataError:
        return False


def _is_possible_no_op(data: bytes) -> bool:
    try:
        no_op = decode_no_op(data)
    except EntryDataError:
        return False
    return _possible_no_op(no_op)


def _possible_no_op(no_op: NoOp) -> bool:
    ids = (*no_op.voters, *no_op.granted_by, *(() if no_op.leader is None else (no_op.leader,)))
    return len(ids) <= _MAX_NAMED_SERVERS and all(map(possible_id, ids))
