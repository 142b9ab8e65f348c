"""A connection to a node by httpcore on trio: the node's socket on this machine, or its control endpoint over TLS.

The connection is kept for the next request. On TCP, the node proves its identity by its certificate before the client
sends its access token (`bridge.node.control.connections.node_address`). The text of a failed connection names the cause
and the next step.
"""

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpcore
import trio

from bridge.node.control.connections.connection import (
    CONNECT_PAUSE_S,
    ConnectionLostError,
    ControlError,
    HttpRequest,
    NoReplyError,
    check_path,
    too_long,
    unreached,
)
from bridge.node.control.connections.node_address import NodeAddress, RemoteNode
from bridge.node.http_exchange import AnswerTooLongError, exchange
from bridge.node.security.control_socket import socket_address
from bridge.node.security.local_trust import NotConnectedError, UntrustedPathError, check_node_user
from consensus.net import TransferTime

UserOf = Callable[[trio.socket.SocketType], int | None]
_LOCAL_ORIGIN = httpcore.Origin(b"http", b"node", 80)


class AsyncConnection:
    """A connection to the node at one address, kept between requests."""

    def __init__(self, address: NodeAddress, user_of: UserOf) -> None:
        self._address = address
        self._tcp = _Tcp()
        if isinstance(address, RemoteNode):
            self._origin = httpcore.Origin(b"https", address.host.encode("idna"), address.port)
            self._http = httpcore.AsyncHTTPConnection(
                self._origin, ssl_context=address.context, network_backend=self._tcp
            )
        else:
            self._origin = _LOCAL_ORIGIN
            backend = _TrustedSocket(address, user_of)
            self._http = httpcore.AsyncHTTPConnection(self._origin, uds=str(address), network_backend=backend)

    @property
    def is_kept(self) -> bool:
        """Return True if the connection is idle and has not expired; a canceled exchange leaves it busy."""
        return self._http.is_idle() and not self._http.has_expired()

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        await self._http.aclose()

    async def exchange(self, request: HttpRequest) -> tuple[int, bytes]:
        """Send one request and receive its complete reply, whose bytes extend the time limit."""
        origin = self._origin
        url = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=request.target)
        limit_s = request.timeout_s + request.first_s
        try:
            with trio.fail_after(limit_s) as waiting:
                transfer = TransferTime(request.timeout_s)

                def arrived(count: int) -> None:
                    transfer.arrived(count, trio.current_time(), waiting.deadline)
                    waiting.deadline = max(waiting.deadline, transfer.until_s)

                limit_bytes, headers = request.limit_bytes, request.headers
                return await exchange(
                    self._http, request.method, url, headers, request.body, limit_bytes, arrived=arrived
                )
        except trio.TooSlowError as error:
            if isinstance(self._address, RemoteNode) and not self._tcp.is_connected:
                raise ControlError(
                    f"cannot reach a node at {self._address}: no answer to the connection within"
                    f" {limit_s:g} s; is that machine on, and does a firewall drop this port?"
                ) from error
            raise NoReplyError from error
        except AnswerTooLongError as error:
            raise too_long(self._address, request.limit_bytes) from error
        except httpcore.ConnectError as error:
            raise ControlError(self._not_connected(error)) from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise ConnectionLostError from error

    def _not_connected(self, error: BaseException) -> str:
        """Return the reason why a node on TCP was not reached; `_TrustedSocket` reports failures of local sockets."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        match cause:
            case ssl.SSLCertVerificationError():
                return (
                    f"the certificate of {self._address} is refused ({cause.verify_message}): copy the node's file"
                    " control.crt again and name it by --certificate; if it is still refused, another program may"
                    " listen there"
                )
            case socket.gaierror():
                name = _host_of(self._address)
                reason = f"the name {name} cannot be resolved ({cause.strerror or cause}); check its spelling"
            case _:
                reason = connection_failure(error)
        return f"cannot reach a node at {self._address}: {reason}"


def _host_of(address: NodeAddress) -> str:
    return address.host if isinstance(address, RemoteNode) else str(address)


def connection_failure(error: BaseException) -> str:
    """Return the reasons of a failed connection, from the innermost error of each attempt."""
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
    """Yield the errors without a further cause: one for each attempted address."""
    causes = error.exceptions if isinstance(error, BaseExceptionGroup) else (error.__cause__ or error.__context__,)
    known = [each for each in causes if each is not None]
    if not known:
        yield error
    for each in known:
        yield from _innermost(each)


class _Tcp(httpcore.TrioBackend):
    """A backend that records an accepted TCP connection, to distinguish an unreachable machine from a hanging node."""

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
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        self.is_connected = True
        return stream


class _TrustedSocket(httpcore.TrioBackend):
    """A backend that connects to a node's socket only if a trusted user owns it and runs the listening process.

    Trusted are this user and root; for root, also the user of the packages' service.
    """

    def __init__(self, path: Path, user_of: UserOf) -> None:
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
            user_id = await trio.to_thread.run_sync(check_path, self._path)
            with socket_address(self._path) as address:
                return await self._connected(address, timeout, socket_options, user_id)
        except UntrustedPathError as error:
            raise ControlError(str(error)) from error
        except httpcore.ConnectError as error:
            raise unreached(self._path, error.__cause__) from error
        except OSError as error:
            raise unreached(self._path, error) from error

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
