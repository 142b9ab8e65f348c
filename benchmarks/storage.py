"""Durable commits per second of the journal, compared with other designs.

    log          garlicfarm's segments     of 16 MiB: records, checksums, plan, writes, one fdatasync, as in the server
                 zeros overwritten         only the writes, without records and checksums
                 a growing file            the same bytes appended, one fdatasync
                 SQLite                    WAL, synchronous=FULL: one transaction for each commit (Python's own sqlite3)
    hard state   garlicfarm's two slots    each copied after each write
                 in place                  one slot, one fdatasync
                 aside and renamed         a new file, fsync, rename, fsync of the directory

Every commit has 1, 16 or 256 entries of 256 bytes and is durable when it returns. One thread makes consecutive commits:
this measures the cost of one commit, not the rate of many clients. The designs take turns, run by run, because a shared
disk's speed changes within minutes; compare them within one report only.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.job import Job
from consensus import Entry, HardState, Persist
from consensus.storage import StorageOptions, open_directory

BATCHES = (1, 16, 256)
ENTRY = bytes(range(256))
SEGMENT_BYTES = 16 * 1024 * 1024
SLOT_BYTES = 4096
SHARE_OF_RUN = 1 / 6
"""Length of a run of one design, as a share of a run of a load."""

Commit = Callable[[int], None]
"""The durable commit of a number of entries."""
Design = Callable[[Path], Iterator[Commit]]


def _segments(directory: Path) -> Iterator[Commit]:
    storage_directory, recovery = open_directory(directory, b"bench", 1, StorageOptions(segment_bytes=SEGMENT_BYTES))
    storage = recovery.storage
    last = 0

    def commit(entries: int) -> None:
        nonlocal last
        batch = tuple(Entry.command(1, ENTRY) for _ in range(entries))
        storage_directory.perform_all(
            storage.plan([Persist(number=last + 1, hard_state=None, truncate_from=None, first=last + 1, entries=batch)])
        )
        storage.done()
        last += entries

    with closing(storage_directory):
        yield commit


def _overwritten_zeros(directory: Path) -> Iterator[Commit]:
    with _descriptor(directory / "segment") as descriptor:
        os.pwrite(descriptor, bytes(SEGMENT_BYTES), 0)
        os.fsync(descriptor)
        end = 0

        def commit(entries: int) -> None:
            nonlocal end
            data = ENTRY * entries
            end = 0 if end + len(data) > SEGMENT_BYTES else end
            os.pwrite(descriptor, data, end)
            os.fdatasync(descriptor)
            end += len(data)

        yield commit


def _growing(directory: Path) -> Iterator[Commit]:
    with _descriptor(directory / "log") as descriptor:

        def commit(entries: int) -> None:
            os.write(descriptor, ENTRY * entries)
            os.fdatasync(descriptor)

        yield commit


def _sqlite(directory: Path) -> Iterator[Commit]:
    with closing(sqlite3.connect(directory / "log.sqlite", isolation_level=None)) as connection:
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE log (number INTEGER PRIMARY KEY, term INTEGER, data BLOB)",
        ):
            connection.execute(statement)

        def commit(entries: int) -> None:
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO log (term, data) VALUES (1, ?)", [(ENTRY,)] * entries)
            connection.execute("COMMIT")

        yield commit


def _two_slots(directory: Path) -> Iterator[Commit]:
    storage_directory, recovery = open_directory(directory, b"bench", 1, StorageOptions(segment_bytes=SEGMENT_BYTES))
    number = 0

    def commit(_entries: int) -> None:
        nonlocal number
        number += 1
        persist = Persist(number=number, hard_state=HardState(number, 1), truncate_from=None, first=0, entries=())
        storage_directory.perform_all(recovery.storage.plan([persist]))
        recovery.storage.done()

    with closing(storage_directory):
        yield commit


def _in_place(directory: Path) -> Iterator[Commit]:
    with _descriptor(directory / "ballot") as descriptor:
        os.pwrite(descriptor, bytes(SLOT_BYTES), 0)
        os.fsync(descriptor)

        def commit(_entries: int) -> None:
            os.pwrite(descriptor, ENTRY, 0)
            os.fdatasync(descriptor)

        yield commit


def _aside(directory: Path) -> Iterator[Commit]:
    with ExitStack() as stack:
        place = os.open(directory, os.O_RDONLY)
        stack.callback(os.close, place)

        def commit(_entries: int) -> None:
            with _descriptor(directory / "ballot.new") as descriptor:
                os.write(descriptor, ENTRY)
                os.fsync(descriptor)
            (directory / "ballot.new").rename(directory / "ballot")
            os.fsync(place)

        yield commit


LOGS: dict[str, Design] = {
    "garlicfarm's segments": _segments,
    "zeros overwritten, bare": _overwritten_zeros,
    "a growing file, bare": _growing,
    "SQLite, WAL, FULL": _sqlite,
}
HARD_STATES: dict[str, Design] = {
    "garlicfarm's two slots": _two_slots,
    "in place, bare": _in_place,
    "aside and renamed, bare": _aside,
}


def measure(job: Job) -> list[Figure]:
    """Measure all designs, run by run in turns. Blocks."""
    directory, seconds = job.directory, job.seconds * SHARE_OF_RUN
    rates: dict[tuple[str, str], list[float]] = {}
    for run in range(job.runs):
        for name, design in LOGS.items():
            for entries in BATCHES:
                rate = _rate(design, directory / f"{run}-{entries}-{design.__name__}", entries, seconds)
                rates.setdefault((_group(entries), name), []).append(rate)
        for name, design in HARD_STATES.items():
            rate = _rate(design, directory / f"{run}-{design.__name__}", 1, seconds)
            rates.setdefault(("durable changes of term and vote per second", name), []).append(rate)
    ordered = sorted(rates.items(), key=lambda item: _order(item[0][0]))
    return [Figure(group, name, "/s", tuple(values)) for (group, name), values in ordered]


def _group(entries: int) -> str:
    return f"durable commits per second, each of {entries} entries of {len(ENTRY)} bytes"


def _order(group: str) -> int:
    groups = [_group(entries) for entries in BATCHES]
    return groups.index(group) if group in groups else len(groups)


def _rate(design: Design, directory: Path, entries: int, seconds: float) -> float:
    directory.mkdir(mode=0o700, parents=True)
    with contextmanager(design)(directory) as commit:
        commit(entries)
        count = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            commit(entries)
            count += 1
        return count / (time.perf_counter() - started)


@contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
