"""Fuzzing of what reads Kafka's protocol: `python -m tests.simulation kraft-fuzz --what W --count N`.

    W (requests, responses, batches, entries, logins, endpoint; all if left out) ─▶ an input ─▶ its check ─▶ outcomes

What must hold for each is its target's (`kraft_targets`, `kraft_endpoint_target`). For all of them it is what `fuzzing`
asks for: every API, every compression and every reason to refuse occur. An input of the endpoint is a conversation of
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
    """One of the targets."""
    return Subject(
        make=target.make,
        check=target.check,
        expected=target.expected,
        memory_growth_limit_mib=64,
        shown_bytes=8_192,
        name=target.name,
    )


def main(arguments: Sequence[str]) -> int:
    """Fuzz; 0 if everything held."""
    parser = options_of("kraft-fuzz", __doc__)
    parser.add_argument(
        "--what",
        choices=[*TARGETS],
        action="append",
        help="one target; may be repeated (default all); --count for each",
    )
    options = parser.parse_args(arguments)
    held = [
        run(
            subject(TARGETS[name]()),
            options.seed,
            max(1, options.count // REQUESTS) if name == EndpointTarget.name else options.count,
        )
        for name in options.what or [*TARGETS]
    ]
    return 0 if all(held) else 1
