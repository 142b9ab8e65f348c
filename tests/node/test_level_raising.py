"""The feature level: the announcements it depends on, and the alarm if it stays low."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.api.alarms import FEATURE_LEVEL
from bridge.core.log.feature_level import KAFKA_LEVEL, SUPPORTED_LEVEL
from bridge.core.membership.admission import Admitted
from bridge.core.state.farm_state import FarmState
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership.level_raising import LOOK_EVERY_S, PATIENCE_S, LevelRaising, announced_levels
from bridge.wire.log.entries import decode

VOTERS = (1, 2, 3)
OWN, LEADER, LOST = 1, 2, 3


def identity(number: int) -> bytes:
    """Return the NodeId of node `number`."""
    return bytes([number]) * 8


def announcing(node_id: bytes, raft_id: int, level: int | None) -> Any:
    return SimpleNamespace(node_id=node_id, metadata=SimpleNamespace(raft_id=raft_id, feature_level=level))


def typed(fake: SimpleNamespace) -> Any:
    """Return the fake with the type `Any`."""
    return fake


class Stage:
    """Node 1 of three voters."""

    def __init__(self, *, leads: bool = False) -> None:
        self.state = FarmState(
            0, level=KAFKA_LEVEL, admitted={each: Admitted(identity(each), f"node-{each}") for each in VOTERS}
        )
        self.members: list[Any] = [announcing(identity(each), each, SUPPORTED_LEVEL) for each in VOTERS[1:]]
        self.proposed: list[int] = []
        self.commits = False
        configuration = SimpleNamespace(voter_ids=frozenset(VOTERS))
        group = SimpleNamespace(server_id=OWN, configuration=configuration)
        server = SimpleNamespace(
            describe=lambda: SimpleNamespace(raft=group), role=SimpleNamespace(leader=LEADER), propose=self._propose
        )
        self.replica = typed(SimpleNamespace(server=server, server_id=OWN, leads=leads))
        self.directory = typed(SimpleNamespace(members=lambda: self.members))
        self.alarms = Alarms(EventLog("node-1", lambda: 0))
        signer = typed(SimpleNamespace(sign=lambda data: data))
        self.raising = LevelRaising(self.replica, self.directory, lambda: self.state, signer, self.alarms)

    def announce(self, number: int, level: int | None) -> None:
        """Replace the announcement of one voter."""
        kept = [each for each in self.members if each.node_id != identity(number)]
        self.members = [*kept, announcing(identity(number), number, level)]

    async def after(self, clock: MockClock, seconds: float) -> str | None:
        """Return the text of the alarm after `seconds`, or None."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.raising.run)
            for step_s in (LOOK_EVERY_S, seconds - 2 * LOOK_EVERY_S, LOOK_EVERY_S):
                await wait_all_tasks_blocked()
                clock.jump(step_s)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return next((each.text for each in self.alarms.active() if each.kind == FEATURE_LEVEL.kind), None)

    async def _propose(self, entries: tuple[bytes, ...]) -> Any:
        numbers = [decode(each).number for each in entries]  # type: ignore[union-attr]  # a level
        self.proposed += numbers
        if self.commits:
            self.state = replace(self.state, level=numbers[-1])
        return SimpleNamespace(position=None)


async def test_alarm_names_voter_that_announces_old_level(mock_clock: MockClock) -> None:
    stage = Stage()
    stage.announce(3, KAFKA_LEVEL)
    text = await stage.after(mock_clock, PATIENCE_S + 2)
    assert text is not None
    assert "node-3 announces level 4" in text
    assert "node-2" not in text


async def test_alarm_is_not_set_before_time_limit(mock_clock: MockClock) -> None:
    stage = Stage()
    stage.announce(3, KAFKA_LEVEL)
    assert await stage.after(mock_clock, PATIENCE_S - 2) is None


async def test_alarm_names_voter_without_announcement(mock_clock: MockClock) -> None:
    stage = Stage()
    stage.members = stage.members[:1]
    text = await stage.after(mock_clock, PATIENCE_S + 2)
    assert text is not None
    assert "node-3 announces no level yet" in text


async def test_alarm_names_leader_that_does_not_raise_level(mock_clock: MockClock) -> None:
    text = await Stage().after(mock_clock, PATIENCE_S + 2)
    assert text is not None
    assert "the leader, node-2, does not raise it" in text


async def test_alarm_ends_when_level_rises(mock_clock: MockClock) -> None:
    stage = Stage()
    stage.announce(3, KAFKA_LEVEL)
    assert await stage.after(mock_clock, PATIENCE_S + 2) is not None
    stage.state = FarmState(0, level=SUPPORTED_LEVEL, admitted=stage.state.admitted)
    assert await stage.after(mock_clock, 3) is None


async def test_raising_ends_at_highest_level(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.state = replace(stage.state, level=SUPPORTED_LEVEL)
    with trio.fail_after(2 * LOOK_EVERY_S):
        await stage.raising.run()


@pytest.mark.parametrize(("level", "proposed"), [(SUPPORTED_LEVEL, [SUPPORTED_LEVEL]), (KAFKA_LEVEL, [])])
async def test_leader_raises_level_announced_by_every_voter(
    mock_clock: MockClock, level: int, proposed: list[int]
) -> None:
    stage = Stage(leads=True)
    stage.announce(3, level)
    await stage.after(mock_clock, 3)
    assert sorted(set(stage.proposed)) == proposed


def test_member_cannot_announce_level_for_voter() -> None:
    stage = Stage()
    stage.members.append(announcing(identity(9), 3, 1))
    assert announced_levels(stage.replica, stage.state, stage.directory)[3] == SUPPORTED_LEVEL
