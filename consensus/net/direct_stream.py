"""A socket with as few turns of the event loop as possible.

    send_now(data)  ─▶ the kernel takes it immediately, or it waits in `unsent` ─▶ send_all sends it later
    receive_some()  ─▶ wait until the socket is readable ─▶ the bytes in the kernel

trio's own streams yield for each call. A round of consensus is a chain of messages, so each message would wait for
additional turns. Here a send that the kernel takes immediately is one system call. So a caller that cannot wait, such
as the event loop around a core, can also send. `TlsStream` adds TLS to this stream.

Errors are trio's: BrokenResourceError for a connection that broke, ClosedResourceError after our own close.
"""

import os

import trio

READ_BYTES = 256 * 1024
FIRST_READ_BYTES = 64 * 1024
"""Limit of a read; a larger limit applies if the last read was full. From 128 KiB on, `malloc` maps memory for each
read, in 12 us."""


class DirectStream(trio.abc.Stream):
    """A stream of plain bytes over a socket."""

    def __init__(self, transport: trio.SocketStream) -> None:
        self._transport = transport
        self._socket = transport.socket
        self._unsent = memoryview(b"")
        self._sending = False
        self._was_full = False
        """True if the last read returned as many bytes as it may."""

    @property
    def unsent_bytes(self) -> int:
        """Return the number of bytes that the kernel has not taken yet."""
        return len(self._unsent)

    def send_now(self, data: bytes) -> bool:
        """Send without waiting. Return False if the kernel did not take all bytes; `send_all(b"")` sends the rest."""
        self._accept(data)
        if not self._sending:
            self._push()
        return not self._unsent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. Yields only if the kernel does not take it immediately."""
        if self._sending:
            raise trio.BusyResourceError("another task sends on this stream")
        await trio.lowlevel.checkpoint_if_cancelled()
        self._accept(data)
        await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the kernel takes more."""
        self._check_open()
        await trio.lowlevel.wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the received bytes as soon as there are any; empty at the end."""
        while True:
            self._check_open()
            data = await self._take(max_bytes or READ_BYTES)
            if data is not None:
                return data

    async def aclose(self) -> None:
        """Close; bytes in the kernel are still sent."""
        await self._transport.aclose()

    def drop_unsent(self) -> None:
        """Free the bytes that the kernel has not taken; the stream is about to be closed."""
        self._unsent = memoryview(b"")

    def _accept(self, data: bytes | bytearray | memoryview) -> None:
        self._check_open()
        if data:
            self._queue(bytes(data))

    def _queue(self, data: bytes) -> None:
        self._unsent = memoryview(bytes(self._unsent) + data)

    async def _take(self, limit: int) -> bytes | None:
        """Wait until the socket is readable and return its bytes: empty at the end, None if it was not readable."""
        await trio.lowlevel.wait_readable(self._socket)
        size = limit if self._was_full else min(limit, FIRST_READ_BYTES)
        try:
            data = os.read(self._socket.fileno(), size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror or "the connection broke") from error
        self._was_full = len(data) == size
        return data

    async def _flush(self) -> None:
        self._sending = True
        try:
            self._push()
            while self._unsent:
                await trio.lowlevel.wait_writable(self._socket)
                self._push()
        finally:
            self._sending = False

    def _push(self) -> None:
        """Give the kernel what it takes without waiting."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._socket.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._unsent = memoryview(b"")
            raise trio.BrokenResourceError(error.strerror or "the connection broke") from error

    def _check_open(self) -> None:
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError("this stream is closed")
