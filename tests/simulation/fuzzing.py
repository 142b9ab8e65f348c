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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Generic, TypeVar

import msgspec

Input = TypeVar("Input", bound=bytes | list[bytes])
Result = TypeVar("Result")
FREE_BYTES: Final = 256 * 1024
"""Memory that a decoder may use for an input of any size."""
MEASURED_SHARE: Final = 0.02
SHOWN_BYTES: Final = 64 * 1024
"""Maximum number of bytes of a failing input in the error text."""
SLOWEST_LIMIT_S = 1.0
"""Limit for one input: a thousand times the usual time, so only an exploding decoder reaches it."""
SIZES: Final = tuple(bytes([number]) for number in (0, 1, 2, 3, 4, 0x7F, 0x80, 0xFE, 0xFF))
MUTATIONS_MAX: Final = 6
GROWN_SHARE: Final = 0.03
GROWTHS: Final = (256, 8_192, 65_536, 131_072)
"""Numbers of bytes added to an input. The last number exceeds the size limit of each decoder."""
FOREIGN_SHARE: Final = 0.02
FOREIGN_MAX_BYTES: Final = 2_000


class FuzzError(AssertionError):
    """A check failed."""


class Subject(ABC, Generic[Input]):
    """One fuzzed decoder. Its inputs are bytes, or lists of frames."""

    name: str = ""
    """Name of the subject, if a command has several."""
    expected: frozenset[str]
    """Outcomes that must occur in every useful run."""
    memory_growth_limit_mib: float = 32
    """Maximum growth of the process over the last nine tenths of the inputs, with the part that the allocator keeps."""
    steps: int = 1
    """Number of the command's inputs that one input of this subject, such as a whole conversation, replaces."""

    @abstractmethod
    def make(self, random: Random) -> Input:
        """Return one input; some inputs are valid, to test that they are accepted."""

    @abstractmethod
    def check(self, data: Input, random: Random) -> str | Sequence[str]:
        """Return the outcomes of one input; raises `FuzzError`, or any unexpected error of the decoder."""


@dataclass(slots=True)
class Tally:
    """Statistics of the inputs."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    """Processor time of the slowest input."""

    def lines(self) -> list[str]:
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.outcomes.items()))
        return [
            f"{self.inputs:,} inputs: {outcomes}",
            f"slowest input {self.slowest_s * 1000:.1f} ms of processor time",
        ]


def play(subject: Subject[Input], seed: int, count: int, tally: Tally) -> None:
    """Check `count` inputs; a failure contains the seed and the input."""
    random = Random(seed)
    for _ in range(count):
        data = subject.make(random)
        began = time.process_time()
        try:
            outcomes = subject.check(data, random)
        except Exception as error:
            written = data if isinstance(data, bytes) else msgspec.msgpack.encode(data)
            shown = written[:SHOWN_BYTES].hex() + ("…" if len(written) > SHOWN_BYTES else "")
            whose = f"{subject.name}, " if subject.name else ""
            raise FuzzError(f"{whose}seed {seed}: {type(error).__name__}: {error}: {shown}") from error
        tally.slowest_s = max(tally.slowest_s, time.process_time() - began)
        tally.inputs += 1
        tally.outcomes.update([outcomes] if isinstance(outcomes, str) else outcomes)


def run(subject: Subject[Any], seed: int, count: int) -> bool:
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
    limit_mib = subject.memory_growth_limit_mib
    print_lines([f"memory grew by {grown_mib:.1f} MiB over the last nine tenths (limit {limit_mib:g})"])
    if missing := sorted(subject.expected - tally.outcomes.keys()):
        print_lines([f"outcomes that never occurred: {', '.join(missing)}; use other or more inputs"])
        return False
    return grown_mib <= limit_mib and tally.slowest_s <= SLOWEST_LIMIT_S


def within_memory(decode: Callable[[], Result], read_bytes: int, random: Random, factor: int) -> Result:
    """Return the result of `decode`; for about one input in fifty, check its memory use against `read_bytes`."""
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


def mutated(data: bytes, random: Random, known: Sequence[bytes], pieces: Sequence[bytes] = SIZES) -> bytes:
    """Return the bytes after up to six mutations, possibly with `pieces` and parts of `known`.

    The mutations are flipped bits, pieces, cuts, copies and splices. Some inputs are not mutated. A few grow beyond
    all size limits. A few are random bytes, without any part of `data`.
    """
    if random.random() < FOREIGN_SHARE:
        return random.randbytes(random.randrange(FOREIGN_MAX_BYTES))
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, MUTATIONS_MAX))):
        at = random.randrange(len(changed) + 1)
        piece, size = random.choice(pieces), random.choice((1, 2, 4, 8, 32, 64, 200, 4_000))
        match random.randrange(10):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 2 | 3:
                changed[at : at + len(piece)] = piece
            case 4:
                copies = min(random.choice((1, 1, 1, 2, 50, 2_000)), GROWTHS[-1] // max(1, len(piece)))
                changed[at:at] = piece * copies
            case 5:
                del changed[at : at + size]
            case 6:
                del changed[at:]
            case 7:
                changed[at:at] = changed[at : at + size]
            case 8:
                other = random.choice(known)
                changed[at:] = other[random.randrange(len(other) + 1) :]
            case _:
                other = random.choice(known)
                start = random.randrange(len(other) + 1)
                changed[at:at] = other[start : start + size]
    return _grown(changed, random, pieces) if random.random() < GROWN_SHARE else bytes(changed)


def _grown(data: bytearray, random: Random, pieces: Sequence[bytes]) -> bytes:
    """Return the bytes with many copies of a piece, at the end or anywhere."""
    at, size = random.choice((len(data), random.randrange(len(data) + 1))), random.choice(GROWTHS)
    piece = random.choice(pieces) or b"\0"
    return bytes(data[:at] + (piece * (size // len(piece) + 1))[:size] + data[at:])


def main(command: str, subjects: Sequence[type[Subject[Any]]], arguments: Sequence[str]) -> int:
    """Fuzz the subjects of a command; return 0 if every check passed. `--help` prints the texts of their modules."""
    texts = dict.fromkeys(sys.modules[each.__module__].__doc__ or "" for each in subjects)
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.simulation {command}",
        description="\n".join(texts),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=100_000, help="number of inputs of each subject (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (default 0)")
    made = [each() for each in subjects]
    if len(made) > 1:
        parser.add_argument("--what", choices=[each.name for each in made], action="append", help="default all")
    options = parser.parse_args(arguments)
    chosen = [each for each in made if each.name in (getattr(options, "what", None) or [each.name])]
    results = [run(each, options.seed, max(1, options.count // each.steps)) for each in chosen]
    return 0 if all(results) else 1


def resident_mib() -> float:
    """Return the maximum memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def print_lines(lines: Sequence[str]) -> None:
    """Print lines immediately: a run may take hours."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
