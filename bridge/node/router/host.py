"""Measurements of the host and the process: processor, memory, network, and the lag of the node's own loop.

`HostSampler.sample` reads the operating system's counters; rates are over the time since the last sample, and unknown
(`None`) until there are two. `LoopLag` is a task that wakes at fixed moments and records its delay. The same causes
delay heartbeats and probes, so this figure shows if the node keeps up.

The moments are on a fixed grid, and each moment during a stall counts with its own lateness. If each delay were
measured from the previous wake-up, a long stall would count once, like a short one. Then a process that stalls half of
the time would show almost no lag. With the grid, the mean is the delay of a job that arrives at a random moment.

Periodic checks use the same moments (`sleep_to_tick`), so that a measurement does not need its own wake-up. Checks of
the same moment run before or after the measurement. So on average the lag contains half of their time, although few
jobs arrive at such a moment.

An unreadable figure is unknown, and never ends the node: without a free descriptor not even /proc can be opened.
"""

import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

import psutil
import trio

from bridge.core.log.figures import RouterStatus
from consensus import next_tick_s

LAG_INTERVAL_S: Final = 1.0
"""Seconds between two measurements."""
LAG_WINDOW: Final = 60
"""Number of measurements in the window: one minute."""

Figure = TypeVar("Figure")
_LOOPBACK: Final = frozenset({"lo", "lo0"})
_INTERFACES: Final = Path("/sys/class/net")
_STACKED: Final = ("br", "bond", "docker", "gif", "stf", "tap", "team", "tun", "utun", "veth", "virbr", "vlan", "wg")
"""Name prefixes of interfaces whose bytes also pass another interface, for systems without /sys."""


class LoopLag:
    """The measured lag of the trio loop that runs `run`."""

    def __init__(self, interval_s: float = LAG_INTERVAL_S, window: int = LAG_WINDOW) -> None:
        self._interval_s = interval_s
        self._lags_ms: deque[float] = deque(maxlen=window)

    async def run(self) -> None:
        """Measure until canceled."""
        window_s = self._interval_s * (self._lags_ms.maxlen or 1)
        while True:
            due_s = next_tick_s(self._interval_s)
            await trio.sleep_until(due_s)
            now_s = trio.current_time()
            # Limited, because a machine that slept for a night has missed far more moments than the window has.
            due_s = max(due_s, now_s - window_s)
            while due_s <= now_s:
                self._lags_ms.append((now_s - due_s) * 1000)
                due_s += self._interval_s

    def mean_ms(self) -> float | None:
        """Return the mean lag in the window in milliseconds; None before the first measurement."""
        return sum(self._lags_ms) / len(self._lags_ms) if self._lags_ms else None


class HostSampler:
    """The reader of the host's counters; one per process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        # The wall clock is read only once: an uptime computed from it would jump after a change of the clock.
        self._age_at_start_s = max(0.0, time.time() - self._process.create_time())
        self._started_s = time.monotonic()
        _readable(lambda: psutil.cpu_percent(interval=None))
        self._network_bytes = _readable(_network_bytes)
        self._sampled_s = self._started_s

    @property
    def process_uptime_ms(self) -> int:
        """Milliseconds since the start of this process."""
        return round((self._age_at_start_s + time.monotonic() - self._started_s) * 1000)

    def sample(self) -> RouterStatus:
        """Return the host's figures since the last sample; None for an unreadable one.

        Percentages refer to the entire host. The bandwidth is in + out, each byte once, without the loopback interface.
        """
        now_s = time.monotonic()
        network_bytes = _readable(_network_bytes)
        rate = None
        if network_bytes is not None and self._network_bytes is not None:
            rate = rate_per_s(self._network_bytes, network_bytes, now_s - self._sampled_s)
        self._network_bytes, self._sampled_s = network_bytes, now_s
        return RouterStatus(
            attached=False,
            uptime_ms=self.process_uptime_ms,
            current_bandwidth_bytes_per_s=rate,
            cpu_percent=_readable(lambda: psutil.cpu_percent(interval=None)),
            memory_percent=_readable(lambda: psutil.virtual_memory().percent),
        )


def _readable(figure: Callable[[], Figure]) -> Figure | None:
    """Return a figure, or None if it is unreadable: for example, /proc needs a free descriptor."""
    try:
        return figure()
    except (OSError, psutil.Error):
        return None


def _network_bytes() -> int:
    counters = psutil.net_io_counters(pernic=True)
    counted = _counted(frozenset(counters))
    return sum(nic.bytes_sent + nic.bytes_recv for name, nic in counters.items() if name in counted)


def counted_interfaces(names: frozenset[str], interfaces: Path = _INTERFACES) -> frozenset[str]:
    """Return the interfaces whose bytes leave or reach this machine, each byte on one of them.

    A byte of a container passes a veth, a bridge and the network card; a byte of a VPN passes a tun and the card. So
    only network cards count; Linux lists a device for each card. A container does not have cards. There, all interfaces
    count except interfaces on top of another one.
    """
    others = names - _LOOPBACK
    cards = frozenset(name for name in others if (interfaces / name / "device").exists())
    if cards:
        return cards
    if interfaces.is_dir():
        return frozenset(name for name in others if not _is_stacked(interfaces / name))
    return frozenset(name for name in others if not name.startswith(_STACKED))


@lru_cache(maxsize=1)
def _counted(names: frozenset[str]) -> frozenset[str]:
    """Return the counted interfaces from a cache, which is valid until an interface is added or removed."""
    return counted_interfaces(names)


def _is_stacked(interface: Path) -> bool:
    """Return True for a tun or tap, for a member of a bridge, and for an interface on top of another one."""
    is_part = (interface / "master").exists() or (interface / "tun_flags").exists()
    return is_part or (any(interface.glob("lower_*")) and not (interface / "bridge").exists())


def rate_per_s(before: int, after: int, elapsed_s: float) -> int | None:
    """Return the rate of a counter; None if no time has passed, or if an interface has disappeared."""
    if elapsed_s <= 0 or after < before:
        return None
    return round((after - before) / elapsed_s)
