"""Tells the service manager how this node is: systemd's notification protocol (sd_notify), without its library.

    READY=1       the node is a member, its Raft port listens and its control endpoint answers
    WATCHDOG=1    three times within the period that the unit allows, for as long as the node's loop runs
    STATUS=…      a line for `systemctl status`, with each of these
    STOPPING=1    the node hands over what it does for the farm, and ends

Each message is one datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing is sent.

The watchdog is a task of the node's own loop, not a thread: every decision of the node is made in this loop, by
functions that do not wait, so a loop that comes round is progress, and one that does not is a fault that a restart
ends. A thread would go on saying that all is well. What the loop waits for counts as progress: a hanging disk, a router
without an answer, a lost quorum. A restart would mend none of them, and would take a voter away.

The manager never stops the node from working: a datagram that it does not take is dropped, and told once in the log.
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

import trio

LOG = logging.getLogger(__name__)
PINGS_IN_A_PERIOD: Final = 3
PERIOD_LEAST_S: Final = 0.01
ADDRESS_LIMIT_BYTES: Final = 107


class ServiceManager:
    """The process that started this node, if it asked to be told."""

    def __init__(self, environment: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        """`pid` is that of this process; the watchdog may be meant for another one."""
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        for_this = environment.get("WATCHDOG_PID") in {None, str(os.getpid() if pid is None else pid)}
        self._period_s = _period_s(environment.get("WATCHDOG_USEC", "")) if for_this else None
        self._is_refused = False

    @property
    def watchdog_period_s(self) -> float | None:
        """Within this time the manager wants to hear of the node; None where it does not watch."""
        return None if self._address is None else self._period_s

    def ready(self, status: str = "") -> None:
        """The node serves."""
        self._tell("READY=1", status)

    def stopping(self, status: str = "") -> None:
        """The node ends in order."""
        self._tell("STOPPING=1", status)

    async def run(self) -> None:
        """Ping until cancelled, while the loop of this task runs."""
        period_s = self.watchdog_period_s
        if period_s is None:
            return
        while True:
            self._tell("WATCHDOG=1")
            await trio.sleep(period_s / PINGS_IN_A_PERIOD)

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        said = [lines[0], *(f"STATUS={' '.join(line.split())}" for line in lines[1:] if line)]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outgoing:
                outgoing.settimeout(0)
                outgoing.sendto("\n".join(said).encode("utf-8", "replace"), self._address)
        except OSError as error:
            if not self._is_refused:
                LOG.warning("the service manager does not take %s: %s", lines[0], error.strerror or error)
            self._is_refused = True


def _address(told: str) -> str | None:
    """A path, or a name of Linux' abstract space, which begins with a zero byte in place of the `@`."""
    if not told.startswith(("/", "@")) or len(os.fsencode(told)) > ADDRESS_LIMIT_BYTES:
        return None
    return "\0" + told[1:] if told.startswith("@") else told


def _period_s(told: str) -> float | None:
    if not told.isascii() or not told.isdigit():
        return None
    period_s = int(told) / 1_000_000
    return period_s if period_s >= PERIOD_LEAST_S else None
