"""The closed network works: tunnels succeed, and requests through SAM reach services of both kinds of routers.

The clients are routers without floodfill: an i2pd floodfill loses the first request of its clients.
"""

import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from bridge.node.tasks.directory import CHECK_TIMEOUT_S
from bridge.sam.connection import LeafUnreachableError
from bridge.sam.session import SamSession, open_session
from bridge.wire.i2p.structures import address_of, destination_from_base64
from consensus import block_nursery
from tests.interop.i2p.http_service import get_page, serve_page
from tests.interop.i2p.network import ONE_HOP, Network
from tests.interop.i2p.router import LOOPBACK

pytestmark = pytest.mark.interop
REQUESTS = 20
REQUEST_S = 30.0
FIRST_S = 90.0


def test_network_has_floodfills_of_both_kinds(network: Network) -> None:
    assert {each.software for each in network.floodfills} == {"i2pd", "java"}


@asynccontextmanager
async def served_by_sam(network: Network) -> AsyncIterator[SamSession]:
    """Yield a session of i2pd that serves the page `i2pd`."""

    async def accept(session: SamSession) -> None:
        while True:
            _, stream = await session.accept()
            nursery.start_soon(serve_page, "i2pd", stream)

    async with network.published_session(network.i2pd[-2]) as session, block_nursery() as nursery:
        nursery.start_soon(accept, session)
        yield session


async def request(client: SamSession, destination_hash: bytes) -> str:
    with trio.fail_after(REQUEST_S):
        stream = await client.connect(destination_hash, REQUEST_S)
        return await get_page(address_of(destination_hash), stream)


async def first_request(client: SamSession, destination_hash: bytes) -> None:
    with trio.fail_after(FIRST_S):
        while True:
            try:
                await request(client, destination_hash)
            except (LeafUnreachableError, trio.TooSlowError):
                await trio.sleep(1)
            else:
                return


async def test_session_reaches_other_session_of_its_router(network: Network) -> None:
    """A session connects to another session of its router, as nodes do to check their directories."""
    router = network.i2pd[-2]
    assert router.sam_bridge is not None
    async with served_by_sam(network) as server, open_session(router.sam_bridge, options=ONE_HOP) as other:
        began_s = time.monotonic()
        await trio.aclose_forcefully(await other.connect(server.hash, CHECK_TIMEOUT_S))
        print(f"\nconnected after {time.monotonic() - began_s:.1f} s")


async def test_sam_requests_reach_both_kinds_of_routers(network: Network) -> None:
    client_router, java_router = network.i2pd[-1], network.java[1]
    async with block_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, partial(serve_page, "java"), 0, host=LOOPBACK))
        port = listeners[0].socket.getsockname()[1]
        java = destination_from_base64(await trio.to_thread.run_sync(java_router.tunnel, "service", port))
        assert client_router.sam_bridge is not None
        async with (
            served_by_sam(network) as server,
            open_session(client_router.sam_bridge, options=ONE_HOP) as client,
        ):
            for name, destination_hash in (("i2pd", server.hash), ("java", java.hash)):
                began_s = time.monotonic()
                await first_request(client, destination_hash)
                first_s = time.monotonic() - began_s
                times_ms = []
                for _ in range(REQUESTS):
                    began_s = time.monotonic()
                    assert await request(client, destination_hash) == name
                    times_ms.append(1000 * (time.monotonic() - began_s))
                median, most = statistics.median(times_ms), max(times_ms)
                print(f"{name}: first {first_s:.1f} s, {REQUESTS} requests, median {median:.0f} ms, max {most:.0f} ms")
