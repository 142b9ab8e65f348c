"""A follower that fetches: which server it asks, when, and what an answer does to its log and to its role.

*Which server to ask, and when* (`FetchSchedule`; KIP-595, Fetch).

    leader known      ask it; the answer (entries, a new commit index, or nothing after a while) is followed by the next
    leader unknown    ask the voters in random order until one of them knows
    no answer         ask again; a late answer is still taken
    disk is writing   a fetch says "I hold all this durably", so the next one waits; if that lasts, a fetch from the
                      durable end shows the leader that we are alive

A reply answers the position that was asked for, and means nothing for another one. A late "your log diverges here"
would cut entries that came, and were committed, since. So what was asked is remembered, by correlation, and a reply
whose position is no longer the end of the log is dropped (`still_answers`).

Where the leader no longer has the entries it names its snapshot. Chunks of it are fetched one after the other, each
when the one before is durable, and entries again when all is installed (`snapshots`).

*How much to ask for.* An answer that takes long on a slow link holds up what comes behind it, and delays the next
acknowledgement. So the size asked for is halved when an answer is overdue, and doubled when a full answer comes soon:
each fetch then takes a part of the timeouts on any link. One batch that is larger than that may take minutes. Its bytes
are reported as they arrive (`AnswerArriving`). Until it is complete they count as the leader's contact, the fetch is
not repeated, and a fetch without an interest in entries shows the leader that this follower is alive.

There is one fetch at a time. After an answer that brings nothing the next fetch waits for its time, even if the leader
answered early; otherwise the two would keep each other busy for nothing.

*What the answer does* (`take`, `take_chunk`).

    entries      appended at the end, which is where they were asked for
    diverging    the log is cut to the newest place where both may agree: no entry that the leader has is lost by it,
                 for terms never fall along a log, so what lies beyond has a term that the leader's log has not there
    snapshot     the entries are gone there: chunks of the snapshot are fetched next
    a chunk      stored, read back when it is the last, and installed

The commit index becomes the leader's, as far as our log goes: the answer shows that our log is a part of the leader's.

*What arrives, in any role* (`FetchFollower`).

    Fetch               the leader serves it (`fetch_leader`); any other server names the leader if it knows it
    FetchSnapshot       likewise, for a chunk of the snapshot
    FetchReply          the follower takes it
    FetchSnapshotReply  the follower stores the chunk, and asks for the next when it is durable
    BeginQuorumEpoch    follow its sender, unless it contradicts what is known of the term
    EndQuorumEpoch      the leader resigned: campaign, at once or after a back-off that grows with the place in its list

A cluster id that contradicts ours is refused. It ends this process only when an elected leader says it, by refusing our
fetch or by announcing itself: if every contradiction were fatal, one misconfigured server could stop a healthy
majority. So a vote request with another id is refused like any other. An id that either side does not know yet is not
compared.

A follower that learns of the leader from a redirect fetches from it and restarts its timer once, but goes on hearing
candidates. Only the leader's own contact makes it refuse them. While it does, a leader of a later term that is outside
the group as our log knows it is refused, and a fetch reply that names one is dropped (`ServerRole.refuses_outsider`).
"""

import dataclasses
from dataclasses import dataclass
from typing import assert_never

from consensus.core.effects import Halt
from consensus.core.entry_data import group_bytes
from consensus.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchMessage,
    FetchReply,
    FetchRequest,
    FetchSnapshot,
    FetchSnapshotReply,
    InstallSnapshot,
    RefusalReason,
)
from consensus.core.model import LogId, Milliseconds, ServerId, Term
from consensus.core.replica import Replica
from consensus.core.replication.fetch_leader import refuse_fetch
from consensus.core.roles import ServerRole
from consensus.core.snapshots import IncomingSnapshot, SnapshotReceiver, refuse_fetch_snapshot

MAX_REMEMBERED_FETCHES = 16
FIRST_FETCH_BYTES = 256 * 1024
LEAST_FETCH_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """One fetch that has no answer yet."""

    target: ServerId
    term: Term
    position: LogId
    sent_ms: Milliseconds
    overdue_ms: Milliseconds
    offset: int | None = None
    """From which byte of the snapshot of `position`; None if entries are asked for."""
    max_bytes: int = 0
    """What the answer may have; 0 for a sign of life."""


def still_answers(last: LogId, asked: Asked) -> bool:
    """Whether the log still ends where it did when this was asked."""
    return asked.offset is None and asked.position == last


class FetchSchedule:
    """What is asked, and when to ask next."""

    def __init__(self, replica: Replica, snapshots: SnapshotReceiver) -> None:
        self._replica = replica
        self._snapshots = snapshots
        self._asked: dict[int, Asked] = {}
        self._waiting: Asked | None = None
        self._sent_ms: Milliseconds = replica.now
        self._rest_until_ms: Milliseconds = replica.now
        self._untried: list[ServerId] = []
        self._is_arriving = False
        """Whether parts of the answer that is waited for have come."""
        self._limit_bytes = min(FIRST_FETCH_BYTES, replica.options.max_bytes_per_append)

    @property
    def deadline(self) -> Milliseconds | None:
        """When `maybe_fetch` may have something to do; None if no server can be asked."""
        if self._waiting is not None:
            overdue_ms = self._waiting.overdue_ms
            return min(overdue_ms, self._sign_of_life_ms) if self._is_arriving else overdue_ms
        if not self._replica.others:
            return None
        return max(self._rest_until_ms, self._sign_of_life_ms) if self._is_busy else self._rest_until_ms

    @property
    def remembered(self) -> int:
        """Fetches without an answer."""
        return len(self._asked)

    def maybe_fetch(self, leader: ServerId | None) -> None:
        """Ask what is to be asked now, given the leader."""
        replica, waiting = self._replica, self._waiting
        if waiting is not None:
            redirected = leader not in (None, waiting.target) or waiting.term != replica.term
            if not redirected and replica.now < waiting.overdue_ms:
                if self._is_arriving and replica.now >= self._sign_of_life_ms:
                    self._show_life(waiting.target)
                return
            self._waiting = None
            if not redirected:
                self._ask_for_less()
            else:
                # The leader of a new term announces itself to the voters soon; other servers must ask the voters.
                self._rest_until_ms = replica.now if leader is not None else replica.now + replica.options.heartbeat_ms
        if replica.now < self._rest_until_ms or (self._is_busy and replica.now < self._sign_of_life_ms):
            return
        target = self._next_voter() if leader is None else leader
        if target is None:
            return
        incoming = self._snapshots.incoming
        if incoming is None or self._is_busy or (incoming.term, incoming.leader) != (replica.term, leader):
            self._ask(target)
        else:
            self._ask_for_chunk(incoming)

    def answered(self, sender: ServerId, correlation: int) -> Asked | None:
        """What this reply answers, once; None if it was never asked of the sender, or is forgotten."""
        asked = self._asked.get(correlation)
        if asked is None or asked.target != sender:
            return None
        del self._asked[correlation]
        if asked is self._waiting:
            self._waiting = None
        return asked

    def arriving(self, sender: ServerId, correlation: int) -> bool:
        """Parts of an answer have come; returns whether it is the one that is waited for."""
        asked, replica = self._asked.get(correlation), self._replica
        if asked is None or asked is not self._waiting or (asked.target, asked.term) != (sender, replica.term):
            return False
        overdue_ms = replica.now + replica.options.heartbeat_ms + replica.options.retry_ms
        self._waiting = self._asked[correlation] = dataclasses.replace(asked, overdue_ms=overdue_ms)
        self._is_arriving = True
        return True

    def adapt(self, asked: Asked, size_bytes: int) -> None:
        """An answer of this size came: ask for more if it came soon and was full, for less if it took long."""
        took_ms, retry_ms = self._replica.now - asked.sent_ms, self._replica.options.retry_ms
        if size_bytes and took_ms > retry_ms:
            self._ask_for_less()
        elif took_ms <= retry_ms // 2 and 2 * size_bytes >= asked.max_bytes >= self._limit_bytes:
            self._limit_bytes = min(2 * self._limit_bytes, self._replica.options.max_bytes_per_append)

    def _ask_for_less(self) -> None:
        self._limit_bytes = max(1, LEAST_FETCH_BYTES, self._limit_bytes // 2)

    def begin_anew(self, leader: ServerId) -> None:
        """A leader has announced itself: answers to earlier questions say nothing about it."""
        self.forget_others(leader)
        self.go_on()

    def forget_others(self, leader: ServerId) -> None:
        """An answer has shown which server leads. Questions to others, and to this one before it led, are out of date.

        Otherwise a late "I do not lead" would erase a leader whose lease this server has just confirmed. An answer of
        the leader that is arriving is large, so it is none of these.
        """
        waiting = self._waiting
        if waiting is not None and self._is_arriving and (waiting.target, waiting.term) == (leader, self._replica.term):
            self._asked = {number: asked for number, asked in self._asked.items() if asked is waiting}
            return
        self._asked.clear()
        self._waiting = None

    def go_on(self) -> None:
        """The answer brought something, or a leader is known: the next fetch may leave at once."""
        self._rest_until_ms = self._replica.now

    def rest(self) -> None:
        """The answer brought nothing: no new fetch within a heartbeat interval of the last."""
        self._rest_until_ms = max(self._replica.now, self._sent_ms + self._replica.options.heartbeat_ms)

    @property
    def _is_writing(self) -> bool:
        return self._replica.log.durable_index < self._replica.log.last_index

    @property
    def _is_busy(self) -> bool:
        """The disk writes or checks what came last, so the next fetch waits."""
        return self._is_writing or self._snapshots.is_writing

    @property
    def _sign_of_life_ms(self) -> Milliseconds:
        return self._sent_ms + self._replica.options.election_timeout_min_ms // 3

    def _next_voter(self) -> ServerId | None:
        replica = self._replica
        self._untried = [voter for voter in self._untried if voter in replica.voters]
        if not self._untried:
            self._untried = list(replica.others)
            replica.random.shuffle(self._untried)
        return self._untried.pop() if self._untried else None

    def _ask(self, target: ServerId) -> None:
        replica, log = self._replica, self._replica.log
        # While the disk writes, this is only a sign of life: its position is not the log's end, so its entries will be
        # dropped, but the leader hears of us.
        position = self._durable_position() if self._is_writing else log.last
        max_wait_ms, limit_bytes = replica.options.heartbeat_ms, self._limit_bytes
        fetch = self._fetch_from(position, max_wait_ms, limit_bytes)
        after = 0 if self._is_writing else log.writing_number
        replica.outbox.send(target, fetch, max(replica.hard_state_number, after))
        overdue_ms = replica.now + max_wait_ms + replica.options.retry_ms
        asked = Asked(target, replica.term, position, replica.now, overdue_ms, None, limit_bytes)
        self._remember(fetch.correlation, asked)

    def _show_life(self, target: ServerId) -> None:
        """Fetch nothing, so that the leader counts us among its majority while a large answer is on its way."""
        replica, position = self._replica, self._durable_position()
        fetch = dataclasses.replace(self._fetch_from(position, 0, 0), is_sign_of_life=True)
        replica.outbox.send(target, fetch, replica.hard_state_number)
        self._keep(fetch.correlation, Asked(target, replica.term, position, replica.now, replica.now))

    def _durable_position(self) -> LogId:
        log = self._replica.log
        return LogId(log.durable_index, log.term_at(log.durable_index) or 0)

    def _fetch_from(self, position: LogId, max_wait_ms: Milliseconds, max_bytes: int) -> Fetch:
        replica = self._replica
        return Fetch(
            term=replica.term,
            replica=replica.server_id,
            position=position,
            commit=replica.applier.commit,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            correlation=replica.next_correlation(),
            cluster_id=replica.cluster_id,
        )

    def _ask_for_chunk(self, incoming: IncomingSnapshot) -> None:
        replica = self._replica
        limit_bytes = min(self._limit_bytes, replica.options.snapshot_chunk_bytes)
        correlation = replica.next_correlation()
        fetch = FetchSnapshot(
            term=replica.term,
            replica=replica.server_id,
            snapshot=incoming.last,
            offset=incoming.received,
            max_bytes=limit_bytes,
            correlation=correlation,
            cluster_id=replica.cluster_id,
        )
        replica.outbox.send(incoming.leader, fetch, max(replica.hard_state_number, incoming.number))
        overdue_ms, offset = replica.now + replica.options.retry_ms, incoming.received
        asked = Asked(incoming.leader, replica.term, incoming.last, replica.now, overdue_ms, offset, limit_bytes)
        self._remember(correlation, asked)

    def _remember(self, correlation: int, asked: Asked) -> None:
        self._waiting, self._is_arriving = asked, False
        self._keep(correlation, asked)

    def _keep(self, correlation: int, asked: Asked) -> None:
        self._asked[correlation] = asked
        self._sent_ms = self._replica.now
        if len(self._asked) > MAX_REMEMBERED_FETCHES:
            # A large answer is waited for while many signs of life are sent.
            del self._asked[next(number for number, each in self._asked.items() if each is not self._waiting)]


def take(replica: Replica, snapshots: SnapshotReceiver, asked: Asked, reply: FetchReply) -> bool:
    """Do what the leader's answer says; returns whether it brought anything."""
    if not still_answers(replica.log.last, asked):
        replica.dropped["fetch reply for another end of the log"] += 1
        return False
    if reply.snapshot is not None:
        return _begin_snapshot(replica, snapshots, asked, reply.snapshot)
    if reply.diverging is not None:
        return _cut(replica, reply.diverging)
    return _append(replica, reply)


def _cut(replica: Replica, diverging: LogId) -> bool:
    keep = replica.log.divergence(diverging).index
    if keep < replica.applier.commit:
        replica.dropped["fetch reply that contradicts committed entries"] += 1
        return False
    if keep < replica.log.last_index:
        replica.append((), truncate_from=keep + 1)
    return True


def _append(replica: Replica, reply: FetchReply) -> bool:
    if reply.entries and reply.entries[0].term < replica.log.last.term:
        replica.dropped["fetch reply with terms out of order"] += 1
        return False
    if reply.entries and replica.disk_full:
        replica.dropped["fetch reply while the disk is full"] += 1
        return False
    if reply.entries:
        replica.append(reply.entries)
    rose = replica.applier.commit_up_to(min(reply.commit, replica.log.last_index))
    return rose or bool(reply.entries)


def _begin_snapshot(replica: Replica, snapshots: SnapshotReceiver, asked: Asked, snapshot: LogId) -> bool:
    """The leader has a snapshot where we want entries: chunks are fetched next; returns whether that is news."""
    incoming = snapshots.incoming
    if snapshot.index <= replica.applier.commit:
        replica.dropped["snapshot of what is committed here"] += 1
        return False
    if incoming is not None and incoming.is_of(asked.term, snapshot):
        return False
    snapshots.begin(asked.term, asked.target, snapshot)
    return True


def take_chunk(replica: Replica, snapshots: SnapshotReceiver, asked: Asked, reply: FetchSnapshotReply) -> bool:
    """Store a chunk of the snapshot, if it is the one that was asked for; returns whether it was."""
    if (asked.position, asked.offset) != (reply.snapshot, reply.offset):
        replica.dropped["another chunk of a snapshot than was asked for"] += 1
        return False
    done = reply.offset + len(reply.data) == reply.size_bytes
    if not reply.data and not done:
        replica.dropped["empty chunk of a snapshot"] += 1
        return False
    chunk = InstallSnapshot(
        term=reply.term,
        leader=asked.target,
        last=reply.snapshot,
        configuration=replica.log.configuration,  # not looked at: what counts is inside the snapshot
        offset=reply.offset,
        data=reply.data,
        done=done,
        correlation=reply.correlation,
    )
    snapshots.receive(chunk)
    return True


def _size_of(reply: FetchReply | FetchSnapshotReply) -> int:
    """The bytes of an answer that its request has a limit for."""
    return len(reply.data) if isinstance(reply, FetchSnapshotReply) else group_bytes(reply.entries)


class FetchFollower:
    """The fetching side of one server, whatever its role."""

    def __init__(self, replica: Replica, role: ServerRole, snapshots: SnapshotReceiver) -> None:
        self._replica = replica
        self._role = role
        self._snapshots = snapshots
        self._schedule = FetchSchedule(replica, snapshots)

    @property
    def deadline(self) -> Milliseconds | None:
        """When `maybe_fetch` has something to do; None if this server does not follow, or has no server to ask."""
        return None if self._role.as_follower is None else self._schedule.deadline

    def maybe_fetch(self) -> None:
        """After every step: a follower asks for what comes next, if it is time."""
        follower = self._role.as_follower
        if follower is not None:
            self._schedule.maybe_fetch(follower.leader)

    def answer_arriving(self, sender: ServerId, correlation: int) -> None:
        """Parts of an answer have come. If the leader sends it, that is a contact of the leader."""
        if self._schedule.arriving(sender, correlation) and self._role.leader == sender:
            self._role.follow(sender)

    def receive(self, sender: ServerId, message: FetchMessage) -> None:
        """A plausible message of the strategy arrives."""
        match message:
            case Fetch() | FetchSnapshot():
                self._fetch_requested(message)
            case BeginQuorumEpoch():
                self._begin_requested(message)
            case EndQuorumEpoch():
                self._end_requested(message)
            case FetchReply() | FetchSnapshotReply():
                self._fetch_replied(sender, message)
            case BeginQuorumEpochReply() | EndQuorumEpochReply():
                self._announcement_replied(sender, message)
            case _:
                assert_never(message)

    def _refuse(self, sender: ServerId, request: FetchRequest, error: RefusalReason) -> None:
        refuse(self._replica, sender, request, self._role.leader, error)

    def _fetch_requested(self, fetch: Fetch | FetchSnapshot) -> None:
        """KIP-595, Fetch request handling, steps 1 and 2; the strategy does the others."""
        replica, leader = self._replica, self._role.as_leader
        if replica.is_foreign(fetch.cluster_id):
            foreign = RefusalReason.NOT_LEADER if leader is None else RefusalReason.FOREIGN_CLUSTER
            self._refuse(fetch.replica, fetch, foreign)
        elif fetch.term > replica.term:
            # Only a voter's term counts: it may know more than we. Any other server, such as a removed one that
            # campaigns in vain, would depose leader after leader.
            if fetch.replica in replica.voters:
                self._role.check_term(fetch.term)
            self._refuse(fetch.replica, fetch, RefusalReason.NEWER_TERM)
        elif fetch.term < replica.term:
            self._refuse(fetch.replica, fetch, RefusalReason.STALE_TERM)
        elif leader is None:
            self._refuse(fetch.replica, fetch, RefusalReason.NOT_LEADER)
        else:
            leader.receive(fetch.replica, fetch)

    def _begin_requested(self, begin: BeginQuorumEpoch) -> None:
        replica, sender = self._replica, begin.leader
        if replica.is_foreign(begin.cluster_id):
            self._refuse(sender, begin, RefusalReason.FOREIGN_CLUSTER)
            if sender in replica.voters and begin.term >= replica.term:
                self._halt(f"server {sender}, the leader of term {begin.term}, belongs to cluster {begin.cluster_id}")
            return
        if begin.term < replica.term:
            self._refuse(sender, begin, RefusalReason.STALE_TERM)
            return
        outside = self._role.refuses_outsider(sender, begin.term)
        if outside or not self._role.check_term(begin.term, of_a_leader=True):
            self._refuse(sender, begin, RefusalReason.NEWER_TERM)
            return
        if self._role.leader not in (None, sender):
            replica.dropped["announcement of a second leader of the term"] += 1
            self._refuse(sender, begin, RefusalReason.ANOTHER_LEADER)
            return
        if not self._leader_has_spoken:
            self._schedule.begin_anew(sender)
        self._role.follow(sender)
        reply = BeginQuorumEpochReply(replica.term, sender, begin.correlation)
        replica.outbox.send(sender, reply, after=replica.hard_state_number)

    def _end_requested(self, end: EndQuorumEpoch) -> None:
        replica, sender = self._replica, end.leader
        if replica.is_foreign(end.cluster_id):
            self._refuse(sender, end, RefusalReason.FOREIGN_CLUSTER)
            return
        if end.term < replica.term:
            self._refuse(sender, end, RefusalReason.STALE_TERM)
            return
        if self._role.refuses_outsider(sender, end.term) or not self._role.check_term(end.term):
            self._refuse(sender, end, RefusalReason.NEWER_TERM)
            return
        follower = self._role.as_follower
        if follower is None or sender not in (follower.leader, follower.former):
            self._refuse(sender, end, RefusalReason.ANOTHER_LEADER)
        elif replica.server_id not in end.preferred:
            self._refuse(sender, end, RefusalReason.INCONSISTENT_VOTERS)
        else:
            replica.outbox.send(
                sender, EndQuorumEpochReply(replica.term, None, end.correlation), replica.hard_state_number
            )
            backoff_ms = succession_backoff_ms(replica, end.preferred.index(replica.server_id))
            # Now, if that has come.
            self._role.follow_no_leader_until(replica.now + backoff_ms)
            self._role.expire()

    def _announcement_replied(self, sender: ServerId, reply: BeginQuorumEpochReply | EndQuorumEpochReply) -> None:
        replica = self._replica
        if sender not in replica.voters:
            replica.dropped["reply from a server outside the configuration"] += 1
            return
        if not self._role.check_term(reply.term):
            return
        leader = self._role.as_leader
        if reply.term < replica.term:
            replica.dropped["reply of an older term"] += 1
        elif leader is not None and isinstance(reply, BeginQuorumEpochReply) and reply.error is None:
            leader.receive(sender, reply)
        elif reply.error is not None:
            self._redirected(reply.leader)

    def _fetch_replied(self, sender: ServerId, reply: FetchReply | FetchSnapshotReply) -> None:
        """KIP-595, Fetch response handling."""
        replica, role = self._replica, self._role
        asked = self._schedule.answered(sender, reply.correlation)
        if asked is None:
            replica.dropped["stale or foreign fetch reply"] += 1
            return
        self._schedule.rest()
        if reply.error is RefusalReason.FOREIGN_CLUSTER and reply.leader == sender:
            self._halt(f"the leader, server {sender}, belongs to another cluster")
            return
        named = sender if reply.leader is None else reply.leader
        if role.refuses_outsider(sender, reply.term) or role.refuses_outsider(named, reply.term):
            return
        if not role.check_term(reply.term, of_a_leader=reply.error is None and reply.leader == sender):
            return
        if reply.term < replica.term:
            replica.dropped["reply of an older term"] += 1
        elif reply.error is not None:
            self._turned_away(sender, reply)
        elif role.as_leader is not None or reply.leader != sender or role.leader not in (None, sender):
            replica.dropped["fetch reply of a second leader of the term"] += 1
        else:
            self._follow(sender)
            if asked.max_bytes:
                self._schedule.adapt(asked, _size_of(reply))
            if self._take(asked, reply):
                self._schedule.go_on()

    def _take(self, asked: Asked, reply: FetchReply | FetchSnapshotReply) -> bool:
        if isinstance(reply, FetchReply):
            return take(self._replica, self._snapshots, asked, reply)
        return take_chunk(self._replica, self._snapshots, asked, reply)

    @property
    def _leader_has_spoken(self) -> bool:
        """Whether the leader of this term has told us itself that it leads; a redirect does not count."""
        follower = self._role.as_follower
        return follower is not None and None not in {follower.leader, follower.contact_ms}

    def _follow(self, leader: ServerId) -> None:
        """The leader has answered a fetch. After its first answer, earlier questions mean nothing."""
        if not self._leader_has_spoken:
            self._schedule.forget_others(leader)
        self._role.follow(leader)

    def _turned_away(self, sender: ServerId, reply: FetchReply | FetchSnapshotReply) -> None:
        """The server asked does not lead: ask the one it names, else the next. A leader lacks what was asked for."""
        if reply.leader == sender:
            self._follow(sender)
            if reply.error is not RefusalReason.BUSY:
                self._snapshots.abandon()
            return
        follower = self._role.as_follower
        if follower is not None and follower.leader == sender:
            follower.leader_resigned()
        self._redirected(reply.leader)

    def _redirected(self, leader: ServerId | None) -> None:
        follower = self._role.as_follower
        known = self._role.leader is not None
        if leader is None or known or leader == self._replica.server_id:
            return
        if follower is None or follower.former != leader:
            self._role.follow_redirect(leader)
            self._schedule.go_on()

    def _halt(self, contradiction: str) -> None:
        own = self._replica.cluster_id
        self._replica.outbox.add(
            Halt(
                f"{contradiction}, this server to cluster {own}: stop it, and correct the addresses of its peers or "
                f"give it the storage that belongs to this cluster"
            )
        )


def succession_backoff_ms(replica: Replica, place: int) -> Milliseconds:
    """How long the successor at this place of the list waits: nothing, then one unit, doubled from place to place."""
    if place == 0:
        return 0
    return min(replica.options.election_timeout_min_ms, replica.options.heartbeat_ms << min(place - 1, 32))


def refuse(
    replica: Replica, sender: ServerId, request: FetchRequest, leader: ServerId | None, error: RefusalReason
) -> None:
    """Answer a request that changes nothing."""
    match request:
        case Fetch():
            refuse_fetch(replica, request, leader, error)
        case FetchSnapshot():
            refuse_fetch_snapshot(replica, request, leader, error)
        case BeginQuorumEpoch(correlation=correlation):
            reply = BeginQuorumEpochReply(replica.term, leader, correlation, error)
            replica.outbox.send(sender, reply, replica.hard_state_number)
        case EndQuorumEpoch(correlation=correlation):
            refusal = EndQuorumEpochReply(replica.term, leader, correlation, error)
            replica.outbox.send(sender, refusal, replica.hard_state_number)
        case _:
            assert_never(request)
