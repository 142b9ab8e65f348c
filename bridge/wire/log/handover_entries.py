"""The JSON of an operator's order to hand leadership over, which reaches the leader through the log.

    {"handover": {"term": 7, "to": 2}}      the leader of term 7 hands over to server 2; without `to`, to the voter
                                            with the most complete log

The state machine does not know the order: for every version it is a foreign entry, so it does not need a feature level.
The leader acts on a committed order if its signer is a member of the farm, or a client key with the scope `operator`
(`bridge.node.raft.handover_orders`). The term prevents replays: a reader of the log can submit the same bytes again,
but a handover begins another term.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from bridge.core.log.fields import Request, ServerId

KIND: Final = "handover"
_MARK: Final = b'"handover"'


class Handover(Struct, omit_defaults=True, frozen=True):
    """The order."""

    term: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    to: ServerId | None = None


class _HandoverEntry(Struct, omit_defaults=True):
    handover: Handover
    request: Request | None = None


_decoder = msgspec.json.Decoder(_HandoverEntry)


def handover_entry(order: Handover) -> bytes:
    """Return the entry, without a proof."""
    return msgspec.json.encode(_HandoverEntry(order))


def handover_in(data: bytes) -> Handover | None:
    """Return the order in an entry; None for other entries. Never raise."""
    if _MARK not in data:
        return None
    try:
        return _decoder.decode(data).handover
    except (ValueError, RecursionError):
        return None
