"""The leaves of a demonstration: one page per node, reached through a SAM bridge of this process.

    client ─▶ loopback SAM bridge ─▶ session of a leaf, while its node runs ─▶ page with the name of the node

A leaf belongs to the machine of its node, so it ends with the node. Clients that still try to reach it do not receive a
reply, as after a power failure of a router. The leaf returns with the node, even if the user starts the node in another
terminal.

Streams, bytes of a request and the time of an exchange are bounded. The services do not listen on a port; the bridge
listens on loopback.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import trio
from msgspec import Struct

from bridge.node.local.farm_files import LocalFarm, NodeFiles, leaf_key
from bridge.sam.connection import SamBridge, SamError
from bridge.sam.loopback import LoopbackNetwork, serve_loopback_bridge
from bridge.sam.session import open_session
from bridge.wire.i2p.destination_keys import MasterKey
from bridge.wire.i2p.key_file import sam_private_key
from consensus import block_nursery, run_task

BRIDGE_PORT: Final = 17_656
"""The preferred port; it differs from 7656, the port of a real router. If it is in use, another free port is taken."""
STREAMS_LIMIT: Final = 64
REQUEST_LIMIT_BYTES: Final = 8_192
EXCHANGE_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.2
RunningPid: TypeAlias = Callable[[str], int | None]
"""Returns the id of a node's running process; None without one."""
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close"
_HEAD_END: Final = b"\r\n\r\n"


class LeafServices(Struct, frozen=True):
    """The leaves of a local farm, and the bridge that their clients use."""

    network: LoopbackNetwork
    bridge: SamBridge

    async def run(self, farm: LocalFarm, exited: Sequence[trio.Event], running_pid: RunningPid) -> None:
        """Serve each leaf while its node runs, until canceled.

        `exited` has an event for the end of each node's first process; `running_pid` finds later processes.
        """
        async with trio.open_nursery() as nursery:
            for node, first_end in zip(farm.nodes, exited, strict=True):
                nursery.start_soon(self._follow, node, first_end, running_pid)

    async def _follow(self, node: NodeFiles, first_end: trio.Event, running_pid: RunningPid) -> None:
        name, key = node.name, leaf_key(node)
        page = _Page(name, key.destination.address)
        await self._serve_until(first_end.wait, key, page)
        ended = None
        while True:
            while (pid := running_pid(name)) in {None, ended}:  # noqa: ASYNC110 - an operator starts it
                await trio.sleep(POLL_S)
            ended = pid
            await self._serve_until(partial(_ended, name, pid, running_pid), key, page)

    async def _serve_until(self, end: Callable[[], Awaitable[None]], key: MasterKey, page: "_Page") -> None:
        self.network.dead.discard(key.destination.hash)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, key, page)
            await end()
            # The destination is dead before the session closes, as if the machine had failed: streams of clients stay
            # open and do not receive anything.
            self.network.dead.add(key.destination.hash)
            nursery.cancel_scope.cancel()

    async def _serve(self, key: MasterKey, page: "_Page") -> None:
        while True:
            places = trio.Semaphore(STREAMS_LIMIT)
            with suppress(SamError):
                async with (
                    open_session(self.bridge, private_key=sam_private_key(key)) as session,
                    block_nursery() as nursery,
                ):
                    while True:
                        await places.acquire()
                        _, stream = await session.accept()
                        nursery.start_soon(run_task, page.serve, stream, places)
            await trio.sleep(POLL_S)


class _Page(Struct):
    """The page of one leaf, and the number of requests for it."""

    name: str
    leaf: str
    requests: int = 0

    async def serve(self, stream: trio.SocketStream, places: trio.Semaphore) -> None:
        try:
            with trio.move_on_after(EXCHANGE_TIMEOUT_S), suppress(trio.BrokenResourceError):
                await self._exchange(stream)
        finally:
            places.release()
            await trio.aclose_forcefully(stream)

    async def _exchange(self, stream: trio.SocketStream) -> None:
        request = b""
        while _HEAD_END not in request:
            part = await stream.receive_some(REQUEST_LIMIT_BYTES)
            if not part or len(request) >= REQUEST_LIMIT_BYTES:
                return
            request += part
        await stream.send_all(self._reply(request))

    def _reply(self, request: bytes) -> bytes:
        self.requests += 1
        text = f"{self.name} served request {self.requests} at its leaf {self.leaf}\n".encode()
        head = b"%b\r\nContent-Length: %d\r\n\r\n" % (_HEAD, len(text))
        return head + (b"" if request.startswith(b"HEAD ") else text)


async def _ended(name: str, pid: int, running_pid: RunningPid) -> None:
    """Wait for the end of another program's child.

    If Linux permits it, a kill wakes this task immediately. Otherwise the node's next missed reply shows the end, up to
    a second later.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
            return
    while running_pid(name) == pid:  # noqa: ASYNC110 - its parent is another program
        await trio.sleep(POLL_S)


async def start_bridge(nursery: trio.Nursery) -> LeafServices:
    """Start the bridge in the nursery: on its own port, or on a free one."""
    # Like a Java router, confirm a stream only after it has reached the leaf.
    network = LoopbackNetwork(java_like=True)
    try:
        bridge = await nursery.start(serve_loopback_bridge, network, BRIDGE_PORT)
    except OSError:
        bridge = await nursery.start(serve_loopback_bridge, network)
    return LeafServices(network, bridge)
