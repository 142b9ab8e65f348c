"""Elects the publisher of each master and chooses its leaves, after each entry that can make a difference.

A master is known while a server reports for it, and for `forget_after_ms` after its last publication, so that the
seconds of its structures still rise when its servers come back.
"""

from dataclasses import dataclass, replace

from bridge.core.publishing.candidates import candidates_of, choose
from bridge.core.publishing.lease_set import select_leaves
from bridge.core.state.farm_state import MASTERS_MAX, FarmState, FarmTuning, MasterState


@dataclass(frozen=True, slots=True)
class PublisherChanged:
    """Another server publishes `master` from here on; None: no server is able to."""

    master: str
    server_id: int | None
    previous: int | None


def choose_again(
    state: FarmState, tuning: FarmTuning, *, at_clock: bool, reweighed: str | None = None
) -> tuple[FarmState, list[PublisherChanged]]:
    """Choose publisher and leaves of every master that is reported for, or was published within `forget_after_ms`."""
    reported = {part.destination for server in state.servers.values() for part in server.report.masters}
    recent = {
        name: master for name, master in state.masters.items() if name in reported or _recent(state, master, tuning)
    }
    newcomers = sorted(reported - recent.keys())[: MASTERS_MAX - len(recent)]
    masters: dict[str, MasterState] = {}
    changes: list[PublisherChanged] = []
    for name in sorted([*recent, *newcomers]):
        before = recent.get(name) or MasterState(since_ms=max(server.heard_ms for server in state.serving(name)))
        choice = choose(before.choice, candidates_of(state, name, tuning), tuning, at_clock=at_clock)
        leaves = select_leaves(state, name, tuning, at_clock=at_clock, reweighed=reweighed)
        masters[name] = replace(before, choice=choice, leaves=leaves)
        if choice.server_id != before.choice.server_id:
            changes.append(PublisherChanged(name, choice.server_id, before.choice.server_id))
    return replace(state, masters=masters), changes


def _recent(state: FarmState, master: MasterState, tuning: FarmTuning) -> bool:
    publication = master.publication
    return publication is not None and state.log_time_ms - publication.published_s * 1000 <= tuning.forget_after_ms
