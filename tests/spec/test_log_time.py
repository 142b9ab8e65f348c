"""Log time: what a leader writes, how a server reckons in between, and when the log follows a clock or does not."""

from bridge.core.log_time import LogTime

BASE_MS = 1_700_000_000_000
PERIOD_MS = 30_000
VOTERS = frozenset({1, 2, 3})


def log_time(base_ms: int = BASE_MS) -> LogTime:
    return LogTime(base_ms, now=0, period_ms=PERIOD_MS)


def test_between_clock_entries_log_time_runs_on_with_the_monotonic_clock() -> None:
    reckoning = log_time()
    assert reckoning.paced(12_345) == BASE_MS + 12_345
    reckoning.clock_applied(BASE_MS + 30_000, now=31_000)
    assert reckoning.paced(32_000) == BASE_MS + 31_000


def test_a_leader_steers_log_time_to_its_own_clock_within_five_seconds() -> None:
    for drift_ms in (-5_000, -1, 0, 5_000):
        reading = log_time().next_entry(10_000, BASE_MS + 10_000 + drift_ms, 1, VOTERS)
        assert reading.time_ms == BASE_MS + 10_000 + drift_ms
        assert reading.alarm is None


def test_a_leader_alone_with_its_clock_keeps_the_pace_and_raises_an_alarm_when_it_lasts() -> None:
    reckoning = log_time()
    for now, alarmed in ((30_000, False), (60_000, False), (90_000, True)):
        reading = reckoning.next_entry(now, BASE_MS + now + 60_000, 1, VOTERS)
        reckoning.clock_applied(reading.time_ms, now)
        assert reading.time_ms == BASE_MS + now
        assert (reading.alarm is not None) == alarmed
    assert "clock of server 1 is 60 s ahead" in str(reading.alarm)


def test_log_time_never_goes_back_to_a_slow_clock() -> None:
    reckoning = log_time()
    reckoning.clock_applied(BASE_MS + 30_000, now=30_000)
    reckoning.report_applied(2, BASE_MS, now=30_000, clock_ms=BASE_MS)
    reckoning.report_applied(3, BASE_MS, now=30_000, clock_ms=BASE_MS)
    reading = reckoning.next_entry(30_001, BASE_MS, 1, VOTERS)
    assert reading.time_ms == BASE_MS + 30_001
    slightly_slow = reckoning.next_entry(30_002, BASE_MS + 29_000, 1, VOTERS)
    assert slightly_slow.time_ms == BASE_MS + 30_000


def test_after_a_night_switched_off_log_time_follows_the_clocks_of_a_majority() -> None:
    reckoning = log_time()
    morning_ms = BASE_MS + 36_000_000
    assert reckoning.next_entry(1_000, morning_ms, 1, VOTERS).time_ms == BASE_MS + 1_000
    reckoning.report_applied(2, morning_ms + 800, now=2_000, clock_ms=morning_ms + 1_000)
    assert reckoning.next_entry(3_000, morning_ms + 2_000, 1, VOTERS).time_ms == morning_ms + 2_000


def test_a_single_box_follows_its_own_clock() -> None:
    reading = log_time().next_entry(1_000, BASE_MS + 36_000_000, 1, frozenset({1}))
    assert reading.time_ms == BASE_MS + 36_000_000


def test_only_voters_with_a_recent_report_are_witnesses_of_the_time() -> None:
    reckoning = log_time()
    morning_ms = BASE_MS + 36_000_000
    reckoning.report_applied(9, morning_ms, now=1_000, clock_ms=morning_ms)
    reckoning.report_applied(2, morning_ms, now=1_000, clock_ms=morning_ms)
    reckoning.report_applied(2, morning_ms - 5_001, now=1_500, clock_ms=morning_ms)
    assert reckoning.next_entry(2_000, morning_ms, 1, VOTERS).time_ms == BASE_MS + 2_000
    reckoning.report_applied(3, morning_ms, now=2_000, clock_ms=morning_ms)
    too_late = 2_000 + PERIOD_MS * 3 // 2 + 1
    assert reckoning.next_entry(too_late, morning_ms, 1, VOTERS).time_ms == BASE_MS + too_late


def test_the_time_that_a_leader_needs_to_commit_is_not_lost_from_log_time() -> None:
    reckoning = log_time()
    reading = reckoning.next_entry(30_000, BASE_MS + 30_000, 1, VOTERS)
    reckoning.clock_applied(reading.time_ms, now=30_900)
    assert reckoning.paced(31_000) == BASE_MS + 31_000


def test_a_new_leader_goes_on_from_the_entries_of_the_old_one() -> None:
    reckoning = log_time()
    reckoning.next_entry(10_000, BASE_MS + 10_000, 1, VOTERS)
    reckoning.clock_applied(BASE_MS + 33_000, now=30_000)
    assert reckoning.next_entry(31_000, BASE_MS - 90_000, 1, VOTERS).time_ms == BASE_MS + 34_000
