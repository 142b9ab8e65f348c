"""`LogTimeIndex`: a bisection of each increasing run of times finds the same entries as a scan."""

import pytest

from bridge.core.state.log_time_index import LogTimeIndex

BASE_MS = 1_000_000


@pytest.mark.parametrize("turn_back", [False, True])
def test_last_until_equals_scan(*, turn_back: bool) -> None:
    moments = LogTimeIndex.from_base(BASE_MS)
    for number in range(1, 40):
        moments.note(number, BASE_MS + 100 * (number % 25 if turn_back else number))

    def scan(oldest_ms: int) -> int:
        times = moments.times_ms
        younger = next((place for place, at_ms in enumerate(times) if at_ms > oldest_ms), len(times))
        return moments.indexes[younger - 1] if younger else 0

    for time_ms in range(BASE_MS - 50, BASE_MS + 4_100, 50):
        assert moments.last_until(time_ms) == scan(time_ms)


def test_stored_index_restores_decreasing_times() -> None:
    moments = LogTimeIndex.from_base(BASE_MS)
    for index, time_ms in ((1, BASE_MS + 300), (2, BASE_MS + 100), (3, BASE_MS + 200)):
        moments.note(index, time_ms)
    stored = LogTimeIndex(moments.indexes, moments.times_ms)
    assert stored.latest_ms() == moments.latest_ms() == BASE_MS + 300
    assert [stored.first_at(BASE_MS + each) for each in (50, 250, 350)] == [1, 1, None]
