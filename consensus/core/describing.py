"""Puts a replica's description together out of its parts, whatever its role."""

from operator import itemgetter

from consensus.core.effects import RoleChanged
from consensus.core.leader import Leader
from consensus.core.replica import Replica
from consensus.core.status import Description
from consensus.core.transfer import LeadershipTransfers


def describe(
    replica: Replica, announced: RoleChanged, leader: Leader | None, transfers: LeadershipTransfers
) -> Description:
    """The replica as plain data; `leader` is its role if it leads."""
    return Description(
        server_id=replica.server_id,
        role=announced.role,
        term=replica.term,
        voted_for=replica.hard_state.voted_for,
        leader=announced.leader,
        last=replica.log.last,
        durable_index=replica.log.durable_index,
        commit_index=replica.applier.commit,
        applied_index=replica.applier.applied,
        pending_proposals=leader.pending + transfers.held if leader else 0,
        followers=leader.replication.describe() if leader else (),
        configuration=replica.log.configuration,
        change=leader.reconfiguration.describe() if leader else None,
        log_start=replica.log.start,
        snapshot=replica.log.snapshot,
        disk_full=replica.disk_full,
        pending_reads=leader.pending_reads if leader else 0,
        transfer_target=transfers.target,
        extensions=tuple(sorted(replica.extensions_of.items(), key=itemgetter(0))),
        dropped=tuple(sorted(replica.dropped.items())),
    )
