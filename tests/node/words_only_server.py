"""A server of another implementation: it supports only the document's seventeen messages, and trusts leaders.

It uses only the codec, and follows the behavior of the running implementations. An invitation resets it. It stores a
log pack at the leader's position without a comparison. It keeps its log in memory, votes, and never campaigns.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import trio

from consensus.core.model import Entry
from consensus.net.tls import load_or_create_certificate
from consensus.net.tls_stream import TlsStream
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import RequestReader, encode_reply
from consensus.protocols.garlic_farm.wire.nonces import NonceBook
from consensus.protocols.garlic_farm.wire.peers import ListedPeers
from consensus.protocols.garlic_farm.wire.proof import tls_channel
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator, RefusedUpgrade, UpgradeServer
from consensus.protocols.garlic_farm.wire.values import Configuration, LogEntry, LogPack, SnapshotSyncRequest, WireEntry
from consensus.server.event_loop import now_ms
from tests.node.garlic_farm_stage import CREDENTIALS, SERVER_KEYS, key_of

_BREAKS_AT = 3


@dataclass
class WordsOnlyServer:
    """A server without extensions. `received` lists the kinds of requests in order, without adjacent repetitions."""

    server_id: int
    directory: Path
    term: int = 0
    voted_for: int = -1
    commit: int = 0
    catching_up: bool = False
    log: list[WireEntry] = field(default_factory=list)
    start: tuple[int, int] = (0, 0)
    """Index and term of the entry before the log: the end of the snapshot."""
    snapshot: bytes = b""
    received: list[str] = field(default_factory=list)
    invited_to: tuple[int, ...] = ()
    ordered_to_leave: bool = False
    breaks_at: set[str] = field(default_factory=set)
    """Kinds of requests whose third one breaks the connection without a reply, once."""
    offsets: list[int] = field(default_factory=list)
    """Offsets of the received snapshot chunks."""
    counted: Counter[str] = field(default_factory=Counter)
    changed: trio.Event = field(default_factory=trio.Event)

    @property
    def last(self) -> int:
        """Return the index of the last entry."""
        return self.start[0] + len(self.log)

    @property
    def members(self) -> tuple[int, ...]:
        """Return the servers of the last configuration in the log."""
        values = [entry.value for entry in self.log if isinstance(entry, LogEntry)]
        found = [value for value in values if isinstance(value, Configuration)]
        return tuple(server.server_id for server in found[-1].servers) if found else ()

    def commands(self) -> list[bytes]:
        committed = self.log[: max(0, self.commit - self.start[0])]
        return [entry.data for entry in committed if isinstance(entry, Entry)]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition is true after a request."""
        while not holds():
            await self.changed.wait()

    async def listen(self, task_status: trio.TaskStatus[PeerAddress] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve on loopback until canceled, and report the address."""
        self.directory.mkdir(exist_ok=True)
        certificate = load_or_create_certificate(self.directory)
        context, channel = certificate.server_context(), tls_channel(certificate.fingerprint)
        authenticator = Authenticator(
            "farm",
            {CREDENTIALS.user: CREDENTIALS.password}.get,
            NonceBook(b"theirs", Random(self.server_id).randbytes),
            lambda: Identity(server_id=self.server_id),
            peers=ListedPeers(key_of(self.server_id), SERVER_KEYS),
            spoken={},  # a server without extensions does not announce any
        )

        async def serve(transport: trio.SocketStream) -> None:
            stream = TlsStream(transport, context, server_side=True)
            try:
                await stream.do_handshake()
                await self._converse(stream, UpgradeServer(authenticator, channel))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            finally:
                await trio.aclose_forcefully(transport)

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = int(listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, serve, listeners)
            task_status.started(PeerAddress("127.0.0.1", port, certificate.fingerprint))

    async def _converse(self, stream: trio.abc.Stream, upgrade: UpgradeServer) -> None:
        verdict = None
        while verdict is None:
            verdict = upgrade.receive(bytes(await stream.receive_some(4096)), now_ms())
        await stream.send_all(verdict.response)
        if isinstance(verdict, RefusedUpgrade):
            await stream.aclose()
            return
        reader = RequestReader()
        data = verdict.trailing
        while True:
            reader.feed(data)
            while (request := reader.next()) is not None:
                if self._breaks(request):
                    return
                await stream.send_all(encode_reply(self._answer(request)))
            data = bytes(await stream.receive_some(65_536))
            if not data:
                return

    def _breaks(self, request: wire.Request) -> bool:
        name = type(request).__name__
        self.counted[name] += 1
        if name not in self.breaks_at or self.counted[name] < _BREAKS_AT:
            return False
        self.breaks_at.discard(name)
        return True

    def _answer(self, request: wire.Request) -> wire.Reply:
        name = type(request).__name__
        if not self.received or self.received[-1] != name:
            self.received.append(name)
        assert name.endswith("Request")
        assert wire.REQUEST_TYPES[type(request)] <= wire.MessageType.INSTALL_SNAPSHOT_RESPONSE, f"{name}: no such word"
        if not isinstance(request, wire.RequestVoteRequest):
            self.term = max(self.term, request.term)
        accepted, following = self._take(request)
        self.changed.set()
        self.changed = trio.Event()
        return wire.ANSWERS[type(request)](
            source=self.server_id, destination=request.source, term=self.term, next_index=following, accepted=accepted
        )

    def _take(self, request: wire.Request) -> tuple[bool, int]:
        match request:
            case wire.JoinClusterRequest(entries=(LogEntry(value=Configuration() as configuration),)):
                return self._invited(configuration), self.last + 1
            case wire.SyncLogRequest(entries=(LogEntry(value=LogPack(entries=entries)),)):
                return self._sync(request, entries), self.last + 1
            case wire.InstallSnapshotRequest(entries=(LogEntry(value=SnapshotSyncRequest() as chunk),)):
                return self._install(chunk), len(self.snapshot)
            case wire.AppendEntriesRequest():
                return self._append(request), self.last + 1
            case wire.RequestVoteRequest():
                return self._vote(request), 0
            case _:
                self.ordered_to_leave |= isinstance(request, wire.LeaveClusterRequest)
                return isinstance(request, wire.LeaveClusterRequest), self.last + 1

    def _invited(self, configuration: Configuration) -> bool:
        if self.catching_up:
            return False
        self.catching_up, self.voted_for, self.commit = True, -1, 0
        self.invited_to = tuple(server.server_id for server in configuration.servers)
        return True

    def _sync(self, request: wire.SyncLogRequest, entries: tuple[WireEntry, ...]) -> bool:
        if not self.catching_up:
            return False
        at = request.last_log_index - self.start[0]
        assert 0 <= at <= len(self.log), (
            f"a pack after {request.last_log_index} leaves a gap: the log ends at {self.last}"
        )
        self.log[at : at + len(entries)] = entries
        self.commit = min(self.last, request.commit_index)
        return True

    def _install(self, chunk: SnapshotSyncRequest) -> bool:
        self.offsets.append(chunk.offset)
        if chunk.offset != len(self.snapshot):
            return False
        self.snapshot += chunk.data
        if chunk.done:
            self.start, self.log = (chunk.last_log_index, chunk.last_log_term), []
            self.commit = chunk.last_log_index
        return True

    def _append(self, request: wire.AppendEntriesRequest) -> bool:
        at = request.last_log_index - self.start[0]
        if not 0 <= at <= len(self.log) or self._term_at(request.last_log_index) != request.last_log_term:
            return False
        for place, entry in enumerate(request.entries, start=at):
            if self.log[place : place + 1] != [entry]:
                self.log[place:] = [entry]
        self.commit = max(self.commit, min(request.commit_index, request.last_log_index + len(request.entries)))
        if self.server_id in self.members:
            self.catching_up = False
        return True

    def _vote(self, request: wire.RequestVoteRequest) -> bool:
        if request.term > self.term:
            self.term, self.voted_for = request.term, -1
        up_to_date = (request.last_log_term, request.last_log_index) >= (self._term_at(self.last), self.last)
        if request.term < self.term or not up_to_date or self.voted_for not in {-1, request.source}:
            return False
        self.voted_for = request.source
        return True

    def _term_at(self, index: int) -> int:
        return self.start[1] if index == self.start[0] else self.log[index - self.start[0] - 1].term
