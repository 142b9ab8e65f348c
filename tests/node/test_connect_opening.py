"""The attempts of one stream, as a race between leaves."""

import socket
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bridge.connect.errors import NoLeafError
from bridge.connect.opening import LeafOpener
from bridge.connect.status import ClientCounters
from bridge.core.connecting.leaves import RECORDS_MAX, LeafTable
from bridge.core.connecting.structures import ListedLeaf
from bridge.sam.connection import LeafUnreachableError

LEAVES = (bytes(32), bytes([1]) * 32)


async def nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


def opener_of(
    table: LeafTable, connect: Callable[..., Awaitable[trio.SocketStream]], nursery: trio.Nursery
) -> LeafOpener:
    """Return an opener with one session."""
    session: Any = SimpleNamespace(connect=connect)

    async def ready() -> Any:
        await trio.lowlevel.checkpoint()
        return session

    return LeafOpener(
        table=table,
        pool=SimpleNamespace(session=ready, has_worked=True, worked=id, prefer_other=id),  # type: ignore[arg-type]
        keeper=SimpleNamespace(wait_usable=nothing, describe=str, newest=None),  # type: ignore[arg-type]
        counters=ClientCounters(),
        random=Random(1),
        nursery=nursery,
        unix_s=lambda: 0.0,
        on_suspect=lambda _: None,
        on_failed=lambda leaf_hash, failure: table.failed(leaf_hash, failure, trio.current_time()),
    )


async def test_canceled_race_closes_every_stream(autojump_clock: MockClock) -> None:
    """Both leaves reply in one turn of the event loop, and the caller is canceled in the same turn."""
    gate, scope, opened = trio.Event(), trio.CancelScope(), list[trio.SocketStream]()

    async def connect(*_: object) -> trio.SocketStream:
        await gate.wait()
        ours, theirs = socket.socketpair()
        theirs.close()
        opened.append(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
        if len(opened) == len(LEAVES):
            scope.cancel()
        return opened[-1]

    table = LeafTable(5.0)
    table.replace([ListedLeaf(each, 10, 2**31) for each in LEAVES])
    async with trio.open_nursery() as nursery:
        opener = opener_of(table, connect, nursery)

        async def open_stream() -> None:
            with scope:
                found = await opener.open()
                opener.closed(found)
                found.stream.socket.close()

        nursery.start_soon(open_stream)
        await trio.sleep(5)
        gate.set()
    assert [each.socket.fileno() for each in opened] == [-1, -1]
    assert (opener.streams, [table[each].streams for each in LEAVES]) == (0, [0, 0])


async def test_leaf_without_record_is_not_tried(autojump_clock: MockClock) -> None:
    """While the first leaf does not reply, newer structures displace the record of the second one."""
    table, tried = LeafTable(5.0), list[bytes]()
    table.replace([ListedLeaf(each, 10, 2**31) for each in LEAVES])

    async def connect(leaf_hash: bytes, timeout_s: float) -> trio.SocketStream:
        tried.append(leaf_hash)
        table.replace(
            [ListedLeaf(number.to_bytes(32, "big"), 10, 2**31) for number in range(500, 500 + 2 * RECORDS_MAX)]
        )
        await trio.sleep(timeout_s)
        raise LeafUnreachableError("it did not reply", "TIMEOUT")

    async with trio.open_nursery() as nursery:
        with pytest.raises(NoLeafError):
            await opener_of(table, connect, nursery).open()
    assert len(tried) == 1
