"""Searches seeds for faults: `python -m tests.simulation.farm.searching --seeds 0:1000 --minimize`.

    --seed N                      one trial; `--nodes`, `--trouble` and `--fault` replace choices of the seed
    --seeds FROM:TO               trials of a range; `python -m tests.simulation.farm` resumes an interrupted search
    --minimize                    make the plan of a failing seed smaller, and print the command that replays it
    --planted NAME                with a planted fault (`planted.py`)

For a failing seed it prints the faults, the violations, the end of the trace, and the command that replays it. The exit
status is 1 after a failure.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

from tests.simulation.farm.minimizing import command_of, minimized
from tests.simulation.farm.plans import Plan, draw_plan, read_fault
from tests.simulation.farm.planted import PLANTED
from tests.simulation.farm.trial import Outcome, run_trial

STORY_LINES: Final = 40
_SUMMARY: Final = re.compile(r"^\d+ seeds, \d+ failed(?: \(([\d ]+)\))?, ([\d.]+) virtual hours", re.MULTILINE)
_CHOICES: Final = {
    "routers": "each machine has a router",
    "operator": "an operator changes the farm",
    "snapshots": "snapshots replace the log after a few entries",
    "requests": "one more client sends requests of other kinds",
}
"""Choices of a plan; the seed determines each choice that the command line lacks."""


def main() -> None:
    """Run the trials of the command line."""
    options = _options(sys.argv[1:])
    planted = nullcontext() if options.planted is None else PLANTED[options.planted].planting()
    failed: list[str] = []
    virtual_s = spent_s = 0.0
    seeds = (
        range(options.seed, options.seed + 1) if options.seeds is None else range(*map(int, options.seeds.split(":")))
    )
    with planted:
        for seed in seeds:
            outcome = run_trial(_plan(options, seed))
            virtual_s, spent_s = virtual_s + outcome.virtual_s, spent_s + outcome.spent_s
            _print(_line(outcome))
            if outcome.violations:
                failed.append(str(seed))
                _print_failure(outcome, minimize=options.minimize)
            if options.trace:
                _print("\n".join(outcome.trace))
    which = f" ({' '.join(failed)})" if failed else ""
    _print(
        f"{len(seeds)} seeds, {len(failed)} failed{which}, {virtual_s / 3600:.2f} virtual hours,"
        f" {virtual_s / max(spent_s, 0.001):.0f} virtual seconds per second of processor time"
    )
    sys.exit(1 if failed else 0)


def read_summary(output: str) -> tuple[tuple[int, ...], float] | None:
    """Return the failed seeds and the virtual hours of a search; None without a last line."""
    found = _SUMMARY.search(output)
    return None if found is None else (tuple(map(int, (found[1] or "").split())), float(found[2]))


def plan_of(words: Sequence[str]) -> Plan:
    """Return the plan of a command that `command_of` has printed."""
    options = _options(words)
    return _plan(options, options.seed)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.farm.searching", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", metavar="FROM:TO")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--trouble", type=float, help="seconds of faults")
    parser.add_argument("--fault", action="append", help="NEMESIS:AT:UNTIL:HOST+HOST:AMOUNT, or none")
    for name, meaning in _CHOICES.items():
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=meaning)
    parser.add_argument("--minimize", action="store_true")
    parser.add_argument("--planted", choices=sorted(PLANTED))
    parser.add_argument("--trace", action="store_true", help="print the trace")
    return parser.parse_args(words)


def _plan(options: argparse.Namespace, seed: int) -> Plan:
    chosen = {f"has_{name}": getattr(options, name) for name in _CHOICES}
    plan = draw_plan(seed, options.nodes, options.trouble, **chosen)
    if options.fault:
        plan = replace(plan, faults=tuple(read_fault(each) for each in options.fault if each != "none"))
    return plan


def _line(outcome: Outcome) -> str:
    plan = outcome.plan
    healed = "never" if outcome.healed_s is None else f"{outcome.healed_s:.0f} s"
    figures = ", ".join(f"{value} {name}" for name, value in outcome.figures.items())
    return (
        f"seed {plan.seed}: {plan.nodes} nodes, {len(plan.faults)} faults, {outcome.virtual_s:.0f} virtual s in"
        f" {outcome.spent_s:.1f} s, healed in {healed}; {figures}"
    )


def _print_failure(outcome: Outcome, *, minimize: bool) -> None:
    checks = {each.check for each in outcome.violations}
    if minimize:

        def fails(plan: Plan) -> bool:
            return not checks.isdisjoint(each.check for each in run_trial(plan).violations)

        plan, trials = minimized(outcome.plan, fails)
        _print(f"  minimized by {trials} trials")
        outcome = run_trial(plan)
    _print(story_of(outcome))


def story_of(outcome: Outcome) -> str:
    """Return the faults, the violations and the end of the trace of a failed trial, with the replaying command."""
    lines = [f"  {each.text}" for each in outcome.plan.faults]
    lines += [f"  VIOLATION {each}" for each in outcome.violations]
    lines += [f"    {each[:200]}" for each in outcome.trace[-STORY_LINES:]]
    return "\n".join([*lines, f"  replay: {command_of(outcome.plan)}"])


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
