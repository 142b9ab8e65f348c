"""The opening of a peer of a ØMQ Raft cluster, whose other peers may run the npm package `zmq-raft`.

    ROUTER ──▶ PeerTransport ──▶ ConsensusServer ──▶ ExecutedRequests ──▶ BroadcastStateMachine ──▶ PUB
                    │                 ▲                      └──applied──┐
                    └──▶ ClientEndpoint ──▶ ReplicatedLog ◀──────────────┘

*Members.* `peers` is used until the log names members; from then on the log is used (`peer_members`). A member that
does not reply at its URL in the log is tried at its URL in `peers` (`peer_transport`). A peer outside `peers` waits: it
never campaigns, and begins to vote when a change of the members names it.

*Times* are the package's defaults, so that all members have equal times. A member with a longer election timeout than
the others would never lead, and a member with a shorter one would replace a slow leader. An append without a reply
counts as lost after 140 ms, or after half of the shortest election timeout if that is longer. If replies always take
longer, entries are never committed. So this time also limits the round trip between members.

*The directory* belongs to one peer of one cluster, named in its file `peer.json`. Its `log` is the storage.
"""

import errno
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Final

import msgspec
import trio
from msgspec import Struct, field

from consensus.core.effects import ConfigurationChanged, RoleChanged
from consensus.core.features import ZMQ_RAFT
from consensus.core.model import Configuration, Milliseconds, SnapshotDescription
from consensus.core.options import Options
from consensus.protocols.zmq_raft.counters import EndpointDrop, PeerEvent, SocketDrop
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
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS, MAX_UINT
from consensus.protocols.zmq_raft.wire.messages import Peer
from consensus.protocols.zmq_raft.wire.peers import PeersError, check_peer_id, check_peers
from consensus.protocols.zmq_raft.wire.request_table import DEFAULT_LIMIT, RequestTable
from consensus.server.block_nursery import block_nursery
from consensus.server.opening import prepare_server
from consensus.server.options import ServerOptions
from consensus.server.parts import ServerParts
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.storage.durable_file import replace_file
from consensus.storage.file_access import access_advice
from consensus.storage.planner import StorageOptions
from consensus.storage.snapshot_form import PLAIN

HEARTBEAT_MS: Final = 70
RETRY_MS: Final = 140
"""Least time in milliseconds until an append without a reply counts as lost (`core_options`)."""
MESSAGE_BYTES: Final = 64 * 1024
NOTE_FILE: Final = "peer.json"
_NEVER: Final = 2**62
_READS: Final = 64
_ACCEPTED_AFTER_MS: Final = 100
_BROADCAST_QUEUE: Final = 256
"""Size of each subscriber's queue, in messages of at most 64 KiB or one entry."""
_SHORTEST_ELECTION_MS: Final = 50


PeerNotice = Notice | Compacted | CompactionFailed


class PeerError(Exception):
    """The peer cannot be opened; the text contains the reason and the remedy."""


class PeerOptions(Struct, frozen=True):
    """One peer. A URL is `tcp://IP:port`."""

    peer_id: str
    peers: tuple[Peer, ...]
    """The members when the cluster was created, or, for a joining peer, the members of the cluster to join."""
    ident: bytes
    """The cluster's secret, which each message carries; in the package `secret`."""
    directory: Path
    bind_url: str | None = None
    """Address to listen on, if it differs from the peer's own URL."""
    broadcast_url: str | None = None
    """Address of the PUB socket for clients, if any."""
    broadcast_bind_url: str | None = None
    """Address to bind the PUB socket to, if it differs from `broadcast_url`."""
    compactor: Compactor | None = None
    """The compaction of the log; None if the log is never compacted."""
    compaction: CompactionOptions = field(default_factory=CompactionOptions)
    election_timeout_ms: tuple[Milliseconds, Milliseconds] = (200, 300)
    max_request_ids: int = DEFAULT_LIMIT
    log: LogOptions = field(default_factory=LogOptions)

    @property
    def own_url(self) -> str | None:
        """The URL of this peer among `peers`."""
        return next((peer.url for peer in self.peers if peer.peer_id == self.peer_id), None)


class ZmqRaftPeer(Struct, frozen=True):
    """A peer that runs."""

    server: ConsensusServer
    log: ReplicatedLog
    url: str
    """Address of its listener."""
    broadcast_url: str | None
    _transport: PeerTransport
    _endpoint: ClientEndpoint

    @property
    def counters(self) -> Counter[PeerEvent | SocketDrop | EndpointDrop]:
        """Return the dropped, repeated and refused messages since the start, by reason."""
        return self._transport.counters + self._endpoint.counts + self.log.dropped


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    peer_id: str
    ident: bytes


def _ignore(_notice: PeerNotice) -> None:
    """Report nothing."""


def unix_ms() -> Milliseconds:
    """Return this machine's time, in milliseconds since 1970."""
    return int(time() * 1000)


@asynccontextmanager
async def open_peer(
    options: PeerOptions, observe: Callable[[PeerNotice], None] = _ignore
) -> AsyncIterator[ZmqRaftPeer]:
    """Run a peer for the block. `observe` gets roles, members, alarms and compactions immediately.

    Raises `PeerError` for invalid options or occupied addresses, and `StorageError` for a directory that cannot be
    used. An error of the disk leaves the block without an exception group around it.
    """
    bind_url = _checked(options)
    await trio.to_thread.run_sync(_claim_directory, options)
    founders = configuration_of(options.peers)
    machine = ExecutedRequests(RequestTable(options.max_request_ids), unix_ms, options.log.window)
    with zmq_context() as context:
        # These callbacks use parts that exist only after the server. They run only after the server has started, when
        # all parts exist.
        transport, broadcast = _bound(
            context,
            options,
            bind_url,
            clients=lambda identity, frames: endpoint.receive(identity, frames),  # noqa: PLW0108 - made below
            snapshot=lambda: server.describe().raft.snapshot,
        )
        members = PeerMembers(transport, options.peer_id, founders, core_options(options.election_timeout_ms))

        def take_notice(notice: Notice) -> None:
            if isinstance(notice, ConfigurationChanged):
                members.change(notice.configuration, notice.newcomers)
            elif isinstance(notice, RoleChanged):
                log.role_changed(notice)
                if broadcaster is not None:
                    broadcaster.role_changed(notice)
            observe(notice)

        async with prepare_server(_server_parts(options, founders, transport, machine, take_notice)) as server:
            members.change(server.describe().raft.configuration, ())
            url = None if broadcast is None else broadcast.url
            log = ReplicatedLog(server, machine, unix_ms, url, options.log)
            limits = EndpointOptions(accepted_after_ms=_ACCEPTED_AFTER_MS)
            endpoint = ClientEndpoint(log, options.ident, transport.reply, options=limits)
            broadcaster = None
            if broadcast is not None:
                broadcaster = BroadcastStateMachine(broadcast.socket.send, options.ident, machine, server.role)
            async with block_nursery() as nursery:
                nursery.start_soon(members.run, server)
                nursery.start_soon(members.find, options.ident)
                if broadcast is not None and broadcaster is not None:
                    await nursery.start(broadcast.socket.run)
                    await nursery.start(broadcaster.run)
                await nursery.start(server.run)
                await nursery.start(log.run)
                await nursery.start(endpoint.run)
                if options.compactor is not None:
                    making = options.directory / "snapshot.making"
                    compaction = Compaction(server, machine, options.compactor, making, observe, options.compaction)
                    await nursery.start(compaction.run)
                yield ZmqRaftPeer(server, log, transport.bound_url, url, transport, endpoint)


def _bound(
    context: ZmqContext,
    options: PeerOptions,
    bind_url: str,
    *,
    clients: Callable[[bytes, list[bytes]], None],
    snapshot: Callable[[], SnapshotDescription | None],
) -> "tuple[PeerTransport, _BroadcastSocket | None]":
    try:
        transport = PeerTransport(
            context,
            options.peer_id,
            options.ident,
            bind_url,
            clients,
            snapshot=snapshot,
            times=PeerTimes.for_options(core_options(options.election_timeout_ms)),
            elsewhere={peer.peer_id: peer.url for peer in options.peers},
        )
        return transport, _BroadcastSocket.bound(context, options)
    except OSError as error:
        advice = "Stop the program that listens there, or choose another port"
        if error.errno == errno.EADDRNOTAVAIL:
            advice = "That address does not belong to this machine: give the peer another address to bind"
        raise PeerError(f"{error.strerror or error}. {advice}") from error


class _BroadcastSocket(Struct, frozen=True):
    """The PUB socket, and its URL for clients."""

    socket: ZmqSocket
    url: str

    @classmethod
    def bound(cls, context: ZmqContext, options: PeerOptions) -> "_BroadcastSocket | None":
        if options.broadcast_url is None:
            return None
        socket = ZmqSocket(context, SocketKind.PUB, options=SocketOptions(send_queue=_BROADCAST_QUEUE))
        bound_url = socket.bind(options.broadcast_bind_url or options.broadcast_url)
        return cls(socket, bound_url if options.broadcast_bind_url is None else options.broadcast_url)


def core_options(election_timeout_ms: tuple[Milliseconds, Milliseconds]) -> Options:
    """Return the times and sizes of a server whose election timeout is between these two."""
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


def _server_parts(
    options: PeerOptions,
    founders: Configuration,
    transport: PeerTransport,
    machine: ExecutedRequests,
    observe: Callable[[Notice], None],
) -> ServerParts:
    # The server does not take snapshots on its own: their content comes from the operator's program.
    limits = ServerOptions(
        snapshot_log_bytes=_NEVER,
        snapshot_age_ms=_NEVER,
        retain_bytes=options.compaction.log_bytes // 4,
        max_reads=_READS,
    )
    return ServerParts(
        path=options.directory / "log",
        server_id=options.peer_id,
        configuration=founders,
        transport=transport,
        state_machine=machine,
        features=ZMQ_RAFT,
        options=core_options(options.election_timeout_ms),
        server_options=limits,
        storage_options=StorageOptions(snapshot_form=PLAIN),
        observe=observe,
        snapshot_index=machine.snapshot_index,
    )


def _checked(options: PeerOptions) -> str:
    """Return the address to listen on; raises `PeerError` for invalid options."""
    try:
        check_peer_id(options.peer_id, DEFAULT_LIMITS)
        check_peers(options.peers, DEFAULT_LIMITS)
    except PeersError as error:
        raise PeerError(f"these peers cannot be a cluster: {error}") from error
    if len(options.ident) > (most := DEFAULT_LIMITS.max_ident_bytes):
        raise PeerError(f"the ident has {len(options.ident)} bytes; at most {most} are sent")
    shortest_ms, longest_ms = options.election_timeout_ms
    if not _SHORTEST_ELECTION_MS <= shortest_ms <= longest_ms:
        raise PeerError(
            f"an election timeout of {shortest_ms} to {longest_ms} ms is impossible: the first number must be at "
            f"least {_SHORTEST_ELECTION_MS}, and the second not below the first"
        )
    bind_url = options.bind_url or options.own_url
    if bind_url is None:
        raise PeerError(
            f"{options.peer_id} is not among the peers, so its address is unknown. Name its address among the peers if"
            " it is a founder of the cluster, or give it an address to bind if it joins the cluster"
        )
    return bind_url


def _claim_directory(options: PeerOptions) -> None:
    """Write the owner into the directory; raises `PeerError` if it belongs to another peer or cluster."""
    note, file = _Note(options.peer_id, options.ident), options.directory / NOTE_FILE
    try:
        options.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            replace_file(file, msgspec.json.encode(note))
        found = msgspec.json.decode(file.read_bytes(), type=_Note)
    except OSError as error:
        advice = access_advice(Path(error.filename or file), error) or "; give the peer another directory"
        raise PeerError(
            f"the directory '{options.directory}' cannot be used: {error.strerror or error}{advice}"
        ) from error
    except msgspec.DecodeError as error:
        raise PeerError(
            f"'{file}' does not name the owner of this directory: {error}. Restore the original file"
        ) from error
    if found.peer_id != options.peer_id:
        raise PeerError(
            f"the directory '{options.directory}' contains the log of peer {found.peer_id}, and this is peer"
            f" {options.peer_id}: a peer could vote twice with it. Give each peer a separate directory"
        )
    if found.ident != options.ident:
        raise PeerError(
            f"the directory '{options.directory}' holds the log of a cluster with another ident. Give the ident of "
            "that cluster, or another directory"
        )
