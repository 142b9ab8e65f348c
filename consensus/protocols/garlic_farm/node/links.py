"""A server's outgoing links: one connection to each peer, kept open while there is something to send.

    send(peer, request) ─▶ connected: post it │ else: a short queue, oldest dropped ─▶ dial, with backoff

`send` never blocks and guarantees nothing: Raft repeats important requests. A request that has waited too long for a
connection is dropped, because an old heartbeat or vote request only costs the peer time. Each reply reaches the core
with the number of its request (`correlation`). Messages of an extension are sent only to peers that support it.

*Heartbeats.* Replies leave a connection in order. So the reply to a heartbeat would wait for the reply to an append,
which waits for the follower's disk. With a slow disk a healthy leader would lose its leadership. Therefore heartbeats
use a second connection to the same peer if a request on the first connection has waited `owing_s` for its reply. The
second connection is opened at the first need. A follower refuses a heartbeat that arrives before an earlier append,
since the heartbeat refers to the entries of that append. So a heartbeat uses the second connection only if the last
request was posted at least `overtaking_s` ago. A server of another implementation does not get a second connection.

*The end of a peer's process.* If a connection breaks and the next one is refused, the core gets a `PeerEnded`. A last
message of the peer may arrive after the `PeerEnded`, so each refusal within `ended_s` is reported. Later refusals are
not reported: the port of a running peer may be closed to this server.

*Joining.* A joining server gets other messages until it is a member (`joining_peers`).
"""

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from math import inf
from random import Random

import trio
from msgspec import Struct
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.model import Index, ServerId, integer_id
from consensus.core.slow_link import SLOWEST_LINK_BYTES_PER_S
from consensus.net.backoff import Backoff
from consensus.protocols.garlic_farm.node.client_connection import ClientConnection, Lost
from consensus.protocols.garlic_farm.node.dialer import ConnectionRefused, Dialed, Dials, PeerAddress
from consensus.protocols.garlic_farm.node.joining_peers import JoiningPeer
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Metrics
from consensus.protocols.garlic_farm.node.request_encoder import RequestEncoder
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import encode_request
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.mapping import ConfigurationBefore, extensions_to_core, reply_from_wire
from consensus.protocols.garlic_farm.wire.upgrade import Extension
from consensus.server.callbacks import run_task
from consensus.server.interfaces import Receiver

Resolve = Callable[[int], PeerAddress | None]


class LinkOptions(Struct, frozen=True):
    """Times and bounds of the outgoing links."""

    reply_timeout_s: float = 2.0
    """Time without a reply until a connection counts as dead: several heartbeats."""
    backoff_first_s: float = 0.05
    backoff_longest_s: float = 1.0
    unsent_lifetime_s: float = 0.5
    """Time that a request may wait for a connection. A late TimeoutNow would depose a healthy leader."""
    vote_lifetime_s: float = 2.0
    """Lifetime of a vote request: at least the longest election timeout, so that a slow dial only delays a vote."""
    unsent_max: int = 64
    in_flight_max: int = 256
    queue_max: int = 256
    owing_s: float = 0.05
    """If a request has waited this long for its reply, heartbeats use a separate connection."""
    overtaking_s: float = 0.02
    """A heartbeat uses the second connection only this long after the last request on the first connection.

    So the heartbeat does not arrive before that request.
    """
    peers_max: int = 64
    ended_s: float = 0.5
    """After the end of a connection, a refusal within this time shows that the peer's process has ended."""


class LinkView(Struct, frozen=True):
    """The state of one link, for the operator."""

    peer: int
    connected: bool
    extensions: frozenset[Extension]
    waiting: int
    sent: int
    dropped: int


class PeerLinks:
    """The links to all peers. `run` must be running before `send` is called."""

    def __init__(
        self,
        dialer: Dials,
        resolve: Resolve,
        *,
        metrics: Metrics,
        random: Random,
        configuration_before: ConfigurationBefore = lambda _: 0,
        options: LinkOptions | None = None,
    ) -> None:
        self.dialer = dialer
        self.resolve = resolve
        self.metrics = metrics
        self.random = random
        self.configuration_before = configuration_before
        self.options = options or LinkOptions()
        self.encoder = RequestEncoder(configuration_before)
        self.joining_peers: dict[ServerId, JoiningPeer] = {}
        self._members: frozenset[ServerId] = frozenset()
        self._links: dict[ServerId, _Link] = {}
        self._running: tuple[trio.Nursery, Receiver] | None = None

    async def run(self, receiver: Receiver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep links until canceled; `receiver` gets the replies of the peers."""
        async with trio.open_nursery() as nursery:
            self._running = nursery, receiver
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._running = None

    def send(self, recipient: ServerId, message: core.Request) -> None:
        """Send, queue or drop the request without waiting. Dropped requests are counted."""
        link = self._link_to(recipient)
        if link is None:
            self.metrics.count(ConnectionEvent.REQUESTS_WITHOUT_LINK)
        else:
            link.send(message)

    def connect(self, peers: Collection[ServerId]) -> None:
        """Keep connections to exactly these and the joining peers open, even without messages.

        Followers do not exchange messages until their leader fails. Without open connections an election would first
        need TCP, TLS and Digest handshakes, while the clients wait.
        """
        self._members = frozenset(peers)
        for peer, link in self._links.items():
            link.is_kept = peer in peers or peer in self.joining_peers
        for peer in peers:
            link_to_peer = self._link_to(peer)
            if link_to_peer is not None:
                link_to_peer.keep()

    def invite(self, peer: ServerId, joining: JoiningPeer) -> bool:
        """Connect to a joining peer and invite it; False if the table of links is full."""
        link = self._link_to(peer)
        if link is None:
            return False
        self.joining_peers[peer] = joining
        link.begin_joining(joining)
        return True

    def end_joining(self, peer: ServerId) -> None:
        """Treat the peer as an ordinary peer from now on; no effect if it was never invited."""
        if self.joining_peers.pop(peer, None) is not None and peer in self._links:
            self._links[peer].is_kept = peer in self._members

    async def call(self, peer: ServerId, request: wire.Request) -> wire.Reply | Lost:
        """Send a request that does not come from the core, and return the reply; `Lost` without a connection."""
        link = self._links.get(peer)
        return Lost.UNSENT if link is None else await link.call(request)

    def _link_to(self, peer: ServerId) -> "_Link | None":
        link = self._links.get(peer)
        if link is None and self._running is not None and self._has_room():
            nursery, receiver = self._running
            link = self._links[peer] = _Link(self, integer_id(peer), receiver)
            nursery.start_soon(link.run)
        return link

    def _has_room(self) -> bool:
        """Return True if one more link fits. If the table is full, first close an unused link."""
        if len(self._links) >= self.options.peers_max:
            unused = next((peer for peer, link in self._links.items() if link.is_unused), None)
            if unused is not None:
                self.forget(unused)
        return len(self._links) < self.options.peers_max

    def forget(self, peer: ServerId) -> None:
        """Close the link to a server that is no longer a member."""
        link = self._links.pop(peer, None)
        if link is not None:
            link.scope.cancel()

    def reconnect(self) -> None:
        """Close every connection. Later requests use new ones, with the present credentials."""
        for link in self._links.values():
            link.disconnect()

    def describe(self) -> tuple[LinkView, ...]:
        """Return the state of every link in use."""
        return tuple(link.view() for link in self._links.values() if not link.is_unused)


class _Link:
    def __init__(self, links: PeerLinks, peer: int, receiver: Receiver) -> None:
        self.scope = trio.CancelScope()
        self._connected = trio.CancelScope()
        self._links = links
        self._receiver = receiver
        self._peer = peer
        self._connection: ClientConnection | None = None
        self._heartbeats: ClientConnection | None = None
        self._heartbeats_requested = trio.Event()
        self._extensions: frozenset[Extension] = frozenset()
        self._unsent: deque[tuple[float, core.Request]] = deque()
        self._work = trio.Event()
        self._sent = 0
        self._dropped = 0
        self._ended_s = -inf
        """Time of the end of the last connection."""
        self.is_kept = False
        options = links.options
        self._backoff = Backoff(options.backoff_first_s, options.backoff_longest_s, links.random)

    def send(self, request: core.Request) -> None:
        if self._connection is not None:
            self._post(self._connection, request)
            return
        if len(self._unsent) >= self._links.options.unsent_max:
            self._unsent.popleft()
            self._drop()
        self._unsent.append((trio.current_time(), request))
        self._work.set()

    def keep(self) -> None:
        self.is_kept = True
        self._work.set()

    def begin_joining(self, joining: JoiningPeer) -> None:
        """Invite the peer on every connection to it from now on."""
        self.keep()
        if self._connection is not None:
            try:
                self._invite(self._connection, joining)
            except GarlicFarmError as error:
                self._not_sent(error)

    def disconnect(self) -> None:
        self._connected.cancel()

    async def call(self, request: wire.Request) -> wire.Reply | Lost:
        if self._connection is None:
            return Lost.UNSENT
        self._sent += 1
        return await self._connection.call(encode_request(request))

    def _invite(self, connection: ClientConnection, joining: JoiningPeer) -> None:
        joining.trusting = not self._extensions

        def on_reply(reply: wire.Reply | Lost) -> None:
            if isinstance(reply, Lost):
                joining.connection_lost()
                return
            self._check_source(reply)
            if not isinstance(reply, wire.JoinClusterResponse):
                text = f"a {type(reply).__name__} does not answer an invitation"
                raise GarlicFarmError(Fault.OUT_OF_TURN, text)
            joining.on_join_reply(reply)

        invitation = joining.invitation(Extension.CONFIGURATIONS in self._extensions)
        self._sent += connection.post(encode_request(invitation), on_reply)

    @property
    def is_unused(self) -> bool:
        return self._connection is None and not self._unsent and not self.is_kept

    def view(self) -> LinkView:
        waiting = len(self._unsent) + (self._connection.waiting if self._connection is not None else 0)
        return LinkView(self._peer, self._connection is not None, self._extensions, waiting, self._sent, self._dropped)

    async def run(self) -> None:
        with self.scope:
            while True:
                while not self._unsent and not self.is_kept:
                    self._work = trio.Event()
                    await self._work.wait()
                has_lasted = await run_task(self._connect_once)
                if has_lasted is None:
                    self._links.metrics.count(ConnectionEvent.LINKS_FAILED)
                if not has_lasted:
                    await trio.sleep(self._backoff.next_s())
                self._forget_old()

    async def _connect_once(self) -> bool:
        """Run one connection from dial to end.

        Return True if the peer has sent any reply, or the connection lasted `backoff_longest_s` and ended without an
        error.
        """
        joining = self._links.joining_peers.get(self._peer)
        address = joining.address if joining is not None and joining.address else self._links.resolve(self._peer)
        if address is None:
            self._links.metrics.count(ConnectionEvent.PEERS_WITHOUT_ADDRESS)
            return False
        connection, began_s = None, inf
        try:
            with trio.CancelScope() as self._connected:
                dialed = await self._links.dialer.dial(address, self._peer)
                began_s = trio.current_time()
                self._links.metrics.connected(str(address))
                try:
                    connection = self._begin(dialed)
                except BaseException:
                    await trio.aclose_forcefully(dialed.stream)
                    raise
                await self._carry(connection, address)
        except GarlicFarmError as error:
            text = f"link to server {self._peer}: {error}"
            self._links.metrics.incident(error.fault, str(address), text, outgoing=True)
            refused, began_s = isinstance(error, ConnectionRefused), inf
            if refused and trio.current_time() < self._ended_s + self._links.options.ended_s:
                self._receiver.peer_ended(self._peer)
        finally:
            self._connection = None
            if self._peer in self._links.joining_peers:
                self._links.joining_peers[self._peer].connection_lost()
        if connection is None:
            return False
        self._ended_s = trio.current_time()
        # A follower sends nothing to its leader. So a follower's connection to the leader ends without a reply.
        has_lasted = connection.replies > 0 or self._ended_s >= began_s + self._links.options.backoff_longest_s
        if has_lasted:
            self._backoff.reset()
        return has_lasted

    async def _carry(self, connection: ClientConnection, address: PeerAddress) -> None:
        """Run the connection, and a second one for heartbeats when it is needed."""
        fault: GarlicFarmError | None = None
        async with trio.open_nursery() as nursery:
            if self._extensions:
                nursery.start_soon(self._carry_heartbeats, address)
            try:
                await connection.run()
            except GarlicFarmError as error:
                fault = error
            nursery.cancel_scope.cancel()
        if fault is not None:
            raise fault

    async def _carry_heartbeats(self, address: PeerAddress) -> None:
        links, options = self._links, self._links.options
        backoff = Backoff(options.backoff_first_s, options.backoff_longest_s, links.random)
        while True:
            self._heartbeats_requested = trio.Event()
            await self._heartbeats_requested.wait()
            try:
                self._heartbeats = self._opened(await links.dialer.dial(address, self._peer))
                links.metrics.count(ConnectionEvent.HEARTBEAT_CONNECTIONS)
                await self._heartbeats.run()
            except GarlicFarmError as error:
                text = f"second link to server {self._peer}, for heartbeats: {error}"
                links.metrics.incident(error.fault, str(address), text, outgoing=True)
            finally:
                self._heartbeats = None
            await trio.sleep(backoff.next_s())

    def _opened(self, dialed: Dialed) -> ClientConnection:
        options = self._links.options
        made = partial(
            ClientConnection,
            dialed.stream,
            dialed.trailing,
            reply_timeout_s=options.reply_timeout_s,
            window=options.in_flight_max,
            queue_max=options.queue_max,
        )
        if dialed.extensions and self._peer not in self._links.joining_peers:
            return made()
        # This peer does not get a second connection, whose replies could show that the peer is alive during a large
        # request. So the timeout assumes the rate of the slowest link.
        return made(least_bytes_per_s=SLOWEST_LINK_BYTES_PER_S)

    def _begin(self, dialed: Dialed) -> ClientConnection:
        """Make the connection, whose `run` closes the stream at its end, and post the waiting requests.

        Raise `GarlicFarmError` if the invitation cannot be encoded.
        """
        connection = self._opened(dialed)
        self._extensions = dialed.extensions
        self._links.metrics.count(ConnectionEvent.LINKS_ESTABLISHED)
        self._receiver.peer_connected(self._peer, extensions_to_core(dialed.extensions, dialed.peer.lease_ms))
        self._forget_old()
        self._connection = connection
        joining = self._links.joining_peers.get(self._peer)
        if joining is not None:
            self._invite(connection, joining)
        while self._unsent:
            self._post(connection, self._unsent.popleft()[1])
        return connection

    def _post(self, connection: ClientConnection, request: core.Request) -> None:
        if isinstance(request, core.RequestVote) and Extension.TRANSFER not in self._extensions:
            # To a peer without the extension, a candidate in a leadership transfer sends an ordinary vote request.
            request = replace(request, transfer=False)
        joining = self._links.joining_peers.get(self._peer)
        if joining is None:
            if isinstance(request, core.InstallSnapshot) and not self._survives(request):
                return
            self._post_whole(connection, request)
        elif isinstance(request, core.AppendEntries):
            self._post_to_joining(connection, request, joining)
        elif isinstance(request, core.InstallSnapshot) and not joining.may_send_snapshot():
            self._drop()
        else:
            self._post_whole(connection, request, joining)

    def _post_whole(
        self, connection: ClientConnection, request: core.Request, joining: JoiningPeer | None = None
    ) -> None:
        try:
            data = self._links.encoder.encode(request, self._peer, self._extensions)
        except GarlicFarmError as error:
            self._not_sent(error)
            return
        self._post_bytes(self._choose_connection(request, connection, joining), data, request, joining)

    def _choose_connection(
        self, request: core.Request, connection: ClientConnection, joining: JoiningPeer | None
    ) -> ClientConnection:
        """Return the second connection for a heartbeat that would wait for other requests; else `connection`."""
        if (
            joining is not None
            or not isinstance(request, core.AppendEntries)
            or request.entries
            or not self._extensions
        ):
            return connection
        now_s, options = trio.current_time(), self._links.options
        if now_s < connection.oldest_s + options.owing_s or now_s < connection.posted_s + options.overtaking_s:
            return connection
        self._heartbeats_requested.set()
        return self._heartbeats or connection

    def _post_to_joining(self, connection: ClientConnection, append: core.AppendEntries, joining: JoiningPeer) -> None:
        """Post an append to a joining peer, in parts. The core gets the reply to the last part, which covers all."""
        parts = joining.parts(append)
        if isinstance(parts, Index):
            self._receiver.append_not_sent(self._peer, append.correlation, parts)
            return
        encoder = self._links.encoder
        for part in parts:
            records_bytes = 0
            try:
                if part.packed:
                    data, records_bytes = encoder.encode_pack(part.append, self._peer, self._extensions, part.offset)
                else:
                    data = encoder.encode(part.append, self._peer, self._extensions)
            except GarlicFarmError as error:
                self._not_sent(error)
                return
            if not self._post_bytes(connection, data, part.append, joining, delivers_reply=part is parts[-1]):
                return
            joining.sent(part, records_bytes)

    def _survives(self, chunk: core.InstallSnapshot) -> bool:
        """Return False if the chunk would end the peer's process.

        The process of another implementation ends if the snapshot's configuration does not contain its server.
        """
        if self._extensions or self._peer in chunk.configuration.member_ids:
            return True
        text = (
            f"a snapshot of index {chunk.last.index}, from before this server joined, would end its process. Remove the"
            " server from the cluster, empty its directory, and add it again"
        )
        self._not_sent(GarlicFarmError(Fault.FOREIGN_SNAPSHOT, text))
        return False

    def _not_sent(self, error: GarlicFarmError) -> None:
        self._links.metrics.incident(error.fault, f"server {self._peer}", f"not sent: {error}")
        self._drop()

    def _post_bytes(
        self,
        connection: ClientConnection,
        data: bytes,
        request: core.Request,
        joining: JoiningPeer | None,
        *,
        delivers_reply: bool = True,
    ) -> bool:
        """Post `data`, the encoded `request`; the core gets the reply if `delivers_reply`.

        Return False if the queue is full, or the connection has ended.
        """

        def on_reply(reply: wire.Reply | Lost) -> None:
            if isinstance(reply, Lost):
                self._drop()
                return
            self._check_source(reply)
            self._links.metrics.answers.observe(connection.replied_s - sent_s)
            if connection is self._heartbeats and self._connection is not None:
                self._connection.prolong()
            found = reply_from_wire(reply, request)
            if joining is not None:
                joining.replied(request, found)
            if delivers_reply:
                self._receiver.deliver_reply(self._peer, found)

        if not connection.post(data, on_reply):
            self._drop()
            return False
        sent_s = connection.posted_s
        self._sent += 1
        return True

    def _check_source(self, reply: wire.Reply) -> None:
        if reply.source != self._peer:
            text = f"server {reply.source} replies on the connection to server {self._peer}"
            raise GarlicFarmError(Fault.OUT_OF_TURN, text)

    def _forget_old(self) -> None:
        now_s, options, unsent = trio.current_time(), self._links.options, self._unsent
        self._unsent = deque()
        for since_s, request in unsent:
            is_vote = isinstance(request, core.RequestVote)
            if since_s < now_s - (options.vote_lifetime_s if is_vote else options.unsent_lifetime_s):
                self._drop()
            else:
                self._unsent.append((since_s, request))

    def _drop(self) -> None:
        self._dropped += 1
        self._links.metrics.count(ConnectionEvent.REQUESTS_DROPPED)
