"""What replication costs without consensus: a leader, two followers and clients over the same streams, and no Raft.

    client ──frame──▶ leader ──all that waits, one frame──▶ both followers: fdatasync ──one byte──▶ leader ──▶ client
                        └── its own fdatasync meanwhile; a frame is answered when it and one follower have it

    python -m benchmarks.bare_pipe SPECIFICATION      (JSON; its role: follower, leader or client)

There is no term, no log, no checksum, no index, and no failure is handled. So this is the best that a replicated log in
trio over TLS could reach on this machine, with the same bytes, the same number of syncs, and as many processes. A frame
is a length of four bytes and that many bytes of entries. As in our servers, one round is under way at a time, and what
arrives meanwhile forms the next. The module imports nothing of `consensus`, so that a change there does not change it.
"""

import json
import os
import ssl
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import trio

from benchmarks.bare_pipe_stream import PipeStream
from benchmarks.closed_loop import measured
from benchmarks.etcd_group import make_certificate
from benchmarks.load import Load, Result

LISTENS = "127.0.0.1"
ANSWER = b"\x01"
_LENGTH_BYTES = 4
_FILE_BYTES = 64 * 1024 * 1024


class Frames:
    """Whole frames out of received bytes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now, their lengths included."""
        self._data += data
        found = []
        at = 0
        while len(self._data) - at >= _LENGTH_BYTES:
            end = at + _LENGTH_BYTES + int.from_bytes(self._data[at : at + _LENGTH_BYTES], "big")
            if len(self._data) < end:
                break
            found.append(bytes(self._data[at:end]))
            at = end
        del self._data[:at]
        return found


def frame(data: bytes) -> bytes:
    """Data with its length before it."""
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


class SyncedFile:
    """A zero-filled file that is written round and round, each write synced in a thread."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.write(self._descriptor, bytes(_FILE_BYTES))
        os.fsync(self._descriptor)
        self._at = 0

    async def append(self, data: bytes) -> None:
        """Write and sync."""
        if self._at + len(data) > _FILE_BYTES:
            self._at = 0
        await trio.to_thread.run_sync(self._write, data, self._at)
        self._at += len(data)

    def _write(self, data: bytes, at: int) -> None:
        os.pwrite(self._descriptor, data, at)
        os.fdatasync(self._descriptor)


class Leader:
    """Joins what waits to rounds."""

    def __init__(self, file: SyncedFile, followers: list[PipeStream]) -> None:
        self._file = file
        self._followers = followers
        self._waiting: list[tuple[bytes, Callable[[], None]]] = []
        self._changed = trio.Event()
        self._answered = [0] * len(followers)

    def submit(self, data: bytes, answered: Callable[[], None]) -> None:
        """One client's frame."""
        self._waiting.append((data, answered))
        self._wake()

    async def run(self) -> None:
        """Rounds for ever."""
        async with trio.open_nursery() as nursery:
            for number in range(len(self._followers)):
                nursery.start_soon(self._hear, number)
            rounds = 0
            while True:
                while not self._waiting:
                    await self._changed.wait()
                batch, self._waiting = self._waiting, []
                data = b"".join(each for each, _ in batch)
                rounds += 1
                for follower in self._followers:
                    await follower.send_all(frame(data))
                await self._file.append(data)
                while max(self._answered) < rounds:
                    await self._changed.wait()
                for _, answered in batch:
                    answered()

    async def _hear(self, number: int) -> None:
        while data := await self._followers[number].receive_some():
            self._answered[number] += len(data)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def main() -> None:
    """Run as `python -m benchmarks.bare_pipe SPECIFICATION`."""
    document = json.loads(sys.argv[1])
    role = {"follower": _run_follower, "leader": _run_leader, "client": _run_client}[document["role"]]
    trio.run(role, document)


async def _run_follower(document: dict[str, str]) -> None:
    file = SyncedFile(Path(document["directory"]) / "file")

    async def serve(stream: PipeStream) -> None:
        frames = Frames()
        while data := await stream.receive_some():
            for each in frames.feed(data):
                await file.append(each)
                await stream.send_all(ANSWER)

    async with trio.open_nursery() as nursery:
        await _listen(nursery, Path(document["directory"]), serve)
        await _until_parent_ends(nursery)


async def _run_leader(document: dict[str, str]) -> None:
    directory = Path(document["directory"])
    followers = [await _connect(each) for each in json.loads(document["followers"])]
    leader = Leader(SyncedFile(directory / "file"), followers)

    async def serve(stream: PipeStream) -> None:
        frames = Frames()
        owed = 0
        changed = trio.Event()

        def answered() -> None:
            nonlocal owed
            owed += 1
            changed.set()

        async def answer() -> None:
            nonlocal owed, changed
            while True:
                await changed.wait()
                changed = trio.Event()
                count, owed = owed, 0
                await stream.send_all(ANSWER * count)

        async with trio.open_nursery() as answering:
            answering.start_soon(answer)
            while data := await stream.receive_some():
                for each in frames.feed(data):
                    leader.submit(each, answered)
            answering.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.run)
        await _listen(nursery, directory, serve)
        await _until_parent_ends(nursery)


async def _run_client(document: dict[str, str]) -> None:
    load = Load(**json.loads(document["load"]))
    result = await _drive(load, json.loads(document["leader"]))
    print(json.dumps(asdict(result)), flush=True)


async def _drive(load: Load, leader: dict[str, str]) -> Result:
    data = frame(b"x" * load.entry_bytes * load.batch)
    async with trio.open_nursery() as nursery:
        streams = [await _connect(leader) for _ in range(load.connections)]
        waiting: list[deque[trio.Event]] = [deque() for _ in streams]

        async def hear(number: int) -> None:
            while answers := await streams[number].receive_some():
                for _ in answers:
                    waiting[number].popleft().set()

        async def submit(client: int, _number: int) -> str:
            number = client % load.connections
            answered = trio.Event()
            waiting[number].append(answered)
            if not streams[number].send_now(data):
                return "the kernel takes no more"
            await answered.wait()
            return ""

        for number in range(len(streams)):
            nursery.start_soon(hear, number)
        result = await measured(submit, load)
        nursery.cancel_scope.cancel()
    return result


async def _connect(told: dict[str, str]) -> PipeStream:
    context = ssl.create_default_context(cafile=told["certificate"])
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    transport = await trio.open_tcp_stream(LISTENS, int(told["port"]))
    stream = PipeStream(transport, context, server_side=False, name=LISTENS)
    await stream.do_handshake()
    return stream


async def _listen(nursery: trio.Nursery, directory: Path, serve: Callable[[PipeStream], Awaitable[None]]) -> None:
    certificate, key = make_certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.num_tickets = 0

    async def accept(transport: trio.SocketStream) -> None:
        stream = PipeStream(transport, context, server_side=True)
        try:
            await stream.do_handshake()
            await serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the other process ended
        finally:
            await trio.aclose_forcefully(stream)

    listeners = await nursery.start(partial(trio.serve_tcp, accept, 0, host=LISTENS))
    port = listeners[0].socket.getsockname()[1]
    print(json.dumps({"port": port, "certificate": str(certificate)}), flush=True)


async def _until_parent_ends(nursery: trio.Nursery) -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    nursery.cancel_scope.cancel()


if __name__ == "__main__":
    main()
