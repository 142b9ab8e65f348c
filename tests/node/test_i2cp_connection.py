"""One I2CP connection whose caller is canceled while it sends a request."""

import pytest
import trio
import trio.testing

from bridge.node.router.i2cp_connection import I2cpConnection
from bridge.node.router.link import RouterLost
from tests.node.fake_i2cp_router import LINK, FakeRouter


class SlowStream(trio.abc.Stream):
    """A stream that accepts half of a request and then no more while `is_full`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.is_full = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_full:
            await self._stream.send_all(data[: len(data) // 2])
            await trio.sleep_forever()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_request_canceled_while_sent_ends_connection(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    stream = SlowStream(ours)
    connection = I2cpConnection(stream, LINK, lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(FakeRouter().serve, theirs)
        nursery.start_soon(connection.read)
        await connection.greet(None)
        stream.is_full = True
        with trio.move_on_after(1):
            await connection.get_date()
        stream.is_full = False
        # The first request is incomplete, so the router could not read a second request.
        with pytest.raises(RouterLost, match="canceled"):
            await connection.get_date()
        assert trio.current_time() == 1
        nursery.cancel_scope.cancel()
