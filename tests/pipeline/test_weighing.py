"""Weights of the leaves: smoothed figures, factors relative to the median, and the conditions of a proposal.

`Story` is a log with one report per server and period; a test changes lag, health and reports of its servers.
"""

import json
from dataclasses import replace
from random import Random

import pytest

from bridge.core.log import weights as farm
from bridge.core.log.fields import ENTRY_LIMIT_BYTES
from bridge.core.log.records import Factors
from pipeline.feedback.weighing import (
    LEAVES_MAX,
    PRESENT,
    SERVERS_MAX,
    ClockRow,
    CurrentFactors,
    FactorsRow,
    Proposal,
    ReportRow,
    Weighing,
)

PERIOD_MS = 30_000
BEGIN_MS = 1_767_225_600_000
REQUEST_BYTES = 150
"""Bytes that a node adds to an entry: the request id."""


class Story:
    """A log with one report per server and period."""

    def __init__(self, servers: int = 3) -> None:
        self.weighing = Weighing()
        self.second: Weighing | None = None
        self.index = 0
        self.now_ms = BEGIN_MS
        self.lag_ms: dict[int, float | None] = dict.fromkeys(range(1, servers + 1), 10.0)
        self.unhealthy: set[int] = set()
        self.unresponsive: set[int] = set()
        self.leaves: dict[int, tuple[str, ...]] = {server: (name(server),) for server in self.lag_ms}

    def pass_periods(self, count: int) -> None:
        """Let reporting periods pass."""
        for _ in range(count):
            self.now_ms += PERIOD_MS
            for server, lag_ms in self.lag_ms.items():
                if server not in self.unresponsive:
                    leaves = tuple((leaf, server not in self.unhealthy) for leaf in self.leaves[server])
                    self._next(ReportRow(self._count(), self.now_ms, server, lag_ms, leaves))
            self._next(ClockRow(self._count(), self.now_ms, PERIOD_MS))

    def submit(self, proposal: Proposal) -> bool:
        """Append the proposal as an entry; return True if it is accepted."""
        before = self.weighing.current.through_index
        self._next(FactorsRow(self._count(), self.now_ms, proposal.through_index, proposal.factors))
        return self.weighing.current.through_index != before

    def factor(self, server: int) -> float:
        """Return the current factor of a server's leaf."""
        return self.weighing.current.at(name(server), self.now_ms)

    def _count(self) -> int:
        self.index += 1
        return self.index

    def _next(self, row: ReportRow | ClockRow | FactorsRow) -> None:
        self.weighing.observe(row)
        if self.second is not None:
            self.second.observe(row)


def name(server: int) -> str:
    return f"leaf-{server}"


def test_equal_servers_keep_factor_one() -> None:
    story = Story()
    story.pass_periods(50)
    assert set(story.weighing.wanted().values()) == {1.0}
    assert story.weighing.propose() is None
    # A lag of all servers does not matter: clients must use some leaf.
    story.lag_ms = dict.fromkeys(story.lag_ms, 900.0)
    story.pass_periods(50)
    assert story.weighing.propose() is None


@pytest.mark.parametrize("problem", ["lag", "unhealthy", "absent"])
def test_bad_router_gets_temporary_factor(problem: str) -> None:
    story = Story()
    story.pass_periods(5)
    # when one router is worse than the others for some periods
    if problem == "lag":
        story.lag_ms[2] = 600.0
    (story.unhealthy if problem == "unhealthy" else story.unresponsive if problem == "absent" else set()).add(2)
    story.pass_periods(5)
    targets = story.weighing.wanted()
    # then its leaf costs more, and the other leaves cost the same
    assert targets[name(2)] > 1.2
    assert targets[name(1)] == targets[name(3)] == 1.0
    # when it recovers, the difference fades
    story.lag_ms[2] = 10.0
    story.unhealthy.clear()
    story.unresponsive.clear()
    story.pass_periods(25)
    assert story.weighing.wanted()[name(2)] == pytest.approx(1.0, abs=0.01)


def test_first_slow_report_causes_proposal() -> None:
    story = Story()
    story.pass_periods(5)
    story.lag_ms[3] = 500.0
    story.pass_periods(1)
    proposal = story.weighing.propose()
    assert proposal is not None
    assert proposal.factors == {name(3): 1.294}
    assert proposal.through_index == story.index
    assert proposal.entry() == {
        "factors": {"throughIndex": story.index, "formula": "strain-1", "factors": {name(3): 1.294}}
    }


def test_proposal_requires_three_periods() -> None:
    story = Story()
    story.lag_ms[3] = 900.0
    story.pass_periods(2)
    assert story.weighing.propose() is None
    story.pass_periods(1)
    assert story.weighing.propose() is not None


def test_proposal_requires_change_above_five_percent() -> None:
    story = Story()
    story.lag_ms[3] = 51.0
    story.pass_periods(10)
    assert story.weighing.wanted()[name(3)] == pytest.approx(1.049, abs=0.001)
    assert story.weighing.propose() is None
    story.lag_ms[3] = 53.0
    story.pass_periods(10)
    assert story.weighing.propose() is not None


def test_proposals_are_ten_periods_apart() -> None:
    story = Story()
    story.lag_ms[3] = 900.0
    story.pass_periods(5)
    proposal = story.weighing.propose()
    assert proposal is not None
    assert story.submit(proposal)
    story.pass_periods(PRESENT.pause_periods - 1)
    assert story.weighing.propose() is None
    story.pass_periods(1)
    assert story.weighing.propose() is not None
    # a failed submission also starts the pause
    story.weighing.submitted()
    assert story.weighing.propose() is None


def test_second_pipeline_pauses_after_accepted_entry() -> None:
    story, other = Story(), Weighing()
    story.lag_ms[3] = 900.0
    story.second = other
    story.pass_periods(5)
    ours, theirs = story.weighing.propose(), other.propose()
    assert ours == theirs
    assert ours is not None
    assert story.submit(ours)
    assert not story.submit(ours), "the submission of the other pipeline"
    assert story.factor(3) == 1.1
    story.pass_periods(PRESENT.pause_periods - 1)
    assert (story.weighing.propose(), other.propose()) == (None, None)


def test_factor_reaches_target_in_steps_and_is_renewed() -> None:
    story = Story()
    story.lag_ms[3] = 400.0
    seen = []
    for _ in range(60):
        story.pass_periods(1)
        proposal = story.weighing.propose()
        if proposal is not None:
            assert story.submit(proposal)
            seen.append(round(story.factor(3), 3))
    assert seen[:4] == [1.1, 1.21, 1.331, 1.464]
    # Without a new entry the factor would fade. It is submitted again before it fades much.
    assert min(seen[3:]) > 1.35
    assert 1.35 < story.factor(3) <= 1.468


def test_factors_in_log_do_not_affect_judgment() -> None:
    story, undisturbed = Story(), Story()
    for each in (story, undisturbed):
        each.lag_ms[3] = 400.0
        each.pass_periods(5)
    assert story.submit(Proposal(story.index - 1, {name(1): 2.0, name(3): 0.5}))
    undisturbed.pass_periods(5)
    story.pass_periods(5)
    assert story.weighing.wanted() == undisturbed.weighing.wanted()


def test_unknown_lag_is_neutral() -> None:
    story = Story()
    story.lag_ms = dict.fromkeys(story.lag_ms)
    story.pass_periods(10)
    assert set(story.weighing.wanted().values()) == {1.0}


def test_repeated_rows_are_ignored() -> None:
    story = Story()
    story.pass_periods(5)
    targets, through = story.weighing.wanted(), story.weighing.through_index
    story.weighing.observe(ReportRow(through, story.now_ms, 1, 1_000.0, ((name(1), False),)))
    assert (story.weighing.wanted(), story.weighing.through_index) == (targets, through)


def test_resubmitted_report_counts_once() -> None:
    story, undisturbed = Story(), Story()
    for each in (story, undisturbed):
        each.pass_periods(5)
        row = ReportRow(each._count(), each.now_ms, 3, 800.0, ((name(3), True),), "03-1-0-6")
        each._next(row)
    story._next(replace(row, index=story._count()))
    assert story.weighing.wanted() == undisturbed.weighing.wanted()
    story._next(replace(row, index=story._count(), request="03-1-0-10"))
    assert story.weighing.wanted()[name(3)] > undisturbed.weighing.wanted()[name(3)]
    # an older report is also ignored if it is repeated after a report without a request id
    story._next(ReportRow(story._count(), story.now_ms, 3, 10.0, ((name(3), True),)))
    targets = story.weighing.wanted()
    for request in ("03-1-0-6", "03-1-0-9", "03-1-0-10"):
        story._next(replace(row, index=story._count(), request=request))
    assert story.weighing.wanted() == targets
    story._next(replace(row, index=story._count(), request="03-2-0-1"))
    assert story.weighing.wanted() != targets, "a new run of a client starts a new count"


def test_server_without_reports_for_one_hour_is_dropped() -> None:
    story = Story()
    story.pass_periods(3)
    story.unresponsive.add(3)
    story.pass_periods(121)
    assert sorted(story.weighing.wanted()) == [name(1), name(2)]


def test_tables_are_bounded() -> None:
    weighing = Weighing()
    for number in range(1, 200):
        leaves = tuple((f"leaf-{number}-{each}", True) for each in range(60))
        weighing.observe(ReportRow(number, BEGIN_MS + number, number, 1.0, leaves))
    assert len(weighing.wanted()) == SERVERS_MAX * 60
    assert f"leaf-{199}-0" in weighing.wanted()


def observe_strained_period(weighing: Weighing, servers: int, since: int) -> None:
    """Add a period with a lag of every second server. Each server has sixty leaves."""
    for number in range(servers):
        leaves = tuple((f"{number:03}-{each:02}".rjust(52, "a"), True) for each in range(60))
        lag_ms = 400.0 + number if number % 2 else 0.0
        weighing.observe(ReportRow(since + number + 1, BEGIN_MS + since, number, lag_ms, leaves))
    weighing.observe(ClockRow(since + servers + 1, BEGIN_MS + since, PERIOD_MS))


def test_proposal_is_limited_to_most_different_leaves() -> None:
    weighing, log_index = Weighing(), 0
    for _ in range(4):
        observe_strained_period(weighing, 50, log_index)
        log_index += 100
    proposal = weighing.propose()
    assert proposal is not None
    assert len(proposal.factors) == LEAVES_MAX
    assert min(proposal.factors.values()) > 1.25, "only the leaves with the largest factors"
    assert len(json.dumps(proposal.entry())) + REQUEST_BYTES <= ENTRY_LIMIT_BYTES
    # leaves with a factor in the farm keep their place until the factor expires
    assert weighing.current.take(FactorsRow(log_index, weighing.log_time_ms, log_index - 1, proposal.factors))
    weighing.observe(ClockRow(log_index + 50, BEGIN_MS + log_index + 400_000, PERIOD_MS))
    again = weighing.propose()
    assert again is not None
    assert again.factors.keys() <= proposal.factors.keys()


def test_report_with_leaf_of_other_server_does_not_change_it() -> None:
    story, undisturbed = Story(), Story()
    # when a bad server reports the leaves of the others as its own
    story.leaves[3] = (name(1), name(2), name(3))
    for each in (story, undisturbed):
        each.lag_ms[3] = 900.0
        each.unhealthy.add(3)
        each.pass_periods(10)
    assert story.weighing.wanted() == undisturbed.weighing.wanted()


@pytest.mark.parametrize("lag_ms", [0.0, 1_000.0])
def test_server_counts_once_in_median_regardless_of_leaves(lag_ms: float) -> None:
    story, undisturbed = Story(servers=5), Story(servers=5)
    for each in (story, undisturbed):
        each.lag_ms |= {1: 100.0, 2: 200.0, 4: 300.0, 5: lag_ms}
    story.leaves[5] = (name(5), *(f"made-up-{number}" for number in range(63)))
    for each in (story, undisturbed):
        each.pass_periods(10)
    targets = story.weighing.wanted()
    assert {leaf: targets[leaf] for leaf in undisturbed.weighing.wanted()} == undisturbed.weighing.wanted()


def test_removed_server_does_not_affect_median() -> None:
    story, without = Story(servers=3), Story(servers=2)
    for each in (story, without):
        each.lag_ms |= {1: 100.0, 2: 300.0}
    story.lag_ms[3] = 1_000.0
    for each in (story, without):
        each.pass_periods(10)
    assert story.weighing.wanted() != without.weighing.wanted()
    assert story.weighing.wanted({3}) == without.weighing.wanted()
    ours, expected = story.weighing.propose({3}), without.weighing.propose()
    assert ours is not None
    assert expected is not None
    assert ours.factors == expected.factors
    assert story.weighing.wanted({1, 2, 3}) == {}


def test_clock_entries_of_one_moment_count_as_one_period() -> None:
    story, undisturbed = Story(), Story()
    for each in (story, undisturbed):
        each.pass_periods(5)
        each.unresponsive.add(3)
        each.pass_periods(2)
    # when a client writes many entries that look like clock entries
    for _ in range(50):
        story._next(ClockRow(story._count(), story.now_ms, PERIOD_MS))
    assert story.weighing.wanted() == undisturbed.weighing.wanted()
    assert story.weighing.wanted()[name(3)] < 1.2


def test_unreported_leaf_is_dropped_immediately() -> None:
    story = Story()
    story.leaves[3] = (name(3), "another")
    story.pass_periods(5)
    assert "another" in story.weighing.wanted()
    story.leaves[3] = (name(3),)
    story.pass_periods(1)
    assert "another" not in story.weighing.wanted()


def test_present_servers_keep_factor_when_most_are_absent() -> None:
    story = Story(servers=5)
    story.pass_periods(5)
    story.unresponsive |= {3, 4, 5}
    story.pass_periods(30)
    targets = story.weighing.wanted()
    assert targets[name(1)] == targets[name(2)] == 1.0
    assert targets[name(3)] == pytest.approx(1.4, abs=0.01)


def test_farm_without_reports_is_left_unchanged() -> None:
    story = Story()
    story.lag_ms[3] = 10.0
    story.pass_periods(5)
    story.unresponsive |= {1, 2, 3}
    for _ in range(130):
        story.pass_periods(1)
        assert story.weighing.propose() is None
    assert story.weighing.wanted() == {}


def test_time_without_leader_does_not_count_as_absence() -> None:
    story = Story()
    story.pass_periods(5)
    story.now_ms += 3_600_000 // 2
    story._next(ClockRow(story._count(), story.now_ms, PERIOD_MS))
    assert set(story.weighing.wanted().values()) == {1.0}
    for server in (1, 2, 3):
        story._next(ReportRow(story._count(), story.now_ms, server, 10.0, ((name(server), True),)))
        assert story.weighing.propose() is None


def test_correction_of_log_time_keeps_all_ages() -> None:
    story = Story()
    story.lag_ms[3] = 900.0
    story.pass_periods(5)
    proposal = story.weighing.propose()
    assert proposal is not None
    assert story.submit(proposal)
    story.now_ms -= 40 * 86_400_000
    story.pass_periods(PRESENT.pause_periods)
    assert story.factor(3) == 1.1
    assert story.weighing.propose() is None, "the period with the correction does not count"
    story.pass_periods(1)
    assert story.weighing.propose() is not None
    story.unresponsive.add(1)
    story.pass_periods(20)
    assert story.weighing.inputs()[name(1)].absence > 0.9
    assert story.factor(3) == 1.0, "a factor expires"


@pytest.mark.parametrize("outage_periods", [2, 60, 3_000])
def test_report_before_leaderless_time_does_not_improve_factor(
    outage_periods: int,
) -> None:
    story = Story()
    story.pass_periods(5)
    # when one server reports, and the farm is then without a leader for a while
    story._next(ReportRow(story._count(), story.now_ms, 1, 10.0, ((name(1), True),)))
    story.now_ms += outage_periods * PERIOD_MS
    story._next(ClockRow(story._count(), story.now_ms, PERIOD_MS))
    # then no cost rises, and no server is dropped; a server absent from now on gets a factor
    assert story.weighing.wanted() == {name(server): 1.0 for server in (1, 2, 3)}
    assert story.weighing.propose() is None
    story.unresponsive.add(2)
    story.pass_periods(3)
    targets = story.weighing.wanted()
    assert targets[name(1)] == targets[name(3)] == 1.0
    assert targets[name(2)] > 1.1


@pytest.mark.parametrize("lag_ms", [float("nan"), float("inf"), float("-inf"), -5.0, 1e308])
def test_extreme_lag_stays_within_bounds(lag_ms: float) -> None:
    story = Story()
    story.lag_ms[3] = lag_ms
    story.pass_periods(5)
    story.lag_ms[3] = 10.0
    story.pass_periods(20)
    assert story.weighing.wanted() == {name(server): pytest.approx(1.0, abs=0.01) for server in (1, 2, 3)}


def test_current_factors_match_farm_arithmetic() -> None:
    """The farm computes in whole thousandths, so the results may differ by 12 thousandths."""
    random = Random(20261121)
    ours, theirs = CurrentFactors(), farm.Weights()
    now_ms, leaves = BEGIN_MS, [f"leaf-{number}" for number in range(5)]
    for index in range(10, 2_000, 7):
        now_ms += random.choice((1_000, 30_000, 200_000, 700_000))
        factors = {leaf: random.choice((0.4, 0.5, 0.9, 1.0, 1.3, 2.0, 2.0)) for leaf in random.sample(leaves, 3)}
        through = random.choice((index - 1, index - 9, index, 0))
        accepted = ours.take(FactorsRow(index, now_ms, through, factors))
        theirs, change = farm.take_factors(theirs, Factors(through, "f", factors), index, now_ms)
        assert accepted == isinstance(change, farm.FactorsAccepted), (index, factors, through, change)
        later_ms = now_ms + random.choice((0, 100_000, 400_000, 800_000))
        for leaf in leaves:
            known = theirs.factors.get(leaf)
            expected = 1_000 if known is None else known.at(later_ms)
            assert ours.at(leaf, later_ms) * 1_000 == pytest.approx(expected, abs=12), (index, leaf)
