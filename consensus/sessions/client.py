"""A client whose commands are executed exactly once, even if leaders and connections fail.

    submit ─▶ room in the window? ─▶ number it ─▶ Submitter: follow redirects, back off while busy or leaderless,
              (session open?)                     repeat unknown commands, the same bytes under the same number
                                                  ─▶ committed │ time is over: "unknown" or "refused"
                                                  ─▶ the session has expired: `SessionExpiredError`

The state machine executes a number once (`table`), so repeating does no harm: while the session exists, *committed*
means executed exactly once. A session begins with an entry without effect, whose place in the log is the start of the
session. After a quarter of the expiry time without requests, the client begins a new session. No submission may take
longer than that quarter. `request_numbers` keeps the numbers and the window.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import trio
from msgspec import Struct

from consensus.core.effects import Outcome
from consensus.core.model import Index, LogId, ServerId
from consensus.sessions.request_numbers import RequestNumbers
from consensus.sessions.table import DEFAULT_LIMITS, RequestId, SessionLimits


class Submission(Struct, frozen=True):
    """Outcome of a submission: the `position` of its last entry if committed; otherwise the reason as text."""

    outcome: Outcome
    position: LogId | None = None
    leader: ServerId | None = None
    reason: str = ""
    expired: bool = False
    """The outcome is unknown permanently: the session expired, and with it the record of the execution."""


class Submitter(Protocol):
    """A protocol's client, which finds the leader."""

    async def submit(
        self, commands: Sequence[bytes], *, timeout_s: float = 10.0, repeat_unknown: bool = False
    ) -> Submission:
        """Get `commands` committed; with `repeat_unknown`, submit them again when their outcome is unknown."""


class SessionExpiredError(Exception):
    """The servers no longer have this client's session, because others displaced it: see `docs/explanation/clients.md`.

    The request's number no longer shows whether the command was executed, and servers will not execute it any more. The
    client begins a new session with its next command.
    """


Seal = Callable[[RequestId, bytes], bytes]
"""Adds the request id to a command, in the form that the state machine reads."""


class ExactlyOnceClient:
    """A client that uses one session after the other, over a protocol's client whose `run` must be running.

    `name` is unique to this run of the client; `limits` are the limits of the table on the servers.
    """

    def __init__(
        self,
        client: Submitter,
        name: str,
        seal: Seal,
        opening: bytes,
        limits: SessionLimits = DEFAULT_LIMITS,
    ) -> None:
        self._client = client
        self._seal = seal
        self._opening = opening
        self._numbers = RequestNumbers(name, self._open_session, limits)

    async def submit(self, command: bytes, *, timeout_s: float = 30.0) -> Submission:
        """Execute `command` at most once. Outcome committed: executed. Unknown: perhaps. Any other: never executed.

        Raises `SessionExpiredError` if the servers can no longer show whether it was executed. A server without the
        protocol's extensions cannot report this, and closes the connection: then the outcome is unknown.
        """
        longest_s = self._numbers.silence_max_s
        if timeout_s > longest_s:
            raise ValueError(
                f"timeout_s = {timeout_s:g} may exceed the lifetime of the session; use at most {longest_s:g}"
            )
        deadline_s = trio.current_time() + timeout_s
        request = None
        with trio.move_on_at(deadline_s):
            request = await self._numbers.take()
        if request is None:
            reason = f"not submitted within {timeout_s:g} s: no leader opened a session, or too many commands wait"
            return Submission(Outcome.NOT_LEADER, reason=reason)
        try:
            found = await self._client.submit(
                (self._seal(request, command),),
                timeout_s=max(0.0, deadline_s - trio.current_time()),
                repeat_unknown=True,
            )
            if found.expired:
                self._numbers.session_expired(request)
                raise SessionExpiredError(
                    f"the session of {request} has expired on the servers, because too many clients were active. The"
                    " command may have been executed: check its effect before you submit it again"
                )
            return found
        finally:
            self._numbers.release(request)

    async def _open_session(self) -> Index | None:
        timeout_s = self._numbers.silence_max_s
        opened = await self._client.submit((self._opening,), timeout_s=timeout_s, repeat_unknown=True)
        return None if opened.position is None else opened.position.index
