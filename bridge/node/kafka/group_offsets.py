"""The offsets of consumer groups, stored in the farm's log by its leader: few entries, and fast replies to commits.

    commit ─▶ no new position? ──────────────────────────────────────────────▶ done
           ─▶ the newest of its group ─▶ its turn ─▶ one entry for all waiting commits ─▶ committed
    committed ─▶ the table in the farm's state (`bridge.core.state.kafka_clients`)

A client that commits each record would fill the log, which all servers keep, with its offsets. So only the newest
offset of a fast group is written: a second after the group's previous entry, or at the oldest waiting commit's limit.
That limit is a tenth of the session timeout, because a client's heartbeats wait for the replies to its commits.

A commit is acknowledged when its entry, or a later one of its group, is committed and applied. An earlier reply would
be faster, but a failure of the leader could then lose the acknowledged offset.

*Only the leader writes*: it is the groups' coordinator, and never writes through another server. An offset of a deposed
coordinator must not follow an offset of the next one. So a commit that waits while the term changes is refused, even if
this server leads again. docs/reference/kafka.md has the limits and the cost of commits.
"""

from collections.abc import Collection, Mapping
from typing import Final, assert_never

import trio
from msgspec import Struct, field

from bridge.core.log.feature_level import BOUNDS_LEVEL, KAFKA_LEVEL
from bridge.core.log.records import GroupOffset
from bridge.core.state.kafka_clients import GROUPS_MAX, NotedOffset, Owner, offset_refusal
from bridge.node.events.alarms import Alarms
from bridge.node.founded_farm import NO_SERVER, CurrentFarm, FoundedFarm
from bridge.node.kafka.farm_batches import key_of
from bridge.node.kafka.producing import has_level, owner_in
from bridge.wire.log.entries import encode
from consensus import Outcome, Role, ServerBusyError, ServerStoppedError
from consensus.protocols.kafka import CommittedOffset, ErrorCode, ProduceRefusedError

EVERY_S: Final = 1.0
"""Seconds between two entries of a group, unless a commit's limit is shorter."""
RENEW_MS: Final = 24 * 3600 * 1000
"""Milliseconds of log time until an unchanged offset is written again."""
SILENT_ENTRIES: Final = 256
"""The maximum number of entries to search for a visible record."""
_SILENT_BYTES: Final = 256 * 1024
_KNOWN_MAX: Final = 4 * GROUPS_MAX


class _Group(Struct):
    """The waiting commits of one group. `requested` counts the commits; the first `noted` of them are in the log."""

    newest: CommittedOffset
    principal: str | None
    term: int
    """The Raft term at the arrival of `newest`."""
    lock: trio.Lock = field(default_factory=trio.Lock)
    requested: int = 0
    noted: int = 0
    waiting: int = 0
    next_s: float = 0.0
    """Time by trio's clock when the next entry may be written."""


class FarmGroupOffsets:
    """A `GroupOffsets` over the farm that this node serves at the moment."""

    def __init__(self, current: CurrentFarm, topic: str, alarms: Alarms) -> None:
        self._current = current
        self._topic = topic
        self._alarms = alarms
        self._groups: dict[tuple[str, str | None], _Group] = {}
        """By group and user: two users that start one group at the same time are written separately."""
        self.written = 0

    def is_coordinator(self) -> bool:
        """Return True if this node leads the farm and has applied all entries committed by earlier leaders."""
        farm = self._current.farm
        if farm is None or not has_level(farm, self._alarms):
            return False
        return farm.replica.server.role.role is Role.LEADER and farm.has_recent_state

    def groups(self) -> Collection[str]:
        """Return the groups with a stored offset."""
        farm = self._current.farm
        return () if farm is None else tuple(farm.state.kafka.living_groups(farm.state.log_time_ms))

    def committed(self, group: str) -> Mapping[str, CommittedOffset]:
        """Return the group's stored offsets, from the state of this node."""
        farm = self._current.farm
        noted = None if farm is None else farm.state.kafka.group(group, farm.state.log_time_ms)
        if noted is None:
            return {}
        return {self._topic: CommittedOffset(noted.offset, noted.leader_epoch, noted.metadata)}

    def may_use(self, group: str, principal: str | None) -> bool:
        """Return True if this user owns the group, or if the group lacks an owner."""
        farm = self._current.farm
        noted = None if farm is None else farm.state.kafka.group(group, farm.state.log_time_ms)
        return farm is None or noted is None or noted.principal in {"", owner_in(farm, principal)}

    async def commit(
        self, group: str, offsets: Mapping[str, CommittedOffset], principal: str | None, hold_s: float = EVERY_S
    ) -> None:
        """Store the group's offset of the topic; see the module. Raise the errors of `GroupOffsets.commit`."""
        offset = offsets.get(self._topic)
        if offset is None:
            await trio.lowlevel.checkpoint()
            return
        term = self._ready(group, principal).replica.server.role.term
        self._check_position(offset)
        known = self._groups.setdefault((group, principal), _Group(offset, principal, term))
        known.newest, known.term = offset, term
        known.requested += 1
        known.waiting += 1
        try:
            await self._note(group, known, known.requested, trio.current_time() + hold_s)
        finally:
            known.waiting -= 1
            self._forget_old()

    def _ready(self, group: str, principal: str | None) -> FoundedFarm:
        farm = self._current.farm
        if farm is None:
            raise ServerStoppedError(NO_SERVER)
        if not has_level(farm, self._alarms):
            text = f"the farm has feature level {farm.state.level}; consumer groups need {KAFKA_LEVEL}"
            raise ProduceRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        if not self.is_coordinator():
            raise ProduceRefusedError(ErrorCode.NOT_COORDINATOR, "another server leads, or none does now")
        self._check_owner(farm, group, principal)
        return farm

    def _check_position(self, offset: CommittedOffset) -> None:
        """Raise `ProduceRefusedError` for an offset that a reader of this log cannot have.

        The group may have read at a node that has applied more entries than this one, so the commit index limits it.
        """
        farm = self._current.farm
        if farm is None or farm.state.level < BOUNDS_LEVEL:
            return
        refusal = offset_refusal(offset.offset, farm.replica.server.commit_index + 1)
        if refusal is not None:
            raise ProduceRefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, refusal)

    def _check_owner(self, farm: FoundedFarm, group: str, principal: str | None) -> None:
        """Raise `ProduceRefusedError` if the state machine refuses an offset of this user in the group."""
        if not self.may_use(group, principal):
            raise ProduceRefusedError(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"{group} belongs to another user")
        refusal = farm.state.kafka.group_refusal(group, farm.state.log_time_ms, _owner(farm, principal))
        if refusal is not None:
            raise ProduceRefusedError(ErrorCode.POLICY_VIOLATION, refusal)

    async def _note(self, group: str, known: _Group, number: int, latest_s: float) -> None:
        """Wait until the commit with this number, or a later one, is in the log; begin to write it by `latest_s`.

        Commits take the lock in order of arrival. So the commit that sleeps with the lock is the oldest. A later commit
        could wait equally long from its own arrival, but is written together with the oldest.
        """
        async with known.lock:
            while known.noted < number:
                farm = self._ready(group, known.principal)
                newest, covers = known.newest, known.requested
                if await self._is_nothing_new(farm, group, newest):
                    known.noted = max(known.noted, covers)
                    return
                due_s = min(known.next_s, latest_s)
                if trio.current_time() < due_s:
                    # Commits that arrive until then are written together.
                    await trio.sleep_until(due_s)
                    continue
                known.next_s = trio.current_time() + EVERY_S
                if farm.replica.server.role.term != known.term:
                    text = "another server may have led while this commit waited"
                    raise ProduceRefusedError(ErrorCode.NOT_COORDINATOR, text)
                await self._write(farm, group, newest, known.principal)
                # Checked again: another user's entry may have been applied first, or the table of groups may be full.
                self._check_owner(farm, group, known.principal)
                known.noted = max(known.noted, covers)

    async def _is_nothing_new(self, farm: FoundedFarm, group: str, offset: CommittedOffset) -> bool:
        """Return True if only invisible entries are between the stored offset and this one, so it need not be written.

        A written offset is itself an entry of the log. It may advance the group's position by one, like a control
        record. The group would then commit the new position, which would be another entry, and so on. An unchanged
        offset is written again after a day, because groups without commits for a week are dropped.
        """
        noted = farm.state.kafka.groups.get(group)
        if noted is None or farm.state.log_time_ms - noted.noted_ms > RENEW_MS or noted.metadata != offset.metadata:
            return False
        return noted.offset == offset.offset or await self._is_silent(farm, noted, offset.offset)

    async def _is_silent(self, farm: FoundedFarm, noted: NotedOffset, offset: int) -> bool:
        """Return True if every record between the stored offset and this one is invisible to readers."""
        if not 0 < offset - noted.offset <= SILENT_ENTRIES:
            return False
        first = noted.offset + 1
        entries = await farm.replica.server.read(first, offset - noted.offset, _SILENT_BYTES)
        is_all = len(entries) == offset - noted.offset
        return is_all and all(
            key_of(first + place, entry, farm.applied_state) is None for place, entry in enumerate(entries)
        )

    async def _write(self, farm: FoundedFarm, group: str, newest: CommittedOffset, principal: str | None) -> None:
        user = owner_in(farm, principal)
        record = GroupOffset(group, newest.offset, newest.leader_epoch, newest.metadata, principal=user)
        try:
            entry = farm.signer.sign(encode(record))
        except ValueError as error:
            raise ProduceRefusedError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(error)) from error
        answer = await farm.replica.server.propose((entry,))
        match answer.outcome:
            case Outcome.COMMITTED:
                if answer.position is not None:
                    await farm.replica.server.wait_applied(answer.position.index)
                self.written += 1
            case Outcome.BUSY:
                raise ServerBusyError("too much waits to be committed")
            case Outcome.NOT_LEADER:
                raise ProduceRefusedError(ErrorCode.NOT_COORDINATOR, "another server leads, or none does now")
            case Outcome.UNKNOWN:
                text = "the leader changed during the request: the offset may be committed or not"
                raise ProduceRefusedError(ErrorCode.REQUEST_TIMED_OUT, text)
            case _:
                assert_never(answer.outcome)

    def _forget_old(self) -> None:
        """Drop groups without waiting commits if there are many: their names come from clients."""
        if len(self._groups) > _KNOWN_MAX:
            now_s = trio.current_time()
            self._groups = {
                name: known for name, known in self._groups.items() if known.waiting or known.next_s > now_s
            }


def _owner(farm: FoundedFarm, principal: str | None) -> Owner | None:
    """Return the owner of a new group; None below the level that has owners."""
    if farm.state.level < BOUNDS_LEVEL:
        return None
    return Owner(owner_in(farm, principal), farm.signer.node_id)
