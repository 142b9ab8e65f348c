"""The HTTP proxy of `garlicfarm connect --http 127.0.0.1:8118`: requests and tunnels to the farms of its links only.

    client ─▶ head (h11, bounded) ─▶ farm of its host ─▶ open_stream ─▶ head and body ─▶ leaf
                                 └── another host: 403 with the reason; nothing is sent

Each stream carries one request. So the leaves' costs select a leaf for each request, and a dead leaf fails only one
request. After the response the proxy closes the stream. If the leaf closed it first, a router could lose the end of a
long response. The proxy never sends a request twice. If a leaf fails after the proxy has sent the head, the reply is
502 or 504. If the response has begun, the proxy resets the client's connection. The user or the browser then decides
about another attempt.

Bounds apply to connections, bytes of a head, bytes in memory (one part of a body in each direction), and each step's
time. A client that stops reading or sending loses its connection.
"""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

import h11
import trio
from msgspec import Struct

from bridge.api.printable import printable
from bridge.connect.errors import ConnectError, LeafSilentError
from bridge.connect.forwarding import ListenerCount, Listeners, StreamOpener, failure_text, forward, reset
from bridge.connect.framed_tunnel import FRAMES_FIELD, FRAMES_VERSION, FrameSender
from bridge.connect.http_head import HeadError, Target, TargetForm, request_head, response_fields, target_of

PART_BYTES: Final = 16 * 1024
RETRY_AFTER_S: Final = 10
_SAFE_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
"""Methods whose repetition does no harm (RFC 9110, section 9.2.1)."""
_SHOWN_HOST: Final = 80
_REMEDY: Final = "the request was sent once and is not repeated; send it again if that does no harm"
_FOREIGN: Final = "a web page of another site sent this request: type the address in the browser, or use the HTTP proxy"
_TEXT: Final = "text/plain; charset=utf-8"


class ProxyLimits(Struct, frozen=True):
    """Limits for one client of the proxy."""

    head_bytes: int = 32 * 1024
    requests_per_connection: int = 1_000
    idle_s: float = 120.0
    """Seconds between two requests of one connection."""
    head_s: float = 10.0
    """Seconds from the first byte of a head to its end."""
    step_s: float = 60.0
    """Seconds for the next part of a client's body, and for a client to read a part."""
    response_s: float = 300.0
    """Seconds for the next part of a response, and for the leaf to accept a part of a request."""
    linger_s: float = 1.0


class Page(Struct, frozen=True):
    """A reply of this program, not of a farm."""

    body: bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK
    fields: tuple[tuple[str, str], ...] = ()


class Farms:
    """The farms of one process by address and by local name."""

    def __init__(self, farms: Sequence[StreamOpener], names: Mapping[str, StreamOpener]) -> None:
        self._by_host = {**{each.address: each for each in farms}, **names}
        self._only = farms[0] if len(farms) == 1 else None

    def of(self, target: Target) -> StreamOpener:
        """Return the farm of a target; raise `HeadError` if the target is not permitted.

        If the process has one link, a request in origin form to the proxy's own address also leads to that farm. Only
        `localhost`, a numeric host and a missing host count as its own address. The owner of any other name could let
        the name resolve to this machine. Requests by web pages of other sites are refused.
        """
        farm = self._by_host.get(target.host)
        if farm is None and target.form is TargetForm.ORIGIN and _is_own_address(target.host):
            if target.is_foreign:
                raise HeadError(HTTPStatus.FORBIDDEN, _FOREIGN)
            farm = self._only
        if farm is None:
            raise HeadError(HTTPStatus.FORBIDDEN, self._refusal(target))
        return farm

    def _refusal(self, target: Target) -> str:
        shown = printable(target.host[:_SHOWN_HOST])
        if target.form is TargetForm.ORIGIN and not _is_own_address(target.host):
            # A web page whose name resolves to this machine can read this reply: it must not list a user's farms.
            return f"this proxy is not the server of {shown!r}: use it as an HTTP proxy, or by its own address"
        known = ", ".join(sorted(self._by_host))
        return (
            f"this proxy does not connect to {shown!r}: it reaches only {known}. Use another proxy, or none, for other"
            " hosts; `garlicfarm connect` takes further links"
        )


def _is_own_address(host: str) -> bool:
    if host in {"", "localhost"}:
        return True
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class HttpProxy:
    """A server of HTTP clients. `pages` are replies to paths in origin form, only for this program's own socket."""

    def __init__(
        self,
        farms: Farms,
        listeners: Listeners,
        pages: Mapping[str, Callable[[], Page]] | None = None,
        limits: ProxyLimits | None = None,
    ) -> None:
        self.farms = farms
        self.listeners = listeners
        self.pages = pages
        self.limits = limits or ProxyLimits()

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one connection until it ends."""
        try:
            with self.listeners.place(own_socket=self.pages is not None) as has_place:
                if has_place:
                    await _ProxyClient(stream, self).run()
                else:
                    await reset(stream)
        except (h11.ProtocolError, trio.BrokenResourceError, trio.TooSlowError):
            pass  # The client sees that its connection ends.
        finally:
            await stream.aclose()

    def has_frames(self, request: h11.Request) -> bool:
        """Return True if a tunnel uses frames, which `--stdio` requests at this program's own socket."""
        return self.pages is not None and dict(request.headers).get(FRAMES_FIELD) == FRAMES_VERSION

    def page(self, target: Target) -> Page | None:
        """Return this program's own page for a target; None if the target is for a farm. Raise `HeadError`."""
        if self.pages is None or target.form is not TargetForm.ORIGIN:
            return None
        made = self.pages.get(target.path.partition(b"?")[0].decode("latin-1"))
        if made is None:
            raise HeadError(HTTPStatus.NOT_FOUND, f"this socket has {', '.join(self.pages)}, and tunnels by CONNECT")
        return made()


class _ProxyClient:
    def __init__(self, stream: trio.abc.HalfCloseableStream, proxy: HttpProxy) -> None:
        self._stream = stream
        self._proxy = proxy
        self._limits = proxy.limits
        self._listeners = proxy.listeners
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=proxy.limits.head_bytes)
        self._is_head = False

    async def run(self) -> None:
        for _ in range(self._limits.requests_per_connection):
            try:
                request = await self._next_head()
                if request is None:
                    return
                target = target_of(request)
                page = self._proxy.page(target)
                farm = None if page is not None else self._proxy.farms.of(target)
            except h11.RemoteProtocolError as error:
                await self._reject(HTTPStatus(error.error_status_hint), f"this is not HTTP/1.1: {error}")
                return
            except HeadError as error:
                await self._reject(error.status, str(error))
                return
            if page is not None:
                await self._reply(page)
            if farm is None or not await self._serve_request(request, target, farm):
                return
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                await self._linger()
                return
            self._http.start_next_cycle()

    async def _serve_request(self, request: h11.Request, target: Target, farm: StreamOpener) -> bool:
        """Forward a request or a tunnel; return True if the connection may have another request."""
        try:
            leaf = await farm.open_stream(is_quick=request.method in _SAFE_METHODS)
        except ConnectError as error:
            self._listeners.failed(str(error))
            fields = (("Retry-After", str(RETRY_AFTER_S)),)
            await self._reply(_error_page(HTTPStatus.SERVICE_UNAVAILABLE, str(error), fields))
            return False
        async with leaf:
            if target.form is TargetForm.TUNNEL:
                await self._tunnel(leaf, has_frames=self._proxy.has_frames(request))
                return False
            self._listeners.counters[ListenerCount.REQUESTS] += 1
            exchange = _Exchange(self._stream, self._http, leaf, self._limits)
            await exchange.run(request_head(request, target, farm.address))
        if exchange.error is not None:
            if exchange.error.is_of_leaf:
                self._listeners.failed(exchange.error.text)
            if exchange.has_begun:
                # An orderly end could look like the end of the response.
                await reset(self._stream)
            else:
                await self._reply(_error_page(exchange.error.status, exchange.error.text))
        return exchange.is_complete

    async def _next_head(self) -> h11.Request | None:
        """Return the next head; None if the client closed its connection, or does not send a head in time."""
        with trio.move_on_after(self._limits.idle_s) as scope:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some(PART_BYTES)))
                scope.deadline = min(scope.deadline, trio.current_time() + self._limits.head_s)
            if isinstance(event, h11.Request):
                self._is_head = event.method == b"HEAD"
                return event
        return None

    async def _tunnel(self, leaf: trio.abc.HalfCloseableStream, *, has_frames: bool) -> None:
        self._listeners.counters[ListenerCount.TUNNELS] += 1
        self._http.next_event()  # The end of a request without a body.
        fields = [(FRAMES_FIELD, FRAMES_VERSION)] if has_frames else []
        established = h11.Response(status_code=200, headers=fields, reason=b"Connection established")
        await self._send(established)
        client = FrameSender(self._stream) if has_frames else self._stream
        try:
            await forward(client, leaf, self._http.trailing_data[0])
        except trio.BrokenResourceError as error:
            self._listeners.failed(failure_text(error))
            if isinstance(client, FrameSender):
                with trio.move_on_after(self._limits.step_s):
                    await client.fail(failure_text(error))
            await reset(self._stream)

    async def _reject(self, status: HTTPStatus, text: str) -> None:
        self._listeners.counters[ListenerCount.REQUESTS_REJECTED] += 1
        await self._reply(_error_page(status, text))

    async def _reply(self, page: Page) -> None:
        """Send a reply of this program and close: the body of the request may be unread."""
        fields = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
            *page.fields,
        ]
        await self._send(h11.Response(status_code=page.status, headers=fields, reason=page.status.phrase.encode()))
        if not self._is_head:
            await self._send(h11.Data(data=page.body))
        await self._send(h11.EndOfMessage())
        await self._linger()

    async def _send(self, event: h11.Event) -> None:
        await _send(self._stream, self._http, event, self._limits.step_s)

    async def _linger(self) -> None:
        """Read the client's remaining data: closing with unread bytes would discard the reply."""
        await self._stream.send_eof()
        with trio.move_on_after(self._limits.linger_s):
            while await self._stream.receive_some(PART_BYTES):
                pass


class _Exchange:
    def __init__(
        self,
        client: trio.abc.HalfCloseableStream,
        client_http: h11.Connection,
        leaf: trio.abc.Stream,
        limits: ProxyLimits,
    ) -> None:
        self._client = client
        self._client_http = client_http
        self._leaf = leaf
        self._leaf_http = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.head_bytes)
        self._limits = limits
        self._scope = trio.CancelScope()
        self.has_begun = False
        """True if the client has received a part of the response."""
        self.is_complete = False
        self.error: _ExchangeError | None = None
        """The reason of an incomplete exchange; None if the client closed its connection."""

    async def run(self, head: h11.Request) -> None:
        """Forward the request and the response until the response is complete, or one side fails."""
        if self._client_http.they_are_waiting_for_100_continue:
            await self._to_client(h11.InformationalResponse(status_code=100, headers=[]))
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_request, head)
                await self._receive_response()
                self._scope.cancel()

    async def _send_request(self, head: h11.Request) -> None:
        """Send the head and the body; then watch for a client that closes its connection."""
        event: h11.Event | None = head
        while event is not None:
            try:
                await _send(self._leaf, self._leaf_http, event, self._limits.response_s)
            except (trio.BrokenResourceError, trio.TooSlowError):
                return  # The response may have begun: reading it shows the error of the stream.
            if isinstance(event, h11.EndOfMessage):
                await self._watch_client()
                return
            event = await self._next_of_client()

    async def _next_of_client(self) -> h11.Event | None:
        """Return the next part of the request's body; None at an error, which ends the exchange."""
        try:
            while (event := self._client_http.next_event()) is h11.NEED_DATA:
                with trio.fail_after(self._limits.step_s):
                    self._client_http.receive_data(bytes(await self._client.receive_some(PART_BYTES)))
        except h11.RemoteProtocolError as error:
            self._end(_ExchangeError(HTTPStatus.BAD_REQUEST, f"the body of the request is not HTTP/1.1: {error}"))
        except trio.TooSlowError:
            text = f"the body of the request did not continue for {self._limits.step_s:g} s"
            self._end(_ExchangeError(HTTPStatus.REQUEST_TIMEOUT, text))
        except trio.BrokenResourceError:
            self._end(None)
        else:
            # The fields of a trailer are not forwarded.
            return event if isinstance(event, h11.Data) else h11.EndOfMessage()
        return None

    async def _watch_client(self) -> None:
        """End the exchange when the client closes its connection, as it does when a user stops a page."""
        if self._client_http.trailing_data[0]:
            return  # The next request, which is read after this response.
        try:
            data = await self._client.receive_some(PART_BYTES)
        except trio.BrokenResourceError:
            data = b""
        if data:
            self._client_http.receive_data(bytes(data))
        else:
            self._end(None)

    async def _receive_response(self) -> None:
        try:
            while True:
                event = self._leaf_http.next_event()
                if event is h11.NEED_DATA:
                    with trio.fail_after(self._limits.response_s):
                        self._leaf_http.receive_data(bytes(await self._leaf.receive_some(PART_BYTES)))
                elif isinstance(event, h11.Response):
                    fields = response_fields(event)
                    await self._to_client(
                        h11.Response(status_code=event.status_code, headers=fields, reason=event.reason)
                    )
                elif isinstance(event, h11.Data):
                    await self._to_client(event)
                elif isinstance(event, h11.EndOfMessage):
                    await self._to_client(h11.EndOfMessage())
                    self.is_complete = True
                    return
                # Informational responses are not forwarded.
        except h11.ProtocolError as error:
            self._end_by_leaf(HTTPStatus.BAD_GATEWAY, f"the reply of the leaf is not HTTP/1.1: {error}; {_REMEDY}")
        except LeafSilentError as error:
            self._end_by_leaf(HTTPStatus.GATEWAY_TIMEOUT, str(error))
        except trio.TooSlowError:
            text = f"the leaf did not continue its response for {self._limits.response_s:g} s; {_REMEDY}"
            self._end_by_leaf(HTTPStatus.GATEWAY_TIMEOUT, text)
        except trio.BrokenResourceError as error:
            self._end_by_leaf(HTTPStatus.BAD_GATEWAY, failure_text(error))

    async def _to_client(self, event: h11.Event) -> None:
        self.has_begun |= isinstance(event, h11.Response)
        try:
            await _send(self._client, self._client_http, event, self._limits.step_s)
        except trio.TooSlowError:
            text = f"the client did not read the response for {self._limits.step_s:g} s"
            self._end(_ExchangeError(HTTPStatus.REQUEST_TIMEOUT, text))
        except trio.BrokenResourceError:
            self._end(None)

    def _end_by_leaf(self, status: HTTPStatus, text: str) -> None:
        self._end(_ExchangeError(status, text, is_of_leaf=True))

    def _end(self, error: "_ExchangeError | None") -> None:
        if not self._scope.cancel_called:
            self.error = error
            self._scope.cancel()


class _ExchangeError(Struct, frozen=True):
    """The reason of an incomplete exchange, and the status of the reply if the response has not begun."""

    status: HTTPStatus
    text: str
    is_of_leaf: bool = False


async def _send(stream: trio.abc.SendStream, http: h11.Connection, event: h11.Event, within_s: float) -> None:
    with trio.fail_after(within_s):
        await stream.send_all(http.send(event) or b"")


def _error_page(status: HTTPStatus, text: str, fields: tuple[tuple[str, str], ...] = ()) -> Page:
    return Page(f"{status} {status.phrase}\n\n{text}\n".encode(), status=status, fields=fields)
