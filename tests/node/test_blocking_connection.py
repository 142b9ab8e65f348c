"""Requests by a blocking socket: the same replies, limits and refusals as with an event loop."""

import errno
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from subprocess import run
from threading import Thread

import pytest
import trio
import trio.testing

from bridge.api import control_routes as routes
from bridge.api.control import LeaderAnswer
from bridge.api.json import DOCUMENT_LIMIT_BYTES
from bridge.api.requests import TransferRequest
from bridge.node.control.client import ControlClient, ControlError, _result, call_blocking
from bridge.node.control.connections import blocking_connection
from bridge.node.control.connections.blocking_connection import BlockingConnection
from bridge.node.control.connections.connection import HttpRequest, NoReplyError
from consensus.net.transfer_time import TransferTime
from tests.node.test_control import FakeNode, full_backlog, served
from tests.operator_views import farm_view

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def blocking(call: Callable[[], object]) -> object:
    return await trio.to_thread.run_sync(call)


async def test_blocking_call_returns_view(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode()) as server:
        assert await blocking(partial(call_blocking, server.path, routes.VIEW)) == farm_view()


async def test_blocking_order_is_sent_after_short_request(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode()) as server:
        order = partial(call_blocking, server.path, routes.TRANSFER, TransferRequest("site-b"))
        assert isinstance(await blocking(order), LeaderAnswer)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (HEAD + b"1000001\r\n" + bytes(0x1000001), f"sent more than {DOCUMENT_LIMIT_BYTES} bytes"),
        (b"", "closed the connection without a reply"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "closed the connection without a reply"),
        (HEAD + b"5\r\nab", "closed the connection without a reply"),
    ],
    ids=["endless", "closed", "other-protocol", "torn"],
)
def test_blocking_call_without_whole_reply_fails(tmp_path: Path, reply: bytes, message: str) -> None:
    with one_reply(tmp_path / "control.sock", reply), pytest.raises(ControlError, match=message):
        call_blocking(tmp_path / "control.sock", routes.VIEW, timeout_s=20)


def one_reply(path: Path, reply: bytes) -> ExitStack:
    """Serve one connection with these bytes for any request."""
    stack = ExitStack()
    listening = stack.enter_context(socket.socket(socket.AF_UNIX))
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        connected, _ = listening.accept()
        with connected:
            connected.recv(65_536)
            try:
                connected.sendall(reply)
            except OSError as error:
                assert error.errno in {errno.EPIPE, errno.ECONNRESET}  # noqa: PT017 - the client may close early

    thread = Thread(target=serve)
    thread.start()
    stack.callback(thread.join, timeout=20)
    return stack


def test_blocking_call_to_full_backlog_reports_unresponsive_node(tmp_path: Path) -> None:
    with ExitStack() as kept:
        kept.enter_context(full_backlog(tmp_path / "control.sock"))
        with pytest.raises(ControlError, match="does not answer; is it stopped or overloaded"):
            call_blocking(tmp_path / "control.sock", routes.VIEW, timeout_s=0.2)


def test_blocking_call_without_node_names_the_socket(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no node runs at"):
        call_blocking(tmp_path / "control.sock", routes.VIEW)


async def test_blocking_call_refuses_other_user(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    foreign = partial(BlockingConnection, path, lambda _: os.geteuid() + 1)
    async with served(path, FakeNode()):
        client = ControlClient(path, connection=foreign)
        with pytest.raises(ControlError, match="neither this user nor root"):
            await blocking(lambda: _result(client.view()))


class SlowSocket:
    """A peer on a slow link: each part takes time on the fake clock."""

    def __init__(self, reply: bytes, part_bytes: int, pause_s: float) -> None:
        self.reply, self._part_bytes, self._pause_s = reply, part_bytes, pause_s
        self.now_s, self._timeout_s = 0.0, 0.0

    def settimeout(self, seconds: float) -> None:
        """Keep the limit of the next call."""
        self._timeout_s = seconds

    def sendall(self, data: bytes) -> None:
        """Accept everything."""

    def recv(self, limit: int) -> bytes:
        """Return the next part after its pause, or raise `TimeoutError` after the limit."""
        self.now_s += min(self._pause_s, self._timeout_s)
        if self._pause_s > self._timeout_s:
            raise TimeoutError
        part, self.reply = self.reply[: min(limit, self._part_bytes)], self.reply[self._part_bytes :]
        return part


def exchange_with(peer: SlowSocket, monkeypatch: pytest.MonkeyPatch) -> tuple[int, bytes]:
    """Return the reply of a peer to a request with a limit of 5 s."""
    monkeypatch.setattr(time, "monotonic", lambda: peer.now_s)
    request = HttpRequest("GET", "/v1/log", [("Host", "node")], b"", 5.0, 0.0, 1_000_000)
    return blocking_connection._SocketExchange(Path("/node"), request, peer, 5.0).run()  # type: ignore[arg-type]


def test_blocking_reply_over_slow_link_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 kB at 16 kB/s take 37 s: the arriving bytes extend the limit of 5 s."""
    body = bytes(600_000)
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n" + body
    assert exchange_with(SlowSocket(reply, 16_000, 1.0), monkeypatch) == (200, body)
    monkeypatch.setattr(blocking_connection, "TransferTime", lambda _: TransferTime(0))
    with pytest.raises(TimeoutError):
        exchange_with(SlowSocket(reply, 16_000, 1.0), monkeypatch)


def test_blocking_reply_of_single_bytes_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = SlowSocket(HEAD + bytes(1000), 1, 1.0)
    with pytest.raises(TimeoutError):
        exchange_with(peer, monkeypatch)
    assert peer.now_s < 10


def test_blocking_connection_reports_missing_reply(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        request = HttpRequest("GET", "/v1/view", [("Host", "node")], b"", 0.1, 0.0, 1000)
        with pytest.raises(NoReplyError):
            _result(BlockingConnection(path).exchange(request))


def test_coroutine_that_yields_is_refused_by_blocking_client() -> None:
    with pytest.raises(RuntimeError, match="has yielded"):
        _result(one_checkpoint())


async def one_checkpoint() -> None:
    await trio.lowlevel.cancel_shielded_checkpoint()


SLOW_MODULES = {"trio", "httpcore", "rich", "ssl", "cryptography", "importlib.metadata", "asyncio"}


def test_commands_of_one_request_load_no_event_loop(tmp_path: Path) -> None:
    """Loading trio, httpcore, rich, TLS or the metadata of packages would double the time of these commands."""
    code = (
        "import sys; from bridge.cli.main import cli\n"
        "for command in ('status', 'members', 'farm', 'link', 'servers'):\n"
        f"    try: cli([command, '--node', '{tmp_path}'], standalone_mode=False)\n"
        "    except SystemExit: pass\n"
        "    from bridge.node.control.connections import blocking_connection\n"
        f"    slow = {SLOW_MODULES} & set(sys.modules)\n"
        "    assert not slow, (command, slow)"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
