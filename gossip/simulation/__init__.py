"""Groups of many cores under virtual time, and what they measure."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gossip.simulation.charts import picture
    from gossip.simulation.results import figures, load_ratio
    from gossip.simulation.scenario import Play, Scenario

__all__ = ["Play", "Scenario", "figures", "load_ratio", "picture"]

_HOMES: Final = {
    "gossip.simulation.charts": ("picture",),
    "gossip.simulation.results": ("figures", "load_ratio"),
    "gossip.simulation.scenario": ("Play", "Scenario"),
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'gossip.simulation' has no attribute {name!r}")
