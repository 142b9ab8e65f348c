"""One server of PySyncObj, a Raft in pure Python, with its clients inside, as it is made to be used.

    python -m benchmarks.pysyncobj_node SPECIFICATION      (JSON: address, others, journal, synced, at_once)

PySyncObj is a library: an application is a member itself and calls a replicated method. So the clients are callbacks in
the leader's own process, which saves them what all others pay: a connection, encryption, a wait for another process.
Between the members there is plain TCP.

*It never syncs.* Its journal is a memory-mapped file that has a `flush`, but nothing calls it (0.3.17: journal.py,
syncobj.py); a commit means that a majority has it in the page cache, and a loss of power may lose it. With `synced`
this process has it call `flush` (msync, which waits for the disk) before a follower confirms entries and a leader
sends its own, so that a majority has it on disk. As it comes, it gathers entries for `appendEntriesPeriod` (100 ms);
with `at_once` that is switched off by its own setting, and each command is sent by itself.
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
    """The library's journal, with a flush that does nothing when nothing was added."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._dirty = True

    def add(self, command: bytes, idx: int, term: int) -> None:
        """As the library does it."""
        super().add(command, idx, term)
        self._dirty = True

    def sync(self) -> None:
        """Wait until everything is on disk."""
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
        """One entry."""
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
    journal = member._SyncObj__raftLog  # noqa: SLF001 - there is no other way in
    transport = member._SyncObj__transport  # noqa: SLF001 - likewise
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
        leader = member._getLeader()  # noqa: SLF001 - its public name for this came and went
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
