"""Thirty peers that ping a gossip node as fast as it replies, so the node limits the rate.

The peers are genuine: each joins with a token, replies to the node's own pings, and seals its pings under its own salt.
Their pings are prepared before the clock starts, since sealing them has the cost of the node's own work.
"""

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from benchmarks.child import BenchmarkError
from gossip import Address, Incarnation, JoinNak, Keyring, NodeInfo
from gossip.core import AliveUpdate, JoinAck, JoinReq, Payload, PingRequest, PingResponse
from gossip.node import NodeIdentity, parse_endpoint
from gossip.wire import SECRETS_BYTES, Code, RefusedError, SecureCodec, Signer, sign

PEERS = 30
OUTSTANDING = 2
"""Pings in flight per peer; their sum is well below a node's queue."""

METADATA = b"m" * 100
_PATIENCE_S = 0.2
_BUSY_PATIENCE_S = 2.0
"""The reply timeout in seconds: a node that adds thousands of members may pause."""
_JOIN_TRIES = 10
_RECEIVE_BYTES = 2048
_SAMPLE = 4


@dataclass(slots=True)
class Peer:
    """One pinging peer with its socket."""

    identity: NodeIdentity
    codec: SecureCodec
    endpoint: socket.socket
    info: NodeInfo
    target: Address
    prepared: Iterator[bytes] = field(default_factory=lambda: iter(()))

    def join(self) -> NodeInfo:
        """Become the node's peer; return the node's description."""
        self.endpoint.settimeout(_PATIENCE_S)
        token = b""
        for _ in range(_JOIN_TRIES):
            self.endpoint.send(self.codec.outgoing(JoinReq(self.info, token)))
            try:
                match self.codec.incoming(self.endpoint.recv(_RECEIVE_BYTES), self.target, 0).received.message:
                    case JoinNak(etag=etag):
                        token = etag
                    case JoinAck(description):
                        self.endpoint.settimeout(0)
                        return description
                    case _:
                        pass
            except (TimeoutError, RefusedError):
                continue
        raise BenchmarkError("the gossip node does not take a peer")

    def question(self, node: NodeInfo, sequence: int, payload: Payload) -> bytes:
        """Return a ping to the node."""
        own = self.info
        return self.codec.outgoing(
            PingRequest(own.node_id, own.incarnation, node.node_id, node.incarnation, sequence, 0, payload=payload),
            node.node_id,
        )

    def prepare(self, node: NodeInfo, count: int, news: tuple[NodeInfo, ...]) -> None:
        """Prepare pings, each with the same infos."""
        payload = Payload(tuple(AliveUpdate(info) for info in news), self.info.capacity, PEERS)
        self.prepared = iter([self.question(node, sequence, payload) for sequence in range(count)])

    def takes(self, datagram: bytes) -> bool:
        """Count a reply, or reply to a ping of the node."""
        if datagram[0] == Code.PING_REQUEST:
            self._answer(datagram)
        return datagram[0] == Code.PING_RESPONSE

    def _answer(self, datagram: bytes) -> None:
        try:
            message = self.codec.incoming(datagram, self.target, 0).received.message
        except RefusedError:
            return
        if isinstance(message, PingRequest):
            own = self.info
            response = PingResponse(message.source_id, own.node_id, own.incarnation, message.seq, message.ttl)
            self.endpoint.send(self.codec.outgoing(response, message.source_id))


def _metadata(_: int) -> bytes:
    return METADATA


@contextmanager
def peers_of(address: str, ring: Keyring | None, metadata: Callable[[int], bytes] = _metadata) -> Iterator[list[Peer]]:
    """Yield peers with their sockets, before they join."""
    host, port = parse_endpoint(address)
    peers: list[Peer] = []
    try:
        for number in range(PEERS):
            endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            endpoint.connect((host, port))
            identity = NodeIdentity.throwaway()
            here = Address(*endpoint.getsockname())
            info = NodeInfo(identity.node_id, here, Incarnation(1, 0), 2 * PEERS, metadata(number))
            codec = SecureCodec(Signer(identity.key), ring, os.urandom(SECRETS_BYTES))
            peers.append(Peer(identity, codec, endpoint, info, Address(host, port)))
        yield peers
    finally:
        for peer in peers:
            peer.endpoint.close()


def invented_infos(count: int, metadata: Callable[[int], bytes] = _metadata) -> list[NodeInfo]:
    """Return signed infos of fictional members; their addresses are unused ones on loopback."""
    infos = []
    for number in range(count):
        identity = NodeIdentity.throwaway()
        address = Address(f"127.{1 + (number >> 16 & 127)}.{number >> 8 & 255}.{number & 255}", 7_946)
        info = NodeInfo(identity.node_id, address, Incarnation(1, 0), PEERS, metadata(number))
        infos.append(sign(info, identity.key))
    return infos


@dataclass(slots=True)
class EchoAsker:
    """A client of the bare echo: every datagram is a reply."""

    endpoint: socket.socket
    prepared: Iterator[bytes]

    def takes(self, datagram: bytes) -> bool:
        """Return True if the datagram is an echo."""
        return bool(datagram)


Asker = Peer | EchoAsker
"""A socket with prepared datagrams."""


@contextmanager
def echo_askers(address: str, count: int, size_bytes: int) -> Iterator[list[EchoAsker]]:
    """Yield a socket per peer, with the same number of datagrams as the peers."""
    askers: list[EchoAsker] = []
    try:
        for _ in range(PEERS):
            endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            askers.append(EchoAsker(endpoint, iter([bytes(size_bytes)] * count)))
            endpoint.connect(parse_endpoint(address))
            endpoint.settimeout(0)
        yield askers
    finally:
        for asker in askers:
            asker.endpoint.close()


def run_askers(
    askers: Sequence[Asker], timeout_s: float = _PATIENCE_S, *, one_in_flight: bool = False
) -> tuple[int, float]:
    """Send the prepared datagrams, `OUTSTANDING` at a time for each; return the number of replies, and the seconds.

    With `one_in_flight`, the askers send in order, each a single datagram at a time. The call ends `timeout_s` after
    the last reply.
    """
    answers = 0
    waiting = iter(askers)
    with selectors.DefaultSelector() as selector:
        for asker in askers:
            selector.register(asker.endpoint, selectors.EVENT_READ, asker)
        for asker in islice(waiting, 1 if one_in_flight else None):
            _send_next(asker, 1 if one_in_flight else OUTSTANDING)
        started = last = time.perf_counter()
        while time.perf_counter() - last < timeout_s:
            for key, _ in selector.select(timeout_s):
                replies = _drain(key.data)
                if replies:
                    answers += replies
                    last = time.perf_counter()
                    if not _send_next(key.data, replies):
                        for asker in islice(waiting, 1):
                            _send_next(asker, 1)
    return answers, last - started


def answer_pings(peers: Sequence[Peer], seconds: float) -> None:
    """Reply to the node's pings for a time, without pinging it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run_askers(peers)
        time.sleep(_PATIENCE_S / 2)


def _send_next(asker: Asker, count: int) -> int:
    """Send up to `count` further datagrams; return the number sent."""
    return sum(asker.endpoint.send(datagram) > 0 for datagram in islice(asker.prepared, count))


def _drain(asker: Asker) -> int:
    answers = 0
    while True:
        try:
            answers += asker.takes(asker.endpoint.recv(_RECEIVE_BYTES))
        except BlockingIOError:
            return answers


def introduce(peers: list[Peer], node: NodeInfo, infos: list[NodeInfo]) -> None:
    """Send the node many members, in the samples of pings."""
    for index, peer in enumerate(peers):
        share = infos[index :: len(peers)]
        peer.prepared = iter(
            [
                peer.question(node, number, Payload(sample=tuple(share[number : number + _SAMPLE])))
                for number in range(0, len(share), _SAMPLE)
            ]
        )
    run_askers(peers, _BUSY_PATIENCE_S)
