"""The farm's state on one node, derived from committed entries, and the events and changes it reports."""

from collections.abc import AsyncIterator

import pytest
import trio
from msgspec.structs import replace
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
from tests.node.farm_stage import CONFIGURATION, MASTER, NODE_IDS, NOW_MS, NOW_S, OTHER, OWN, rival_report

pytestmark = pytest.mark.usefixtures("machine_clock")


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
    "several kinds": b'{"clock":{"time":1,"id":1},"correction":{"clock":1}}',
    "not JSON": b"\xff",
}
"""An entry of each kind as any client can write it."""


class Recorder:
    """An applied state with its recorded changes."""

    def __init__(self) -> None:
        self.trace = EventLog("node-1", lambda: NOW_MS)
        self.changes: list[Change] = []
        self.applied_state = AppliedState(NOW_MS, self.trace, NODE_IDS, CLUSTER_ID, on_change=self.changes.append)
        self.last = 0

    async def append(self, *contents: bytes | None) -> None:
        """Append commands, and a configuration for each None."""
        entries = tuple(
            configuration_entry(1, CONFIGURATION) if each is None else Entry.command(1, each) for each in contents
        )
        await self.applied_state.apply(self.last + 1, entries)
        self.last += len(entries)

    def events(self) -> list[TraceEvent]:
        return list(self.trace.recent(100))


def clock(after_ms: int) -> bytes:
    return signed(Clock(NOW_MS + after_ms, OWN, 2_000))


def reports(after_ms: int) -> tuple[bytes, ...]:
    """Return reports of a majority of the three servers, with this time on their clocks."""
    return tuple(
        signed(replace(rival_report(), server_id=each, date_ms=NOW_MS + after_ms, request=None))
        for each in (OWN, OTHER)
    )


async def test_log_time_of_entry_is_last_clock_entry_up_to_it() -> None:
    recorder = Recorder()
    await recorder.append(b"{}", clock(10), b"{}", clock(10), clock(30), clock(20))
    assert [recorder.applied_state.moments.time_at(index) for index in range(8)] == [
        NOW_MS + after_ms for after_ms in (0, 0, 10, 10, 10, 30, 30, 30)
    ]


async def test_log_time_of_old_entries_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_time_index, "MOMENTS_MAX", 10)
    recorder = Recorder()
    await recorder.append(*(clock(after_ms) for after_ms in range(1, 101)))
    known = [index for index in range(1, 101) if recorder.applied_state.moments.time_at(index) is not None]
    assert known == list(range(known[0], 101))
    assert 5 <= len(known) <= 10
    assert [recorder.applied_state.moments.time_at(index) for index in known] == [NOW_MS + index for index in known]


async def test_configuration_before_entry_is_last_preceding_one() -> None:
    recorder = Recorder()
    await recorder.append(b"{}", None, b"{}", None, b"{}")
    assert [recorder.applied_state.configuration_before(index) for index in range(1, 8)] == [0, 0, 2, 2, 4, 4, 4]


async def test_stored_configurations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied_state_module, "CONFIGURATIONS_MAX", 4)
    recorder = Recorder()
    await recorder.append(*(None for _ in range(100)))
    assert recorder.applied_state.configuration_before(101) == 100
    assert recorder.applied_state.configuration_before(2) == 0


async def test_log_of_earlier_run_changes_state_without_events(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    recorder.applied_state.history_ends_at(1)
    master = MASTER.destination.base64
    await recorder.append(signed(rival_report()))
    assert recorder.applied_state.state.masters[master].choice.server_id == OTHER
    assert (recorder.events(), len(recorder.changes)) == ([], 1)
    await recorder.append(signed(Publication(master, OWN, NOW_S, "00")))
    assert [event.kind for event in recorder.events()] == ["publication-refused"]


async def test_changes_become_events_with_log_time(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    master = MASTER.destination.base64
    await recorder.append(clock(5), signed(rival_report()))
    await recorder.append(signed(Publication(master, OTHER, NOW_S + 1, "00")))
    await recorder.append(signed(Publication(master, OWN, NOW_S + 2, "00")))
    assert [event.kind for event in recorder.events()] == [
        "publisher-chosen",
        "publication-accepted",
        "publication-refused",
    ]
    assert {event.log_time_ms for event in recorder.events()} == {NOW_MS + 5}
    chosen = {"server": 2, "previous": None, "master": f"{hash_of(master)}.b32.i2p"}
    assert recorder.events()[0].data == chosen | {"reason": "no other server can publish"}
    assert recorder.changes[0] == PublisherChanged(master, OTHER, None)
    assert len(recorder.changes) == 3


@pytest.mark.parametrize(
    "malformed", [b"", b"\x00\xff", b"[" * 60_000, b'{"clock":{"time":-1,"id":1}}', b"x" * 100_000]
)
async def test_malformed_committed_entry_is_counted_without_effect(malformed: bytes) -> None:
    recorder = Recorder()
    before = recorder.applied_state.state
    await recorder.append(malformed)
    after = recorder.applied_state.state
    assert (after.servers, after.masters, after.log_time_ms) == (before.servers, before.masters, before.log_time_ms)
    assert recorder.applied_state.records[EntryCounter.FOREIGN_ENTRIES] == 1
    assert recorder.events() == []


async def test_waiter_wakes_only_for_later_entries(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    await recorder.append(b"{}")
    with trio.move_on_after(10) as limit:
        await recorder.applied_state.news()
    assert limit.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.applied_state.news)
        await trio.testing.wait_all_tasks_blocked()
        await recorder.append(b"{}")


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100):
        yield data[start : start + 100]


async def test_restored_state_equals_source_after_further_entries() -> None:
    old, new = Recorder(), Recorder()
    await old.append(None, clock(30_000), signed(rival_report()), clock(60_000), b"{}", None, clock(90_000))
    await new.applied_state.restore(LogId(old.last, 1), chunks(b"".join(old.applied_state.snapshot())))
    new.last = old.last
    next_entries = signed(rival_report(2)), clock(120_000), None
    for recorder in (old, new):
        await recorder.append(*next_entries)
    assert old.applied_state.state.servers
    assert new.applied_state.state == old.applied_state.state
    assert new.applied_state.farm.sessions.dump() == old.applied_state.farm.sessions.dump()
    assert new.applied_state.farm.tuning == old.applied_state.farm.tuning
    for index in range(12):
        assert new.applied_state.moments.time_at(index) == old.applied_state.moments.time_at(index)
        assert new.applied_state.configuration_before(index) == old.applied_state.configuration_before(index)


async def test_snapshot_excludes_entries_applied_after_capture() -> None:
    old, new = Recorder(), Recorder()
    await old.append(None, clock(3_000))
    captured = old.applied_state.snapshot()
    before = old.applied_state.state
    await old.append(*(clock(3_000 + number) for number in range(1, 10)))
    await new.applied_state.restore(LogId(2, 1), chunks(b"".join(captured)))
    assert new.applied_state.state == before
    assert new.applied_state.moments.time_at(11) == NOW_MS + 3_000


async def test_damaged_snapshot_is_refused() -> None:
    recorder = Recorder()
    given = b"".join(recorder.applied_state.snapshot())
    for damaged in (b"", given[:-1], given[:4] + b"\xc1" + given[5:]):
        with pytest.raises(FarmSnapshotError):
            await recorder.applied_state.restore(LogId(6, 1), chunks(damaged))


async def test_log_is_kept_for_seven_days_of_log_time() -> None:
    day_ms = 86_400_000
    recorder = Recorder()
    for day in range(1, 11):
        await recorder.append(*reports(day * day_ms), clock(day * day_ms))
    assert recorder.applied_state.keep_from() == 9


async def test_log_time_correction_keeps_times_of_earlier_entries() -> None:
    recorder = Recorder()
    ahead_ms = 1_000_000
    await recorder.append(signed(Level(2, "0.1.0")), *reports(0), clock(0), *reports(ahead_ms), clock(ahead_ms))
    await recorder.append(*reports(60_000), signed(Correction(NOW_MS + 60_000)), *reports(90_000), clock(90_000))
    times = [recorder.applied_state.moments.time_at(index) for index in range(recorder.last + 1)]
    assert [None if each is None else each - NOW_MS for each in times] == [0] * 7 + [ahead_ms] * 3 + [60_000] * 3 + [
        90_000
    ]
    assert recorder.applied_state.keep_from() == 0
    assert [event.kind for event in recorder.events() if event.kind == "log-time-corrected"] == ["log-time-corrected"]
    other = Recorder()
    await other.applied_state.restore(LogId(recorder.last, 1), chunks(b"".join(recorder.applied_state.snapshot())))
    assert other.applied_state.state == recorder.applied_state.state
    assert other.applied_state.log_time.paced(now_ms()) >= NOW_MS + 90_000


@pytest.mark.parametrize("kind", sorted(each for each in ALL_KINDS))
async def test_unproven_entry_of_any_kind_is_ineffective(kind: str) -> None:
    """A holder of a copied key can append such an entry; it must not end the servers that apply it."""
    recorder = Recorder()
    before = recorder.applied_state.state
    await recorder.append(ALL_KINDS[kind], ALL_KINDS[kind])
    after = recorder.applied_state.state
    assert replace(after, applied_index=before.applied_index, applied_term=before.applied_term) == before
    await recorder.append(clock(10))
    assert recorder.applied_state.state.log_time_ms == NOW_MS + 10
