"""Measurements by a node's router in its reports: each measurement once, and only of foreign destinations."""

import pytest
import trio
import trio.testing

from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import LeafStatus, Measurement, MetaStatus, PublishConfig, Report
from bridge.node.router.router import MeasuredStatus
from bridge.node.security.signing_keys import PublishingKey
from tests.destinations import new_demo_leaf
from tests.node.farm_stage import MASTER, NOW_MS, NOW_S, OTHER, Stage, clock_now_ms

pytestmark = pytest.mark.usefixtures("machine_clock")

FOREIGN_LEAF = new_demo_leaf()
FOREIGN_NAME, MASTER_NAME = hash_of(FOREIGN_LEAF.base64), hash_of(MASTER.destination.base64)
Clock = trio.testing.MockClock


def report_of_another(published_ms: int) -> Report:
    return Report(
        cluster="demo",
        date_ms=clock_now_ms(),
        server_id=OTHER,
        router=RouterStatus(attached=True),
        masters=(
            MetaStatus(
                MASTER.destination.base64, PublishConfig.AUTO, publishing=True, last_published_time_ms=published_ms
            ),
        ),
        destinations=(LeafStatus(FOREIGN_LEAF.base64, healthy=True),),
    )


async def reports_within(stage: Stage, seconds: float, *, published_ms: int = 0) -> list[Report]:
    """Return the reports that the node makes within `seconds`.

    Another node reports its last hand-over at `published_ms`; 0 if it does not report a hand-over.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.background_tasks.run)
        await stage.append_record(report_of_another(published_ms))
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    own = [record for _, record in stage.records(Report) if isinstance(record, Report) and record.server_id != OTHER]
    assert own
    return own


async def test_measurement_is_reported_once(autojump_clock: Clock) -> None:
    stage = Stage(key=PublishingKey(MASTER.sign_transient(NOW_S), publish=PublishConfig.OFF))
    stage.router.measured = {
        FOREIGN_LEAF.hash: MeasuredStatus(reachable=True, fetch_ms=812),
        MASTER.destination.hash: MeasuredStatus(reachable=False),
    }
    # The time is long enough for two rounds of measurements.
    reports = await reports_within(stage, 110, published_ms=NOW_MS)
    assert [each for report in reports for each in report.remote_destinations] == [
        Measurement(FOREIGN_NAME, reachable=True, fetch_ms=812)
    ] * 2
    assert [each for report in reports for each in report.remote_metas] == [
        Measurement(MASTER_NAME, reachable=False)
    ] * 2


async def test_own_structure_is_not_looked_up(autojump_clock: Clock) -> None:
    stage = Stage()
    stage.router.measured = {MASTER.destination.hash: MeasuredStatus(reachable=True, fetch_ms=1)}
    reports = await reports_within(stage, 200)
    assert stage.router.published
    assert {report.remote_metas for report in reports} == {()}


async def test_router_without_measurements_reports_none(autojump_clock: Clock) -> None:
    reports = await reports_within(Stage(), 200)
    assert {(report.remote_destinations, report.remote_metas) for report in reports} == {((), ())}
