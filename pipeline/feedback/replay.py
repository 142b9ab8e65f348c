"""The weighing of a farm's past under several settings. Pure: rows of the tables in, figures out.

    rows in order ──┬▶ Course: Weighing(present) ─▶ proposal? ─▶ its own `factors` entry, applied ─┬▶ figures by window
                    └▶ Course: Weighing(tried)   ─▶ proposal? ─▶ its own `factors` entry, applied ─┘
    windows ────────▶ which servers were bad

The weighing is the production code (`weighing.py`). The replay requests a proposal each time log time has moved, as a
run without delay does. The `factors` entries of the recorded past are counted and ignored. Instead a course's own
entries take effect, damped and expired as in the farm. Such an entry needs an index between two indexes of the log, so
all indexes are doubled internally.

The reaction of clients is not simulated: reports stay unchanged, regardless of the factors. So the result shows how
quickly, how far and at what cost a setting changes factors. It does not show the stability of the feedback loop.

A server is *bad* in a window if it reported, or its leaves were healthy, for less than half of the window. It is also
bad if its median job lag was more than half of `LAG_WORST_MS`. The *weight* of a leaf is 1 / factor: clients prefer
cheaper leaves. Leaves excluded by an operator are counted like others.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from pipeline.feedback.weighing import FactorsRow, Proposal, Row, Setting, Weighing


@dataclass(frozen=True, slots=True)
class Window:
    """A window of log time, and for each server that reported in it, True if it was bad."""

    start_ms: int
    end_ms: int
    is_bad: Mapping[int, bool]


@dataclass(frozen=True, slots=True)
class Removal:
    """An operator's exclusion of a server's reports, or its end."""

    index: int
    server_id: int
    removed: bool


@dataclass(slots=True)
class Spread:
    """Mean and standard deviation of a stream of numbers, by Welford's method."""

    count: int = 0
    mean: float | None = None
    _squares: float = 0.0

    def add(self, number: float) -> None:
        """Add a number."""
        self.count += 1
        before = self.mean or 0.0
        self.mean = before + (number - before) / self.count
        self._squares += (number - before) * (number - self.mean)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of all numbers; None without any."""
        return math.sqrt(self._squares / self.count) if self.count else None


@dataclass(slots=True)
class ServerCourse:
    """The history of a server's factor under one setting; `left_ms` has the times until clients left the server."""

    factor: Spread = field(default_factory=Spread)
    left_ms: list[int] = field(default_factory=list)
    has_left: bool = False
    """True if clients have left the server in the current bad spell."""

    @property
    def median_left_ms(self) -> int | None:
        """The median of `left_ms`; None if clients never left the server."""
        return round(median(self.left_ms)) if self.left_ms else None


class Course:
    """A farm's past under one setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.entries = 0
        self.factors_proposed = 0
        self.factor = Spread()
        self.bad_share = Spread()
        """By window: the share of weight at its beginning on servers that were bad in this window."""
        self.servers: dict[int, ServerCourse] = {}
        self._weighing = Weighing(setting)

    def observe(self, row: Row) -> None:
        """Process one row of the log."""
        self._weighing.observe(replace(row, index=2 * row.index))

    def moment_over(self, removed: frozenset[int]) -> Proposal | None:
        """End the current log time; return the proposal that a run would submit now, which takes effect immediately."""
        weighing = self._weighing
        proposal = weighing.propose(removed)
        if proposal is None:
            return None
        self.entries += 1
        self.factors_proposed += len(proposal.factors)
        weighing.submitted()
        through = proposal.through_index
        weighing.observe(FactorsRow(through + 1, weighing.log_time_ms, through, proposal.factors))
        return replace(proposal, through_index=through // 2)

    def leaves(self) -> dict[int, tuple[str, ...]]:
        """Return the leaves of each recorded server; the same under every setting."""
        return self._weighing.leaves()

    def factors(self, leaves: Mapping[int, Sequence[str]], log_time_ms: int) -> dict[int, list[float]]:
        """Return the current factors, by server."""
        current = self._weighing.current
        return {server: [current.at(leaf, log_time_ms) for leaf in own] for server, own in leaves.items() if own}


@dataclass(slots=True)
class _Health:
    """The health of a server, window by window; the same under every setting."""

    is_bad: bool
    fell_ms: int | None = None
    """The beginning of the current bad spell; None without one, or if its beginning is unknown."""
    windows: int = 0
    bad_windows: int = 0
    spells: int = 0


class Past:
    """One farm's past, provided row by row and window by window, in the order of the log.

    Clients leave a server when the mean factor of its leaves is at least `left_at`.
    """

    def __init__(self, settings: Iterable[Setting], left_at: float, removals: Sequence[Removal] = ()) -> None:
        self.courses = [Course(setting) for setting in settings]
        self.health: dict[int, _Health] = {}
        self.bad_share = Spread()
        """The mean share of weight on bad servers without any factors."""
        self.recorded_entries = 0
        self.rows = 0
        self.windows = 0
        self.first_ms: int | None = None
        self.last_ms = 0
        self._moment_ms = 0
        """The current log time, which a correction can set back."""
        self._left_at = left_at
        self._removals = sorted(removals, key=lambda each: each.index, reverse=True)
        self._removed: frozenset[int] = frozenset()
        self._before: tuple[int, list[dict[int, float]]] | None = None
        """The end of the last window, and the weights by server at that time: without factors, then for each course."""

    def observe(self, row: Row) -> None:
        """Process one row of the log."""
        if self.first_ms is None:
            self.first_ms = row.log_time_ms
        elif row.log_time_ms != self._moment_ms:
            self.moment_over()
        self._moment_ms = row.log_time_ms
        self.last_ms = max(self.last_ms, row.log_time_ms)
        self.rows += 1
        while self._removals and self._removals[-1].index <= row.index:
            removal = self._removals.pop()
            self._removed = (
                self._removed | {removal.server_id} if removal.removed else self._removed - {removal.server_id}
            )
        if isinstance(row, FactorsRow):
            self.recorded_entries += 1
            return
        for course in self.courses:
            course.observe(row)

    def window_over(self, window: Window) -> None:
        """End a window, after every row before its end."""
        self.moment_over()
        self.windows += 1
        leaves = {server: own for server, own in self.courses[0].leaves().items() if server not in self._removed}
        self._judge(window, leaves)
        weights = [{server: float(len(own)) for server, own in leaves.items() if own}]
        for course in self.courses:
            factors = course.factors(leaves, window.end_ms)
            self._follow(course, factors, window.end_ms)
            weights.append({server: sum(1 / each for each in own) for server, own in factors.items()})
        self._before = window.end_ms, weights

    def length_ms(self) -> int:
        """Return the length of the provided log time."""
        return 0 if self.first_ms is None else self.last_ms - self.first_ms

    def moment_over(self) -> None:
        """End the current log time, also after the last row."""
        for course in self.courses:
            course.moment_over(self._removed)

    def _judge(self, window: Window, leaves: Mapping[int, Sequence[str]]) -> None:
        """Determine the bad servers, and their share of the weight at the beginning of the window."""
        for server in leaves:
            is_bad = window.is_bad.get(server, True)
            known = self.health.setdefault(server, _Health(is_bad))
            if is_bad and not known.is_bad:
                known.spells += 1
                known.fell_ms = window.start_ms
            elif not is_bad:
                known.fell_ms = None
            known.is_bad = is_bad
            known.windows += 1
            known.bad_windows += is_bad
        for server, known in self.health.items():
            if server not in leaves:
                # The server has expired or was removed. When it returns, it starts from scratch.
                known.is_bad, known.fell_ms = True, None
        if self._before is not None and self._before[0] == window.start_ms:
            shares = (self.bad_share, *(course.bad_share for course in self.courses))
            for share, weights in zip(shares, self._before[1], strict=True):
                whole = sum(weights.values())
                if whole:
                    share.add(sum(each for server, each in weights.items() if window.is_bad.get(server, True)) / whole)

    def _follow(self, course: Course, factors: Mapping[int, Sequence[float]], end_ms: int) -> None:
        for server, own in factors.items():
            factor = sum(own) / len(own)
            course.factor.add(factor)
            known = course.servers.setdefault(server, ServerCourse())
            known.factor.add(factor)
            fell_ms = self.health[server].fell_ms
            if fell_ms is None:
                known.has_left = False
            elif factor >= self._left_at and not known.has_left:
                known.has_left = True
                known.left_ms.append(end_ms - fell_ms)
