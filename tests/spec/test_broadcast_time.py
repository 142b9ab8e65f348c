"""Measurement of broadcastTime << electionTimeout (Raft, section 5.6), and the alarm on its violation."""

from bridge.node.tasks.timekeeping import MEASURED, BroadcastTime


def after(*taken_ms: float) -> BroadcastTime:
    """Return a leader's measurements with an election timeout of one second."""
    watch = BroadcastTime(1_000)
    for each in taken_ms:
        watch.measured(each)
    return watch


def test_alarm_above_fifth_of_election_timeout_has_both_figures() -> None:
    text = after(*[201.0] * MEASURED).alarm
    assert text is not None
    assert "201 ms" in text
    assert "1000 ms" in text


def test_alarm_inactive_up_to_fifth_of_election_timeout() -> None:
    assert after(*[200.0] * MEASURED).alarm is None


def test_alarm_inactive_after_few_slow_rounds() -> None:
    assert after(*[5.0] * (MEASURED - 3), 900.0, 900.0, 900.0).alarm is None


def test_alarm_inactive_before_enough_measurements() -> None:
    assert after(*[900.0] * (MEASURED - 1)).alarm is None


def test_alarm_ends_with_quick_rounds_or_new_term() -> None:
    watch = after(*[900.0] * MEASURED)
    for _ in range(MEASURED):
        watch.measured(5.0)
    assert watch.alarm is None
    slow = after(*[900.0] * MEASURED)
    slow.forget()
    assert slow.alarm is None
