"""The time that bytes take on the slowest supported link.

    up to SMALL_BYTES   no time beyond the timeout of the request
    each further byte   1 / SLOWEST_LINK_BYTES_PER_S

A sender cannot observe the arrival of its bytes, because the kernels and proxies on the way buffer megabytes. If the
timeout were the same for all sizes, a follower on a slow link would never receive a large entry. The entry would still
be in transfer when the leader sends it again. The leader allows this time for appends and for commands that wait for
commitment, and `net.transfer_time` allows it for large frames.
"""

from typing import Final

from consensus.core.model import Milliseconds

SLOWEST_LINK_BYTES_PER_S: Final = 32 * 1024
"""About a quarter of a link of 1 Mbit/s, which other connections may share."""
SMALL_BYTES: Final = 16 * 1024


def slow_link_ms(size_bytes: int) -> Milliseconds:
    """Return the time that a message of this size may take, beyond the timeout of a small one."""
    return max(0, size_bytes - SMALL_BYTES) * 1000 // SLOWEST_LINK_BYTES_PER_S
