"""The role that a server has, and how it changes (Raft figure 4).

                      times out              majority of votes
          Follower ─────────────▶ Candidate ───────────────────▶ Leader
              ▲                       │                             │
              └───────────────────────┴─────────────────────────────┘
                 a higher term, a leader of this term, or no majority in reach

`ServerRole` alone changes the role. `raft` and the receivers of messages (`append_receiver`, `fetch_receiver`) know
what a message means for the role, and ask for the transition.

*Leader stickiness* (section 6). A server that has heard from a leader within the minimum election timeout refuses every
other candidate, its term unchanged. It also refuses a leader of a later term that is no voter of its configuration or
of the one before (`refuses_outsider`). A redirect, in which another server says which server leads, names the server to
fetch from, but does not count as contact.

*Terms.* A higher term in any message makes a follower. If the term is too far ahead, the server goes one step towards
it and refuses the message that carried it (`Replica.adopt_term`).
"""

from dataclasses import dataclass

from consensus.core import election
from consensus.core.drops import Drop
from consensus.core.effects import Role
from consensus.core.election import Candidate
from consensus.core.features import Strategy
from consensus.core.leader import Leader
from consensus.core.model import Milliseconds, ServerId, Term
from consensus.core.quorum import VoteResult
from consensus.core.replica import Replica
from consensus.core.replication.append_leader import AppendLeader
from consensus.core.replication.fetch_leader import FetchLeader


@dataclass(slots=True)
class Follower:
    """The role of follower, of a known leader or of none."""

    deadline: Milliseconds
    leader: ServerId | None = None
    contact_ms: Milliseconds | None = None
    """When the leader last spoke to us itself."""
    former: ServerId | None = None
    """The server that led this term and said that it no longer does."""

    def leader_resigned(self) -> None:
        """The leader leads no more: forget it, and listen to candidates."""
        self.former, self.leader, self.contact_ms = self.leader, None, None

    def hears_a_leader(self, replica: Replica) -> bool:
        """Return True if the last contact of the leader is more recent than the leader stickiness."""
        if self.contact_ms is None:
            return False
        return replica.now < self.contact_ms + replica.options.leader_stickiness_ms

    def on_leader_contact(self, replica: Replica, leader: ServerId) -> None:
        """The leader of our term has spoken to us."""
        self.leader = leader
        self.contact_ms = replica.now
        self.deadline = replica.random_election_deadline()


class ServerRole:
    """The present role of one server, and the transitions."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        # With leases a voter must not forget over a restart that it has just confirmed one.
        contact_ms = None if replica.options.lease_clock_bound_ms is None else replica.now
        self.current: Follower | Candidate | Leader
        self.as_follower: Follower | None
        self.as_leader: Leader | None
        self.name: Role
        """The role as others are told of it; a candidate that only asks whether it could win is still a follower."""
        self._become(Follower(replica.random_election_deadline(), contact_ms=contact_ms))

    @property
    def leader(self) -> ServerId | None:
        """The server that leads this term, as far as is known."""
        return self.current.leader

    def check_term(self, term: Term, *, of_a_leader: bool = False) -> bool:
        """All servers: if RPC request or response contains term > currentTerm, set currentTerm and convert.

        Returns False if the term is still beyond ours, because one message moves it by TERM_STEP_MAX only: what came is
        refused or dropped then, at our term, and an honest sender tries again.
        """
        replica = self._replica
        if term > replica.term:
            replica.adopt_term(term, of_a_leader=of_a_leader)
            self.become_follower()
        if term > replica.term:
            replica.dropped[Drop.TERM_TOO_FAR_AHEAD] += 1
            return False
        return True

    def sticks_to_leader(self) -> bool:
        """Whether we lead, or hear a leader, and therefore refuse candidates."""
        match self.current:
            case Leader():
                return True
            case Follower() as role:
                return role.hears_a_leader(self._replica)
            case Candidate():
                return False

    def refuses_outsider(self, claimant: ServerId, term: Term) -> bool:
        """Whether `claimant` speaks as the leader of a later term from outside the group while ours is heard.

        A leader was elected, so it is a voter of the newest configuration or of the one before it. A follower whose
        configuration is older than that only loses time: it listens when its leader has been silent for the minimum
        election timeout. At term 0 this server has not followed a leader yet, even if a lease makes it assume one after
        a start.
        """
        replica = self._replica
        if not 0 < replica.term < term or replica.may_lead(claimant) or not self.sticks_to_leader():
            return False
        replica.dropped[Drop.OUTSIDE_LEADER_OF_LATER_TERM] += 1
        return True

    def follow(self, leader: ServerId) -> None:
        """Be a follower of the leader of our term, which has just spoken to us."""
        if self.as_follower is None:
            self.become_follower()
        if self.as_follower is not None:
            self.as_follower.on_leader_contact(self._replica, leader)

    def follow_redirect(self, leader: ServerId) -> None:
        """Be a follower of the leader of our term, which another server has named to us."""
        self._become(Follower(self._replica.random_election_deadline(), leader))

    def follow_no_leader_until(self, deadline: Milliseconds) -> None:
        """Become a follower without a known leader, which campaigns at `deadline`."""
        self._become(Follower(deadline))

    def become_follower(self) -> None:
        """Forget the leader. A follower keeps its timer: only the leader's contact or a vote given may reset it."""
        match self.current:
            case Follower(deadline=deadline, contact_ms=contact_ms):
                self._become(Follower(deadline, contact_ms=contact_ms))
            case Candidate():
                self._become(Follower(self._replica.random_election_deadline()))
            case Leader() as role:
                role.resign()
                self._become(Follower(self._replica.random_election_deadline()))

    def expire(self) -> None:
        """Do what is due, if the deadline of the role has come."""
        replica = self._replica
        if replica.now < self.current.deadline:
            return
        match self.current:
            case Leader() as role:
                if not role.expire():
                    self.become_follower()
            case Follower() | Candidate():
                if not replica.may_campaign or replica.term >= replica.options.max_term or replica.disk_full:
                    self._wait_for_another()
                else:
                    self._become(election.begin_pre_vote(replica))
                    self.conclude_campaign()

    def campaign_for_transfer(self) -> None:
        """The leader hands over: campaign now, as if our timer had expired, and without a pre-vote."""
        self._become(election.begin_vote(self._replica, transfer=True))
        self.conclude_campaign()

    def conclude_campaign(self) -> None:
        """A vote was counted: go on, give up, or wait."""
        role = self.current
        if not isinstance(role, Candidate):
            return
        match role.verdict(self._replica):
            case VoteResult.WON if role.pre_vote:
                self._become(election.begin_vote(self._replica))
            case VoteResult.WON:
                strategy = self._replica.features.replication
                replication = AppendLeader if strategy is Strategy.APPEND else FetchLeader
                self._become(Leader(self._replica, replication, role.granted_by))
            case VoteResult.LOST:
                self.become_follower()
            case VoteResult.OPEN:
                pass

    def _wait_for_another(self) -> None:
        """Our timer expired, but we cannot be elected."""
        self.become_follower()
        if self.as_follower is not None:
            self.as_follower.deadline = self._replica.random_election_deadline()

    def _become(self, role: Follower | Candidate | Leader) -> None:
        self.current = role
        self.as_follower = role if isinstance(role, Follower) else None
        self.as_leader = role if isinstance(role, Leader) else None
        match role:
            case Leader():
                self.name = Role.LEADER
            case Candidate(pre_vote=False):
                self.name = Role.CANDIDATE
            case Candidate() | Follower():
                self.name = Role.FOLLOWER
