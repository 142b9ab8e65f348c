"""One request by httpcore and its whole answer, whose size is bounded while it is read.

The length that an answer announces is no bound, and an answer may announce none: what counts is what arrives. Time is
bounded by the caller, which also closes the connection after an error. It learns of every part that arrives, because a
page of the log takes half a minute on a link of 1 Mbit/s (`net.transfer_time`).
"""

from collections.abc import Callable, Sequence

import httpcore
import trio


class AnswerTooLongError(Exception):
    """The answer is longer than was allowed; the text says how many bytes that is."""


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
    """Status and body of the answer; `arrived` gets the size of each part.

    Raises `AnswerTooLongError`, and httpcore's errors.
    """
    timeout = {"timeout": {"connect": connect_s}}
    received = bytearray()
    with trio.CancelScope() as reading:
        async with connection.stream(method, url, headers=headers, content=body, extensions=timeout) as response:
            async for part in response.aiter_stream():
                received += part
                arrived(len(part))
                if len(received) > limit_bytes:
                    # An error raised here would leave httpcore's generators half read. A cancelled read ends them.
                    reading.cancel()
    if len(received) > limit_bytes:
        raise AnswerTooLongError(f"more than {limit_bytes} bytes")
    return response.status, bytes(received)
