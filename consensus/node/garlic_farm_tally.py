"""What went wrong on Garlic Farm connections: counted always, told in words but not without end.

Every refusal is counted under its fault. Its sentence goes to whoever shows events, at most once per period for each
pair of fault and peer: a flood must not become a flood of log lines.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from consensus.wire.garlic_farm.errors import Fault

_REPEAT_AFTER_S = 10.0
_REMEMBERED_MAX = 1024


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that an operator may want to know: what kind, with whom, and in words."""

    fault: Fault
    peer: str
    text: str
    ours: bool = False
    """It was this node that connected, and was refused or refuses."""


class Tally:
    """Counts by name (a bounded set: faults and the names that the code gives), and incidents to a callback."""

    def __init__(
        self,
        on_incident: Callable[[Incident], None] = lambda _: None,
        on_connected: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_connected` hears the address of each server that let this node in, and whence whoever is let in comes."""
        self.counts: Counter[str] = Counter()
        self.connected = on_connected
        self._on_incident = on_incident
        self._told_at: dict[tuple[Fault, str], float] = {}

    def count(self, name: str) -> None:
        """Something ordinary happened."""
        self.counts[name] += 1

    def add(self, name: str, number: int) -> None:
        """Something ordinary happened so many times."""
        self.counts[name] += number

    def incident(self, fault: Fault, peer: str, text: str, *, ours: bool = False) -> None:
        """Something happened that should not; tell it unless it was told a moment ago."""
        self.counts[fault.value] += 1
        now = trio.current_time()
        told_at = self._told_at.get((fault, peer))
        if told_at is not None and now - told_at < _REPEAT_AFTER_S:
            return
        if len(self._told_at) >= _REMEMBERED_MAX:
            self._told_at.clear()
        self._told_at[fault, peer] = now
        self._on_incident(Incident(fault, peer, text, ours))
