"""The queries of this node's application, and the channels through which their answers come.

A channel holds as many answers as fit without anybody reading; what does not fit is counted, never waited for. It ends
when the query does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

import trio

from gossip.core.effects import QueryAnswered, QueryEnded

ANSWERS_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What one member answered."""

    responder: bytes
    body: bytes


class Questions:
    """Open queries by ticket."""

    def __init__(self) -> None:
        self._tickets = count(1)
        self._open: dict[int, trio.MemorySendChannel[Answer]] = {}

    def begin(self) -> tuple[int, trio.MemoryReceiveChannel[Answer]]:
        """A ticket, and where its answers will come."""
        ticket = next(self._tickets)
        self._open[ticket], answers = trio.open_memory_channel[Answer](ANSWERS_LIMIT)
        return ticket, answers

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
            self._open[effect.ticket].send_nowait(Answer(effect.responder, effect.body))
        except (KeyError, trio.WouldBlock, trio.BrokenResourceError):
            return False
        return True

    def ended(self, effect: QueryEnded) -> None:
        """No answers any more."""
        self.abandon(effect.ticket)

    def abandon(self, ticket: int) -> None:
        """Close a query's channel."""
        channel = self._open.pop(ticket, None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """The agent ends."""
        for ticket in list(self._open):
            self.abandon(ticket)
