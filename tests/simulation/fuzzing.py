"""What the fuzzers of decoders share: inputs are made, judged, timed and counted, and memory is looked at.

    Subject.make ─▶ an input ─▶ Subject.check ─▶ its outcomes ─▶ Tally
                                     └─▶ an exception ─▶ FuzzError with the seed and the input

A subject says what must hold for one input. For all of them: no input takes long, the process stays within its memory
(a tenth of the inputs settles it, the others may add little), and every outcome that is expected occurs, for a fuzz
that never gets past the first field says nothing.
"""

import argparse
import resource
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

Result = TypeVar("Result")
FREE_BYTES: Final = 256 * 1024
"""That a decoder may use whatever it reads."""
MEASURED_SHARE: Final = 0.02
SLOWEST_LIMIT_S = 1.0
"""A thousand times what an input takes: only a decoder whose work explodes reaches it."""


class FuzzError(AssertionError):
    """Something that must hold did not."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is fuzzed."""

    make: Callable[[Random], bytes]
    """One input. Some are as they should be, so that what must be accepted is seen to be."""
    check: Callable[[bytes, Random], Sequence[str]]
    """The outcomes of one input; raises `FuzzError`, or whatever should not have been raised."""
    expected: frozenset[str]
    """Outcomes that must occur in a run worth its name."""
    memory_growth_limit_mib: float = 32
    shown_bytes: int = 1024 * 1024
    """How much of a failing input is told."""
    name: str = ""
    """Where one command has several of them."""


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


def play(subject: Subject, seed: int, count: int, tally: Tally) -> None:
    """`count` inputs; a failure names the seed and the input."""
    random = Random(seed)
    for _ in range(count):
        data = subject.make(random)
        began = time.process_time()
        try:
            outcomes = subject.check(data, random)
        except Exception as error:
            shown = data[: subject.shown_bytes].hex() + ("…" if len(data) > subject.shown_bytes else "")
            whose = f"{subject.name}, " if subject.name else ""
            raise FuzzError(f"{whose}seed {seed}: {type(error).__name__}: {error}: {shown}") from error
        tally.slowest_s = max(tally.slowest_s, time.process_time() - began)
        tally.inputs += 1
        tally.outcomes.update(outcomes)


def run(subject: Subject, seed: int, count: int) -> bool:
    """Fuzz and tell; whether everything held."""
    tally, began = Tally(), time.monotonic()
    try:
        play(subject, seed, count // 10, tally)
        settled_mib = resident_mib()
        play(subject, seed + 1, count - tally.inputs, tally)
    except FuzzError as error:
        say([str(error), *tally.lines()])
        return False
    grown_mib = resident_mib() - settled_mib
    inputs, slowest = tally.lines()
    say([f"{subject.name}: {inputs}" if subject.name else inputs, slowest])
    say([f"{time.monotonic() - began:.0f} s; memory at most {resident_mib():.0f} MiB"])
    say([f"memory grew by {grown_mib:.1f} MiB over the last nine tenths (limit {subject.memory_growth_limit_mib})"])
    if missing := sorted(subject.expected - tally.outcomes.keys()):
        say([f"never seen: {', '.join(missing)}: these inputs say too little"])
        return False
    return grown_mib <= subject.memory_growth_limit_mib and tally.slowest_s <= SLOWEST_LIMIT_S


def within_memory(decode: Callable[[], Result], read_bytes: int, random: Random, factor: int) -> Result:
    """What `decode` gives; every fiftieth time with a look at the memory that it needs for so many bytes."""
    if random.random() >= MEASURED_SHARE:
        return decode()
    tracemalloc.start()
    try:
        return decode()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > (most := FREE_BYTES + factor * read_bytes):
            raise FuzzError(f"a decoder used {peak} bytes; at most {most} were to be expected")


def options_of(command: str, description: str | None) -> argparse.ArgumentParser:
    """The options that every fuzz of a decoder has."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.simulation {command}", description=description)
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default 0)")
    return parser


def resident_mib() -> float:
    """The most memory that this process had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def say(lines: Sequence[str]) -> None:
    """At once: a run may take hours."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
