"""Rules for leaders beyond the safety of the log, checked at each step of the trouble phase.

    lease          while a leader may answer reads from memory, no server leads a later term
    promise        with leases, a server that has confirmed a leader does not drop it, or vote for another server,
                   within the minimum election timeout. The promise ends if that leader resigns or transfers its
                   leadership
    check-quorum   a leader that receives no messages from a majority for two minimum election timeouts resigns
    slow disks     a leader remains leader while only the disks of its followers are slow
    stuck          a leader with waiting proposals resigns after a long time without progress. Progress is a commit,
                   an entry stored by a voter, or a message about a stored or requested chunk of a snapshot. Entries
                   count up to the end of the log at the last commit

Later entries are not progress: with them, a leader with a hung disk would remain while clients send requests.
Each time is measured by the clock of the leader, or of the server that promised. For check-quorum, each delivered
message counts as contact, so this rule is weaker than the core's, which counts fewer messages and uses a shorter time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from consensus.core.effects import Effect, RoleChanged, Send
from consensus.core.events import DeadlineReached, Event, Received
from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    FetchSnapshot,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from consensus.core.model import Configuration, Index, ServerId, Term
from consensus.core.status import RaftDescription
from tests.simulation.consensus.checker import ViolationError
from tests.simulation.consensus.machine import Machine, Run
from tests.simulation.consensus.profile import Profile

_QUORUM_TIMEOUTS = 2
_STUCK_TIMEOUTS = 6
"""Longest time without progress, in maximum election timeouts.

The core resigns after `STALLED_TIMEOUTS` minimum election timeouts.
"""


@dataclass(slots=True)
class _LeaderTerm:
    run: Run
    since_ms: int
    received_ms: dict[ServerId, int] = field(default_factory=dict)
    configuration: Configuration | None = None
    configured_ms: int = 0
    commit: Index = 0
    target: Index | None = None
    """End of the log at the last commit, or when proposals began to wait; None if no proposal waits."""
    stored_sum: int = 0
    """Sum of the entries up to `target` that the voters hold."""
    moved_ms: int = 0
    """Last time when commit index or `stored_sum` rose, a follower handled a chunk, or no proposal waited."""


@dataclass(frozen=True, slots=True)
class _Promise:
    """The promise of a server to the leader that it last confirmed."""

    leader: ServerId
    term: Term
    made_ms: int


class Leadership:
    """The rules for the leaders of one history."""

    def __init__(self, profile: Profile, machines: Mapping[ServerId, Machine]) -> None:
        self._options = profile.options
        self._machines = machines
        self._leader_terms: dict[ServerId, _LeaderTerm] = {}
        self._promises: dict[ServerId, _Promise] = {}
        self._undisturbed: ServerId | None = None
        self._commit_at_first: Index = 0

    def expect_undisturbed(self, server: ServerId | None, committed: Index) -> None:
        """Start to require that `server` remains leader; None: stop."""
        if self._undisturbed is not None and committed <= self._commit_at_first:
            raise ViolationError(f"slow disks: leader {self._undisturbed} committed nothing all the time")
        self._undisturbed, self._commit_at_first = server, committed

    def stepped(self, machine: Machine, event: Event, effects: Sequence[Effect]) -> None:
        if self._options.lease_clock_bound_ms is not None:
            self._check_promises(machine, event, effects)
        server, run = machine.server_id, machine.run
        if run is not None and machine.leads:
            self._led(machine, run, event)
            return
        self._leader_terms.pop(server, None)
        if server == self._undisturbed:
            raise ViolationError(f"slow disks: server {server} lost its leadership for the disks of its followers")

    def _led(self, machine: Machine, run: Run, event: Event) -> None:
        now = machine.clock_ms
        leader_term = self._leader_terms.get(machine.server_id)
        if leader_term is None or leader_term.run is not run:
            leader_term = self._leader_terms[machine.server_id] = _LeaderTerm(run, now, moved_ms=now)
        if isinstance(event, Received):
            leader_term.received_ms[event.sender] = now
            if isinstance(event.message, SnapshotReply | FetchSnapshot):
                # The messages do not show how much of a snapshot a follower holds, only that it stored or requested a
                # chunk.
                leader_term.moved_ms = now
        elif isinstance(event, DeadlineReached):
            self._check(machine.server_id, leader_term, now)

    def _check_promises(self, machine: Machine, event: Event, effects: Sequence[Effect]) -> None:
        if machine.leads:
            self._check_leases(machine)
        if not isinstance(event, Received):
            return
        for effect in effects:
            if isinstance(effect, Send):
                self._check_vote(machine, event.message, effect.message)
            elif isinstance(effect, RoleChanged) and effect.leader is None:
                self._check_memory(machine, effect.term)

    def _check_vote(self, machine: Machine, request: Message, reply: Message) -> None:
        match request:
            case AppendEntries(term=term, leader=leader) | InstallSnapshot(term=term, leader=leader):
                confirms = isinstance(reply, AppendReply | SnapshotReply)
            case BeginQuorumEpoch(term=term, leader=leader):
                confirms = isinstance(reply, BeginQuorumEpochReply) and reply.error is None
            case RequestVote() if isinstance(reply, VoteReply) and reply.granted:
                self._check_grant(machine, request)
                return
            case TimeoutNow() if isinstance(reply, TimeoutNowReply) and reply.accepted:
                self._promises.pop(machine.server_id, None)
                return
            case _:
                return
        if confirms and reply.term == term:
            self._promises[machine.server_id] = _Promise(leader, term, machine.clock_ms)

    def _check_grant(self, machine: Machine, request: RequestVote) -> None:
        """Check a granted vote. A leader that transfers its leadership loses its lease, and promises to it end."""
        promise = self._binding(machine)
        if promise is None or request.candidate == promise.leader:
            return
        if not request.transfer or request.term <= promise.term:
            raise ViolationError(f"promise: {machine.server_id} grants {request} despite {promise}")
        del self._promises[machine.server_id]

    def _check_memory(self, machine: Machine, term: Term) -> None:
        promise = self._binding(machine)
        if promise is not None and promise.term == term:
            raise ViolationError(f"promise: server {machine.server_id} drops {promise}")

    def _binding(self, machine: Machine) -> _Promise | None:
        promise = self._promises.get(machine.server_id)
        if promise is None or machine.clock_ms >= promise.made_ms + self._options.leader_stickiness_ms:
            return None
        leader = self._machines[promise.leader]
        return promise if leader.leads and leader.term == promise.term else None

    def _check_leases(self, leader: Machine) -> None:
        """Check that no other server has a lease of an older term. A deposed leader without a lease may still exist."""
        for other in self._machines.values():
            if other.has_lease and leader.term > other.term:
                raise ViolationError(f"lease: server {leader.server_id} leads while {other.server_id} has a lease")

    def _check(self, server: ServerId, leader_term: _LeaderTerm, now: int) -> None:
        about, options = leader_term.run.core.describe(), self._options
        if about.configuration != leader_term.configuration:
            leader_term.configuration, leader_term.configured_ms = about.configuration, now
        received_ms = min(
            self._contact_of_majority_ms(server, leader_term, (voter.server_id for voter in voters), now)
            for voters in (about.configuration.voters, about.configuration.old_voters)
            if voters
        )
        if now > received_ms + _QUORUM_TIMEOUTS * options.check_quorum_ms:
            raise ViolationError(
                f"check-quorum: server {server} leads, and no majority sent anything since {received_ms}"
            )
        self._check_stuck(server, leader_term, about, now)

    def _check_stuck(self, server: ServerId, leader_term: _LeaderTerm, about: RaftDescription, now: int) -> None:
        if not about.pending_proposals:
            leader_term.target, leader_term.moved_ms = None, now
            return
        if leader_term.target is None or about.commit_index > leader_term.commit:
            leader_term.target, leader_term.commit, leader_term.moved_ms = about.last.index, about.commit_index, now
        voters = [follower for follower in about.followers if follower.server_id in about.configuration.voter_ids]
        stored_sum = sum(min(follower.match, leader_term.target) for follower in voters)
        if stored_sum > leader_term.stored_sum:
            leader_term.moved_ms = now
        leader_term.stored_sum = stored_sum
        if voters and now > leader_term.moved_ms + _STUCK_TIMEOUTS * self._options.election_timeout_max_ms:
            raise ViolationError(f"stuck: server {server} leads, and nothing has moved since {leader_term.moved_ms}")

    def _contact_of_majority_ms(
        self, server: ServerId, leader_term: _LeaderTerm, voters: Iterable[ServerId], now: int
    ) -> int:
        """Return the time since which each member of a majority of these voters has sent a message."""
        began_ms = max(leader_term.since_ms, leader_term.configured_ms)
        latest = sorted(
            (now if voter == server else max(began_ms, leader_term.received_ms.get(voter, 0)) for voter in voters),
            reverse=True,
        )
        return latest[len(latest) // 2]
