"""Reaction if other nodes' routers do not find a published structure: alarm, event, and one more hand-over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.alarms import STRUCTURE_NOT_FOUND
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Measurement, PublishConfig, Report
from bridge.core.publishing.arrival import SETTLE_MS
from bridge.core.publishing.publication import Pace
from tests.node.farm_stage import MASTER, Stage, on_duty, rival_report

pytestmark = pytest.mark.usefixtures("machine_clock")
DESTINATION = MASTER.destination.base64
PERIOD_MS = 10_000
DECIDED_S = (SETTLE_MS + 4 * PERIOD_MS) / 1000
"""Seconds until look-ups without a result cause an alarm."""
REFRESHED_S = 1.2 * Pace().refresh_ms / 1000
"""Seconds until the publisher has handed over its structure again."""


class Looker:
    """Another node: its router looks the master up, and it cannot publish."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.finds: bool | None = None
        """The result of its look-ups; None: its router cannot look masters up."""

    def report(self, sequence: int) -> Report:
        report = rival_report(sequence)
        measured = () if self.finds is None else (Measurement(hash_of(DESTINATION), reachable=self.finds),)
        parts = tuple(replace(each, publish_config=PublishConfig.OFF) for each in report.masters)
        # Both nodes serve the same leaf, so its cost changes only with both routers.
        return replace(report, masters=parts, remote_metas=measured, router=self._stage.router.status)

    async def run(self) -> None:
        """Report once a period."""
        sequence = 0
        while True:
            sequence += 1
            await self._stage.append_record(self.report(sequence))
            await trio.sleep(PERIOD_MS / 1000)


@asynccontextmanager
async def on_duty_with_looker(stage: Stage, finds: bool | None) -> AsyncIterator[Looker]:  # noqa: FBT001
    looker = Looker(stage)
    looker.finds = finds
    async with trio.open_nursery() as nursery:
        nursery.start_soon(looker.run)
        async with on_duty(stage):
            yield looker
        nursery.cancel_scope.cancel()


async def test_structure_not_found_is_handed_over_once_more(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=PERIOD_MS)
    async with on_duty_with_looker(stage, finds=False):
        await trio.sleep(DECIDED_S)
        assert len(stage.router.published) == 2
        assert "and the routers of server 2 do not find it" in (stage.alarm(STRUCTURE_NOT_FOUND.kind) or "")
        await trio.sleep(DECIDED_S)
        assert len(stage.router.published) == stage.events("published") == 2
        assert stage.events("structure-not-found") == 1


async def test_alarm_names_routers_without_result_only(autojump_clock: MockClock) -> None:
    """Server 3 found an earlier structure, and does not look it up again."""
    stage = Stage(period_ms=PERIOD_MS)
    found = (Measurement(hash_of(DESTINATION), reachable=True),)
    async with on_duty_with_looker(stage, finds=False):
        report = replace(rival_report(), server_id=3, request="03-1-0-1", masters=(), destinations=())
        await stage.append_record(replace(report, remote_metas=found))
        await trio.sleep(REFRESHED_S)
        assert "and the routers of server 2 do not find it" in (stage.alarm(STRUCTURE_NOT_FOUND.kind) or "")


async def test_alarm_raised_for_structure_that_changes_often(autojump_clock: MockClock) -> None:
    """Each change is handed over before a look-up can decide about the previous structure."""
    stage = Stage(period_ms=PERIOD_MS)
    async with on_duty_with_looker(stage, finds=False):
        for number in range(4):
            stage.router.status = replace(stage.router.status, job_lag_ms=900 * (number % 2))
            await trio.sleep(DECIDED_S / 3)
        assert len(stage.router.published) >= 4
        assert stage.alarm(STRUCTURE_NOT_FOUND.kind) is not None


async def test_structure_found_later_ends_alarm(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=PERIOD_MS)
    async with on_duty_with_looker(stage, finds=False) as looker:
        await trio.sleep(DECIDED_S)
        looker.finds = True
        await trio.sleep(2 * PERIOD_MS / 1000)
        assert stage.alarm(STRUCTURE_NOT_FOUND.kind) is None
        assert stage.events("structure-seen") == 1


async def test_alarm_ends_after_other_nodes_stop_looking_up(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=PERIOD_MS)
    async with on_duty_with_looker(stage, finds=False) as looker:
        await trio.sleep(DECIDED_S)
        looker.finds = None
        await trio.sleep(REFRESHED_S)
        assert stage.alarm(STRUCTURE_NOT_FOUND.kind) is None
        looker.finds = False
        await trio.sleep(DECIDED_S)
        assert stage.alarm(STRUCTURE_NOT_FOUND.kind) is not None
        assert stage.events("structure-not-found") == 2


@pytest.mark.parametrize("finds", [True, None], ids=["found", "no-look-ups"])
async def test_structure_found_or_not_looked_up_is_kept(
    autojump_clock: MockClock,
    finds: bool | None,  # noqa: FBT001
) -> None:
    stage = Stage(period_ms=PERIOD_MS)
    async with on_duty_with_looker(stage, finds):
        await trio.sleep(2 * DECIDED_S)
        assert len(stage.router.published) == 1
        assert stage.alarm(STRUCTURE_NOT_FOUND.kind) is None
        assert stage.events("structure-seen") == (1 if finds else 0)


async def test_failed_look_up_after_settling_raises_alarm_immediately(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=30_000)
    looker = Looker(stage)
    async with on_duty(stage):
        await trio.sleep(SETTLE_MS / 1000 + 92.3)
        looker.finds = False
        await stage.append_record(looker.report(1))
        await trio.sleep(0.1)
        assert stage.alarm(STRUCTURE_NOT_FOUND.kind) is not None


async def test_hand_over_is_reported_within_quarter_period(autojump_clock: MockClock) -> None:
    stage = Stage(period_ms=20_000)
    async with on_duty(stage):
        with trio.fail_after(60):
            while not stage.router.published:
                await stage.applied_state.news()
        await trio.sleep(20_000 / 4_000 + 0.5)
        last = stage.applied_state.state.last_hand_over(DESTINATION)
        assert last is not None
