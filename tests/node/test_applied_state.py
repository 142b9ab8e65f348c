"""The farm's state on one node: what committed entries add up to, and what is told of them."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from bridge.api.trace import TraceEvent
from bridge.core.farm.state_machine import Change
from bridge.core.log.hashes import hash_of
from bridge.core.log.kinds import EntryCounter
from bridge.core.log.records import Clock, Correction, Level, Publication
from bridge.core.publishing.publisher_election import PublisherChanged
from bridge.core.state import log_time_index
from bridge.node.events.event_log import EventLog
from bridge.node.raft import applied_state as applied_state_module
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.log.snapshot import FarmSnapshotError
from consensus.core.entry_data import configuration_entry
from consensus.core.model import Entry, LogId
from consensus.server.event_loop import now_ms
from tests.authored import CLUSTER_ID, signed
from tests.node.farm_stage import (
    CONFIGURATION,
    MASTER,
    NODE_IDS,
    NOW_MS,
    NOW_S,
    OTHER,
    OWN,
    machine_clock,
    rival_report,
)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_clock(monkeypatch)


HASH = b"a" * 52
ALL_KINDS = {
    "report": b'{"cluster":"farm","date":1,"id":1,"router":{}}',
    "clock": b'{"clock":{"time":1,"id":1}}',
    "admission": b'{"admission":{"node":"0101010101010109","name":"x","server":9}}',
    "approval": b'{"approval":{"node":"0101010101010109","name":"x","replaces":"0101010101010101","server":9}}',
    "eviction": b'{"eviction":{"node":"0101010101010101","era":1,"boxes":{}}}',
    "rekeying": b'{"rekeying":{"era":1,"boxes":{}}}',
    "level": b'{"level":{"number":2,"version":"9"}}',
    "exclusion": b'{"exclusion":{"hash":"' + HASH + b'","excluded":true}}',
    "cost": b'{"cost":{"hash":"' + HASH + b'","factor":2}}',
    "factors": b'{"factors":{"throughIndex":1,"formula":"x","factors":{}}}',
    "removal": b'{"removal":{"server":1,"removed":true}}',
    "client": b'{"client":{"name":"x","key":"' + b"A" * 43 + b'=","scopes":["operator"],"admitted":true}}',
    "correction": b'{"correction":{"clock":1}}',
    "opaque": b'{"hello":1}',
    "several at once": b'{"clock":{"time":1,"id":1},"correction":{"clock":1}}',
    "not JSON": b"\xff",
}
"""An entry of each kind as any client can write it."""


class Story:
    """A applied state, and what it told."""

    def __init__(self) -> None:
        self.trace = EventLog("node-1", lambda: NOW_MS)
        self.changes: list[Change] = []
        self.applied_state = AppliedState(NOW_MS, self.trace, NODE_IDS, CLUSTER_ID, on_change=self.changes.append)
        self.last = 0

    async def append(self, *contents: bytes | None) -> None:
        """Commands, and a configuration for None."""
        entries = tuple(
            configuration_entry(1, CONFIGURATION) if each is None else Entry.command(1, each) for each in contents
        )
        await self.applied_state.apply(self.last + 1, entries)
        self.last += len(entries)

    def events(self) -> list[TraceEvent]:
        """The trace so far."""
        return list(self.trace.recent(100))


def clock(after_ms: int) -> bytes:
    return signed(Clock(NOW_MS + after_ms, OWN, 2_000))


def reports(after_ms: int) -> tuple[bytes, ...]:
    """Of a majority of the three servers, at that time by their clocks."""
    return tuple(
        signed(replace(rival_report(), server_id=each, date_ms=NOW_MS + after_ms, request=None))
        for each in (OWN, OTHER)
    )


async def test_log_time_of_an_entry_is_that_of_the_last_clock_entry_up_to_it() -> None:
    story = Story()
    await story.append(b"{}", clock(10), b"{}", clock(10), clock(30), clock(20))
    assert [story.applied_state.moments.time_at(index) for index in range(8)] == [
        NOW_MS + after_ms for after_ms in (0, 0, 10, 10, 10, 30, 30, 30)
    ]


async def test_of_entries_too_long_ago_log_time_is_not_known_and_not_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_time_index, "MOMENTS_MAX", 10)
    story = Story()
    await story.append(*(clock(after_ms) for after_ms in range(1, 101)))
    known = [index for index in range(1, 101) if story.applied_state.moments.time_at(index) is not None]
    assert known == list(range(known[0], 101))
    assert 5 <= len(known) <= 10
    assert [story.applied_state.moments.time_at(index) for index in known] == [NOW_MS + index for index in known]


async def test_the_configuration_before_an_entry_is_the_last_one_in_front_of_it() -> None:
    story = Story()
    await story.append(b"{}", None, b"{}", None, b"{}")
    assert [story.applied_state.configuration_before(index) for index in range(1, 8)] == [0, 0, 2, 2, 4, 4, 4]


async def test_configurations_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied_state_module, "CONFIGURATIONS_MAX", 4)
    story = Story()
    await story.append(*(None for _ in range(100)))
    assert story.applied_state.configuration_before(101) == 100
    assert story.applied_state.configuration_before(2) == 0


async def test_what_the_log_of_an_earlier_life_changed_counts_and_is_no_event_now(autojump_clock: MockClock) -> None:
    del autojump_clock
    story = Story()
    story.applied_state.history_ends_at(1)
    master = MASTER.destination.base64
    await story.append(signed(rival_report()))
    assert story.applied_state.state.masters[master].choice.server_id == OTHER
    assert (story.events(), len(story.changes)) == ([], 1)
    await story.append(signed(Publication(master, OWN, NOW_S, "00")))
    assert [event.kind for event in story.events()] == ["publication-refused"]


async def test_changes_become_events_of_the_trace_with_log_time_and_are_told(autojump_clock: MockClock) -> None:
    del autojump_clock
    story = Story()
    master = MASTER.destination.base64
    await story.append(clock(5), signed(rival_report()))
    await story.append(signed(Publication(master, OTHER, NOW_S + 1, "00")))
    await story.append(signed(Publication(master, OWN, NOW_S + 2, "00")))
    assert [event.kind for event in story.events()] == [
        "publisher-chosen",
        "publication-accepted",
        "publication-refused",
    ]
    assert {event.log_time_ms for event in story.events()} == {NOW_MS + 5}
    assert story.events()[0].data == {"server": 2, "previous": None, "master": f"{hash_of(master)}.b32.i2p"}
    assert story.changes[0] == PublisherChanged(master, OTHER, None)
    assert len(story.changes) == 3


@pytest.mark.parametrize("rubbish", [b"", b"\x00\xff", b"[" * 60_000, b'{"clock":{"time":-1,"id":1}}', b"x" * 100_000])
async def test_rubbish_that_was_committed_is_counted_and_changes_nothing(rubbish: bytes) -> None:
    story = Story()
    before = story.applied_state.state
    await story.append(rubbish)
    after = story.applied_state.state
    assert (after.servers, after.masters, after.log_time_ms) == (before.servers, before.masters, before.log_time_ms)
    assert story.applied_state.records[EntryCounter.FOREIGN_ENTRIES] == 1
    assert story.events() == []


async def test_a_waiting_caller_is_woken_by_later_news_and_not_by_earlier(autojump_clock: MockClock) -> None:
    del autojump_clock
    story = Story()
    await story.append(b"{}")
    with trio.move_on_after(10) as patience:
        await story.applied_state.news()
    assert patience.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story.applied_state.news)
        await trio.testing.wait_all_tasks_blocked()
        await story.append(b"{}")


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100):
        yield data[start : start + 100]


async def test_a_farm_that_begins_anew_from_a_snapshot_is_the_one_that_gave_it_and_goes_on_alike() -> None:
    old, new = Story(), Story()
    await old.append(None, clock(30_000), signed(rival_report()), clock(60_000), b"{}", None, clock(90_000))
    await new.applied_state.restore(LogId(old.last, 1), chunks(b"".join(old.applied_state.snapshot())))
    new.last = old.last
    following = signed(rival_report(2)), clock(120_000), None
    for story in (old, new):
        await story.append(*following)
    assert old.applied_state.state.servers
    assert new.applied_state.state == old.applied_state.state
    assert new.applied_state.farm.sessions.dump() == old.applied_state.farm.sessions.dump()
    assert new.applied_state.farm.tuning == old.applied_state.farm.tuning
    for index in range(12):
        assert new.applied_state.moments.time_at(index) == old.applied_state.moments.time_at(index)
        assert new.applied_state.configuration_before(index) == old.applied_state.configuration_before(index)


async def test_what_is_applied_after_a_snapshot_was_captured_is_not_in_it() -> None:
    old, new = Story(), Story()
    await old.append(None, clock(3_000))
    captured = old.applied_state.snapshot()
    before = old.applied_state.state
    await old.append(*(clock(3_000 + number) for number in range(1, 10)))
    await new.applied_state.restore(LogId(2, 1), chunks(b"".join(captured)))
    assert new.applied_state.state == before
    assert new.applied_state.moments.time_at(11) == NOW_MS + 3_000


async def test_a_snapshot_that_another_version_wrote_is_refused_with_words() -> None:
    story = Story()
    given = b"".join(story.applied_state.snapshot())
    for damaged in (b"", given[:-1], given[:4] + b"\xc1" + given[5:]):
        with pytest.raises(FarmSnapshotError):
            await story.applied_state.restore(LogId(6, 1), chunks(damaged))


async def test_of_the_log_seven_days_of_log_time_are_of_use() -> None:
    day_ms = 86_400_000
    story = Story()
    for day in range(1, 11):
        await story.append(*reports(day * day_ms), clock(day * day_ms))
    assert story.applied_state.keep_from() == 9


async def test_log_time_that_goes_back_is_told_of_each_entry_as_it_was_and_costs_no_history() -> None:
    story = Story()
    ahead_ms = 1_000_000
    await story.append(signed(Level(2, "0.1.0")), *reports(0), clock(0), *reports(ahead_ms), clock(ahead_ms))
    await story.append(*reports(60_000), signed(Correction(NOW_MS + 60_000)), *reports(90_000), clock(90_000))
    told = [story.applied_state.moments.time_at(index) for index in range(story.last + 1)]
    assert [None if each is None else each - NOW_MS for each in told] == [0] * 7 + [ahead_ms] * 3 + [60_000] * 3 + [
        90_000
    ]
    assert story.applied_state.keep_from() == 0
    assert [event.kind for event in story.events() if event.kind == "log-time-corrected"] == ["log-time-corrected"]
    other = Story()
    await other.applied_state.restore(LogId(story.last, 1), chunks(b"".join(story.applied_state.snapshot())))
    assert other.applied_state.state == story.applied_state.state
    assert other.applied_state.log_time.paced(now_ms()) >= NOW_MS + 90_000


@pytest.mark.parametrize("kind", sorted(each for each in ALL_KINDS))
async def test_an_entry_of_any_kind_without_a_proof_changes_nothing_and_the_next_one_counts(kind: str) -> None:
    """One such entry, by a holder of a copied key, must not end the servers that apply it."""
    story = Story()
    before = story.applied_state.state
    await story.append(ALL_KINDS[kind], ALL_KINDS[kind])
    after = story.applied_state.state
    assert replace(after, applied_index=before.applied_index, applied_term=before.applied_term) == before
    await story.append(clock(10))
    assert story.applied_state.state.log_time_ms == NOW_MS + 10
