"""The leader's record of each follower (`Progress`), and the resulting commitment (`ProgressTracker`).

    PROBING      ──success──▶  REPLICATING        one request at a time until the logs agree at some place
    REPLICATING  ──refusal──▶  PROBING            pipelined: `next` runs ahead of the replies, up to the window
    any          ──timeout──▶  UNREACHABLE        only heartbeats, which probe from `match` on, or from our end on
    UNREACHABLE  ──any reply──▶ another state
    any          ──needs compacted entries──▶ SNAPSHOT ──installed──▶ PROBING      see `snapshots`

A dead follower costs a heartbeat per interval, not a batch of entries per retry. Overdue requests are kept for a while
(`expired`), because a follower with a slow disk may reply late; replies to other requests are stale. Both tables are
bounded.

*Size of a request.* On a slow link, a request that seems lost may still be on its way. So the size of requests and the
window are halved when a reply is overdue, and doubled when a reply comes soon. If only one request may be open, the
first requests are small. If several may be open, a large request has a longer timeout while its connection lasts. The
slowest link must be able to carry its bytes.

*Commitment.* Only `acknowledge` and `own_disk_caught_up` commit, for either strategy. An index commits when a majority
of voters holds it durably *and* its entry has the leader's own term (Raft section 5.4.2). Entries of older terms commit
with it, and are never counted themselves.
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
"""Halvings at the beginning and after an overdue reply, if only one request may be open.

Without them, heartbeats would wait for a full request, and a follower on a slow link would campaign before that request
has arrived.
"""
LEAST_REQUEST_BYTES = 4 * 1024
"""Minimum size limit of a request."""


class ProgressState(Enum):
    """State of sending entries to a follower."""

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
    """The number of the newest `confirm` round at the time of sending."""
    transfer_ms: Milliseconds = 0
    """Time that the slowest link needs for all entries under way, including the entries of this request."""
    size_bytes: int = 0
    """Size of its entries; 0 after its connection is lost."""

    @property
    def carries_entries(self) -> bool:
        """Return True if it is more than a heartbeat."""
        return self.last > self.previous


@dataclass(slots=True)
class Progress:
    """One follower as its leader sees it. `match` falls only if the follower may have lost entries."""

    next: Index
    contact_ms: Milliseconds = 0
    advanced_ms: Milliseconds = 0
    """Time of the follower's last progress: `match` rose, or the follower stored a chunk of a snapshot."""
    has_replied: bool = False
    """True if the follower has sent a message in this term; until then `contact_ms` is the time when it became a
    follower."""
    match: Index = 0
    round_number: int = 0
    """The newest round of `confirm` with a reply from the follower."""
    requested_round: int = 0
    """The newest round with a message to the follower."""
    caught_up_ms: Milliseconds | None = None
    """Last time when the follower held our whole log, according to its replies (KIP-595: lastCaughtUpTimestamp)."""
    end_at_answer: tuple[Index, Milliseconds] | None = None
    """End of our log at the follower's last report of progress, and the time of the report."""
    state: ProgressState = ProgressState.PROBING
    halvings: int = 0
    """Number of halvings of the request size, because of overdue replies (`part_of`)."""

    sent_ms: Milliseconds | None = None
    bytes_under_way: int = 0
    """Size of the sent entries without a reply."""
    newest: int = 0
    """The correlation of the newest request, with or without entries, or a chunk of the snapshot."""
    sent_commit: Index = 0
    commit_due_ms: Milliseconds | None = None
    """Time to send the follower a higher commit index, unless an append carries it earlier."""
    in_flight: dict[int, SentAppend] = field(default_factory=dict)
    appends_in_flight: int = 0
    """Number of requests in `in_flight` that carry entries."""
    expired: dict[int, SentAppend] = field(default_factory=dict)
    read_id: int | None = None
    transfer: OutgoingSnapshot | None = None

    fetched: tuple[Index, int] = (0, 0)
    """Progress of fetching a snapshot: its last index, and the number of its first bytes that the follower has."""
    announced_ms: Milliseconds | None = None
    """Time of the last announcement of the leader to this server, until the server follows."""
    queried_ms: Milliseconds | None = None
    """Time of the last query to the follower in the newest round of `confirm`, until the follower has replied."""

    def reached(self, index: Index, last_index: Index, now: Milliseconds) -> None:
        """Record that the follower holds our log, which ends at `last_index`, up to `index` durably.

        Under load a follower never reaches the end of our growing log. But if it now holds all entries that our log had
        at its previous reply, it had caught up then.
        """
        if index > self.match:
            self.match, self.advanced_ms = index, now
        if index >= last_index:
            self.caught_up_ms = now
        elif self.end_at_answer is not None and index >= self.end_at_answer[0]:
            self.caught_up_ms = self.end_at_answer[1]
        self.end_at_answer = last_index, now

    def caught_up_ago_ms(self, now: Milliseconds) -> Milliseconds | None:
        """Return the time since the follower last held our whole log; None if it has not held it in this term."""
        return None if self.caught_up_ms is None else now - self.caught_up_ms

    def fetches_chunk(self, snapshot: Index, offset: int, now: Milliseconds) -> None:
        """Record that the follower has the snapshot up to `offset`; a repeated fetch of a chunk is not progress."""
        if offset and (snapshot, offset) != self.fetched:
            self.fetched = snapshot, offset
            self.advanced_ms = now

    @property
    def waits_for_disk(self) -> bool:
        """Return True if the entries or the chunk that the follower lacks are being read from disk."""
        reads_chunk = self.transfer is not None and self.transfer.read_id is not None
        return self.read_id is not None or (self.state is ProgressState.SNAPSHOT and reads_chunk)

    @property
    def has_open_request(self) -> bool:
        """Return True if a request is open: an append, a heartbeat, or a chunk of the snapshot."""
        return bool(self.in_flight) or (self.transfer is not None and self.transfer.sent_ms is not None)

    def overtook(self, request: SentAppend, now: Milliseconds) -> bool:
        """Return True if this heartbeat was sent after entries that a slow link may still carry.

        Small entries do not count: if they are lost, the leader must repeat them as soon as the heartbeat is refused.
        """
        return not request.carries_entries and any(
            sent.carries_entries
            and sent.previous < request.previous <= sent.last
            and now < sent.sent_ms + sent.transfer_ms
            for sent in self.in_flight.values()
        )

    def part_of(self, full: int, least: int = 1) -> int:
        """Return the part of a full size or window that the follower's link can carry in time."""
        return max(min(full, least), full >> self.halvings)

    def took(self, took_ms: Milliseconds, retry_ms: Milliseconds) -> None:
        """Double the size of requests after a quick reply to entries or to a chunk."""
        if took_ms <= retry_ms // 4:
            self.halvings = max(0, self.halvings - 1)

    def was_overdue(self) -> None:
        """Halve the size of requests after an overdue reply to entries or to a chunk."""
        self.halvings = min(MAX_HALVINGS, self.halvings + 1)

    def may_send_entries(self, window: int) -> bool:
        """Return True if the state and the window leave room for one more request with entries."""
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
        """Store a request with `size_bytes` of entries; while replicating, advance `next` without a reply."""
        self.bytes_under_way += size_bytes
        transfer_ms = slow_link_ms(self.bytes_under_way) if size_bytes else 0
        self.in_flight[correlation] = SentAppend(previous, last, now, round_number, transfer_ms, size_bytes)
        self.appends_in_flight += last > previous
        self.sent_ms, self.requested_round, self.newest = now, round_number, correlation
        if self.state is ProgressState.REPLICATING:
            self.next = last + 1
        if len(self.in_flight) > MAX_REMEMBERED_REQUESTS:
            self._expire(next(iter(self.in_flight)))

    def lost_connection(self) -> None:
        """Record that the connection, and perhaps requests on it, are lost."""
        self.bytes_under_way = 0
        for sent in self.in_flight.values():
            sent.transfer_ms = sent.size_bytes = 0

    def pop_request(self, correlation: int) -> SentAppend | None:
        """Remove and return the request for this reply; None if the reply is stale or does not belong to a request."""
        sent = self.in_flight.pop(correlation, None)
        if sent is None:
            return self.expired.pop(correlation, None)
        self.appends_in_flight -= sent.last > sent.previous
        self.bytes_under_way -= sent.size_bytes
        return sent

    def oldest_sent_ms(self) -> Milliseconds | None:
        """Return the send time of the oldest open request; for a large one, the time when it should have arrived."""
        return min((sent.sent_ms + sent.transfer_ms for sent in self.in_flight.values()), default=None)

    def succeeded(self, request: SentAppend, match: Index, now: Milliseconds) -> None:
        """Record that the follower holds everything up to `match` durably, and rejected the request's later entries."""
        if match > self.match:
            self.match, self.advanced_ms = match, now
        if request.last > request.previous and match < request.last:
            # The follower's backlog is full. An immediate retry would be refused again and again; the next heartbeat
            # probes the follower.
            self.became_unreachable(self.match + 1)
            return
        if self.state is not ProgressState.REPLICATING:
            self.state = ProgressState.REPLICATING
            self.next = self.match + 1
        self.next = max(self.next, self.match + 1)
        if self.in_flight:
            self._settle_others(request, now)

    def _settle_others(self, request: SentAppend, now: Milliseconds) -> None:
        """Settle other open requests that the success of `request` covers."""
        for correlation, sent in list(self.in_flight.items()):
            # An older reply does not settle a heartbeat of a later round of reads, which needs its own reply.
            older = sent.sent_ms <= request.sent_ms and sent.round_number <= request.round_number
            settled = sent.last <= self.match if sent.carries_entries else older
            if settled:
                self.pop_request(correlation)
            elif sent.last <= request.previous:
                # The log matched at `previous`, so these entries arrived; the follower's disk is still writing them.
                sent.sent_ms = now

    def holds(self, index: Index, now: Milliseconds) -> None:
        """Record that the follower holds all entries up to `index` durably, from a reply too late to set `next`."""
        if index > self.match:
            self.match, self.advanced_ms = index, now
        self.next = max(self.next, self.match + 1)

    def refused(self, request: SentAppend, hint: Index) -> bool:
        """Back off by the hint, since the logs differ at `previous`. Return False if the reply is not useful."""
        if self.state is ProgressState.UNREACHABLE:
            self.state = ProgressState.PROBING
        if not self.match < request.previous < self.next:
            return False
        self.next = max(self.match + 1, min(hint, request.previous))
        self.state = ProgressState.PROBING
        self._expire_all()
        return True

    def has_lost_entries(self, request: SentAppend, hint: Index) -> bool:
        """Return True if this refusal proves that the follower lost acknowledged entries; then probe from the hint.

        For example, its storage was replaced by an older copy. Lost entries no longer count for a majority. A refusal
        of an earlier request may only be late.
        """
        if not hint <= request.previous <= self.match or request.sent_ms <= self.advanced_ms:
            return False
        self.match, self.next = 0, max(1, hint)
        self.state = ProgressState.PROBING
        self._expire_all()
        return True

    def needs_snapshot(self) -> None:
        """Switch to the snapshot: the entries that the follower lacks are deleted."""
        if self.state is not ProgressState.SNAPSHOT:
            self.state = ProgressState.SNAPSHOT
            self.next = self.match + 1
            self._expire_all()

    def installed(self, last: Index, now: Milliseconds) -> None:
        """Record that the follower holds everything up to `last` durably; probe for later entries."""
        self.transfer = None
        if last > self.match:
            self.match, self.advanced_ms = last, now
        self.next = max(self.next, self.match + 1)
        self.state = ProgressState.PROBING
        self._expire_all()

    def became_unreachable(self, next_index: Index) -> None:
        """Treat open requests as lost after an overdue reply, and wait for contact.

        Heartbeats check that the logs agree at the entry before `next_index`.
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
        sent = self.pop_request(correlation)
        if sent is None:
            return
        self.expired[correlation] = sent
        if len(self.expired) > MAX_REMEMBERED_REQUESTS:
            del self.expired[next(iter(self.expired))]


class ProgressTracker:
    """The followers of one leader, and the acknowledgments of a majority of the voters among them."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.followers: dict[ServerId, Progress] = {}
        self.committed_ms: Milliseconds = replica.now
        """Time of the last commitment, or of the first waiting proposal."""
        self.wake_ms: Milliseconds = replica.now
        """Lower bound for the time of the next due work; `Leader.expire` computes it again only at this time."""

    @property
    def confirmed_round(self) -> int:
        """The newest round of `confirm` with replies from a majority."""
        rounds = {peer: progress.round_number for peer, progress in self.followers.items()}
        rounds[self._replica.server_id] = MAX_NUMBER
        return quorum.value_of_majorities(rounds, self._replica.majorities)

    @property
    def quorum_contact_ms(self) -> Milliseconds:
        """The latest time such that a majority has replied at this time or later."""
        contacts = {peer: progress.contact_ms for peer, progress in self.followers.items()}
        contacts[self._replica.server_id] = self._replica.now
        return quorum.value_of_majorities(contacts, self._replica.majorities)

    def wake_by(self, due_ms: Milliseconds) -> None:
        """Record that work will be due at this time."""
        self.wake_ms = min(self.wake_ms, due_ms)

    def note_contact(self, progress: Progress) -> None:
        """Record contact with the follower in our term: it counts for check-quorum."""
        progress.contact_ms, progress.has_replied = self._replica.now, True

    def confirmed(self, progress: Progress, round_number: int) -> None:
        """Record the follower's reply, in our term, to a request sent in this round of `confirm` or later."""
        progress.round_number = max(progress.round_number, round_number)

    def acknowledge(self, progress: Progress, index: Index) -> bool:
        """Record that the follower holds our log up to `index` durably; return True if that committed an entry."""
        progress.reached(index, self._replica.log.last_index, self._replica.now)
        return progress.match > self._replica.applier.commit and self._commit()

    def own_disk_caught_up(self) -> bool:
        """Record that more of this server's log is durable; return True if that committed an entry."""
        return self._own_match() > self._replica.applier.commit and self._commit()

    def _commit(self) -> bool:
        """Commit the index held by a majority, if its entry has our term; return True if the commit index rose."""
        replica = self._replica
        matches = {peer: progress.match for peer, progress in self.followers.items()}
        matches[replica.server_id] = self._own_match()
        match_index = quorum.value_of_majorities(matches, replica.majorities)
        if not self._may_commit(match_index) or not replica.applier.commit_up_to(match_index):
            return False
        self.committed_ms = replica.now
        return True

    def _own_match(self) -> Index:
        return self._replica.log.durable_index

    def _may_commit(self, index: Index) -> bool:
        return self._replica.log.term_at(index) == self._replica.term
