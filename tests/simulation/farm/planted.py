"""Planted faults between the rooms of the product, each with a seed whose trial finds it.

    PLANTED["name"].planting()   replaces methods of the product while a trial runs
    PLANTED["name"].check        the check that fails; `seed` the first seed that is known to find the fault

The trials of a world without violations prove nothing if the checks are blind. A planted fault shows that a check sees.
Faults that were found here or reported from outside are planted again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

import consensus.core.quorum
from bridge.api import verdict
from bridge.api.view import VerdictKind
from bridge.core.farm.state_machine import Farm
from bridge.core.publishing import lease_set
from bridge.node.control.farm_admin import FarmAdmin
from consensus.sessions.table import RequestStatus, SessionTable
from consensus.storage.directory import Directory
from consensus.storage.disk import SyncDirectory, SyncFile
from gossip.core.effects import Alarm, AlarmKind
from gossip.core.join import Joiner
from tests.simulation.farm.host import current_host

Replacement = tuple[Any, str, Callable[..., Any]]
"""Owner, name, and a function of the real one that returns the faulty one."""


@dataclass(frozen=True, slots=True)
class Planted:
    """One planted fault."""

    seed: int
    """A seed whose trial finds it."""
    check: str
    """The check that fails."""
    replacements: tuple[Replacement, ...]

    @contextmanager
    def planting(self) -> Iterator[None]:
        """Have the product run with the fault."""
        with ExitStack() as undo:
            for owner, name, fault in self.replacements:
                undo.enter_context(patch.object(owner, name, fault(getattr(owner, name))))
            yield


def _without(kind: type) -> Callable[..., Any]:
    def fault(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, each: None if isinstance(each, kind) else real(self, each)

    return fault


def _isolation_never_ends(real: Callable[..., Any]) -> Callable[..., Any]:
    def peers_changed(self: Any) -> None:
        emit = self._context.emit

        def emit_others(effect: object) -> None:
            if not (isinstance(effect, Alarm) and effect.kind is AlarmKind.ISOLATED and effect.over):
                emit(effect)

        with patch.object(self._context, "emit", emit_others):
            real(self)

    return peers_changed


def _no_degraded(real: Callable[..., Any]) -> Callable[..., Any]:
    def concerns(facts: Any) -> Any:
        found = tuple(each for each in real(facts) if each.kind is not VerdictKind.DEGRADED)
        return found or (verdict._healthy(facts),)

    return concerns


def _one_node_skips_entries(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, index: int, term: int, entry: Any) -> Any:
        host = current_host.get()
        if host is not None and host.number == 2 and index % 40 == 0:
            return ()
        return real(self, index, term, entry)

    return apply


def _stale_reads(real: Callable[..., Any]) -> Callable[..., Any]:
    async def read_log(self: Any, first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> Any:
        del linearizable
        return await real(self, first, limit, wait_ms)

    return read_log


def _excluded_leaves_are_candidates(real: Callable[..., Any]) -> Callable[..., Any]:
    def candidates(state: Any, master: str, tuning: Any) -> Any:
        return real(replace(state, weights=replace(state.weights, excluded=())), master, tuning)

    return candidates


PLANTED: Final[Mapping[str, Planted]] = {
    "files are not synced": Planted(2, "nothing acknowledged lost", ((Directory, "perform", _without(SyncFile)),)),
    "names are not synced": Planted(2, "healing", ((Directory, "perform", _without(SyncDirectory)),)),
    "one vote is a majority": Planted(
        0, "state machine safety", ((consensus.core.quorum, "majority", lambda _: lambda _voters: 1),)
    ),
    "the alarm of isolation never ends": Planted(3, "healing", ((Joiner, "peers_changed", _isolation_never_ends),)),
    "a verdict ignores servers that are down": Planted(0, "true verdict", ((verdict, "_concerns", _no_degraded),)),
    "a node skips entries": Planted(0, "equal state machines", ((Farm, "apply", _one_node_skips_entries),)),
    "repeated requests count again": Planted(
        0, "acknowledged index", ((SessionTable, "admit", lambda _: lambda *_: RequestStatus.NEW),)
    ),
    "reads do not wait for the leader": Planted(0, "linearizability", ((FarmAdmin, "read_log", _stale_reads),)),
    "an exclusion does not count": Planted(
        0, "excluded leaf", ((lease_set, "_candidates", _excluded_leaves_are_candidates),)
    ),
}
