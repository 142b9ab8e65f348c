"""Thirty peers that ask a gossip node as fast as it answers, so that the node is what the figure measures.

The peers are genuine: each joins with a token, answers the node's own pings, and seals its questions under its own
salt. Their questions are prepared before the clock starts, since sealing them costs as much as the node's own work.
"""

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from benchmarks.gossip_group import GroupError
from gossip import Address, Incarnation, JoinNak, Keyring, NodeInfo
from gossip.core import AliveUpdate, JoinAck, JoinReq, Payload, PingRequest, PingResponse
from gossip.node import NodeIdentity, parse_endpoint
from gossip.wire import SECRETS_BYTES, Code, RefusedError, SecureCodec, Signer, sign

PEERS = 30
OUTSTANDING = 2
"""Questions under way per peer; together well below what a node queues."""

METADATA = b"m" * 100
_PATIENCE_S = 0.2
_BUSY_PATIENCE_S = 2.0
"""A node with thousands of new members to take in may say nothing for a while."""
_JOIN_TRIES = 10
_RECEIVE_BYTES = 2048
_SAMPLE = 4


@dataclass(slots=True)
class Peer:
    """One asking peer with its socket."""

    identity: NodeIdentity
    codec: SecureCodec
    endpoint: socket.socket
    info: NodeInfo
    target: Address
    prepared: Iterator[bytes] = field(default_factory=lambda: iter(()))

    def join(self) -> NodeInfo:
        """Become the node's peer; returns what the node says about itself."""
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
        raise GroupError("the gossip node does not take a peer")

    def question(self, node: NodeInfo, sequence: int, payload: Payload) -> bytes:
        """Return a ping to the node."""
        own = self.info
        return self.codec.outgoing(
            PingRequest(own.node_id, own.incarnation, node.node_id, node.incarnation, sequence, 0, payload=payload),
            node.node_id,
        )

    def prepare(self, node: NodeInfo, count: int, news: tuple[NodeInfo, ...]) -> None:
        """So many questions, each with the same news."""
        payload = Payload(tuple(AliveUpdate(info) for info in news), self.info.capacity, PEERS)
        self.prepared = iter([self.question(node, sequence, payload) for sequence in range(count)])

    def takes(self, datagram: bytes) -> bool:
        """Count an answer, answer a ping of the node's own."""
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
def peers_of(
    address: str, ring: Keyring | None, count: int = PEERS, metadata: Callable[[int], bytes] = _metadata
) -> Iterator[list[Peer]]:
    """Peers with their sockets; they have not joined yet."""
    host, port = parse_endpoint(address)
    peers: list[Peer] = []
    try:
        for number in range(count):
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


def strangers(count: int, metadata: Callable[[int], bytes] = _metadata) -> list[NodeInfo]:
    """Signed infos of made-up members; their addresses are on loopback, and no process listens there."""
    infos = []
    for number in range(count):
        identity = NodeIdentity.throwaway()
        address = Address(f"127.{1 + (number >> 16 & 127)}.{number >> 8 & 255}.{number & 255}", 7_946)
        info = NodeInfo(identity.node_id, address, Incarnation(1, 0), PEERS, metadata(number))
        infos.append(sign(info, identity.key))
    return infos


class Asker(Protocol):
    """A socket with questions to ask."""

    endpoint: socket.socket
    prepared: Iterator[bytes]

    def takes(self, datagram: bytes) -> bool:
        """Take what came; whether it answers a question."""


@dataclass(slots=True)
class EchoAsker:
    """Asks the bare echo: whatever comes is an answer."""

    endpoint: socket.socket
    prepared: Iterator[bytes]

    def takes(self, datagram: bytes) -> bool:
        """Return True if the datagram is an echo."""
        return bool(datagram)


@contextmanager
def echo_askers(address: str, count: int, size_bytes: int) -> Iterator[list[EchoAsker]]:
    """As many sockets as there are peers, with as many datagrams."""
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


def ask(askers: Sequence[Asker], patience_s: float = _PATIENCE_S, *, one_in_flight: bool = False) -> tuple[int, float]:
    """Ask what was prepared, `OUTSTANDING` at a time for each; how many answers came, and in what time.

    With `one_in_flight` the askers ask one after the other, each a single question at a time. Ends when no answer came
    for the length of the patience.
    """
    answers = 0
    waiting = iter(askers)
    with selectors.DefaultSelector() as selector:
        for asker in askers:
            selector.register(asker.endpoint, selectors.EVENT_READ, asker)
        for asker in islice(waiting, 1 if one_in_flight else None):
            _ask_next(asker, 1 if one_in_flight else OUTSTANDING)
        started = last = time.perf_counter()
        while time.perf_counter() - last < patience_s:
            for key, _ in selector.select(patience_s):
                came = _drain(key.data)
                if came:
                    answers += came
                    last = time.perf_counter()
                    if not _ask_next(key.data, came):
                        for asker in islice(waiting, 1):
                            _ask_next(asker, 1)
    return answers, last - started


def answer_pings(peers: Sequence[Peer], seconds: float) -> None:
    """Answer the node's pings for a while and ask nothing."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ask(peers)
        time.sleep(_PATIENCE_S / 2)


def _ask_next(asker: Asker, count: int) -> int:
    """Ask so many more; how many there still were."""
    return sum(asker.endpoint.send(datagram) > 0 for datagram in islice(asker.prepared, count))


def _drain(asker: Asker) -> int:
    answers = 0
    while True:
        try:
            answers += asker.takes(asker.endpoint.recv(_RECEIVE_BYTES))
        except BlockingIOError:
            return answers


def introduce(peers: list[Peer], node: NodeInfo, infos: list[NodeInfo]) -> None:
    """Tell the node of many members, by the samples of pings."""
    for index, peer in enumerate(peers):
        share = infos[index :: len(peers)]
        peer.prepared = iter(
            [
                peer.question(node, number, Payload(sample=tuple(share[number : number + _SAMPLE])))
                for number in range(0, len(share), _SAMPLE)
            ]
        )
    ask(peers, _BUSY_PATIENCE_S)
