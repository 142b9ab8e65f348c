"""Fuzzing of what a server of the farm reads: `python -m tests.simulation garlic-farm-fuzz --what W --count N`.

    W (upgrade, requests, replies, json; all if left out) ─▶ an input ─▶ the target's check ─▶ an outcome

What must hold for each input is its target's (`garlic_farm_targets`): the one error and nothing else. For all of them
it is what `fuzzing` asks for, gzip bombs among them.
"""

from collections.abc import Sequence

from tests.simulation.fuzzing import Subject, options_of, run
from tests.simulation.garlic_farm_targets import TARGETS, Target

MEMORY_GROWTH_LIMIT_MIB = 48
"""Room for a bomb that is inflated up to its limit, and what the allocator keeps of it."""
SHOWN_BYTES = 4_096


def subject(target: Target) -> Subject:
    """One of the targets."""
    return Subject(
        make=target.make,
        check=lambda data, random: [target.check(data, random)],
        expected=target.expected,
        memory_growth_limit_mib=MEMORY_GROWTH_LIMIT_MIB,
        shown_bytes=SHOWN_BYTES,
        name=target.name,
    )


def main(arguments: Sequence[str]) -> int:
    """Fuzz; 0 if everything held."""
    parser = options_of("garlic-farm-fuzz", __doc__)
    parser.add_argument(
        "--what",
        choices=[*TARGETS],
        action="append",
        help="one target; may be repeated (default all); --count for each",
    )
    options = parser.parse_args(arguments)
    held = [run(subject(TARGETS[name]()), options.seed, options.count) for name in options.what or [*TARGETS]]
    return 0 if all(held) else 1
