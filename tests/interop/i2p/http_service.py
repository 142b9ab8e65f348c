"""A page with a name, served on streams of any kind, and a request for it.

The sender of the request closes the stream: routers do not support a half-close.
"""

from typing import Final

import h11
import trio

_READ_BYTES: Final = 4096
_CLOSE_S: Final = 10.0


async def serve_page(name: str, stream: trio.abc.Stream) -> None:
    """Reply to one request, and wait for the end of the stream."""
    async with stream:
        with trio.move_on_after(_CLOSE_S):
            connection = h11.Connection(h11.SERVER)
            if not await _events(connection, stream):
                return
            headers = [("Content-Length", str(len(name))), ("Connection", "close")]
            reply = (h11.Response(status_code=200, headers=headers), h11.Data(name.encode()), h11.EndOfMessage())
            await stream.send_all(b"".join(connection.send(each) or b"" for each in reply))
            while await stream.receive_some(_READ_BYTES):
                pass


async def get_page(host: str, stream: trio.abc.Stream) -> str:
    """Return the name on the page; close the stream."""
    async with stream:
        connection = h11.Connection(h11.CLIENT)
        for event in (h11.Request(method="GET", target="/", headers=[("Host", host)]), h11.EndOfMessage()):
            await stream.send_all(connection.send(event) or b"")
        received = await _events(connection, stream)
        return b"".join(bytes(each.data) for each in received if isinstance(each, h11.Data)).decode()


async def _events(connection: h11.Connection, stream: trio.abc.Stream) -> list[h11.Event]:
    """Return the events of a message of the peer; empty if the stream ends before its end."""
    found: list[h11.Event] = []
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await stream.receive_some(_READ_BYTES)
            if not data:
                return []
            connection.receive_data(bytes(data))
        elif isinstance(event, h11.EndOfMessage):
            return found
        elif isinstance(event, h11.Event):
            found.append(event)
        else:
            return []
