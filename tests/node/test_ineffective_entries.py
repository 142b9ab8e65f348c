"""Entries without effect, as an operator hears of them: each an event, many of them an alarm that ends by itself."""

import trio
from trio.testing import MockClock

from bridge.api.alarms import ENTRIES_WITHOUT_EFFECT
from bridge.core.log.records import CostFactor
from bridge.core.membership.authors import NoEffect
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.ineffective_entries import ALARM_AFTER, QUIET_AFTER_S, WITHIN_S, IneffectiveEntries
from bridge.wire.log.entries import encode
from consensus.core.model import Entry
from tests.authored import CLUSTER_ID, node_id, signed

WEIGHT = CostFactor("a" * 52, 2.0)


class Story:
    """A applied state of a farm of one server, and the alarms of its node."""

    def __init__(self) -> None:
        self.trace = EventLog("node-1", lambda: 0)
        self.alarms = Alarms(self.trace)
        self.watch = IneffectiveEntries(self.alarms)
        self.applied_state = AppliedState(
            0, self.trace, (node_id(1),), CLUSTER_ID, on_entry_without_effect=self.watch.record
        )
        self.index = 0

    async def commit(self, entry: bytes) -> None:
        """One more entry of the log."""
        self.index += 1
        await self.applied_state.apply(self.index, (Entry.command(1, entry),))

    @property
    def standing(self) -> list[str]:
        """The alarm's text, if it stands."""
        return [each.text for each in self.alarms.standing() if each.kind == ENTRIES_WITHOUT_EFFECT.kind]


async def test_each_is_an_event_with_kind_author_and_reason_and_is_counted(autojump_clock: MockClock) -> None:
    del autojump_clock
    story = Story()
    await story.commit(encode(WEIGHT))
    await story.commit(signed(WEIGHT, 9))
    told = [event.data for event in story.trace.recent(9) if event.kind == "entry-without-effect"]
    assert told == [
        {"kind": "cost", "author": None, "reason": "unsigned"},
        {"kind": "cost", "author": node_id(9).hex(), "reason": "unknown-author"},
    ]
    assert story.applied_state.records[NoEffect.UNSIGNED] == 1
    assert story.applied_state.records[NoEffect.UNKNOWN_AUTHOR] == 1
    refusal = story.applied_state.refusal_of(2)
    assert refusal is not None
    assert "garlicfarm node admit-client" in refusal
    assert story.standing == []


async def test_many_within_a_minute_raise_one_alarm_that_names_them_and_ends_in_quiet(
    autojump_clock: MockClock,
) -> None:
    del autojump_clock
    story = Story()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story.watch.run)
        for _ in range(5 * ALARM_AFTER):
            await story.commit(signed(WEIGHT, 9))
        [text] = story.standing
        assert f"cost (unknown-author, signed by {node_id(9).hex()})" in text
        assert sum(event.kind == "alarm-raised" for event in story.trace.recent(4096)) == 1
        await trio.sleep(QUIET_AFTER_S + WITHIN_S)
        assert story.standing == []
        nursery.cancel_scope.cancel()


async def test_now_and_then_one_is_no_alarm_nor_are_those_of_an_earlier_life(autojump_clock: MockClock) -> None:
    del autojump_clock
    story = Story()
    story.applied_state.history_ends_at(100)
    for _ in range(100):
        await story.commit(signed(WEIGHT, 9))
    for _ in range(2 * ALARM_AFTER):
        await story.commit(signed(WEIGHT, 9))
        await trio.sleep(WITHIN_S / 10)
    assert story.standing == []
