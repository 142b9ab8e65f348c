"""What the leader's answer to a fetch does to the log and to the snapshot that is being fetched.

    entries      appended at the end, which is where they were asked for
    diverging    the log is cut to the newest place where both may agree: no entry that the leader has is lost by it,
                 for terms never fall along a log, so what lies beyond has a term that the leader's log has not there
    snapshot     the entries are gone there: pieces of the snapshot are fetched next
    a piece      stored, read back when it is the last, and installed (`snapshots`)

The commit index is the leader's as far as our log goes: it has just been found to be a part of the leader's.
"""

from consensus.core import snapshots
from consensus.core.assembly import IncomingSnapshot
from consensus.core.messages import InstallSnapshot
from consensus.core.model import LogId
from consensus.core.pull_messages import FetchReply, FetchSnapshotReply
from consensus.core.replica import Replica
from consensus.core.replication.fetch_follower import Asked, still_answers


def take(replica: Replica, asked: Asked, reply: FetchReply) -> bool:
    """Do what the leader's answer says; returns whether it brought anything."""
    if not still_answers(replica.log.last, asked):
        replica.dropped["fetch reply for another end of the log"] += 1
        return False
    if reply.snapshot is not None:
        return _begin_snapshot(replica, asked, reply.snapshot)
    if reply.diverging is not None:
        return _cut(replica, reply.diverging)
    return _append(replica, reply)


def _cut(replica: Replica, diverging: LogId) -> bool:
    keep = replica.log.divergence(diverging).index
    if keep < replica.applier.commit:
        replica.dropped["fetch reply that contradicts committed entries"] += 1
        return False
    if keep < replica.log.last_index:
        replica.append((), truncate_from=keep + 1)
    return True


def _append(replica: Replica, reply: FetchReply) -> bool:
    if reply.entries and reply.entries[0].term < replica.log.last.term:
        replica.dropped["fetch reply with terms out of order"] += 1
        return False
    if reply.entries and replica.disk_full:
        replica.dropped["fetch reply while the disk is full"] += 1
        return False
    if reply.entries:
        replica.append(reply.entries)
    rose = replica.applier.commit_up_to(min(reply.commit, replica.log.last_index))
    return rose or bool(reply.entries)


def _begin_snapshot(replica: Replica, asked: Asked, snapshot: LogId) -> bool:
    """The leader has a snapshot where we want entries: pieces are fetched next; returns whether that is news."""
    assembly = replica.assembly
    if snapshot.index <= replica.applier.commit:
        replica.dropped["snapshot of what is committed here"] += 1
        return False
    if assembly is not None and assembly.is_of(asked.term, snapshot):
        return False
    snapshots.abandon(replica)
    replica.assembly = IncomingSnapshot(asked.term, asked.target, snapshot)
    return True


def take_piece(replica: Replica, asked: Asked, reply: FetchSnapshotReply) -> bool:
    """Store a piece of the snapshot, if it is the one that was asked for; returns whether it was."""
    if (asked.position, asked.offset) != (reply.snapshot, reply.offset):
        replica.dropped["another piece of a snapshot than was asked for"] += 1
        return False
    done = reply.offset + len(reply.data) == reply.size_bytes
    if not reply.data and not done:
        replica.dropped["empty piece of a snapshot"] += 1
        return False
    piece = InstallSnapshot(
        term=reply.term,
        leader=asked.target,
        last=reply.snapshot,
        configuration=replica.log.configuration,  # not looked at: what counts is inside the snapshot
        offset=reply.offset,
        data=reply.data,
        done=done,
        correlation=reply.correlation,
    )
    snapshots.receive(replica, piece)
    return True
