"""In place of a server behind a transport: it keeps what the transport hands in."""

from collections.abc import Callable

import trio

from consensus.core.features import Extensions
from consensus.core.messages import Reply, Request
from consensus.core.model import Index, ServerId
from consensus.server.errors import ServerBusyError


class RecordedReceiver:
    """A `Receiver` that answers no request."""

    def __init__(self) -> None:
        self.replies: list[tuple[ServerId, Reply]] = []
        self.kept_back: list[tuple[ServerId, int, Index]] = []
        self.arriving: list[tuple[ServerId, int]] = []
        self.extensions: list[tuple[ServerId, Extensions]] = []
        self.connected = trio.Event()
        self._replied = trio.Event()

    def ask(self, sender: ServerId, request: Request, answered: Callable[[Reply | None], None]) -> None:
        """Too busy."""
        del sender, request, answered
        raise ServerBusyError("this receiver answers nothing")

    def forget(self, number: int) -> None:
        """Nothing is remembered."""

    def deliver_reply(self, sender: ServerId, reply: Reply) -> None:
        """Keep it."""
        self.replies.append((sender, reply))
        self._replied.set()
        self._replied = trio.Event()

    def append_not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """Keep it."""
        self.kept_back.append((peer, correlation, next_index))

    def answer_arriving(self, peer: ServerId, correlation: int) -> None:
        """Keep it."""
        self.arriving.append((peer, correlation))

    def peer_connected(self, peer: ServerId, extensions: Extensions) -> None:
        """Keep it."""
        self.extensions.append((peer, extensions))
        self.connected.set()

    async def wait_replies(self, count: int) -> list[Reply]:
        """The replies, when there are so many."""
        while len(self.replies) < count:
            await self._replied.wait()
        return [reply for _, reply in self.replies]
