"""Weakly consistent group membership: SWIM over datagrams, with bounded peer capacity.

    async with gossip.open("192.168.1.5", key=secret, seeds=("192.168.1.4:7946",)) as group:
        async for numbered in group.events(): ...

Three floors, and imports point only one way: `core` (pure decisions) <- `wire` (messages as bytes) <- `node` (trio).
Others import from here and from the faces `gossip.wire`, `gossip.node` and `gossip.simulation`, never from further
inside. A name is fetched from its module when it is first used, so that callers with their own I/O get the pure `Swim`
without trio and cryptography.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gossip.core.effects import (
        AdoptGeneration,
        Alarm,
        AlarmKind,
        KeyOffered,
        KeyringUpdateRefused,
        MembershipChanged,
        QueryReceived,
        UserEventReceived,
        equivocation,
        rolled_back,
    )
    from gossip.core.keyring import (
        CLOCK_LIMIT,
        ERA_LIMIT,
        KEY_BYTES,
        KEYS_LIMIT,
        LABEL_BYTES,
        ClockBound,
        Keyring,
        KeyringError,
        KeyState,
        farm_label,
        key_id,
    )
    from gossip.core.member import (
        INCARNATION_LIMIT,
        LAST_GENERATION,
        METADATA_LIMIT_BYTES,
        Address,
        Incarnation,
        NodeId,
        NodeInfo,
        Status,
        equivocate,
        is_plausible,
    )
    from gossip.core.membership import Description, Member
    from gossip.core.messages import JoinNak, Query, UserEvent
    from gossip.core.options import Options
    from gossip.core.swim import Swim
    from gossip.node.event_ring import EventRing, Numbered, Reader
    from gossip.node.group import EVENTS_LIMIT, Group, GroupEvent
    from gossip.node.group import open_group as open  # noqa: A004 - `gossip.open`, as `gzip.open`
    from gossip.node.key_manager import KeyManager, ListedKey, NotEverywhereError
    from gossip.node.limits import GroupDescription, OtherFarm, WireDescription
    from gossip.node.requests import Answer, BusyError
    from gossip.node.settings import ConfigError, GroupSettings
    from gossip.node.state_files import StateError

__all__ = [
    "CLOCK_LIMIT",
    "ERA_LIMIT",
    "EVENTS_LIMIT",
    "INCARNATION_LIMIT",
    "KEYS_LIMIT",
    "KEY_BYTES",
    "LABEL_BYTES",
    "LAST_GENERATION",
    "METADATA_LIMIT_BYTES",
    "Address",
    "AdoptGeneration",
    "Alarm",
    "AlarmKind",
    "Answer",
    "BusyError",
    "ClockBound",
    "ConfigError",
    "Description",
    "EventRing",
    "Group",
    "GroupDescription",
    "GroupEvent",
    "GroupSettings",
    "Incarnation",
    "JoinNak",
    "KeyManager",
    "KeyOffered",
    "KeyState",
    "Keyring",
    "KeyringError",
    "KeyringUpdateRefused",
    "ListedKey",
    "Member",
    "MembershipChanged",
    "NodeId",
    "NodeInfo",
    "NotEverywhereError",
    "Numbered",
    "Options",
    "OtherFarm",
    "Query",
    "QueryReceived",
    "Reader",
    "StateError",
    "Status",
    "Swim",
    "UserEvent",
    "UserEventReceived",
    "WireDescription",
    "equivocate",
    "equivocation",
    "farm_label",
    "is_plausible",
    "key_id",
    "open",
    "rolled_back",
]

_HOMES: Final = {
    "gossip.core.effects": (
        "AdoptGeneration",
        "Alarm",
        "AlarmKind",
        "KeyOffered",
        "KeyringUpdateRefused",
        "MembershipChanged",
        "QueryReceived",
        "UserEventReceived",
        "equivocation",
        "rolled_back",
    ),
    "gossip.core.keyring": (
        "CLOCK_LIMIT",
        "ClockBound",
        "ERA_LIMIT",
        "KEYS_LIMIT",
        "KEY_BYTES",
        "KeyState",
        "Keyring",
        "KeyringError",
        "LABEL_BYTES",
        "farm_label",
        "key_id",
    ),
    "gossip.core.member": (
        "Address",
        "INCARNATION_LIMIT",
        "Incarnation",
        "LAST_GENERATION",
        "METADATA_LIMIT_BYTES",
        "NodeId",
        "NodeInfo",
        "Status",
        "equivocate",
        "is_plausible",
    ),
    "gossip.core.membership": ("Description", "Member"),
    "gossip.core.messages": ("JoinNak", "Query", "UserEvent"),
    "gossip.core.options": ("Options",),
    "gossip.core.swim": ("Swim",),
    "gossip.node.event_ring": ("EventRing", "Numbered", "Reader"),
    "gossip.node.key_manager": ("KeyManager", "ListedKey", "NotEverywhereError"),
    "gossip.node.limits": ("GroupDescription", "OtherFarm", "WireDescription"),
    "gossip.node.requests": ("Answer", "BusyError"),
    "gossip.node.settings": ("ConfigError", "GroupSettings"),
    "gossip.node.state_files": ("StateError",),
    "gossip.node.group": ("EVENTS_LIMIT", "Group", "GroupEvent", "open"),
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home."""
    if name == "open":
        return import_module("gossip.node.group").open_group
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'gossip' has no attribute {name!r}")
