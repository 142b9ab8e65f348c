"""The HTTP proxy of `garlicfarm connect`: forwarding, its own replies, and hostile clients, over streams in memory."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import h11
import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from bridge.connect import connect
from bridge.connect.errors import LeafSilentError, NoLeafError
from bridge.connect.forwarding import ListenerCount, Listeners
from bridge.connect.http_proxy import PART_BYTES, Farms, HttpProxy, Page, ProxyLimits
from tests.node.fake_farm import ADDRESS, OTHER_ADDRESS, FailingStream, FakeFarm, HttpService, Service
from tests.node.wall_clock_farm import serve_hello, wall_clock_farm
from tests.processes import hold_for_sockets

HOST = ADDRESS.encode()
GET = b"GET http://%s/page?a=1 HTTP/1.1\r\nHost: %s\r\n\r\n" % (HOST, HOST)
BOUND_S = 30.0
LIMITS = ProxyLimits(head_bytes=2048)


@dataclass(frozen=True, slots=True)
class Stage:
    """A proxy with one client."""

    client: trio.abc.HalfCloseableStream
    proxy: HttpProxy
    farm: FakeFarm
    counters: dict[ListenerCount, int]

    async def send(self, data: bytes) -> None:
        await self.client.send_all(data)

    async def reply(self, method: str = "GET") -> tuple[h11.Response, bytes]:
        http = h11.Connection(h11.CLIENT)
        http.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        http.send(h11.EndOfMessage())
        head, body = None, b""
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await self.client.receive_some(1)))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert head is not None
        return head, body

    async def error(self, data: bytes) -> tuple[int, str]:
        """Send a request; return status and body of a reply of the proxy itself, which ends the connection."""
        await self.send(data)
        head, body = await self.reply()
        assert dict(head.headers)[b"content-type"] == b"text/plain; charset=utf-8"
        assert await self.client.receive_some(1) == b""
        return head.status_code, body.decode()


@asynccontextmanager
async def proxy_with(
    service: Service,
    *,
    names: tuple[str, ...] = (),
    pages: dict[str, Callable[[], Page]] | None = None,
    other: bool = False,
    limits: ProxyLimits = LIMITS,
) -> AsyncIterator[Stage]:
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            farm = FakeFarm(nursery, service)
            farms = [farm, FakeFarm(nursery, service, OTHER_ADDRESS)] if other else [farm]
            listeners = Listeners()
            proxy = HttpProxy(Farms(farms, dict.fromkeys(names, farm)), listeners, pages, limits)
            client, server = memory_stream_pair()
            nursery.start_soon(proxy.serve, server)
            yield Stage(client, proxy, farm, listeners.counters)
            nursery.cancel_scope.cancel()


# -- forwarding --------------------------------------------------------------------------------------------------------


async def test_absolute_request_reaches_farm_in_origin_form() -> None:
    service = HttpService()
    async with proxy_with(service.serve) as stage:
        await stage.send(GET)
        head, body = await stage.reply()
        assert (head.status_code, body) == (200, b"hello")
        (request,) = service.requests
        assert request.target == b"/page?a=1"
        assert request.headers.raw_items() == [(b"Host", HOST)]
        await service.ended.wait()


async def test_proxy_adds_no_field_and_removes_hop_by_hop_ones() -> None:
    reply = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nX-Kept: 2\r\n\r\nok"
    )
    service = HttpService(reply)
    hop_by_hop = b"Connection: keep-alive, X-One\r\nX-One: 1\r\nProxy-Authorization: abc\r\nTE: x\r\nUpgrade: h2c\r\n"
    async with proxy_with(service.serve, names=("shop",)) as stage:
        await stage.send(b"GET http://shop/ HTTP/1.1\r\nHost: shop\r\nAccept: */*\r\n" + hop_by_hop + b"\r\n")
        head, _ = await stage.reply()
        assert service.requests[0].headers.raw_items() == [(b"Host", HOST), (b"Accept", b"*/*")]
        assert head.headers.raw_items() == [(b"Content-Length", b"2"), (b"X-Kept", b"2")]


@pytest.mark.parametrize(
    "host", [b"127.0.0.1:8118", b"[::1]:8118", b"localhost", HOST, b"shop", HOST.upper() + b".:80"]
)
async def test_origin_request_reaches_the_only_farm(host: bytes) -> None:
    service = HttpService()
    async with proxy_with(service.serve, names=("shop",)) as stage:
        await stage.send(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % host)
        assert (await stage.reply())[1] == b"hello"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"Sec-Fetch-Site: cross-site", 403),
        (b"Sec-Fetch-Site: same-site", 403),
        (b"Origin: http://page.example", 403),
        (b"Origin: null", 403),
        (b"Sec-Fetch-Site: none", 200),
        (b"Sec-Fetch-Site: same-origin\r\nOrigin: http://127.0.0.1:8118", 200),
    ],
)
async def test_page_of_other_site_cannot_use_own_address(fields: bytes, status: int) -> None:
    async with proxy_with(HttpService().serve) as stage:
        await stage.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8118\r\n%s\r\n\r\n" % fields)
        assert (await stage.reply())[0].status_code == status
        assert stage.farm.opened == (status == 200)


@pytest.mark.parametrize(
    ("request_line", "host"), [(b"GET http://shop/ HTTP/1.1", b"shop"), (b"GET / HTTP/1.1", b"localhost:8118")]
)
async def test_local_name_does_not_leave_this_machine(request_line: bytes, host: bytes) -> None:
    service = HttpService()
    async with proxy_with(service.serve, names=("shop",)) as stage:
        sources = b"Origin: http://%s\r\nReferer: http://%s/page?a=1\r\n" % (host, host)
        await stage.send(b"%s\r\nHost: %s\r\n%s\r\n" % (request_line, host, sources))
        await stage.reply()
        farm = b"http://" + HOST
        assert service.requests[0].headers.raw_items() == [
            (b"Host", HOST),
            (b"Origin", farm),
            (b"Referer", farm + b"/page?a=1"),
        ]


@pytest.mark.parametrize("referer", [b"http://shopping/", b"https://shop/", b"http://shop.example/", b"about:blank"])
async def test_source_on_other_host_is_unchanged(referer: bytes) -> None:
    service = HttpService()
    async with proxy_with(service.serve, names=("shop",)) as stage:
        await stage.send(b"GET http://shop/ HTTP/1.1\r\nHost: shop\r\nReferer: %s\r\n\r\n" % referer)
        await stage.reply()
        assert dict(service.requests[0].headers)[b"referer"] == referer


@pytest.mark.parametrize(("method", "is_quick"), [("GET", True), ("HEAD", True), ("POST", False), ("DELETE", False)])
async def test_proxy_has_short_timeouts_for_safe_methods_only(method: str, *, is_quick: bool) -> None:
    async with proxy_with(HttpService().serve) as stage:
        await stage.send(b"%s http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n" % (method.encode(), HOST, HOST))
        await stage.reply(method)
        assert stage.farm.quick == [is_quick]


async def test_connection_is_kept_for_further_requests() -> None:
    service = HttpService()
    async with proxy_with(service.serve) as stage:
        await stage.send(GET + GET)
        await stage.send(GET)
        for _ in range(3):
            assert (await stage.reply())[1] == b"hello"
        assert stage.farm.opened == 3
        assert stage.counters[ListenerCount.REQUESTS] == 3


async def test_body_of_request_is_streamed_with_its_framing() -> None:
    service = HttpService()
    async with proxy_with(service.serve) as stage:
        head = b"POST http://%s/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n" % HOST
        await stage.send(head + b"3\r\nabc\r\n")
        await stage.send(b"4\r\ndefg\r\n0\r\nA: 1\r\n\r\n")
        assert (await stage.reply())[1] == b"hello"
        await stage.send(b"PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody" % HOST)
        assert (await stage.reply())[1] == b"hello"
        assert service.bodies == [b"abcdefg", b"body"]


async def test_expectation_is_answered_after_a_leaf_was_found() -> None:
    service = HttpService()
    async with proxy_with(service.serve) as stage:
        head = b"PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n" % HOST
        await stage.send(head)
        go_on = b"HTTP/1.1 100 \r\n\r\n"
        assert await stage.client.receive_some(len(go_on)) == go_on
        await stage.send(b"body")
        assert (await stage.reply())[0].status_code == 200
        assert b"expect" not in dict(service.requests[0].headers)


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n2\r\nab\r\n0\r\n\r\n", b"ab"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", b"ab"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
async def test_response_keeps_its_body(reply: bytes, body: bytes) -> None:
    async with proxy_with(HttpService(reply).serve) as stage:
        await stage.send(GET)
        assert (await stage.reply())[1] == body


async def test_head_response_ends_after_its_head() -> None:
    async with proxy_with(HttpService(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").serve) as stage:
        await stage.send(GET.replace(b"GET", b"HEAD") * 2)
        assert dict((await stage.reply("HEAD"))[0].headers)[b"content-length"] == b"5"
        assert (await stage.reply("HEAD"))[0].status_code == 200


@pytest.fixture(name="clock")
def jumping_clock() -> MockClock:
    """Return a clock that jumps when all tasks wait."""
    clock = MockClock()
    hold_for_sockets(clock)
    return clock


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_leaf_without_reply_costs_one_request(tmp_path: Path, clock: MockClock, method: str) -> None:
    """After the request without a reply, the proxy sends the next requests to the other leaf."""
    del clock
    received = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal received
        received += 1
        if received == 1:
            await trio.sleep_forever()
        await serve_hello(stream)

    statuses = []
    with trio.fail_after(BOUND_S):
        async with (
            wall_clock_farm(serve) as farm,
            connect(farm.link, bridge=farm.bridge, cache_dir=tmp_path) as client_of_farm,
        ):
            async with trio.open_nursery() as nursery:
                proxy = HttpProxy(Farms([client_of_farm], {}), Listeners())
                for _ in range(3):
                    client, server = memory_stream_pair()
                    nursery.start_soon(proxy.serve, server)
                    fields = "Host: localhost\r\nContent-Length: 0\r\nConnection: close"
                    await client.send_all(f"{method} / HTTP/1.1\r\n{fields}\r\n\r\n".encode())
                    reply = b"".join([bytes(part) async for part in client])
                    statuses.append(int(reply.split()[1]))
            assert statuses == [504, 200, 200]
            assert received == 3


async def test_early_response_ends_upload() -> None:
    async def refuse(stream: trio.abc.HalfCloseableStream) -> None:
        await stream.receive_some(4096)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    async with proxy_with(refuse) as stage:
        await stage.send(b"PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nbody" % HOST)
        assert (await stage.reply())[0].status_code == 413
        assert await stage.client.receive_some(1) == b""


async def test_slow_client_stops_the_leaf(nursery: trio.Nursery) -> None:
    sent = 0

    async def flood(stream: trio.abc.HalfCloseableStream) -> None:
        nonlocal sent
        await stream.receive_some(4096)
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(100):
            await stream.send_all(bytes(PART_BYTES))
            sent += 1

    with trio.fail_after(BOUND_S):
        leaf, service = lockstep_stream_pair()
        client, server = lockstep_stream_pair()
        farm = FakeFarm(nursery, flood)
        farm.stream = leaf
        nursery.start_soon(flood, service)
        nursery.start_soon(HttpProxy(Farms([farm], {}), Listeners()).serve, server)
        await client.send_all(GET)
        await trio.testing.wait_all_tasks_blocked()
        assert sent == 0
        for _ in range(4):
            await client.receive_some(2 * PART_BYTES)
            await trio.testing.wait_all_tasks_blocked()
        assert 0 < sent < 5


async def test_canceled_proxy_ends_stream_and_client() -> None:
    service = HttpService(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as services:
            client, server = memory_stream_pair()
            async with trio.open_nursery() as nursery:
                proxy = HttpProxy(Farms([FakeFarm(services, service.serve)], {}), Listeners())
                nursery.start_soon(proxy.serve, server)
                await client.send_all(GET)
                assert await client.receive_some(8) == b"HTTP/1.1"
                nursery.cancel_scope.cancel()
            await service.ended.wait()
            assert proxy.listeners.open_connections == 0


async def test_client_that_leaves_ends_its_stream() -> None:
    service = HttpService(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
    async with proxy_with(service.serve) as stage:
        await stage.send(GET)
        await stage.client.receive_some(10)
        await stage.client.aclose()
        await service.ended.wait()
        assert stage.counters[ListenerCount.CONNECTIONS_FAILED] == 0


async def test_tunnel_copies_both_directions() -> None:
    async def echo(stream: trio.abc.HalfCloseableStream) -> None:
        while data := await stream.receive_some(4096):
            await stream.send_all(data.upper())

    async with proxy_with(echo) as stage:
        await stage.send(b"CONNECT %s:443 HTTP/1.1\r\nHost: x\r\n\r\nearly" % HOST)
        expected = b"HTTP/1.1 200 Connection established\r\n\r\nEARLY"
        assert await received(stage.client, len(expected)) == expected
        await stage.send(b"late")
        assert await stage.client.receive_some(10) == b"LATE"
        assert stage.counters[ListenerCount.TUNNELS] == 1


async def received(stream: trio.abc.ReceiveStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = await stream.receive_some(count - len(data))
        assert part, data
        data += part
    return data


# -- replies of the proxy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET http://example.com/ HTTP/1.1",
        b"GET http://127.0.0.1/ HTTP/1.1",
        b"GET http://localhost:7657/ HTTP/1.1",
        b"GET http://%s/ HTTP/1.1" % OTHER_ADDRESS.encode(),
        b"CONNECT example.com:443 HTTP/1.1",
        b"CONNECT 127.0.0.1:22 HTTP/1.1",
        b"CONNECT [::1]:22 HTTP/1.1",
        b"GET http://%s.example.com/ HTTP/1.1" % HOST,
    ],
)
async def test_other_host_is_refused_and_never_connected(request_line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio, "open_tcp_stream", None)
    monkeypatch.setattr(trio.socket, "getaddrinfo", None)
    async with proxy_with(HttpService().serve) as stage:
        status, text = await stage.error(request_line + b"\r\nHost: %s\r\n\r\n" % HOST)
        assert status == 403
        assert ADDRESS in text
        assert stage.farm.opened == 0
        assert stage.counters[ListenerCount.REQUESTS_REJECTED] == 1


@pytest.mark.parametrize("host", [b"rebound.example", b"localhost.example", b"127.0.0.1.example"])
async def test_foreign_name_of_this_machine_is_refused(host: bytes) -> None:
    async with proxy_with(HttpService().serve) as stage:
        status, text = await stage.error(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % host)
        assert status == 403
        assert ADDRESS not in text  # A web page with this host name can read the reply.


async def test_own_address_with_two_links_is_refused() -> None:
    async with proxy_with(HttpService().serve, other=True) as stage:
        status, text = await stage.error(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8118\r\n\r\n")
        assert status == 403
        assert OTHER_ADDRESS in text


async def test_missing_leaf_gives_503_with_its_reason() -> None:
    async with proxy_with(HttpService().serve) as stage:
        stage.farm.error = NoLeafError("no leaf answered: 3 tried, last structure is 4 minutes old")
        await stage.send(GET)
        head, body = await stage.reply()
        assert head.status_code == 503
        assert dict(head.headers)[b"retry-after"] == b"10"
        assert b"3 tried" in body
        assert stage.proxy.listeners.last_error == str(stage.farm.error)


async def test_leaf_without_reply_gives_504_once(autojump_clock: MockClock) -> None:
    async with proxy_with(HttpService().serve) as stage:
        stage.farm.stream = FailingStream(LeafSilentError("leaf x did not reply within 5 s"), 5)
        status, text = await stage.error(GET)
        assert status == 504
        assert "did not reply within 5 s" in text
        assert stage.farm.opened == 1


@pytest.mark.parametrize(
    "reply", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 20_000 + b"\r\n\r\n"]
)
async def test_unusable_response_gives_502(reply: bytes) -> None:
    async def answer(stream: trio.abc.HalfCloseableStream) -> None:
        await stream.receive_some(4096)
        await stream.send_all(reply)
        await stream.aclose()

    async with proxy_with(answer) as stage:
        assert (await stage.error(GET))[0] == 502
        assert stage.counters[ListenerCount.CONNECTIONS_FAILED] == 1


async def test_response_cut_short_ends_connection_without_end_of_body() -> None:
    async def cut(stream: trio.abc.HalfCloseableStream) -> None:
        await stream.receive_some(4096)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
        await stream.aclose()

    async with proxy_with(cut) as stage:
        await stage.send(GET)
        with pytest.raises(h11.RemoteProtocolError):
            await stage.reply()


async def test_stalled_response_is_ended(autojump_clock: MockClock) -> None:

    async def stall(_stream: trio.abc.HalfCloseableStream) -> None:
        await trio.sleep_forever()

    with trio.fail_after(LIMITS.response_s * 2):
        async with proxy_with_unbounded(stall) as stage:
            assert (await stage.error(GET))[0] == 504


@asynccontextmanager
async def proxy_with_unbounded(service: Service) -> AsyncIterator[Stage]:
    """Yield a stage without a bound: the caller sets one, because the simulated times are long."""
    async with trio.open_nursery() as nursery:
        farm, listeners = FakeFarm(nursery, service), Listeners()
        client, server = memory_stream_pair()
        proxy = HttpProxy(Farms([farm], {}), listeners, None, LIMITS)
        nursery.start_soon(proxy.serve, server)
        yield Stage(client, proxy, farm, listeners.counters)
        nursery.cancel_scope.cancel()


async def test_pages_are_served_on_own_socket_only() -> None:
    pages = {"/status": lambda: Page(b"{}", "application/json")}
    async with proxy_with(HttpService().serve, pages=pages) as stage:
        await stage.send(b"GET /status?x=1 HTTP/1.1\r\nHost: client\r\n\r\n")
        head, body = await stage.reply()
        assert (head.status_code, body) == (200, b"{}")
        assert stage.farm.opened == 0
    async with proxy_with(HttpService().serve, pages=pages) as stage:
        assert (await stage.error(b"GET /secrets HTTP/1.1\r\nHost: client\r\n\r\n"))[0] == 404


# -- hostile clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab" % HOST, 400),
        (
            b"POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            % HOST,
            400,
        ),
        (b"POST http://%s/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % HOST, 400),
        (b"POST http://%s/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" % HOST, 501),
        (b"GET http://%s@example.com/ HTTP/1.1\r\nHost: x\r\n\r\n" % HOST, 400),
        (b"GET http://user:pass@%s/ HTTP/1.1\r\nHost: x\r\n\r\n" % HOST, 400),
        (b"GET https://%s/ HTTP/1.1\r\nHost: x\r\n\r\n" % HOST, 400),
        (b"GET ftp://%s/ HTTP/1.1\r\nHost: x\r\n\r\n" % HOST, 400),
        (b"GET http://%s/#part HTTP/1.1\r\nHost: x\r\n\r\n" % HOST, 400),
        (b"GET http:/// HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: %s\r\nHost: example.com\r\n\r\n" % HOST, 400),
        (b"GET / HTTP/1.1\r\nHost : %s\r\n\r\n" % HOST, 400),
        (b"CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n" % HOST, 400),
        (b"CONNECT %s:80 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc" % HOST, 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET * HTTP/1.1\r\nHost: %s\r\n\r\n" % HOST, 400),
    ],
)
async def test_ambiguous_or_malformed_request_is_rejected(data: bytes, status: int) -> None:
    async with proxy_with(HttpService().serve) as stage:
        assert (await stage.error(data))[0] == status
        assert stage.farm.opened == 0
        assert stage.counters[ListenerCount.REQUESTS_REJECTED] == 1


async def test_malformed_chunk_ends_request_unfinished() -> None:
    bodies: list[bytes] = []

    async def record(stream: trio.abc.HalfCloseableStream) -> None:
        data = b""
        while part := await stream.receive_some(4096):
            data += part
        bodies.append(data)

    async with proxy_with(record) as stage:
        head = b"POST http://%s/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % HOST
        status, text = await stage.error(head + b"3\r\nabc\r\nzz\r\n")
        assert status == 400
        assert "body" in text
        await trio.testing.wait_all_tasks_blocked()
        assert b"\r\n0\r\n" not in bodies[0]


async def test_slow_head_and_idle_client_are_closed(autojump_clock: MockClock) -> None:
    async with proxy_with(HttpService().serve) as stage:
        await stage.send(b"GET / HT")
        assert await stage.client.receive_some(1) == b""
        assert trio.current_time() < LIMITS.head_s + 1
    with trio.fail_after(LIMITS.idle_s + 1):
        async with proxy_with_unbounded(HttpService().serve) as stage:
            assert await stage.client.receive_some(1) == b""


async def test_slow_body_gives_408(autojump_clock: MockClock) -> None:

    async def receive(stream: trio.abc.HalfCloseableStream) -> None:
        while await stream.receive_some(4096):
            pass

    with trio.fail_after(LIMITS.step_s * 2):
        async with proxy_with_unbounded(receive) as stage:
            head = b"POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc" % HOST
            assert (await stage.error(head))[0] == 408


async def test_connection_above_limit_is_closed() -> None:
    async with proxy_with(HttpService().serve) as stage:
        await trio.testing.wait_all_tasks_blocked()
        stage.proxy.listeners.places.total_tokens = 1
        client, server = memory_stream_pair()
        await stage.proxy.serve(server)
        assert await client.receive_some(1) == b""
        assert stage.counters[ListenerCount.CONNECTIONS_REFUSED] == 1
