"""A follower: takes what the leader sends, votes, and campaigns when it hears nothing (Raft sections 5.2, 5.3).

An append passes the consistency check (`previous` is in our log, in that term) or is refused with a hint. Then
entries that are there already are skipped, a conflicting suffix is cut, the rest is appended. An append that is a
prefix of what we hold cuts nothing: it may be an old one that was delayed. The commit index follows the leader's only
as far as this append proved our log equal to the leader's; beyond, we may hold entries that it never had.

Success is answered when what it claims is durable. A heartbeat is answered at once, with what is durable already, so a
follower whose disk is slow is late but never seems dead.
"""

from dataclasses import dataclass, replace

from consensus.core.log import Log
from consensus.core.messages import AppendEntries, AppendReply
from consensus.core.model import Index, LogId, Milliseconds, ServerId
from consensus.core.replica import Replica


@dataclass(slots=True)
class Follower:
    """The role of follower, of a known leader or of none."""

    deadline: Milliseconds
    leader: ServerId | None = None
    contact_ms: Milliseconds | None = None
    former: ServerId | None = None
    """Who led this term and said that it does so no more."""

    def disown(self) -> None:
        """The leader leads no more: know none, and hear candidates."""
        self.former, self.leader, self.contact_ms = self.leader, None, None

    def hears_a_leader(self, replica: Replica) -> bool:
        """Whether the minimum election timeout since the last word of a leader has not passed."""
        if self.contact_ms is None:
            return False
        return replica.now < self.contact_ms + replica.options.election_timeout_min_ms

    def heed(self, replica: Replica, leader: ServerId) -> None:
        """A word of the leader of our term came."""
        self.leader = leader
        self.contact_ms = replica.now
        self.deadline = replica.random_election_deadline()

    def receive(self, replica: Replica, request: AppendEntries) -> None:
        """An append from the leader of our term, who was heeded already."""
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
            replica.dropped["append that contradicts committed entries"] += 1
            replica.refuse_append(request.leader, request.correlation, replica.applier.commit + 1)
            return
        if conflict is not None and (replica.disk_full or _backlog_is_full(replica)):
            full = "disk" if replica.disk_full else "backlog"
            replica.dropped[f"append while the {full} is full"] += 1
            matched = request.previous.index
            acknowledge(replica, request, min(matched, replica.log.durable_index), replica.hard_state_number)
        else:
            matched = request.previous.index + len(request.entries)
            self._take(replica, request, conflict, matched)
        replica.applier.commit_up_to(proven_commit(replica, request, matched))

    def _take(self, replica: Replica, request: AppendEntries, first_new: Index | None, matched: Index) -> None:
        if first_new is not None:
            truncate_from = first_new if first_new <= replica.log.last_index else None
            replica.append(request.entries[first_new - request.previous.index - 1 :], truncate_from)
        if not request.entries:
            acknowledge(replica, request, min(matched, replica.log.durable_index), replica.hard_state_number)
        else:
            acknowledge(replica, request, matched, max(replica.hard_state_number, replica.log.writing_number))


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
        replica.dropped["append that contradicts committed entries"] += 1
        replica.refuse_append(request.leader, request.correlation, replica.applier.commit + 1)
        return None
    return replace(request, previous=start, entries=request.entries[covered:])


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
    reply = AppendReply(replica.term, success=True, next_index=matched + 1, correlation=request.correlation)
    replica.outbox.send(request.leader, reply, after)


def _backlog_is_full(replica: Replica) -> bool:
    waiting = replica.log.last_index - replica.log.durable_index
    return waiting >= replica.options.tail_entries or (
        waiting > 0 and replica.log.tail_bytes >= 2 * replica.options.tail_bytes
    )
