"""Fuzzing of the readers of ØMQ Raft: `python -m tests.simulation zmq-raft-fuzz --what W --count N`.

    W (requests, replies, broadcasts, endpoint; default: all) ─▶ an input ─▶ the target's check ─▶ its outcomes

An input is an array of frames in MessagePack. The target defines its checks (`zmq_raft_targets`,
`zmq_endpoint_target`). `fuzzing` checks all inputs: every kind of message and refusals must occur. An input of the
endpoint is a conversation of 64 steps, and `--count` counts conversations.
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
    return Subject(
        make=lambda random: msgspec.msgpack.encode(target.make(random)),
        check=lambda data, random: target.check(msgspec.msgpack.decode(data, type=list[bytes]), random),
        expected=target.expected,
        shown_bytes=4_096,
        name=target.name,
    )


def main(arguments: Sequence[str]) -> int:
    """Fuzz; return 0 if every check passed."""
    parser = options_of("zmq-raft-fuzz", __doc__)
    parser.add_argument(
        "--what",
        choices=[*TARGETS],
        action="append",
        help="one target; may be repeated (default all); --count for each",
    )
    options = parser.parse_args(arguments)
    results = [run(subject(TARGETS[name]()), options.seed, options.count) for name in options.what or [*TARGETS]]
    return 0 if all(results) else 1
