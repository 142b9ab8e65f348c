"""The leader's side of the push strategy: AppendEntries with entries, or empty as heartbeats (Raft sections 5.2, 5.3).

`replicate` sends as much as pace, window and the follower's place in the log allow, in batches limited by count and
bytes. Entries that left the tail are read back first; one read per follower at a time. Appends never wait for the
leader's own disk: replication runs while it writes, and a slow disk silences nobody.
"""

from consensus.core.effects import ReadEntries
from consensus.core.messages import AppendEntries
from consensus.core.position import Entry, Index, LogPosition, ServerId
from consensus.core.progress import Pace, Progress
from consensus.core.replica import Replica


def replicate(replica: Replica, peer: ServerId, progress: Progress) -> None:
    """Send the follower the entries that it lacks, as far as is allowed now."""
    tuning, log = replica.tuning, replica.log
    window = min(tuning.in_flight, replica.dialect.max_requests_in_flight)
    while progress.next <= log.last_index and progress.may_send_entries(window):
        last = min(log.last_index, progress.next + tuning.max_entries_per_append - 1)
        entries = log.entries(progress.next, last, tuning.max_bytes_per_append)
        if entries is None:
            progress.read_id = replica.applier.next_read_id()
            replica.outbox.add(ReadEntries(progress.read_id, progress.next, last, tuning.max_bytes_per_append))
        else:
            _send(replica, peer, progress, entries)


def entries_read(
    replica: Replica, peer: ServerId, progress: Progress, first: Index, entries: tuple[Entry, ...]
) -> None:
    """Storage gave back entries for this follower; send them if it still wants exactly these."""
    progress.read_id = None
    if first == progress.next and entries and progress.may_send_entries(1):
        _send(replica, peer, progress, entries)
    replicate(replica, peer, progress)


def heartbeat(replica: Replica, peer: ServerId, progress: Progress) -> None:
    """An empty append: keeps leadership, carries the commit index, and finds out whether the logs still agree."""
    _send(replica, peer, progress, ())


def is_due(replica: Replica, progress: Progress) -> bool:
    """Whether the follower has not been sent anything for a heartbeat interval."""
    return progress.sent_ms is None or replica.now >= progress.sent_ms + replica.tuning.heartbeat_ms


def check_silence(replica: Replica, progress: Progress) -> None:
    """Notice that answers are overdue."""
    oldest = progress.oldest_sent_ms()
    if progress.pace is not Pace.SILENT and oldest is not None and replica.now >= oldest + replica.tuning.retry_ms:
        progress.fell_silent()


def _send(replica: Replica, peer: ServerId, progress: Progress, entries: tuple[Entry, ...]) -> None:
    previous = progress.next - 1
    # The entry before `next` exists: `next` is at most one beyond the leader's log, which never shrinks.
    term = replica.log.term_at(previous) or 0
    correlation = replica.next_correlation()
    commit = replica.applier.commit
    message = AppendEntries(replica.term, replica.server_id, LogPosition(previous, term), entries, commit, correlation)
    replica.outbox.send(peer, message)
    progress.sent(correlation, previous, previous + len(entries), replica.now)
    progress.sent_commit = commit
