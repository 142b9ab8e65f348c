"""What the pipeline makes of the log for the publisher: a factor on the cost of each leaf. Pure; no Spark in here.

    reports, clock entries, factors ──▶ observe ──▶ smoothed figures ──▶ propose ──▶ one `factors` entry, or nothing

The publisher weighs each report as it comes, by what the router says of this moment. The pipeline adds what only a
history shows. Formula `strain-1`:

    lag           smoothed job lag of the leaf's server, in seconds, at most 1          each report counts one half
    absence       share of reporting periods without a report of the server             each period counts one fifth
    illness       share of reports in which the leaf was not healthy                    each report counts one half
    strain        0.6 lag + 0.2 absence + 0.2 illness                                   0 … 1
    wanted        1 + 2 (strain - median strain of all leaves),  within 0.5 … 2

It is relative to the median, because clients must go somewhere: were all of a farm strained, dearer entries all around
would say nothing. What a destination carries (bandwidth, connections, tunnels) is left out, because the publisher's
cost has it already; counted here once more, later and for longer, it would be what makes a feedback loop swing: clients
keep the structure for minutes, so they come back when the load that drove them away is long over. Of the lag a part
remains that load causes; the smoothing, the publisher's damping and the pause between two entries are what calms that.

*When an entry is proposed.* The publisher moves a factor by a tenth an entry and forgets it within ten minutes
(docs/publisher.md); `Standing` reckons with both, from the `factors` entries that it sees in the log. A proposal is due
when some leaf's factor is off by more than 5 % from where an entry would bring it, but not sooner than ten reporting
periods (five minutes with the usual 30 s, and never longer) after the last entry. Figures come from reports and clock
entries only: an entry of ours says what we wanted, and taking it for a figure would be listening to our own voice.

All of it follows from the entries and their log time, in order. Started anew and shown the recent past again, the
judgement is the same but for the first periods; who remembers nothing proposes nothing before three periods have gone.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median
from typing import TypeVar

FORMULA = "strain-1"
LAG_SHARE, ABSENCE_SHARE, ILLNESS_SHARE = 0.6, 0.2, 0.2
LAG_WORST_MS = 1_000.0
REPORT_WEIGHT = 0.5
PERIOD_WEIGHT = 0.2
GAIN = 2.0
LOWEST, HIGHEST = 0.5, 2.0
CHANGE_MIN = 0.05
PAUSE_PERIODS = 10
PAUSE_MAX_MS = 300_000
WARM_PERIODS = 3
PERIOD_DEFAULT_MS = 30_000
PERIOD_MIN_MS, PERIOD_MAX_MS = 500, 600_000

# How the publisher treats factors: bridge/core/weights.py, docs/publisher.md.
DAMPING = 0.1
HOLDS_MS = 300_000
ENDS_MS = 600_000

SILENT_MS = 3_600_000
SERVERS_MAX = 64
LEAVES_MAX = 1_024


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A server's report. `leaves` are pairs of a destination's hash and whether it was healthy."""

    index: int
    log_time_ms: int
    server_id: int
    job_lag_ms: float | None
    leaves: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A leader's clock entry: a reporting period is over."""

    index: int
    log_time_ms: int
    period_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FactorsRow:
    """A `factors` entry, whoever submitted it."""

    index: int
    log_time_ms: int
    through_index: int
    factors: Mapping[str, float]


Row = ReportRow | ClockRow | FactorsRow


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to submit: `factors` by hash of the leaf, made from the log up to `through_index`."""

    through_index: int
    factors: Mapping[str, float]
    formula: str = FORMULA

    def entry(self) -> dict[str, object]:
        """The JSON of the application entry (docs/application-json.md)."""
        body = {"throughIndex": self.through_index, "formula": self.formula, "factors": dict(self.factors)}
        return {"factors": body}


@dataclass(frozen=True, slots=True)
class _Server:
    lag: float = 0.0
    absence: float = 0.0
    heard_ms: int = 0
    reported: bool = True
    """Since the last clock entry."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    server_id: int
    illness: float
    heard_ms: int


K = TypeVar("K", int, str)
H = TypeVar("H", _Server, _Leaf)


@dataclass(slots=True)
class Standing:
    """The factors that count now, as the publisher reckons them."""

    through_index: int = 0
    said: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Factor and log time of saying, of each leaf that has one."""

    def at(self, leaf: str, log_time_ms: int) -> float:
        """The factor on this leaf's cost."""
        factor, said_ms = self.said.get(leaf, (1.0, log_time_ms))
        left_ms = min(ENDS_MS - HOLDS_MS, max(0, ENDS_MS - (log_time_ms - said_ms)))
        return 1.0 + (factor - 1.0) * left_ms / (ENDS_MS - HOLDS_MS)

    def brought_to(self, leaf: str, wanted: float, log_time_ms: int) -> float:
        """Where an entry that says `wanted` would bring it."""
        now = self.at(leaf, log_time_ms)
        return min(max(wanted, now * (1 - DAMPING)), now * (1 + DAMPING))

    def take(self, row: FactorsRow) -> bool:
        """An entry of the log; whether it was accepted."""
        proper = all(LOWEST <= factor <= HIGHEST for factor in row.factors.values())
        if not proper or not self.through_index < row.through_index < row.index:
            return False
        moved = {leaf: self.brought_to(leaf, wanted, row.log_time_ms) for leaf, wanted in row.factors.items()}
        kept = {leaf: said for leaf, said in self.said.items() if row.log_time_ms - said[1] < ENDS_MS}
        together = kept | {leaf: (factor, row.log_time_ms) for leaf, factor in moved.items()}
        if len(together) > LEAVES_MAX:
            return False
        self.said, self.through_index = together, row.through_index
        return True


class Weighing:
    """The judgement so far."""

    def __init__(self) -> None:
        self.standing = Standing()
        self.through_index = 0
        self._servers: dict[int, _Server] = {}
        self._leaves: dict[str, _Leaf] = {}
        self.log_time_ms = 0
        self._period_ms = PERIOD_DEFAULT_MS
        self._periods = 0
        self._last_entry_ms: int | None = None

    def observe(self, row: Row) -> None:
        """Take one row; rows come in order of index, and what was seen before is skipped."""
        if row.index <= self.through_index:
            return
        self.through_index = row.index
        self.log_time_ms = max(self.log_time_ms, row.log_time_ms)
        match row:
            case ReportRow():
                self._report(row)
            case ClockRow():
                self._clock(row)
            case FactorsRow():
                # A refused one counts for the pause as well: who submits it would only submit it again.
                self.standing.take(row)
                self._last_entry_ms = row.log_time_ms

    def wanted(self) -> dict[str, float]:
        """The factor that each leaf should have by the formula."""
        strains = {
            name: LAG_SHARE * server.lag + ABSENCE_SHARE * server.absence + ILLNESS_SHARE * leaf.illness
            for name, leaf in sorted(self._leaves.items())
            if (server := self._servers.get(leaf.server_id)) is not None
        }
        if not strains:
            return {}
        middle = median(strains.values())
        return {
            name: round(min(HIGHEST, max(LOWEST, 1 + GAIN * (strain - middle))), 3) for name, strain in strains.items()
        }

    def propose(self) -> Proposal | None:
        """What to submit now, if anything."""
        if self._periods < WARM_PERIODS or not self._pause_is_over():
            return None
        now_ms, standing = self.log_time_ms, self.standing
        factors = {
            leaf: wanted
            for leaf, wanted in self.wanted().items()
            if wanted != 1 or abs(standing.at(leaf, now_ms) - 1) >= CHANGE_MIN / 10
        }
        moves = (
            abs(standing.brought_to(leaf, wanted, now_ms) / standing.at(leaf, now_ms) - 1)
            for leaf, wanted in factors.items()
        )
        if max(moves, default=0) <= CHANGE_MIN:
            return None
        return Proposal(self.through_index, factors)

    def submitted(self) -> None:
        """A proposal is on its way: not sooner than after a pause the next one, whatever becomes of it."""
        self._last_entry_ms = self.log_time_ms

    def _pause_is_over(self) -> bool:
        pause_ms = min(PAUSE_MAX_MS, PAUSE_PERIODS * self._period_ms)
        return self._last_entry_ms is None or self.log_time_ms - self._last_entry_ms >= pause_ms

    def _report(self, row: ReportRow) -> None:
        known = self._servers.get(row.server_id)
        lag = None if row.job_lag_ms is None else min(1.0, max(0.0, row.job_lag_ms / LAG_WORST_MS))
        if known is None:
            self._servers[row.server_id] = _Server(lag=lag or 0.0, heard_ms=row.log_time_ms)
        else:
            smoothed = known.lag if lag is None else known.lag + REPORT_WEIGHT * (lag - known.lag)
            self._servers[row.server_id] = replace(known, lag=smoothed, heard_ms=row.log_time_ms, reported=True)
        for name, healthy in row.leaves:
            before = self._leaves.get(name)
            ill = 0.0 if healthy else 1.0
            illness = ill if before is None else before.illness + REPORT_WEIGHT * (ill - before.illness)
            self._leaves[name] = _Leaf(row.server_id, illness, row.log_time_ms)
        self._forget()

    def _clock(self, row: ClockRow) -> None:
        if row.period_ms is not None and PERIOD_MIN_MS <= row.period_ms <= PERIOD_MAX_MS:
            self._period_ms = row.period_ms
        self._periods += 1
        for server_id, server in self._servers.items():
            # Reports and clock entries come at their own pace, so one may miss the other by a moment.
            present = server.reported or row.log_time_ms - server.heard_ms <= self._period_ms * 3 // 2
            absence = server.absence + PERIOD_WEIGHT * ((0.0 if present else 1.0) - server.absence)
            self._servers[server_id] = replace(server, absence=absence, reported=False)
        self._forget()

    def _forget(self) -> None:
        """Who is silent for an hour is gone; of too many, those that were heard longest ago."""
        oldest_ms = self.log_time_ms - SILENT_MS
        if any(server.heard_ms < oldest_ms for server in self._servers.values()) or len(self._servers) > SERVERS_MAX:
            self._servers = _newest(self._servers, oldest_ms, SERVERS_MAX)
        if any(leaf.heard_ms < oldest_ms for leaf in self._leaves.values()) or len(self._leaves) > LEAVES_MAX:
            self._leaves = _newest(self._leaves, oldest_ms, LEAVES_MAX)


def _newest(table: dict[K, H], oldest_ms: int, limit: int) -> dict[K, H]:
    heard = sorted(((each.heard_ms, name) for name, each in table.items() if each.heard_ms >= oldest_ms), reverse=True)
    return {name: table[name] for _, name in heard[:limit]}


@lru_cache(maxsize=8192)
def leaf_hash(destination: str) -> str | None:
    """Base32 of the SHA-256 of a destination in I2P's base64, as the farm names a leaf; None if it is none."""
    try:
        content = base64.b64decode(destination, altchars=b"-~", validate=True)
    except ValueError:
        return None
    return base64.b32encode(hashlib.sha256(content).digest()).decode("ascii").rstrip("=").lower()
