"""One replica of a Raft group, without I/O.

    event ──▶ Raft.step(event, now) ──▶ [effect, …]
    Raft.deadline: the time of the next event `DeadlineReached`

Every message first passes the term check (Raft figure 2, rules for all servers). A higher term makes this server a
follower. This server refuses a request of an older term, and replies with its own term. It ignores a reply of an older
term, except a vote reply that denies the vote or grants a pre-vote.

A leader, and a server within `leader_stickiness_ms` after contact with one, refuse vote requests (section 6), except in
a transfer. They also refuse a later leader from outside the group. These messages never change a term: pre-vote
requests, granted pre-votes, and fetches and replies of non-voters (except replies to a fetch). One message raises a
term by a limited step (`Replica.adopt_term`).

`append_receiver` and `fetch_receiver` each handle the messages of one replication strategy; `ServerRole` changes the
role. Only a leader serves proposals, reads, changes of the members and transfers of leadership. Every other server
refuses these requests immediately, and names the leader if known (section 8).

Every request to storage has a number or a position, which identifies its reply. A reply without a waiting request is
dropped and counted. Every request of a peer gets one reply, even an implausible request.
"""

from operator import itemgetter
from random import Random
from typing import assert_never

from consensus.core import election, invariants
from consensus.core.drops import Drop
from consensus.core.effects import (
    ChangeOutcome,
    ChangeRefusal,
    ConfigurationChanged,
    ConfigurationResolved,
    Effect,
    Outcome,
    ProposalResolved,
    ReadRefusal,
    ReadRefused,
    Role,
    RoleChanged,
)
from consensus.core.election import Candidate
from consensus.core.events import (
    AnswerArriving,
    AppendNotSent,
    ChangeConfiguration,
    ClusterIdKnown,
    DeadlineReached,
    DiskSpace,
    EntriesRead,
    Event,
    Learned,
    PeerEnded,
    PeerExtensions,
    Persisted,
    Proposed,
    ReadRequested,
    Received,
    Rejected,
    Requested,
    SnapshotChecked,
    SnapshotEvent,
    SnapshotRead,
    SnapshotTaken,
    SnapshotWanted,
    TransferLeadership,
)
from consensus.core.features import Features, LeaderRecords, Strategy
from consensus.core.leader import Leader
from consensus.core.log import RecoveredLog
from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchSnapshot,
    InstallSnapshot,
    Message,
    RefusalReason,
    Reply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from consensus.core.model import Configuration, HardState, LogId, Milliseconds, Server, ServerId
from consensus.core.options import Options
from consensus.core.replica import Replica
from consensus.core.replication import fetch_receiver
from consensus.core.replication.append_receiver import AppendReceiver, refuse_leader
from consensus.core.replication.fetch_receiver import FetchReceiver
from consensus.core.replication.port import Replication
from consensus.core.roles import Follower, ServerRole
from consensus.core.snapshots import SnapshotReceiver, snapshot_taken, take_snapshot
from consensus.core.status import RaftDescription, SoftState
from consensus.core.transfer import LeadershipTransfers
from consensus.core.validation import implausible


class Raft:
    """One replica. Servers start as followers (Raft section 5.2), with the state recovered from storage."""

    def __init__(
        self,
        server_id: ServerId,
        configuration: Configuration,
        hard_state: HardState,
        log: RecoveredLog,
        options: Options,
        features: Features,
        random: Random,
        now: Milliseconds,
        cluster_id: str | None = None,
        leader_records: LeaderRecords | None = None,
    ) -> None:
        replica = Replica(
            server_id, configuration, hard_state, log, options, features, random, now, cluster_id, leader_records
        )
        self._replica = replica
        self._role = ServerRole(replica)
        self._snapshots = SnapshotReceiver(replica)
        self._append_receiver = AppendReceiver(replica, self._role, self._snapshots)
        fetches = features.replication is Strategy.FETCH
        self._fetch_receiver = FetchReceiver(replica, self._role, self._snapshots) if fetches else None
        self._transfers = LeadershipTransfers(replica)
        self._announced = RoleChanged(Role.FOLLOWER, hard_state.term, None)
        self._members = ConfigurationChanged(replica.log.configuration)
        self._seen_configuration = replica.log.configuration

    @property
    def deadline(self) -> Milliseconds:
        """Return the time of the next `DeadlineReached`, unless another event comes before."""
        fetch_ms = self._fetch_receiver.deadline if self._fetch_receiver is not None else None
        others = (fetch_ms, self._transfers.deadline)
        return min([self._role.current.deadline, *(due for due in others if due is not None)])

    @property
    def features(self) -> Features:
        """Return the features of the protocol."""
        return self._replica.features

    def step(self, event: Event, now: Milliseconds) -> list[Effect]:
        """Process one event; return the effects in order. A clock that goes back counts as unchanged."""
        replica = self._replica
        replica.now = max(replica.now, now)
        self._take(event)
        if not replica.outbox.changes_snapshot:  # a step that changes the snapshot must not append; the next step may
            self._advance()
        if self._fetch_receiver is not None:
            self._fetch_receiver.maybe_fetch()
        replica.log.trim(replica.options.tail_entries, replica.options.tail_bytes)
        self._announce()
        invariants.check(replica)
        if replica.options.check_invariants:
            invariants.check_all(replica, self._role.as_leader)
        return replica.outbox.drain()

    def describe(self, now: Milliseconds = 0) -> RaftDescription:
        """Describe this replica as plain data. Ages count to `now`, or to the last step if that was later."""
        replica, leader = self._replica, self._role.as_leader
        return RaftDescription(
            server_id=replica.server_id,
            role=self._announced.role,
            term=replica.term,
            voted_for=replica.hard_state.voted_for,
            leader=self._announced.leader,
            last=replica.log.last,
            durable_index=replica.log.durable_index,
            commit_index=replica.applier.commit,
            applied_index=replica.applier.applied,
            pending_proposals=leader.pending + self._transfers.pending if leader else 0,
            followers=leader.replication.describe(max(replica.now, now)) if leader else (),
            configuration=replica.log.configuration,
            change=leader.reconfiguration.describe() if leader else None,
            log_start=replica.log.start,
            snapshot=replica.log.snapshot,
            disk_full=replica.disk_full,
            pending_reads=leader.pending_reads if leader else 0,
            transfer_target=self._transfers.target,
            extensions=tuple(sorted(replica.extensions_of.items(), key=itemgetter(0))),
            dropped=tuple(sorted(replica.dropped.items())),
        )

    def soft_state(self) -> SoftState:
        """Return the values that a protocol reads for every message; they equal the values of `describe`."""
        log, announced = self._replica.log, self._announced
        return SoftState(
            role=announced.role,
            term=self._replica.term,
            leader=announced.leader,
            last=log.last,
            log_start=log.start,
            commit_index=self._replica.applier.commit,
            configuration=log.configuration,
        )

    def divergence(self, other: LogId) -> LogId:
        """Return the last position that our log may share with a log that ends with `other` (`Log.divergence`)."""
        return self._replica.log.divergence(other)

    def _take(self, event: Event) -> None:
        match event:
            case Received(sender, message):
                self._receive(sender, message)
            case Rejected(sender, append):
                self._replica.dropped[Drop.APPEND_REJECTED_BY_STATE_MACHINE] += 1
                refuse_leader(self._replica, sender, append)
            case DeadlineReached():
                self._role.expire()
            case Proposed() | ChangeConfiguration() | ReadRequested() | TransferLeadership():
                self._requested(event)
            case Persisted(number):
                self._persisted(number)
            case PeerExtensions() | PeerEnded() | ClusterIdKnown() | AppendNotSent() | AnswerArriving():
                self._learn(event)
            case EntriesRead() | SnapshotWanted() | SnapshotTaken() | SnapshotRead() | SnapshotChecked():
                self._on_storage_read(event)
            case DiskSpace(full):
                self._disk_space_changed(full=full)
            case _:
                assert_never(event)

    def _receive(self, sender: ServerId, message: Message) -> None:
        replica = self._replica
        problem = implausible(replica.server_id, sender, message, replica.features)
        if problem is not None:
            replica.dropped[problem] += 1
            self._refuse_message(sender, message)
            return
        match message:
            case RequestVote():
                self._vote_requested(message)
            case AppendEntries() | InstallSnapshot():
                self._append_receiver.receive(message)
            case TimeoutNow():
                self._campaign_for_transfer(message)
            case VoteReply() | AppendReply() | SnapshotReply() | TimeoutNowReply():
                self._replied(sender, message)
            case _:
                if self._fetch_receiver is not None:
                    self._fetch_receiver.receive(sender, message)

    def _refuse_message(self, sender: ServerId, message: Message) -> None:
        """Refuse an implausible request; do not answer an implausible reply."""
        if isinstance(message, Reply):
            return
        replica = self._replica
        match message:
            case RequestVote(correlation=correlation, pre_vote=pre_vote):
                reply = VoteReply(term=replica.term, granted=False, correlation=correlation, pre_vote=pre_vote)
                replica.outbox.send(sender, reply)
            case AppendEntries() | InstallSnapshot():
                refuse_leader(replica, sender, message)
            case TimeoutNow(correlation=correlation):
                replica.outbox.send(sender, TimeoutNowReply(replica.term, accepted=False, correlation=correlation))
            case Fetch() | FetchSnapshot() | BeginQuorumEpoch() | EndQuorumEpoch():
                fetch_receiver.refuse(replica, sender, message, self._role.leader, RefusalReason.IMPLAUSIBLE)
            case _:
                assert_never(message)

    def _vote_requested(self, request: RequestVote) -> None:
        replica, role = self._replica, self._role
        # A transfer requests a vote in a later term. In the term of a known leader the request is too late, and a vote
        # would break the promise that the leader's lease depends on.
        late = role.leader is not None and request.term <= replica.term
        handed_over = request.transfer and not late and replica.may_lead(request.candidate)
        if role.sticks_to_leader() and not handed_over:
            replica.answer_vote(request, granted=False)
            return
        if request.pre_vote:
            election.answer_pre_vote(replica, request)
            return
        if not replica.is_foreign(request.cluster_id):
            role.check_term(request.term)
        if election.answer_vote(replica, request):
            role.follow_no_leader_until(replica.random_election_deadline())

    def _campaign_for_transfer(self, order: TimeoutNow) -> None:
        """Campaign immediately at the leader's request, if this server may campaign."""
        replica = self._replica
        match self._role.current:
            case Follower(leader=leader) if leader == order.leader and replica.server_id in replica.voters:
                accepted = order.term == replica.term < replica.options.max_term and not replica.disk_full
            case _:
                accepted = False
        reply = TimeoutNowReply(replica.term, accepted, order.correlation)
        replica.outbox.send(order.leader, reply)
        if accepted:
            self._role.campaign_for_transfer()

    def _replied(self, sender: ServerId, reply: Reply) -> None:
        replica = self._replica
        if sender not in replica.voters and not self._takes_reply_of_outsider(sender, reply):
            is_member = sender in replica.members
            replica.dropped[Drop.REPLY_OF_NON_VOTER if is_member else Drop.REPLY_OF_NON_MEMBER] += 1
            return
        if reply.term != replica.term and not self._takes_term_of(reply):
            return
        match reply:
            case AppendReply() | SnapshotReply() if self._role.as_leader is not None:
                self._role.as_leader.receive(sender, reply)
            case VoteReply() if isinstance(self._role.current, Candidate):
                self._role.current.receive(replica, sender, reply)
                self._role.conclude_campaign()
            case TimeoutNowReply():
                self._transfers.replied(sender, reply)
            case _:
                replica.dropped[Drop.UNMATCHED_REPLY] += 1

    def _takes_term_of(self, reply: Reply) -> bool:
        """Return True if this server should process a reply from a different term."""
        if isinstance(reply, VoteReply) and reply.pre_vote and reply.granted:
            return True
        if not self._role.check_term(reply.term):
            return False
        if reply.term < self._replica.term and not (isinstance(reply, VoteReply) and not reply.granted):
            self._replica.dropped[Drop.OLDER_TERM_REPLY] += 1
            return False
        return True

    def _takes_reply_of_outsider(self, sender: ServerId, reply: Reply) -> bool:
        """Return True to process the reply of a learner, or of a joining or leaving server. Its term is never adopted.

        Such a server does not take part in elections: if a later term matters, the voters send it as well. If its term
        were adopted, any such server could depose us.
        """
        leader = self._role.as_leader
        if leader is None or sender not in leader.followers:
            return False
        if reply.term > self._replica.term:
            leader.reconfiguration.outsider_in_later_term(sender)
        return reply.term <= self._replica.term

    def _requested(self, request: Requested) -> None:
        """Process a request of a client or an operator, which only a leader can serve."""
        leader = self._role.as_leader
        match request:
            case TransferLeadership():
                self._transfers.begin(request, leader, self._role.leader)
            case _ if leader is None:
                self._redirect(request)
            case Proposed():
                if not self._transfers.hold(request):
                    leader.propose(request)
            case ChangeConfiguration():
                leader.change_configuration(request)
            case ReadRequested(read_id):
                leader.read(read_id)
            case _:
                assert_never(request)

    def _redirect(self, request: Proposed | ChangeConfiguration | ReadRequested) -> None:
        outbox, leader = self._replica.outbox, self._role.leader
        match request:
            case Proposed(proposal_id=proposal_id):
                outbox.add(ProposalResolved(proposal_id=proposal_id, outcome=Outcome.NOT_LEADER, leader=leader))
            case ChangeConfiguration(change_id):
                refusal = ChangeRefusal.NOT_LEADER
                outbox.add(
                    ConfigurationResolved(
                        change_id=change_id, outcome=ChangeOutcome.REFUSED, refusal=refusal, leader=leader
                    )
                )
            case ReadRequested(read_id):
                outbox.add(ReadRefused(read_id, ReadRefusal.NOT_LEADER, leader))
            case _:
                assert_never(request)

    def _learn(self, event: Learned) -> None:
        match event:
            case PeerExtensions():
                self._learn_extensions(event)
                if self._replication is not None:
                    self._replication.connected(event.peer)
            case PeerEnded(peer):
                self._role.leader_ended(peer)
            case ClusterIdKnown(cluster_id):
                self._replica.cluster_id = cluster_id
            case AppendNotSent(peer, correlation, next_index):
                if self._replication is not None:
                    self._replication.not_sent(peer, correlation, next_index)
            case AnswerArriving(peer, correlation):
                if self._fetch_receiver is not None:
                    self._fetch_receiver.answer_arriving(peer, correlation)
            case _:
                assert_never(event)

    def _learn_extensions(self, settled: PeerExtensions) -> None:
        self._replica.learn_extensions(settled.peer, settled.extensions)
        if isinstance(self._role.current, Candidate):
            self._role.current.count_peer_without_pre_vote(self._replica, settled.peer)
            self._role.conclude_campaign()

    def _persisted(self, number: int) -> None:
        replica = self._replica
        replica.log.persisted(number)
        replica.durable_number = number
        match self._role.current:
            case Candidate() as role:
                role.count_own_vote(replica, number)
                self._role.conclude_campaign()
            case Leader() as role:
                role.own_disk_caught_up()
            case Follower():
                pass

    def _on_storage_read(self, answer: EntriesRead | SnapshotEvent) -> None:
        """Pass the reply to the part that waits for it: the applier, the leader's strategy, or a snapshot under way."""
        replica, replication = self._replica, self._replication
        match answer:
            case EntriesRead(request_id, first, entries):
                applied = replica.applier.entries_read(request_id, first, entries)
                if not applied and (replication is None or not replication.entries_read(answer)):
                    replica.dropped[Drop.UNMATCHED_ENTRIES_READ] += 1
            case SnapshotWanted(index):
                take_snapshot(replica, index)
            case SnapshotTaken(snapshot, first_kept):
                snapshot_taken(replica, snapshot, first_kept)
            case SnapshotRead():
                if replication is None or not replication.snapshot_read(answer):
                    replica.dropped[Drop.UNMATCHED_SNAPSHOT_READ] += 1
            case SnapshotChecked():
                if not self._snapshots.checked(answer):
                    replica.dropped[Drop.UNMATCHED_SNAPSHOT_CHECK] += 1
            case _:
                assert_never(answer)

    def _disk_space_changed(self, *, full: bool) -> None:
        """Record a change of disk space. Without space a leader resigns, and this server does not campaign."""
        self._replica.disk_full = full
        if full and not isinstance(self._role.current, Follower):
            self._role.become_follower()

    def _advance(self) -> None:
        """Continue, after every event, work that waits for a majority or for a follower's log."""
        role = self._role
        if role.as_leader is not None and not role.as_leader.advance():
            role.become_follower()
        if self._transfers.under_way and self._transfers.advance(role.as_leader, role.leader):
            self._abdicate()
        if role.as_leader is not None:
            role.as_leader.serve_reads()

    def _abdicate(self) -> None:
        """Step down for the target of the transfer, which does not support TimeoutNow."""
        leader = self._role.as_leader
        if leader is not None:
            leader.successor = self._transfers.target
        self._role.become_follower()
        self._role.follow_no_leader_until(self._transfers.abstain_until())
        self._transfers.advance(None, None)

    @property
    def _replication(self) -> Replication | None:
        leader = self._role.as_leader
        return None if leader is None else leader.replication

    def _announce(self) -> None:
        announced, leader, term, role = self._announced, self._role.leader, self._replica.term, self._role.name
        if role is not announced.role or term != announced.term or leader != announced.leader:
            self._announced = RoleChanged(role, term, leader)
            self._replica.outbox.add(self._announced)
        current = self._role.as_leader
        newcomers = current.reconfiguration.newcomers if current is not None else ()
        configuration = self._replica.log.configuration
        if configuration is not self._seen_configuration or newcomers != self._members.newcomers:
            self._announce_members(configuration, newcomers)

    def _announce_members(self, configuration: Configuration, newcomers: tuple[Server, ...]) -> None:
        """Announce the members, unless an entry has only repeated the same members."""
        self._seen_configuration = configuration
        members = ConfigurationChanged(configuration, newcomers)
        if members != self._members:
            self._members = members
            self._replica.outbox.add(members)
