"""Planted bugs of guarantees for clients: reads, leases, sessions, and the snapshots that contain them."""

from collections.abc import Callable, Iterator
from typing import Any

from consensus.core import election
from consensus.core.leader import Leader
from consensus.core.log import Log
from consensus.core.messages import AppendEntries, RequestVote
from consensus.core.model import MAX_NUMBER, Configuration, Index, Milliseconds
from consensus.core.raft import Raft
from consensus.core.reads import Lease, Reads
from consensus.core.replica import Replica
from consensus.core.replication import append_receiver
from consensus.core.replication.fetch_receiver import FetchReceiver
from consensus.core.replication.progress import Progress, ProgressTracker
from consensus.sessions.dedup_state_machine import DedupStateMachine
from consensus.sessions.table import RequestId, RequestStatus, SessionTable
from tests.simulation.consensus.mutants import Mutant
from tests.simulation.consensus.profile import Kind

_finish_round: Callable[..., Any] = Reads.finish_round
_admit: Callable[..., RequestStatus] = SessionTable.admit
_snapshot: Callable[..., Iterator[bytes]] = DedupStateMachine.snapshot


def _lease_of_a_whole_timeout(self: Lease, lease_ms: Milliseconds, bound_ms: Milliseconds | None) -> None:
    self._length_ms = lease_ms
    self._until_ms = None
    self._allowed = bound_ms is not None


def _finish_unconfirmed(self: Reads, _confirmed_round: int) -> Any:
    return _finish_round(self, MAX_NUMBER)


def _any_answer_confirms(_self: ProgressTracker, progress: Progress, _round_number: int) -> None:
    progress.round_number = MAX_NUMBER


def _always(_self: Leader) -> bool:
    return True


def _execute_repetitions(self: SessionTable, request: RequestId, index: Index, now_ms: Milliseconds) -> RequestStatus:
    verdict = _admit(self, request, index, now_ms)
    return RequestStatus.NEW if verdict is RequestStatus.DUPLICATE else verdict


def _admit_the_expired(self: SessionTable, request: RequestId, index: Index, now_ms: Milliseconds) -> RequestStatus:
    self.floor = 0
    return _admit(self, request, index, now_ms)


def _snapshot_without_sessions(self: DedupStateMachine) -> Iterator[bytes]:
    kept, self.sessions = self.sessions, SessionTable(self.sessions.limits)
    try:
        return iter([*_snapshot(self)])
    finally:
        self.sessions = kept


def _oldest_configuration(self: Log, _index: Index) -> Configuration:
    return self._base


class _Unguarded(int):
    """An index that is never less than or equal to another."""

    def __le__(self, _other: int) -> bool:
        return False


def _cut_what_is_committed(_replica: Replica, request: AppendEntries) -> Index | None:
    return _Unguarded(request.previous.index + 1) if request.entries else None


_vote_requested: Callable[[Raft, RequestVote], None] = Raft._vote_requested


def _listen_to_late_transfers(self: Raft, request: RequestVote) -> None:
    """Answer a transfer request in the current term as if the term's leader were unknown."""
    if not request.transfer or request.term != self._replica.term:
        _vote_requested(self, request)
    elif election.answer_vote(self._replica, request):
        self._role.follow_no_leader_until(self._replica.random_election_deadline())


def _a_redirect_will_do(self: FetchReceiver) -> bool:
    return self._role.leader is not None


CLIENT_MUTANTS = (
    Mutant(
        "late-transfer-ends-the-promise",
        "a vote request with the transfer flag gets a vote in the term of a known leader; the voter drops that leader",
        ((Raft, "_vote_requested", _listen_to_late_transfers),),
        kind=Kind.LEASE,
    ),
    Mutant(
        "late-refusal-ends-the-promise",
        "a leader's reply from its candidacy still counts, if a redirect named it before its first message",
        ((FetchReceiver, "_has_leader_contact", property(_a_redirect_will_do)),),
        "fetch",
        kind=Kind.LEASE,
    ),
    Mutant(
        "lease-without-clock-bound",
        "a lease lasts a whole election timeout, as if clocks did not drift",
        ((Lease, "__init__", _lease_of_a_whole_timeout),),
        kind=Kind.LEASE,
    ),
    Mutant(
        "read-without-a-round",
        "a leader answers reads at its commit index without confirming its leadership",
        ((Reads, "finish_round", _finish_unconfirmed),),
        kind=Kind.PAUSED,
    ),
    Mutant(
        "read-confirmed-by-older-answers",
        "a reply to an older request confirms a read",
        ((ProgressTracker, "confirmed", _any_answer_confirms),),
        kind=Kind.PAUSED,
    ),
    Mutant(
        "read-before-own-term-commit",
        "a new leader answers reads before its commit index is confirmed",
        ((Leader, "_knows_commit_index", _always),),
    ),
    Mutant(
        "request-executed-again",
        "a repeated request is executed again",
        ((SessionTable, "admit", _execute_repetitions),),
    ),
    Mutant(
        "expired-session-begins-anew",
        "a request of an expired session is treated as that of a new one",
        ((SessionTable, "admit", _admit_the_expired),),
    ),
    Mutant(
        "snapshot-without-sessions",
        "a snapshot does not contain the session table",
        ((DedupStateMachine, "snapshot", _snapshot_without_sessions),),
    ),
    Mutant(
        "snapshot-forgets-the-configuration",
        "a snapshot contains the first configuration of the log",
        ((Log, "configuration_at", _oldest_configuration),),
    ),
    Mutant(
        "truncation-below-commit",
        "an append cuts even committed entries",
        ((append_receiver, "first_new_index", _cut_what_is_committed),),
    ),
)
