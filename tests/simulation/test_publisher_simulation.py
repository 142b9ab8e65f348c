"""A farm's log written by three servers: reports and clock entries at any phase, with jitter, and a failing publisher.

The network and Raft are omitted. Log time is constant between clock entries, so only the relative times of reports,
clock entries and a failure matter. Time is simulated; a failure names its seed.
"""

from random import Random

from bridge.core.log.records import Clock
from bridge.core.publishing.publisher_election import PublisherChanged
from bridge.core.state.farm_state import FarmTuning
from bridge.core.state.log_time import LogTime
from tests.authored import AuthoredFarm
from tests.effort import over_seeds
from tests.spec.farm_stories import BASE_MS, MASTER, report

SERVERS = (1, 2, 3)
TUNING = FarmTuning(period_ms=2_000)
PERIODS = 60


class Writers:
    """Three servers that report and a leader that writes clock entries, each at its own phase with 10 % of jitter."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.farm = AuthoredFarm(BASE_MS, TUNING, tuple(b"founder%d" % each for each in SERVERS))
        self.log_time = LogTime(BASE_MS, 0, TUNING.period_ms)
        self.skew_ms = {server_id: self.random.randint(-2_000, 2_000) for server_id in SERVERS}
        self.due = {writer: self.random.randint(0, TUNING.period_ms) for writer in (0, *SERVERS)}
        self.dead: set[int] = set()
        self.index = 0
        self.moves: list[tuple[int, PublisherChanged]] = []

    def run_until(self, end: int) -> None:
        """Write due entries in order."""
        while min(self.due.values()) < end:
            writer = min(self.due, key=lambda each: (self.due[each], each))
            now = self.due[writer]
            jitter_ms = self.random.randint(-TUNING.period_ms // 10, TUNING.period_ms // 10)
            self.due[writer] = now + TUNING.period_ms + jitter_ms
            if writer not in self.dead:
                self._write(writer, now)

    def _write(self, writer: int, now: int) -> None:
        self.index += 1
        clock_ms = BASE_MS + now + self.skew_ms.get(writer, 0)
        if writer == 0:
            clocks = self.farm.state.clocks
            limit_ms = clocks.limit_ms(1, TUNING.period_ms)
            time_ms = self.log_time.next_entry(now, clock_ms + self.skew_ms[1], 1, clocks, limit_ms)
            changes = self.farm.apply(self.index, 1, Clock(time_ms, 1))
            self.log_time.clock_applied(self.farm.state.log_time_ms, now)
        else:
            lag_ms = self.random.uniform(0, 250)
            changes = self.farm.apply(self.index, 1, report(writer, clock_ms, job_lag_ms=lag_ms))
            self.log_time.report_applied(writer, clock_ms, now)
        self.moves += [(now, change) for change in changes if isinstance(change, PublisherChanged)]

    @property
    def publisher(self) -> int | None:
        return self.farm.state.masters[MASTER].choice.server_id


@over_seeds(60)
def test_publisher_running_is_not_replaced(seed: int) -> None:
    writers = Writers(seed)
    writers.skew_ms = dict.fromkeys(SERVERS, 0)
    writers.run_until(PERIODS * TUNING.period_ms)
    assert len(writers.moves) == 1, f"seed {seed}: {writers.moves}"


@over_seeds(60)
def test_publisher_dead_is_replaced_within_three_periods(seed: int) -> None:
    writers = Writers(seed)
    writers.skew_ms = dict.fromkeys(SERVERS, 0)
    death = 10 * TUNING.period_ms + writers.random.randint(0, TUNING.period_ms)
    writers.run_until(death)
    dead = writers.publisher
    assert dead is not None
    writers.dead.add(dead)
    writers.run_until(death + 3 * TUNING.period_ms)
    assert writers.publisher not in {dead, None}, f"seed {seed}"


@over_seeds(60)
def test_publisher_with_skewed_clocks_does_not_alternate(seed: int) -> None:
    """A wrong clock within tolerance may cause one change of the publisher, but the publisher never alternates."""
    writers = Writers(seed)
    writers.run_until(PERIODS * TUNING.period_ms)
    late = [move for now, move in writers.moves if now > PERIODS * TUNING.period_ms // 2]
    assert writers.publisher is not None, f"seed {seed}"
    assert len(late) <= 1, f"seed {seed}: {late}"
