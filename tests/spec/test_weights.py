"""What operators and the pipeline add to the reports: obeyed at once, or bounded, damped and forgotten."""

from dataclasses import replace

import pytest

from bridge.core.farm.operator_commands import PublicationForced
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import FACTORS_MAX, CostFactor, Exclusion, Factors, Force, Publication, PublishConfig
from bridge.core.log.weights import (
    COST_FACTORS_MAX,
    COST_MAX,
    EXCLUSIONS_MAX,
    FACTOR_ENDS_MS,
    FACTOR_HOLDS_MS,
    CommandRefused,
    CostFactorChanged,
    ExclusionChanged,
    FactorsAccepted,
)
from bridge.core.publishing.publication import Pace, plan_publication
from bridge.core.state.farm_state import FarmTuning
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, Log, leaf, report

ONE, TWO = hash_of("leaf01"), hash_of("leaf02")
PACE = Pace()
MARGIN = FarmTuning().cost_margin


def two_leaves(load: float = 0.4) -> Log:
    """A farm of two healthy servers; each leaf has a load of 20 (a perfectly idle router, bandwidth 40 %, …)."""
    log = Log()
    log.append(*(report(each, destinations=(leaf(f"leaf{each:02}", load=load),)) for each in (1, 2)))
    return log


def alive(log: Log, after_ms: int, load: float = 0.4) -> None:
    """Log time goes on, and both servers go on reporting."""
    while log.farm.state.log_time_ms < BASE_MS + after_ms:
        now_ms = min(log.farm.state.log_time_ms + PERIOD_MS, BASE_MS + after_ms)
        log.append(*(report(each, now_ms, destinations=(leaf(f"leaf{each:02}", load=load),)) for each in (1, 2)))
        log.leap(now_ms - BASE_MS)


def factor_of(log: Log, leaf_hash: str = ONE) -> int:
    """The pipeline's factor that counts now, in thousandths."""
    weights = log.farm.state.weights
    return weights.factors[leaf_hash].at(log.farm.state.log_time_ms) if leaf_hash in weights.factors else 1_000


def factors(log: Log, **changes: object) -> Factors:
    """An entry of a pipeline that has read the whole log."""
    made: dict[str, object] = {"through_index": len(log.records), "formula": "f", "factors": {ONE: 2.0}}
    return Factors(**(made | changes))  # type: ignore[arg-type]  # the names are the fields'


# -- exclusion ---------------------------------------------------------------------------------------------------------


def test_an_excluded_leaf_is_listed_nowhere_at_once_and_again_when_it_is_let_in() -> None:
    log = two_leaves()
    assert log.append(Exclusion(ONE, excluded=True)) == [ExclusionChanged(ONE, excluded=True)]
    assert log.leaves.keys() == {"leaf02"}
    assert log.append(Exclusion(ONE, excluded=True)) == []
    assert log.append(Exclusion(ONE, excluded=False)) == [ExclusionChanged(ONE, excluded=False)]
    assert log.leaves.keys() == {"leaf01", "leaf02"}


def test_an_excluded_leaf_stays_out_although_all_others_are_ill() -> None:
    log = two_leaves()
    log.append(Exclusion(ONE, excluded=True), report(2, destinations=(leaf("leaf02", healthy=False),)))
    assert log.leaves.keys() == {"leaf02"}


def test_an_exclusion_that_would_leave_nothing_to_list_is_refused() -> None:
    log = two_leaves()
    log.append(Exclusion(ONE, excluded=True))
    [refused] = log.append(Exclusion(TWO, excluded=True))
    assert isinstance(refused, CommandRefused)
    assert "no leaf would remain" in refused.reason
    assert log.farm.state.weights.excluded == (ONE,)
    assert log.leaves.keys() == {"leaf02"}


def test_a_hash_that_no_node_reports_yet_may_be_excluded_in_advance() -> None:
    log = two_leaves()
    log.append(Exclusion(hash_of("leaf03"), excluded=True), report(3))
    assert log.leaves.keys() == {"leaf01", "leaf02"}


def test_exclusions_are_limited() -> None:
    log = two_leaves()
    log.append(*(Exclusion(hash_of(f"gone{each}"), excluded=True) for each in range(EXCLUSIONS_MAX)))
    [refused] = log.append(Exclusion(ONE, excluded=True))
    assert isinstance(refused, CommandRefused)
    assert str(EXCLUSIONS_MAX) in refused.reason


# -- operators' factors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "cost"), [(1, 20), (1.2, 28), (2, 60), (10, COST_MAX), (0.75, 10), (0.1, 0)])
def test_an_operators_factor_shows_at_once_however_small(factor: float, cost: int) -> None:
    log = two_leaves()
    log.append(CostFactor(ONE, factor))
    assert log.leaves == {"leaf01": cost, "leaf02": 20}


def test_an_idle_leaf_becomes_dearer_too() -> None:
    log = two_leaves(load=0)
    assert log.append(CostFactor(ONE, 3)) == [CostFactorChanged(ONE, 3_000)]
    assert log.leaves == {"leaf01": 40, "leaf02": 0}


def test_a_factor_of_one_takes_the_last_one_back() -> None:
    log = two_leaves()
    log.append(CostFactor(ONE, 3), CostFactor(ONE, 1))
    assert log.leaves == {"leaf01": 20, "leaf02": 20}
    assert not log.farm.state.weights.costs


@pytest.mark.parametrize("factor", [0, -1, 0.0999, 10.01, float("nan"), float("inf")])
def test_an_operators_factor_out_of_bounds_is_refused(factor: float) -> None:
    log = two_leaves()
    [refused] = log.append(CostFactor(ONE, factor))
    assert refused == CommandRefused("cost", f"the factor {factor:g} is not within 0.1 to 10")
    assert log.leaves == {"leaf01": 20, "leaf02": 20}


def test_operators_factors_are_limited() -> None:
    log = two_leaves()
    log.append(*(CostFactor(hash_of(f"gone{each}"), 2) for each in range(COST_FACTORS_MAX)))
    [refused] = log.append(CostFactor(ONE, 2))
    assert isinstance(refused, CommandRefused)
    assert refused.kind == "cost"


def test_a_leaf_that_is_not_healthy_is_never_cheaper_than_a_healthy_one_whatever_the_factors() -> None:
    log = Log()
    log.append(
        report(1, destinations=(leaf("leaf01", load=1), leaf("leaf03", healthy=False), leaf("leaf04", healthy=False))),
        CostFactor(ONE, 10),
        CostFactor(hash_of("leaf03"), 0.1),
    )
    assert log.leaves == {"leaf01": COST_MAX, "leaf03": COST_MAX, "leaf04": COST_MAX}


# -- the pipeline's factors --------------------------------------------------------------------------------------------


def test_a_factor_moves_by_a_tenth_with_each_entry_until_it_is_what_the_pipeline_says() -> None:
    log = two_leaves()
    assert log.append(factors(log)) == [FactorsAccepted(2, 1)]
    moved = [factor_of(log)]
    while factor_of(log) < 2_000:
        log.append(factors(log))
        moved.append(factor_of(log))
    assert moved == [1_100, 1_210, 1_331, 1_464, 1_610, 1_771, 1_948, 2_000]
    log.append(factors(log, factors={ONE: 0.5}))
    assert factor_of(log) == 1_800


def test_a_lower_factor_is_damped_as_well() -> None:
    log = two_leaves()
    moved = []
    while factor_of(log) > 500:
        log.append(factors(log, factors={ONE: 0.5}))
        moved.append(factor_of(log))
    assert moved == [900, 810, 729, 657, 592, 533, 500]


def test_costs_follow_the_factor_once_that_makes_a_difference_of_the_margin() -> None:
    log = two_leaves()
    costs = []
    for _ in range(8):
        log.append(factors(log))
        costs.append(log.leaves["leaf01"])
    assert costs == [20, 20, 33, 33, 44, 44, 57, 57]
    assert log.leaves["leaf02"] == 20


def test_a_factor_holds_for_five_minutes_and_is_gone_ten_minutes_after_it_was_said() -> None:
    log = two_leaves()
    for _ in range(3):
        log.append(factors(log))
    assert factor_of(log) == 1_331
    alive(log, FACTOR_HOLDS_MS)
    assert factor_of(log) == 1_331
    alive(log, (FACTOR_HOLDS_MS + FACTOR_ENDS_MS) // 2)
    assert factor_of(log) == 1_165
    alive(log, FACTOR_ENDS_MS)
    assert factor_of(log) == 1_000
    assert not log.farm.state.weights.factors
    assert log.leaves["leaf01"] in range(11, 30), "within the margin of a load of 20"


def test_a_farm_whose_pipeline_is_silent_is_as_it_was_before_there_was_one() -> None:
    log, without = two_leaves(), two_leaves()
    log.append(factors(log, factors={ONE: 1.05}))
    for each in (log, without):
        alive(each, FACTOR_ENDS_MS)
    assert log.farm.state.masters == without.farm.state.masters


def test_a_pipeline_that_fell_silent_leaves_nothing_behind_but_a_cost_within_the_margin() -> None:
    log, without = two_leaves(), two_leaves()
    # given a pipeline that made a leaf dearer, and the same farm that never had one
    for _ in range(5):
        log.append(factors(log))
    assert log.leaves["leaf01"] >= without.leaves["leaf01"] + 2 * MARGIN
    # when it is silent for ten minutes
    for each in (log, without):
        alive(each, FACTOR_ENDS_MS)
    assert not log.farm.state.weights.factors
    assert abs(log.leaves["leaf01"] - without.leaves["leaf01"]) < MARGIN
    # then from the next change on both are the same
    for each in (log, without):
        alive(each, FACTOR_ENDS_MS + 2 * PERIOD_MS, load=1.0)
    assert log.farm.state.masters == without.farm.state.masters


def test_leaves_that_an_entry_does_not_name_keep_their_factor_and_its_age() -> None:
    log = two_leaves()
    log.append(factors(log))
    alive(log, FACTOR_HOLDS_MS)
    log.append(factors(log, factors={TWO: 0.9}))
    assert (factor_of(log, ONE), factor_of(log, TWO)) == (1_100, 900)
    alive(log, FACTOR_ENDS_MS)
    assert (factor_of(log, ONE), factor_of(log, TWO)) == (1_000, 900)


def test_an_entry_that_knows_no_more_than_the_last_one_is_refused() -> None:
    log = two_leaves()
    entry = factors(log)
    log.append(entry)
    [refused] = log.append(entry)
    assert refused == CommandRefused("factors", "made from the log up to 2; one from up to 2 was accepted")
    assert factor_of(log) == 1_100


def test_an_entry_that_claims_to_know_what_comes_after_it_is_refused() -> None:
    log = two_leaves()
    [refused] = log.append(factors(log, through_index=3))
    assert refused == CommandRefused("factors", "it claims to know the log up to 3, and is itself the entry 3")


@pytest.mark.parametrize("factor", [0.499, 2.001, -1, float("nan"), float("inf")])
def test_one_factor_out_of_bounds_refuses_the_whole_entry(factor: float) -> None:
    log = two_leaves()
    [refused] = log.append(factors(log, factors={ONE: 1.1, TWO: factor}))
    assert refused == CommandRefused("factors", f"the factor {factor:g} of {TWO[:8]} is not within 0.5 to 2")
    assert not log.farm.state.weights.factors


def test_factors_are_limited_and_those_that_faded_make_room() -> None:
    log = two_leaves()
    log.append(factors(log, factors={hash_of(f"gone{each}"): 1.1 for each in range(FACTORS_MAX)}))
    [refused] = log.append(factors(log))
    assert isinstance(refused, CommandRefused)
    alive(log, FACTOR_ENDS_MS)
    assert log.append(factors(log)) == [FactorsAccepted(len(log.records) - 1, 1)]


def test_both_factors_are_multiplied() -> None:
    log = two_leaves()
    log.append(CostFactor(ONE, 2), factors(log, through_index=1), factors(log))
    assert factor_of(log) == 1_210
    # (20 + 20) x 2 x 1.21 - 20
    assert log.leaves["leaf01"] == 76


# -- forced publication ------------------------------------------------------------------------------------------------


def planned(log: Log, after_ms: int, handed_over: Publication | None) -> Publication | None:
    """What server 1 would publish then."""
    plan = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + after_ms, handed_over=handed_over)
    return None if plan is None else plan.publication


def test_a_forced_master_is_published_anew_although_nothing_changed_as_soon_as_a_router_takes_it() -> None:
    log = two_leaves()
    first = planned(log, PACE.gather_ms, None)
    assert first is not None
    log.append(first)
    alive(log, PACE.gather_ms)
    soonest_ms = PACE.gather_ms + PACE.change_ms
    assert planned(log, soonest_ms, first) is None
    assert log.append(Force(MASTER)) == [PublicationForced(MASTER)]
    assert planned(log, soonest_ms - 1_000, first) is None
    second = planned(log, soonest_ms, first)
    assert second is not None
    assert second.content_hash == first.content_hash
    alive(log, soonest_ms)
    log.append(second)
    assert log.master.publication == second
    assert planned(log, soonest_ms + PACE.change_ms, second) is None, "once"


def test_a_master_that_no_node_serves_cannot_be_forced() -> None:
    log = two_leaves()
    [refused] = log.append(Force("another"))
    assert isinstance(refused, CommandRefused)
    assert hash_of("another") in refused.reason


# -- several masters ---------------------------------------------------------------------------------------------------


def test_leaves_stand_behind_their_master_alone_and_those_without_one_behind_all() -> None:
    log = Log()
    other = "other~destination=="
    [part] = report(1).masters
    mine = replace(leaf("mine"), master_hash=hash_of(MASTER))
    theirs = replace(leaf("theirs"), master_hash=hash_of(other))
    log.append(report(1, masters=(part, replace(part, destination=other)), destinations=(mine, theirs, leaf("both"))))
    listed = {name: [each.destination for each in master.leaves] for name, master in log.farm.state.masters.items()}
    assert listed == {MASTER: ["both", "mine"], other: ["both", "theirs"]}


def test_each_master_has_a_publisher_of_its_own_by_what_its_servers_may_do() -> None:
    log = Log()
    other = "other~destination=="
    [part] = report(1).masters
    off, on = replace(part, publish_config=PublishConfig.OFF), replace(part, publish_config=PublishConfig.ON)
    log.append(
        report(1, masters=(off, replace(part, destination=other))),
        report(2, masters=(on, replace(off, destination=other))),
    )
    assert {name: each.choice.server_id for name, each in log.farm.state.masters.items()} == {MASTER: 2, other: 1}
