"""Overlapping requests of one connection: each begins when it arrives, and responses leave in the order of arrival.

    OffsetCommit ─▶ begins, waits ───────────────▶ reply ─▶ sent
    Heartbeat    ─▶ begins, reply ─▶ waits for its turn ───▶ sent immediately after
    Fetch        ─▶ waits until all earlier replies are sent    (the listener: it does not overlap)

A broker of Kafka reads the next request of a connection after the reply to the previous one, and serves an OffsetCommit
within milliseconds. Here commits of a group may share one entry. So a commit may wait for a second, or for a tenth of a
session shorter than 10 s. Without overlapping, ten commits that a client sends without waiting would be held in
sequence and could not share an entry. In a session of 10 s or less, later heartbeats would get their replies after the
end of the session.

*Order.* The next request begins when the service of the previous one has run until its first wait. So a service that
records a request before it waits records all requests in order. Responses are also sent in order, because clients match
them by order.

The number of overlapping requests is limited (`MAX_OVERLAPPING`). At the limit, the listener does not read from the
connection until the oldest request has its reply.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from msgspec import Struct

MAX_OVERLAPPING: Final = 64
"""Limit of the overlapping requests of one connection. A client that commits each second has one or two."""


class _Request(Struct):
    size_bytes: int
    is_answered: bool = False
    response: bytes | None = None


class LookAhead:
    """The overlapping requests of one connection, in order."""

    def __init__(self, nursery: trio.Nursery, send: Callable[[bytes | None, int], Awaitable[None]]) -> None:
        """Make a queue; `send` takes a response, or None for a request without one, and the size of its request.

        An exception of `send` or of a reply ends the connection: the nursery is canceled, and `failure` has the
        exception.
        """
        self._nursery = nursery
        self._send = send
        self._requests: deque[_Request] = deque()
        self._changed = trio.Event()
        self._sends = False
        self.unanswered_bytes = 0
        """Size of the unanswered requests."""
        self.failure: Exception | None = None

    async def begin(self, answer: Callable[[], Awaitable[bytes | None]], size_bytes: int) -> None:
        """Begin one request; return when its service waits or has finished."""
        await self._until(MAX_OVERLAPPING - 1)
        request = _Request(size_bytes)
        self._requests.append(request)
        self.unanswered_bytes += size_bytes
        task_started = trio.Event()
        self._nursery.start_soon(self._run, request, answer, task_started)
        await task_started.wait()

    async def drain(self) -> None:
        """Return when every response is sent."""
        await self._until(0)

    async def _until(self, most: int) -> None:
        while len(self._requests) > most:
            await self._changed.wait()

    async def _run(
        self, request: _Request, answer: Callable[[], Awaitable[bytes | None]], task_started: trio.Event
    ) -> None:
        # `begin` continues only after this task has reached its first wait.
        task_started.set()
        try:
            request.response = await answer()
            request.is_answered = True
            await self._send_answered()
        except Exception as error:  # noqa: BLE001 - the connection ends, and raises it again
            self.failure = self.failure or error
            self._nursery.cancel_scope.cancel()

    async def _send_answered(self) -> None:
        if self._sends:
            return
        self._sends = True
        while self._requests and self._requests[0].is_answered:
            first = self._requests[0]
            await self._send(first.response, first.size_bytes)
            self._requests.popleft()
            self.unanswered_bytes -= first.size_bytes
            self._changed.set()
            self._changed = trio.Event()
        self._sends = False
