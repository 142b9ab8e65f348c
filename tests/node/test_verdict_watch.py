"""The verdict over time: each change told once, alarms while their cause lasts, and when a process is stuck."""

from collections.abc import Callable

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.view import FarmView
from bridge.core.formation.member import MemberStatus
from bridge.core.publishing.candidates import Inability
from bridge.node.control.verdict_watch import LOOK_S, STUCK_S, VerdictWatch
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from tests.operator_views import judged
from tests.spec.test_verdict import healthy, leaderless, publishing_of, unable, with_status

PERIOD_S = 30.0


class Watched:
    """A node whose view is as decreed."""

    def __init__(self, view: FarmView) -> None:
        self.current = view
        self.trace = EventLog("node-1", lambda: 1000)
        self.alarms = Alarms(self.trace)
        self.watch = VerdictWatch(lambda: judged(self.current), lambda: PERIOD_S, self.trace, self.alarms)

    @property
    def told(self) -> list[str]:
        """The verdicts of the trace."""
        return [str(event.data["text"]) for event in self.trace.read(1).events if event.kind == "verdict-changed"]

    @property
    def raised(self) -> list[str]:
        """The alarms that stand."""
        return [alarm.kind for alarm in self.alarms.standing()]


async def during(watched: Watched, step: Callable[[], None], seconds: float) -> None:
    """Let the node look for so long after the step."""
    step()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.watch.run)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()


async def test_each_change_of_the_verdict_is_told_once(autojump_clock: MockClock) -> None:
    del autojump_clock
    watched = Watched(healthy(2))
    down = with_status(healthy(2), node_3=MemberStatus.DEAD)

    def become(view: FarmView) -> None:
        watched.current = view

    await during(watched, lambda: become(healthy(2)), 5)
    await during(watched, lambda: become(down), 5)
    await during(watched, lambda: become(healthy(2)), 5)
    assert watched.told == [
        "Healthy, can lose 1 of 3",
        "Degraded: node-3 down, can lose none",
        "Healthy, can lose 1 of 3",
    ]
    assert watched.raised == []


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
async def test_a_concern_is_an_alarm_within_a_second_and_ends_with_its_cause(
    autojump_clock: MockClock, view: FarmView, kind: str
) -> None:
    del autojump_clock
    watched = Watched(view)
    watched.watch.look()
    assert kind in watched.raised
    watched.current = healthy(2)
    watched.watch.look()
    assert watched.raised == []


async def test_a_structure_that_is_about_to_be_published_is_no_alarm_for_three_periods(
    autojump_clock: MockClock,
) -> None:
    del autojump_clock
    watched = Watched(publishing_of(healthy(2), published_s=None, seconds_to_expiry=None))
    await during(watched, lambda: None, 3 * PERIOD_S - LOOK_S)
    assert watched.raised == []
    await during(watched, lambda: None, 2 * LOOK_S)
    assert watched.raised == ["not-published"]


async def test_a_lost_quorum_makes_no_process_stuck_and_an_entry_that_is_not_applied_does(
    autojump_clock: MockClock,
) -> None:
    del autojump_clock
    watched = Watched(leaderless(healthy(2), 90_000))
    await during(watched, lambda: None, 2 * STUCK_S)
    assert watched.watch.stuck() == ()
    behind = replace(healthy(2), raft=replace(healthy(2).raft, commit_index=400))
    watched.current = behind
    await during(watched, lambda: None, STUCK_S / 2)
    assert watched.watch.stuck() == ()
    await during(watched, lambda: None, STUCK_S)
    assert "entry 218 is committed" in watched.watch.stuck()[0]


async def test_a_process_that_does_not_look_after_itself_is_stuck(autojump_clock: MockClock) -> None:
    del autojump_clock
    watched = Watched(healthy(2))
    await during(watched, lambda: None, 2)
    await trio.sleep(STUCK_S + 1)
    assert "has not run its own checks" in watched.watch.stuck()[0]


async def test_a_look_that_takes_long_is_taken_rarely(autojump_clock: MockClock) -> None:
    looks = []

    def slow() -> FarmView:
        looks.append(trio.current_time())
        autojump_clock.jump(0.1)
        return judged(healthy(2))

    watched = Watched(healthy(2))
    watched.watch = VerdictWatch(slow, lambda: PERIOD_S, watched.trace, watched.alarms)
    await during(watched, lambda: None, 60)
    assert len(looks) <= 7
