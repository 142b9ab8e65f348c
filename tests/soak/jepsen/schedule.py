"""The faults of a run, drawn from its seed: a mix of kinds, and the time, duration and targets of each fault.

    seed ──▶ mix: six kinds of fault ──▶ one fault after the other, some of them overlapping ──▶ all end ──▶ healing

A target is a number that the run maps to a node when the fault begins. Number 0 is the leader at that time; 1 to 4 are
the other nodes in order. So a schedule depends on the seed alone, and still strikes leaders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

NODES: Final = 5
MINORITY: Final = 2
CALM_S: Final = 10.0
"""Time without faults at the start."""
KINDS_OF_MIX: Final = 6


class Kind(Enum):
    """Kind of a fault."""

    PARTITION = "partition"
    """Packets between two groups of nodes are dropped."""
    ONE_WAY = "one-way"
    """Packets from one group to the other are dropped; the other direction works."""
    UDP_ONLY = "udp-only"
    """UDP packets of some nodes are dropped; TCP works."""
    DELAY = "delay"
    """Packets of some nodes are delayed, each by a random time."""
    LOSS = "loss"
    """A share of the packets of some nodes is lost."""
    CLOCK_JUMP = "clock-jump"
    """Clocks of some nodes jump."""
    CLOCK_RATE = "clock-rate"
    """Clocks of some nodes run fast or slowly."""
    SLOW_DISK = "slow-disk"
    HANGING_DISK = "hanging-disk"
    FULL_DISK = "full-disk"
    FAILING_DISK = "failing-disk"
    PAUSE = "pause"
    """SIGSTOP, later SIGCONT."""
    KILL = "kill"
    """SIGKILL; the process starts again at the end."""
    RESTART = "restart"
    """SIGTERM; the process starts again at the end."""
    POWER_CUT = "power-cut"
    """SIGKILL and the loss of unsynced changes; the process starts again at the end."""


PROCESS_KINDS: Final = frozenset({Kind.KILL, Kind.RESTART, Kind.POWER_CUT})
CLOCK_KINDS: Final = frozenset({Kind.CLOCK_JUMP, Kind.CLOCK_RATE})
CLOCK_JUMPS_S: Final = (-86_400.0, -3_600.0, -600.0, -30.0, -2.0, 2.0, 30.0, 600.0, 3_600.0, 86_400.0)
CLOCK_RATES: Final = (0.5, 0.9, 0.999, 1.001, 1.1, 2.0)
SYNC_DELAYS_MS: Final = (20.0, 100.0, 500.0, 2_000.0)
DELAYS_MS: Final = (5.0, 30.0, 150.0, 800.0)
LOSSES: Final = (0.01, 0.05, 0.2, 0.5)
_AMOUNTS: Final = {
    Kind.DELAY: DELAYS_MS,
    Kind.LOSS: LOSSES,
    Kind.CLOCK_JUMP: CLOCK_JUMPS_S,
    Kind.CLOCK_RATE: CLOCK_RATES,
    Kind.SLOW_DISK: SYNC_DELAYS_MS,
}
_WIDE: Final = frozenset(
    {Kind.KILL, Kind.RESTART, Kind.POWER_CUT, Kind.PAUSE, Kind.DELAY, Kind.LOSS, Kind.UDP_ONLY, Kind.SLOW_DISK}
)
"""Kinds that may strike all nodes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, from `begin_s` to `end_s` after the start of the load."""

    number: int
    kind: Kind
    begin_s: float
    end_s: float
    targets: tuple[int, ...]
    amount: float
    """Seconds, milliseconds, a share or a factor, by kind; 0 if the kind lacks it."""

    def __str__(self) -> str:
        amount = f" {self.amount:g}" if self.amount else ""
        return f"#{self.number} {self.kind.value}{amount} at {','.join(map(str, self.targets))}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults of a run in the order of their starts."""

    seed: int
    duration_s: float
    mix: tuple[Kind, ...]
    faults: tuple[Fault, ...]


def draw(seed: int, duration_s: float, *, only: Sequence[Kind] = ()) -> Schedule:
    """Return the schedule of a seed; `only` is its mix, instead of a drawn one."""
    random = Random(seed)
    mix = tuple(only or random.sample(list(Kind), KINDS_OF_MIX))
    faults: list[Fault] = []
    begin_s = CALM_S
    while True:
        kind = random.choice(mix)
        if kind in CLOCK_KINDS:
            # Wrong clocks at a majority set log time, which only an operator can correct.
            begin_s = max([begin_s, *(each.end_s for each in faults if each.kind in CLOCK_KINDS)])
        end_s = begin_s + random.uniform(5.0, 25.0)
        if end_s > duration_s:
            return Schedule(seed, duration_s, mix, tuple(faults))
        amount = random.choice(_AMOUNTS.get(kind, (0.0,)))
        faults.append(Fault(len(faults) + 1, kind, begin_s, end_s, _targets(random, kind), amount))
        # A third of the faults begin during the previous one.
        begin_s = random.uniform(begin_s + 1.0, end_s) if random.random() < 1 / 3 else end_s + random.uniform(2.0, 12.0)


def _targets(random: Random, kind: Kind) -> tuple[int, ...]:
    draw_from = random.random()
    if kind in _WIDE and draw_from < 0.2:
        return tuple(range(NODES))
    if draw_from < 0.5:
        return (0,)
    return tuple(sorted(random.sample(range(NODES), random.randint(1, MINORITY))))
