"""A fake router that speaks I2CP over memory streams or sockets, with faults that a test selects.

It makes the checks of a real router: signature and date of the session, owner and signature of the structure. Like a
Java router, it disconnects with a reason, and closes the connection of an ended session. Like i2pd, it verifies a
session with the destination's key only, and ignores its date. Everything except the selected faults is correct.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from bridge.node.router import i2cp_connection, i2cp_router
from bridge.node.router.link import Link, RouterLost
from bridge.wire.i2p.i2cp import FrameReader
from bridge.wire.i2p.i2cp_messages import (
    CreateLeaseSet2,
    CreateSession,
    DestroySession,
    Disconnect,
    GetDate,
    HostLookup,
    HostReply,
    RequestVariableLeaseSet,
    SessionStatus,
    SetDate,
    Status,
)
from bridge.wire.i2p.meta_lease_set import decode as decode_structure
from bridge.wire.i2p.meta_lease_set import verify
from bridge.wire.i2p.structures import Destination
from tests.wire.i2cp_router_half import Message, decode, encode, session_is_signed

NOW_S = 1_767_225_600
LINK = Link("127.0.0.1", 7654)
SESSION_DATE_TOLERANCE_MS = 30_000


def clock_now_ms() -> int:
    """Return the machine's clock. It starts at `NOW_S` and advances with trio's clock."""
    return NOW_S * 1000 + round(trio.current_time() * 1000)


@dataclass(eq=False)
class FakeRouter:
    """A fake router."""

    is_i2pd: bool = False
    own_version: str | None = None
    """The version in its SetDate. By default, a Java router sends 0.9.64, and i2pd the version of the client."""
    up: bool = True
    unresponsive: bool = False
    garbage: bytes | None = None
    session_status: int = 1
    refusal: str | None = None
    """Reason of the Disconnect message that the router sends for a structure."""
    piece_bytes: int | None = None
    """Size of the pieces of its messages; one piece is sent every ten milliseconds."""
    delay_s: float = 0
    """Time before each of its messages."""
    ends_within: type[Message] | None = None
    """Type of a message that the router sends in part; then it closes the connection."""
    password: str | None = None
    clock_offset_ms: int = 0
    known: dict[bytes, Destination] = field(default_factory=dict)
    structures: list[bytes] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    destroyed: int = 0
    disconnects: list[str] = field(default_factory=list)
    lookups: int = 0
    connections: int = 0
    _open: dict[trio.abc.Stream, int | None] = field(default_factory=dict)
    _authorized: set[trio.abc.Stream] = field(default_factory=set)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends."""
        self.connections += 1
        self._open[stream] = None
        try:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._serve(stream)
        finally:
            self._open.pop(stream, None)
            self._authorized.discard(stream)
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        if await stream.receive_some(1) != b"\x2a":
            return
        if self.garbage is not None:
            await stream.send_all(self.garbage)
        reader = FrameReader()
        while data := await stream.receive_some(1000):
            reader.feed(bytes(data))
            while (frame := reader.next_frame()) is not None:
                message = decode(frame)
                for answer in [] if self.unresponsive else self._answers(stream, message):
                    if not await self._send(stream, answer):
                        return
                if isinstance(message, DestroySession) and not self.is_i2pd:
                    return

    async def _send(self, stream: trio.abc.Stream, answer: Message) -> bool:
        """Send a message; return False if the connection must end."""
        data = encode(answer)
        await trio.sleep(self.delay_s)
        if self.ends_within is not None and isinstance(answer, self.ends_within):
            await stream.send_all(data[: len(data) // 2])
            return False
        size = self.piece_bytes or len(data)
        for begin in range(0, len(data), size):
            await stream.send_all(data[begin : begin + size])
            if self.piece_bytes is not None:
                await trio.sleep(0.01)
        return not isinstance(answer, Disconnect)

    def _answers(self, stream: trio.abc.Stream, message: Message) -> list[Message]:  # noqa: PLR0911 - one per case
        match message:
            case GetDate(version, options):
                if self._knows(options):
                    self._authorized.add(stream)
                if self.password is not None and stream not in self._authorized:
                    return [Disconnect("Authorization required, specify i2cp.username and i2cp.password")]
                replied = self.own_version or (version if self.is_i2pd else "0.9.64")
                return [SetDate(clock_now_ms() + self.clock_offset_ms, replied)]
            case CreateSession():
                return [self._session(stream, message)]
            case CreateLeaseSet2():
                return self._take(message)
            case HostLookup(session_id, number, _, destination_hash):
                self.lookups += 1
                found = self.known.get(destination_hash)
                if found is None:
                    return [HostReply(session_id, number, 1)]
                return [HostReply(session_id, number, 0, found.encoded)]
            case DestroySession():
                self.destroyed += 1
                return []
            case Disconnect(reason):
                self.disconnects.append(reason)
                return []
            case _:
                return [Disconnect(f"unexpected {type(message).__name__}")]

    def _knows(self, options: dict[str, str] | None) -> bool:
        return options == {"i2cp.username": "farm", "i2cp.password": self.password}

    def _session(self, stream: trio.abc.Stream, message: CreateSession) -> Message:
        config = message.config
        distance_ms = abs(config.created_ms - clock_now_ms() - self.clock_offset_ms)
        if self.is_i2pd:
            if not config.is_signed_by_destination:
                return SessionStatus(0, Status.INVALID)
        elif not session_is_signed(config) or distance_ms > SESSION_DATE_TOLERANCE_MS:
            return Disconnect("Invalid signature on CreateSessionMessage")
        if self.session_status == 1:
            self._open[stream] = self.connections
            self.sessions.append(config.destination.address)
        return SessionStatus(self.connections, self.session_status)

    def _take(self, message: CreateLeaseSet2) -> list[Message]:
        structure = decode_structure(message.structure)
        if self.refusal is not None:
            return [Disconnect(self.refusal)]
        if message.private_key_count is not self.is_i2pd or not verify(structure).holds:
            return [Disconnect("Invalid leaseset")]
        self.structures.append(message.structure)
        return []

    async def send_to_clients(self, message: Message) -> None:
        for stream, session_id in list(self._open.items()):
            if session_id is not None:
                await stream.send_all(encode(message))

    async def request_lease_set(self) -> None:
        """Request a LeaseSet, as a router does when it has tunnels."""
        await self.send_to_clients(RequestVariableLeaseSet(1, 2))

    async def crash(self) -> None:
        """Close all connections without a Disconnect message."""
        for stream in list(self._open):
            await trio.aclose_forcefully(stream)


@contextmanager
def connections_in_memory(
    router: FakeRouter, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeRouter]:
    """Connect the I2CP client to the fake router by memory streams during the block."""

    async def open_stream(link: Link, timeout_s: float = 5.0) -> trio.abc.Stream:
        del timeout_s
        await trio.lowlevel.checkpoint()
        if not router.up:
            raise RouterLost(f"nothing answers at {link}: Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(router.serve, theirs)
        return ours

    with monkeypatch.context() as patched:
        patched.setattr(i2cp_connection, "open_stream", open_stream)
        patched.setattr(i2cp_connection, "clock_ms", clock_now_ms)
        patched.setattr(i2cp_router, "clock_ms", clock_now_ms)
        yield router
