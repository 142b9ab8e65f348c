"""Receipt of the messages of fetching, in any role, and the effect of a reply on the log and the role (KIP-595).

    Fetch               the leader serves it (`fetch_leader`); any other server names the leader if known
    FetchSnapshot       the same, for a chunk of the snapshot
    FetchReply          the follower takes it
    FetchSnapshotReply  the follower stores the chunk, and requests the next when it is durable
    BeginQuorumEpoch    follow its sender, unless the term has another known leader
    EndQuorumEpoch      the leader resigned: campaign now, or after a back-off that grows with the place in its list

*Effect of a reply* (`take`, `take_chunk`). Entries are appended. A diverging log is truncated to the last position that
both logs may share. If the leader compacted the entries, chunks of its snapshot are fetched, stored, verified and
installed. The commit index becomes the leader's, up to the end of our log, which is now part of the leader's.

A request with another cluster id is refused. This process halts only if an elected leader of another cluster refuses
our fetch or announces itself. Otherwise one misconfigured server could stop a healthy majority. An unknown id is not
compared.

A redirect restarts the follower's timer once. The follower refuses candidates only after contact with the leader
itself. During contact it also refuses later leaders from outside the group, and replies that name such leaders
(`ServerRole.refuses_outsider`).
"""

from typing import assert_never

from consensus.core.drops import Drop
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
from consensus.core.model import LogId, Milliseconds, ServerId
from consensus.core.replica import Replica
from consensus.core.replication.fetch_leader import refuse_fetch
from consensus.core.replication.fetch_schedule import FetchSchedule, PendingFetch
from consensus.core.roles import ServerRole
from consensus.core.snapshots import SnapshotReceiver, refuse_fetch_snapshot


def still_answers(last: LogId, pending: PendingFetch) -> bool:
    """Return True if the log still ends at the position of this fetch."""
    return pending.offset is None and pending.position == last


def take(replica: Replica, snapshots: SnapshotReceiver, pending: PendingFetch, reply: FetchReply) -> bool:
    """Process the leader's reply; return False if it was dropped or did not contain anything new."""
    if not still_answers(replica.log.last, pending):
        replica.dropped[Drop.FETCH_REPLY_FOR_OTHER_POSITION] += 1
        return False
    if reply.snapshot is not None:
        return _begin_snapshot(replica, snapshots, pending, reply.snapshot)
    if reply.diverging is not None:
        return _cut(replica, reply.diverging)
    return _append(replica, reply)


def _cut(replica: Replica, diverging: LogId) -> bool:
    keep = replica.log.divergence(diverging).index
    if keep < replica.applier.commit:
        replica.dropped[Drop.FETCH_REPLY_AGAINST_COMMIT] += 1
        return False
    if keep < replica.log.last_index:
        replica.append((), truncate_from=keep + 1)
    return True


def _append(replica: Replica, reply: FetchReply) -> bool:
    if reply.entries and reply.entries[0].term < replica.log.last.term:
        replica.dropped[Drop.FETCH_REPLY_TERM_ORDER] += 1
        return False
    if reply.entries and replica.disk_full:
        replica.dropped[Drop.FETCH_REPLY_DISK_FULL] += 1
        return False
    if reply.entries:
        replica.append(reply.entries)
    rose = replica.applier.commit_up_to(min(reply.commit, replica.log.last_index))
    return rose or bool(reply.entries)


def _begin_snapshot(replica: Replica, snapshots: SnapshotReceiver, pending: PendingFetch, snapshot: LogId) -> bool:
    """Fetch the leader's snapshot in place of entries; return False if that is superfluous or under way."""
    incoming = snapshots.incoming
    if snapshot.index <= replica.applier.commit:
        replica.dropped[Drop.SNAPSHOT_ALREADY_COMMITTED] += 1
        return False
    if incoming is not None and incoming.is_of(pending.term, snapshot):
        return False
    snapshots.begin(pending.term, pending.target, snapshot)
    return True


def take_chunk(replica: Replica, snapshots: SnapshotReceiver, pending: PendingFetch, reply: FetchSnapshotReply) -> bool:
    """Store a chunk of the snapshot; return False if it is not the requested chunk."""
    if (pending.position, pending.offset) != (reply.snapshot, reply.offset):
        replica.dropped[Drop.UNREQUESTED_SNAPSHOT_CHUNK] += 1
        return False
    done = reply.offset + len(reply.data) == reply.size_bytes
    if not reply.data and not done:
        replica.dropped[Drop.EMPTY_SNAPSHOT_CHUNK] += 1
        return False
    chunk = InstallSnapshot(
        term=reply.term,
        leader=pending.target,
        last=reply.snapshot,
        # A fetched snapshot contains its own configuration; this one is a default.
        configuration=replica.log.configuration,
        offset=reply.offset,
        data=reply.data,
        done=done,
        correlation=reply.correlation,
    )
    snapshots.receive(chunk)
    return True


def _size_of(reply: FetchReply | FetchSnapshotReply) -> int:
    """Return the bytes of a reply that count toward the limit of its fetch."""
    return len(reply.data) if isinstance(reply, FetchSnapshotReply) else group_bytes(reply.entries)


class FetchReceiver:
    """The fetching side of one server, in any role."""

    def __init__(self, replica: Replica, role: ServerRole, snapshots: SnapshotReceiver) -> None:
        self._replica = replica
        self._role = role
        self._snapshots = snapshots
        self._schedule = FetchSchedule(replica, snapshots)

    @property
    def deadline(self) -> Milliseconds | None:
        """Return the time when `maybe_fetch` is due; None without a server to fetch from."""
        return None if self._role.as_follower is None else self._schedule.deadline

    def maybe_fetch(self) -> None:
        """Let a follower send the fetch that is due; called after every step."""
        follower = self._role.as_follower
        if follower is not None:
            self._schedule.maybe_fetch(follower.leader)

    def answer_arriving(self, sender: ServerId, correlation: int) -> None:
        """Record that part of a reply has arrived; from the leader, this counts as contact."""
        if self._schedule.extend(sender, correlation) and self._role.leader == sender:
            self._role.follow(sender)

    def receive(self, sender: ServerId, message: FetchMessage) -> None:
        """Process a plausible message of this kind of replication."""
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
        """Process a fetch: KIP-595, Fetch request handling, steps 1 and 2; the strategy does the others."""
        replica, leader = self._replica, self._role.as_leader
        if replica.is_foreign(fetch.cluster_id):
            foreign = RefusalReason.NOT_LEADER if leader is None else RefusalReason.FOREIGN_CLUSTER
            self._refuse(fetch.replica, fetch, foreign)
        elif fetch.term > replica.term:
            # Only a voter's higher term is adopted. Otherwise another server, such as a removed server that campaigns
            # in vain, would depose leader after leader.
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
            replica.dropped[Drop.SECOND_LEADER_ANNOUNCEMENT] += 1
            self._refuse(sender, begin, RefusalReason.ANOTHER_LEADER)
            return
        if not self._has_leader_contact:
            self._schedule.restart(sender)
        self._role.follow(sender)
        reply = BeginQuorumEpochReply(term=replica.term, leader=sender, correlation=begin.correlation)
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
                sender,
                EndQuorumEpochReply(term=replica.term, leader=None, correlation=end.correlation),
                replica.hard_state_number,
            )
            backoff_ms = succession_backoff_ms(replica, end.preferred.index(replica.server_id))
            # Without a back-off, this server campaigns now.
            self._role.follow_no_leader_until(replica.now + backoff_ms)
            self._role.expire()

    def _announcement_replied(self, sender: ServerId, reply: BeginQuorumEpochReply | EndQuorumEpochReply) -> None:
        replica = self._replica
        if sender not in replica.voters:
            replica.dropped[Drop.REPLY_OF_NON_MEMBER] += 1
            return
        if not self._role.check_term(reply.term):
            return
        leader = self._role.as_leader
        if reply.term < replica.term:
            replica.dropped[Drop.OLDER_TERM_REPLY] += 1
        elif leader is not None and isinstance(reply, BeginQuorumEpochReply) and reply.error is None:
            leader.receive(sender, reply)
        elif reply.error is not None:
            self._redirected(reply.leader)

    def _fetch_replied(self, sender: ServerId, reply: FetchReply | FetchSnapshotReply) -> None:
        """Process a reply: KIP-595, Fetch response handling."""
        replica, role = self._replica, self._role
        pending = self._schedule.take_reply_to(sender, reply.correlation)
        if pending is None:
            replica.dropped[Drop.STALE_FETCH_REPLY] += 1
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
            replica.dropped[Drop.OLDER_TERM_REPLY] += 1
        elif reply.error is not None:
            self._turned_away(sender, reply)
        elif role.as_leader is not None or reply.leader != sender or role.leader not in (None, sender):
            replica.dropped[Drop.SECOND_LEADER_FETCH_REPLY] += 1
        else:
            self._follow(sender)
            if pending.max_bytes:
                self._schedule.adapt(pending, _size_of(reply))
            if self._take(pending, reply):
                self._schedule.resume()

    def _take(self, pending: PendingFetch, reply: FetchReply | FetchSnapshotReply) -> bool:
        if isinstance(reply, FetchReply):
            return take(self._replica, self._snapshots, pending, reply)
        return take_chunk(self._replica, self._snapshots, pending, reply)

    @property
    def _has_leader_contact(self) -> bool:
        """True if a message of the leader of this term has come; a redirect does not count."""
        follower = self._role.as_follower
        return follower is not None and None not in {follower.leader, follower.contact_ms}

    def _follow(self, leader: ServerId) -> None:
        """Follow the leader that replied to a fetch. After its first reply, earlier fetches do not count."""
        if not self._has_leader_contact:
            self._schedule.drop_others(leader)
        self._role.follow(leader)

    def _turned_away(self, sender: ServerId, reply: FetchReply | FetchSnapshotReply) -> None:
        """Fetch from the leader that the reply names, else the next voter.

        A leader that refuses lacks the requested data, unless it is busy.
        """
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
            self._schedule.resume()

    def _halt(self, contradiction: str) -> None:
        own = self._replica.cluster_id
        self._replica.outbox.add(
            Halt(
                f"{contradiction}, this server to cluster {own}: stop this server, and correct the addresses of its "
                "peers or give it the storage of their cluster"
            )
        )


def succession_backoff_ms(replica: Replica, place: int) -> Milliseconds:
    """Return the wait of the successor at this place of the list.

    The wait is 0 at the first place, a heartbeat interval at the second, and doubles up to the minimum election
    timeout.
    """
    if place == 0:
        return 0
    return min(replica.options.election_timeout_min_ms, replica.options.heartbeat_ms << min(place - 1, 32))


def refuse(
    replica: Replica, sender: ServerId, request: FetchRequest, leader: ServerId | None, error: RefusalReason
) -> None:
    """Refuse a request without any change."""
    match request:
        case Fetch():
            refuse_fetch(replica, request, leader, error)
        case FetchSnapshot():
            refuse_fetch_snapshot(replica, request, leader, error)
        case BeginQuorumEpoch(correlation=correlation):
            reply = BeginQuorumEpochReply(term=replica.term, leader=leader, correlation=correlation, error=error)
            replica.outbox.send(sender, reply, replica.hard_state_number)
        case EndQuorumEpoch(correlation=correlation):
            refusal = EndQuorumEpochReply(term=replica.term, leader=leader, correlation=correlation, error=error)
            replica.outbox.send(sender, refusal, replica.hard_state_number)
        case _:
            assert_never(request)
