"""AppendEntries and InstallSnapshot as they arrive, in any role (Raft figures 2 and 13).

*Which sender is followed.*

    of an older term               refused at our term, nothing changes
    of a later term, from outside  refused and counted, while a leader is heard (`ServerRole.refuses_outsider`)
    of a term far ahead            refused, and our term has come nearer by one step (`Replica.adopt_term`)
    of a second leader             refused and counted: a term has one leader, so one of the two is wrong
    of the leader of our term      a candidate becomes its follower; the timer starts anew; the follower takes it

A leader counts every answer of its term towards check-quorum and its lease, a refusal too, because it proves that the
follower listens to no other candidate. A refused leader must not take the answer for such a promise, so the answer
never carries the term that this leader leads (`refuse_leader`).

*What an append does to the log.* An append passes the consistency check (`previous` is in our log, in that term) or is
refused with a hint. Then entries that are there already are skipped, a conflicting suffix is cut, the rest is appended.
An append that is a prefix of what we hold cuts nothing: it may be an old one that was delayed. The commit index follows
the leader's only as far as this append proved our log equal to the leader's; beyond, we may hold entries that it never
had.

Success is answered when what it claims is durable. A heartbeat is answered at once, with what is durable already, so a
follower whose disk is slow is late but never seems dead.

The counterpart is `fetch_receiver`, where the follower asks. Replies go to the role that asked (`raft`).
"""

from dataclasses import replace
from typing import assert_never

from consensus.core.drops import Drop
from consensus.core.entry_data import group_bytes
from consensus.core.log import Log
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.model import Index, LogId, ServerId, Term
from consensus.core.replica import Replica
from consensus.core.roles import ServerRole
from consensus.core.snapshots import ReceivedChunk, SnapshotReceiver


class AppendReceiver:
    """What a leader sends to one server, whatever the role of this server."""

    def __init__(self, replica: Replica, role: ServerRole, snapshots: SnapshotReceiver) -> None:
        self._replica = replica
        self._role = role
        self._snapshots = snapshots

    def receive(self, request: AppendEntries | InstallSnapshot) -> None:
        """A plausible request of a leader arrives."""
        if not self._follow(request.term, request.leader):
            refuse_leader(self._replica, request.leader, request)
            return
        match request:
            case AppendEntries():
                append(self._replica, request)
            case InstallSnapshot():
                chunk = ReceivedChunk(
                    term=request.term,
                    leader=request.leader,
                    last=request.last,
                    offset=request.offset,
                    data=request.data,
                    done=request.done,
                    correlation=request.correlation,
                    configuration=request.configuration,
                )
                self._snapshots.receive(chunk)
            case _:
                assert_never(request)

    def _follow(self, term: Term, leader: ServerId) -> bool:
        """A leader's request has come: be its follower. Returns False if it is no leader of our term."""
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
    """Answer a leader's request that has changed nothing here, not even who leads.

    The answer tells a leader of an older term our term. Any other leader must not count it: with an answer of its own
    term it would keep its majority and renew its lease, although we have promised nothing. So a leader of our term gets
    an answer of term 0, which is older than every leader's; a leader of a later term gets ours.
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
    """Take an append from the leader of our term, and answer it."""
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
    """The part of an old append that is not compacted here; None if there is none, and then it is answered.

    What is compacted was committed, so it equals what the leader has there. It is ours for good only when the snapshot
    that stands for it is durable, so the answer waits for that.
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
    """The bytes of an append's entries but for the first `count`, if they are at hand."""
    return request.encoded[group_bytes(request.entries[:count]) :] if count else request.encoded


def next_to_try(log: Log, previous: LogId) -> Index:
    """From where a leader should try after `previous` failed to match: skips whole conflicting terms."""
    agreement = log.divergence(previous)
    if agreement.index < previous.index or agreement.index == log.start.index:
        return agreement.index + 1
    return log.first_of_term_at(previous.index)


def first_new_index(replica: Replica, request: AppendEntries) -> Index | None:
    """Index of the first entry of the append that we do not hold, or hold in another term; None if we hold all."""
    for index, entry in enumerate(request.entries, start=request.previous.index + 1):
        if replica.log.term_at(index) != entry.term:
            return index
    return None


def proven_commit(replica: Replica, request: AppendEntries, matched: Index) -> Index:
    """The leader's commit index, as far as this append proved our log equal to the leader's."""
    return min(request.commit, matched, replica.log.last_index)


def acknowledge(replica: Replica, request: AppendEntries, matched: Index, after: int) -> None:
    """Answer success up to `matched` once Persist `after` is durable."""
    reply = AppendReply(term=replica.term, success=True, next_index=matched + 1, correlation=request.correlation)
    replica.outbox.send(request.leader, reply, after)


def _store(replica: Replica, request: AppendEntries, first_new: Index | None, matched: Index) -> None:
    if first_new is not None:
        truncate_from = first_new if first_new <= replica.log.last_index else None
        held = first_new - request.previous.index - 1
        replica.append(request.entries[held:], truncate_from, encoded_behind(request, held))
    if not request.entries:
        acknowledge(replica, request, min(matched, replica.log.durable_index), replica.hard_state_number)
    else:
        acknowledge(replica, request, matched, max(replica.hard_state_number, replica.log.writing_number))


def _backlog_is_full(replica: Replica) -> bool:
    waiting = replica.log.last_index - replica.log.durable_index
    return waiting >= replica.options.tail_entries or (
        waiting > 0 and replica.log.tail_bytes >= 2 * replica.options.tail_bytes
    )
