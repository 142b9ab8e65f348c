"""Bugs planted in what clients rest on, for the specifications to see: reads, leases, sessions, transfers."""

from typing import Any

from consensus.core.leader import Leader
from consensus.core.model import Milliseconds
from consensus.core.reads import Lease, Reads
from consensus.core.replica import Replica
from consensus.core.replication.progress import ProgressTracker
from consensus.core.transfer import LeadershipTransfers
from consensus.sessions.table import SessionTable
from tests.simulation.consensus.mutants import Mutant


def _majority_of_any_time(self: ProgressTracker) -> int:
    return self._replica.now if self.quorum_contact_ms else 0


def _always(*_: Any) -> bool:
    return True


def _never(*_: Any) -> bool:
    return False


_begin_lease = Lease.__init__


def _without_bound(self: Lease, lease_ms: Milliseconds, bound_ms: Milliseconds | None) -> None:
    _begin_lease(self, lease_ms, None if bound_ms is None else 0)


def _join_the_round_under_way(self: Reads, read_id: int) -> bool:
    (self._asking or self._waiting).append(read_id)
    return True


_forget = SessionTable._expire_longest_silent


def _forget_without_a_trace(self: SessionTable) -> None:
    floor = self.floor
    _forget(self)
    self.floor = floor


_load = SessionTable.load.__func__  # type: ignore[attr-defined]  # a class method


def _load_without_results(cls: type[SessionTable], data: bytes, *limits: Any) -> SessionTable:
    table: SessionTable = _load(cls, data, *limits)
    for session in table._sessions.values():
        session.results.clear()
    return table


CLIENT_MUTANTS = (
    Mutant(
        "stale-read-index",
        "a read counts contact from before it arrived as confirmation",
        ((ProgressTracker, "confirmed_round", property(_majority_of_any_time)),),
    ),
    Mutant(
        "read-before-own-term-commit",
        "a new leader answers reads before it has committed an entry of its term",
        ((Leader, "_knows_commit_index", _always),),
    ),
    Mutant(
        "read-joins-the-round-under-way",
        "a read counts a round that was asked for before it arrived",
        ((Reads, "add", _join_the_round_under_way),),
    ),
    Mutant(
        "lease-without-clock-bound",
        "a lease lasts as long as the others' clocks would have it if they ran like ours",
        ((Lease, "__init__", _without_bound),),
    ),
    Mutant(
        "lease-outlives-transfer",
        "a lease goes on after a voter was told to campaign",
        ((Lease, "end", _never),),
    ),
    Mutant(
        "lease-of-strangers",
        "voters that may vote at any time are believed to keep a lease",
        ((Replica, "keeps_leases", _always),),
    ),
    Mutant(
        "sessions-expired-without-a-trace",
        "an expired session's request is executed as if it were new",
        ((SessionTable, "_expire_longest_silent", _forget_without_a_trace),),
    ),
    Mutant(
        "snapshot-without-results",
        "a table out of a snapshot knows its clients and not what they were answered",
        ((SessionTable, "load", classmethod(_load_without_results)),),
    ),
    Mutant(
        "transfer-appends-on",
        "proposals are appended while leadership is handed over",
        ((LeadershipTransfers, "hold", _never),),
    ),
)
"""Every planted bug of this kind. Their specifications find them; the simulator finds those that it can reach."""
