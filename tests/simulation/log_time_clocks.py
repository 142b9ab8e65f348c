"""Log time with wrong clocks: the state machine and the servers' estimates, without a network.

`python -m tests.simulation log-time --seeds 1000`. Each seed is a farm of 3 to 7 voters, and of observers with false
reports. Fewer than half of the voters are wrong at any time. A wrong clock jumps (up to 90 days either way) or drifts,
or its server reports false times. As leader, such a server also writes clock entries that are far ahead, many in a row,
or at the limit. A voter with a corrected clock counts as wrong until its last wrong reading is obsolete. Leaders
change, servers crash and restart, and sometimes the complete farm is off for up to 90 days. Otherwise a majority of the
voters is up.

    ahead     log time is at most the allowance and `SKEW_MS` ahead of the true time
    late      log time is below the true time by a period and the tolerance for dates at most. This applies from two
              periods and 6 s after the election of a leader that does not lie, regardless of its clock. It applies
              while a majority of the voters is up with right clocks
    publish   under the conditions of `late`, no right clock counts as off, and at some time a server publishes

The true time is simulated time; right clocks are within `SKEW_MS` of it.
"""

import argparse
import heapq
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from unittest.mock import patch

from bridge.core.log.records import Clock
from bridge.core.log.voter_clocks import READING_CLOCK_ENTRIES, VoterClocks, allowance_ms, time_of_majorities
from bridge.core.state.farm_state import FarmTuning
from bridge.core.state.log_time import LogTime
from tests.authored import AuthoredFarm
from tests.spec.farm_stories import BASE_MS, MASTER, report

SKEW_MS = 1_000
LATENCY_MS = 1_500
DAY_MS = 86_400_000
PERIODS = 100
OBSERVERS = 4
LOG_TIME_LAG_MS = 20_000


class BrokenPromiseError(AssertionError):
    """A guarantee of the farm about its time was broken; the text contains the seed."""


@dataclass
class Server:
    """One machine. `wrong` is the state of its clock: right (empty), "jumped", "drifting" or "lying"."""

    server_id: int
    skew_ms: int
    reckoning: LogTime
    wrong: str = ""
    offset_ms: int = 0
    drift: float = 0.0
    since: int = 0
    alive: bool = True
    tainted_until: int = 0
    """Number of the clock entry that makes its last wrong reading obsolete."""

    def clock_ms(self, now: int, random: Random) -> int:
        """Return the reported time of its clock."""
        if self.wrong == "lying":
            return BASE_MS + now + random.choice((0, DAY_MS, -DAY_MS, 30_000, -30_000, 10**6))
        drifted = int(self.drift * (now - self.since)) if self.wrong == "drifting" else 0
        return BASE_MS + now + self.skew_ms + (self.offset_ms if self.wrong else 0) + drifted


@dataclass(order=True)
class Due:
    """A scheduled action."""

    at: int
    order: int
    act: Callable[[], None] = field(compare=False)


class World:
    """The farm of one seed."""

    def __init__(self, seed: int, voters: int | None = None) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        count = voters or random.choice((3, 3, 4, 5, 7))
        self.period_ms = random.choice((2_000, 30_000, 30_000, 60_000, 600_000))
        self.tuning = FarmTuning(period_ms=self.period_ms)
        self.voters = tuple(range(1, count + 1))
        all_ids = tuple(range(1, count + OBSERVERS + 1))
        self.farm = AuthoredFarm(BASE_MS, self.tuning, tuple(each.to_bytes(8) for each in all_ids))
        self.farm.configure(1, 1, (self.voters,))
        self.servers = {
            each: Server(each, random.randint(-SKEW_MS, SKEW_MS) // 2, self._reckoning(0)) for each in all_ids
        }
        for each in all_ids[count:]:
            self.servers[each].wrong = "lying"
        self.now, self.term, self.index, self.leader, self.led_since = 0, 1, 1, 1, 0
        self.order = 0
        self.due: list[Due] = []
        self.leadership = 0
        self.published = 0

    def _reckoning(self, now: int) -> LogTime:
        return LogTime(self.farm.state.log_time_ms, now, self.period_ms)

    # -- the schedule --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all periods; raises `BrokenPromiseError`."""
        self._elect()
        for each in self.servers:
            self._at(self.random.randint(0, self.period_ms), self._reporting(each))
        self._at(3 * self.period_ms, self._chaos)
        end = PERIODS * self.period_ms
        passed = 0
        while passed < end:
            due = heapq.heappop(self.due)
            passed += due.at - self.now
            self.now = due.at
            due.act()
            self._check()
        if self.published == 0:
            raise BrokenPromiseError(f"seed {self.seed}: no node ever could publish")

    def _at(self, after_ms: int, act: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.due, Due(self.now + after_ms, self.order, act))

    def _elect(self) -> None:
        self.term += 1
        self.leadership += 1
        self.leader = self.random.choice([each for each in self.voters if self.servers[each].alive])
        self.led_since = self.now
        self._lead(self.leadership)()
        for each, server in self.servers.items():
            if server.alive:
                self._at(self.random.randint(1, LATENCY_MS), partial(self._report, each))

    def _lead(self, leadership: int) -> Callable[[], None]:
        def act() -> None:
            if leadership == self.leadership:
                self._write_clock()
                self._at(self.period_ms, act)

        return act

    def _reporting(self, server_id: int) -> Callable[[], None]:
        def act() -> None:
            if self.servers[server_id].alive:
                self._report(server_id)
            self._at(int(self.period_ms * self.random.uniform(0.9, 1.0)), act)

        return act

    def _report(self, server_id: int) -> None:
        server = self.servers[server_id]
        latency_ms = self.random.randint(0, min(LATENCY_MS, self.period_ms // 4))
        date_ms = max(0, server.clock_ms(self.now - latency_ms, self.random))
        self._append(report(server_id, date_ms))
        clean = not server.wrong
        entries = self.farm.state.clocks.clock_entries
        server.tainted_until = 0 if clean else entries + READING_CLOCK_ENTRIES + 1
        for each in self.servers.values():
            each.reckoning.report_applied(server_id, date_ms, self.now)
        leader = self.servers[self.leader]
        own = (self.now, leader.clock_ms(self.now, self.random), self.leader, self.farm.state.clocks)
        if leader.reckoning.step_due(*own, self._limit()):
            self._write_clock()

    def _limit(self) -> int | None:
        return self.farm.state.clocks.limit_ms(self.term, self.period_ms)

    def _write_clock(self) -> None:
        leader = self.servers[self.leader]
        if leader.wrong == "lying":
            limit_ms = self._limit() or 0
            far_ms = BASE_MS + self.now + 10 * DAY_MS
            for _ in range(self.random.choice((0, 1, 1, 30))):
                lie_ms = self.random.choice((far_ms, limit_ms, limit_ms + 1, self.farm.state.log_time_ms + 5_000))
                self._write(lie_ms)
            return
        own = (self.now, leader.clock_ms(self.now, self.random), self.leader, self.farm.state.clocks)
        self._write(leader.reckoning.next_entry(*own, self._limit()))

    def _write(self, time_ms: int) -> None:
        before_ms = self.farm.state.log_time_ms
        self._append(Clock(max(0, time_ms), self.leader, self.period_ms))
        log_time_ms = self.farm.state.log_time_ms
        for each, server in self.servers.items():
            server.reckoning.clock_applied(log_time_ms, self.now)
            own = self.farm.state.servers.get(each)
            lags = server.clock_ms(self.now, self.random) - log_time_ms > LOG_TIME_LAG_MS
            if server.alive and log_time_ms != before_ms and (lags or (own is not None and own.clock_off)):
                self._at(self.random.randint(1, LATENCY_MS), partial(self._report, each))

    def _append(self, record: object) -> None:
        self.index += 1
        self.farm.apply(self.index, self.term, record)  # type: ignore[arg-type]  # reports and clock entries

    # -- faults --------------------------------------------------------------------------------------------------------

    def _chaos(self) -> None:
        act = self.random.choice(
            (self._elect, self._go_wrong, self._go_wrong, self._correct_clock, self._crash, self._restart)
        )
        act()
        if self.random.random() < 0.02:
            self._switch_off()
        self._at(self.random.randint(1, 4 * self.period_ms), self._chaos)

    def _unreliable(self) -> set[int]:
        """Return the voters that are wrong, or have a wrong reading that still counts."""
        entries = self.farm.state.clocks.clock_entries
        return {each for each in self.voters if self.servers[each].wrong or self.servers[each].tainted_until > entries}

    def _go_wrong(self) -> None:
        unreliable = self._unreliable()
        dead = {each for each in self.voters if not self.servers[each].alive}
        right = [each for each in self.voters if each not in unreliable | dead]
        if not right or 2 * len(unreliable) + 2 >= len(self.voters):
            return
        server = self.servers[self.random.choice(right)]
        server.wrong, server.since = self.random.choice(("jumped", "jumped", "drifting", "lying")), self.now
        far_ms = self.random.choice((60_000, 10**6, 90 * DAY_MS))
        server.offset_ms = self.random.choice((-1, 1)) * far_ms if server.wrong == "jumped" else 0
        server.drift = self.random.uniform(-0.2, 0.2)

    def _correct_clock(self) -> None:
        wrong = [each for each in self.voters if self.servers[each].wrong]
        if wrong:
            self.servers[self.random.choice(wrong)].wrong = ""

    def _crash(self) -> None:
        alive = [each for each in self.voters if self.servers[each].alive]
        if 2 * (len(alive) - 1) <= len(self.voters):
            return
        crashing = self.servers[self.random.choice([each for each in alive if self.servers[each].wrong] or alive)]
        crashing.alive = False
        # Its clock is corrected while it is down; its last reading remains valid.
        crashing.wrong = ""
        if crashing.server_id == self.leader:
            self._elect()

    def _restart(self) -> None:
        dead = [each for each in self.voters if not self.servers[each].alive]
        if dead:
            server = self.servers[self.random.choice(dead)]
            server.alive, server.reckoning = True, self._reckoning(self.now)
            self._at(self.random.randint(1, LATENCY_MS), lambda: self._report(server.server_id))

    def _switch_off(self) -> None:
        off_ms = self.random.randint(1, 90) * DAY_MS
        self.due = [Due(each.at + off_ms, each.order, each.act) for each in self.due]
        heapq.heapify(self.due)
        self.now += off_ms
        for server in self.servers.values():
            server.reckoning = self._reckoning(self.now)
        self._elect()

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        state, true_ms = self.farm.state, BASE_MS + self.now
        ahead_ms = state.log_time_ms - true_ms
        where = f"seed {self.seed}, {self.now} ms, term {self.term}, period {self.period_ms} ms"
        if ahead_ms > allowance_ms(self.period_ms) + SKEW_MS:
            raise BrokenPromiseError(f"{where}: log time is {ahead_ms} ms ahead of the true time")
        leader = self.servers[self.leader]
        right = {each for each in self.voters if self.servers[each].alive} - self._unreliable()
        if leader.wrong == "lying" or 2 * len(right) <= len(self.voters):
            self.led_since = self.now
        settled_ms = 2 * self.period_ms + 4 * LATENCY_MS
        if self.now - self.led_since < settled_ms:
            return
        if -ahead_ms > self.period_ms + self.tuning.clock_tolerance_ms:
            raise BrokenPromiseError(f"{where}: log time is {-ahead_ms} ms below the true time")
        for each in self.voters:
            known = state.servers.get(each)
            reported = not self.servers[each].tainted_until
            if (
                each in right
                and reported
                and known is not None
                and known.clock_off
                and known.reported_ms > BASE_MS + self.led_since
            ):
                raise BrokenPromiseError(f"{where}: the right clock of server {each} counts as off")
        self.published += state.masters[MASTER].choice.server_id is not None


# -- mutants -----------------------------------------------------------------------------------------------------------


def _stale_readings(clocks: VoterClocks, term: int) -> int | None:
    del term
    return _time(clocks.majorities, {each: reading.date_ms for each, reading in clocks.readings.items()})


def _of_any_sender(clocks: VoterClocks, server_id: int, date_ms: int, term: int) -> VoterClocks:
    counted = VoterClocks(clocks.vouched_ms, (*clocks.majorities, (server_id,)), clocks.readings, clocks.clock_entries)
    after = _reported(counted, server_id, date_ms, term)
    return VoterClocks(after.vouched_ms, clocks.majorities, after.readings, after.clock_entries)


def _greatest_of_all(majorities: tuple[tuple[int, ...], ...], times_ms: dict[int, int]) -> int | None:
    voters = majorities[0] if majorities else ()
    reached = sorted(times_ms.values(), reverse=True)
    return reached[len(voters) // 2] if len(reached) > len(voters) // 2 else None


def _no_majority_no_bound(clocks: VoterClocks, term: int, period_ms: int) -> int | None:
    majority_ms = clocks.majority_ms(term)
    return None if majority_ms is None else max(clocks.vouched_ms, majority_ms) + allowance_ms(period_ms)


def _own_clock(
    reckoning: LogTime, now: int, clock_ms: int, server_id: int, clocks: VoterClocks, limit_ms: int | None
) -> int:
    del server_id, clocks
    time_ms = max(reckoning._log_time_ms, clock_ms if limit_ms is None else min(clock_ms, limit_ms))
    reckoning._written = (time_ms, now)
    return time_ms


def _one_is_enough(majorities: tuple[tuple[int, ...], ...], times_ms: dict[int, int]) -> int | None:
    voters = {each for majority in majorities for each in majority}
    return max((time_ms for each, time_ms in times_ms.items() if each in voters), default=None)


def _budget_for_each(clocks: VoterClocks, term: int) -> VoterClocks:
    after = _written(clocks, term)
    return VoterClocks(after.vouched_ms + allowance_ms(2_000), after.majorities, after.readings, after.clock_entries)


_time = time_of_majorities
_reported, _written = VoterClocks.reported, VoterClocks.clock_written
_CLOCKS = "bridge.core.log.voter_clocks"

MUTANTS: dict[str, dict[str, object]] = {
    "one voter is enough": {f"{_CLOCKS}.time_of_majorities": _one_is_enough},
    "stale readings count": {f"{_CLOCKS}.VoterClocks.majority_ms": _stale_readings},
    "without a majority nothing bounds": {f"{_CLOCKS}.VoterClocks.limit_ms": _no_majority_no_bound},
    "each entry has an allowance of its own": {f"{_CLOCKS}.VoterClocks.clock_written": _budget_for_each},
    "the leader follows its own clock": {"bridge.core.state.log_time.LogTime.next_entry": _own_clock},
    "observers are witnesses": {
        f"{_CLOCKS}.VoterClocks.reported": _of_any_sender,
        f"{_CLOCKS}.time_of_majorities": _greatest_of_all,
    },
}


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Plant a bug in one of the farm's rules."""
    patches = [patch(target, replacement) for target, replacement in (MUTANTS[name] if name else {}).items()]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def first_broken(seeds: range, mutant: str | None = None) -> str | None:
    """Return the error of the first seed that breaks a guarantee, or None."""
    with mutated(mutant):
        for seed in seeds:
            try:
                World(seed).run()
            except BrokenPromiseError as error:
                return str(error)
    return None


def main(arguments: list[str]) -> int:
    """Run the command; return 1 if a guarantee was broken, or a mutant was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation log-time", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mutants", action="store_true", help="plant each bug and search for it")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.mutants:
        found = {name: first_broken(seeds, name) for name in MUTANTS}
        sys.stdout.write("".join(f"{name}: {how or 'NOT FOUND'}\n" for name, how in found.items()))
        return int(None in found.values())
    broken = first_broken(seeds)
    sys.stdout.write(f"{broken or f'{options.seeds} seeds from {options.first}: log time stayed within its bounds'}\n")
    return int(broken is not None)
