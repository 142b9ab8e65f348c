"""A relay in front of each member of a group, which forwards all bytes and keeps the last messages.

    others ──TCP──▶ the member's URL: relay ──TCP──▶ the member's port
                          │
                          └─ parses ZMTP 3 (greeting, commands, frames) ─▶ messages, with sender and time

The package exits at a message that it refuses. The recording shows that message and its sender: a request between peers
names its sender in its fourth frame.
"""

import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from benchmarks.child import LOOPBACK
from benchmarks.zmq_raft_group import Member

GREETING_BYTES: Final = 64
MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
KEPT: Final = 20_000
PIECE_BYTES: Final = 65536
TYPES: Final = {b"+": "AppendEntries", b"?": "RequestVote", b"$": "InstallSnapshot"}
SHOWN_BYTES: Final = 64
REFUSED: Final = re.compile(r"cowardly refusing to truncate log to (\d+) before commit index")


class ZmtpReader:
    """Splits one direction of a connection into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._greeted = False
        self._frames: list[bytes] = []

    def feed(self, data: bytes | bytearray) -> Iterator[list[bytes]]:
        """Add bytes; yield the messages that they complete."""
        self._bytes += data
        if not self._greeted:
            if len(self._bytes) < GREETING_BYTES:
                return
            del self._bytes[:GREETING_BYTES]
            self._greeted = True
        while (frame := self._next()) is not None:
            flags, body = frame
            if flags & COMMAND:
                continue
            self._frames.append(body)
            if not flags & MORE:
                yield self._frames
                self._frames = []

    def _next(self) -> tuple[int, bytes] | None:
        head = 9 if self._bytes and self._bytes[0] & LONG else 2
        if len(self._bytes) < head:
            return None
        flags, size = self._bytes[0], int.from_bytes(self._bytes[1:head], "big")
        if len(self._bytes) < head + size:
            return None
        body = bytes(self._bytes[head : head + size])
        del self._bytes[: head + size]
        return flags, body


@dataclass(frozen=True, slots=True)
class Recorded:
    """One message to a member, or back from it, on one of its connections."""

    moment: float
    member: str
    connection: int
    is_request: bool
    frames: tuple[bytes, ...]

    @property
    def sender(self) -> str | None:
        """The sending peer if this is a request between peers, else None."""
        is_of_peer = self.is_request and len(self.frames) > len(TYPES) and self.frames[1] in TYPES
        return self.frames[3].decode(errors="replace") if is_of_peer else None

    @property
    def is_append(self) -> bool:
        """True for an AppendEntries request."""
        return self.sender is not None and self.frames[1] == b"+"

    @property
    def previous(self) -> int:
        """The index before the first entry of an AppendEntries request."""
        return int.from_bytes(self.frames[5], "little")

    def __str__(self) -> str:
        shown = " ".join(
            frame.hex() if len(frame) <= SHOWN_BYTES else f"{frame[:SHOWN_BYTES].hex()}…({len(frame)} bytes)"
            for frame in self.frames
        )
        what = f"{TYPES[self.frames[1]]} from {self.sender} to" if self.sender else "to" if self.is_request else "from"
        return f"{self.moment:.4f} {what} {self.member} on connection {self.connection}: {shown}"


class Relay:
    """The relay of one member. `run` serves until it is canceled."""

    def __init__(self, member: Member, recording: deque[Recorded]) -> None:
        self._member = member
        self._recording = recording
        self._connections = 0
        self._open: set[trio.CancelScope] = set()

    def cut(self) -> None:
        """End every connection; new ones are served."""
        for scope in list(self._open):
            scope.cancel()

    async def run(self) -> None:
        """Listen at the member's URL and forward all bytes."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(int(self._member.url.rpartition(":")[2]), host=LOOPBACK)
            await trio.serve_listeners(self._serve, listeners, handler_nursery=nursery)

    async def _serve(self, near: trio.SocketStream) -> None:
        self._connections += 1
        number = self._connections
        async with near:
            with suppress(OSError), trio.CancelScope() as scope:
                self._open.add(scope)
                try:
                    far = await trio.open_tcp_stream(LOOPBACK, int(self._member.bind.rpartition(":")[2]))
                    async with far, trio.open_nursery() as nursery:
                        nursery.start_soon(self._pass_on, near, far, number, True, scope)  # noqa: FBT003
                        nursery.start_soon(self._pass_on, far, near, number, False, scope)  # noqa: FBT003
                finally:
                    self._open.discard(scope)

    async def _pass_on(
        self,
        source: trio.abc.ReceiveStream,
        target: trio.abc.SendStream,
        number: int,
        is_request: bool,  # noqa: FBT001 - nursery.start_soon does not pass keywords
        scope: trio.CancelScope,
    ) -> None:
        reader = ZmtpReader()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(PIECE_BYTES):
                for frames in reader.feed(data):
                    recorded = Recorded(time.time(), self._member.peer_id, number, is_request, tuple(frames))
                    self._recording.append(recorded)
                await target.send_all(data)
        scope.cancel()


class Recorder:
    """The last messages of all members of a group; `relay` runs in front of one of them."""

    def __init__(self) -> None:
        self.messages: deque[Recorded] = deque(maxlen=KEPT)
        self._relays: dict[str, Relay] = {}

    async def relay(self, member: Member) -> None:
        """Serve until it is canceled."""
        relay = self._relays[member.peer_id] = Relay(member, self.messages)
        await relay.run()

    def cut(self, member: Member) -> None:
        """End every connection to a running member; new ones are served."""
        self._relays[member.peer_id].cut()

    def cause_of(self, member: Member, last_output: str) -> Recorded | None:
        """Return the request that ended a server of the package, if its last output names one."""
        indexes = REFUSED.findall(last_output)
        appends = [each for each in self.messages if each.member == member.peer_id and each.is_append]
        return next((each for each in reversed(appends) if indexes and each.previous == int(indexes[-1])), None)

    def last_requests(self, member: Member, count: int) -> list[Recorded]:
        return [each for each in self.messages if each.member == member.peer_id and each.sender is not None][-count:]
