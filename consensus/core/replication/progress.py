"""What the leader knows of one follower, and how eagerly it sends.

    PROBING      ──success──▶  REPLICATING        one request at a time until a place is found where the logs agree
    REPLICATING  ──refusal──▶  PROBING            pipelined: `next` runs ahead of the answers, up to the window
    either       ──timeout──▶  SILENT             only heartbeats, which ask from `match` on
    SILENT       ──any answer──▶ one of the others
    any          ──needs what is compacted──▶ SNAPSHOT ──installed──▶ PROBING      see `snapshot_sending`

A dead follower thus costs a heartbeat per interval, not a batch of entries per retry. Requests whose answer is overdue
are remembered for a while (`written_off`), because a follower with a slow disk may answer late and truthfully; an
answer to anything else is stale or foreign and tells nothing. Both tables are bounded.
"""

from dataclasses import dataclass, field
from enum import Enum

from consensus.core.model import Index, Milliseconds
from consensus.core.snapshot_sending import SnapshotTransfer

MAX_REMEMBERED_REQUESTS = 128


class ProgressState(Enum):
    """How eagerly a follower is sent entries."""

    PROBING = "probing"
    REPLICATING = "replicating"
    SILENT = "silent"
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
    pace: ProgressState = ProgressState.PROBING
    sent_ms: Milliseconds | None = None
    sent_commit: Index = 0
    commit_due_ms: Milliseconds | None = None
    """When it is to be told of a higher commit index, unless an append tells it before."""
    in_flight: dict[int, SentAppend] = field(default_factory=dict)
    written_off: dict[int, SentAppend] = field(default_factory=dict)
    read_id: int | None = None
    transfer: SnapshotTransfer | None = None

    @property
    def appends_in_flight(self) -> int:
        """Requests with entries that await an answer."""
        return sum(sent.carries_entries for sent in self.in_flight.values())

    def may_send_entries(self, window: int) -> bool:
        """Whether the pace and the window leave room for one more request with entries."""
        match self.pace:
            case ProgressState.REPLICATING:
                return self.read_id is None and self.appends_in_flight < window
            case ProgressState.PROBING:
                return self.read_id is None and not self.in_flight
            case ProgressState.SILENT | ProgressState.SNAPSHOT:
                return False

    def sent(self, correlation: int, previous: Index, last: Index, now: Milliseconds, round_number: int = 0) -> None:
        """Remember a request; while replicating, `next` runs ahead."""
        self.in_flight[correlation] = SentAppend(previous, last, now, round_number)
        self.sent_ms = now
        if self.pace is ProgressState.REPLICATING:
            self.next = last + 1
        if len(self.in_flight) > MAX_REMEMBERED_REQUESTS:
            oldest = next(iter(self.in_flight))
            self._write_off(oldest, self.in_flight.pop(oldest))

    def answered(self, correlation: int) -> SentAppend | None:
        """The request that this answers, once; None if the answer is stale or foreign."""
        return self.in_flight.pop(correlation, None) or self.written_off.pop(correlation, None)

    def oldest_sent_ms(self) -> Milliseconds | None:
        """When the longest unanswered request was sent, or last known to have arrived."""
        return min((sent.sent_ms for sent in self.in_flight.values()), default=None)

    def succeeded(self, request: SentAppend, match: Index, now: Milliseconds) -> None:
        """The follower holds everything up to `match` durably; with less than it was sent, it did not take the rest."""
        self.match = max(self.match, match)
        if request.carries_entries and match < request.last:
            # Its backlog is full. Asking again at once would ask for ever; the next heartbeat finds out.
            self.fell_silent()
            return
        if self.pace is not ProgressState.REPLICATING:
            self.pace = ProgressState.REPLICATING
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
        if self.pace is ProgressState.SILENT:
            self.pace = ProgressState.PROBING
        if not self.match < request.previous < self.next:
            return False
        self.next = max(self.match + 1, min(hint, request.previous))
        self.pace = ProgressState.PROBING
        self._write_off_all()
        return True

    def needs_snapshot(self) -> None:
        """The entries that the follower lacks are gone."""
        if self.pace is not ProgressState.SNAPSHOT:
            self.pace = ProgressState.SNAPSHOT
            self._write_off_all()

    def installed(self, last: Index) -> None:
        """The follower holds everything up to `last` durably; find out what it lacks beyond."""
        self.transfer = None
        self.match = max(self.match, last)
        self.next = max(self.next, self.match + 1)
        self.pace = ProgressState.PROBING
        self._write_off_all()

    def fell_silent(self) -> None:
        """Answers are overdue: take what is under way for lost and wait for a sign of life."""
        self.pace = ProgressState.SILENT
        if self.transfer is not None:
            self.transfer.sent_ms = None
        self.next = self.match + 1
        self._write_off_all()

    def _write_off_all(self) -> None:
        for correlation, sent in self.in_flight.items():
            self._write_off(correlation, sent)
        self.in_flight.clear()

    def _write_off(self, correlation: int, sent: SentAppend) -> None:
        self.written_off[correlation] = sent
        if len(self.written_off) > MAX_REMEMBERED_REQUESTS:
            del self.written_off[next(iter(self.written_off))]
