"""Linearizable reads without an entry in the log (Raft section 8).

    read arrives ─▶ waiting ─▶ round n: record commit index, query every voter ─▶ majority replied ─▶ ready at index
                                   │                                            └▶ leadership lost ─▶ refused
                                   └ reads that arrive during a round wait for round n + 1

A leader may have been replaced without its knowledge. So it first records the commit index. Then a majority must
confirm the leadership by replies to requests sent *later*. An earlier reply may precede the election of a new leader,
which may have committed entries before this read arrived. A new leader first commits an entry of its term. One round
serves all reads that wait when it begins. Lost requests are not repeated, because any later request counts as well.

*Lease* (off by default). A voter that replied to a request sent at t refuses every other candidate for its leader
stickiness (`PolicyTimes`). If the clocks measure elapsed times that differ by less than `bound`, a leader may answer
from memory until t + lease - bound. A suspended machine breaks this assumption. A lease requires that voters also
refuse candidates after a restart and in each later term; servers of this project do. After a TimeoutNow, the leader
does not use leases until its term ends.
"""

from consensus.core.model import Index, Milliseconds


class Reads:
    """The reads of one term, as numbers; the leader sends the requests of the rounds."""

    def __init__(self, reads_max: int) -> None:
        self._reads_max = reads_max
        self._waiting: list[int] = []
        self._asking: list[int] = []
        self._index: Index = 0
        self._began_ms: Milliseconds = 0
        self._round_number = 0
        self.unanswered = 0
        """Number of unanswered reads."""

    def add(self, read_id: int) -> bool:
        """Add a read to the next round; return False if too many wait."""
        if self.unanswered >= self._reads_max:
            return False
        self._waiting.append(read_id)
        self.unanswered += 1
        return True

    def begin_round(self, commit: Index, now: Milliseconds) -> int | None:
        """Begin a round for all waiting reads at this commit index; return its number, or None without a new round."""
        if self._asking or not self._waiting:
            return None
        self._asking, self._waiting = self._waiting, []
        self._index, self._began_ms = commit, now
        self._round_number += 1
        return self._round_number

    def finish_round(self, confirmed_round: int) -> tuple[list[int], Index, Milliseconds] | None:
        """Return reads, index and start of the round under way if it is confirmed, else None."""
        if not self._asking or confirmed_round < self._round_number:
            return None
        ready, self._asking = self._asking, []
        self.unanswered -= len(ready)
        return ready, self._index, self._began_ms

    def end(self) -> list[int]:
        """End leadership: return all unanswered reads."""
        unanswered = self._asking + self._waiting
        self._asking, self._waiting = [], []
        self.unanswered = 0
        return unanswered


class Lease:
    """The right of a leader to reply to reads from its own memory until a certain time; never without `bound_ms`."""

    def __init__(self, lease_ms: Milliseconds, bound_ms: Milliseconds | None) -> None:
        self._length_ms = 0 if bound_ms is None else lease_ms - bound_ms
        self._until_ms: Milliseconds | None = None
        self._allowed = bound_ms is not None

    def holds(self, now: Milliseconds) -> bool:
        """Return True if no other leader can have been elected yet."""
        return self._allowed and self._until_ms is not None and now < self._until_ms

    def renew(self, sent_ms: Milliseconds) -> None:
        """Extend the lease: a majority replied to requests sent at `sent_ms` or later."""
        until_ms = sent_ms + self._length_ms
        self._until_ms = until_ms if self._until_ms is None else max(self._until_ms, until_ms)

    def end(self) -> None:
        """End leases until the term is over, because a voter may soon elect another leader."""
        self._allowed = False
