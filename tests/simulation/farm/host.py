"""One machine of the simulation: its clock, its addresses, its disk, its random source, and the process on it.

    current_host    the machine whose task runs now; tasks inherit it, so the machine of each interposed call is known

The wall clock is `epoch + time * (1 + drift) + offset`. `jump` and `drift_by` change it while the machine runs. The
monotonic clock counts from the last boot and does not drift, because all machines share trio's timers.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Protocol

import trio

EPOCH_S: Final = 1_800_000_000
"""The Unix time at the start of every world: January 2027."""
BOOTED_S: Final = 100.0
"""The monotonic clock of a machine at its boot."""


class HostDisk(Protocol):
    """The disk of a machine: a real directory, whose durable content is known."""

    root: Path
    sync_count: int
    """Number of syncs so far."""
    sync_delay_s: float
    """Duration of a sync."""
    hang: bool
    """True while a sync does not return."""


class PlainDisk:
    """A directory with the same duration of each sync."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sync_count = 0
        self.sync_delay_s = 0.0
        self.hang = False


@dataclass(eq=False)
class Run:
    """One process of a node, from its start to its end."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    workers: trio.Nursery | None = None
    """The threads of its disk."""
    signals: list[trio.MemorySendChannel[int]] = field(default_factory=list)
    """Receivers of its signals."""
    failure: str | None = None
    """The reason of an end without a signal."""
    errors: BaseException | None = None
    """The exceptions of that end."""
    is_killed: bool = False
    level: int | None = None
    """The feature level that its version supports; None: the level of the present version (`versions.py`)."""
    ends_at_s: float | None = None
    """The deadline of the process, which it sets itself."""


class Host:
    """A machine. `time_s` returns the time of the world."""

    def __init__(self, name: str, seed: int, addresses: list[str], disk: HostDisk, time_s: Callable[[], float]) -> None:
        self.name = name
        self.addresses = addresses
        self.public: str | None = None
        """The address of the NAT in front of the machine, which forwards each port to it; None without a NAT."""
        self.disk = disk
        self.random = Random(f"{seed}/{name}")
        self.number = int(name.rpartition("-")[2]) if name[-1].isdigit() else 0
        self.is_powered = True
        self.is_paused = False
        self.starts = 0
        self.boots = 1
        self.booted_s = 0.0
        self.run: Run | None = None
        self.level: int | None = None
        """The feature level of the installed version; None: the level of the present version."""
        self._time_s = time_s
        self._offset_s = 0.0
        self._drift = 0.0

    @property
    def directory(self) -> Path:
        return self.disk.root

    @property
    def disk_hangs(self) -> bool:
        """True while a sync of its process does not return; a killed process does not wait for it."""
        return self.disk.hang and (self.run is None or not self.run.is_killed)

    @property
    def configuration_file(self) -> Path:
        """The settings of its node, next to the state directory: an operator's file, not the node's."""
        return self.disk.root.with_suffix(".toml")

    @property
    def process_id(self) -> int:
        return 1000 * self.number + self.starts + 2

    @property
    def wall_s(self) -> float:
        """The wall clock, in seconds since the epoch."""
        return EPOCH_S + self._time_s() * (1 + self._drift) + self._offset_s

    @property
    def monotonic_s(self) -> float:
        """The time since the boot of the machine."""
        return BOOTED_S + self._time_s() - self.booted_s

    @property
    def boot_id(self) -> bytes:
        """The identity of the boot, as /proc/sys/kernel/random/boot_id has it."""
        return f"{self.name}-{self.boots}".encode()

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._offset_s += seconds

    def drift_by(self, drift: float) -> None:
        """Let the wall clock run faster by this share from now on; it does not jump."""
        before_s = self.wall_s
        self._drift = drift
        self._offset_s += before_s - self.wall_s

    def boot(self) -> None:
        """Start the machine after a power cut."""
        self.boots += 1
        self.booted_s = self._time_s()
        self.is_powered = True


current_host: ContextVar[Host | None] = ContextVar("current_host", default=None)
current_service: ContextVar[str] = ContextVar("current_service", default="")
"""Name of the running process, if it is not the node but, for example, a router; empty for the node."""
