"""How long until all members know, and that no living member is declared dead.

A tenth of the group crashes in one moment. A crash is over when every surviving member holds it for dead: first
detection, the suspicion that a living member would have refuted, and the gossip that carries the verdict, together.
SWIM's bound is a multiple of log N periods; loss stretches it, since local health makes members slower to judge.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import log2

from gossip.core.effects import Effect, MembershipChanged
from gossip.core.member import NodeId, Status
from gossip.core.options import SwimOptions
from tests.simulation.gossip_experiments.formed import form, next_period
from tests.simulation.gossip_network import GossipNetwork, Node

WITHOUT_LOSS = 6
AT_HALF_LOSS = 18
"""Known to everyone within this many times log2 N periods."""

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class MassCrash:
    """When each of the crashed was known to be dead by every survivor, in periods since the crash (None: never)."""

    size: int
    loss: float
    known_everywhere: tuple[float | None, ...]
    missing: int
    """How many survivors had not heard of how many of the crashed at the bound, added up."""
    false_deaths: int
    messages_per_member_and_period: float

    @property
    def slowest(self) -> float | None:
        """When the last of them was known everywhere; None if one was not."""
        times = [time for time in self.known_everywhere if time is not None]
        return max(times) if len(times) == len(self.known_everywhere) else None

    @property
    def per_log2_size(self) -> float | None:
        """The slowest, in units of log2 N periods."""
        return None if self.slowest is None else self.slowest / log2(self.size)


def mass_crash(
    size: int, loss: float, random_seed: int, options: SwimOptions | None = None, progress: Progress | None = None
) -> MassCrash:
    """A tenth of the group crashes at once."""
    network = GossipNetwork(random_seed, options, loss=loss)
    period_ms = network.options.probe_period_ms
    nodes = form(network, size)
    network.run(2 * period_ms)
    victims = network.random.sample(nodes, size // 10)
    names = {victim.node_id for victim in victims}
    holding: defaultdict[NodeId, set[int]] = defaultdict(set)
    complete: dict[NodeId, int] = {}
    false_deaths = 0
    survivors = size - len(victims)

    def watch(observer: Node, effect: Effect) -> None:
        nonlocal false_deaths
        if not isinstance(effect, MembershipChanged) or effect.status is not Status.DEAD:
            return
        subject = effect.info.node_id
        if subject not in names:
            false_deaths += 1
            return
        holding[subject].add(observer.number)
        if len(holding[subject]) == survivors:
            complete.setdefault(subject, network.now)

    begin = next_period(network)
    network.run(begin - network.now - 1)
    for victim in victims:
        network.kill(victim)
    network.watch = watch
    sent_before = network.messages_sent
    limit = round((AT_HALF_LOSS if loss > 0 else WITHOUT_LOSS) * log2(size)) + 1
    elapsed = 0
    while elapsed < limit and len(complete) < len(victims):
        network.run(period_ms)
        elapsed += 1
        if progress is not None:
            progress(elapsed / limit)
    return MassCrash(
        size,
        loss,
        tuple(
            (complete[victim.node_id] - begin) / period_ms if victim.node_id in complete else None for victim in victims
        ),
        sum(survivors - len(holding[name]) for name in names),
        false_deaths,
        (network.messages_sent - sent_before) / survivors / elapsed,
    )


@dataclass(frozen=True, slots=True)
class Steadiness:
    """What a group without a single crash thought happened."""

    size: int
    periods: int
    loss: float
    accusations: int
    suspicions: int
    deaths: int


def without_a_crash(
    size: int, periods: int, loss: float, random_seed: int, progress: Progress | None = None
) -> Steadiness:
    """Let a group run under loss, and count suspicions (at their accuser, and everywhere) and deaths."""
    network = GossipNetwork(random_seed, loss=loss)
    form(network, size)
    suspected: set[tuple[NodeId, object]] = set()
    suspicions = deaths = 0

    def watch(_: Node, effect: Effect) -> None:
        nonlocal suspicions, deaths
        if isinstance(effect, MembershipChanged):
            deaths += effect.status is Status.DEAD
            if effect.status is Status.SUSPECT:
                suspicions += 1
                suspected.add((effect.info.node_id, effect.info.incarnation))

    network.watch = watch
    for period in range(periods):
        network.run(network.options.probe_period_ms)
        if progress is not None:
            progress((period + 1) / periods)
    return Steadiness(size, periods, loss, len(suspected), suspicions, deaths)
