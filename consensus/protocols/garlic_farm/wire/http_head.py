"""One HTTP request of a client, and the head of its response: for the handshake, and for CONNECT at a proxy.

    request(…) ─▶ bytes        receive(bytes) ─▶ None while bytes are missing ─▶ status, headers, bytes after the head

A head has at most `HEAD_BYTES_MAX` bytes. The body belongs to the protocol that follows.
"""

from collections.abc import Sequence

import h11

from consensus.protocols.garlic_farm.wire.errors import GarlicFarmError, malformed, too_large
from consensus.protocols.garlic_farm.wire.upgrade import HEAD_BYTES_MAX, Headers


class HttpHead:
    """One request and the head of its response. `responder` names the other side in errors."""

    def __init__(self, responder: str) -> None:
        self._responder = responder
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._received_bytes = 0
        self._line_end = b""
        """The line end at the end of the received bytes: the next bytes may complete the end of the head."""

    def request(self, method: str, target: str, headers: Sequence[tuple[str, str]]) -> bytes:
        """Return the bytes to send."""
        request = h11.Request(method=method, target=target, headers=list(headers))
        return (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> tuple[int, Headers, bytes] | None:
        """Process received bytes; return status, headers and the bytes after the head, or None until it is complete."""
        self._received_bytes += len(data)
        try:
            lines = self._with_plain_lines(data)
            if lines or not data:
                self._http.receive_data(lines)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            if data:
                raise malformed(f"the answer of {self._responder} is not HTTP: {error}") from error
            event = h11.NEED_DATA
        if event is h11.NEED_DATA and data:
            if self._received_bytes > HEAD_BYTES_MAX:
                raise self._too_large()
            return None
        if not isinstance(event, h11.InformationalResponse | h11.Response):
            raise malformed(f"{self._responder} ended the connection before it answered")
        trailing = self._http.trailing_data[0]
        if self._received_bytes - len(trailing) > HEAD_BYTES_MAX:
            raise self._too_large()
        return event.status_code, Headers(event.headers), trailing

    def _with_plain_lines(self, data: bytes) -> bytes:
        r"""Return the next bytes for h11. The HTTP proxy of i2pd ends the line `Connection: Upgrade` with \r\r\n."""
        head, end, rest = (self._line_end + data).partition(b"\r\n\r\n")
        lines = head.rstrip(b"\r\n")
        self._line_end = b"" if end or not data else head[len(lines) :]
        return lines.replace(b"\r\r\n", b"\r\n") + end + rest

    def _too_large(self) -> GarlicFarmError:
        return too_large(f"the head of the answer of {self._responder} has more than {HEAD_BYTES_MAX} bytes")
