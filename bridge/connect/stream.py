"""A stream to a leaf, which is an I2P destination of a farm.

    open ─▶ unused ─▶ bytes sent ─▶ bytes received ─▶ …
             │           └─▶ overdue ─▶ LeafSilentError
             └─▶ the leaf ends the stream, or does not greet in time ─▶ the next leaf replaces it, unseen by the user

The client never sends a byte of a stream to two leaves, because a request could be executed twice. So it replaces a
leaf only while neither the user nor the leaf has sent a byte. A service may send the first byte (greet), as mail
servers do. So while the user only receives, each leaf except the last one must greet within the timeout of a reply. A
leaf without a greeting counts as failed only if a later leaf greets. Without any greeting, the service probably waits
for the user.

SAM does not support a half-close: a router that receives the end of one direction ends both, and the reply is lost. So
`send_eof` does not send anything. The stream ends when the leaf or `aclose` ends it.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

import trio

from bridge.connect.errors import ConnectError, LeafSilentError
from bridge.connect.opening import LeafOpener, LeafStream
from bridge.connect.reply_watch import Exchange, ReplyWatch
from bridge.wire.i2p.structures import address_of

_REMEDY: Final = "nothing was sent twice; send the request again, it goes to another leaf"


class FarmStream(trio.abc.HalfCloseableStream):
    """A stream to one leaf; made by `FarmClient.open_stream`."""

    def __init__(self, opened: LeafStream, watch: ReplyWatch, opener: LeafOpener, *, is_quick: bool) -> None:
        self._watch = watch
        self._is_quick = is_quick
        self._opener = opener
        self._opened = opened
        self._exchange = self._new_exchange(opened)
        self._scopes: set[trio.CancelScope] = set()
        self._failure: str | None = None
        self._unanswered_since_s: float | None = None
        """Time of the request without a timely reply; None before the stream fails."""
        self._has_sent = False
        self._has_received = False
        self._end_noted = False
        self._eof_sent = False
        self._closed = False
        self._one_move = trio.Lock()
        self._left: dict[bytes, bool] = {}
        """The leaves used before the present one; the value is True if the leaf ended the stream."""
        self._can_move = True

    def __repr__(self) -> str:
        return f"FarmStream({self.leaf})"

    @property
    def leaf(self) -> str:
        """The address of the leaf in use."""
        return address_of(self._opened.leaf_hash)

    def expect_reply(self) -> None:
        """Let the stream fail if the next bytes do not get a reply in time. The first bytes always have this limit."""
        self._exchange.owes_reply = True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; raise `LeafSilentError` if the leaf does not reply in time."""
        self._check_open()
        if self._eof_sent:
            raise trio.ClosedResourceError("this stream has sent its end")
        if await self._is_ended_by_leaf():
            await self._move()
        self._has_sent = True
        self._watch.sent(self._exchange, len(data))
        with self._failing():
            await self._opened.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the router accepts bytes."""
        self._check_open()
        with self._failing():
            await self._opened.stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Refuse further bytes from the user. The leaf is not informed, because SAM cannot end one direction alone."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        self._eof_sent = True

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return received bytes; empty at the end. Raise `LeafSilentError` if the leaf does not reply in time."""
        while True:
            self._check_open()
            with trio.move_on_after(self._greeting_timeout_s()) as greeting:
                data, broken = await self._receive(max_bytes)
            if greeting.cancelled_caught:
                await self._move(has_ended=False)
                continue
            if data:
                self._note_greeting()
                self._has_received = True
                self._watch.received(self._exchange)
                return data
            if await self._move():
                continue
            self._note_end()
            self._watch.remove(self._exchange)
            if broken is not None:
                raise broken
            return b""

    async def _receive(self, max_bytes: int | None) -> tuple[bytes, trio.BrokenResourceError | None]:
        try:
            with self._failing():
                return bytes(await self._opened.stream.receive_some(max_bytes)), None
        except LeafSilentError:
            raise
        except trio.BrokenResourceError as error:
            return b"", error

    async def aclose(self) -> None:
        """Close the stream: the router delivers the bytes sent before."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._watch.remove(self._exchange)
        self._opener.closed(self._opened)
        since_s = self._unanswered_since_s
        if since_s is not None and self._opener.await_late_reply(self._opened, since_s):
            await trio.lowlevel.checkpoint()
        else:
            await self._opened.stream.aclose()

    def _new_exchange(self, opened: LeafStream) -> Exchange:
        return Exchange(opened.leaf_hash, self._fail, opened.opened_s, self._is_quick)

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream is closed")
        if self._failure is not None:
            raise LeafSilentError(self._failure)

    def _fail(self, reason: str) -> None:
        self._failure = f"{reason}: {_REMEDY}"
        self._unanswered_since_s = self._exchange.began_s
        self._opener.did_not_reply(self._opened)
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Cancel the block if the leaf fails, and raise `LeafSilentError` instead."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise LeafSilentError(self._failure or _REMEDY)

    def _is_unused(self) -> bool:
        """Return True if neither side has sent a byte, and the stream is not closed."""
        return not (self._has_sent or self._has_received or self._closed)

    async def _is_ended_by_leaf(self) -> bool:
        """Return True if the leaf ended the stream before either side sent a byte."""
        if not self._is_unused():
            return False
        sock = self._opened.stream.socket
        try:
            return sock.is_readable() and not await sock.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _greeting_timeout_s(self) -> float:
        """Return the time that the leaf has for its first byte; infinite if another leaf cannot replace it."""
        if not self._is_unused() or not self._can_move:
            return inf
        return self._opener.timeout_s(self._opened.leaf_hash)

    def _note_greeting(self) -> None:
        """Report the leaves that did not greet, if this leaf is the first to send a byte."""
        if self._is_unused():
            for leaf_hash, has_ended in self._left.items():
                if not has_ended:
                    self._opener.did_not_greet(leaf_hash)

    async def _move(self, *, has_ended: bool = True) -> bool:
        """Use the next leaf instead of a leaf that sent nothing; return False if that is impossible."""
        left = self._opened
        async with self._one_move:
            if self._opened is not left:
                return True
            if not self._is_unused():
                return False
            if has_ended:
                self._note_end()
            try:
                opened = await self._opener.open({*self._left, left.leaf_hash})
            except ConnectError:
                self._can_move = False
                return False
            if not self._is_unused():
                self._opener.closed(opened)
                await trio.aclose_forcefully(opened.stream)
                return False
            self._opened, self._exchange, self._end_noted = opened, self._new_exchange(opened), False
            self._left[left.leaf_hash] = has_ended
            self._opener.closed(left)
            await trio.aclose_forcefully(left.stream)
            return True

    def _note_end(self) -> None:
        """Report the end of the stream: if the leaf has not sent a byte, it has failed."""
        if not (self._end_noted or self._has_received):
            self._opener.ended_early(self._opened)
        self._end_noted = True
