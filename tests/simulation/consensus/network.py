"""The network between simulated servers: cuts (also one-way), loss, duplication, delay and reordering.

In some worlds messages use connections (`connections`), which preserve order: a reply waits for all earlier ones.
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

from msgspec.structs import replace

from consensus.core.events import AppendNotSent
from consensus.core.messages import AppendEntries, BeginQuorumEpoch, FetchReply, Message, Reply, RequestVote, VoteReply
from consensus.core.model import ServerId
from tests.simulation.consensus.connections import Connections, Way, Wiring
from tests.simulation.consensus.kafka_links import KafkaLinks
from tests.simulation.consensus.profile import Profile, place_of
from tests.simulation.consensus.zmq_sockets import ZmqSockets

_LONG_DELAY_MS = 600
_LATE_WORD_MS = 120

Sockets = ZmqSockets | KafkaLinks
"""The transport of messages on a protocol's wire."""


class Timeline(Protocol):
    """The world's clock and its schedule of actions."""

    @property
    def now(self) -> int:
        """Return simulated time in milliseconds."""

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` in `delay_ms`."""


class Network:
    """Decides for each message when it arrives, if at all, and how often."""

    def __init__(
        self,
        random: Random,
        profile: Profile,
        timeline: Timeline,
        deliver: Callable[[ServerId, ServerId, Message], bool],
        keep_back: Callable[[ServerId, AppendNotSent], None],
        open_sockets: Callable[[Way], Sockets] | None = None,
    ) -> None:
        """Create the network.

        `deliver` delivers a message immediately; it returns False if the recipient is down. `keep_back` informs a
        sender that its append never left, because a newcomer is not yet ready for it. With `open_sockets`, all messages
        use the wire of a protocol.
        """
        self._random = random
        self._profile = profile
        self._timeline = timeline
        self._cut: set[tuple[ServerId, ServerId]] = set()
        self._healthy = False
        self._deliver = deliver
        self._keep_back = keep_back
        self._garbled_until_ms: dict[ServerId, int] = {}
        self.connections = Connections(random, profile.wiring, profile.reply_timeout_ms, self)
        self._sockets = open_sockets(self) if open_sockets is not None else None
        self._lost = 0
        self.duplicated = 0

    @property
    def now(self) -> int:
        """Return simulated time in milliseconds."""
        return self._timeline.now

    @property
    def lost(self) -> int:
        """Return the number of messages that never arrived."""
        return self._lost + self.connections.lost + (self._sockets.lost if self._sockets else 0)

    @property
    def broken(self) -> int:
        return self.connections.broken + (self._sockets.broken if self._sockets else 0)

    @property
    def repeated(self) -> int:
        """Return the number of repeated messages."""
        return self._sockets.repeated if self._sockets else 0

    def stopped(self, server: ServerId) -> None:
        """Break the connections of a stopped server."""
        self.connections.stopped(server)
        if self._sockets is not None:
            self._sockets.stopped(server)

    def members_changed(self, server: ServerId, members: frozenset[ServerId]) -> None:
        """Close a server's connections to former members."""
        if self._sockets is not None:
            self._sockets.keep_members(server, members)

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._timeline.after(delay_ms, action)

    def send(self, sender: ServerId, recipient: ServerId, message: Message) -> None:
        """Send a message; cuts apply when it leaves and when it would arrive."""
        if self._sockets is not None:
            if isinstance(message, Reply):
                self._sockets.send_reply(sender, recipient, message)
            else:
                self._sockets.send_request(sender, recipient, message)
        elif isinstance(message, AppendEntries) and self._is_unready(sender, recipient):
            kept = AppendNotSent(recipient, message.correlation, 1)
            self.after(1, lambda: self._keep_back(sender, kept))
        elif self._profile.wiring is Wiring.MESSAGES:
            self.send_alone(sender, recipient, message)
        elif isinstance(message, Reply):
            self.connections.send_reply(sender, recipient, message)
        else:
            self.connections.send_request(sender, recipient, message)

    def send_alone(self, sender: ServerId, recipient: ServerId, message: Message) -> None:
        """Send a message without a connection."""
        if not self.reaches(sender, recipient) or self.draw_loss():
            self._lost += 1
            return
        copies = 1
        if not self._healthy and self._random.random() < self._profile.duplication:
            copies = 2
            self.duplicated += 1
        for _ in range(copies):
            late_ms = self._random.randrange(_LATE_WORD_MS) if self._is_late(message) else 0
            self.after(late_ms + self.draw_delay_ms(), lambda: self._arrive(sender, recipient, message))

    def deliver(self, sender: ServerId, recipient: ServerId, message: Message) -> bool:
        """Deliver a message; return False if the recipient is down."""
        if isinstance(message, AppendEntries) and self.now < self._garbled_until_ms.get(sender, 0):
            message = replace(message, commit=-1)
        return self._deliver(sender, recipient, message)

    def garble(self, sender: ServerId, duration_ms: int) -> None:
        """Make the appends of `sender` implausible for a while, like appends of another implementation."""
        self._garbled_until_ms[sender] = self.now + duration_ms

    def reaches(self, sender: ServerId, recipient: ServerId) -> bool:
        """Return True if the link from `sender` to `recipient` is open."""
        return (sender, recipient) not in self._cut

    def cut_at_random(self, servers: list[ServerId]) -> str:
        """Replace the cuts by a partition in two, by one-way cuts, or by servers that only receive or only send."""
        kind = self._random.choice(("halves", "one-way", "deaf", "mute"))
        chosen = set(self._random.sample(servers, self._random.randint(1, max(1, len(servers) // 2))))
        pairs = [(one, other) for one in servers for other in servers if one != other]
        match kind:
            case "halves":
                self._cut = {(one, other) for one, other in pairs if (one in chosen) != (other in chosen)}
            case "one-way":
                self._cut = {pair for pair in pairs if self._random.random() < 0.3}
            case "deaf":
                self._cut = {(one, other) for one, other in pairs if other in chosen}
            case _:
                self._cut = {(one, other) for one, other in pairs if one in chosen}
        return f"{kind} {sorted(self._cut)}"

    def cut_off(self, server: ServerId, servers: list[ServerId]) -> str:
        """Cut `server` off from some of the others, in one direction or both; other cuts remain."""
        others = [other for other in servers if other != server]
        chosen = self._random.sample(others, self._random.randint(0, len(others)))
        direction = self._random.choice(("from", "to", "both", "both"))
        if direction != "to":
            self._cut |= {(server, other) for other in chosen}
        if direction != "from":
            self._cut |= {(other, server) for other in chosen}
        return f"{server} {direction} {sorted(chosen)}"

    def isolate(self, server: ServerId, servers: list[ServerId]) -> str:
        """Cut `server` off from all others, in both directions; other cuts remain."""
        others = [other for other in servers if other != server]
        self._cut |= {(server, other) for other in others} | {(other, server) for other in others}
        return f"{server}"

    def repair(self) -> None:
        """Open every link; loss and delay continue."""
        self._cut.clear()

    def heal(self) -> None:
        """Deliver every message soon and once from now on."""
        self.repair()
        self._garbled_until_ms.clear()
        self._healthy = True

    def draw_loss(self) -> bool:
        """Return True if the next message is lost in transit."""
        return not self._healthy and self._random.random() < self._profile.loss

    def draw_delay_ms(self) -> int:
        """Return the delay of the next message."""
        if self._healthy:
            return 1 + self._random.randrange(3)
        if self._random.random() < self._profile.long_delay:
            return self._random.randrange(_LONG_DELAY_MS)
        return 1 + self._random.randrange(self._profile.max_delay_ms)

    def _is_late(self, message: Message) -> bool:
        is_word = isinstance(message, RequestVote | VoteReply | BeginQuorumEpoch) or (
            isinstance(message, FetchReply) and message.error is not None
        )
        share = self._profile.late_messages
        return is_word and share > 0 and not self._healthy and self._random.random() < share

    def _is_unready(self, sender: ServerId, recipient: ServerId) -> bool:
        """Return True if a link holds back appends to a newcomer that has not answered its invitation."""
        is_newcomer = place_of(recipient) > self._profile.servers and self._profile.wiring is not Wiring.MESSAGES
        return is_newcomer and not self.reaches(sender, recipient)

    def _arrive(self, sender: ServerId, recipient: ServerId, message: Message) -> None:
        if self.reaches(sender, recipient):
            self.deliver(sender, recipient, message)
