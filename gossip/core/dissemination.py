"""The payload of pings: further gossip within the budget of a datagram.

*Queue.* Each update is sent `retransmit_multiplier` * log n times; the updates sent least often come first (SWIM paper,
section 4.1). An update about a member replaces an older one about the same member, so the directory bounds the queue.
The queue has a level for each number of sendings, so that the least sent updates are found without sorting. In a group
that loses a fifth of its members the queue has hundreds of updates, and a datagram has room for twenty.

*Payload.* It is filled in this order, within the budget of a datagram:

    1. the notice: this node's verdict about the receiver, which can refute it (Lifeguard's buddy notice)
    2. this node's own description, if the receiver holds an older one
    3. updates, the least sent first
    4. user messages of applications
    5. in acks: a sample of live members, one recorded death and one departure, for members that missed the updates

The core uses estimated sizes, each computed once per description or update, because it does not contain the encoding.
The wire shortens a payload that is too long after encoding.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import ceil, log10
from typing import Final

from gossip.core.effects import Context
from gossip.core.keyring_exchange import KeyringExchange
from gossip.core.member import CREDENTIAL_LIMIT_BYTES, NodeId, NodeInfo, Status, info_bytes
from gossip.core.membership import MemberRecord
from gossip.core.messages import AliveUpdate, Payload, Update, UserMessage, VerdictUpdate
from gossip.core.user_events import UserEvents

_VERDICT_BYTES: Final = 48
_MISFITS_LIMIT: Final = 8
"""Maximum number of skipped updates that are too large for the remaining space. Above it, the datagram is treated as
full.
"""


def update_bytes(update: Update) -> int:
    """Return the approximate wire size of an update."""
    if isinstance(update, AliveUpdate):
        return info_bytes(update.info)
    return _VERDICT_BYTES + (CREDENTIAL_LIMIT_BYTES if update.status is Status.LEFT else 0)


class _QueuedUpdate:
    __slots__ = ("is_alive", "sent", "size_bytes", "subject", "update")

    def __init__(self, update: Update, subject: NodeId, size_bytes: int, *, is_alive: bool) -> None:
        self.update = update
        self.subject = subject
        self.size_bytes = size_bytes
        self.is_alive = is_alive
        self.sent = 0


class UpdateQueue:
    """The queue of updates that this node still gossips."""

    def __init__(self, multiplier: int) -> None:
        self._multiplier = multiplier
        self.queued: dict[NodeId, _QueuedUpdate] = {}
        self._levels: list[dict[NodeId, _QueuedUpdate]] = [{}]

    def add_alive(self, info: NodeInfo, size_bytes: int) -> None:
        """Gossip that a member is alive; replace an older update about it."""
        self._add(_QueuedUpdate(AliveUpdate(info), info.node_id, size_bytes, is_alive=True))

    def add_verdict(self, verdict: VerdictUpdate) -> None:
        """Gossip a verdict; replace an older update about the same member."""
        self._add(_QueuedUpdate(verdict, verdict.node_id, update_bytes(verdict), is_alive=False))

    def _add(self, queued: _QueuedUpdate) -> None:
        older = self.queued.get(queued.subject)
        if older is not None:
            del self._levels[older.sent][queued.subject]
        self.queued[queued.subject] = self._levels[0][queued.subject] = queued

    def forget(self, node_id: NodeId) -> None:
        """Stop gossiping about this member."""
        queued = self.queued.pop(node_id, None)
        if queued is not None:
            del self._levels[queued.sent][node_id]

    def drop_known(self, peers: AbstractSet[NodeId]) -> None:
        """Drop the update that the only peer is alive: without another receiver, it would stay queued."""
        if len(peers) == 1:
            (only,) = peers
            if only in self.queued and self.queued[only].is_alive:
                self.forget(only)

    def take(self, budget_bytes: int, group_size: int, receiver: NodeId | None = None) -> tuple[list[Update], int]:
        """Return the least sent updates that fit, for `receiver`, and the remaining budget."""
        chosen, budget_bytes = self._choose(budget_bytes, receiver)
        limit = self._multiplier * ceil(log10(group_size + 1))
        updates: list[Update] = []
        for queued in chosen:
            updates.append(queued.update)
            del self._levels[queued.sent][queued.subject]
            queued.sent += 1
            if queued.sent >= limit:
                del self.queued[queued.subject]
                continue
            if queued.sent == len(self._levels):
                self._levels.append({})
            self._levels[queued.sent][queued.subject] = queued
        return updates, budget_bytes

    def _choose(self, budget_bytes: int, receiver: NodeId | None) -> tuple[list[_QueuedUpdate], int]:
        chosen: list[_QueuedUpdate] = []
        misfits = 0
        for level in self._levels:
            for queued in level.values():
                if queued.is_alive and queued.subject == receiver:
                    continue
                if queued.size_bytes > budget_bytes:
                    misfits += 1
                    if misfits > _MISFITS_LIMIT:
                        return chosen, budget_bytes
                    continue
                budget_bytes -= queued.size_bytes
                chosen.append(queued)
                if budget_bytes < _VERDICT_BYTES:
                    return chosen, budget_bytes
        return chosen, budget_bytes


def notice(entry: MemberRecord, own_id: NodeId) -> Update:
    """Return this node's verdict about a member as an update, for the member itself or for others."""
    if entry.status is Status.ALIVE:
        return AliveUpdate(entry.info)
    if entry.status is Status.LEFT:
        return VerdictUpdate(entry.node_id, entry.incarnation, Status.LEFT, entry.node_id, entry.departure)
    return VerdictUpdate(entry.node_id, entry.incarnation, entry.status, own_id)


class Piggyback:
    """Fills payloads from the queue, the user messages and the directory."""

    def __init__(
        self, context: Context, updates: UpdateQueue, user_events: UserEvents, keyring: KeyringExchange
    ) -> None:
        self._context = context
        self._updates = updates
        self._user_events = user_events
        self._keyring = keyring

    def ping_payload(self, entry: MemberRecord | None, first: tuple[Update, ...] = ()) -> Payload:
        """Return the payload of a ping to `entry`."""
        return self._payload(entry, list(first), [], ())

    def relayed_payload(self, entry: MemberRecord) -> Payload:
        """Return the payload of a ping that helpers relay: only the notice, to save bandwidth of the helpers."""
        updates = (notice(entry, self._context.local.node_id),) if self._is_owed_notice(entry) else ()
        return Payload(updates, self._context.local.info.capacity, len(self._context.members.links))

    def ack_payload(self, entry: MemberRecord | None, updates: list[Update]) -> Payload:
        """Return the payload of an ack to `entry`, which begins with `updates`."""
        receiver = None if entry is None else entry.node_id
        remembered = self._remembered(receiver) if self._context.members.has_tombstones else []
        return self._payload(entry, updates, remembered, self._sample(receiver))

    def welcome_sample(self, receiver: NodeId, first: tuple[NodeInfo, ...] = ()) -> tuple[NodeInfo, ...]:
        """Return the members named in a JoinAck, in addition to this node's own description."""
        budget = self._context.options.payload_budget_bytes - info_bytes(self._context.local.info)
        named = {info.node_id for info in first}
        others = [entry for entry in self._sample(receiver) if entry.node_id not in named]
        return (*first, *_fitting(others, budget - sum(map(info_bytes, first))))

    def _payload(
        self,
        entry: MemberRecord | None,
        updates: list[Update],
        remembered: list[Update],
        sample: Sequence[MemberRecord],
    ) -> Payload:
        """Fill a payload; reserve room for `remembered`, which a constant flow of updates could otherwise displace."""
        context = self._context
        receiver = None
        if entry is not None:
            receiver = entry.node_id
            if entry.status is not Status.ALIVE and not updates and self._is_owed_notice(entry):
                updates.append(notice(entry, context.local.node_id))
        budget = context.options.payload_budget_bytes
        for update in [*updates, *remembered] if updates or remembered else ():
            budget -= update_bytes(update)
        members = context.members
        if self._updates.queued:
            taken, budget = self._updates.take(budget, members.group_size, receiver)
            updates.extend([update for update in taken if update not in updates] if updates else taken)
        user_messages: tuple[UserMessage, ...] = ()
        if self._user_events.queue:
            user_messages, budget = self._user_events.take(budget, members.group_size, receiver)
        updates.extend(remembered)
        return Payload(
            tuple(updates),
            context.local.info.capacity,
            len(members.links),
            _fitting(sample, budget) if sample else (),
            user_messages,
            self._keyring.digest,
        )

    def _is_owed_notice(self, entry: MemberRecord) -> bool:
        if entry.status is Status.SUSPECT:
            return self._context.options.buddy_notice
        return entry.status is not Status.ALIVE

    def _sample(self, receiver: NodeId | None) -> list[MemberRecord]:
        """Return the members to name. An overlay names only members whose messages this node received recently."""
        options, members = self._context.options, self._context.members
        if options.overlay:
            return members.vouched(options.sample_size, self._context.now - options.directory_age_ms, receiver)
        return members.sample(options.sample_size, Status.ALIVE, receiver)

    def _remembered(self, receiver: NodeId | None) -> list[Update]:
        """Return one dead and one departed member, for members that missed the update.

        The dead member is sent as suspect. A receiver that records it as alive may be right, for example after a healed
        partition. As a suspect, the member has time to refute before half of the group declares it dead.
        """
        members, own_id = self._context.members, self._context.local.node_id
        updates: list[Update] = [notice(entry, own_id) for entry in members.sample(1, Status.LEFT, receiver)]
        updates.extend(
            VerdictUpdate(entry.node_id, entry.incarnation, Status.SUSPECT, own_id)
            for entry in members.sample(1, Status.DEAD, receiver)
        )
        return updates


def _fitting(entries: Sequence[MemberRecord], budget_bytes: int) -> tuple[NodeInfo, ...]:
    chosen: list[NodeInfo] = []
    for entry in entries:
        size_bytes = entry.size_bytes
        if size_bytes <= budget_bytes:
            chosen.append(entry.info)
            budget_bytes -= size_bytes
    return tuple(chosen)
