"""The vote: who gets it (Raft sections 5.2, 5.4.1), and who may ask at all (section 6).

    deaf            a word from a leader came within the minimum election timeout, or we lead: refuse, term unchanged.
                    Without this, one server that hears no heartbeats deposes leader after leader.
    pre-vote        "would you vote for me?": no term or vote changes, so a cut-off server cannot raise anybody's term
    vote            at most one in a term, first come first served, only for a log at least as up to date as ours

The vote itself is durable before its answer leaves: otherwise a crash and restart could vote twice in one term.
"""

from consensus.core.messages import RequestVote
from consensus.core.model import HardState, LogId
from consensus.core.pull_messages import PullError
from consensus.core.replica import Replica


def may_vote(hard_state: HardState, last: LogId, request: RequestVote) -> bool:
    """Whether the vote of the current term goes to the candidate."""
    return (
        request.term == hard_state.term
        and hard_state.voted_for in (None, request.candidate)
        and request.last.at_least_as_up_to_date_as(last)
    )


def would_vote(hard_state: HardState, last: LogId, request: RequestVote) -> bool:
    """Whether a real request would get a vote, were its term to begin."""
    return request.term > hard_state.term and request.last.at_least_as_up_to_date_as(last)


def objection(replica: Replica, request: RequestVote) -> PullError | None:
    """Why this candidate gets no vote, where the protocol has more rules than Raft (KIP-595, Vote).

    A stranger is refused, unless its log goes beyond ours: then an entry that we lack may have made it a voter. Were it
    refused nevertheless, a change of the voters that reached one server only could leave nobody who can win.
    """
    if replica.is_foreign(request.cluster_id):
        return PullError.INCONSISTENT_CLUSTER_ID
    is_stranger = replica.features.votes_for_members_only and request.candidate not in replica.voters
    if is_stranger and replica.log.last.at_least_as_up_to_date_as(request.last):
        return PullError.INCONSISTENT_VOTER_SET
    return None


def answer_pre_vote(replica: Replica, request: RequestVote) -> None:
    """Answer a pre-vote: nothing changes here."""
    error = objection(replica, request)
    granted = error is None and would_vote(replica.hard_state, replica.log.last, request)
    replica.answer_vote(request, granted=granted, error=error)


def answer_vote(replica: Replica, request: RequestVote) -> bool:
    """Answer a vote request of the current term or an older one; returns whether it was granted."""
    error = objection(replica, request)
    granted = error is None and may_vote(replica.hard_state, replica.log.last, request)
    if granted and replica.hard_state.voted_for is None:
        replica.set_hard_state(HardState(request.term, request.candidate))
    replica.answer_vote(request, granted=granted, error=error)
    return granted
