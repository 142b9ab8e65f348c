"""How the stories tell the messages of pulling replication.

2->1: fetch after 3/1, term 1, knows commit 2           1->2: fetched of terms 1 1, term 1, commit 3
1->2: fetched nothing, term 1, commit 3
1->2: diverging after 2/1, term 3, commit 0
1->2: begin term 1                                      2->1: begin answered, term 1
1->2: end term 1, successors 3 2                        2->1: end refused as INCONSISTENT_VOTER_SET, term 1
"""

from typing import assert_never

from consensus.core.position import LogPosition
from consensus.core.pull_messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchReply,
    PullError,
    PullMessage,
)


def told(message: PullMessage) -> str:
    """The message in the words of a story."""
    match message:
        case Fetch(term, _, position, commit):
            return f"fetch after {_at(position)}, term {term}, knows commit {commit}"
        case FetchReply():
            return _told_of_fetch_reply(message)
        case BeginQuorumEpoch(term):
            return f"begin term {term}"
        case EndQuorumEpoch(term, _, preferred):
            return f"end term {term}, successors {' '.join(map(str, preferred)) or 'none'}"
        case BeginQuorumEpochReply(term, _, _, error):
            return f"begin {_answered(error)}, term {term}"
        case EndQuorumEpochReply(term, _, _, error):
            return f"end {_answered(error)}, term {term}"
        case _:
            assert_never(message)


def _told_of_fetch_reply(reply: FetchReply) -> str:
    if reply.error is not None:
        return f"fetch refused as {reply.error.value}, term {reply.term}, leader {reply.leader or 'unknown'}"
    if reply.diverging is not None:
        what = f"diverging after {_at(reply.diverging)}"
    elif reply.entries:
        what = f"fetched of terms {' '.join(str(entry.term) for entry in reply.entries)}"
    else:
        what = "fetched nothing"
    return f"{what}, term {reply.term}, commit {reply.commit}"


def _answered(error: PullError | None) -> str:
    return "answered" if error is None else f"refused as {error.value}"


def _at(position: LogPosition) -> str:
    return f"{position.index}/{position.term}"
