"""Crash points of durable state: after a crash, every synced entry is present, and no erased entry returns.

Each story drives the production planners over a disk that crashes after a random operation, also during recovery. It
compares the recovered log with a model. The recovered log must be the durable log, or that log with a part of the group
that was being written. The part is the complete group, its truncation alone, or a prefix of its entries.
"""

from collections.abc import Callable
from random import Random

import pytest

from consensus.core.effects import Persist, ReadEntries
from consensus.core.entry_data import configuration_entry
from consensus.core.model import Configuration, Entry, HardState, Server
from consensus.storage import recovery
from consensus.storage.disk import CreateFile, DiskOperation, StorageError, SyncDirectory, SyncFile, WriteBytes
from consensus.storage.hard_state import HardStateFile
from consensus.storage.journal import Journal
from consensus.storage.planner import Owner, Storage, StorageOptions, merge, read_extents, recover
from tests.effort import over_seeds
from tests.node.crash_disk import CrashDisk

OWNER = Owner(b"node-one", 1, 77)
STORAGE_ID = bytes(range(16))
SMALL = StorageOptions(segment_bytes=64 * 1024, tail_entries=10_000)


def entry(term: int, random: Random) -> Entry:
    if random.random() < 0.1:
        servers = tuple(Server(n, f"tcp://127.0.0.1:{n}") for n in range(1, random.randint(2, 5)))
        return configuration_entry(term, Configuration(servers))
    return Entry.command(term, random.randbytes(random.choice([0, 1, 30, 500, 5_000, 40_000])))


def stored(disk: CrashDisk, storage: Storage) -> list[Entry]:
    request = ReadEntries(request_id=0, first=1, last=storage.last.index, limit_bytes=2**62)
    return list(read_extents(disk, storage.binding, storage.extents(request), 2**62))


class Model:
    """The state after the last durable group, and the possible states after the group being written."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.hard_state = HardState(0)
        self.number = 0

    def next_group(self, random: Random) -> list[Persist]:
        """Return a few Persists, as a core would emit them."""
        persists = []
        log = list(self.entries)
        hard_state = self.hard_state
        for _ in range(random.choice([1, 1, 1, 3])):
            self.number += 1
            cut = None
            if random.random() < 0.25:
                hard_state = HardState(hard_state.term + 1, random.randint(1, 3) if random.random() < 0.7 else None)
            if random.random() < 0.25 and log:
                cut = random.randint(max(1, len(log) - 8), len(log))
                del log[cut - 1 :]
                hard_state = HardState(max(hard_state.term, log[-1].term + 1 if log else 1))
            new = [entry(max(hard_state.term, 1), random) for _ in range(random.choice([0, 1, 2, 6]))]
            persists.append(
                Persist(
                    number=self.number, hard_state=hard_state, truncate_from=cut, first=len(log) + 1, entries=tuple(new)
                )
            )
            log += new
        return persists

    def after(self, group: Persist) -> list[Entry]:
        """Return the log after `group` is durable."""
        kept = self.entries if group.truncate_from is None else self.entries[: group.truncate_from - 1]
        return [*kept, *group.entries]

    def allows(self, group: Persist, found: list[Entry], hard_state: HardState) -> bool:
        """Return True if a crash within `group` may leave this state."""
        if hard_state not in (self.hard_state, group.hard_state):
            return False
        final = self.after(group)
        kept = final[: len(final) - len(group.entries)]
        return found == self.entries or (found[: len(kept)] == kept and found == final[: len(found)])


def full_for_a_while(disk: CrashDisk, operations: list[DiskOperation], random: Random) -> list[DiskOperation]:
    """Run some operations until the disk is full; return the operations to run when it has space."""
    failed = random.randint(0, len(operations))
    disk.run(operations[:failed])
    resume_at = 0
    for number, operation in enumerate(operations[:failed]):
        if isinstance(operation, SyncFile | SyncDirectory):
            resume_at = number + 1
    return operations[resume_at:]


def crash_in(disk: CrashDisk, operations: list[DiskOperation], random: Random) -> CrashDisk:
    """Stop after some operations: the machine loses power, or only the process ends and the cache remains."""
    if random.random() < 0.2:
        operations = full_for_a_while(disk, operations, random)
    disk.run(operations[: random.randint(0, len(operations))])
    return disk.crash(random) if random.random() < 0.7 else disk


def play(disk: CrashDisk, seed: int) -> None:
    """Run several times, each with some durable groups and a crash within another group."""
    random = Random(seed)
    model = Model()
    for _ in range(12):
        opening = recover(disk, OWNER, STORAGE_ID, SMALL)
        while random.random() < 0.3:
            disk = crash_in(disk, list(opening.operations), random)
            opening = recover(disk, OWNER, STORAGE_ID, SMALL)
        disk.run(opening.operations)
        storage = opening.storage
        assert stored(disk, storage) == model.entries, f"seed {seed}"
        assert list(opening.log.tail) == model.entries, f"seed {seed}"
        assert opening.hard_state == model.hard_state, f"seed {seed}"
        for _ in range(random.randint(0, 6)):
            group = model.next_group(random)
            disk.run(storage.plan(group))
            storage.done()
            one = merge(group)
            model.entries, model.hard_state = model.after(one), one.hard_state or model.hard_state
        group = model.next_group(random)
        disk = crash_in(disk, storage.plan(group), random)
        opening = recover(disk, OWNER, STORAGE_ID, SMALL)
        found = list(opening.log.tail)
        assert model.allows(merge(group), found, opening.hard_state), f"seed {seed}: {opening.report}"
        # The recovered state is durable: the next run must recover it again.
        disk.run(opening.operations)
        model.entries, model.hard_state = found, opening.hard_state
        disk = disk.crash(random)


@over_seeds(60)
def test_crash_keeps_synced_entries_and_no_erased_ones(seed: int) -> None:
    play(CrashDisk(), seed)


Plan = Callable[..., list[DiskOperation]]


def without(*kinds: type[DiskOperation]) -> Callable[[Plan], Plan]:
    """Return a mutation that omits operations of these kinds."""

    def mutant(plan: Plan) -> Plan:
        return lambda *arguments: [step for step in plan(*arguments) if not isinstance(step, kinds)]

    return mutant


def slots_synced_together(plan: Plan) -> Plan:
    def planned(*arguments: object) -> list[DiskOperation]:
        first, sync, second, _ = plan(*arguments)
        return [first, second, sync]

    return planned


def truncation_not_recorded(plan: Plan) -> Plan:
    return lambda file, hard_state, durable, _truncating_from=0: plan(file, hard_state, durable)


def old_segment_synced_late(plan: Plan) -> Plan:
    def planned(*arguments: object) -> list[DiskOperation]:
        operations = plan(*arguments)
        created = [number for number, step in enumerate(operations) if isinstance(step, CreateFile)]
        if created and isinstance(operations[0], WriteBytes):
            late = operations.pop(created[0] - 1)
            operations.append(late)
        return operations

    return planned


def without_operations(plan: Plan) -> Plan:
    del plan
    return lambda *_: []


MUTANTS = {
    "appends not synced": (Journal, "_plan_flush", without(SyncFile)),
    "directory not synced at a roll-over": (Journal, "_plan_segment", without(SyncDirectory)),
    "header not synced before its name": (Journal, "_plan_segment", without(SyncFile)),
    "old segment synced after the new one exists": (Journal, "plan_append", old_segment_synced_late),
    "truncated suffix not erased": (Journal, "plan_truncate", without(WriteBytes)),
    "erased suffix not synced": (Journal, "plan_truncate", without(SyncFile)),
    "removed segments not synced": (Journal, "plan_truncate", without(SyncDirectory)),
    "truncation not recorded": (HardStateFile, "plan_hard_state", truncation_not_recorded),
    "hard state not synced": (HardStateFile, "plan", without(SyncFile)),
    "hard state slots synced together": (HardStateFile, "plan", slots_synced_together),
    "newest records not written again": (recovery._Scanner, "_rewrite_newest", without_operations),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutated_planner_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, mutate = MUTANTS[name]
    monkeypatch.setattr(owner, method, mutate(getattr(owner, method)))
    found = 0
    for seed in range(1_000):
        try:
            play(CrashDisk(), seed)
        except (AssertionError, StorageError):
            found = 1
            break
    assert found == 1, f"the mutant '{name}' survived {seed + 1} stories"
