"""Maps core messages to Garlic Farm messages, and back.

    core                         wire
    RequestVote.last             last log term, last log index
    AppendEntries.previous       last log term, last log index
    AppendEntries.leader         source
    command / configuration      Application / Configuration entry
    VoteReply.granted            accepted
    pre-vote, transfer flag      a separate message type
    TimeoutNow.leader            source
    AppendReply.success          accepted;  next_index is next index
    InstallSnapshot              one snapshot chunk; last log term and index are the snapshot's
    AppendEntries to a newcomer  one log pack (`joining_mapping`)
    SnapshotReply.installed      next index (a byte offset) beyond the end: the largest number
    correlation                  not on the wire: replies come in the order of the requests on a connection

A Configuration on the wire also contains its own index and the index of the previous configuration, which only the
sender's log has (`configuration_before`). Our own core does not read them.
"""

from collections.abc import Callable
from typing import Final, assert_never

from consensus.core import messages as core
from consensus.core import model
from consensus.core.entry_data import configuration_entry, decode_configuration
from consensus.core.features import Extensions
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError, malformed
from consensus.protocols.garlic_farm.wire.limits import LONG_MAX
from consensus.protocols.garlic_farm.wire.upgrade import Extension
from consensus.protocols.garlic_farm.wire.values import (
    ClusterServer,
    Configuration,
    LogEntry,
    LogPack,
    SnapshotSyncRequest,
    WireEntry,
)
from consensus.storage.snapshot_image import begins_image

ConfigurationBefore = Callable[[model.Index], model.Index]
"""Returns the index of the last configuration below an index, or 0."""


def request_to_wire(request: core.Request, recipient: int, configuration_before: ConfigurationBefore) -> wire.Request:
    """Return the wire form of a request to `recipient`."""
    match request:
        case core.RequestVote(term=term, candidate=candidate, last=last, pre_vote=pre_vote, transfer=transfer):
            kind = (
                wire.PreVoteRequest if pre_vote else wire.TransferVoteRequest if transfer else wire.RequestVoteRequest
            )
            return kind(
                source=model.integer_id(candidate),
                destination=recipient,
                term=term,
                last_log_term=last.term,
                last_log_index=last.index,
            )
        case core.TimeoutNow(term, leader, _):
            return wire.TimeoutNowRequest(source=model.integer_id(leader), destination=recipient, term=term)
        case core.AppendEntries(previous=previous, entries=entries):
            return append_to_wire(
                request, recipient, entries_to_wire(previous.index + 1, entries, configuration_before)
            )
        case core.InstallSnapshot():
            return _snapshot_to_wire(request, recipient, configuration_before)
        case core.Fetch() | core.FetchSnapshot() | core.BeginQuorumEpoch() | core.EndQuorumEpoch():
            raise _no_word(request)
        case _:
            assert_never(request)


def append_to_wire(
    append: core.AppendEntries, recipient: int, entries: tuple[WireEntry, ...], log: bytes = b""
) -> wire.AppendEntriesRequest:
    """Return the wire form of an append with entries in wire form; `log` are their bytes if all are applications."""
    at = append.previous
    return wire.AppendEntriesRequest(
        source=model.integer_id(append.leader),
        destination=recipient,
        term=append.term,
        last_log_term=at.term,
        last_log_index=at.index,
        commit_index=append.commit,
        entries=entries,
        log=log,
    )


def _no_word(message: core.Message) -> GarlicFarmError:
    return GarlicFarmError(Fault.OUT_OF_TURN, f"this protocol does not have a message for {type(message).__name__}")


def _snapshot_to_wire(
    message: core.InstallSnapshot, recipient: int, configuration_before: ConfigurationBefore
) -> wire.Request:
    index = configuration_before(message.last.index + 1)
    configuration = configuration_to_wire(message.configuration, index, configuration_before(index))
    chunk = SnapshotSyncRequest(
        message.last.index, message.last.term, configuration, message.offset, message.data, done=message.done
    )
    entries = (LogEntry(message.term, chunk),)
    return wire.InstallSnapshotRequest(
        source=model.integer_id(message.leader),
        destination=recipient,
        term=message.term,
        last_log_term=message.last.term,
        last_log_index=message.last.index,
        commit_index=message.last.index,
        entries=entries,
    )


def request_from_wire(request: wire.Request, correlation: int) -> core.Request:
    """Return the core form of a request between voters; other requests do not belong to the core protocol."""
    sender = server_id(request.source)
    at = model.LogId(request.last_log_index, request.last_log_term)
    match request:
        case wire.AppendEntriesRequest():
            entries, log = entries_from_wire(request.entries), request.log
            return core.AppendEntries(
                term=request.term,
                leader=sender,
                previous=at,
                entries=entries,
                commit=request.commit_index,
                correlation=correlation,
                encoded=log,
            )
        case wire.RequestVoteRequest() | wire.PreVoteRequest() | wire.TransferVoteRequest():
            return core.RequestVote(
                term=request.term,
                candidate=sender,
                last=at,
                correlation=correlation,
                pre_vote=isinstance(request, wire.PreVoteRequest),
                transfer=isinstance(request, wire.TransferVoteRequest),
            )
        case wire.TimeoutNowRequest():
            return core.TimeoutNow(request.term, sender, correlation)
        case wire.InstallSnapshotRequest(entries=(LogEntry(value=SnapshotSyncRequest() as chunk),)):
            _check_image(sender, chunk)
            return core.InstallSnapshot(
                term=request.term,
                leader=sender,
                last=model.LogId(chunk.last_log_index, chunk.last_log_term),
                configuration=configuration_from_wire(chunk.configuration),
                offset=chunk.offset,
                data=chunk.data,
                done=chunk.done,
                correlation=correlation,
            )
        case _:
            raise GarlicFarmError(Fault.OUT_OF_TURN, f"a {type(request).__name__} is not a message between voters")


def _check_image(sender: model.ServerId, chunk: SnapshotSyncRequest) -> None:
    """Refuse a snapshot of another implementation with an explanation: only its own state machine could read it."""
    if chunk.offset == 0 and not begins_image(chunk.data):
        raise GarlicFarmError(
            Fault.FOREIGN_SNAPSHOT,
            f"server {sender} sends a snapshot of index {chunk.last_log_index} in a private format, which this program"
            " cannot read, instead of the entries up to there. Start that server again with its complete log (in"
            " JRaft, set the snapshot distance to 0 before the first snapshot), and let this server join again",
        )


def reply_to_wire(reply: core.Reply, request: wire.Request) -> wire.Reply:
    """Return the wire form of the reply to `request`."""
    match reply:
        case core.VoteReply(granted=accepted) | core.TimeoutNowReply(accepted=accepted):
            next_index = 0
        case core.AppendReply(success=accepted, next_index=next_index):
            pass
        case core.SnapshotReply(accepted=accepted, next_offset=next_offset):
            next_index = LONG_MAX if reply.installed else next_offset
        case core.FetchReply() | core.FetchSnapshotReply() | core.BeginQuorumEpochReply() | core.EndQuorumEpochReply():
            raise _no_word(reply)
        case _:
            assert_never(reply)
    return wire.ANSWERS[type(request)](
        source=request.destination,
        destination=request.source,
        term=reply.term,
        next_index=next_index,
        accepted=accepted,
    )


def reply_from_wire(reply: wire.Reply, request: core.Request) -> core.Reply:
    """Return the core form of the reply to `request`, with its correlation."""
    match reply, request:
        case (wire.AppendEntriesResponse() | wire.SyncLogResponse(), core.AppendEntries()):
            return core.AppendReply(
                term=reply.term, success=reply.accepted, next_index=reply.next_index, correlation=request.correlation
            )
        case (
            (wire.RequestVoteResponse(), core.RequestVote(pre_vote=False, transfer=False))
            | (wire.TransferVoteResponse(), core.RequestVote(transfer=True))
            | (wire.PreVoteResponse(), core.RequestVote(pre_vote=True))
        ):
            return core.VoteReply(
                term=reply.term,
                granted=reply.accepted,
                correlation=request.correlation,
                pre_vote=isinstance(reply, wire.PreVoteResponse),
            )
        case (wire.TimeoutNowResponse(), core.TimeoutNow()):
            return core.TimeoutNowReply(reply.term, reply.accepted, request.correlation)
        case (wire.InstallSnapshotResponse(), core.InstallSnapshot()):
            whole = reply.next_index == LONG_MAX or (
                request.done and reply.next_index >= request.offset + len(request.data)
            )
            return core.SnapshotReply(
                term=reply.term,
                accepted=reply.accepted,
                next_offset=reply.next_index,
                installed=reply.accepted and whole,
                correlation=request.correlation,
            )
        case _:
            text = f"a {type(reply).__name__} does not answer a {type(request).__name__}"
            raise GarlicFarmError(Fault.OUT_OF_TURN, text)


def entries_to_wire(
    first: model.Index, entries: tuple[model.Entry, ...], configuration_before: ConfigurationBefore
) -> tuple[WireEntry, ...]:
    """Return the wire form of log entries from index `first` on."""
    converted: list[WireEntry] = []
    latest: model.Index | None = None
    for index, entry in enumerate(entries, start=first):
        match entry.kind:
            case model.EntryKind.COMMAND:
                converted.append(entry)
            case model.EntryKind.CONFIGURATION:
                configuration = decode_configuration(entry.data)
                before = configuration_before(index) if latest is None else latest
                converted.append(LogEntry(entry.term, configuration_to_wire(configuration, index, before)))
                latest = index
            case model.EntryKind.NO_OP | model.EntryKind.CONTROL:
                raise GarlicFarmError(
                    Fault.OUT_OF_TURN, f"entry {index} has kind {entry.kind.name}, which the protocol cannot carry"
                )
            case _:
                assert_never(entry.kind)
    return tuple(converted)


def entries_from_wire(entries: tuple[WireEntry, ...]) -> tuple[model.Entry, ...]:
    """Return the core's log entries."""
    return tuple([entry if isinstance(entry, model.Entry) else _entry(entry) for entry in entries])


def commands_from_wire(request: wire.ClientRequest) -> tuple[bytes, ...]:
    """Return the commands that a client submits."""
    return tuple([entry.data for entry in request.entries if isinstance(entry, model.Entry)])


def configuration_to_wire(configuration: model.Configuration, index: model.Index, before: model.Index) -> Configuration:
    """Return a configuration at `index`, after the one at `before`; an index is 0 if our log no longer has it.

    Other implementations interpret 0 as a cluster without a configuration, and end their process when they write a
    snapshot. So 1 is sent instead: the first entry of every log is a configuration.
    """
    index, before = max(index, 1), max(before, 1) if index > 1 else 0
    lists = (configuration.voters, configuration.old_voters, configuration.learners)
    return Configuration(
        index,
        before,
        *(
            tuple(ClusterServer(model.integer_id(server.server_id), server.endpoint) for server in servers)
            for servers in lists
        ),
    )


def configuration_from_wire(configuration: Configuration) -> model.Configuration:
    """Return the member set; refuse an id that appears twice, since it would count twice."""
    return model.Configuration(
        _servers_from_wire(configuration.servers),
        _servers_from_wire(configuration.old_servers),
        _servers_from_wire(configuration.learners),
    )


def _servers_from_wire(listed: tuple[ClusterServer, ...]) -> tuple[model.Server, ...]:
    servers = []
    for server in listed:
        if server.endpoint is None:
            raise malformed(f"server {server.server_id} of a configuration lacks an endpoint")
        servers.append(model.Server(server_id(server.server_id), server.endpoint))
    if len({server.server_id for server in servers}) != len(servers):
        raise malformed("a configuration names a server twice")
    return tuple(servers)


def extensions_to_core(agreed: frozenset[Extension], lease_ms: int | None = None) -> Extensions:
    """Return the agreed extensions of a handshake, with the peer's promise, in the core's form."""
    return Extensions(
        pre_vote=Extension.PRE_VOTE in agreed,
        transfer=Extension.TRANSFER in agreed,
        configurations=Extension.CONFIGURATIONS in agreed,
        lease_ms=lease_ms if Extension.TRANSFER in agreed else None,
    )


_NEEDS: Final[dict[type[wire.Request], Extension | None]] = {
    wire.ClientRequest: None,
    wire.PreVoteRequest: Extension.PRE_VOTE,
    wire.TimeoutNowRequest: Extension.TRANSFER,
    wire.TransferVoteRequest: Extension.TRANSFER,
    wire.ReadIndexRequest: Extension.READ_INDEX,
}
"""The extension that every request of a type needs. For other types, the entries determine the needed extension."""


def check_agreed(request: wire.Request, agreed: frozenset[Extension]) -> None:
    """Raise `GarlicFarmError` unless the handshake agreed on the extension that the request needs."""
    needed = _extension_needed(request)
    if needed is not None and needed not in agreed:
        text = f"a {type(request).__name__} that needs {needed.value}, which the handshake did not agree on"
        raise GarlicFarmError(Fault.OUT_OF_TURN, text)


def _extension_needed(request: wire.Request) -> Extension | None:
    kind = type(request)
    if kind in _NEEDS:
        return _NEEDS[kind]
    return Extension.CONFIGURATIONS if not request.log and any(map(_is_extended, request.entries)) else None


def _is_extended(entry: WireEntry) -> bool:
    if isinstance(entry, model.Entry):
        return False
    match entry.value:
        case SnapshotSyncRequest(configuration=configuration) | (Configuration() as configuration):
            return configuration.is_extended
        case LogPack(entries=packed):
            return any(map(_is_extended, packed))
        case _:
            return False


def server_id(number: int) -> int:
    """Return a Raft id, which must be positive."""
    if number <= 0:
        raise malformed(f"{number} is not the id of a server")
    return number


def _entry(entry: LogEntry) -> model.Entry:
    match entry.value:
        case Configuration() as configuration:
            return configuration_entry(entry.term, configuration_from_wire(configuration))
        case _:
            raise malformed(f"a {type(entry.value).__name__} is not an entry of a log")
