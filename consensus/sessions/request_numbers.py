"""The numbers of one client's requests, in one session after the other (`core/sessions.py`).

    take ─▶ session open and used lately? else open one ─▶ room in the window? else wait ─▶ number ─▶ … ─▶ answered

A session that was silent for a quarter of its expiry is not used again: it could be forgotten while a request is under
way. No number is given out that lies a whole window above the oldest unanswered one, for the table remembers no more.
"""

from collections.abc import Awaitable, Callable

import trio

from consensus.core.model import Index
from consensus.sessions.table import DEFAULT_LIMITS, RequestId, SessionLimits

OpenSession = Callable[[], Awaitable[Index | None]]
"""An index of the log that this client has seen by now, for its session's birth; None if that cannot be had."""


class RequestNumbers:
    """`name` is unique to this life of the client; `limits` are those of the servers' table."""

    def __init__(self, name: str, open_session: OpenSession, limits: SessionLimits = DEFAULT_LIMITS) -> None:
        self._name = name
        self._open_session = open_session
        self._window = limits.window
        self.silence_max_s = limits.expiry_ms / 4000
        self._born: Index | None = None
        self._sequence = 0
        self._used_s = 0.0
        self._unanswered: set[RequestId] = set()
        self._changed = trio.Event()
        self._beginning = trio.Lock()

    async def take(self) -> RequestId | None:
        """The next number, when there is room for it; None if no session could be opened."""
        while True:
            async with self._beginning:
                if not await self._session():
                    return None
            under_way = (request.sequence for request in self._unanswered if request.born == self._born)
            oldest = min(under_way, default=self._sequence + 1)
            if self._born is not None and self._sequence + 1 - oldest < self._window:
                self._sequence += 1
                request = RequestId(self._name, self._born, self._sequence)
                self._unanswered.add(request)
                return request
            await self._changed.wait()

    def answered(self, request: RequestId) -> None:
        """Nothing more is sent under this number."""
        self._unanswered.discard(request)
        self._used_s = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()

    def forgotten(self, request: RequestId) -> None:
        """The servers have forgotten its session. What else is under way in it ends likewise."""
        if self._born == request.born:
            self._born = None

    async def _session(self) -> bool:
        silent_s = trio.current_time() - self._used_s
        in_use = any(request.born == self._born for request in self._unanswered)
        if self._born is not None and (in_use or silent_s < self.silence_max_s):
            return True
        born = await self._open_session()
        if born is None:
            return False
        self._born, self._sequence, self._used_s = born, 0, trio.current_time()
        return True
