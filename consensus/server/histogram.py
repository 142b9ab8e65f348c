"""Durations, counted up to each bound, as in Prometheus' histograms.

A mean hides the few long durations that cause elections, and percentiles of several servers cannot be added. Counts up
to fixed bounds can be added, and need only a few numbers. Prometheus' client library has such histograms, but takes 2.4
MB to load, and most nodes are never scraped. So it is loaded only for a scrape, and then writes these counts.

It is a separate module because servers, protocols and the farm all measure durations.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts of durations in seconds."""

    def __init__(self, bounds_s: Iterable[float] = BOUNDS_S) -> None:
        self.bounds_s = tuple(bounds_s)
        self.total_s = 0.0
        self._counts = [0] * (len(self.bounds_s) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration; below zero counts as zero."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        """Return the number of durations."""
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound, and at last infinity, with the number of durations up to it."""
        sofar = 0
        for bound_s, count in zip((*self.bounds_s, float("inf")), self._counts, strict=True):
            sofar += count
            yield bound_s, sofar
