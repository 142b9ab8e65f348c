"""A leader brings a follower its snapshot when the entries that it lacks are gone (Raft section 7).

    begin ──▶ read a piece ──▶ send it ──▶ answered: read the next      one piece under way, the follower sets the pace
                  ▲                │
                  └── resume ◀─────┴── refused (another offset is wanted), or no answer: wait for a sign of life

The offset is what the follower says that it has, so nothing is sent twice after a loss or a new connection. A transfer
begins anew when our snapshot was replaced meanwhile. A refusal is not answered at once but after a heartbeat interval:
two servers that disagree must not do so at the speed of the network.
"""

from dataclasses import dataclass

from consensus.core.effects import ReadSnapshot
from consensus.core.events import SnapshotRead
from consensus.core.messages import InstallSnapshot, SnapshotReply
from consensus.core.model import LogId, Milliseconds, ServerId
from consensus.core.replica import Replica


@dataclass(slots=True)
class SnapshotTransfer:
    """One follower's transfer. It has everything before `offset`; what was sent ends at `end`."""

    last: LogId
    offset: int = 0
    read_id: int | None = None
    correlation: int | None = None
    sent_ms: Milliseconds | None = None
    """When the piece that is under way was sent; None if none is, or if it was taken for lost."""
    end: int = 0
    resume_ms: Milliseconds = 0
    round_number: int = 0

    def due_ms(self, retry_ms: Milliseconds) -> Milliseconds | None:
        """When something is to be done although nobody answers."""
        if self.read_id is not None:
            return None
        return self.resume_ms if self.sent_ms is None else self.sent_ms + retry_ms


def go_on(replica: Replica, transfer: SnapshotTransfer | None) -> SnapshotTransfer | None:
    """Ask for the next piece, if nothing is under way; begins (anew) with the newest snapshot. None: there is none."""
    snapshot = replica.log.snapshot
    if snapshot is None:
        return None
    if transfer is None or transfer.last != snapshot.last:
        transfer = SnapshotTransfer(snapshot.last)
    if transfer.read_id is None and transfer.sent_ms is None and replica.now >= transfer.resume_ms:
        transfer.read_id = replica.applier.next_read_id()
        limit = replica.options.snapshot_chunk_bytes
        replica.outbox.add(ReadSnapshot(transfer.read_id, transfer.last, transfer.offset, limit))
    return transfer


def send(replica: Replica, peer: ServerId, transfer: SnapshotTransfer, event: SnapshotRead, round_number: int) -> bool:
    """Storage gave a piece; send it. False if it is not the one that is wanted any more."""
    transfer.read_id = None
    snapshot = replica.log.snapshot
    current = snapshot is not None and snapshot.last == transfer.last == event.last
    if snapshot is None or not current or event.data is None or event.offset != transfer.offset:
        return False
    transfer.correlation = replica.next_correlation()
    transfer.sent_ms = replica.now
    transfer.end = event.offset + len(event.data)
    transfer.round_number = round_number
    message = InstallSnapshot(
        replica.term,
        replica.server_id,
        snapshot.last,
        snapshot.configuration,
        event.offset,
        event.data,
        event.done,
        transfer.correlation,
    )
    replica.outbox.send(peer, message)
    return True


def answered(replica: Replica, transfer: SnapshotTransfer, reply: SnapshotReply) -> None:
    """The follower answered the piece under way, maybe late: go on from where it says."""
    transfer.correlation = transfer.sent_ms = None
    if reply.accepted and reply.next_offset == transfer.end:
        transfer.offset = transfer.end
        return
    size = replica.log.snapshot.size_bytes if replica.log.snapshot is not None else 0
    transfer.offset = reply.next_offset if reply.next_offset <= size else 0
    transfer.resume_ms = replica.now + replica.options.heartbeat_ms
