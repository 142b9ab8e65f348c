"""The messages of replication by fetching, in the words of the stories.

2->1: fetch after 3/1, term 1, knows commit 2
1->2: fetched of terms 1 1, term 1, commit 3

1->2: fetched nothing, term 1, commit 3
1->2: diverging after 2/1, term 3, commit 0

1->2: begin term 1
2->1: begin answered, term 1

1->2: end term 1, successors 3 2
2->1: end refused as inconsistent-voters, term 1
"""

from typing import assert_never

from consensus.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchMessage,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    RefusalReason,
)
from consensus.core.model import LogId


def words_of(message: FetchMessage) -> str:
    match message:
        case Fetch(term=term, position=position, commit=commit):
            return f"fetch after {_at(position)}, term {term}, knows commit {commit}"
        case FetchReply():
            return _words_of_fetch_reply(message)
        case FetchSnapshot() | FetchSnapshotReply():
            return _words_of_chunk(message)
        case _:
            return _words_of_announcement(message)


def _words_of_announcement(
    message: BeginQuorumEpoch | EndQuorumEpoch | BeginQuorumEpochReply | EndQuorumEpochReply,
) -> str:
    match message:
        case BeginQuorumEpoch(term=term):
            return f"begin term {term}"
        case EndQuorumEpoch(term=term, preferred=preferred):
            return f"end term {term}, successors {' '.join(map(str, preferred)) or 'none'}"
        case BeginQuorumEpochReply(term=term, error=error):
            return f"begin {_outcome(error)}, term {term}"
        case EndQuorumEpochReply(term=term, error=error):
            return f"end {_outcome(error)}, term {term}"
        case _:
            assert_never(message)


def _words_of_fetch_reply(reply: FetchReply) -> str:
    if reply.error is not None:
        return f"fetch refused as {reply.error.value}, term {reply.term}, leader {reply.leader or 'unknown'}"
    if reply.diverging is not None:
        what = f"diverging after {_at(reply.diverging)}"
    elif reply.snapshot is not None:
        what = f"snapshot of {_at(reply.snapshot)}"
    elif reply.entries:
        what = f"fetched of terms {' '.join(str(entry.term) for entry in reply.entries)}"
    else:
        what = "fetched nothing"
    return f"{what}, term {reply.term}, commit {reply.commit}"


def _words_of_chunk(message: FetchSnapshot | FetchSnapshotReply) -> str:
    if isinstance(message, FetchSnapshot):
        return f"fetch snapshot of {_at(message.snapshot)} from byte {message.offset}, term {message.term}"
    reply = message
    if reply.error is not None:
        return f"snapshot refused as {reply.error.value}, term {reply.term}, leader {reply.leader or 'unknown'}"
    end = reply.offset + len(reply.data)
    return f"snapshot of {_at(reply.snapshot)}, term {reply.term}, bytes {reply.offset}..{end} of {reply.size_bytes}"


def _outcome(error: RefusalReason | None) -> str:
    return "answered" if error is None else f"refused as {error.value}"


def _at(position: LogId) -> str:
    return f"{position.index}/{position.term}"
