"""Dispatch of the requests to the control endpoint: route, rights, parameters and body, then one handler.

    Request ──▶ its route (`bridge.api.control_routes`) ──▶ access ──▶ query ──▶ body ──▶ Call ──▶ handler ──▶ Answer

The handlers belong to other modules, such as `FarmAdmin`, `IdentityAdmin` and `KeyAdmin`. Each takes a `Call` and
returns a document, or an `Answer` for another status or content. This module does not depend on sockets or on the node.
Every refusal is JSON `{"error": {"code": …, "text": …}}`, whose text contains the fault and the correct form.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct, field

from bridge.api.control import RefusalAnswer, RefusalView, Refused
from bridge.api.control_routes import Access, Route
from bridge.api.json import DocumentError, RequestBody, decode, encode
from consensus import CountedReason

LOG = logging.getLogger(__name__)

QUERY_LIMIT_FIELDS = 8
NUMBER_LIMIT = 2**63 - 1
JSON_TYPE = "application/json"
B = TypeVar("B")


class Request(Struct, frozen=True):
    """A completely received request."""

    method: str
    target: str
    body: bytes = b""
    access: Access = Access.ADMIN


class Answer(Struct, frozen=True):
    """The reply to a request."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    next_part: Callable[[], Awaitable[bytes]] | None = None
    """Waits for the next part and returns it.

    A reply with this function continues until the client closes the connection.
    """


class Call(Struct, Generic[B], frozen=True):
    """A request that has passed all checks of its route."""

    request: Request
    body: B
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The numeric parameters of the route."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The other parameters in the query."""


Handlers = Mapping[Route[Any], Callable[[Call[Any]], Awaitable[Struct | Answer]]]


def refusal(status: int, code: str, text: str) -> Answer:
    """Return the reply that refuses a request."""
    return Answer(status, encode(RefusalAnswer(RefusalView(code, text))))


class ControlEvent(CountedReason):
    """Counters of the control endpoint."""

    CONNECTIONS = (
        "control_connections",
        "Connections by the socket and over TCP. It grows with each command and each scrape",
    )
    CONNECTIONS_BROKEN = (
        "control_connections_broken",
        "Connections that broke a rule of HTTP, or timed out in a handshake or a reply. It grows with port scanners",
    )
    CONNECTIONS_REFUSED = (
        "control_connections_refused",
        "Connections without a free place. If it grows, close the TCP port to unknown programs by the firewall",
    )
    INTERNAL_ERRORS = (
        "control_internal_errors",
        "Requests that failed by a fault of the program. It must stay 0: report the traceback in the log of the node",
    )
    REFUSED = (
        "control_refused",
        "Requests refused with a reason, which the client receives. It does not need a remedy here",
    )
    REQUESTS = "control_requests", "Answered requests. It grows with each command, scrape and view"
    UNAUTHORIZED = (
        "control_unauthorized",
        "Requests over TCP without a valid token, and connections of other users to the socket. Look for that program",
    )


def new_counters() -> Counter[ControlEvent]:
    """Return the counters of the control endpoint, which its server, its routes and the view share."""
    return Counter(dict.fromkeys(ControlEvent, 0))


class Routes:
    """The dispatcher of requests to handlers."""

    def __init__(self, handlers: Handlers, counters: Counter[ControlEvent] | None = None) -> None:
        self.counters = new_counters() if counters is None else counters
        self._handlers = {route.path: (route, handler) for route, handler in handlers.items()}

    async def answer(self, request: Request) -> Answer:
        """Return the reply to a request.

        An unexpected error in a handler fails this request and does not end the node.
        """
        self.counters[ControlEvent.REQUESTS] += 1
        try:
            return await self._route(request)
        except Refused as refused:
            self.counters[ControlEvent.REFUSED] += 1
            return refusal(refused.status, refused.code, str(refused))
        except Exception:
            self.counters[ControlEvent.INTERNAL_ERRORS] += 1
            LOG.exception("the control endpoint failed at %s %s", request.method, request.target)
            return refusal(500, "internal", "the node failed to answer this; its own log has the details")

    async def _route(self, request: Request) -> Answer:
        try:
            parts = urlsplit(request.target)
        except ValueError as error:
            raise Refused(400, "bad-target", f"the request's target does not parse: {error}") from error
        route, handler = self._handlers.get(parts.path, (None, None))
        if route is None or handler is None:
            raise Refused(404, "no-such-path", f"no {parts.path[:80]!r} here; there are {', '.join(self._handlers)}")
        if route.method != ("GET" if request.method == "HEAD" else request.method):
            raise Refused(405, "wrong-method", f"{parts.path} takes {route.method}, not {request.method}")
        if request.access < route.access:
            raise Refused(403, "forbidden", "this token only reads; use the one in the node's control.admin.token")
        numbers, texts = parameters_of(route, parts.query)
        found = await handler(Call(request, body_of(route, request.body), numbers, texts))
        return found if isinstance(found, Answer) else json_answer(found, route.status)


def body_of(route: Route[Any], body: bytes) -> RequestBody | None:
    """Return the decoded body of a request; raise `Refused` with its form."""
    if route.body is None:
        return None
    try:
        return decode(body or route.empty, route.body)
    except DocumentError as error:
        raise Refused(400, "bad-request", f"{route.expected}: {error}") from error


def json_answer(document: Struct, status: int = 200) -> Answer:
    """Return a document as a reply."""
    return Answer(status, encode(document))


def parameters_of(route: Route[Any], query: str) -> tuple[dict[str, int], dict[str, str]]:
    """Return the numeric parameters of a route, and the text parameters in the query; refuse unknown parameters."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=QUERY_LIMIT_FIELDS)
    except ValueError as error:
        raise Refused(400, "bad-query", f"the query does not parse: {error}") from error
    numbers, texts = dict(route.numbers), dict[str, str]()
    for name, text in pairs:
        if name in numbers:
            numbers[name] = _number(name, text)
        elif name in route.texts:
            texts[name] = text
        else:
            known = ", ".join((*route.numbers, *route.texts)) or "none"
            reason = f"{route.path} does not have a parameter {name[:40]!r}; its parameters: {known}"
            raise Refused(400, "bad-query", reason)
    return numbers, texts


def _number(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_LIMIT)) and int(text) <= NUMBER_LIMIT:
        return int(text)
    raise Refused(400, "bad-query", f"{name} is {text[:40]!r}, not a number from 0 to {NUMBER_LIMIT}")
