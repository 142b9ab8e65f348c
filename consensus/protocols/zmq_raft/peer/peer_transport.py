"""A ØMQ Raft server's `Transport`: a ROUTER socket for peers and clients, and a DEALER to each other peer.

    peers' requests   ──▶ ROUTER ─▶ ident? member? ─▶ repeated? ─▶ decoded ─▶ `Receiver.ask` ─▶ reply to its identity
    clients' requests ──▶ ROUTER ──▶ `clients`
    send ──▶ PeerLink (`peer_link`) ──▶ DEALER ──▶ peer ──▶ Receiver.deliver_reply

One ROUTER serves peers and clients, since a server has one address in the protocol. The protocol does not authenticate
the sender: any process with the cluster's secret (`ident`) and a member's id can act as that member. So one record
holds the state of all senders that use the same id.

*Repetitions.* A repeated append or chunk with the newest message id and identity gets the same reply. Until the core
has replied, a repetition only counts as contact: the core gets an append without entries. So a follower with a slow
disk does not campaign. Repeated votes go to the core, which answers the same vote in the same way. If the wire cannot
carry a reply (`mapping`), the request is dropped, and its next repetition is processed like the first.

docs/explanation/other-protocols.md, 'ØMQ Raft', explains other addresses (`elsewhere`), and the configuration of a
snapshot.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, assert_never

import trio
from msgspec import Struct
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.features import Extensions
from consensus.core.model import ORIGIN, Configuration, Entry, LogId, Server, ServerId, SnapshotDescription, Term
from consensus.protocols.zmq_raft.counters import PeerEvent, SocketDrop
from consensus.protocols.zmq_raft.peer.peer_link import DEFAULT_TIMES, PeerLink, PeerTimes
from consensus.protocols.zmq_raft.sockets import DEFAULT_OPTIONS, SocketKind, SocketOptions, ZmqContext, ZmqSocket
from consensus.protocols.zmq_raft.wire.codec import (
    PEER_TYPES,
    REQUEST_VOTE,
    decode_request,
    encode_reply,
    encode_request,
)
from consensus.protocols.zmq_raft.wire.entries import configuration_of, entry_frames
from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError, read_uint
from consensus.protocols.zmq_raft.wire.mapping import peer_id, reply_to_wire, request_from_wire, request_to_wire
from consensus.protocols.zmq_raft.wire.messages import (
    AppendEntriesRpc,
    InstallSnapshotRpc,
    Peer,
    PeerRequest,
    RequestVoteRpc,
)
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.interfaces import Receiver, next_call

_SENDER_FRAMES: Final = 6
"""Frames of a peer's request up to its term: identity, message id, type, ident, sender's id, term."""
_EVERY_PEER: Final = Extensions(configurations=True)
"""Joint configurations are part of the protocol; it lacks further extensions."""


class _LastRequest(Struct):
    """The newest append or chunk of a member, with `reply` None while the core works on it."""

    identity: bytes
    message_id: bytes
    reply: list[bytes] | None = None


class _Transfer(Struct):
    """A snapshot from a leader. It lacks its `configuration` until the members are known."""

    term: Term
    last: LogId
    configuration: Configuration | None = None
    waiting: Callable[[Configuration], None] | None = None
    """The chunk that waits for the members."""


_NO_MEMBERS: Final = Configuration(())


class _Member:
    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self.last_request: _LastRequest | None = None
        self.transfer: _Transfer | None = None


class PeerTransport:
    """The `Transport` of the server `own_id` in the cluster `ident`, which listens at `url` from now on.

    `clients` gets the identity and the frames of each message that is not from a peer, and must not wait or raise.
    `reply` sends the replies. `snapshot` returns this server's stored snapshot. `url` is `tcp://IP:port`; if the port
    is 0, `bound_url` has the actual port.

    A peer's request gets a reply only if its sender is in the list of `members`. So the list of a joining server must
    contain the leader that will contact it. Raises `OSError` if it cannot listen.
    """

    def __init__(
        self,
        context: ZmqContext,
        own_id: str,
        ident: bytes,
        url: str,
        clients: Callable[[bytes, list[bytes]], None],
        *,
        snapshot: Callable[[], SnapshotDescription | None],
        times: PeerTimes = DEFAULT_TIMES,
        elsewhere: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Listen at `url`; `elsewhere` maps members to their URLs in this server's settings."""
        self._context = context
        self._own_id = own_id
        self._ident = ident
        self._clients = clients
        self._snapshot = snapshot
        self._times = times
        self._counters: Counter[PeerEvent] = Counter()
        self._listed: dict[str, str] = {}
        """The URLs of the members by id, as the log has them."""
        self._elsewhere = dict(elsewhere)
        self._turned: set[str] = set()
        """Members under trial at their URL from the settings."""
        self._members: dict[bytes, _Member] = {}
        """The members by their id on the wire; empty unless `run` runs."""
        self._running: tuple[trio.Nursery, Receiver] | None = None
        self._timer = trio.CancelScope()
        self._encoded: tuple[tuple[Entry, ...], list[bytes]] = (), []
        """The entries sent last, and their frames. The next follower usually gets the same entries."""
        waits = SocketOptions(
            handshake_ms=max(DEFAULT_OPTIONS.handshake_ms, times.lost_ms),
            unacknowledged_ms=max(DEFAULT_OPTIONS.unacknowledged_ms, times.lost_ms),
        )
        self._router = ZmqSocket(context, SocketKind.ROUTER, self._receive, waits)
        self.bound_url = self._router.bind(url)

    @property
    def counters(self) -> Counter[PeerEvent | SocketDrop]:
        """Return the dropped, repeated and refused messages, by reason, since the start."""
        return self._counters + self._router.counters

    def reply(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        """Send a message to a client; False if it was dropped (`ZmqSocket.send`)."""
        return self._router.send([identity, *frames])

    def members(self, servers: Iterable[Server]) -> None:
        """Set the members and newcomers. `servers` may include this server; it is skipped.

        Requests of servers outside this list are dropped.
        """
        self._listed = {
            peer_id(server.server_id): server.endpoint for server in servers if server.server_id != self._own_id
        }
        self._turned = {name for name in self._turned if self._other_url(name) is not None}
        if self._running is not None:
            self._update_links(*self._running)

    def connect(self, peers: Collection[ServerId]) -> None:
        """Count the members without a known address; `members` makes the connections."""
        missing = sum(peer not in self._listed for peer in peers)
        if missing:
            self._counters[PeerEvent.MEMBER_WITHOUT_ADDRESS] += missing

    def send(self, recipient: ServerId, request: core.Request) -> None:
        """Send an append with entries once; repeat any other request.

        The repetition ends when the request is answered, replaced by the next one, or abandoned (`PeerTimes.repeats`).
        """
        name = peer_id(recipient)
        member = self._members.get(name.encode())
        if member is not None and 1000 * member.link.unanswered_s >= self._times.elsewhere_ms:
            self._turn(name)
            member = self._members.get(name.encode())
        if member is None:
            self._counters[PeerEvent.REQUEST_TO_NON_MEMBER] += 1
            return
        try:
            message = request_to_wire(request, member.link.next_id(), self._ident, self._snapshot_bytes(request))
            frames = self._encode(message)
        except ZmqRaftError:
            self._counters[PeerEvent.REQUEST_UNENCODABLE] += 1
            return
        member.link.send(request, message, frames, self._interval_ms(message))

    async def run(self, receiver: Receiver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry messages until canceled; closes every socket."""
        async with trio.open_nursery() as nursery:
            try:
                self._running = nursery, receiver
                self._update_links(nursery, receiver)
                await nursery.start(self._router.run)
                task_status.started()
                await self._keep_time()
            finally:
                self._running = None
                self._members.clear()

    async def _keep_time(self) -> None:
        """Make the links repeat their due requests."""
        while True:
            with trio.CancelScope() as self._timer:
                self._timer.deadline = min((member.link.due_s for member in self._members.values()), default=math.inf)
                await trio.sleep_forever()
            now_s = trio.current_time()
            for member in list(self._members.values()):
                member.link.expire(now_s)

    def _wake_at(self, due_s: float) -> None:
        self._timer.deadline = min(self._timer.deadline, due_s)

    def _turn(self, name: str) -> None:
        """Try a member at its other URL, if it has two."""
        if self._running is not None and self._other_url(name) is not None:
            self._turned ^= {name}
            self._counters[PeerEvent.MEMBER_AT_OTHER_ADDRESS] += 1
            self._update_links(*self._running)

    def _other_url(self, name: str) -> str | None:
        """Return the URL of a member in the settings, unless a member in the log has this URL."""
        url = self._elsewhere.get(name) if name in self._listed else None
        return None if url in self._listed.values() else url

    def _update_links(self, nursery: trio.Nursery, receiver: Receiver) -> None:
        """End each link whose server is no longer a member or has another address, and make the missing links."""
        urls = {name: self._elsewhere[name] if name in self._turned else url for name, url in self._listed.items()}
        for key, member in list(self._members.items()):
            if urls.get(member.link.peer.peer_id) != member.link.peer.url:
                member.link.scope.cancel()
                del self._members[key]
        for name, url in urls.items():
            if name.encode() not in self._members:
                try:
                    deliver, counters = receiver.deliver_reply, self._counters
                    link = PeerLink(self._context, Peer(name, url), deliver, self._wake_at, counters, self._times)
                except OSError:
                    self._counters[PeerEvent.MEMBER_WITH_BAD_ADDRESS] += 1
                    continue
                self._members[name.encode()] = _Member(link)
                nursery.start_soon(link.run)
                receiver.peer_connected(name, _EVERY_PEER)

    def _snapshot_bytes(self, request: core.Request) -> int:
        if not isinstance(request, core.InstallSnapshot):
            return 0
        snapshot = self._snapshot()
        return snapshot.size_bytes if snapshot is not None and snapshot.last == request.last else 0

    def _encode(self, request: PeerRequest) -> list[bytes]:
        if not isinstance(request, AppendEntriesRpc) or not request.entries:
            return encode_request(request)
        entries, frames = self._encoded
        if request.entries != entries:
            frames = entry_frames(request.entries)
            self._encoded = request.entries, frames
        return encode_request(replace(request, entries=())) + frames

    def _interval_ms(self, request: PeerRequest) -> int | None:
        """Return the interval for repeating a request without a reply; None if it is not repeated."""
        match request:
            case RequestVoteRpc():
                return self._times.vote_ms
            case AppendEntriesRpc(entries=()):
                return self._times.heartbeat_ms
            case AppendEntriesRpc():
                return None
            case InstallSnapshotRpc():
                return self._times.chunk_ms
            case _:
                assert_never(request)

    def _receive(self, frames: list[bytes], _user: str | None) -> None:
        if len(frames) > 2 and frames[2] in PEER_TYPES:  # noqa: PLR2004 - the type is the third frame
            try:
                self._take_request(frames)
            except ZmqRaftError:
                self._counters[PeerEvent.MALFORMED_REQUEST] += 1
        else:
            self._clients(frames[0], frames[1:])

    def _take_request(self, frames: list[bytes]) -> None:
        """Process a request of an alleged member; raise `ZmqRaftError` if it is invalid."""
        if len(frames) < _SENDER_FRAMES:
            raise ZmqRaftError(f"a peer's request of {len(frames)} frames")
        identity, message_id, message_type, ident, sender = frames[:5]
        member = self._members.get(sender)
        if ident != self._ident or member is None:
            self._counters[PeerEvent.PEER_OF_OTHER_CLUSTER if ident != self._ident else PeerEvent.UNKNOWN_SENDER] += 1
            return
        last_request = None
        if message_type != REQUEST_VOTE:
            last_request = member.last_request
            if last_request is not None and (last_request.identity, last_request.message_id) == (identity, message_id):
                self._take_repetition(member, last_request, read_uint(frames[5], "term"))
                return
        request = decode_request(frames[1:])
        match request:
            case RequestVoteRpc():
                self._pass_request(member, identity, None, request)
            case AppendEntriesRpc():
                last_request = member.last_request = _LastRequest(identity, message_id)
                self._pass_request(member, identity, last_request, request)
            case InstallSnapshotRpc():
                last_request = member.last_request = _LastRequest(identity, message_id)
                self._take_chunk(member, identity, last_request, request)
            case _:
                raise ZmqRaftError(f"{type(request).__name__} is not a message between peers")

    def _take_repetition(self, member: _Member, last_request: _LastRequest, term: Term) -> None:
        self._counters[PeerEvent.REPEATED_BY_PEER] += 1
        if last_request.reply is not None:
            self._router.send([last_request.identity, *last_request.reply])
            return
        name = member.link.peer.peer_id
        self._hand_in(
            name,
            core.AppendEntries(term=term, leader=name, previous=ORIGIN, entries=(), commit=0, correlation=next_call()),
            _ignore,
        )

    def _take_chunk(
        self, member: _Member, identity: bytes, last_request: _LastRequest, request: InstallSnapshotRpc
    ) -> None:
        """Hand in a chunk once the members are known."""
        transfer, last = member.transfer, LogId(request.last_index, request.last_term)
        if transfer is None or (transfer.term, transfer.last) != (request.term, last):
            transfer = member.transfer = _Transfer(request.term, last)
            member.link.query_members(self._ident, partial(self._members_received, member, transfer))
        hand_in = partial(self._pass_request, member, identity, last_request, request)
        if transfer.configuration is None:
            transfer.waiting = hand_in
        else:
            hand_in(transfer.configuration)

    def _members_received(self, member: _Member, transfer: _Transfer, peers: tuple[Peer, ...] | None) -> None:
        if member.transfer is not transfer:
            return
        if peers is None:
            # The sender repeats the chunk, and is then queried again.
            self._counters[PeerEvent.CHUNK_WITHOUT_MEMBERS] += 1
            member.transfer = member.last_request = None
            self._turn(member.link.peer.peer_id)
            return
        waiting, transfer.waiting = transfer.waiting, None
        transfer.configuration = configuration_of(peers)
        if waiting is not None:
            waiting(transfer.configuration)

    def _pass_request(
        self,
        member: _Member,
        identity: bytes,
        last_request: _LastRequest | None,
        request: PeerRequest,
        configuration: Configuration = _NO_MEMBERS,
    ) -> None:
        """Pass a request to the core; `last_request` is its record."""
        on_reply = partial(self._on_reply, member, identity, last_request, request)
        core_request = request_from_wire(request, next_call(), configuration)
        if not self._hand_in(member.link.peer.peer_id, core_request, on_reply):
            on_reply(None)

    def _hand_in(self, sender: str, request: core.Request, on_reply: Callable[[core.Reply | None], None]) -> bool:
        if self._running is None:
            return False
        try:
            self._running[1].ask(sender, request, on_reply)
        except (ServerBusyError, ServerStoppedError):
            self._counters[PeerEvent.REQUEST_BUSY] += 1
            return False
        return True

    def _on_reply(
        self,
        member: _Member,
        identity: bytes,
        last_request: _LastRequest | None,
        request: PeerRequest,
        reply: core.Reply | None,
    ) -> None:
        try:
            message = None if reply is None else reply_to_wire(reply, request)
            frames = [] if message is None else encode_reply(message)
        except ZmqRaftError:
            frames = []
        if not frames:
            self._counters[PeerEvent.NO_REPLY] += 1
            if last_request is not None and member.last_request is last_request:
                member.last_request = None
            return
        if last_request is not None:
            last_request.reply = frames
        if self._running is not None:
            self._router.send([identity, *frames])


def _ignore(_reply: core.Reply | None) -> None:
    """Ignore the reply: the repetition of a request does not get a separate reply."""
