"""Hostile datagrams: from attackers without the farm's key, and from liars that hold it.

An attacker without the key sends random bytes, damages recorded datagrams, joins pieces of them, repeats them, or seals
under another key. A liar opens recorded datagrams, damages or rewrites their content, and seals them under its own
salts. It reports members that do not exist, and reports in the name of existing members and in its own. It knows each
node's incarnation, so it claims the most harmful ones: just above, far above, and at the limit. It also sets clocks of
keys and user messages to the highest accepted value, and above.

`burst` is the strongest attack at one moment: valid verdicts against every member, sent to every other, and links
denied in the peers' names. It adds more key changes than a node accepts, with clocks at their limit. Directly after it,
no node agrees with any other.
"""

from collections.abc import Callable, Iterator
from random import Random

from msgspec.structs import replace

from gossip.core.keyring import CLOCK_LIMIT, ClockBound, DatedKey, Keyring, KeyringError
from gossip.core.member import INCARNATION_LIMIT, Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.messages import (
    DOMAIN,
    AliveUpdate,
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    KeyringUpdate,
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    Query,
    QueryReply,
    RefusalCode,
    Update,
    UserEvent,
    UserMessage,
    UserMessageId,
    VerdictUpdate,
)
from gossip.wire.codec import Code, encode
from gossip.wire.identity import Signer, departure_proof, sign, sign_keys
from gossip.wire.seal import ANY_NODE, HEADER_BYTES, OVERHEAD_BYTES, SALT_BYTES, RefusedError, Sealed
from gossip.wire.secure_codec import DATAGRAM_LIMIT_BYTES
from tests.simulation.gossip_wire_group import RING, WireGroup, WireNode, key_of

FIRST_LIAR = 100
LIARS = 40
KEY_STORM = 40
"""Number of simultaneous key changes: more than a member accepts, so that members accept different ones."""
STORM_KEYS = tuple(bytes([number]) * 32 for number in range(4))
_CODES = bytes(sorted(Code))
_BOUND = frozenset({Code.JOIN_ACK, Code.JOIN_REDIRECT, Code.JOIN_NAK, Code.PING_REQUEST, Code.LEAVE, Code.QUERY_REPLY})
"""Datagrams that only their receiver may accept."""


class Outsider:
    """An attacker without a key that has recorded every datagram."""

    def __init__(self, group: WireGroup, random: Random) -> None:
        self._group = group
        self._random = random
        self._foreign = Sealed(
            Keyring.of(b"the key of quite another farm..!", label=RING.label), random.randbytes(16), ANY_NODE
        )

    def datagram(self) -> tuple[WireNode, Address, bytes]:
        """Return a receiver, a source (addresses are forged at will) and a datagram."""
        random = self._random
        sender, receiver, recorded = random.choice(self._group.recorded)
        damages: tuple[Callable[[bytes], bytes], ...] = (
            lambda _: random.randbytes(random.randrange(DATAGRAM_LIMIT_BYTES)),
            lambda it: it[: random.randrange(len(it))],
            lambda it: it + random.randbytes(random.randrange(1, 40)),
            lambda it: mutated(it, random),
            self._glued,
            lambda it: it,
            lambda it: self._foreign.seal(it[:1] + it[HEADER_BYTES:-16]),
        )
        source = random.choice((sender.address, Address("10.6.6.6", random.randrange(1, 65_536))))
        damage = random.choice(damages)
        if recorded[0] in _BOUND and random.random() < 1 / 2:
            receiver = random.choice(self._group.nodes)
        return receiver, source, damage(recorded)

    def _glued(self, datagram: bytes) -> bytes:
        """Return the datagram with the end of another one.

        Both are cut at the same place: otherwise the result could be a genuine datagram for another node.
        """
        other = self._random.choice(self._group.recorded)[2]
        cut = self._random.randrange(HEADER_BYTES + 1, HEADER_BYTES + 20)
        return datagram[:cut] + other[cut:]


class Liar:
    """A holder of the farm's key with its own identities."""

    def __init__(self, group: WireGroup, random: Random, signers: tuple[Signer, ...] = ()) -> None:
        """`signers` are identities that the group knows as members."""
        self._group = group
        self._random = random
        self._ring = group.nodes[0].ring
        self._envelope = Sealed(self._ring, random.randbytes(SALT_BYTES), ANY_NODE)
        self._signers = [*(Signer(key_of(FIRST_LIAR + number)) for number in range(LIARS)), *signers]
        self._ids = [node.node_id for node in group.nodes] + [signer.node_id for signer in self._signers]
        self._cores = {node.node_id: node.core for node in group.nodes}
        self._addresses = [node.address for node in group.nodes]
        self._addresses += [Address(f"10.7.0.{number}", 7_946) for number in range(4)]

    def datagram(self) -> tuple[WireNode, Address, bytes]:
        """Return a receiver, a source and a datagram."""
        random = self._random
        sender, receiver, recorded = random.choice(self._group.recorded)
        self._follow(receiver.ring)
        if random.random() < 0.001:
            self._envelope = Sealed(self._ring, random.randbytes(SALT_BYTES), ANY_NODE)
        match random.randrange(4):
            case 0:
                plain = mutated(self._opened(recorded, receiver), random)
            case 1:
                plain = bytes([random.choice(_CODES)]) + random.randbytes(random.randrange(200))
            case _:
                plain = encode(self._message(receiver), DATAGRAM_LIMIT_BYTES - OVERHEAD_BYTES)
        return receiver, random.choice((sender.address, *self._addresses)), self._envelope.seal(plain, receiver.node_id)

    def burst(self) -> Iterator[tuple[WireNode, Address, bytes]]:
        """Yield all datagrams that may make the group disagree, at one moment."""
        for receiver in self._group.nodes:
            others = [node for node in self._group.nodes if node is not receiver]
            verdicts = tuple(self._verdict(node, Status.DEAD) for node in others)
            user_messages = tuple(self._user_message() for _ in range(3))
            ping = self._ping(others[0], receiver, Payload(verdicts, 8, 1, (), user_messages))
            yield self._sealed(receiver, others[0].address, ping)
            generation = receiver.core.describe().self_info.incarnation.generation
            for other in others:
                yield self._sealed(receiver, other.address, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, b"", generation))
        clock_bound = ClockBound(0).at(self._group.now)
        uses_known_keys = self._random.random() < 1 / 2
        for step in range(KEY_STORM):
            victim = self._random.choice(self._group.nodes)
            chain = victim.chain
            clock = clock_bound - KEY_STORM + 1 + step
            fresh = [key for key in STORM_KEYS if key != chain.primary]
            spare = self._random.choice((uses_known_keys and chain.others) or fresh)
            primary, opens = (spare, chain.primary) if self._random.random() < 1 / 8 else (chain.primary, spare)
            far = Keyring.of(primary, (opens,), (), clock)
            yield self._sealed(
                victim,
                self._random.choice(self._addresses),
                sign_keys(KeyringUpdate(far), self._random.choice(self._signers).key),
            )

    def _verdict(self, node: WireNode, status: Status) -> VerdictUpdate:
        known = node.core.describe().self_info
        return VerdictUpdate(node.node_id, known.incarnation, status, node.node_id)

    def _ping(self, source: WireNode, receiver: WireNode, payload: Payload) -> PingRequest:
        source_incarnation = source.core.describe().self_info.incarnation
        receiver_incarnation = receiver.core.describe().self_info.incarnation
        return PingRequest(
            source.node_id, source_incarnation, receiver.node_id, receiver_incarnation, 1, 0, None, payload
        )

    def _sealed(self, receiver: WireNode, source: Address, message: Message) -> tuple[WireNode, Address, bytes]:
        self._follow(receiver.ring)
        plain = encode(message, DATAGRAM_LIMIT_BYTES - OVERHEAD_BYTES)
        return receiver, source, self._envelope.seal(plain, receiver.node_id)

    def _follow(self, ring: Keyring) -> None:
        if ring != self._ring:
            self._ring = ring
            self._envelope = Sealed(ring, self._random.randbytes(SALT_BYTES), ANY_NODE)

    def _opened(self, datagram: bytes, receiver: WireNode) -> bytes:
        try:
            return Sealed(self._ring, b"unknown salt ...", receiver.node_id).open(datagram).plain
        except RefusedError:  # sealed before the keys were changed
            return datagram

    def _incarnation(self, node_id: NodeId) -> Incarnation:
        random = self._random
        known = self._cores.get(node_id)
        base = known._local.incarnation if known is not None else Incarnation(1, random.randrange(4))
        number = base.number + random.choice((-1, 0, 0, 1, 2, random.randrange(100)))
        match random.randrange(12):
            case 0:
                return Incarnation(base.generation + random.randrange(1, 4), max(number, 0))
            case 1:
                return Incarnation(base.generation, random.choice((INCARNATION_LIMIT - 1, INCARNATION_LIMIT)))
            case 2:
                return Incarnation(random.choice((0, 1, INCARNATION_LIMIT - 1, INCARNATION_LIMIT)), max(number, 0))
            case _:
                return Incarnation(base.generation, max(number, 0))

    def _info(self) -> NodeInfo:
        random = self._random
        node_id, address = random.choice(self._ids), random.choice(self._addresses)
        metadata = random.randbytes(random.randrange(8))
        info = NodeInfo(node_id, address, self._incarnation(node_id), random.randrange(9), metadata)
        signer = random.choice(self._signers)
        match random.randrange(4):
            case 0:
                return info
            case 1:
                return replace(info, credential=random.randbytes(96))
            case _:
                return sign(replace(info, node_id=signer.node_id), signer.key)

    def _update(self) -> Update:
        random = self._random
        if random.random() < 0.4:
            return AliveUpdate(self._info())
        node_id = random.choice(self._ids)
        accuser = random.choice((node_id, random.choice(self._ids)))
        status = random.choice(tuple(Status)[1:])
        if status is Status.LEFT:
            return self._departure()
        return VerdictUpdate(node_id, self._incarnation(node_id), status, accuser)

    def _departure(self) -> VerdictUpdate:
        """Return a liar's own departure, or another member's with an invalid proof."""
        random = self._random
        signer, node_id = random.choice(self._signers), random.choice(self._ids)
        incarnation = self._incarnation(node_id)
        proof = departure_proof(signer.key, signer.node_id, incarnation)
        if random.random() < 1 / 2:
            return VerdictUpdate(signer.node_id, incarnation, Status.LEFT, signer.node_id, proof)
        return VerdictUpdate(node_id, incarnation, Status.LEFT, node_id, random.choice((b"", proof)))

    def _payload(self) -> Payload:
        random = self._random
        updates = tuple(self._update() for _ in range(random.randrange(4)))
        sample = tuple(self._info() for _ in range(random.randrange(3)))
        user_messages = tuple(self._user_message() for _ in range(random.randrange(3)))
        digest = random.choice((b"", b"", b"another."))
        return Payload(updates, random.randrange(9), random.randrange(9), sample, user_messages, digest)

    def _user_message(self) -> UserMessage:
        random = self._random
        clocks = (random.randrange(1_000), random.randrange(1_000), 1 << 20, *self._far_clocks())
        time = random.choice(clocks)
        message_id = UserMessageId(time, random.choice(self._ids), random.randrange(4))
        body = random.randbytes(random.randrange(200))
        if random.random() < 0.5:
            return UserEvent(message_id, "rubbish", body)
        return Query(message_id, "rubbish", body, random.choice(self._addresses), random.randrange(100_000))

    def _far_clocks(self) -> tuple[int, ...]:
        """Return the highest accepted clock, the clock above it, which will be accepted soon, and the clock limit."""
        clock_bound = ClockBound(0).at(self._group.now)
        return clock_bound, clock_bound + 1, CLOCK_LIMIT

    def _reply(self) -> QueryReply:
        random = self._random
        message_id = UserMessageId(random.randrange(1_000), random.choice(self._ids), 1)
        return QueryReply(message_id, random.choice(self._ids), b"")

    def _key_news(self, receiver: WireNode) -> KeyringUpdate:
        """Return key changes that an operator could make, and some with impossible clocks."""
        random = self._random
        chain = receiver.chain
        key = random.choice((chain.primary, *chain.others, *chain.retired))
        clock = random.choice((*(chain.clock + step for step in (1, 2, 1_000, 1 << 20)), *self._far_clocks()))
        try:
            match random.randrange(5):
                case 0:
                    return KeyringUpdate(chain.install(random.randbytes(32)))
                case 1:
                    return KeyringUpdate(chain.use(key))
                case 2:
                    return KeyringUpdate(chain.remove(key))
                case 3:
                    return KeyringUpdate(Keyring(chain.keys, chain.primary, clock))
                case _:
                    # `Keyring.of` refuses a clock above the limit, so it is not used here.
                    primary = random.randbytes(32)
                    keys = sorted((DatedKey(clock, primary), DatedKey(clock, chain.primary)))
                    return KeyringUpdate(Keyring(tuple(keys), primary, clock))
        except KeyringError:
            return KeyringUpdate(chain)

    def _message(self, receiver: WireNode) -> Message:  # noqa: PLR0911 - one message a case
        random = self._random
        address = random.choice(self._addresses)
        source, target = random.choice(self._ids), random.choice(self._ids)
        generation = receiver.core.describe().self_info.incarnation.generation
        if random.random() < 0.02:
            return sign_keys(self._key_news(receiver), random.choice(self._signers).key)
        match random.randrange(10):
            case 0:
                return JoinReq(self._info(), random.randbytes(32), random.randbytes(32), random.randrange(9))
            case 1:
                return JoinNak(DOMAIN, 7_115 + random.randrange(8), random.randbytes(random.randrange(40)), generation)
            case 2:
                return JoinRedirect((address,), DOMAIN, 7_115 + random.randrange(8), b"", generation)
            case 3:
                return JoinAck(self._info(), (self._info(),), 0, generation)
            case 4:
                departure = self._departure()
                return Leave(NodeInfo(departure.node_id, address, departure.incarnation, 1, b"", departure.proof))
            case 5:
                return random.choice((Broadcast(self._info()), self._reply()))
            case 6 | 7 | 8:
                return PingRequest(
                    source,
                    self._incarnation(source),
                    target,
                    self._incarnation(target),
                    seq=random.getrandbits(32),
                    ttl=random.choice((0, 0, 1, 2, 255)),
                    requester=random.choice((None, address)),
                    payload=self._payload(),
                )
            case _:
                return PingResponse(
                    source,
                    target,
                    self._incarnation(target),
                    seq=random.getrandbits(32),
                    ttl=random.randrange(3),
                    nack=random.random() < 0.3,
                    payload=self._payload(),
                )


def mutated(datagram: bytes, random: Random) -> bytes:
    """Return the datagram with one to four bytes changed, removed or inserted."""
    changed = bytearray(datagram)
    for _ in range(random.randint(1, 4)):
        position = random.randrange(len(changed)) if changed else 0
        match random.randrange(4):
            case 0 if changed:
                del changed[position]
            case 1:
                changed.insert(position, random.randrange(256))
            case _ if changed:
                changed[position] = random.randrange(256)
            case _:
                pass
    return bytes(changed)
