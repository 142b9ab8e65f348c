"""Figures of the host, and the lag of the event loop."""

import errno
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing

from bridge.node.router.host import HostSampler, LoopLag, counted_interfaces, rate_per_s


def test_sample_reads_figures_of_host() -> None:
    sampler = HostSampler()
    figures = sampler.sample()
    assert figures.memory_percent is not None
    assert figures.cpu_percent is not None
    assert 0 < figures.memory_percent < 100
    assert 0 <= figures.cpu_percent <= 100
    assert figures.uptime_ms is not None
    assert 0 < figures.uptime_ms < 24 * 3600 * 1000


def test_unavailable_figures_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process cannot open more files, so the figures of the host are unknown."""

    def exhausted(*_: object, **__: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    for name in ("cpu_percent", "virtual_memory", "net_io_counters"):
        monkeypatch.setattr(psutil, name, exhausted)
    figures = HostSampler().sample()
    assert (figures.cpu_percent, figures.memory_percent, figures.current_bandwidth_bytes_per_s) == (None, None, None)


def interfaces(directory: Path, **parts: tuple[str, ...]) -> frozenset[str]:
    """Make the files that describe interfaces on Linux, and return the names of the interfaces."""
    for name, files in parts.items():
        (directory / name).mkdir()
        for each in files:
            (directory / name / each).touch()
    return frozenset(parts)


def test_bytes_of_containers_or_vpns_count_once(tmp_path: Path) -> None:
    names = interfaces(
        tmp_path, lo=(), eth0=("device",), docker0=("bridge", "lower_veth1"), veth1=("master",), tun0=("tun_flags",)
    )
    assert counted_interfaces(names, tmp_path) == {"eth0"}


def test_container_counts_unstacked_interfaces(tmp_path: Path) -> None:
    names = interfaces(
        tmp_path,
        lo=(),
        eth0=(),
        vlan5=("lower_eth0",),
        br0=("bridge", "lower_veth1"),
        veth1=("master",),
        tap0=("tun_flags",),
    )
    assert counted_interfaces(names, tmp_path) == {"eth0", "br0"}


def test_missing_sysfs_uses_names_of_interfaces(tmp_path: Path) -> None:
    names = frozenset({"lo0", "en0", "utun3", "bridge100"})
    assert counted_interfaces(names, tmp_path / "none") == {"en0"}


def test_uptime_does_not_decrease() -> None:
    sampler = HostSampler()
    first = sampler.process_uptime_ms
    assert (sampler.sample().uptime_ms or 0) >= first


def test_rate_is_difference_over_time() -> None:
    assert rate_per_s(1_000, 4_000, 1.5) == 2_000
    assert rate_per_s(5, 5, 0.1) == 0


def test_rate_without_time_or_increase_is_unknown() -> None:
    assert rate_per_s(1_000, 4_000, 0.0) is None
    assert rate_per_s(4_000, 1_000, 1.0) is None


async def wake_loop(lag: LoopLag, clock: trio.testing.MockClock, at_s: list[float]) -> None:
    """Wake the loop only at these times after its start."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.run)
        now_s = 0.0
        for moment_s in at_s:
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(moment_s - now_s)
            now_s = moment_s
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_lag_is_mean_delay_of_loop(mock_clock: trio.testing.MockClock) -> None:
    lag = LoopLag(interval_s=0.1, window=120)
    assert lag.mean_ms() is None
    # given a loop that wakes on time 98 times, then 50 ms late, then 80 ms late
    await wake_loop(lag, mock_clock, [number / 10 + 0.0001 for number in range(1, 99)] + [9.95, 10.08])
    assert lag.mean_ms() == pytest.approx(1.4, abs=1e-2)


async def test_lag_is_measured_at_moments_of_checks(mock_clock: trio.testing.MockClock) -> None:
    lag = LoopLag(interval_s=1.0)
    mock_clock.jump(0.4)
    await wake_loop(lag, mock_clock, [0.6])
    assert lag.mean_ms() == pytest.approx(0, abs=1e-2)


async def test_lag_of_blocked_loop_is_mean_wait_of_job(mock_clock: trio.testing.MockClock) -> None:
    lag = LoopLag(interval_s=0.1, window=120)
    # given a loop that wakes only at 0.1, 0.2, 0.3 and 0.95 of each second, because its thread is busy from 0.35 to
    # 0.95
    moments = [second + part for second in range(20) for part in (0.1001, 0.2001, 0.3001, 0.95)]
    await wake_loop(lag, mock_clock, moments)
    # then the ten jobs of a second wait 0, 0, 0, 550, 450, 350, 250, 150, 50 and 100 ms: 190 ms on average
    assert lag.mean_ms() == pytest.approx(190, rel=0.03)


async def test_stall_leaves_bounded_window(mock_clock: trio.testing.MockClock) -> None:
    lag = LoopLag(interval_s=0.1, window=10)
    await wake_loop(lag, mock_clock, [3600.05, *(3600.0001 + number / 10 for number in range(1, 11))])
    assert lag.mean_ms() == pytest.approx(0.1, abs=1e-2)
