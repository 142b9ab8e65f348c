"""Ed25519 signatures over nodes' own descriptions.

A node's identity is an Ed25519 key; its `NodeId` is the first 8 bytes of the key's SHA-256. The credential of a
`NodeInfo` is the public key and a signature over all other fields. So every receiver can verify the info after any
number of hops. The farm's key alone does not suffice: a stolen key file would otherwise allow anyone to impersonate
every node. docs/explanation/gossip.md ("Protection and its limits") lists the remaining abilities of a key holder.

A departure has its own signature over the incarnation that leaves. It travels with the update, so every receiver can
verify it. The sender signs a keyring update, and the application selects the senders. A second process of an identity
must prove that it holds the identity's key (`conflict_proof`). A verdict (suspect, dead) is another member's opinion,
which its subject has not signed. The subject refutes a false verdict with a higher signed incarnation.

A verification takes about 0.1 ms, and samples repeat the same infos. So `Verifier` caches verified infos, within a
bound. It does not cache failures: forgeries have endless forms.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final, assert_never

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import structs
from msgspec.structs import replace

from gossip.core.keyring import Keyring
from gossip.core.member import NODE_ID_BYTES, Incarnation, NodeId, NodeInfo, Status
from gossip.core.messages import (
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
    QueryReply,
    Update,
    VerdictUpdate,
)
from gossip.wire.codec import encode_keyring, encode_node_info

PUBLIC_KEY_BYTES: Final = 32
CREDENTIAL_BYTES: Final = PUBLIC_KEY_BYTES + 64
LIFE_BYTES: Final = 16
VERIFIED_LIMIT: Final = 1024
"""The size of the cache: several members send the same update within seconds."""
SIGNED_LIMIT: Final = 8


class SignatureUse(Enum):
    """The purpose of a signature; the value begins the signed bytes."""

    PRESENCE = b"garlic farm, gossip 1: present\x00"
    LEAVING = b"garlic farm, gossip 1: leaving\x00"
    """Signature over a whole info, for applications that send infos over connections instead of datagrams."""
    DEPARTURE = b"garlic farm, gossip 1: departure\x00"
    """Signature over node id and incarnation alone. Many members pass it on, so it must be short."""
    IDENTITY_CONFLICT = b"garlic farm, gossip 1: twin\x00"
    KEYS = b"garlic farm, gossip 1: keys\x00"


class ForgedError(Exception):
    """A message without the signature of its named sender."""


def node_id_of(public_key: bytes) -> NodeId:
    """Return the node id that belongs to an identity's public key."""
    return NodeId(sha256(public_key).digest()[:NODE_ID_BYTES])


def _signed_bytes(info: NodeInfo, purpose: SignatureUse) -> bytes:
    return purpose.value + encode_node_info(replace(info, credential=b""))


def sign(info: NodeInfo, key: Ed25519PrivateKey, purpose: SignatureUse = SignatureUse.PRESENCE) -> NodeInfo:
    """Return the info with its credential; `key` must belong to its node id."""
    public_key = key.public_key().public_bytes_raw()
    if node_id_of(public_key) != info.node_id:
        raise ValueError(f"the identity key belongs to {node_id_of(public_key).hex()}, not to {info.node_id.hex()}")
    return replace(info, credential=public_key + key.sign(_signed_bytes(info, purpose)))


def verify(info: NodeInfo, purpose: SignatureUse = SignatureUse.PRESENCE) -> bool:
    """Return True if the node that `info` names signed it for `purpose`."""
    return _is_signed(info.credential, info.node_id, _signed_bytes(info, purpose))


def _is_signed(credential: bytes, node_id: NodeId, content: bytes) -> bool:
    """Return True if the credential, public key and signature, shows that the node signed this content."""
    public_key, signature = credential[:PUBLIC_KEY_BYTES], credential[PUBLIC_KEY_BYTES:]
    if len(credential) != CREDENTIAL_BYTES or node_id_of(public_key) != node_id:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def departure_proof(key: Ed25519PrivateKey, node_id: NodeId, incarnation: Incarnation) -> bytes:
    """Return the proof that the node of this key left in this incarnation: public key and signature."""
    return key.public_key().public_bytes_raw() + key.sign(_departure_bytes(node_id, incarnation))


def proves_departure(proof: bytes, node_id: NodeId, incarnation: Incarnation) -> bool:
    """Return True if `node_id` signed that it leaves in this incarnation."""
    return _is_signed(proof, node_id, _departure_bytes(node_id, incarnation))


def _departure_bytes(node_id: NodeId, incarnation: Incarnation) -> bytes:
    return SignatureUse.DEPARTURE.value + node_id + b"".join(number.to_bytes(8, "big") for number in incarnation)


def sign_keys(news: KeyringUpdate, key: Ed25519PrivateKey) -> KeyringUpdate:
    """Return the keyring, signed by the node of this key."""
    public_key = key.public_key().public_bytes_raw()
    return KeyringUpdate(news.keyring, node_id_of(public_key), public_key + key.sign(_keys_bytes(news.keyring)))


def _holds_keys(news: KeyringUpdate) -> bool:
    return _is_signed(news.credential, news.sender, _keys_bytes(news.keyring))


def _keys_bytes(chain: Keyring) -> bytes:
    return SignatureUse.KEYS.value + encode_keyring(chain)


def conflict_proof(key: Ed25519PrivateKey, life: bytes, nonce: int) -> bytes:
    """Return the run's id, the public key and a signature: the proof to another process that this one has the key.

    The id of the run has `LIFE_BYTES` random bytes, new at each start. Without it, an attacker could ping this node,
    and return the node's own proof as the proof of another process.
    """
    return life + key.public_key().public_bytes_raw() + key.sign(_conflict_bytes(life, nonce))


def proves_conflict(proof: bytes, node_id: NodeId, lives: Collection[bytes], nonce: int) -> bool:
    """Return True if a process whose run id is not in `lives` has the key of `node_id` and signed `nonce`."""
    theirs, credential = proof[:LIFE_BYTES], proof[LIFE_BYTES:]
    return theirs not in lives and _is_signed(credential, node_id, _conflict_bytes(theirs, nonce))


def _conflict_bytes(life: bytes, nonce: int) -> bytes:
    return SignatureUse.IDENTITY_CONFLICT.value + life + nonce.to_bytes(8, "big")


_Departure = tuple[NodeId, Incarnation]


@dataclass(slots=True)
class Verifier:
    """Verifies infos, and caches the verified ones (the least recently used is dropped first)."""

    limit: int = VERIFIED_LIMIT
    verified: OrderedDict[bytes, tuple[NodeInfo | _Departure, SignatureUse]] = field(default_factory=OrderedDict)
    """The cache, by credential. Bytes keep their hash, and the codec returns one object for equal bytes of an info. A
    cached info thus takes a look-up and a comparison of identities."""

    def holds(self, info: NodeInfo, purpose: SignatureUse = SignatureUse.PRESENCE) -> bool:
        """Return True if the node that the info names signed it."""
        credential = info.credential
        found = self.verified.get(credential)
        if found is not None and found[1] is purpose and (found[0] is info or found[0] == info):
            self.verified.move_to_end(credential)
            return True
        if not verify(info, purpose):
            return False
        self._remember(credential, info, purpose)
        return True

    def departed(self, node_id: NodeId, incarnation: Incarnation, proof: bytes) -> bool:
        """Return True if the node signed this departure."""
        departure = node_id, incarnation
        found = self.verified.get(proof)
        if found is not None and found[1] is SignatureUse.DEPARTURE and found[0] == departure:
            self.verified.move_to_end(proof)
            return True
        if not proves_departure(proof, node_id, incarnation):
            return False
        self._remember(proof, departure, SignatureUse.DEPARTURE)
        return True

    def _remember(self, proof: bytes, what: NodeInfo | _Departure, purpose: SignatureUse) -> None:
        self.verified[proof] = what, purpose
        if len(self.verified) > self.limit:
            self.verified.popitem(last=False)

    def authenticate(self, message: Message) -> tuple[Message, int]:
        """Return the message without its unproved infos, and their number.

        An unproved sender raises `ForgedError`. An unproved *update* is dropped alone: the ping that carries it still
        shows that its sender is alive. If the ping were ignored, one forged update would cause false suspicions of
        correct members.
        """
        match message:
            case PingRequest(payload=payload) | PingResponse(payload=payload):
                proved, left_out = self._proved(payload)
                return (structs.replace(message, payload=proved) if left_out else message), left_out
            case JoinReq(source) | Broadcast(source):
                self._require(source, SignatureUse.PRESENCE)
            case Leave(source):
                if not self.departed(source.node_id, source.incarnation, source.credential):
                    raise ForgedError(f"{source.node_id.hex()} did not sign that it leaves")
            case JoinAck(description, sample):
                self._require(description, SignatureUse.PRESENCE)
                verified = self._verified(sample)
                return structs.replace(message, sample=verified), len(sample) - len(verified)
            case KeyringUpdate():
                if not _holds_keys(message):
                    raise ForgedError(f"{message.sender.hex()} did not sign these keys")
            case JoinNak() | JoinRedirect() | QueryReply():
                pass
            case _:
                assert_never(message)
        return message, 0

    def _require(self, info: NodeInfo, purpose: SignatureUse) -> None:
        if not self.holds(info, purpose):
            raise ForgedError(f"a record of {info.node_id.hex()} is not signed by that node")

    def _verified(self, sample: tuple[NodeInfo, ...]) -> tuple[NodeInfo, ...]:
        return tuple([info for info in sample if self.holds(info)])

    def _proved(self, payload: Payload) -> tuple[Payload, int]:
        if not (payload.updates or payload.sample):
            return payload, 0
        unproved_updates = [update for update in payload.updates if not self._is_proved(update)]
        unproved_infos = [info for info in payload.sample if not self.holds(info)]
        left_out = len(unproved_updates) + len(unproved_infos)
        if not left_out:
            return payload, 0
        updates = tuple([update for update in payload.updates if update not in unproved_updates])
        return structs.replace(payload, updates=updates, sample=self._verified(payload.sample)), left_out

    def _is_proved(self, update: Update) -> bool:
        if isinstance(update, AliveUpdate):
            return self.holds(update.info)
        return update.status is not Status.LEFT or self.departed(update.node_id, update.incarnation, update.proof)


@dataclass(slots=True)
class Signer:
    """Signs this node's own infos before sending; the core provides them with an empty credential."""

    key: Ed25519PrivateKey
    node_id: NodeId = field(init=False)
    signed: OrderedDict[tuple[NodeInfo, SignatureUse], NodeInfo] = field(default_factory=OrderedDict)
    _keys: KeyringUpdate | None = None
    """The last keyring update, signed: one change is sent to many members."""
    _departure_of: Incarnation | None = None
    _departure_proof: bytes = b""

    def __post_init__(self) -> None:
        self.node_id = node_id_of(self.key.public_key().public_bytes_raw())

    def signed_info(self, info: NodeInfo, purpose: SignatureUse = SignatureUse.PRESENCE) -> NodeInfo:
        """Return this node's own info with its credential, cached; return another node's info unchanged."""
        if info.node_id != self.node_id:
            return info
        bare = replace(info, credential=b"")
        signed = self.signed.get((bare, purpose))
        if signed is None:
            signed = self.signed[bare, purpose] = sign(bare, self.key, purpose)
            if len(self.signed) > SIGNED_LIMIT:
                self.signed.popitem(last=False)
        return signed

    def endorse(self, message: Message) -> Message:
        """Return the message with this node's own infos signed, and without infos that no receiver could verify."""
        match message:
            case PingRequest(payload=payload) | PingResponse(payload=payload):
                endorsed = self._payload(payload)
                return message if endorsed is payload else structs.replace(message, payload=endorsed)
            case JoinReq(source) | Broadcast(source):
                return structs.replace(message, source=self.signed_info(source))
            case Leave(source):
                own = source.node_id == self.node_id
                return Leave(replace(source, credential=self._departure(source.incarnation))) if own else message
            case JoinAck(description, sample):
                return structs.replace(message, description=self.signed_info(description), sample=self._sample(sample))
            case JoinNak() | JoinRedirect() | QueryReply() | KeyringUpdate():
                return self._signed_keys(message) if isinstance(message, KeyringUpdate) else message
            case _:
                assert_never(message)

    def _payload(self, payload: Payload) -> Payload:
        sample = payload.sample
        if [info for info in sample if not info.credential or info.node_id == self.node_id]:
            sample = self._sample(sample)
        updates = payload.updates
        if updates:
            updates = tuple([update for update in map(self._update, updates) if update is not None])
        if sample is payload.sample and updates == payload.updates:
            return payload
        return structs.replace(payload, updates=updates, sample=sample)

    def _sample(self, sample: tuple[NodeInfo, ...]) -> tuple[NodeInfo, ...]:
        return tuple(info for info in map(self.signed_info, sample) if info.credential)

    def _update(self, update: Update) -> Update | None:
        if isinstance(update, VerdictUpdate):
            return update if update.status is not Status.LEFT or update.proof else self._departed(update)
        info = self.signed_info(update.info)
        if not info.credential:
            return None
        return update if info is update.info else AliveUpdate(info)

    def _departed(self, update: VerdictUpdate) -> VerdictUpdate | None:
        """Return this node's own departure with its proof; None for another's without a proof."""
        if update.node_id != self.node_id:
            return None
        return structs.replace(update, proof=self._departure(update.incarnation))

    def _signed_keys(self, news: KeyringUpdate) -> KeyringUpdate:
        if news.credential:
            return news
        if self._keys is None or self._keys.keyring != news.keyring:
            self._keys = sign_keys(news, self.key)
        return self._keys

    def _departure(self, incarnation: Incarnation) -> bytes:
        if self._departure_of != incarnation:
            self._departure_of = incarnation
            self._departure_proof = departure_proof(self.key, self.node_id, incarnation)
        return self._departure_proof
