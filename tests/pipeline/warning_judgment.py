"""A measurement of early warnings against known failures: precision, recall and lead.

    a warning is in time       after the first sign of a degradation of its server, and before the failure.
    a warning is about relief  a signal was as bad as before a failure, but no failure followed: false, shown apart.
    any other warning          false; for example, after the failure

    precision    warnings in time / warnings
    recall       degradations with a warning in time / degradations; recall of all: also failures without a sign
    lead         from the first warning in time to the failure

Only warnings and failures in the judged time count; the first sign of a failure must be in this time, too.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipeline.planned_failures import DAY_MS, Kind, Label, Signal


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning: its server, its signal and its time."""

    server_id: int
    signal: str
    at_ms: int

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Warned":
        at: datetime = row["warned_at"]
        return cls(row["server_id"], row["signal"], round(at.timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class JudgedFarm:
    """The failures and warnings of a farm in the judged time."""

    routers: int
    begins_ms: int
    ends_ms: int
    labels: Sequence[Label]
    warnings: Sequence[Warned]


@dataclass(slots=True)
class Judgment:
    """The sums over all farms."""

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
        return self.in_time + self.of_relief + self.other

    @property
    def precision(self) -> float:
        """Return the share of the warnings that are in time, or 0 without warnings."""
        return self.in_time / max(1, self.warnings)

    @property
    def recall(self) -> float:
        """Return the share of predicted failures among the failures with signs."""
        return sum(self.foreseen.values()) / max(1, sum(self.degradations.values()))

    @property
    def recall_of_all(self) -> float:
        """Return the share of predicted failures among all failures."""
        return sum(self.foreseen.values()) / max(1, sum(self.degradations.values()) + self.sudden)

    @property
    def false_per_router_day(self) -> float:
        """Return the number of warnings that are not in time, per router and day."""
        return (self.of_relief + self.other) / self.router_days

    @property
    def median_lead_ms(self) -> float | None:
        """Return the median lead, or None without predicted failures."""
        return statistics.median(self.leads_ms) if self.leads_ms else None

    def recall_of(self, signal: Signal) -> float:
        """Return the share of predicted failures among the failures with signs in this signal."""
        return self.foreseen.get(signal, 0) / max(1, self.degradations.get(signal, 0))


def judge(farms: Iterable[JudgedFarm]) -> Judgment:
    """Compare all warnings of these farms with all labels."""
    found = Judgment()
    for farm in farms:
        found.router_days += farm.routers * (farm.ends_ms - farm.begins_ms) / DAY_MS
        warnings = [each for each in farm.warnings if farm.begins_ms <= each.at_ms < farm.ends_ms]
        for warning in warnings:
            _count(found, warning, farm.labels)
        for label in farm.labels:
            if label.fails_ms is not None and farm.begins_ms <= label.begins_ms and label.fails_ms < farm.ends_ms:
                _count_failure(found, label, warnings)
    return found


def _count(found: Judgment, warning: Warned, labels: Sequence[Label]) -> None:
    kinds = {label.kind for label in labels if _shows(label, warning)}
    if Kind.DEGRADATION in kinds:
        found.in_time += 1
    elif Kind.RELIEF in kinds:
        found.of_relief += 1
    else:
        found.other += 1


def _count_failure(found: Judgment, label: Label, warnings: Sequence[Warned]) -> None:
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
