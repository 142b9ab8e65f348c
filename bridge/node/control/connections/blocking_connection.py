"""A connection to a node of this machine that opens a blocking socket for each request.

    connect ─▶ check the user id of the peer ─▶ request ─▶ reply, within a deadline that arriving bytes extend ─▶ close

Commands such as `status` send one request. To start an event loop would take longer than the request.
"""

import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h11

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
from bridge.node.security.control_socket import socket_address
from bridge.node.security.local_trust import NotConnectedError, UntrustedPathError, check_node_user, peer_user_id
from consensus.net import TransferTime

_PART_BYTES = 65_536


class BlockingConnection:
    """Opens a socket for each request, and closes it after the reply.

    Its methods are async only for the interface: they block, and never give control to an event loop.
    """

    is_kept = False

    def __init__(self, path: Path, user_of: Callable[[socket.socket], int | None] = peer_user_id) -> None:
        self._path = path
        self._user_of = user_of

    async def exchange(self, request: HttpRequest) -> tuple[int, bytes]:
        """Connect, send the request, and return the complete reply."""
        deadline_s = time.monotonic() + request.timeout_s + request.first_s
        try:
            with self._connected(deadline_s) as stream:
                return _SocketExchange(self._path, request, stream, deadline_s).run()
        except TimeoutError as error:
            raise NoReplyError from error
        except (h11.ProtocolError, OSError) as error:
            raise ConnectionLostError from error

    async def aclose(self) -> None:
        """Do nothing: each exchange closes its socket."""

    def _connected(self, deadline_s: float) -> socket.socket:
        """Return a connected socket; while the node's backlog is full, repeat until the deadline."""
        try:
            user_id = check_path(self._path)
            with socket_address(self._path) as address:
                while True:
                    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    try:
                        stream.settimeout(_left_s(deadline_s))
                        stream.connect(address)
                        check_node_user(self._path, self._user_of(stream), user_id)
                    except BaseException as error:
                        stream.close()
                        if not _is_backlog_full(error):
                            raise
                        time.sleep(min(CONNECT_PAUSE_S, _left_s(deadline_s)))
                    else:
                        return stream
        except UntrustedPathError as error:
            raise ControlError(str(error)) from error
        except TimeoutError:
            raise
        except OSError as error:
            raise unreached(self._path, error) from error


class _SocketExchange:
    def __init__(self, path: Path, request: HttpRequest, stream: socket.socket, deadline_s: float) -> None:
        self._path = path
        self._request = request
        self._stream = stream
        self._deadline_s = deadline_s
        self._transfer = TransferTime(request.timeout_s)
        self._http = h11.Connection(h11.CLIENT)

    def run(self) -> tuple[int, bytes]:
        """Send the request, and return status and body of the reply."""
        request = self._request
        headers = [*request.headers, ("Connection", "close")]
        self._send(h11.Request(method=request.method, target=request.target, headers=headers))
        if request.body:
            self._send(h11.Data(data=request.body))
        self._send(h11.EndOfMessage())
        status, body = 0, bytearray()
        while True:
            match self._next_event():
                case h11.Response(status_code=status):
                    pass
                case h11.Data(data=data):
                    body += data
                    if len(body) > request.limit_bytes:
                        raise too_long(self._path, request.limit_bytes)
                case h11.EndOfMessage():
                    return status, bytes(body)
                case h11.ConnectionClosed():
                    raise ConnectionLostError
                case _:
                    # An interim response.
                    pass

    def _send(self, event: h11.Event) -> None:
        # A node may refuse a large request and reply before it has read all of it.
        with suppress(BrokenPipeError):
            self._stream.settimeout(_left_s(self._deadline_s))
            self._stream.sendall(self._http.send(event) or b"")

    def _next_event(self) -> h11.Event:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Event):
                return event
            if event is not h11.NEED_DATA:
                raise ConnectionLostError
            self._stream.settimeout(_left_s(self._deadline_s))
            data = self._stream.recv(_PART_BYTES)
            self._transfer.arrived(len(data), time.monotonic(), self._deadline_s)
            self._deadline_s = max(self._deadline_s, self._transfer.until_s)
            self._http.receive_data(data)


def _is_backlog_full(error: BaseException) -> bool:
    return isinstance(error, NotConnectedError) or (isinstance(error, OSError) and error.errno == errno.EAGAIN)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
