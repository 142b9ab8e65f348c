"""Fuzzing of what a server of the farm reads: `python -m tests.simulation garlic-farm-fuzz --what W --count N`.

    W (upgrade, requests, replies, json; all if left out) ─▶ an input ─▶ the target's check ─▶ an outcome

What must hold for each input is its target's (`garlic_farm_targets`). For all of them: the one error and nothing else,
the process stays within its memory, no input takes long (gzip bombs among them), and every outcome occurs, for a fuzz
that never gets past the first field says nothing.
"""

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.simulation.garlic_farm_targets import TARGETS, FuzzError, Target

MEMORY_GROWTH_LIMIT_MIB = 48
"""Room for a bomb that is inflated up to its limit, and what the allocator keeps of it."""
SLOWEST_LIMIT_S = 1.0
SHOWN_BYTES = 4_096


@dataclass(slots=True)
class Tally:
    """What became of the inputs."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    """Processor time of the slowest input."""

    def lines(self) -> list[str]:
        """For the report."""
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.outcomes.items()))
        return [
            f"{self.inputs:,} inputs: {outcomes}",
            f"slowest input {self.slowest_s * 1000:.1f} ms of processor time",
        ]


def fuzz(target: Target, seed: int, count: int, tally: Tally) -> None:
    """`count` inputs; a failure names the seed and the input."""
    random = Random(seed)
    for _ in range(count):
        data = target.make(random)
        began = time.process_time()
        try:
            outcome = target.check(data, random)
        except Exception as error:
            shown = data[:SHOWN_BYTES].hex() + ("…" if len(data) > SHOWN_BYTES else "")
            raise FuzzError(f"{target.name}, seed {seed}: {type(error).__name__}: {error}: {shown}") from error
        tally.slowest_s = max(tally.slowest_s, time.process_time() - began)
        tally.inputs += 1
        tally.outcomes[outcome] += 1


def main(arguments: Sequence[str]) -> int:
    """Fuzz; 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation garlic-farm-fuzz", description=__doc__)
    parser.add_argument("--what", choices=[*TARGETS], action="append", help="one target; may be repeated (default all)")
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs for each (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default 0)")
    options = parser.parse_args(arguments)
    failures = [name for name in options.what or [*TARGETS] if not _one(name, options.seed, options.count)]
    return 1 if failures else 0


def _one(name: str, seed: int, count: int) -> bool:
    target, tally, began = TARGETS[name](), Tally(), time.monotonic()
    try:
        fuzz(target, seed, count // 10, tally)
        settled_mib = _resident_mib()
        fuzz(target, seed + 1, count - tally.inputs, tally)
    except FuzzError as error:
        _say([str(error), *tally.lines()])
        return False
    grown_mib = _resident_mib() - settled_mib
    _say([f"{name}: {tally.lines()[0]}", tally.lines()[1]])
    _say([f"{time.monotonic() - began:.0f} s; memory at most {_resident_mib():.0f} MiB"])
    _say([f"memory grew by {grown_mib:.1f} MiB over the last nine tenths (limit {MEMORY_GROWTH_LIMIT_MIB})"])
    if missing := sorted(target.expected - tally.outcomes.keys()):
        _say([f"never seen: {', '.join(missing)}: these inputs say too little"])
        return False
    return grown_mib <= MEMORY_GROWTH_LIMIT_MIB and tally.slowest_s <= SLOWEST_LIMIT_S


def _resident_mib() -> float:
    """The most memory that this process had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
