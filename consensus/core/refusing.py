"""The answer to a request that is not taken: a refusal, which changes nothing here.

Every request is answered once, even one that is dropped; a wire that answers in order would stall otherwise. A leader
counts every answer of its term towards check-quorum and its lease, a refusal too: it proves that the follower listens
to no other candidate. A server that has not followed it must not say so (`refuse_leader`).
"""

from typing import assert_never

from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    Message,
    Reply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from consensus.core.model import ServerId
from consensus.core.pull_messages import BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, PullError
from consensus.core.replica import Replica
from consensus.core.replication import fetch_receiver


def refuse(replica: Replica, sender: ServerId, message: Message, leader: ServerId | None) -> None:
    """Refuse a request; a reply needs no answer."""
    if isinstance(message, Reply):
        return
    match message:
        case RequestVote(correlation=correlation, pre_vote=pre_vote):
            reply = VoteReply(replica.term, granted=False, correlation=correlation, pre_vote=pre_vote)
            replica.outbox.send(sender, reply)
        case AppendEntries() | InstallSnapshot():
            refuse_leader(replica, sender, message)
        case TimeoutNow(correlation=correlation):
            replica.outbox.send(sender, TimeoutNowReply(replica.term, accepted=False, correlation=correlation))
        case Fetch() | FetchSnapshot() | BeginQuorumEpoch() | EndQuorumEpoch():
            fetch_receiver.refuse(replica, sender, message, leader, PullError.INVALID_REQUEST)
        case _:
            assert_never(message)


def refuse_leader(replica: Replica, sender: ServerId, request: AppendEntries | InstallSnapshot) -> None:
    """Answer a leader's request that has changed nothing here, not even who leads.

    A leader of an older term hears of ours. Any other must not count the answer: by one of its term it would keep its
    majority and renew its lease, and we have promised nothing. So to a leader of our term it is one of term 0, which
    is older than every leader's; to a leader of a later term ours is old enough.
    """
    term, after = (0, 0) if request.term == replica.term else (replica.term, replica.hard_state_number)
    match request:
        case AppendEntries(correlation=correlation):
            hint = replica.log.last_index + 1
            reply = AppendReply(term, success=False, next_index=hint, correlation=correlation)
            replica.outbox.send(sender, reply, after)
        case InstallSnapshot(correlation=correlation):
            refusal = SnapshotReply(term, accepted=False, next_offset=0, installed=False, correlation=correlation)
            replica.outbox.send(sender, refusal, after)
        case _:
            assert_never(request)
