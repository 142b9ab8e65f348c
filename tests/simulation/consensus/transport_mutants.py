"""Planted bugs of the messages between servers: their transport, and the replies that a leader counts.

Two of them do not need a failing disk or network: the transport, or a follower, answers a request that was not
processed.
"""

from collections.abc import Callable
from typing import Any

from consensus.core import raft
from consensus.core.leader import Leader
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, Request
from consensus.core.model import Index, ServerId
from consensus.core.replica import Replica
from consensus.core.replication import append_receiver
from consensus.core.replication.append_leader import AppendLeader
from tests.simulation.consensus.connections import Connections
from tests.simulation.consensus.mutants import Mutant
from tests.simulation.consensus.profile import Kind

_not_sent: Callable[..., None] = AppendLeader.not_sent


def _one_for_all(_self: Connections, _asker: ServerId, _answerer: ServerId, _request: Request) -> bool:
    return False


def _never(_self: Leader) -> bool:
    return False


def _is_stalled_unless_a_follower_gets_further(self: Leader) -> bool:
    """Return True as the core does, but ignore a voter that already holds the oldest proposal."""
    replica, due = self._replica, self._stall_deadline
    if due is None or replica.now < due:
        return False
    advanced = [self.followers[peer].advanced_ms for peer in replica.others if peer in self.followers]
    return replica.now >= max([self.tracker.committed_ms, *advanced]) + replica.options.stall_timeout_ms


def _count_what_was_not_sent(self: AppendLeader, peer: ServerId, correlation: int, next_index: Index) -> None:
    progress = self._followers.get(peer)
    request = None if progress is None else progress.in_flight.get(correlation)
    if progress is not None and request is not None:
        self._tracker.note_contact(progress)
        self._tracker.confirmed(progress, request.round_number)
    _not_sent(self, peer, correlation, next_index)


_refuse_leader: Callable[..., None] = append_receiver.refuse_leader


def _refuse_in_its_term(replica: Replica, sender: ServerId, request: AppendEntries | InstallSnapshot) -> None:
    if isinstance(request, AppendEntries):
        hint = replica.log.last_index + 1
        reply: Any = AppendReply(term=replica.term, success=False, next_index=hint, correlation=request.correlation)
        replica.outbox.send(sender, reply, replica.hard_state_number)
    else:
        _refuse_leader(replica, sender, request)


_without_compacted: Callable[..., AppendEntries | None] = append_receiver.without_compacted


def _answer_before_the_snapshot(replica: Replica, request: AppendEntries) -> AppendEntries | None:
    last = request.previous.index + len(request.entries)
    if last < replica.log.start.index:
        append_receiver.acknowledge(replica, request, last, replica.hard_state_number)
        return None
    return _without_compacted(replica, request)


TRANSPORT_MUTANTS = (
    Mutant(
        "covered-before-the-snapshot-is-durable",
        "an old append is acknowledged while the snapshot that covers it is still being installed",
        ((append_receiver, "without_compacted", _answer_before_the_snapshot),),
    ),
    Mutant(
        "heartbeat-behind-the-disk",
        "all messages share one connection, so the reply to a heartbeat waits for an append, which waits for the disk",
        ((Connections, "passes_by", _one_for_all),),
        kind=Kind.SLOW_DISKS,
    ),
    Mutant(
        "hung-disk-keeps-its-leader",
        "a leader that cannot commit remains leader while it receives replies",
        ((Leader, "_is_stalled", _never),),
        kind=Kind.HUNG_DISKS,
    ),
    Mutant(
        "new-proposals-keep-a-stalled-leader",
        "a leader that cannot commit remains leader while one voter accepts new proposals",
        ((Leader, "_is_stalled", _is_stalled_unless_a_follower_gets_further),),
        kind=Kind.HUNG_DISKS,
    ),
    Mutant(
        "append-not-sent-counts",
        "an append held back by the leader's own link counts as answered by its peer",
        ((AppendLeader, "not_sent", _count_what_was_not_sent),),
        kind=Kind.MEMBERSHIP,
    ),
    Mutant(
        "refusal-of-a-stranger-counts",
        "a server that does not follow a leader refuses an append in the leader's term, as a follower would",
        tuple((owner, "refuse_leader", _refuse_in_its_term) for owner in (append_receiver, raft)),
        kind=Kind.LEASE,
    ),
)
