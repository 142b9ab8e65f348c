"""The restart of a node of the largest farm: 64 servers, 16 leaves in the structure, a million entries with sessions.

    fill      a process: one voter with the farm's state machine commits ENTRIES, then ends
    restart   a process: open the storage │ restore the snapshot and apply the rest │ take one more snapshot

The last snapshot is as old as it becomes in such a log, so a restart has the most entries to apply. In the log of 64
servers, each reporting period has a report of every server and a clock entry. Clients fill the table of sessions with
their requests. One voter suffices: other voters do not add to the work of a restart. The files are in the page cache,
since they have just been written.
"""

import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.child import Child
from benchmarks.figures import Figure
from benchmarks.job import Job
from bridge.core.log.feature_level import SUPPORTED_LEVEL, VERSION_OF
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import Clock, LeafStatus, Level, MetaStatus, PublishConfig, Report
from bridge.core.state.farm_state import SERVERS_MAX, SESSION_LIMITS
from bridge.node.events.event_log import EventLog
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.i2p.destination_keys import new_master_key
from consensus import (
    GARLIC_FARM,
    Configuration,
    ConsensusServer,
    Outcome,
    Server,
    ServerParts,
    lan,
    prepare_server,
)
from consensus.net import MemoryNetwork
from consensus.storage import Recovery
from tests.authored import CLUSTER_ID, node_id, signed
from tests.destinations import new_demo_leaf

ENTRIES: Final = 1_000_000
ENTRY_BYTES: Final = 256
PERIOD_ENTRIES: Final = 2_000
PERIOD_MS: Final = 30_000
GOAL_S: Final = 10.0
GOAL_PAUSE_MS: Final = 50.0
FILL_S: Final = 1_200.0
_BATCH: Final = 500
_OLD: Final = 0.9
"""Share of the longest distance of two snapshots; the log ends when so many entries follow the last one."""
_BEGIN_MS: Final = 1_760_000_000_000


@dataclass(frozen=True, slots=True)
class Specification:
    """The specification of a process. `entries` is the least number of entries to commit, 0 for a restart."""

    directory: str
    generation: int
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """The result of a restart. Seconds are counted from the beginning of the opening."""

    entries: int
    after_snapshot: int
    """Number of entries after the stored snapshot."""
    opened_s: float
    applied_s: float
    processor_s: float
    resident_mb: float
    pause_ms: float
    """The longest step of a snapshot: the event loop runs other tasks between two steps."""
    snapshot_bytes: int
    sessions: int
    leaves: int
    """Number of leaves in the structure."""


async def measure(job: Job) -> list[Figure]:
    """Return the figures of all restarts."""
    await _run_child(job, 1, ENTRIES)
    found = [Restart(**await _run_child(job, 2 + turn)) for turn in range(job.runs)]
    first = found[0]
    title = (
        f"restart of a node: {SERVERS_MAX} servers, {first.leaves} leaves, {first.sessions:,} sessions, "
        f"{first.entries:,} entries"
    )
    note = f"{first.after_snapshot:,} entries after the snapshot"
    return [
        Figure(title, "log verified", "s", tuple(each.opened_s for each in found)),
        Figure(title, "all applied", "s", tuple(each.applied_s for each in found), f"goal {GOAL_S:g}; {note}"),
        Figure(title, "processor time", "s", tuple(each.processor_s for each in found)),
        Figure(title, "resident", "MB", tuple(each.resident_mb for each in found)),
        Figure(
            title,
            "longest step of a snapshot",
            "ms",
            tuple(each.pause_ms for each in found),
            f"goal {GOAL_PAUSE_MS:g}; {first.snapshot_bytes / 1000:,.0f} kB",
        ),
    ]


async def _run_child(job: Job, generation: int, entries: int = 0) -> dict[str, Any]:
    specification, log = Specification(str(job.directory), generation, entries), job.directory / "output.log"
    return await Child.run_module("node", "benchmarks.farm_restart", asdict(specification), log, FILL_S)


def _entries() -> Iterator[bytes]:
    """Yield the entries of the farm: first the levels, then periods of reports, a clock, and entries of clients."""
    for level in range(2, SUPPORTED_LEVEL + 1):
        yield signed(Level(level, VERSION_OF[level]))
    master = new_master_key(demo=True).destination.base64
    leaves = {number: new_demo_leaf().base64 for number in range(1, SERVERS_MAX + 1)}
    clients = SESSION_LIMITS.sessions_max - SERVERS_MAX
    for period in count(1):
        now_ms = _BEGIN_MS + period * PERIOD_MS
        for number, leaf in leaves.items():
            yield signed(
                Report(
                    cluster="demo",
                    date_ms=now_ms,
                    server_id=number,
                    router=RouterStatus(attached=True, uptime_ms=3_600_000, job_lag_ms=number),
                    masters=(
                        MetaStatus(
                            master,
                            PublishConfig.ON,
                            publishing=number == 1,
                            last_published_time_ms=0,
                            can_sign_until_s=2**32 - 1,
                        ),
                    ),
                    destinations=(LeafStatus(leaf, healthy=True),),
                    request=f"{number:02}-0-{period}",
                )
            )
        yield signed(Clock(now_ms, 1, PERIOD_MS))
        for place in range(PERIOD_ENTRIES):
            sequence, client = divmod((period - 1) * PERIOD_ENTRIES + place, clients)
            head = b'{"request":"client%04d-0-%d","text":"' % (client, sequence + 1)
            yield head + b"x" * (ENTRY_BYTES - len(head) - 2) + b'"}'


@asynccontextmanager
async def _node(
    specification: Specification, recoveries: list[Recovery], applied_state: AppliedState
) -> AsyncIterator[ConsensusServer]:
    """Open the storage of the only voter, with the options of a farm; the caller runs the server."""
    parts = ServerParts(
        path=Path(specification.directory, "raft"),
        server_id=1,
        configuration=Configuration((Server(1, "tcp://127.0.0.1:7001"),)),
        transport=MemoryNetwork().transport(1),
        state_machine=applied_state,
        features=GARLIC_FARM,
        options=lan(),
        node_id=b"node-one",
        generation=specification.generation,
        keep_from=applied_state.keep_from,
        recovered=recoveries.append,
    )
    async with prepare_server(parts) as server:
        yield server


def _first_state() -> AppliedState:
    founders = tuple(node_id(number) for number in range(1, SERVERS_MAX + 1))
    return AppliedState(_BEGIN_MS, EventLog("node-1", lambda: _BEGIN_MS), founders, CLUSTER_ID)


async def _fill(specification: Specification) -> dict[str, object]:
    applied_state, recoveries = _first_state(), list[Recovery]()
    async with _node(specification, recoveries, applied_state) as server, trio.open_nursery() as nursery:
        await nursery.start(server.run)
        last = covered = longest = 0
        entries = _entries()
        while last < specification.entries or last - covered < _OLD * longest:
            commands = tuple(islice(entries, _BATCH))
            while (answer := await server.propose(commands)).outcome is not Outcome.COMMITTED:  # noqa: ASYNC110 - soon
                await trio.sleep(0.05)
            last = answer.position.index if answer.position is not None else last
            await server.wait_applied(last)
            snapshot = server.describe().raft.snapshot
            if snapshot is not None and snapshot.last.index > covered:
                covered, longest = snapshot.last.index, max(longest, snapshot.last.index - covered)
        nursery.cancel_scope.cancel()
    return {"entries": last}


async def _restart(specification: Specification) -> dict[str, object]:
    applied_state, recoveries = _first_state(), list[Recovery]()
    began_s, began_processor_s = time.perf_counter(), time.process_time()
    async with _node(specification, recoveries, applied_state) as server:
        opened_s = time.perf_counter() - began_s
        [recovery] = recoveries
        raft = server.describe().raft
        applied_state.history_ends_at(raft.last.index)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            await server.wait_applied(raft.last.index)
            applied_s, processor_s = time.perf_counter() - began_s, time.process_time() - began_processor_s
            steps_ms, size = _snapshot_steps(applied_state)
            found = Restart(
                recovery.report.entries,
                raft.last.index - (0 if raft.snapshot is None else raft.snapshot.last.index),
                opened_s,
                applied_s,
                processor_s,
                _resident_mb(),
                max(steps_ms),
                size,
                len(applied_state.farm.sessions),
                max(len(master.leaves) for master in applied_state.state.masters.values()),
            )
            nursery.cancel_scope.cancel()
    return asdict(found)


def _snapshot_steps(applied_state: AppliedState) -> tuple[list[float], int]:
    """Return the time of each step of a snapshot, and its size."""
    steps_ms, size = [], 0
    began_s = time.perf_counter()
    chunks = applied_state.snapshot()
    while True:
        chunk = next(chunks, None)
        steps_ms.append(1000 * (time.perf_counter() - began_s))
        if chunk is None:
            return steps_ms, size
        size += len(chunk)
        began_s = time.perf_counter()


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1_000_000


if __name__ == "__main__":
    its_specification = Specification(**json.loads(sys.argv[1]))
    print(json.dumps(trio.run(_fill if its_specification.entries else _restart, its_specification)), flush=True)
