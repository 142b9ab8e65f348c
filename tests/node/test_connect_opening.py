"""The attempts of one stream, as a race between leaves."""

import socket
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

from bridge.connect.opening import LeafOpener
from bridge.core.connecting.leaves import LeafTable
from bridge.core.connecting.structures import ListedLeaf

LEAVES = (bytes(32), bytes([1]) * 32)


async def nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


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

    session: Any = SimpleNamespace(connect=connect)

    async def ready() -> Any:
        await trio.lowlevel.checkpoint()
        return session

    table = LeafTable(5.0)
    table.replace([ListedLeaf(each, 10, 2**31) for each in LEAVES])
    pool: Any = SimpleNamespace(session=ready, has_worked=True, worked=lambda _: None)
    keeper: Any = SimpleNamespace(wait_usable=nothing)
    async with trio.open_nursery() as nursery:
        opener = LeafOpener(
            table=table,
            pool=pool,
            keeper=keeper,
            counters=Counter(),
            random=Random(1),
            nursery=nursery,
            unix_s=lambda: 0.0,
            on_suspect=lambda _: None,
            on_failed=lambda *_: None,
        )

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
