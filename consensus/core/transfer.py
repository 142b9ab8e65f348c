"""Transfer of leadership to a chosen server (Ongaro's thesis, section 3.10).

    request ─▶ hold new proposals ─▶ target holds the whole log ─▶ TimeoutNow ─▶ target campaigns ─▶ done
                    │                                          └▶ (a peer without TimeoutNow) abdicate, abstain ─▶ done
                    └ an election timeout has passed: resume the proposals, in order; the transfer failed

A bounded number of proposals is held, so that the log stops growing and the target can catch up. If the transfer fails
while this server leads, the held proposals are proposed again. If the term of this server ends, they are refused; this
is correct, because they were never in the log.

After TimeoutNow the target campaigns immediately and without pre-vote. A flag in its vote requests permits voters to
grant the vote although they are in contact with a leader. For a peer without TimeoutNow, the leader becomes a follower
when the peer is caught up, and does not campaign for two maximum election timeouts. Another server may then win; the
outcome is `ELSEWHERE`.

The outcome is known only when the next leader is known. So a transfer continues after the leader's term, until the
transfer's deadline.
"""

from msgspec import Struct, field

from consensus.core.drops import Drop
from consensus.core.effects import Outcome, ProposalResolved, TransferEnded, TransferOutcome
from consensus.core.events import Proposed, TransferLeadership
from consensus.core.leader import Leader
from consensus.core.log import ENTRY_OVERHEAD_BYTES
from consensus.core.messages import TimeoutNow, TimeoutNowReply
from consensus.core.model import Milliseconds, ServerId, Term
from consensus.core.replica import Replica

ABSTENTION_TIMEOUTS = 2


class LeadershipTransfer(Struct):
    """One transfer, from the request to its outcome."""

    transfer_id: int
    target: ServerId
    term: Term
    deadline: Milliseconds
    request_sent_ms: Milliseconds | None = None
    correlation: int | None = None
    declined: bool = False
    pending: list[Proposed] = field(default_factory=list)
    pending_bytes: int = 0


class LeadershipTransfers:
    """At most one transfer at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._transfer: LeadershipTransfer | None = None

    @property
    def under_way(self) -> bool:
        """Return True if `advance` has work."""
        return self._transfer is not None

    @property
    def target(self) -> ServerId | None:
        """Return the target of the transfer under way."""
        return None if self._transfer is None else self._transfer.target

    @property
    def pending(self) -> int:
        """Proposals that wait for the outcome."""
        return 0 if self._transfer is None else len(self._transfer.pending)

    @property
    def deadline(self) -> Milliseconds | None:
        """Return the time to end the transfer, or to send TimeoutNow again."""
        transfer = self._transfer
        if transfer is None:
            return None
        if transfer.correlation is None or transfer.request_sent_ms is None:
            return transfer.deadline
        return min(transfer.deadline, transfer.request_sent_ms + self._replica.options.retry_ms)

    def begin(self, event: TransferLeadership, leader: Leader | None, known_leader: ServerId | None) -> None:
        """Begin a transfer for an operator, or for a server that is about to stop."""
        replica = self._replica
        target = event.target
        if target is None and leader is not None:
            target = most_caught_up(replica, leader)
        refusal = self._refusal(event, target, leader)
        if refusal is not None or target is None:
            outcome = refusal or TransferOutcome.NO_VOTER
            replica.outbox.add(TransferEnded(event.transfer_id, outcome, known_leader))
            return
        deadline = replica.now + replica.options.election_timeout_max_ms
        self._transfer = LeadershipTransfer(event.transfer_id, target, replica.term, deadline)

    def hold(self, proposed: Proposed) -> bool:
        """Hold or refuse a proposal during a transfer; return False without a transfer."""
        replica, transfer = self._replica, self._transfer
        if transfer is None or transfer.term != replica.term:
            return False
        size = sum(ENTRY_OVERHEAD_BYTES + len(command) for command in proposed.commands)
        if (
            len(transfer.pending) >= replica.options.max_pending_proposals
            or transfer.pending_bytes + size > replica.options.max_pending_bytes
        ):
            replica.outbox.add(
                ProposalResolved(proposal_id=proposed.proposal_id, outcome=Outcome.BUSY, leader=replica.server_id)
            )
        else:
            transfer.pending.append(proposed)
            transfer.pending_bytes += size
        return True

    def replied(self, sender: ServerId, reply: TimeoutNowReply) -> None:
        """Record that the target accepted or refused TimeoutNow; in both cases TimeoutNow is not repeated."""
        transfer = self._transfer
        if transfer is None or (sender, reply.correlation) != (transfer.target, transfer.correlation):
            self._replica.dropped[Drop.STALE_TRANSFER_REPLY] += 1
            return
        transfer.correlation = None
        if not reply.accepted:
            transfer.declined, transfer.deadline = True, self._replica.now

    def advance(self, leader: Leader | None, known_leader: ServerId | None) -> bool:
        """Continue the transfer. Return True if the leader must abdicate now."""
        replica, transfer = self._replica, self._transfer
        if transfer is None:
            return False
        if leader is None or replica.term != transfer.term:
            self._follow_up(transfer, known_leader)
            return False
        if transfer.target not in replica.voters:
            self._resume(transfer, leader, TransferOutcome.NOT_A_VOTER)
        elif transfer.declined:
            self._resume(transfer, leader, TransferOutcome.DECLINED)
        elif replica.now >= transfer.deadline:
            self._resume(transfer, leader, TransferOutcome.TIMED_OUT)
        elif leader.followers[transfer.target].match == replica.log.last_index:
            return self._hand_over(transfer, leader)
        return False

    def abstain_until(self) -> Milliseconds:
        """Return the earliest time when a leader that abdicates may campaign."""
        return self._replica.now + ABSTENTION_TIMEOUTS * self._replica.options.election_timeout_max_ms

    def _refusal(
        self, event: TransferLeadership, target: ServerId | None, leader: Leader | None
    ) -> TransferOutcome | None:
        if leader is None:
            return TransferOutcome.NOT_LEADER
        if self._transfer is not None:
            return TransferOutcome.ANOTHER_UNDER_WAY
        if event.target == self._replica.server_id:
            return TransferOutcome.TO_ITSELF
        if target is not None and target not in self._replica.voters:
            return TransferOutcome.NOT_A_VOTER
        return None

    def _hand_over(self, transfer: LeadershipTransfer, leader: Leader) -> bool:
        """Make the target, which holds our whole log, campaign; return True if the leader must abdicate for this."""
        replica = self._replica
        leader.lease.end()
        if not replica.understands_transfer(transfer.target):
            transfer.deadline = self.abstain_until()
            return True
        first = transfer.request_sent_ms is None
        overdue = transfer.correlation is not None and (
            replica.now >= (transfer.request_sent_ms or 0) + replica.options.retry_ms
        )
        if first or overdue:
            transfer.request_sent_ms, transfer.correlation = replica.now, replica.next_correlation()
            replica.outbox.send(transfer.target, TimeoutNow(replica.term, replica.server_id, transfer.correlation))
        return False

    def _resume(self, transfer: LeadershipTransfer, leader: Leader, outcome: TransferOutcome) -> None:
        self._transfer = None
        self._replica.outbox.add(TransferEnded(transfer.transfer_id, outcome, self._replica.server_id))
        for proposed in transfer.pending:
            leader.propose(proposed)

    def _follow_up(self, transfer: LeadershipTransfer, known_leader: ServerId | None) -> None:
        """Resolve the transfer after the end of our leadership: when a new leader is known, or at the deadline."""
        replica = self._replica
        for proposed in transfer.pending:
            replica.outbox.add(
                ProposalResolved(proposal_id=proposed.proposal_id, outcome=Outcome.NOT_LEADER, leader=known_leader)
            )
        transfer.pending.clear()
        transfer.correlation = None
        if known_leader is not None:
            outcome = TransferOutcome.DONE if known_leader == transfer.target else TransferOutcome.ELSEWHERE
        elif replica.now >= transfer.deadline:
            outcome = TransferOutcome.UNKNOWN
        else:
            return
        self._transfer = None
        replica.outbox.add(TransferEnded(transfer.transfer_id, outcome, known_leader))


def most_caught_up(replica: Replica, leader: Leader) -> ServerId | None:
    """Return the other voter with the longest log; among equals the latest contact decides, then the lowest id."""
    candidates = {peer: leader.followers[peer] for peer in replica.others if peer in leader.followers}
    # In order of id; among equals `max` takes the first.
    return max(candidates, key=lambda peer: (candidates[peer].match, candidates[peer].contact_ms), default=None)
