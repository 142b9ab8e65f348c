"""The numbers of one client's requests, in one session after the other (`table`).

    take ─▶ session open and used recently? else open one ─▶ room in the window? else wait ─▶ number ─▶ … ─▶ answered

A session without requests for a quarter of its expiry is not used again: it could expire while a request is under way.
A number is less than one window above the oldest unanswered number, because the table keeps only one window of numbers.
"""

from collections.abc import Awaitable, Callable

import trio

from consensus.core.model import Index
from consensus.sessions.table import DEFAULT_LIMITS, RequestId, SessionLimits

OpenSession = Callable[[], Awaitable[Index | None]]
"""Returns a recent index of the log, as the start of this client's session; None if unavailable."""


class RequestNumbers:
    """Request numbers; `name` is unique to this run of the client, `limits` equal the limits of the servers' table."""

    def __init__(self, name: str, open_session: OpenSession, limits: SessionLimits = DEFAULT_LIMITS) -> None:
        self._name = name
        self._open_session = open_session
        self._window = limits.window
        self.silence_max_s = limits.expiry_ms / 4000
        self._session_start: Index | None = None
        self._sequence = 0
        self._used_s = 0.0
        self._unanswered: set[RequestId] = set()
        self._changed = trio.Event()
        self._beginning = trio.Lock()

    async def take(self) -> RequestId | None:
        """Wait for room in the window, and return the next number; return None if no session could be opened."""
        while True:
            async with self._beginning:
                if not await self._session():
                    return None
            start = self._session_start
            under_way = (request.sequence for request in self._unanswered if request.session_start == start)
            oldest = min(under_way, default=self._sequence + 1)
            if start is not None and self._sequence + 1 - oldest < self._window:
                self._sequence += 1
                request = RequestId(self._name, start, self._sequence)
                self._unanswered.add(request)
                return request
            await self._changed.wait()

    def release(self, request: RequestId) -> None:
        """Release this number: it is not sent any more."""
        self._unanswered.discard(request)
        self._used_s = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()

    def session_expired(self, request: RequestId) -> None:
        """Record that the session of this request has expired on the servers, with all its requests under way."""
        if self._session_start == request.session_start:
            self._session_start = None

    async def _session(self) -> bool:
        silent_s = trio.current_time() - self._used_s
        in_use = any(request.session_start == self._session_start for request in self._unanswered)
        if self._session_start is not None and (in_use or silent_s < self.silence_max_s):
            return True
        session_start = await self._open_session()
        if session_start is None:
            return False
        self._session_start, self._sequence, self._used_s = session_start, 0, trio.current_time()
        return True
