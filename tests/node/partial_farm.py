"""A farm with only the parts that a test needs."""

from types import SimpleNamespace
from typing import Any

from bridge.node.founded_farm import FoundedFarm
from bridge.node.membership.farm_peers import KnownFarm


def partial_farm(applied_state: Any, **parts: Any) -> FoundedFarm:
    """Return a farm with these parts; every other part is None."""
    reconciling = SimpleNamespace(losing_vote=frozenset(), waits=())
    rest: dict[str, Any] = dict.fromkeys(
        (
            "replica",
            "signer",
            "submitting",
            "background_tasks",
            "identities",
            "level_raising",
            "notices",
            "contact_within_ms",
        )
    )
    nothing: Any = None
    known = KnownFarm(nothing, nothing, applied_state)
    return FoundedFarm(known=known, **{**rest, "reconciling": reconciling, **parts})
