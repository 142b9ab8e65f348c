"""How long things take on this node: histograms that `/metrics` shows.

    commit      an entry of this node, from its submission here to its commitment, wherever the leader is
    disk        a group of writes with its sync          what the leader's acknowledgements wait for
    apply       committed entries through the farm's state machine, a batch at a time
    request     a request of Raft to another server, until its answer
    probe       the round trip of gossip to each peer, sampled
    detection   from the first suspicion of a member to its being declared dead
    take_over   without a leader, until one is known

The last two are seconds where the others are milliseconds, so their bounds are others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from consensus import Histogram

SLOW_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
TEXTS: Final = {
    "commit": "From the submission of an entry at this node until it is committed",
    "disk": "Writing a group of entries and syncing it",
    "apply": "Taking a batch of committed entries through the state machine",
    "request": "From a request of Raft to another server until its answer",
    "probe": "Round trips of gossip to the peers of this node, sampled every 10 seconds",
    "detection": "From the first suspicion of a member until it is declared dead",
    "take_over": "Without a leader, until this node knows one again",
}


def _slow() -> Histogram:
    return Histogram(SLOW_BOUNDS_S)


@dataclass(frozen=True, slots=True)
class Durations:
    """One histogram for each."""

    request: Histogram
    commit: Histogram = field(default_factory=Histogram)
    disk: Histogram = field(default_factory=Histogram)
    apply: Histogram = field(default_factory=Histogram)
    probe: Histogram = field(default_factory=Histogram)
    detection: Histogram = field(default_factory=_slow)
    take_over: Histogram = field(default_factory=_slow)

    def items(self) -> Iterator[tuple[str, Histogram]]:
        """By name, in the order of `TEXTS`."""
        for name in TEXTS:
            histogram: Histogram = getattr(self, name)
            yield name, histogram
