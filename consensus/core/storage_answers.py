"""What storage and the state machine tell a replica, beside that something is durable: what was asked of them before.

Every question carries a number or a position, and whoever asked recognises its answer. An answer that nobody waits for
any more (the role has changed, the leader's snapshot came in between) is dropped and counted.
"""

from typing import assert_never

from consensus.core import compaction, snapshots
from consensus.core.events import (
    EntriesRead,
    SnapshotChecked,
    SnapshotEvent,
    SnapshotRead,
    SnapshotTaken,
    SnapshotWanted,
)
from consensus.core.replica import Replica
from consensus.core.replication.port import Replication


def take(answer: EntriesRead | SnapshotEvent, replica: Replica, strategy: Replication | None) -> None:
    """Give the answer to who asked: the applier, the leader's strategy, or the snapshot that is taken or received."""
    match answer:
        case EntriesRead(request_id, first, entries):
            applied = replica.applier.entries_read(request_id, first, entries)
            if not applied and (strategy is None or not strategy.entries_read(answer)):
                replica.dropped["entries read for nobody"] += 1
        case SnapshotWanted(index):
            compaction.begin(replica, index)
        case SnapshotTaken(snapshot, first_kept):
            compaction.finish(replica, snapshot, first_kept)
        case SnapshotRead():
            if strategy is None or not strategy.snapshot_read(answer):
                replica.dropped["snapshot read for nobody"] += 1
        case SnapshotChecked():
            if not snapshots.checked(replica, answer):
                replica.dropped["snapshot checked for nobody"] += 1
        case _:
            assert_never(answer)
