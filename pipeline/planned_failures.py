"""The planned events of the routers of a fictional farm with labeled failures, drawn before its log is made.

    degradation   a signal worsens exponentially from `begins_ms` on; at `fails_ms` the router stops, until `ends_ms`
    sudden        signals do not change before `fails_ms`
    spike         a signal is bad for a few minutes, and nothing follows
    relief        a signal worsens as before a failure, and then recovers

The first two are failures; only a degradation can be foreseen. A warning must not mistake spikes and reliefs for
failures, though a relief cannot be recognized while it begins. All of them come at random, about once in `MEAN_DAYS`
per router, and never within two hours of each other.

In addition to the model's noise and season, a farm's load differs from day to day, and a router's load varies around
its usual value. Each changes by about a sixth. So hardly any hour equals the same hour of the day before.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MEAN_DAYS = 2.0
APART_MS = 2 * HOUR_MS
LEAD_MS = (45 * 60_000, 3 * HOUR_MS)
OUTAGE_MS = (5 * 60_000, HOUR_MS)
SPIKE_MS = (60_000, 8 * 60_000)
DAYS_DIFFER = 0.15
WANDER, WANDER_HOLDS = 0.15, 0.99
"""Standard deviation of the logarithm of a router's load; share of its deviation from the usual load that remains after
one reporting period. After an hour about a third remains.
"""


class Kind(StrEnum):
    """The kinds of planned events."""

    DEGRADATION = "degradation"
    SUDDEN = "sudden"
    SPIKE = "spike"
    RELIEF = "relief"


class Signal(StrEnum):
    """The affected signals, named as in the query `warnings`."""

    LAG = "lag"
    TUNNELS = "tunnels"
    ROUND_TRIP = "round-trip"


KINDS = {Kind.DEGRADATION: 45, Kind.SUDDEN: 20, Kind.SPIKE: 25, Kind.RELIEF: 10}
"""The default frequency of each kind, in hundredths."""
WORST = {Signal.LAG: (4.0, 20.0), Signal.TUNNELS: (0.1, 0.4), Signal.ROUND_TRIP: (3.0, 10.0)}
"""The range of the worst factor on a signal."""


@dataclass(frozen=True, slots=True)
class Label:
    """A planned event of a router, in log time."""

    server_id: int
    kind: Kind
    signal: Signal | None
    worst: float
    begins_ms: int
    fails_ms: int | None
    ends_ms: int

    @property
    def is_failure(self) -> bool:
        """True if the router stops."""
        return self.fails_ms is not None

    def line(self) -> str:
        """Return the label as JSON."""
        fields = {
            "serverId": self.server_id,
            "kind": self.kind.value,
            "signal": self.signal,
            "beginsAtMs": self.begins_ms,
            "failsAtMs": self.fails_ms,
            "endsAtMs": self.ends_ms,
        }
        return json.dumps(fields)

    def factor(self, at_ms: int) -> float:
        """Return the factor on the signal at a time between beginning and end."""
        if self.kind is Kind.SPIKE:
            return self.worst
        over = (at_ms - self.begins_ms) / max(1, (self.fails_ms or self.ends_ms) - self.begins_ms)
        return float(self.worst**over) if over <= 1 else 1.0


@dataclass(frozen=True, slots=True)
class Effect:
    """The factors on a router's report."""

    load: float
    lag: float = 1.0
    tunnels: float = 1.0
    round_trip: float = 1.0


class PlannedFailures:
    """The labels of a farm, and their effects period by period. Callers must give times in order."""

    def __init__(self, routers: int, begins_ms: int, ends_ms: int, seed: int, kinds: Mapping[Kind, int]) -> None:
        random = Random(f"{seed} planned failures")
        self._random = Random(f"{seed} wander")
        days = 1 + (ends_ms - begins_ms) // DAY_MS
        span = (begins_ms, ends_ms)
        self._begins_ms = begins_ms
        self._days = [math.exp(random.gauss(0.0, DAYS_DIFFER)) for _ in range(days)]
        self._wander = dict.fromkeys(range(1, routers + 1), 0.0)
        self.labels = tuple(label for server_id in self._wander for label in _labels_of(server_id, span, kinds, random))
        self._next_labels = {server_id: self._of(server_id) for server_id in self._wander}
        self._current = {server_id: next(next_labels, None) for server_id, next_labels in self._next_labels.items()}

    def is_down(self, server_id: int, at_ms: int) -> bool:
        """Return True if the router is down."""
        label = self._at(server_id, at_ms)
        return label is not None and label.fails_ms is not None and label.fails_ms <= at_ms < label.ends_ms

    def effect(self, server_id: int, at_ms: int) -> Effect:
        """Return the factors on the router's report of this period."""
        persistent = self._wander[server_id] * WANDER_HOLDS
        self._wander[server_id] = persistent + self._random.gauss(0.0, WANDER * math.sqrt(1 - WANDER_HOLDS**2))
        load = self._days[(at_ms - self._begins_ms) // DAY_MS] * math.exp(self._wander[server_id])
        label = self._at(server_id, at_ms)
        if label is None or label.signal is None or not label.begins_ms <= at_ms < label.ends_ms:
            return Effect(load)
        factor = label.factor(at_ms)
        return Effect(load, **{label.signal.name.lower(): factor})

    def _at(self, server_id: int, at_ms: int) -> Label | None:
        """Return the router's present label, or its next one."""
        while (label := self._current[server_id]) is not None and label.ends_ms <= at_ms:
            self._current[server_id] = next(self._next_labels[server_id], None)
        return label

    def _of(self, server_id: int) -> Iterator[Label]:
        return (label for label in self.labels if label.server_id == server_id)


def _labels_of(server_id: int, span: tuple[int, int], kinds: Mapping[Kind, int], random: Random) -> Iterator[Label]:
    at_ms = float(span[0])
    while kinds:
        at_ms += APART_MS + random.expovariate(1 / (MEAN_DAYS * DAY_MS))
        kind = random.choices([*kinds], [*kinds.values()])[0]
        signal = random.choice([*Signal])
        worst, lead_ms = random.uniform(*WORST[signal]), random.randint(*LEAD_MS)
        outage_ms, spike_ms = random.randint(*OUTAGE_MS), random.randint(*SPIKE_MS)
        begins = int(at_ms)
        shows_ms = {Kind.SUDDEN: 0, Kind.SPIKE: spike_ms}.get(kind, lead_ms)
        fails = begins + shows_ms if kind in {Kind.DEGRADATION, Kind.SUDDEN} else None
        ends = begins + shows_ms + (0 if fails is None else outage_ms)
        if ends >= span[1]:
            return
        yield Label(server_id, kind, None if kind is Kind.SUDDEN else signal, worst, begins, fails, ends)
        at_ms = ends
