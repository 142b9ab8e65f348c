"""The client of the control endpoint, for the command line, the terminal view and `up`.

One connection is kept, for one request at a time. If the node has closed it, the request is repeated once on a new one.
That applies only to requests without effect: a submission without a reply is never repeated. Every failure is a
`ControlError`, whose text an operator can act on.

Before a request on a socket, the client checks the user of the listening process. A node runs as this user or as root,
and no other user could have put its socket there (`bridge.node.security.local_trust`). So other users cannot see
requests and replies. On TCP the node shows its certificate before it receives the token
(`bridge.node.control.node_address`).
"""

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import httpcore
import trio
from msgspec import Struct

from bridge.api import control_routes as routes
from bridge.api.control import (
    WAIT_LIMIT_MS,
    ClusterAnswer,
    CommandAnswer,
    KeysAnswer,
    NodeEvicted,
    NodesAnswer,
    QueryAnswer,
    RefusalAnswer,
    SubmitAnswer,
)
from bridge.api.control_routes import Route
from bridge.api.json import DOCUMENT_LIMIT_BYTES, DocumentError, RequestBody, decode, encode
from bridge.api.log import LogPage
from bridge.api.requests import (
    CommandRequest,
    KeyRequest,
    NodeRequest,
    QueryRequest,
    TransferRequest,
)
from bridge.api.trace import EventPage
from bridge.api.view import FarmView
from bridge.node.control.node_address import READ_TOKEN, NodeAddress, RemoteNode
from bridge.node.http_exchange import AnswerTooLongError, exchange
from bridge.node.security.control_socket import socket_address
from bridge.node.security.local_trust import (
    Facts,
    NotConnectedError,
    UntrustedPathError,
    check_control_socket,
    check_node_user,
    facts_about_node,
    peer_user_id,
)
from bridge.wire.keys.backup import BACKUP_LIMIT_BYTES
from consensus.net import TransferTime, time_for

ANSWER_TIMEOUT_S = 5.0
"""Seconds for a request that the node serves from its memory."""
ORDER_TIMEOUT_S = 30.0
"""Seconds for work that the node does together with others. It has replied before, so it runs."""
CONNECT_PAUSE_S = 0.05
NO_QUERY: Mapping[str, int] = MappingProxyType({})
DONE = frozenset({200, 202})
REFUSED = range(400, 500)
UNAUTHORIZED = 401
SUBMIT_STATUSES = frozenset({200, 409, 410, 503, 504})

_LOCAL_ORIGIN = httpcore.Origin(b"http", b"node", 80)

T = TypeVar("T")
A = TypeVar("A", bound=Struct)


class ControlError(Exception):
    """The request failed or was refused; the text contains the reason and the remedy."""


class ControlClient:
    """A client of the node at one address. An async context manager; not for several tasks at a time."""

    def __init__(
        self,
        address: NodeAddress,
        timeout_s: float = ANSWER_TIMEOUT_S,
        user_of: Callable[[trio.socket.SocketType], int | None] = peer_user_id,
        *,
        order_timeout_s: float = ORDER_TIMEOUT_S,
    ) -> None:
        """Set the address; `user_of` returns the user of the process that listens on a connected socket."""
        self._user_of = user_of
        self.address = address
        self._timeout_s = timeout_s
        self._order_timeout_s = order_timeout_s
        self._has_answered = False
        self._tcp = _Tcp()
        self._http = self._new_connection()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        await self._http.aclose()

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
        """Return the trace from `cursor` on."""
        return await self.call(routes.EVENTS, query=_paged(cursor, limit, wait_ms))

    async def metrics(self) -> str:
        """Return the metrics as Prometheus text."""
        return (await self._bytes(routes.METRICS)).decode()

    async def submit(self, entry: bytes, request: str | None = None) -> SubmitAnswer:
        """Have one application entry committed; return any outcome. Raise `ControlError` without a reply.

        With the same `request` (a request id) it is applied once, even if it is submitted again or through another
        node.
        """
        target = _target(routes.SUBMIT, {"request": request} if request else {})
        status, body = await self.request("POST", target, entry)
        if status in SUBMIT_STATUSES and _refusal(body) is None:
            return decode(body, SubmitAnswer)
        raise self._refused(status, body)

    async def command(self, command: CommandRequest) -> CommandAnswer:
        """Have an operator's command carried out; raise `ControlError` with the reason of a refusal."""
        return await self.call(routes.COMMANDS, command)

    async def check(self, route: Route[Any], order: RequestBody) -> None:
        """Raise `ControlError` if the node would refuse this order.

        A node without this check, such as one of an earlier version, judges the order when it arrives.
        """
        status, body = await self.request("POST", _target(route, {"check": 1}), encode(order))
        if status in REFUSED and not _lacks_check(body):
            raise self._refused(status, body)

    async def query(self, query: QueryRequest) -> QueryAnswer:
        """Send a query to all nodes; return when all have replied, or after the query's timeout."""
        return await self.call(routes.QUERY, query)

    async def leave(self) -> None:
        """Have the node leave the farm and stop."""
        await self.call(routes.LEAVE)

    async def transfer(self, to: str | None = None) -> str:
        """Transfer leadership, to the named node if given; return the leader. Raise `ControlError` if it fails."""
        return (await self.call(routes.TRANSFER, TransferRequest(to))).leader

    async def nodes(self) -> NodesAnswer:
        """Return the members of the farm."""
        return await self.call(routes.NODES)

    async def evict_node(self, node: str, *, force: bool = False) -> NodeEvicted:
        """Evict an identity and replace all keys; return the result."""
        return await self.call(routes.NODES_EVICT, NodeRequest(node, force))

    async def backup(self) -> bytes:
        """Return the bytes of a backup file, which is not JSON and may be larger."""
        status, answer = await self.request(routes.BACKUP.method, routes.BACKUP.path, limit_bytes=BACKUP_LIMIT_BYTES)
        if status not in DONE:
            raise self._refused(status, answer)
        return answer

    async def keys(self) -> KeysAnswer:
        """Return the farm's key ring, and the members that have it."""
        return await self.call(routes.KEYS)

    async def install_key(self) -> str:
        """Have every member open a new key; return its id."""
        return (await self.call(routes.KEYS_INSTALL)).key

    async def use_key(self, key: str, *, force: bool = False) -> None:
        """Have every member seal with an installed key."""
        await self.call(routes.KEYS_USE, KeyRequest(key, force))

    async def remove_key(self, key: str, *, force: bool = False) -> None:
        """Have every member refuse a key."""
        await self.call(routes.KEYS_REMOVE, KeyRequest(key, force))

    async def _bytes(
        self, route: Route[Any], body: RequestBody | None = None, query: Mapping[str, int] = NO_QUERY
    ) -> bytes:
        try:
            sent = b"" if body is None else encode(body)
        except UnicodeEncodeError as error:
            raise ControlError(f"{error.object} is not valid text: write it in UTF-8, and try again") from error
        status, answer = await self.request(route.method, _target(route, query), sent)
        if status not in DONE:
            raise self._refused(status, answer)
        return answer

    def _refused(self, status: int, body: bytes) -> ControlError:
        text = _refusal(body)
        if text is None:
            return ControlError(f"the node at {self.address} answered {status} and gave no reason")
        return ControlError(f"the node refused: {text}")

    async def request(
        self, method: str, target: str, body: bytes = b"", *, limit_bytes: int = DOCUMENT_LIMIT_BYTES
    ) -> tuple[int, bytes]:
        """Send one request; return status and body of the reply. Raise `ControlError` without one.

        An order may take long, so a missing reply proves nothing for a while. A node without a previous reply first
        gets a short request: if it hangs, the error comes early, and no order is in progress.
        """
        is_order = method == "POST" or "linearizable=" in target
        if is_order and not self._has_answered:
            await self.request("GET", routes.CLUSTER.path)
        timeout_s = self._order_timeout_s if is_order else self._timeout_s
        # A connection in the middle of a cancelled exchange is not idle. A request with an effect gets a new
        # connection: on a kept one a close before the request could not be distinguished from a close after it.
        kept = method == "GET" and self._http.is_idle() and not self._http.has_expired()
        if not kept:
            await self.aclose()
            self._http = self._new_connection()
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        if body:
            headers.append(("Content-Type", "application/json"))
        origin = self._origin
        url = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=target)
        try:
            wait_s = WAIT_LIMIT_MS / 1000 * ("wait=" in target)
            answer = await self._exchange(method, url, headers, body, wait_s, timeout_s, limit_bytes)
        except trio.TooSlowError as error:
            raise ControlError(self._unanswered(method, timeout_s)) from error
        except AnswerTooLongError as error:
            raise ControlError(f"the node at {self.address} sent {error}") from error
        except httpcore.ConnectError as error:
            raise ControlError(self._not_connected(error)) from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            if not kept:
                unknown = "; the result of the request is unknown" if method == "POST" else ""
                lost = f"the node at {self.address} closed the connection without a reply{unknown}"
                raise ControlError(lost) from error
            return await self.request(method, target, body, limit_bytes=limit_bytes)
        self._has_answered = True
        status, _ = answer
        if status == UNAUTHORIZED and isinstance(self.address, RemoteNode):
            raise ControlError(
                f"the token in {self.address.token_file} is not one of the node at {self.address}: copy a file of that"
                f" node ({READ_TOKEN}), and name it by --token-file"
            )
        return answer

    async def _exchange(
        self,
        method: str,
        url: httpcore.URL,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        wait_s: float,
        timeout_s: float,
        limit_bytes: int,
    ) -> tuple[int, bytes]:
        """Send one request and receive its complete reply, whose bytes extend the time limit."""
        with trio.fail_after(timeout_s + wait_s + time_for(len(body))) as patience:
            transfer = TransferTime(timeout_s)

            def arrived(count: int) -> None:
                transfer.arrived(count, trio.current_time(), patience.deadline)
                patience.deadline = max(patience.deadline, transfer.until_s)

            return await exchange(self._http, method, url, headers, body, limit_bytes, arrived=arrived)

    def _unanswered(self, method: str, timeout_s: float) -> str:
        if isinstance(self.address, RemoteNode) and not self._tcp.is_connected:
            return (
                f"cannot reach a node at {self.address}: no answer to the connection within {timeout_s:g} s; is that"
                " machine on, and does a firewall drop this port?"
            )
        if method != "POST":
            return f"the node at {self.address} does not answer; is it stopped or overloaded?"
        return (
            f"the node at {self.address} took the order and has not answered within {timeout_s:g} s; whether it was"
            " carried out is unknown"
        )

    def _new_connection(self) -> httpcore.AsyncHTTPConnection:
        if isinstance(self.address, RemoteNode):
            self._tcp = _Tcp()
            return httpcore.AsyncHTTPConnection(
                self._origin, ssl_context=self.address.context, network_backend=self._tcp
            )
        backend = _TrustedSocket(self.address, self._user_of)
        return httpcore.AsyncHTTPConnection(self._origin, uds=str(self.address), network_backend=backend)

    @property
    def _origin(self) -> httpcore.Origin:
        if isinstance(self.address, RemoteNode):
            return httpcore.Origin(b"https", self.address.host.encode("idna"), self.address.port)
        return _LOCAL_ORIGIN

    @property
    def _headers(self) -> list[tuple[str, str]]:
        if isinstance(self.address, RemoteNode):
            return [("Host", self.address.authority), ("Authorization", f"Bearer {self.address.token}")]
        return [("Host", "node")]

    def _not_connected(self, error: BaseException) -> str:
        """Return the reason why a node on TCP was not reached; for a socket `_TrustedSocket` reports it."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        match cause:
            case ssl.SSLCertVerificationError():
                return (
                    f"the certificate of {self.address} is refused ({cause.verify_message}): copy the node's file"
                    " control.crt again and name it by --certificate; if it is still refused, another program may"
                    " listen there"
                )
            case socket.gaierror():
                name = _host_of(self.address)
                reason = f"the name {name} cannot be resolved ({cause.strerror or cause}); check its spelling"
            case _:
                reason = connection_failure(error)
        return f"cannot reach a node at {self.address}: {reason}"


def _host_of(address: NodeAddress) -> str:
    return address.host if isinstance(address, RemoteNode) else str(address)


def connection_failure(error: BaseException) -> str:
    """Return the reason of a failed connection from the innermost errors: the outer one only counts attempts."""
    errno_words = {
        ConnectionRefusedError: "it refused the connection; does the node run, with control.listen set?",
        TimeoutError: "no answer to the connection; is that machine on, and does a firewall drop this port?",
        ConnectionResetError: "it reset the connection; does a node listen there, and no other program?",
    }
    found = list(dict.fromkeys(_innermost(error)))
    words = [
        next((text for kind, text in errno_words.items() if isinstance(each, kind)), "")
        or f"{getattr(each, 'strerror', None) or each}; does the node run, with control.listen set?"
        for each in found
    ]
    return "; ".join(dict.fromkeys(words))


def _innermost(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors at the ends of the chain of causes: one for each attempted address."""
    causes = error.exceptions if isinstance(error, BaseExceptionGroup) else (error.__cause__ or error.__context__,)
    known = [each for each in causes if each is not None]
    if not known:
        yield error
    for each in known:
        yield from _innermost(each)


class _Tcp(httpcore.TrioBackend):
    """A backend that records an accepted connection: after it, a missing reply is the node's."""

    def __init__(self) -> None:
        self.is_connected = False

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect, before TLS."""
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        self.is_connected = True
        return stream


class _TrustedSocket(httpcore.TrioBackend):
    """A backend that connects to a node's socket if this user or root has made it and runs its process."""

    def __init__(self, path: Path, user_of: Callable[[trio.socket.SocketType], int | None]) -> None:
        self._path = path
        self._user_of = user_of

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the node; raise `ControlError` with the reason of a failure."""
        del path  # It may be too long for a socket's address.
        try:
            # First of all: a missing socket is not a question of trust.
            await trio.Path(self._path).stat()
            facts = await trio.to_thread.run_sync(_checked, self._path)
            with socket_address(self._path) as address:
                return await self._connected(address, timeout, socket_options, facts.user_id)
        except UntrustedPathError as error:
            raise ControlError(str(error)) from error
        except httpcore.ConnectError as error:
            raise ControlError(self._unreached(error.__cause__)) from error
        except OSError as error:
            raise ControlError(self._unreached(error)) from error

    async def _connected(
        self, address: str, timeout_s: float | None, options: Iterable[httpcore.SOCKET_OPTION] | None, user_id: int
    ) -> httpcore.AsyncNetworkStream:
        """Return a connected stream; while the node's backlog is full, repeat until the caller's timeout."""
        while True:
            stream = await super().connect_unix_socket(address, timeout_s, options)
            try:
                check_node_user(self._path, self._user_of(stream.get_extra_info("socket")), user_id)
            except NotConnectedError:
                await stream.aclose()
                await trio.sleep(CONNECT_PAUSE_S)
            except UntrustedPathError:
                await stream.aclose()
                raise
            else:
                return stream

    def _unreached(self, error: BaseException | None) -> str:
        match error:
            case FileNotFoundError():
                return f"no node runs at {self._path}; start one, or name another with --node"
            case ConnectionRefusedError():
                return f"the node of {self._path} no longer runs; start it again"
            case PermissionError():
                return f"{self._path} may only be used by the node's user"
            case OSError(strerror=str(reason)):
                return f"cannot reach a node at {self._path}: {reason}"
            case _:
                return f"cannot reach a node at {self._path}: {error}"


def _checked(path: Path) -> Facts:
    """Return the facts for trusting a control socket; raise `UntrustedPathError` and `OSError`."""
    facts = facts_about_node(path)
    check_control_socket(path, facts)
    return facts


def _paged(first: int, limit: int, wait_ms: int) -> dict[str, int]:
    return {"from": first, "limit": limit} | ({"wait": wait_ms} if wait_ms else {})


def _target(route: Route[Any], query: Mapping[str, int | str]) -> str:
    return f"{route.path}?{urlencode(query)}" if query else route.path


def _lacks_check(body: bytes) -> bool:
    try:
        return decode(body, RefusalAnswer).error.code in {"bad-query", "no-such-path"}
    except DocumentError:
        return False


def _refusal(body: bytes) -> str | None:
    """Return the reason of a refusal; None if the request was not refused."""
    try:
        return decode(body, RefusalAnswer).error.text
    except DocumentError:
        return None


def send_request(
    address: NodeAddress,
    question: Callable[[ControlClient], Awaitable[T]],
    timeout_s: float = ANSWER_TIMEOUT_S,
    order_timeout_s: float = ORDER_TIMEOUT_S,
) -> T:
    """Send one request from code that is not async. Every failure is a `ControlError`."""

    async def conversation() -> T:
        async with ControlClient(address, timeout_s, order_timeout_s=order_timeout_s) as client:
            return await question(client)

    try:
        return trio.run(conversation)
    except DocumentError as error:
        raise ControlError(f"the node at {address} sent a reply that this version cannot read: {error}") from error
