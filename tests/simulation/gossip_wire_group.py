"""Gossip nodes with their complete wire layer in virtual time: production codecs and cores, datagrams as bytes.

    datagram ──▶ codec ──▶ core ──▶ effects ──▶ codec ──▶ datagram

The simulated network of the cores lacks the parts that attackers can reach: seals, CBOR, signatures, tokens. `offer`
gives any bytes to a node and returns the result.
"""

import heapq
from dataclasses import dataclass, field
from hashlib import sha512
from itertools import count
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.core.effects import Effect, OfferToken, Send, UseKeyring, UserEventReceived
from gossip.core.events import DeadlineReached, Event, SeedsGiven, Unreadable, UserEventRequested
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.messages import DOMAIN, JoinNak, KeyringUpdate, RefusalCode
from gossip.core.options import SwimOptions
from gossip.core.swim import Swim
from gossip.node.limits import SourceLimit, SourceLimits
from gossip.wire.identity import Signer
from gossip.wire.seal import RefusedError, SealFault
from gossip.wire.secure_codec import SECRETS_BYTES, SecureCodec

RING = Keyring.of(b"the key of the farm that is hit.")
CAPACITY = 8
WORD = "event of a member"
RECORDED = 256


def key_of(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))


@dataclass(slots=True)
class WireNode:
    """One node: its identity, its codec and its core."""

    address: Address
    node_id: NodeId
    codec: SecureCodec
    core: Swim
    ring: Keyring
    key_repairs: SourceLimit
    words: set[bytes] = field(default_factory=set)
    """Bodies of the received events from `send_event`."""
    wakes_at: int | None = None

    @property
    def chain(self) -> Keyring:
        """Return the core's keyring."""
        chain = self.core.keyring
        assert chain is not None
        return chain


class WireGroup:
    """The nodes, the clock, and their last datagrams."""

    def __init__(self, size: int, random_seed: int, options: SwimOptions) -> None:
        self.random = Random(random_seed)
        self.now = 0
        self.recorded: list[tuple[WireNode, WireNode, bytes]] = []
        self._queue: list[tuple[int, int, WireNode, WireNode | None, bytes]] = []
        self._order = count()
        self.nodes = [self._node(number, random_seed, options) for number in range(1, size + 1)]
        self._at = {node.address: node for node in self.nodes}
        for node in self.nodes:
            self._step(node, SeedsGiven((self.nodes[0].address,)))

    def _node(self, number: int, random_seed: int, options: SwimOptions) -> WireNode:
        signer = Signer(key_of(number))
        address = Address(f"10.0.0.{number}", 7_946)
        info = NodeInfo(signer.node_id, address, Incarnation(1, 0), CAPACITY, b"node %d" % number)
        secrets = sha512(f"{random_seed} {number}".encode()).digest()[:SECRETS_BYTES]
        core = Swim(info, options, Random(self.random.getrandbits(64)), 0, keys=RING)
        return WireNode(
            address, signer.node_id, SecureCodec(signer, RING, secrets), core, RING, SourceLimits().key_repairs
        )

    def offer(self, node: WireNode, datagram: bytes, source: Address) -> SealFault | None:
        """Give any bytes to a node; return the reason if the wire refused them, or None."""
        try:
            incoming = node.codec.incoming(datagram, source, self.now)
        except RefusedError as error:
            if error.reason in {SealFault.UNKNOWN_KEY, SealFault.RETIRED_KEY} and self._may_repair(node, source):
                self._step(node, Unreadable(source))
            return error.reason
        if incoming.outdated_key_id and node.key_repairs.allows(source.host, self.now):
            self._send(node, source, node.codec.outgoing(KeyringUpdate(node.chain), None, incoming.outdated_key_id))
        self._step(node, incoming.received)
        return None

    def _may_repair(self, node: WireNode, source: Address) -> bool:
        return node.key_repairs.allows(source.host, self.now)

    def run(self, duration_ms: int) -> None:
        end = self.now + duration_ms
        while self._queue and self._queue[0][0] <= end:
            self.now, _, node, sender, datagram = heapq.heappop(self._queue)
            if sender is not None:
                if self.offer(node, datagram, sender.address) is None:
                    self._record(sender, node, datagram)
            elif node.wakes_at == self.now:
                node.wakes_at = None
                self._step(node, DeadlineReached())
        self.now = end

    def forget_seeds(self) -> None:
        """Remove the seeds: from now on the nodes can find each other only by gossip."""
        for node in self.nodes:
            node.core._joiner._seeds.clear()

    def send_event(self, node: WireNode, body: bytes) -> None:
        """Send an event from one node's application to all."""
        self._step(node, UserEventRequested(WORD, body))

    @property
    def running(self) -> list[WireNode]:
        return [node for node in self.nodes if not node.core.describe().halted]

    def agreed(self) -> bool:
        """Return True if all running nodes see each other alive and have the same keys."""
        running = self.running
        return len({node.core.keyring for node in running}) == 1 and all(
            self._sees(node, [other for other in running if other is not node]) for node in running
        )

    @staticmethod
    def _sees(node: WireNode, others: list[WireNode]) -> bool:
        alive = {member.node_id for member in node.core.describe().members if member.status is Status.ALIVE}
        return all(other.node_id in alive for other in others)

    def _step(self, node: WireNode, event: Event) -> None:
        for effect in node.core.step(event, self.now):
            self._carry_out(node, effect)
        deadline = node.core.deadline
        if deadline is not None and (node.wakes_at is None or deadline < node.wakes_at):
            node.wakes_at = max(deadline, self.now)
            heapq.heappush(self._queue, (node.wakes_at, next(self._order), node, None, b""))

    def _carry_out(self, node: WireNode, effect: Effect) -> None:
        match effect:
            case Send(target, KeyringUpdate() as news, _, boxed_for) if boxed_for:
                self._send(node, target, node.codec.boxed(news, boxed_for))
            case Send(target, message, recipient):
                self._send(node, target, node.codec.outgoing(message, recipient))
            case OfferToken(target, applicant, generation):
                token = node.codec.mint_token(target, applicant, self.now)
                nak = JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, token, generation)
                self._send(node, target, node.codec.outgoing(nak, applicant))
            case UseKeyring(chain):
                node.ring = chain
                node.codec.use(node.ring)
            case UserEventReceived(word) if word.name == WORD:
                node.words.add(word.body)
            case _:
                pass  # passed to the application, or stored for a restart

    def _record(self, sender: WireNode, receiver: WireNode, datagram: bytes) -> None:
        """Record a datagram after its acceptance, for attackers: before, its first delivery would be genuine."""
        self.recorded.append((sender, receiver, datagram))
        if len(self.recorded) > RECORDED:
            del self.recorded[: RECORDED // 2]

    def _send(self, sender: WireNode, target: Address, datagram: bytes) -> None:
        receiver = self._at.get(target)
        if receiver is None:
            return
        arrival = self.now + self.random.randint(1, 5)
        heapq.heappush(self._queue, (arrival, next(self._order), receiver, sender, datagram))
