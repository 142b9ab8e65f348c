"""The answer to a request that no correct server sends: a refusal at our term, which changes nothing.

Every request is answered once, even one that is dropped; a wire that answers in order would stall otherwise.
"""

from typing import assert_never

from consensus.core import pulling
from consensus.core.messages import (
    AppendEntries,
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
