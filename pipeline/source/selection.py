"""The selection of entries: by options of the source, and by Spark's filters for a batch read. Pure.

    option                        Spark's filter                          effect
    start, end                    index = < <= > >= IN                    other entries are not read
    since, until (log time)       log_time = < <= > >=                    other entries are not decoded
                                  kind = IN                               other entries are not decoded
    entries, servers              entry, server_id = IN                   columns of other entries are not made
    farms' file                   farm = IN                               logs of other farms are not read
    columns                                                               other columns are not made

A filter that is not in the list is left to Spark.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from pipeline.schemas import ENTRIES
from pipeline.source.log_client import FarmLogError

_ALWAYS = {(each.name,) for each in ENTRIES if not each.nullable}
_BOUNDED: dict[tuple[str, ...], str] = {("index",): "indexes", ("log_time",): "times_us"}
_SETS: dict[tuple[str, ...], str] = {
    ("kind",): "kinds",
    ("entry",): "entries",
    ("server_id",): "servers",
    ("farm",): "farms",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers with least <= number < end; None: no bound."""

    least: int | None = None
    end: int | None = None

    def within(self, least: int | None, end: int | None) -> "Bounds":
        """Return the intersection with these bounds."""
        lows = [each for each in (self.least, least) if each is not None]
        ends = [each for each in (self.end, end) if each is not None]
        return Bounds(max(lows, default=None), min(ends, default=None))

    def cut(self, first: int, end: int) -> tuple[int, int]:
        """Return the part of [first, end) in the bounds; an empty range if they do not overlap."""
        first = first if self.least is None else max(first, self.least)
        return first, max(first, end if self.end is None else min(end, self.end))

    def __contains__(self, number: int) -> bool:
        return (self.least is None or self.least <= number) and (self.end is None or number < self.end)

    @property
    def are_open(self) -> bool:
        """True without a bound."""
        return self.least is None and self.end is None


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows and columns; None: all of them. Times are log time in microseconds, as Spark has them."""

    indexes: Bounds = Bounds()
    times_us: Bounds = Bounds()
    kinds: frozenset[str] | None = None
    entries: frozenset[str] | None = None
    servers: frozenset[int] | None = None
    farms: frozenset[str] | None = None
    columns: tuple[str, ...] | None = None

    def takes(self, index: int, kind: str, time_ms: int | None) -> bool:
        """Return True if index, kind and time do not exclude this entry."""
        if index not in self.indexes or (self.kinds is not None and kind not in self.kinds):
            return False
        return self.times_us.are_open or (time_ms is not None and time_ms * 1000 in self.times_us)

    def narrowed(self, pushed: Filter) -> "RowSelection | None":  # noqa: PLR0911 - one for each filter
        """Return the selection with a filter of Spark's; None if the filter is not supported."""
        match pushed:
            case IsNotNull(attribute=path) if path in _ALWAYS:
                return self
            case IsNotNull(attribute=("log_time",)):
                return replace(self, times_us=self.times_us.within(0, None))
            case EqualTo(attribute=path, value=value) if path in _SETS:
                return self.of(_SETS[path], [value])
            case In(attribute=path, value=values) if path in _SETS:
                return self.of(_SETS[path], values)
            case EqualTo(attribute=path, value=value):
                return self._within(path, value, value, 1)
            case GreaterThanOrEqual(attribute=path, value=value):
                return self._within(path, value, None, 0)
            case GreaterThan(attribute=path, value=value):
                return self._within(path, value, None, 0, more=1)
            case LessThan(attribute=path, value=value):
                return self._within(path, None, value, 0)
            case LessThanOrEqual(attribute=path, value=value):
                return self._within(path, None, value, 1)
            case _:
                return None

    def of(self, name: str, values: Collection[Any]) -> "RowSelection":
        """Return the selection of only rows with one of these values."""
        known: frozenset[Any] | None = getattr(self, name)
        found = frozenset(values)
        changed: dict[str, Any] = {name: found if known is None else known & found}
        return replace(self, **changed)

    def _within(
        self, path: tuple[str, ...], least: Any, last: Any, behind: int, *, more: int = 0
    ) -> "RowSelection | None":
        """Select `least + more <= column < last + behind`, for index or log time; return None for another column."""
        name = _BOUNDED.get(path)
        if name is None:
            return None
        low, end = (_microseconds(each) if isinstance(each, datetime) else each for each in (least, last))
        known: Bounds = getattr(self, name)
        found = known.within(None if low is None else low + more, None if end is None else end + behind)
        changed: dict[str, Any] = {name: found}
        return replace(self, **changed)


def columns_of(text: str) -> tuple[str, ...]:
    """Return the columns of an option, in its order. Raise FarmLogError for an unknown one."""
    found = words_of(text)
    unknown = [each for each in found if each not in ENTRIES.names]
    if unknown or not found or len({*found}) != len(found):
        raise FarmLogError(
            f"the option 'columns' of the source 'farm' must name columns, each once, not {text!r}: there are"
            f" {', '.join(ENTRIES.names)}"
        )
    return tuple(found)


def words_of(text: str) -> Sequence[str]:
    """Return the values of an option, separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def moment_of(option: str, text: str) -> int:
    """Return a moment such as 2026-01-31T12:00:00Z in microseconds since the epoch. Raise FarmLogError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise FarmLogError(
            f"the option {option!r} of the source 'farm' must be a moment such as 2026-01-31T12:00:00Z, not {text!r}"
        ) from error
    return _microseconds(moment)


def _microseconds(moment: datetime) -> int:
    passed = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
