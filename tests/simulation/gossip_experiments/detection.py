"""How long until a member notices, and what watching costs (SWIM paper, sections 3.1 and 5.2).

A member is probed by each of the N - 1 others once per pass, at a random place of the pass. The chance that no probe
falls on it in one period tends to 1/e, so the first detection takes e/(e - 1) = 1.582 periods on average, whatever N.

    period k-1 │ crash │ period k: pings go unanswered ... │ end of k: first suspicion     counts as 1 period

One member in 100 (at least one) is down at a time: what is measured is the detection of a crash, not of a catastrophe.
As soon as one is found it comes back in its next life and another crashes, so one group yields as many samples as are
wanted. Those that are down together hardly disturb each other: nine silent members among 999 are nine probers fewer,
which makes the first detection 0.5 % later. Whether samples of one group are independent is measured as well, by the
correlation of each with the one after it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import e

from gossip.core.effects import Effect, MembershipChanged
from gossip.core.member import NodeId, Status
from gossip.core.options import SwimOptions
from tests.simulation.gossip_experiments.figures import Figure, mean_of
from tests.simulation.gossip_experiments.formed import form, next_period, revive
from tests.simulation.gossip_network import GossipNetwork, Node

EXPECTED_PERIODS = e / (e - 1)
_ONE_DOWN_IN = 100
GROUP_SAMPLES = 600
"""Samples of one group, before another with another random seed takes over."""
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
    options = replace(SwimOptions.lan(), gossip_period_ms=PIGGYBACK_ONLY_MS)
    network = GossipNetwork(random_seed, options)
    nodes = form(network, size)
    found: dict[NodeId, int] = {}

    def watch(_: Node, effect: Effect) -> None:
        if isinstance(effect, MembershipChanged) and effect.status is Status.SUSPECT:
            found.setdefault(effect.info.node_id, network.now)

    network.watch = watch
    order: list[Node] = []
    down: dict[int, int] = {}
    crashes: list[Node] = []
    # By crash: in the order of detection the slow ones would stand together and look dependent.
    periods: dict[int, float] = {}
    network.run(2 * options.probe_period_ms)
    # To the end of the last crash: a run that stops at the last sample leaves out the crashes that took long.
    while len(periods) < samples:
        begin = next_period(network)
        network.run(begin - network.now - 1)
        while len(crashes) < samples and len(down) < max(1, size // _ONE_DOWN_IN):
            order = order or network.random.sample(nodes, size)
            victim = order.pop()
            if victim.swim is not None:
                network.kill(victim)
                found.pop(victim.node_id, None)
                down[len(crashes)] = begin
                crashes.append(victim)
        # The rounds that end with the period have failed by then, and a revived one has half a period to be noticed.
        network.run(options.probe_period_ms // 2)
        for crash, begun in list(down.items()):
            victim = crashes[crash]
            if victim.node_id in found:
                del down[crash]
                revive(network, victim, [node for node in nodes if node is not victim and node.swim is not None])
                periods[crash] = (found[victim.node_id] - begun) / options.probe_period_ms
            elif network.now - begun > _DETECTION_LIMIT_PERIODS * options.probe_period_ms:
                raise AssertionError(f"random seed {random_seed}: a crash was not noticed")
        if progress is not None:
            progress(len(periods) / samples)
    return Detection(size, tuple(periods[crash] for crash in range(samples)))


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
    network.run(3 * network.options.probe_period_ms)

    def probe_messages() -> int:
        return sum(node.core._context.sent[kind] for node in nodes for kind in ("PingRequest", "PingResponse"))

    probes_before, all_before = probe_messages(), network.messages_sent
    network.run(periods * network.options.probe_period_ms)
    shares = size * periods
    return Load(size, (probe_messages() - probes_before) / shares, (network.messages_sent - all_before) / shares)
