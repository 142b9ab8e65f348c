"""The role of a server, and its transitions (Raft figure 4).

                      times out              majority of votes
          Follower ─────────────▶ Candidate ───────────────────▶ Leader
              ▲                       │                             │
              └───────────────────────┴─────────────────────────────┘
                 a higher term, a leader of this term, or no majority in reach

`ServerRole` alone changes the role. `raft` and the receivers of messages (`append_receiver`, `fetch_receiver`) derive
the transition from a message and request it here.

*Leader stickiness* (section 6). Within `leader_stickiness_ms` after contact with a leader, a server refuses every
candidate, except in a transfer of leadership. Its own term does not change. The server also refuses a leader of a later
term that is not a voter of the server's latest or previous configuration (`refuses_outsider`).

*A leader that has ended* (`leader_ended`). If the leader's process has ended, a server does not wait for its election
timeout. It no longer refuses candidates, and campaigns in its own slot. The voters have slots of
`Options.campaign_slot_ms` in order of id, so that votes are not split. A message of the leader ends this campaign. The
slots repeat for at most the maximum election timeout. Only pre-votes are sent early, so evidence at one server does not
change a term. Leases and peers without pre-vote depend on the timeouts, so with them the evidence is ignored.
"""

from msgspec import Struct

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


class Follower(Struct):
    """The role of follower, with or without a known leader."""

    deadline: Milliseconds
    leader: ServerId | None = None
    contact_ms: Milliseconds | None = None
    """The time of the last message from the leader itself."""
    former: ServerId | None = None
    """The former leader of this term, after its resignation."""

    def leader_resigned(self) -> None:
        """Clear the leader that resigned, and no longer refuse candidates."""
        self.former, self.leader, self.contact_ms = self.leader, None, None

    def has_recent_leader(self, replica: Replica) -> bool:
        """Return True if the last contact with the leader is within `leader_stickiness_ms`."""
        if self.contact_ms is None:
            return False
        return replica.now < self.contact_ms + replica.options.leader_stickiness_ms

    def on_leader_contact(self, replica: Replica, leader: ServerId) -> None:
        """Record contact with the leader of our term."""
        self.leader = leader
        self.contact_ms = replica.now
        self.deadline = replica.random_election_deadline()


class ServerRole:
    """The current role of one server, and the transitions."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        # With leases, a voter must assume after a restart that it confirmed a lease just before the restart.
        contact_ms = None if replica.options.lease_clock_bound_ms is None else replica.now
        self.current: Follower | Candidate | Leader
        self.as_follower: Follower | None
        self.as_leader: Leader | None
        self._early_until_ms: Milliseconds = 0
        """The end of the early campaigns after the end of a leader's process."""
        self.name: Role
        """The announced role; a candidate during pre-vote is still a follower."""
        self._become(Follower(replica.random_election_deadline(), contact_ms=contact_ms))

    @property
    def leader(self) -> ServerId | None:
        """Return the leader of this term, if known."""
        return self.current.leader

    def check_term(self, term: Term, *, of_a_leader: bool = False) -> bool:
        """All servers: if RPC request or response contains term > currentTerm, set currentTerm and convert.

        Return False if the message's term is still higher than ours, because one message raises ours by at most
        TERM_STEP_MAX. The message is then refused or dropped, and a correct sender tries again.
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
        """Return True if we lead or are in contact with a leader, and therefore refuse candidates."""
        match self.current:
            case Leader():
                return True
            case Follower() as role:
                return role.has_recent_leader(self._replica)
            case Candidate():
                return False

    def refuses_outsider(self, claimant: ServerId, term: Term) -> bool:
        """Return True if `claimant` is a leader of a later term from outside the group, during contact with our leader.

        A leader was elected, so it is a voter of the newest configuration or of the previous one. A follower with an
        older configuration only loses time: after `leader_stickiness_ms` without contact, it accepts the new leader. At
        term 0 this server has never followed a leader, even if it has leases and therefore assumes leader contact after
        each start.
        """
        replica = self._replica
        if not 0 < replica.term < term or replica.may_lead(claimant) or not self.sticks_to_leader():
            return False
        replica.dropped[Drop.OUTSIDE_LEADER_OF_LATER_TERM] += 1
        return True

    def follow(self, leader: ServerId) -> None:
        """Follow the leader of our term after a message from the leader itself."""
        if self.as_follower is None:
            self.become_follower()
        if self.as_follower is not None:
            self._early_until_ms = 0
            self.as_follower.on_leader_contact(self._replica, leader)

    def leader_ended(self, peer: ServerId) -> None:
        """If `peer` is our leader, follow no leader, accept candidates, and campaign in this server's slot."""
        replica, follower = self._replica, self.as_follower
        if follower is None or follower.leader != peer or not replica.may_campaign_early:
            return
        slot = 1 + sorted({*replica.others, replica.server_id} - {peer}).index(replica.server_id)
        self._early_until_ms = replica.now + replica.options.election_timeout_max_ms
        follower.leader_resigned()
        follower.deadline = min(follower.deadline, replica.now + slot * replica.options.campaign_slot_ms)

    def follow_redirect(self, leader: ServerId) -> None:
        """Follow the leader of our term that another server named; this is not contact with the leader."""
        self._become(Follower(self._replica.random_election_deadline(), leader))

    def follow_no_leader_until(self, deadline: Milliseconds) -> None:
        """Become a follower without a known leader, which campaigns at `deadline`."""
        self._become(Follower(deadline))

    def become_follower(self) -> None:
        """Become a follower without a known leader.

        A follower keeps its timer: only contact with the leader or a granted vote may reset the timer.
        """
        match self.current:
            case Follower(deadline=deadline, contact_ms=contact_ms):
                self._become(Follower(deadline, contact_ms=contact_ms))
            case Candidate():
                self._become(Follower(self._next_campaign()))
            case Leader() as role:
                role.resign()
                self._become(Follower(self._replica.random_election_deadline()))

    def expire(self) -> None:
        """Do the due work if the role's deadline has passed."""
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
                    self._become(election.begin_pre_vote(replica, self._next_campaign()))
                    self.conclude_campaign()

    def campaign_for_transfer(self) -> None:
        """Campaign on the leader's order, as if our timer had expired, and without a pre-vote."""
        self._become(election.begin_vote(self._replica, transfer=True))
        self.conclude_campaign()

    def conclude_campaign(self) -> None:
        """Become leader or candidate, become a follower, or continue to wait, according to the votes so far."""
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

    def _next_campaign(self) -> Milliseconds:
        """Return the time of the next campaign: after an election timeout, or our next slot after a leader's end."""
        replica = self._replica
        due = replica.random_election_deadline()
        if replica.now >= self._early_until_ms:
            return due
        return min(due, replica.now + len(replica.others) * replica.options.campaign_slot_ms)

    def _wait_for_another(self) -> None:
        """Restart the timer as a follower, because this server cannot be elected."""
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
