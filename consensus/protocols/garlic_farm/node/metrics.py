"""Counters of Garlic Farm connections, and incidents: each is counted, and few are reported in words.

Every refusal is counted under its fault. The text of an incident goes to a callback, at most once in a period for each
pair of fault and peer. Of incoming connections only a few incidents per fault and period are reported: a flood of
connections must not become a flood of log lines, from however many addresses it comes. The next reported text says how
many were left out.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.server.histogram import Histogram

_REPEAT_AFTER_S = 10.0
_REMEMBERED_MAX = 1024
_REPORTED_PER_FAULT_MAX = 5


@dataclass(slots=True)
class _Period:
    """How many incidents of one fault were reported since `began_s`, and left out since the last report."""

    began_s: float
    reported: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """An event that an operator may want to know: its kind, the peer, and a text."""

    fault: Fault
    peer: str
    text: str
    ours: bool = False
    """This node opened the connection."""


class Metrics:
    """Counts by name (a bounded set: faults and the names that the code gives), and incidents to a callback."""

    def __init__(
        self,
        on_incident: Callable[[Incident], None] = lambda _: None,
        on_connected: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_connected` gets the address of each peer after a completed handshake, in either direction."""
        self.counts: Counter[str] = Counter()
        self.answers = Histogram()
        """From a request to another server until its answer."""
        self.connected = on_connected
        self._on_incident = on_incident
        self._reported_at: dict[tuple[Fault, str], float] = {}
        self._periods: dict[Fault, _Period] = {}

    def count(self, name: str) -> None:
        """Count an ordinary event."""
        self.counts[name] += 1

    def add(self, name: str, number: int) -> None:
        """Count `number` ordinary events."""
        self.counts[name] += number

    def incident(self, fault: Fault, peer: str, text: str, *, ours: bool = False) -> None:
        """Count a fault, and report it unless the same one was reported a moment ago."""
        self.counts[fault.value] += 1
        now = trio.current_time()
        reported_at = self._reported_at.get((fault, peer))
        period = self._period(fault, now)
        again = reported_at is not None and now - reported_at < _REPEAT_AFTER_S
        if again or (not ours and period.reported >= _REPORTED_PER_FAULT_MAX):
            period.left_out += not ours
            return
        if not ours:
            period.reported += 1
            if period.left_out:
                text = f"{text} ({period.left_out} more incidents of this kind were left out)"
                period.left_out = 0
        if len(self._reported_at) >= _REMEMBERED_MAX:
            self._reported_at.clear()
        self._reported_at[fault, peer] = now
        self._on_incident(Incident(fault, peer, text, ours))

    def _period(self, fault: Fault, now: float) -> _Period:
        period = self._periods.setdefault(fault, _Period(now))
        if now - period.began_s >= _REPEAT_AFTER_S:
            period.began_s, period.reported = now, 0
        return period
