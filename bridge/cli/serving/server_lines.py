"""The lines of `kraft serve` and `zmq-raft serve`: one line for each event, as text or as JSON.

A separate module, because `garlicfarm connect` also runs as a server, but does not print these lines and must not load
Raft.
"""

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from bridge.cli.failure import fail
from bridge.cli.printing import echo, print_json_line
from consensus import DiskFull, Role


class Lines:
    """Prints the events of a server, a line for each."""

    def __init__(self, output: Callable[..., Struct], noun: str, server_id: object, *, as_json: bool) -> None:
        """Set the type of a JSON line: its first fields are the event, the server's id, the time and the text."""
        self._output = output
        self._noun = noun
        self._server_id = server_id
        self._as_json = as_json

    def report(self, event: str, text: str, *, alarm: bool = False, **facts: Any) -> None:
        """Print a line as text or as JSON."""
        if self._as_json:
            print_json_line(self._output(event, self._server_id, time.time_ns() // 1_000_000, text, **facts))
        else:
            echo(text, err=alarm)

    def role_text(self, role: Role, period: str, leader_id: object) -> str:
        """Describe the role of the server in one term or epoch."""
        match role, leader_id:
            case Role.LEADER, _:
                return f"{self._noun} {self._server_id} leads in {period}"
            case Role.CANDIDATE, _:
                return f"{self._noun} {self._server_id} is a candidate in {period}"
            case Role.FOLLOWER, None:
                return f"no leader is known in {period}"
            case _:
                return f"{self._noun} {leader_id} leads in {period}"

    def disk(self, notice: DiskFull) -> None:
        """Report that the disk is full, or that it has space again."""
        if notice.full:
            text = "the disk is full: the server does not accept entries until there is space; delete some files"
            self.report("disk-full", text, alarm=True)
        else:
            self.report("disk-writable", "the disk has space again")


def check_network(warning: str, remedy: str, *, allow_network: bool) -> None:
    """End the command with `warning` and `remedy`; with `allow_network`, only print the warning.

    The caller has found that others can reach the server without authentication.
    """
    if not allow_network:
        fail(f"{warning}\n{remedy}")
    echo(f"Warning: {warning}", err=True)
