"""A network for tests of the simulator's connections: every message arrives after 5 ms, unless the link is cut."""

import heapq
from collections.abc import Callable

from consensus.core.messages import Message
from consensus.core.model import ServerId

WAY_MS = 5


class QuietWay:
    """The links between servers, with simulated time; it records deliveries."""

    def __init__(self) -> None:
        self.now = 0
        self.is_cut = False
        self._delivered: list[Message] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` in `delay_ms`."""
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._sequence, action))

    def reaches(self, _sender: ServerId, _recipient: ServerId) -> bool:
        """Return True if the link is open."""
        return not self.is_cut

    def draw_delay_ms(self) -> int:
        """Return the same delay for every message."""
        return WAY_MS

    def draw_loss(self) -> bool:
        """Lose no message."""
        return False

    def deliver(self, _sender: ServerId, _recipient: ServerId, message: Message) -> bool:
        """Record a delivery."""
        self._delivered.append(message)
        return True

    def run(self, for_ms: int) -> list[Message]:
        """Advance the time; return the deliveries."""
        until_ms = self.now + for_ms
        self._delivered.clear()
        while self._queue and self._queue[0][0] <= until_ms:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until_ms
        return list(self._delivered)
