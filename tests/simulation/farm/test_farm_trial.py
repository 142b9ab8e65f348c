"""Trials of whole farms: seeds without violations, planted faults that are found, and plans that become smaller."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.effort import few_of, over_seeds
from tests.simulation.farm.minimizing import command_of, minimized
from tests.simulation.farm.nemeses import OF_OPERATORS, OF_ROUTERS, Fault, Nemesis
from tests.simulation.farm.plans import Plan, draw_plan, read_fault
from tests.simulation.farm.planted import PLANTED
from tests.simulation.farm.searching import story_of
from tests.simulation.farm.trial import run_trial

DISK_S = 80.0


PLANS = {
    "routers and operator": draw_plan(19, nodes=3, trouble_s=15.0, has_routers=True, has_operator=True),
    "operator": draw_plan(67, nodes=3, trouble_s=20.0, has_operator=True),
    "routers": draw_plan(3, nodes=3, trouble_s=20.0, has_routers=True),
}


@pytest.mark.parametrize("plan", few_of(PLANS, "routers and operator"))
def test_trial_of_plan_succeeds(plan: Plan) -> None:
    outcome = run_trial(plan)
    drawn = {each.nemesis for each in plan.faults}
    assert bool(drawn & set(OF_ROUTERS)) == plan.has_routers
    assert not plan.has_operator or drawn & set(OF_OPERATORS)
    assert not outcome.violations, story_of(outcome)
    assert not plan.has_routers or outcome.figures["publications"] > 0


@pytest.mark.soak
@over_seeds(200)
def test_trial_of_seed_succeeds(seed: int) -> None:
    outcome = run_trial(draw_plan(seed))
    assert not outcome.violations, story_of(outcome)


FOUND = (
    500_021,  # A snapshot with an unhealthy leaf was refused.
    500_041,
    500_039,  # The alarm about a router that had refused a structure did not end.
    940_014,  # A lost voter of level 1 prevented its removal by command.
)
"""Seeds whose trials found a fault of the product."""


@pytest.mark.soak
@pytest.mark.parametrize("seed", FOUND)
def test_fault_found_by_seed_is_corrected(seed: int) -> None:
    outcome = run_trial(draw_plan(seed))
    assert not outcome.violations, story_of(outcome)


@pytest.mark.soak
def test_leaf_excluded_before_a_slow_commit_is_not_published() -> None:
    outcome = run_trial(draw_plan(950_203, has_operator=True))
    assert not outcome.violations, story_of(outcome)


@pytest.mark.soak
def test_replacement_of_a_lost_voter_does_not_need_its_level() -> None:
    """Found by seed 951007. The lost voter announced level 1, so the approval of its successor was refused.

    `tests/node/test_order_level.py` checks the rule without a farm.
    """
    old = (Fault(0.0, 10.0 + each, Nemesis.OLD_VERSION, (f"node-{each}",), 1.0) for each in (1, 2, 3))
    lost = Fault(5.0, 15.0, Nemesis.RESTORE, ("node-3",))
    outcome = run_trial(Plan(951_007, 3, 20.0, (*old, lost), has_operator=True))
    assert not outcome.violations, story_of(outcome)
    assert outcome.figures["restore"] == 1


@pytest.mark.soak
@pytest.mark.parametrize(
    "disaster",
    [
        Fault(5.0, 10.0, Nemesis.RECOVER, ("node-1", "node-2", "node-3")),
        Fault(5.0, 40.0, Nemesis.LOG_TIME, ("node-1", "node-2"), 3600.0),
    ],
)
def test_farm_continues_after_a_disaster(disaster: Fault) -> None:
    outcome = run_trial(Plan(1, 3, 50.0, (disaster,), has_operator=True))
    assert not outcome.violations, story_of(outcome)
    assert outcome.figures[disaster.nemesis.name.lower()] == 1


@pytest.mark.soak
@pytest.mark.parametrize("nemesis", [Nemesis.HANGING_DISK, Nemesis.FULL_DISK])
def test_verdict_of_node_without_disk_is_true(nemesis: Nemesis) -> None:
    outcome = run_trial(Plan(3, 3, DISK_S, (Fault(2.0, DISK_S - 2, nemesis, ("node-2",)),)))
    assert not outcome.violations, story_of(outcome)
    alarm = "disk-full" if nemesis is Nemesis.FULL_DISK else "disk-unresponsive"
    assert any(f"text=Degraded: alarm {alarm} at node-2" in line for line in outcome.trace)


@pytest.mark.soak
@pytest.mark.parametrize(
    "other",
    [
        Fault(4.0, 60.0, Nemesis.OLD_VERSION, ("node-2",), 2.0),
        Fault(4.0, 20.0, Nemesis.FULL_DISK, ("node-2",)),
    ],
)
def test_operator_does_not_mistake_another_fault_for_rot(other: Fault) -> None:
    plan = Plan(1, 3, 70.0, (other, Fault(8.0, 20.0, Nemesis.ROT, ("node-2",))), has_operator=True)
    outcome = run_trial(plan)
    assert not outcome.violations, story_of(outcome)


def test_smaller_plan_keeps_the_fault_that_fails() -> None:
    plan = draw_plan(6)
    needed = next(each for each in plan.faults if each.nemesis is not Nemesis.LOSSY)
    smaller, trials = minimized(plan, lambda each: any(fault.at_s == needed.at_s for fault in each.faults), 200)
    assert [(each.at_s, each.nemesis) for each in smaller.faults] == [(needed.at_s, needed.nemesis)]
    assert smaller.nodes <= plan.nodes
    assert 0 < trials <= 200


def test_command_replays_a_plan() -> None:
    plan = draw_plan(6, has_routers=True)
    words = command_of(plan).split()
    faults = tuple(read_fault(word) for option, word in pairwise(words) if option == "--fault")
    assert replace(plan, faults=faults) == plan
    assert "--routers" in words


CHEAP = ("an acknowledgement names another index", "structures are not signed")


@pytest.mark.parametrize("name", few_of({each: each for each in PLANTED}, *CHEAP))
def test_planted_fault_is_found(name: str) -> None:
    planted = PLANTED[name]
    with planted.planting():
        outcome = run_trial(planted.plan)
    assert planted.check in {each.check for each in outcome.violations}, f"seed {planted.seed}"
