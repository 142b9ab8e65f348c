"""Weakly consistent group membership: SWIM over datagrams, with bounded peer capacity.

    async with gossip.open("192.168.1.5", key=secret, seeds=("192.168.1.4:7946",)) as group:
        async for event in group.events(): ...

Three floors, and imports point only one way: `core` (pure decisions) <- `wire` (messages as bytes) <- `node` (trio).
What is named here is fetched when it is first used, so that those who bring their own I/O get the pure `Swim` without
trio and cryptography.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gossip.core.description import Member
    from gossip.core.effects import Alarm, AlarmKind, MembershipChanged, QueryReceived, UserEventReceived
    from gossip.core.keyring import KeyringError
    from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
    from gossip.core.messages import JoinNak
    from gossip.core.options import Options
    from gossip.core.swim import Swim
    from gossip.node.group import Group
    from gossip.node.group import open_group as open  # noqa: A004 - `gossip.open`, as `trio.open_...` and `gzip.open`
    from gossip.node.identity import StateError
    from gossip.node.questions import Answer
    from gossip.node.requests import BusyError
    from gossip.node.settings import ConfigError
    from gossip.wire.seal import KeyRing

__all__ = [
    "Address",
    "Alarm",
    "AlarmKind",
    "Answer",
    "BusyError",
    "ConfigError",
    "Group",
    "Incarnation",
    "JoinNak",
    "KeyRing",
    "KeyringError",
    "Member",
    "MembershipChanged",
    "NodeId",
    "NodeInfo",
    "Options",
    "QueryReceived",
    "StateError",
    "Status",
    "Swim",
    "UserEventReceived",
    "open",
]

_HOMES: Final = {
    "gossip.core.effects": ("Alarm", "AlarmKind", "UserEventReceived", "MembershipChanged", "QueryReceived"),
    "gossip.core.keyring": ("KeyringError",),
    "gossip.core.description": ("Member",),
    "gossip.core.member": ("Address", "Incarnation", "NodeId", "NodeInfo", "Status"),
    "gossip.core.swim": ("Swim",),
    "gossip.core.options": ("Options",),
    "gossip.core.messages": ("JoinNak",),
    "gossip.node.settings": ("ConfigError",),
    "gossip.node.group": ("Group",),
    "gossip.node.identity": ("StateError",),
    "gossip.node.questions": ("Answer",),
    "gossip.node.requests": ("BusyError",),
    "gossip.wire.seal": ("KeyRing",),
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home."""
    if name == "open":
        return import_module("gossip.node.group").open_group
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'gossip' has no attribute {name!r}")
