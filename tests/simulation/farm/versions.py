"""Older versions of the product on some machines: their feature level.

    Host.level   ──▶ Run.level at a start    the highest level of this process; None: the level of the present version
    LevelOfHost                              takes the place of `SUPPORTED_LEVEL` in the modules that compare levels
    metadata_of_level                        announces the level of the machine in gossip

In the simulation, an older version differs in its level only. It announces and proposes this level, and refuses a
higher one. Its code for entries is the present one, which applies the kinds of entries of the farm's level. So the
simulation checks the rules for raises and refusals, not the differences between two builds; `make soak-upgrade` runs
two builds.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from bridge.core.log import feature_level
from bridge.node.membership import level_raising
from bridge.node.raft import applied_state, farm_content
from tests.simulation.farm.host import current_host

COMPARING: Final = (feature_level, level_raising, applied_state, farm_content)
"""The modules that compare levels with `SUPPORTED_LEVEL`."""
_PRESENT: Final = feature_level.SUPPORTED_LEVEL


def level_of_caller() -> int:
    """Return the highest level of the calling process."""
    host = current_host.get()
    level = None if host is None or host.run is None else host.run.level
    return _PRESENT if level is None else level


class LevelOfHost(int):
    """A number that equals the highest level of the calling process at each comparison."""

    def __lt__(self, other: int) -> bool:
        return level_of_caller() < other

    def __le__(self, other: int) -> bool:
        return level_of_caller() <= other

    def __gt__(self, other: int) -> bool:
        return level_of_caller() > other

    def __ge__(self, other: int) -> bool:
        return level_of_caller() >= other

    def __format__(self, form: str) -> str:
        return format(level_of_caller(), form)


def metadata_of_level(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of `first_metadata` that announces the level of the machine."""

    def first_metadata(*arguments: Any) -> Any:
        return replace(real(*arguments), feature_level=level_of_caller())

    return first_metadata
