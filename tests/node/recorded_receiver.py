"""A receiver in place of a server: it records the calls of a transport."""

from collections.abc import Callable

import trio

from consensus.core.features import Extensions
from consensus.core.messages import Reply, Request
from consensus.core.model import Index, ServerId
from consensus.server.errors import ServerBusyError


class RecordedReceiver:
    """A `Receiver` that does not reply to requests."""

    def __init__(self) -> None:
        self.replies: list[tuple[ServerId, Reply]] = []
        self.kept_back: list[tuple[ServerId, int, Index]] = []
        self.arriving: list[tuple[ServerId, int]] = []
        self.extensions: list[tuple[ServerId, Extensions]] = []
        self.ended: list[ServerId] = []
        self.connected = trio.Event()
        self._replied = trio.Event()

    def ask(self, sender: ServerId, request: Request, on_reply: Callable[[Reply | None], None]) -> None:
        """Refuse every request as busy."""
        del sender, request, on_reply
        raise ServerBusyError("this receiver answers nothing")

    def forget(self, number: int) -> None:
        """Ignore the call."""

    def deliver_reply(self, sender: ServerId, reply: Reply) -> None:
        self.replies.append((sender, reply))
        self._replied.set()
        self._replied = trio.Event()

    def append_not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        self.kept_back.append((peer, correlation, next_index))

    def answer_arriving(self, peer: ServerId, correlation: int) -> None:
        self.arriving.append((peer, correlation))

    def peer_connected(self, peer: ServerId, extensions: Extensions) -> None:
        self.extensions.append((peer, extensions))
        self.connected.set()

    def peer_ended(self, peer: ServerId) -> None:
        self.ended.append(peer)

    async def wait_replies(self, count: int) -> list[Reply]:
        while len(self.replies) < count:
            await self._replied.wait()
        return [reply for _, reply in self.replies]
