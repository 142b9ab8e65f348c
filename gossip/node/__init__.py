"""Gossip on a machine: the trio task that owns the core, its sockets and its state directory.

What is named here is for users of gossip that share its state directory and its spelling of addresses; inside gossip,
modules import each other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gossip.node.discovery import LanInterface, lan_interfaces
    from gossip.node.endpoints import endpoint, is_private, may_gossip, numeric, parse_endpoint
    from gossip.node.settings import DEFAULT_CAPACITY, SEEDS_LIMIT
    from gossip.node.state_files import (
        GenerationKeeper,
        Identity,
        begin_generation,
        exclusive,
        keep_generation,
        known_keyring,
        load_identity,
        reset_stored_era,
        save_identity,
    )

__all__ = [
    "DEFAULT_CAPACITY",
    "SEEDS_LIMIT",
    "GenerationKeeper",
    "Identity",
    "LanInterface",
    "begin_generation",
    "endpoint",
    "exclusive",
    "is_private",
    "keep_generation",
    "known_keyring",
    "lan_interfaces",
    "load_identity",
    "may_gossip",
    "numeric",
    "parse_endpoint",
    "reset_stored_era",
    "save_identity",
]

_HOMES: Final = {
    "gossip.node.discovery": ("LanInterface", "lan_interfaces"),
    "gossip.node.endpoints": ("endpoint", "is_private", "may_gossip", "numeric", "parse_endpoint"),
    "gossip.node.settings": ("DEFAULT_CAPACITY", "SEEDS_LIMIT"),
    "gossip.node.state_files": (
        "GenerationKeeper",
        "Identity",
        "begin_generation",
        "exclusive",
        "keep_generation",
        "known_keyring",
        "load_identity",
        "reset_stored_era",
        "save_identity",
    ),
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'gossip.node' has no attribute {name!r}")
