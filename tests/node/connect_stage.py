"""A farm without nodes on a loopback SAM bridge: leaves that count requests, directories, and clients of them."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import trio
from trio.testing import MockClock

from bridge.connect import ConnectError, FarmClient, connect
from bridge.sam.connection import SamBridge, SamUnreachableError
from bridge.sam.loopback import LoopbackNetwork, serve_loopback_bridge
from bridge.sam.session import SamSession, open_session
from bridge.wire.i2p.destination_keys import MasterKey, new_master_key
from bridge.wire.i2p.farm_link import FarmLink
from bridge.wire.i2p.meta_lease_set import MetaLease, encode
from bridge.wire.i2p.structure_exchange import REQUEST_BYTES, ReplyStatus, StructureReply, decode_request, encode_reply
from tests.processes import hold_for_sockets

Serve = Callable[[trio.SocketStream], Awaitable[None]]
LIFE_S = 900


class Leaf:
    """A service that replies to each line with its name; `requests` has all lines that it received."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hash = b""
        self.requests: list[bytes] = []
        self.is_silent = False
        self.closes = False
        self.delay_s = 0.0
        self.banner = b""

    async def serve(self, stream: trio.SocketStream) -> None:
        if self.banner:
            await stream.send_all(self.banner)
        if self.closes:
            return
        received = b""
        while part := await stream.receive_some(4_096):
            received += part
            *lines, received = received.split(b"\n")
            for line in lines:
                self.requests.append(line)
                if self.is_silent:
                    await trio.sleep_forever()
                await trio.sleep(self.delay_s)
                await stream.send_all(f"{self.name}\n".encode())


class Directory:
    """A directory that returns `reply`, or uses `serve_reply`."""

    def __init__(self) -> None:
        self.hash = b""
        self.reply = encode_reply(StructureReply(ReplyStatus.NOTHING_PUBLISHED))
        self.requests = 0
        self.serve_reply: Serve | None = None

    async def serve(self, stream: trio.SocketStream) -> None:
        request = b""
        while len(request) < REQUEST_BYTES:
            part = await stream.receive_some(REQUEST_BYTES)
            if not part:
                return
            request += part
        decode_request(request)
        self.requests += 1
        if self.serve_reply is not None:
            await self.serve_reply(stream)
            return
        await stream.send_all(self.reply)
        with trio.move_on_after(10):
            await stream.receive_some(1)


class ConnectStage:
    """The parts of a test; made by `connect_stage`."""

    def __init__(
        self, network: LoopbackNetwork, bridge: SamBridge, nursery: trio.Nursery, cache_dir: Path, clock: MockClock
    ) -> None:
        self.network = network
        self.bridge = bridge
        self.nursery = nursery
        self.cache_dir = cache_dir
        self.master: MasterKey = new_master_key()
        self.leaves: list[Leaf] = []
        self.directories: list[Directory] = []
        self.streams: list[tuple[bytes, bytes]] = []
        """The destination and the peer of each accepted stream."""
        self.start_s = int(time.time())
        self.clock = clock

    def unix_s(self) -> float:
        """Return the wall clock, which follows the clock of the test."""
        return self.start_s + self.clock.current_time()

    @property
    def link(self) -> FarmLink:
        return FarmLink(self.master.destination.hash, tuple(each.hash for each in self.directories))

    async def add(self, serve: Serve) -> SamSession:
        session: SamSession = await self.nursery.start(self._serve_session, serve)
        return session

    async def _serve_session(self, serve: Serve, task_status: trio.TaskStatus[SamSession]) -> None:
        async def guarded(stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                async with stream:
                    await serve(stream)

        async with open_session(self.bridge) as session, trio.open_nursery() as nursery:
            task_status.started(session)
            with suppress(SamUnreachableError):
                while True:
                    peer, stream = await session.accept()
                    self.streams.append((session.hash, peer))
                    nursery.start_soon(guarded, stream)
            nursery.cancel_scope.cancel()

    def structure(self, costs: list[int], *, published_s: int | None = None, life_s: int = LIFE_S) -> bytes:
        """Return a signed structure with the leaves at these costs; a leaf with a negative cost is omitted."""
        second = int(self.unix_s()) if published_s is None else published_s
        leases = tuple(
            MetaLease(leaf.hash, cost, second + life_s)
            for leaf, cost in zip(self.leaves, costs, strict=False)
            if cost >= 0
        )
        return encode(self.master.as_signing_key().sign(second, leases))

    def publish(self, *costs: int, published_s: int | None = None, life_s: int = LIFE_S) -> bytes:
        """Set the structure that all directories return, with these costs."""
        structure = self.structure(list(costs), published_s=published_s, life_s=life_s)
        for directory in self.directories:
            directory.reply = encode_reply(StructureReply(ReplyStatus.STRUCTURE, structure))
        return structure

    @asynccontextmanager
    async def client(
        self, *, patience_s: float = 5.0, hops: int | None = None, seed: int = 1
    ) -> AsyncIterator[FarmClient]:
        async with connect(
            self.link,
            bridge=self.bridge,
            cache_dir=self.cache_dir,
            patience_s=patience_s,
            hops=hops,
            unix_s=self.unix_s,
            random=Random(seed),
        ) as farm:
            yield farm


@asynccontextmanager
async def connect_stage(
    cache_dir: Path, clock: MockClock, *, leaves: int = 3, directories: int = 1, java_like: bool = False
) -> AsyncIterator[ConnectStage]:
    """Serve a bridge with leaves and directories; all leaves have the cost 20."""
    hold_for_sockets(clock)
    network = LoopbackNetwork(java_like=java_like)
    async with trio.open_nursery() as nursery:
        bridge: SamBridge = await nursery.start(serve_loopback_bridge, network)
        stage = ConnectStage(network, bridge, nursery, cache_dir, clock)
        for number in range(leaves):
            leaf = Leaf(f"leaf-{number}")
            leaf.hash = (await stage.add(leaf.serve)).hash
            stage.leaves.append(leaf)
        for _ in range(directories):
            directory = Directory()
            directory.hash = (await stage.add(directory.serve)).hash
            stage.directories.append(directory)
        stage.publish(*[20] * leaves)
        yield stage
        nursery.cancel_scope.cancel()


async def request(farm: FarmClient, line: bytes = b"hello") -> str:
    """Send one line over a new stream; return the reply."""
    async with await farm.open_stream() as stream:
        await stream.send_all(line + b"\n")
        reply = b""
        while not reply.endswith(b"\n"):
            part = await stream.receive_some()
            if not part:
                raise ConnectError("the stream ended without a reply")
            reply += part
        return reply.decode().strip()


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds, within a limit."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - a condition on several objects has no single event
            await trio.sleep(0.1)
