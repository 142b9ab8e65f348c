"""A leader: takes proposals, commits what a majority holds, and resigns when no majority answers.

How entries reach the followers is the strategy's business (`replication.py`); what their answers amount to is decided
here. Commitment has one way in, `acknowledge`: a follower's match index rises, or our own disk has caught up. An index
commits when a majority of voters holds it durably *and* its entry is of our own term (Raft section 5.4.2); entries of
older terms commit with it, never by counting. To have such an entry at once, a new leader appends the protocol's no-op;
where the protocol has none, its configuration again.

Check-quorum: a leader that a majority has not answered within an election timeout becomes a follower, so clients of a
leader that was cut off are told, and its refusal of other candidates ends.

A leader may be answered and yet be of no use: its disk hangs, and so does one of the two followers. So it also resigns
when proposals wait and nothing has been committed for several election timeouts (`Options.stalled_timeouts`). It stays
while a voter that lacks the oldest of them gets further, for a long log or a snapshot would begin anew under the next
leader; and it stays if it is the only voter.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from consensus.core import quorum
from consensus.core.effects import (
    Outcome,
    ProposalAccepted,
    ProposalResolved,
    ReadReady,
    ReadRefusal,
    ReadRefused,
)
from consensus.core.entry_data import configuration_entry, encode_group, no_op_entry
from consensus.core.events import Proposed
from consensus.core.log import ENTRY_OVERHEAD_BYTES
from consensus.core.membership import Reconfiguration
from consensus.core.model import COMMAND, MAX_NUMBER, Entry, Index, LogId, Milliseconds, NoOp, ServerId
from consensus.core.reads import Lease, Reads
from consensus.core.replica import Replica
from consensus.core.replication.port import Office, Replication
from consensus.core.replication.progress import Standing

Strategy = Callable[[Replica, Office, dict[ServerId, Standing]], Replication]


@dataclass(frozen=True, slots=True)
class Pending:
    """A proposal in the log that waits for commitment. `last` is the index of its last entry."""

    proposal_id: int
    last: Index
    size_bytes: int


class Leader:
    """The role of leader in one term."""

    def __init__(self, replica: Replica, strategy: Strategy, granted_by: tuple[ServerId, ...]) -> None:
        """Take office: know nothing about the followers but that they have just voted, and append the no-op."""
        self._replica = replica
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        self._progress_ms = replica.now
        """When something was last committed, or when proposals began to wait."""
        self.successor: ServerId | None = None
        """Whom to put first if we resign, where the strategy has a word for it."""
        self.followers: dict[ServerId, Standing] = {}
        self.reconfiguration = Reconfiguration(replica, self.followers)
        self._reads = Reads(replica.options.max_pending_reads)
        self.lease = Lease(replica.options.election_timeout_min_ms, replica.options.lease_clock_bound_ms)
        self.replication = strategy(replica, self, self.followers)
        replica.append(_first_entries(replica, granted_by))
        self.replication.begin()

    @property
    def deadline(self) -> Milliseconds:
        """When the strategy has something to do, or the check for a majority is due."""
        check = self._quorum_contact_ms() + self._replica.options.election_timeout_min_ms
        timers = (self.replication.deadline, self.reconfiguration.deadline, self._stall_deadline)
        return min((check, *(due for due in timers if due is not None)))

    @property
    def pending(self) -> int:
        """Proposals that wait for commitment."""
        return len(self._pending)

    @property
    def pending_reads(self) -> int:
        """Reads that wait for their round."""
        return len(self._reads)

    @property
    def confirmed_round(self) -> int:
        """The newest round of `confirm` that a majority has answered."""
        rounds = {peer: standing.round_number for peer, standing in self.followers.items()}
        rounds[self._replica.server_id] = MAX_NUMBER
        return quorum.held_by_majorities(rounds, self._replica.majorities)

    def expire(self) -> bool:
        """Do what is due; returns False when no majority has answered, or nothing was committed, for too long."""
        replica = self._replica
        if replica.now >= self._quorum_contact_ms() + replica.options.election_timeout_min_ms or self._is_stalled():
            return False
        self.replication.expire()
        return True

    def propose(self, proposed: Proposed) -> None:
        """Append the commands, or refuse when too much waits already."""
        replica = self._replica
        term = replica.term
        entries = tuple([Entry(term, COMMAND, data) for data in proposed.commands])
        size = ENTRY_OVERHEAD_BYTES * len(entries) + sum(map(len, proposed.commands))
        if (
            len(self._pending) >= replica.options.max_pending_proposals
            or self._pending_bytes + size > replica.options.max_pending_bytes
            or replica.log.last_index + len(entries) > MAX_NUMBER
        ):
            replica.outbox.add(ProposalResolved(proposed.proposal_id, Outcome.BUSY, leader=replica.server_id))
            return
        if entries:
            replica.append(entries, encoded=encode_group(entries))
        if not self._pending:
            self._progress_ms = replica.now
        self._pending.append(Pending(proposed.proposal_id, replica.log.last_index, size))
        self._pending_bytes += size
        if proposed.tell_accepted:
            replica.outbox.add(ProposalAccepted(proposed.proposal_id, replica.log.last))
        self.replication.appended()
        self._resolve_committed()

    def advance(self) -> bool:
        """At the end of a step: go on with a change of the configuration; returns False when it has dismissed us."""
        self._adjust_followers()
        configuration = self.reconfiguration.advance()
        if configuration is not None:
            self._replica.append((configuration_entry(self._replica.term, configuration),))
            self.reconfiguration.appended()
        self._adjust_followers()
        if configuration is not None:
            self.replication.appended()
        return not self.reconfiguration.is_dismissed

    def read(self, read_id: int) -> None:
        """A linearizable read: ready under a lease, else with the next round (`serve_reads`)."""
        replica = self._replica
        if self._knows_commit_index() and self.lease.holds(replica.now):
            replica.outbox.add(ReadReady(read_id, replica.applier.commit))
        elif not self._reads.add(read_id):
            replica.outbox.add(ReadRefused(read_id, ReadRefusal.BUSY, replica.server_id))

    def serve_reads(self) -> None:
        """Something happened: answer the round of reads that is confirmed, and begin the next."""
        replica = self._replica
        while self._reads and self._knows_commit_index():
            round_number = self._reads.begin_round(replica.applier.commit, replica.now)
            if round_number is not None:
                self.replication.confirm(round_number)
            finished = self._reads.finish_round(self.confirmed_round)
            if finished is None:
                return
            ready, index, began_ms = finished
            if all(map(replica.keeps_leases, replica.others)):
                self.lease.renew(began_ms)
            for read_id in ready:
                replica.outbox.add(ReadReady(read_id, index))

    def heard(self, peer: ServerId) -> None:
        """The peer sent a word of our term just now."""
        standing = self.followers[peer]
        standing.contact_ms, standing.heard = self._replica.now, True

    def confirmed(self, peer: ServerId, round_number: int) -> None:
        """The peer answered, in our term, a request that was sent in this round or later."""
        standing = self.followers[peer]
        standing.round_number = max(standing.round_number, round_number)

    def acknowledge(self, peer: ServerId, index: Index) -> None:
        """The peer (or our own disk) holds our log up to `index`: commit what a majority holds, if of our own term."""
        replica = self._replica
        if peer != replica.server_id:
            self.followers[peer].reached(index, replica.log.last_index, replica.now)
        matches = {peer: standing.match for peer, standing in self.followers.items()}
        matches[replica.server_id] = self._own_match()
        held = quorum.held_by_majorities(matches, replica.majorities)
        if self._may_commit(held) and replica.applier.commit_up_to(held):
            self._progress_ms = replica.now
            self._resolve_committed()
            self.replication.committed()

    def resign(self) -> None:
        """Leadership ended: nobody can say any more what becomes of the proposals that are not committed."""
        for pending in self._pending:
            self._replica.outbox.add(ProposalResolved(pending.proposal_id, Outcome.UNKNOWN, leader=None))
        self._pending.clear()
        for read_id in self._reads.end():
            self._replica.outbox.add(ReadRefused(read_id, ReadRefusal.NOT_LEADER, leader=None))
        self.reconfiguration.resign()
        self.replication.resign(self.successor)

    def _adjust_followers(self) -> None:
        if self.reconfiguration.adjust_followers():
            self.replication.followers_changed()

    def _knows_commit_index(self) -> bool:
        """A leader has every committed entry, but only one of its own term tells it which those are."""
        return self._replica.log.term_at(self._replica.applier.commit) == self._replica.term

    def _own_match(self) -> Index:
        return self._replica.log.durable_index

    def _may_commit(self, index: Index) -> bool:
        return self._replica.log.term_at(index) == self._replica.term

    def _quorum_contact_ms(self) -> Milliseconds:
        contacts = {peer: standing.contact_ms for peer, standing in self.followers.items()}
        contacts[self._replica.server_id] = self._replica.now
        return quorum.held_by_majorities(contacts, self._replica.majorities)

    @property
    def _stall_deadline(self) -> Milliseconds | None:
        """When we resign unless something is committed. None: no proposal waits, or nobody else could lead."""
        replica = self._replica
        if not self._pending or not replica.others:
            return None
        return self._progress_ms + replica.options.stalled_timeouts * replica.options.election_timeout_min_ms

    def _is_stalled(self) -> bool:
        replica, due = self._replica, self._stall_deadline
        if due is None or replica.now < due:
            return False
        wanted = self._pending[0].last
        for peer in replica.others:
            standing = self.followers.get(peer)
            if standing is not None and standing.match < wanted:
                self._progress_ms = max(self._progress_ms, standing.advanced_ms)
        due = self._stall_deadline
        return due is not None and replica.now >= due

    def _resolve_committed(self) -> None:
        replica = self._replica
        while self._pending and self._pending[0].last <= replica.applier.commit:
            pending = self._pending.popleft()
            self._pending_bytes -= pending.size_bytes
            position = LogId(pending.last, replica.log.term_at(pending.last) or 0)
            replica.outbox.add(ProposalResolved(pending.proposal_id, Outcome.COMMITTED, position, replica.server_id))


def _first_entries(replica: Replica, granted_by: tuple[ServerId, ...]) -> tuple[Entry, ...]:
    """The no-op, and the members as the root of an empty log: who joins later knows them from nowhere else."""
    configuration = configuration_entry(replica.term, replica.log.configuration)
    if not replica.features.no_op:
        return (configuration,)
    no_op = no_op_entry(replica.term, NoOp(replica.server_id, tuple(sorted(replica.voters)), granted_by))
    return (no_op,) if replica.log.last_index else (configuration, no_op)
