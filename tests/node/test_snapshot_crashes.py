"""Crash points of snapshots: a crash at any operation leaves the old snapshot and log, or the new ones.

Each story drives the production planners over a disk that crashes after a random operation. The crash occurs while a
snapshot is written, received or adopted, while the log is compacted or discarded, or during recovery.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from msgspec.structs import replace

from consensus.core.effects import Compact, Install, Persist, ReadSnapshot, StoreChunk
from consensus.core.events import SnapshotRead
from consensus.core.model import Configuration, Entry, HardState, LogId, Server, SnapshotDescription
from consensus.storage.disk import DiskOperation, StorageError, SyncDirectory, SyncFile, WriteBytes
from consensus.storage.hard_state import HardStateFile
from consensus.storage.jobs import ReadJob
from consensus.storage.journal import Journal
from consensus.storage.planner import Owner, Recovery, Storage, StorageOptions, recover
from consensus.storage.snapshot_image import ImageReader, ImageWriter
from consensus.storage.snapshots import CHUNK_BYTES, SnapshotFiles, SnapshotWriter, received_snapshot
from tests.effort import over_seeds
from tests.node.crash_disk import CrashDisk
from tests.node.test_storage_crashes import truncation_not_recorded, without

OWNER = Owner(b"node-one", 1, 77)
STORAGE_ID = bytes(range(16))
SMALL = StorageOptions(segment_bytes=64 * 1024, tail_entries=10_000)
CONFIGURATION = Configuration((Server(1, "tcp://127.0.0.1:7001"),))


@dataclass
class State:
    """The content of a directory: the newest snapshot's state, and the terms of the entries."""

    snapshot: SnapshotDescription | None = None
    data: bytes = b""
    terms: list[int] = field(default_factory=list)
    """The terms of every index from 1. Covered entries without a record in the log have the snapshot's term."""

    @property
    def last(self) -> LogId:
        return LogId(len(self.terms), self.terms[-1] if self.terms else 0)

    @property
    def covered(self) -> int:
        return self.snapshot.last.index if self.snapshot is not None else 0


def entry(index: int, term: int) -> Entry:
    """Return the entry of this position; some are large, so that the log gets new segments."""
    return Entry.command(term, b"%d.%d" % (index, term) * (1 + index * 7919 % 4_000))


class Story:
    """One disk through several runs."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = CrashDisk()
        self.number = 0
        self.term = 1

    def play(self) -> None:
        """Run several times, each with some durable acts and a crash within another act."""
        allowed = [State()]
        for _ in range(8):
            opening, state = self.open(allowed)
            storage = opening.storage
            for _ in range(self.random.randint(0, 5)):
                groups, state = self.act(storage, state)
                for group in groups:
                    self.disk.run(group(storage))
                    storage.done()
            groups, after = self.act(storage, state)
            stopped = self.random.randrange(len(groups))
            for group in groups[:stopped]:
                self.disk.run(group(storage))
                storage.done()
            operations = groups[stopped](storage)
            self.disk.run(operations[: self.random.randint(0, len(operations))])
            allowed = [state, after, *partial(state, after)]
            self.crash()

    def crash(self) -> None:
        """Lose power, or end only the process."""
        if self.random.random() < 0.7:
            self.disk = self.disk.crash(self.random)

    def open(self, allowed: list[State]) -> tuple[Recovery, State]:
        """Recover, with crashes during recovery.

        The found state must be allowed, and becomes the state of the story.
        """
        opening = recover(self.disk, OWNER, STORAGE_ID, SMALL)
        while self.random.random() < 0.3:
            operations = opening.operations
            self.disk.run(operations[: self.random.randint(0, len(operations))])
            self.crash()
            opening = recover(self.disk, OWNER, STORAGE_ID, SMALL)
        self.disk.run(opening.operations)
        log = opening.log
        found = next((state for state in allowed if state.snapshot == log.snapshot and state.last == log.last), None)
        assert found is not None, f"found a log that ends at {log.last} and the snapshot {log.snapshot}"
        assert log.start.index <= found.covered
        kept = range(log.start.index + 1, log.last.index + 1)
        assert list(log.tail) == [entry(index, found.terms[index - 1]) for index in kept]
        if found.snapshot is not None:
            assert self.read(opening.storage, found.snapshot) == found.data
        return opening, found

    def read(self, storage: Storage, snapshot: SnapshotDescription) -> bytes:
        """Return the state machine's bytes in the way a follower or a restart reads them."""
        image, data, offset, done = ImageReader(), b"", 0, False
        while not done:
            request = ReadSnapshot(
                request_id=1, last=snapshot.last, offset=offset, limit_bytes=self.random.choice((100, CHUNK_BYTES))
            )
            answer = ReadJob(request, storage.binding, chunk=storage.chunk_extent(request)).answer(self.disk)
            assert isinstance(answer, SnapshotRead)
            assert answer.data is not None
            data += b"".join(image.feed(answer.data))
            offset, done = offset + len(answer.data), answer.done
        assert image.finish() == snapshot
        return data

    def act(self, storage: Storage, state: State) -> tuple[list[Callable[[Storage], list[DiskOperation]]], State]:
        """Return one act as groups of operations, and the state when all are done."""
        del storage
        kind = self.random.choice(("append", "append", "truncate", "compact", "install"))
        if kind == "compact" and state.last.index > state.covered:
            return self.compact(state)
        if kind == "install":
            return self.install(state)
        cut = None
        terms = list(state.terms)
        if kind == "truncate" and len(terms) > state.covered:
            self.term += 1
            cut = self.random.randint(max(state.covered + 1, len(terms) - 4), len(terms))
            del terms[cut - 1 :]
        first = len(terms) + 1
        new = [self.term] * self.random.choice((1, 5, 12))
        entries = tuple(entry(index, term) for index, term in enumerate(new, start=first))
        persist = self.persist(
            Persist(number=0, hard_state=HardState(self.term), truncate_from=cut, first=first, entries=entries)
        )
        return [lambda storage: storage.plan([persist])], dataclasses.replace(state, terms=terms + new)

    def compact(self, state: State) -> tuple[list[Callable[[Storage], list[DiskOperation]]], State]:
        """Write our own snapshot, and compact the log."""
        index = self.random.randint(state.covered + 1, state.last.index)
        last = LogId(index, state.terms[index - 1])
        data = self.random.randbytes(self.random.choice((0, 10, 5_000)))
        writer = SnapshotWriter(last, CONFIGURATION)
        writing = [*writer.plan_begin(), *writer.plan(data), *writer.plan_end()]
        kept = self.random.randint(1, index + 1)
        persist = self.persist(Persist(number=0, snapshot=Compact(writer.description, kept)))
        after = dataclasses.replace(state, snapshot=writer.description, data=data)
        # The storage does not plan the chunks of a local snapshot, so they follow an empty group.
        return [lambda storage: [*storage.plan([self.persist(Persist(number=0))]), *writing], self.plan(persist)], after

    def install(self, state: State) -> tuple[list[Callable[[Storage], list[DiskOperation]]], State]:
        """Receive the leader's snapshot, of an index beyond our log or in conflict with it."""
        index = self.random.randint(state.covered + 1, state.last.index + 5)
        self.term += 1
        last = LogId(index, self.term)
        data = self.random.randbytes(self.random.choice((0, 10, 5_000)))
        writer = ImageWriter(last, CONFIGURATION)
        image = writer.begin() + writer.blocks(data) + writer.end()
        size = max(self.random.choice((50, 1_000, 10_000)), len(image) // 8)
        chunks = [
            self.plan(self.persist(Persist(number=0, snapshot=StoreChunk(last, start, image[start : start + size]))))
            for start in range(0, len(image), size)
        ]
        installing = self.persist(Persist(number=0, snapshot=Install(writer.description)))

        def install(storage: Storage) -> list[DiskOperation]:
            assert received_snapshot(self.disk, ImageReader()) == writer.description
            return storage.plan([installing])

        return [*chunks, install], State(writer.description, data, [self.term] * index)

    def plan(self, persist: Persist) -> Callable[[Storage], list[DiskOperation]]:
        return lambda storage: storage.plan([persist])

    def persist(self, persist: Persist) -> Persist:
        """Return the Persist with the next number."""
        self.number += 1
        return replace(persist, number=self.number)


def partial(before: State, after: State) -> list[State]:
    """Return the states that a crash within an append or a truncation may leave."""
    if before.snapshot != after.snapshot:
        return []
    common = 0
    while common < min(len(before.terms), len(after.terms)) and before.terms[common] == after.terms[common]:
        common += 1
    return [dataclasses.replace(after, terms=after.terms[:end]) for end in range(common, len(after.terms))]


@over_seeds(60)
def test_crash_leaves_complete_snapshot_with_its_log(seed: int) -> None:
    Story(seed).play()


MUTANTS = {
    "adopted without a directory sync": (SnapshotFiles, "plan_adopt", without(SyncDirectory)),
    "header not synced before the name": (SnapshotFiles, "plan_adopt", without(SyncFile)),
    "header not written": (SnapshotFiles, "plan_adopt", without(WriteBytes)),
    "compaction of the log not synced file by file": (Journal, "plan_compact", without(SyncDirectory)),
    "discarding of the log not recorded": (HardStateFile, "plan_hard_state", truncation_not_recorded),
}
FIRST_SEEDS = {"compaction of the log not synced file by file": 105, "discarding of the log not recorded": 18}
"""Seeds of the first stories that detect a mutant; the search for the others begins at 0."""


@pytest.mark.parametrize("name", MUTANTS)
def test_snapshot_mutant_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, mutate = MUTANTS[name]
    monkeypatch.setattr(owner, method, mutate(getattr(owner, method)))
    for seed in range(FIRST_SEEDS.get(name, 0), 1_000):
        try:
            Story(seed).play()
        except (AssertionError, StorageError):
            return
    pytest.fail(f"the mutant '{name}' survived 1,000 stories")
