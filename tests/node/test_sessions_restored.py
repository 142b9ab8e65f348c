"""Exactly-once execution across snapshots: a restarted server recognizes a request whose entry is no longer in the log.

Each story runs a real server on files and compacts its log. It then restores the directory to an earlier content of the
same run, as after a crash. The next run starts with an empty state machine, and restores it from the snapshot and the
log after it.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.core.farm.state_machine import Change, RequestRefused
from bridge.core.log.records import Clock
from bridge.node.events.event_log import EventLog
from bridge.node.raft.applied_state import AppliedState
from consensus.core.effects import Outcome
from consensus.core.model import Index
from consensus.server.server import ConsensusServer
from consensus.sessions.dedup_state_machine import DedupStateMachine, clock_entry, request_entry
from consensus.sessions.table import RequestId, SessionLimits
from tests.authored import CLUSTER_ID, signed
from tests.node.farm_stage import NODE_IDS, NOW_MS, OWN, rival_report
from tests.node.test_snapshotting import fill, one_run

REQUEST = RequestId("client", 0, 1)
FILLING = b"0000"


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.iterdir()}


def restore_files(directory: Path, found: dict[Path, bytes]) -> None:
    """Restore the files in place. A server refuses a copied directory."""
    for path in set(directory.iterdir()) - found.keys():
        path.unlink()
    for path, data in found.items():
        path.write_bytes(data)


class RecordingService:
    """A service whose whole state is the list of executed commands."""

    def __init__(self, limits: SessionLimits) -> None:
        self.executed: list[bytes] = []
        self.machine = DedupStateMachine(self._execute, limits)

    async def _execute(self, _index: Index, command: bytes) -> bytes:
        if command[:4] != FILLING:
            self.executed.append(command)
        return b"result of " + command


async def committed(server: ConsensusServer, command: bytes) -> Index:
    """Return the index of the command after it is applied."""
    answer = await server.propose((command,))
    assert answer.outcome is Outcome.COMMITTED
    assert answer.position is not None
    await server.wait_applied(answer.position.index)
    return answer.position.index


async def compact(server: ConsensusServer, after: Index) -> None:
    """Compact the log beyond the entry at index `after`."""
    await fill(server, 60)
    snapshot = await server.take_snapshot()
    assert snapshot is not None
    assert server.describe().raft.log_start.index > after


async def test_repeated_request_after_restore_gets_first_result(tmp_path: Path) -> None:
    first = RecordingService(SessionLimits())
    async with one_run(tmp_path / "raft", 1, first.machine) as server:
        index = await committed(server, request_entry(REQUEST, b"pay"))
        await compact(server, index)
        crashed = contents(tmp_path / "raft")
    second = RecordingService(SessionLimits())
    restore_files(tmp_path / "raft", crashed)
    async with one_run(tmp_path / "raft", 2, second.machine) as server:
        await committed(server, request_entry(REQUEST, b"pay"))
        assert server.describe().restores == 1
        assert first.executed == [b"pay"]
        assert second.executed == []
        assert second.machine.result_of(REQUEST) == b"result of pay"
        await committed(server, request_entry(RequestId("client", 0, 2), b"pay again"))
        assert second.executed == [b"pay again"]


async def test_request_of_expired_session_stays_refused(tmp_path: Path) -> None:
    limits = SessionLimits(expiry_ms=1_000)
    first = RecordingService(limits)
    async with one_run(tmp_path / "raft", 1, first.machine) as server:
        await committed(server, clock_entry(50_000))
        await committed(server, request_entry(REQUEST, b"pay"))
        index = await committed(server, clock_entry(60_000))
        assert len(first.machine.sessions) == 0
        await compact(server, index)
        crashed = contents(tmp_path / "raft")
    second = RecordingService(limits)
    restore_files(tmp_path / "raft", crashed)
    async with one_run(tmp_path / "raft", 2, second.machine) as server:
        await committed(server, request_entry(REQUEST, b"pay"))
        assert second.executed == []
        assert second.machine.sessions.floor == first.machine.sessions.floor > 0
        assert second.machine.log_time_ms == 60_000


@pytest.mark.usefixtures("machine_clock")
async def test_repeated_report_is_not_applied_after_restore(tmp_path: Path) -> None:
    repeated = signed(replace(rival_report(), request=str(REQUEST)))
    later = replace(rival_report(), date_ms=NOW_MS + 10, request=str(RequestId("client", 0, 2)))
    first = AppliedState(NOW_MS, EventLog("node-1", lambda: NOW_MS), NODE_IDS, CLUSTER_ID)
    async with one_run(tmp_path / "raft", 1, first) as server:
        index = await committed(server, repeated)
        await committed(server, signed(later))
        await compact(server, index)
        crashed = contents(tmp_path / "raft")
    changes: list[Change] = []
    second = AppliedState(NOW_MS, EventLog("node-1", lambda: NOW_MS), NODE_IDS, CLUSTER_ID, on_change=changes.append)
    restore_files(tmp_path / "raft", crashed)
    async with one_run(tmp_path / "raft", 2, second) as server:
        await committed(server, repeated)
        request_id = second.request_of(repeated)
        assert request_id is not None
        assert second.was_executed(request_id)
        (reported,) = second.state.servers.values()
        assert reported.report.date_ms == NOW_MS + 10, "the older report must not return"
        later_ms = NOW_MS + 10 * 3_600_000
        await committed(server, signed(replace(rival_report(), server_id=OWN, date_ms=later_ms, request=None)))
        await committed(server, signed(Clock(later_ms, OWN, 2_000)))
        await committed(server, repeated)
        assert RequestRefused(str(REQUEST)) in changes
