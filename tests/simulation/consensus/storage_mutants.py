"""Planted bugs of the storage; the simulated disk must reveal each of them."""

from collections.abc import Callable, Sequence
from typing import Any

from consensus.storage.disk import DiskOperation, SyncFile
from consensus.storage.hard_state import HardStateFile
from consensus.storage.journal import Journal
from consensus.storage.recovery import _Scanner
from consensus.storage.snapshots import SnapshotFiles
from tests.simulation.consensus.mutants import Mutant

_plan_append: Callable[..., Sequence[DiskOperation]] = Journal.plan_append
_plan_hard_state: Callable[..., Sequence[DiskOperation]] = HardStateFile.plan_hard_state
_plan_adopt: Callable[..., Sequence[DiskOperation]] = SnapshotFiles.plan_adopt
_init: Callable[..., None] = _Scanner.__init__


def _without_sync(plan: Sequence[DiskOperation]) -> list[DiskOperation]:
    return [operation for operation in plan if not isinstance(operation, SyncFile)]


def _append_without_sync(self: Journal, *details: Any) -> list[DiskOperation]:
    return _without_sync(_plan_append(self, *details))


def _hard_state_without_sync(self: HardStateFile, *details: Any) -> list[DiskOperation]:
    return _without_sync(_plan_hard_state(self, *details))


def _adopt_without_rename_sync(self: SnapshotFiles, *details: Any) -> list[DiskOperation]:
    return list(_plan_adopt(self, *details))[:-1]


def _scan_without_proof(self: _Scanner, *details: Any) -> None:
    _init(self, *details)
    self._durable = 0


def _no_proof(_self: _Scanner, *_details: Any) -> str:
    return ""


STORAGE_MUTANTS = (
    Mutant(
        "append-without-sync",
        "entries count as durable although they were not synced",
        ((Journal, "plan_append", _append_without_sync),),
    ),
    Mutant(
        "hard-state-without-sync",
        "a vote counts as durable although it was not synced",
        ((HardStateFile, "plan_hard_state", _hard_state_without_sync),),
    ),
    Mutant(
        "snapshot-without-directory-sync",
        "the log is shortened before the name of the snapshot is durable",
        ((SnapshotFiles, "plan_adopt", _adopt_without_rename_sync),),
    ),
    Mutant(
        "rot-taken-for-a-tear",
        "unreadable data at the end of the log is cut, even if it was durable",
        ((_Scanner, "__init__", _scan_without_proof), (_Scanner, "_proof_behind", _no_proof)),
    ),
)
