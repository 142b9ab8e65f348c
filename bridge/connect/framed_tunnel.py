"""The frames of a tunnel through the socket of a running client, so that `--stdio` distinguishes a failure from an end.

    kind: 1 byte │ length: 4 bytes, big-endian │ content         DATA, END without content, FAILED with the reason

Because a Unix socket cannot be reset like a TCP connection, a failure would look like an end. So the client sends
frames if the request has the field `FRAMES_FIELD`, and repeats the field in its reply. `--stdio` sends plain bytes.
"""

import struct
from contextlib import suppress
from enum import IntEnum
from typing import Final

import trio

from bridge.connect.errors import ConnectError

FRAMES_FIELD: Final = b"garlicfarm-frames"
FRAMES_VERSION: Final = b"1"
REASON_LIMIT_BYTES: Final = 4_096
_HEADER: Final = struct.Struct("!BI")
_READ_BYTES: Final = 64 * 1024


class _Kind(IntEnum):
    DATA = 0
    END = 1
    FAILED = 2


class TunnelFailedError(ConnectError, trio.BrokenResourceError):
    """The running client has ended the tunnel, for the reason in the text."""


class _Wrapped(trio.abc.HalfCloseableStream):
    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def aclose(self) -> None:
        await self._stream.aclose()


class FrameSender(_Wrapped):
    """The side of the running client, which sends bytes in frames."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes in a frame."""
        await self._send(_Kind.DATA, bytes(data))

    async def send_eof(self) -> None:
        """Send the end in a frame."""
        await self._send(_Kind.END)
        await self._stream.send_eof()

    async def fail(self, reason: str) -> None:
        """Send the reason of a failure, if the other end still receives."""
        with suppress(trio.BrokenResourceError):
            await self._send(_Kind.FAILED, reason.encode()[:REASON_LIMIT_BYTES])

    async def _send(self, kind: _Kind, content: bytes = b"") -> None:
        await self._stream.send_all(_HEADER.pack(kind, len(content)) + content)


class FrameReceiver(_Wrapped):
    """The side of `--stdio`. `first` are the bytes after the head of the reply."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, first: bytes = b"") -> None:
        super().__init__(stream)
        self._received = bytearray(first)
        self._missing = 0
        """Bytes of the present frame of data that have not been returned."""
        self._has_ended = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return bytes; empty at the end. Raise `TunnelFailedError` for a failure, or an end without a frame."""
        while not self._missing and not self._has_ended:
            kind, length = _HEADER.unpack(await self._exactly(_HEADER.size))
            match kind:
                case _Kind.DATA:
                    self._missing = length
                case _Kind.END:
                    self._has_ended = True
                case _:
                    reason = await self._exactly(min(length, REASON_LIMIT_BYTES))
                    raise TunnelFailedError(reason.decode("utf-8", "replace"))
        if self._has_ended:
            return b""
        if not self._received:
            await self._receive()
        part = bytes(self._received[: min(self._missing, max_bytes or _READ_BYTES)])
        del self._received[: len(part)]
        self._missing -= len(part)
        return part

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            await self._receive()
        content = bytes(self._received[:size])
        del self._received[:size]
        return content

    async def _receive(self) -> None:
        part = await self._stream.receive_some(_READ_BYTES)
        if not part:
            raise TunnelFailedError("the running client has stopped; connect again")
        self._received += part
