"""What the host and the process really do: processor, memory, network, and how late the node's own loop runs.

`HostSampler.sample` reads the operating system's counters; rates are over the time since the last sample, and unknown
(`None`) until there are two. `LoopLag` is a task that asks to be woken at fixed moments and notes how late it was: what
delays it delays heartbeats and probes as well, so it is the one figure that says whether this node keeps up. Figures
of a window are kept, not averages alone: an average hides the stalls that cause elections.

The moments lie on a fixed grid, and one that passes during a stall counts with its own lateness. Counting from one
waking to the next would see a stall of a second once, like one of a millisecond, and a process that stands still for
half of the time would have no lag to speak of. So the mean is how long a job waits that comes at a random moment.

What cannot be read is unknown, and never ends the node: without a free descriptor not even /proc can be opened.
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

LAG_INTERVAL_S: Final = 0.5
"""Each measurement wakes the node: at 0.1 s these were a third of all that an idle follower had."""
LAG_WINDOW: Final = 120
"""Measurements kept: one minute."""

Figure = TypeVar("Figure")
_LOOPBACK: Final = frozenset({"lo", "lo0"})
_INTERFACES: Final = Path("/sys/class/net")
_STACKED: Final = ("br", "bond", "docker", "gif", "stf", "tap", "team", "tun", "utun", "veth", "virbr", "vlan", "wg")
"""Beginnings of names of interfaces whose bytes pass another one as well, for systems that have no /sys."""


class LoopLag:
    """Measures the lag of the trio loop that runs `run`."""

    def __init__(self, interval_s: float = LAG_INTERVAL_S, window: int = LAG_WINDOW) -> None:
        self._interval_s = interval_s
        self._lags_ms: deque[float] = deque(maxlen=window)

    async def run(self) -> None:
        """Measure until cancelled."""
        window_s = self._interval_s * (self._lags_ms.maxlen or 1)
        due_s = trio.current_time() + self._interval_s
        while True:
            await trio.sleep_until(due_s)
            now_s = trio.current_time()
            # A machine that slept for a night woke late by far more moments than are kept.
            due_s = max(due_s, now_s - window_s)
            while due_s <= now_s:
                self._lags_ms.append((now_s - due_s) * 1000)
                due_s += self._interval_s

    def mean_ms(self) -> float | None:
        """How late the loop woke over the window, on average; None before the first measurement."""
        return sum(self._lags_ms) / len(self._lags_ms) if self._lags_ms else None


class HostSampler:
    """Reads the host's counters; one per process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        # The wall clock is asked once: were it set later, an uptime computed from it would jump.
        self._age_at_start_s = max(0.0, time.time() - self._process.create_time())
        self._started_s = time.monotonic()
        _told(lambda: psutil.cpu_percent(interval=None))
        self._network_bytes = _told(_network_bytes)
        self._sampled_s = self._started_s

    @property
    def process_uptime_ms(self) -> int:
        """How long this process has run."""
        return round((self._age_at_start_s + time.monotonic() - self._started_s) * 1000)

    def sample(self) -> RouterStatus:
        """Return the figures that the host measures since the last sample; None for one that it cannot read now.

        Percentages are of the whole host. The bandwidth is in + out, each byte once, without the loopback interface.
        """
        now_s = time.monotonic()
        network_bytes = _told(_network_bytes)
        rate = None
        if network_bytes is not None and self._network_bytes is not None:
            rate = rate_per_s(self._network_bytes, network_bytes, now_s - self._sampled_s)
        self._network_bytes, self._sampled_s = network_bytes, now_s
        return RouterStatus(
            attached=False,
            uptime_ms=self.process_uptime_ms,
            current_bandwidth_bytes_per_s=rate,
            cpu_percent=_told(lambda: psutil.cpu_percent(interval=None)),
            memory_percent=_told(lambda: psutil.virtual_memory().percent),
        )


def _told(figure: Callable[[], Figure]) -> Figure | None:
    """A figure, or None where it cannot be read: without a free descriptor /proc cannot be opened, for one."""
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

    A byte of a container passes a veth, a bridge and the network card; one of a VPN a tun and the card. So the cards
    count, which have a device in Linux. A container has none: there all count that are not stacked on another one.
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
    """Return the same; it is found again only if an interface comes or goes."""
    return counted_interfaces(names)


def _is_stacked(interface: Path) -> bool:
    """Return True for a tun or tap, for a member of a bridge, and for what is made on top of another interface."""
    is_part = (interface / "master").exists() or (interface / "tun_flags").exists()
    return is_part or (any(interface.glob("lower_*")) and not (interface / "bridge").exists())


def rate_per_s(before: int, after: int, elapsed_s: float) -> int | None:
    """Rate of a counter; None where none can be told: no time has passed, or an interface took its count away."""
    if elapsed_s <= 0 or after < before:
        return None
    return round((after - before) / elapsed_s)
