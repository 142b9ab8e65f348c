"""A figure: its name, its unit, the values of the runs, and their form: the median with the extremes."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the report. `note` compares it with a limit of the machine or a goal."""

    group: str
    name: str
    unit: str
    values: tuple[float, ...]
    note: str = ""

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.values)

    def row(self) -> str:
        """Return one line of a plain table."""
        low, high = min(self.values), max(self.values)
        middle = f"{_short(self.median)} {self.unit}"
        spread = f"{_short(low):>7} to {_short(high):<7} {len(self.values):>2}x"
        return f"  {self.name:<52} {middle:>15}   {spread}  {self.note}"

    def document(self) -> dict[str, object]:
        """Return the object for the JSON file."""
        return {
            "group": self.group,
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "values": list(self.values),
            "note": self.note,
        }


def percentile(ranked: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the sorted values do not exceed."""
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def latencies(group: str, name: str, turns: Sequence[Sequence[float]]) -> list[Figure]:
    """Return p50 and p99 of each turn; the latencies are in microseconds."""
    ranked = [sorted(each) for each in turns]
    return [
        Figure(group, f"{name}: latency {rank}", "ms", tuple(percentile(each, share) / 1000 for each in ranked))
        for rank, share in (("p50", 0.5), ("p99", 0.99))
    ]


def ratios(values: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    """Return the ratio of the values of each run."""
    return tuple(value / other for value, other in zip(values, others, strict=True))


def table(figures: Sequence[Figure]) -> list[str]:
    """Return the figures by group, in their original order."""
    lines: list[str] = []
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            lines += ["", group, f"  {'':<52} {'median':>15}   {'lowest to highest':<18} runs"]
        lines.append(figure.row().rstrip())
    return lines


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits are enough
