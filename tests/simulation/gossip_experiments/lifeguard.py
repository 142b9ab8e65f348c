"""Lifeguard's experiments with the production core: as plain SWIM, with each part alone, and with all parts.

They follow section V of Dadgar, Phillips, Currey: "Lifeguard: Local Health Awareness for More Accurate Failure
Detection".

    interval    128 members for 120 s; C of them are slow for D, healthy for I, slow for D …, all at the same times.
                The number of times a healthy member is declared dead, at all members (FP) and at healthy ones (FP-)
    threshold   C members slow for D once: the time until the first healthy member declares one dead, and until all do

A slow member declared dead is not a false positive: it did not reply. A healthy member declared dead always is one.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gossip.core.effects import Effect, MembershipChanged
from gossip.core.member import NodeId, Status
from gossip.core.options import SwimOptions
from tests.simulation.gossip_experiments.anomalies import SlowNetwork
from tests.simulation.gossip_experiments.formed import align, form
from tests.simulation.gossip_network import Node

SIZE: Final = 128
COUNTS: Final = (1, 4, 8, 12, 16, 20, 24, 28, 32)
DURATIONS_MS: Final = (128, 512, 2_048, 8_192, 16_384, 32_768)
INTERVALS_MS: Final = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384)
LENGTH_MS: Final = 120_000
SETTLING_MS: Final = 15_000

PAPER: Final = replace(SwimOptions.lan(), suspicion_multiplier=5, suspicion_max_multiplier=6)
"""Lifeguard as the paper measures it: alpha 5, beta 6, period 1 s, timeout 500 ms, 3 helpers, multiplier up to 8."""
PLAIN: Final = PAPER.plain_swim()

PARTS: Final[Mapping[str, SwimOptions]] = {
    "plain SWIM": PLAIN,
    "local health without nacks": replace(PLAIN, awareness_max=PAPER.awareness_max),
    "local health": replace(PLAIN, awareness_max=PAPER.awareness_max, nacks=True),
    "shrinking suspicion": replace(PLAIN, suspicion_max_multiplier=PAPER.suspicion_max_multiplier),
    "buddy notice": replace(PLAIN, buddy_notice=True),
    "Lifeguard": replace(PAPER, standstill_grace=False),
    "as shipped": SwimOptions.lan(),
}
"""The parts separately; the last row is this project's own preset (alpha 4, and grace after a standstill).

Nacks do not have their own row: they only affect local health.
"""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One cell of the grid: `count` slow members, slow for `duration_ms`, then healthy for `interval_ms`."""

    count: int
    duration_ms: int
    interval_ms: int


_SHIFTS: Final = (0, 4, 2, 6, 1, 5, 3, 7)


def grid(intervals: int = len(INTERVALS_MS)) -> list[Cell]:
    """Return the paper's grid: every count with every duration, each with this number of the eight intervals.

    With one interval each, it is a Latin rectangle: every duration meets all eight intervals, every count six of them.
    Eight intervals make the complete grid of 432 cells, whose first 54 are the rectangle, and so on. The long
    durations, which cause most false positives, are first.
    """
    return [
        Cell(count, duration_ms, INTERVALS_MS[(3 * row + column + shift) % len(INTERVALS_MS)])
        for shift in _SHIFTS[:intervals]
        for row, duration_ms in enumerate(reversed(DURATIONS_MS))
        for column, count in enumerate(COUNTS)
    ]


def sampled() -> list[Cell]:
    """Return three cells of the rectangle with errors of plain SWIM, from few long anomalies to many short ones."""
    chosen = {(4, 32_768), (16, 16_384), (32, 8_192)}
    return [cell for cell in grid(1) if (cell.count, cell.duration_ms) in chosen]


def seed_of(cell: Cell, random_seed: int) -> int:
    """Return the seed of a cell, so that all variants of a cell have the same slow members and the same delays."""
    return random_seed * 1_000 + grid().index(cell)


@dataclass(frozen=True, slots=True)
class FalsePositives:
    """False positives of one run."""

    everywhere: int
    at_healthy: int
    victims: int
    messages: int


def interval_run(
    cell: Cell, options: SwimOptions, random_seed: int, *, size: int = SIZE, length_ms: int = LENGTH_MS
) -> FalsePositives:
    network = SlowNetwork(random_seed, options)
    nodes = form(network, size)
    _mix(network, nodes)
    slow = network.random.sample(nodes, cell.count)
    slow_numbers = {node.number for node in slow}
    slow_names = {node.node_id for node in slow}
    everywhere = at_healthy = 0
    victims: set[NodeId] = set()

    def watch(observer: Node, effect: Effect) -> None:
        nonlocal everywhere, at_healthy
        if isinstance(effect, MembershipChanged) and effect.status is Status.DEAD:
            victim = effect.info.node_id
            if victim not in slow_names:
                everywhere += 1
                at_healthy += observer.number not in slow_numbers
                victims.add(victim)

    network.run(SETTLING_MS)
    network.watch = watch
    sent_before = network.messages_sent
    end = network.now + length_ms
    while network.now < end:
        network.slow_down(slow, cell.duration_ms)
        network.run(min(cell.duration_ms, end - network.now))
        network.recover()
        network.run(min(cell.interval_ms, end - network.now))
    return FalsePositives(everywhere, at_healthy, len(victims), network.messages_sent - sent_before)


def _mix(network: SlowNetwork, nodes: list[Node]) -> None:
    """Unalign the members' periods, as in a real group."""
    for node in nodes:
        align(node, network.now + network.random.randrange(network.options.probe_period_ms))


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds until the first healthy member, and the last one, declared a failed member dead."""

    first_s: tuple[float, ...]
    all_s: tuple[float, ...]
    missed: int


def threshold_run(
    count: int, duration_ms: int, options: SwimOptions, random_seed: int, *, size: int = SIZE
) -> Latencies:
    """Make `count` members slow once, for `duration_ms`; return the times until they are declared dead."""
    network = SlowNetwork(random_seed, options)
    nodes = form(network, size)
    _mix(network, nodes)
    slow = network.random.sample(nodes, count)
    slow_numbers = {node.number for node in slow}
    verdicts: defaultdict[NodeId, dict[int, int]] = defaultdict(dict)

    def watch(observer: Node, effect: Effect) -> None:
        if not isinstance(effect, MembershipChanged) or effect.status is not Status.DEAD:
            return
        if observer.number not in slow_numbers:
            verdicts[effect.info.node_id].setdefault(observer.number, network.now)

    network.run(SETTLING_MS)
    network.watch = watch
    begin = network.now
    network.slow_down(slow, duration_ms)
    network.run(duration_ms)
    times = [sorted(verdicts[node.node_id].values()) for node in slow]
    healthy = size - count
    return Latencies(
        tuple((found[0] - begin) / 1_000 for found in times if found),
        tuple((found[-1] - begin) / 1_000 for found in times if len(found) == healthy),
        sum(not found for found in times),
    )
