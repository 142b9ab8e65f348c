"""The verdict over time: each change is traced once, alarms end with their cause, stuck processes are found."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.events import MEMBER_SUSPECT
from bridge.api.view import FarmView
from bridge.core.formation.member import MemberStatus
from bridge.core.publishing.score import Inability
from bridge.node.control.verdict_watch import LOOK_S, REST_S, STUCK_S, VerdictWatch
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from tests.operator_views import judged
from tests.spec.test_verdict import healthy, leaderless, publishing_of, unable, with_status

PERIOD_S = 30.0


class ObservedNode:
    """A node with a configurable view."""

    def __init__(self, view: FarmView) -> None:
        self.current = view
        self.checks_s: list[float] = []
        self.trace = EventLog("node-1", lambda: 1000)
        self.alarms = Alarms(self.trace)
        self.watch = VerdictWatch(self.build, lambda: PERIOD_S, self.trace, self.alarms)

    def build(self) -> FarmView:
        """Return the configured view, and record the time of the check."""
        self.checks_s.append(trio.current_time())
        return judged(self.current)

    @property
    def verdicts(self) -> list[str]:
        return [str(event.data["text"]) for event in self.trace.read(1).events if event.kind == "verdict-changed"]

    @property
    def active_alarms(self) -> list[str]:
        return [alarm.kind for alarm in self.alarms.active()]


async def during(watched: ObservedNode, step: Callable[[], None], seconds: float) -> None:
    step()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.watch.run)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()


async def test_verdict_change_is_traced_once(autojump_clock: MockClock) -> None:
    watched = ObservedNode(healthy(2))
    down = with_status(healthy(2), node_3=MemberStatus.DEAD)

    def become(view: FarmView) -> None:
        watched.current = view

    await during(watched, lambda: become(healthy(2)), 5)
    await during(watched, lambda: become(down), 5)
    await during(watched, lambda: become(healthy(2)), 5)
    assert watched.verdicts == [
        "Healthy, can lose 1 of 3",
        "Degraded: node-3 down, can lose none",
        "Healthy, can lose 1 of 3",
    ]
    assert watched.active_alarms == []


@pytest.mark.parametrize(
    ("view", "kind"),
    [
        (with_status(healthy(2), node_3=MemberStatus.DEAD), "servers-down"),
        (leaderless(healthy(2), 3_001), "no-quorum"),
        (unable(healthy(2), *[Inability.UNATTACHED] * 3), "not-published"),
        (
            publishing_of(
                healthy(2), entries=tuple(replace(each, healthy=False) for each in healthy(2).publishing[0].entries)
            ),
            "no-healthy-leaf",
        ),
    ],
)
async def test_alarm_starts_and_ends_with_its_cause(autojump_clock: MockClock, view: FarmView, kind: str) -> None:
    watched = ObservedNode(view)
    watched.watch.check()
    assert kind in watched.active_alarms
    watched.current = healthy(2)
    watched.watch.check()
    assert watched.active_alarms == []


async def test_missing_publication_raises_alarm_after_three_periods(autojump_clock: MockClock) -> None:
    watched = ObservedNode(publishing_of(healthy(2), published_s=None, handed_over_s=None, seconds_to_expiry=None))
    await during(watched, lambda: None, 3 * PERIOD_S - LOOK_S)
    assert watched.active_alarms == []
    await during(watched, lambda: None, 2 * LOOK_S)
    assert watched.active_alarms == ["not-published"]


async def test_process_stuck_on_unapplied_entry_not_on_lost_quorum(autojump_clock: MockClock) -> None:
    watched = ObservedNode(leaderless(healthy(2), 90_000))
    await during(watched, lambda: None, 2 * STUCK_S)
    assert watched.watch.stuck() == ()
    behind = replace(healthy(2), raft=replace(healthy(2).raft, commit_index=400))
    watched.current = behind
    await during(watched, lambda: None, STUCK_S / 2)
    assert watched.watch.stuck() == ()
    await during(watched, lambda: None, STUCK_S)
    assert "entry 218 is committed" in watched.watch.stuck()[0]


async def test_process_without_own_checks_is_stuck(autojump_clock: MockClock) -> None:
    watched = ObservedNode(healthy(2))
    await during(watched, lambda: None, 2)
    await trio.sleep(STUCK_S + 1)
    assert "has not run its own checks" in watched.watch.stuck()[0]


async def test_healthy_farm_is_checked_rarely_until_event(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    watched = ObservedNode(healthy(2))

    async def pauses_s() -> list[float]:
        watched.checks_s.clear()
        await trio.sleep(3 * REST_S + LOOK_S / 2)
        return [round(later - earlier, 3) for earlier, later in pairwise(watched.checks_s)]

    nursery.start_soon(watched.watch.run)
    await trio.sleep(2 * LOOK_S)
    assert set(await pauses_s()) == {REST_S}
    watched.trace.append(MEMBER_SUSPECT)
    suspected_s = trio.current_time()
    await pauses_s()
    assert watched.checks_s[0] - suspected_s <= LOOK_S
    for unhealthy in (with_status(healthy(2), node_3=MemberStatus.DEAD), leaderless(healthy(2), 1_000)):
        watched.current = unhealthy
        await trio.sleep(REST_S)
        assert set(await pauses_s()) == {LOOK_S}


async def test_slow_check_runs_rarely(autojump_clock: MockClock) -> None:
    checks = []

    def slow() -> FarmView:
        checks.append(trio.current_time())
        autojump_clock.jump(0.1)
        return judged(healthy(2))

    watched = ObservedNode(healthy(2))
    watched.watch = VerdictWatch(slow, lambda: PERIOD_S, watched.trace, watched.alarms)
    await during(watched, lambda: None, 60)
    assert len(checks) <= 7
