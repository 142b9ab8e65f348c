"""The spans and values of a timeline's window, made from any records: they are clipped, interrupted and bounded."""

from bridge.core.history.records import (
    MINUTE_MS,
    ROWS_MAX,
    Break,
    BreakCause,
    Record,
    Row,
    RowKind,
    Sample,
    SeriesKind,
    State,
    StateRecord,
)
from bridge.core.history.timeline import ROW_SPANS_MAX, SPANS_MAX, STEPS_MAX, Timeline, read

HOUR_MS = 60 * MINUTE_MS
NOW_MS = 1_760_000_000_000 // HOUR_MS * HOUR_MS
START_MS = NOW_MS - HOUR_MS
ALIVE, DEAD = State("alive", 0), State("dead", 2)
OSLO, KYOTO = Row(RowKind.NODE, "oslo"), Row(RowKind.NODE, "kyoto")
RTT = Row(SeriesKind.ROUND_TRIP, "kyoto")
STARTED = Break(START_MS, BreakCause.START, 0)


def minutes_of(timeline: Timeline, row: Row) -> list[tuple[int, int, str]]:
    """Return the spans of a row in minutes after the start of the records."""
    return [
        ((each.start_ms - START_MS) // MINUTE_MS, (each.end_ms - START_MS) // MINUTE_MS, each.state.text)
        for each in dict(timeline.rows).get(row, ())
    ]


def at(minute: int, row: Row, state: State | None) -> StateRecord:
    return StateRecord(START_MS + minute * MINUTE_MS, row, state)


def sample(minute: int, *values: tuple[Row, float]) -> Sample:
    return Sample(START_MS + minute * MINUTE_MS, (START_MS + minute * MINUTE_MS) // MINUTE_MS, values)


def window(*records: Record, hours: int = 24, now_ms: int | None = NOW_MS) -> Timeline:
    return read([records], now_ms, hours)


def test_timeline_state_lasts_until_next_record() -> None:
    timeline = window(STARTED, at(0, OSLO, ALIVE), at(10, OSLO, DEAD), at(25, OSLO, None))
    assert minutes_of(timeline, OSLO) == [(0, 10, "alive"), (10, 25, "dead")]


def test_timeline_open_state_lasts_until_now() -> None:
    assert minutes_of(window(STARTED, at(0, OSLO, ALIVE)), OSLO) == [(0, 60, "alive")]


def test_timeline_repeated_state_is_one_span() -> None:
    timeline = window(STARTED, at(0, OSLO, ALIVE), at(10, OSLO, ALIVE), at(20, OSLO, DEAD))
    assert minutes_of(timeline, OSLO) == [(0, 20, "alive"), (20, 60, "dead")]


def test_timeline_of_stopped_node_ends_at_last_record() -> None:
    timeline = window(STARTED, at(0, OSLO, ALIVE), sample(7), now_ms=None)
    assert minutes_of(timeline, OSLO) == [(0, 7, "alive")]
    assert timeline.to_ms == START_MS + 7 * MINUTE_MS


def test_timeline_killed_node_has_gap_from_last_sample() -> None:
    restart = Break(START_MS + 30 * MINUTE_MS, BreakCause.START, 0)
    timeline = window(STARTED, at(0, OSLO, ALIVE), sample(12), restart, at(30, OSLO, ALIVE))
    assert minutes_of(timeline, OSLO) == [(0, 12, "alive"), (30, 60, "alive")]


def test_timeline_of_killed_node_keeps_last_observation() -> None:
    restart = Break(START_MS + 30 * MINUTE_MS, BreakCause.START, 0)
    timeline = window(STARTED, at(0, OSLO, ALIVE), at(12, OSLO, DEAD), restart, at(30, OSLO, ALIVE))
    assert minutes_of(timeline, OSLO) == [(0, 12, "alive"), (12, 12, "dead"), (30, 60, "alive")]
    [_, last, _] = dict(timeline.rows)[OSLO]
    assert last.end_ms == last.start_ms + 1


def test_timeline_of_stopped_node_keeps_last_observation() -> None:
    timeline = window(STARTED, at(0, OSLO, ALIVE), at(7, OSLO, DEAD), now_ms=None)
    assert minutes_of(timeline, OSLO) == [(0, 7, "alive"), (7, 7, "dead")]


def test_timeline_damage_interrupts_states() -> None:
    timeline = read([[STARTED, at(0, OSLO, ALIVE), sample(5)], [at(20, OSLO, ALIVE)]], NOW_MS, 24)
    assert minutes_of(timeline, OSLO) == [(0, 5, "alive"), (20, 60, "alive")]


def test_timeline_clock_moved_back_prefers_later_records() -> None:
    back = Break(START_MS + 20 * MINUTE_MS, BreakCause.CLOCK_BACK, START_MS + 40 * MINUTE_MS)
    values = [sample(minute, (RTT, 1.0)) for minute in range(40)]
    timeline = window(STARTED, at(0, OSLO, ALIVE), at(30, OSLO, DEAD), *values, back, at(20, OSLO, ALIVE))
    assert minutes_of(timeline, OSLO) == [(0, 20, "alive"), (20, 60, "alive")]
    shown = dict(timeline.series)[RTT]
    assert sum(value is not None for value in shown) == 20


def test_timeline_window_clips_spans() -> None:
    timeline = read([[Break(1, BreakCause.START, 0), StateRecord(1, OSLO, ALIVE)]], NOW_MS, 1)
    assert minutes_of(timeline, OSLO) == [(0, 60, "alive")]


def test_timeline_series_has_value_per_minute() -> None:
    timeline = window(STARTED, sample(0, (RTT, 2.0)), sample(2, (RTT, 4.5)), hours=1)
    assert (timeline.step_ms, timeline.from_ms) == (MINUTE_MS, START_MS)
    assert dict(timeline.series)[RTT] == (2.0, None, 4.5, *[None] * 57)


def test_timeline_long_window_has_means_of_longer_steps() -> None:
    timeline = window(STARTED, *[sample(minute, (RTT, float(minute))) for minute in range(60)], hours=24 * 31)
    values = dict(timeline.series)[RTT]
    assert timeline.step_ms == 31 * MINUTE_MS
    assert len(values) <= STEPS_MAX
    assert [value for value in values if value is not None][-1] > 30


def test_timeline_without_records_is_empty() -> None:
    for now_ms in (NOW_MS, None):
        timeline = read([], now_ms, 24)
        assert (timeline.rows, timeline.series) == ((), ())


def test_timeline_rows_follow_kind_then_name() -> None:
    rows = [Row(RowKind.NODE, "node-10"), Row(RowKind.NODE, "node-9"), Row(RowKind.LEADER), Row(RowKind.VERDICT)]
    timeline = window(STARTED, *[at(0, row, ALIVE) for row in rows])
    assert [row for row, _ in timeline.rows] == [rows[3], rows[2], rows[1], rows[0]]


def test_timeline_keeps_newest_spans_of_row() -> None:
    changes = [
        StateRecord(START_MS + each * 1_000, OSLO, ALIVE if each % 2 else DEAD) for each in range(ROW_SPANS_MAX + 50)
    ]
    timeline = window(STARTED, *changes)
    spans = dict(timeline.rows)[OSLO]
    assert (len(spans), timeline.spans_left_out) == (ROW_SPANS_MAX, 50)
    assert spans[-1].end_ms == NOW_MS


def test_timeline_bounds_rows_and_spans() -> None:
    rows = [Row(RowKind.LEAF, f"{each:03}.b32.i2p", "oslo") for each in range(ROWS_MAX + 7)]
    changes = [at(minute, row, ALIVE if minute % 2 else DEAD) for minute in range(60) for row in rows]
    timeline = window(STARTED, *changes)
    shown = sum(len(spans) for _, spans in timeline.rows)
    assert shown <= SPANS_MAX
    assert len(timeline.rows) == ROWS_MAX
    assert timeline.rows_left_out == 7
    assert timeline.spans_left_out >= 60 * ROWS_MAX - SPANS_MAX
    assert all(spans[-1].end_ms == NOW_MS for _, spans in timeline.rows)
