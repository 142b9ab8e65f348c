"""What the leader knows of one follower, and how eagerly it sends.

    PROBING      ──success──▶  REPLICATING        one request at a time until a place is found where the logs agree
    REPLICATING  ──refusal──▶  PROBING            pipelined: `next` runs ahead of the answers, up to the window
    either       ──timeout──▶  UNREACHABLE        only heartbeats, which ask from `match` on
    UNREACHABLE  ──any answer──▶ one of the others
    any          ──needs what is compacted──▶ SNAPSHOT ──installed──▶ PROBING      see `snapshots`

A dead follower thus costs a heartbeat per interval, not a batch of entries per retry. Requests whose answer is overdue
are remembered for a while (`expired`), because a follower with a slow disk may answer late and truthfully; an answer to
anything else is stale or foreign and tells nothing. Both tables are bounded.
"""

from dataclasses import dataclass, field
from enum import Enum

from consensus.core.model import Index, Milliseconds
from consensus.core.snapshots import OutgoingSnapshot


@dataclass(slots=True)
class Standing:
    """One follower. `match` and `round` only rise; all three count towards majorities."""

    contact_ms: Milliseconds
    advanced_ms: Milliseconds = 0
    """When it last got further: `match` rose, or it took a piece of a snapshot."""
    taken: tuple[Index, int] = (0, 0)
    """Of the snapshot that it fetches: its last index, and the offset up to which it holds the bytes."""
    heard: bool = False
    """Whether it sent a word in this term; until then `contact_ms` is when the term's leader took office."""
    match: Index = 0
    round_number: int = 0
    """The newest round of `confirm` in which it answered."""
    caught_up_ms: Milliseconds | None = None
    """When it last held all that we had (KIP-595: lastCaughtUpTimestamp), as far as its answers tell."""
    end_at_answer: tuple[Index, Milliseconds] | None = None
    """Where our log ended when it last told how far it is, and when that was."""

    def reached(self, index: Index, last_index: Index, now: Milliseconds) -> None:
        """It holds our log, which ends at `last_index`, up to `index`.

        A follower under load is never at the end, for that moves on. What it holds now, however, may be all that we
        had when it answered before: then it had caught up with that moment.
        """
        if index > self.match:
            self.match = index
            self.advanced_ms = now
        if index >= last_index:
            self.caught_up_ms = now
        elif self.end_at_answer is not None and index >= self.end_at_answer[0]:
            self.caught_up_ms = self.end_at_answer[1]
        self.end_at_answer = last_index, now

    def caught_up_ago_ms(self, now: Milliseconds) -> Milliseconds | None:
        """How long ago it last held all that we had; None if it has not in this term."""
        return None if self.caught_up_ms is None else now - self.caught_up_ms

    def took(self, snapshot: Index, offset: int, now: Milliseconds) -> None:
        """It holds this snapshot up to `offset`; it has not got further if it asks for the same piece again."""
        if offset and (snapshot, offset) != self.taken:
            self.taken = snapshot, offset
            self.advanced_ms = now


MAX_REMEMBERED_REQUESTS = 128


class ProgressState(Enum):
    """How eagerly a follower is sent entries."""

    PROBING = "probing"
    REPLICATING = "replicating"
    UNREACHABLE = "unreachable"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class SentAppend:
    """One AppendEntries under way: entries (`previous`, `last`], none for a heartbeat."""

    previous: Index
    last: Index
    sent_ms: Milliseconds
    round_number: int = 0
    """The round of `confirm` in which it was sent."""

    @property
    def carries_entries(self) -> bool:
        """Whether it is more than a heartbeat."""
        return self.last > self.previous


@dataclass(slots=True)
class Progress:
    """One follower as its leader sees it. `match` only rises; `match` < `next`."""

    next: Index
    match: Index = 0
    state: ProgressState = ProgressState.PROBING
    sent_ms: Milliseconds | None = None
    sent_commit: Index = 0
    commit_due_ms: Milliseconds | None = None
    """When it is to be told of a higher commit index, unless an append tells it before."""
    in_flight: dict[int, SentAppend] = field(default_factory=dict)
    expired: dict[int, SentAppend] = field(default_factory=dict)
    read_id: int | None = None
    transfer: OutgoingSnapshot | None = None

    @property
    def appends_in_flight(self) -> int:
        """Requests with entries that await an answer."""
        return sum(sent.carries_entries for sent in self.in_flight.values())

    def may_send_entries(self, window: int) -> bool:
        """Whether the pace and the window leave room for one more request with entries."""
        match self.state:
            case ProgressState.REPLICATING:
                return self.read_id is None and self.appends_in_flight < window
            case ProgressState.PROBING:
                return self.read_id is None and not self.in_flight
            case ProgressState.UNREACHABLE | ProgressState.SNAPSHOT:
                return False

    def sent(self, correlation: int, previous: Index, last: Index, now: Milliseconds, round_number: int = 0) -> None:
        """Remember a request; while replicating, `next` runs ahead."""
        self.in_flight[correlation] = SentAppend(previous, last, now, round_number)
        self.sent_ms = now
        if self.state is ProgressState.REPLICATING:
            self.next = last + 1
        if len(self.in_flight) > MAX_REMEMBERED_REQUESTS:
            oldest = next(iter(self.in_flight))
            self._expire(oldest, self.in_flight.pop(oldest))

    def answered(self, correlation: int) -> SentAppend | None:
        """The request that this answers, once; None if the answer is stale or foreign."""
        return self.in_flight.pop(correlation, None) or self.expired.pop(correlation, None)

    def oldest_sent_ms(self) -> Milliseconds | None:
        """When the longest unanswered request was sent, or last known to have arrived."""
        return min((sent.sent_ms for sent in self.in_flight.values()), default=None)

    def succeeded(self, request: SentAppend, match: Index, now: Milliseconds) -> None:
        """The follower holds everything up to `match` durably; with less than it was sent, it did not take the rest."""
        self.match = max(self.match, match)
        if request.carries_entries and match < request.last:
            # Its backlog is full. Asking again at once would ask for ever; the next heartbeat finds out.
            self.became_unreachable()
            return
        if self.state is not ProgressState.REPLICATING:
            self.state = ProgressState.REPLICATING
            self.next = self.match + 1
        self.next = max(self.next, self.match + 1)
        for correlation, sent in list(self.in_flight.items()):
            # A heartbeat of a later round of reads is not settled by an older answer: its own is waited for.
            older = sent.sent_ms <= request.sent_ms and sent.round_number <= request.round_number
            settled = sent.last <= self.match if sent.carries_entries else older
            if settled:
                del self.in_flight[correlation]
            elif sent.last <= request.previous:
                # The log matched at `previous`, so these entries arrived; the follower's disk is still writing them.
                sent.sent_ms = now

    def refused(self, request: SentAppend, hint: Index) -> bool:
        """The logs differ at the request's `previous`: back off by the hint. Returns False if that taught nothing."""
        if self.state is ProgressState.UNREACHABLE:
            self.state = ProgressState.PROBING
        if not self.match < request.previous < self.next:
            return False
        self.next = max(self.match + 1, min(hint, request.previous))
        self.state = ProgressState.PROBING
        self._expire_all()
        return True

    def needs_snapshot(self) -> None:
        """The entries that the follower lacks are gone."""
        if self.state is not ProgressState.SNAPSHOT:
            self.state = ProgressState.SNAPSHOT
            self._expire_all()

    def installed(self, last: Index) -> None:
        """The follower holds everything up to `last` durably; find out what it lacks beyond."""
        self.transfer = None
        self.match = max(self.match, last)
        self.next = max(self.next, self.match + 1)
        self.state = ProgressState.PROBING
        self._expire_all()

    def became_unreachable(self) -> None:
        """Answers are overdue: take what is under way for lost and wait for a sign of life."""
        self.state = ProgressState.UNREACHABLE
        if self.transfer is not None:
            self.transfer.sent_ms = None
        self.next = self.match + 1
        self._expire_all()

    def _expire_all(self) -> None:
        for correlation, sent in self.in_flight.items():
            self._expire(correlation, sent)
        self.in_flight.clear()

    def _expire(self, correlation: int, sent: SentAppend) -> None:
        self.expired[correlation] = sent
        if len(self.expired) > MAX_REMEMBERED_REQUESTS:
            del self.expired[next(iter(self.expired))]
