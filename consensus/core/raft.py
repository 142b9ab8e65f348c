"""One replica of a Raft group, without I/O.

    event ──▶ step(event, now) ──▶ [effect, …]        and `deadline`, when `DeadlineReached` is due

                      times out              majority of votes
          Follower ─────────────▶ Candidate ───────────────────▶ Leader
              ▲                       │                             │
              └───────────────────────┴─────────────────────────────┘
                 a higher term, a leader of this term, or no majority in reach

Every message first meets the term check (Raft figure 2, rules for all servers); only then does the role see it: a
higher term makes a follower, a request of an older term is refused at ours, an older reply is ignored. Two exceptions:
a vote request within the minimum election timeout of a leader's word is refused and changes nothing (section 6), and
pre-votes never change a term. Roles report, this module makes the transitions.
"""

from operator import itemgetter
from random import Random
from typing import assert_never

from consensus.core import ballot as voting
from consensus.core import candidate, compaction, invariants, pulling, snapshot_receiving
from consensus.core.candidate import Candidate
from consensus.core.configuration import ChangeRefusal
from consensus.core.description import Description
from consensus.core.dialect import Dialect, Strategy
from consensus.core.effects import (
    ChangeOutcome,
    ChangeResolved,
    ConfigurationChanged,
    Effect,
    Outcome,
    Resolve,
    Role,
    RoleChanged,
)
from consensus.core.events import (
    ChangeConfiguration,
    DeadlineReached,
    DiskSpace,
    EntriesRead,
    Event,
    PeerExtensions,
    Persisted,
    Proposed,
    Received,
    SnapshotChecked,
    SnapshotEvent,
    SnapshotRead,
    SnapshotTaken,
    SnapshotWanted,
)
from consensus.core.extensions import Extensions
from consensus.core.follower import Follower
from consensus.core.leader import Leader
from consensus.core.log import RecoveredLog
from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    Message,
    Reply,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from consensus.core.plausibility import implausible
from consensus.core.position import Ballot, Configuration, Milliseconds, ServerId
from consensus.core.pull import Pull
from consensus.core.pull_messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchReply,
    PullError,
)
from consensus.core.pulling import Pulling
from consensus.core.push import Push
from consensus.core.quorum import Verdict
from consensus.core.replica import MAX_NUMBER, Replica
from consensus.core.replication import Replication
from consensus.core.tuning import Tuning


class Raft:
    """One replica. Servers start as followers (Raft section 5.2), with what storage recovered."""

    def __init__(
        self,
        server_id: ServerId,
        configuration: Configuration,
        ballot: Ballot,
        log: RecoveredLog,
        tuning: Tuning,
        dialect: Dialect,
        random: Random,
        now: Milliseconds,
        cluster_id: str | None = None,
    ) -> None:
        self._replica = Replica(server_id, configuration, ballot, log, tuning, dialect, random, now, cluster_id)
        self._pulling = Pulling(self._replica, self) if dialect.replication is Strategy.PULL else None
        self._role: Follower | Candidate | Leader = Follower(self._replica.random_election_deadline())
        self._announced = RoleChanged(Role.FOLLOWER, ballot.term, None)
        self._members = ConfigurationChanged(self._replica.log.configuration)

    @property
    def deadline(self) -> Milliseconds:
        """When `DeadlineReached` is to be given, unless something happens before."""
        fetch_ms = self._pulling.fetcher.deadline if self._pulling is not None and self.follower is not None else None
        return self._role.deadline if fetch_ms is None else min(self._role.deadline, fetch_ms)

    @property
    def follower(self) -> Follower | None:
        """The role of follower, if this replica has it."""
        return self._role if isinstance(self._role, Follower) else None

    @property
    def strategy(self) -> Replication | None:
        """The leader's strategy, if this replica leads."""
        return self._role.replication if isinstance(self._role, Leader) else None

    @property
    def leader(self) -> ServerId | None:
        """Who leads this term, as far as is known."""
        return self._role_leader()

    def step(self, event: Event, now: Milliseconds) -> list[Effect]:
        """Take one event; returns what is to be done, in order. A clock that goes back is taken to stand still."""
        replica = self._replica
        replica.now = max(replica.now, now)
        self._take(event)
        if isinstance(self._role, Leader) and not self._role.settle():
            self._become_follower()
        if self._pulling is not None:
            self._pulling.tend()
        replica.log.trim(replica.tuning.tail_entries, replica.tuning.tail_bytes)
        self._announce()
        invariants.check(replica, self._role if isinstance(self._role, Leader) else None)
        return replica.outbox.drain()

    def _take(self, event: Event) -> None:
        replica = self._replica
        match event:
            case Received(sender, message):
                self._receive(sender, message)
            case DeadlineReached():
                if replica.now >= self._role.deadline:
                    self._expire()
            case Proposed():
                self._propose(event)
            case ChangeConfiguration():
                self._change_configuration(event)
            case Persisted(number):
                self._persisted(number)
            case EntriesRead():
                self._entries_read(event)
            case PeerExtensions(peer, extensions):
                self._learn_extensions(peer, extensions)
            case SnapshotWanted() | SnapshotTaken() | SnapshotRead() | SnapshotChecked() | DiskSpace():
                self._storage_told(event)
            case _:
                assert_never(event)

    def _learn_extensions(self, peer: ServerId, extensions: Extensions) -> None:
        self._replica.learn_extensions(peer, extensions)
        if isinstance(self._role, Candidate):
            self._role.settle_extension(self._replica, peer)
            self._conclude_campaign()

    def describe(self) -> Description:
        """This replica as plain data."""
        replica, applier = self._replica, self._replica.applier
        return Description(
            server_id=replica.server_id,
            role=self._announced.role,
            term=replica.term,
            voted_for=replica.ballot.voted_for,
            leader=self._announced.leader,
            last=replica.log.last,
            durable_index=replica.log.durable_index,
            commit_index=applier.commit,
            applied_index=applier.applied,
            pending_proposals=self._role.pending if isinstance(self._role, Leader) else 0,
            followers=self._role.replication.describe() if isinstance(self._role, Leader) else (),
            configuration=replica.log.configuration,
            log_start=replica.log.start,
            snapshot=replica.log.snapshot,
            disk_full=replica.disk_full,
            extensions=tuple(sorted(replica.extensions_of.items(), key=itemgetter(0))),
            dropped=tuple(sorted(replica.dropped.items())),
        )

    def _receive(self, sender: ServerId, message: Message) -> None:
        replica = self._replica
        problem = implausible(replica.server_id, sender, message, replica.dialect)
        if problem is not None:
            replica.dropped[problem] += 1
            self._refuse(sender, message)
            return
        match message:
            case RequestVote():
                self._vote_requested(message)
            case AppendEntries():
                self._append_requested(message)
            case InstallSnapshot():
                self._snapshot_requested(message)
            case VoteReply() | AppendReply() | SnapshotReply():
                self._replied(sender, message)
            case (
                Fetch()
                | BeginQuorumEpoch()
                | EndQuorumEpoch()
                | FetchReply()
                | BeginQuorumEpochReply()
                | EndQuorumEpochReply()
            ):
                if self._pulling is not None:
                    self._pulling.receive(sender, message)
            case _:
                assert_never(message)

    def _refuse(self, sender: ServerId, message: Message) -> None:
        replica = self._replica
        match message:
            case RequestVote(correlation=correlation, pre_vote=pre_vote):
                reply = VoteReply(replica.term, granted=False, correlation=correlation, pre_vote=pre_vote)
                replica.outbox.send(sender, reply)
            case AppendEntries(correlation=correlation):
                replica.refuse_append(sender, correlation, replica.log.last_index + 1)
            case InstallSnapshot(correlation=correlation):
                snapshot_receiving.refuse(replica, sender, correlation, 0)
            case Fetch() | BeginQuorumEpoch() | EndQuorumEpoch():
                pulling.refuse(replica, sender, message, self.leader, PullError.INVALID_REQUEST)
            case VoteReply() | AppendReply() | SnapshotReply():
                pass
            case FetchReply() | BeginQuorumEpochReply() | EndQuorumEpochReply():
                pass
            case _:
                assert_never(message)

    def _vote_requested(self, request: RequestVote) -> None:
        replica = self._replica
        if self._is_deaf_to_candidates():
            replica.answer_vote(request, granted=False)
            return
        if request.pre_vote:
            voting.answer_pre_vote(replica, request)
            return
        self._check_term(request.term)
        if voting.answer_vote(replica, request):
            self._role = Follower(replica.random_election_deadline())

    def _append_requested(self, request: AppendEntries) -> None:
        replica = self._replica
        follower = self._as_follower_of(request.term, request.leader)
        if follower is None:
            replica.refuse_append(request.leader, request.correlation, replica.log.last_index + 1)
        else:
            follower.receive(replica, request)

    def _snapshot_requested(self, request: InstallSnapshot) -> None:
        replica = self._replica
        follower = self._as_follower_of(request.term, request.leader)
        if follower is None:
            snapshot_receiving.refuse(replica, request.leader, request.correlation, 0)
        else:
            follower.heed(replica, request.leader)
            snapshot_receiving.receive(replica, request)

    def _as_follower_of(self, term: int, leader: ServerId) -> Follower | None:
        """A leader's request has come: be its follower. None if it is no leader of our term."""
        if term < self._replica.term:
            return None
        self._check_term(term)
        if isinstance(self._role, Leader) or self._role_leader() not in (None, leader):
            # Two leaders in one term cannot be (election safety); one of the two is lying.
            self._replica.dropped["append from a second leader of the term"] += 1
            return None
        if isinstance(self._role, Candidate):
            self._become_follower()
        return self._role if isinstance(self._role, Follower) else None

    def _replied(self, sender: ServerId, reply: Reply) -> None:
        replica = self._replica
        if sender not in replica.members and not self._takes_reply_of_outsider(sender, reply):
            replica.dropped["reply from a server outside the configuration"] += 1
            return
        grants_pre_vote = isinstance(reply, VoteReply) and reply.pre_vote and reply.granted
        if not grants_pre_vote:
            self._check_term(reply.term)
            if reply.term < replica.term and not (isinstance(reply, VoteReply) and not reply.granted):
                replica.dropped["reply of an older term"] += 1
                return
        match self._role, reply:
            case Candidate() as role, VoteReply():
                role.receive(replica, sender, reply)
                self._conclude_campaign()
            case Leader() as role, AppendReply() | SnapshotReply():
                role.replication.receive(sender, reply)
            case _:
                replica.dropped["reply that nobody waits for"] += 1

    def _takes_reply_of_outsider(self, sender: ServerId, reply: Reply) -> bool:
        """A server that joins or leaves is replicated to, but its term is not ours to follow: any could depose us."""
        if not isinstance(self._role, Leader) or sender not in self._role.followers:
            return False
        if reply.term > self._replica.term:
            self._role.reconfiguration.outsider_in_later_term(sender)
        return reply.term <= self._replica.term

    def _check_term(self, term: int) -> None:
        """All servers: if RPC request or response contains term > currentTerm, set currentTerm and convert."""
        if term > self._replica.term:
            self._replica.adopt_term(term)
            self._become_follower()

    def check_term(self, term: int) -> None:
        """Adopt a higher term and become a follower."""
        self._check_term(term)

    def follow(self, leader: ServerId) -> None:
        """Be a follower of the leader of our term, who has just spoken to us."""
        if not isinstance(self._role, Follower):
            self._become_follower()
        if isinstance(self._role, Follower):
            self._role.heed(self._replica, leader)

    def follow_hearsay(self, leader: ServerId) -> None:
        """Be a follower of the leader of our term, of whom somebody else has told us."""
        self._role = Follower(self._replica.random_election_deadline(), leader)

    def campaign_at(self, deadline: Milliseconds) -> None:
        """The leader resigned: be a follower of nobody, and campaign then, or now if that has come."""
        self._role = Follower(deadline)
        if self._replica.now >= deadline:
            self._expire()

    def _is_deaf_to_candidates(self) -> bool:
        match self._role:
            case Leader():
                return True
            case Follower() as role:
                return role.hears_a_leader(self._replica)
            case Candidate():
                return False

    def _expire(self) -> None:
        replica = self._replica
        match self._role:
            case Leader() as role:
                if not role.expire():
                    self._become_follower()
            case Follower() | Candidate():
                if not replica.may_campaign or replica.term == MAX_NUMBER or replica.disk_full:
                    self._become_follower()
                    self._role.deadline = replica.random_election_deadline()
                else:
                    self._role = candidate.begin_pre_vote(replica)
                    self._conclude_campaign()

    def _conclude_campaign(self) -> None:
        """A vote was counted: go on, give up, or wait."""
        role = self._role
        if not isinstance(role, Candidate):
            return
        match role.verdict(self._replica):
            case Verdict.WON if role.pre_vote:
                self._role = candidate.begin_vote(self._replica)
            case Verdict.WON:
                self._role = Leader(self._replica, Push if self._pulling is None else Pull, role.granted_by)
            case Verdict.LOST:
                self._become_follower()
            case Verdict.OPEN:
                pass

    def _become_follower(self) -> None:
        """Follow nobody yet. A follower keeps its timer: only a leader's word or a vote given may reset it."""
        match self._role:
            case Follower(deadline=deadline):
                self._role = Follower(deadline)
            case Candidate():
                self._role = Follower(self._replica.random_election_deadline())
            case Leader() as role:
                role.resign()
                self._role = Follower(self._replica.random_election_deadline())

    def _propose(self, proposed: Proposed) -> None:
        if isinstance(self._role, Leader):
            self._role.propose(proposed)
        else:
            resolve = Resolve(proposed.proposal_id, Outcome.NOT_LEADER, leader=self._role_leader())
            self._replica.outbox.add(resolve)

    def _change_configuration(self, change: ChangeConfiguration) -> None:
        if isinstance(self._role, Leader):
            self._role.reconfiguration.request(change)
        else:
            answer = ChangeResolved(
                change.change_id, ChangeOutcome.REFUSED, ChangeRefusal.NOT_LEADER, leader=self._role_leader()
            )
            self._replica.outbox.add(answer)

    def _persisted(self, number: int) -> None:
        replica = self._replica
        replica.log.persisted(number)
        replica.durable_number = number
        match self._role:
            case Candidate() as role:
                role.count_own_vote(replica, number)
                self._conclude_campaign()
            case Leader() as role:
                role.acknowledge(replica.server_id, replica.log.durable_index)
            case Follower():
                pass

    def _entries_read(self, event: EntriesRead) -> None:
        replica = self._replica
        if replica.applier.entries_read(event.request_id, event.first, event.entries):
            return
        if not (isinstance(self._role, Leader) and self._role.replication.entries_read(event)):
            replica.dropped["entries read for nobody"] += 1

    def _storage_told(self, event: SnapshotEvent | DiskSpace) -> None:
        replica = self._replica
        match event:
            case SnapshotWanted(index):
                compaction.begin(replica, index)
            case SnapshotTaken(snapshot, first_kept):
                compaction.finish(replica, snapshot, first_kept)
            case SnapshotRead():
                if not (isinstance(self._role, Leader) and self._role.replication.snapshot_read(event)):
                    replica.dropped["snapshot read for nobody"] += 1
            case SnapshotChecked():
                if not snapshot_receiving.checked(replica, event):
                    replica.dropped["snapshot checked for nobody"] += 1
            case DiskSpace(full):
                self._disk_space_changed(full=full)
            case _:
                assert_never(event)

    def _disk_space_changed(self, *, full: bool) -> None:
        """Without space nothing can be appended: whoever leads gives way, and nobody campaigns to do no better."""
        self._replica.disk_full = full
        if full and not isinstance(self._role, Follower):
            self._become_follower()

    def _role_leader(self) -> ServerId | None:
        match self._role:
            case Follower(leader=leader):
                return leader
            case Candidate():
                return None
            case Leader():
                return self._replica.server_id

    def _announce(self) -> None:
        match self._role:
            case Candidate(pre_vote=False):
                role = Role.CANDIDATE
            case Leader():
                role = Role.LEADER
            case Follower() | Candidate():
                role = Role.FOLLOWER
        changed = RoleChanged(role, self._replica.term, self._role_leader())
        if changed != self._announced:
            self._announced = changed
            self._replica.outbox.add(changed)
        newcomers = self._role.reconfiguration.newcomers if isinstance(self._role, Leader) else ()
        members = ConfigurationChanged(self._replica.log.configuration, newcomers)
        if members != self._members:
            self._members = members
            self._replica.outbox.add(members)
