"""The state machine takes a log of signed reports, as it does when a node starts without a snapshot.

    a chunk of reports of three servers ─▶ signed   ─▶ `AppliedState`, which verifies each        in turns, and only the
                                       └▶ unsigned ─▶ `AppliedState` whose reader believes them       taking is measured

Every entry differs, so that no remembered verification helps. The journal's own part, reading and checksums, is that of
`consensus-restart`. The second reader knows the author by the server's number; what it saves is what proofs cost.
Runs in a process of its own (`python -m benchmarks.identity_replay COUNT`), so that its memory is the replay's.
"""

import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.child import Child
from benchmarks.figures import Figure
from benchmarks.identity_cost import CLUSTER_ID, report
from bridge.core.log.records import Author, ProvenRecord
from bridge.node.events.event_log import EventLog
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.log.entries import EntryReader, decode
from bridge.wire.log.proof import sign_entry
from consensus import Entry
from gossip.wire import node_id_of

CHUNK = 6_000  # a multiple of the servers, so that each chunk begins with the first
BESIDE = 5
"""Each so many chunks one is taken by the other applied state as well, which tells what the proofs cost."""
SERVERS = (1, 2, 3)
TIMEOUT_S = 3_600.0
"""A million entries take a quarter of an hour on a busy machine, the signing included, which is not counted."""
KIB = 1024
MIB = 1024 * KIB


async def measure(directory: Path, count: int) -> list[Figure]:
    """The figures of `count` entries."""
    command = [sys.executable, "-m", "benchmarks.identity_replay", str(count)]
    child = await Child.start("the replay", command, directory / "replay.log")
    try:
        found = await child.hear_document(TIMEOUT_S)
    finally:
        await child.end()
    signed, believed = found["signed_us"], found["believed_us"]
    group = f"identity, {found['count']:,} signed reports of {found['entry_bytes']} bytes are replayed"
    ratios = tuple(each / other for each, other in zip(signed[::BESIDE], believed, strict=True))
    seconds = sum(signed) * CHUNK / 1e6
    return [
        Figure(group, "all of them, processor", "s", (seconds,)),
        Figure(group, "an entry, proof verified", "us", tuple(signed)),
        Figure(group, "an entry, author believed", "us", tuple(believed)),
        Figure(group, "verified / believed", "x", ratios),
        Figure(group, "resident, before and after", "MiB", (found["before_bytes"] / MIB, found["after_bytes"] / MIB)),
    ]


class _BelievingReader(EntryReader):
    """Takes each report as its server's, by the number that it says."""

    def __init__(self, cluster_id: bytes, authors: Mapping[int, bytes]) -> None:
        super().__init__(cluster_id)
        self._authors = authors
        self._number = 0

    def read(self, data: bytes) -> ProvenRecord:
        """The record, with an author."""
        self._number += 1
        server = SERVERS[(self._number - 1) % len(SERVERS)]
        return ProvenRecord(decode(data), Author(self._authors[server], self._number), data=data)


def main() -> None:
    """Replay as many entries as the argument says, and print what it took."""
    document = trio.run(replay, int(sys.argv[1]))
    sys.stdout.write(json.dumps(document) + "\n")


async def replay(count: int) -> dict[str, Any]:
    """Replay `count` entries here, and tell what each chunk took."""
    keys = {server: Ed25519PrivateKey.generate() for server in SERVERS}
    authors = {server: node_id_of(key.public_key().public_bytes_raw()) for server, key in keys.items()}
    proving, believing = _applied_state(authors), _applied_state(authors)
    believing.entries = _BelievingReader(CLUSTER_ID, authors)
    before_bytes, signed_us, believed_us = _resident_bytes(), list[float](), list[float]()
    chunks, entry_bytes = max(1, count // CHUNK), 0
    templates = [report(server)[:-1] for server in SERVERS]
    for chunk in range(chunks):
        numbers = range(chunk * CHUNK, (chunk + 1) * CHUNK)
        bare = [
            b"%s,%s" % (templates[number % len(SERVERS)], b'"request":"%02d-1-0-%d"}' % (number % len(SERVERS), number))
            for number in numbers
        ]
        signed = [
            sign_entry(entry, keys[SERVERS[number % len(SERVERS)]], CLUSTER_ID, number + 1)
            for number, entry in zip(numbers, bare, strict=True)
        ]
        entry_bytes = len(signed[-1])
        signed_us.append(await _take(proving, numbers.start + 1, signed))
        if chunk % BESIDE == 0:
            believed_us.append(await _take(believing, numbers.start + 1, bare))
    for applied_state, taken in ((proving, chunks), (believing, len(believed_us))):
        without_effect = sum(
            number for name, number in applied_state.records.items() if name.startswith("without_effect")
        )
        if applied_state.records["reports"] != taken * CHUNK or without_effect:
            raise AssertionError(f"not every report had its effect: {applied_state.records}")
    return {
        "count": chunks * CHUNK,
        "entry_bytes": entry_bytes,
        "signed_us": signed_us,
        "believed_us": believed_us,
        "before_bytes": before_bytes,
        "after_bytes": _resident_bytes(),
    }


def _applied_state(authors: Mapping[int, bytes]) -> AppliedState:
    trace = EventLog("benchmark", lambda: 0)
    founders = tuple(authors[server] for server in SERVERS)
    return AppliedState(1_700_000_000_000, trace, founders, CLUSTER_ID)


async def _take(applied_state: AppliedState, first: int, entries: list[bytes]) -> float:
    """Processor time of one entry, in microseconds."""
    committed = tuple(Entry.command(1, data) for data in entries)
    began = time.process_time()
    await applied_state.apply(first, committed)
    return (time.process_time() - began) / len(entries) * 1e6


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) * KIB if found else 0


if __name__ == "__main__":
    main()
