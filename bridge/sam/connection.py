"""One connection to a SAM bridge: its address, the errors for an operator, and requests with their replies.

    open_connection ─▶ HELLO ─▶ SamConnection.request(line) ─▶ the reply, or an error that names the bridge and a remedy

A line is received up to its end and not beyond: the bytes after the reply of STREAM CONNECT belong to the stream. So
the kernel's buffer is searched for the end before the line is removed from it. i2pd reads HELLO with one call and drops
all bytes after it. So HELLO is sent in one piece, and the next line only after the reply to HELLO.

The bridge may be hostile, or another program. So the bytes of each line and the time of each reply are limited.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Final

import trio
from msgspec import Struct

from bridge.api.printable import printable
from bridge.wire.i2p import sam
from consensus import endpoint_text
from consensus.net import connection_failure

CONNECT_TIMEOUT_S: Final = 5.0
SAM_PORT: Final = 7656
"""The default port of both routers."""
REPLY_TIMEOUT_S: Final = 10.0
PINGS_LIMIT: Final = 100
"""PINGs that a bridge may send before a reply."""
_MIN_VERSION: Final = "3.1"
_ENABLE: Final = (
    "enable SAM in the router (i2pd: enabled = true in [sam] of i2pd.conf; Java: SAM application bridge in"
    " /configclients)"
)
_SHOWN_CHARACTERS: Final = 200


class SamError(Exception):
    """A request failed; the text contains the reason, the bridge and the remedy."""


class SamUnreachableError(SamError):
    """The bridge does not reply, or ended the connection or the session."""


class SamAbsentError(SamUnreachableError):
    """A bridge that does not accept connections: it is stopped, or its port is closed."""


class UnreadablePeerError(SamError):
    """The router accepted a stream of a peer, and the destination of the peer is unreadable."""


class LeafUnreachableError(SamError):
    """The router cannot open a stream to the peer; `result` is SAM's result, for example CANT_REACH_PEER."""

    def __init__(self, text: str, result: str) -> None:
        super().__init__(text)
        self.result = result


class SamBridge(Struct, frozen=True):
    """The address of a SAM bridge. `host` is numeric: a name would need a look-up outside of I2P."""

    host: str
    port: int

    def __post_init__(self) -> None:
        ip_address(self.host)
        if not 0 < self.port <= 65_535:  # noqa: PLR2004 -- the port numbers of TCP
            raise ValueError(f"{self.port} is not a port")

    def __str__(self) -> str:
        return endpoint_text(self.host, self.port)


DEFAULT_BRIDGE: Final = SamBridge("127.0.0.1", SAM_PORT)


class SamConnection:
    """A connection after HELLO; made by `open_connection`."""

    def __init__(self, bridge: SamBridge, stream: trio.SocketStream) -> None:
        self.bridge = bridge
        self.stream = stream

    async def negotiate(self) -> None:
        """Agree on a version of SAM; raise `SamError`."""
        pairs = {"MIN": _MIN_VERSION, "MAX": sam.VERSIONS[-1]}
        reply = await self.request(sam.HELLO, pairs, sam.HELLO_REPLY, REPLY_TIMEOUT_S)
        version = reply.pairs.get("VERSION", "")
        if reply.result == sam.OK and version in sam.VERSIONS[sam.VERSIONS.index(_MIN_VERSION) :]:
            return
        if reply.result in {sam.OK, "NOVERSION"}:
            raise SamError(
                f"the SAM bridge {self.bridge} does not support SAM {_MIN_VERSION} to {sam.VERSIONS[-1]}"
                f"{f' but {_shown(version)}' if version else ''}: update the router"
            )
        raise self.refusal(sam.HELLO, reply)

    async def request(self, words: str, pairs: dict[str, str], reply_words: str, timeout_s: float) -> sam.SamLine:
        """Send a line and return its reply of any result; raise `SamError`."""
        try:
            line = sam.encode_request(words, pairs)
        except sam.SamLineError as error:
            raise SamError(f"{words} cannot be sent: {error}") from None
        with trio.move_on_after(timeout_s):
            await self._send(line, words)
            for _ in range(PINGS_LIMIT):
                reply = await self.receive(words)
                if reply.words == reply_words:
                    return reply
                if reply.words != sam.PING:
                    raise self.violation(f"it replied to {words} with {reply.words!r}")
                await self._send(sam.encode_text(sam.PONG, reply.text), words)
            raise self.violation(f"it sent {PINGS_LIMIT} PINGs instead of a reply to {words}")
        raise SamUnreachableError(f"the SAM bridge {self.bridge} did not reply to {words} within {timeout_s:g} s")

    async def receive(self, words: str) -> sam.SamLine:
        """Return the next line; `words` names the request for the error."""
        try:
            return sam.parse_line(await self.receive_bytes(words))
        except sam.SamLineError as error:
            raise self.violation(str(error)) from None

    async def receive_bytes(self, words: str) -> bytes:
        """Return the next line, unparsed."""
        try:
            line = await receive_line(self.stream)
        except sam.SamLineError as error:
            raise self.violation(str(error)) from None
        if not line:
            raise self.ended(words)
        return line

    async def _send(self, line: bytes, words: str) -> None:
        try:
            await self.stream.send_all(line)
        except trio.BrokenResourceError:
            raise self.ended(words) from None

    def ended(self, words: str) -> SamUnreachableError:
        """Return the error for a connection that the bridge has closed."""
        return SamUnreachableError(
            f"the SAM bridge {self.bridge} ended the connection during {words}: did the router stop?"
        )

    def violation(self, reason: str) -> SamError:
        """Return the error for input that is not SAM."""
        return SamError(
            f"{self.bridge} is not a SAM v3 bridge: {_shown(reason)}; use the router's SAM port ({SAM_PORT})"
        )

    def refusal(self, words: str, reply: sam.SamLine) -> SamError:
        """Return the error for a result other than OK."""
        return SamError(f"the SAM bridge {self.bridge} refused {words}: {shown_outcome(reply)}")


async def open_connection(bridge: SamBridge) -> SamConnection:
    """Connect and negotiate the version; raise `SamError`."""
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            stream = await trio.open_tcp_stream(bridge.host, bridge.port)
    except (OSError, trio.TooSlowError) as error:
        reason = connection_failure(error) if isinstance(error, OSError) else f"no reply within {CONNECT_TIMEOUT_S:g} s"
        raise SamAbsentError(f"nothing answers at {bridge}: {reason}: {_ENABLE}") from None
    with closed_on_error(stream):
        connection = SamConnection(bridge, stream)
        await connection.negotiate()
        return connection


@contextmanager
def closed_on_error(stream: trio.SocketStream) -> Iterator[None]:
    """Close the stream if the block raises an error or is canceled."""
    try:
        yield
    except BaseException:
        stream.socket.close()
        raise


async def receive_line(stream: trio.SocketStream) -> bytes:
    """Return the next line with its end, and leave the bytes after it; empty if the connection has ended.

    Raises `SamLineError` for a line that is too long.
    """
    line = bytearray()
    while True:
        try:
            seen = await stream.socket.recv(sam.LINE_LIMIT_BYTES - len(line), socket.MSG_PEEK)
            end = seen.find(b"\n") + 1
            received = await stream.socket.recv(end or len(seen)) if seen else b""
        except OSError:
            return b""
        if not received:
            return b""
        line += received
        if end:
            return bytes(line)
        if len(line) >= sam.LINE_LIMIT_BYTES:
            raise sam.SamLineError(f"a line has more than {sam.LINE_LIMIT_BYTES} bytes")


def shown_outcome(reply: sam.SamLine) -> str:
    """Return the outcome of a reply, harmless for a terminal."""
    return _shown(reply.outcome)


def _shown(text: str) -> str:
    return printable(text[:_SHOWN_CHARACTERS])
