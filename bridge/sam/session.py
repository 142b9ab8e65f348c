"""Sessions of a SAM bridge: a destination, with the streams that it opens and accepts.

    open_session ─▶ SESSION CREATE ─▶ SamSession ─┬─▶ connect(hash) ─▶ STREAM CONNECT ─▶ a stream
                    │                             └─▶ accept()      ─▶ STREAM ACCEPT  ─▶ the peer's hash, a stream
                    └─ the control connection; the session ends with it

Each stream has its own connection. When the control connection ends, the router ends all streams of the session, and
waiting calls raise `SamUnreachableError`. A Java router sends PING on an idle control connection. A session must never
send PING: i2pd ends the connection after it.

Neither router supports a half-close: a stream whose sending side is closed ends, and the reply is lost. If the peer
closes a stream, i2pd may leave this end open, so each receiver needs a limit in time or bytes.
"""

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import Final

import trio

from bridge.sam.connection import (
    DEFAULT_BRIDGE,
    REPLY_TIMEOUT_S,
    LeafUnreachableError,
    SamBridge,
    SamConnection,
    SamUnreachableError,
    UnreadablePeerError,
    closed_on_error,
    open_connection,
    receive_line,
    shown_outcome,
)
from bridge.wire.i2p import sam
from bridge.wire.i2p.destination_keys import DestinationKeyError
from bridge.wire.i2p.key_file import destination_of_sam_key
from bridge.wire.i2p.structures import ED25519, address_of
from consensus import block_nursery

SESSION_TIMEOUT_S: Final = 75.0
"""Seconds. i2pd 2.45.1 checks for tunnels once in 20 s, so it replies after 20, 40 or 60 s."""
LINES_MAX: Final = 600
"""Lines that a bridge may send on the control connection of a session within `LINES_PERIOD_S`: a Java router sends one
PING in 3 minutes."""
LINES_PERIOD_S: Final = 60.0
_ID_BYTES: Final = 12
_NO_OPTIONS: Final[Mapping[str, str]] = {}
_FIXED: Final = frozenset({"STYLE", "ID", "DESTINATION"})
_INVALID_ID: Final = "INVALID_ID"
_TIMEOUT: Final = "TIMEOUT"


async def new_private_key(bridge: SamBridge = DEFAULT_BRIDGE) -> str:
    """Make an Ed25519 destination in the router; return SAM's private key text."""
    connection = await open_connection(bridge)
    async with connection.stream:
        pairs = {"SIGNATURE_TYPE": str(ED25519)}
        reply = await connection.request(sam.DEST_GENERATE, pairs, sam.DEST_REPLY, REPLY_TIMEOUT_S)
        private_key = reply.pairs.get("PRIV", "")
        if not private_key:
            raise connection.refusal(sam.DEST_GENERATE, reply)
        try:
            destination_of_sam_key(private_key)
        except DestinationKeyError as error:
            raise connection.violation(str(error)) from None
        return private_key


@asynccontextmanager
async def open_session(
    bridge: SamBridge = DEFAULT_BRIDGE,
    *,
    private_key: str | None = None,
    nickname: str = "garlicfarm",
    options: Mapping[str, str] = _NO_OPTIONS,
) -> AsyncIterator["SamSession"]:
    """Open a session, with a temporary destination if `private_key` is missing; raise `SamError`.

    `options` are options of I2CP; STYLE, ID or DESTINATION among them is a `ValueError`. `nickname` is the name in the
    router's console and does not leave the router. The session ends with the block.
    """
    if fixed := _FIXED.intersection(options):
        raise ValueError(f"{', '.join(sorted(fixed))} cannot be options of a session")
    connection = await open_connection(bridge)
    async with connection.stream:
        session_id = secrets.token_hex(_ID_BYTES)
        pairs = {
            "STYLE": "STREAM",
            "ID": session_id,
            "DESTINATION": private_key or sam.TRANSIENT,
            **sam.SESSION_OPTIONS,
            "inbound.nickname": nickname,
            "outbound.nickname": nickname,
            **options,
        }
        reply = await connection.request(sam.SESSION_CREATE, pairs, sam.SESSION_STATUS, SESSION_TIMEOUT_S)
        if reply.result != sam.OK:
            raise connection.refusal(sam.SESSION_CREATE, reply)
        try:
            session = SamSession(connection, session_id, private_key or reply.pairs.get("DESTINATION", ""))
        except DestinationKeyError as error:
            raise connection.violation(str(error)) from None
        async with block_nursery() as nursery:
            nursery.start_soon(session.watch)
            yield session


class SamSession:
    """An open session; made by `open_session`."""

    def __init__(self, control: SamConnection, session_id: str, private_key: str) -> None:
        self.bridge = control.bridge
        self.private_key = private_key
        """SAM's private key text of the session's destination."""
        self.hash = destination_of_sam_key(private_key).hash
        """SHA-256 of the session's destination."""
        self._control = control
        self._id = session_id
        self._ended = trio.Event()
        self._reason = ""
        self._waiting: set[trio.CancelScope] = set()

    def __repr__(self) -> str:
        return f"SamSession({self.bridge}, {self.address})"

    @property
    def address(self) -> str:
        """The `.b32.i2p` address of the session's destination."""
        return address_of(self.hash)

    async def wait_ended(self) -> str:
        """Wait until the bridge ends the session; return the reason."""
        await self._ended.wait()
        return self._reason

    async def connect(self, destination_hash: bytes, timeout_s: float) -> trio.SocketStream:
        """Open a stream to a destination; raise `LeafUnreachableError` or `SamUnreachableError`.

        i2pd returns the stream as soon as it has the peer's lease set, before the peer has replied.
        """
        address = address_of(destination_hash)
        pairs = {"ID": self._id, "DESTINATION": address, "SILENT": "false"}
        connection = None
        with self._unless_ended(), trio.move_on_after(timeout_s):
            connection = await open_connection(self.bridge)
            with closed_on_error(connection.stream):
                reply = await connection.request(sam.STREAM_CONNECT, pairs, sam.STREAM_STATUS, timeout_s)
                if reply.result == sam.OK:
                    return connection.stream
                if reply.result == _INVALID_ID:
                    raise self._lost()
                text = f"{address} is unreachable through {self.bridge}: {shown_outcome(reply)}"
                raise LeafUnreachableError(text, reply.result)
        if connection is None:
            raise SamUnreachableError(f"the SAM bridge {self.bridge} did not reply within {timeout_s:g} s")
        text = f"{address} did not reply within {timeout_s:g} s through {self.bridge}"
        raise LeafUnreachableError(text, _TIMEOUT)

    async def accept(self) -> tuple[bytes, trio.SocketStream]:
        """Wait for a stream from a peer; return the hash of its destination, and the stream. Raise `SamError`.

        Use one call of a session at a time, without a timeout. i2pd ends simultaneous calls; a Java router drops the
        stream after a canceled call. Between two calls, the routers queue new streams for some seconds.
        """
        pairs = {"ID": self._id, "SILENT": "false"}
        with self._unless_ended():
            connection = await open_connection(self.bridge)
            with closed_on_error(connection.stream):
                reply = await connection.request(sam.STREAM_ACCEPT, pairs, sam.STREAM_STATUS, REPLY_TIMEOUT_S)
                if reply.result == _INVALID_ID:
                    raise self._lost()
                if reply.result != sam.OK:
                    raise connection.refusal(sam.STREAM_ACCEPT, reply)
                line = await connection.receive_bytes(sam.STREAM_ACCEPT)
                try:
                    if line.startswith(sam.STREAM_STATUS.encode()):
                        raise connection.refusal(sam.STREAM_ACCEPT, sam.parse_line(line))
                except sam.SamLineError as error:
                    raise connection.violation(str(error)) from None
                try:
                    return sam.parse_peer(line).hash, connection.stream
                except sam.SamLineError as error:
                    raise UnreadablePeerError(str(connection.violation(str(error)))) from None

    async def watch(self) -> None:
        """Reply to PINGs until the bridge ends the session, or sends too many lines; never raises an error."""
        cause = await self._watched()
        self._reason = f"the SAM bridge {self.bridge} ended the session: {cause or 'did the router stop?'}"
        self._ended.set()
        for scope in self._waiting:
            scope.cancel()

    async def _watched(self) -> str:
        """Return the reason of the end: from the bridge, or the fault that this client found; empty if unknown."""
        stream = self._control.stream
        cause = ""
        lines, period_ends_s = 0, -inf
        try:
            while line := await receive_line(stream):
                if trio.current_time() >= period_ends_s:
                    lines, period_ends_s = 0, trio.current_time() + LINES_PERIOD_S
                lines += 1
                if lines > LINES_MAX:
                    return cause or f"it sent more than {LINES_MAX} lines in {LINES_PERIOD_S:g} s"
                received = sam.parse_line(line)
                if received.words == sam.PING:
                    with trio.fail_after(REPLY_TIMEOUT_S):
                        await stream.send_all(sam.encode_text(sam.PONG, received.text))
                elif received.result not in {"", sam.OK}:
                    cause = shown_outcome(received)
        except sam.SamLineError as error:
            return cause or f"a line is not SAM: {error}"
        except trio.TooSlowError:
            return cause or f"it did not receive a PONG within {REPLY_TIMEOUT_S:g} s"
        except trio.BrokenResourceError:
            pass
        return cause

    @contextmanager
    def _unless_ended(self) -> Iterator[None]:
        """Cancel the block at the end of the session, and raise `SamUnreachableError` instead."""
        if self._ended.is_set():
            raise self._lost()
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)
        if scope.cancelled_caught:
            raise self._lost()

    def _lost(self) -> SamUnreachableError:
        return SamUnreachableError(self._reason or f"the SAM bridge {self.bridge} ended the session")
