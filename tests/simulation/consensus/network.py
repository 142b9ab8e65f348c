"""The network between simulated servers: cuts (also one-way), loss, duplication, delay and hence reordering."""

from collections.abc import Callable
from random import Random

from consensus.core.messages import Message
from consensus.core.model import ServerId
from tests.simulation.consensus.profile import Profile

_LONG_DELAY_MS = 600


class Network:
    """Decides for each message when it arrives, if at all, and how often."""

    def __init__(
        self,
        random: Random,
        profile: Profile,
        deliver_later: Callable[[int, ServerId, ServerId, Message], None],
    ) -> None:
        self._random = random
        self._profile = profile
        self._deliver_later = deliver_later
        self._cut: set[tuple[ServerId, ServerId]] = set()
        self._healthy = False
        self.lost = 0
        self.duplicated = 0

    def send(self, sender: ServerId, recipient: ServerId, message: Message) -> None:
        """A message leaves `sender`; cuts count when it leaves and when it would arrive."""
        if self._healthy:
            self._deliver_later(1 + self._random.randrange(3), sender, recipient, message)
            return
        if not self.reaches(sender, recipient) or self._random.random() < self._profile.loss:
            self.lost += 1
            return
        copies = 1
        if self._random.random() < self._profile.duplication:
            copies = 2
            self.duplicated += 1
        for _ in range(copies):
            self._deliver_later(self._delay_ms(), sender, recipient, message)

    def reaches(self, sender: ServerId, recipient: ServerId) -> bool:
        """Whether the way from `sender` to `recipient` is open."""
        return (sender, recipient) not in self._cut

    def cut_at_random(self, servers: list[ServerId]) -> str:
        """Replace the cuts by a partition in two, by one-way cuts, or by a server that only hears or only speaks."""
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
        """Cut `server` off from some of the others, in one direction or both; other cuts stay."""
        others = [other for other in servers if other != server]
        chosen = self._random.sample(others, self._random.randint(0, len(others)))
        direction = self._random.choice(("from", "to", "both", "both"))
        if direction != "to":
            self._cut |= {(server, other) for other in chosen}
        if direction != "from":
            self._cut |= {(other, server) for other in chosen}
        return f"{server} {direction} {sorted(chosen)}"

    def isolate(self, server: ServerId, servers: list[ServerId]) -> str:
        """Cut `server` off from all others, in both directions; other cuts stay."""
        others = [other for other in servers if other != server]
        self._cut |= {(server, other) for other in others} | {(other, server) for other in others}
        return f"{server}"

    def mend(self) -> None:
        """Open every way; loss and delay go on."""
        self._cut.clear()

    def heal(self) -> None:
        """From now on everything arrives, soon and once."""
        self.mend()
        self._healthy = True

    def _delay_ms(self) -> int:
        if self._random.random() < self._profile.long_delay:
            return self._random.randrange(_LONG_DELAY_MS)
        return 1 + self._random.randrange(self._profile.max_delay_ms)
