"""A limit on the processor time that all clients without a proven identity may use together.

    request ──▶ cost of its entries, in processor time ──▶ within the quota: handled
                                                       ├─▶ beyond it at the moment: busy, try again
                                                       └─▶ beyond the largest burst: connection closed

Every applied entry costs processor time on every server: each server verifies the signature at the end of the entry,
regardless of the author. Without a quota, a few megabytes of false signatures keep all servers busy until the leader
loses its leadership. A limit in bytes does not help, since such an entry is small. Members that the `PeerDirectory`
knows are exempt: the farm needs their entries, and their keys are known.
"""

from collections.abc import Callable

from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError

SHARE = 0.2
"""The share of one processor in the long run; the rest is for elections and heartbeats."""
SAVED_US = 100_000
"""The largest burst: far below the shortest election timeout, since nothing else runs during it."""


class ClientQuota:
    """The quota of one server. `cost_us` returns the cost of an entry on each server, in microseconds."""

    def __init__(self, cost_us: Callable[[bytes], int] = lambda _: 0) -> None:
        self._cost_us = cost_us
        self._left_us = float(SAVED_US)
        self._filled_s: float | None = None

    def take(self, commands: tuple[bytes, ...], now_s: float) -> bool:
        """Return True if these entries may be handled now. Raise `GarlicFarmError` if they exceed the largest burst."""
        needed_us = sum(map(self._cost_us, commands))
        if needed_us > SAVED_US:
            raise GarlicFarmError(
                Fault.TOO_LARGE,
                f"a client's request of {len(commands)} entries would keep each server busy for {needed_us // 1000}"
                f" ms; without a proven identity {SAVED_US // 1000} ms are allowed: send fewer entries in one request",
            )
        passed_s = 0.0 if self._filled_s is None else max(0.0, now_s - self._filled_s)
        self._filled_s = now_s
        self._left_us = min(SAVED_US, self._left_us + passed_s * SHARE * 1_000_000)
        if needed_us > self._left_us:
            return False
        self._left_us -= needed_us
        return True
