"""The pull strategy, on the leader: answers those who fetch, and announces its term (KIP-595).

    fetch ──▶ does its position lie in our log? ──no──▶ diverging: the newest place where both logs may agree
                 │ yes: the replica holds everything up to it durably, which is its acknowledgement
                 ▼
              entries after it ──▶ reply        none ──▶ parked until an append, a new commit index, or its time is up

The next fetch acknowledges what the last answer brought: there is no other word for it. A follower that fetches nothing
for an election timeout does not count for check-quorum, so a leader whose followers have all turned away notices, and
resigns (the KIP's leader progress timeout). It tells the voters when it begins (BeginQuorumEpoch, repeated until a
voter answers or fetches) and when it ends by its own choice (EndQuorumEpoch, with the fullest logs first, so that the
election does not wait for a timeout).

Parked fetches are one per replica, and bounded in number for replicas that are no voters: one more is answered at once
with nothing, which is true and costs the observer a little latency.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
from consensus.core.replication.port import Office
from consensus.core.replication.progress import MAX_REMEMBERED_REQUESTS, ProgressState, Standing
from consensus.core.snapshots import SnapshotServer
from consensus.core.status import FollowerProgress

MAX_OBSERVERS = 256


@dataclass(slots=True)
class Parked:
    """A fetch whose answer waits: for an event, or for storage to read what left the tail."""

    fetch: Fetch
    until_ms: Milliseconds
    read_id: int | None = None


class FetchLeader:
    """The leader's side of the strategy, in one term."""

    def __init__(self, replica: Replica, office: Office, followers: dict[ServerId, Standing]) -> None:
        self._replica = replica
        self._office = office
        self._followers = followers
        self._term = replica.term
        self._round_number = 0
        self._parked: dict[ServerId, Parked] = {}
        self._observers: dict[ServerId, Standing] = {}
        """Replicas that fetch and are no members."""
        self._unannounced: dict[ServerId, Milliseconds] = {}
        """Voters and newcomers that have not shown yet that they know of us, and when they were last told."""
        self._unconfirmed: dict[ServerId, Milliseconds] = {}
        """Voters that have not answered in the newest round of `confirm`, and when they were last asked."""
        self._chunks = SnapshotServer(replica)
        self._behind: set[ServerId] = set()
        """Who was pointed to our snapshot, and has not fetched entries from our log since."""
        self._begun: dict[int, tuple[ServerId, int]] = {}
        """Announcements without an answer: to whom, in which round of `confirm`."""

    @property
    def deadline(self) -> Milliseconds | None:
        """When a parked fetch's time is up, or an announcement is to be repeated."""
        due = [parked.until_ms for parked in self._parked.values() if parked.read_id is None]
        due += [told_ms + self._announce_every_ms for told_ms in self._unannounced.values()]
        due += [asked_ms + self._replica.options.retry_ms for asked_ms in self._unconfirmed.values()]
        return min(due, default=None)

    def begin(self) -> None:
        """Tell the voters who leads this term."""
        for voter in self._replica.others:
            self._announce(voter)

    def expire(self) -> None:
        """Answer those who have waited long enough; repeat announcements."""
        now = self._replica.now
        for peer, parked in list(self._parked.items()):
            if parked.read_id is None and now >= parked.until_ms:
                self._reply(self._parked.pop(peer).fetch)
        for voter, told_ms in list(self._unannounced.items()):
            if voter not in self._followers:
                del self._unannounced[voter]
            elif now >= told_ms + self._announce_every_ms:
                self._announce(voter)
        for voter, asked_ms in list(self._unconfirmed.items()):
            if voter not in self._replica.voters:
                del self._unconfirmed[voter]
            elif now >= asked_ms + self._replica.options.retry_ms:
                self._unconfirmed[voter] = now
                self._begin_quorum_epoch(voter)

    def appended(self) -> None:
        """Whoever waited for entries gets them."""
        for peer, parked in list(self._parked.items()):
            if parked.read_id is None and parked.fetch.position.index < self._replica.log.last_index:
                self._serve(self._parked.pop(peer).fetch)

    def followers_changed(self) -> None:
        """Whoever joined is told who leads: a newcomer knows of no voter whom it could ask."""
        self._behind &= {*self._followers, *self._observers}
        for peer, standing in self._followers.items():
            if not standing.heard and peer not in self._unannounced:
                self._announce(peer)

    def committed(self) -> None:
        """Whoever waits and does not know the new commit index hears of it."""
        for peer, parked in list(self._parked.items()):
            if parked.read_id is None and parked.fetch.commit < self._replica.applier.commit:
                self._reply(self._parked.pop(peer).fetch)

    def receive(self, sender: ServerId, message: Message) -> None:
        """A fetch, of entries or of a snapshot, or the answer to an announcement."""
        match message:
            case Fetch():
                self._fetched(message)
            case FetchSnapshot():
                self._heard(sender)
                if sender in self._followers:
                    self._followers[sender].took(message.snapshot.index, message.offset, self._replica.now)
                self._chunks.asked(message)
            case BeginQuorumEpochReply(correlation=correlation, error=None):
                self._endorsed(sender, correlation)
            case _:
                self._replica.dropped["message that a leader that is fetched from does not take"] += 1

    def not_sent(self, _peer: ServerId, _correlation: int, _next_index: Index) -> None:
        """Entries leave with the answer to a fetch only, which says where the log of the peer ends."""

    def entries_read(self, event: EntriesRead) -> bool:
        """Storage gave back entries for somebody who fetches."""
        for peer, parked in self._parked.items():
            if parked.read_id == event.request_id:
                del self._parked[peer]
                expected = event.first == parked.fetch.position.index + 1
                self._reply(parked.fetch, event.entries if expected else ())
                return True
        return False

    def snapshot_read(self, event: SnapshotRead) -> bool:
        """Storage gave back a chunk of the snapshot for somebody who fetches it."""
        return self._chunks.read(event)

    def confirm(self, round_number: int) -> None:
        """Announce ourselves again, until it is answered: whoever does has not seen a later term before it was sent.

        A fetch says nothing about the round: it may have been sent long ago.
        """
        self._round_number = round_number
        for voter in self._replica.others:
            self._unconfirmed[voter] = self._replica.now
            self._begin_quorum_epoch(voter)

    def resign(self, successor: ServerId | None) -> None:
        """Nobody waits for ever; if the term ends by our own choice, the voters need not wait to find out."""
        replica = self._replica
        if replica.term == self._term:
            preferred = self._successors(successor)
            for voter in preferred:
                correlation = replica.next_correlation()
                end = EndQuorumEpoch(self._term, replica.server_id, preferred, correlation, replica.cluster_id)
                replica.outbox.send(voter, end)
        for parked in self._parked.values():
            refuse_fetch(replica, parked.fetch, None, RefusalReason.NOT_LEADER)
        self._parked.clear()
        self._chunks.resign()

    def describe(self) -> tuple[FollowerProgress, ...]:
        """Voters, then observers, as plain data."""
        replica = self._replica
        voters = [self._describe(peer, standing) for peer, standing in self._followers.items()]
        observers = [
            self._describe(peer, observer) for peer, observer in self._observers.items() if peer not in replica.voters
        ]
        return (*voters, *observers)

    def faults(self) -> Iterator[str]:
        """What is impossible about the fetches."""
        if len(self._observers) > MAX_OBSERVERS:
            yield "too many observers remembered"
        if len(self._parked) > len(self._followers) + MAX_OBSERVERS:
            yield "too many fetches parked"
        if any(parked.fetch.position.index > self._replica.log.last_index for parked in self._parked.values()):
            yield "a fetch is parked beyond the log"

    @property
    def _announce_every_ms(self) -> Milliseconds:
        return self._replica.options.election_timeout_min_ms // 2

    def _fetched(self, fetch: Fetch) -> None:
        """A replica says where its log ends, all of it durable, and asks for what follows."""
        replica, peer = self._replica, fetch.replica
        superseded = self._parked.pop(peer, None)
        if superseded is not None:
            # It asked again, so it gave the older one up; the answer settles the account of requests.
            self._reply(superseded.fetch)
        self._heard(peer)
        if peer not in self._followers:
            self._observe(peer)
        if not replica.log.matches(fetch.position):
            self._turn_back(fetch)
            return
        self._behind.discard(peer)
        if peer in self._followers:
            self._office.acknowledge(peer, fetch.position.index)
        elif peer in self._observers:
            self._observers[peer].reached(fetch.position.index, replica.log.last_index, replica.now)
        self._serve(fetch)

    def _turn_back(self, fetch: Fetch) -> None:
        """The replica's log is not a part of ours: say where both may agree, or what stands for what we compacted."""
        log = self._replica.log
        agreement = log.divergence(fetch.position)
        if log.snapshot is not None and (
            fetch.position.index < log.start.index or agreement.term > fetch.position.term
        ):
            self._behind |= {fetch.replica} if self._is_remembered(fetch.replica) else set()
            self._reply(fetch, snapshot=log.snapshot.last)
        else:
            self._reply(fetch, diverging=agreement)

    def _heard(self, peer: ServerId) -> None:
        if peer in self._followers:
            self._unannounced.pop(peer, None)
            self._office.heard(peer)

    def _serve(self, fetch: Fetch) -> None:
        """Answer a fetch whose position lies in our log, now or later."""
        replica, options = self._replica, self._replica.options
        first = fetch.position.index + 1
        if first <= replica.log.last_index:
            last = min(replica.log.last_index, first + options.max_entries_per_append - 1)
            limit_bytes = min(options.max_bytes_per_append, max(1, fetch.max_bytes))
            entries = replica.log.entries(first, last, limit_bytes)
            if entries is None and not self._is_remembered(fetch.replica):
                self._reply(fetch)
            elif entries is None:
                read_id = replica.applier.next_read_id()
                replica.outbox.add(ReadEntries(read_id, first, last, limit_bytes))
                self._parked[fetch.replica] = Parked(fetch, replica.now, read_id)
            else:
                self._reply(fetch, entries)
        elif fetch.commit < replica.applier.commit or fetch.max_wait_ms == 0 or not self._is_remembered(fetch.replica):
            self._reply(fetch)
        else:
            # Bounded, or a follower that asks for more patience than this would seem dead to check-quorum.
            wait_ms = min(fetch.max_wait_ms, options.election_timeout_min_ms // 2)
            self._parked[fetch.replica] = Parked(fetch, replica.now + wait_ms)

    def _is_remembered(self, peer: ServerId) -> bool:
        return peer in self._followers or peer in self._observers

    def _observe(self, peer: ServerId) -> None:
        """Remember an observer, in the place of the longest silent one if there are too many."""
        now, observers = self._replica.now, self._observers
        if peer not in observers and len(observers) >= MAX_OBSERVERS:
            silent = min(observers, key=lambda each: observers[each].contact_ms)
            if now < observers[silent].contact_ms + self._replica.options.election_timeout_max_ms:
                self._replica.dropped["observer beyond the number that is remembered"] += 1
                return
            del observers[silent]
            self._behind.discard(silent)
        observers.setdefault(peer, Standing(now, heard=True)).contact_ms = now

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

    def _announce(self, voter: ServerId) -> None:
        self._unannounced[voter] = self._replica.now
        self._begin_quorum_epoch(voter)

    def _begin_quorum_epoch(self, voter: ServerId) -> None:
        replica = self._replica
        correlation = replica.next_correlation()
        self._begun[correlation] = (voter, self._round_number)
        if len(self._begun) > MAX_REMEMBERED_REQUESTS:
            del self._begun[next(iter(self._begun))]
        begin = BeginQuorumEpoch(self._term, replica.server_id, correlation, replica.cluster_id)
        replica.outbox.send(voter, begin)

    def _endorsed(self, sender: ServerId, correlation: int) -> None:
        voter, round_number = self._begun.pop(correlation, (None, 0))
        if voter != sender or sender not in self._followers:
            self._replica.dropped["stale or foreign endorsement"] += 1
            return
        self._unannounced.pop(sender, None)
        if round_number == self._round_number:
            self._unconfirmed.pop(sender, None)
        # It follows us, and yet may fetch nothing: only fetches keep a leader in office.
        self._office.confirmed(sender, round_number)

    def _successors(self, chosen: ServerId | None) -> tuple[ServerId, ...]:
        """The other voters: who is chosen, then the fullest log first."""
        matches = {peer: standing.match for peer, standing in self._followers.items()}
        return tuple(sorted(self._replica.others, key=lambda voter: (voter != chosen, -matches.get(voter, 0), voter)))

    def _describe(self, peer: ServerId, standing: Standing) -> FollowerProgress:
        replica, match = self._replica, standing.match
        ago_ms = replica.now - standing.contact_ms if standing.heard else None
        if ago_ms is None:
            state = ProgressState.PROBING
        elif peer in self._behind:
            state = ProgressState.SNAPSHOT
        elif ago_ms > replica.options.retry_ms + replica.options.heartbeat_ms:
            state = ProgressState.UNREACHABLE
        else:
            state = ProgressState.REPLICATING
        caught_up_ms = standing.caught_up_ago_ms(replica.now)
        return FollowerProgress(peer, match, match + 1, int(peer in self._parked), ago_ms, state, caught_up_ms)


def refuse_fetch(replica: Replica, fetch: Fetch, leader: ServerId | None, error: RefusalReason) -> None:
    """Answer a fetch with the reason why it gets nothing."""
    reply = FetchReply(replica.term, leader, replica.applier.commit, fetch.correlation, error=error)
    replica.outbox.send(fetch.replica, reply, replica.hard_state_number)
