"""Decide the servers of the Raft group, one step at a time.

    gossip: which members are alive      ─┐
    log: which identities are admitted   ─┼──▶ Reconciler.decide ──▶ at most one proposal, and the reasons to wait
    Raft: which servers are members,     ─┘
          which of them answer

docs/explanation/changing-servers.md ("How a farm decides about changes") has the rules and their reasons. Gossip alone
does not admit a server, because any holder of the farm key can join the gossip. A short outage does not cause a step:
a server must be alive, or dead, for an unbroken time. A suspicion does not interrupt that time, but it delays the step.
A server that answers the leader is alive, unless it has left.

The leader measures these times from its own first observation. A new leader measures again from the start, which only
delays decisions. The times are the only state of this module, so its decisions follow from its inputs.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from bridge.core.formation.member import FarmMember, MemberStatus
from bridge.core.membership.admission import (
    ADMITTED_MAX,
    Admitted,
    LeaderShare,
    Standing,
    holder_of,
    raft_id_of,
    refusal,
    server_label,
    share_refusal,
)
from consensus import MAX_MEMBERS

VOTERS_MAX_DEFAULT = 5
GRACE_DEFAULT_MS = 600_000
REFUSED_SHOWN_MAX = 8
_MINUTE_MS = 60_000


class ReconcileSettings(Struct, frozen=True):
    """The settings of the decisions.

    A member must be alive for `settle_ms` before the leader admits, adds or promotes it.
    """

    expect: int
    voters_max: int = VOTERS_MAX_DEFAULT
    grace_ms: int = GRACE_DEFAULT_MS
    settle_ms: int = 10_000
    retry_ms: int = 30_000
    admits_all: bool = False
    """True if newcomers are admitted without an operator."""
    admission_every_ms: int = 30_000
    """Time between two such admissions: a reporting period, so that an operator can follow them."""

    @property
    def ceiling(self) -> int:
        """Largest number of voters, apart from one more during a replacement."""
        return max(self.voters_max, self.expect)


class Group(Struct, frozen=True):
    """The committed configuration as its leader sees it."""

    own_id: int
    voters: frozenset[int]
    learners: frozenset[int] = frozenset()
    answering: frozenset[int] = frozenset()
    """Servers that replied to the leader recently."""
    caught_up: frozenset[int] = frozenset()
    """Learners that lack only a few entries of the leader's log."""
    removed: frozenset[int] = frozenset()
    """Servers that an operator removed."""
    losing_vote: frozenset[int] = frozenset()
    """Servers whose eviction is under way: the leader has demoted them, and does not promote them again."""
    admitted_by: Mapping[int, bytes] = field(default_factory=dict)
    """The leader that admitted each Raft id (`bridge.core.membership.admission`)."""

    @property
    def members(self) -> frozenset[int]:
        """All servers that receive the log."""
        return self.voters | self.learners


class Admit(Struct, frozen=True):
    """Propose an admission: a Raft id for this identity, or its name."""

    node_id: bytes
    name: str
    key: bytes | None = None


class AddLearner(Struct, frozen=True):
    """Add this server as a learner."""

    server_id: int


class Promote(Struct, frozen=True):
    """Make this learner a voter."""

    server_id: int


class Remove(Struct, frozen=True):
    """Remove this server from the group."""

    server_id: int


class HandOver(Struct, frozen=True):
    """Transfer leadership to another server, because this server will be removed."""


Proposal = Admit | AddLearner | Promote | Remove | HandOver


class Decision(Struct, frozen=True):
    """The next step, and the reasons against further steps: operators see `waits`, and `refused` raises an alarm."""

    proposal: Proposal | None = None
    waits: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    awaiting_approval: tuple[FarmMember, ...] = ()
    """Newcomers that wait for an operator, the longest waiting first."""


class Reconciler:
    """The decisions of one leader. Make a new one for each term that it leads."""

    def __init__(self, settings: ReconcileSettings) -> None:
        self._settings = settings
        self._alive_since: dict[bytes, int] = {}
        self._dead_since: dict[int, int] = {}
        self._not_before: dict[Proposal, int] = {}
        self._admit_after_ms = 0

    def failed(self, proposal: Proposal, now_ms: int) -> None:
        """Record that a step failed: it is not proposed again for `retry_ms`."""
        self._not_before[proposal] = now_ms + self._settings.retry_ms

    def decide(
        self, now_ms: int, members: tuple[FarmMember, ...], admitted: Mapping[int, Admitted], group: Group
    ) -> Decision:
        """Return the present decision. Call this often, because each call also observes the members."""
        self._not_before = {each: when for each, when in self._not_before.items() if when > now_ms}
        seen = {member.node_id: member for member in members}
        self._note(now_ms, seen, admitted, group)
        moment = _Moment(self._settings, now_ms, seen, admitted, group, self._alive_since, self._dead_since)
        refused = moment.refused()
        proposals = [each for each in moment.proposals() if each not in self._not_before]
        if now_ms < self._admit_after_ms:
            proposals = [each for each in proposals if not moment.is_newcomer(each)]
        chosen = proposals[0] if proposals else None
        if chosen is not None and moment.is_newcomer(chosen):
            self._admit_after_ms = now_ms + self._settings.admission_every_ms
        return Decision(chosen, moment.waits(), refused, moment.awaiting_approval())

    def _note(
        self, now_ms: int, seen: Mapping[bytes, FarmMember], admitted: Mapping[int, Admitted], group: Group
    ) -> None:
        """Note the time since which each member has been alive, or dead, without a break."""
        answering = {admitted[server_id].node_id for server_id in group.answering if server_id in admitted}
        alive = {
            node_id
            for node_id, each in seen.items()
            if each.status is MemberStatus.ALIVE
            or (each.status is MemberStatus.SUSPECT and node_id in self._alive_since)
            or (each.status is not MemberStatus.LEFT and node_id in answering)
        }
        self._alive_since = {node_id: self._alive_since.get(node_id, now_ms) for node_id in alive}
        dead = {
            server_id
            for server_id in group.members - group.answering - {group.own_id}
            if server_id in admitted and _is_dead(seen.get(admitted[server_id].node_id))
        }
        self._dead_since = {server_id: self._dead_since.get(server_id, now_ms) for server_id in dead}


class _Moment(Struct, frozen=True):
    settings: ReconcileSettings
    now_ms: int
    seen: Mapping[bytes, FarmMember]
    admitted: Mapping[int, Admitted]
    group: Group
    alive_since: Mapping[bytes, int]
    dead_since: Mapping[int, int] = field(default_factory=dict)

    def proposals(self) -> list[Proposal]:
        """Return the possible steps, the most urgent first."""
        removals = self._removals()
        promotions = self._promotions()
        urgent = removals if len(self.group.voters) > self.settings.ceiling else []
        return [*urgent, *promotions, *removals, *self._handing_over(), *self._additions(), *self._admissions()]

    def refused(self) -> tuple[str, ...]:
        """Return texts about the nodes whose admission the log would refuse."""
        found = []
        for each in self._newcomers():
            reason = refusal(self.admitted, each.node_id, each.name, holder_runs=self._holder_runs(each.name))
            if reason is not None:
                found.append(reason)
            if len(found) == REFUSED_SHOWN_MAX:
                break
        return tuple(found)

    def _holder_runs(self, name: str) -> bool:
        """Return True if the identity that has this name is alive, or is this leader."""
        holder = holder_of(self.admitted, name)
        if holder is None:
            return False
        listed = self.seen.get(self.admitted[holder].node_id)
        return holder == self.group.own_id or (listed is not None and listed.reachable)

    def waits(self) -> tuple[str, ...]:
        """Return the conditions that each joining or leaving server waits for, as text."""
        return (*self._waits_of_departing(), *self._waits_of_coming())

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _left(self, server_id: int) -> bool:
        member = self._member(server_id)
        return member is not None and member.status is MemberStatus.LEFT and server_id != self.group.own_id

    def _dead_ms(self, server_id: int) -> int | None:
        since = self.dead_since.get(server_id)
        return None if since is None else self.now_ms - since

    def _is_doomed(self, server_id: int) -> bool:
        dead_ms = self._dead_ms(server_id)
        long_dead = dead_ms is not None and dead_ms >= self.settings.grace_ms
        return self._left(server_id) or long_dead or self._is_out(server_id)

    def _is_out(self, server_id: int) -> bool:
        """Return True if an operator removed the server, or its identity is not a member; False for this server."""
        each = self.admitted.get(server_id)
        out = server_id in self.group.removed or (each is not None and not each.is_member)
        return out and server_id != self.group.own_id

    def _is_well(self, server_id: int) -> bool:
        """Return True if the server will probably remain: it replies, and is neither leaving nor dead."""
        if server_id == self.group.own_id:
            return True
        going = self._left(server_id) or self._is_out(server_id) or server_id in self.dead_since
        return server_id in self.group.answering and not going

    def _obstacle(self, server_id: int) -> str | None:
        rest = self.group.voters - {server_id}
        if self._successor_comes(server_id):
            return "its successor does not vote yet"
        if len(rest) < self.settings.expect:
            return f"a farm of {self.settings.expect} needs another voter as a replacement first"
        reached = (self.group.answering | {self.group.own_id}) & self.group.voters
        if 2 * len(reached) <= len(self.group.voters) or 2 * sum(map(self._is_well, rest)) <= len(rest):
            return "too few of the other voters are healthy"
        return None

    def _successor_comes(self, server_id: int) -> bool:
        each = self.admitted.get(server_id)
        if each is None or each.standing is not Standing.RETIRED or each.name is None:
            return False
        successor = holder_of(self.admitted, each.name)
        member = None if successor is None else self._member(successor)
        if member is None or successor in self.group.voters:
            return False
        return member.reachable and member.eligible

    def _removals(self) -> list[Proposal]:
        doomed = [each for each in sorted(self.group.members) if self._is_doomed(each)]
        return [Remove(each) for each in doomed if each in self.group.learners or self._obstacle(each) is None]

    def _handing_over(self) -> list[Proposal]:
        own_id = self.group.own_id
        return [HandOver()] if own_id in self.group.removed and self._obstacle(own_id) is None else []

    def _waits_of_departing(self) -> list[str]:
        reasons = []
        for server_id in sorted(self.group.members):
            name, dead_ms = self._name(server_id), self._dead_ms(server_id)
            dead = f"{name} has been dead for {_duration(dead_ms or 0)}"
            what = f"{name} has left" if self._left(server_id) else dead
            if server_id in self.group.removed:
                what = f"an operator has requested the removal of {name}"
            elif self._is_out(server_id):
                what = f"server {server_id} ({name}) is {self.admitted[server_id].standing.value}"
            obstacle = self._obstacle(server_id) if server_id in self.group.voters else None
            if self._is_doomed(server_id) or server_id in self.group.removed:
                if obstacle is not None:
                    reasons.append(f"{what}; not removed: {obstacle}")
            elif dead_ms is not None:
                condition = "" if obstacle is None else f" at the earliest: {obstacle}"
                reasons.append(f"{what}; removed after {_duration(self.settings.grace_ms)}{condition}")
        return reasons

    # -- joining -------------------------------------------------------------------------------------------------------

    def _settled(self, node_id: bytes) -> bool:
        since, member = self.alive_since.get(node_id), self.seen.get(node_id)
        is_alive = member is not None and member.status is MemberStatus.ALIVE
        return is_alive and since is not None and self.now_ms - since >= self.settings.settle_ms

    def _promotable(self) -> list[int]:
        return [
            each
            for each in sorted(self.group.learners & self.group.caught_up)
            if (member := self._member(each)) is not None
            and member.eligible
            and self._settled(member.node_id)
            and not self._is_out(each)
            and each not in self.group.removed | self.group.losing_vote
        ]

    def _promotions(self) -> list[Proposal]:
        voters = self.group.voters
        staying = [each for each in voters if not self._is_doomed(each) and each not in self.group.removed]
        promotable = self._promotable()
        if len(staying) >= self.settings.ceiling or len(voters) > self.settings.ceiling:
            return []
        alone = len(voters) == 1 and len(promotable) == 1
        return [] if alone else [Promote(each) for each in promotable]

    def _additions(self) -> list[Proposal]:
        if not self._has_room():
            return []
        return [
            AddLearner(server_id)
            for server_id, each in sorted(self.admitted.items())
            if server_id not in self.group.members
            and server_id not in self.group.removed | {self.group.own_id}
            and each.is_member
            and (member := self.seen.get(each.node_id)) is not None
            and member.serves
            and self._settled(each.node_id)
        ]

    def _newcomers(self) -> list[FarmMember]:
        """Return stable members whose present name and public key are not recorded in the log."""
        known = {each.node_id: each for each in self.admitted.values()}
        return [
            each
            for node_id, each in sorted(self.seen.items())
            if self._settled(node_id) and not _is_recorded(known.get(node_id), each)
        ]

    def _admissions(self) -> list[Proposal]:
        known = {each.node_id for each in self.admitted.values() if not self._is_unknown(each.node_id)}
        has_room = len(self.admitted) < ADMITTED_MAX and self._has_room()
        leader = self.admitted.get(self.group.own_id)
        share = None if leader is None else LeaderShare(leader.node_id, self.group.admitted_by)
        return [
            Admit(each.node_id, each.name, each.key)
            for each in self._newcomers()
            if refusal(self.admitted, each.node_id, each.name) is None
            and (share is None or share_refusal(self.admitted, each.node_id, share) is None)
            and (each.node_id in known or (has_room and self.settings.admits_all))
        ]

    def awaiting_approval(self) -> tuple[FarmMember, ...]:
        """Return members that could be admitted and wait for an operator."""
        if self.settings.admits_all:
            return ()
        unknown = [each for each in self._newcomers() if self._is_unknown(each.node_id)]
        admissible = [each for each in unknown if refusal(self.admitted, each.node_id, each.name) is None]
        return tuple(sorted(admissible, key=lambda each: self.alive_since[each.node_id]))

    def is_newcomer(self, proposal: Proposal) -> bool:
        return isinstance(proposal, Admit) and self._is_unknown(proposal.node_id)

    def _is_unknown(self, node_id: bytes) -> bool:
        return raft_id_of(self.admitted, node_id) is None

    def _has_room(self) -> bool:
        return len(self.group.members) < MAX_MEMBERS - 1

    def _waits_of_coming(self) -> list[str]:
        reasons = []
        promotable = self._promotable()
        for server_id, each in sorted(self.admitted.items()):
            member = self.seen.get(each.node_id)
            if member is None or not member.reachable or server_id == self.group.own_id:
                continue
            if not each.is_member:
                continue
            name = self._name(server_id)
            if server_id not in self.group.members and not member.serves:
                reasons.append(f"{name} is admitted as server {server_id}; its Raft server has to start")
            elif server_id in self.group.learners and server_id not in self.group.caught_up:
                reasons.append(f"{name} receives the log")
            elif server_id in promotable and len(promotable) == 1 and len(self.group.voters) == 1:
                reasons.append(
                    f"{name} can vote; it waits for one more voter, because a group of two voters does not survive a"
                    " failure"
                )
        return reasons

    # -- names ---------------------------------------------------------------------------------------------------------

    def _member(self, server_id: int) -> FarmMember | None:
        each = self.admitted.get(server_id)
        return None if each is None else self.seen.get(each.node_id)

    def _name(self, server_id: int) -> str:
        member, each = self._member(server_id), self.admitted.get(server_id)
        known = member.name if member is not None else None if each is None else each.name
        return server_label(server_id, known)


def _is_recorded(known: Admitted | None, member: FarmMember) -> bool:
    if known is None or known.standing in {Standing.RETIRED, Standing.LAPSED}:
        return False
    if known.standing is Standing.EVICTED:
        return True  # Gossip no longer describes it; only its last state is kept.
    return known.name == member.name and (known.key is not None or member.key is None)


def _is_dead(member: FarmMember | None) -> bool:
    """Return True if a member is dead or has left; a member that gossip does not list counts as dead."""
    return member is None or member.status in {MemberStatus.DEAD, MemberStatus.LEFT}


def _duration(duration_ms: int) -> str:
    return f"{duration_ms // _MINUTE_MS} min" if duration_ms >= _MINUTE_MS else f"{duration_ms // 1000} s"
