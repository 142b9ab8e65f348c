"""Planted bugs in reads, leases, sessions and transfers. The specifications must find them."""

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


def _join_current_round(self: Reads, read_id: int) -> bool:
    (self._asking or self._waiting).append(read_id)
    return True


_expire = SessionTable._expire_longest_silent


def _expire_without_floor(self: SessionTable) -> None:
    floor = self.floor
    _expire(self)
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
        "a read counts contact from before its arrival as confirmation",
        ((ProgressTracker, "confirmed_round", property(_majority_of_any_time)),),
    ),
    Mutant(
        "read-before-own-term-commit",
        "a new leader replies to reads before it commits an entry of its term",
        ((Leader, "_knows_commit_index", _always),),
    ),
    Mutant(
        "read-joins-current-round",
        "a read counts a round requested before its arrival",
        ((Reads, "add", _join_current_round),),
    ),
    Mutant(
        "lease-without-clock-bound",
        "a lease ignores the bound on the rate of the other servers' clocks",
        ((Lease, "__init__", _without_bound),),
    ),
    Mutant(
        "lease-outlives-transfer",
        "a lease continues after the leader requests a voter to campaign",
        ((Lease, "end", _never),),
    ),
    Mutant(
        "lease-from-any-voter",
        "a lease counts voters that may vote at any time",
        ((Replica, "keeps_leases", _always),),
    ),
    Mutant(
        "sessions-expired-without-floor",
        "a request of an expired session is executed as a new one",
        ((SessionTable, "_expire_longest_silent", _expire_without_floor),),
    ),
    Mutant(
        "snapshot-without-results",
        "a table from a snapshot has its clients without their results",
        ((SessionTable, "load", classmethod(_load_without_results)),),
    ),
    Mutant(
        "append-during-transfer",
        "proposals are appended during a leadership transfer",
        ((LeadershipTransfers, "hold", _never),),
    ),
)
"""All planted bugs of this kind. The specifications find each of them; the simulator finds the reachable ones."""
