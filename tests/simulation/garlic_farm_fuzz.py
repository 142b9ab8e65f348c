"""Fuzzing of the input of a farm's server: `python -m tests.simulation garlic-farm-fuzz --what W --count N`.

    W (upgrade, requests, replies, json; default: all) ─▶ an input ─▶ the target's check ─▶ an outcome

The target defines the checks of each input (`garlic_farm_targets`): only its own error is raised. `fuzzing` checks all
inputs, including gzip bombs.
"""

from collections.abc import Sequence

from tests.simulation.fuzzing import Subject, options_of, run
from tests.simulation.garlic_farm_targets import TARGETS, Target

MEMORY_GROWTH_LIMIT_MIB = 48
"""Memory for a bomb inflated up to its limit, and for the part that the allocator keeps."""
SHOWN_BYTES = 4_096


def subject(target: Target) -> Subject:
    return Subject(
        make=target.make,
        check=lambda data, random: [target.check(data, random)],
        expected=target.expected,
        memory_growth_limit_mib=MEMORY_GROWTH_LIMIT_MIB,
        shown_bytes=SHOWN_BYTES,
        name=target.name,
    )


def main(arguments: Sequence[str]) -> int:
    """Fuzz; return 0 if every check passed."""
    parser = options_of("garlic-farm-fuzz", __doc__)
    parser.add_argument(
        "--what",
        choices=[*TARGETS],
        action="append",
        help="one target; may be repeated (default all); --count for each",
    )
    options = parser.parse_args(arguments)
    results = [run(subject(TARGETS[name]()), options.seed, options.count) for name in options.what or [*TARGETS]]
    return 0 if all(results) else 1
