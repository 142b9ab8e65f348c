"""Host figures come from the host, and loop lag from the loop."""

import os

import pytest
import trio
import trio.testing

from bridge.node.host import HostSampler, LoopLag, rate_per_s


def test_a_sample_reads_this_process_and_this_host() -> None:
    sampler = HostSampler()
    ballast = bytearray(os.urandom(1)) * 32_000_000
    figures = sampler.sample()
    assert 32_000_000 <= figures.resident_bytes < 4 * 1024**3
    assert 0 < figures.memory_percent < 100
    assert 0 <= figures.cpu_percent <= 100
    assert 0 < figures.process_uptime_ms < 24 * 3600 * 1000
    assert len(ballast) == 32_000_000


def test_uptime_does_not_go_back() -> None:
    sampler = HostSampler()
    first = sampler.process_uptime_ms
    assert sampler.sample().process_uptime_ms >= first


def test_a_rate_is_over_the_time_between_two_counts() -> None:
    assert rate_per_s(1_000, 4_000, 1.5) == 2_000
    assert rate_per_s(5, 5, 0.1) == 0


def test_a_rate_that_cannot_be_told_is_unknown() -> None:
    assert rate_per_s(1_000, 4_000, 0.0) is None
    assert rate_per_s(4_000, 1_000, 1.0) is None


async def measured(lag: LoopLag, clock: trio.testing.MockClock, lateness_s: list[float], interval_s: float) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.run)
        for late_s in lateness_s:
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(interval_s + late_s)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_lag_is_how_late_the_loop_woke(mock_clock: trio.testing.MockClock) -> None:
    lag = LoopLag(interval_s=0.1)
    assert lag.figures() is None
    await measured(lag, mock_clock, [0.0] * 98 + [0.050, 0.250], 0.1)
    figures = lag.figures()
    assert figures is not None
    assert figures.measurements == 100
    assert figures.p50_ms == pytest.approx(0.0, abs=1e-6)
    assert figures.p99_ms == pytest.approx(50.0)
    assert figures.max_ms == pytest.approx(250.0)


async def test_a_stall_leaves_the_bounded_window_in_time(mock_clock: trio.testing.MockClock) -> None:
    lag = LoopLag(interval_s=0.1, window=10)
    await measured(lag, mock_clock, [1.0] + [0.0] * 10, 0.1)
    figures = lag.figures()
    assert figures is not None
    assert figures.measurements == 10
    assert figures.max_ms == pytest.approx(0.0, abs=1e-6)
