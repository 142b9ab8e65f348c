"""The trace's ring: cursors, what a slow reader lost, and waiting for news."""

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from bridge.api.trace import EventPage, TraceEvent
from bridge.node.events.event_log import EventLog


def log_of(count: int, capacity: int = 4) -> EventLog:
    log = EventLog("node-1", lambda: 1000, capacity)
    for number in range(1, count + 1):
        log.append("tick", {"number": number})
    return log


def cursors(page: EventPage) -> list[int]:
    return [event.cursor for event in page.events]


def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    log = log_of(4)
    first = log.read(1, 3)
    second = log.read(first.next_cursor, 3)
    assert cursors(first) + cursors(second) == [1, 2, 3, 4]
    assert second.next_cursor == 5
    assert second.lost == 0


def test_what_was_overwritten_is_counted_as_lost() -> None:
    page = log_of(10).read(3, 100)
    assert cursors(page) == [7, 8, 9, 10]
    assert page.lost == 4


def test_a_reader_from_cursor_zero_is_a_reader_from_the_start() -> None:
    page = log_of(3).read(0)
    assert cursors(page) == [1, 2, 3]
    assert page.lost == 0


def test_a_reader_of_an_earlier_process_is_given_all_there_is() -> None:
    page = log_of(2).read(900)
    assert cursors(page) == [1, 2]
    assert page.lost == 0


def test_an_empty_log_has_an_empty_page() -> None:
    assert log_of(0).read(1) == EventPage(1, 0, ())


def test_recent_events_are_the_last_ones_oldest_first() -> None:
    assert [event.cursor for event in log_of(10).recent(2)] == [9, 10]
    assert [event.cursor for event in log_of(1).recent(2)] == [1]


async def test_waiting_ends_with_the_next_event(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    log = log_of(2)
    async with trio.open_nursery() as nursery:

        async def later() -> None:
            await trio.sleep(3)
            log.append("news")

        nursery.start_soon(later)
        page = await log.wait(3, 10, wait_ms=10_000)
    assert [event.kind for event in page.events] == ["news"]
    assert trio.current_time() < 10


async def test_waiting_in_vain_ends_with_an_empty_page(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    begun = trio.current_time()
    page = await log_of(2).wait(3, 10, wait_ms=10_000)
    assert page == EventPage(3, 0, ())
    assert trio.current_time() - begun >= 10


def test_a_listener_hears_each_event_once_as_it_happens() -> None:
    heard: list[TraceEvent] = []
    log = EventLog("node-1", lambda: 1000, on_event=heard.append)
    recorded = log.append("leader-elected", {"term": 3})
    assert heard == [recorded]


def test_a_flood_of_one_cause_leaves_the_others_in_the_ring_and_counts_as_lost() -> None:
    """Given ten thousand refused connections after a leader was elected, then both are still told."""
    log = EventLog("node-1", lambda: 1000, 100, per_cause_events=25)
    log.append("leader-elected", {"term": 1})
    for number in range(10_000):
        log.append("connection-refused", {"number": number})
    log.append("alarm-raised", {"alarm": "no-quorum", "text": "x"})
    page = log.read(1)
    kinds = [event.kind for event in page.events]
    assert kinds == ["leader-elected", *["connection-refused"] * 25, "alarm-raised"]
    assert page.lost == 10_000 - 25
    assert page.next_cursor == 10_003


def test_one_alarm_that_comes_and_goes_does_not_crowd_out_another() -> None:
    log = EventLog("node-1", lambda: 1000, 100, per_cause_events=10)
    log.append("alarm-raised", {"alarm": "no-quorum", "text": "x"})
    for number in range(50):
        log.append("alarm-raised", {"alarm": "peers-refused", "text": str(number)})
    assert log.read(1).events[0].data["alarm"] == "no-quorum"


@given(
    st.lists(st.sampled_from("abc"), max_size=60),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 5),
    st.integers(0, 70),
)
def test_pages_over_gaps_lose_nothing_that_is_there_and_count_all_that_is_not(
    kinds: list[str], capacity: int, per_cause: int, limit: int, cursor: int
) -> None:
    log = EventLog("node-1", lambda: 1000, capacity, per_cause_events=per_cause)
    for kind in kinds:
        log.append(kind)
    there = cursors(log.read(1, 100))
    page = log.read(cursor, limit)
    wanted = [each for each in there if each >= cursor or cursor > log.next_cursor]
    assert cursors(page) == wanted[:limit]
    if limit and cursor <= log.next_cursor:
        assert page.lost + len(page.events) == page.next_cursor - max(cursor, 1)
        assert page.next_cursor <= log.next_cursor
