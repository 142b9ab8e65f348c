"""How well warnings foretell failures that are known: what is a hit, what is false, and how long before.

    a warning is in time       a degradation of its server has begun when it is given, and the router has not failed yet
    a warning is about relief  a signal was as bad as before a failure, but none followed: false, and told apart
    any other warning          false: also one that is given after the failure

    precision    warnings in time / warnings
    recall       degradations with a warning in time / degradations;  of all failures: those without a sign as well
    lead         from the first warning in time to the failure

Only what lies in the judged time counts: warnings that are given in it, failures that begin to show and happen in it.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipeline.planned_failures import DAY_MS, Kind, Label, Signal


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning, as an operator gets it."""

    server_id: int
    signal: str
    at_ms: int

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Warned":
        """Out of a row of the question `warnings`."""
        at: datetime = row["warned_at"]
        return cls(row["server_id"], row["signal"], round(at.timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class JudgedFarm:
    """What happened to a farm in the judged time, and what was warned of."""

    routers: int
    begins_ms: int
    ends_ms: int
    labels: Sequence[Label]
    warnings: Sequence[Warned]


@dataclass(slots=True)
class Judgment:
    """The sums over farms."""

    router_days: float = 0.0
    in_time: int = 0
    of_relief: int = 0
    other: int = 0
    degradations: dict[Signal, int] = field(default_factory=dict)
    foreseen: dict[Signal, int] = field(default_factory=dict)
    sudden: int = 0
    leads_ms: list[int] = field(default_factory=list)

    @property
    def warnings(self) -> int:
        """All of them."""
        return self.in_time + self.of_relief + self.other

    @property
    def precision(self) -> float:
        """Share of the warnings that a failure followed; 0 without warnings."""
        return self.in_time / max(1, self.warnings)

    @property
    def recall(self) -> float:
        """Share of the failures with signs that were foreseen."""
        return sum(self.foreseen.values()) / max(1, sum(self.degradations.values()))

    @property
    def recall_of_all(self) -> float:
        """Share of all failures."""
        return sum(self.foreseen.values()) / max(1, sum(self.degradations.values()) + self.sudden)

    @property
    def false_per_router_day(self) -> float:
        """Warnings that no failure followed."""
        return (self.of_relief + self.other) / self.router_days

    @property
    def median_lead_ms(self) -> float | None:
        """None if nothing was foreseen."""
        return statistics.median(self.leads_ms) if self.leads_ms else None

    def recall_of(self, signal: Signal) -> float:
        """Share of the failures that showed in this signal."""
        return self.foreseen.get(signal, 0) / max(1, self.degradations.get(signal, 0))


def judge(farms: Iterable[JudgedFarm]) -> Judgment:
    """All warnings of these farms against all labels."""
    found = Judgment()
    for farm in farms:
        found.router_days += farm.routers * (farm.ends_ms - farm.begins_ms) / DAY_MS
        warnings = [each for each in farm.warnings if farm.begins_ms <= each.at_ms < farm.ends_ms]
        for warning in warnings:
            _count(found, warning, farm.labels)
        for label in farm.labels:
            if label.fails_ms is not None and farm.begins_ms <= label.begins_ms and label.fails_ms < farm.ends_ms:
                _foreseen(found, label, warnings)
    return found


def _count(found: Judgment, warning: Warned, labels: Sequence[Label]) -> None:
    kinds = {label.kind for label in labels if _shows(label, warning)}
    if Kind.DEGRADATION in kinds:
        found.in_time += 1
    elif Kind.RELIEF in kinds:
        found.of_relief += 1
    else:
        found.other += 1


def _foreseen(found: Judgment, label: Label, warnings: Sequence[Warned]) -> None:
    if label.signal is None or label.fails_ms is None:
        found.sudden += 1
        return
    found.degradations[label.signal] = found.degradations.get(label.signal, 0) + 1
    if in_time := [warning.at_ms for warning in warnings if _shows(label, warning)]:
        found.foreseen[label.signal] = found.foreseen.get(label.signal, 0) + 1
        found.leads_ms.append(label.fails_ms - min(in_time))


def _shows(label: Label, warning: Warned) -> bool:
    until_ms = label.ends_ms if label.fails_ms is None else label.fails_ms
    return label.server_id == warning.server_id and label.begins_ms <= warning.at_ms < until_ms
