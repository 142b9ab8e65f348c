"""A farm of two leaves on a loopback SAM bridge, for clients in other processes. It runs by the wall clock."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from bridge.sam.connection import SamBridge
from bridge.sam.loopback import LoopbackNetwork, serve_loopback_bridge
from bridge.sam.session import SamSession, open_session
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.farm_link import FarmLink
from bridge.wire.i2p.meta_lease_set import MetaLease, encode
from bridge.wire.i2p.structure_exchange import REQUEST_BYTES, ReplyStatus, StructureReply, encode_reply

LIFE_S = 900
LEAVES = 2
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
Service = Callable[[trio.SocketStream], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class WallClockFarm:
    """The link of the farm, and the SAM bridge that reaches it."""

    link: FarmLink
    bridge: SamBridge


async def serve_hello(stream: trio.SocketStream) -> None:
    """Reply to one HTTP request; the client ends the stream."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = await stream.receive_some(4096)
        if not part:
            return
        received += part
    await stream.send_all(HELLO)
    await stream.receive_some(1)


@asynccontextmanager
async def wall_clock_farm(service: Service = serve_hello) -> AsyncIterator[WallClockFarm]:
    """Serve a farm of two leaves with this service, and one directory."""
    async with trio.open_nursery() as nursery:
        bridge: SamBridge = await nursery.start(serve_loopback_bridge, LoopbackNetwork())
        leaves = [await nursery.start(_serve_session, bridge, service) for _ in range(LEAVES)]
        master, now_s = new_master_key(), int(time.time())
        entries = tuple(MetaLease(leaf.hash, 20, now_s + LIFE_S) for leaf in leaves)
        reply = encode_reply(
            StructureReply(ReplyStatus.STRUCTURE, encode(master.as_signing_key().sign(now_s, entries)))
        )

        async def return_structure(stream: trio.SocketStream) -> None:
            received = 0
            while received < REQUEST_BYTES and (part := await stream.receive_some(REQUEST_BYTES)):
                received += len(part)
            await stream.send_all(reply)
            await stream.receive_some(1)

        directory: SamSession = await nursery.start(_serve_session, bridge, return_structure)
        yield WallClockFarm(FarmLink(master.destination.hash, (directory.hash,)), bridge)
        nursery.cancel_scope.cancel()


async def _serve_session(bridge: SamBridge, service: Service, *, task_status: trio.TaskStatus[SamSession]) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                await service(stream)

    async with open_session(bridge) as session, trio.open_nursery() as nursery:
        task_status.started(session)
        while True:
            _, stream = await session.accept()
            nursery.start_soon(serve, stream)
