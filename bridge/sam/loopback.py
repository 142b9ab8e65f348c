"""A SAM bridge without a router: sessions of one process exchange streams over loopback, for demonstrations and tests.

    client ── SAM ──▶ serve_loopback_bridge ─┐
    client ── SAM ──▶ serve_loopback_bridge ─┴─ LoopbackNetwork: sessions by the hash of their destination

A bridge behaves as i2pd, or with `java_like` as a Java router. i2pd replies OK to STREAM CONNECT as soon as it has the
peer's lease set, Java after the peer's reply. A lease set outlives its session for ten minutes, as in the network: a
stream to an ended session does not receive anything. Neither router supports a half-close, so a stream ends as soon as
either side closes it.

Several bridges on one network act as several routers: the end of a `serve_loopback_bridge` ends the sessions that it
created. Connections, sessions, waiting streams and lines are bounded. A bridge listens on loopback only.
"""

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Final

import trio
from msgspec import Struct, field

from bridge.sam.connection import SamBridge, receive_line
from bridge.wire.i2p import sam
from bridge.wire.i2p.destination_keys import DestinationKeyError, new_master_key
from bridge.wire.i2p.key_file import parse_sam_private_key, sam_private_key
from bridge.wire.i2p.structures import ADDRESS_SUFFIX, Destination, I2pError, destination_from_base64, hash_of_address

LOOPBACK: Final = "127.0.0.1"
CONNECTIONS_LIMIT: Final = 1_024
SESSIONS_LIMIT: Final = 256
LEASE_SETS_LIMIT: Final = 1_024
WAITING_STREAMS_LIMIT: Final = 128
"""Streams of one session that wait for STREAM ACCEPT, as in i2pd 2.45.1."""
ACCEPT_TIMEOUT_S: Final = 10.0
"""Seconds that a stream waits for STREAM ACCEPT, as in i2pd."""
CONNECT_TIMEOUT_S: Final = 60.0
"""Seconds until a Java router returns TIMEOUT."""
LEASE_S: Final = 600.0
COMMAND_TIMEOUT_S: Final = 60.0
DRAIN_TIMEOUT_S: Final = 5.0
_RELAY_BYTES: Final = 16_384
_ID_CHARACTERS_REFUSED: Final = frozenset("<>\"'/")


class _RefusedError(Exception):
    """A request is refused; the reply ends the connection, as in i2pd."""

    def __init__(self, words: str, result: str, message: str = "") -> None:
        super().__init__(result)
        self.words = words
        self.pairs = {"RESULT": result, "MESSAGE": message} if message else {"RESULT": result}


class _WaitingStream(Struct, eq=False):
    """A stream that a peer has opened and that waits for a STREAM ACCEPT."""

    peer: Destination
    accepted: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    acceptor: trio.SocketStream | None = None


class _Session:
    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.opened, self.waiting = trio.open_memory_channel[_WaitingStream](WAITING_STREAMS_LIMIT)
        self.control = trio.CancelScope()
        """The scope of the control connection."""
        self.scopes: set[trio.CancelScope] = set()
        """The scopes of all streams, canceled at the end of the session."""

    @contextmanager
    def stream_scope(self) -> Iterator[None]:
        with trio.CancelScope() as scope:
            self.scopes.add(scope)
            try:
                yield
            finally:
                self.scopes.discard(scope)

    async def next_waiting(self) -> _WaitingStream:
        while True:
            stream = await self.waiting.receive()
            if not stream.ended.is_set():
                return stream


class LoopbackNetwork:
    """The sessions of all bridges that share this network, and its behavior; a test may change it at any time."""

    def __init__(self, *, java_like: bool = False) -> None:
        self.java_like = java_like
        """True: STREAM CONNECT returns OK after the peer's STREAM ACCEPT, as in a Java router."""
        self.session_delay_s = 0.0
        """Duration of SESSION CREATE in seconds: 20, 40 or 60 in i2pd 2.45.1, and about 12 in newer versions."""
        self.connect_delay_s = 0.0
        """Seconds from STREAM CONNECT to its result; `java_like` adds the wait for STREAM ACCEPT, up to 60 s."""
        self.ping_after_s = math.inf
        """Seconds without a line until a bridge sends PING on a control connection; 180 in a Java router."""
        self.dead: set[bytes] = set()
        """Hashes of destinations that receive nothing and reply nothing, although their lease sets are known."""
        self._sessions: dict[bytes, _Session] = {}
        self._lease_ends_s: dict[bytes, float] = {}

    def has_lease_set(self, destination_hash: bytes) -> bool:
        """Return True if a router can find a lease set of the destination."""
        if destination_hash in self._sessions or destination_hash in self.dead:
            return True
        return self._lease_ends_s.get(destination_hash, 0.0) > trio.current_time()

    def forget_lease_sets(self) -> None:
        """Drop the lease sets of ended sessions."""
        self._lease_ends_s.clear()

    def end_session(self, destination_hash: bytes) -> None:
        """End the session of a destination, as at the stop of a router; ignored for an ended session."""
        if (session := self._sessions.get(destination_hash)) is not None:
            session.control.cancel()

    def offer(self, stream: _WaitingStream, peer: bytes) -> bool | None:
        """Queue a stream for its peer; return False if too many wait, None if the peer receives nothing."""
        session = self._sessions.get(peer)
        if session is None or peer in self.dead:
            return None
        try:
            session.opened.send_nowait(stream)
        except trio.WouldBlock:
            return False
        return True

    @property
    def hashes(self) -> frozenset[bytes]:
        """The hashes of the destinations with an open session."""
        return frozenset(self._sessions)

    @contextmanager
    def session(self, destination: Destination) -> Iterator[_Session]:
        """Add a session for the block."""
        session = _Session(destination)
        self._sessions[destination.hash] = session
        try:
            yield session
        finally:
            del self._sessions[destination.hash]
            while len(self._lease_ends_s) >= LEASE_SETS_LIMIT:
                del self._lease_ends_s[next(iter(self._lease_ends_s))]
            self._lease_ends_s[destination.hash] = trio.current_time() + LEASE_S
            for scope in session.scopes:
                scope.cancel()


async def serve_loopback_bridge(
    network: LoopbackNetwork,
    port: int = 0,
    *,
    host: str = LOOPBACK,
    task_status: trio.TaskStatus[SamBridge] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a SAM bridge until canceled; report its address. Raise `ValueError` for a `host` other than loopback."""
    if not ip_address(host).is_loopback:
        raise ValueError(f"a loopback SAM bridge cannot listen on {host}: use 127.0.0.1 or ::1")
    bridge = _Bridge(network)
    listeners = await trio.open_tcp_listeners(port, host=host)
    bound = int(listeners[0].socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, bridge.handle, listeners)
        task_status.started(SamBridge(host, bound))


class _Bridge:
    """One bridge with its sessions, by their ID."""

    def __init__(self, network: LoopbackNetwork) -> None:
        self.network = network
        self.sessions: dict[str, _Session | None] = {}
        """Sessions by ID; None while SESSION CREATE is under way."""
        self._connections = 0

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection; input that is not SAM ends it."""
        async with stream:
            if self._connections >= CONNECTIONS_LIMIT:
                return
            self._connections += 1
            try:
                with suppress(sam.SamLineError, trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                    await _ClientConnection(self, stream).serve()
            finally:
                self._connections -= 1


class _ClientConnection:
    def __init__(self, bridge: _Bridge, stream: trio.SocketStream) -> None:
        self._bridge = bridge
        self._network = bridge.network
        self._stream = stream

    async def serve(self) -> None:
        """Serve the client until it leaves or its request is refused.

        An unknown command, a failed HELLO, or 60 s without a command also end the connection.
        """
        try:
            await self._serve()
        except _RefusedError as refused:
            await self._reply(refused.words, **refused.pairs)

    async def _serve(self) -> None:
        if not await self._negotiate():
            return
        while (line := await self._command()) is not None:
            if line.words == sam.DEST_GENERATE:
                key = new_master_key()
                await self._reply(sam.DEST_REPLY, PUB=key.destination.base64, PRIV=sam_private_key(key))
            elif line.words == sam.PING:
                await self._stream.send_all(sam.encode_text(sam.PONG, line.text))
            else:
                last_requests = {
                    sam.SESSION_CREATE: self._create_session,
                    sam.STREAM_CONNECT: self._connect,
                    sam.STREAM_ACCEPT: self._accept,
                }
                if (serve := last_requests.get(line.words)) is not None:
                    await serve(line)
                return

    async def _command(self) -> sam.SamLine | None:
        with trio.move_on_after(COMMAND_TIMEOUT_S):
            data = await receive_line(self._stream)
            return sam.parse_line(data) if data else None
        return None

    async def _reply(self, words: str, **pairs: str) -> None:
        await self._stream.send_all(sam.encode_reply(words, pairs))

    async def _negotiate(self) -> bool:
        line = await self._command()
        if line is None or line.words != sam.HELLO:
            return False
        lowest, highest = line.pairs.get("MIN", sam.VERSIONS[0]), line.pairs.get("MAX", sam.VERSIONS[-1])
        supported = [each for each in sam.VERSIONS if lowest <= each <= highest]
        if not supported:
            raise _RefusedError(sam.HELLO_REPLY, "NOVERSION")
        await self._reply(sam.HELLO_REPLY, RESULT=sam.OK, VERSION=supported[-1])
        return True

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def _create_session(self, line: sam.SamLine) -> None:
        session_id, sessions = line.pairs.get("ID", ""), self._bridge.sessions
        if not session_id or not _ID_CHARACTERS_REFUSED.isdisjoint(session_id):
            raise _RefusedError(sam.SESSION_STATUS, "INVALID_ID")
        if session_id in sessions:
            raise _RefusedError(sam.SESSION_STATUS, "DUPLICATED_ID")
        if line.pairs.get("STYLE") != "STREAM":
            raise _RefusedError(sam.SESSION_STATUS, "I2P_ERROR", "only STYLE=STREAM is supported")
        if len(sessions) >= SESSIONS_LIMIT:
            raise _RefusedError(sam.SESSION_STATUS, "I2P_ERROR", "too many sessions")
        text = line.pairs.get("DESTINATION", "")
        try:
            key = new_master_key() if text == sam.TRANSIENT else parse_sam_private_key(text)
        except DestinationKeyError:
            raise _RefusedError(sam.SESSION_STATUS, "INVALID_KEY") from None
        sessions[session_id] = None
        try:
            await trio.sleep(self._network.session_delay_s)
            if key.destination.hash in self._network.hashes:
                raise _RefusedError(sam.SESSION_STATUS, "DUPLICATED_DEST")
            with self._network.session(key.destination) as session:
                sessions[session_id] = session
                with session.control:
                    await self._reply(sam.SESSION_STATUS, RESULT=sam.OK, DESTINATION=sam_private_key(key))
                    await self._control()
        finally:
            del sessions[session_id]

    async def _control(self) -> None:
        """Keep the session until its control connection ends."""
        pinged = False
        while True:
            with trio.move_on_after(self._network.ping_after_s):
                if not (data := await receive_line(self._stream)):
                    return
                line = sam.parse_line(data)
                pinged = pinged and line.words != sam.PONG
                if line.words == sam.PING:
                    await self._stream.send_all(sam.encode_text(sam.PONG, line.text))
                continue
            if pinged:
                raise _RefusedError("PING STATUS", "I2P_ERROR", "PONG timeout")
            await self._stream.send_all(sam.encode_text(sam.PING, str(round(trio.current_time() * 1000))))
            pinged = True

    # -- streams -------------------------------------------------------------------------------------------------------

    async def _connect(self, line: sam.SamLine) -> None:
        session = self._bridge.sessions.get(line.pairs.get("ID", ""))
        if session is None:
            raise _RefusedError(sam.STREAM_STATUS, "INVALID_ID")
        text = line.pairs.get("DESTINATION", "")
        try:
            peer = hash_of_address(text) if ADDRESS_SUFFIX in text else destination_from_base64(text).hash
        except I2pError:
            raise _RefusedError(sam.STREAM_STATUS, "INVALID_KEY") from None
        with session.stream_scope():
            await trio.sleep(self._network.connect_delay_s)
            if peer == session.destination.hash:
                raise _RefusedError(sam.STREAM_STATUS, "CANT_REACH_PEER", "Can't connect to myself")
            if self._network.has_lease_set(peer):
                await self._open(session, peer)
            elif self._network.java_like:
                raise _RefusedError(sam.STREAM_STATUS, "INVALID_KEY") from None
            else:
                raise _RefusedError(sam.STREAM_STATUS, "CANT_REACH_PEER", "LeaseSet not found")

    async def _open(self, session: _Session, peer: bytes) -> None:
        java_like = self._network.java_like
        stream = _WaitingStream(session.destination)
        offered = self._network.offer(stream, peer)
        try:
            if not java_like:
                await self._reply(sam.STREAM_STATUS, RESULT=sam.OK)
            elif offered is False:
                raise _RefusedError(sam.STREAM_STATUS, "CONNECTION_REFUSED")
            if offered:
                with trio.move_on_after(CONNECT_TIMEOUT_S if java_like else ACCEPT_TIMEOUT_S):
                    await stream.accepted.wait()
            elif java_like:
                await trio.sleep(CONNECT_TIMEOUT_S)
            if java_like:
                if stream.acceptor is None:
                    raise _RefusedError(sam.STREAM_STATUS, "TIMEOUT")
                await self._reply(sam.STREAM_STATUS, RESULT=sam.OK)
            if stream.acceptor is not None:
                await self._relay(stream.acceptor, {peer, session.destination.hash})
            if offered is None or peer in self._network.dead:
                await _drain(self._stream)
        finally:
            stream.ended.set()

    async def _accept(self, line: sam.SamLine) -> None:
        session = self._bridge.sessions.get(line.pairs.get("ID", ""))
        if session is None:
            raise _RefusedError(sam.STREAM_STATUS, "INVALID_ID")
        with session.stream_scope():
            await self._reply(sam.STREAM_STATUS, RESULT=sam.OK)
            stream = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_at_end, nursery.cancel_scope)
                stream = await session.next_waiting()
                nursery.cancel_scope.cancel()
            if stream is None:
                return
            ports = " FROM_PORT=0 TO_PORT=0" if self._network.java_like else ""
            await self._stream.send_all(f"{stream.peer.base64}{ports}\n".encode())
            stream.acceptor = self._stream
            stream.accepted.set()
            await stream.ended.wait()

    async def _cancel_at_end(self, scope: trio.CancelScope) -> None:
        """Cancel if the client closes its connection; bytes that it sends early belong to the stream."""
        with suppress(OSError):
            if await self._stream.socket.recv(1, socket.MSG_PEEK):
                return
        scope.cancel()

    async def _relay(self, acceptor: trio.SocketStream, ends: set[bytes]) -> None:
        """Relay both ways until one side closes: a half-close ends the stream, as with both routers."""
        async with trio.open_nursery() as nursery:

            async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    while data := await source.receive_some(_RELAY_BYTES):
                        if ends.isdisjoint(self._network.dead):
                            await sink.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(pump, self._stream, acceptor)
            nursery.start_soon(pump, acceptor, self._stream)
        if ends.isdisjoint(self._network.dead):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end, self._stream)
                nursery.start_soon(_end, acceptor)


async def _end(stream: trio.SocketStream) -> None:
    """Close a stream.

    First read and discard unread bytes. Otherwise the kernel could drop sent but undelivered bytes.
    """
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_eof()
    with trio.move_on_after(DRAIN_TIMEOUT_S):
        await _drain(stream)
    await stream.aclose()


async def _drain(stream: trio.SocketStream) -> None:
    """Discard what the client sends, until it closes."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while await stream.receive_some(_RELAY_BYTES):
            pass
