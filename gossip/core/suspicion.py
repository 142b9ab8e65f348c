"""How long a suspect has to refute: Lifeguard's timeout that shrinks with independent confirmations (section IV.B).

    timeout = max - (max - min) * log(confirmations + 1) / log(k + 1),   k = multiplier - 2, not below min

The first accusation may be the accuser's own fault, so it waits long; each further accuser makes that less likely. With
fewer than k others who could confirm there is nothing to wait for, and the timeout is min at once. min grows with the
logarithm of the group, because a refutation needs that long to travel.
"""

from math import log, log10

from gossip.core.member import Incarnation, NodeId
from gossip.core.options import Options


class Suspicion:
    """One suspicion against one incarnation of a member."""

    def __init__(self, incarnation: Incarnation, accuser: NodeId, group_size: int, options: Options, now: int) -> None:
        self.incarnation = incarnation
        self._started_at = now
        self._accusers = {accuser}
        shrinks = options.suspicion_max_multiplier > 1 and not options.overlay
        wanted = max(options.suspicion_multiplier - 2, 0) if shrinks else 0
        self._wanted = wanted if group_size - 2 >= wanted else 0
        scale = max(1.0, log10(max(group_size, 1)))
        self._min_ms = round(options.suspicion_multiplier * scale * options.probe_period_ms)
        self._max_ms = self._min_ms * options.suspicion_max_multiplier
        self.deadline = self._deadline()
        """When the suspect is declared dead, by what is known now."""

    def confirm(self, accuser: NodeId) -> bool:
        """Count an accuser; whether it is a new one that still matters."""
        if accuser in self._accusers or len(self._accusers) > self._wanted:
            return False
        self._accusers.add(accuser)
        self.deadline = self._deadline()
        return True

    def postpone(self, duration_ms: int) -> None:
        """Time during which this node could not have heard a refutation does not count."""
        self._started_at += duration_ms
        self.deadline = self._deadline()

    def _deadline(self) -> int:
        if self._wanted == 0:
            return self._started_at + self._min_ms
        confirmations = len(self._accusers) - 1
        shrunk = (self._max_ms - self._min_ms) * log(confirmations + 1) / log(self._wanted + 1)
        return self._started_at + max(self._max_ms - round(shrunk), self._min_ms)
