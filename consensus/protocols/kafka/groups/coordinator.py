"""The groups of one server while it leads: waiting requests, limits, and a change of the leader.

    request ─▶ does this server coordinate? ─▶ due work of its group ─▶ the group ─▶ reply, or waits
                     │ no                                                                │
                     ▼                                      reply by another request, by time, or when
      NOT_COORDINATOR, or LOAD_IN_PROGRESS                  this server coordinates no more ─▶ NOT_COORDINATOR

Members are in this server's memory only; offsets are entries of the log. The coordinator does not have background
tasks. A waiting request wakes up when its group has due work, and performs this work. If no request waits, the next
request performs the work. A waiting request checks the leadership every `CHECK_MS`, since no event reports a change of
the leader.

*A new leader* lacks the list of the members. If it replied UNKNOWN_MEMBER_ID, clients would drop their partitions
without storing their positions, and read records twice. So for `takeover_ms` it accepts members of former leaders.
Their heartbeats get REBALANCE_IN_PROGRESS, upon which clients commit their offsets and join a new round, both under
their member id. The leader refuses members that it has removed itself: their generations are higher than a former
leader's, because each term has its own range. But it may accept a member that the previous leader removed. Such a
member may commit an older offset than the group's, so entries may be read twice, but they are never skipped.
"""

from collections.abc import Mapping
from typing import Final
from uuid import uuid4

import trio
from msgspec import Struct, field

from consensus.protocols.kafka.groups.group import (
    Answer,
    ConsumerGroup,
    GroupState,
    JoinRequest,
    MemberRef,
    Refused,
    Ticket,
    TicketAnswer,
)
from consensus.protocols.kafka.topic.served_topic import ServedTopic
from consensus.protocols.kafka.wire.apis import ErrorCode

CHECK_MS: Final = 250
_GENERATIONS_OF_A_TERM: Final = 2**16
"""Maximum number of rounds of one group while one server leads; further generations belong to the next term."""
_TERMS: Final = 2**15 - 1
"""Number of terms with their own range of generations, which are `int32`; later terms begin with the first range."""
_MAX_CLIENT_ID_CHARACTERS: Final = 255
_MAX_MEMBER_ID_CHARACTERS: Final = 600


class GroupOptions(Struct, frozen=True):
    """Limits, and times in milliseconds. Settings that Kafka also has use Kafka's defaults unless noted."""

    max_groups: int = 100
    """Maximum number of groups per user."""
    max_groups_of_all: int = 400
    max_members: int = 100
    """Maximum number of members of one group; Kafka's `group.max.size`, unlimited by default in Kafka."""
    max_members_of_user: int = 1_000
    """Maximum number of members in all groups of one user."""
    max_members_of_all: int = 4_000
    max_protocols: int = 32
    """Maximum number of assignment methods per member; clients have four. Each join compares the methods of all
    members."""
    max_metadata_bytes: int = 16 * 1024
    """Maximum size of a member's metadata for all assignment methods together, and of one assignment."""
    max_name_characters: int = 255
    """Maximum length of a group's name, and of a `group.instance.id`."""
    max_offset_metadata_characters: int = 1_024
    """Maximum length of the text stored with an offset; Kafka's `offset.metadata.max.bytes` is 4,096."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_rebalance_timeout_ms: int = 300_000
    """Upper bound of a client's rebalance timeout, so that each waiting request gets a timely reply."""
    first_delay_ms: int = 1_000
    """Delay of the first round of an empty group, for further members to join; Kafka's
    `group.initial.rebalance.delay.ms` is 3,000."""
    takeover_ms: int = 60_000
    """Time limit for new leaders to accept members of former leaders; clients' session timeout is 45,000 by default."""
    takeover_delay_ms: int = 4_000
    """The delay of the first round of a group that a new leader takes over, instead of `first_delay_ms`. It exceeds the
    default heartbeat interval of clients, 3,000."""
    max_hold_ms: int = 1_000
    """Longest time that a commit of offsets waits for others of its group, to be written with them."""
    hold_part: int = 10
    """A commit also waits at most for the group's shortest session timeout, divided by this number."""
    commit_timeout_ms: int = 10_000
    """Time limit for committing offsets, not counting the time that they are held; Kafka's `offsets.commit.timeout.ms`
    is 5,000. A leader without a majority resigns sooner, and the commit then gets its reply."""


class GroupCoordinator:
    """The consumer groups that this server coordinates."""

    def __init__(self, topic: ServedTopic, options: GroupOptions) -> None:
        self.options = options
        self._topic = topic
        self._groups: dict[str, ConsumerGroup] = {}
        self._epoch: int | None = None
        """Term of this server as coordinator, if it is one."""
        self._takes_over_until_ms = 0
        self._tickets = 0
        self._waiting: dict[Ticket, _PendingRequest] = {}

    def advance(self, *group_ids: str) -> None:
        """Begin or end a term as coordinator if the role has changed, and perform the due work of these groups.

        When a term ends, its members are dropped and waiting requests get NOT_COORDINATOR. Other methods call this
        first, so that they see the resulting state.
        """
        epoch = self._topic.state().leader_epoch if self.refusal() is ErrorCode.NONE else None
        if epoch != self._epoch:
            self._groups = {}
            self._deliver([TicketAnswer(ticket, Refused(ErrorCode.NOT_COORDINATOR)) for ticket in self._waiting])
            self._epoch, self._takes_over_until_ms = epoch, _now_ms() + self.options.takeover_ms
        now_ms = _now_ms()
        for group in [self._groups[each] for each in group_ids if each in self._groups]:
            if group.deadline_ms is not None and group.deadline_ms <= now_ms:
                self._deliver(group.expire(now_ms))
                self._drop_if_empty(group)

    def groups(self) -> Mapping[str, ConsumerGroup]:
        """Return the groups with members or with reserved member ids, by name."""
        return self._groups

    def refusal(self) -> ErrorCode:
        """Return the reason to refuse all requests about groups now, or NONE."""
        state, offsets = self._topic.state(), self._topic.groups()
        if offsets is None or state.controller_id != state.node_id:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if offsets.is_coordinator() else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def refusal_to(self, group_id: str, principal: str | None) -> ErrorCode:
        """Return the reason to refuse a request about this group, or NONE.

        The reason may come from `refusal`, or be that the group belongs to another user. Another user could otherwise
        take the partition from the members, remove them, or move the group's position.
        """
        error, offsets = self.refusal(), self._topic.groups()
        if error is not ErrorCode.NONE or offsets is None:
            return error
        group = self._groups.get(group_id)
        is_foreign = group is not None and group.principal != principal
        if is_foreign or not offsets.may_use(group_id, principal):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return ErrorCode.NONE

    async def join(self, group_id: str, request: JoinRequest) -> Answer:
        """Add a member, or let it rejoin; return when the round is complete and the generation's members are known."""
        self.advance(group_id)
        error = self.refusal_to(group_id, request.principal) or self._check_joining(group_id, request)
        if error is not ErrorCode.NONE:
            return Refused(error)
        now_ms, group = _now_ms(), self._groups.get(group_id)
        adopts = bool(request.member_id) and now_ms < self._takes_over_until_ms
        if group is None:
            if request.member_id and not adopts:
                return Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            if not self._has_room_for_group(request.principal):
                return Refused(ErrorCode.POLICY_VIOLATION)
            delay_ms = self.options.takeover_delay_ms if adopts else self.options.first_delay_ms
            group = self._groups[group_id] = ConsumerGroup(
                group_id, delay_ms, self._first_generation(), request.principal
            )
        if not group.knows(request) and not self._has_room_in(group):
            self._drop_if_empty(group)
            return Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
        new_id = f"{(request.instance_id or request.client_id)[:_MAX_CLIENT_ID_CHARACTERS]}-{uuid4()}"
        waiting = self._open()
        self._deliver(group.join(waiting.ticket, request, new_id, now_ms, adopts=adopts))
        return await self._answer(group, waiting)

    async def sync(
        self,
        group_id: str,
        member: MemberRef,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
    ) -> Answer:
        """Wait until the group's leader has sent the assignments, and return the member's.

        `protocol` is the type and the name of the assignment method, if given.
        """
        error = self._check_member(group_id, member)
        if error is ErrorCode.NONE and any(
            len(assignment) > self.options.max_metadata_bytes for assignment in assignments.values()
        ):
            error = ErrorCode.MESSAGE_TOO_LARGE
        group = self._groups.get(group_id)
        if error is not ErrorCode.NONE or group is None:
            return Refused(error)
        waiting = self._open()
        self._deliver(group.sync(waiting.ticket, member, protocol, assignments, _now_ms()))
        return await self._answer(group, waiting)

    def heartbeat(self, group_id: str, member: MemberRef) -> ErrorCode:
        """Record a member's heartbeat; return REBALANCE_IN_PROGRESS during a new round, NONE, or another error code."""
        error = self._check_member(group_id, member)
        group = self._groups.get(group_id)
        return error if error is not ErrorCode.NONE or group is None else group.heartbeat(member, _now_ms())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        """Remove a leaving member."""
        self.advance(group_id)
        if (error := self.refusal()) is not ErrorCode.NONE:
            return error
        now_ms, group = _now_ms(), self._groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if now_ms < self._takes_over_until_ms else ErrorCode.UNKNOWN_MEMBER_ID
        error, answers = group.leave(member_id, instance_id, now_ms)
        self._deliver(answers)
        self._drop_if_empty(group)
        return error

    def may_commit(self, group_id: str, member: MemberRef) -> ErrorCode:
        """Return NONE if offsets of a group may be committed: by its members, or by any client if it is empty."""
        self.advance(group_id)
        if (error := self.refusal()) is not ErrorCode.NONE:
            return error
        group = self._groups.get(group_id)
        if self._is_of_former_leader(group, member):
            is_settled = group is not None and group.state in (GroupState.COMPLETING, GroupState.STABLE)
            return ErrorCode.REBALANCE_IN_PROGRESS if is_settled else ErrorCode.NONE
        if group is not None:
            return group.check_commit(member, _now_ms())
        return ErrorCode.NONE if member.is_outsider else ErrorCode.UNKNOWN_MEMBER_ID

    def hold_ms(self, group_id: str, member: MemberRef) -> int:
        """Return the longest time to hold a commit of this member; the member's heartbeats wait for the commit."""
        group, options = self._groups.get(group_id), self.options
        if member.is_outsider:
            return options.max_hold_ms
        sessions_ms = () if group is None else group.sessions_ms
        # The session timeout of a former leader's member is unknown here, so assume the shortest allowed.
        shortest_ms = min(sessions_ms, default=options.min_session_timeout_ms)
        return min(options.max_hold_ms, shortest_ms // options.hold_part)

    def renew_session(self, group_id: str, member: MemberRef) -> None:
        """Count a slow request as a heartbeat of its member, because the member's heartbeats had to wait."""
        group = self._groups.get(group_id)
        if group is not None:
            group.heartbeat(member, _now_ms())

    def _check_joining(self, group_id: str, request: JoinRequest) -> ErrorCode:
        options = self.options
        if not 0 < len(group_id) <= options.max_name_characters:
            return ErrorCode.INVALID_GROUP_ID
        if not options.min_session_timeout_ms <= request.session_timeout_ms <= options.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(request.member_id) > _MAX_MEMBER_ID_CHARACTERS:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_name_valid = request.instance_id is None or 0 < len(request.instance_id) <= options.max_name_characters
        if not is_name_valid or len(request.protocols) > options.max_protocols:
            return ErrorCode.INVALID_REQUEST
        if sum(len(name) + len(metadata) for name, metadata in request.protocols) > options.max_metadata_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        return ErrorCode.NONE

    def _check_member(self, group_id: str, member: MemberRef) -> ErrorCode:
        """Return the reason to refuse a member's request, or NONE; after NONE, the member's group exists."""
        self.advance(group_id)
        if (error := self.refusal()) is not ErrorCode.NONE:
            return error
        group = self._groups.get(group_id)
        if self._is_of_former_leader(group, member):
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.UNKNOWN_MEMBER_ID if group is None else ErrorCode.NONE

    def _is_of_former_leader(self, group: ConsumerGroup | None, member: MemberRef) -> bool:
        is_unknown = bool(member.member_id) and (group is None or member.member_id not in group.members)
        is_former = 0 <= member.generation < self._first_generation()
        return is_unknown and is_former and _now_ms() < self._takes_over_until_ms

    def _first_generation(self) -> int:
        """Return the first generation of this term: lower ones belong to former leaders."""
        return (self._epoch or 0) % _TERMS * _GENERATIONS_OF_A_TERM

    def _has_room_for_group(self, principal: str | None) -> bool:
        self.advance(*self._groups)
        living = self._groups.values()
        of_user = sum(each.principal == principal for each in living)
        return of_user < self.options.max_groups and len(living) < self.options.max_groups_of_all

    def _has_room_in(self, group: ConsumerGroup) -> bool:
        total = sum(each.size for each in self._groups.values())
        of_user = sum(each.size for each in self._groups.values() if each.principal == group.principal)
        is_full = total >= self.options.max_members_of_all or of_user >= self.options.max_members_of_user
        return group.size < self.options.max_members and not is_full

    def _drop_if_empty(self, group: ConsumerGroup) -> None:
        if group.is_empty and self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    def _open(self) -> "_PendingRequest":
        self._tickets += 1
        waiting = self._waiting[self._tickets] = _PendingRequest(self._tickets)
        return waiting

    def _deliver(self, answers: list[TicketAnswer]) -> None:
        for each in answers:
            if (waiting := self._waiting.pop(each.ticket, None)) is not None:
                waiting.answer = each.answer
                waiting.answer_received.set()

    async def _answer(self, group: ConsumerGroup, waiting: "_PendingRequest") -> Answer:
        """Wait for the reply: another request, a timeout or the end of this server's term provides it."""
        try:
            while waiting.answer is None:
                now_ms = _now_ms()
                due_ms = now_ms + CHECK_MS if group.deadline_ms is None else min(now_ms + CHECK_MS, group.deadline_ms)
                with trio.move_on_at(due_ms / 1000):
                    await waiting.answer_received.wait()
                self.advance(group.group_id)
        finally:
            if self._waiting.pop(waiting.ticket, None) is not None:
                group.forget(waiting.ticket)
            self._drop_if_empty(group)
        return waiting.answer


class _PendingRequest(Struct):
    ticket: Ticket
    answer_received: trio.Event = field(default_factory=trio.Event)
    answer: Answer | None = None


def _now_ms() -> int:
    return round(trio.current_time() * 1000)
