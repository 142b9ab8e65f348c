"""Opens a peer of a ØMQ Raft cluster: a plain replicated log for itself, or one more member beside the package's.

    ROUTER ──▶ PeerTransport ──▶ open_server ──▶ ExecutedRequests ──▶ BroadcastStateMachine ──▶ PUB
                    │                 ▲                  └──applied──┐
                    └──▶ ClientEndpoint ──▶ ReplicatedLog ◀──────────┘

*Members.* `peers` counts while the log names none; after that the log does (`peer_members`). A member that does not
answer at its URL in the log is tried at its URL in `peers` (`peer_transport`). A peer that is not among
`peers` knows the cluster by them and waits: it never campaigns, and begins to vote when a change of the members names
it.

*Times* are the package's: a member that waits longer than the others for a lost leader never leads, and one that waits
less replaces a leader that is only slow. An append without an answer is taken for lost after 140 ms or half of the
shortest election timeout, which is the most that the text permits. If the answer takes longer than that to come back,
nothing is ever committed. So what the timeout bounds is the round trip between members as well.

*The directory* belongs to one peer of one cluster; a note in it says which. `log` in it is the storage.
"""

import errno
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Final, Protocol

import msgspec
import trio

from consensus.core.effects import ConfigurationChanged, RoleChanged
from consensus.core.features import ZMQ_RAFT
from consensus.core.model import Configuration, Milliseconds
from consensus.core.options import Options
from consensus.protocols.zmq_raft.endpoint.broadcast import BroadcastStateMachine
from consensus.protocols.zmq_raft.endpoint.client_endpoint import ClientEndpoint, EndpointOptions
from consensus.protocols.zmq_raft.peer.compaction import (
    Compacted,
    Compaction,
    CompactionFailed,
    CompactionOptions,
    Compactor,
)
from consensus.protocols.zmq_raft.peer.executed_requests import ExecutedRequests
from consensus.protocols.zmq_raft.peer.peer_link import PeerTimes
from consensus.protocols.zmq_raft.peer.peer_members import PeerMembers
from consensus.protocols.zmq_raft.peer.peer_transport import PeerTransport
from consensus.protocols.zmq_raft.peer.replicated_log import LogOptions, ReplicatedLog
from consensus.protocols.zmq_raft.sockets import SocketKind, SocketOptions, ZmqContext, ZmqSocket, zmq_context
from consensus.protocols.zmq_raft.wire.entries import configuration_of
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS, MAX_UINT, Limits
from consensus.protocols.zmq_raft.wire.messages import Peer
from consensus.protocols.zmq_raft.wire.peers import PeersError, check_peer_id, check_peers
from consensus.protocols.zmq_raft.wire.request_table import DEFAULT_LIMIT, RequestTable
from consensus.server.block_nursery import block_nursery
from consensus.server.opening import open_server
from consensus.server.options import ServerOptions
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.storage.durable_file import replace_file
from consensus.storage.planner import StorageOptions
from consensus.storage.snapshot_form import PLAIN

HEARTBEAT_MS: Final = 70
RETRY_MS: Final = 140
"""After how long an append without an answer is taken for lost, at least (`core_options`)."""
MESSAGE_BYTES: Final = 64 * 1024
NOTE_FILE: Final = "peer.json"
_NEVER: Final = 2**62
_READS: Final = 64
_ACCEPTED_AFTER_MS: Final = 100
_EARLY_MESSAGES: Final = 1000
_EARLY_BYTES: Final = 16 * 1024 * 1024
_FRAME_BYTES: Final = 64
"""What a frame takes in memory beside its content, about; there may be thousands of empty ones in a message."""
_BROADCAST_QUEUE: Final = 256
"""Messages of at most 64 KiB, or one entry, for each subscriber."""
_SHORTEST_ELECTION_MS: Final = 50


class _RoleListener(Protocol):
    """A part that works only while this peer leads."""

    def role_changed(self, role: RoleChanged) -> None:
        """The peer leads now, or another does."""


PeerNotice = Notice | Compacted | CompactionFailed


class PeerError(Exception):
    """The peer cannot be opened; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """One peer. A URL is `tcp://IP:port`."""

    peer_id: str
    peers: tuple[Peer, ...]
    """The members when the cluster was founded, or, for a peer that joins, those that it is to join."""
    ident: bytes
    """The cluster's secret, which each message carries; in the package `secret`."""
    directory: Path
    bind_url: str | None = None
    """Where to listen, if that is not the peer's own URL."""
    broadcast_url: str | None = None
    """What clients are told of the PUB socket; None: there is none."""
    broadcast_bind_url: str | None = None
    """Where the PUB socket is, if not there."""
    compactor: Compactor | None = None
    """None: the log is never compacted."""
    compaction: CompactionOptions = field(default_factory=CompactionOptions)
    election_timeout_ms: tuple[Milliseconds, Milliseconds] = (200, 300)
    max_request_ids: int = DEFAULT_LIMIT
    log: LogOptions = field(default_factory=LogOptions)
    limits: Limits = DEFAULT_LIMITS

    @property
    def own_url(self) -> str | None:
        """The URL of this peer among `peers`."""
        return next((peer.url for peer in self.peers if peer.peer_id == self.peer_id), None)


@dataclass(frozen=True, slots=True)
class ZmqRaftPeer:
    """A peer that runs."""

    server: ConsensusServer
    log: ReplicatedLog
    url: str
    """Where it listens."""
    broadcast_url: str | None
    _transport: PeerTransport
    _endpoint: ClientEndpoint
    _early: "_Early"

    @property
    def counters(self) -> dict[str, int]:
        """What was dropped, repeated or refused since the start, by reason."""
        return {**self._transport.counters, **self._endpoint.counts, **self.log.dropped, **self._early.dropped}


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose directory it is."""

    peer_id: str
    ident: bytes


@dataclass(frozen=True, slots=True)
class _Started:
    """The parts that exist once the server is open."""

    server: ConsensusServer
    endpoint: ClientEndpoint
    role_listeners: tuple[_RoleListener, ...]


class _Early:
    """Messages of clients that come before the server is open: they wait for it, the newest up to a bound."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.started: _Started | None = None
        """The parts of the server, once it is open."""
        self._waiting: deque[tuple[bytes, list[bytes]]] = deque()
        self._waiting_bytes = 0

    def take(self, identity: bytes, frames: list[bytes]) -> None:
        """One message; it goes on at once, if the server is open."""
        if self.started is not None:
            self.started.endpoint.receive(identity, frames)
            return
        self._waiting.append((identity, frames))
        self._waiting_bytes += _size(frames)
        while len(self._waiting) > _EARLY_MESSAGES or self._waiting_bytes > _EARLY_BYTES:
            _, oldest = self._waiting.popleft()
            self._waiting_bytes -= _size(oldest)
            self.dropped["message that came before the log was read"] += 1

    def release(self) -> None:
        """The server is open."""
        while self._waiting:
            self.take(*self._waiting.popleft())


def _size(frames: list[bytes]) -> int:
    return sum(map(len, frames)) + len(frames) * _FRAME_BYTES


def _ignore(_notice: PeerNotice) -> None:
    """Report nothing."""


def unix_ms() -> Milliseconds:
    """The clock of this machine."""
    return int(time() * 1000)


@asynccontextmanager
async def open_peer(
    options: PeerOptions, observe: Callable[[PeerNotice], None] = _ignore
) -> AsyncIterator[ZmqRaftPeer]:
    """Run a peer while the block lasts. `observe` hears of roles, members, alarms and compactions, at once.

    Raises `PeerError` for options that cannot be or addresses that are taken, and `StorageError` for a directory that
    cannot be used. An error of the disk leaves the block as itself.
    """
    bind_url = _checked(options)
    await trio.to_thread.run_sync(_claim_directory, options)
    founders, early = configuration_of(options.peers), _Early()
    with zmq_context() as context:
        try:
            transport = PeerTransport(
                context,
                options.peer_id,
                options.ident,
                bind_url,
                early.take,
                snapshot=lambda: early.started.server.describe().raft.snapshot if early.started else None,
                times=PeerTimes.for_retry(core_options(options.election_timeout_ms).retry_ms),
                limits=options.limits,
                elsewhere={peer.peer_id: peer.url for peer in options.peers},
            )
            broadcast = _Broadcast.bound(context, options)
        except OSError as error:
            advice = "Stop what listens there, or choose another port"
            if error.errno == errno.EADDRNOTAVAIL:
                advice = "That address is none of this machine's: tell the peer where to bind instead"
            raise PeerError(f"{error.strerror}. {advice}") from error
        async with _serve(options, transport, broadcast, founders, early, observe) as peer:
            early.release()
            yield peer


@asynccontextmanager
async def _serve(
    options: PeerOptions,
    transport: PeerTransport,
    broadcast: "_Broadcast | None",
    founders: Configuration,
    early: _Early,
    observe: Callable[[PeerNotice], None],
) -> AsyncIterator[ZmqRaftPeer]:
    """Open the server, and everything that needs it, which `early` hands the clients' messages to."""
    members = PeerMembers(transport, options.peer_id, founders)
    machine = ExecutedRequests(RequestTable(options.max_request_ids), unix_ms, options.log.window)

    def heard(notice: Notice) -> None:
        if isinstance(notice, ConfigurationChanged):
            members.change(notice.configuration, notice.newcomers)
        elif isinstance(notice, RoleChanged):
            for listener in early.started.role_listeners if early.started else ():
                listener.role_changed(notice)
        observe(notice)

    async with (
        _open_server(options, founders, transport, machine, heard) as server,
        block_nursery() as nursery,
    ):
        members.change(server.describe().raft.configuration, ())
        nursery.start_soon(members.run)
        nursery.start_soon(members.find, options.ident)
        url = None if broadcast is None else broadcast.url
        log = ReplicatedLog(server, machine, unix_ms, url, options.log)
        endpoint_options = EndpointOptions(wire=options.limits, accepted_after_ms=_ACCEPTED_AFTER_MS)
        endpoint = ClientEndpoint(log, options.ident, transport.reply, options=endpoint_options)
        telling = None
        if broadcast is not None:
            telling = BroadcastStateMachine(broadcast.socket.send, options.ident, machine, server.role)
        # Before anything waits: no change of the role may pass unheard.
        early.started = _Started(server, endpoint, (log,) if telling is None else (log, telling))
        if broadcast is not None and telling is not None:
            await nursery.start(broadcast.socket.run)
            await nursery.start(telling.run)
        await nursery.start(log.run)
        await nursery.start(endpoint.run)
        if options.compactor is not None:
            making = options.directory / "snapshot.making"
            compaction = Compaction(server, machine, options.compactor, making, observe, options.compaction)
            await nursery.start(compaction.run)
        yield ZmqRaftPeer(server, log, transport.bound_url, url, transport, endpoint, early)


@dataclass(frozen=True, slots=True)
class _Broadcast:
    """The PUB socket, and what clients are told of it."""

    socket: ZmqSocket
    url: str

    @classmethod
    def bound(cls, context: ZmqContext, options: PeerOptions) -> "_Broadcast | None":
        """Bind the socket that the options ask for; raises `OSError`."""
        if options.broadcast_url is None:
            return None
        socket = ZmqSocket(context, SocketKind.PUB, options=SocketOptions(send_queue=_BROADCAST_QUEUE))
        bound_url = socket.bind(options.broadcast_bind_url or options.broadcast_url)
        return cls(socket, bound_url if options.broadcast_bind_url is None else options.broadcast_url)


def core_options(election_timeout_ms: tuple[Milliseconds, Milliseconds]) -> Options:
    """The times and sizes of a server whose election timeout is between these two."""
    shortest_ms, longest_ms = election_timeout_ms
    return Options(
        election_timeout_min_ms=shortest_ms,
        election_timeout_max_ms=longest_ms,
        heartbeat_ms=min(HEARTBEAT_MS, shortest_ms // 3),
        retry_ms=max(RETRY_MS, shortest_ms // 2),
        max_bytes_per_append=MESSAGE_BYTES,
        snapshot_chunk_bytes=MESSAGE_BYTES,
        in_flight=1,
        max_term=MAX_UINT,
    )


def _open_server(
    options: PeerOptions,
    founders: Configuration,
    transport: PeerTransport,
    machine: ExecutedRequests,
    heard: Callable[[Notice], None],
) -> AbstractAsyncContextManager[ConsensusServer]:
    # The server takes no snapshot by itself: what it would write down is the operator's program's matter.
    limits = ServerOptions(
        snapshot_log_bytes=_NEVER,
        snapshot_age_ms=_NEVER,
        retain_bytes=options.compaction.log_bytes // 4,
        max_reads=_READS,
    )
    return open_server(
        options.directory / "log",
        options.peer_id,
        founders,
        transport,
        machine,
        features=ZMQ_RAFT,
        options=core_options(options.election_timeout_ms),
        server_options=limits,
        storage_options=StorageOptions(snapshot_form=PLAIN),
        observe=heard,
        snapshot_index=machine.snapshot_index,
    )


def _checked(options: PeerOptions) -> str:
    """Where to listen; raises `PeerError` for options that cannot be."""
    try:
        check_peer_id(options.peer_id, options.limits)
        check_peers(options.peers, options.limits)
    except PeersError as error:
        raise PeerError(f"these peers cannot be a cluster: {error}") from error
    if len(options.ident) > options.limits.max_ident_bytes:
        raise PeerError(f"the ident has {len(options.ident)} bytes; at most {options.limits.max_ident_bytes} are sent")
    shortest_ms, longest_ms = options.election_timeout_ms
    if not _SHORTEST_ELECTION_MS <= shortest_ms <= longest_ms:
        raise PeerError(
            f"an election timeout of {shortest_ms} to {longest_ms} ms cannot be: the first is at least "
            f"{_SHORTEST_ELECTION_MS}, the second not below it"
        )
    bind_url = options.bind_url or options.own_url
    if bind_url is None:
        raise PeerError(
            f"{options.peer_id} is not among the peers, so it is not known where it is to listen. Name its address "
            "among them if it is a founder of the cluster, or tell it where to bind if it is to join them"
        )
    return bind_url


def _claim_directory(options: PeerOptions) -> None:
    """Note in the directory whose it is; raises `PeerError` if it belongs to another peer or cluster."""
    note, file = _Note(options.peer_id, options.ident), options.directory / NOTE_FILE
    try:
        options.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            replace_file(file, msgspec.json.encode(note))
        found = msgspec.json.decode(file.read_bytes(), type=_Note)
    except OSError as error:
        raise PeerError(
            f"the directory '{options.directory}' cannot be used: {error.strerror}. Give this user access to it"
        ) from error
    except msgspec.DecodeError as error:
        raise PeerError(f"'{file}' does not say whose directory this is: {error}. Put back what was there") from error
    if found.peer_id != options.peer_id:
        raise PeerError(
            f"the directory '{options.directory}' holds the log of peer {found.peer_id}, and this is peer "
            f"{options.peer_id}: with it one vote could be given twice. Give each peer a directory of its own"
        )
    if found.ident != options.ident:
        raise PeerError(
            f"the directory '{options.directory}' holds the log of a cluster with another ident. Give the ident of "
            "that cluster, or another directory"
        )
