"""Elect the publisher of each master and choose its leaves, after each entry that can make a difference.

A master is known while a server reports for it, and for `forget_after_ms` after its last publication. So its timestamps
still rise when its servers return.

There are `MASTERS_MAX` places. Below `BOUNDS_LEVEL` a master keeps its place while it is known, so one server that
reports invented masters can take all places. From that level on, the first master of each server comes before all
others, so that two servers cannot take all places either. Then come each server's other masters up to
`MASTERS_OF_SERVER_MAX`. A further master loses its place to a master of a server with fewer masters. Among equals,
older masters keep their places.
"""

import math
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.publishing.candidates import candidates_of, choose
from bridge.core.publishing.lease_set import select_leaves
from bridge.core.state.farm_state import MASTERS_MAX, MASTERS_OF_SERVER_MAX, FarmState, FarmTuning, MasterState


class PublisherChanged(Struct, frozen=True):
    """Another server publishes `master` from here on; None if no server is able to."""

    master: str
    server_id: int | None
    previous: int | None


def choose_again(
    state: FarmState, tuning: FarmTuning, *, at_clock: bool, reweighed: str | None = None
) -> tuple[FarmState, list[PublisherChanged]]:
    """Choose publisher and leaves of every master with a report, or with a publication within `forget_after_ms`."""
    reported = {part.destination for server in state.servers.values() for part in server.report.masters}
    recent = {
        name: master for name, master in state.masters.items() if name in reported or _recent(state, master, tuning)
    }
    masters: dict[str, MasterState] = {}
    changes: list[PublisherChanged] = []
    for name in sorted(_with_places(state, recent, reported)):
        before = recent.get(name) or MasterState(since_ms=max(server.reported_ms for server in state.serving(name)))
        choice = choose(before.choice, candidates_of(state, name, tuning), tuning, at_clock=at_clock)
        leaves = select_leaves(state, name, tuning, at_clock=at_clock, reweighed=reweighed)
        masters[name] = replace(before, choice=choice, leaves=leaves)
        if choice.server_id != before.choice.server_id:
            changes.append(PublisherChanged(name, choice.server_id, before.choice.server_id))
    return replace(state, masters=masters), changes


def _with_places(state: FarmState, recent: dict[str, MasterState], reported: set[str]) -> list[str]:
    newcomers = sorted(reported - recent.keys())
    if state.level < BOUNDS_LEVEL or len(recent) + len(newcomers) <= MASTERS_MAX:
        return [*recent, *newcomers[: MASTERS_MAX - len(recent)]]
    ranks: dict[str, int] = {}
    for of_server in _masters_by_holder(state, recent):
        for rank, name in enumerate(sorted(of_server, key=lambda each: (each not in recent, each))):
            ranks[name] = min(rank, ranks.get(name, rank))
    since_ms = {name: master.since_ms for name, master in recent.items()}
    ranked = [(_turn(rank), since_ms.get(name, math.inf), name) for name, rank in ranks.items()]
    return [name for *_, name in sorted(ranked)[:MASTERS_MAX]]


def _turn(rank: int) -> int:
    """Return the turn for a master of this rank at its server: 0 for the first, 1 within the share, then 2, 3 etc."""
    return min(rank, 1) + max(0, rank - MASTERS_OF_SERVER_MAX + 1)


def _masters_by_holder(state: FarmState, recent: dict[str, MasterState]) -> Iterator[set[str]]:
    """Yield the masters of each server: the reported ones; a master without reports belongs to its last publisher."""
    of_server = {number: {part.destination for part in each.report.masters} for number, each in state.servers.items()}
    reported = set().union(*of_server.values()) if of_server else set()
    for name, master in recent.items():
        if name not in reported and master.publication is not None:
            of_server.setdefault(master.publication.server_id, set()).add(name)
    yield from of_server.values()


def _recent(state: FarmState, master: MasterState, tuning: FarmTuning) -> bool:
    publication = master.publication
    return publication is not None and state.log_time_ms - publication.published_s * 1000 <= tuning.forget_after_ms
