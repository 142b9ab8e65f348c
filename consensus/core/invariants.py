"""What must hold after every step, whatever was received: checked in production too, for it costs little.

A replica that breaks one of these would corrupt the log of others next. It stops instead: the error ends the process,
and a restart begins from what is durable.
"""

from consensus.core.leader import Leader
from consensus.core.replica import Applier, Replica


class InvariantBrokenError(Exception):
    """This replica contradicts itself: a bug in it, never the fault of what it received."""


def check(replica: Replica, leader: Leader | None) -> None:
    """Raise `InvariantBrokenError` if the replica's state is impossible."""
    log, applier = replica.log, replica.applier
    _require(0 <= log.durable_index <= log.last_index, "durable index beyond the log", replica)
    _require(log.last.term <= replica.term, "entry of a term that this server has not seen", replica)
    _check_applier(replica, applier)
    _check_snapshot(replica)
    if leader is not None:
        _check_leader(replica, leader)


def _check_applier(replica: Replica, applier: Applier) -> None:
    _require(applier.applied <= applier.commit, "applied beyond the commit index", replica)
    _require(applier.commit <= replica.log.last_index, "commit index beyond the log", replica)


def _check_snapshot(replica: Replica) -> None:
    log, snapshot = replica.log, replica.log.snapshot
    covered = snapshot.last.index if snapshot is not None else 0
    _require(log.start.index <= covered, "log begins beyond its snapshot", replica)
    _require(covered <= replica.applier.applied, "snapshot beyond what is applied", replica)
    _require(snapshot is None or log.matches(snapshot.last), "snapshot of another history", replica)


def _check_leader(replica: Replica, leader: Leader) -> None:
    _require(replica.hard_state.voted_for == replica.server_id, "leads a term without its own vote", replica)
    _require(replica.log.last.term == replica.term, "leads without an entry of its own term", replica)
    _require(replica.members - {replica.server_id} <= leader.followers.keys(), "a member is no follower", replica)
    _require(replica.configuration_is_possible, "impossible configuration", replica)
    if leader.reconfiguration.has_committed_in_term():
        changes = replica.log.configurations_after(replica.applier.commit)
        _require(changes <= 1, "two changes of the configuration at once", replica)
    for standing in leader.followers.values():
        _require(0 <= standing.match <= replica.log.last_index, "a follower matches beyond the log", replica)
    for fault in leader.replication.faults():
        _require(False, fault, replica)  # noqa: FBT003 - a fault that is reported does not hold


def _require(holds: bool, what: str, replica: Replica) -> None:  # noqa: FBT001 - reads as a sentence at every call
    if not holds:
        log, applier = replica.log, replica.applier
        raise InvariantBrokenError(
            f"raft server {replica.server_id} in term {replica.term}: {what} (log ends at {log.last_index}, durable "
            f"{log.durable_index}, commit {applier.commit}, applied {applier.applied}); restart the process, which "
            f"begins again from what is durable, and report this"
        )
