"""The detection of a reset of this process to an earlier moment: a virtual machine resumed from an old snapshot.

    before each datagram   wall clock - monotonic clock, boot clock - monotonic clock     a step of one of them
    once a second          /proc/sys/kernel/random/boot_id                                another boot

Such a machine returns to an old counter under the old salt, and would seal other datagrams under used nonces
(docs/reference/gossip-protocol.md, "Sealing"). So the node calls `resumed` before each datagram. If it returns True,
the node draws a new salt first (`fresh_secrets`).

A resumed guest's monotonic clock continues from the snapshot, while the hypervisor or a time service sets its wall
clock to the present. So the difference between the two clocks steps. Time services correct clocks as well; such a step
only costs a new salt, so the threshold can be low. `CLOCK_BOOTTIME` includes the time of a suspension. A changed boot
id shows that the process was restored after a restart of its machine.

A restored machine has the restored random source until its kernel mixes in new entropy. So the clocks and the boot id
are hashed into the new salt. The kernel does not show the generation id of a resumed guest (vmgenid) to programs. So if
all clocks of a guest continue from the snapshot, the resumption is not detected until they are set.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
STEP_NS: Final = 500_000_000
"""The smallest step that counts: more than a slewing time service corrects between two datagrams."""
BOOT_ID_EVERY_NS: Final = 1_000_000_000
"""The period of reading the boot id, which takes much longer than reading the clocks."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The sources of the readings; tests replace them. All clocks are in nanoseconds."""

    wall: Callable[[], int] = time.time_ns
    monotonic: Callable[[], int] = time.monotonic_ns
    boot: Callable[[], int] | None = None
    """A clock that includes suspended time; None if the system lacks it."""
    boot_id: Callable[[], bytes] = bytes
    """Returns the boot id; empty if the system does not provide one."""


def _read_boot_id() -> bytes:
    try:
        return BOOT_ID_PATH.read_bytes().strip()[:64]
    except OSError:
        return b""


def system_clocks() -> Clocks:
    """Return this machine's clocks."""
    number = getattr(time, "CLOCK_BOOTTIME", None)
    boot = None if number is None else partial(time.clock_gettime_ns, number)
    return Clocks(boot=boot, boot_id=_read_boot_id)


class ResumptionWatch:
    """The check before each datagram."""

    def __init__(self, clocks: Clocks | None = None) -> None:
        self._clocks = clocks or system_clocks()
        self._wall, self._monotonic, self._boot = self._clocks.wall, self._clocks.monotonic, self._clocks.boot
        now = self._monotonic()
        self._wall_ahead = self._wall() - now
        self._boot_ahead = 0 if self._boot is None else self._boot() - now
        self._boot_id = self._clocks.boot_id()
        self._last_ns, self._boot_id_at = now, now + BOOT_ID_EVERY_NS

    def resumed(self) -> bool:
        """Return True if the clocks or the boot id contradict the last call: once for each contradiction."""
        now = self._monotonic()
        wall_ahead = self._wall() - now
        boot_ahead = 0 if self._boot is None else self._boot() - now
        stepped = (
            now < self._last_ns
            or abs(wall_ahead - self._wall_ahead) >= STEP_NS
            or abs(boot_ahead - self._boot_ahead) >= STEP_NS
        )
        # Compare with the last reading, so that small corrections by a time service do not add up.
        self._last_ns, self._wall_ahead, self._boot_ahead = now, wall_ahead, boot_ahead
        if now < self._boot_id_at and not stepped:
            return False
        self._boot_id_at = now + BOOT_ID_EVERY_NS
        boot_id, before = self._clocks.boot_id(), self._boot_id
        self._boot_id = boot_id
        return stepped or boot_id != before

    def fresh_secrets(self, size: int) -> bytes:
        """Return `size` secret bytes.

        Even with a restored random source they differ from earlier ones, because of the clocks.
        """
        clocks = self._wall(), self._monotonic(), 0 if self._boot is None else self._boot()
        seed = b"%d %d %d " % clocks + self._boot_id + os.urandom(32)
        blocks = (
            sha256(b"garlic farm, gossip 1: secrets %d " % block + seed).digest() for block in range(size // 32 + 1)
        )
        return b"".join(blocks)[:size]
