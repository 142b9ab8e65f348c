"""The end of the terminal (SIGHUP) of a command: a node, another server, a client, a run of the pipeline.

    terminal ends ──▶ SIGHUP ──▶ SIGTERM ──▶ the command stops in order
                         └── ignored by `nohup`: the command continues

Without this, SIGHUP would kill the process. A leader could not transfer its leadership, and the other servers would
have to detect the failure. A receiver of trio would replace the `nohup` of the process.

The shell and the kernel may each send SIGHUP. Only the first one counts, because a second SIGTERM shortens the stop.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_hang_up() -> Iterator[None]:
    """Handle SIGHUP in the block as SIGTERM, unless the process ignores it. Only the main thread may call this."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGHUP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
