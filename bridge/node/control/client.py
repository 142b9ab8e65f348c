"""The client of the control endpoint, for the command line, the terminal view and `up`.

One connection is kept, for one request at a time. If the node has closed it, the request is repeated once on a new
connection. That applies only to requests without effect: a submission without a reply is never repeated. Every failure
is a `ControlError`, with a text for the operator.

Before a request on a socket, `bridge.node.control.connections` checks the user of the listening process. The process
must belong to this user or to root. If this user is root, it may also belong to the user of the packages' service. So
no other user can offer a false socket and read the requests.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlencode

from msgspec import Struct

from bridge.api import control_routes as routes
from bridge.api.control import WAIT_LIMIT_MS, CheckedAnswer, ClusterAnswer, RefusalAnswer, SubmitAnswer
from bridge.api.control_routes import Route
from bridge.api.json import DOCUMENT_LIMIT_BYTES, DocumentError, RequestBody, decode, encode
from bridge.api.log import LogPage
from bridge.api.trace import EventPage, TraceEvent
from bridge.api.view import FarmView
from bridge.node.control.connections.connection import (
    Connection,
    ConnectionLostError,
    HttpRequest,
    NoReplyError,
)
from bridge.node.control.connections.connection import ControlError as ControlError  # noqa: PLC0414 - the error of this client
from bridge.node.control.connections.connection import RefusalError as RefusalError  # noqa: PLC0414 - as above
from bridge.node.control.connections.node_address import READ_TOKEN, NodeAddress, RemoteNode
from bridge.node.security.local_trust import ConnectedSocket, peer_user_id
from bridge.wire.keys.backup import BACKUP_LIMIT_BYTES
from consensus.net import time_for

ANSWER_TIMEOUT_S = 5.0
"""Seconds for a request that the node serves from its memory."""
ORDER_TIMEOUT_S = 30.0
"""Timeout in seconds for a request that needs other nodes.

The client first sends a short request, which detects a stopped or hanging node earlier.
"""
NO_QUERY: Mapping[str, int] = MappingProxyType({})
DONE = frozenset({200, 202})
REFUSED = range(400, 500)
UNAUTHORIZED = 401
SUBMIT_STATUSES = frozenset({200, 409, 410, 503, 504})

T = TypeVar("T")
A = TypeVar("A", bound=Struct)


class ControlClient:
    """A client of the node at one address. An async context manager; not for several tasks at a time."""

    def __init__(
        self,
        address: NodeAddress,
        timeout_s: float = ANSWER_TIMEOUT_S,
        user_of: Callable[[ConnectedSocket], int | None] = peer_user_id,
        *,
        order_timeout_s: float = ORDER_TIMEOUT_S,
        connection: Callable[[], Connection] | None = None,
    ) -> None:
        """Set the address; `user_of` returns the user of the process that listens on a connected socket.

        `connection` makes a connection; the default one needs trio's event loop.
        """
        self._open = connection or partial(_async_connection, address, user_of)
        self.address = address
        self._timeout_s = timeout_s
        self._order_timeout_s = order_timeout_s
        self._has_answered = False
        self._connection = self._open()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        await self._connection.aclose()

    async def call(self, route: Route[A], body: RequestBody | None = None, query: Mapping[str, int] = NO_QUERY) -> A:
        """Send a request and return its answer; raise `ControlError` with the reason of a refusal."""
        return decode(await self._bytes(route, body, query), route.answer)

    async def view(self) -> FarmView:
        """Return the node's present view of the farm."""
        return await self.call(routes.VIEW)

    async def cluster(self) -> ClusterAnswer:
        """Return the leader and the voters."""
        return await self.call(routes.CLUSTER)

    async def log(self, first: int = 1, limit: int = 100, wait_ms: int = 0, *, linearizable: bool = False) -> LogPage:
        """Return committed entries from `first` on.

        With `linearizable` they include all entries acknowledged before the request.
        """
        query = _paged(first, limit, wait_ms) | ({"linearizable": 1} if linearizable else {})
        return await self.call(routes.LOG, query=query)

    async def events(self, cursor: int = 1, limit: int = 100, wait_ms: int = 0) -> EventPage:
        """Return the events from `cursor` on."""
        return await self.call(routes.EVENTS, query=_paged(cursor, limit, wait_ms))

    async def has_event(self, event: TraceEvent) -> bool:
        """Return True if the node recorded this event since its start.

        The result is also True if the trace has lost events from this cursor on: the event may be one of them.
        """
        page = await self.events(event.cursor, 1)
        return page.lost > 0 or event in page.events

    async def metrics(self) -> str:
        """Return the metrics as Prometheus text."""
        return (await self._bytes(routes.METRICS)).decode()

    async def submit(self, entry: bytes, request: str | None = None) -> SubmitAnswer:
        """Submit an application entry; return the outcome, even if it is a refusal.

        Raise `ControlError` without a reply. Entries with the same `request` (a request id) are applied once, even if
        they are submitted through several nodes.
        """
        target = _target(routes.SUBMIT, {"request": request} if request else {})
        status, body = await self.request("POST", target, entry)
        if status in SUBMIT_STATUSES and _refusal(body) is None:
            return decode(body, SubmitAnswer)
        raise self._refused(status, body)

    async def check(self, route: Route[CheckedAnswer], order: RequestBody | None) -> None:
        """Raise `ControlError` if the node would refuse this order; `route` only checks the order.

        A node of an earlier version does not have this check: it refuses the order only after receiving the order.
        """
        status, body = await self.request("POST", route.path, b"" if order is None else encode(order))
        if status in REFUSED and not _lacks_check(body):
            raise self._refused(status, body)

    async def backup(self) -> bytes:
        """Return the bytes of a backup file. It is not JSON, and has a higher size limit."""
        status, answer = await self.request(routes.BACKUP.method, routes.BACKUP.path, limit_bytes=BACKUP_LIMIT_BYTES)
        if status not in DONE:
            raise self._refused(status, answer)
        return answer

    async def _bytes(
        self, route: Route[Any], body: RequestBody | None = None, query: Mapping[str, int] = NO_QUERY
    ) -> bytes:
        try:
            sent = b"" if body is None else encode(body)
        except UnicodeEncodeError as error:
            text = f"{error.object} is not valid text in this locale: write it in UTF-8, and set LC_ALL=C.UTF-8"
            raise ControlError(text) from error
        status, answer = await self.request(route.method, _target(route, query), sent)
        if status not in DONE:
            raise self._refused(status, answer)
        return answer

    def _refused(self, status: int, body: bytes) -> ControlError:
        text = _refusal(body)
        if text is None:
            return ControlError(f"the node at {self.address} answered {status} and gave no reason")
        kind = RefusalError if status in REFUSED else ControlError
        return kind(f"the node refused: {text}")

    async def request(
        self, method: str, target: str, body: bytes = b"", *, limit_bytes: int = DOCUMENT_LIMIT_BYTES
    ) -> tuple[int, bytes]:
        """Send one request; return status and body of the reply. Raise `ControlError` without a reply.

        A reply that needs other nodes may take long, so its absence does not show early that the node hangs. Therefore
        a node that has not replied yet first receives a short request. If the node hangs, this request fails early, and
        the other one is not sent.
        """
        needs_others = method == "POST" or "linearizable=" in target or target == routes.KEYS.path
        if needs_others and not self._has_answered:
            await self.request("GET", routes.HEALTHZ.path)
        timeout_s = self._order_timeout_s if needs_others else self._timeout_s
        # A request with an effect gets a new connection. If a kept connection closed, the client could not determine if
        # the node had received the request before.
        kept = method == "GET" and self._connection.is_kept
        if not kept:
            await self.aclose()
            self._connection = self._open()
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        if body:
            headers.append(("Content-Type", "application/json"))
        first_s = WAIT_LIMIT_MS / 1000 * ("wait=" in target) + time_for(len(body))
        sent = HttpRequest(method, target, headers, body, timeout_s, first_s, limit_bytes)
        try:
            answer = await self._connection.exchange(sent)
        except NoReplyError as error:
            raise ControlError(self._unanswered(method, timeout_s)) from error
        except ConnectionLostError as error:
            if not kept:
                unknown = "; the result of the request is unknown" if method == "POST" else ""
                lost = f"the node at {self.address} closed the connection without a reply{unknown}"
                raise ControlError(lost) from error
            return await self.request(method, target, body, limit_bytes=limit_bytes)
        self._has_answered = True
        status, _ = answer
        if status == UNAUTHORIZED and isinstance(self.address, RemoteNode):
            raise RefusalError(
                f"the node at {self.address} refuses the token in {self.address.token_file}: copy a token file of that"
                f" node ({READ_TOKEN}), and set --token-file to the copy"
            )
        return answer

    def _unanswered(self, method: str, timeout_s: float) -> str:
        if method != "POST":
            return f"the node at {self.address} does not answer; is it stopped or overloaded?"
        return (
            f"the node at {self.address} received the order, but did not answer within {timeout_s:g} s; the"
            " result of the order is unknown"
        )

    @property
    def _headers(self) -> list[tuple[str, str]]:
        if isinstance(self.address, RemoteNode):
            return [("Host", self.address.authority), ("Authorization", f"Bearer {self.address.token}")]
        return [("Host", "node")]


def _paged(first: int, limit: int, wait_ms: int) -> dict[str, int]:
    return {"from": first, "limit": limit} | ({"wait": wait_ms} if wait_ms else {})


def _target(route: Route[Any], query: Mapping[str, int | str]) -> str:
    return f"{route.path}?{urlencode(query)}" if query else route.path


def _lacks_check(body: bytes) -> bool:
    try:
        return decode(body, RefusalAnswer).error.code == "no-such-path"
    except DocumentError:
        return False


def _refusal(body: bytes) -> str | None:
    """Return the reason of a refusal; None if the request was not refused."""
    try:
        return decode(body, RefusalAnswer).error.text
    except DocumentError:
        return None


def _async_connection(address: NodeAddress, user_of: Callable[[ConnectedSocket], int | None]) -> Connection:
    # Imported here: blocking commands do not need httpcore and trio.
    from bridge.node.control.connections.async_connection import AsyncConnection  # noqa: PLC0415

    return AsyncConnection(address, user_of)


def send_request(
    address: NodeAddress,
    question: Callable[[ControlClient], Awaitable[T]],
    timeout_s: float = ANSWER_TIMEOUT_S,
    order_timeout_s: float = ORDER_TIMEOUT_S,
) -> T:
    """Send requests from code that is not async; `question` may also wait with trio. Each failure is a ControlError."""
    import trio  # noqa: PLC0415 - as above

    async def conversation() -> T:
        async with ControlClient(address, timeout_s, order_timeout_s=order_timeout_s) as client:
            return await question(client)

    with _readable(address):
        return trio.run(conversation)


def call_blocking(
    address: NodeAddress,
    route: Route[A],
    body: RequestBody | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
    order_timeout_s: float = ORDER_TIMEOUT_S,
) -> A:
    """Send one request from code that is not async; an event loop is not needed for a node of this machine."""
    return ask_blocking(address, lambda client: client.call(route, body), timeout_s, order_timeout_s)


def ask_blocking(
    address: NodeAddress,
    question: Callable[[ControlClient], Coroutine[Any, Any, T]],
    timeout_s: float = ANSWER_TIMEOUT_S,
    order_timeout_s: float = ORDER_TIMEOUT_S,
) -> T:
    """Send requests as `call_blocking` does; `question` must not wait with trio."""
    if isinstance(address, RemoteNode):
        return send_request(address, question, timeout_s, order_timeout_s)
    # Imported here: only this function needs the module's parser of replies.
    from bridge.node.control.connections.blocking_connection import BlockingConnection  # noqa: PLC0415

    client = ControlClient(
        address, timeout_s, order_timeout_s=order_timeout_s, connection=partial(BlockingConnection, address)
    )
    with _readable(address):
        return _result(question(client))


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never yields."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(T, ended.value)
    coroutine.close()
    raise RuntimeError("a blocking connection has yielded")


@contextmanager
def _readable(address: NodeAddress) -> Iterator[None]:
    try:
        yield
    except DocumentError as error:
        raise ControlError(f"the node at {address} sent a reply that this version cannot read: {error}") from error
