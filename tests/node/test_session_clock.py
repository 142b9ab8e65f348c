"""Log time of servers that do not belong to a farm.

The leader writes the time into the log at a steady pace, and sessions expire by this time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from consensus.core.effects import Outcome, ProposalResolved, Role, RoleChanged
from consensus.core.model import Entry, Index, LogId
from consensus.sessions.dedup_state_machine import DedupStateMachine, request_entry
from consensus.sessions.log_time_clock import STEER_LIMIT_MS, SessionClock, next_log_time
from consensus.sessions.table import RequestId, SessionLimits
from tests.node.loopback_group import Run
from tests.node.test_exactly_once import group

ONE = 1
START_MS = 1_700_000_000_000
LEADING, FOLLOWING = RoleChanged(Role.LEADER, 1, ONE), RoleChanged(Role.FOLLOWER, 1, None)


async def _empty_result(_index: Index, _command: bytes) -> bytes:
    await trio.lowlevel.checkpoint()
    return b""


@dataclass
class Serving:
    """A server that commits and applies 0.1 s after a proposal, or refuses it."""

    role: RoleChanged = LEADING
    refuses: bool = False
    machine: DedupStateMachine = field(
        default_factory=lambda: DedupStateMachine(_empty_result, SessionLimits(expiry_ms=60_000))
    )
    written_at_s: list[float] = field(default_factory=list)

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        """Commit and apply after 0.1 s, or refuse."""
        self.written_at_s.append(trio.current_time())
        if self.refuses:
            return ProposalResolved(proposal_id=0, outcome=Outcome.NOT_LEADER)
        await trio.sleep(0.1)
        index = len(self.written_at_s)
        await self.machine.apply(index, tuple(Entry.command(1, command) for command in commands))
        return ProposalResolved(proposal_id=0, outcome=Outcome.COMMITTED, position=LogId(index, 1), leader=ONE)


def clock_of(serving: Serving, ahead_ms: list[int]) -> SessionClock:
    return SessionClock(
        serving.machine,
        lambda: serving.role.role is Role.LEADER,
        serving.propose,
        period_ms=10_000,
        clock_ms=lambda: START_MS + round(trio.current_time() * 1000) + ahead_ms[0],
    )


async def test_leader_writes_immediately_then_once_per_period(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    serving = Serving(FOLLOWING)
    clock = clock_of(serving, [0])
    nursery.start_soon(clock.run)
    await trio.sleep(25)
    assert serving.written_at_s == []
    serving.role = LEADING
    clock.leadership_changed()
    await trio.sleep(25)
    assert serving.written_at_s == pytest.approx([25, 35.1, 45.2])
    serving.role = FOLLOWING
    clock.leadership_changed()
    await trio.sleep(100)
    assert len(serving.written_at_s) == 3


async def test_uncommitted_clock_entry_is_retried_after_one_second(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    serving = Serving(refuses=True)
    nursery.start_soon(clock_of(serving, [0]).run)
    await trio.sleep(3.5)
    assert serving.written_at_s == pytest.approx([0, 1, 2, 3])


async def test_clock_jump_does_not_change_pace_of_log_time(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    serving, ahead_ms = Serving(), [0]
    clock = clock_of(serving, ahead_ms)
    nursery.start_soon(clock.run)
    await trio.sleep(1)
    ahead_ms[0] = 3_600_000
    await trio.sleep(100)
    behind_ms = START_MS + 101_000 - serving.machine.log_time_ms
    assert 0 <= behind_ms <= 10_100, "log time advanced by the elapsed time"
    assert clock.apart_ms == pytest.approx(3_600_000, abs=10)
    ahead_ms[0] = 2_000
    await trio.sleep(20)
    assert clock.apart_ms is None, "a small difference is corrected gradually"


@given(st.integers(0, 2**41), st.integers(0, 2**32), st.integers(0, 2**41))
def test_log_time_never_decreases_and_stays_near_its_pace(log_time_ms: int, elapsed_ms: int, clock_ms: int) -> None:
    found = next_log_time(log_time_ms, elapsed_ms, clock_ms)
    assert found >= log_time_ms
    if log_time_ms:
        assert abs(found - log_time_ms - elapsed_ms) <= STEER_LIMIT_MS
    else:
        assert found == clock_ms


def clock_of_run(run: Run, clock_ms: Callable[[], int]) -> SessionClock:
    server = run.server
    return SessionClock(run.machine, lambda: server.role.role is Role.LEADER, server.propose, clock_ms=clock_ms)


async def test_sessions_expire_by_log_time_of_leader(tmp_path: Path) -> None:
    now_ms = [START_MS]
    async with group(tmp_path, SessionLimits(expiry_ms=1_000)) as servers, trio.open_nursery() as nursery:
        client = servers.client()
        await nursery.start(client.run)
        runs = list(servers.runs.values())
        clocks = [clock_of_run(run, lambda: now_ms[0]) for run in runs]
        for clock in clocks:
            nursery.start_soon(clock.run)
        request = request_entry(RequestId("client", 0, 1), b"x")
        for time_ms, sessions in ((START_MS, 1), (START_MS + 4_000, 0)):
            now_ms[0] = time_ms
            if sessions:
                await client.submit((request,), timeout_s=60, repeat_unknown=True)
            while {(run.machine.log_time_ms, len(run.machine.sessions)) for run in runs} != {(time_ms, sessions)}:
                for clock in clocks:
                    clock.leadership_changed()
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
