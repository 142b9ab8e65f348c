"""Converts messages of one node to sealed datagrams and back, by the parts of `gossip.wire` in their order.

    out   message -> endorse (signatures, join auth) -> encode within the size -> seal for its receiver
    in    datagram -> open the seal -> decode -> receiver -> authenticate -> token, auth, conflict -> Received

These messages may omit the receiver, since their sender does not always know it:

- JoinReq: it is for the node at an address;
- Broadcast;
- KeyringUpdate: it is the same for all members, and merges in any order;
- a response on its way back through a helper. The target does not know the helper's id, and the helper accepts it only
  for a request that it relayed.

If anything is wrong with a datagram, `incoming` raises `RefusedError` with the reason to count. The codec does no I/O
and gets the time from its caller, so simulations run it unchanged.
"""

import hmac
from collections import deque
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gossip.core.events import Received
from gossip.core.keyring import Keyring
from gossip.core.member import Address, NodeId
from gossip.core.messages import Broadcast, JoinReq, KeyringUpdate, Message, PingResponse
from gossip.wire.box import BOX_OVERHEAD_BYTES, BoxError, box, is_boxed, unbox
from gossip.wire.codec import DatagramError, decode, encode
from gossip.wire.identity import PUBLIC_KEY_BYTES, ForgedError, Signer, Verifier, conflict_proof, proves_conflict
from gossip.wire.seal import (
    ANY_NODE,
    OWN_SALTS_REMEMBERED,
    SALT_BYTES,
    Envelope,
    Opened,
    RefusedError,
    Sealed,
    SealFault,
    Unsealed,
    derive,
)
from gossip.wire.token import TOKEN_SECRET_BYTES, TokenMint, join_auth

SECRETS_BYTES: Final = SALT_BYTES + TOKEN_SECRET_BYTES
BOXES_REMEMBERED: Final = 64
"""The number of recorded boxes; unreadable boxes are not recorded. The keys of older boxes are merged already."""
DATAGRAM_LIMIT_BYTES: Final = 1400
"""The size limit. Such a datagram fits an Ethernet frame in the usual tunnels. Larger ones are split, and lost with any
fragment."""


class Incoming(Struct, frozen=True, gc=False):
    """The event for the core, and the number of unproved infos removed from it."""

    received: Received
    piggyback_left_out: int = 0
    outdated_key_id: bytes = b""
    """The id of the sender's key if it opens but is not the primary: the sender may need this node's keyring."""


class SecureCodec:
    """The codec of one start of a node, under its farm's keys, or in clear without a ring."""

    def __init__(
        self, signer: Signer, ring: Keyring | None, secrets: bytes, limit_bytes: int = DATAGRAM_LIMIT_BYTES
    ) -> None:
        """Create a codec. `secrets`: `SECRETS_BYTES` fresh from the system's random source, new for each start."""
        if len(secrets) != SECRETS_BYTES:
            raise ValueError(f"expected {SECRETS_BYTES} fresh random bytes, not {len(secrets)}")
        self._life, token_secret = secrets[:SALT_BYTES], secrets[SALT_BYTES:]
        self._lives: deque[bytes] = deque([self._life], OWN_SALTS_REMEMBERED)
        self._signer = signer
        self._verifier = Verifier()
        self._sealed = None if ring is None else Sealed(ring, self._life, signer.node_id)
        self._envelope: Envelope = self._sealed or Unsealed()
        self._mint = TokenMint(signer.node_id, token_secret)
        self._boxes: deque[bytes] = deque(maxlen=BOXES_REMEMBERED)
        self._join_keys = _join_keys(ring)
        self._limit_bytes = limit_bytes

    def renew_secrets(self, secrets: bytes) -> None:
        """Continue under fresh `secrets` (`SECRETS_BYTES`), after this process was resumed from an earlier moment."""
        self._life, token_secret = secrets[:SALT_BYTES], secrets[SALT_BYTES:SECRETS_BYTES]
        self._lives.append(self._life)
        self._mint = TokenMint(self._signer.node_id, token_secret)
        if self._sealed is not None:
            self._sealed.begin(self._life)

    def use(self, ring: Keyring) -> None:
        """Seal, open and admit with another ring of the same farm."""
        if self._sealed is None:
            raise ValueError("datagrams in clear do not have keys to change")
        self._sealed.use(ring)
        self._join_keys = _join_keys(ring)

    def outgoing(
        self,
        message: Message,
        receiver: NodeId | None = None,
        reply_key_id: bytes = b"",
        limit_bytes: int | None = None,
    ) -> bytes:
        """Return the datagram for a message of the core; raise DatagramError if it does not fit.

        `receiver`: None if not known, only for the messages that the module lists. `reply_key_id`: seal with this key
        of the ring, since the receiver may not hold a newer one. `limit_bytes`: the size limit of a reply, below the
        usual limit.
        """
        message = self._signer.endorse(message)
        if isinstance(message, JoinReq) and message.token and self._join_keys:
            message = replace(message, auth=join_auth(self._join_keys[0], message.token, message.source))
        elif isinstance(message, PingResponse) and self._is_about_conflict(message):
            message = replace(message, proof=conflict_proof(self._signer.key, self._life, message.seq))
        most_bytes = self._limit_bytes if limit_bytes is None else min(limit_bytes, self._limit_bytes)
        plain = encode(message, most_bytes - self._envelope.overhead_bytes)
        return self._envelope.seal(plain, receiver or ANY_NODE, reply_key_id)

    def boxed(self, message: KeyringUpdate, credential: bytes) -> bytes:
        """Return a keyring update for the identity of this credential only; raise DatagramError if impossible."""
        if self._sealed is None:
            raise DatagramError("datagrams in clear do not have keys to distribute")
        plain = encode(self._signer.endorse(message), self._limit_bytes - BOX_OVERHEAD_BYTES)
        try:
            return box(plain, credential[:PUBLIC_KEY_BYTES], self._sealed.label)
        except BoxError as error:
            raise DatagramError(str(error)) from error

    def incoming(self, datagram: bytes, source: Address, now_ms: int) -> Incoming:
        """Return the event for the core in a datagram from `source`, or raise RefusedError."""
        boxed = self.is_boxed(datagram)
        opened = self._unboxed(datagram) if boxed else self._envelope.open(datagram)
        try:
            decoded = decode(opened.plain)
            if not (opened.names_receiver or self._may_be_for_any_node(decoded)):
                raise RefusedError(SealFault.MISADDRESSED)
            message, left_out = self._verifier.authenticate(decoded)
        except DatagramError as error:
            raise RefusedError(SealFault.MALFORMED) from error
        except ForgedError as error:
            raise RefusedError(SealFault.FORGED) from error
        if opened.retired_key_id:
            outdated = (message.source, opened.retired_key_id) if isinstance(message, JoinReq) else None
            raise RefusedError(SealFault.RETIRED_KEY, outdated)
        if isinstance(message, PingResponse) and self._is_about_conflict(message):
            if not proves_conflict(message.proof, self._signer.node_id, self._lives, message.seq):
                raise RefusedError(SealFault.FORGED)
            message = replace(message, proof=b"")
        admitted = isinstance(message, JoinReq) and self._admits(message, source, now_ms)
        received = Received(source, message, token_valid=admitted, boxed=boxed, size_bytes=len(datagram))
        return Incoming(received, left_out, opened.outdated_key_id)

    def is_boxed(self, datagram: bytes) -> bool:
        """Return True if a datagram must be opened with the identity's key, which costs more than opening a seal."""
        return self._sealed is not None and is_boxed(datagram, self._sealed.label)

    def _unboxed(self, datagram: bytes) -> Opened:
        if datagram in self._boxes:
            raise RefusedError(SealFault.REPLAY)
        try:
            plain = unbox(datagram, self._signer.key)
        except BoxError as error:
            raise RefusedError(SealFault.BAD_SEAL) from error
        self._boxes.append(datagram)
        return Opened(plain, names_receiver=True)

    def mint_token(self, address: Address, applicant: NodeId, now_ms: int) -> bytes:
        """Return the token that lets `applicant` at `address` join within the next seconds."""
        return self._mint.mint(address, applicant, now_ms)

    def _is_about_conflict(self, response: PingResponse) -> bool:
        """Return True if a message answers this node's ping to its own id, which detects other users of the id."""
        return response.source_id == response.target_id == self._signer.node_id

    def _may_be_for_any_node(self, message: Message) -> bool:
        if isinstance(message, PingResponse):
            return message.source_id != self._signer.node_id
        return isinstance(message, JoinReq | Broadcast | KeyringUpdate)

    def _admits(self, request: JoinReq, source: Address, now_ms: int) -> bool:
        if not self._mint.recognizes(request.token, source, request.source.node_id, now_ms):
            return False
        if not self._join_keys:
            return True
        return any(
            hmac.compare_digest(request.auth, join_auth(key, request.token, request.source)) for key in self._join_keys
        )


def _join_keys(ring: Keyring | None) -> tuple[bytes, ...]:
    usable = () if ring is None else (ring.primary, *ring.others)
    return tuple(derive(key, b"", b"join auth") for key in usable)
