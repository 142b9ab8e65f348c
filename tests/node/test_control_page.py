"""The page for browsers and its stream: tokens, escaped text, and the end of a stream."""

import json
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import trio
from msgspec import Struct

from bridge.api.control_routes import PAGE, ROUTES, Route
from bridge.api.events import LEADER_ELECTED, MEMBER_ALIVE, MEMBER_SUSPECT, PUBLISHED, PUBLISHER_CHOSEN, VERDICT_CHANGED
from bridge.api.json import encode
from bridge.api.take_over import TakeOver, last_take_over
from bridge.api.trace import EventPage
from bridge.api.words import CONDITION_NAMES
from bridge.node.control.access import open_remote_access
from bridge.node.control.page import SCRIPTS, joined, show_page
from bridge.node.control.routes import Answer, Call, ControlEvent, Request
from bridge.node.control.server import ControlLimits, ControlServer
from bridge.node.control.stream import EventStream
from bridge.node.settings.configuration import ControlSettings
from gossip import Address
from tests.node.test_control import FakeNode
from tests.operator_views import largest_farm_view

Handler = Callable[[Call[Any]], Awaitable[Struct | Answer]]


@dataclass
class ServedPage:
    """A control endpoint with the page, and its clients."""

    server: ControlServer
    node: FakeNode
    directory: Path

    @property
    def token(self) -> str:
        return (self.directory / "control.read.token").read_text().strip()

    async def connect(self) -> trio.SSLStream[trio.SocketStream]:
        """Connect as a client that verifies the certificate."""
        context = ssl.create_default_context(cafile=self.directory / "control.crt")
        return await trio.open_ssl_over_tcp_stream("127.0.0.1", self.server.remote_port or 0, ssl_context=context)

    @asynccontextmanager
    async def open_request(self, target: str, *, token: bool) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
        """Send a request, and yield its connection."""
        stream = await self.connect()
        shown = f"Authorization: Bearer {self.token}\r\n" if token else ""
        await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: node\r\n{shown}\r\n".encode())
        try:
            yield stream
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def serving(
    directory: Path, limits: ControlLimits | None = None, documents: Mapping[str, object] | None = None
) -> AsyncIterator[ServedPage]:
    """Serve the page on loopback; `documents` are made-up replies by path."""
    node = FakeNode()
    remote = open_remote_access(directory, ControlSettings(listen=Address("127.0.0.1", 0), page=True))
    made_up = {path: made_up_route(path, document) for path, document in (documents or {}).items()}
    handlers = {route: handler for route, handler in node.handlers.items() if route.path not in made_up}
    handlers |= dict(made_up.values())
    server = ControlServer(directory / "control.sock", {**handlers, PAGE: show_page}, limits, remote)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield ServedPage(server, node, directory)
            nursery.cancel_scope.cancel()


def made_up_route(path: str, document: object) -> tuple[Route[Any], Handler]:
    """Return the route at this path with one reply, which does not depend on the query."""

    async def reply(_: Call[None]) -> Answer:
        await trio.lowlevel.checkpoint()
        return Answer(200, msgspec.json.encode(document))

    return ROUTES[path], reply


async def received(stream: trio.abc.ReceiveStream, *expected: bytes) -> bytes:
    """Return the received bytes when they contain all expected parts."""
    data = b""
    while not all(each in data for each in expected):
        part = await stream.receive_some(65_536)
        assert part, f"ended after {data[-200:]!r}"
        data += part
    return data


async def test_page_is_only_resource_without_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        async with served.open_request("/", token=False) as stream:
            page = await received(stream, b"</html>")
        assert page.startswith(b"HTTP/1.1 200")
        assert b"node-1" not in page
        for target in ("/v1/stream", "/v1/view", "/?x=1", "/healthz"):
            async with served.open_request(target, token=False) as stream:
                assert (await received(stream, b"\r\n")).startswith(b"HTTP/1.1 401")


def test_page_and_view_of_largest_farm_fit_200_kb() -> None:
    page, view = joined().encode(), encode(largest_farm_view())
    assert (len(page) < 200_000, len(view) < 200_000) == (True, True), f"{len(page)} and {len(view)} bytes"


async def test_content_policy_allows_only_inline_script_with_style() -> None:
    answer = await show_page(Call(Request("GET", "/"), None))
    policy = dict(answer.headers)["Content-Security-Policy"]
    inline = re.findall(rb"<(script|style)[^>]*>(.*?)</\1>", answer.body, re.DOTALL)
    assert [kind for kind, _ in inline] == [b"style", b"script"]
    for kind, text in inline:
        assert f"{kind.decode()}-src 'sha256-{b64encode(sha256(text).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'")
    assert policy.endswith("; require-trusted-types-for 'script'; trusted-types 'none'")
    assert not re.search(
        rb"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\ssrc=|\shref=", answer.body
    )


async def test_stream_sends_view_then_events(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.node.events.append(LEADER_ELECTED, {"text": "two\nlines"})
        async with served.open_request("/v1/stream", token=True) as stream:
            first = await received(stream, b"event: view\ndata: ", b"event: trace\nid: 1\ndata: ")
            served.node.events.append(PUBLISHED)
            second = await received(stream, b"event: trace\nid: 2\ndata: ")
        assert b"text/event-stream" in first
        event = next(line for line in first.split(b"\n") if b'"kind":"leader-elected"' in line)
        sent = json.loads(event.removeprefix(b"data: "))
        assert sent["data"] == {"text": "two\nlines"}
        assert sent["text"] == "leader-elected: text=two\nlines"
        assert b"leader-elected" not in second
        async with served.open_request("/v1/stream?from=2", token=True) as stream:
            resumed = await received(stream, b"id: 2\n")
        assert b"leader-elected" not in resumed


async def test_stream_sends_same_takeover_as_top(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        events = served.node.events
        events.append(MEMBER_ALIVE, {"member": "node-3"})
        events.append(MEMBER_SUSPECT, {"member": "node-3"})
        events.append(VERDICT_CHANGED, {"kind": "degraded"})
        events.append(LEADER_ELECTED, {"term": 4})
        expected = list(last_take_over(events.read(1).events))
        assert [each.what for each in expected] == ["suspected", "elected"]
        # A client that lost its connection resumes after the first step, and receives the whole takeover.
        async with served.open_request("/v1/stream?from=4", token=True) as stream:
            shown = await received(stream, b"event: takeOver\ndata: ", b"\n\n", b"id: 4\n")
            assert msgspec.json.decode(data_of(shown, "takeOver"), type=TakeOver).steps == tuple(expected)
            events.append(PUBLISHER_CHOSEN, {"server": 3, "name": "node-3", "master": "abc.b32.i2p"})
            later = await received(stream, b"event: takeOver\ndata: ", b"publisher chosen")
        assert len(msgspec.json.decode(data_of(later, "takeOver"), type=TakeOver).steps) == 3


async def test_stream_sends_log_only_on_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        view = served.node.current
        raft = msgspec.structs.replace(view.raft, applied_index=3)
        served.node.current = msgspec.structs.replace(view, raft=raft)
        served.node.events.append(LEADER_ELECTED, {"term": 4})
        async with served.open_request("/v1/stream?log=2", token=True) as stream:
            shown = await received(stream, b"event: log\ndata: ", b"event: takeOver")
        entries = json.loads(data_of(shown, "log"))["entries"]
        assert [each["index"] for each in entries] == [2, 3]
        assert entries[0] == {"index": 2, "term": 1, "logTimeMs": 5, "type": "other", "text": "{}"}
        async with served.open_request("/v1/stream", token=True) as stream:
            assert b"event: log" not in await received(stream, b"event: takeOver")


async def test_stream_sends_view_when_verdict_changes() -> None:
    kinds = iter((MEMBER_ALIVE, VERDICT_CHANGED))
    node = FakeNode()

    async def read_events(cursor: int, limit: int, wait_ms: int) -> EventPage:
        await trio.lowlevel.checkpoint()
        if limit > 1:
            node.events.append(next(kinds, MEMBER_ALIVE), {"member": "node-2", "text": "Degraded"})
        return await node.events.wait(cursor, limit, wait_ms)

    stream = EventStream(node.view, read_events, 1, node.read_log)
    parts = [(await stream.next()).partition(b"\n")[0] for _ in range(4)]
    assert parts == [b"event: view", b"event: trace", b"event: trace", b"event: view"]


def data_of(stream: bytes, event: str) -> bytes:
    """Return the data of the first event of this name."""
    block = next(each for each in stream.split(b"\n\n") if each.endswith(b"}") and f"event: {event}\n".encode() in each)
    return block.rpartition(b"data: ")[2]


async def test_closed_stream_frees_its_place(tmp_path: Path) -> None:
    async with serving(tmp_path, ControlLimits(streams=1)) as served:
        async with served.open_request("/v1/stream", token=True) as first:
            await received(first, b"event: view")
            async with served.open_request("/v1/stream", token=True) as second:
                assert b"503" in await received(second, b"streams are open already")
        while served.server._streams:  # noqa: ASYNC110 - the server has no event for a closed client connection
            await trio.sleep(0.01)
        async with served.open_request("/v1/stream", token=True) as third:
            await received(third, b"event: view")


async def test_fault_in_stream_ends_only_that_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        async with served.open_request("/v1/stream", token=True) as stream:
            await received(stream, b"event: view")
            served.node.broken = True
            while await stream.receive_some(65_536):
                pass
        served.node.broken = False
        assert served.server.counters[ControlEvent.INTERNAL_ERRORS] == 1
        async with served.open_request("/v1/cluster", token=True) as stream:
            await received(stream, b"200")


def test_page_has_declared_conditions_of_leaves() -> None:
    found = re.search(r"const SHARED = (\{.*\});", joined())
    assert found is not None
    shared = json.loads(found[1])
    assert [(kind, name) for kind, name, _ in shared["conditions"]] == list(CONDITION_NAMES.items())
    assert [word for _, _, word in shared["conditions"] if word not in shared["words"]] == []
    sources = files("bridge.node.control").joinpath("page_source")
    scripts = "".join(sources.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    assert not [kind for kind in ('"leaseSet"', '"service"', "Lease set") if kind in scripts]
