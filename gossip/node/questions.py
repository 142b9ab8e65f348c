"""The queries of this node's application, and the channels through which their answers come.

A channel holds as many answers as fit without anybody reading; what does not fit is counted, never waited for. It ends
when the query does: the core says when. A core that stands still (halted, since a twin lives; or mute, until a
generation is on the disk) never does, so what is still open a moment after its time is closed here, with what came.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Final

import trio

from gossip.core.effects import QueryAnswered, QueryEnded

ANSWERS_LIMIT: Final = 1024
GRACE_S: Final = 0.5
"""How long after its time a query may be ended by the core, which knows of answers that were under way."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one member answered."""

    responder: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class _Question:
    channel: trio.MemorySendChannel[Answer]
    ends_at: float


class Questions:
    """Open queries by ticket."""

    def __init__(self) -> None:
        self._tickets = count(1)
        self._open: dict[int, _Question] = {}
        self._begun = trio.Event()

    def begin(self, timeout_ms: int) -> tuple[int, trio.MemoryReceiveChannel[Answer]]:
        """A ticket, and where its answers will come."""
        ticket = next(self._tickets)
        channel, answers = trio.open_memory_channel[Answer](ANSWERS_LIMIT)
        self._open[ticket] = _Question(channel, trio.current_time() + timeout_ms / 1000 + GRACE_S)
        self._begun.set()
        return ticket, answers

    async def end_overdue(self) -> None:
        """End what the core does not end, for ever."""
        while True:
            self._begun = trio.Event()
            with trio.move_on_at(min((each.ends_at for each in self._open.values()), default=inf)):
                await self._begun.wait()
            now = trio.current_time()
            for ticket in [ticket for ticket, each in self._open.items() if each.ends_at <= now]:
                self.abandon(ticket)

    @contextmanager
    def unless_refused(self, ticket: int, answers: trio.MemoryReceiveChannel[Answer]) -> Iterator[None]:
        """Take the query back if it cannot even be asked."""
        try:
            yield
        except BaseException:
            self.abandon(ticket)
            answers.close()
            raise

    def answered(self, effect: QueryAnswered) -> bool:
        """Hand an answer over. False if there was no room for it, or nobody waits any more."""
        try:
            self._open[effect.ticket].channel.send_nowait(Answer(effect.responder, effect.body))
        except (KeyError, trio.WouldBlock, trio.BrokenResourceError):
            return False
        return True

    def ended(self, effect: QueryEnded) -> None:
        """No answers any more."""
        self.abandon(effect.ticket)

    def abandon(self, ticket: int) -> None:
        """Close a query's channel."""
        question = self._open.pop(ticket, None)
        if question is not None:
            question.channel.close()

    def close(self) -> None:
        """The agent ends."""
        for ticket in list(self._open):
            self.abandon(ticket)
