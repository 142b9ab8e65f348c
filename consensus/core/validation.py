"""What no correct server sends: checked before anything else sees a message.

Peers are authenticated, yet a bug, a foreign version or a stolen key must not break a replica. A message with numbers
out of range, out of order or in another's name is dropped and counted; a request is answered by a refusal, since every
request is answered, and no leader counts that refusal towards its majority (`append_receiver.refuse_leader`).
Impossible terms are refused here, so they are never adopted.
"""

from typing import assert_never, get_args

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


def implausible(server_id: ServerId, sender: ServerId, message: Message, features: Features) -> str | None:
    """What is wrong with the message, in the words of the counter; None if nothing is."""
    if sender == server_id:
        return "message in our own name"
    if not 0 <= message.term <= MAX_NUMBER:
        return "term out of range"
    if type(message) in (_OF_FETCHES if features.replication is Strategy.APPEND else _OF_APPENDS):
        return "message of the other strategy"
    return _fault(sender, message, features)


def _fault(sender: ServerId, message: Message, features: Features) -> str | None:
    fault: str | None = None
    match message:
        case AppendReply(next_index=next_index):
            fault = None if 1 <= next_index <= MAX_NUMBER else "append reply out of range"
        case AppendEntries():
            fault = _fault_of_append(sender, message, features)
        case RequestVote():
            fault = _fault_of_vote(sender, message)
        case InstallSnapshot():
            fault = _fault_of_snapshot(sender, message)
        case SnapshotReply(next_offset=next_offset):
            fault = None if 0 <= next_offset <= MAX_NUMBER else "snapshot reply out of range"
        case TimeoutNow(leader=leader):
            fault = None if leader == sender else "transfer in another's name"
        case VoteReply() | TimeoutNowReply():
            pass
        case _:
            fault = _fault_of_fetches(sender, message, features)
    return fault


def _fault_of_fetches(sender: ServerId, message: FetchMessage, features: Features) -> str | None:
    fault: str | None = None
    match message:
        case Fetch():
            fault = _fault_of_fetch(sender, message)
        case FetchReply():
            fault = _fault_of_fetch_reply(message, features)
        case FetchSnapshot() | FetchSnapshotReply():
            fault = _fault_of_chunks(sender, message)
        case BeginQuorumEpoch(leader=leader) | EndQuorumEpoch(leader=leader):
            fault = None if leader == sender else "announcement in another's name"
        case BeginQuorumEpochReply() | EndQuorumEpochReply():
            pass
        case _:
            assert_never(message)
    return fault


def _fault_of_vote(sender: ServerId, request: RequestVote) -> str | None:
    if request.candidate != sender:
        return "vote request in another's name"
    if not _possible_position(request.last) or request.last.term > request.term:
        return "vote request with an impossible position"
    return None


def _fault_of_append(sender: ServerId, append: AppendEntries, features: Features) -> str | None:
    if append.leader != sender:
        return "append in another's name"
    if not _possible_position(append.previous) or append.previous.index + len(append.entries) > MAX_NUMBER:
        return "append at an impossible position"
    if not 0 <= append.commit <= MAX_NUMBER:
        return "commit index out of range"
    if append.term == 0:
        return "append with terms out of order"
    return _fault_of_entries("append", append.previous.term, append.entries, append.term, features)


def _fault_of_chunks(sender: ServerId, message: FetchSnapshot | FetchSnapshotReply) -> str | None:
    if not _possible_position(message.snapshot) or not 0 <= message.offset <= MAX_NUMBER:
        return "impossible place in a snapshot"
    match message:
        case FetchSnapshot():
            if message.replica != sender:
                return "fetch in another's name"
            if not 0 < message.max_bytes <= MAX_NUMBER:
                return "fetch with numbers out of range"
        case FetchSnapshotReply(error=None):
            if not message.offset + len(message.data) <= message.size_bytes <= MAX_NUMBER:
                return "chunk beyond the end of its snapshot"
        case FetchSnapshotReply():
            pass
    return None


def _fault_of_fetch(sender: ServerId, fetch: Fetch) -> str | None:
    if fetch.replica != sender:
        return "fetch in another's name"
    if not _possible_position(fetch.position) or fetch.position.term > fetch.term:
        return "fetch from an impossible position"
    if not all(0 <= number <= MAX_NUMBER for number in (fetch.commit, fetch.max_wait_ms, fetch.max_bytes)):
        return "fetch with numbers out of range"
    return None


def _fault_of_fetch_reply(reply: FetchReply, features: Features) -> str | None:
    if not 0 <= reply.commit <= MAX_NUMBER:
        return "commit index out of range"
    if reply.diverging is not None and not _possible_position(reply.diverging):
        return "fetch reply with an impossible divergence"
    if reply.snapshot is not None and (reply.snapshot.index == 0 or not _possible_position(reply.snapshot)):
        return "fetch reply with an impossible snapshot"
    said = (reply.entries != (), reply.diverging is not None, reply.snapshot is not None, reply.error is not None)
    if sum(said) > 1:
        return "fetch reply that says two things at once"
    return _fault_of_entries("fetch reply", 0, reply.entries, reply.term, features)


def _fault_of_entries(
    message: str, previous: Term, entries: tuple[Entry, ...], latest: Term, features: Features
) -> str | None:
    """Terms must rise from that of the entry before to the sender's, and what is not a command must be readable."""
    earlier, head_bytes = previous, features.command_head_bytes
    for entry in entries:
        term = entry.term
        if term < earlier or term == 0:
            return f"{message} with terms out of order"
        earlier = term
        if entry.kind != COMMAND:
            fault = _fault_of_data(entry, features)
            if fault is not None:
                return fault
        elif head_bytes and len(entry.data) <= head_bytes:
            return f"{message} with a command that lacks its head or has nothing behind it"
    if earlier > latest:
        return f"{message} with terms out of order"
    return None


def _fault_of_data(entry: Entry, features: Features) -> str | None:
    if entry.kind == EntryKind.CONTROL and not features.control_records:
        return "control record, which the protocol does not have"
    if entry.kind == EntryKind.CONFIGURATION and not _is_possible_configuration(entry.data):
        return "append with an impossible configuration"
    if entry.kind == EntryKind.NO_OP and not _is_possible_no_op(entry.data):
        return "entry with an impossible no-op"
    return None


def _fault_of_snapshot(sender: ServerId, chunk: InstallSnapshot) -> str | None:
    if chunk.leader != sender:
        return "snapshot in another's name"
    if not _possible_position(chunk.last) or not chunk.last.index or chunk.last.term > chunk.term:
        return "snapshot of an impossible position"
    if not 0 <= chunk.offset <= MAX_NUMBER - len(chunk.data) or not (chunk.data or chunk.done):
        return "snapshot chunk out of range"
    if not possible_configuration(chunk.configuration):
        return "snapshot with an impossible configuration"
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
