"""A leader: takes proposals, replicates, commits, and resigns when no majority answers.

Commitment has one way in, `acknowledge`: a follower's match index rises, or our own disk has caught up. An index
commits when a majority of voters holds it durably *and* its entry is of our own term (Raft section 5.4.2); entries of
older terms commit with it, never by counting. To have such an entry at once, a new leader appends its configuration
again: the no-op of a protocol that has none.

Check-quorum: a leader that a majority has not answered within an election timeout becomes a follower, so clients of a
leader that was cut off are told, and its refusal of other candidates ends.
"""

from collections import deque
from dataclasses import dataclass

from consensus.core import push, quorum
from consensus.core.effects import Outcome, Resolve
from consensus.core.events import EntriesRead, Proposed
from consensus.core.log import entry_bytes
from consensus.core.messages import AppendReply
from consensus.core.position import Command, Entry, Index, LogPosition, Milliseconds, ServerId
from consensus.core.progress import Pace, Progress
from consensus.core.replica import MAX_NUMBER, Replica


@dataclass(frozen=True, slots=True)
class Pending:
    """A proposal in the log that waits for commitment. `last` is the index of its last entry."""

    proposal_id: int
    last: Index
    size_bytes: int


class Leader:
    """The role of leader in one term."""

    def __init__(self, replica: Replica) -> None:
        """Take office: know nothing about the followers but that they have just voted, and append the no-op."""
        self._replica = replica
        beyond = replica.log.last_index + 1
        self.progress = {peer: Progress(next=beyond, contact_ms=replica.now) for peer in replica.others}
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        replica.append((Entry(replica.term, replica.log.configuration),))
        self._replicate_to_all()

    @property
    def deadline(self) -> Milliseconds:
        """When a heartbeat, a retry or the check for a majority is due."""
        tuning, now = self._replica.tuning, self._replica.now
        due = [self._quorum_contact_ms() + tuning.election_timeout_min_ms]
        for progress in self.progress.values():
            oldest = progress.oldest_sent_ms()
            due.append(now if progress.sent_ms is None else progress.sent_ms + tuning.heartbeat_ms)
            if oldest is not None and progress.pace is not Pace.SILENT:
                due.append(oldest + tuning.retry_ms)
        return min(due)

    @property
    def pending(self) -> int:
        """Proposals that wait for commitment."""
        return len(self._pending)

    def expire(self) -> bool:
        """Send what is due; returns False when no majority has answered for an election timeout."""
        replica = self._replica
        if replica.now >= self._quorum_contact_ms() + replica.tuning.election_timeout_min_ms:
            return False
        for peer, progress in self.progress.items():
            push.check_silence(replica, progress)
            if push.is_due(replica, progress):
                push.replicate(replica, peer, progress)
            if push.is_due(replica, progress):
                push.heartbeat(replica, peer, progress)
        return True

    def propose(self, proposed: Proposed) -> None:
        """Append the commands, or refuse when too much waits already."""
        replica = self._replica
        entries = tuple(Entry(replica.term, Command(data)) for data in proposed.commands)
        size = sum(map(entry_bytes, entries))
        if (
            len(self._pending) >= replica.tuning.max_pending_proposals
            or self._pending_bytes + size > replica.tuning.max_pending_bytes
            or replica.log.last_index + len(entries) > MAX_NUMBER
        ):
            replica.outbox.add(Resolve(proposed.proposal_id, Outcome.BUSY, leader=replica.server_id))
            return
        if entries:
            replica.append(entries)
        self._pending.append(Pending(proposed.proposal_id, replica.log.last_index, size))
        self._pending_bytes += size
        self._replicate_to_all()
        self._resolve_committed()

    def receive(self, sender: ServerId, reply: AppendReply) -> None:
        """A follower answered an append in our term."""
        replica, progress = self._replica, self.progress[sender]
        request = progress.answered(reply.correlation)
        if request is None:
            replica.dropped["stale or foreign append reply"] += 1
            return
        progress.contact_ms, progress.heard = replica.now, True
        if not reply.success:
            if progress.refused(request, reply.next_index):
                push.replicate(replica, sender, progress)
            return
        matched = reply.next_index - 1
        if matched > request.last:
            replica.dropped["append reply beyond its request"] += 1
            return
        progress.succeeded(request, matched, replica.now)
        self.acknowledge()
        push.replicate(replica, sender, progress)
        self._tell_commit_index(sender, progress)

    def entries_read(self, event: EntriesRead) -> bool:
        """Storage answered; returns False if the read is not for one of our followers."""
        for peer, progress in self.progress.items():
            if progress.read_id == event.request_id:
                push.entries_read(self._replica, peer, progress, event.first, event.entries)
                return True
        return False

    def acknowledge(self) -> None:
        """Match indexes or our own durable index rose: commit what a majority holds, if it is of our own term."""
        replica = self._replica
        matches = {peer: progress.match for peer, progress in self.progress.items()}
        matches[replica.server_id] = self._own_match()
        index = quorum.held_by_majority(matches, replica.voters)
        if self._may_commit(index) and replica.applier.commit_up_to(index):
            self._resolve_committed()
            for peer, progress in self.progress.items():
                self._tell_commit_index(peer, progress)

    def resign(self) -> None:
        """Leadership ended: nobody can say any more what becomes of the proposals that are not committed."""
        for pending in self._pending:
            self._replica.outbox.add(Resolve(pending.proposal_id, Outcome.UNKNOWN, leader=None))
        self._pending.clear()

    def _own_match(self) -> Index:
        return self._replica.log.durable_index

    def _may_commit(self, index: Index) -> bool:
        return self._replica.log.term_at(index) == self._replica.term

    def _quorum_contact_ms(self) -> Milliseconds:
        contacts = {peer: progress.contact_ms for peer, progress in self.progress.items()}
        contacts[self._replica.server_id] = self._replica.now
        return quorum.held_by_majority(contacts, self._replica.voters)

    def _replicate_to_all(self) -> None:
        for peer, progress in self.progress.items():
            push.replicate(self._replica, peer, progress)

    def _resolve_committed(self) -> None:
        replica = self._replica
        while self._pending and self._pending[0].last <= replica.applier.commit:
            pending = self._pending.popleft()
            self._pending_bytes -= pending.size_bytes
            position = LogPosition(pending.last, replica.log.term_at(pending.last) or 0)
            replica.outbox.add(Resolve(pending.proposal_id, Outcome.COMMITTED, position, replica.server_id))

    def _tell_commit_index(self, peer: ServerId, progress: Progress) -> None:
        """Tell an idle follower now, not with the next heartbeat; the others hear of it soon anyway."""
        behind = progress.sent_commit < self._replica.applier.commit
        if behind and progress.pace is Pace.REPLICATING and not progress.in_flight:
            push.heartbeat(self._replica, peer, progress)
