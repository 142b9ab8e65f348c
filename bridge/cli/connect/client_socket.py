"""The Unix socket of a running `garlicfarm connect`: both ends.

    serve   $XDG_RUNTIME_DIR/garlicfarm/connect.sock, mode 0600; a stale socket is replaced, a used one is not
    get     GET /status and GET /metrics                       for `--status`
    tunnel  CONNECT ADDRESS:80, then bytes both ways           for `--stdio`, so that ssh does not wait for a session

Each end checks the user of the other end, as for the control socket of a node (`bridge.node.security.local_trust`):
only this user and root are trusted.
"""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

import h11
import trio

from bridge.connect import default_cache_dir
from bridge.connect.framed_tunnel import FRAMES_FIELD, FRAMES_VERSION, FrameReceiver
from bridge.connect.tcp_listener import serve_connections
from bridge.node.security.control_socket import ControlSocketError, listen, remove_if_ours, socket_address
from bridge.node.security.local_trust import (
    UntrustedPathError,
    check_control_socket,
    check_node_user,
    check_state_directory,
    is_trusted_user,
    peer_user_id,
)

REPLY_LIMIT_BYTES: Final = 16 * 1024 * 1024
REPLY_S: Final = 5.0
TUNNEL_S: Final = 120.0
"""Seconds for the client to open a stream to a leaf."""
_PART_BYTES: Final = 64 * 1024
_PORT: Final = 80
"""The port in CONNECT; a destination of I2P does not need one."""


class ClientSocketError(Exception):
    """The client's socket cannot be made, reached or used; the text has the reason and the remedy."""


def default_socket_path() -> Path:
    """Return the default path of the socket."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return (Path(runtime) / "garlicfarm" if runtime.startswith("/") else default_cache_dir()) / "connect.sock"


async def serve_socket(
    path: Path,
    serve: Callable[[trio.SocketStream], Awaitable[object]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients of this user until canceled; started when the socket accepts. Raise `ClientSocketError`."""

    async def serve_trusted(stream: trio.SocketStream) -> None:
        if is_trusted_user(peer_user_id(stream.socket)):
            await serve(stream)
        else:
            await stream.aclose()

    try:
        listening, socket_id = await trio.to_thread.run_sync(_listen, path)
    except UntrustedPathError as error:
        text = f"{path.parent} is not safe for the socket, because other users can change it or its parent directories"
        raise ClientSocketError(f"{text}: name a socket in a directory of this user with --socket") from error
    except (ControlSocketError, OSError) as error:
        raise ClientSocketError(str(error)) from error
    try:
        task_status.started()
        await serve_connections([trio.SocketListener(trio.socket.from_stdlib_socket(listening))], serve_trusted)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(remove_if_ours, path, socket_id)


async def get(path: Path, target: str) -> bytes:
    """Return a page of the running client; raise `ClientSocketError`."""
    stream = await _open(path)
    if stream is None:
        raise ClientSocketError(
            f"no client replies at {path}: start `garlicfarm connect` with your link, or name its --socket"
        )
    async with stream:
        with _reply_bound(path, REPLY_S):
            request = h11.Request(method="GET", target=target, headers=[("Host", "client")])
            status, body, _ = await _exchange(stream, request)
    if status != HTTPStatus.OK:
        raise ClientSocketError(f"the client at {path} replied {status}: {_text(body)}")
    return body


@asynccontextmanager
async def tunnel(path: Path, address: str) -> AsyncIterator[trio.abc.HalfCloseableStream | None]:
    """Yield a stream through the running client; None if no client has this farm.

    Raise `ClientSocketError` if the client does not reach the farm.
    """
    stream = await _open(path)
    if stream is None:
        yield None
        return
    async with stream:
        with _reply_bound(path, TUNNEL_S):
            target = f"{address}:{_PORT}"
            fields = [(b"Host", target.encode()), (FRAMES_FIELD, FRAMES_VERSION)]
            request = h11.Request(method="CONNECT", target=target, headers=fields)
            status, body, first = await _exchange(stream, request)
        if status == HTTPStatus.FORBIDDEN:
            yield None
        elif status == HTTPStatus.OK:
            yield FrameReceiver(stream, first)
        else:
            raise ClientSocketError(_text(body))


def _listen(path: Path) -> tuple[socket.socket, tuple[int, int] | None]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_state_directory(path.parent)
    return listen(path, "a client runs already: give it this link, too, or name another --socket")


async def _open(path: Path) -> trio.SocketStream | None:
    """Return a connection to the running client; None if no process listens."""
    try:
        await trio.to_thread.run_sync(check_control_socket, path)
        with socket_address(path) as address:
            stream = await trio.open_unix_socket(address)
        check_node_user(path, peer_user_id(stream.socket))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except (UntrustedPathError, OSError) as error:
        raise ClientSocketError(f"the socket {path} cannot be used: {error}") from error
    return stream


@contextmanager
def _reply_bound(path: Path, within_s: float) -> Iterator[None]:
    try:
        with trio.fail_after(within_s):
            yield
    except trio.TooSlowError:
        raise ClientSocketError(f"the client at {path} did not reply within {within_s:g} s: start it again") from None
    except (trio.BrokenResourceError, h11.ProtocolError) as error:
        raise ClientSocketError(f"the client at {path} ended the connection: repeat the command") from error


async def _exchange(stream: trio.SocketStream, request: h11.Request) -> tuple[int, bytes, bytes]:
    http = h11.Connection(h11.CLIENT)
    await stream.send_all(b"".join(http.send(each) or b"" for each in (request, h11.EndOfMessage())))
    status, body = 0, bytearray()
    while len(body) <= REPLY_LIMIT_BYTES:
        match event := http.next_event():
            case h11.NEED_DATA:
                http.receive_data(bytes(await stream.receive_some(_PART_BYTES)))
            case h11.Response(status_code=status) if request.method == b"CONNECT" and status == HTTPStatus.OK:
                if (FRAMES_FIELD, FRAMES_VERSION) not in event.headers:
                    return HTTPStatus.UPGRADE_REQUIRED, b"the running client has another version: restart it", b""
                return status, b"", http.trailing_data[0]
            case h11.Response(status_code=status):
                pass
            case h11.Data(data=data):
                body += data
            case _:
                return status, bytes(body), b""
    raise h11.RemoteProtocolError(f"a reply of more than {REPLY_LIMIT_BYTES} bytes")


def _text(body: bytes) -> str:
    """Return the reason in an error page of the proxy: its last line."""
    return (body.decode("utf-8", "replace").strip().splitlines() or ["without a reason"])[-1]
