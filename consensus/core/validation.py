"""What no correct server sends: checked before anything else sees a message.

Peers are authenticated, yet a bug, a foreign version or a stolen key must not break a replica. A message with numbers
out of range, out of order or in another's name is dropped and counted; a request is answered by a refusal, since every
request is answered, and no leader counts that refusal towards its majority (`refusing`). Terms of absurd height are
refused here, so they are never adopted.
"""

from collections.abc import Iterator
from typing import assert_never

from consensus.core.entry_data import EntryDataError, decode_configuration, decode_no_op
from consensus.core.features import Features, Strategy
from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    InstallSnapshot,
    Message,
    PullMessage,
    PushReply,
    PushRequest,
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

_FOREIGN_WORDS = {Strategy.PUSH: PullMessage, Strategy.PULL: PushRequest | PushReply}
_MAX_NAMED_SERVERS = 1024


def implausible(server_id: ServerId, sender: ServerId, message: Message, features: Features) -> str | None:
    """What is wrong with the message, in the words of the counter; None if nothing is."""
    if sender == server_id:
        return "message in our own name"
    if not 0 <= message.term <= MAX_NUMBER:
        return "term out of range"
    if isinstance(message, _FOREIGN_WORDS[features.replication]):
        return "message of the other strategy"
    return next(_faults(sender, message, features), None)


def _faults(sender: ServerId, message: Message, features: Features) -> Iterator[str]:
    match message:
        case RequestVote():
            yield from _faults_of_vote(sender, message)
        case AppendEntries():
            yield from _faults_of_append(sender, message, features)
        case InstallSnapshot():
            yield from _faults_of_snapshot(sender, message)
        case AppendReply(next_index=next_index) if not 1 <= next_index <= MAX_NUMBER:
            yield "append reply out of range"
        case SnapshotReply(next_offset=next_offset) if not 0 <= next_offset <= MAX_NUMBER:
            yield "snapshot reply out of range"
        case TimeoutNow(leader=leader) if leader != sender:
            yield "transfer in another's name"
        case AppendReply() | SnapshotReply() | TimeoutNow() | VoteReply() | TimeoutNowReply():
            pass
        case _:
            yield from _faults_of_pull(sender, message, features)


def _faults_of_pull(sender: ServerId, message: PullMessage, features: Features) -> Iterator[str]:
    match message:
        case Fetch():
            yield from _faults_of_fetch(sender, message)
        case FetchReply():
            yield from _faults_of_fetch_reply(message, features)
        case FetchSnapshot() | FetchSnapshotReply():
            yield from _faults_of_pieces(sender, message)
        case BeginQuorumEpoch(leader=leader) | EndQuorumEpoch(leader=leader):
            if leader != sender:
                yield "announcement in another's name"
        case BeginQuorumEpochReply() | EndQuorumEpochReply():
            pass
        case _:
            assert_never(message)


def _faults_of_vote(sender: ServerId, request: RequestVote) -> Iterator[str]:
    if request.candidate != sender:
        yield "vote request in another's name"
    if not _possible_position(request.last) or request.last.term > request.term:
        yield "vote request with an impossible position"


def _faults_of_append(sender: ServerId, append: AppendEntries, features: Features) -> Iterator[str]:
    if append.leader != sender:
        yield "append in another's name"
    if not _possible_position(append.previous) or append.previous.index + len(append.entries) > MAX_NUMBER:
        yield "append at an impossible position"
    if not 0 <= append.commit <= MAX_NUMBER:
        yield "commit index out of range"
    if append.term == 0:
        yield "append with terms out of order"
    yield from _faults_of_entries("append", append.previous.term, append.entries, append.term, features)


def _faults_of_pieces(sender: ServerId, message: FetchSnapshot | FetchSnapshotReply) -> Iterator[str]:
    if not _possible_position(message.snapshot) or not 0 <= message.offset <= MAX_NUMBER:
        yield "impossible place in a snapshot"
    match message:
        case FetchSnapshot():
            if message.replica != sender:
                yield "fetch in another's name"
            if not 0 < message.max_bytes <= MAX_NUMBER:
                yield "fetch with numbers out of range"
        case FetchSnapshotReply(error=None):
            if not message.offset + len(message.data) <= message.size_bytes <= MAX_NUMBER:
                yield "piece beyond the end of its snapshot"
        case FetchSnapshotReply():
            pass


def _faults_of_fetch(sender: ServerId, fetch: Fetch) -> Iterator[str]:
    if fetch.replica != sender:
        yield "fetch in another's name"
    if not _possible_position(fetch.position) or fetch.position.term > fetch.term:
        yield "fetch from an impossible position"
    if not all(0 <= number <= MAX_NUMBER for number in (fetch.commit, fetch.max_wait_ms, fetch.max_bytes)):
        yield "fetch with numbers out of range"


def _faults_of_fetch_reply(reply: FetchReply, features: Features) -> Iterator[str]:
    if not 0 <= reply.commit <= MAX_NUMBER:
        yield "commit index out of range"
    if reply.diverging is not None and not _possible_position(reply.diverging):
        yield "fetch reply with an impossible divergence"
    if reply.snapshot is not None and (reply.snapshot.index == 0 or not _possible_position(reply.snapshot)):
        yield "fetch reply with an impossible snapshot"
    said = (reply.entries != (), reply.diverging is not None, reply.snapshot is not None, reply.error is not None)
    if sum(said) > 1:
        yield "fetch reply that says two things at once"
    yield from _faults_of_entries("fetch reply", 0, reply.entries, reply.term, features)


def _faults_of_entries(
    message: str, previous: Term, entries: tuple[Entry, ...], latest: Term, features: Features
) -> Iterator[str]:
    """Terms must rise from that of the entry before to the sender's, and what is not a command must be readable."""
    earlier, head_bytes = previous, features.command_head_bytes
    for entry in entries:
        term = entry.term
        if term < earlier or term == 0:
            yield f"{message} with terms out of order"
        earlier = term
        if entry.kind != COMMAND:
            yield from _faults_of_data(entry, features)
        elif head_bytes and len(entry.data) < head_bytes:
            yield f"{message} with a command that lacks its head"
    if earlier > latest:
        yield f"{message} with terms out of order"


def _faults_of_data(entry: Entry, features: Features) -> Iterator[str]:
    if entry.kind == EntryKind.CONTROL and not features.control_records:
        yield "control record, which the protocol does not have"
    if entry.kind == EntryKind.CONFIGURATION and not _is_possible_configuration(entry.data):
        yield "append with an impossible configuration"
    if entry.kind == EntryKind.NO_OP and not _is_possible_no_op(entry.data):
        yield "entry with an impossible no-op"


def _faults_of_snapshot(sender: ServerId, piece: InstallSnapshot) -> Iterator[str]:
    if piece.leader != sender:
        yield "snapshot in another's name"
    if not _possible_position(piece.last) or not piece.last.index or piece.last.term > piece.term:
        yield "snapshot of an impossible position"
    if not 0 <= piece.offset <= MAX_NUMBER - len(piece.data) or not (piece.data or piece.done):
        yield "snapshot piece out of range"
    if not possible_configuration(piece.configuration):
        yield "snapshot with an impossible configuration"


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
