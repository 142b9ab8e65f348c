"""What any protocol needs of a network: TLS streams, connectors, bounded acceptance; and a network in memory.

What is named here is fetched when it is first used: the network in memory needs no cryptography.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consensus.net.memory import ALL_EXTENSIONS, MemoryNetwork, MemoryTransport

__all__ = [
    "ALL_EXTENSIONS",
    "MemoryNetwork",
    "MemoryTransport",
]

_HOMES: Final = {
    "consensus.net.memory": ("ALL_EXTENSIONS", "MemoryNetwork", "MemoryTransport"),
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'consensus.net' has no attribute {name!r}")
