"""The two SAM sessions of a client, used in turn; if one ends, the other remains.

    keep ─▶ open_session ─▶ ready ─▶ the bridge ends it ─▶ delay ─▶ open_session …        twice, concurrently

A router needs 12 to 20 seconds for a session. With two sessions, streams do not wait when one ends. After a restart of
the router, the client opens both again, with growing delays. After a failure of a leaf, the client uses the other
session, whose tunnels lead through other routers. Each farm has its own sessions. So two services that compare the
destinations of their clients cannot recognize a common client.
"""

from math import inf
from random import Random
from typing import Final

import trio
from msgspec import Struct

from bridge.connect.errors import NoSessionError
from bridge.connect.status import ClientCounter, ClientCounters, LastError
from bridge.core.connecting.leaves import PROVEN_FOR_S
from bridge.sam.connection import SamBridge, SamError
from bridge.sam.session import SamSession, open_session
from consensus.net import Backoff

SESSIONS: Final = 2
WAIT_LIMIT_S: Final = 90.0
"""Maximum wait for a session; longer than the timeout of one attempt (`bridge.sam.session.SESSION_TIMEOUT_S`)."""
FAILED_ATTEMPTS: Final = 3
"""A wait for a session raises the error after this many failed attempts."""
FAILURES_MAX: Final = 3
"""Number of failures in a row before a session is replaced."""
RETRY_FIRST_S: Final = 1.0
RETRY_LONGEST_S: Final = 10.0
RESTART_WAIT_S: Final = 30.0
"""Minimum wait before an error, if the bridge has made a session before: its router may be restarting."""
_STABLE_AFTER_S: Final = 30.0
"""If a session lasted this long, the next delay is the shortest again."""


class _ReadySession(Struct):
    scope: trio.CancelScope
    failures: int = 0


class SessionPool:
    """The ready sessions, and the tasks that open sessions."""

    def __init__(
        self,
        bridge: SamBridge,
        counters: ClientCounters,
        error: LastError,
        random: Random,
        *,
        hops: int | None = None,
    ) -> None:
        self._tunnels = {} if hops is None else {f"{way}.length": str(hops) for way in ("inbound", "outbound")}
        self.bridge = bridge
        self.last_error: str | None = None
        self.has_worked = False
        """True if the bridge has opened a stream to a leaf."""
        self._counters = counters
        self._error = error
        self._random = random
        self._steady_until_s = -inf
        self._ready: dict[SamSession, _ReadySession] = {}
        self._changed = trio.Event()

    @property
    def count(self) -> int:
        """The number of ready sessions."""
        return len(self._ready)

    def is_ready(self, session: SamSession) -> bool:
        """Return True if a session is open, and the pool has not replaced it."""
        return session in self._ready

    async def run(self) -> None:
        """Keep the sessions until canceled."""
        async with trio.open_nursery() as nursery:
            for _ in range(SESSIONS):
                nursery.start_soon(self._keep)

    async def session(self, timeout_s: float = WAIT_LIMIT_S) -> SamSession:
        """Return the session for the next stream; wait if no session is ready. Raise `NoSessionError`."""
        failures = self._counters[ClientCounter.SESSION_FAILURES]
        least_s = trio.current_time() + (RESTART_WAIT_S if self._counters[ClientCounter.SESSIONS_MADE] else 0.0)
        with trio.move_on_after(timeout_s):
            while not self._ready:
                has_failed = self._counters[ClientCounter.SESSION_FAILURES] >= failures + FAILED_ATTEMPTS
                if has_failed and trio.current_time() >= least_s:
                    break
                await self._changed.wait()
            else:
                await trio.lowlevel.checkpoint()
                return next(iter(self._ready))
        raise NoSessionError(self.problem or f"the SAM bridge {self.bridge} has not made a session: try again")

    @property
    def problem(self) -> str | None:
        """The reason why no session is ready; None if one is."""
        if self._ready:
            return None
        if self.last_error is None:
            return f"the router at {self.bridge} is making a session (20 s in i2pd, a minute at most)"
        return f"no session at the SAM bridge: {self.last_error}"

    def failed(self, session: SamSession, reason: str) -> None:
        """Prefer the other session, and replace this session after several failures in a row.

        If a bridge reports the end of a session, the session is removed without this method. The method is for bridges
        that fail without a report.
        """
        self._note(reason)
        if session not in self._ready:
            return
        ready = self._ready.pop(session)
        ready.failures += 1
        self._ready[session] = ready
        if ready.failures >= FAILURES_MAX:
            ready.scope.cancel()
            self._remove(session)

    def change(self, session: SamSession) -> None:
        """Use the other session for some time: the tunnels of this one may lead through a dead router."""
        self.prefer_other(session)
        self._steady_until_s = trio.current_time() + PROVEN_FOR_S

    def prefer_other(self, session: SamSession) -> None:
        """Use the other session for the next streams: the tunnels of this one may lead through a dead router."""
        if next(iter(self._ready), None) is session:
            self._ready[session] = self._ready.pop(session)

    def worked(self, session: SamSession) -> None:
        """Record that the bridge opened a stream of a session, and use the other session next.

        For some time after `change`, the same session stays in use. A router looks up a leaf's lease set for each
        session separately, so alternating prepares both.
        """
        self.has_worked = True
        if session in self._ready:
            self._ready[session].failures = 0
            if trio.current_time() >= self._steady_until_s:
                self.prefer_other(session)

    async def _keep(self) -> None:
        delays = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, self._random)
        while True:
            began_s = trio.current_time()
            try:
                async with open_session(self.bridge, options=self._tunnels) as session:
                    began_s = trio.current_time()
                    await self._use(session)
            except SamError as error:
                self._note(str(error))
                self._counters[ClientCounter.SESSION_FAILURES] += 1
                self._announce()
            else:
                if trio.current_time() - began_s >= _STABLE_AFTER_S:
                    delays.reset()
            await trio.sleep(delays.next_s())

    async def _use(self, session: SamSession) -> None:
        self._counters[ClientCounter.SESSIONS_MADE] += 1
        with trio.CancelScope() as scope:
            self._ready[session] = _ReadySession(scope)
            self._announce()
            try:
                self._note(await session.wait_ended())
            finally:
                self._remove(session)

    def _note(self, reason: str) -> None:
        self.last_error = self._error.text = reason

    def _remove(self, session: SamSession) -> None:
        if self._ready.pop(session, None) is not None:
            self._counters[ClientCounter.SESSIONS_ENDED] += 1
            self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
