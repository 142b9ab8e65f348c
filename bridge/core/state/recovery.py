"""A new cluster's first state, made of what one survivor of an old one holds.

    old farm of A, B, C ──▶ B's state ──▶ new cluster of B alone: Raft id 1, publications, weights, log time

Raft ids begin anew with a cluster: an id means something only together with the cluster id, which every connection
names, and the storages of the old servers never open under the new one. So of the members nobody but the survivor is
admitted: those who come back do so as new servers, under any name. Who was evicted or replaced stays out.

What the others reported goes with them. They were declared to be gone for good, and a leaf whose router has gone is
better left out than kept for an hour at a higher cost; a router that joins again brings its leaves along. What was
published last stays, so that the next second is later. Client keys stay admitted; what they signed for the old cluster
counts for nothing in the new one.

Numbers that somebody made up would go on, too: a term or a log time near their ends, a second of a publication that
is years ahead. A new cluster is the one occasion on which they may go back (`Reset`), for nobody compares them with
those of the old one: its servers refuse the new cluster's, and what was published reaches routers by other ways,
which the operator is told (`refused_until_s`).
"""

from dataclasses import dataclass, replace

from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.membership.admission import Admitted, raft_id_of
from bridge.core.state.farm_state import Choice, FarmState, MasterState

SURVIVOR_ID = 1
NOBODY_ID = 0
"""Stands for a publisher that was left behind: no server has it."""


FIRST_TERM = 1
LEASE_SET_SECONDS_MAX = 0xFFFF + 60
"""No router takes a structure that ends later than so far from now (16 bits of seconds, and Java's tolerance)."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What begins anew in the new cluster."""

    term: bool = False
    """At `FIRST_TERM`."""
    log_time_ms: int | None = None
    """Log time begins here; None: where it was."""
    second: bool = False
    """The last second of each publication is forgotten."""


def refused_until_s(farm: FarmState, now_s: int) -> int | None:
    """Until when routers may refuse a second of now for one that is forgotten; None: for none of them.

    A router keeps the latest second until that structure ends, and takes none that ends too far ahead.
    """
    seconds = [each.publication.published_s for each in farm.masters.values() if each.publication is not None]
    later = [each for each in seconds if each >= now_s]
    return min(max(later), now_s) + LEASE_SET_SECONDS_MAX if later else None


def recovered(farm: FarmState, node_id: bytes, reset: Reset | None = None) -> FarmState:
    """The state of the new cluster in which the identity `node_id` is the only server."""
    reset = reset or Reset()
    if reset.log_time_ms is not None:
        farm = _at_log_time(farm, reset.log_time_ms)
    if reset.term:
        farm = replace(farm, applied_term=min(farm.applied_term, FIRST_TERM))
    if reset.second:
        forgotten = {each: replace(master, publication=None) for each, master in farm.masters.items()}
        farm = replace(farm, masters=forgotten)
    old_id = raft_id_of(farm.admitted, node_id)
    own = None if old_id is None else farm.servers.get(old_id)
    out = [each for _, each in sorted(farm.admitted.items()) if not each.is_member and each.node_id != node_id]
    # The entries that admitted them are signed for the old cluster, and prove nothing in the new one.
    survivor = Admitted(node_id) if old_id is None else replace(farm.admitted[old_id], entry=b"")
    out = [replace(each, entry=b"") for each in out]
    return replace(
        farm,
        admitted=dict(enumerate([survivor, *out], start=SURVIVOR_ID)),
        servers={} if own is None else {SURVIVOR_ID: replace(own, report=replace(own.report, server_id=SURVIVOR_ID))},
        masters={each: _recovered_master(master, old_id) for each, master in farm.masters.items()},
        removed=(),
        # Its one voter vouches for the time from here on.
        clocks=VoterClocks(farm.log_time_ms, ((SURVIVOR_ID,),)),
    )


def _recovered_master(master: MasterState, old_id: int | None) -> MasterState:
    publication = master.publication
    if publication is not None:
        publication = replace(publication, server_id=SURVIVOR_ID if publication.server_id == old_id else NOBODY_ID)
    chosen = old_id is not None and master.choice.server_id == old_id
    return replace(master, choice=Choice(SURVIVOR_ID if chosen else None), publication=publication)


def _at_log_time(farm: FarmState, log_time_ms: int) -> FarmState:
    """The same farm, as if its log time had come to `log_time_ms` only: nothing was heard or said later than that."""
    servers = {
        each: replace(server, heard_ms=log_time_ms, lag_ms=0, clock_off=False) for each, server in farm.servers.items()
    }
    masters = {
        each: replace(master, since_ms=min(master.since_ms, log_time_ms)) for each, master in farm.masters.items()
    }
    factors = {
        each: replace(factor, said_ms=min(factor.said_ms, log_time_ms)) for each, factor in farm.weights.factors.items()
    }
    weights = replace(farm.weights, factors=factors)
    return replace(farm, log_time_ms=log_time_ms, servers=servers, masters=masters, weights=weights)
