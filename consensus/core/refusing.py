"""The answer to a request that no correct server sends: a refusal at our term, which changes nothing.

Every request is answered once, even one that is dropped; a wire that answers in order would stall otherwise.
"""

from typing import assert_never

from consensus.core import pulling
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
from consensus.core.position import ServerId
from consensus.core.pull_messages import BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, PullError
from consensus.core.replica import Replica


def refuse(replica: Replica, sender: ServerId, message: Message, leader: ServerId | None) -> None:
    """Refuse a request; a reply needs no answer."""
    if isinstance(message, Reply):
        return
    match message:
        case RequestVote(correlation=correlation, pre_vote=pre_vote):
            reply = VoteReply(replica.term, granted=False, correlation=correlation, pre_vote=pre_vote)
            replica.outbox.send(sender, reply)
        case AppendEntries(correlation=correlation):
            replica.refuse_append(sender, correlation, replica.log.last_index + 1)
        case InstallSnapshot(correlation=correlation):
            refusal = SnapshotReply(
                replica.term, accepted=False, next_offset=0, installed=False, correlation=correlation
            )
            replica.outbox.send(sender, refusal)
        case TimeoutNow(correlation=correlation):
            replica.outbox.send(sender, TimeoutNowReply(replica.term, accepted=False, correlation=correlation))
        case Fetch() | FetchSnapshot() | BeginQuorumEpoch() | EndQuorumEpoch():
            pulling.refuse(replica, sender, message, leader, PullError.INVALID_REQUEST)
        case _:
            assert_never(message)


def disregard(replica: Replica, sender: ServerId, append: AppendEntries) -> None:
    """Answer an append that has changed nothing here, not even who leads.

    Its leader must not count the answer: by an answer of our term it would keep its majority and renew its lease, and
    we have promised nothing. So it is one of term 0, which is older than every leader's.
    """
    replica.dropped["append that the state machine cannot take"] += 1
    hint = replica.log.last_index + 1
    replica.outbox.send(sender, AppendReply(0, success=False, next_index=hint, correlation=append.correlation))
