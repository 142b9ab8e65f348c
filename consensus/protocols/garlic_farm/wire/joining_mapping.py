"""Maps the messages for joining and leaving to the core's messages and back.

    leader ──JoinClusterRequest──▶ newcomer     the configuration of the invitation; nothing for the core
    leader ──SyncLogRequest──────▶ newcomer     AppendEntries with entries: one log pack, after `last log index`
    leader ──LeaveClusterRequest─▶ follower     nothing for the core: it follows the configurations in the log

A SyncLogRequest is an AppendEntries. Other implementations leave the term before its entries at 0, so their newcomers
accept any pack. Our servers send the term, and our newcomers need it. If the message does not have a term,
`previous_term` is the newcomer's own term for that place.
"""

from consensus.core import messages as core
from consensus.core import model
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import malformed
from consensus.protocols.garlic_farm.wire.mapping import (
    ConfigurationBefore,
    configuration_to_wire,
    entries_from_wire,
    entries_to_wire,
    server_id,
)
from consensus.protocols.garlic_farm.wire.values import LogEntry, LogPack


def sync_to_wire(
    append: core.AppendEntries, recipient: int, configuration_before: ConfigurationBefore, first_offset: int = 0
) -> wire.SyncLogRequest:
    """Return the entries of an append as the log pack for a newcomer.

    `first_offset`: the size in bytes of the newcomer's data file. Only servers of another implementation use it
    (`log_pack`).
    """
    packed = entries_to_wire(append.previous.index + 1, append.entries, configuration_before)
    at, pack = append.previous, LogPack(first_offset, packed)
    return wire.SyncLogRequest(
        source=model.integer_id(append.leader),
        destination=recipient,
        term=append.term,
        last_log_term=at.term,
        last_log_index=at.index,
        commit_index=append.commit,
        entries=(LogEntry(append.term, pack),),
    )


def sync_from_wire(request: wire.SyncLogRequest, previous_term: model.Term, correlation: int) -> core.AppendEntries:
    """Return the append in a log pack, after an entry of `previous_term`."""
    match request.entries:
        case (LogEntry(value=LogPack(entries=packed)),):
            entries = entries_from_wire(packed)
        case _:
            raise malformed("a sync log request without a log pack")
    previous = model.LogId(request.last_log_index, previous_term)
    sender = server_id(request.source)
    return core.AppendEntries(
        term=request.term,
        leader=sender,
        previous=previous,
        entries=entries,
        commit=request.commit_index,
        correlation=correlation,
    )


def sync_reply_to_wire(reply: core.AppendReply, request: wire.SyncLogRequest) -> wire.SyncLogResponse:
    """Return the reply to a log pack.

    A leader of another implementation continues at the next index even after a refusal, and ends its process if that
    index lies beyond its log. So the next index of a refusal is at most the first index of the pack.
    """
    next_index = reply.next_index if reply.success else min(reply.next_index, request.last_log_index + 1)
    return wire.SyncLogResponse(
        source=request.destination,
        destination=request.source,
        term=reply.term,
        next_index=next_index,
        accepted=reply.success,
    )


def invitation_to_wire(
    leader: int,
    recipient: int,
    term: model.Term,
    last: model.Index,
    commit: model.Index,
    configuration: model.Configuration,
    place: tuple[model.Index, model.Index],
) -> wire.JoinClusterRequest:
    """Return the invitation to join `configuration`; `place` is its index and the index of the previous one."""
    entry = LogEntry(term, configuration_to_wire(configuration, *place))
    return wire.JoinClusterRequest(
        source=leader,
        destination=recipient,
        term=term,
        last_log_term=0,
        last_log_index=last,
        commit_index=commit,
        entries=(entry,),
    )
