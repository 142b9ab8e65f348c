"""broadcastTime << electionTimeout (Raft, section 5.6) is measured, and its breach is told."""

from bridge.core.farm.broadcast_time import MEASURED, BroadcastTime


def after(*taken_ms: float) -> BroadcastTime:
    """A leader with an election timeout of a second that has measured this."""
    watch = BroadcastTime(1_000)
    for each in taken_ms:
        watch.measured(each)
    return watch


def test_a_majority_that_needs_more_than_a_fifth_of_the_election_timeout_is_told_with_both_figures() -> None:
    text = after(*[201.0] * MEASURED).alarm
    assert text is not None
    assert "201 ms" in text
    assert "1000 ms" in text


def test_up_to_a_fifth_it_is_not() -> None:
    assert after(*[200.0] * MEASURED).alarm is None


def test_a_few_slow_rounds_among_quick_ones_are_no_alarm() -> None:
    assert after(*[5.0] * (MEASURED - 3), 900.0, 900.0, 900.0).alarm is None


def test_too_few_measurements_say_nothing() -> None:
    assert after(*[900.0] * (MEASURED - 1)).alarm is None


def test_it_ends_when_rounds_are_quick_again_and_begins_anew_with_another_term() -> None:
    watch = after(*[900.0] * MEASURED)
    for _ in range(MEASURED):
        watch.measured(5.0)
    assert watch.alarm is None
    slow = after(*[900.0] * MEASURED)
    slow.forget()
    assert slow.alarm is None
