"""Replication without consensus, the limit of a replicated log in trio over TLS: a leader, two followers, clients.

    client ──frames──▶ leader ──all waiting frames, as one──▶ both followers: fdatasync ──one byte──▶ leader ──▶ client
                         └── its own fdatasync concurrently; a frame is acknowledged after it and one follower

    python -m benchmarks.bare_pipe SPECIFICATION      (JSON: a server's `directory`; a client's `leader` and `load`)

A server prints its port and certificate, and reads the list of its followers; it ends when its standard input closes.

A frame is a length of four bytes and that many bytes of entries. The pipe omits terms, indexes and checksums, and does
not handle failures. The bare consensus group (`consensus_node`) has as many bytes, processes and syncs, and the same
TLS and certificates. Both have one pending round at a time, and frames that arrive during a round form the next one.
"""

import gc
import json
import os
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import Child
from benchmarks.client import measured
from benchmarks.load import Load
from consensus.net import TlsStream, load_or_create_certificate, secured

MODULE = "benchmarks.bare_pipe"
HOST = "127.0.0.1"
ACKNOWLEDGED = b"\x01"
SERVERS = 3
_LENGTH_BYTES = 4
_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PipeTarget:
    """The port and the certificate of one server."""

    port: int
    fingerprint: str

    async def connect(self) -> TlsStream:
        """Return a connection to it."""
        return await secured(await trio.open_tcp_stream(HOST, self.port), bytes.fromhex(self.fingerprint))


@dataclass(frozen=True, slots=True)
class Pipe:
    """The processes, created by `running_pipe`; `servers[0]` leads."""

    servers: dict[int, Child]
    leader: PipeTarget
    log: Path

    async def clients(self, load: Load, count: int) -> list[Child]:
        """Start client processes with this load."""
        document = {"leader": asdict(self.leader), "load": asdict(load)}
        return [await Child.start_module("the pipe's client", MODULE, document, self.log) for _ in range(count)]


@asynccontextmanager
async def running_pipe(directory: Path) -> AsyncIterator[Pipe]:
    """Start the servers in a new directory; they end with the block."""
    servers: list[Child] = []
    announced: list[PipeTarget] = []
    try:
        for number in range(SERVERS):
            home = directory / str(number)
            await trio.Path(home).mkdir(mode=0o700, parents=True)
            log = directory / f"{number}.log"
            servers.append(await Child.start_module(f"pipe {number}", MODULE, {"directory": str(home)}, log))
            announced.append(PipeTarget(**await servers[-1].receive_document()))
        for number, server in enumerate(servers):
            await server.send_line(json.dumps([] if number else [asdict(each) for each in announced[1:]]))
        yield Pipe(dict(enumerate(servers)), announced[0], directory / "client.log")
    finally:
        for server in servers:
            await server.end()


def main() -> None:
    """Run one process."""
    document = json.loads(sys.argv[1])
    # As in `consensus_node`, so that both have the same costs of Python.
    gc.freeze()
    trio.run(_serve if "directory" in document else _load, document)


class _SyncedFile:
    """A zero-filled file, overwritten repeatedly; each write is synced in a thread."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_FILE_BYTES))
        self._descriptor = os.open(path, os.O_RDWR)
        os.fsync(self._descriptor)
        self._at = 0

    async def append(self, data: bytes) -> None:
        self._at = 0 if self._at + len(data) > _FILE_BYTES else self._at
        await trio.to_thread.run_sync(self._write, data, self._at)
        self._at += len(data)

    def _write(self, data: bytes, at: int) -> None:
        os.pwrite(self._descriptor, data, at)
        os.fdatasync(self._descriptor)


class _Rounds:
    """Joins the waiting frames to rounds."""

    def __init__(self, file: _SyncedFile, followers: list[TlsStream]) -> None:
        self._file = file
        self._followers = followers
        self._waiting: list[tuple[TlsStream, bytes]] = []
        self._acknowledged = [0] * len(followers)
        self._changed = trio.Event()

    async def submit(self, client: TlsStream, frames: list[bytes]) -> None:
        self._waiting += [(client, each) for each in frames]
        self._changed.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(len(self._followers)):
                nursery.start_soon(self._receive, number)
            rounds = 0
            while True:
                while not self._waiting:
                    await self._change()
                batch, self._waiting = self._waiting, []
                data = b"".join(each for _, each in batch)
                rounds += 1
                for follower in self._followers:
                    await follower.send_all(_frame(data))
                await self._file.append(data)
                while max(self._acknowledged) < rounds:
                    await self._change()
                for client, count in Counter(client for client, _ in batch).items():
                    client.send_now(ACKNOWLEDGED * count)

    async def _change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    async def _receive(self, number: int) -> None:
        while data := await self._followers[number].receive_some():
            self._acknowledged[number] += len(data)
            self._changed.set()


async def _serve(document: dict[str, str]) -> None:
    home = Path(document["directory"])
    certificate = load_or_create_certificate(home)
    file = _SyncedFile(home / "file")
    handle: Callable[[TlsStream, list[bytes]], Awaitable[None]] = partial(_follow, file)

    async def accept(transport: trio.SocketStream) -> None:
        stream = TlsStream(transport, certificate.server_context(), server_side=True)
        with suppress(trio.BrokenResourceError):  # the other process ended
            async with stream:
                await stream.do_handshake()
                data = bytearray()
                while received := await stream.receive_some():
                    data += received
                    await handle(stream, take_frames(data))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, accept, 0, host=HOST))
        port = listener.socket.getsockname()[1]
        print(json.dumps(asdict(PipeTarget(port, certificate.fingerprint.hex()))), flush=True)
        followers = json.loads(await trio.to_thread.run_sync(sys.stdin.readline))
        if followers:
            rounds = _Rounds(file, [await PipeTarget(**each).connect() for each in followers])
            nursery.start_soon(rounds.run)
            handle = rounds.submit
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def _follow(file: _SyncedFile, leader: TlsStream, frames: list[bytes]) -> None:
    for each in frames:
        await file.append(each)
        leader.send_now(ACKNOWLEDGED)


async def _load(document: dict[str, Any]) -> None:
    load = Load(**document["load"])
    data = _frame(b"x" * load.entry_bytes * load.batch)
    streams = [await PipeTarget(**document["leader"]).connect() for _ in range(load.connections)]
    waiting: list[deque[trio.Event]] = [deque() for _ in streams]

    async def receive(number: int) -> None:
        while received := await streams[number].receive_some():
            for _ in received:
                waiting[number].popleft().set()

    async def submit(client: int, _number: int) -> str:
        number = client % load.connections
        waiting[number].append(acknowledged := trio.Event())
        if not streams[number].send_now(data):
            return "the kernel does not take more"
        await acknowledged.wait()
        return ""

    async with trio.open_nursery() as nursery:
        for number in range(len(streams)):
            nursery.start_soon(receive, number)
        print(json.dumps(asdict(await measured(submit, load))), flush=True)
        nursery.cancel_scope.cancel()


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def take_frames(data: bytearray) -> list[bytes]:
    """Remove the complete frames from the data, and return their contents."""
    found, at = [], 0
    while (begin := at + _LENGTH_BYTES) <= len(data):
        if (end := begin + int.from_bytes(data[at:begin], "big")) > len(data):
            break
        found.append(bytes(data[begin:end]))
        at = end
    del data[:at]
    return found


if __name__ == "__main__":
    main()
