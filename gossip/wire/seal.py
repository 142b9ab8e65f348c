"""Sealed datagrams: only holders of the farm's key can read or write them, and a window refuses repeated ones.

docs/reference/gossip-protocol.md has the bytes ("Messages") and the rules for salts, replays and retired keys
("Sealing").

The key of a datagram is HKDF(farm key, boot salt) and its nonce the counter. The salt is drawn at random at every
start, so a counter that restarts at 1 is never used with the same key. A stored counter would have to be fsynced, and a
copy of the disk would repeat its values. `begin` draws a new salt after a resumption (`gossip.node.resumption`).

Only a datagram with a correct seal creates or refreshes the window of its salt, so unknown nodes cannot displace
windows. An attacker can replay a recorded datagram once to a node without the window of its salt. So the protocol above
does not depend on the windows. `secure_codec` lists the messages that may be sealed without a receiver.
"""

from collections import OrderedDict, deque
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct, field

from gossip.core.keyring import KEY_BYTES, KEY_ID_BYTES, LABEL_BYTES, Keyring, key_id
from gossip.core.member import NODE_ID_BYTES, NodeId, NodeInfo
from gossip.core.messages import CountedDrop
from gossip.wire.codec import Code

SALT_BYTES: Final = 16
COUNTER_BYTES: Final = 8
TAG_BYTES: Final = 16
VERSION: Final = 1
"""The version of the remaining header, the seal and the bodies."""
PREFIX_BYTES: Final = 2 + LABEL_BYTES
"""Code, version and label."""
HEADER_BYTES: Final = PREFIX_BYTES + KEY_ID_BYTES + SALT_BYTES + COUNTER_BYTES
OVERHEAD_BYTES: Final = HEADER_BYTES - 1 + NODE_ID_BYTES + TAG_BYTES
ANY_NODE: Final = NodeId(bytes(NODE_ID_BYTES))
"""The receiver, if the sender does not know it."""
SALT_LIMIT: Final = 4096
OWN_SALTS_REMEMBERED: Final = 8
"""The number of salts of this node, the current one included, kept to recognize its own datagrams."""
WINDOW: Final = 1024
_VERSION_BYTE: Final = bytes([VERSION])
_FARM: Final = slice(1, PREFIX_BYTES)
"""Version and label."""
_LABEL: Final = slice(2, PREFIX_BYTES)
_KEY_ID: Final = slice(PREFIX_BYTES, PREFIX_BYTES + KEY_ID_BYTES)
_ORIGIN: Final = slice(_KEY_ID.start, _KEY_ID.stop + SALT_BYTES)
_COUNTER: Final = slice(_ORIGIN.stop, HEADER_BYTES)
_CODES: Final = frozenset(Code)
_NONCE_PREFIX: Final = bytes(12 - COUNTER_BYTES)
"""A nonce has twelve bytes: the counter, and zeros before it."""
_COUNTER_LIMIT: Final = (1 << 8 * COUNTER_BYTES) - 1


class SealFault(CountedDrop):
    """Datagrams that the codec does not accept."""

    BAD_SEAL = "bad-seal", "datagrams with a wrong seal: damaged or forged"
    ECHO = "echo", "datagrams that this node sent itself"
    FOREIGN_VERSION = "foreign-version", "datagrams of another version of the protocol"
    FORGED = "forged", "datagrams with a signature that does not verify"
    MALFORMED = "malformed", "datagrams with a correct seal and a wrong format"
    MISADDRESSED = "misaddressed", "datagrams for another node"
    OTHER_FARM = "other-farm", "datagrams with the label of another farm"
    REPLAY = "replay", "datagrams that this node has received before"
    RETIRED_KEY = "retired-key", "datagrams sealed with a key that the farm has removed"
    SHORT = "short", "datagrams too short for a seal"
    UNKNOWN_KEY = "unknown-key", "datagrams sealed with a key that this node does not have"


class RefusedError(Exception):
    """A datagram that the core must not see.

    `outdated`: the applicant whose key is out of date, and the key's id. `version`: the sender's.
    """

    def __init__(
        self, reason: SealFault, outdated: tuple[NodeInfo, bytes] | None = None, version: int = VERSION
    ) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.outdated = outdated
        self.version = version


def prefix(code: int, label: bytes) -> bytes:
    """Return the first bytes of every sealed or boxed datagram."""
    return bytes((code, VERSION)) + label


def farm_named(datagram: bytes) -> bytes | None:
    """Return the label that a datagram of this version claims; None if it is not such a datagram.

    The label is not proved. Random bytes resemble a datagram one time in six thousand.
    """
    if len(datagram) < 1 + OVERHEAD_BYTES or datagram[1] != VERSION or datagram[0] not in _CODES:
        return None
    return datagram[_LABEL]


def derive(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    """Return one 32-byte key for one purpose."""
    return HKDF(SHA256(), KEY_BYTES, salt, b"garlic farm, gossip 1: " + purpose).derive(key)


class _Window(Struct):
    """The accepted counters among the last `WINDOW` of a salt, as bits: bit 0 is `highest`."""

    highest: int = 0
    taken: int = 0

    def fresh(self, counter: int) -> bool:
        behind = self.highest - counter
        return behind < 0 or (behind < WINDOW and not self.taken >> behind & 1)

    def take(self, counter: int) -> None:
        ahead = counter - self.highest
        if ahead >= WINDOW:  # limited: a counter far ahead must not cause a large shift
            self.highest, self.taken = counter, 1
        elif ahead > 0:
            self.highest, self.taken = counter, (self.taken << ahead | 1) & ((1 << WINDOW) - 1)
        else:
            self.taken |= 1 << -ahead


class _Salt(Struct):
    """The cipher and the window for one salt of another node under one key."""

    cipher: ChaCha20Poly1305
    window: _Window = field(default_factory=_Window)


class Opened(Struct, frozen=True, gc=False):
    """A datagram's plain text, and the id of its key if retired, or outdated (it opens, but is not primary)."""

    plain: bytes
    retired_key_id: bytes = b""
    outdated_key_id: bytes = b""
    names_receiver: bool = False
    """The datagram is sealed for this node only, not for every node that can open it."""


class Unsealed:
    """Code, version and body in clear, for tests and for `--insecure`. Nothing is bound to its receiver."""

    overhead_bytes: Final = 1

    def seal(
        self,
        plain: bytes,
        receiver: NodeId = ANY_NODE,  # noqa: ARG002 - as in `Sealed`
        reply_key_id: bytes = b"",  # noqa: ARG002 - as in `Sealed`
    ) -> bytes:
        """Return the same bytes with the version."""
        return plain[:1] + _VERSION_BYTE + plain[1:]

    def open(self, datagram: bytes) -> Opened:
        """Return the same bytes without the version."""
        if len(datagram) <= 1:
            raise RefusedError(SealFault.SHORT)
        if datagram[1] != VERSION:
            raise RefusedError(SealFault.FOREIGN_VERSION, version=datagram[1])
        return Opened(datagram[:1] + datagram[2:], names_receiver=True)


class Sealed:
    """The envelope of one start of a node: its own salt and counter, and the salts of other nodes."""

    overhead_bytes: Final = OVERHEAD_BYTES

    def __init__(self, ring: Keyring, salt: bytes, node_id: NodeId, salt_limit: int = SALT_LIMIT) -> None:
        if len(salt) != SALT_BYTES:
            raise ValueError(f"a boot salt has {SALT_BYTES} bytes, not {len(salt)}")
        self.label = ring.label
        self._farm = _VERSION_BYTE + ring.label
        self._salt = salt
        self._own_salts: deque[bytes] = deque([salt], OWN_SALTS_REMEMBERED)
        self._receivers = frozenset({node_id, ANY_NODE})
        self._salt_limit = salt_limit
        self._counter = 0
        self._salts: OrderedDict[bytes, _Salt] = OrderedDict()
        """The salts of other nodes by key id and salt, as in the header."""
        self.use(ring)

    def begin(self, salt: bytes) -> None:
        """Seal under a new salt: a copy of this process may have used the same counters under the last salt."""
        self._salt = salt
        self._own_salts.append(salt)
        self._counter = 0
        self._name_keys()

    def use(self, ring: Keyring) -> None:
        """Seal and open with another ring of the same farm. Counter and windows continue: nonces do not repeat."""
        self._keys = {key_id(key): key for key in (ring.primary, *ring.others, *ring.retired)}
        self._primary_id = key_id(ring.primary)
        self._retired_ids = frozenset(key_id(key) for key in ring.retired)
        self._name_keys()

    def _name_keys(self) -> None:
        self._own = {
            each: (self._farm + each + self._salt, _cipher(key, self._salt).encrypt) for each, key in self._keys.items()
        }

    def seal(self, plain: bytes, receiver: NodeId = ANY_NODE, reply_key_id: bytes = b"") -> bytes:
        """Seal for `receiver` with the primary key, or with another key that the receiver has (`reply_key_id`)."""
        if self._counter >= _COUNTER_LIMIT:
            raise OverflowError("the datagram counter is used up: restart the node")
        self._counter += 1
        counter = self._counter.to_bytes(COUNTER_BYTES, "big")
        names, encrypt = self._own[reply_key_id or self._primary_id]
        header = plain[:1] + names + counter
        return header + encrypt(_NONCE_PREFIX + counter, receiver + plain[1:], header)

    def open(self, datagram: bytes) -> Opened:
        """Check label, key, window, tag and receiver, in the order of their cost; then record the counter."""
        used = datagram[_KEY_ID]
        is_retired = used in self._retired_ids
        if datagram[_FARM] != self._farm or used not in self._keys or is_retired or len(datagram) < 1 + OVERHEAD_BYTES:
            self._require_ours(datagram)
        origin = datagram[_ORIGIN]
        entry = self._salts.get(origin)
        counter_bytes = datagram[_COUNTER]
        counter = int.from_bytes(counter_bytes, "big")
        if entry is None:
            salt = origin[KEY_ID_BYTES:]
            if salt in self._own_salts:
                raise RefusedError(SealFault.ECHO)
            entry = _Salt(_cipher(self._keys[used], salt))
        elif not entry.window.fresh(counter):
            raise RefusedError(SealFault.REPLAY)
        header = datagram[:HEADER_BYTES]
        try:
            sealed = entry.cipher.decrypt(_NONCE_PREFIX + counter_bytes, datagram[HEADER_BYTES:], header)
        except InvalidTag:
            raise RefusedError(SealFault.BAD_SEAL) from None
        receiver = sealed[:NODE_ID_BYTES]
        if receiver not in self._receivers:
            raise RefusedError(SealFault.MISADDRESSED)
        plain = header[:1] + sealed[NODE_ID_BYTES:]
        names_receiver = receiver != ANY_NODE
        if is_retired:
            return Opened(plain, used, b"", names_receiver)
        entry.window.take(counter)
        self._remember(origin, entry)
        return Opened(plain, b"", b"" if used == self._primary_id else used, names_receiver)

    def _require_ours(self, datagram: bytes) -> None:
        """Raise the reason to refuse a datagram unopened; accept a JoinReq under a retired key."""
        if len(datagram) < PREFIX_BYTES:
            raise RefusedError(SealFault.SHORT)
        if datagram[_LABEL] != self.label:
            raise RefusedError(SealFault.OTHER_FARM)
        if datagram[1] != VERSION:
            raise RefusedError(SealFault.FOREIGN_VERSION, version=datagram[1])
        if len(datagram) < 1 + OVERHEAD_BYTES:
            raise RefusedError(SealFault.SHORT)
        if datagram[_KEY_ID] not in self._keys:
            raise RefusedError(SealFault.UNKNOWN_KEY)
        if datagram[0] != Code.JOIN_REQ:
            raise RefusedError(SealFault.RETIRED_KEY)

    def _remember(self, origin: bytes, entry: _Salt) -> None:
        self._salts[origin] = entry
        self._salts.move_to_end(origin)
        if len(self._salts) > self._salt_limit:
            self._salts.popitem(last=False)


def _cipher(key: bytes, salt: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(derive(key, salt, b"datagram"))


Envelope = Sealed | Unsealed
"""The conversion of the plain datagram (code byte and body) to the datagram on the wire, and back."""
