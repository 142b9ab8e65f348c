"""The clock of a server's shell: trio's, so that a test's clock governs the core, its timers and its nonces alike."""

import trio

from consensus.core.model import Milliseconds


def now_ms() -> Milliseconds:
    """Monotonic time; what cores are stepped with."""
    return round(trio.current_time() * 1000)
