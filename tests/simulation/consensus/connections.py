"""Connections with replies in the order of their requests, as on the Garlic Farm wire and on Kafka's.

    request ──in order──▶ slot ──▶ processed ──▶ the slot's reply is known ──replies leave in slot order──▶ asker

A server sends requests to each other server over its own connections. Compared with separate messages, two things are
worse: an unknown reply delays all later replies, and a late message delays the following ones. Two are better: nothing
is overtaken, and nothing arrives twice. A connection breaks when the link is cut, when either end stops, or when the
oldest request has waited too long for its reply. Everything in transit is lost then. After a pause, the next request
opens another connection. A reply belongs to the connection of its request, and is lost with it.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Generic, Protocol, TypeVar

from consensus.core.messages import AppendEntries, Message, Reply, Request
from consensus.core.model import ServerId

_SLOTS_MAX = 64
"""Requests without a reply on one connection; further ones are dropped, as by a link with a full queue."""
_OWING_MS = 50
_OVERTAKING_MS = 20
"""The delays of production links, see `LinkOptions`."""
_RECONNECT_MS = 30
_RETRANSMISSION_MS = 150
_RESETS = 0.3
"""The fraction of lost packets that end their connection."""


class Wiring(Enum):
    """The kinds of messages that share a connection."""

    MESSAGES = "messages"
    """No shared connection: each message is delayed, lost or duplicated separately."""
    ONE = "one connection"
    """All requests of one server to another share one connection."""
    HEARTBEATS_APART = "heartbeats apart"
    """Heartbeats use a second connection, as between production servers, while a reply on the first is overdue."""


class Way(Protocol):
    """The network below the connections."""

    @property
    def now(self) -> int:
        """Return simulated time in milliseconds."""

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` in `delay_ms`."""

    def reaches(self, sender: ServerId, recipient: ServerId) -> bool:
        """Return True if the link from `sender` to `recipient` is open."""

    def draw_delay_ms(self) -> int:
        """Return the delay of the next message."""

    def draw_loss(self) -> bool:
        """Return True if the next message is lost in transit."""

    def deliver(self, sender: ServerId, recipient: ServerId, message: Message) -> bool:
        """Deliver a message; return False if the recipient is down."""


class Breakable(Protocol):
    """A connection of `TcpConnections`."""

    is_broken: bool


C = TypeVar("C", bound=Breakable)


class TcpConnections(ABC, Generic[C]):
    """The delays, losses and ends of connections that carry the frames of another protocol."""

    def __init__(self, random: Random, way: Way) -> None:
        self._random = random
        self._way = way
        self.lost = 0
        self.broken = 0
        self.repeated = 0

    @abstractmethod
    def _is_up(self, server: ServerId) -> bool:
        """Return True if a server runs."""

    @abstractmethod
    def _break(self, connection: C) -> None:
        """End a connection."""

    def _is_whole(self, connection: C, sender: ServerId, recipient: ServerId) -> bool:
        """Return True if a message arrives; break a connection that cannot deliver it."""
        if connection.is_broken:
            self.lost += 1
            return False
        if not self._way.reaches(sender, recipient) or not self._is_up(recipient):
            self.lost += 1
            self._break(connection)
            return False
        return True

    def _arrival_ms(self, connection: C, not_before_ms: int) -> int:
        """Return the arrival time of a message sent now.

        A lost packet is sent again and delays all later ones, or the connection ends.
        """
        delay_ms = self._way.draw_delay_ms()
        if self._way.draw_loss():
            delay_ms += self._random.randrange(_RETRANSMISSION_MS)
            if self._random.random() < _RESETS:
                self._way.after(delay_ms // 2, lambda: self._break(connection))
        return max(not_before_ms, self._way.now + delay_ms)

    def _at(self, moment_ms: int, action: Callable[[], None]) -> None:
        self._way.after(moment_ms - self._way.now, action)


@dataclass(slots=True, eq=False)
class _Slot:
    correlation: int
    requested_ms: int
    reply: Reply | None = None


@dataclass(slots=True, eq=False)
class _Connection:
    asker: ServerId
    answerer: ServerId
    lane: int
    slots: deque[_Slot] = field(default_factory=deque)
    requests_until_ms: int = 0
    """Arrival time of the newest request: no later request arrives earlier."""
    replies_until_ms: int = 0
    is_broken: bool = False


class Connections:
    """All connections of one history."""

    def __init__(self, random: Random, wiring: Wiring, reply_timeout_ms: int, way: Way) -> None:
        self._random = random
        self._wiring = wiring
        self._reply_timeout_ms = reply_timeout_ms
        self._way = way
        self._open: dict[tuple[ServerId, ServerId, int], _Connection] = {}
        self._unanswered: dict[tuple[ServerId, int], _Connection] = {}
        self._opens_at_ms: dict[tuple[ServerId, ServerId, int], int] = {}
        self._alive_ms: dict[tuple[ServerId, ServerId], int] = {}
        """Time of the last reply on the second connection, by asker and answerer."""
        self.lost = 0
        self.broken = 0

    def send_request(self, asker: ServerId, answerer: ServerId, request: Request) -> None:
        connection = self._connect(asker, answerer, int(self.passes_by(asker, answerer, request)))
        if connection is None or len(connection.slots) >= _SLOTS_MAX:
            self.lost += 1
            return
        slot = _Slot(request.correlation, self._way.now)
        connection.slots.append(slot)
        self._unanswered[asker, request.correlation] = connection
        connection.requests_until_ms = self._arrival_ms(connection.requests_until_ms)
        self._at(connection.requests_until_ms, lambda: self._arrive(connection, asker, answerer, request))
        self._at(self._way.now + self._reply_timeout_ms, lambda: self._check_age(connection, slot))

    def passes_by(self, asker: ServerId, answerer: ServerId, request: Request) -> bool:
        """Return True if the request uses the second connection; it never overtakes a request sent just before it."""
        first = self._open.get((asker, answerer, 0))
        is_heartbeat = isinstance(request, AppendEntries) and not request.entries
        if self._wiring is not Wiring.HEARTBEATS_APART or not is_heartbeat or first is None or not first.slots:
            return False
        oldest_ms, newest_ms = first.slots[0].requested_ms, first.slots[-1].requested_ms
        return self._way.now >= max(oldest_ms + _OWING_MS, newest_ms + _OVERTAKING_MS)

    def send_reply(self, answerer: ServerId, asker: ServerId, reply: Reply) -> None:
        """Queue a reply; it leaves after all earlier ones."""
        connection = self._unanswered.pop((asker, reply.correlation), None)
        if connection is None or connection.answerer != answerer:
            self.lost += 1
            return
        for slot in connection.slots:
            if slot.correlation == reply.correlation:
                slot.reply = reply
        while connection.slots and (known := connection.slots[0].reply) is not None:
            connection.slots.popleft()
            connection.replies_until_ms = self._arrival_ms(connection.replies_until_ms)
            self._reply_later(connection, known)

    def stopped(self, server: ServerId) -> None:
        for connection in list(self._open.values()):
            if server in (connection.asker, connection.answerer):
                self._break(connection)

    def _connect(self, asker: ServerId, answerer: ServerId, lane: int) -> _Connection | None:
        way, key = self._way, (asker, answerer, lane)
        connection = self._open.get(key)
        if connection is not None:
            return connection
        if way.now < self._opens_at_ms.get(key, 0) or not self._is_open(asker, answerer):
            return None
        connection = self._open[key] = _Connection(asker, answerer, lane)
        return connection

    def _is_open(self, one: ServerId, other: ServerId) -> bool:
        return self._way.reaches(one, other) and self._way.reaches(other, one)

    def _arrival_ms(self, not_before_ms: int) -> int:
        """Return the arrival time of a message sent now; a lost one is sent again and delays all later ones."""
        delay_ms = self._way.draw_delay_ms()
        if self._way.draw_loss():
            delay_ms += self._random.randrange(_RETRANSMISSION_MS)
        return max(not_before_ms, self._way.now + delay_ms)

    def _at(self, moment_ms: int, action: Callable[[], None]) -> None:
        self._way.after(moment_ms - self._way.now, action)

    def _reply_later(self, connection: _Connection, reply: Reply) -> None:
        answerer, asker = connection.answerer, connection.asker
        self._at(connection.replies_until_ms, lambda: self._arrive(connection, answerer, asker, reply))

    def _arrive(self, connection: _Connection, sender: ServerId, recipient: ServerId, message: Message) -> None:
        if connection.is_broken:
            self.lost += 1
        elif not self._way.reaches(sender, recipient) or not self._way.deliver(sender, recipient, message):
            self.lost += 1
            self._break(connection)
        elif connection.lane and recipient == connection.asker:
            self._alive_ms[connection.asker, connection.answerer] = self._way.now

    def _check_age(self, connection: _Connection, slot: _Slot) -> None:
        """Break a connection whose reply is overdue, unless the other end replies on the second one."""
        if connection.is_broken or not any(waiting is slot for waiting in connection.slots):
            return
        alive_ms = self._alive_ms.get((connection.asker, connection.answerer), -self._reply_timeout_ms)
        if self._way.now < alive_ms + self._reply_timeout_ms:
            self._at(alive_ms + self._reply_timeout_ms, lambda: self._check_age(connection, slot))
        else:
            self._break(connection)

    def _break(self, connection: _Connection) -> None:
        if connection.is_broken:
            return
        key = (connection.asker, connection.answerer, connection.lane)
        connection.is_broken = True
        del self._open[key]
        for slot in connection.slots:
            self._unanswered.pop((connection.asker, slot.correlation), None)
        self.lost += len(connection.slots)
        self.broken += 1
        self._opens_at_ms[key] = self._way.now + self._random.randrange(_RECONNECT_MS)
