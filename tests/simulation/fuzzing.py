"""Shared parts of the decoder fuzzers: inputs are made, checked, timed and counted, and memory is measured.

    Subject.make ─▶ an input ─▶ Subject.check ─▶ its outcomes ─▶ Tally
                                     └─▶ an exception ─▶ FuzzError with the seed and the input

A subject defines the checks of one input. Three checks apply to all subjects. No input takes long. The process remains
within its memory, which may grow only a little after the first tenth of the inputs. Every expected outcome occurs,
because a fuzzer that never passes the first field proves nothing.
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
"""Memory that a decoder may use for an input of any size."""
MEASURED_SHARE: Final = 0.02
SLOWEST_LIMIT_S = 1.0
"""Limit for one input: a thousand times the usual time, so only an exploding decoder reaches it."""


class FuzzError(AssertionError):
    """A check failed."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One fuzzed decoder."""

    make: Callable[[Random], bytes]
    """Returns one input; some inputs are valid, to test that they are accepted."""
    check: Callable[[bytes, Random], Sequence[str]]
    """Returns the outcomes of one input; raises `FuzzError`, or any unexpected error of the decoder."""
    expected: frozenset[str]
    """Outcomes that must occur in every useful run."""
    memory_growth_limit_mib: float = 32
    shown_bytes: int = 1024 * 1024
    """Maximum number of bytes of a failing input in the error text."""
    name: str = ""
    """Name of the subject, if a command has several."""


@dataclass(slots=True)
class Tally:
    """Statistics of the inputs."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    """Processor time of the slowest input."""

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.outcomes.items()))
        return [
            f"{self.inputs:,} inputs: {outcomes}",
            f"slowest input {self.slowest_s * 1000:.1f} ms of processor time",
        ]


def play(subject: Subject, seed: int, count: int, tally: Tally) -> None:
    """Check `count` inputs; a failure contains the seed and the input."""
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
    """Fuzz and print the report; return True if every check passed."""
    tally, began = Tally(), time.monotonic()
    try:
        play(subject, seed, count // 10, tally)
        settled_mib = resident_mib()
        play(subject, seed + 1, count - tally.inputs, tally)
    except FuzzError as error:
        print_lines([str(error), *tally.lines()])
        return False
    grown_mib = resident_mib() - settled_mib
    inputs, slowest = tally.lines()
    print_lines([f"{subject.name}: {inputs}" if subject.name else inputs, slowest])
    print_lines([f"{time.monotonic() - began:.0f} s; memory at most {resident_mib():.0f} MiB"])
    print_lines(
        [f"memory grew by {grown_mib:.1f} MiB over the last nine tenths (limit {subject.memory_growth_limit_mib})"]
    )
    if missing := sorted(subject.expected - tally.outcomes.keys()):
        print_lines([f"outcomes that never occurred: {', '.join(missing)}; use other or more inputs"])
        return False
    return grown_mib <= subject.memory_growth_limit_mib and tally.slowest_s <= SLOWEST_LIMIT_S


def within_memory(decode: Callable[[], Result], read_bytes: int, random: Random, factor: int) -> Result:
    """Return the result of `decode`; for every fiftieth input, check its memory use against `read_bytes`."""
    if random.random() >= MEASURED_SHARE:
        return decode()
    tracemalloc.start()
    try:
        return decode()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > (most := FREE_BYTES + factor * read_bytes):
            raise FuzzError(f"a decoder used {peak} bytes; at most {most} were expected")


def options_of(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return the common options of all decoder fuzzers."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.simulation {command}", description=description)
    parser.add_argument("--count", type=int, default=100_000, help="number of inputs (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (default 0)")
    return parser


def resident_mib() -> float:
    """Return the maximum memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def print_lines(lines: Sequence[str]) -> None:
    """Print lines immediately: a run may take hours."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
