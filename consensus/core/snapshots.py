"""A follower takes its leader's snapshot (Raft section 7, InstallSnapshot RPC).

    piece ──▶ is it the one that is wanted? ──▶ stored ──▶ answered when durable, with the offset of the next
                     │ no                                   the last one: everything is read back and checked first
                     └──▶ refused, with the offset that is wanted: the transfer goes on from there

What becomes of the log (receiver's rules 6 to 8): a snapshot of what is committed here already changes nothing. One
whose last entry is in our log brings nothing that we do not hold: the log keeps what follows, and all up to that entry
is committed. Neither is transferred at all, the first piece is answered as the end. Any other contradicts our log or
goes beyond it: the whole log is discarded, the configuration and the state machine become those of the snapshot.

Only what is checked is installed. The pieces are read back from the disk, so that neither a wire nor a page cache nor a
leader's rotten file can replace a good log by a bad snapshot.
"""

from consensus.core.assembly import IncomingSnapshot
from consensus.core.effects import CheckSnapshot, StoreChunk
from consensus.core.events import SnapshotChecked
from consensus.core.features import Strategy
from consensus.core.messages import InstallSnapshot, SnapshotReply
from consensus.core.model import LogId, ServerId
from consensus.core.replica import Replica


def receive(replica: Replica, request: InstallSnapshot) -> None:
    """A piece from the leader of our term."""
    if _is_superfluous(replica, request.last):
        abandon(replica)
        _settle_superfluous(replica, request.leader, request.last, request.correlation)
        return
    assembly = replica.assembly
    if assembly is None or not assembly.is_of(request.term, request.last):
        if request.offset != 0:
            refuse(replica, request.leader, request.correlation, 0)
            return
        abandon(replica)
        assembly = replica.assembly = IncomingSnapshot(request.term, request.leader, request.last)
    problem = _problem_of(replica, assembly, request)
    if problem is not None:
        replica.dropped[problem] += 1
        refuse(replica, request.leader, request.correlation, assembly.received)
        return
    _store(replica, assembly, request)


def checked(replica: Replica, event: SnapshotChecked) -> bool:
    """The received pieces were read back; returns False if nobody waits for this."""
    assembly = replica.assembly
    if assembly is None or assembly.check_id != event.request_id:
        return False
    replica.assembly = None
    snapshot = event.snapshot
    if snapshot is None or snapshot.last != assembly.last:
        replica.dropped["snapshot that failed its checksums"] += 1
        refuse(replica, assembly.leader, assembly.correlation, 0)
    elif event.objection is not None:
        replica.dropped["snapshot that the state machine cannot take"] += 1
        refuse(replica, assembly.leader, assembly.correlation, 0)
    elif assembly.term != replica.term:
        # Somebody else leads by now, or we ask to: the next leader's word decides what we lack.
        refuse(replica, assembly.leader, assembly.correlation, 0)
    elif _is_superfluous(replica, assembly.last):
        _settle_superfluous(replica, assembly.leader, assembly.last, assembly.correlation)
    else:
        number = replica.install(snapshot)
        _answer_installed(replica, assembly.leader, assembly.correlation, snapshot.size_bytes, number)
    return True


def refuse(replica: Replica, leader: ServerId, correlation: int, wanted: int) -> None:
    """Answer a piece that changed nothing."""
    reply = SnapshotReply(replica.term, accepted=False, next_offset=wanted, installed=False, correlation=correlation)
    _answer(replica, leader, reply, replica.hard_state_number)


def abandon(replica: Replica) -> None:
    """Forget the transfer under way; a request that waits for its check is answered."""
    assembly, replica.assembly = replica.assembly, None
    if assembly is not None and assembly.check_id is not None:
        refuse(replica, assembly.leader, assembly.correlation, 0)


def _is_superfluous(replica: Replica, last: LogId) -> bool:
    return last.index <= replica.applier.commit or replica.log.matches(last)


def _settle_superfluous(replica: Replica, leader: ServerId, last: LogId, correlation: int) -> None:
    """We hold all that the snapshot covers, and it covers only what is committed."""
    replica.applier.commit_up_to(last.index)
    _answer_installed(replica, leader, correlation, 0, replica.log.writing_number)


def _problem_of(replica: Replica, assembly: IncomingSnapshot, request: InstallSnapshot) -> str | None:
    if request.offset != assembly.received or assembly.check_id is not None:
        return "snapshot piece at another offset than is wanted"
    if assembly.number > replica.durable_number:
        return "snapshot piece while the one before is being written"
    if request.offset + len(request.data) > replica.options.max_snapshot_bytes:
        return "snapshot beyond the size that is allowed"
    if replica.disk_full:
        return "snapshot piece while the disk is full"
    return None


def _store(replica: Replica, assembly: IncomingSnapshot, request: InstallSnapshot) -> None:
    chunk = StoreChunk(request.last, request.offset, request.data)
    assembly.number = replica.outbox.stage_snapshot(chunk)
    assembly.received += len(request.data)
    if request.done:
        assembly.check_id, assembly.correlation = replica.applier.next_read_id(), request.correlation
        replica.outbox.add(CheckSnapshot(assembly.check_id, request.last))
        return
    reply = SnapshotReply(
        replica.term,
        accepted=True,
        next_offset=assembly.received,
        installed=False,
        correlation=request.correlation,
    )
    _answer(replica, request.leader, reply, assembly.number)


def _answer_installed(replica: Replica, leader: ServerId, correlation: int, offset: int, after: int) -> None:
    reply = SnapshotReply(replica.term, accepted=True, next_offset=offset, installed=True, correlation=correlation)
    _answer(replica, leader, reply, max(replica.hard_state_number, after))


def _answer(replica: Replica, leader: ServerId, reply: SnapshotReply, after: int) -> None:
    """Tell the leader, who pushes. One who is fetched from learns it by the next fetch (`fetcher`)."""
    if replica.features.replication is Strategy.PUSH:
        replica.outbox.send(leader, reply, after)
