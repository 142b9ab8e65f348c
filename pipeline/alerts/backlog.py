"""Farms with a backlog, whose batches show the past: their servers do not alert yet.

    full batch, newest entry older than `NEAR_S` ──▶ held back ──(younger, not full, or no entry of the farm)──▶ free
                                                         └──(not younger after `SHRINKS_S`)──▶ free: not a backlog

If a batch has the maximum size, more entries follow it. If its entries are from last week, a server that did not report
then may have been healthy for days, and an alert would be false. But a full batch does not prove a backlog: with a
small limit of entries every batch of a live farm is full. So the age of a farm's newest entry decides. If this age does
not shrink, the delay is permanent: the log time of the farm is wrong, or the pipeline is too slow. Then an alert from
late entries is better than no alert.

Each farm is judged separately, so a farm with a long log does not delay alerts of another farm. A module of its own, so
that the rule is tested without the thread of alerting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

NEAR_S = 600.0
SHRINKS_S = 600.0


@dataclass(frozen=True, slots=True)
class _FarmAge:
    at_s: float
    age_s: float
    is_held: bool = True


class Backlog:
    """The held-back farms. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, _FarmAge] = {}

    @property
    def farms(self) -> frozenset[str]:
        """The farms whose servers do not alert."""
        return frozenset(farm for farm, seen in self._seen.items() if seen.is_held)

    def take(self, newest: Mapping[str, datetime], *, is_full: bool) -> None:
        """Record a batch: the log time of the newest entry of each farm in it."""
        now_s = self._clock()
        ages_s = {farm: now_s - moment.timestamp() for farm, moment in newest.items()} if is_full else {}
        self._seen = {farm: self._checked(farm, now_s, age_s) for farm, age_s in ages_s.items() if age_s > NEAR_S}

    def _checked(self, farm: str, now_s: float, age_s: float) -> _FarmAge:
        seen = self._seen.get(farm)
        if seen is None:
            return _FarmAge(now_s, age_s)
        if now_s - seen.at_s < SHRINKS_S:
            return seen
        return _FarmAge(now_s, age_s, is_held=age_s < seen.age_s)
