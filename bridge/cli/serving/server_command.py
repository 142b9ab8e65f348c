"""The parts that `kraft serve`, `zmq-raft serve` and `connect` share: a server, until a signal stops it.

    run_server ──▶ trio.run(serve) ──▶ the end of the command: its reasons, Ctrl-C, or exit code 0
                       └── on_signals: SIGINT and SIGTERM (also for SIGHUP) stop the server

`garlicfarm run` has a log instead of printed lines, and ends in other ways. It shares only the deadline and the bounds
of memory.
"""

import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain, repeat

import trio

from bridge.cli.failure import INTERRUPTED, fail, reasons
from bridge.cli.printing import echo, written_apart
from bridge.cli.serving.process_memory import bound_malloc, exclude_modules_from_collections
from bridge.cli.serving.stop_deadline import StopDeadline
from consensus import HaltedError
from consensus.storage import StorageError


def run_server(serve: Callable[[StopDeadline], Awaitable[None]], *errors: type[Exception]) -> None:
    """Run a server, and end the command with the reasons if it fails with one of these errors."""
    bound_malloc()
    ends, interrupted = list[str](), False
    known: tuple[type[Exception], ...] = (*errors, StorageError, HaltedError, OSError)
    deadline = StopDeadline(partial(echo, err=True))
    try:
        with written_apart():
            try:
                exclude_modules_from_collections()
                trio.run(serve, deadline)
            finally:
                deadline.within(None)
    except* known as group:
        ends.extend(reasons(group))
    except* KeyboardInterrupt:
        interrupted = True  # Ctrl-C before the server handles signals.
    if ends:
        fail("; ".join(dict.fromkeys(ends)))
    if interrupted:
        sys.exit(INTERRUPTED)


async def on_signals(
    *actions: Callable[[], object], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Call the first action at the first signal that stops a process, and so on; the last one at all later signals."""
    next_actions = chain(actions, repeat(actions[-1]))
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            next(next_actions)()
