"""Fuzzing of the readers of Kafka's protocol: `python -m tests.simulation kraft-fuzz --what W --count N`.

    W (requests, responses, batches, entries, logins, endpoint; default: all) ─▶ an input ─▶ its check ─▶ outcomes

The target defines the checks of each input (`kraft_targets`, `kraft_endpoint_target`). `fuzzing` checks all inputs:
every API, every compression and every reason for a refusal must occur. An input of the endpoint is a conversation of
about `REQUESTS` requests, and `--count` counts its requests.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tests.simulation.fuzzing import Subject, options_of, run
from tests.simulation.kraft_endpoint_target import REQUESTS, EndpointTarget
from tests.simulation.kraft_targets import (
    BatchTarget,
    EntriesTarget,
    LoginTarget,
    RequestTarget,
    ResponseTarget,
    Target,
)

TARGETS: Final[dict[str, Callable[[], Target]]] = {
    target.name: target
    for target in (RequestTarget, ResponseTarget, BatchTarget, EntriesTarget, LoginTarget, EndpointTarget)
}


def subject(target: Target) -> Subject:
    return Subject(
        make=target.make,
        check=target.check,
        expected=target.expected,
        memory_growth_limit_mib=64,
        shown_bytes=8_192,
        name=target.name,
    )


def main(arguments: Sequence[str]) -> int:
    """Fuzz; return 0 if every check passed."""
    parser = options_of("kraft-fuzz", __doc__)
    parser.add_argument(
        "--what",
        choices=[*TARGETS],
        action="append",
        help="one target; may be repeated (default all); --count for each",
    )
    options = parser.parse_args(arguments)
    results = [
        run(
            subject(TARGETS[name]()),
            options.seed,
            max(1, options.count // REQUESTS) if name == EndpointTarget.name else options.count,
        )
        for name in options.what or [*TARGETS]
    ]
    return 0 if all(results) else 1
