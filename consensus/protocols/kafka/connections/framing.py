"""Kafka's frames on a stream: four bytes of length, then a request or a response.

    receive()   bytes of the stream ─▶ buffer ─▶ one frame, when it is complete
    send_now()  one buffer with length and frame ─▶ the kernel takes it immediately, or `flush` sends the rest

Taking a complete frame from the buffer, and sending a frame that the kernel takes immediately, do not need a turn of
the event loop. A commit in a quorum of three is a chain of five messages. trio's own streams yield for each call, so
the chain would wait for a dozen useless turns. So a socket, plain or with TLS, is a `DirectStream`. Any other stream,
such as one in memory, is used through trio's interface.

The length comes from the other side and does not cause an allocation. It is compared with the limit, and the buffer
grows with the arriving bytes.
"""

import struct
from collections.abc import Callable
from typing import Final

import trio

from consensus.net.direct_stream import READ_BYTES, DirectStream
from consensus.protocols.kafka.wire.limits import KafkaWireError

_LENGTH: Final = struct.Struct(">i")
_OTHERS: Final = {
    b"HTTP": "HTTP: name the port of a Kafka listener",
    b"\x15\x03": "TLS: give security.protocol=SSL or SASL_SSL",
    b"\x16\x03": "TLS: give security.protocol=SSL or SASL_SSL",
}
"""First bytes of replies in other protocols, with the name of the protocol and the remedy.

Interpreted as the length of a frame, these bytes are beyond any limit.
"""


def _direct(stream: trio.abc.Stream) -> trio.abc.Stream:
    """Return a direct stream for a socket, and any other stream unchanged."""
    return DirectStream(stream) if isinstance(stream, trio.SocketStream) else stream


def _not_counted(_buffered_bytes: int) -> None:
    """Ignore the number of held bytes."""


class FrameStream:
    """Frames in both directions of one connection. One task receives; at most one waits for sending."""

    def __init__(
        self, stream: trio.abc.Stream, max_frame_bytes: int, on_buffered: Callable[[int], None] = _not_counted
    ) -> None:
        """Frame a stream; `on_buffered` gets the number of buffered bytes after each received part."""
        self._stream: trio.abc.Stream = _direct(stream)
        self.max_frame_bytes = max_frame_bytes
        self._on_buffered = on_buffered
        self._buffer = bytearray()
        self._unsent = b""
        """Bytes for `flush`, if the stream cannot send without waiting."""

    @property
    def has_begun(self) -> bool:
        """Return True if bytes of the next frame have come."""
        return bool(self._buffer)

    @property
    def has_frame(self) -> bool:
        """Return True if `receive` would return immediately. Raises `KafkaWireError` as `receive` does."""
        length = self._length()
        return length is not None and len(self._buffer) >= _LENGTH.size + length

    @property
    def announced_bytes(self) -> int:
        """Return the length of the incomplete frame, if known. Raises `KafkaWireError` as `receive` does."""
        return self._length() or 0

    async def begin(self) -> bool:
        """Wait until bytes of the next frame have come; False if the stream has ended between two frames."""
        return self.has_begun or bool(await self._read())

    async def read(self) -> int:
        """Wait for more bytes; returns their number. Raises `trio.BrokenResourceError` if the stream ends."""
        count = await self._read()
        if not count:
            raise trio.BrokenResourceError("the peer hung up" + (" within a frame" if self._buffer else ""))
        return count

    async def receive(self) -> bytes:
        """Return the next frame, without its length.

        Raises `KafkaWireError` for an invalid length, and `trio.BrokenResourceError` if the stream ends.
        """
        while not self.has_frame:
            await self.read()
        end = _LENGTH.size + (self._length() or 0)
        with memoryview(self._buffer) as view:
            frame = bytes(view[_LENGTH.size : end])
        del self._buffer[:end]
        return frame

    def send_now(self, frame: bytes) -> bool:
        """Send without waiting; False if `flush` must send the rest."""
        data = _LENGTH.pack(len(frame)) + frame
        stream = self._stream
        if isinstance(stream, DirectStream):
            return stream.send_now(data)
        self._unsent += data
        return False

    async def flush(self) -> None:
        """Send the bytes that `send_now` has left."""
        unsent, self._unsent = self._unsent, b""
        await self._stream.send_all(unsent)

    async def send(self, frame: bytes) -> None:
        """Send a frame, and wait until the kernel has it."""
        await self._stream.send_all(_LENGTH.pack(len(frame)) + frame)

    async def aclose(self) -> None:
        """Close the stream by its own method."""
        await self._stream.aclose()

    def drop(self) -> None:
        """Free the bytes of both directions.

        A closed connection in a reference cycle would otherwise keep its buffers, outside of any budget, until the next
        garbage collection.
        """
        self._buffer = bytearray()
        self._unsent = b""
        if isinstance(self._stream, DirectStream):
            self._stream.drop_unsent()

    def _length(self) -> int | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= length <= self.max_frame_bytes:
            spoken = next((name for start, name in _OTHERS.items() if self._buffer.startswith(start)), None)
            if spoken is not None:
                raise KafkaWireError(f"it is {spoken}")
            raise KafkaWireError(f"a frame of {length} bytes: {self.max_frame_bytes} are read at most")
        return int(length)

    async def _read(self) -> int:
        data = await self._stream.receive_some(READ_BYTES)
        self._buffer += data
        self._on_buffered(len(self._buffer))
        return len(data)
