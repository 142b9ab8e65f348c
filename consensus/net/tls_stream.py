"""TLS over a socket with as few turns of the event loop as possible.

    send_now(data)  ─▶ encrypt ─▶ `DirectStream`
    receive_some()  ─▶ `DirectStream` ─▶ all decrypted bytes, from any number of records

trio's own SSLStream supports any transport and any version of TLS. In some versions a send may need a receive first, so
each call takes locks, retries and yields several times. That costs more than the encryption of a small message, and a
round of consensus is a dozen such calls. Here the transport is a socket and the version TLS 1.3. After the handshake
neither direction waits for the other, so a send is one call of OpenSSL and one of the kernel.

Errors are trio's: BrokenResourceError for a connection that broke or a peer without TLS, ClosedResourceError after our
own close. A close without close_notify ends the stream like a close with it: each protocol above detects its own end.
"""

import ssl
from contextlib import suppress

import trio

from consensus.net.direct_stream import READ_BYTES, DirectStream

_CLOSE_S = 1.0
_PART_BYTES = 16 * 1024 + 22
"""Bytes that OpenSSL gets in one call: a full record with its header and tag. Its buffer keeps the size of a part."""
_RECORD_BYTES = 16 * 1024 + 1
"""One byte more than a record can contain. OpenSSL returns at most one record, so a shorter result is a whole one."""


class TlsStream(DirectStream):
    """A stream whose bytes are encrypted. Call `do_handshake` first."""

    def __init__(
        self, transport: trio.SocketStream, context: ssl.SSLContext, *, server_side: bool, name: str | None = None
    ) -> None:
        super().__init__(transport)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=name)
        self._parts: list[bytes] = []
        """Received bytes that OpenSSL does not have yet, the last part first."""
        self._has_rest = False
        """True if the last read of OpenSSL may have left a part of the record."""
        self._closed = False

    def peer_certificate(self) -> bytes | None:
        """Return the other side's certificate (DER), if it showed one."""
        return self._tls.getpeercert(binary_form=True)

    async def do_handshake(self) -> None:
        """Agree on keys; nothing may be sent or received before.

        Raises SSLCertVerificationError if the context checks certificates and refuses this one.
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

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return decrypted bytes as soon as there are any; empty at the end."""
        limit = max_bytes or READ_BYTES
        while True:
            self._check_open()
            data = self._decrypt(limit)
            if data is not None:
                return data
            if not await self._fill(limit):
                self._incoming.write_eof()

    async def aclose(self) -> None:
        """Send close_notify, if the kernel accepts it soon, and close. Do not wait for the peer's close_notify."""
        try:
            if not self._closed and not self._sending:
                with suppress(ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError):
                    self._tls.unwrap()
                with trio.move_on_after(_CLOSE_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._flush()
        finally:
            self._closed = True
            await self._transport.aclose()

    def _accept(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt the bytes; the next push appends the result to the unsent bytes."""
        self._check_open()
        if data:
            try:
                self._tls.write(data)
            except ssl.SSLError as error:
                raise trio.BrokenResourceError(f"TLS: {_reason(error)}") from error

    def _decrypt(self, limit: int) -> bytes | None:
        """Return decrypted bytes of complete records, at most `limit`; None if more bytes must arrive first."""
        records: list[bytes] = []
        size = 0
        incoming, tls = self._incoming, self._tls
        # Most reads end here, because a further attempt without bytes raises an exception in OpenSSL, which costs more
        # than a small record.
        while size < limit and (incoming.pending or self._parts or self._has_rest or incoming.eof):
            if self._parts and not incoming.pending:
                incoming.write(self._parts.pop())
            wanted = min(limit - size, _RECORD_BYTES)
            try:
                record = tls.read(wanted)
            except ssl.SSLWantReadError:
                self._has_rest = False
                if not self._parts:
                    break
                incoming.write(self._parts.pop())
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                incoming.write_eof()
                return b"".join(records)
            except ssl.SSLError as error:
                raise trio.BrokenResourceError(f"TLS: {_reason(error)}") from error
            if not record:
                return b"".join(records)
            self._has_rest = len(record) == wanted
            records.append(record)
            size += len(record)
        return b"".join(records) if records else None

    async def _fill(self, limit: int = 0) -> bool:
        """Read bytes of the socket, when there are any, for TLS; return False when the peer has closed it."""
        data = await self._take(max(limit, _PART_BYTES))
        if data:
            self._parts = [data[at : at + _PART_BYTES] for at in range(0, len(data), _PART_BYTES)]
            self._parts.reverse()
            self._incoming.write(self._parts.pop())
        return data != b""

    def _push(self) -> None:
        if self._outgoing.pending:
            self._queue(self._outgoing.read())
        super()._push()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream is closed")
        super()._check_open()


def _reason(error: ssl.SSLError) -> str:
    """Return the reason that OpenSSL gives, without its file and line."""
    return (error.reason or str(error)).lower().replace("_", " ")
