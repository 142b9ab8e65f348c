"""Reports the state of a process to the service manager, by systemd's notification protocol without its library.

    READY=1       the node is a member, its Raft port listens and its control endpoint replies
    WATCHDOG=1    about three times within the unit's period, or every 5 s, while the node makes progress
    STATUS=…      the verdict, for `systemctl status`, within 5 s after a change
    STOPPING=1    the node hands over its tasks for the farm, and ends

A datagram to the socket in NOTIFY_SOCKET has one or two of these lines. Without that variable nothing is sent.
`garlicfarm connect` sends READY and STATUS as well, and WATCHDOG while its loop runs.

Progress has the meaning of /healthz (`bridge.node.control.verdict_watch`): the node runs its checks, and applies
committed entries. The watchdog is a task of the node's loop, because a thread would report progress even if the loop
hangs. A full disk, a missing router or a lost quorum is not a lack of progress. A restart would not repair it, and
would stop a voter.

The manager never blocks the node: a refused datagram is dropped. Only the first one is logged.
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
    """The process that started this node, if it requested notifications."""

    def __init__(self, environment: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        """Read the environment. `pid` is this process; the variables may request the watchdog from another process."""
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        for_this = environment.get("WATCHDOG_PID") in {None, str(os.getpid() if pid is None else pid)}
        self._period_s = _period_s(environment.get("WATCHDOG_USEC", "")) if for_this else None
        self._is_refused = False

    @property
    def watchdog_period_s(self) -> float | None:
        """The watchdog's period in seconds; None without a watchdog."""
        return None if self._address is None else self._period_s

    def ready(self) -> None:
        """Report that the node serves."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the node begins to stop."""
        self._send("STOPPING=1")

    async def run(self, stuck: Callable[[], Collection[str]], status: Callable[[], str]) -> None:
        """Report the status until canceled, and with a watchdog also progress, unless `stuck` returns a reason."""
        if self._address is None:
            return
        period_s, sent = self.watchdog_period_s, ""
        look_s = LOOK_S if period_s is None else min(LOOK_S, period_s / PINGS_IN_A_PERIOD)
        while True:
            text = " ".join(status().split())
            lines = [f"STATUS={text}"] * (text != sent) + ["WATCHDOG=1"] * (period_s is not None and not stuck())
            if lines:
                self._send(*lines)
            sent = text
            await trio.sleep(look_s)

    def _send(self, *lines: str) -> None:
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


def _address(value: str) -> str | None:
    """Return the path, or a name in Linux's abstract namespace, with a zero byte in place of `@`."""
    if not value.startswith(("/", "@")) or len(os.fsencode(value)) > ADDRESS_LIMIT_BYTES:
        return None
    return "\0" + value[1:] if value.startswith("@") else value


def _period_s(value: str) -> float | None:
    if not value.isascii() or not value.isdigit():
        return None
    period_s = int(value) / 1_000_000
    return period_s if period_s >= PERIOD_LEAST_S else None
