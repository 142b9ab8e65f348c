"""Crash points of durable state: whatever a crash leaves, everything synced is there, and nothing erased returns.

Each story drives the production planners over a disk that crashes after a random operation, also during recovery, and
compares the recovered log with a model: it must be the durable log, or that log after the group under way, or a part of
that group in between (a truncation without its appends, a prefix of its entries).
"""

from random import Random

import pytest

from consensus.core.effects import Persist, ReadEntries
from consensus.core.position import Ballot, Command, Configuration, Entry, Server, ServerId
from consensus.node.disk import DiskOperation
from consensus.node.storage import Owner, Recovery, Storage, StorageTuning, merge, read_extents, recover
from tests.node.crash_disk import CrashDisk

OWNER = Owner(b"node-one", 1, 77)
STORAGE_ID = bytes(range(16))
SMALL = StorageTuning(segment_bytes=64 * 1024, tail_entries=10_000)


def entry(term: int, random: Random) -> Entry:
    if random.random() < 0.1:
        servers = tuple(Server(ServerId(n), f"tcp://127.0.0.1:{n}") for n in range(1, random.randint(2, 5)))
        return Entry(term, Configuration(servers))
    return Entry(term, Command(random.randbytes(random.choice([0, 1, 30, 500, 5_000, 40_000]))))


def opened(disk: CrashDisk) -> Recovery:
    recovery = recover(disk, OWNER, STORAGE_ID, SMALL)
    disk.run(recovery.operations)
    return recovery


def stored(disk: CrashDisk, storage: Storage) -> list[Entry]:
    request = ReadEntries(0, 1, storage.last.index, 2**62)
    return list(read_extents(disk, storage.binding, storage.extents(request)))


class Model:
    """What the last durable group left, and what the group under way may make of it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ballot = Ballot(0)
        self.number = 0

    def next_group(self, random: Random) -> list[Persist]:
        """A few Persists, as a core would emit them."""
        persists = []
        log = list(self.entries)
        ballot = self.ballot
        for _ in range(random.choice([1, 1, 1, 3])):
            self.number += 1
            cut = None
            if random.random() < 0.25:
                ballot = Ballot(ballot.term + 1, ServerId(random.randint(1, 3)) if random.random() < 0.7 else None)
            if random.random() < 0.25 and log:
                cut = random.randint(max(1, len(log) - 8), len(log))
                del log[cut - 1 :]
                ballot = Ballot(max(ballot.term, log[-1].term + 1 if log else 1))
            new = [entry(max(ballot.term, 1), random) for _ in range(random.choice([0, 1, 2, 6]))]
            persists.append(Persist(self.number, ballot, cut, len(log) + 1, tuple(new)))
            log += new
        return persists

    def after(self, group: Persist) -> list[Entry]:
        """The log once `group` is durable."""
        kept = self.entries if group.truncate_from is None else self.entries[: group.truncate_from - 1]
        return [*kept, *group.entries]

    def allows(self, group: Persist, found: list[Entry], ballot: Ballot) -> bool:
        """Whether a crash in the midst of `group` may leave this."""
        if ballot not in (self.ballot, group.ballot):
            return False
        final = self.after(group)
        kept = final[: len(final) - len(group.entries)]
        return found == self.entries or (found[: len(kept)] == kept and found == final[: len(found)])


def crash_in(disk: CrashDisk, operations: list[DiskOperation], random: Random) -> CrashDisk:
    disk.run(operations[: random.randint(0, len(operations))])
    return disk.crash(random)


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_at_any_point_loses_nothing_that_was_synced_and_brings_nothing_back(seed: int) -> None:
    random = Random(seed)
    disk = CrashDisk()
    model = Model()
    for _ in range(12):
        recovery = recover(disk, OWNER, STORAGE_ID, SMALL)
        while random.random() < 0.3:
            disk = crash_in(disk, list(recovery.operations), random)
            recovery = recover(disk, OWNER, STORAGE_ID, SMALL)
        disk.run(recovery.operations)
        storage = recovery.storage
        assert stored(disk, storage) == model.entries, f"seed {seed}"
        assert list(recovery.log.tail) == model.entries, f"seed {seed}"
        assert recovery.ballot == model.ballot
        for _ in range(random.randint(0, 6)):
            group = model.next_group(random)
            disk.run(storage.plan(group))
            storage.done()
            one = merge(group)
            model.entries, model.ballot = model.after(one), one.ballot or model.ballot
        group = model.next_group(random)
        disk = crash_in(disk, storage.plan(group), random)
        recovery = recover(disk, OWNER, STORAGE_ID, SMALL)
        found = list(recovery.log.tail)
        assert model.allows(merge(group), found, recovery.ballot), f"seed {seed}: {recovery.report}"
        # What was found counts from now on: the next life must find it again.
        disk.run(recovery.operations)
        model.entries, model.ballot = found, recovery.ballot
        disk = disk.crash(random)
