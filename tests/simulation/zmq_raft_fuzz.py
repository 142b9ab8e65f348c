"""Fuzzing of what reads ØMQ Raft: `python -m tests.simulation zmq-raft-fuzz --what W --count N`.

    W (requests, replies, broadcasts, endpoint; all if left out) ─▶ an input ─▶ the target's check ─▶ its outcomes

An input is an array of frames in MessagePack. What must hold for each is its target's (`zmq_raft_targets`,
`zmq_endpoint_target`). For all of them it is what `fuzzing` asks for: every kind of message as well as refusals occur.
An input of the endpoint is a conversation of 64 messages, and `--count` counts conversations.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tests.simulation.fuzzing import Subject, options_of, run
from tests.simulation.zmq_endpoint_target import EndpointTarget
from tests.simulation.zmq_raft_targets import BroadcastTarget, ReplyTarget, RequestTarget, Target

TARGETS: Final[dict[str, Callable[[], Target]]] = {
    target.name: target for target in (RequestTarget, ReplyTarget, BroadcastTarget, EndpointTarget)
}


def subject(target: Target) -> Subject:
    """One of the targets."""
    return Subject(
        make=lambda random: msgspec.msgpack.encode(target.make(random)),
        check=lambda data, random: target.check(msgspec.msgpack.decode(data, type=list[bytes]), random),
        expected=target.expected,
        shown_bytes=4_096,
        name=target.name,
    )


def main(arguments: Sequence[str]) -> int:
    """Fuzz; 0 if everything held."""
    parser = options_of("zmq-raft-fuzz", __doc__)
    parser.add_argument(
        "--what",
        choices=[*TARGETS],
        action="append",
        help="one target; may be repeated (default all); --count for each",
    )
    options = parser.parse_args(arguments)
    held = [run(subject(TARGETS[name]()), options.seed, options.count) for name in options.what or [*TARGETS]]
    return 0 if all(held) else 1
