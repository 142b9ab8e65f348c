"""The judgment of the leaves: smoothed figures, factors relative to the median, and when they are proposed."""

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
"""What a node adds to an entry: the name of the request."""


class Story:
    """A log in which every server reports once a period."""

    def __init__(self, servers: int = 3) -> None:
        self.weighing = Weighing()
        self.also: Weighing | None = None
        self.index = 0
        self.now_ms = BEGIN_MS
        self.lag_ms: dict[int, float | None] = dict.fromkeys(range(1, servers + 1), 10.0)
        self.ill: set[int] = set()
        self.silent: set[int] = set()
        self.leaves: dict[int, tuple[str, ...]] = {server: (name(server),) for server in self.lag_ms}

    def periods(self, count: int) -> None:
        """So many reporting periods go by."""
        for _ in range(count):
            self.now_ms += PERIOD_MS
            for server, lag_ms in self.lag_ms.items():
                if server not in self.silent:
                    leaves = tuple((leaf, server not in self.ill) for leaf in self.leaves[server])
                    self._next(ReportRow(self._count(), self.now_ms, server, lag_ms, leaves))
            self._next(ClockRow(self._count(), self.now_ms, PERIOD_MS))

    def submit(self, proposal: Proposal) -> bool:
        """The proposal becomes the next entry; whether it counts."""
        before = self.weighing.current.through_index
        self._next(FactorsRow(self._count(), self.now_ms, proposal.through_index, proposal.factors))
        return self.weighing.current.through_index != before

    def factor(self, server: int) -> float:
        """What counts now."""
        return self.weighing.current.at(name(server), self.now_ms)

    def _count(self) -> int:
        self.index += 1
        return self.index

    def _next(self, row: ReportRow | ClockRow | FactorsRow) -> None:
        self.weighing.observe(row)
        if self.also is not None:
            self.also.observe(row)


def name(server: int) -> str:
    return f"leaf-{server}"


def test_a_farm_in_which_all_are_alike_is_left_alone() -> None:
    story = Story()
    story.periods(50)
    assert set(story.weighing.wanted().values()) == {1.0}
    assert story.weighing.propose() is None
    # even if all of them lag: clients must go somewhere
    story.lag_ms = dict.fromkeys(story.lag_ms, 900.0)
    story.periods(50)
    assert story.weighing.propose() is None


@pytest.mark.parametrize("trouble", ["lag", "illness", "silence"])
def test_a_router_in_trouble_rises_above_the_others_and_comes_back(trouble: str) -> None:
    story = Story()
    story.periods(5)
    # when one router is worse than the others for some periods
    if trouble == "lag":
        story.lag_ms[2] = 600.0
    (story.ill if trouble == "illness" else story.silent if trouble == "silence" else set()).add(2)
    story.periods(5)
    wanted = story.weighing.wanted()
    # then its leaf should cost more, and theirs what they did
    assert wanted[name(2)] > 1.2
    assert wanted[name(1)] == wanted[name(3)] == 1.0
    # and when it is well again, the difference fades
    story.lag_ms[2] = 10.0
    story.ill.clear()
    story.silent.clear()
    story.periods(25)
    assert story.weighing.wanted()[name(2)] == pytest.approx(1.0, abs=0.01)


def test_the_first_slow_report_is_enough_for_a_proposal() -> None:
    story = Story()
    story.periods(5)
    story.lag_ms[3] = 500.0
    story.periods(1)
    proposal = story.weighing.propose()
    assert proposal is not None
    assert proposal.factors == {name(3): 1.294}
    assert proposal.through_index == story.index
    assert proposal.entry() == {
        "factors": {"throughIndex": story.index, "formula": "strain-1", "factors": {name(3): 1.294}}
    }


def test_nothing_is_proposed_from_too_little_history() -> None:
    story = Story()
    story.lag_ms[3] = 900.0
    story.periods(2)
    assert story.weighing.propose() is None
    story.periods(1)
    assert story.weighing.propose() is not None


def test_a_change_of_five_percent_or_less_is_not_worth_an_entry() -> None:
    story = Story()
    story.lag_ms[3] = 51.0
    story.periods(10)
    assert story.weighing.wanted()[name(3)] == pytest.approx(1.049, abs=0.001)
    assert story.weighing.propose() is None
    story.lag_ms[3] = 53.0
    story.periods(10)
    assert story.weighing.propose() is not None


def test_between_two_entries_lie_ten_periods_also_after_another_authors() -> None:
    story = Story()
    story.lag_ms[3] = 900.0
    story.periods(5)
    proposal = story.weighing.propose()
    assert proposal is not None
    assert story.submit(proposal)
    story.periods(PRESENT.pause_periods - 1)
    assert story.weighing.propose() is None
    story.periods(1)
    assert story.weighing.propose() is not None
    # a try that came to nothing counts as well
    story.weighing.submitted()
    assert story.weighing.propose() is None


def test_of_two_pipelines_at_one_farm_one_is_accepted_and_both_pause() -> None:
    story, other = Story(), Weighing()
    story.lag_ms[3] = 900.0
    story.also = other
    story.periods(5)
    ours, theirs = story.weighing.propose(), other.propose()
    assert ours == theirs
    assert ours is not None
    assert story.submit(ours)
    assert not story.submit(ours), "what the other one submits"
    assert story.factor(3) == 1.1
    story.periods(PRESENT.pause_periods - 1)
    assert (story.weighing.propose(), other.propose()) == (None, None)


def test_entries_move_a_factor_by_a_tenth_each_until_it_is_where_it_should_be_and_hold_it_there() -> None:
    story = Story()
    story.lag_ms[3] = 400.0
    seen = []
    for _ in range(60):
        story.periods(1)
        proposal = story.weighing.propose()
        if proposal is not None:
            assert story.submit(proposal)
            seen.append(round(story.factor(3), 3))
    assert seen[:4] == [1.1, 1.21, 1.331, 1.464]
    # it would fade if nothing were said: it is said again before much of it is gone
    assert min(seen[3:]) > 1.35
    assert 1.35 < story.factor(3) <= 1.468


def test_the_factors_in_the_log_are_no_figures_to_judge_by() -> None:
    story, undisturbed = Story(), Story()
    for each in (story, undisturbed):
        each.lag_ms[3] = 400.0
        each.periods(5)
    assert story.submit(Proposal(story.index - 1, {name(1): 2.0, name(3): 0.5}))
    undisturbed.periods(5)
    story.periods(5)
    assert story.weighing.wanted() == undisturbed.weighing.wanted()


def test_an_unknown_lag_is_neither_good_nor_bad() -> None:
    story = Story()
    story.lag_ms = dict.fromkeys(story.lag_ms)
    story.periods(10)
    assert set(story.weighing.wanted().values()) == {1.0}


def test_rows_that_were_seen_before_change_nothing() -> None:
    story = Story()
    story.periods(5)
    wanted, through = story.weighing.wanted(), story.weighing.through_index
    story.weighing.observe(ReportRow(through, story.now_ms, 1, 1_000.0, ((name(1), False),)))
    assert (story.weighing.wanted(), story.weighing.through_index) == (wanted, through)


def test_a_report_that_is_in_the_log_again_under_its_request_counts_once() -> None:
    story, undisturbed = Story(), Story()
    for each in (story, undisturbed):
        each.periods(5)
        row = ReportRow(each._count(), each.now_ms, 3, 800.0, ((name(3), True),), "03-1-0-6")
        each._next(row)
    story._next(replace(row, index=story._count()))
    assert story.weighing.wanted() == undisturbed.weighing.wanted()
    story._next(replace(row, index=story._count(), request="03-1-0-10"))
    assert story.weighing.wanted()[name(3)] > undisturbed.weighing.wanted()[name(3)]
    # nor does an older one that is submitted once more, also behind one without a name
    story._next(ReportRow(story._count(), story.now_ms, 3, 10.0, ((name(3), True),)))
    wanted = story.weighing.wanted()
    for request in ("03-1-0-6", "03-1-0-9", "03-1-0-10"):
        story._next(replace(row, index=story._count(), request=request))
    assert story.weighing.wanted() == wanted
    story._next(replace(row, index=story._count(), request="03-2-0-1"))
    assert story.weighing.wanted() != wanted, "a client that began anew counts anew"


def test_a_server_that_is_silent_for_an_hour_is_forgotten() -> None:
    story = Story()
    story.periods(3)
    story.silent.add(3)
    story.periods(121)
    assert sorted(story.weighing.wanted()) == [name(1), name(2)]


def test_no_table_grows_beyond_its_bound() -> None:
    weighing = Weighing()
    for number in range(1, 200):
        leaves = tuple((f"leaf-{number}-{each}", True) for each in range(60))
        weighing.observe(ReportRow(number, BEGIN_MS + number, number, 1.0, leaves))
    assert len(weighing.wanted()) == SERVERS_MAX * 60
    assert f"leaf-{199}-0" in weighing.wanted()


def strained(weighing: Weighing, servers: int, since: int) -> None:
    """A further period, in which every other server lags; each has sixty leaves."""
    for number in range(servers):
        leaves = tuple((f"{number:03}-{each:02}".rjust(52, "a"), True) for each in range(60))
        lag_ms = 400.0 + number if number % 2 else 0.0
        weighing.observe(ReportRow(since + number + 1, BEGIN_MS + since, number, lag_ms, leaves))
    weighing.observe(ClockRow(since + servers + 1, BEGIN_MS + since, PERIOD_MS))


def test_of_thousands_of_leaves_as_many_are_proposed_as_the_farm_has_room_for_and_an_entry_may_hold() -> None:
    weighing, log_index = Weighing(), 0
    for _ in range(4):
        strained(weighing, 50, log_index)
        log_index += 100
    proposal = weighing.propose()
    assert proposal is not None
    assert len(proposal.factors) == LEAVES_MAX
    assert min(proposal.factors.values()) > 1.25, "those that are off most"
    assert len(json.dumps(proposal.entry())) + REQUEST_BYTES <= ENTRY_LIMIT_BYTES
    # and when others are off most, those that the farm has keep their room until they are forgotten
    assert weighing.current.take(FactorsRow(log_index, weighing.log_time_ms, log_index - 1, proposal.factors))
    weighing.observe(ClockRow(log_index + 50, BEGIN_MS + log_index + 400_000, PERIOD_MS))
    again = weighing.propose()
    assert again is not None
    assert again.factors.keys() <= proposal.factors.keys()


def test_a_report_that_names_anothers_leaf_makes_it_no_dearer() -> None:
    story, undisturbed = Story(), Story()
    # when a server that is ill and lags names the leaves of the others as its own
    story.leaves[3] = (name(1), name(2), name(3))
    for each in (story, undisturbed):
        each.lag_ms[3] = 900.0
        each.ill.add(3)
        each.periods(10)
    assert story.weighing.wanted() == undisturbed.weighing.wanted()


@pytest.mark.parametrize("lag_ms", [0.0, 1_000.0])
def test_a_server_has_one_voice_in_the_middle_however_many_leaves_it_names(lag_ms: float) -> None:
    story, undisturbed = Story(servers=5), Story(servers=5)
    for each in (story, undisturbed):
        each.lag_ms |= {1: 100.0, 2: 200.0, 4: 300.0, 5: lag_ms}
    story.leaves[5] = (name(5), *(f"made-up-{number}" for number in range(63)))
    for each in (story, undisturbed):
        each.periods(10)
    wanted = story.weighing.wanted()
    assert {leaf: wanted[leaf] for leaf in undisturbed.weighing.wanted()} == undisturbed.weighing.wanted()


def test_a_removed_server_has_no_voice_in_the_middle_and_no_leaf_of_it_is_named() -> None:
    story, without = Story(servers=3), Story(servers=2)
    for each in (story, without):
        each.lag_ms |= {1: 100.0, 2: 300.0}
    story.lag_ms[3] = 1_000.0
    for each in (story, without):
        each.periods(10)
    assert story.weighing.wanted() != without.weighing.wanted()
    assert story.weighing.wanted({3}) == without.weighing.wanted()
    ours, expected = story.weighing.propose({3}), without.weighing.propose()
    assert ours is not None
    assert expected is not None
    assert ours.factors == expected.factors
    assert story.weighing.wanted({1, 2, 3}) == {}


def test_what_is_written_at_one_moment_of_log_time_is_one_period_however_often() -> None:
    story, undisturbed = Story(), Story()
    for each in (story, undisturbed):
        each.periods(5)
        each.silent.add(3)
        each.periods(2)
    # when a client writes what looks like clock entries, as many as it can
    for _ in range(50):
        story._next(ClockRow(story._count(), story.now_ms, PERIOD_MS))
    assert story.weighing.wanted() == undisturbed.weighing.wanted()
    assert story.weighing.wanted()[name(3)] < 1.2


def test_a_leaf_that_its_server_reports_no_more_is_forgotten_at_once() -> None:
    story = Story()
    story.leaves[3] = (name(3), "another")
    story.periods(5)
    assert "another" in story.weighing.wanted()
    story.leaves[3] = (name(3),)
    story.periods(1)
    assert "another" not in story.weighing.wanted()


def test_when_most_routers_leave_the_others_cost_what_they_did() -> None:
    story = Story(servers=5)
    story.periods(5)
    story.silent |= {3, 4, 5}
    story.periods(30)
    wanted = story.weighing.wanted()
    assert wanted[name(1)] == wanted[name(2)] == 1.0
    assert wanted[name(3)] == pytest.approx(1.4, abs=0.01)


def test_when_no_server_reports_any_more_nothing_is_proposed() -> None:
    story = Story()
    story.lag_ms[3] = 10.0
    story.periods(5)
    story.silent |= {1, 2, 3}
    for _ in range(130):
        story.periods(1)
        assert story.weighing.propose() is None
    assert story.weighing.wanted() == {}


def test_time_without_a_leader_does_not_count_as_silence() -> None:
    story = Story()
    story.periods(5)
    story.now_ms += 3_600_000 // 2
    story._next(ClockRow(story._count(), story.now_ms, PERIOD_MS))
    assert set(story.weighing.wanted().values()) == {1.0}
    for server in (1, 2, 3):
        story._next(ReportRow(story._count(), story.now_ms, server, 10.0, ((name(server), True),)))
        assert story.weighing.propose() is None


@pytest.mark.parametrize("outage_periods", [2, 60, 3_000])
def test_a_server_that_reported_just_before_the_farm_lost_its_leader_is_no_better_than_the_others(
    outage_periods: int,
) -> None:
    story = Story()
    story.periods(5)
    # when one server reports, and then no server leads for a while
    story._next(ReportRow(story._count(), story.now_ms, 1, 10.0, ((name(1), True),)))
    story.now_ms += outage_periods * PERIOD_MS
    story._next(ClockRow(story._count(), story.now_ms, PERIOD_MS))
    # then no cost rises for it, no server is forgotten, and a server that stays away from here on is
    assert story.weighing.wanted() == {name(server): 1.0 for server in (1, 2, 3)}
    assert story.weighing.propose() is None
    story.silent.add(2)
    story.periods(3)
    wanted = story.weighing.wanted()
    assert wanted[name(1)] == wanted[name(3)] == 1.0
    assert wanted[name(2)] > 1.1


@pytest.mark.parametrize("lag_ms", [float("nan"), float("inf"), float("-inf"), -5.0, 1e308])
def test_no_figure_of_a_report_leads_out_of_bounds(lag_ms: float) -> None:
    story = Story()
    story.lag_ms[3] = lag_ms
    story.periods(5)
    story.lag_ms[3] = 10.0
    story.periods(20)
    assert story.weighing.wanted() == {name(server): pytest.approx(1.0, abs=0.01) for server in (1, 2, 3)}


def test_what_counts_is_reckoned_as_the_farm_reckons_it() -> None:
    """`CurrentFactors` beside the state machine's own arithmetic, which is in whole thousandths."""
    random = Random(20261121)
    ours, theirs = CurrentFactors(), farm.Weights()
    now_ms, leaves = BEGIN_MS, [f"leaf-{number}" for number in range(5)]
    for index in range(10, 2_000, 7):
        now_ms += random.choice((1_000, 30_000, 200_000, 700_000))
        said = {leaf: random.choice((0.4, 0.5, 0.9, 1.0, 1.3, 2.0, 2.0)) for leaf in random.sample(leaves, 3)}
        through = random.choice((index - 1, index - 9, index, 0))
        accepted = ours.take(FactorsRow(index, now_ms, through, said))
        theirs, change = farm.take_factors(theirs, Factors(through, "f", said), index, now_ms)
        assert accepted == isinstance(change, farm.FactorsAccepted), (index, said, through, change)
        later_ms = now_ms + random.choice((0, 100_000, 400_000, 800_000))
        for leaf in leaves:
            known = theirs.factors.get(leaf)
            expected = 1_000 if known is None else known.at(later_ms)
            assert ours.at(leaf, later_ms) * 1_000 == pytest.approx(expected, abs=12), (index, leaf)
