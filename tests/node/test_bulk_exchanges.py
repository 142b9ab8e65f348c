"""All exchanges with bulk data: each completes over a link of 1 Mbit/s, and every new one needs a row here.

With a fixed deadline for a whole message, a slow link never completes it, because an interrupted message starts over.
So every function that sends or receives under a deadline is in one of two tables. `BULK` names the test that carries
its data over a throttled link in simulated time. `SMALL` gives the reason why its data is small. The test fails for a
function in neither table.
"""

import ast
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import httpcore
import pytest
import trio
import trio.testing
from httpcore._backends.trio import TrioStream

from bridge.api.log import EntryKind, LogEntryView, LogPage
from bridge.node.control import server as control_server
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.control.connections import async_connection
from bridge.node.control.connections.async_connection import AsyncConnection
from bridge.node.security.local_trust import peer_user_id
from consensus.core import messages as core
from consensus.core.effects import Outcome
from consensus.core.model import Entry, LogId
from consensus.core.model import EntryKind as EntryKindOfCore
from consensus.net.transfer_time import TransferTime
from consensus.protocols.garlic_farm.node import client as farm_client
from consensus.protocols.garlic_farm.node import links as farm_links
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.links import PeerLinks
from consensus.protocols.garlic_farm.node.metrics import Incident, Metrics
from consensus.protocols.zmq_raft.client import log_reader
from consensus.protocols.zmq_raft.client.client import NoAnswerError, open_client
from consensus.protocols.zmq_raft.client.links import Receive, ZmqClientOptions
from tests.node import test_kraft_slow_link
from tests.node.garlic_farm_stage import ALICE, BOB, Host
from tests.node.recorded_receiver import RecordedReceiver
from tests.node.slow_link import MEGABIT_PER_S, Pipe, in_memory, slow_pair
from tests.node.test_control import FakeNode
from tests.node.test_garlic_farm_slow_link import SlowStage
from tests.node.zmq_network import IDENT, EntryServer, MemoryNetwork, MemorySocket, url_of

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
PAGE_BYTES = 4 * 2**20
COMMAND_BYTES = 4_000_000
TIMED = {"fail_after", "move_on_after", "fail_at", "move_on_at", "CancelScope"}
MOVES_BYTES = {
    *("send_all", "receive_some", "exchange", "_exchange", "call", "submit", "flush", "_flush", "do_handshake"),
    *("_send", "_send_bytes", "_write", "_deliver_all"),
}


def slow_stage(nursery: trio.Nursery, own_id: int) -> SlowStage:
    """Return a stage whose links carry 1 Mbit/s in each direction."""
    return SlowStage(nursery, own_id, {number: Pipe(MEGABIT_PER_S) for number in (ALICE, BOB)})


class LargePages(FakeNode):
    """A node whose log has one entry."""

    def __init__(self, entry: LogEntryView) -> None:
        super().__init__()
        self.entry = entry

    async def read_log(self, first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> LogPage:
        del first, limit, wait_ms, linearizable
        await trio.lowlevel.checkpoint()
        return LogPage(1, 1, 1, 2, (self.entry,))


async def page_of_the_log(nursery: trio.Nursery, path: Path) -> None:
    """Read a page of maximum size with `GET /v1/log` from a remote node."""
    entry = LogEntryView.of(1, 1, EntryKind.APPLICATION, 5, b"x" * PAGE_BYTES)
    node = LargePages(entry)
    server = control_server.ControlServer(path / "control.sock", node.handlers)
    ours, theirs = slow_pair(nursery, Pipe(MEGABIT_PER_S), Pipe(MEGABIT_PER_S))
    nursery.start_soon(server._guarded, theirs, None)

    class Backend(httpcore.AsyncNetworkBackend):
        async def connect_unix_socket(self, *_: object, **__: object) -> httpcore.AsyncNetworkStream:
            await trio.lowlevel.checkpoint()
            return TrioStream(ours)

    connection = AsyncConnection(path / "control.sock", peer_user_id)
    connection._http = httpcore.AsyncHTTPConnection(connection._origin, uds="memory", network_backend=Backend())
    connection._http.is_idle = lambda: True  # type: ignore[method-assign]
    client = ControlClient(path / "control.sock", connection=lambda: connection)
    page = await client.log()
    assert page == LogPage(1, 1, 1, 2, (entry,))


async def large_command(nursery: trio.Nursery, _path: Path) -> None:
    """Submit a command of maximum size as a client of a farm."""
    stage = slow_stage(nursery, ALICE)
    host = stage.add(Host(BOB))
    client = GarlicFarmClient(stage.dialer(None), stage.resolve, [BOB], random=Random(1))
    await nursery.start(client.run)
    submission = await client.submit([bytes(COMMAND_BYTES)])
    assert submission.outcome is Outcome.COMMITTED
    assert host.handler.commands_of_clients == [(bytes(COMMAND_BYTES),)]


async def appends_without_extensions(nursery: trio.Nursery, _path: Path) -> None:
    """Send large appends to a peer without extensions.

    The peer has one connection, so no other message shows that it is alive while a large append arrives.
    """
    stage, receiver = slow_stage(nursery, ALICE), RecordedReceiver()
    incidents: list[Incident] = []
    host = stage.add(Host(BOB))
    links = PeerLinks(
        stage.dialer(ALICE, offered=()), stage.resolve, metrics=Metrics(incidents.append), random=Random(3)
    )
    await nursery.start(links.run, receiver)
    for number in range(1, 4):
        entries = (Entry.command(3, bytes(1_000_000)),)
        links.send(
            BOB,
            core.AppendEntries(
                term=3, leader=ALICE, previous=LogId(number, 3), entries=entries, commit=0, correlation=number
            ),
        )
    await receiver.wait_replies(3)
    assert incidents == []
    assert len(host.handler.requests) == len(receiver.replies)


class SlowSocket(MemorySocket):
    """A socket whose messages pass through a pipe, including messages of ended requests."""

    def __init__(self, network: MemoryNetwork, url: str, receive: Receive, nursery: trio.Nursery, pipe: Pipe) -> None:
        super().__init__(network, url, receive)
        self._pipe = pipe
        self._put, self._taken = trio.open_memory_channel[list[bytes]](1_000)
        nursery.start_soon(self._carry)

    def deliver(self, frames: list[bytes]) -> None:
        """Put a message into the pipe."""
        self._put.send_nowait(frames)

    async def _carry(self) -> None:
        async for frames in self._taken:
            await self._pipe.carry(sum(map(len, frames)))
            super().deliver(frames)


class SlowNetwork(MemoryNetwork):
    """A network with one pipe toward the client."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = nursery
        self._pipe = Pipe(MEGABIT_PER_S)

    def dealer(self, url: str, receive: Receive) -> MemorySocket:
        """Return a DEALER socket whose messages pass through the pipe."""
        return SlowSocket(self, url, receive, self._nursery, self._pipe)


async def entries_by_zmq(nursery: trio.Nursery, _path: Path, *, size_bytes: int = 65_000, ahead: int = 5) -> None:
    """Read the log as a client of ØMQ Raft, which receives only complete messages."""
    network, server = SlowNetwork(nursery), EntryServer(4_000_000 // size_bytes, per_message=1)
    server.entries = [Entry(1, EntryKindOfCore.COMMAND, bytes(size_bytes)) for _ in server.entries]
    server.ahead = ahead
    for peer in network.cluster(leader=1):
        peer.script = server
    async with open_client(network, [url_of(1)], IDENT, ZmqClientOptions()) as client:
        read = [item async for item in client.entries()]
    assert len(read) == len(server.entries)


Exchange = Callable[[trio.Nursery, Path], Awaitable[None]]

THROTTLED: dict[str, Exchange] = {
    "control": page_of_the_log,
    "farm-client": large_command,
    "farm-links": appends_without_extensions,
    "zmq-entries": entries_by_zmq,
    "zmq-large-entries": partial(entries_by_zmq, size_bytes=1_000_000, ahead=1),
}
BULK: dict[tuple[str, str], object] = {
    ("bridge/node/control/connections/async_connection.py", "exchange"): THROTTLED["control"],
    ("bridge/node/control/server.py", "_write"): THROTTLED["control"],
    ("consensus/protocols/garlic_farm/node/client_connection.py", "_read"): THROTTLED["farm-links"],
    ("consensus/protocols/kafka/connections/listener.py", "_respond_behind"): test_kraft_slow_link,
}
"""Functions that carry bulk data under a deadline, with the exchange above or the module that tests them."""

SMALL: dict[tuple[str, str], str] = {
    ("bridge/connect/directories.py", "_structure_of"): "a structure of at most 64 KiB, by tunnels within 20 s",
    ("bridge/connect/http_proxy.py", "_linger"): "discarded bytes",
    ("bridge/connect/http_proxy.py", "_next_head"): "a head of 32 KiB from a program of this machine",
    ("bridge/connect/http_proxy.py", "_next_of_client"): "one part of 16 KiB from a program of this machine",
    ("bridge/connect/http_proxy.py", "_receive_response"): "one part of 16 KiB, within 300 s",
    ("bridge/connect/http_proxy.py", "_send"): "one part of 16 KiB",
    ("bridge/connect/opening.py", "_receive_late_reply"): "one byte",
    ("bridge/node/control/server.py", "_guarded"): "a handshake",
    ("bridge/node/control/server.py", "_linger"): "discarded bytes",
    ("bridge/node/control/server.py", "_read_request"): "a body of 256 KiB, for which 10 s are enough at 32 KiB/s",
    ("bridge/node/inviting/listener.py", "handle"): "a request of 2 KiB and a bundle of some KiB, within 10 s",
    ("bridge/node/inviting/listener.py", "run"): "a request of 2 KiB and a bundle of some KiB, within 10 s",
    ("bridge/node/inviting/redeeming.py", "_redeemed"): "a bundle of some KiB, within 30 s",
    ("bridge/node/local/leaf_services.py", "serve"): "a page of one line",
    ("bridge/node/router/i2cp_connection.py", "_send_bytes"): "a message to the router of this machine",
    ("bridge/node/router/i2cp_connection.py", "send_disconnect"): "a message to the router of this machine",
    ("bridge/node/router/i2pcontrol.py", "_request"): "an answer of the router of this machine",
    ("bridge/node/tasks/directory_requests.py", "_until_closed"): "one byte",
    ("bridge/node/tasks/directory_requests.py", "serve"): "33 bytes, and a structure of 16 leaves",
    ("bridge/node/tasks/reporting.py", "send_final_report"): "one report",
    ("bridge/node/tasks/reporting.py", "run"): "one report",
    ("bridge/sam/connection.py", "request"): "a line of the router's SAM bridge, of at most 8 KiB",
    ("bridge/sam/loopback.py", "_control"): "a line of a program of this machine, of at most 8 KiB",
    ("bridge/sam/session.py", "_watched"): "a line of at most 8 KiB to the router's SAM bridge",
    ("consensus/net/tls_stream.py", "aclose"): "the alert that ends TLS",
    ("consensus/protocols/garlic_farm/node/connection.py", "_send"): "replies of some 40 bytes",
    ("consensus/protocols/garlic_farm/node/membership.py", "request_leave"): "one request without entries",
    ("consensus/protocols/kraft/operators/quorum_client.py", "_exchange"): "a description of the quorum",
    ("consensus/protocols/kraft/replica/identification.py", "identify"): "a description of the quorum",
    ("consensus/protocols/zmq_raft/peer/compaction.py", "compact"): "pipes to a program of this machine",
}
"""Functions with small data, and the reason why it is small."""


def timed_transfers(source: str) -> Iterator[str]:
    """Yield the asynchronous functions that transfer data under a deadline. A module without one is not parsed."""
    if not any(f"{name}(" in source for name in TIMED):
        return
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.AsyncFunctionDef) and any(
            _is_timed(block) and _moves_bytes(block) for block in ast.walk(function)
        ):
            yield function.name


def _is_timed(block: ast.AST) -> bool:
    return isinstance(block, ast.With) and any(
        _called(call) in TIMED for item in block.items for call in ast.walk(item.context_expr)
    )


def _moves_bytes(block: ast.AST) -> bool:
    return any(isinstance(each, ast.Await) and _called(each.value) in MOVES_BYTES for each in ast.walk(block))


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def run_throttled(exchange: Exchange, path: Path) -> None:
    """Run one exchange over a link of 1 Mbit/s in simulated time."""

    async def run() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                await exchange(nursery, path)
                nursery.cancel_scope.cancel()

    in_memory(run)


@pytest.mark.parametrize("name", THROTTLED)
def test_bulk_exchange_over_one_megabit_completes(name: str, tmp_path: Path) -> None:
    run_throttled(THROTTLED[name], tmp_path)


def _no_time(_size_bytes: int) -> float:
    return 0.0


PLANTED: list[tuple[str, object, str, object]] = [
    ("control", control_server, "time_for", _no_time),
    ("control", async_connection, "TransferTime", lambda _: TransferTime(0)),
    ("farm-client", farm_client, "time_for", _no_time),
    ("farm-client", farm_client, "SLOWEST_LINK_BYTES_PER_S", 1_000_000),
    ("farm-links", farm_links, "SLOWEST_LINK_BYTES_PER_S", 1_000_000),
    ("zmq-large-entries", log_reader, "_SLOWNESS_MAX", 1),
]


@pytest.mark.parametrize(("name", "module", "attribute", "planted"), PLANTED)
def test_planted_fixed_deadline_is_detected(
    name: str, module: object, attribute: str, planted: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each exchange fails without the time for the size or for the arriving bytes."""
    monkeypatch.setattr(module, attribute, planted)
    failure = pytest.RaisesExc((AssertionError, ControlError, NoAnswerError, trio.TooSlowError))
    with pytest.RaisesGroup(failure, allow_unwrapped=True, flatten_subgroups=True):
        run_throttled(THROTTLED[name], tmp_path)


def test_planted_transfer_under_deadline_is_collected() -> None:
    source = "async def give(s, d):\n    with trio.fail_after(5):\n        await s.send_all(d)\n"
    assert list(timed_transfers(source)) == ["give"]


def test_transfer_under_deadline_without_row_is_detected() -> None:
    """Each such function is in `BULK` or in `SMALL`."""
    found = {
        (str(path.relative_to(ROOT)), name)
        for part in ("bridge", "consensus", "gossip")
        for path in (ROOT / part).rglob("*.py")
        for name in timed_transfers(path.read_text(encoding="utf-8"))
    }
    assert found == {*BULK, *SMALL}
