"""What the control endpoint answers: a request in, one answer out (`docs/reference/control-endpoint.md`).

    GET  /v1/view                                   the whole FarmView
    GET  /v1/cluster                                who leads and where, who votes
    GET  /v1/log?from=N&limit=M&wait=MS             committed entries; waits for the first new one; `linearizable=1`
    GET  /v1/events?from=CURSOR&limit=M&wait=MS     the trace; waits likewise
    GET  /metrics                                   Prometheus text
    GET  /readyz, /healthz                          whether the farm does its work; whether this process works
    GET  /v1/stream?from=CURSOR                     view and trace as server-sent events (`bridge.node.control.stream`)
    GET  /                                          a page that shows them, if an operator wants it
    GET  /v1/log-time                               the farm's time, and the servers' clocks
    POST /v1/submit?request=ID                      one entry for the log
    POST /v1/commands?check=1                         exclude a leaf, weigh it, publish anew, remove a server; log time
    POST /v1/event, /v1/query                       a user event to all nodes; a query, and what the nodes answer
    POST /v1/leave, /v1/withdraw                    goodbye; a founder's promise taken back
    POST /v1/confirm-cluster                        the cluster of this id is this node's farm
    POST /v1/transfer                               leadership handed to another node
    GET  /v1/keys                                   the ids of the farm's gossip keys, and which members have them
    GET  /v1/nodes, POST /v1/nodes/approve, evict   who belongs to the farm (`bridge.node.control.identity_admin`)
    POST /v1/debug?seconds=N                        settings, versions, a profile (`bridge.node.control.debugging`)
    POST /v1/backup                                 what the farm agreed on, as the bytes of a backup file
    POST /v1/keys/install, use, remove, export      changes of the key ring; the current farm key file (secret)

The routes know nothing of sockets, and of the node only its `NodePort`. Every refusal is JSON `{"error": {"code": …,
"text": …}}`, whose text says what was wrong and what would be right.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
import trio
from msgspec import Struct

from bridge.api.control import (
    WAIT_LIMIT_MS,
    CheckedAnswer,
    ConfirmedAnswer,
    EventAnswer,
    FarmKeyAnswer,
    HealthAnswer,
    KeyAnswer,
    LeaderAnswer,
    LeavingAnswer,
    ReadyAnswer,
    RefusalAnswer,
    RefusalView,
    Refused,
    SubmitOutcome,
    WithdrawnAnswer,
)
from bridge.api.json import DocumentError, RequestBody, decode, encode
from bridge.api.requests import ConfirmClusterRequest, EventRequest, KeyRequest, QueryRequest, TransferRequest
from bridge.node.control.access import Access
from bridge.node.control.node_port import NodePort
from bridge.node.control.stream import STREAM_TYPE, EventStream
from consensus.sessions import RequestId, parse_request_id

LOG = logging.getLogger(__name__)

PAGE_LIMIT = 1000
PAGE_DEFAULT = 100
QUERY_LIMIT_FIELDS = 8
_PAGE = {"from": 1, "limit": PAGE_DEFAULT, "wait": 0}
NUMBER_LIMIT = 2**63 - 1
_KEY_STEP = 'expected {"key": ID, "force": false}'

B = TypeVar("B", bound=RequestBody)

JSON_TYPE = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OUTCOME_STATUS = {
    SubmitOutcome.COMMITTED: 200,
    SubmitOutcome.REFUSED: 409,
    SubmitOutcome.BUSY: 503,
    SubmitOutcome.UNKNOWN: 504,
    SubmitOutcome.EXPIRED: 410,
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request of which everything has been received."""

    method: str
    target: str
    body: bytes = b""
    access: Access = Access.ADMIN


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    following: Callable[[], Awaitable[bytes]] | None = None
    """Gives the next part, when there is one: such an answer goes on until the client ends the connection."""


Handler = Callable[[Request, str], Awaitable[Answer]]


def refusal(status: int, code: str, text: str) -> Answer:
    """The answer to what is refused."""
    return Answer(status, encode(RefusalAnswer(RefusalView(code, text))))


def new_counters() -> dict[str, int]:
    """What the control endpoint counts; its server, its routes and the view share one."""
    return dict.fromkeys(
        (
            "control_connections",
            "control_connections_refused",
            "control_connections_broken",
            "control_unauthorized",
            "control_requests",
            "control_refused",
            "control_internal_errors",
        ),
        0,
    )


class Routes:
    """Answers requests out of a `NodePort`."""

    def __init__(
        self,
        port: NodePort,
        more: Mapping[str, tuple[str, Handler]] | None = None,
        counters: dict[str, int] | None = None,
    ) -> None:
        """`more`: routes that other parts of the node answer. `counters`: of `new_counters`."""
        self._port = port
        self.counters = new_counters() if counters is None else counters
        self._handlers: dict[str, tuple[str, Handler]] = {
            "/v1/view": ("GET", self._view),
            "/v1/cluster": ("GET", self._cluster),
            "/v1/log": ("GET", self._log),
            "/v1/events": ("GET", self._events),
            "/metrics": ("GET", self._metrics),
            "/healthz": ("GET", self._healthz),
            "/readyz": ("GET", self._readyz),
            "/v1/stream": ("GET", self._stream),
            "/v1/log-time": ("GET", self._log_time),
            "/v1/submit": ("POST", self._submit),
            "/v1/commands": ("POST", self._command),
            "/v1/event": ("POST", self._event),
            "/v1/query": ("POST", self._query),
            "/v1/leave": ("POST", self._leave),
            "/v1/withdraw": ("POST", self._withdraw),
            "/v1/confirm-cluster": ("POST", self._confirm_cluster),
            "/v1/transfer": ("POST", self._transfer),
            "/v1/keys": ("GET", self._keys),
            "/v1/keys/install": ("POST", self._install_key),
            "/v1/keys/use": ("POST", self._use_key),
            "/v1/keys/remove": ("POST", self._remove_key),
            "/v1/keys/export": ("POST", self._export_keys),
            **(more or {}),
        }

    async def answer(self, request: Request) -> Answer:
        """The one answer to a request. A bug behind the port costs this request, never the node."""
        self.counters["control_requests"] += 1
        try:
            return await self._route(request)
        except Refused as refused:
            self.counters["control_refused"] += 1
            return refusal(refused.status, refused.code, str(refused))
        except Exception:
            self.counters["control_internal_errors"] += 1
            LOG.exception("the control endpoint failed at %s %s", request.method, request.target)
            return refusal(500, "internal", "the node failed to answer this; its own log has the details")

    async def _route(self, request: Request) -> Answer:
        try:
            parts = urlsplit(request.target)
        except ValueError as error:
            raise Refused(400, "bad-target", f"the request's target does not parse: {error}") from error
        wanted, handler = self._handlers.get(parts.path, (None, None))
        if handler is None:
            raise Refused(404, "no-such-path", f"no {parts.path[:80]!r} here; there are {', '.join(self._handlers)}")
        if wanted != ("GET" if request.method == "HEAD" else request.method):
            raise Refused(405, "wrong-method", f"{parts.path} takes {wanted}, not {request.method}")
        if wanted != "GET" and request.access < Access.ADMIN:
            raise Refused(403, "forbidden", "this token only reads; use the one in the node's control.admin.token")
        return await handler(request, parts.query)

    async def _view(self, _request: Request, _query: str) -> Answer:
        return json_answer(await self._port.view())

    async def _cluster(self, _request: Request, _query: str) -> Answer:
        return json_answer(await self._port.cluster())

    async def _log(self, _request: Request, query: str) -> Answer:
        asked = numbers_of(query, {**_PAGE, "linearizable": 0})
        first, limit, wait_ms = _page(asked)
        return json_answer(await self._port.read_log(first, limit, wait_ms, linearizable=asked["linearizable"] > 0))

    async def _events(self, _request: Request, query: str) -> Answer:
        cursor, limit, wait_ms = _page(numbers_of(query, _PAGE))
        return json_answer(await self._port.read_events(cursor, limit, wait_ms))

    async def _stream(self, request: Request, query: str) -> Answer:
        asked = numbers_of(query, {"from": 1})
        if request.method == "HEAD":
            return Answer(200, b"", STREAM_TYPE)
        return Answer(200, b"", STREAM_TYPE, following=EventStream(self._port, max(1, asked["from"])).next)

    async def _metrics(self, _request: Request, _query: str) -> Answer:
        # Its library takes 2.4 MB, which a node without a scraper need not spend.
        # It takes long to import as well, and a thread lets the event loop have its turns meanwhile.
        module = await trio.to_thread.run_sync(import_module, "bridge.node.control.metrics")
        exposition: Callable[..., bytes] = module.exposition
        return Answer(200, exposition(await self._port.view(), self.counters, self._port.durations()), METRICS_TYPE)

    async def _healthz(self, _request: Request, _query: str) -> Answer:
        reasons = self._port.stuck()
        return json_answer(HealthAnswer(not reasons, reasons, await self._port.verdict()), 503 if reasons else 200)

    async def _readyz(self, _request: Request, _query: str) -> Answer:
        verdict = await self._port.verdict()
        return json_answer(ReadyAnswer(verdict.ready, verdict), 200 if verdict.ready else 503)

    async def _submit(self, request: Request, query: str) -> Answer:
        answer = await self._port.submit(_entry(request.body), _request_id(query))
        return json_answer(answer, OUTCOME_STATUS[answer.outcome])

    async def _command(self, request: Request, query: str) -> Answer:
        if is_check(query):
            await self._port.check_command(request.body)
            return json_answer(CheckedAnswer())
        return json_answer(await self._port.command(request.body))

    async def _log_time(self, _request: Request, _query: str) -> Answer:
        return json_answer(await self._port.log_time())

    async def _event(self, request: Request, _query: str) -> Answer:
        asked = body_of(request, EventRequest, 'expected {"name": NAME, "payload": TEXT}')
        self._port.messages.send(asked.name, asked.payload)
        return json_answer(EventAnswer(asked.name))

    async def _query(self, request: Request, _query: str) -> Answer:
        asked = body_of(request, QueryRequest, 'expected {"name": NAME, "payload": TEXT, "timeoutMs": 5000}')
        return json_answer(await self._port.messages.ask(asked.name, asked.payload, asked.timeout_ms / 1000))

    async def _leave(self, _request: Request, _query: str) -> Answer:
        await self._port.leave()
        return json_answer(LeavingAnswer(leaving=True), 202)

    async def _withdraw(self, _request: Request, _query: str) -> Answer:
        reason = await self._port.withdraw()
        if reason is not None:
            raise Refused(409, "not-withdrawn", reason)
        return json_answer(WithdrawnAnswer(withdrawn=True))

    async def _confirm_cluster(self, request: Request, _query: str) -> Answer:
        asked = body_of(request, ConfirmClusterRequest, 'the body is {"clusterId": 32 hexadecimal digits}')
        reason = await self._port.confirm_cluster(bytes.fromhex(asked.cluster_id))
        if reason is not None:
            raise Refused(409, "not-confirmed", reason)
        return json_answer(ConfirmedAnswer(asked.cluster_id))

    async def _transfer(self, request: Request, _query: str) -> Answer:
        asked = body_of(request, TransferRequest, 'the body is {"to": NODE}, or nothing', empty=b"{}")
        return json_answer(LeaderAnswer(await self._port.transfer(asked.to)))

    async def _keys(self, _request: Request, _query: str) -> Answer:
        return json_answer(await self._port.keys.listing())

    async def _install_key(self, _request: Request, _query: str) -> Answer:
        return json_answer(KeyAnswer(await self._port.keys.install()))

    async def _use_key(self, request: Request, _query: str) -> Answer:
        step = body_of(request, KeyRequest, _KEY_STEP)
        await self._port.keys.use(step.key, force=step.force)
        return json_answer(KeyAnswer(step.key))

    async def _remove_key(self, request: Request, _query: str) -> Answer:
        step = body_of(request, KeyRequest, _KEY_STEP)
        await self._port.keys.remove(step.key, force=step.force)
        return json_answer(KeyAnswer(step.key))

    async def _export_keys(self, _request: Request, _query: str) -> Answer:
        return json_answer(FarmKeyAnswer(await self._port.keys.export()))


def json_answer(document: Struct, status: int = 200) -> Answer:
    """A document as an answer."""
    return Answer(status, encode(document))


def is_check(query: str) -> bool:
    """Return True if an order is only to be judged: a user is not asked about what would be refused."""
    return numbers_of(query, {"check": 0})["check"] > 0


def body_of(request: Request, kind: type[B], expected: str, *, empty: bytes = b"") -> B:
    """What a client asks for; `Refused` says what was `expected`. A body without a byte stands for `empty`."""
    try:
        return decode(request.body or empty, kind)
    except DocumentError as error:
        raise Refused(400, "bad-request", f"{expected}: {error}") from error


def _fields(query: str, names: Iterable[str]) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=QUERY_LIMIT_FIELDS)
    except ValueError as error:
        raise Refused(400, "bad-query", f"the query does not parse: {error}") from error
    for name, _ in pairs:
        if name not in names:
            raise Refused(400, "bad-query", f"no parameter {name[:40]!r}; there are {', '.join(names)}")
    return pairs


def _request_id(query: str) -> RequestId | None:
    named = None
    for _, text in _fields(query, ("request",)):
        named = parse_request_id(text)
        if named is None:
            what = "CLIENT-BORN-SEQUENCE: a name of 1 to 64 bytes, a committed index seen before, a number from 1 on"
            raise Refused(400, "bad-query", f"request is {text[:100]!r}, not {what}")
    return named


def numbers_of(query: str, defaults: Mapping[str, int]) -> dict[str, int]:
    """The numbers of a query, each with its default; `Refused` says which parameters there are."""
    numbers = dict(defaults)
    for name, text in _fields(query, numbers):
        if not (
            text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_LIMIT)) and int(text) <= NUMBER_LIMIT
        ):
            raise Refused(400, "bad-query", f"{name} is {text[:40]!r}, not a number from 0 on")
        numbers[name] = int(text)
    return numbers


def _page(numbers: Mapping[str, int]) -> tuple[int, int, int]:
    return max(1, numbers["from"]), min(numbers["limit"], PAGE_LIMIT), min(numbers["wait"], WAIT_LIMIT_MS)


def _entry(body: bytes) -> bytes:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(400, "bad-entry", f"an entry is one JSON object; this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(400, "bad-entry", f"an entry is one JSON object, this is a {type(found).__name__}")
    return body
