"""Receipt of AppendEntries and InstallSnapshot by a server in any role (Raft figures 2 and 13).

    sender of the request       action of this server
    leader of an older term     refuse the request with our term; nothing changes
    outsider, later term        refuse and count it, during contact with a leader (`ServerRole.refuses_outsider`)
    leader, term far ahead      refuse and count it; our term rises by one step (`Replica.adopt_term`)
    second leader of our term   refuse and count it: a term has one leader, so one of the two is wrong
    other leader                adopt its term, follow it, restart the timer, and process the request

A leader counts every reply of its term toward check-quorum and its lease, even a refusal: the reply shows that the
follower refuses other candidates. If this server does not follow the sender, the sender must not count the reply. So
this reply never carries the sender's term (`refuse_leader`).

If our log does not contain `previous` in its term, this server refuses the append with a hint. Otherwise it skips the
entries that it has, truncates its log at the first conflict, and appends the rest. A delayed append without new
entries truncates nothing. Our commit index follows the leader's only up to the last entry that the append proves equal.

A success reply to an append with entries waits until they are durable. The reply to a heartbeat reports the matched
entries that are already durable, and waits only for the hard state. So a follower with a slow disk lags but never seems
dead. `fetch_receiver` is the counterpart for followers that fetch.
"""

from typing import assert_never

from msgspec.structs import replace

from consensus.core.drops import Drop
from consensus.core.entry_data import group_bytes
from consensus.core.log import Log
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.model import Index, LogId, ServerId, Term
from consensus.core.replica import Replica
from consensus.core.roles import ServerRole
from consensus.core.snapshots import SnapshotReceiver


class AppendReceiver:
    """Requests of a leader to one server, in any role of this server."""

    def __init__(self, replica: Replica, role: ServerRole, snapshots: SnapshotReceiver) -> None:
        self._replica = replica
        self._role = role
        self._snapshots = snapshots

    def receive(self, request: AppendEntries | InstallSnapshot) -> None:
        """Process a plausible request of a leader."""
        if not self._follow(request.term, request.leader):
            refuse_leader(self._replica, request.leader, request)
            return
        match request:
            case AppendEntries():
                append(self._replica, request)
            case InstallSnapshot():
                self._snapshots.receive(request)
            case _:
                assert_never(request)

    def _follow(self, term: Term, leader: ServerId) -> bool:
        """Follow the sender of a leader's request. Return False if it is not a leader of our term."""
        if term < self._replica.term:
            return False
        if term > self._replica.term and (
            self._role.refuses_outsider(leader, term) or not self._role.check_term(term, of_a_leader=True)
        ):
            return False
        if self._role.leader not in (None, leader):
            self._replica.dropped[Drop.SECOND_LEADER_APPEND] += 1
            return False
        self._role.follow(leader)
        return True


def refuse_leader(replica: Replica, sender: ServerId, request: AppendEntries | InstallSnapshot) -> None:
    """Refuse the request of a sender that this server does not follow. The request may already have raised our term.

    A leader counts a reply of its term toward its majority and its lease. This server made no promise to the
    sender, so the reply to a leader of our term carries term 0, older than every leader's term. The reply to a leader
    of another term carries our term.
    """
    term, after = (0, 0) if request.term == replica.term else (replica.term, replica.hard_state_number)
    match request:
        case AppendEntries(correlation=correlation):
            hint = replica.log.last_index + 1
            reply = AppendReply(term=term, success=False, next_index=hint, correlation=correlation)
            replica.outbox.send(sender, reply, after)
        case InstallSnapshot(correlation=correlation):
            refusal = SnapshotReply(term=term, accepted=False, next_offset=0, installed=False, correlation=correlation)
            replica.outbox.send(sender, refusal, after)
        case _:
            assert_never(request)


def append(replica: Replica, request: AppendEntries) -> None:
    """Process an append of the leader of our term, and reply."""
    if request.previous.index < replica.log.start.index:
        shortened = without_compacted(replica, request)
        if shortened is None:
            return
        request = shortened
    if not replica.log.matches(request.previous):
        replica.refuse_append(request.leader, request.correlation, next_to_try(replica.log, request.previous))
        return
    conflict = first_new_index(replica, request)
    if conflict is not None and conflict <= replica.applier.commit:
        replica.dropped[Drop.APPEND_AGAINST_COMMIT] += 1
        replica.refuse_append(request.leader, request.correlation, replica.applier.commit + 1)
        return
    if conflict is not None and (replica.disk_full or _backlog_is_full(replica)):
        replica.dropped[Drop.APPEND_DISK_FULL if replica.disk_full else Drop.APPEND_BACKLOG_FULL] += 1
        matched = request.previous.index
        acknowledge(replica, request, min(matched, replica.log.durable_index), replica.hard_state_number)
    else:
        matched = request.previous.index + len(request.entries)
        _store(replica, request, conflict, matched)
    replica.applier.commit_up_to(proven_commit(replica, request, matched))


def without_compacted(replica: Replica, request: AppendEntries) -> AppendEntries | None:
    """Return the part of an old append after our compacted entries; None after a reply.

    If the append ends before the last compacted entry, acknowledge it once our snapshot is durable: compacted entries
    were committed, so they equal the leader's. If the append contains that entry in another term, refuse the append.
    """
    start = replica.log.start
    covered = start.index - request.previous.index
    if len(request.entries) < covered:
        after = max(replica.hard_state_number, replica.log.writing_number)
        acknowledge(replica, request, request.previous.index + len(request.entries), after)
        return None
    if request.entries[covered - 1].term != start.term:
        replica.dropped[Drop.APPEND_AGAINST_COMMIT] += 1
        replica.refuse_append(request.leader, request.correlation, replica.applier.commit + 1)
        return None
    return replace(request, previous=start, entries=request.entries[covered:], encoded=encoded_behind(request, covered))


def encoded_behind(request: AppendEntries, count: int) -> bytes:
    """Return the bytes of an append's entries after the first `count`; empty if the append lacks bytes."""
    return request.encoded[group_bytes(request.entries[:count]) :] if count else request.encoded


def next_to_try(log: Log, previous: LogId) -> Index:
    """Return the index to try after `previous` failed to match: skip whole conflicting terms."""
    agreement = log.divergence(previous)
    if agreement.index < previous.index or agreement.index == log.start.index:
        return agreement.index + 1
    return log.first_of_term_at(previous.index)


def first_new_index(replica: Replica, request: AppendEntries) -> Index | None:
    """Return the index of the first entry that we lack or hold in another term; None if we hold all entries."""
    for index, entry in enumerate(request.entries, start=request.previous.index + 1):
        if replica.log.term_at(index) != entry.term:
            return index
    return None


def proven_commit(replica: Replica, request: AppendEntries, matched: Index) -> Index:
    """Return the leader's commit index, limited to the proven match of the logs."""
    return min(request.commit, matched, replica.log.last_index)


def acknowledge(replica: Replica, request: AppendEntries, matched: Index, after: int) -> None:
    """Reply success up to `matched` once Persist `after` is durable."""
    reply = AppendReply(term=replica.term, success=True, next_index=matched + 1, correlation=request.correlation)
    replica.outbox.send(request.leader, reply, after)


def _store(replica: Replica, request: AppendEntries, first_new: Index | None, matched: Index) -> None:
    if first_new is not None:
        truncate_from = first_new if first_new <= replica.log.last_index else None
        known_count = first_new - request.previous.index - 1
        replica.append(request.entries[known_count:], truncate_from, encoded_behind(request, known_count))
    if not request.entries:
        acknowledge(replica, request, min(matched, replica.log.durable_index), replica.hard_state_number)
    else:
        acknowledge(replica, request, matched, max(replica.hard_state_number, replica.log.writing_number))


def _backlog_is_full(replica: Replica) -> bool:
    waiting = replica.log.last_index - replica.log.durable_index
    return waiting >= replica.options.tail_entries or (
        waiting > 0 and replica.log.tail_bytes >= 2 * replica.options.tail_bytes
    )
