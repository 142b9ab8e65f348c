"""One request by httpcore and its complete reply, whose size is bounded during reading.

The announced length of a reply is not a bound, and a reply may omit it: only received bytes count. The caller bounds
the time, and closes the connection after an error. It can extend the time with the size of every part. A page of the
log takes half a minute on a link of 1 Mbit/s (`consensus.net.transfer_time`).
"""

from collections.abc import Callable, Sequence
from typing import Self

import httpcore
import trio


class _Body:
    """The body of a request.

    httpcore would wrap plain bytes in an async generator, which a canceled request leaves open.
    """

    def __init__(self, content: bytes) -> None:
        self._parts = iter((content,))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration


class AnswerTooLongError(Exception):
    """The reply is longer than allowed; the text contains the limit in bytes."""


async def exchange(
    connection: httpcore.AsyncHTTPConnection,
    method: str,
    url: httpcore.URL,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    limit_bytes: int,
    connect_s: float | None = None,
    arrived: Callable[[int], None] = lambda _: None,
) -> tuple[int, bytes]:
    """Return status and body of the reply; `arrived` receives the size of each part. `headers` has the Content-Length.

    Raise `AnswerTooLongError`, and httpcore's errors.
    """
    timeout = {"timeout": {"connect": connect_s}}
    received = bytearray()
    with trio.CancelScope() as reading:
        async with connection.stream(method, url, headers=headers, content=_Body(body), extensions=timeout) as response:
            async for part in response.aiter_stream():
                received += part
                arrived(len(part))
                if len(received) > limit_bytes:
                    # An error raised here would leave httpcore's generators unfinished. Canceling the read ends them.
                    reading.cancel()
    if len(received) > limit_bytes:
        raise AnswerTooLongError(f"more than {limit_bytes} bytes")
    return response.status, bytes(received)
