"""One server of PySyncObj, a Raft in pure Python, with clients in its process, its intended use.

    python -m benchmarks.pysyncobj_node SPECIFICATION      (JSON: address, others, journal, synced, at_once)

PySyncObj is a library: an application is a member itself and calls a replicated method. So the clients are callbacks in
the leader's own process. They save the costs of all other clients: a connection, encryption, a wait for another
process. Members use plain TCP.

*It never syncs.* Its journal is a memory-mapped file with a `flush` that is never called (0.3.17: journal.py,
syncobj.py). A commit means that the page cache of a majority has the entry, and a loss of power may lose it. With
`synced`, this process calls `flush` (msync, which waits for the disk) before a follower confirms entries and before a
leader sends its own, so a majority has them on disk. Unchanged, it gathers entries for `appendEntriesPeriod` (100 ms);
with `at_once` its own setting disables this, and each command is sent separately.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated, syncobj
from pysyncobj.journal import FileJournal

from benchmarks.load import WARM_UP_S, Load, Result

_TICK_S = 0.05


class DirtyJournal(FileJournal):  # type: ignore[misc]  # the library has no types
    """The library's journal, with a flush that skips an unchanged journal."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._dirty = True

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Add an entry as the library does."""
        super().add(command, idx, term)
        self._dirty = True

    def sync(self) -> None:
        """Wait until all entries are on disk."""
        if self._dirty:
            self._dirty = False
            self.flush()


class Member(SyncObj):  # type: ignore[misc]  # the library has no types
    """The replicated object: it counts."""

    def __init__(self, address: str, others: list[str], configuration: Any) -> None:
        self.entries = 0
        super().__init__(address, others, configuration)

    @replicated  # type: ignore[untyped-decorator]  # the library has no types
    def take(self, _entry: bytes) -> None:
        """Count one entry."""
        self.entries += 1


def main() -> None:
    """Run as `python -m benchmarks.pysyncobj_node`."""
    document = json.loads(sys.argv[1])
    if document["synced"]:
        syncobj.createJournal = DirtyJournal
    configuration = SyncObjConf(
        journalFile=document["journal"],
        autoTick=False,
        appendEntriesUseBatch=not document["at_once"],
        logCompactionMinEntries=1_000_000_000,
        logCompactionMinTime=1_000_000_000,
        raftMinTimeout=1.0,
        raftMaxTimeout=2.0,
    )
    member = Member(document["address"], document["others"], configuration)
    if document["synced"]:
        _sync_before_sending(member)
    lines: list[str] = []
    ended = threading.Event()
    threading.Thread(target=_read, args=(lines, ended), daemon=True).start()
    while not ended.is_set():
        member.doTick(_TICK_S)
        while lines:
            print(json.dumps(_answer(member, json.loads(lines.pop(0)))), flush=True)


def _sync_before_sending(member: Any) -> None:
    journal = member._SyncObj__raftLog  # noqa: SLF001 - it does not have a public way
    transport = member._SyncObj__transport  # noqa: SLF001 - the same
    send = transport.send

    def synced(node: Any, message: dict[str, Any]) -> Any:
        if message["type"] in {"append_entries", "next_node_idx"}:
            journal.sync()
        return send(node, message)

    transport.send = synced


def _read(lines: list[str], ended: threading.Event) -> None:
    while line := sys.stdin.readline():
        lines.append(line)
    ended.set()


def _answer(member: Any, question: dict[str, Any]) -> dict[str, Any]:
    if "load" not in question:
        leader = member._getLeader()  # noqa: SLF001 - only some versions have a public name for this
        return {"leads": leader is not None and leader == member.selfNode}
    load = Load(**question["load"])
    _drive(member, load, WARM_UP_S)
    began_s, processor_s = time.perf_counter(), time.process_time()
    latencies_us, failures = _drive(member, load, load.seconds)
    elapsed_s = time.perf_counter() - began_s
    return asdict(Result(elapsed_s, time.process_time() - processor_s, latencies_us, failures))


def _drive(member: Any, load: Load, seconds: float) -> tuple[list[int], dict[str, int]]:
    latencies_us: list[int] = []
    failures: dict[str, int] = {}
    deadline_s = time.perf_counter() + seconds
    entry = b"x" * load.entry_bytes
    running = load.clients

    def begin() -> None:
        nonlocal running
        began_s = time.perf_counter()
        if began_s >= deadline_s:
            running -= 1
            return
        member.take(entry, callback=_callback(lambda error: end(began_s, error)))

    def end(began_s: float, error: int) -> None:
        if error:
            failures[f"error {error}"] = failures.get(f"error {error}", 0) + 1
        else:
            latencies_us.append(round((time.perf_counter() - began_s) * 1e6))
        begin()

    for _ in range(load.clients):
        begin()
    while running:
        member.doTick(_TICK_S)
    return latencies_us, failures


def _callback(ended: Callable[[int], None]) -> Callable[[Any, int], None]:
    return lambda _result, error: ended(error)


if __name__ == "__main__":
    main()
