"""Time limits of transfers: a deadline that arriving bytes extend, and the time allowed for a size.

    request sent ─▶ deadline = now + timeout ─▶ bytes arrive ─▶ each byte buys 1/LEAST_BYTES_PER_S, up to now + timeout

With a fixed deadline for a whole reply, a slow link never delivers a large one. The reply is cut, requested again, and
cut again, and the follower never catches up. So arriving bytes count as progress. They buy time by their number, not by
their arrival: a peer that sends one byte each second would otherwise hold a connection forever. At the least rate a
message of a limited size also ends in a limited time.

`time_for` is for the other direction. The sender does not see its bytes arrive, so a large message gets the time that
it takes on the slowest supported link (`core.slow_link`).
"""

from math import inf
from typing import Final

from msgspec import Struct

from consensus.core.slow_link import slow_link_ms

LEAST_BYTES_PER_S: Final = 4 * 1024
"""Least rate of arriving bytes; a slower message is abandoned."""


def time_for(size_bytes: int) -> float:
    """Return the seconds that a message of this size may take, beyond the timeout of a small one."""
    return slow_link_ms(size_bytes) / 1000


class TransferTime(Struct):
    """The time that arriving bytes have bought, on one connection or for one message."""

    timeout_s: float
    until_s: float = -inf
    """No transfer is late before this time."""

    def arrived(self, count: int, now_s: float, due_s: float) -> None:
        """Count bytes that arrive for the message that is due at `due_s` without them."""
        left_s = max(0.0, min(self.timeout_s, max(due_s, self.until_s) - now_s))
        self.until_s = now_s + min(self.timeout_s, left_s + count / LEAST_BYTES_PER_S)

    def completed(self, now_s: float) -> None:
        """Allow the full timeout for the next message of the connection, which has waited for this message."""
        self.until_s = now_s + self.timeout_s
