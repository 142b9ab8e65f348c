"""`consensus.net.Backoff`: delays that double, and never overflow."""

from random import Random

import pytest

from consensus.net import Backoff


def test_backoff_doubles_up_to_limit_until_reset() -> None:
    backoff = Backoff(0.1, 1.0, Random(5))
    delays = [backoff.next_s() for _ in range(8)]
    for delay, full in zip(delays, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert full / 2 <= delay <= full
    assert len(set(delays)) == 8
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_backoff_after_ten_thousand_failures_returns_its_limit() -> None:
    backoff = Backoff(5.0, 60.0)
    assert {backoff.next_s() for _ in range(10_000)} == {5.0, 10.0, 20.0, 40.0, 60.0}


@pytest.mark.parametrize(("first_s", "longest_s"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0)])
def test_backoff_with_invalid_first_delay_is_refused(first_s: float, longest_s: float) -> None:
    with pytest.raises(ValueError, match="the first delay"):
        Backoff(first_s, longest_s)
