"""A server writes down its state machine and forgets the log that led there (Raft section 7).

    SnapshotWanted(index) ──▶ TakeSnapshot(last, configuration) ──▶ … ──▶ SnapshotTaken ──▶ Persist with `Compact`

Each server does so on its own, without asking the leader: what it covers is committed, so no decision can conflict. The
core adds what only the log knows, the term at the index and the configuration in force there. The log is shortened only
by the Persist that makes the snapshot the stored one; a crash before leaves the old snapshot and the whole log.
"""

from consensus.core.effects import Compact, TakeSnapshot
from consensus.core.model import Index, LogId, SnapshotDescription
from consensus.core.replica import Replica


def begin(replica: Replica, index: Index) -> None:
    """The state machine stands at `index`; have it written down unless the snapshot is as new already."""
    log = replica.log
    term = log.term_at(index)
    covered = log.snapshot.last.index if log.snapshot is not None else 0
    if not covered < index <= replica.applier.applied or term is None:
        replica.dropped["snapshot wanted of what is covered already or not applied yet"] += 1
        return
    replica.outbox.add(TakeSnapshot(LogId(index, term), log.configuration_at(index)))


def finish(replica: Replica, snapshot: SnapshotDescription, first_kept: Index) -> None:
    """The snapshot is written: it becomes the stored one, and the log before `first_kept` may go."""
    log = replica.log
    if (log.snapshot is not None and snapshot.last.index <= log.snapshot.last.index) or not log.matches(snapshot.last):
        # The leader's came in between.
        replica.dropped["snapshot taken of what is covered already"] += 1
        return
    kept = max(log.start.index + 1, min(first_kept, snapshot.last.index + 1, log.durable_index + 1))
    log.compact(snapshot, kept)
    replica.outbox.stage_snapshot(Compact(snapshot, kept))
