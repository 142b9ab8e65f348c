"""What the leader knows of each follower (`Progress`), and what that amounts to (`ProgressTracker`).

*How eagerly a leader sends* to one follower, where it sends appends:

    PROBING      ──success──▶  REPLICATING        one request at a time until a place is found where the logs agree
    REPLICATING  ──refusal──▶  PROBING            pipelined: `next` runs ahead of the answers, up to the window
    either       ──timeout──▶  UNREACHABLE        only heartbeats, which ask from `match` on, or from our end on
    UNREACHABLE  ──any answer──▶ one of the others
    any          ──needs what is compacted──▶ SNAPSHOT ──installed──▶ PROBING      see `snapshots`

A dead follower thus costs a heartbeat per interval, not a batch of entries per retry. Requests whose answer is overdue
are remembered for a while (`expired`), because a follower with a slow disk may answer late and truthfully; an answer to
anything else is stale or foreign and tells nothing. Both tables are bounded.

*How much is sent at a time.* A slow link carries no full window within the retry time: what is taken for lost is still
on its way, and is sent again behind it. So the size of a request and the window are halved when an answer is overdue,
and doubled when one comes soon. Where requests wait for each other, they begin small as well. Elsewhere a large request
has the time that its bytes take on the slowest link, unless its connection is lost: then it is overdue as a small one.

*What is committed.* A follower's match index rises, or the leader's own disk has caught up; Only `acknowledge` and
`own_disk_caught_up` commit, whichever strategy is used. An index commits when a majority of voters holds it durably
*and* its entry is of the leader's own term (Raft section 5.4.2); entries of older terms commit with it, never by
counting. A match index that does not rise above the commit index changes nothing, so nothing is counted for it.
"""

from dataclasses import dataclass, field
from enum import Enum

from consensus.core import quorum
from consensus.core.model import MAX_NUMBER, Index, Milliseconds, ServerId
from consensus.core.replica import Replica
from consensus.core.slow_link import slow_link_ms
from consensus.core.snapshots import OutgoingSnapshot

MAX_REMEMBERED_REQUESTS = 128
MAX_HALVINGS = 8
FIRST_HALVINGS = 4
"""At the beginning and after a silence, where a heartbeat waits behind the only request: a follower whose link is slow
would campaign before a full one has arrived."""
LEAST_REQUEST_BYTES = 4 * 1024
"""No request is made smaller than this."""


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
    transfer_ms: Milliseconds = 0
    """What the slowest link needs for the entries that were under way with it, its own among them."""
    size_bytes: int = 0
    """Of its entries; 0 once its connection is lost."""

    @property
    def carries_entries(self) -> bool:
        """Whether it is more than a heartbeat."""
        return self.last > self.previous


@dataclass(slots=True)
class Progress:
    """One follower as its leader sees it. `match` and `round_number` only rise; `match` < `next`."""

    next: Index
    contact_ms: Milliseconds = 0
    advanced_ms: Milliseconds = 0
    """When it last got further: `match` rose, or it took a chunk of a snapshot."""
    has_replied: bool = False
    """True if it has sent a message in this term; until then `contact_ms` is when the leader began."""
    match: Index = 0
    round_number: int = 0
    """The newest round of `confirm` in which it answered."""
    asked_round: int = 0
    """The newest one in which it was sent something."""
    caught_up_ms: Milliseconds | None = None
    """When it last held all that we had (KIP-595: lastCaughtUpTimestamp), as far as its answers tell."""
    end_at_answer: tuple[Index, Milliseconds] | None = None
    """Where our log ended when it last told how far it is, and when that was."""
    state: ProgressState = ProgressState.PROBING
    halvings: int = 0
    """How often the size of a request was halved, because its answer was overdue (`part_of`)."""

    sent_ms: Milliseconds | None = None
    bytes_under_way: int = 0
    """Of the entries that were sent and not answered."""
    newest: int = 0
    """The correlation of the newest request, with or without entries, or a chunk of the snapshot."""
    sent_commit: Index = 0
    commit_due_ms: Milliseconds | None = None
    """When it is to be told of a higher commit index, unless an append tells it before."""
    in_flight: dict[int, SentAppend] = field(default_factory=dict)
    appends_in_flight: int = 0
    """How many of them carry entries."""
    expired: dict[int, SentAppend] = field(default_factory=dict)
    read_id: int | None = None
    transfer: OutgoingSnapshot | None = None

    fetched: tuple[Index, int] = (0, 0)
    """Of the snapshot that it fetches: its last index, and the offset up to which it holds the bytes."""
    announced_ms: Milliseconds | None = None
    """When it was last told who leads, until it has shown that it knows."""
    asked_ms: Milliseconds | None = None
    """When it was last asked in the newest round of `confirm`, until it has answered."""

    def reached(self, index: Index, last_index: Index, now: Milliseconds) -> None:
        """It holds our log, which ends at `last_index`, up to `index` durably.

        Under load a follower never reaches the end of the log, because the end moves on. But what it holds now may be
        all that we had when it answered before; then it had caught up at that moment.
        """
        if index > self.match:
            self.match, self.advanced_ms = index, now
        if index >= last_index:
            self.caught_up_ms = now
        elif self.end_at_answer is not None and index >= self.end_at_answer[0]:
            self.caught_up_ms = self.end_at_answer[1]
        self.end_at_answer = last_index, now

    def caught_up_ago_ms(self, now: Milliseconds) -> Milliseconds | None:
        """How long ago it last held all that we had; None if it has not in this term."""
        return None if self.caught_up_ms is None else now - self.caught_up_ms

    def fetches_chunk(self, snapshot: Index, offset: int, now: Milliseconds) -> None:
        """It holds this snapshot up to `offset`; it has not got further if it asks for the same chunk again."""
        if offset and (snapshot, offset) != self.fetched:
            self.fetched = snapshot, offset
            self.advanced_ms = now

    @property
    def waits_for_disk(self) -> bool:
        """Whether what it lacks is being read: entries, or a chunk of the snapshot."""
        reads_chunk = self.transfer is not None and self.transfer.read_id is not None
        return self.read_id is not None or (self.state is ProgressState.SNAPSHOT and reads_chunk)

    @property
    def is_asked(self) -> bool:
        """Whether a request is unanswered, with entries or without, or a chunk of the snapshot."""
        return bool(self.in_flight) or (self.transfer is not None and self.transfer.sent_ms is not None)

    def overtook(self, request: SentAppend, now: Milliseconds) -> bool:
        """Return True if this is a heartbeat behind entries that a slow link may still carry.

        Small requests do not need that time: where one was lost, the refusal has to bring it again at once.
        """
        return not request.carries_entries and any(
            sent.carries_entries
            and sent.previous < request.previous <= sent.last
            and now < sent.sent_ms + sent.transfer_ms
            for sent in self.in_flight.values()
        )

    def part_of(self, full: int, least: int = 1) -> int:
        """Return the part of a full size or window that the follower's link carries in time."""
        return max(min(full, least), full >> self.halvings)

    def took(self, took_ms: Milliseconds, retry_ms: Milliseconds) -> None:
        """An answer to entries or to a chunk came: send larger requests if it came soon."""
        if took_ms <= retry_ms // 4:
            self.halvings = max(0, self.halvings - 1)

    def was_overdue(self) -> None:
        """An answer to entries or to a chunk is overdue: send smaller requests."""
        self.halvings = min(MAX_HALVINGS, self.halvings + 1)

    def may_send_entries(self, window: int) -> bool:
        """Whether the state and the window leave room for one more request with entries."""
        match self.state:
            case ProgressState.REPLICATING:
                return self.read_id is None and self.appends_in_flight < window
            case ProgressState.PROBING:
                return self.read_id is None and not self.in_flight
            case ProgressState.UNREACHABLE | ProgressState.SNAPSHOT:
                return False

    def sent(
        self,
        correlation: int,
        previous: Index,
        last: Index,
        now: Milliseconds,
        round_number: int = 0,
        size_bytes: int = 0,
    ) -> None:
        """Remember a request of so many bytes of entries; while replicating, `next` runs ahead."""
        self.bytes_under_way += size_bytes
        transfer_ms = slow_link_ms(self.bytes_under_way) if size_bytes else 0
        self.in_flight[correlation] = SentAppend(previous, last, now, round_number, transfer_ms, size_bytes)
        self.appends_in_flight += last > previous
        self.sent_ms, self.asked_round, self.newest = now, round_number, correlation
        if self.state is ProgressState.REPLICATING:
            self.next = last + 1
        if len(self.in_flight) > MAX_REMEMBERED_REQUESTS:
            self._expire(next(iter(self.in_flight)))

    def lost_connection(self) -> None:
        """The connection that carried what is under way is gone, and with it perhaps the requests."""
        self.bytes_under_way = 0
        for sent in self.in_flight.values():
            sent.transfer_ms = sent.size_bytes = 0

    def answered(self, correlation: int) -> SentAppend | None:
        """The request that this answers, once; None if the answer is stale or foreign."""
        sent = self.in_flight.pop(correlation, None)
        if sent is None:
            return self.expired.pop(correlation, None)
        self.appends_in_flight -= sent.last > sent.previous
        self.bytes_under_way -= sent.size_bytes
        return sent

    def oldest_sent_ms(self) -> Milliseconds | None:
        """When the longest unanswered request was sent, or last known to have arrived: large ones arrive later."""
        return min((sent.sent_ms + sent.transfer_ms for sent in self.in_flight.values()), default=None)

    def succeeded(self, request: SentAppend, match: Index, now: Milliseconds) -> None:
        """The follower holds everything up to `match` durably; with less than it was sent, it did not take the rest."""
        if match > self.match:
            self.match, self.advanced_ms = match, now
        if request.last > request.previous and match < request.last:
            # Its backlog is full. To send again at once would go on for ever; the next heartbeat finds out.
            self.became_unreachable(self.match + 1)
            return
        if self.state is not ProgressState.REPLICATING:
            self.state = ProgressState.REPLICATING
            self.next = self.match + 1
        self.next = max(self.next, self.match + 1)
        if self.in_flight:
            self._settle_others(request, now)

    def _settle_others(self, request: SentAppend, now: Milliseconds) -> None:
        """What the success of `request` says of the requests that have no answer yet."""
        for correlation, sent in list(self.in_flight.items()):
            # A heartbeat of a later round of reads is not settled by an older answer: its own is waited for.
            older = sent.sent_ms <= request.sent_ms and sent.round_number <= request.round_number
            settled = sent.last <= self.match if sent.carries_entries else older
            if settled:
                self.answered(correlation)
            elif sent.last <= request.previous:
                # The log matched at `previous`, so these entries arrived; the follower's disk is still writing them.
                sent.sent_ms = now

    def holds(self, index: Index, now: Milliseconds) -> None:
        """It holds everything up to `index` durably, which it told too late to say where to go on."""
        if index > self.match:
            self.match, self.advanced_ms = index, now
        self.next = max(self.next, self.match + 1)

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
            self.next = self.match + 1
            self._expire_all()

    def installed(self, last: Index, now: Milliseconds) -> None:
        """The follower holds everything up to `last` durably; find out what it lacks beyond."""
        self.transfer = None
        if last > self.match:
            self.match, self.advanced_ms = last, now
        self.next = max(self.next, self.match + 1)
        self.state = ProgressState.PROBING
        self._expire_all()

    def became_unreachable(self, next_index: Index) -> None:
        """Answers are overdue: take what is under way for lost and wait for a sign of life.

        Heartbeats ask whether the logs agree before `next_index`, above `match`.
        """
        self.state = ProgressState.UNREACHABLE
        if self.transfer is not None:
            self.transfer.sent_ms = None
        self.next = next_index
        self._expire_all()

    def _expire_all(self) -> None:
        for correlation in list(self.in_flight):
            self._expire(correlation)

    def _expire(self, correlation: int) -> None:
        """Take the answer for overdue."""
        sent = self.answered(correlation)
        if sent is None:
            return
        self.expired[correlation] = sent
        if len(self.expired) > MAX_REMEMBERED_REQUESTS:
            del self.expired[next(iter(self.expired))]


class ProgressTracker:
    """The followers of one leader, and what a majority of the voters among them has acknowledged."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.followers: dict[ServerId, Progress] = {}
        self.committed_ms: Milliseconds = replica.now
        """When something was last committed, or when proposals began to wait."""
        self.wake_ms: Milliseconds = replica.now
        """No later than the first thing that is due; it is found anew only when it has come (`Leader.expire`)."""

    @property
    def confirmed_round(self) -> int:
        """The newest round of `confirm` that a majority has answered."""
        rounds = {peer: progress.round_number for peer, progress in self.followers.items()}
        rounds[self._replica.server_id] = MAX_NUMBER
        return quorum.held_by_majorities(rounds, self._replica.majorities)

    @property
    def quorum_contact_ms(self) -> Milliseconds:
        """The time since which a majority has answered us."""
        contacts = {peer: progress.contact_ms for peer, progress in self.followers.items()}
        contacts[self._replica.server_id] = self._replica.now
        return quorum.held_by_majorities(contacts, self._replica.majorities)

    def wake_by(self, due_ms: Milliseconds) -> None:
        """Something will be due at this time."""
        self.wake_ms = min(self.wake_ms, due_ms)

    def note_contact(self, progress: Progress) -> None:
        """The follower spoke in our term just now: it counts for check-quorum."""
        progress.contact_ms, progress.has_replied = self._replica.now, True

    def confirmed(self, progress: Progress, round_number: int) -> None:
        """The follower answered, in our term, a request that was sent in this round of `confirm` or later."""
        progress.round_number = max(progress.round_number, round_number)

    def acknowledge(self, progress: Progress, index: Index) -> bool:
        """The follower holds our log up to `index` durably; returns whether something was committed by that."""
        progress.reached(index, self._replica.log.last_index, self._replica.now)
        return progress.match > self._replica.applier.commit and self._commit()

    def own_disk_caught_up(self) -> bool:
        """Our own log is durable further than before; returns whether something was committed by that."""
        return self._own_match() > self._replica.applier.commit and self._commit()

    def _commit(self) -> bool:
        """Commit what a majority holds, if it is of our own term."""
        replica = self._replica
        matches = {peer: progress.match for peer, progress in self.followers.items()}
        matches[replica.server_id] = self._own_match()
        held = quorum.held_by_majorities(matches, replica.majorities)
        if not self._may_commit(held) or not replica.applier.commit_up_to(held):
            return False
        self.committed_ms = replica.now
        return True

    def _own_match(self) -> Index:
        return self._replica.log.durable_index

    def _may_commit(self, index: Index) -> bool:
        return self._replica.log.term_at(index) == self._replica.term
