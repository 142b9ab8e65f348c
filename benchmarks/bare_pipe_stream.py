"""The stream of the bare pipe: TLS over a socket, frozen, so that the pipe stays one yardstick.

    send_now(data)  ─▶ encrypt ─▶ the kernel takes it at once, or it waits in `unsent` ─▶ send_all carries it on
    receive_some()  ─▶ wait until the socket is readable ─▶ all that was decrypted, however many records

The servers used this stream when the pipe was first measured; what the pipe does not need is left out. A pipe over
the servers' own stream would become quicker with each improvement of that stream, and a share of it would then not be
comparable with an earlier one. So this module imports nothing of `consensus` and does not change with it.
"""

import os
import ssl
from contextlib import suppress

import trio

_READ_BYTES = 256 * 1024
_GOODBYE_S = 1.0


class PipeStream(trio.abc.Stream):
    """A stream whose bytes are encrypted. Call `do_handshake` first."""

    def __init__(
        self, transport: trio.SocketStream, context: ssl.SSLContext, *, server_side: bool, name: str | None = None
    ) -> None:
        self._transport = transport
        self._socket = transport.socket
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=name)
        self._unsent = b""
        self._sending = False
        self._closed = False

    async def do_handshake(self) -> None:
        """Agree on keys; nothing may be sent or received before. SSLError if that fails."""
        while True:
            self._check_open()
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise trio.BrokenResourceError("the peer hung up during the TLS handshake") from None
            else:
                await self._flush()
                return

    def send_now(self, data: bytes) -> bool:
        """Send without waiting; False if the kernel did not take all: then `send_all(b"")` carries the rest."""
        self._encrypt(data)
        if not self._sending:
            self._push()
        return not self._unsent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. Yields only if the kernel does not take it at once."""
        if self._sending:
            raise trio.BusyResourceError("another task sends on this stream")
        await trio.lowlevel.checkpoint_if_cancelled()
        self._encrypt(data)
        await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the kernel takes more."""
        self._check_open()
        await trio.lowlevel.wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Decrypted bytes, as soon as there are any; empty at the end."""
        limit = max_bytes or _READ_BYTES
        while True:
            self._check_open()
            data = self._decrypt(limit)
            if data is not None:
                return data
            if not await self._fill():
                self._incoming.write_eof()

    async def aclose(self) -> None:
        """Send close_notify, if the kernel takes it soon, and close. Does not wait for an answer."""
        try:
            if not self._closed and not self._sending:
                with suppress(ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError):
                    self._tls.unwrap()
                with trio.move_on_after(_GOODBYE_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._flush()
        finally:
            self._closed = True
            await self._transport.aclose()

    def _encrypt(self, data: bytes | bytearray | memoryview) -> None:
        self._check_open()
        if data:
            try:
                self._tls.write(data)
            except ssl.SSLError as error:
                raise trio.BrokenResourceError(f"TLS: {error.reason}") from error

    def _decrypt(self, limit: int) -> bytes | None:
        """What has arrived, whole records only; None if more must arrive first."""
        records: list[bytes] = []
        size = 0
        while size < limit:
            try:
                record = self._tls.read(limit - size)
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b"".join(records)
            except ssl.SSLError as error:
                raise trio.BrokenResourceError(f"TLS: {error.reason}") from error
            if not record:
                return b"".join(records)
            records.append(record)
            size += len(record)
        return b"".join(records) if records else None

    async def _fill(self) -> bool:
        """Take what the socket has, once it has something; False when the peer hung up."""
        await trio.lowlevel.wait_readable(self._socket)
        try:
            data = os.read(self._socket.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror or "the connection broke") from error
        self._incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        """Give the kernel all that is encrypted."""
        self._sending = True
        try:
            self._push()
            while self._unsent:
                await trio.lowlevel.wait_writable(self._socket)
                self._push()
        finally:
            self._sending = False

    def _push(self) -> None:
        self._check_open()
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._socket.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._unsent = b""
            raise trio.BrokenResourceError(error.strerror or "the connection broke") from error

    def _check_open(self) -> None:
        if self._closed or self._socket.fileno() < 0:
            raise trio.ClosedResourceError("this stream is closed")
