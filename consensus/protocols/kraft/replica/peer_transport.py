"""A replica's `Transport`: connections to the other replicas, for votes, announcements and fetches.

    send ─▶ Fetch, FetchSnapshot ──────────────▶ connection "replication" ─┐
         ─▶ Vote, Begin-, EndQuorumEpoch ──────▶ connection "elections" ───┴─▶ peer's listener
    deliver_reply ◀── mapping ◀── response, in the order of the requests of its connection

The rules are in docs/reference/kraft.md: 'Connections, retries, times' has the reason for two connections and the
retries, and 'Slow links' has the sizes of fetches. Each connection is opened at its first use.

*Pre-vote* does not exist before version 2 of Vote. Each new connection reports to the core if the peer supports
pre-votes. The core counts a pre-vote of a peer without support as granted (KIP-996). A pre-vote that waits for a
connection to such a peer is dropped.

*Addresses.* An unreachable or misidentified peer is tried at other places in turn (`elsewhere`), because the recorded
address may be wrong (docs/explanation/other-protocols.md). When the server at a place has proven to be this peer
(`identification`), that place is tried first, until the configuration has another address. If the address of a peer
changes, its connections end at the next request. A reply may contain the leader's address (`learned`). A reply with an
error outside Raft is counted and dropped.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Final

import trio
from msgspec import Struct
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.drops import CountedReason
from consensus.core.features import Extensions
from consensus.core.model import ReplicaKey, ServerId
from consensus.net.backoff import Backoff
from consensus.protocols.kafka.connections.connection import (
    DialOptions,
    KafkaConnection,
    KafkaConnectionError,
    connect,
    not_reported,
)
from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kraft.operators.settings import FETCH_BYTES
from consensus.protocols.kraft.replica.identification import VoterMatch, identify
from consensus.protocols.kraft.replica.quorum_service import FETCH_SIZES, Learned, not_noted
from consensus.protocols.kraft.wire.mapping import (
    FIRST_PRE_VOTE_VERSION,
    ReadEntries,
    named_endpoints,
    reply_from_wire,
    request_to_wire,
)
from consensus.protocols.kraft.wire.replica_names import Names, replica
from consensus.server.callbacks import run_task
from consensus.server.interfaces import Receiver

_REPORT_S: Final = 0.02
"""Seconds between two reports of an arriving reply; the shortest election timeout is 50 ms."""
_JITTER: Final = 0.2
"""Random part of a pause. Without it, all peers that lost a server would reconnect at the same moment."""


class RetryTimes(Struct, frozen=True):
    """Kafka's `controller.quorum.retry.backoff.ms`, and its upper limit."""

    first_ms: int = 20
    max_ms: int = 1_000


Place = tuple[str, int]
"""Host and port."""
_WITH_CLUSTER: Final = (
    core.RequestVote,
    core.Fetch,
    core.FetchSnapshot,
    core.BeginQuorumEpoch,
    core.EndQuorumEpoch,
)


class TransportEvent(CountedReason):
    """Connections to peers, and requests and replies that the transport drops."""

    CONNECTIONS = "connections", "connections to peers or bootstrap servers"
    CONNECTION_FAILED = "connection_failed", "failed connections"
    CONNECTION_TO_OTHER_SERVER = "connection_to_other_server", "connections to a server that is not the peer"
    PEER_WITHOUT_ADDRESS = "peer_without_address", "requests to a peer with an unknown address"
    PRE_VOTE_UNSUPPORTED = "pre_vote_unsupported", "pre-votes to a peer whose version cannot express them"
    REPLY_USELESS = "reply_useless", "replies without information about the quorum"
    REQUEST_EXPIRED = "request_expired", "requests that waited too long for a connection"
    REQUEST_NOT_RUNNING = "request_not_running", "requests before the transport runs, or after it has ended"
    REQUEST_NOT_SENT = "request_not_sent", "requests that could not be sent"
    REQUEST_UNANSWERED = "request_unanswered", "requests without a reply"
    KEEP_ALIVE_UNSUPPORTED = "keep_alive_unsupported", "keep-alives to a peer whose version cannot express them"


class Purpose(Enum):
    """Purpose of a connection."""

    REPLICATION = "replication"
    ELECTIONS = "elections"


def purpose_of(request: core.Request) -> Purpose:
    """Return the connection for a request."""
    is_fetch = isinstance(request, core.FetchSnapshot) or (
        isinstance(request, core.Fetch) and not request.is_keep_alive
    )
    return Purpose.REPLICATION if is_fetch else Purpose.ELECTIONS


def has_no_form(request: core.Request, vote_version: int | None) -> bool:
    """Return True if a request is a pre-vote, and the peer's Vote does not support it."""
    is_pre_vote = isinstance(request, core.RequestVote) and request.pre_vote
    return is_pre_vote and vote_version is not None and vote_version < FIRST_PRE_VOTE_VERSION


class _QueuedRequest(Struct, frozen=True):
    request: core.Request
    expires_s: float


class _Lane:
    """The connection to one peer for one purpose: opened for the first request, kept until it fails."""

    def __init__(self, transport: "KraftTransport", peer: ReplicaKey, purpose: Purpose, receiver: Receiver) -> None:
        self.scope = trio.CancelScope()
        self._transport = transport
        self._peer = peer
        self._purpose = purpose
        self._receiver = receiver
        self._connection: KafkaConnection | None = None
        self._recorded: Place | None = None
        """The peer's address in the configuration when the connection was opened."""
        self._is_peer = True
        """True if the connection is to the peer; False if it is to a bootstrap server."""
        self._queued: dict[type[core.Request], _QueuedRequest] = {}
        self._request_queued = trio.Event()
        self._backoff = transport.backoff()
        self._reported_s = -math.inf
        self._tries = 0
        self._failures = 0
        """Number of failed places since the last reply."""
        self._has_replied = False

    @property
    def is_idle(self) -> bool:
        return not self._queued and (self._connection is None or not self._connection.waiting)

    def send(self, request: core.Request) -> None:
        """Send immediately, or when the peer can be reached."""
        connection, names = self._connection, self._transport.names
        if connection is not None and not (self._is_peer and names.endpoint(self._peer) == self._recorded):
            # The address of the peer has changed, or a bootstrap server has reported its view: another server may have
            # a newer view.
            connection.close("the peer is elsewhere")
            connection = None
        if connection is not None and connection.ended is None:
            self._start(connection, request)
            return
        expires_s = trio.current_time() + self._transport.options.request_timeout_ms / 1000
        self._queued[type(request)] = _QueuedRequest(request, expires_s)
        self._request_queued.set()

    async def run(self) -> None:
        """Connect whenever requests wait, until canceled."""
        with self.scope:
            while True:
                await self._request_queued.wait()
                self._request_queued = trio.Event()
                self._recorded = self._transport.names.endpoint(self._peer)
                places = self._places()
                substitute = self._substitute()
                if substitute is None and not places:
                    self._count(TransportEvent.PEER_WITHOUT_ADDRESS, len(self._queued))
                    self._queued.clear()
                    continue
                self._is_peer, self._has_replied = substitute is None, False
                if await run_task(self._connect_and_use, places, substitute) is None:
                    self._count(TransportEvent.CONNECTION_FAILED)
                self._failures = 0 if self._has_replied else self._failures + 1
                is_round_over = not places or self._failures % len(places) == 0
                if self._has_replied or is_round_over or substitute is not None:
                    await trio.sleep(self._backoff.next_s())
                self._drop_expired()
                if self._queued:
                    self._request_queued.set()

    async def _connect_and_use(self, places: tuple[Place, ...], substitute: Place | None) -> bool:
        """Run one connection from dial to end; return True even if the dial failed."""
        connection = await (self._reach(places) if substitute is None else self._connect(substitute))
        if connection is not None:
            await self._use(connection)
        return True

    def _substitute(self) -> Place | None:
        """Return a bootstrap server to query instead, in every second call, or if the peer's address is unknown.

        Only fetches use bootstrap servers.
        """
        others = self._transport.bootstrap()
        self._tries += 1
        if self._purpose is Purpose.REPLICATION and others and (self._recorded is None or self._tries % 2 == 0):
            return self._transport.random.choice(others)
        return None

    def _places(self) -> tuple[Place, ...]:
        """Return the possible places of the peer: first the proven one, if the configuration has not changed since."""
        recorded, found = self._transport.found.get(self._peer, (None, None))
        first = (found,) if recorded == self._recorded else ()
        places = (*first, self._recorded, *self._transport.elsewhere(self._peer))
        return tuple(dict.fromkeys(place for place in places if place is not None))

    async def _reach(self, places: tuple[Place, ...]) -> KafkaConnection | None:
        """Return a connection to the peer at its next place; None if the peer is not there."""
        place = places[self._failures % len(places)]
        connection = await self._connect(place)
        if connection is None or len(places) == 1 or self._transport.found.get(self._peer) == (self._recorded, place):
            return connection
        try:
            identity = await self._identify(connection)
        except KafkaConnectionError:
            self._count(TransportEvent.CONNECTION_FAILED)
            identity = VoterMatch.ANOTHER
        except BaseException:
            await connection.aclose()
            raise
        if identity is VoterMatch.SAME:
            self._transport.found[self._peer] = self._recorded, place
        elif identity is VoterMatch.ANOTHER or place != self._recorded:
            self._count(TransportEvent.CONNECTION_TO_OTHER_SERVER)
            await connection.aclose()
            return None
        return connection

    async def _identify(self, connection: KafkaConnection) -> VoterMatch:
        requests = [each.request for each in self._queued.values()]
        epochs = [each.term - (isinstance(each, core.RequestVote) and each.pre_vote) for each in requests]
        cluster_ids = [each.cluster_id for each in requests if isinstance(each, _WITH_CLUSTER)]
        cluster_id = next((each for each in cluster_ids if each is not None), None)
        timeout_s = self._transport.options.request_timeout_ms / 1000
        epoch = min(epochs, default=0)
        return await identify(connection, self._peer, self._transport.names, epoch, cluster_id, timeout_s)

    async def _connect(self, place: Place) -> KafkaConnection | None:
        try:
            return await connect(*place, self._transport.options)
        except KafkaConnectionError:
            self._count(TransportEvent.CONNECTION_FAILED)
            return None

    async def _use(self, connection: KafkaConnection) -> None:
        self._count(TransportEvent.CONNECTIONS)
        version = connection.version_of(ApiKey.VOTE)
        pre_vote = version is not None and version >= FIRST_PRE_VOTE_VERSION
        try:
            self._connection = connection
            self._drop_expired()
            queued, self._queued = self._queued, {}
            self._receiver.peer_connected(self._peer, Extensions(pre_vote=pre_vote))
            for each in queued.values():
                self._start(connection, each.request)
            await connection.run()
        finally:
            self._connection = None
            await connection.aclose()

    def _start(self, connection: KafkaConnection, request: core.Request) -> None:
        if has_no_form(request, connection.version_of(ApiKey.VOTE)):
            self._count(TransportEvent.PRE_VOTE_UNSUPPORTED)
            return
        wait_ms, written = 0, request
        if isinstance(request, core.Fetch):
            wait_ms = request.max_wait_ms
            if FETCH_SIZES not in connection.features:
                if request.is_keep_alive:
                    self._count(TransportEvent.KEEP_ALIVE_UNSUPPORTED)
                    return
                written = replace(request, max_bytes=FETCH_BYTES)
        try:
            message = request_to_wire(written, self._peer, self._transport.names)
            on_reply = partial(self._on_reply, request, is_peer=self._is_peer)
            arriving = partial(self._arriving, request.correlation) if self._is_peer else not_reported
            connection.start(message, on_reply, wait_ms=wait_ms, arriving=arriving)
        except (KafkaWireError, KafkaConnectionError):
            self._count(TransportEvent.REQUEST_NOT_SENT)

    def _on_reply(self, request: core.Request, response: Any | None, *, is_peer: bool) -> None:
        if response is None:
            self._count(TransportEvent.REQUEST_UNANSWERED)
            return
        self._backoff.reset()
        self._has_replied = True
        try:
            endpoints = named_endpoints(response)
            if endpoints:
                self._transport.learned(endpoints)
            reply = reply_from_wire(response, request, self._transport.names, self._transport.read_entries)
        except KafkaWireError as error:
            self._count(TransportEvent.REPLY_USELESS)
            self._transport.last_error = f"replica {self._peer.id}: {error}"
            return
        self._receiver.deliver_reply(self._peer, reply if is_peer else _redirection(reply))

    def _arriving(self, correlation: int) -> None:
        """Report arriving bytes of a reply, but not more often than necessary."""
        now_s = trio.current_time()
        if now_s >= self._reported_s + _REPORT_S:
            self._reported_s = now_s
            self._receiver.answer_arriving(self._peer, correlation)

    def _drop_expired(self) -> None:
        now_s = trio.current_time()
        remaining = {kind: each for kind, each in self._queued.items() if each.expires_s > now_s}
        self._count(TransportEvent.REQUEST_EXPIRED, len(self._queued) - len(remaining))
        self._queued = remaining

    def _count(self, event: TransportEvent, number: int = 1) -> None:
        if number:
            self._transport.counters[event] += number


def _redirection(reply: core.Reply) -> core.Reply:
    """Return the reply of a bootstrap server, queried instead of a peer, as a redirect to the leader."""
    if not isinstance(reply, core.FetchReply):
        return reply
    error = reply.error or core.RefusalReason.NOT_LEADER
    return core.FetchReply(term=reply.term, leader=reply.leader, commit=0, correlation=reply.correlation, error=error)


def _nowhere() -> Sequence[Place]:
    return ()


def _nowhere_else(_peer: ReplicaKey) -> Sequence[Place]:
    return ()


class KraftTransport:
    """The connections of one replica to the others. `names` has their addresses.

    `bootstrap` returns servers that may know the leader, for a replica that does not vote: its known voters may have
    been removed. They are queried in turns with the target of a Fetch. `elsewhere` returns other possible addresses of
    a peer.
    """

    def __init__(
        self,
        names: Names,
        read_entries: ReadEntries,
        options: DialOptions | None = None,
        *,
        retry: RetryTimes | None = None,
        learned: Learned = not_noted,
        bootstrap: Callable[[], Sequence[Place]] = _nowhere,
        elsewhere: Callable[[ReplicaKey], Sequence[Place]] = _nowhere_else,
        random: Random | None = None,
    ) -> None:
        self.names = names
        self.read_entries = read_entries
        self.options = options or DialOptions()
        self.learned = learned
        self.bootstrap = bootstrap
        self.elsewhere = elsewhere
        self.found: dict[ReplicaKey, tuple[Place | None, Place]] = {}
        """Peers with a proven identity: the configured address at that time, and the address with the proof."""
        self.random = random or Random()
        self.counters: Counter[TransportEvent] = Counter()
        """Connections, and messages without transmission or reply, by reason."""
        self.last_error: str | None = None
        """The newest useless reply, as text."""
        self._retry = retry or RetryTimes()
        self._lanes: dict[tuple[ReplicaKey, Purpose], _Lane] = {}
        self._running: tuple[trio.Nursery, Receiver] | None = None

    def send(self, recipient: ServerId, request: core.Request) -> None:
        """See `Transport.send`."""
        if self._running is None:
            self.counters[TransportEvent.REQUEST_NOT_RUNNING] += 1
            return
        purpose, peer = purpose_of(request), replica(recipient)
        lane = self._lanes.get((peer, purpose))
        if lane is None:
            nursery, receiver = self._running
            lane = self._lanes[peer, purpose] = _Lane(self, peer, purpose, receiver)
            nursery.start_soon(lane.run)
        lane.send(request)

    def connect(self, peers: Collection[ServerId]) -> None:
        """End idle connections to other replicas; connections to `peers` open at their first use."""
        for (peer, purpose), lane in list(self._lanes.items()):
            if peer not in peers and lane.is_idle:
                lane.scope.cancel()
                del self._lanes[peer, purpose]
                self.found.pop(peer, None)

    async def run(self, receiver: Receiver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `Transport.run`."""
        async with trio.open_nursery() as nursery:
            try:
                self._running = nursery, receiver
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._running = None
                self._lanes.clear()

    def backoff(self) -> Backoff:
        """Return the delays between the attempts of one lane to connect. The maximum also limits the first delay."""
        first_ms, max_ms = min(self._retry.first_ms, self._retry.max_ms), self._retry.max_ms
        return Backoff(first_ms / 1000, max_ms / 1000, self.random, spread=_JITTER)
