"""Trials of whole farms: seeds without violations, planted faults that are found, and plans that become smaller."""

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from tests.effort import few_of, over_seeds
from tests.simulation.farm.found import FOUND
from tests.simulation.farm.hostile import Parts
from tests.simulation.farm.minimizing import command_of, minimized
from tests.simulation.farm.nemeses import OF_OPERATORS, OF_ROUTERS, Fault, Nemesis
from tests.simulation.farm.operators import Operator
from tests.simulation.farm.plans import Plan, draw_plan
from tests.simulation.farm.planted import PLANTED
from tests.simulation.farm.searching import plan_of, story_of
from tests.simulation.farm.trial import run_trial
from tests.simulation.farm.world import World

DISK_S = 80.0


PLANS = {
    "routers and operator": draw_plan(19, nodes=3, trouble_s=15.0, has_routers=True, has_operator=True),
    "operator": draw_plan(67, nodes=3, trouble_s=20.0, has_operator=True),
    "routers": draw_plan(3, nodes=3, trouble_s=20.0, has_routers=True),
    "first clocks": Plan(
        1, 5, 10.0, tuple(Fault(0.0, 12.0, Nemesis.FIRST_CLOCK, (f"node-{each}",)) for each in (1, 2))
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_trial_of_plan_succeeds(plan: Plan) -> None:
    outcome = run_trial(plan)
    drawn = {each.nemesis for each in plan.faults}
    assert bool(drawn & set(OF_ROUTERS)) == plan.has_routers
    assert not plan.has_operator or drawn & set(OF_OPERATORS)
    assert not outcome.violations, story_of(outcome)
    assert not plan.has_routers or outcome.figures["publications"] > 0


SAME_TRACE = {
    "routers, operator, power cut": Plan(
        33,
        3,
        12.0,
        (
            Fault(2.0, 6.0, Nemesis.ROUTER_DOWN, ("node-1",)),
            Fault(3.0, 7.0, Nemesis.POWER_CUT, ("node-2",)),
            Fault(4.0, 5.0, Nemesis.NEW_KEYS, ("node-3",)),
        ),
        has_routers=True,
        has_operator=True,
        has_snapshots=True,
        has_requests=True,
    ),
    "hostile member, joins, rot": Plan(
        34,
        3,
        90.0,
        (
            Fault(5.0, 10.0, Nemesis.INVITE_AND_LEAVE, ("node-4",)),
            Fault(8.0, 14.0, Nemesis.ROUTER_REFUSES, ("node-2",)),
            Fault(12.0, 20.0, Nemesis.LOSSY, (), 0.1),
            Fault(15.0, 25.0, Nemesis.HOSTILE, ("node-5",)),
            Fault(30.0, 40.0, Nemesis.ROT, ("node-1",)),
            Fault(35.0, 45.0, Nemesis.POWER_CUT, ("node-1", "node-2", "node-3")),
            Fault(45.0, 50.0, Nemesis.RESTORE, ("node-3",)),
            Fault(55.0, 65.0, Nemesis.ROTATE, ("node-2",)),
            Fault(60.0, 70.0, Nemesis.SLOW_DISK, ("node-1",), 0.2),
            Fault(70.0, 75.0, Nemesis.CLIENT_KEY, ("node-1",)),
        ),
        has_routers=True,
        has_operator=True,
        has_snapshots=True,
        has_requests=True,
    ),
}


@pytest.mark.parametrize("plan", few_of(SAME_TRACE, "routers, operator, power cut"))
def test_trial_gives_the_same_trace_in_two_processes(plan: Plan) -> None:
    """The two processes have different hash seeds, unless the environment sets one."""
    command = [sys.executable, *command_of(plan).split()[1:], "--trace"]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False).stdout
    outcome = run_trial(plan)
    assert not outcome.violations, story_of(outcome)
    assert outcome.figures["publications"] > 0
    assert other.splitlines()[1:-1] == outcome.trace
    actions = {each.nemesis.name.lower() for each in plan.faults if each.nemesis in OF_OPERATORS}
    assert actions <= outcome.figures.keys()


@over_seeds(200, quick=2)
def test_trial_of_seed_succeeds(seed: int) -> None:
    outcome = run_trial(draw_plan(seed))
    assert not outcome.violations, story_of(outcome)


@pytest.mark.soak
@pytest.mark.parametrize("name", FOUND)
def test_fault_found_by_seed_is_corrected(name: str) -> None:
    outcome = run_trial(plan_of(FOUND[name].split()))
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


class WaitingOperator(Operator):
    """An operator of a farm whose servers never become the members."""

    async def _settle(self) -> None:
        await trio.sleep_forever()


class TimeOnly:
    """A world without machines."""

    seed = 1
    directory = Path("unused")

    @property
    def time_s(self) -> float:
        return trio.current_time()


async def test_actions_that_cannot_begin_are_counted(autojump_clock: MockClock) -> None:
    faults = tuple(Fault(each, each + 1.0, Nemesis.NEW_KEYS, ("node-1",)) for each in (1.0, 3.0, 5.0))
    operator = WaitingOperator(cast(World, TimeOnly()), faults, [], Parts())
    await operator.run(10.0)
    assert operator.completed == {"dropped actions": 3}
    assert autojump_clock.current_time() >= 10.0


def test_smaller_plan_keeps_the_fault_that_fails() -> None:
    plan = draw_plan(6)
    needed = next(each for each in plan.faults if each.nemesis is not Nemesis.LOSSY)
    smaller, trials = minimized(plan, lambda each: any(fault.at_s == needed.at_s for fault in each.faults), 200)
    assert [(each.at_s, each.nemesis) for each in smaller.faults] == [(needed.at_s, needed.nemesis)]
    assert smaller.nodes <= plan.nodes
    assert 0 < trials <= 200


def test_command_replays_a_plan() -> None:
    for plan in (draw_plan(6, has_routers=True), Plan(7, 5, 12.5, (), has_operator=True, has_snapshots=True)):
        assert plan_of(command_of(plan).split()[3:]) == plan


def test_fault_of_short_trouble_does_not_end_before_it_begins() -> None:
    assert all(each.at_s <= each.until_s for seed in range(100) for each in draw_plan(seed, trouble_s=2.0).faults)


def test_found_plans_have_faults() -> None:
    plans = [plan_of(each.split()) for each in FOUND.values()]
    assert [name.partition(":")[0] for name in FOUND] == [str(each.seed) for each in plans]
    assert all(len(each.faults) > 5 for each in plans)


CHEAP = "an acknowledgment names another index"


@pytest.mark.parametrize("name", few_of({each: each for each in PLANTED}, CHEAP))
def test_planted_fault_is_found(name: str) -> None:
    planted = PLANTED[name]
    with planted.planting():
        outcome = run_trial(planted.plan)
    assert planted.check in {each.check for each in outcome.violations}, f"seed {planted.seed}"
