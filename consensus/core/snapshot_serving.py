"""A leader that is fetched from gives out its snapshot, piece by piece (KIP-630, FetchSnapshot).

    asked ──▶ is it our snapshot still, and does it reach that far? ──▶ read from storage ──▶ answered
                     └── no: the asker forgets what it has, and fetches entries, which tells it the newest snapshot

The asker remembers the offset, so nothing is kept here but the reads under way; their number is bounded. A piece that
was read when the snapshot has been replaced meanwhile is not sent: bytes of two snapshots must not be mixed.
"""

from consensus.core.effects import ReadSnapshot
from consensus.core.events import SnapshotRead
from consensus.core.model import ServerId
from consensus.core.pull_messages import FetchSnapshot, FetchSnapshotReply, PullError
from consensus.core.replica import Replica

MAX_READS = 64


class SnapshotServer:
    """The pieces that are being read, of one term."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._reads: dict[int, FetchSnapshot] = {}

    def asked(self, fetch: FetchSnapshot) -> None:
        """A replica wants a piece."""
        replica, snapshot = self._replica, self._replica.log.snapshot
        if snapshot is None or snapshot.last != fetch.snapshot:
            self._refuse(fetch, PullError.SNAPSHOT_NOT_FOUND)
        elif fetch.offset > snapshot.size_bytes:
            self._refuse(fetch, PullError.POSITION_OUT_OF_RANGE)
        elif len(self._reads) >= MAX_READS:
            self._refuse(fetch, PullError.THROTTLED)
        else:
            read_id = replica.applier.next_read_id()
            limit = min(fetch.max_bytes, replica.options.snapshot_chunk_bytes)
            self._reads[read_id] = fetch
            replica.outbox.add(ReadSnapshot(read_id, snapshot.last, fetch.offset, limit))

    def read(self, event: SnapshotRead) -> bool:
        """Storage answered; returns False if nobody waits for this."""
        fetch = self._reads.pop(event.request_id, None)
        if fetch is None:
            return False
        replica, snapshot = self._replica, self._replica.log.snapshot
        current = snapshot is not None and snapshot.last == fetch.snapshot == event.last
        if snapshot is None or not current or event.data is None or event.offset != fetch.offset:
            self._refuse(fetch, PullError.SNAPSHOT_NOT_FOUND)
            return True
        reply = FetchSnapshotReply(
            term=replica.term,
            leader=replica.server_id,
            snapshot=snapshot.last,
            offset=event.offset,
            correlation=fetch.correlation,
            data=event.data,
            size_bytes=snapshot.size_bytes,
        )
        replica.outbox.send(fetch.replica, reply)
        return True

    def resign(self) -> None:
        """Leadership ended: nobody waits for ever."""
        for fetch in self._reads.values():
            refuse_piece(self._replica, fetch, None, PullError.NOT_LEADER)
        self._reads.clear()

    def _refuse(self, fetch: FetchSnapshot, error: PullError) -> None:
        refuse_piece(self._replica, fetch, self._replica.server_id, error)


def refuse_piece(replica: Replica, fetch: FetchSnapshot, leader: ServerId | None, error: PullError) -> None:
    """Answer a request for a piece with the reason why there is none."""
    reply = FetchSnapshotReply(replica.term, leader, fetch.snapshot, fetch.offset, fetch.correlation, error=error)
    replica.outbox.send(fetch.replica, reply, replica.hard_state_number)
