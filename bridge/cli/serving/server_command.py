"""The parts that `kraft serve` and `zmq-raft serve` share: a server of another protocol, until a signal stops it.

    run_server ──▶ trio.run(serve) ──▶ the end of the command: its reasons, Ctrl-C, or exit code 0
                       └── on_signals: SIGINT, SIGTERM and SIGHUP stop the server
    Lines      ──▶ one line for each event, as text or as JSON

`garlicfarm run` has a log instead of these lines, and a node ends in other ways, so it shares only the deadline.
"""

import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain, repeat
from typing import Any

import trio
from msgspec import Struct

from bridge.cli.failure import INTERRUPTED, fail, reasons
from bridge.cli.printing import echo, print_json_line, written_apart
from bridge.cli.serving.stop_deadline import StopDeadline
from consensus import DiskFull, HaltedError
from consensus.storage import StorageError


class Lines:
    """Prints the events of a server, a line for each."""

    def __init__(self, output: Callable[..., Struct], server_id: object, *, as_json: bool) -> None:
        """Set the constructor of the JSON: its first arguments are the event, the id, the time and the text."""
        self._output = output
        self._server_id = server_id
        self._as_json = as_json

    def report(self, event: str, text: str, *, alarm: bool = False, **facts: Any) -> None:
        """Print a line as text or as JSON."""
        if self._as_json:
            print_json_line(self._output(event, self._server_id, time.time_ns() // 1_000_000, text, **facts))
        else:
            echo(text, err=alarm)

    def disk(self, notice: DiskFull) -> None:
        """Report that the disk is full, or that it has space again."""
        if notice.full:
            text = "the disk is full: the server does not accept entries until space is free. Free some"
            self.report("disk-full", text, alarm=True)
        else:
            self.report("disk-writable", "the disk has space again")


def check_network(warning: str, remedy: str, *, allow_network: bool) -> None:
    """Refuse a server that others can reach without authentication; print only a warning if the network is allowed."""
    if not allow_network:
        fail(f"{warning}\n{remedy}")
    echo(f"Warning: {warning}", err=True)


def run_server(serve: Callable[[StopDeadline], Awaitable[None]], *errors: type[Exception]) -> None:
    """Run a server, and end the command with the reasons if it fails with one of these errors."""
    ends, interrupted = list[str](), False
    known: tuple[type[Exception], ...] = (*errors, StorageError, HaltedError, OSError)
    deadline = StopDeadline(partial(echo, err=True))
    try:
        with written_apart():
            try:
                trio.run(serve, deadline)
            finally:
                deadline.within(None)
    except* known as group:
        ends.extend(reasons(group))
    except* KeyboardInterrupt:
        interrupted = True  # Before the server could receive signals.
    if ends:
        fail("; ".join(dict.fromkeys(ends)))
    if interrupted:
        sys.exit(INTERRUPTED)


async def on_signals(
    *actions: Callable[[], object], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Call the first action at the first signal that stops a process, and so on; the last one at all later signals."""
    next_actions = chain(actions, repeat(actions[-1]))
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            next(next_actions)()
