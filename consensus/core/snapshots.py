"""Snapshots: each server takes its own, and a leader sends its own to a follower that lags too far (Raft section 7).

    SnapshotWanted(index) ──▶ TakeSnapshot(last, configuration) ──▶ … ──▶ SnapshotTaken ──▶ Persist with `Compact`

*Taking a snapshot* does not need a leader, because a snapshot covers only committed entries. The Persist that stores
the snapshot also shortens the log; a crash before that leaves the old snapshot and the whole log.

*Sending a snapshot with InstallSnapshot* (`OutgoingSnapshot`). One chunk is under way at a time. The reply contains the
next offset, so bytes are not sent twice after a loss. After a refusal the leader waits a heartbeat interval, so that
two servers that disagree do not exchange refusals at the speed of the network. A new snapshot restarts the transfer.

*Sending a snapshot by FetchSnapshot* (`SnapshotServer`, KIP-630). The follower stores the offset; the leader keeps only
the bounded reads under way. It refuses a chunk of a replaced snapshot, so that bytes of two snapshots never mix; the
follower then drops its chunks and fetches entries.

*Receiving a snapshot* (`SnapshotReceiver`) uses the same code for both messages. A chunk at another offset than
expected is refused; the reply to InstallSnapshot contains the expected offset. After the last chunk all bytes are read
back from disk and verified, so that a corrupt snapshot never replaces a good log. A snapshot of committed entries, or
one whose last entry is in the log, is not transferred: the log keeps the later entries. Any other snapshot replaces the
whole log.
"""

from msgspec import Struct, field

from consensus.core.drops import Drop
from consensus.core.effects import CheckSnapshot, Compact, ReadSnapshot, StoreChunk, TakeSnapshot
from consensus.core.events import SnapshotChecked, SnapshotRead
from consensus.core.features import Strategy
from consensus.core.messages import FetchSnapshot, FetchSnapshotReply, InstallSnapshot, RefusalReason, SnapshotReply
from consensus.core.model import Index, LogId, Milliseconds, ServerId, SnapshotDescription, Term
from consensus.core.replica import Replica

MAX_CHUNKS_WITHOUT_REPLY = 17
MAX_SNAPSHOT_READS = 64
"""Maximum number of chunks that are read at the same time for servers that fetch them."""


def take_snapshot(replica: Replica, index: Index) -> None:
    """Take a snapshot of the state machine at `index`, unless the stored one is as new."""
    log = replica.log
    term = log.term_at(index)
    covered = log.snapshot.last.index if log.snapshot is not None else 0
    if not covered < index <= replica.applier.applied or term is None:
        replica.dropped[Drop.UNNEEDED_SNAPSHOT_REQUEST] += 1
        return
    replica.outbox.add(TakeSnapshot(LogId(index, term), log.configuration_at(index)))


def snapshot_taken(replica: Replica, snapshot: SnapshotDescription, first_kept: Index) -> None:
    """Make the written snapshot the stored one; the log before `first_kept` may be deleted."""
    log = replica.log
    if (log.snapshot is not None and snapshot.last.index <= log.snapshot.last.index) or not log.matches(snapshot.last):
        # The leader's snapshot was installed first, so this one is outdated.
        replica.dropped[Drop.UNNEEDED_SNAPSHOT] += 1
        return
    first_index = max(log.start.index + 1, min(first_kept, snapshot.last.index + 1, log.durable_index + 1))
    log.compact(snapshot, first_index)
    replica.outbox.stage_snapshot(Compact(snapshot, first_index))


class OutgoingSnapshot(Struct):
    """The transfer to one follower. The follower has all bytes before `offset`; the sent bytes end at `end`."""

    last: LogId
    offset: int = 0
    read_id: int | None = None
    correlation: int | None = None
    sent_ms: Milliseconds | None = None
    """Send time of the chunk that is under way; None without such a chunk, or if the chunk is considered lost."""
    end: int = 0
    resume_ms: Milliseconds = 0
    rounds: dict[int, int] = field(default_factory=dict)
    """Round of `confirm` of each chunk without a reply, by correlation. On a slow link, a reply to a chunk that seemed
    lost arrives late, and contains the follower's offset.
    """

    def due_ms(self, retry_ms: Milliseconds) -> Milliseconds | None:
        """Return the time to act if no reply arrives."""
        if self.read_id is not None:
            return None
        return self.resume_ms if self.sent_ms is None else self.sent_ms + retry_ms

    def send(self, replica: Replica, peer: ServerId, event: SnapshotRead, round_number: int) -> bool:
        """Send a chunk from storage. Return False if it is no longer the requested chunk."""
        self.read_id = None
        snapshot = replica.log.snapshot
        current = snapshot is not None and snapshot.last == self.last == event.last
        if snapshot is None or not current or event.data is None or event.offset != self.offset:
            return False
        self.correlation = replica.next_correlation()
        self.sent_ms = replica.now
        self.end = event.offset + len(event.data)
        self.rounds[self.correlation] = round_number
        if len(self.rounds) > MAX_CHUNKS_WITHOUT_REPLY:
            del self.rounds[next(iter(self.rounds))]
        message = InstallSnapshot(
            term=replica.term,
            leader=replica.server_id,
            last=snapshot.last,
            configuration=snapshot.configuration,
            offset=event.offset,
            data=event.data,
            done=event.done,
            correlation=self.correlation,
        )
        replica.outbox.send(peer, message)
        return True

    def handle_reply(self, replica: Replica, reply: SnapshotReply) -> None:
        """Continue from the offset in the follower's reply to a chunk, which may be late."""
        if reply.correlation != self.correlation:
            if reply.accepted and reply.next_offset > self.offset:
                # The repeated chunk is not needed any more, so its reply is not awaited.
                self.offset, self.correlation, self.sent_ms, self.end = reply.next_offset, None, None, 0
            return
        self.correlation = self.sent_ms = None
        if reply.accepted and reply.next_offset == self.end:
            self.offset = self.end
            return
        size = replica.log.snapshot.size_bytes if replica.log.snapshot is not None else 0
        self.offset = reply.next_offset if reply.next_offset <= size else 0
        self.resume_ms = replica.now + replica.options.heartbeat_ms


def read_next_chunk(replica: Replica, outgoing: OutgoingSnapshot | None, limit_bytes: int) -> OutgoingSnapshot | None:
    """Read the next chunk, if no chunk is under way; begin with the newest snapshot. Return None without a snapshot."""
    snapshot = replica.log.snapshot
    if snapshot is None:
        return None
    if outgoing is None or outgoing.last != snapshot.last:
        outgoing = OutgoingSnapshot(snapshot.last)
    if outgoing.read_id is None and outgoing.sent_ms is None and replica.now >= outgoing.resume_ms:
        outgoing.read_id = replica.applier.next_read_id()
        replica.outbox.add(
            ReadSnapshot(
                request_id=outgoing.read_id, last=outgoing.last, offset=outgoing.offset, limit_bytes=limit_bytes
            )
        )
    return outgoing


class SnapshotServer:
    """The chunks that a leader reads for servers that fetch them, in one term."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._reads: dict[int, FetchSnapshot] = {}

    def handle_fetch(self, fetch: FetchSnapshot) -> None:
        """Process a server's request for a chunk."""
        replica, snapshot = self._replica, self._replica.log.snapshot
        if snapshot is None or snapshot.last != fetch.snapshot:
            self._refuse(fetch, RefusalReason.SNAPSHOT_UNKNOWN)
        elif fetch.offset > snapshot.size_bytes:
            self._refuse(fetch, RefusalReason.OFFSET_OUT_OF_RANGE)
        elif len(self._reads) >= MAX_SNAPSHOT_READS:
            self._refuse(fetch, RefusalReason.BUSY)
        else:
            read_id = replica.applier.next_read_id()
            limit = min(fetch.max_bytes, replica.options.snapshot_chunk_bytes)
            self._reads[read_id] = fetch
            replica.outbox.add(
                ReadSnapshot(request_id=read_id, last=snapshot.last, offset=fetch.offset, limit_bytes=limit)
            )

    def read(self, event: SnapshotRead) -> bool:
        """Send a chunk from storage; return False if no request waits for it."""
        fetch = self._reads.pop(event.request_id, None)
        if fetch is None:
            return False
        replica, snapshot = self._replica, self._replica.log.snapshot
        current = snapshot is not None and snapshot.last == fetch.snapshot == event.last
        if snapshot is None or not current or event.data is None or event.offset != fetch.offset:
            self._refuse(fetch, RefusalReason.SNAPSHOT_UNKNOWN)
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
        """End leadership: refuse every request that waits."""
        for fetch in self._reads.values():
            refuse_fetch_snapshot(self._replica, fetch, None, RefusalReason.NOT_LEADER)
        self._reads.clear()

    def _refuse(self, fetch: FetchSnapshot, error: RefusalReason) -> None:
        refuse_fetch_snapshot(self._replica, fetch, self._replica.server_id, error)


def refuse_fetch_snapshot(
    replica: Replica, fetch: FetchSnapshot, leader: ServerId | None, error: RefusalReason
) -> None:
    """Refuse a request for a chunk with a reason."""
    reply = FetchSnapshotReply(
        term=replica.term,
        leader=leader,
        snapshot=fetch.snapshot,
        offset=fetch.offset,
        correlation=fetch.correlation,
        error=error,
    )
    replica.outbox.send(fetch.replica, reply, replica.hard_state_number)


class IncomingSnapshot(Struct):
    """Progress of one transfer. The first `received` bytes have arrived; they are durable once Persist `number` is.

    The leader's term and the snapshot's last position identify the transfer; a change of one of them restarts it.
    Another leader may have other bytes for the same position. The bytes themselves are on the disk.
    """

    term: Term
    leader: ServerId
    last: LogId
    received: int = 0
    number: int = 0
    check_id: int | None = None
    """Id of the check of all received bytes; the reply to the last chunk, `correlation`, waits for its result."""
    correlation: int = 0

    def is_of(self, term: Term, last: LogId) -> bool:
        """Return True if a chunk belongs to this transfer."""
        return (self.term, self.last) == (term, last)


class SnapshotReceiver:
    """Receives the leader's snapshot, one transfer at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.incoming: IncomingSnapshot | None = None

    @property
    def is_writing(self) -> bool:
        """Return True if the disk stores or checks the newest chunk."""
        incoming = self.incoming
        return incoming is not None and (
            incoming.check_id is not None or incoming.number > self._replica.durable_number
        )

    def begin(self, term: Term, leader: ServerId, last: LogId) -> None:
        """Drop the current transfer, if any, and begin another."""
        self.abandon()
        self.incoming = IncomingSnapshot(term, leader, last)

    def receive(self, chunk: InstallSnapshot) -> None:
        """Process a chunk from the leader of our term."""
        if self._is_superfluous(chunk.last):
            self.abandon()
            self._answer_superfluous(chunk.leader, chunk.last, chunk.correlation)
            return
        incoming = self.incoming
        if incoming is None or not incoming.is_of(chunk.term, chunk.last):
            if chunk.offset != 0:
                self._refuse(chunk.leader, chunk.correlation, 0)
                return
            self.abandon()
            incoming = self.incoming = IncomingSnapshot(chunk.term, chunk.leader, chunk.last)
        problem = self._problem_of(incoming, chunk)
        if problem is not None:
            self._replica.dropped[problem] += 1
            self._refuse(chunk.leader, chunk.correlation, incoming.received)
            return
        self._store(incoming, chunk)

    def checked(self, event: SnapshotChecked) -> bool:
        """Process the check of the received chunks; return False if no transfer waits for it."""
        replica, incoming = self._replica, self.incoming
        if incoming is None or incoming.check_id != event.request_id:
            return False
        self.incoming = None
        snapshot = event.snapshot
        if snapshot is None or snapshot.last != incoming.last:
            replica.dropped[Drop.SNAPSHOT_CHECKSUM] += 1
            self._refuse(incoming.leader, incoming.correlation, 0)
        elif event.objection is not None:
            replica.dropped[Drop.SNAPSHOT_REJECTED_BY_STATE_MACHINE] += 1
            self._refuse(incoming.leader, incoming.correlation, 0)
        elif incoming.term != replica.term:
            # The transfer ends if there is another leader or we campaign, because the next leader determines the
            # entries that we lack.
            self._refuse(incoming.leader, incoming.correlation, 0)
        elif self._is_superfluous(incoming.last):
            self._answer_superfluous(incoming.leader, incoming.last, incoming.correlation)
        else:
            number = replica.install(snapshot)
            self._answer_installed(incoming.leader, incoming.correlation, snapshot.size_bytes, number)
        return True

    def abandon(self) -> None:
        """Drop the transfer under way; a request that waits for its check gets a reply."""
        incoming, self.incoming = self.incoming, None
        if incoming is not None and incoming.check_id is not None:
            self._refuse(incoming.leader, incoming.correlation, 0)

    def _is_superfluous(self, last: LogId) -> bool:
        return last.index <= self._replica.applier.commit or self._replica.log.matches(last)

    def _answer_superfluous(self, leader: ServerId, last: LogId, correlation: int) -> None:
        """Report a snapshot as installed, because this server already has its entries."""
        self._replica.applier.commit_up_to(last.index)
        self._answer_installed(leader, correlation, 0, self._replica.log.writing_number)

    def _problem_of(self, incoming: IncomingSnapshot, chunk: InstallSnapshot) -> Drop | None:
        if chunk.offset != incoming.received or incoming.check_id is not None:
            return Drop.SNAPSHOT_CHUNK_OFFSET
        if incoming.number > self._replica.durable_number:
            return Drop.SNAPSHOT_CHUNK_TOO_EARLY
        if chunk.offset + len(chunk.data) > self._replica.options.max_snapshot_bytes:
            return Drop.SNAPSHOT_TOO_LARGE
        if self._replica.disk_full:
            return Drop.SNAPSHOT_CHUNK_DISK_FULL
        return None

    def _store(self, incoming: IncomingSnapshot, chunk: InstallSnapshot) -> None:
        replica = self._replica
        stored = StoreChunk(chunk.last, chunk.offset, chunk.data)
        incoming.number = replica.outbox.stage_snapshot(stored)
        incoming.received += len(chunk.data)
        if chunk.done:
            incoming.check_id, incoming.correlation = replica.applier.next_read_id(), chunk.correlation
            replica.outbox.add(CheckSnapshot(incoming.check_id, chunk.last, chunk.configuration))
            return
        reply = SnapshotReply(
            term=replica.term,
            accepted=True,
            next_offset=incoming.received,
            installed=False,
            correlation=chunk.correlation,
        )
        self._answer(chunk.leader, reply, incoming.number)

    def _refuse(self, leader: ServerId, correlation: int, next_offset: int) -> None:
        term = self._replica.term
        reply = SnapshotReply(
            term=term, accepted=False, next_offset=next_offset, installed=False, correlation=correlation
        )
        self._answer(leader, reply, self._replica.hard_state_number)

    def _answer_installed(self, leader: ServerId, correlation: int, offset: int, after: int) -> None:
        term = self._replica.term
        reply = SnapshotReply(term=term, accepted=True, next_offset=offset, installed=True, correlation=correlation)
        self._answer(leader, reply, max(self._replica.hard_state_number, after))

    def _answer(self, leader: ServerId, reply: SnapshotReply, after: int) -> None:
        """Send the reply if leaders send entries. With fetching, the next fetch contains this information."""
        if self._replica.features.replication is Strategy.APPEND:
            self._replica.outbox.send(leader, reply, after)
