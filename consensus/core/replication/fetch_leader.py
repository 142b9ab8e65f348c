"""A leader with followers that fetch: it replies to their fetches, and announces its term (KIP-595).

    fetch ──▶ does its position lie in our log? ──no──▶ diverging: the last position that both logs may share
                 │ yes: the replica holds everything up to this position durably (an acknowledgment)
                 ▼
              entries after it ──▶ reply        none ──▶ parked until an append, a new commit index, or its time is up

The reply with a new commit index waits up to `commit_notice_ms` for the next entry. A separate reply with only the
index would double the cost, and would often precede the entry by a moment.

The next fetch is the only acknowledgment of the last reply. A follower without a fetch for `check_quorum_ms` does not
count for check-quorum. So a leader resigns if all followers stop fetching (the KIP's leader progress timeout). A new
leader announces itself to the voters (BeginQuorumEpoch, repeated until a voter replies or fetches). A leader that
resigns within its term sends EndQuorumEpoch, which lists its successors, so that the election need not wait.

At most one fetch per replica is parked. The number of *observers* (servers that fetch without being followers) is
bounded. The fetch of a further observer is not parked: the reply has entries from memory, or is empty.
"""

from collections.abc import Iterator

from msgspec import Struct

from consensus.core.drops import Drop
from consensus.core.effects import ReadEntries
from consensus.core.events import EntriesRead, SnapshotRead
from consensus.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    Fetch,
    FetchReply,
    FetchSnapshot,
    Message,
    RefusalReason,
)
from consensus.core.model import Entry, Index, LogId, Milliseconds, ServerId
from consensus.core.replica import Replica
from consensus.core.replication.progress import MAX_REMEMBERED_REQUESTS, Progress, ProgressState, ProgressTracker
from consensus.core.snapshots import SnapshotServer
from consensus.core.status import FollowerProgress

MAX_OBSERVERS = 256


class Parked(Struct):
    """A fetch whose reply waits for an event, or for a read of entries that are no longer in memory."""

    fetch: Fetch
    until_ms: Milliseconds
    read_id: int | None = None


class FetchLeader:
    """The leader's side of the strategy, in one term."""

    def __init__(self, replica: Replica, tracker: ProgressTracker) -> None:
        self._replica = replica
        self._tracker = tracker
        self._followers = tracker.followers
        self._term = replica.term
        self._round_number = 0
        self._parked: dict[ServerId, Parked] = {}
        self._observers: dict[ServerId, Progress] = {}
        """Servers that fetch and are not followers; `match` is the place of their last fetch, or 0 after a mismatch."""
        self._chunks = SnapshotServer(replica)
        self._announcements: dict[int, tuple[ServerId, int]] = {}
        """Announcements without a reply: the recipient, and the round of `confirm`."""

    @property
    def deadline(self) -> Milliseconds | None:
        """Return the time when a parked fetch expires or an announcement must be repeated."""
        due = [parked.until_ms for parked in self._parked.values() if parked.read_id is None]
        for progress in self._followers.values():
            if progress.announced_ms is not None:
                due.append(progress.announced_ms + self._announce_every_ms)
            if progress.queried_ms is not None:
                due.append(progress.queried_ms + self._replica.options.retry_ms)
        return min(due, default=None)

    def begin(self) -> None:
        """Announce the leader of this term to the voters."""
        for voter in self._replica.others:
            self._announce(voter, self._followers[voter])

    def expire(self) -> None:
        """Reply to fetches that have waited long enough; repeat announcements."""
        now = self._replica.now
        for peer, parked in list(self._parked.items()):
            if parked.read_id is None and now >= parked.until_ms:
                self._reply(self._parked.pop(peer).fetch)
        for peer, progress in self._followers.items():
            if progress.announced_ms is not None and now >= progress.announced_ms + self._announce_every_ms:
                self._announce(peer, progress)
        for peer, progress in self._followers.items():
            if progress.queried_ms is not None and now >= progress.queried_ms + self._replica.options.retry_ms:
                self._repeat_announcement(peer, progress)

    def appended(self) -> None:
        """Reply to the fetches that waited for entries."""
        for peer, parked in list(self._parked.items()):
            if parked.read_id is None and parked.fetch.position.index < self._replica.log.last_index:
                self._serve(self._parked.pop(peer).fetch)

    def followers_changed(self) -> None:
        """Announce the leader to servers that joined: a newcomer does not have the address of any voter."""
        for peer, progress in self._followers.items():
            self._observers.pop(peer, None)
            if not progress.has_replied and progress.announced_ms is None:
                self._announce(peer, progress)

    def committed(self) -> None:
        """Report the new commit index in replies to waiting fetches: soon, or with the next entries."""
        replica, notice_ms = self._replica, self._replica.options.commit_notice_ms
        for peer, parked in list(self._parked.items()):
            if parked.read_id is not None or parked.fetch.commit >= replica.applier.commit:
                continue
            if not notice_ms:
                self._reply(self._parked.pop(peer).fetch)
            else:
                parked.until_ms = min(parked.until_ms, replica.now + notice_ms)
                self._tracker.wake_by(parked.until_ms)

    def receive(self, sender: ServerId, message: Message) -> None:
        """Process a fetch of entries or of a snapshot, or the reply to an announcement."""
        match message:
            case Fetch():
                self._fetched(message)
            case FetchSnapshot():
                self._note_contact(sender)
                if sender in self._followers:
                    self._followers[sender].fetches_chunk(message.snapshot.index, message.offset, self._replica.now)
                self._chunks.handle_fetch(message)
            case BeginQuorumEpochReply(correlation=correlation, error=None):
                self._endorsed(sender, correlation)
            case _:
                self._replica.dropped[Drop.APPEND_MESSAGE_AT_FETCH_LEADER] += 1

    def not_sent(self, _peer: ServerId, _correlation: int, _next_index: Index) -> None:
        """Do nothing: entries leave only in the reply to a fetch, which contains the end of the peer's log."""

    def connected(self, _peer: ServerId) -> None:
        """Do nothing: the peer fetches again."""

    def entries_read(self, event: EntriesRead) -> bool:
        """Reply to a parked fetch with entries read from storage; return False if no fetch waits for them."""
        for peer, parked in self._parked.items():
            if parked.read_id == event.request_id:
                del self._parked[peer]
                expected = event.first == parked.fetch.position.index + 1
                self._reply(parked.fetch, event.entries if expected else ())
                return True
        return False

    def snapshot_read(self, event: SnapshotRead) -> bool:
        """Reply with a chunk read from storage; return False if no server waits for it."""
        return self._chunks.read(event)

    def confirm(self, round_number: int) -> None:
        """Announce this leader again until each voter replies.

        A reply proves that its voter had no later term when the announcement was sent. A fetch does not confirm the
        round: it may have been sent long ago.
        """
        self._round_number = round_number
        for voter in self._replica.others:
            self._followers[voter].queried_ms = self._replica.now
            self._begin_quorum_epoch(voter)
        self._tracker.wake_by(self._replica.now + self._replica.options.retry_ms)

    def resign(self, successor: ServerId | None) -> None:
        """Reply to all parked fetches; if the term ends by our own choice, announce the end to the voters."""
        replica = self._replica
        if replica.term == self._term:
            preferred = self._successors(successor)
            for voter in preferred:
                correlation = replica.next_correlation()
                end = EndQuorumEpoch(
                    term=self._term,
                    leader=replica.server_id,
                    preferred=preferred,
                    correlation=correlation,
                    cluster_id=replica.cluster_id,
                )
                replica.outbox.send(voter, end)
        for parked in self._parked.values():
            refuse_fetch(replica, parked.fetch, None, RefusalReason.NOT_LEADER)
        self._parked.clear()
        self._chunks.resign()

    def describe(self, now: Milliseconds) -> tuple[FollowerProgress, ...]:
        """Return the followers, then the observers, as plain data, with ages at `now`."""
        fetching = (*self._followers.items(), *self._observers.items())
        return tuple(self._describe(peer, progress, now) for peer, progress in fetching)

    def faults(self) -> Iterator[str]:
        """Yield contradictions in the state of the fetches."""
        if len(self._observers) > MAX_OBSERVERS:
            yield "too many stored observers"
        if len(self._parked) > len(self._followers) + MAX_OBSERVERS:
            yield "too many fetches parked"
        if any(parked.fetch.position.index > self._replica.log.last_index for parked in self._parked.values()):
            yield "a fetch is parked beyond the log"

    @property
    def _announce_every_ms(self) -> Milliseconds:
        return self._replica.options.election_timeout_min_ms // 2

    def _fetched(self, fetch: Fetch) -> None:
        """Process a fetch, which shows that the replica's whole log up to its position is durable."""
        replica, peer = self._replica, fetch.replica
        if fetch.is_keep_alive:
            self._alive(fetch)
            return
        superseded = self._parked.pop(peer, None)
        if superseded is not None:
            # The newer fetch replaces the older one, but every request gets one reply.
            self._reply(superseded.fetch)
        self._note_contact(peer)
        if peer not in self._followers:
            self._observe(peer)
        if not replica.log.matches(fetch.position):
            self._turn_back(fetch)
            return
        progress = self._progress_of(peer)
        if progress is not None:
            progress.state = ProgressState.REPLICATING
            # `match` falls if an older copy replaced the replica's storage: lost entries no longer count for a
            # majority.
            progress.match = min(progress.match, fetch.position.index)
        if peer in self._observers:
            self._observers[peer].reached(fetch.position.index, replica.log.last_index, replica.now)
        follower = self._followers.get(peer)
        if follower is not None and self._tracker.acknowledge(follower, fetch.position.index):
            self.committed()
        self._serve(fetch)

    def _alive(self, fetch: Fetch) -> None:
        """Record contact and durable position of a replica while a large reply is on its way to it."""
        self._note_contact(fetch.replica)
        follower = self._followers.get(fetch.replica)
        if follower is not None:
            # The replica makes progress, although the bytes are not durable yet.
            follower.advanced_ms = self._replica.now
        matches = follower is not None and self._replica.log.matches(fetch.position)
        if follower is not None and matches and self._tracker.acknowledge(follower, fetch.position.index):
            self.committed()
        self._reply(fetch)

    def _turn_back(self, fetch: Fetch) -> None:
        """Reply to a replica whose log differs: with the last position that both logs may share, or with our snapshot.

        The replica may have lost acknowledged entries, so `match` is 0 until its next matching fetch. A position that
        both logs may share does not prove that the replica holds the entries up to it. If this fetch was only late, the
        next fetch sets `match` again.
        """
        log = self._replica.log
        agreement = log.divergence(fetch.position)
        progress = self._progress_of(fetch.replica)
        if progress is not None:
            progress.match = 0
        if log.snapshot is not None and (
            fetch.position.index < log.start.index or agreement.term > fetch.position.term
        ):
            if progress is not None:
                progress.state = ProgressState.SNAPSHOT
            self._reply(fetch, snapshot=log.snapshot.last)
        else:
            self._reply(fetch, diverging=agreement)

    def _note_contact(self, peer: ServerId) -> None:
        progress = self._followers.get(peer)
        if progress is not None:
            progress.announced_ms = None
            self._tracker.note_contact(progress)

    def _serve(self, fetch: Fetch) -> None:
        """Reply, now or later, to a fetch whose position is in our log."""
        replica, options = self._replica, self._replica.options
        first = fetch.position.index + 1
        if first <= replica.log.last_index:
            last = min(replica.log.last_index, first + options.max_entries_per_append - 1)
            limit_bytes = min(options.max_bytes_per_append, max(1, fetch.max_bytes))
            entries = replica.log.entries(first, last, limit_bytes)
            if entries is None and self._progress_of(fetch.replica) is None:
                self._reply(fetch)
            elif entries is None:
                read_id = replica.applier.next_read_id()
                replica.outbox.add(ReadEntries(request_id=read_id, first=first, last=last, limit_bytes=limit_bytes))
                self._parked[fetch.replica] = Parked(fetch, replica.now, read_id)
            else:
                self._reply(fetch, entries)
            return
        # The wait is bounded, because check-quorum would count a follower with a longer wait as dead.
        wait_ms = min(fetch.max_wait_ms, options.check_quorum_ms // 2, options.election_timeout_min_ms // 2)
        if fetch.commit < replica.applier.commit:
            wait_ms = min(wait_ms, options.commit_notice_ms)
        if not wait_ms or self._progress_of(fetch.replica) is None:
            self._reply(fetch)
        else:
            self._parked[fetch.replica] = Parked(fetch, replica.now + wait_ms)
            self._tracker.wake_by(replica.now + wait_ms)

    def _progress_of(self, peer: ServerId) -> Progress | None:
        """Return the progress of a server that fetches; None if there are too many observers."""
        return self._followers.get(peer) or self._observers.get(peer)

    def _observe(self, peer: ServerId) -> None:
        """Add an observer. If there are too many, replace the observer with the oldest contact, if that is long ago."""
        now, observers = self._replica.now, self._observers
        if peer not in observers and len(observers) >= MAX_OBSERVERS:
            silent = min(observers, key=lambda each: observers[each].contact_ms)
            if now < observers[silent].contact_ms + self._replica.options.election_timeout_max_ms:
                self._replica.dropped[Drop.TOO_MANY_OBSERVERS] += 1
                return
            del observers[silent]
        observers.setdefault(peer, Progress(1, has_replied=True)).contact_ms = now

    def _reply(
        self,
        fetch: Fetch,
        entries: tuple[Entry, ...] = (),
        diverging: LogId | None = None,
        snapshot: LogId | None = None,
    ) -> None:
        replica = self._replica
        reply = FetchReply(
            term=self._term,
            leader=replica.server_id,
            commit=replica.applier.commit,
            correlation=fetch.correlation,
            entries=entries,
            diverging=diverging,
            snapshot=snapshot,
        )
        replica.outbox.send(fetch.replica, reply)

    def _announce(self, voter: ServerId, progress: Progress) -> None:
        progress.announced_ms = self._replica.now
        self._begin_quorum_epoch(voter)
        self._tracker.wake_by(self._replica.now + self._announce_every_ms)

    def _repeat_announcement(self, peer: ServerId, progress: Progress) -> None:
        """Repeat the announcement of the round of `confirm` until this voter has replied in it."""
        progress.queried_ms = None
        if peer in self._replica.voters:
            progress.queried_ms = self._replica.now
            self._begin_quorum_epoch(peer)

    def _begin_quorum_epoch(self, voter: ServerId) -> None:
        replica = self._replica
        correlation = replica.next_correlation()
        self._announcements[correlation] = (voter, self._round_number)
        if len(self._announcements) > MAX_REMEMBERED_REQUESTS:
            del self._announcements[next(iter(self._announcements))]
        begin = BeginQuorumEpoch(
            term=self._term, leader=replica.server_id, correlation=correlation, cluster_id=replica.cluster_id
        )
        replica.outbox.send(voter, begin)

    def _endorsed(self, sender: ServerId, correlation: int) -> None:
        voter, round_number = self._announcements.pop(correlation, (None, 0))
        progress = self._followers.get(sender)
        if voter != sender or progress is None:
            self._replica.dropped[Drop.STALE_ENDORSEMENT] += 1
            return
        progress.announced_ms = None
        if round_number == self._round_number:
            progress.queried_ms = None
        # The voter follows us, but possibly without a fetch. Only fetches count for check-quorum.
        self._tracker.confirmed(progress, round_number)

    def _successors(self, chosen: ServerId | None) -> tuple[ServerId, ...]:
        """Return the other voters: first the chosen successor, then by length of their logs."""
        matches = {peer: progress.match for peer, progress in self._followers.items()}
        return tuple(sorted(self._replica.others, key=lambda voter: (voter != chosen, -matches.get(voter, 0), voter)))

    def _describe(self, peer: ServerId, progress: Progress, now: Milliseconds) -> FollowerProgress:
        options, match = self._replica.options, progress.match
        ago_ms = now - progress.contact_ms if progress.has_replied else None
        if ago_ms is None:
            state = ProgressState.PROBING
        elif progress.state is ProgressState.SNAPSHOT:
            state = ProgressState.SNAPSHOT
        elif ago_ms > options.retry_ms + options.heartbeat_ms:
            state = ProgressState.UNREACHABLE
        else:
            state = ProgressState.REPLICATING
        caught_up_ms = progress.caught_up_ago_ms(now)
        return FollowerProgress(peer, match, match + 1, int(peer in self._parked), ago_ms, state, caught_up_ms)


def refuse_fetch(replica: Replica, fetch: Fetch, leader: ServerId | None, error: RefusalReason) -> None:
    """Refuse a fetch with a reason."""
    reply = FetchReply(
        term=replica.term, leader=leader, commit=replica.applier.commit, correlation=fetch.correlation, error=error
    )
    replica.outbox.send(fetch.replica, reply, replica.hard_state_number)
