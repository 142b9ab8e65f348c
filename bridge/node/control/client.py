"""The other end of the control endpoint: what the command line, the terminal view and `up` ask a node.

One connection is kept and used for one question at a time; when the node closed it in between, the question is asked
once more on a new one (only questions that change nothing: a submission whose answer was lost is never repeated).
Whatever goes wrong is a `ControlError`, whose text an operator can act on.

Before it asks on a socket, it checks the user that answers: a node is run by this user or by root, and no other user
could have put its socket there (`bridge.node.security.local_trust`). No other user may see a question or an answer. On
TCP the node shows its certificate before it is sent the token (`bridge.node.control.node_address`).
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
    EventAnswer,
    KeysAnswer,
    KeysReplaced,
    LogTimeAnswer,
    NodeApproved,
    NodeEvicted,
    NodesAnswer,
    QueryAnswer,
    RefusalAnswer,
    SubmitAnswer,
)
from bridge.api.control_routes import Route
from bridge.api.debug import DebugAnswer
from bridge.api.json import DOCUMENT_LIMIT_BYTES, DocumentError, RequestBody, decode, encode
from bridge.api.log import LogPage
from bridge.api.requests import (
    CommandRequest,
    ConfirmClusterRequest,
    EventRequest,
    KeyRequest,
    NodeRequest,
    QueryRequest,
    ReplaceKeysRequest,
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
"""For a question that the node answers from its memory."""
ORDER_TIMEOUT_S = 30.0
"""For what the node does together with others. It has answered a question before, so it neither hangs nor is away."""
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
    """The node could not be asked, or refused; the text says what happened and what to do."""


class ControlClient:
    """Asks the node at one address. An async context manager; not for several tasks at a time."""

    def __init__(
        self,
        address: NodeAddress,
        timeout_s: float = ANSWER_TIMEOUT_S,
        user_of: Callable[[trio.socket.SocketType], int | None] = peer_user_id,
        *,
        order_timeout_s: float = ORDER_TIMEOUT_S,
    ) -> None:
        """`user_of` tells who runs the process on the other side of a connected socket."""
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

    async def view(self) -> FarmView:
        """What the node knows of the farm now."""
        return await self._call(routes.VIEW)

    async def cluster(self) -> ClusterAnswer:
        """Who leads and who votes."""
        return await self._call(routes.CLUSTER)

    async def log(self, first: int = 1, limit: int = 100, wait_ms: int = 0, *, linearizable: bool = False) -> LogPage:
        """Committed entries from `first` on; `linearizable`: with all that was acknowledged before the question."""
        query = _paged(first, limit, wait_ms) | ({"linearizable": 1} if linearizable else {})
        return await self._call(routes.LOG, query=query)

    async def events(self, cursor: int = 1, limit: int = 100, wait_ms: int = 0) -> EventPage:
        """The trace from `cursor` on."""
        return await self._call(routes.EVENTS, query=_paged(cursor, limit, wait_ms))

    async def metrics(self) -> str:
        """Prometheus text."""
        return (await self._bytes(routes.METRICS)).decode()

    async def submit(self, entry: bytes, request: str | None = None) -> SubmitAnswer:
        """Have one application entry committed. Any outcome is returned; `ControlError` when nothing was answered.

        Under the same `request` (a request id) it is applied once, however often and at whichever node it is submitted.
        """
        target = _target(routes.SUBMIT, {"request": request} if request else {})
        status, body = await self.request("POST", target, entry)
        if status in SUBMIT_STATUSES and _refusal(body) is None:
            return decode(body, SubmitAnswer)
        raise self._refused(status, body)

    async def command(self, command: CommandRequest) -> CommandAnswer:
        """Have an operator's command carried out; `ControlError` says why it was not."""
        return await self._call(routes.COMMANDS, command)

    async def check(self, route: Route[Any], order: RequestBody) -> None:
        """Raise `ControlError` if the node would refuse this order.

        A node that cannot tell, as one of an earlier version, judges the order when it comes.
        """
        status, body = await self.request("POST", _target(route, {"check": 1}), encode(order))
        if status in REFUSED and not _lacks_check(body):
            raise self._refused(status, body)

    async def log_time(self) -> LogTimeAnswer:
        """The farm's time, and the servers' clocks."""
        return await self._call(routes.LOG_TIME)

    async def send_event(self, event: EventRequest) -> EventAnswer:
        """Send a user event to all nodes."""
        return await self._call(routes.EVENT, event)

    async def query(self, query: QueryRequest) -> QueryAnswer:
        """Ask all nodes; returns when all have answered, or after the query's timeout."""
        return await self._call(routes.QUERY, query)

    async def leave(self) -> None:
        """Tell the node to leave the farm and stop."""
        await self._call(routes.LEAVE)

    async def withdraw(self) -> None:
        """Take back the node's promise to create the farm; `ControlError` has the reason of a refusal."""
        await self._call(routes.WITHDRAW)

    async def confirm_cluster(self, cluster_id: str) -> None:
        """Tell the node that the cluster of this id is its farm; `ControlError` says why it was refused."""
        await self._call(routes.CONFIRM_CLUSTER, ConfirmClusterRequest(cluster_id))

    async def transfer(self, to: str | None = None) -> str:
        """Hand leadership over, to the named node if one is; who leads now. `ControlError` says why it was not done."""
        return (await self._call(routes.TRANSFER, TransferRequest(to))).leader

    async def nodes(self) -> NodesAnswer:
        """Who belongs to the farm."""
        return await self._call(routes.NODES)

    async def approve_node(self, node: str) -> NodeApproved:
        """Have a new identity take a name; what was done. `ControlError` says why it was not."""
        return await self._call(routes.NODES_APPROVE, NodeRequest(node))

    async def evict_node(self, node: str, *, force: bool = False) -> NodeEvicted:
        """Throw an identity out and replace all keys; what was done."""
        return await self._call(routes.NODES_EVICT, NodeRequest(node, force))

    async def replace_keys(self, *, force: bool = False) -> KeysReplaced:
        """Replace all gossip keys, sealed for each member; what was done."""
        return await self._call(routes.KEYS_REPLACE, ReplaceKeysRequest(force))

    async def debug(self, seconds: int) -> DebugAnswer:
        """What the node tells of itself, after it has watched its processor for so many seconds."""
        return await self._call(routes.DEBUG, query={"seconds": seconds})

    async def backup(self) -> bytes:
        """Return the bytes of a backup file, which is no document of JSON and may be larger."""
        status, answer = await self.request(routes.BACKUP.method, routes.BACKUP.path, limit_bytes=BACKUP_LIMIT_BYTES)
        if status not in DONE:
            raise self._refused(status, answer)
        return answer

    async def keys(self) -> KeysAnswer:
        """The farm's key ring, and which members have it."""
        return await self._call(routes.KEYS)

    async def install_key(self) -> str:
        """Have every member open a new key; its id."""
        return (await self._call(routes.KEYS_INSTALL)).key

    async def use_key(self, key: str, *, force: bool = False) -> None:
        """Have every member seal with an installed key."""
        await self._call(routes.KEYS_USE, KeyRequest(key, force))

    async def remove_key(self, key: str, *, force: bool = False) -> None:
        """Have every member refuse a key."""
        await self._call(routes.KEYS_REMOVE, KeyRequest(key, force))

    async def export_keys(self) -> str:
        """The text of the current farm key file. Secret."""
        return (await self._call(routes.KEYS_EXPORT)).farm_key

    async def _call(self, route: Route[A], body: RequestBody | None = None, query: Mapping[str, int] = NO_QUERY) -> A:
        return decode(await self._bytes(route, body, query), route.answer)

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
        """One question and its answer: status and body. `ControlError` when there is none.

        An order may take long, so that its silence alone proves nothing. A node that has answered nothing yet is asked
        a short question first: from one that hangs the error comes early, and no order is under way.
        """
        is_order = method == "POST" or "linearizable=" in target
        if is_order and not self._has_answered:
            await self.request("GET", routes.CLUSTER.path)
        timeout_s = self._order_timeout_s if is_order else self._timeout_s
        # A connection in the middle of an exchange that was given up is not idle. A request that changes something has
        # its own: on a kept one it could not be told apart whether the node closed it before or after it took that.
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
        """One request and its whole answer, whose bytes prolong the time."""
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
        """Why a node on TCP could not be reached; on a socket `_TrustedSocket` says it."""
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
    """Why no connection came about, out of the innermost errors: the outer one only counts the attempts."""
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
    """The errors at the ends of the chain of causes: one for each address that was tried."""
    causes = error.exceptions if isinstance(error, BaseExceptionGroup) else (error.__cause__ or error.__context__,)
    known = [each for each in causes if each is not None]
    if not known:
        yield error
    for each in known:
        yield from _innermost(each)


class _Tcp(httpcore.TrioBackend):
    """Notes that the other machine has accepted the connection: from then on it is the node that does not answer."""

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
        """A connection, before TLS."""
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        self.is_connected = True
        return stream


class _TrustedSocket(httpcore.TrioBackend):
    """Connects to a node's socket when this user or root has made it and is behind it."""

    def __init__(self, path: Path, user_of: Callable[[trio.socket.SocketType], int | None]) -> None:
        self._path = path
        self._user_of = user_of

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the node; `ControlError` says why there is none."""
        del path  # It may be too long for a socket's address.
        try:
            # Before anything is said about who could put a socket there.
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
        """A stream that is connected; while the node's backlog is full, try again until the caller gives up."""
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
    """The facts by which a control socket is trusted; raises `UntrustedPathError` and `OSError`."""
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
    """Why the request was refused, if it was."""
    try:
        return decode(body, RefusalAnswer).error.text
    except DocumentError:
        return None


def ask(
    address: NodeAddress,
    question: Callable[[ControlClient], Awaitable[T]],
    timeout_s: float = ANSWER_TIMEOUT_S,
    order_timeout_s: float = ORDER_TIMEOUT_S,
) -> T:
    """Ask one question from code that is not async. Whatever goes wrong is a `ControlError`."""

    async def conversation() -> T:
        async with ControlClient(address, timeout_s, order_timeout_s=order_timeout_s) as client:
            return await question(client)

    try:
        return trio.run(conversation)
    except DocumentError as error:
        raise ControlError(f"the node at {address} sent a reply that this version cannot read: {error}") from error
