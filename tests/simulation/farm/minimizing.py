"""Makes a failing plan smaller: fewer faults, a shorter trouble, fewer nodes. The same check must still fail.

    minimized(plan, fails)   ──▶ the smallest plan found, and the number of trials that it took

`fails` runs a plan and returns True if it fails as the first one did. Faults are removed in halves, then one by one
(Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input").
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tests.simulation.farm.nemeses import Fault
from tests.simulation.farm.plans import Plan

TRIALS_MAX: Final = 60
_TAIL_S: Final = 5.0


def minimized(plan: Plan, fails: Callable[[Plan], bool], trials_max: int = TRIALS_MAX) -> tuple[Plan, int]:
    """Return the smallest failing plan that `trials_max` trials find, and the number of trials."""
    trials = 0
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(plan):
            if trials == trials_max:
                return plan, trials
            trials += 1
            if fails(smaller):
                plan, progress = smaller, True
                break
    return plan, trials


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans smaller than this one: fewer nodes, fewer faults, a shorter trouble, shorter faults."""
    if plan.nodes > 3:
        names = {f"node-{number}" for number in range(1, plan.nodes)}
        kept = tuple(each for each in plan.faults if names.issuperset(each.hosts))
        yield replace(plan, nodes=plan.nodes - 1, faults=kept)
    size = len(plan.faults)
    part = size
    while part:
        for begin in range(0, size, part):
            yield replace(plan, faults=plan.faults[:begin] + plan.faults[begin + part :])
        part //= 2
    ends_s = max((each.until_s for each in plan.faults), default=0.0) + _TAIL_S
    if ends_s < plan.trouble_s:
        yield replace(plan, trouble_s=ends_s)
    for number, fault in enumerate(plan.faults):
        if fault.until_s - fault.at_s > 1:
            shorter = replace(fault, until_s=round((fault.at_s + fault.until_s) / 2, 1))
            yield replace(plan, faults=(*plan.faults[:number], shorter, *plan.faults[number + 1 :]))


def command_of(plan: Plan) -> str:
    faults = "".join(f" --fault {_written(each)}" for each in plan.faults) or " --fault none"
    choices = ("routers", "operator", "snapshots", "requests")
    options = "".join(f" --{name}" if getattr(plan, f"has_{name}") else f" --no-{name}" for name in choices)
    return (
        f"python -m tests.simulation.farm.searching --seed {plan.seed} --nodes {plan.nodes}"
        f" --trouble {plan.trouble_s:g}{options}{faults}"
    )


def _written(fault: Fault) -> str:
    return f"{fault.nemesis.name}:{fault.at_s:g}:{fault.until_s:g}:{'+'.join(fault.hosts)}:{fault.amount:g}"
