"""Changes in reports: a change of health is sent within a quarter of a period, and a large field only when it changed.

The configuration is also repeated once an hour.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.api.events import LEAF_HEALTHY, LEAF_UNHEALTHY
from bridge.core.log.records import ConditionStatus, LeafFault, LeafStatus, Report
from bridge.core.membership.reconcile import GRACE_DEFAULT_MS, VOTERS_MAX_DEFAULT
from bridge.node.settings.configuration import reported_settings
from bridge.node.tasks.reporting import CONFIGURATION_EVERY_MS, LeafHealth, ReportNews
from bridge.wire.i2p.structures import base64_encode
from bridge.wire.log.entries import encode
from gossip.node import DEFAULT_CAPACITY
from tests.node.farm_stage import LEAF, NOW_MS, Stage, rival_report
from tests.node.test_configuration import load

PERIOD_MS = 30_000


pytestmark = pytest.mark.usefixtures("machine_clock")


def reports(stage: Stage) -> list[tuple[int, Report]]:
    return [(at_ms, record) for at_ms, record in stage.records(Report) if isinstance(record, Report)]


async def test_health_change_of_leaf_is_reported_within_quarter_period(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage(period_ms=PERIOD_MS)
    unhealthy = False

    async def status(leaf_hash: bytes) -> LeafStatus:  # noqa: ARG001 - as the original
        await trio.lowlevel.checkpoint()
        return LeafStatus(LEAF.base64, healthy=not unhealthy)

    stage.router.local_leaf_status = status  # type: ignore[method-assign]  # the router of this story
    nursery.start_soon(stage.background_tasks.run)
    await trio.sleep(200)
    steady = [at_ms for at_ms, _ in reports(stage) if at_ms > 2 * PERIOD_MS]
    for _ in range(2):
        unhealthy = not unhealthy
        changed_ms = trio.current_time() * 1000
        await trio.sleep(PERIOD_MS / 4_000 + 0.1)
        at_ms, report = reports(stage)[-1]
        assert at_ms - changed_ms <= PERIOD_MS / 4 + 100
        assert [leaf.healthy for leaf in report.destinations] == [not unhealthy]
    apart_ms = [later - earlier for earlier, later in pairwise(steady)]
    assert min(apart_ms) >= 0.89 * PERIOD_MS, "unchanged figures are reported once a period"
    assert len({report.request for _, report in reports(stage)}) == len(reports(stage))


async def test_failing_leaf_has_events_and_no_extra_reports(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Only a change of the failed conditions causes an early report; a new error or count waits for the next report."""
    stage = Stage(period_ms=PERIOD_MS)
    faults: tuple[LeafFault, ...] = ()
    looks = 0

    async def status(leaf_hash: bytes) -> LeafStatus:  # noqa: ARG001 - as the original
        nonlocal looks
        await trio.lowlevel.checkpoint()
        looks += 1
        conditions = (ConditionStatus(LeafFault.SERVICE, looks, looks, f"error {looks}"),)
        return LeafStatus(LEAF.base64, healthy=not faults, faults=faults, conditions=conditions)

    stage.router.local_leaf_status = status  # type: ignore[method-assign]  # the router of this story
    nursery.start_soon(stage.background_tasks.run)
    await trio.sleep(200)
    faults = (LeafFault.SERVICE,)
    await trio.sleep(200)
    faults = ()
    await trio.sleep(PERIOD_MS / 1_000)
    unhealthy, healthy = (each for each in stage.trace.recent(500) if each.kind.startswith("leaf-"))
    assert (unhealthy.kind, unhealthy.data["conditions"]) == ("leaf-unhealthy", "service")
    assert str(unhealthy.data["error"]).startswith("error ")
    assert (healthy.kind, healthy.data["conditions"]) == ("leaf-healthy", "service")
    assert abs(int(str(healthy.data["unhealthyMs"])) - 200_000) <= PERIOD_MS
    failing = [at_ms for at_ms, _ in reports(stage) if 240_000 < at_ms <= 400_000]
    assert min(later - earlier for earlier, later in pairwise(failing)) >= 0.89 * PERIOD_MS


def test_leaf_that_changes_often_has_few_events() -> None:
    """When events are limited, a later event reports the latest health and the number of skipped changes."""
    health, events = LeafHealth(), []
    failing = LeafStatus(LEAF.base64, healthy=False, faults=(LeafFault.SERVICE,))
    working = LeafStatus(LEAF.base64, healthy=True)
    for look in range(200):
        leaf = failing if look % 2 == 0 and look < 70 else working
        if (event := health.event(leaf, 10.0 * look)) is not None:
            events.append((10 * look, *event))
    assert [(at_s, event_type) for at_s, event_type, _ in events] == [
        (0, LEAF_UNHEALTHY), (10, LEAF_HEALTHY), (20, LEAF_UNHEALTHY), (30, LEAF_HEALTHY),
        (600, LEAF_UNHEALTHY), (610, LEAF_HEALTHY), (620, LEAF_UNHEALTHY), (630, LEAF_HEALTHY),
    ]  # fmt: skip
    assert [facts.get("changes") for *_, facts in events] == [None, None, None, None, 57, None, None, None]


def test_late_event_of_leaf_has_times_of_its_change() -> None:
    """The limit of four events delays the fifth change of 40 s to 600 s; the event has the times of the change."""
    health, events = LeafHealth(), []
    for at_s in range(0, 1_000, 10):
        faults = (LeafFault.SERVICE,) if at_s in {10, 30} else (LeafFault.ROUTER,) if at_s < 40 else ()
        event = health.event(LeafStatus(LEAF.base64, healthy=not faults, faults=faults), float(at_s))
        events += [] if event is None else [(at_s, *event)]
    assert [at_s for at_s, *_ in events] == [0, 10, 20, 30, 600]
    assert events[-1][1] is LEAF_HEALTHY
    assert (events[-1][2]["unhealthyMs"], events[-1][2]["agoMs"]) == (40_000, 560_000)
    assert events[-1][2]["conditions"] == "service"
    assert "changes" not in events[-1][2]


async def test_last_structure_is_in_one_report_per_publication(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()
    nursery.start_soon(stage.background_tasks.run)
    await trio.sleep(60)
    reported = [part.last_published_lease_set for _, report in reports(stage) for part in report.masters]
    assert [each for each in reported if each is not None] == [base64_encode(each) for each in stage.router.published]
    assert reported.count(None) > 10


async def test_uncommitted_report_is_sent_again() -> None:
    changes = ReportNews({"pace": "normal"})
    [part] = rival_report().masters
    report = rival_report()
    reported, configuration = changes.unreported(report)
    assert configuration == {"pace": "normal"}
    assert changes.unreported(report) == (reported, configuration), "nothing was committed"
    changes.committed(reported, configuration)
    assert changes.unreported(report) == (report, None)
    assert part.last_published_lease_set is None


async def test_configuration_is_reported_first_and_hourly() -> None:
    changes = ReportNews({"pace": "normal"})
    hours = []
    for minute in range(0, 180, 5):
        report = Report("farm", NOW_MS + minute * 60_000, 1, rival_report().router)
        reported, configuration = changes.unreported(report)
        if configuration is not None:
            hours.append(minute * 60_000 // CONFIGURATION_EVERY_MS)
        changes.committed(reported, configuration)
    assert hours == [0, 1, 2]


async def test_configuration_is_reported_after_clock_is_set_back() -> None:
    changes = ReportNews({"pace": "normal"})
    for date_ms in (NOW_MS, NOW_MS - 365 * 86_400_000):
        report = Report("farm", date_ms, 1, rival_report().router)
        reported, configuration = changes.unreported(report)
        assert configuration == {"pace": "normal"}
        changes.committed(reported, configuration)


async def test_reported_settings_exclude_paths_addresses_and_keys(tmp_path: Path) -> None:
    configuration = load(
        tmp_path,
        f"""
        name = "secret-name"
        farm_key = "secret-farm.key"
        state_dir = "secret-state"
        [gossip]
        bind = "127.0.0.1:17668"
        seeds = ["127.0.0.9:7668"]
        [publishing]
        signing_key = "secret-signing.key"
        [[leaf]]
        destination = "{LEAF.base64}"
        probe = "127.0.0.8:80"
        """,
    )
    reported = json.loads(encode(rival_report(), config=reported_settings(configuration)))["config"]
    assert reported == {
        "masters": 1,
        "leaves": 1,
        "demo": False,
        "transport": "tls",
        "gossipCapacity": DEFAULT_CAPACITY,
        "timing": "lan",
        "votersMax": VOTERS_MAX_DEFAULT,
        "grace": GRACE_DEFAULT_MS,
        "admit": "ask",
        "pace": "normal",
        "reportingPeriod": 30_000,
        "routerKind": "file",
    }
    text = json.dumps(reported)
    for secret in ("secret", "127.0.0", LEAF.base64[:40], str(tmp_path)):
        assert secret not in text


async def test_refused_report_keeps_its_changes_for_next_report(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()
    refused: list[bytes] = []

    def refuse(command: bytes) -> SubmitAnswer | None:
        if b"lastPublishedLS" in command and len(refused) < 2:
            refused.append(command)
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason="no leader")
        return None

    stage.replica.taken = refuse
    nursery.start_soon(stage.background_tasks.run)
    await trio.sleep(30)
    reported = [part.last_published_lease_set for _, report in reports(stage) for part in report.masters]
    assert len(refused) == 2
    assert any(each is not None for each in reported)
