"""The pipeline's cost factor for each leaf, derived from the log for the publisher. Pure, without Spark.

    reports, clock entries, factors ──▶ observe ──▶ smoothed figures ──▶ propose ──▶ one `factors` entry, or none

The publisher weighs each report on arrival, by the current figures of the router. The pipeline adds figures that only
history shows: formula `strain-1` in docs/reference/pipeline-sources.md, 'The formula of the factors'. The reasons are
in docs/explanation/pipeline.md, 'Feedback: factors on the costs of leaves'.

`CurrentFactors` models the publisher's steps and the expiry of a factor (docs/reference/publishing-rules.md), from the
`factors` entries in the log. Figures come only from reports and clock entries: a `factors` entry is a request of the
pipeline, not a measurement.

The result depends only on the entries and their log time, in order. After a restart, the pipeline reads the recent
entries again. After a few reporting periods the result is the same as without the restart. Nothing is proposed before
three periods were observed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from bridge.core.state import farm_state
from pipeline.decode.entries import repeats

FORMULA = "strain-1"
LAG_WORST_MS = 1_000.0
LOWEST, HIGHEST = 0.5, 2.0
PAUSE_MAX_MS = 300_000
WARM_PERIODS = 3
PERIOD_DEFAULT_MS = 30_000
PERIOD_MIN_MS, PERIOD_MAX_MS = 500, 600_000

# How the publisher treats factors: bridge/core/log/weights.py, docs/reference/publishing-rules.md.
DAMPING = 0.1
HOLDS_MS = 300_000
ENDS_MS = 600_000

SILENT_MS = 3_600_000
ABSENT = 0.5
SERVERS_MAX = farm_state.SERVERS_MAX
"""The limit of servers in a farm at a time."""
LEAVES_PER_SERVER_MAX = 64
LEAVES_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Setting:
    """The tuning of the formula: a run uses the defaults, and `pipeline what-if` tries others on the past."""

    gain: float = 2.0
    """The rise of a factor for each unit of strain above the *middle*, the servers' median strain."""
    lag_share: float = 0.6
    absence_share: float = 0.2
    illness_share: float = 0.2
    """The shares of lag, absence and illness in the strain; their sum is 1."""
    report_weight: float = 0.5
    period_weight: float = 0.2
    """The weights of a new report, and of a new period, in the smoothed figures."""
    change_min: float = 0.05
    """The relative change of a factor above which an entry is submitted."""
    pause_periods: int = 10
    """The number of reporting periods between two entries; the pause is at most `PAUSE_MAX_MS`."""


PRESENT = Setting()


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A server's report. `leaves` are pairs of a destination's hash and its health.

    The log may hold a report several times under one `request`; the first one counts, as in the farm. The last part of
    `request` numbers the sender's submissions, so a number that is not above the last one is a repetition.
    """

    index: int
    log_time_ms: int
    server_id: int
    job_lag_ms: float | None
    leaves: tuple[tuple[str, bool], ...] = ()
    request: str | None = None


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A leader's clock entry: the end of a reporting period."""

    index: int
    log_time_ms: int
    period_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FactorsRow:
    """A `factors` entry of any author."""

    index: int
    log_time_ms: int
    through_index: int
    factors: Mapping[str, float]


Row = ReportRow | ClockRow | FactorsRow


@dataclass(frozen=True, slots=True)
class Proposal:
    """A submission: `factors` by hash of the leaf, made from the log up to `through_index`."""

    through_index: int
    factors: Mapping[str, float]
    formula: str = FORMULA

    def entry(self) -> dict[str, object]:
        """Return the JSON of the application entry (docs/reference/application-json.md)."""
        body = {"throughIndex": self.through_index, "formula": self.formula, "factors": dict(self.factors)}
        return {"factors": body}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The steps of the formula for a leaf. If several servers report it, the server with the least strain counts."""

    server_id: int
    lag: float
    absence: float
    illness: float
    strain: float
    middle: float
    wanted: float


@dataclass(frozen=True, slots=True)
class _Server:
    lag: float = 0.0
    absence: float = 0.0
    reported_ms: int = 0
    illness: Mapping[str, float] = field(default_factory=dict)
    """The smoothed illness of each leaf in the server's last report."""
    request: str | None = None
    """The request of the server's last report."""
    reported: bool = True
    """True if the server has reported since the last clock entry."""

    def strains(self, setting: Setting) -> dict[str, float]:
        """Return the strain of each leaf of the server."""
        shared = setting.lag_share * self.lag + setting.absence_share * self.absence
        return {leaf: shared + setting.illness_share * illness for leaf, illness in self.illness.items()}


@dataclass(slots=True)
class CurrentFactors:
    """The current factors, computed like the publisher's."""

    through_index: int = 0
    latest_factors: dict[str, tuple[float, int]] = field(default_factory=dict)
    """The factor of each leaf with an entry, and the log time of the entry."""

    def at(self, leaf: str, log_time_ms: int) -> float:
        """Return the factor on this leaf's cost."""
        factor, proposed_ms = self.latest_factors.get(leaf, (1.0, log_time_ms))
        left_ms = min(ENDS_MS - HOLDS_MS, max(0, ENDS_MS - (log_time_ms - proposed_ms)))
        return 1.0 + (factor - 1.0) * left_ms / (ENDS_MS - HOLDS_MS)

    def active_leaves(self, log_time_ms: int) -> set[str]:
        """Return the leaves whose factor has not faded to 1."""
        return {leaf for leaf, (_, proposed_ms) in self.latest_factors.items() if log_time_ms - proposed_ms < ENDS_MS}

    def turn_back(self, by_ms: int) -> None:
        """Keep the ages of the factors when log time has been set back by so much."""
        self.latest_factors = {leaf: (factor, at_ms - by_ms) for leaf, (factor, at_ms) in self.latest_factors.items()}

    def damped(self, leaf: str, factor: float, log_time_ms: int) -> float:
        """Return the factor of the leaf after an entry with `factor`: the change is at most `DAMPING`."""
        now = self.at(leaf, log_time_ms)
        return min(max(factor, now * (1 - DAMPING)), now * (1 + DAMPING))

    def take(self, row: FactorsRow) -> bool:
        """Apply an entry of the log; return True if it was accepted."""
        proper = all(LOWEST <= factor <= HIGHEST for factor in row.factors.values())
        if not proper or not self.through_index < row.through_index < row.index:
            return False
        moved = {leaf: self.damped(leaf, factor, row.log_time_ms) for leaf, factor in row.factors.items()}
        kept = {leaf: each for leaf, each in self.latest_factors.items() if row.log_time_ms - each[1] < ENDS_MS}
        together = kept | {leaf: (factor, row.log_time_ms) for leaf, factor in moved.items()}
        if len(together) > LEAVES_MAX:
            return False
        self.latest_factors, self.through_index = together, row.through_index
        return True


class Weighing:
    """The current smoothed figures, and the resulting factors."""

    def __init__(self, setting: Setting = PRESENT) -> None:
        self.setting = setting
        self.current = CurrentFactors()
        self.through_index = 0
        self._servers: dict[int, _Server] = {}
        self.log_time_ms = 0
        self._period_ms = PERIOD_DEFAULT_MS
        self._periods = 0
        self._clock_ms: int | None = None
        self._last_entry_ms: int | None = None

    def observe(self, row: Row) -> None:
        """Process one row; rows arrive in order of index, and repeated ones are skipped."""
        if row.index <= self.through_index:
            return
        self.through_index = row.index
        if row.log_time_ms < self.log_time_ms:
            self._turn_back(self.log_time_ms - row.log_time_ms)
        self.log_time_ms = row.log_time_ms
        match row:
            case ReportRow():
                self._report(row)
            case ClockRow():
                self._clock(row)
            case FactorsRow():
                # A refused entry also starts the pause, because otherwise its author would immediately submit it again.
                self.current.take(row)
                self._last_entry_ms = row.log_time_ms

    def _turn_back(self, by_ms: int) -> None:
        """Keep all ages when a correction has set log time back by so much."""
        self.current.turn_back(by_ms)
        if self._clock_ms is not None:
            self._clock_ms -= by_ms
        if self._last_entry_ms is not None:
            self._last_entry_ms -= by_ms
        self._servers = {
            server_id: replace(server, reported_ms=server.reported_ms - by_ms)
            for server_id, server in self._servers.items()
        }

    def wanted(self, removed: Collection[int] = ()) -> dict[str, float]:
        """Return the factor of each leaf by the formula, as if the `removed` servers had never reported."""
        return {leaf: each.wanted for leaf, each in self.inputs(removed).items()}

    def inputs(self, removed: Collection[int] = ()) -> dict[str, Inputs]:
        """Return the factor of each leaf, with the figures that determine it."""
        counted = {server_id: each for server_id, each in self._servers.items() if server_id not in removed}
        least: dict[str, tuple[float, int]] = {}
        for server_id, server in counted.items():
            for leaf, strain in server.strains(self.setting).items():
                least[leaf] = min((strain, server_id), least.get(leaf, (strain, server_id)))
        if not least:
            return {}
        middle, found = _middle(counted.values(), self.setting), dict[str, Inputs]()
        for leaf, (strain, server_id) in sorted(least.items()):
            wanted = round(min(HIGHEST, max(LOWEST, 1 + self.setting.gain * (strain - middle))), 3)
            server = counted[server_id]
            found[leaf] = Inputs(server_id, server.lag, server.absence, server.illness[leaf], strain, middle, wanted)
        return found

    def propose(self, removed: Collection[int] = ()) -> Proposal | None:
        """Return the submission due now, or None; the farm does not count the reports of the `removed` servers."""
        if self._periods < WARM_PERIODS or not self._pause_is_over():
            return None
        now_ms, current = self.log_time_ms, self.current
        factors = {
            leaf: factor
            for leaf, factor in self.wanted(removed).items()
            if factor != 1 or abs(current.at(leaf, now_ms) - 1) >= self.setting.change_min / 10
        }
        moves = {
            leaf: abs(current.damped(leaf, factor, now_ms) / current.at(leaf, now_ms) - 1)
            for leaf, factor in factors.items()
        }
        active_leaves = current.active_leaves(now_ms)
        newcomers = sorted(moves.keys() - active_leaves, key=lambda leaf: (-moves[leaf], -abs(factors[leaf] - 1), leaf))
        for leaf in newcomers[LEAVES_MAX - len(active_leaves) :]:
            del factors[leaf], moves[leaf]
        if max(moves.values(), default=0) <= self.setting.change_min:
            return None
        return Proposal(self.through_index, factors)

    def leaves(self) -> dict[int, tuple[str, ...]]:
        """Return the leaves of each recorded server."""
        return {server_id: tuple(server.illness) for server_id, server in self._servers.items()}

    def submitted(self) -> None:
        """Start the pause before the next proposal, regardless of the result of this one."""
        self._last_entry_ms = self.log_time_ms

    def _pause_is_over(self) -> bool:
        pause_ms = min(PAUSE_MAX_MS, self.setting.pause_periods * self._period_ms)
        return self._last_entry_ms is None or self.log_time_ms - self._last_entry_ms >= pause_ms

    def _report(self, row: ReportRow) -> None:
        known = self._servers.get(row.server_id)
        if known is not None and repeats(row.request or "", known.request or ""):
            return
        before = _Server() if known is None else known
        lag = None if row.job_lag_ms is None else min(1.0, max(0.0, row.job_lag_ms / LAG_WORST_MS))
        illness = {}
        for leaf, healthy in row.leaves[:LEAVES_PER_SERVER_MAX]:
            illness_now = 0.0 if healthy else 1.0
            was = before.illness.get(leaf, illness_now)
            illness[leaf] = was + self.setting.report_weight * (illness_now - was)
        self._servers[row.server_id] = replace(
            before,
            lag=(lag or 0.0) if known is None else _smoothed(before.lag, lag, self.setting.report_weight),
            reported_ms=row.log_time_ms,
            illness=illness,
            request=row.request or before.request,
            reported=True,
        )
        self._forget()

    def _clock(self, row: ClockRow) -> None:
        if row.period_ms is not None and PERIOD_MIN_MS <= row.period_ms <= PERIOD_MAX_MS:
            self._period_ms = row.period_ms
        if self._clock_ms is not None and row.log_time_ms <= self._clock_ms:
            return  # all clock entries at one log time are one period
        self._periods += 1
        patience_ms, unproven_ms = self._period_ms * 3 // 2, self._unproven_ms(row.log_time_ms)
        self._clock_ms = row.log_time_ms
        for server_id, server in self._servers.items():
            reported_ms = server.reported_ms + unproven_ms
            # Reports and clock entries have separate intervals, so a report may come just after a clock entry.
            present = server.reported or row.log_time_ms - reported_ms <= patience_ms
            absence = server.absence + self.setting.period_weight * ((0.0 if present else 1.0) - server.absence)
            self._servers[server_id] = replace(server, absence=absence, reported_ms=reported_ms, reported=False)
        self._forget()

    def _unproven_ms(self, log_time_ms: int) -> int:
        """Return the part of an advance of log time that does not count as any server's absence, by the farm's rule.

        Without a leader no report is committed. If that time counted, a server whose report was committed just before
        would look healthier than the others.
        """
        advance_ms = 0 if self._clock_ms is None else log_time_ms - self._clock_ms
        return advance_ms - self._period_ms if advance_ms > self._period_ms * 3 // 2 else 0

    def _forget(self) -> None:
        """Remove servers without a report for an hour, and the servers with the oldest reports above the limit."""
        oldest_ms = self.log_time_ms - SILENT_MS
        reported = {server_id: server.reported_ms for server_id, server in self._servers.items()}
        if len(reported) > SERVERS_MAX or min(reported.values(), default=oldest_ms) < oldest_ms:
            newest = sorted(reported, key=lambda server_id: (reported[server_id], server_id), reverse=True)[
                :SERVERS_MAX
            ]
            self._servers = {each: self._servers[each] for each in newest if reported[each] >= oldest_ms}


def _middle(servers: Collection[_Server], setting: Setting) -> float:
    speaking = [server for server in servers if server.illness]
    present = [server for server in speaking if server.absence <= ABSENT]
    return median(median(server.strains(setting).values()) for server in present or speaking)


def _smoothed(before: float, figure: float | None, weight: float) -> float:
    return before if figure is None else before + weight * (figure - before)
