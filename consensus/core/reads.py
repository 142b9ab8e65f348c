"""Reads that see every write acknowledged before they began, without an entry in the log (Raft section 8).

    read arrives ─▶ waiting ─▶ round n: note the commit index, ask every voter ─▶ a majority answered ─▶ ready at it
                                   │                                              └▶ leadership lost ─▶ refused
                                   └ reads that arrive meanwhile wait for round n + 1

A leader may have been replaced without having noticed, and the new one may have committed more. So the commit index is
noted first, and then a majority must confirm the leadership by answering a request that was sent *after* that. An
answer to an earlier request proves nothing: it may have been given before the other leader was elected, and that one
may have committed before this read began. And a new leader knows what is committed only when it has committed an entry
of its own term; until then reads wait.

One round serves all reads that wait when it begins, so many readers cost as many messages as one. Requests that are
lost need no repetition here: whatever the strategy sends later counts for the round as well.

*Lease* (a switch, off by default). A voter that answered a request sent at t refuses every other candidate until it has
measured a minimum election timeout since. Until t + that timeout, by the slowest such measurement, no other leader can
be elected and nothing can be committed without us. With clocks whose elapsed times differ by less than a stated bound
over this span, a leader may answer from its own memory until t + timeout - bound. The assumption is about the rate of
monotonic clocks only, but a machine that is suspended breaks it: that is why it is a switch. It also needs voters that
keep the refusal over a restart and in each term; servers of our own make do. TimeoutNow makes a voter break the
refusal, so a term in which one was sent has no lease any more, even if the transfer fails.
"""

from consensus.core.model import Index, Milliseconds


class Reads:
    """The reads of one term, as numbers; the leader carries the rounds out."""

    def __init__(self, reads_max: int) -> None:
        self._reads_max = reads_max
        self._waiting: list[int] = []
        self._asking: list[int] = []
        self._index: Index = 0
        self._began_ms: Milliseconds = 0
        self._round_number = 0
        self.unanswered = 0
        """Reads that are not answered."""

    def add(self, read_id: int) -> bool:
        """One more read waits for the next round; False if too many do."""
        if self.unanswered >= self._reads_max:
            return False
        self._waiting.append(read_id)
        self.unanswered += 1
        return True

    def begin_round(self, commit: Index, now: Milliseconds) -> int | None:
        """Serve all that wait at this commit index; returns the round to be confirmed, or None if none begins now."""
        if self._asking or not self._waiting:
            return None
        self._asking, self._waiting = self._waiting, []
        self._index, self._began_ms = commit, now
        self._round_number += 1
        return self._round_number

    def finish_round(self, confirmed_round: int) -> tuple[list[int], Index, Milliseconds] | None:
        """If the round under way is confirmed: its reads, their index, and when the round began."""
        if not self._asking or confirmed_round < self._round_number:
            return None
        ready, self._asking = self._asking, []
        self.unanswered -= len(ready)
        return ready, self._index, self._began_ms

    def end(self) -> list[int]:
        """Leadership is lost: whatever was not answered."""
        unanswered = self._asking + self._waiting
        self._asking, self._waiting = [], []
        self.unanswered = 0
        return unanswered


class Lease:
    """Until when a leader may answer reads from its own memory. `bound_ms` None: never."""

    def __init__(self, lease_ms: Milliseconds, bound_ms: Milliseconds | None) -> None:
        self._length_ms = 0 if bound_ms is None else lease_ms - bound_ms
        self._until_ms: Milliseconds | None = None
        self._allowed = bound_ms is not None

    def holds(self, now: Milliseconds) -> bool:
        """Whether no other leader can have been elected by now."""
        return self._allowed and self._until_ms is not None and now < self._until_ms

    def renew(self, sent_ms: Milliseconds) -> None:
        """A majority answered requests that were sent at `sent_ms` or later."""
        until_ms = sent_ms + self._length_ms
        self._until_ms = until_ms if self._until_ms is None else max(self._until_ms, until_ms)

    def end(self) -> None:
        """For the rest of the term: voters may be asked to elect another."""
        self._allowed = False
