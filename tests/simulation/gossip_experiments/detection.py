"""How long until somebody notices, and what watching costs (SWIM paper, sections 3.1 and 5.2).

A member is probed by each of the N - 1 others once per pass, at a random place of the pass. The chance that no probe
falls on it in one period tends to 1/e, so the first detection takes e/(e - 1) = 1.582 periods on average, whatever N.

    period k-1 │ crash │ period k: pings go unanswered ... │ end of k: first suspicion     counts as 1 period

At most one member in 200 is down at a time: what is measured is the detection of a crash, not of a catastrophe. The
crashed come back in their next life once they were found, so one group yields as many samples as are wanted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import e

from gossip.core.effects import Effect, MembershipChanged
from gossip.core.member import NodeId, Status
from gossip.core.tuning import Tuning
from tests.simulation.gossip_experiments.figures import Figure, mean_of
from tests.simulation.gossip_experiments.formed import form, next_period, revive
from tests.simulation.gossip_network import GossipNetwork, Node

EXPECTED_PERIODS = e / (e - 1)
_DOWN_AT_ONCE = 200
_DETECTION_LIMIT_PERIODS = 60
PIGGYBACK_ONLY_MS = 1_000_000_000
"""A gossip period that never comes: news rides on probes alone, as in SWIM's paper."""

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Detection:
    """Periods from each crash until the first other member suspected it."""

    size: int
    periods: tuple[float, ...]

    @property
    def mean(self) -> Figure:
        """Their mean."""
        return mean_of(self.periods)


def first_detections(size: int, samples: int, random_seed: int, progress: Progress | None = None) -> Detection:
    """Crash members just before a period begins and wait for the first suspicion, again and again."""
    tuning = replace(Tuning.lan(), gossip_period_ms=PIGGYBACK_ONLY_MS)
    network = GossipNetwork(random_seed, tuning)
    nodes = form(network, size)
    found: dict[NodeId, int] = {}

    def watch(_: Node, effect: Effect) -> None:
        if isinstance(effect, MembershipChanged) and effect.status is Status.SUSPECT:
            found.setdefault(effect.info.node_id, network.now)

    network.watch = watch
    order: list[Node] = []
    periods: list[float] = []
    network.run(2 * tuning.probe_period_ms)
    while len(periods) < samples:
        if len(order) < max(1, size // _DOWN_AT_ONCE):
            order = network.random.sample(nodes, size)
        victims = [order.pop() for _ in range(max(1, size // _DOWN_AT_ONCE))]
        periods += _crash(network, nodes, victims, found)
        if progress is not None:
            progress(min(len(periods) / samples, 1.0))
    return Detection(size, tuple(periods[:samples]))


def _crash(network: GossipNetwork, nodes: list[Node], victims: list[Node], found: dict[NodeId, int]) -> list[float]:
    period_ms = network.tuning.probe_period_ms
    begin = next_period(network)
    network.run(begin - network.now - 1)
    for victim in victims:
        network.kill(victim)
        found.pop(victim.node_id, None)
    down = list(victims)
    for _ in range(_DETECTION_LIMIT_PERIODS):
        network.run(period_ms)
        for victim in [victim for victim in down if victim.node_id in found]:
            down.remove(victim)
            revive(network, victim, [node for node in nodes if node is not victim and node.swim is not None])
        if not down:
            return [(found[victim.node_id] - begin) / period_ms for victim in victims]
    raise AssertionError(f"random seed {network.random_seed}: a crash was not noticed")


@dataclass(frozen=True, slots=True)
class Load:
    """What a quiet group sends."""

    size: int
    probe_messages: float
    all_messages: float


def quiet_load(size: int, periods: int, random_seed: int) -> Load:
    """Messages per member and period while nothing happens, with the production preset."""
    network = GossipNetwork(random_seed)
    nodes = form(network, size)
    network.run(3 * network.tuning.probe_period_ms)

    def probe_messages() -> int:
        return sum(node.core._outbox.sent[kind] for node in nodes for kind in ("PingRequest", "PingResponse"))

    probes_before, all_before = probe_messages(), network.messages_sent
    network.run(periods * network.tuning.probe_period_ms)
    shares = size * periods
    return Load(size, (probe_messages() - probes_before) / shares, (network.messages_sent - all_before) / shares)
