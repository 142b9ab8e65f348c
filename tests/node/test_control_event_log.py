"""The ring of the trace: cursors, events lost to a slow reader, and waiting for new events."""

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from bridge.api.events import (
    ALARM_RAISED,
    CONNECTION_REFUSED,
    LEADER_ELECTED,
    MEMBER_ALIVE,
    MEMBER_DEAD,
    MEMBER_LEFT,
    EventType,
)
from bridge.api.trace import EventPage, TraceEvent
from bridge.node.events.event_log import EventLog


def log_of(count: int, capacity: int = 4) -> EventLog:
    log = EventLog("node-1", lambda: 1000, capacity)
    for number in range(1, count + 1):
        log.append(MEMBER_ALIVE, {"number": number})
    return log


def cursors(page: EventPage) -> list[int]:
    return [event.cursor for event in page.events]


def test_pages_are_consecutive() -> None:
    log = log_of(4)
    first = log.read(1, 3)
    second = log.read(first.next_cursor, 3)
    assert cursors(first) + cursors(second) == [1, 2, 3, 4]
    assert second.next_cursor == 5
    assert second.lost == 0


def test_overwritten_events_are_counted_as_lost() -> None:
    page = log_of(10).read(3, 100)
    assert cursors(page) == [7, 8, 9, 10]
    assert page.lost == 4


def test_cursor_zero_reads_from_start() -> None:
    page = log_of(3).read(0)
    assert cursors(page) == [1, 2, 3]
    assert page.lost == 0


def test_cursor_of_earlier_process_reads_all_events() -> None:
    page = log_of(2).read(900)
    assert cursors(page) == [1, 2]
    assert page.lost == 0


def test_empty_log_has_empty_page() -> None:
    assert log_of(0).read(1) == EventPage(1, 0, ())


def test_recent_returns_last_events_oldest_first() -> None:
    assert [event.cursor for event in log_of(10).recent(2)] == [9, 10]
    assert [event.cursor for event in log_of(1).recent(2)] == [1]
    log = log_of(3)
    assert log.recent(2) == log.recent(2)
    log.append(MEMBER_DEAD)
    assert [event.cursor for event in log.recent(2)] == [3, 4]
    assert [event.cursor for event in log.recent(1)] == [4]


async def test_wait_ends_with_next_event(autojump_clock: trio.testing.MockClock) -> None:
    log = log_of(2)
    async with trio.open_nursery() as nursery:

        async def later() -> None:
            await trio.sleep(3)
            log.append(MEMBER_DEAD)

        nursery.start_soon(later)
        page = await log.wait(3, 10, wait_ms=10_000)
    assert [event.kind for event in page.events] == ["member-dead"]
    assert trio.current_time() < 10


async def test_wait_without_event_ends_with_empty_page(autojump_clock: trio.testing.MockClock) -> None:
    started_s = trio.current_time()
    page = await log_of(2).wait(3, 10, wait_ms=10_000)
    assert page == EventPage(3, 0, ())
    assert trio.current_time() - started_s >= 10


def test_on_event_is_called_once_per_event() -> None:
    received: list[TraceEvent] = []
    log = EventLog("node-1", lambda: 1000, on_event=received.append)
    recorded = log.append(LEADER_ELECTED, {"term": 3})
    assert received == [recorded]


def test_flood_of_one_cause_keeps_events_of_other_causes() -> None:
    """Ten thousand refused connections follow an election; both the election and a later alarm remain readable."""
    log = EventLog("node-1", lambda: 1000, 100, per_cause_events=25)
    log.append(LEADER_ELECTED, {"term": 1})
    for number in range(10_000):
        log.append(CONNECTION_REFUSED, {"number": number})
    log.append(ALARM_RAISED, {"alarm": "no-quorum", "text": "x"})
    page = log.read(1)
    kinds = [event.kind for event in page.events]
    assert kinds == ["leader-elected", *["connection-refused"] * 25, "alarm-raised"]
    assert page.lost == 10_000 - 25
    assert page.next_cursor == 10_003


def test_flapping_alarm_keeps_events_of_another() -> None:
    log = EventLog("node-1", lambda: 1000, 100, per_cause_events=10)
    log.append(ALARM_RAISED, {"alarm": "no-quorum", "text": "x"})
    for number in range(50):
        log.append(ALARM_RAISED, {"alarm": "peers-refused", "text": str(number)})
    assert log.read(1).events[0].data["alarm"] == "no-quorum"


@given(
    st.lists(st.sampled_from([MEMBER_ALIVE, MEMBER_DEAD, MEMBER_LEFT]), max_size=60),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 5),
    st.integers(0, 70),
)
def test_pages_over_gaps_return_all_stored_events(
    kinds: list[EventType], capacity: int, per_cause: int, limit: int, cursor: int
) -> None:
    log = EventLog("node-1", lambda: 1000, capacity, per_cause_events=per_cause)
    for kind in kinds:
        log.append(kind)
    there = cursors(log.read(1, 100))
    page = log.read(cursor, limit)
    expected = [each for each in there if each >= cursor or cursor > log.next_cursor]
    assert cursors(page) == expected[:limit]
    if limit and cursor <= log.next_cursor:
        assert page.lost + len(page.events) == page.next_cursor - max(cursor, 1)
        assert page.next_cursor <= log.next_cursor
