"""The pure core of gossip: no sockets, no clock, no global randomness.

What is named here is for users of gossip that bring their own I/O: what a `Swim` takes and gives. Inside gossip,
modules import each other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gossip.core.effects import Announce, Effect, OfferToken, QueryAnswered, QueryEnded, Send, UseKeyring
    from gossip.core.events import (
        AnswerGiven,
        DeadlineReached,
        Event,
        KeyringChanged,
        LeaveRequested,
        MaintenanceSwitched,
        MetadataChanged,
        QueryRequested,
        Received,
        SeedsGiven,
        Unreadable,
        UserEventRequested,
    )
    from gossip.core.messages import Message
    from gossip.core.options import Options
    from gossip.core.swim import Swim

__all__ = [
    "Announce",
    "AnswerGiven",
    "DeadlineReached",
    "Effect",
    "Event",
    "KeyringChanged",
    "LeaveRequested",
    "MaintenanceSwitched",
    "Message",
    "MetadataChanged",
    "OfferToken",
    "Options",
    "QueryAnswered",
    "QueryEnded",
    "QueryRequested",
    "Received",
    "SeedsGiven",
    "Send",
    "Swim",
    "Unreadable",
    "UseKeyring",
    "UserEventRequested",
]

_HOMES: Final = {
    "gossip.core.effects": ("Announce", "Effect", "OfferToken", "QueryAnswered", "QueryEnded", "Send", "UseKeyring"),
    "gossip.core.events": (
        "AnswerGiven",
        "DeadlineReached",
        "Event",
        "KeyringChanged",
        "LeaveRequested",
        "MaintenanceSwitched",
        "MetadataChanged",
        "QueryRequested",
        "Received",
        "SeedsGiven",
        "Unreadable",
        "UserEventRequested",
    ),
    "gossip.core.messages": ("Message",),
    "gossip.core.options": ("Options",),
    "gossip.core.swim": ("Swim",),
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'gossip.core' has no attribute {name!r}")
