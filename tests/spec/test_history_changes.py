"""The records of a node's history: one per change, one sample a minute, at a bounded rate, even if the clock jumps."""

from random import Random

from bridge.core.history.changes import (
    BREAK_CHECKS,
    PAUSE_MS,
    ROW_CHANGES,
    SHARED_BYTES,
    SHARED_REFILL_MS,
    STEP_BACK_MS,
    Changes,
)
from bridge.core.history.records import (
    LATEST_MS,
    MINUTE_MS,
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
from tests.effort import over_seeds

NOW_MS = 1_760_000_000_000 // MINUTE_MS * MINUTE_MS
ALIVE, DEAD = State("alive", 0), State("dead", 2)
OSLO, KYOTO = Row(RowKind.NODE, "oslo"), Row(RowKind.NODE, "kyoto")
RTT = Row(SeriesKind.ROUND_TRIP, "kyoto")


def states(records: list[Record]) -> list[tuple[str | None, str | None]]:
    """Return name and text of each state in the records."""
    return [
        (each.row.name, None if each.state is None else each.state.text)
        for each in records
        if isinstance(each, StateRecord)
    ]


def breaks(records: list[Record]) -> list[BreakCause]:
    return [each.cause for each in records if isinstance(each, Break)]


def test_changes_first_observation_records_all_states() -> None:
    records = Changes().take(NOW_MS, {OSLO: ALIVE, KYOTO: DEAD}, {})
    assert breaks(records) == [BreakCause.START]
    assert states(records) == [("oslo", "alive"), ("kyoto", "dead")]


def test_changes_same_observation_records_nothing() -> None:
    changes = Changes()
    changes.take(NOW_MS, {OSLO: ALIVE}, {})
    assert changes.take(NOW_MS + 1_000, {OSLO: ALIVE}, {RTT: 3.0}) == []


def test_changes_missing_row_ends() -> None:
    changes = Changes()
    changes.take(NOW_MS, {OSLO: ALIVE, KYOTO: DEAD}, {})
    assert states(changes.take(NOW_MS + 1_000, {OSLO: ALIVE}, {})) == [("kyoto", None)]


def test_changes_sample_has_mean_of_minute() -> None:
    changes = Changes()
    for second, rtt_ms in ((0, 1.0), (20, 2.0), (40, 6.0)):
        changes.take(NOW_MS + second * 1_000, {}, {RTT: rtt_ms})
    (sample,) = changes.take(NOW_MS + MINUTE_MS, {}, {RTT: 50.0})
    assert sample == Sample(NOW_MS + 40_000, NOW_MS // MINUTE_MS, ((RTT, 3.0),))


def test_changes_idle_day_records_one_sample_per_minute() -> None:
    changes = Changes()
    records = [each for second in range(86_400) for each in changes.take(NOW_MS + second * 1_000, {OSLO: ALIVE}, {})]
    assert [type(each) for each in records[:3]] == [Break, StateRecord, Sample]
    assert len(records) == 2 + 1_439


def test_changes_flapping_row_is_limited() -> None:
    changes = Changes()
    count = 0
    for second in range(3_600):
        records = changes.take(NOW_MS + second * 1_000, {OSLO: ALIVE if second % 2 else DEAD}, {})
        count += len(states(records))
    assert ROW_CHANGES < count <= ROW_CHANGES + 31


def test_changes_held_back_state_is_recorded_later() -> None:
    changes = Changes()
    for second in range(60):
        changes.take(NOW_MS + second * 1_000, {OSLO: ALIVE if second % 2 else DEAD}, {})
    later = [states(changes.take(NOW_MS + second * 1_000, {OSLO: DEAD}, {})) for second in range(60, 300)]
    assert [each for each in later if each] == [[("oslo", "dead")]]


def test_changes_storm_of_leaves_keeps_leader_row() -> None:
    changes, random = Changes(), Random(1)
    leaves = [Row(RowKind.LEAF, f"{number:052}.b32.i2p", "oslo") for number in range(160)]
    leader, size = Row(RowKind.LEADER), 0
    for second in range(0, 21_600, 40):
        states_now = {leader: State(f"node-{second // 10_000}", 0)}
        states_now |= {each: State(random.choice(("healthy", "its service fails")), 0) for each in leaves}
        records = changes.take(NOW_MS + second * 1_000, states_now, {})
        size += sum(20 + len(each.state.text) for each in records if isinstance(each, StateRecord) and each.state)
        recorded = [each for each in records if isinstance(each, StateRecord) and each.row == leader]
        assert len(recorded) == (second % 10_000 == 0)
    assert size < SHARED_BYTES + 21_600_000 / SHARED_REFILL_MS + 10_000


def test_changes_small_step_back_repeats_time() -> None:
    changes = Changes()
    changes.take(NOW_MS, {OSLO: ALIVE}, {})
    (record,) = changes.take(NOW_MS - STEP_BACK_MS, {OSLO: DEAD}, {})
    assert record == StateRecord(NOW_MS, OSLO, DEAD)


def test_changes_long_step_back_is_break() -> None:
    changes = Changes()
    for second in range(BREAK_CHECKS):
        changes.take(NOW_MS + second * 1_000, {OSLO: ALIVE}, {})
    records = changes.take(NOW_MS - 3_600_000, {OSLO: ALIVE}, {})
    assert breaks(records) == [BreakCause.CLOCK_BACK]
    assert states(records) == [("oslo", "alive")]


def test_changes_clock_stepping_all_the_time_is_bounded() -> None:
    changes, count = Changes(), 0
    for check in range(10 * BREAK_CHECKS):
        count += len(breaks(changes.take(NOW_MS - 10_000 * check, {OSLO: ALIVE}, {})))
    assert count <= 1 + 10


def test_changes_pause_is_break() -> None:
    changes = Changes()
    changes.take(NOW_MS, {OSLO: ALIVE}, {})
    later_ms = NOW_MS + PAUSE_MS + 1
    records = changes.take(later_ms, {OSLO: ALIVE}, {})
    assert Break(later_ms, BreakCause.PAUSE, NOW_MS) in records


@over_seeds(200)
def test_changes_times_rise_except_at_breaks(seed: int) -> None:
    random, changes = Random(seed), Changes()
    now_ms, last_ms, recorded = NOW_MS, 0, dict[Row, State]()
    for _ in range(2_000):
        now_ms += random.choice((1_000, 1_000, 1_000, 1_000, -1_000, -30_000, 400_000, -(2**50), 2**50))
        observed = {row: random.choice((ALIVE, DEAD)) for row in (OSLO, KYOTO) if random.random() < 0.9}
        for record in changes.take(now_ms, observed, {RTT: 1.0}):
            assert 0 < record.time_ms < LATEST_MS, f"seed {seed}"
            if isinstance(record, Break):
                recorded.clear()
            else:
                assert record.time_ms >= last_ms, f"seed {seed}"
            last_ms = record.time_ms
            if isinstance(record, StateRecord):
                assert recorded.get(record.row) != record.state, f"seed {seed}"
                recorded.pop(record.row, None)
                if record.state is not None:
                    recorded[record.row] = record.state
