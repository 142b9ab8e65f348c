"""The control endpoint: permitted users, replies, and robustness against clients."""

import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from trio.socket import from_stdlib_socket

from bridge.api import control_routes as routes
from bridge.api.control import (
    ClusterAnswer,
    CommandAnswer,
    KeysAnswer,
    LogTimeAnswer,
    Refused,
    ServerClock,
    SubmitAnswer,
    SubmitOutcome,
)
from bridge.api.control_routes import KEYS, LEAVE
from bridge.api.events import LEADER_ELECTED
from bridge.api.json import DOCUMENT_LIMIT_BYTES, encode
from bridge.api.log import EntryKind, LogEntryView, LogPage
from bridge.api.requests import CommandRequest
from bridge.api.trace import EventPage
from bridge.api.view import FarmView
from bridge.cli.node_queries import find_control_socket
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.control.farm_admin import FarmAdmin
from bridge.node.control.routes import Call, ControlEvent, Handlers
from bridge.node.control.server import ControlLimits, ControlServer
from bridge.node.events.durations import Durations
from bridge.node.events.event_log import EventLog
from bridge.node.security.control_socket import ControlSocketError, answers
from consensus import Histogram
from consensus.sessions.table import RequestId
from tests.node.fake_keys import FakeKeys
from tests.node.memory_server import until
from tests.operator_views import farm_view, forming_view
from tests.processes import hold_for_sockets


class FakeNode(FarmAdmin):
    """A `FarmAdmin` with a fabricated view and a log of three entries."""

    def __init__(self) -> None:
        self.current = farm_view()
        self.submitted: list[bytes] = []
        self.leaving = False
        self.outcome = SubmitAnswer(outcome=SubmitOutcome.COMMITTED, index=218, term=3)
        self.events = EventLog("node-1", lambda: 1000)
        self.log = tuple(LogEntryView.of(each, 1, EntryKind.APPLICATION, 5, b"{}") for each in (1, 2, 3))
        self.log_reads: list[tuple[int, int, int]] = []
        self.broken = False
        self.keys = FakeKeys()
        self.linearizable: list[bool] = []
        self.requests: list[RequestId | None] = []
        self.commands: list[object] = []
        self.reasons: tuple[str, ...] = ()
        self.stuck = lambda: self.reasons
        self.last_verdict = lambda: None
        self.durations = Durations(Histogram())
        self.withdrawal_refusal = lambda: "this node has not made a promise yet."
        self.confirm = _confirmed
        self.leave = lambda: setattr(self, "leaving", True)

    @property
    def handlers(self) -> Handlers:
        return {**super().handlers, **self.keys.handlers, routes.VIEW: lambda _: self.view()}

    async def view(self) -> FarmView:
        if self.broken:
            raise RuntimeError("a bug in the picture")
        await trio.lowlevel.checkpoint()
        return self.current

    async def cluster(self) -> ClusterAnswer:
        """Return a cluster that node 1 leads."""
        await trio.lowlevel.checkpoint()
        raft = self.current.raft
        return ClusterAnswer("demo", "c0ffee", 1, raft.term, raft.commit_index, 1, "node-1", "tcp://127.0.0.1:7701")

    async def read_log(self, first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> LogPage:
        """Return entries of the fabricated log."""
        await trio.lowlevel.checkpoint()
        self.log_reads.append((first, limit, wait_ms))
        self.linearizable.append(linearizable)
        begin, end = self.log[0].index, self.log[-1].index
        entries = tuple(each for each in self.log if first <= each.index < first + limit)
        return LogPage(begin, end, end, min(end, first + limit - 1) + 1, entries, "c0ffee")

    async def read_events(self, cursor: int, limit: int, wait_ms: int) -> EventPage:
        return await self.events.wait(cursor, limit, wait_ms)

    async def submit(self, entry: bytes, request: RequestId | None = None) -> SubmitAnswer:
        await trio.lowlevel.checkpoint()
        self.submitted.append(entry)
        self.requests.append(request)
        return self.outcome

    async def transfer(self, to: str | None) -> str:
        """Return the named server as leader."""
        if to == "unknown":
            raise Refused(404, "no-such-voter", "no voter has the name or Raft id 'unknown'; there are node-1, node-2")
        return to or "node-2"

    async def _command(self, call: Call[CommandRequest]) -> CommandAnswer:
        """Record the command, and grant it."""
        await trio.lowlevel.checkpoint()
        self.commands.append(json.loads(encode(call.body)))
        return CommandAnswer("cost", 218, "granted")

    async def _log_time(self, _: Call[None]) -> LogTimeAnswer:
        """Return the clocks of three servers: one is off, and one is unknown."""
        await trio.lowlevel.checkpoint()
        clocks = (
            ServerClock(1, "oslo", voter=True, offset_ms=0),
            ServerClock(2, "kyoto", voter=True, offset_ms=60_000),
            ServerClock(3, "lima", voter=False, offset_ms=None),
        )
        return LogTimeAnswer(1_767_225_600_000, 1_767_225_590_000, 1_767_225_620_000, agreed=True, clocks=clocks)

    async def withdraw(self) -> str | None:
        return self.withdrawal_refusal()


async def _confirmed(cluster_id: bytes) -> str | None:
    return None if cluster_id == bytes(16) else f"no member reports cluster {cluster_id.hex()}"


@asynccontextmanager
async def served(path: Path, node: FakeNode, limits: ControlLimits | None = None) -> AsyncIterator[ControlServer]:
    async with trio.open_nursery() as nursery:
        server = ControlServer(path, node.handlers, limits)
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


async def raw_answer(path: Path, sent: bytes) -> bytes:
    """Return all bytes of the server's reply until it closes."""
    stream = await trio.open_unix_socket(path)
    async with stream:
        await stream.send_all(sent)
        received = b""
        async for part in stream:
            received += part
    return received


def request(method: str, target: str, body: bytes = b"", headers: str = "") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_socket_can_be_opened_only_by_owner(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode()) as server:
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


async def test_socket_is_removed_when_node_stops(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode()) as server:
        assert server.path.exists()
    assert not server.path.exists()


async def test_socket_of_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert not answers(path)
    async with served(path, FakeNode()), ControlClient(path) as client:
        assert await client.view() == farm_view()


async def test_second_node_with_same_state_directory_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode()) as server:
        with pytest.raises(ControlSocketError, match="already runs"):
            await ControlServer(server.path, FakeNode().handlers).run()
        assert server.path.exists()


async def test_other_file_at_socket_path_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(ControlSocketError, match="exists and is not a socket"):
        await ControlServer(path, FakeNode().handlers).run()
    assert path.read_text() == "precious"


async def test_state_directory_with_long_path_works(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 25) / ("path" * 25)
    directory.mkdir(parents=True)
    async with served(directory / "control.sock", FakeNode()), ControlClient(directory / "control.sock") as client:
        assert await client.view() == farm_view()


async def test_documents_reach_client_unchanged(tmp_path: Path) -> None:
    node = FakeNode()
    node.events.append(LEADER_ELECTED, {"term": 3})
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        assert await client.view() == farm_view()
        assert (await client.cluster()).leader_endpoint == "tcp://127.0.0.1:7701"
        page = await client.log(first=2, limit=2)
        assert [entry.index for entry in page.entries] == [2, 3]
        assert [event.kind for event in (await client.events()).events] == ["leader-elected"]
        assert server.counters[ControlEvent.CONNECTIONS] == 1


async def test_submitted_entry_is_unchanged(tmp_path: Path) -> None:
    node = FakeNode()
    entry = b'{ "id":1,  "note": "spacing is kept" }'
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        answer = await client.submit(entry)
    assert answer == SubmitAnswer(outcome=SubmitOutcome.COMMITTED, index=218, term=3)
    assert node.submitted == [entry]


@pytest.mark.parametrize("outcome", [SubmitOutcome.REFUSED, SubmitOutcome.BUSY, SubmitOutcome.UNKNOWN])
async def test_uncommitted_submission_is_reported(tmp_path: Path, outcome: SubmitOutcome) -> None:
    node = FakeNode()
    node.outcome = SubmitAnswer(outcome=outcome, reason="because", leader_id=2, leader_endpoint="tcp://127.0.0.1:7702")
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        assert await client.submit(b"{}") == node.outcome


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b"7", b"\xff", b"[" * 50_000])
async def test_submission_without_json_object_is_refused(tmp_path: Path, body: bytes) -> None:
    node = FakeNode()
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        with pytest.raises(ControlError, match="one JSON object"):
            await client.submit(body)
    assert node.submitted == []


async def test_leave_reaches_node(tmp_path: Path) -> None:
    node = FakeNode()
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        await client.call(LEAVE)
    assert node.leaving


async def test_log_request_is_clamped_to_limits(tmp_path: Path) -> None:
    node = FakeNode()
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        await client.log(first=0, limit=10**9, wait_ms=10**9)
    assert node.log_reads == [(1, 1000, 30_000)]


async def test_request_options_reach_node(tmp_path: Path) -> None:
    node = FakeNode()
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        await client.submit(b"{}")
        await client.submit(b"{}", "a name&more-17-2")
        await client.log()
        await client.log(linearizable=True)
    assert node.requests == [None, RequestId("a name&more", 17, 2)]
    assert node.linearizable == [False, True]


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        (request("GET", "/v1/log?from=-1"), b"400", b"not a number"),
        (request("GET", "/v1/log?from=1&form=2"), b"400", b"does not have a parameter"),
        (request("GET", "/v1/view?from=1"), b"400", b"/v1/view does not have a parameter 'from'; its parameters: none"),
        (request("POST", "/v1/leave?check=1"), b"400", b"does not have a parameter"),
        (request("GET", "/v1/log?limit=" + "9" * 30), b"400", b"not a number from 0 to 9223372036854775807"),
        (request("GET", "/v1/log?" + "&".join(["from=1"] * 99)), b"400", b"does not parse"),
        (request("POST", "/v1/submit?request=me", b"{}"), b"400", b"not CLIENT-BORN-SEQUENCE"),
        (request("POST", "/v1/submit?id=me-1-1", b"{}"), b"400", b"does not have a parameter"),
        (request("GET", "/nowhere"), b"404", b"there are /v1/view"),
        (request("GET", "//["), b"400", b"does not parse"),
        (request("GET", "/v1/leave"), b"405", b"takes POST"),
        (request("POST", "/v1/transfer", b'{"from": 1}'), b"400", b"bad-request"),
        (request("POST", "/v1/transfer", b"{oops"), b"400", b"bad-request"),
        (request("POST", "/v1/confirm-cluster", b"{}"), b"400", b"bad-request"),
        (request("POST", "/v1/confirm-cluster", b'{"clusterId": "00"}'), b"400", b"bad-request"),
        (request("POST", "/v1/confirm-cluster", b'{"clusterId": "' + b"1" * 32 + b'"}'), b"409", b"not-confirmed"),
        (request("POST", "/v1/view", b"x"), b"405", b"takes GET"),
        (b"nonsense\r\n\r\n", b"400", b"not HTTP"),
        (b"\x00" * 64 + b"\r\n\r\n", b"400", b"not HTTP"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000, b"431", b"not HTTP"),
        (request("POST", "/v1/submit", b"x" * 300_000), b"413", b"at most"),
    ],
)
async def test_bad_request_is_refused_with_reason(tmp_path: Path, sent: bytes, status: bytes, text: bytes) -> None:
    node = FakeNode()
    async with served(tmp_path / "control.sock", node) as server:
        received = await raw_answer(server.path, sent)
        assert received.split()[1] == status
        assert text in received
        async with ControlClient(server.path) as client:
            assert await client.view() == farm_view()
    assert node.submitted == []
    assert not node.leaving


async def test_oversized_body_is_counted_as_refused(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode(), ControlLimits(body_bytes=1000)) as server:
        assert (await raw_answer(server.path, request("POST", "/v1/submit", bytes(1001)))).split()[1] == b"413"
        assert server.counters[ControlEvent.REFUSED] == 1


async def test_request_bodies_of_all_clients_are_bounded(tmp_path: Path) -> None:
    """There is room for one body; a second client that sends one at the same time receives 503."""
    limits = ControlLimits(body_bytes=1000, bodies_bytes=1000, receive_s=5)
    head = b"POST /v1/submit HTTP/1.1\r\nHost: node\r\nContent-Length: 900\r\n\r\n"
    async with served(tmp_path / "control.sock", FakeNode(), limits) as server:
        first, second = [await trio.open_unix_socket(server.path) for _ in range(2)]
        await first.send_all(head + bytes(800))
        await trio.testing.wait_all_tasks_blocked(0.01)
        await second.send_all(head + bytes(800))
        assert (await second.receive_some()).startswith(b"HTTP/1.1 503 ")
        await first.aclose()
        await second.aclose()


@pytest.mark.parametrize("seed", range(3))
async def test_malformed_or_mutated_requests_do_not_change_node(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    node = FakeNode()
    limits = ControlLimits(receive_s=0.2, linger_s=0.2)
    async with served(tmp_path / "control.sock", node, limits) as server:
        for _ in range(60):
            sent = bytearray(
                request("GET", "/v1/log?from=1&limit=2") if random.random() < 0.7 else random.randbytes(300)
            )
            for _ in range(random.randrange(4)):
                sent[random.randrange(len(sent))] = random.randrange(256)
            stream = await trio.open_unix_socket(server.path)
            async with stream:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(sent[: random.randrange(1, len(sent) + 1)])
        async with ControlClient(server.path) as client:
            assert await client.view() == farm_view(), f"seed {seed}"
        assert server.counters[ControlEvent.CONNECTIONS] == 61
        assert server.counters[ControlEvent.INTERNAL_ERRORS] == 0, f"seed {seed}"
    assert node.submitted == []
    assert not node.leaving


async def test_head_request_is_answered_without_body(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode()) as server:
        received = await raw_answer(server.path, request("HEAD", "/healthz"))
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"\r\n\r\n")


async def test_fault_in_handler_fails_only_its_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode()
    node.broken = True
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        with pytest.raises(ControlError, match="failed to answer"):
            await client.view()
        node.broken = False
        assert await client.view() == farm_view()
        assert server.counters[ControlEvent.INTERNAL_ERRORS] == 1
    assert "a bug in the picture" in caplog.text


async def test_fault_at_connection_ends_only_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    users: list[int | None] = []
    server = ControlServer(tmp_path / "control.sock", FakeNode().handlers, user_of=lambda _: users.pop())
    await nursery.start(server.run)
    async with await trio.open_unix_socket(server.path) as refused:
        assert await refused.receive_some() == b""
    users.append(os.getuid())
    async with ControlClient(server.path) as client:
        await client.view()
    with trio.fail_after(60):
        await until(lambda: "pop from empty list" in caplog.text)


async def test_healthz_of_working_process_ignores_state_of_farm(tmp_path: Path) -> None:
    node = FakeNode()
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        assert (await client.request("GET", "/healthz"))[0] == 200
        node.current = forming_view()
        status, body = await client.request("GET", "/healthz")
    assert status == 200
    assert b"Waiting for 4 of 5 nodes" in body


async def test_healthz_of_stuck_process_fails(tmp_path: Path) -> None:
    node = FakeNode()
    node.reasons = ("entry 7 is committed and has not been applied for 30 s",)
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        status, body = await client.request("GET", "/healthz")
    assert status == 503
    assert b"entry 7" in body


async def test_readyz_follows_verdict(tmp_path: Path) -> None:
    node = FakeNode()
    async with served(tmp_path / "control.sock", node) as server, ControlClient(server.path) as client:
        assert (await client.request("GET", "/readyz"))[0] == 200
        node.current = forming_view()
        status, body = await client.request("GET", "/readyz")
    assert status == 503
    assert b'"kind":"waiting"' in body


async def test_metrics_are_prometheus_text_without_hashes(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode()) as server, ControlClient(server.path) as client:
        text = await client.metrics()
    assert 'garlicfarm_members{status="alive"} 3.0' in text
    assert 'garlicfarm_verdict{kind="degraded"} 1.0' in text
    assert 'garlicfarm_verdict{kind="healthy"} 0.0' in text
    assert "garlicfarm_can_lose_servers 1.0" in text
    assert "garlicfarm_raft_term 3.0" in text
    assert 'garlicfarm_gossip_dropped_total{reason="replay"} 0.0' in text
    view = farm_view()
    hidden = [member.node_id for member in view.members] + [str(member.address) for member in view.members]
    hidden += [entry.destination for each in view.publishing for entry in each.entries]
    hidden += [each.master for each in view.publishing]
    hidden += [view.farm.label, str(view.farm.cluster_id)]
    assert [word for word in hidden if word in text] == []


@pytest.mark.parametrize(
    ("sent", "broken"),
    [
        (b"", 0),
        (b"GET /v1/view HT", 1),
        (b"POST /v1/submit HTTP/1.1\r\nHost: node\r\nContent-Length: 9\r\n\r\n", 1),
    ],
)
async def test_stalled_request_is_dropped_and_counted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, sent: bytes, broken: int
) -> None:
    async with served(tmp_path / "control.sock", FakeNode(), ControlLimits(receive_s=5, idle_s=5)) as server:
        started_s = trio.current_time()
        assert await raw_answer(server.path, sent) == b""
        assert trio.current_time() - started_s == pytest.approx(5, abs=1)
        assert server.counters[ControlEvent.CONNECTIONS_BROKEN] == broken


async def test_connection_over_limit_is_refused_with_reason(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode(), ControlLimits(connections=2)) as server:
        async with ControlClient(server.path) as first, ControlClient(server.path) as second:
            await first.view()
            await second.view()
            async with ControlClient(server.path) as third:
                with pytest.raises(ControlError, match="connections are open already"):
                    await third.view()
            await first.view()
        assert server.counters[ControlEvent.CONNECTIONS_REFUSED] == 1


async def test_client_retries_after_node_closed_idle_connection(tmp_path: Path) -> None:
    limits = ControlLimits(requests_per_connection=2)
    async with served(tmp_path / "control.sock", FakeNode(), limits) as server, ControlClient(server.path) as client:
        for _ in range(5):
            assert await client.view() == farm_view()
        assert server.counters[ControlEvent.CONNECTIONS] == 3


async def test_canceled_request_does_not_affect_next_one(tmp_path: Path) -> None:
    async with served(tmp_path / "control.sock", FakeNode()) as server, ControlClient(server.path) as client:
        with trio.move_on_after(0.05) as limit:
            await client.events(wait_ms=30_000)
        assert limit.cancelled_caught
        assert await client.view() == farm_view()
        assert (await client.submit(b"{}")).outcome is SubmitOutcome.COMMITTED


async def serve_response(path: Path, parts: AsyncIterator[bytes]) -> None:
    """Serve a socket at `path` that sends these bytes in response to any request."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some()
            async for part in parts:
                await stream.send_all(part)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        await trio.serve_listeners(serve, [trio.SocketListener(trio.socket.from_stdlib_socket(listening))])


async def endless() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"10000\r\n" + bytes(0x10000) + b"\r\n"


async def no_response() -> AsyncIterator[bytes]:
    await trio.sleep_forever()
    yield b""


@pytest.mark.parametrize(
    ("parts", "message"),
    [(endless(), f"sent more than {DOCUMENT_LIMIT_BYTES} bytes"), (no_response(), "is it stopped or overloaded")],
    ids=["endless", "unresponsive"],
)
async def test_response_without_end_is_dropped(
    tmp_path: Path,
    parts: AsyncIterator[bytes],
    message: str,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
) -> None:
    hold_for_sockets(autojump_clock)
    path = tmp_path / "control.sock"
    nursery.start_soon(serve_response, path, parts)
    await trio.testing.wait_all_tasks_blocked()
    async with ControlClient(path, timeout_s=0.5) as client:
        with pytest.raises(ControlError, match=message):
            await client.view()


async def test_full_backlog_is_reported_as_unresponsive_node(tmp_path: Path) -> None:
    """The process does not accept connections; the error must not name another user as the cause."""
    path = tmp_path / "control.sock"
    with ExitStack() as kept:
        kept.enter_context(full_backlog(path))
        async with ControlClient(path, timeout_s=0.3) as client:
            with pytest.raises(ControlError, match="does not answer; is it stopped or overloaded"):
                await client.view()


async def test_client_waits_for_backlog_with_space(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with ExitStack() as kept:
        listening = kept.enter_context(full_backlog(path))

        async def serve() -> None:
            await trio.testing.wait_all_tasks_blocked(0.01)
            served = ControlServer(tmp_path / "other.sock", FakeNode().handlers)
            await trio.serve_listeners(served._serve, [trio.SocketListener(from_stdlib_socket(listening))])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            async with ControlClient(path, timeout_s=20) as client:
                assert await client.view() == farm_view()
            nursery.cancel_scope.cancel()


@contextmanager
def full_backlog(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening, ExitStack() as waiting:
        listening.bind(str(path))
        listening.listen(1)
        while True:
            client = waiting.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(0)
            try:
                client.connect(str(path))
            except BlockingIOError:
                break
        yield listening


async def test_command_is_not_sent_to_unresponsive_node(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """For a command to an unresponsive node, the short timeout applies, not the long one."""
    hold_for_sockets(autojump_clock)
    path = tmp_path / "control.sock"
    received = list[bytes]()

    async def serve(stream: trio.SocketStream) -> None:
        received.append(bytes(await stream.receive_some()))
        await trio.sleep_forever()

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(from_stdlib_socket(listening))])
            async with ControlClient(path, timeout_s=0.3, order_timeout_s=3600) as client:
                with pytest.raises(ControlError, match="is it stopped or overloaded"):
                    await client.submit(b"{}")
            nursery.cancel_scope.cancel()
    assert [each.split(b" ", 1)[0] for each in received] == [b"GET"]


async def test_client_waits_for_members_in_listing_of_keys(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an unresponsive member the surveys take ten seconds. The client reported an overloaded node."""
    hold_for_sockets(autojump_clock)
    node, path = FakeNode(), tmp_path / "control.sock"
    listed = node.keys.listing

    async def surveyed() -> KeysAnswer:
        await trio.sleep(10)
        return await listed()

    monkeypatch.setattr(node.keys, "listing", surveyed)
    async with served(path, node), ControlClient(path) as client:
        assert await client.call(KEYS) == await listed()


async def test_client_reports_missing_node(tmp_path: Path) -> None:
    async with ControlClient(tmp_path / "control.sock") as client:
        with pytest.raises(ControlError, match="no node runs at"):
            await client.view()


def without_environment() -> dict[str, str]:
    return {"XDG_STATE_HOME": "/nonexistent"}


async def test_first_running_node_of_local_farm_is_found(tmp_path: Path) -> None:
    farm = tmp_path / "farm-state"
    for name in ("node-1", "node-2", "node-10"):
        (farm / name).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(farm / "node-1" / "control.sock"))
    async with (
        served(farm / "node-2" / "control.sock", FakeNode()),
        served(farm / "node-10" / "control.sock", FakeNode()),
    ):
        assert find_control_socket(None, without_environment(), tmp_path) == farm / "node-2" / "control.sock"


@pytest.mark.parametrize("naming", [lambda path: path, lambda path: path.parent, lambda path: path.parent.parent])
async def test_node_is_named_by_socket_state_directory_or_farm(tmp_path: Path, naming: Callable[[Path], Path]) -> None:
    path = tmp_path / "farm" / "node-1" / "control.sock"
    path.parent.mkdir(parents=True)
    async with served(path, FakeNode()):
        assert find_control_socket(str(naming(path)), without_environment(), tmp_path) == path
        environment = {"GARLICFARM_NODE": str(naming(path))}
        assert find_control_socket(None, environment, tmp_path) == path


def test_missing_node_error_explains_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"garlicfarm up.*--node STATE_DIR.*GARLICFARM_NODE"):
        find_control_socket(None, without_environment(), tmp_path)
    with pytest.raises(ControlError, match=r"no node runs with the state directory .*; start it, or name another"):
        find_control_socket(str(tmp_path), without_environment(), tmp_path)


async def test_umask_is_restored_after_creation_of_socket(tmp_path: Path) -> None:
    previous = os.umask(0o022)

    try:
        async with served(tmp_path / "control.sock", FakeNode()):
            pass
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(previous)
