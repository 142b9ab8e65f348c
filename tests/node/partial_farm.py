"""A farm with one founder, and with only the parts that a test needs."""

from types import SimpleNamespace
from typing import Any

from bridge.core.formation.founding import Founder, Founding
from bridge.node.founded_farm import FoundedFarm
from bridge.node.membership.farm_peers import KnownFarm

FOUNDING = Founding((Founder(bytes(8), 0, bytes(16)),))


def partial_farm(applied_state: Any, **parts: Any) -> FoundedFarm:
    """Return a farm with these parts, and an idle `reconciling` by default. Each other part is `None`."""
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
    known = KnownFarm(FOUNDING, nothing, applied_state)
    gossip = {"in_contact": lambda *_: True, "endpoint_of": lambda _: None}
    return FoundedFarm(known=known, **{**rest, **gossip, "reconciling": reconciling, **parts})
