"""A canceled request ends the stream of its body: otherwise trio would report an open generator."""

import gc
from typing import Any

import httpcore
import trio
from trio.testing import wait_all_tasks_blocked

from bridge.node.http_exchange import exchange

URL = httpcore.URL(scheme="http", host="node", port=80, target="/v1/entries")


class StuckStream(httpcore.AsyncMockStream):
    """Takes the head of a request, and never its body."""

    async def write(self, buffer: bytes, *_: object, **__: Any) -> None:
        """Write the head, or wait until canceled."""
        if b"HTTP/1.1" not in buffer:
            await trio.sleep_forever()


class StuckBackend(httpcore.AsyncMockBackend):
    """Connects to a `StuckStream`."""

    async def connect_tcp(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        return StuckStream([])


async def test_canceled_request_ends_its_generator() -> None:
    connection = httpcore.AsyncHTTPConnection(URL.origin, network_backend=StuckBackend([]))
    headers = [("Host", "node"), ("Content-Length", "4")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange, connection, "POST", URL, headers, b"body", 100)
        await wait_all_tasks_blocked()
        assert not connection.is_idle()
        nursery.cancel_scope.cancel()
    await connection.aclose()
    gc.collect()  # pytest reports an unfinished generator as an error of this test.
