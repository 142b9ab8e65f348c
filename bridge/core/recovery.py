"""A new cluster's first state, made of what one survivor of an old one holds.

    old farm of A, B, C ──▶ B's state ──▶ new cluster of B alone: Raft id 1, publications, weights, log time

Raft ids begin anew with a cluster: an id means something only together with the cluster id, which every connection
names, and the storages of the old servers never open under the new one. So of the members nobody but the survivor is
admitted: those who come back do so as new servers, under any name. Who was evicted or replaced stays out.

What the others reported goes with them. They were declared to be gone for good, and a leaf whose router has gone is
better left out than kept for an hour at a higher cost; a router that joins again brings its leaves along. What was
published last stays, so that the next second is later. Client keys stay admitted; what they signed for the old cluster
counts for nothing in the new one.
"""

from dataclasses import replace

from bridge.core.admission import Admitted, raft_id_of
from bridge.core.farm_state import Choice, FarmState, MasterState

SURVIVOR_ID = 1
NOBODY_ID = 0
"""Stands for a publisher that was left behind: no server has it."""


def recovered(farm: FarmState, node_id: bytes) -> FarmState:
    """The state of the new cluster in which the identity `node_id` is the only server."""
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
    )


def _recovered_master(master: MasterState, old_id: int | None) -> MasterState:
    publication = master.publication
    if publication is not None:
        publication = replace(publication, server_id=SURVIVOR_ID if publication.server_id == old_id else NOBODY_ID)
    chosen = old_id is not None and master.choice.server_id == old_id
    return replace(master, choice=Choice(SURVIVOR_ID if chosen else None), publication=publication)
