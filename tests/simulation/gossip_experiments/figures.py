"""Means, medians and ratios with their 95 % intervals.

A false verdict reaches a hundred members together, so events within one run depend on each other. An interval that
assumes independence would be far too narrow. Ratios are therefore resampled by complete runs (bootstrap), which are
independent: each has its own random seed. For a variant without events, `none_of` uses the number of independent cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, sqrt
from random import Random
from statistics import fmean, median, stdev

_RESAMPLES = 2_000
_TWO_SIDED_95 = 1.96


@dataclass(frozen=True, slots=True)
class Figure:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, form: str = ".3f", unit: str = "") -> str:
        return f"{self.value:{form}}{unit} [{self.low:{form}}, {self.high:{form}}]"


def mean_of(values: Sequence[float]) -> Figure:
    mean = fmean(values)
    half = _TWO_SIDED_95 * stdev(values) / sqrt(len(values)) if len(values) > 1 else float("inf")
    return Figure(mean, mean - half, mean + half)


def median_of(values: Sequence[float], random_seed: int = 1) -> Figure:
    """Return the median; its interval by resampling."""
    random = Random(random_seed)
    medians = sorted(median(random.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return Figure(median(values), *_middle(medians))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(ceil(share * len(values)) - 1, 0)]


def correlation_of_neighbors(groups: Sequence[Sequence[float]]) -> float:
    """Return the correlation of neighboring values: 0 for independent ones, plus or minus 2 / sqrt(count)."""
    values = [value for group in groups for value in group]
    mean = fmean(values)
    spread = sum((value - mean) ** 2 for value in values)
    shared = sum((one - mean) * (other - mean) for group in groups for one, other in pairwise(group))
    return shared / spread if spread > 0 else 0.0


def ratio_of(counts: Sequence[float], baselines: Sequence[float], random_seed: int = 1) -> Figure:
    """Return the ratio of the sums of paired runs; its interval by resampling the pairs."""
    random = Random(random_seed)
    pairs = list(zip(counts, baselines, strict=True))
    ratios = []
    for _ in range(_RESAMPLES):
        chosen = random.choices(pairs, k=len(pairs))
        below = sum(baseline for _, baseline in chosen)
        if below > 0:
            ratios.append(sum(count for count, _ in chosen) / below)
    return Figure(sum(counts) / sum(baselines), *_middle(sorted(ratios)))


def none_of(baseline: int) -> Figure:
    """Return zero with the interval from the rule of three, if none of `baseline` independent cases had an event.

    Resampling zeros gives zeros. With an expectation of three, an event would occur with a probability of 95 %.
    """
    return Figure(0.0, 0.0, min(3 / baseline, 1.0))


def _middle(ordered: Sequence[float]) -> tuple[float, float]:
    last = len(ordered) - 1
    return ordered[round(0.025 * last)], ordered[round(0.975 * last)]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, padded for the terminal."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = [[head.ljust(width) for head, width in zip(heads, widths, strict=True)], ["-" * width for width in widths]]
    lines += [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
