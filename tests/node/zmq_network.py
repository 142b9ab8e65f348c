"""A network in memory for clients of ØMQ Raft, with scripted peers.

The codec encodes and decodes every message in both directions, so tests handle requests and replies, and the frames are
real. A message to a URL without a peer is lost.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import trio

from consensus.core.model import Entry, EntryKind
from consensus.protocols.zmq_raft.client.links import Receive
from consensus.protocols.zmq_raft.sockets import DEFAULT_OPTIONS, SocketKind, SocketOptions, ZmqContext, ZmqSocket
from consensus.protocols.zmq_raft.wire.codec import decode_request, encode_broadcast, encode_reply
from consensus.protocols.zmq_raft.wire.messages import (
    ConfigReply,
    ConfigRequest,
    EntriesBatch,
    EntriesRequest,
    Peer,
    Reply,
    Request,
    SnapshotPiece,
    StateBroadcast,
    UpdateCommitted,
    UpdateRedirect,
    UpdateRequest,
)

IDENT = b"cluster"
Respond = Callable[[Reply], None]
"""Function that sends one reply to the sender of the request; it may also be called later."""
Script = Callable[[Request, Respond], bool]
"""Function that handles a request; it returns False to leave the request to the default replies."""


class MemorySocket:
    """A client's socket, connected to one URL."""

    def __init__(self, network: "MemoryNetwork", url: str, receive: Receive) -> None:
        self.url = url
        self.has_room = True
        self._network = network
        self._receive = receive
        self._send, self._inbox = trio.open_memory_channel[list[bytes]](10_000)
        network.open.append(self)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Deliver a request to the peer, if there is one."""
        peer = self._network.peers.get(self.url)
        if peer is not None:
            peer.receive(decode_request(list(frames)), lambda reply: self.deliver(encode_reply(reply)))
        return self.has_room

    def deliver(self, frames: list[bytes]) -> None:
        """Deliver a message to the client; it is lost if the socket is closed."""
        if self in self._network.open:
            self._send.send_nowait(frames)

    async def run(self) -> None:
        """Pass received messages to the client."""
        try:
            async for frames in self._inbox:
                self._receive(frames, None)
        finally:
            self._network.open.remove(self)


class MemoryNetwork:
    """Peers by their URLs, and the open sockets."""

    def __init__(self) -> None:
        self.peers: dict[str, ScriptedPeer] = {}
        self.open: list[MemorySocket] = []
        self.subscribed: list[tuple[str, bytes]] = []
        self.refused: set[str] = set()

    @property
    def connected(self) -> list[str]:
        """Return the URLs of connected clients."""
        return [socket.url for socket in self.open]

    def dealer(self, url: str, receive: Receive) -> MemorySocket:
        """Return a DEALER socket."""
        if url in self.refused:
            raise OSError(24, "Too many open files")
        return MemorySocket(self, url, receive)

    def subscriber(self, url: str, prefix: bytes, receive: Receive) -> MemorySocket:
        """Return a SUB socket."""
        self.subscribed.append((url, prefix))
        return self.dealer(url, receive)

    def broadcast(self, url: str, broadcast: StateBroadcast) -> None:
        """Send a broadcast from a PUB socket at `url`."""
        self.broadcast_frames(url, encode_broadcast(broadcast))

    def broadcast_frames(self, url: str, frames: list[bytes]) -> None:
        """Send any frames from a PUB socket at `url`."""
        for socket in tuple(self.open):
            if socket.url == url:
                socket.deliver(frames)

    def cluster(self, count: int = 3, leader: int | None = 1) -> list["ScriptedPeer"]:
        members = tuple(Peer(str(number), url_of(number)) for number in range(1, count + 1))
        named = None if leader is None else str(leader)
        return [ScriptedPeer(self, peer, members, named) for peer in members]


def url_of(number: int) -> str:
    return f"tcp://127.0.0.1:{8000 + number}"


class ScriptedPeer:
    """A peer. By default it replies with its configuration, and commits updates if it leads."""

    def __init__(self, network: MemoryNetwork, peer: Peer, members: tuple[Peer, ...], leader: str | None) -> None:
        self.url = peer.url
        self.peer_id = peer.peer_id
        self.members = members
        self.leader = leader
        self.is_unresponsive = False
        self.log: dict[bytes, int] = {}
        self.received: list[Request] = []
        self.script: Script = lambda _request, _respond: False
        network.peers[peer.url] = self

    def of(self, kind: type[Request]) -> list[Request]:
        return [request for request in self.received if isinstance(request, kind)]

    def receive(self, request: Request, respond: Respond) -> None:
        """Record a request, and reply to it."""
        self.received.append(request)
        if not self.is_unresponsive and not self.script(request, respond):
            for reply in self._answers(request):
                respond(reply)

    def _answers(self, request: Request) -> Iterable[Reply]:
        match request:
            case ConfigRequest(request_id):
                yield ConfigReply(
                    request_id=request_id, is_leader=self.leader == self.peer_id, leader=self.leader, peers=self.members
                )
            case UpdateRequest(request_id) if self.leader == self.peer_id:
                yield UpdateCommitted(request_id, self.log.setdefault(request_id, len(self.log) + 1))
            case UpdateRequest(request_id):
                yield UpdateRedirect(request_id, self.leader)
            case _:
                pass


def state(number: int, term: int = 1) -> Entry:
    """Return the update at index `number`."""
    return Entry(term, EntryKind.COMMAND, number.to_bytes(12, "big") + b"entry %d" % number)


@dataclass(slots=True)
class _Sending:
    """A RequestEntries in progress."""

    respond: Respond
    previous: int
    end: int
    offset: int = 0
    unconfirmed: int = 0
    is_over: bool = False
    """True after the last message; the state is kept until the other messages are confirmed, as in the package."""


class LoopbackPeer:
    """A scripted peer with a real ROUTER socket."""

    def __init__(self, context: ZmqContext, options: SocketOptions = DEFAULT_OPTIONS) -> None:
        self._socket = ZmqSocket(context, SocketKind.ROUTER, self._receive, options)
        self.url = self._socket.bind("tcp://127.0.0.1:*")
        member = Peer("1", self.url)
        self.scripted = ScriptedPeer(MemoryNetwork(), member, (member,), "1")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until canceled."""
        await self._socket.run(task_status=task_status)

    def _receive(self, frames: list[bytes], _user: str | None) -> None:
        identity, *request = frames

        def respond(reply: Reply) -> None:
            self._socket.send([identity, *encode_reply(reply)])

        self.scripted.receive(decode_request(request), respond)


class EntryServer:
    """Replies to RequestEntries from `entries`, which begin at `first`, as a leader does.

    A message has `per_message` entries, and at most `ahead` messages are unconfirmed. `snapshot` replaces the entries
    before `first` and is sent in pieces of 4 bytes.
    """

    def __init__(self, count: int, *, first: int = 1, snapshot: bytes = b"", per_message: int = 2) -> None:
        self.entries = [state(number) for number in range(first, count + 1)]
        self.first = first
        self.snapshot = snapshot
        self.per_message = per_message
        self.ahead = 5
        self.requests: list[EntriesRequest] = []
        self.confirmed: list[EntriesRequest] = []
        self.stopped: list[EntriesRequest] = []
        self.sending: dict[bytes, _Sending] = {}

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1

    def append(self, count: int = 1) -> None:
        """Commit more entries."""
        self.entries += [state(self.last + 1 + number) for number in range(count)]

    def __call__(self, request: Request, respond: Respond) -> bool:
        """Handle a request as a script of `ScriptedPeer`."""
        if not isinstance(request, EntriesRequest):
            return False
        sending = self.sending.get(request.request_id)
        if request.count == 0:
            self.stopped.append(request)
            self.sending.pop(request.request_id, None)
        elif sending is not None:
            self.confirmed.append(request)
            sending.unconfirmed -= 1
            if sending.previous < self.first - 1 <= request.previous_index:
                sending.previous = request.previous_index
                sending.end = self._end_of(request)
            self._send(request.request_id, sending)
        else:
            self.requests.append(request)
            offset = request.snapshot_offset or 0
            sending = _Sending(respond, request.previous_index, self._end_of(request), offset)
            self.sending[request.request_id] = sending
            self._send(request.request_id, sending)
        return True

    def _end_of(self, request: EntriesRequest) -> int:
        return self.last if request.count is None else min(self.last, request.previous_index + request.count)

    def _send(self, request_id: bytes, sending: _Sending) -> None:
        while sending.unconfirmed < self.ahead and not sending.is_over:
            if sending.previous + 1 < self.first:
                if sending.offset == len(self.snapshot):
                    return  # the confirmation of the last piece requests the following entries
                sending.respond(self._piece(request_id, sending))
            else:
                sending.respond(self._batch(request_id, sending))
            sending.unconfirmed += 1
        if sending.is_over and sending.unconfirmed <= 1:
            del self.sending[request_id]

    def _piece(self, request_id: bytes, sending: _Sending) -> SnapshotPiece:
        data = self.snapshot[sending.offset : sending.offset + 4]
        piece = SnapshotPiece(
            request_id=request_id,
            last_index=self.first - 1,
            last_term=1,
            offset=sending.offset,
            total_bytes=len(self.snapshot),
            data=data,
        )
        sending.offset += len(data)
        return piece

    def _batch(self, request_id: bytes, sending: _Sending) -> EntriesBatch:
        at = sending.previous + 1 - self.first
        entries = tuple(self.entries[at : at + self.per_message][: max(0, sending.end - sending.previous)])
        sending.previous += len(entries)
        sending.is_over = sending.previous >= sending.end
        return EntriesBatch(
            request_id=request_id, is_last=sending.is_over, last_index=sending.previous, entries=entries
        )
