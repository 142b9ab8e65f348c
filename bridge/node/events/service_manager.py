"""Tells the service manager how this node is: systemd's notification protocol (sd_notify), without its library.

    READY=1       the node is a member, its Raft port listens and its control endpoint answers
    WATCHDOG=1    at least three times within the period that the unit allows, while the node makes progress
    STATUS=…      the verdict, for `systemctl status`, at each change
    STOPPING=1    the node hands over what it does for the farm, and ends

Each message is one datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing is sent.

Progress is what /healthz means by it (`bridge.node.control.verdict_watch`): the node's own loop comes round, and it
applies what is committed. The watchdog is a task of that loop, not a thread, which would go on saying that all is well.
What the node waits for is no lack of progress: a hanging disk, a router without an answer, a lost quorum. A restart
would mend none of them, and would take a voter away.

The manager never stops the node from working: a datagram that it does not take is dropped, and told once in the log.
"""

import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Final

import trio

LOG = logging.getLogger(__name__)
PINGS_IN_A_PERIOD: Final = 3
LOOK_S: Final = 5.0
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

    def ready(self) -> None:
        """The node serves."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """The node ends in order."""
        self._tell("STOPPING=1")

    async def run(self, stuck: Callable[[], Collection[str]], status: Callable[[], str]) -> None:
        """Tell until cancelled: the status, and that the node is alive unless `stuck` gives a reason why it is not."""
        if self._address is None:
            return
        period_s, told = self.watchdog_period_s, ""
        look_s = LOOK_S if period_s is None else min(LOOK_S, period_s / PINGS_IN_A_PERIOD)
        while True:
            text = " ".join(status().split())
            lines = [f"STATUS={text}"] * (text != told) + ["WATCHDOG=1"] * (period_s is not None and not stuck())
            if lines:
                self._tell(*lines)
            told = text
            await trio.sleep(look_s)

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outgoing:
                outgoing.settimeout(0)
                outgoing.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
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
