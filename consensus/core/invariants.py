"""Invariants that hold after every step, for any input.

If a replica that breaks an invariant continued, it could corrupt other replicas' logs. So the error must end the
server; a restart begins from durable state. `check` compares a few numbers after every step. `check_all` also examines
the log, the followers and the configurations; tests and the simulator switch it on (`Options.check_invariants`).
"""

from consensus.core.leader import Leader
from consensus.core.model import possible_configuration
from consensus.core.replica import Replica


class InvariantBrokenError(Exception):
    """A contradiction in the state of this replica, which received data must never cause."""


def check(replica: Replica) -> None:
    """Raise `InvariantBrokenError` if the replica's numbers are impossible; the cost is equal for any log and group."""
    log, applier = replica.log, replica.applier
    if not (
        0 <= log.durable_index <= log.last_index
        and applier.applied <= applier.commit <= log.last_index
        and log.start.index <= applier.applied
    ):
        raise _broken("start, durable end, end, commit index and applied index of the log out of order", replica)
    if log.last_term > replica.term:
        raise _broken("entry of a term that this server has not seen", replica)


def check_all(replica: Replica, leader: Leader | None) -> None:
    """Raise `InvariantBrokenError` if the replica's state is impossible."""
    log, snapshot = replica.log, replica.log.snapshot
    covered = snapshot.last.index if snapshot is not None else 0
    _require(log.start.index <= covered, "log begins beyond its snapshot", replica)
    _require(covered <= replica.applier.applied, "snapshot beyond the applied entries", replica)
    _require(snapshot is None or log.matches(snapshot.last), "snapshot of another history", replica)
    for fault in log.faults():
        _require(False, fault, replica)  # noqa: FBT003 - each reported fault is a broken invariant
    if leader is not None:
        _check_leader(replica, leader)


def _check_leader(replica: Replica, leader: Leader) -> None:
    _require(replica.hard_state.voted_for == replica.server_id, "leads a term without its own vote", replica)
    owns_entry = replica.log.last_term == replica.term
    _require(owns_entry or leader.needs_no_entry_yet(), "leads without an entry of its term", replica)
    _require(replica.members - {replica.server_id} <= leader.followers.keys(), "a member is not a follower", replica)
    _require(possible_configuration(replica.log.configuration), "impossible configuration", replica)
    _require(leader.deadline <= leader.next_due_ms, "deadline later than the next due action", replica)
    if leader.reconfiguration.has_committed_in_term():
        changes = replica.log.configurations_after(replica.applier.commit)
        _require(changes <= 1, "two concurrent changes of the configuration", replica)
    for progress in leader.followers.values():
        _require(0 <= progress.match <= replica.log.last_index, "a follower matches beyond the log", replica)
    for fault in leader.replication.faults():
        _require(False, fault, replica)  # noqa: FBT003 - each reported fault is a broken invariant


def _require(holds: bool, what: str, replica: Replica) -> None:  # noqa: FBT001 - reads as a sentence at every call
    if not holds:
        raise _broken(what, replica)


def _broken(what: str, replica: Replica) -> InvariantBrokenError:
    log, applier = replica.log, replica.applier
    return InvariantBrokenError(
        f"raft server {replica.server_id} in term {replica.term}: {what} (log ends at {log.last_index}, durable"
        f" {log.durable_index}, commit {applier.commit}, applied {applier.applied}); restart the process, which"
        " continues from its durable state, and report this"
    )
