"""Weights: operators' weights apply immediately; the pipeline's weights are bounded, damped, and expire."""

from msgspec.structs import replace

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
from tests.effort import each_case
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, Log, leaf, report

ONE, TWO = hash_of("leaf01"), hash_of("leaf02")
PACE = Pace()
MARGIN = FarmTuning().cost_margin


def two_leaves(load: float = 0.4) -> Log:
    """Return a farm of two idle, healthy servers. By default 40 % of a leaf's bandwidth is used, a load of 20."""
    return Log(*(report(each, destinations=(leaf(f"leaf{each:02}", load=load),)) for each in (1, 2)))


def run_with_reports(log: Log, after_ms: int, load: float = 0.4) -> None:
    """Advance log time while both servers report."""
    while log.farm.state.log_time_ms < BASE_MS + after_ms:
        now_ms = min(log.farm.state.log_time_ms + PERIOD_MS, BASE_MS + after_ms)
        log.append(*(report(each, now_ms, destinations=(leaf(f"leaf{each:02}", load=load),)) for each in (1, 2)))
        log.leap(now_ms - BASE_MS)


def factor_of(log: Log, leaf_hash: str = ONE) -> int:
    """Return the effective factor of the pipeline, in thousandths."""
    weights = log.farm.state.weights
    return weights.factors[leaf_hash].at(log.farm.state.log_time_ms) if leaf_hash in weights.factors else 1_000


def factors(log: Log, **changes: object) -> Factors:
    """Return an entry of a pipeline that has read the whole log."""
    made: dict[str, object] = {"through_index": len(log.records), "formula": "f", "factors": {ONE: 2.0}}
    return Factors(**(made | changes))  # type: ignore[arg-type]  # the names are the fields'


# -- exclusion ---------------------------------------------------------------------------------------------------------


def test_excluded_leaf_not_listed_until_readmitted() -> None:
    log = two_leaves()
    assert log.append(Exclusion(ONE, excluded=True)) == [ExclusionChanged(ONE, excluded=True)]
    assert log.leaves.keys() == {"leaf02"}
    assert log.append(Exclusion(ONE, excluded=True)) == []
    assert log.append(Exclusion(ONE, excluded=False)) == [ExclusionChanged(ONE, excluded=False)]
    assert log.leaves.keys() == {"leaf01", "leaf02"}


def test_excluded_leaf_not_listed_if_others_are_unhealthy() -> None:
    log = two_leaves()
    log.append(Exclusion(ONE, excluded=True), report(2, destinations=(leaf("leaf02", healthy=False),)))
    assert log.leaves.keys() == {"leaf02"}


def test_exclusion_of_last_leaf_refused() -> None:
    log = two_leaves()
    log.append(Exclusion(ONE, excluded=True))
    [refused] = log.append(Exclusion(TWO, excluded=True))
    assert isinstance(refused, CommandRefused)
    assert "no leaf would remain" in refused.reason
    assert log.farm.state.weights.excluded == (ONE,)
    assert log.leaves.keys() == {"leaf02"}


def test_unreported_leaf_can_be_excluded() -> None:
    log = two_leaves()
    log.append(Exclusion(hash_of("leaf03"), excluded=True), report(3))
    assert log.leaves.keys() == {"leaf01", "leaf02"}


def test_exclusions_are_limited() -> None:
    log = two_leaves()
    log.append(*(Exclusion(hash_of(f"other{each}"), excluded=True) for each in range(EXCLUSIONS_MAX)))
    [refused] = log.append(Exclusion(ONE, excluded=True))
    assert isinstance(refused, CommandRefused)
    assert str(EXCLUSIONS_MAX) in refused.reason


# -- operators' factors ------------------------------------------------------------------------------------------------


@each_case(("factor", "cost"), [(1, 20), (1.2, 28), (2, 60), (10, COST_MAX), (0.75, 10), (0.1, 0)])
def test_operator_factor_changes_cost_immediately(factor: float, cost: int) -> None:
    log = two_leaves()
    log.append(CostFactor(ONE, factor))
    assert log.leaves == {"leaf01": cost, "leaf02": 20}


def test_operator_factor_raises_cost_of_idle_leaf() -> None:
    log = two_leaves(load=0)
    assert log.append(CostFactor(ONE, 3)) == [CostFactorChanged(ONE, 3_000)]
    assert log.leaves == {"leaf01": 40, "leaf02": 0}


def test_operator_factor_of_one_removes_earlier_one() -> None:
    log = two_leaves()
    log.append(CostFactor(ONE, 3), CostFactor(ONE, 1))
    assert log.leaves == {"leaf01": 20, "leaf02": 20}
    assert not log.farm.state.weights.costs


@each_case("factor", [0, -1, 0.0999, 10.01, float("nan"), float("inf")])
def test_operator_factor_out_of_bounds_refused(factor: float) -> None:
    log = two_leaves()
    [refused] = log.append(CostFactor(ONE, factor))
    assert refused == CommandRefused("cost", f"the factor {factor:g} is not within 0.1 to 10")
    assert log.leaves == {"leaf01": 20, "leaf02": 20}


def test_operator_factors_are_limited() -> None:
    log = two_leaves()
    log.append(*(CostFactor(hash_of(f"other{each}"), 2) for each in range(COST_FACTORS_MAX)))
    [refused] = log.append(CostFactor(ONE, 2))
    assert isinstance(refused, CommandRefused)
    assert refused.kind == "cost"


def test_unhealthy_leaf_never_cheaper_than_healthy_one() -> None:
    log = Log(
        report(1, destinations=(leaf("leaf01", load=1), leaf("leaf03", healthy=False), leaf("leaf04", healthy=False))),
        CostFactor(ONE, 10),
        CostFactor(hash_of("leaf03"), 0.1),
    )
    assert log.leaves == {"leaf01": COST_MAX, "leaf03": COST_MAX, "leaf04": COST_MAX}


# -- the pipeline's factors --------------------------------------------------------------------------------------------


def test_pipeline_factor_moves_by_tenth_per_entry() -> None:
    log = two_leaves()
    assert log.append(factors(log)) == [FactorsAccepted(2, 1)]
    moved = [factor_of(log)]
    while factor_of(log) < 2_000:
        log.append(factors(log))
        moved.append(factor_of(log))
    assert moved == [1_100, 1_210, 1_331, 1_464, 1_610, 1_771, 1_948, 2_000]
    log.append(factors(log, factors={ONE: 0.5}))
    assert factor_of(log) == 1_800


def test_lower_pipeline_factor_is_damped() -> None:
    log = two_leaves()
    moved = []
    while factor_of(log) > 500:
        log.append(factors(log, factors={ONE: 0.5}))
        moved.append(factor_of(log))
    assert moved == [900, 810, 729, 657, 592, 533, 500]


def test_cost_follows_factor_beyond_margin() -> None:
    log = two_leaves()
    costs = []
    for _ in range(8):
        log.append(factors(log))
        costs.append(log.leaves["leaf01"])
    assert costs == [20, 20, 33, 33, 44, 44, 57, 57]
    assert log.leaves["leaf02"] == 20


def test_pipeline_factor_fades_after_five_minutes() -> None:
    log = two_leaves()
    for _ in range(3):
        log.append(factors(log))
    assert factor_of(log) == 1_331
    run_with_reports(log, FACTOR_HOLDS_MS)
    assert factor_of(log) == 1_331
    run_with_reports(log, (FACTOR_HOLDS_MS + FACTOR_ENDS_MS) // 2)
    assert factor_of(log) == 1_165
    run_with_reports(log, FACTOR_ENDS_MS)
    assert factor_of(log) == 1_000
    assert not log.farm.state.weights.factors
    assert log.leaves["leaf01"] in range(11, 30), "within the margin of a load of 20"


def test_farm_without_pipeline_entries_returns_to_normal() -> None:
    log, without = two_leaves(), two_leaves()
    log.append(factors(log, factors={ONE: 1.05}))
    for each in (log, without):
        run_with_reports(each, FACTOR_ENDS_MS)
    assert log.farm.state.masters == without.farm.state.masters


def test_ended_pipeline_leaves_cost_within_margin() -> None:
    log, without = two_leaves(), two_leaves()
    # Given a pipeline that raised the cost of a leaf, and the same farm without a pipeline
    for _ in range(5):
        log.append(factors(log))
    assert log.leaves["leaf01"] >= without.leaves["leaf01"] + 2 * MARGIN
    # When the pipeline does not send an entry for ten minutes
    for each in (log, without):
        run_with_reports(each, FACTOR_ENDS_MS)
    assert not log.farm.state.weights.factors
    assert abs(log.leaves["leaf01"] - without.leaves["leaf01"]) < MARGIN
    # Then both farms are equal from the next change on
    for each in (log, without):
        run_with_reports(each, FACTOR_ENDS_MS + 2 * PERIOD_MS, load=1.0)
    assert log.farm.state.masters == without.farm.state.masters


def test_leaves_missing_in_entry_keep_factor_and_age() -> None:
    log = two_leaves()
    log.append(factors(log))
    run_with_reports(log, FACTOR_HOLDS_MS)
    log.append(factors(log, factors={TWO: 0.9}))
    assert (factor_of(log, ONE), factor_of(log, TWO)) == (1_100, 900)
    run_with_reports(log, FACTOR_ENDS_MS)
    assert (factor_of(log, ONE), factor_of(log, TWO)) == (1_000, 900)


def test_factors_without_newer_index_refused() -> None:
    log = two_leaves()
    entry = factors(log)
    log.append(entry)
    [refused] = log.append(entry)
    assert refused == CommandRefused("factors", "made from the log up to 2; the last accepted ones: up to 2")
    assert factor_of(log) == 1_100


def test_factors_beyond_own_index_refused() -> None:
    log = two_leaves()
    [refused] = log.append(factors(log, through_index=3))
    assert refused == CommandRefused("factors", "made from the log up to 3, but the index of this entry is 3")


@each_case("factor", [0.499, 2.001, -1, float("nan"), float("inf")])
def test_factor_out_of_bounds_refuses_entry(factor: float) -> None:
    log = two_leaves()
    [refused] = log.append(factors(log, factors={ONE: 1.1, TWO: factor}))
    assert refused == CommandRefused("factors", f"the factor {factor:g} of {TWO[:8]} is not within 0.5 to 2")
    assert not log.farm.state.weights.factors


def test_faded_factors_make_room_for_new_ones() -> None:
    log = two_leaves()
    log.append(factors(log, factors={hash_of(f"other{each}"): 1.1 for each in range(FACTORS_MAX)}))
    [refused] = log.append(factors(log))
    assert isinstance(refused, CommandRefused)
    run_with_reports(log, FACTOR_ENDS_MS)
    assert log.append(factors(log)) == [FactorsAccepted(len(log.records) - 1, 1)]


def test_operator_and_pipeline_factors_are_multiplied() -> None:
    log = two_leaves()
    log.append(CostFactor(ONE, 2), factors(log, through_index=1), factors(log))
    assert factor_of(log) == 1_210
    # (20 + 20) x 2 x 1.21 - 20
    assert log.leaves["leaf01"] == 76


# -- forced publication ------------------------------------------------------------------------------------------------


def plan_at(log: Log, after_ms: int, handed_over: Publication | None) -> Publication | None:
    """Return the publication that server 1 would make at that time."""
    plan = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + after_ms, handed_over=handed_over)
    return None if plan is None else plan.publication


def test_forced_master_published_again_at_earliest_time() -> None:
    log = two_leaves()
    first = plan_at(log, PACE.gather_ms, None)
    assert first is not None
    log.append(first)
    run_with_reports(log, PACE.gather_ms)
    soonest_ms = PACE.gather_ms + PACE.change_ms
    assert plan_at(log, soonest_ms, first) is None
    assert log.append(Force(MASTER)) == [PublicationForced(MASTER)]
    assert plan_at(log, soonest_ms - 1_000, first) is None
    second = plan_at(log, soonest_ms, first)
    assert second is not None
    assert second.content_hash == first.content_hash
    run_with_reports(log, soonest_ms)
    log.append(second)
    assert log.master.publication == second
    assert plan_at(log, soonest_ms + PACE.change_ms, second) is None, "exactly once"


def test_force_of_unserved_master_refused() -> None:
    log = two_leaves()
    [refused] = log.append(Force("another"))
    assert isinstance(refused, CommandRefused)
    assert hash_of("another") in refused.reason


# -- several masters ---------------------------------------------------------------------------------------------------


def test_leaves_listed_for_their_master_or_for_all() -> None:
    log = Log()
    other = "other~destination=="
    [part] = report(1).masters
    mine = replace(leaf("mine"), master_hash=hash_of(MASTER))
    theirs = replace(leaf("theirs"), master_hash=hash_of(other))
    log.append(report(1, masters=(part, replace(part, destination=other)), destinations=(mine, theirs, leaf("both"))))
    listed = {name: [each.destination for each in master.leaves] for name, master in log.farm.state.masters.items()}
    assert listed == {MASTER: ["both", "mine"], other: ["both", "theirs"]}


def test_masters_have_separate_publishers() -> None:
    log = Log()
    other = "other~destination=="
    [part] = report(1).masters
    off, on = replace(part, publish_config=PublishConfig.OFF), replace(part, publish_config=PublishConfig.ON)
    log.append(
        report(1, masters=(off, replace(part, destination=other))),
        report(2, masters=(on, replace(off, destination=other))),
    )
    assert {name: each.choice.server_id for name, each in log.farm.state.masters.items()} == {MASTER: 2, other: 1}
