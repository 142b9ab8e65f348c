"""Requests of other servers that are being answered, between the transports and the owner of the core.

A request gets a number of this process in place of its correlation; the core's reply carries it back to the very call
that asked, whatever else is under way with that sender.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from consensus.core.events import Received, Rejected
from consensus.core.messages import AppendEntries, FetchReply, Reply, Request
from consensus.core.model import Entry, ServerId
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.mailbox import Awaited, Mailbox

Answered = Callable[[Reply | None], None]
"""Takes the answer, or None if the server stops."""


class Requests:
    """What the core has not answered, bounded."""

    def __init__(
        self,
        mailbox: Mailbox,
        requests_max: int,
        dropped: Counter[str],
        rejects: Callable[[ServerId, tuple[Entry, ...]], bool] = lambda _sender, _entries: False,
    ) -> None:
        self._mailbox = mailbox
        self._rejects = rejects
        self._requests_max = requests_max
        self._dropped = dropped
        self._waiting: dict[int, tuple[int, Answered]] = {}
        self._last_number = 0
        self._ended = False

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._waiting)

    async def request(self, sender: ServerId, request: Request) -> Reply:
        """Answer a request of another server, with the correlation that it carries; raises what `refusals` lists."""
        awaited = Awaited[Reply]()
        number = self.ask(sender, request, awaited.give)
        try:
            reply = await awaited.wait()
        finally:
            self.forget(number)
        if reply is None:
            raise ServerStoppedError("the server has stopped")
        return reply

    def deliver(self, sender: ServerId, reply: Reply) -> None:
        """A peer answered a request of ours."""
        if isinstance(reply, FetchReply) and reply.entries and self._rejects(sender, reply.entries):
            self._dropped["fetch reply that the state machine cannot take"] += 1
            return
        if not self._mailbox.put(Received(sender, reply)):
            self._dropped["reply dropped for want of room"] += 1

    def ask(self, sender: ServerId, request: Request, answered: Answered) -> int:
        """Hand the request to the core; returns a number for `forget`. Raises what `refusals` lists."""
        if self._ended:
            raise ServerStoppedError("the server has stopped")
        if len(self._waiting) >= self._requests_max:
            self._dropped["request refused as busy"] += 1
            raise ServerBusyError(f"{len(self._waiting)} requests are being answered")
        self._last_number += 1
        number = self._last_number
        # Before it is asked: the answer may come at once.
        self._waiting[number] = (request.correlation, answered)
        asked = replace(request, correlation=number)
        event: Received | Rejected = Received(sender, asked)
        if isinstance(asked, AppendEntries) and asked.entries and self._rejects(sender, asked.entries):
            event = Rejected(sender, asked)
        if not self._mailbox.put(event):
            del self._waiting[number]
            self._dropped["request refused as busy"] += 1
            raise ServerBusyError("too many events wait")
        return number

    def forget(self, number: int) -> None:
        """Nobody waits for the answer to this request any more."""
        self._waiting.pop(number, None)

    def answer(self, reply: Reply) -> None:
        """The core has answered."""
        waiting = self._waiting.pop(reply.correlation, None)
        if waiting is not None:
            correlation, answered = waiting
            answered(replace(reply, correlation=correlation))

    def end(self) -> None:
        """The server stops."""
        self._ended = True
        waiting, self._waiting = self._waiting, {}
        for _, answered in waiting.values():
            answered(None)
