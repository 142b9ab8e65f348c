"""User events: messages of applications to every member. Queries travel the same way; both are *user messages* here.

    send ──▶ [user message] ──in pings and acks, m * log n times──▶ received once by each member, and gossiped further

A user message is named by (Lamport time, origin, generation). The time orders messages if one could have caused the
other, and it bounds memory. When the oldest recorded name is dropped, its time becomes the floor: messages up to the
floor are ignored. Without a floor, a full list of names would accept old messages as new.
docs/reference/gossip-protocol.md ("Decisions") has the rules for the floor. A node that has just started does not have
a floor, so it ignores messages until a join has delivered the group's clock. It takes the clock from the reply
(JoinAck) to its own join request (JoinReq), or from another node's JoinReq with a fresh token. It ignores a replayed
JoinAck, because such a JoinAck names an earlier generation. A member that receives a message well below its floor sends
the event `gossip:clock`.

Acks also carry a sample of the members, which repairs a missed update about a member. A missed user message is not
repaired, so m (`user_message_retransmit_multiplier`) is twice the multiplier for updates.

User messages are not signed: a holder of the farm's key can send them in any member's name, and can send false claims
about members. The queue and the record of names are bounded; a full queue drops the most frequently sent message.
"""

from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from math import ceil, log10
from typing import Final

from msgspec import Struct, structs

from gossip.core.effects import Context
from gossip.core.keyring import ClockBound
from gossip.core.member import NodeId
from gossip.core.messages import (
    BODY_LIMIT_BYTES,
    NAME_LIMIT_CHARACTERS,
    DropReason,
    UserEvent,
    UserMessage,
    UserMessageId,
)

CLOCK_EVENT: Final = "gossip:clock"
"""The name of an event that carries only its own time; applications do not receive it."""

_CLOCK_EVENT_EVERY_MS: Final = 10_000
_MESSAGE_BASE_BYTES: Final = 64


def broken_limit(name: str, body: bytes) -> str | None:
    """Return the rule that a name or a body breaks; None if both are valid."""
    if not 0 < len(name) <= NAME_LIMIT_CHARACTERS:
        return f"the name of a user event or query has 1 to {NAME_LIMIT_CHARACTERS} characters, not {len(name)}"
    if not name.isprintable():
        return f"the name of a user event or query has printable characters only: {name!a} has others"
    if len(body) > BODY_LIMIT_BYTES:
        return f"the payload of a user event or query has at most {BODY_LIMIT_BYTES} bytes, not {len(body)}"
    return None


class _QueuedMessage(Struct):
    message: UserMessage
    sender: NodeId
    """The node that sent the message to this node. This node does not send the message back to that node."""
    size_bytes: int
    sent: int = 0


class UserEvents:
    """The user messages still to gossip, and the recently received ones."""

    def __init__(self, context: Context, clock_bound: ClockBound) -> None:
        self._context = context
        self._options = context.options
        self._clock_bound = clock_bound
        self._clock_event_at = 0
        self.clock = 0
        self._floor: int | None = None
        self.queue: dict[UserMessageId, _QueuedMessage] = {}
        self._received: set[UserMessageId] = set()
        self._received_by_age: list[UserMessageId] = []

    # -- messages of this node -----------------------------------------------------------------------------------------

    def next_id(self, name: str, body: bytes) -> UserMessageId:
        """Return the id for this node's next message; raise ValueError if its name or body breaks a rule."""
        broken = broken_limit(name, body)
        if broken is not None:
            raise ValueError(broken)
        self.clock += 1
        return UserMessageId(self.clock, self._context.local.node_id, self._context.local.incarnation.generation)

    def send(self, message: UserMessage) -> None:
        """Gossip a message of this node."""
        self._enqueue(message, self._context.local.node_id)

    def send_event(self, name: str, body: bytes) -> None:
        """Gossip a user event."""
        self.send(UserEvent(self.next_id(name, body), name, body))

    def sync_clock(self, clock: int) -> dict[UserMessageId, UserMessageId]:
        """Adopt the group's clock from a join, to accept later messages. Return changed ids, by their old ids."""
        if not 0 <= clock <= self._clock_bound.at(self._context.now):
            self._context.drop(DropReason.BAD_USER_MESSAGE)
            return {}
        self.clock = max(self.clock, clock)
        if self._floor is not None:
            return {}
        self._floor = clock
        # Messages that this node queued before it knew the clock are below the floor of other members, and get new ids.
        renamed: dict[UserMessageId, UserMessageId] = {}
        own_id = self._context.local.node_id
        for early in [each for each in self.queue.values() if each.sent == 0 and each.sender == own_id]:
            old = early.message.message_id
            del self.queue[old]
            self.clock += 1
            renamed[old] = structs.replace(old, time=self.clock)
            self.send(structs.replace(early.message, message_id=renamed[old]))
        return renamed

    # -- messages of other nodes ---------------------------------------------------------------------------------------

    def receive(self, messages: tuple[UserMessage, ...], sender: NodeId) -> list[UserMessage]:
        """Handle the messages in a ping or ack of `sender`. Return the new messages for applications."""
        new: list[UserMessage] = []
        latest = self._clock_bound.at(self._context.now)
        for message in messages:
            time = message.message_id.time
            if broken_limit(message.name, message.body) is not None or not 0 < time <= latest:
                self._context.drop(DropReason.BAD_USER_MESSAGE)
            elif self._floor is None:
                self._context.drop(DropReason.USER_MESSAGE_BEFORE_JOIN)
            else:
                self.clock = max(self.clock, time)
                if self._is_new(message.message_id, self._floor):
                    self._remember(message.message_id)
                    self._enqueue(message, sender)
                    if message.name != CLOCK_EVENT:
                        new.append(message)
                    else:
                        self._clock_event_at = self._context.now + _CLOCK_EVENT_EVERY_MS
                elif time < self._floor - self._options.user_messages_remembered:
                    self._send_clock()
        return new

    def _send_clock(self) -> None:
        """Gossip the clock for a member whose clock is so low that this node ignores its new messages."""
        if self._context.now >= self._clock_event_at:
            self._clock_event_at = self._context.now + _CLOCK_EVENT_EVERY_MS
            self.send_event(CLOCK_EVENT, b"")

    def _is_new(self, message_id: UserMessageId, floor: int) -> bool:
        is_own = message_id.origin == self._context.local.node_id
        return message_id.time > floor and message_id not in self._received and not is_own

    def _remember(self, message_id: UserMessageId) -> None:
        self._received.add(message_id)
        heappush(self._received_by_age, message_id)
        if len(self._received) > self._options.user_messages_remembered:
            oldest = heappop(self._received_by_age)
            self._received.remove(oldest)
            self._floor = max(self._floor or 0, oldest.time)

    # -- gossip --------------------------------------------------------------------------------------------------------

    def _enqueue(self, message: UserMessage, sender: NodeId) -> None:
        if len(self.queue) >= self._options.user_messages_limit:
            most_sent = max(self.queue.values(), key=lambda each: each.sent)
            del self.queue[most_sent.message.message_id]
        size_bytes = _MESSAGE_BASE_BYTES + len(message.name) + len(message.body)
        self.queue[message.message_id] = _QueuedMessage(message, sender, size_bytes)

    def drop_known(self, peers: AbstractSet[NodeId]) -> None:
        """Drop the messages that every peer already has, as sender or origin; otherwise they would stay queued."""
        for message_id, each in list(self.queue.items()):
            if peers <= {each.sender, message_id.origin}:
                del self.queue[message_id]

    def take(self, budget_bytes: int, group_size: int, receiver: NodeId | None) -> tuple[tuple[UserMessage, ...], int]:
        """Return the least sent messages for a member, and the remaining budget."""
        limit = self._options.user_message_retransmit_multiplier * ceil(log10(group_size + 1))
        taken: list[UserMessage] = []
        for each in sorted(self.queue.values(), key=lambda each: each.sent):
            message = each.message
            knows = receiver is not None and receiver in {each.sender, message.message_id.origin}
            if each.size_bytes > budget_bytes or knows:
                continue
            budget_bytes -= each.size_bytes
            taken.append(message)
            each.sent += 1
            if each.sent >= limit:
                del self.queue[message.message_id]
        return tuple(taken), budget_bytes
