"""The time until a crash is detected, and the cost of probing (SWIM paper, sections 3.1 and 5.2).

Each of the other N - 1 members probes a member once per pass, at a random place of the pass. The chance that no probe
reaches it in one period tends to 1/e. So the first detection takes e/(e - 1) = 1.582 periods on average, for any N.

    period k-1 │ crash │ period k: pings go unanswered ... │ end of k: first suspicion     counts as 1 period

One member in 100 (at least one) is down at a time: the result is the detection of single crashes, not of a mass
failure. A detected member restarts with its next generation and another one crashes, so one group yields any number of
samples. Crashed members hardly influence each other: nine crashed members among 999 mean nine fewer probers, which
delays the first detection by 0.5 %. The independence of the samples of one group is measured too: by the correlation of
each sample with the next one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import e

from msgspec.structs import replace

from gossip.core.effects import Effect, MembershipChanged
from gossip.core.member import NodeId, Status
from gossip.core.options import SwimOptions
from tests.simulation.gossip_experiments.figures import Figure, mean_of
from tests.simulation.gossip_experiments.formed import form, next_period, revive
from tests.simulation.gossip_network import GossipNetwork, Node

EXPECTED_PERIODS = e / (e - 1)
_ONE_DOWN_IN = 100
GROUP_SAMPLES = 600
"""Samples of one group; then another group with another random seed is used."""
_DETECTION_LIMIT_PERIODS = 60
PIGGYBACK_ONLY_MS = 1_000_000_000
"""A gossip period that never begins: updates travel only on probes, as in SWIM's paper."""

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Detection:
    """Periods from each crash until the first other member suspected it."""

    size: int
    periods: tuple[float, ...]

    @property
    def mean(self) -> Figure:
        return mean_of(self.periods)


def first_detections(size: int, samples: int, random_seed: int, progress: Progress | None = None) -> Detection:
    """Crash members just before a period begins and wait for the first suspicion, `samples` times."""
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
    # Ordered by crash: in the order of detection, slow detections would be adjacent and look dependent.
    periods: dict[int, float] = {}
    network.run(2 * options.probe_period_ms)
    # Wait for the last crash: a run that stopped at the last sample would exclude the slow detections.
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
        # The rounds of the period have failed by then, and a restarted member has half a period to be detected.
        network.run(options.probe_period_ms // 2)
        for crash, crashed_at in list(down.items()):
            victim = crashes[crash]
            if victim.node_id in found:
                del down[crash]
                revive(network, victim, [node for node in nodes if node is not victim and node.swim is not None])
                periods[crash] = (found[victim.node_id] - crashed_at) / options.probe_period_ms
            elif network.now - crashed_at > _DETECTION_LIMIT_PERIODS * options.probe_period_ms:
                raise AssertionError(f"random seed {random_seed}: a crash was not noticed")
        if progress is not None:
            progress(len(periods) / samples)
    return Detection(size, tuple(periods[crash] for crash in range(samples)))


@dataclass(frozen=True, slots=True)
class Load:
    """Messages of an idle group."""

    size: int
    probe_messages: float
    all_messages: float


def quiet_load(size: int, periods: int, random_seed: int) -> Load:
    """Return the messages per member and period of an idle group, with the production preset."""
    network = GossipNetwork(random_seed)
    nodes = form(network, size)
    network.run(3 * network.options.probe_period_ms)

    def probe_messages() -> int:
        return sum(node.core._context.sent[kind] for node in nodes for kind in ("PingRequest", "PingResponse"))

    probes_before, all_before = probe_messages(), network.messages_sent
    network.run(periods * network.options.probe_period_ms)
    shares = size * periods
    return Load(size, (probe_messages() - probes_before) / shares, (network.messages_sent - all_before) / shares)
