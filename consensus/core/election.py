"""Elections: campaigns of candidates (Raft section 5.2) and the rules for votes (sections 5.4.1 and 6).

    timeout ──▶ pre-vote ──majority would grant──▶ vote in term + 1 ──majority granted──▶ leader
                   │                                  │
                   └──────── so many denials that no majority is left, or a leader appears ──▶ follower
                   └──────── timeout ──▶ again from the start, with a new random timeout

A pre-vote request does not change a term or a vote, so a server that was cut off does not raise other servers' terms. A
peer whose handshake excludes pre-vote counts as granting. If it counted as denying, a cluster with old and new servers
could not elect a leader. A peer that was never reached counts neither way. If it counted as granting, a server without
any connection since its start would raise its term at each timeout. Sending the request makes the transport connect to
the peer, and the handshake then shows, within the same round, whether the peer supports pre-vote.

A server that leads or is in contact with a leader refuses votes before this module sees the request, except in a
transfer (`ServerRole.sticks_to_leader`). Otherwise one server that misses heartbeats could depose every leader.
A vote is durable before its reply leaves: otherwise a server could vote twice in one term after a crash and restart.
"""

from msgspec import Struct, field

from consensus.core import quorum
from consensus.core.drops import Drop
from consensus.core.messages import RefusalReason, RequestVote, VoteReply
from consensus.core.model import HardState, LogId, Milliseconds, ServerId, Term
from consensus.core.quorum import VoteResult
from consensus.core.replica import Replica


def may_vote(hard_state: HardState, last: LogId, request: RequestVote) -> bool:
    """Return True if this server may vote for the candidate in the current term."""
    return (
        request.term == hard_state.term
        and hard_state.voted_for in (None, request.candidate)
        and request.last.at_least_as_up_to_date_as(last)
    )


def would_vote(hard_state: HardState, last: LogId, request: RequestVote) -> bool:
    """Return True if this server would grant a real vote request in the requested term."""
    return request.term > hard_state.term and request.last.at_least_as_up_to_date_as(last)


def objection(replica: Replica, request: RequestVote) -> RefusalReason | None:
    """Return the reason to deny a vote under a protocol with additional rules (KIP-595, Vote); None without a reason.

    A candidate outside the configuration is refused, unless its log is more up to date than ours (term first, then
    length). An entry that we lack may have made it a voter. Without this exception, no server might be able to win an
    election after an entry with new voters reached only one server.
    """
    if replica.is_foreign(request.cluster_id):
        return RefusalReason.FOREIGN_CLUSTER
    is_outsider = replica.features.votes_for_members_only and request.candidate not in replica.voters
    if is_outsider and replica.log.last.at_least_as_up_to_date_as(request.last):
        return RefusalReason.INCONSISTENT_VOTERS
    return None


def answer_pre_vote(replica: Replica, request: RequestVote) -> None:
    """Reply to a pre-vote request; this changes neither our term nor our vote."""
    error = objection(replica, request)
    granted = error is None and would_vote(replica.hard_state, replica.log.last, request)
    replica.answer_vote(request, granted=granted, error=error)


def answer_vote(replica: Replica, request: RequestVote) -> bool:
    """Reply to a vote request after the check of its term; return True if the vote was granted."""
    error = objection(replica, request)
    granted = error is None and may_vote(replica.hard_state, replica.log.last, request)
    if granted and replica.hard_state.voted_for is None:
        replica.set_hard_state(HardState(request.term, request.candidate))
    replica.answer_vote(request, granted=granted, error=error)
    return granted


class Candidate(Struct):
    """One round of a campaign, in its pre-vote phase or in its voting phase."""

    deadline: Milliseconds
    pre_vote: bool
    term: Term
    """The requested term: one above ours during pre-vote."""
    transfer: bool = False
    """The leader requested the election: voters may grant it although they are still in contact with that leader."""
    correlations: dict[ServerId, int] = field(default_factory=dict)
    votes: dict[ServerId, bool] = field(default_factory=dict)

    @property
    def leader(self) -> ServerId | None:
        """Return None: a server that campaigns does not have a leader."""
        return None

    def receive(self, replica: Replica, sender: ServerId, reply: VoteReply) -> None:
        """Count a reply to this round's request, once per voter."""
        if self.correlations.get(sender) != reply.correlation or reply.pre_vote != self.pre_vote:
            replica.dropped[Drop.STALE_VOTE_REPLY] += 1
            return
        del self.correlations[sender]
        self.votes[sender] = reply.granted

    def count_peer_without_pre_vote(self, replica: Replica, peer: ServerId) -> None:
        """Count `peer` as granting the pre-vote if its handshake excludes pre-vote."""
        if self.pre_vote and peer in self.correlations and replica.lacks_pre_vote(peer):
            del self.correlations[peer]
            self.votes[peer] = True

    def count_own_vote(self, replica: Replica, durable: int) -> None:
        """Count our own vote once our hard state is on disk.

        `durable` is the number of the latest completed `Persist` (a write to disk).
        """
        if not self.pre_vote and durable >= replica.hard_state_number:
            self.votes[replica.server_id] = True

    @property
    def granted_by(self) -> tuple[ServerId, ...]:
        """The servers that granted a vote or pre-vote, in order of id."""
        return tuple(sorted(voter for voter, granted in self.votes.items() if granted))

    def verdict(self, replica: Replica) -> VoteResult:
        """Return the state of this round: won, lost or open."""
        return quorum.tally(self.votes, replica.majorities)


def begin_pre_vote(replica: Replica, deadline: Milliseconds) -> Candidate:
    """Request pre-votes for the next term until `deadline`; no term or vote changes anywhere."""
    round_ = Candidate(deadline, pre_vote=True, term=replica.term + 1)
    round_.votes[replica.server_id] = True
    for peer in replica.others:
        if replica.lacks_pre_vote(peer):
            round_.votes[peer] = True
        else:
            _request_vote(replica, round_, peer)
    return round_


def begin_vote(replica: Replica, *, transfer: bool = False) -> Candidate:
    """Convert to candidate: increment the term, vote for ourselves, reset the timer, request the other votes."""
    replica.set_hard_state(HardState(replica.term + 1, replica.server_id))
    round_ = Candidate(replica.random_election_deadline(), pre_vote=False, term=replica.term, transfer=transfer)
    for peer in replica.others:
        _request_vote(replica, round_, peer)
    return round_


def _request_vote(replica: Replica, round_: Candidate, peer: ServerId) -> None:
    correlation = replica.next_correlation()
    request = RequestVote(
        term=round_.term,
        candidate=replica.server_id,
        last=replica.log.last,
        correlation=correlation,
        pre_vote=round_.pre_vote,
        transfer=round_.transfer,
        cluster_id=replica.cluster_id,
    )
    replica.outbox.send(peer, request, after=0 if round_.pre_vote else replica.hard_state_number)
    round_.correlations[peer] = correlation
