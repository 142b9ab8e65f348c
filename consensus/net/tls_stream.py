"""TLS over a socket with as few turns of the event loop as there can be.

    send_now(data)  ─▶ encrypt ─▶ the kernel takes it at once, or it waits in `unsent` ─▶ send_all carries it on
    receive_some()  ─▶ wait until the socket is readable ─▶ all that was decrypted, however many records

trio's own SSLStream serves any transport and any version of TLS, where a send may need a receive first. For that it
takes locks, retries and yields several times for each call, which cost more than the encryption of a small message: a
round of consensus is a dozen such calls. Here the transport is a socket and the version TLS 1.3, in which neither
direction waits for the other once the handshake is done; so a send is one call of OpenSSL and one of the kernel, and a
caller that cannot wait (the owner of a core) may send as well.

Errors are trio's: BrokenResourceError for a connection that broke or a peer that speaks no TLS, ClosedResourceError
after our own close. A peer that closes without close_notify ends the stream like one that sends it: each protocol
above knows by itself when it is complete.
"""

import os
import ssl
from contextlib import suppress

import trio

_READ_BYTES = 256 * 1024
_CLOSE_S = 1.0


class TlsStream(trio.abc.Stream):
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
        self.read_bytes = _READ_BYTES
        """How much is taken from the kernel at once; as much is held before it is decrypted."""

    @property
    def unsent_bytes(self) -> int:
        """What is encrypted and not yet taken by the kernel."""
        return len(self._unsent)

    def peer_certificate(self) -> bytes | None:
        """The other side's certificate (DER), if it showed one."""
        return self._tls.getpeercert(binary_form=True)

    async def do_handshake(self) -> None:
        """Agree on keys; nothing may be sent or received before.

        SSLCertVerificationError, if the context checks certificates and refuses this one.
        """
        while True:
            self._check_open()
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise trio.BrokenResourceError("the peer hung up during the TLS handshake") from None
            except ssl.SSLError as error:
                with suppress(trio.BrokenResourceError):
                    await self._flush()
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise
                raise trio.BrokenResourceError(f"TLS handshake: {_reason(error)}") from error
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
                with trio.move_on_after(_CLOSE_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
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
                raise trio.BrokenResourceError(f"TLS: {_reason(error)}") from error

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
                raise trio.BrokenResourceError(f"TLS: {_reason(error)}") from error
            if not record:
                return b"".join(records)
            records.append(record)
            size += len(record)
        return b"".join(records) if records else None

    async def _fill(self) -> bool:
        """Take what the socket has, once it has something; False when the peer hung up."""
        await trio.lowlevel.wait_readable(self._socket)
        try:
            data = os.read(self._socket.fileno(), self.read_bytes)
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


def _reason(error: ssl.SSLError) -> str:
    """The reason that OpenSSL gives, without its file and line."""
    return (error.reason or str(error)).lower().replace("_", " ")
