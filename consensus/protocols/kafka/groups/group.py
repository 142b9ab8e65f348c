"""One consumer group, without I/O: its members, its generation, and the assignment of each member.

             first member joins            all have joined, or the time is over        the leader's assignment comes
    EMPTY ─────────────────────▶ PREPARING ───────────────────────────────▶ COMPLETING ─────────────────────▶ STABLE
      ▲                           ▲ │ no member left                            │                               │
      └───────────────────────────┼─┘                                           │ a member joins, leaves or times out
                                  └─────────────────────────────────────────────┴───────────────────────────────┘

This is the classic protocol (KIP-62, KIP-394, KIP-345); docs/explanation/other-protocols.md explains its use here. A
*generation* is one round of assignment. All JoinGroups get their replies together, since the leader needs the list of
members. Heartbeats' replies announce a new round (REBALANCE_IN_PROGRESS). A waiting request has a *ticket*; a later
call returns its reply:

    call(ticket, …, now_ms) ──▶ [TicketAnswer(ticket, answer), …]  and   deadline_ms, the time to call `expire`

A second JoinGroup or SyncGroup of a member replaces the first; the first is refused. The group removes a member after
its session timeout without requests. It also removes a member that does not join a round or request its assignment
within the longest rebalance timeout. A static member (`group.instance.id`) that does not join a round stays until its
session is over. Its restarted instance comes without a member id and replaces it, usually without a new round.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from consensus.protocols.kafka.wire.apis import ErrorCode

Ticket = int


class GroupState(Enum):
    """State of a group, in the words of Kafka's tools."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class JoinRequest(Struct, frozen=True):
    """A consumer's request to join. The caller checks sizes and times."""

    member_id: str
    """Member id; empty for a new member."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Assignment methods by preference: the name of each, and the member's metadata for the group's leader."""
    needs_known_id: bool = False
    """True if the consumer must get a member id first (KIP-394)."""
    may_skip_assignment: bool = False
    """True if the consumer can lead without assigning (KIP-814)."""
    principal: str | None = None
    """The user of the connection."""


class MemberRef(Struct, frozen=True):
    """The alleged sender of a request."""

    member_id: str
    instance_id: str | None
    generation: int

    @property
    def is_outsider(self) -> bool:
        """Return True if it is not a member: a client that only stores its offsets here."""
        return self.generation < 0 and not self.member_id and self.instance_id is None


class JoinedMember(Struct, frozen=True):
    """A member, as described to the leader of its group."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(Struct, frozen=True):
    """The member is part of this generation. `members` is empty, except for the leader."""

    generation: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skips_assignment: bool = False


class Assigned(Struct, frozen=True):
    """The assignment of a member, from the leader."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


class Refused(Struct, frozen=True):
    """Kafka's error, and a member id if one is sent."""

    error: ErrorCode
    member_id: str = ""


Answer = Joined | Assigned | Refused


class TicketAnswer(Struct, frozen=True):
    """The reply to the present request, or to a waiting request."""

    ticket: Ticket
    answer: Answer


class GroupMember(Struct):
    """One member, as it last joined."""

    member_id: str
    request: JoinRequest
    expires_ms: int
    """End of its session, unless it sends a request or one of its requests waits."""
    assignment: bytes = b""
    joining: Ticket | None = None
    syncing: Ticket | None = None
    has_synced: bool = False
    """True if it has requested its assignment in the present generation."""

    def metadata(self, protocol: str | None) -> bytes:
        """Return its metadata for an assignment method."""
        return next((metadata for name, metadata in self.request.protocols if name == protocol), b"")


class _JoinRound(Struct):
    """The current round, with the end of the time to join it."""

    until_ms: int
    latest_ms: int
    is_first: bool
    has_newcomer: bool = False


class ConsumerGroup(Struct):
    """One group. Calls return the replies that they cause. The coordinator may drop a group that `is_empty`."""

    group_id: str
    first_delay_ms: int
    generation: int = 0
    principal: str | None = None
    """The user of its members; None on a listener without authentication."""
    state: GroupState = GroupState.EMPTY
    protocol_type: str = ""
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    _reserved_ids: dict[str, int] = field(default_factory=dict)
    """Member ids that no member has yet, with their expiry."""
    _instances: dict[str, str] = field(default_factory=dict)
    _round: _JoinRound | None = None
    _sync_until_ms: int | None = None
    _answers: list[TicketAnswer] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Return True if it does not have members or reserved ids."""
        return not self.members and not self._reserved_ids

    @property
    def size(self) -> int:
        """Return the number of members and of reserved ids."""
        return len(self.members) + len(self._reserved_ids)

    @property
    def sessions_ms(self) -> tuple[int, ...]:
        """The session timeouts of its members."""
        return tuple(member.request.session_timeout_ms for member in self.members.values())

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next due `expire`."""
        due = [member.expires_ms for member in self.members.values() if not _waits(member)]
        due += self._reserved_ids.values()
        if self._round is not None:
            due.append(self._round.until_ms)
        if self._sync_until_ms is not None:
            due.append(self._sync_until_ms)
        return min(due, default=None)

    def join(
        self, ticket: Ticket, request: JoinRequest, new_id: str, now_ms: int, *, adopts: bool = False
    ) -> list[TicketAnswer]:
        """Join a consumer. A consumer without an id gets `new_id`; `adopts` accepts an id from another coordinator."""
        instance, member_id = request.instance_id, request.member_id
        holder = None if instance is None else self._instances.get(instance)
        if not self._accepts(request):
            self._refuse(ticket, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif holder is not None and not member_id:
            self._succeed(ticket, self.members[holder], request, new_id, now_ms)
        elif holder is not None and holder != member_id:
            self._refuse(ticket, ErrorCode.FENCED_INSTANCE_ID)
        elif member_id in self.members:
            self._rejoin(ticket, self.members[member_id], request, now_ms)
        elif not member_id and request.needs_known_id and instance is None:
            self._reserved_ids[new_id] = now_ms + request.session_timeout_ms
            self._answers.append(TicketAnswer(ticket, Refused(ErrorCode.MEMBER_ID_REQUIRED, new_id)))
        elif not member_id or member_id in self._reserved_ids or adopts:
            self._reserved_ids.pop(member_id, None)
            self._add(ticket, request, member_id or new_id, now_ms)
        else:
            self._refuse(ticket, ErrorCode.UNKNOWN_MEMBER_ID)
        return self._drain()

    def sync(
        self,
        ticket: Ticket,
        sender: MemberRef,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
        now_ms: int,
    ) -> list[TicketAnswer]:
        """Process a member's request for its assignment, or the leader's assignments.

        `protocol` is type and name, if given.
        """
        error = self._check(sender)
        protocol_type, protocol_name = protocol
        if error is ErrorCode.NONE and (
            protocol_type not in (None, self.protocol_type) or protocol_name not in (None, self.protocol_name)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and self.state is GroupState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            self._refuse(ticket, error)
            return self._drain()
        member = self.members[sender.member_id]
        self._extend_session(member, now_ms)
        member.has_synced = True
        if self.state is GroupState.STABLE:
            self._answers.append(TicketAnswer(ticket, self._assigned(member)))
        else:
            self._supersede(member.syncing)
            member.syncing = ticket
            if member.member_id == self.leader_id:
                self._assign(assignments, now_ms)
        return self._drain()

    def heartbeat(self, sender: MemberRef, now_ms: int) -> ErrorCode:
        """Record a member's heartbeat."""
        error = self._check(sender)
        if error is ErrorCode.NONE:
            self._extend_session(self.members[sender.member_id], now_ms)
            if self.state is GroupState.PREPARING:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> tuple[ErrorCode, list[TicketAnswer]]:
        """Remove a leaving member. An operator's request may contain only the instance id of a static member."""
        if self._reserved_ids.pop(member_id, None) is not None:
            self._complete_if_all_joined(now_ms)
            return ErrorCode.NONE, self._drain()
        holder = None if instance_id is None else self._instances.get(instance_id)
        if instance_id is not None and holder is not None and member_id not in ("", holder):
            return ErrorCode.FENCED_INSTANCE_ID, []
        member = self.members.get(holder or "" if instance_id is not None else member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._advance_rebalance(now_ms)
        return ErrorCode.NONE, self._drain()

    def check_commit(self, sender: MemberRef, now_ms: int) -> ErrorCode:
        """Return NONE for a commit of offsets by a member of this generation, or by an outsider of an empty group."""
        if sender.is_outsider:
            return ErrorCode.UNKNOWN_MEMBER_ID if self.members else ErrorCode.NONE
        error = self._check(sender)
        if error is ErrorCode.NONE:
            self._extend_session(self.members[sender.member_id], now_ms)
            if self.state is GroupState.COMPLETING:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def knows(self, request: JoinRequest) -> bool:
        """Return True for a member, its successor, or the owner of a reserved id."""
        return (
            request.member_id in self.members
            or request.member_id in self._reserved_ids
            or request.instance_id in self._instances
        )

    def expire(self, now_ms: int) -> list[TicketAnswer]:
        """Remove expired members and ids, and end a round whose time is over."""
        self._reserved_ids = {member_id: due_ms for member_id, due_ms in self._reserved_ids.items() if due_ms > now_ms}
        is_late = self._sync_until_ms is not None and now_ms >= self._sync_until_ms
        removed_members = [
            member
            for member in self.members.values()
            if (member.expires_ms <= now_ms and not _waits(member)) or (is_late and not member.has_synced)
        ]
        if is_late:
            self._sync_until_ms = None
        for member in removed_members:
            self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if removed_members:
            self._advance_rebalance(now_ms)
        elif self.state is GroupState.PREPARING:
            self._complete_if_all_joined(now_ms)
        if self._round is not None and now_ms >= self._round.until_ms:
            self._end_round(self._round, now_ms)
        return self._drain()

    def forget(self, ticket: Ticket) -> None:
        """Stop waiting for this reply."""
        for member in self.members.values():
            if member.joining == ticket:
                member.joining = None
            if member.syncing == ticket:
                member.syncing = None

    def _check(self, sender: MemberRef) -> ErrorCode:
        """Return NONE for a member of the present generation."""
        holder = None if sender.instance_id is None else self._instances.get(sender.instance_id)
        if holder is not None and holder != sender.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if sender.member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if sender.generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def _accepts(self, request: JoinRequest) -> bool:
        """Return True if all members would have a common assignment method."""
        if not request.protocol_type or not request.protocols:
            return False
        others = [member for member in self.members.values() if member.member_id != request.member_id]
        if not others:
            return True
        names = {name for name, _ in request.protocols}
        return request.protocol_type == self.protocol_type and any(
            all(any(name == known for known, _ in member.request.protocols) for member in others) for name in names
        )

    def _add(self, ticket: Ticket, request: JoinRequest, member_id: str, now_ms: int) -> None:
        member = GroupMember(member_id, request, now_ms + request.session_timeout_ms, joining=ticket)
        self.members[member_id] = member
        self.protocol_type = request.protocol_type
        if request.instance_id is not None:
            self._instances[request.instance_id] = member_id
        if self._round is not None:
            self._round.has_newcomer = True
        self._prepare(now_ms)
        self._complete_if_all_joined(now_ms)

    def _rejoin(self, ticket: Ticket, member: GroupMember, request: JoinRequest, now_ms: int) -> None:
        """Join a member to a new round, or repeat the reply of the present round."""
        is_same = member.request.protocols == request.protocols
        is_repeated = self.state is GroupState.COMPLETING and is_same
        is_repeated |= self.state is GroupState.STABLE and is_same and member.member_id != self.leader_id
        self._extend_session(member, now_ms)
        # `_instances` has the member under its first instance id, until the member is removed.
        member.request = replace(request, instance_id=member.request.instance_id)
        if is_repeated:
            self._answers.append(TicketAnswer(ticket, self._joined(member)))
            return
        self._supersede(member.joining)
        member.joining = ticket
        self._prepare(now_ms)
        self._complete_if_all_joined(now_ms)

    def _succeed(self, ticket: Ticket, former: GroupMember, request: JoinRequest, new_id: str, now_ms: int) -> None:
        """Replace a restarted static member, with a new member id."""
        protocol = self.protocol_name
        self._supersede(former.joining, ErrorCode.FENCED_INSTANCE_ID)
        self._supersede(former.syncing, ErrorCode.FENCED_INSTANCE_ID)
        member = GroupMember(new_id, request, now_ms + request.session_timeout_ms, former.assignment, has_synced=True)
        self.members = {
            each.member_id: each for each in (member if other is former else other for other in self.members.values())
        }
        self._instances[request.instance_id or ""] = new_id
        if self.leader_id == former.member_id:
            self.leader_id = new_id
        if self.state is GroupState.STABLE and self._chosen_protocol() == protocol:
            self._answers.append(TicketAnswer(ticket, self._joined_without_round(member, former.member_id)))
            return
        member.joining = ticket
        self._prepare(now_ms)
        self._complete_if_all_joined(now_ms)

    def _joined_without_round(self, member: GroupMember, former_id: str) -> Joined:
        """Return the reply to a restarted static member that continues the present generation.

        If it leads the group and cannot skip the assignment, the reply names its former id as the leader. So the member
        treats itself as a follower and does not assign.
        """
        joined = self._joined(member)
        if member.member_id != self.leader_id:
            return joined
        if member.request.may_skip_assignment:
            return replace(joined, skips_assignment=True)
        return replace(joined, leader_id=former_id, members=())

    def _prepare(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING:
            return
        for member in self.members.values():
            self._supersede(member.syncing, ErrorCode.REBALANCE_IN_PROGRESS)
            member.syncing = None
        longest_ms = self._longest_rebalance_ms()
        is_first = self.state is GroupState.EMPTY
        wait_ms = min(self.first_delay_ms, longest_ms) if is_first else longest_ms
        self._round = _JoinRound(now_ms + wait_ms, now_ms + longest_ms, is_first)
        self._sync_until_ms = None
        self.state = GroupState.PREPARING

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self._round is None or self._reserved_ids or (self._round.is_first and self.members):
            return
        if all(member.joining is not None for member in self.members.values()):
            self._complete(now_ms)

    def _end_round(self, current: _JoinRound, now_ms: int) -> None:
        """End a round, or a part of the first round, which continues while members join."""
        if current.is_first and current.has_newcomer and current.until_ms < current.latest_ms:
            current.has_newcomer = False
            current.until_ms = min(now_ms + self.first_delay_ms, current.latest_ms)
            return
        for member in [*self.members.values()]:
            if member.joining is None and member.request.instance_id is None:
                self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.members and all(member.joining is None for member in self.members.values()):
            # Only static members are left, and none has joined the round. One must return to lead; otherwise their
            # sessions end.
            current.until_ms = now_ms + self._longest_rebalance_ms()
            return
        self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """Complete the round: begin a new generation."""
        self._round = None
        self.generation += 1
        if not self.members:
            self.state, self.protocol_name, self.leader_id = GroupState.EMPTY, None, None
            return
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.joining is None:
            leader = next(member for member in self.members.values() if member.joining is not None)
        self.leader_id = leader.member_id
        self.protocol_name = self._chosen_protocol()
        self.state = GroupState.COMPLETING
        self._sync_until_ms = now_ms + self._longest_rebalance_ms()
        for member in self.members.values():
            member.has_synced = member.joining is None
            if member.joining is not None:
                ticket, member.joining = member.joining, None
                self._extend_session(member, now_ms)
                self._answers.append(TicketAnswer(ticket, self._joined(member)))

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                self._extend_session(member, now_ms)
                self._answers.append(TicketAnswer(ticket, self._assigned(member)))

    def _remove(self, member: GroupMember, error: ErrorCode) -> None:
        self._supersede(member.joining, error)
        self._supersede(member.syncing, error)
        del self.members[member.member_id]
        if member.request.instance_id is not None:
            self._instances.pop(member.request.instance_id, None)

    def _advance_rebalance(self, now_ms: int) -> None:
        """Begin or continue a round after members were removed."""
        self._prepare(now_ms)
        self._complete_if_all_joined(now_ms)

    def _chosen_protocol(self) -> str | None:
        """Return the common method with the most votes; among equals the first member's preference."""
        members = [*self.members.values()]
        known = [name for name, _ in members[0].request.protocols]
        for member in members[1:]:
            names = {name for name, _ in member.request.protocols}
            known = [name for name in known if name in names]
        votes = Counter(next((name for name, _ in each.request.protocols if name in known), "") for each in members)
        return max(known, key=lambda name: votes[name], default=None)

    def _joined(self, member: GroupMember) -> Joined:
        is_leader = member.member_id == self.leader_id
        return Joined(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name or "",
            leader_id=self.leader_id or "",
            member_id=member.member_id,
            members=tuple(self._described()) if is_leader else (),
        )

    def _described(self) -> Iterator[JoinedMember]:
        for member in self.members.values():
            yield JoinedMember(member.member_id, member.request.instance_id, member.metadata(self.protocol_name))

    def _assigned(self, member: GroupMember) -> Assigned:
        return Assigned(self.protocol_type, self.protocol_name or "", member.assignment)

    def _longest_rebalance_ms(self) -> int:
        return max((member.request.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _extend_session(self, member: GroupMember, now_ms: int) -> None:
        member.expires_ms = now_ms + member.request.session_timeout_ms

    def _refuse(self, ticket: Ticket, error: ErrorCode) -> None:
        self._answers.append(TicketAnswer(ticket, Refused(error)))

    def _supersede(self, ticket: Ticket | None, error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
        if ticket is not None:
            self._refuse(ticket, error)

    def _drain(self) -> list[TicketAnswer]:
        answers, self._answers = self._answers, []
        return answers


def _waits(member: GroupMember) -> bool:
    return member.joining is not None or member.syncing is not None
