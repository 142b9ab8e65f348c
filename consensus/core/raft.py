"""One replica of a Raft group, without I/O.

    event ──▶ step(event, now) ──▶ [effect, …]        and `deadline`, when `DeadlineReached` is due

                      times out              majority of votes
          Follower ─────────────▶ Candidate ───────────────────▶ Leader
              ▲                       │                             │
              └───────────────────────┴─────────────────────────────┘
                 a higher term, a leader of this term, or no majority in reach

Every message first meets the term check (Raft figure 2, rules for all servers); only then does the role see it: a
higher term makes a follower, a request of an older term is refused at ours, an older reply is ignored. These are
exceptions: a vote request within the minimum election timeout of a leader's word is refused and changes nothing
(section 6), as is what a leader outside the group says then (`Raft.keeps_its_leader`); pre-votes never change a term,
nor does a reply of a server without a vote; and to a term that is too far ahead we go one step, and refuse what carried
it (`Replica.adopt_term`). Roles report, this module makes the transitions.

What belongs to one strategy of replication is received by `pushing` or `pulling`, which ask for transitions by `Roles`;
what clients ask is taken by `client_requests`, what storage tells by `storage_answers`.
"""

from random import Random
from typing import assert_never

from consensus.core import client_requests, election, invariants, storage_answers
from consensus.core import votes as voting
from consensus.core.describing import describe
from consensus.core.effects import (
    ConfigurationChanged,
    Effect,
    Role,
    RoleChanged,
)
from consensus.core.election import Candidate
from consensus.core.events import (
    AppendNotSent,
    ChangeConfiguration,
    ClusterIdKnown,
    DeadlineReached,
    DiskSpace,
    EntriesRead,
    Event,
    Learnt,
    PeerExtensions,
    Persisted,
    Proposed,
    ReadRequested,
    Received,
    Rejected,
    SnapshotChecked,
    SnapshotRead,
    SnapshotTaken,
    SnapshotWanted,
    TransferLeadership,
)
from consensus.core.features import Features, Strategy
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
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from consensus.core.model import Configuration, HardState, Milliseconds, ServerId, Term
from consensus.core.options import Options
from consensus.core.quorum import VoteResult
from consensus.core.refusing import refuse, refuse_leader
from consensus.core.replica import MAX_NUMBER, Replica
from consensus.core.replication.append_follower import Pushing
from consensus.core.replication.append_leader import Push
from consensus.core.replication.fetch_leader import Pull
from consensus.core.replication.fetch_receiver import Pulling
from consensus.core.replication.port import Replication
from consensus.core.status import Description
from consensus.core.transfer import LeadershipTransfers
from consensus.core.validation import implausible


class Raft:
    """One replica. Servers start as followers (Raft section 5.2), with what storage recovered."""

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
    ) -> None:
        self._replica = Replica(server_id, configuration, hard_state, log, options, features, random, now, cluster_id)
        self._pushing = Pushing(self._replica, self)
        self._pulling = Pulling(self._replica, self) if features.replication is Strategy.PULL else None
        # With leases a voter may not forget over a restart that it has just confirmed one.
        contact_ms = None if options.lease_clock_bound_ms is None else now
        self._role: Follower | Candidate | Leader = Follower(
            self._replica.random_election_deadline(), contact_ms=contact_ms
        )
        self._transfers = LeadershipTransfers(self._replica)
        self._announced = RoleChanged(Role.FOLLOWER, hard_state.term, None)
        self._members = ConfigurationChanged(self._replica.log.configuration)

    @property
    def deadline(self) -> Milliseconds:
        """When `DeadlineReached` is to be given, unless something happens before."""
        fetch_ms = self._pulling.fetcher.deadline if self._pulling is not None and self.follower is not None else None
        others = (fetch_ms, self._transfers.deadline)
        return min([self._role.deadline, *(due for due in others if due is not None)])

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
        match self._role:
            case Follower(leader=leader):
                return leader
            case Candidate():
                return None
            case Leader():
                return self._replica.server_id

    def step(self, event: Event, now: Milliseconds) -> list[Effect]:
        """Take one event; returns what is to be done, in order. A clock that goes back is taken to stand still."""
        replica = self._replica
        replica.now = max(replica.now, now)
        self._take(event)
        self._pursue()
        if self._pulling is not None:
            self._pulling.tend()
        replica.log.trim(replica.options.tail_entries, replica.options.tail_bytes)
        self._announce()
        invariants.check(replica, self._leader)
        return replica.outbox.drain()

    def _take(self, event: Event) -> None:
        match event:
            case Received(sender, message):
                self._receive(sender, message)
            case Rejected(sender, append):
                self._replica.dropped["append that the state machine cannot take"] += 1
                refuse_leader(self._replica, sender, append)
            case DeadlineReached():
                self._expire()
            case Proposed() | ChangeConfiguration() | ReadRequested() | TransferLeadership():
                client_requests.take(event, self._replica, self._leader, self._transfers, self.leader)
            case Persisted(number):
                self._persisted(number)
            case PeerExtensions() | ClusterIdKnown() | AppendNotSent():
                self._learn(event)
            case EntriesRead() | SnapshotWanted() | SnapshotTaken() | SnapshotRead() | SnapshotChecked():
                storage_answers.take(event, self._replica, self.strategy)
            case DiskSpace(full):
                self._disk_space_changed(full=full)
            case _:
                assert_never(event)

    def describe(self) -> Description:
        """This replica as plain data."""
        return describe(self._replica, self._announced, self._leader, self._transfers)

    def _receive(self, sender: ServerId, message: Message) -> None:
        replica = self._replica
        problem = implausible(replica.server_id, sender, message, replica.features)
        if problem is not None:
            replica.dropped[problem] += 1
            refuse(replica, sender, message, self.leader)
            return
        match message:
            case RequestVote():
                self._vote_requested(message)
            case AppendEntries() | InstallSnapshot():
                self._pushing.receive(message)
            case TimeoutNow():
                self._told_to_campaign(message)
            case VoteReply() | AppendReply() | SnapshotReply() | TimeoutNowReply():
                self._replied(sender, message)
            case _:
                if self._pulling is not None:
                    self._pulling.receive(sender, message)

    def _vote_requested(self, request: RequestVote) -> None:
        replica = self._replica
        # A transfer asks in a later term. In the term of a leader that is known its request is late, and a vote would
        # break the refusal on which the lease of that leader rests.
        late = self.leader is not None and request.term <= replica.term
        handed_over = request.transfer and not late and replica.may_lead(request.candidate)
        if self._is_deaf_to_candidates() and not handed_over:
            replica.answer_vote(request, granted=False)
            return
        if request.pre_vote:
            voting.answer_pre_vote(replica, request)
            return
        if not replica.is_foreign(request.cluster_id):
            self.check_term(request.term)
        if voting.answer_vote(replica, request):
            self._role = Follower(replica.random_election_deadline())

    def _replied(self, sender: ServerId, reply: Reply) -> None:
        replica = self._replica
        if sender not in replica.voters and not self._takes_reply_of_outsider(sender, reply):
            stranger = "without a vote" if sender in replica.members else "outside the configuration"
            replica.dropped[f"reply from a server {stranger}"] += 1
            return
        grants_pre_vote = isinstance(reply, VoteReply) and reply.pre_vote and reply.granted
        if not grants_pre_vote:
            if not self.check_term(reply.term):
                return
            if reply.term < replica.term and not (isinstance(reply, VoteReply) and not reply.granted):
                replica.dropped["reply of an older term"] += 1
                return
        match self._role, reply:
            case Candidate() as role, VoteReply():
                role.receive(replica, sender, reply)
                self._conclude_campaign()
            case Leader() as role, AppendReply() | SnapshotReply():
                role.replication.receive(sender, reply)
            case _, TimeoutNowReply():
                self._transfers.replied(sender, reply)
            case _:
                replica.dropped["reply that nobody waits for"] += 1

    def _takes_reply_of_outsider(self, sender: ServerId, reply: Reply) -> bool:
        """A learner, or a server that joins or leaves, is replicated to, but its term is not ours to follow.

        It has no part in elections, so it knows of no later term that the voters do not tell; and any could depose us.
        """
        if not isinstance(self._role, Leader) or sender not in self._role.followers:
            return False
        if reply.term > self._replica.term:
            self._role.reconfiguration.outsider_in_later_term(sender)
        return reply.term <= self._replica.term

    def _told_to_campaign(self, order: TimeoutNow) -> None:
        """Our leader hands over: campaign now, as if our timer had expired, and without asking beforehand."""
        replica = self._replica
        match self._role:
            case Follower(leader=leader) if leader == order.leader and replica.server_id in replica.voters:
                accepted = order.term == replica.term < MAX_NUMBER and not replica.disk_full
            case _:
                accepted = False
        reply = TimeoutNowReply(replica.term, accepted, order.correlation)
        replica.outbox.send(order.leader, reply)
        if accepted:
            self._role = election.begin_vote(replica, transfer=True)
            self._conclude_campaign()

    def keeps_its_leader(self, claimant: ServerId, term: Term) -> bool:
        """Whether `claimant` speaks as the leader of a later term from outside the group while ours is heard.

        Who leads was elected, and is a voter of the newest configuration or of the one before it. A follower whose
        configuration is older than that loses nothing but time: it listens when its leader has been silent for the
        minimum election timeout. At term 0 nobody was followed yet, whatever a lease makes us assume after a start.
        """
        replica = self._replica
        if not 0 < replica.term < term or replica.may_lead(claimant) or not self._is_deaf_to_candidates():
            return False
        replica.dropped["leader outside the configuration, in a later term than the leader that is heard"] += 1
        return True

    def check_term(self, term: Term, *, of_a_leader: bool = False) -> bool:
        """All servers: if RPC request or response contains term > currentTerm, set currentTerm and convert.

        Returns False if the term is still beyond ours, because one message moves it by TERM_STEP_MAX only: what came is
        refused or dropped then, at our term, and whoever is honest tries again.
        """
        replica = self._replica
        if term > replica.term:
            replica.adopt_term(term, of_a_leader=of_a_leader)
            self._become_follower()
        if term > replica.term:
            replica.dropped["term too far ahead to be adopted at once"] += 1
            return False
        return True

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

    def _learn(self, event: Learnt) -> None:
        match event:
            case PeerExtensions():
                self._learn_extensions(event)
            case ClusterIdKnown(cluster_id):
                self._replica.cluster_id = cluster_id
            case AppendNotSent(peer, correlation, next_index):
                if self.strategy is not None:
                    self.strategy.not_sent(peer, correlation, next_index)
            case _:
                assert_never(event)

    def _learn_extensions(self, settled: PeerExtensions) -> None:
        self._replica.learn_extensions(settled.peer, settled.extensions)
        if isinstance(self._role, Candidate):
            self._role.settle_extension(self._replica, settled.peer)
            self._conclude_campaign()

    def _expire(self) -> None:
        replica = self._replica
        if replica.now < self._role.deadline:
            return
        match self._role:
            case Leader() as role:
                if not role.expire():
                    self._become_follower()
            case Follower() | Candidate():
                if not replica.may_campaign or replica.term == MAX_NUMBER or replica.disk_full:
                    self._become_follower()
                    self._role.deadline = replica.random_election_deadline()
                else:
                    self._role = election.begin_pre_vote(replica)
                    self._conclude_campaign()

    def _conclude_campaign(self) -> None:
        """A vote was counted: go on, give up, or wait."""
        role = self._role
        if not isinstance(role, Candidate):
            return
        match role.verdict(self._replica):
            case VoteResult.WON if role.pre_vote:
                self._role = election.begin_vote(self._replica)
            case VoteResult.WON:
                self._role = Leader(self._replica, Push if self._pulling is None else Pull, role.granted_by)
            case VoteResult.LOST:
                self._become_follower()
            case VoteResult.OPEN:
                pass

    def _become_follower(self) -> None:
        """Follow nobody yet. A follower keeps its timer: only a leader's word or a vote given may reset it."""
        match self._role:
            case Follower(deadline=deadline, contact_ms=contact_ms):
                self._role = Follower(deadline, contact_ms=contact_ms)
            case Candidate():
                self._role = Follower(self._replica.random_election_deadline())
            case Leader() as role:
                role.resign()
                self._role = Follower(self._replica.random_election_deadline())

    def _pursue(self) -> None:
        """After every event: what waits for a majority's word or for a follower's log may go on now."""
        if self._replica.outbox.changes_snapshot:
            return  # such a step appends nothing; the next one will
        if self._leader is not None and not self._leader.settle():
            self._become_follower()
        if self._transfers.pursue(self._leader, self.leader):
            if self._leader is not None:
                self._leader.successor = self._transfers.target
            self._become_follower()
            self._role = Follower(self._transfers.abstain_until())
            self._transfers.pursue(None, None)
        if self._leader is not None:
            self._leader.serve_reads()

    @property
    def _leader(self) -> Leader | None:
        return self._role if isinstance(self._role, Leader) else None

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

    def _disk_space_changed(self, *, full: bool) -> None:
        """Without space nothing can be appended: whoever leads gives way, and nobody campaigns to do no better."""
        self._replica.disk_full = full
        if full and not isinstance(self._role, Follower):
            self._become_follower()

    def _announce(self) -> None:
        match self._role:
            case Candidate(pre_vote=False):
                role = Role.CANDIDATE
            case Leader():
                role = Role.LEADER
            case Follower() | Candidate():
                role = Role.FOLLOWER
        announced, leader, term = self._announced, self.leader, self._replica.term
        # Nothing is made in the many steps after which all is as it was.
        if (role, term, leader) != (announced.role, announced.term, announced.leader):
            self._announced = RoleChanged(role, term, leader)
            self._replica.outbox.add(self._announced)
        newcomers = self._role.reconfiguration.newcomers if isinstance(self._role, Leader) else ()
        configuration, known = self._replica.log.configuration, self._members
        if newcomers != known.newcomers or (
            configuration is not known.configuration and configuration != known.configuration
        ):
            self._members = ConfigurationChanged(configuration, newcomers)
            self._replica.outbox.add(self._members)
