"""Farms whose batches show the past: their servers do not alert yet.

    full batch, newest entry older than `NEAR_S` ──▶ held back ──(younger, not full, or no entry of the farm)──▶ free
                                                         └──(not younger after `SHRINKS_S`)──▶ free: not a backlog

A batch as large as one may be has more entries after it. If they are from last week, a server that was silent then may
be healthy for days, and an alert of it would be false. But a full batch alone proves no backlog: with a small limit of
entries every batch of a live farm is full. So the age of a farm's newest entry decides. An age that does not shrink is
no backlog that will end: the log time of the farm is wrong, or the pipeline is too slow. An alert from late entries is
then better than a missing one.

Each farm counts separately, so a farm with a long log does not hold back alerts of another. A module of its own, so
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
