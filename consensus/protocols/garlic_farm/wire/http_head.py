"""One HTTP request of a client, and the head of its response: of the handshake, and of CONNECT at a proxy.

    request(…) ─▶ bytes        receive(bytes) ─▶ None while bytes are missing ─▶ status, headers, bytes after the head

A head has at most `HEAD_BYTES_MAX` bytes. The body belongs to the protocol that follows.
"""

from collections.abc import Sequence

import h11

from consensus.protocols.garlic_farm.wire.errors import malformed, too_large
from consensus.protocols.garlic_farm.wire.upgrade import HEAD_BYTES_MAX, Headers


class HttpHead:
    """One request and the head of its response. `responder` names the other side in errors."""

    def __init__(self, responder: str) -> None:
        self._responder = responder
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._received_bytes = 0

    def request(self, method: str, target: str, headers: Sequence[tuple[str, str]]) -> bytes:
        """Return the bytes to send."""
        request = h11.Request(method=method, target=target, headers=list(headers))
        return (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> tuple[int, Headers, bytes] | None:
        """Take bytes; return status, headers and the bytes after the head, or None while bytes are missing."""
        self._received_bytes += len(data)
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            if data:
                raise malformed(f"the answer of {self._responder} is not HTTP: {error}") from error
            event = h11.NEED_DATA
        if event is h11.NEED_DATA and data:
            return None
        if not isinstance(event, h11.InformationalResponse | h11.Response):
            raise malformed(f"{self._responder} ended the connection before it answered")
        trailing = self._http.trailing_data[0]
        if self._received_bytes - len(trailing) > HEAD_BYTES_MAX:
            raise too_large(f"the head of the answer of {self._responder} has more than {HEAD_BYTES_MAX} bytes")
        return event.status_code, Headers(event.headers), trailing
