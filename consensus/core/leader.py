"""A leader: accepts proposals and reads, reports committed proposals, and resigns if no majority replies.

The replication strategy transfers the entries to the followers (`replication.port`); `ProgressTracker` counts the
followers' replies. To commit an entry of its term, a new leader immediately appends the protocol's no-op, or its
configuration if the protocol lacks a no-op. With `NO_OP_IF_NEEDED`, a leader whose whole log is committed appends the
no-op when a read or a change needs it.

*Check-quorum.* A leader becomes a follower if no majority replies to it within `check_quorum_ms`. An isolated leader
then refuses its clients, which can try other servers, and no longer refuses other candidates.

A leader that receives replies may still be unable to commit: of three servers, its own disk and a follower's disk may
hang. So it also resigns if proposals wait and nothing has been committed for `PolicyTimes.stall_timeout_ms`. It does
not resign while a voter that lacks the oldest waiting proposal makes progress. A new leader would have to restart the
transfer of a long log or a snapshot. It also does not resign if it is the only voter.

*The deadline is stored*, not computed over all followers after each step. Contacts and sent requests only postpone due
work, so the stored deadline may be too early, but never too late. Code that adds earlier work calls
`ProgressTracker.wake_by`. At the deadline the leader does the due work, if any, and computes the next deadline.
"""

from collections import deque
from collections.abc import Callable
from typing import assert_never

from msgspec import Struct

from consensus.core.effects import Outcome, ProposalAccepted, ProposalResolved, ReadReady, ReadRefusal, ReadRefused
from consensus.core.entry_data import configuration_entry, encode_group, no_op_entry
from consensus.core.events import ChangeConfiguration, Proposed
from consensus.core.features import FirstEntries
from consensus.core.log import ENTRY_OVERHEAD_BYTES
from consensus.core.membership import Reconfiguration
from consensus.core.messages import Message
from consensus.core.model import MAX_NUMBER, Entry, EntryKind, Index, LogId, Milliseconds, NoOp, ServerId
from consensus.core.reads import Lease, Reads
from consensus.core.replica import Replica
from consensus.core.replication.port import Replication
from consensus.core.replication.progress import ProgressTracker
from consensus.core.slow_link import slow_link_ms

Strategy = Callable[[Replica, ProgressTracker], Replication]


class Pending(Struct, frozen=True):
    """A proposal in the log that waits for commitment. `last` is the index of its last entry."""

    proposal_id: int
    last: Index
    size_bytes: int


class Leader:
    """The role of leader in one term."""

    def __init__(self, replica: Replica, strategy: Strategy, granted_by: tuple[ServerId, ...]) -> None:
        """Become leader: reset the progress of every follower, and append the first entries if they are needed now."""
        self._replica = replica
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        self.leader = replica.server_id
        self.successor: ServerId | None = None
        """The preferred successor if this leader resigns, for a strategy whose messages can name one."""
        self.tracker = ProgressTracker(replica)
        self.followers = self.tracker.followers
        self.reconfiguration = Reconfiguration(replica, self.tracker)
        self._reads = Reads(replica.options.max_pending_reads)
        self.lease = Lease(replica.options.lease_ms, replica.options.lease_clock_bound_ms)
        self.replication = strategy(replica, self.tracker)
        self._granted_by = granted_by
        if not self.needs_no_entry_yet():
            replica.append(_first_entries(replica, granted_by))
        self.replication.begin()
        self._find_deadline()

    @property
    def deadline(self) -> Milliseconds:
        """The time to call `expire`: never later than the next due work, but possibly earlier."""
        return self.tracker.wake_ms

    @property
    def pending(self) -> int:
        """Proposals that wait for commitment."""
        return len(self._pending)

    @property
    def pending_reads(self) -> int:
        """Reads that wait for their round."""
        return self._reads.unanswered

    def expire(self) -> bool:
        """Do the due work. Return False if this leader must resign, by check-quorum or because commits have stalled."""
        if self._replica.now >= self._quorum_deadline or self._is_stalled():
            return False
        self.replication.expire()
        self._find_deadline()
        return True

    def propose(self, proposed: Proposed) -> None:
        """Append the commands, or refuse them if too many proposals or bytes already wait."""
        replica = self._replica
        commands = proposed.commands
        size = ENTRY_OVERHEAD_BYTES * len(commands) + sum(map(len, commands))
        if (
            len(self._pending) >= replica.options.max_pending_proposals
            or self._pending_bytes + size > replica.options.max_pending_bytes
            or replica.log.last_index + len(commands) > MAX_NUMBER
        ):
            replica.outbox.add(
                ProposalResolved(proposal_id=proposed.proposal_id, outcome=Outcome.BUSY, leader=replica.server_id)
            )
            return
        if commands:
            term, kind = replica.term, replica.features.kind_of(commands, control=proposed.control)
            entries = tuple([Entry(term, kind, data) for data in commands])
            replica.append(entries, encoded=encode_group(entries))
        if not self._pending:
            self.tracker.committed_ms = replica.now
            self.tracker.wake_by(replica.now + replica.options.stall_timeout_ms)
        self._pending.append(Pending(proposed.proposal_id, replica.log.last_index, size))
        self._pending_bytes += size
        if proposed.report_accepted:
            replica.outbox.add(ProposalAccepted(proposed.proposal_id, replica.log.last))
        self.replication.appended()
        self._resolve_committed()

    def advance(self) -> bool:
        """End a step: continue a change of the configuration. Return False if the change has removed this server."""
        if self.reconfiguration.is_settled:
            return True
        self._adjust_followers()
        configuration = self.reconfiguration.advance()
        if configuration is not None:
            self._replica.append((configuration,))
            self.reconfiguration.appended()
        self._adjust_followers()
        if configuration is not None:
            self.replication.appended()
        return not self.reconfiguration.is_dismissed

    def read(self, read_id: int) -> None:
        """Serve a linearizable read: immediately under a lease, otherwise with the next round (`serve_reads`)."""
        replica = self._replica
        self._append_no_op_if_needed()
        if self._knows_commit_index() and self.lease.holds(replica.now):
            replica.outbox.add(ReadReady(read_id, replica.applier.commit))
        elif not self._reads.add(read_id):
            replica.outbox.add(ReadRefused(read_id, ReadRefusal.BUSY, replica.server_id))

    def change_configuration(self, request: ChangeConfiguration) -> None:
        """Begin a change of the members. It is refused until an entry of our term is committed."""
        self._append_no_op_if_needed()
        self.reconfiguration.request(request)

    def needs_no_entry_yet(self) -> bool:
        """Return True if the first entry may wait.

        This requires that the protocol permits it, all entries are committed, and no change is open.
        """
        replica = self._replica
        return (
            replica.features.first_entries is FirstEntries.NO_OP_IF_NEEDED
            and replica.log.last_index == replica.applier.commit
            and not replica.log.configuration.is_joint
        )

    def _append_no_op_if_needed(self) -> None:
        """Append the protocol's first entries if the log does not have an entry of our term yet."""
        if self._replica.log.last_term != self._replica.term:
            self._replica.append(_first_entries(self._replica, self._granted_by))
            self.replication.appended()

    def serve_reads(self) -> None:
        """Reply to the confirmed round of reads, and begin the next."""
        replica = self._replica
        while self._reads.unanswered and self._knows_commit_index():
            round_number = self._reads.begin_round(replica.applier.commit, replica.now)
            if round_number is not None:
                self.replication.confirm(round_number)
            finished = self._reads.finish_round(self.tracker.confirmed_round)
            if finished is None:
                return
            ready, index, began_ms = finished
            if all(map(replica.keeps_leases, replica.others)):
                self.lease.renew(began_ms)
            for read_id in ready:
                replica.outbox.add(ReadReady(read_id, index))

    def receive(self, sender: ServerId, message: Message) -> None:
        """Process a message of the strategy, sent in our term; this may commit proposals."""
        self.replication.receive(sender, message)
        self._resolve_committed()

    def own_disk_caught_up(self) -> None:
        """Process the progress of our disk: more of our log is durable."""
        if self.tracker.own_disk_caught_up():
            self.replication.committed()
            self._resolve_committed()

    def resign(self) -> None:
        """End leadership: the outcome of uncommitted proposals is unknown from now on."""
        for pending in self._pending:
            self._replica.outbox.add(
                ProposalResolved(proposal_id=pending.proposal_id, outcome=Outcome.UNKNOWN, leader=None)
            )
        self._pending.clear()
        for read_id in self._reads.end():
            self._replica.outbox.add(ReadRefused(read_id, ReadRefusal.NOT_LEADER, leader=None))
        self.reconfiguration.resign()
        self.replication.resign(self.successor)

    def _adjust_followers(self) -> None:
        if self.reconfiguration.adjust_followers():
            self.replication.followers_changed()
            self._find_deadline()

    def _knows_commit_index(self) -> bool:
        """Return True if an entry of our term is committed.

        A leader has every committed entry, but only a committed entry of its term shows which entries are
        committed.
        """
        return self._replica.log.term_at(self._replica.applier.commit) == self._replica.term

    @property
    def _quorum_deadline(self) -> Milliseconds:
        """The time when this leader resigns unless a majority replies earlier."""
        return self.tracker.quorum_contact_ms + self._replica.options.check_quorum_ms

    @property
    def next_due_ms(self) -> Milliseconds:
        """The earliest due time, computed over all followers."""
        timers = (self.replication.deadline, self.reconfiguration.deadline, self._stall_deadline)
        return min([self._quorum_deadline, *(due for due in timers if due is not None)])

    def _find_deadline(self) -> None:
        self.tracker.wake_ms = self.next_due_ms

    @property
    def _stall_deadline(self) -> Milliseconds | None:
        """Time of resignation unless an entry is committed earlier; None without a waiting proposal or other voters."""
        replica = self._replica
        if not self._pending or not replica.others:
            return None
        # On a slow link, the transfer of a large command needs additional time.
        return self.tracker.committed_ms + replica.options.stall_timeout_ms + slow_link_ms(self._pending[0].size_bytes)

    def _is_stalled(self) -> bool:
        replica, due = self._replica, self._stall_deadline
        if due is None or replica.now < due:
            return False
        pending_index = self._pending[0].last
        for peer in replica.others:
            progress = self.followers.get(peer)
            if progress is not None and progress.match < pending_index:
                self.tracker.committed_ms = max(self.tracker.committed_ms, progress.advanced_ms)
        due = self._stall_deadline
        return due is not None and replica.now >= due

    def _resolve_committed(self) -> None:
        replica = self._replica
        while self._pending and self._pending[0].last <= replica.applier.commit:
            pending = self._pending.popleft()
            self._pending_bytes -= pending.size_bytes
            position = LogId(pending.last, replica.log.term_at(pending.last) or 0)
            replica.outbox.add(
                ProposalResolved(
                    proposal_id=pending.proposal_id,
                    outcome=Outcome.COMMITTED,
                    position=position,
                    leader=replica.server_id,
                )
            )


def _first_entries(replica: Replica, granted_by: tuple[ServerId, ...]) -> tuple[Entry, ...]:
    """Return the protocol's first entries of a term (`FirstEntries`)."""
    records = replica.leader_records
    head, named = records.head(), records.named
    configuration = configuration_entry(replica.term, replica.log.configuration, head)
    voters = tuple(map(named, sorted(replica.voters)))
    no_op_content = NoOp(named(replica.server_id), voters, tuple(map(named, granted_by)))
    no_op = no_op_entry(replica.term, no_op_content, head)
    match replica.features.first_entries:
        case FirstEntries.CONFIGURATION:
            return (configuration,)
        case FirstEntries.NO_OP:
            if replica.log.names_configuration:
                return (no_op,)
            controls = [Entry(replica.term, EntryKind.CONTROL, data) for data in records.controls()]
            return (no_op, *controls, configuration)
        case FirstEntries.NO_OP_ALONE:
            return (no_op,)
        case FirstEntries.NO_OP_IF_NEEDED:
            # The wire does not carry the content of a no-op, so the content must be empty: all servers must store the
            # same entry.
            return (no_op_entry(replica.term, NoOp()),)
        case _:
            assert_never(replica.features.first_entries)
