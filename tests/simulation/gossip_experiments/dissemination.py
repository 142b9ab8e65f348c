"""The time until all members know of a crash, and the absence of false deaths.

A tenth of the group crashes at one moment. A crash is complete when every surviving member has marked the member dead.
The time until then includes the first detection, the suspicion that a running member would have refuted, and the gossip
of the verdict. SWIM's bound is a multiple of log N periods. Loss extends this time, because local health makes members
slower to judge.
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
"""Bound on the time until every member knows, in units of log2 N periods."""

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class MassCrash:
    """Periods from the crash until every survivor knew of it, for each crashed member (None: never)."""

    size: int
    loss: float
    known_everywhere: tuple[float | None, ...]
    missing: int
    """Pairs of a survivor and a crashed member that it did not know to be dead at the bound."""
    false_deaths: int
    messages_per_member_and_period: float

    @property
    def slowest(self) -> float | None:
        """Return the time until the last crash was known everywhere; None if one was not."""
        times = [time for time in self.known_everywhere if time is not None]
        return max(times) if len(times) == len(self.known_everywhere) else None


def mass_crash(
    size: int, loss: float, random_seed: int, options: SwimOptions | None = None, progress: Progress | None = None
) -> MassCrash:
    """Crash a tenth of the group together."""
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
    """Suspicions and deaths in a group without a crash."""

    size: int
    periods: int
    loss: float
    accusations: int
    suspicions: int
    deaths: int


def without_a_crash(
    size: int, periods: int, loss: float, random_seed: int, progress: Progress | None = None
) -> Steadiness:
    """Run a group under loss; count suspicions (at their accuser, and everywhere) and deaths."""
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
