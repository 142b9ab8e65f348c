"""Entries without effect: each causes an event, and many cause an alarm that ends automatically."""

import trio
from trio.testing import MockClock

from bridge.api.alarms import ENTRIES_WITHOUT_EFFECT
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import Clock, CostFactor, Report
from bridge.core.membership.authors import NoEffect
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.ineffective_entries import ALARM_AFTER, QUIET_AFTER_S, WITHIN_MS, IneffectiveEntries
from bridge.wire.log.entries import encode
from consensus.core.model import Entry
from consensus.sessions.table import RequestId
from tests.authored import CLUSTER_ID, node_id, signed

WEIGHT = CostFactor("a" * 52, 2.0)


class ObservedFarm:
    """An applied state of a farm of one server, and the alarms of its node."""

    def __init__(self) -> None:
        self.trace = EventLog("node-1", lambda: 0)
        self.alarms = Alarms(self.trace)
        self.watch = IneffectiveEntries(self.alarms)
        self.applied_state = AppliedState(
            0, self.trace, (node_id(1),), CLUSTER_ID, on_entry_without_effect=self.watch.record
        )
        self.index = 0

    async def commit(self, entry: bytes) -> None:
        """Append an entry to the log."""
        self.index += 1
        await self.applied_state.apply(self.index, (Entry.command(1, entry),))

    @property
    def active(self) -> list[str]:
        return [each.text for each in self.alarms.active() if each.kind == ENTRIES_WITHOUT_EFFECT.kind]


async def test_entry_without_effect_is_event_with_counter(autojump_clock: MockClock) -> None:
    farm = ObservedFarm()
    await farm.commit(encode(WEIGHT))
    await farm.commit(signed(WEIGHT, 9))
    data = [event.data for event in farm.trace.recent(9) if event.kind == "entry-without-effect"]
    assert data == [
        {"kind": "cost", "author": None, "reason": "unsigned"},
        {"kind": "cost", "author": node_id(9).hex(), "reason": "unknown-author"},
    ]
    assert farm.applied_state.records[NoEffect.UNSIGNED] == 1
    assert farm.applied_state.records[NoEffect.UNKNOWN_AUTHOR] == 1
    refusal = farm.applied_state.refusal_of(2)
    assert refusal is not None
    assert "garlicfarm node admit-client" in refusal
    assert farm.active == []


async def test_many_entries_without_effect_raise_one_alarm(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    farm = ObservedFarm()
    nursery.start_soon(farm.watch.run)
    for _ in range(5 * ALARM_AFTER):
        await farm.commit(signed(WEIGHT, 9))
    [text] = farm.active
    assert f"cost (unknown-author, signed by {node_id(9).hex()})" in text
    assert sum(event.kind == "alarm-raised" for event in farm.trace.recent(4096)) == 1
    await trio.sleep(QUIET_AFTER_S + 10)
    assert farm.active == []


async def test_occasional_or_old_entries_do_not_raise_alarm(autojump_clock: MockClock) -> None:
    """After a stop, a node applies the missed entries of a longer time within seconds."""
    farm = ObservedFarm()
    farm.applied_state.history_ends_at(100)
    for _ in range(100):
        await farm.commit(signed(WEIGHT, 9))
    for number in range(1, 2 * ALARM_AFTER):
        time_ms = number * WITHIN_MS // 10
        await farm.commit(signed(Report("farm", time_ms, 1, RouterStatus(attached=False))))
        await farm.commit(signed(Clock(time_ms, 1)))
        await farm.commit(signed(WEIGHT, 9))
    assert farm.applied_state.state.log_time_ms > 3 * WITHIN_MS
    assert farm.active == []


async def test_occasional_entries_in_stalled_log_time_are_few(autojump_clock: MockClock) -> None:
    """Log time waits for the clocks if it is ahead of them."""
    farm = ObservedFarm()
    for _ in range(2 * ALARM_AFTER):
        await farm.commit(signed(WEIGHT, 9))
        await trio.sleep(WITHIN_MS / 10_000)
    assert farm.active == []


async def test_replayed_report_of_expired_request_sets_no_clock(autojump_clock: MockClock) -> None:
    """Anyone with the farm key can replay a report: its old date would show a wrong clock, and hold back log time."""
    founders = (node_id(1), node_id(2))
    applied_state = AppliedState(0, EventLog("node-1", lambda: 0), founders, CLUSTER_ID)
    reports = [
        signed(
            Report("demo", 1000 * number, 1, RouterStatus(attached=False), request=str(RequestId("client", 0, number)))
        )
        for number in range(1, 20)
    ]
    for index, report in enumerate((*reports, reports[0]), 1):
        await applied_state.apply(index, (Entry.command(1, report),))
    judgment = applied_state.log_time.judge(0, 19_000, 2, applied_state.state.clocks)
    assert judgment is not None
    assert judgment.offsets_ms == {1: 0, 2: 0}
