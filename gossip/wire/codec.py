"""One node's way from messages to datagrams and back: the wire floor's parts in their order.

    out   message -> endorse (signatures, join auth) -> encode within the size -> seal
    in    datagram -> open the seal -> decode -> authenticate -> token and auth -> Received

Whatever is wrong with what came in is one `RefusedError` with a reason to count. The codec does no I/O and is given the
time, so simulations run it as it is.
"""

import hmac
from dataclasses import replace
from typing import Final, NamedTuple

from gossip.core.events import Received
from gossip.core.member import Address, NodeId
from gossip.core.messages import JoinReq, Message
from gossip.wire.datagram import DatagramError, decode, encode
from gossip.wire.identity import ForgedError, Signer, Verifier
from gossip.wire.layout import Refusal
from gossip.wire.seal import SALT_BYTES, Envelope, KeyRing, Sealed, SealError, Unsealed, derive
from gossip.wire.token import TOKEN_SECRET_BYTES, TokenMint, join_auth

SECRETS_BYTES: Final = SALT_BYTES + TOKEN_SECRET_BYTES
DATAGRAM_LIMIT_BYTES: Final = 1400
"""Fits an Ethernet frame through the usual tunnels: a fragmented datagram is lost when any part is."""


class RefusedError(Exception):
    """A datagram that is not for the core. `retired_key_id` names the key of an applicant that must be told so."""

    def __init__(self, reason: Refusal, retired_key_id: bytes = b"") -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retired_key_id = retired_key_id


class Incoming(NamedTuple):
    """What the core is told, and how many unproved infos were left out of it."""

    received: Received
    riders_left_out: int = 0
    outdated_key_id: bytes = b""
    """The sender seals with a key that still opens but is no longer the primary: it has to hear of the new one."""


class Codec:
    """Messages of one node's life as datagrams, under its farm's keys (or in clear, without a ring)."""

    def __init__(
        self, signer: Signer, ring: KeyRing | None, secrets: bytes, limit_bytes: int = DATAGRAM_LIMIT_BYTES
    ) -> None:
        """`secrets`: `SECRETS_BYTES` fresh from the system's random source, new for each start."""
        if len(secrets) != SECRETS_BYTES:
            raise ValueError(f"expected {SECRETS_BYTES} fresh random bytes, not {len(secrets)}")
        salt, token_secret = secrets[:SALT_BYTES], secrets[SALT_BYTES:]
        self._signer = signer
        self._verifier = Verifier()
        self._sealed = None if ring is None else Sealed(ring, salt)
        self._envelope: Envelope = self._sealed or Unsealed()
        self._mint = TokenMint(signer.node_id, token_secret)
        self._join_keys = _join_keys(ring)
        self._limit_bytes = limit_bytes

    def use(self, ring: KeyRing) -> None:
        """Seal, open and admit with another ring of the same farm."""
        if self._sealed is None:
            raise ValueError("datagrams that travel in clear have no keys to change")
        self._sealed.use(ring)
        self._join_keys = _join_keys(ring)

    def outgoing(self, message: Message, answered_key_id: bytes = b"") -> bytes:
        """The datagram for a message of the core; `DatagramError` if it fits none.

        `answered_key_id`: for somebody who holds that key of the ring only.
        """
        message = self._signer.endorse(message)
        if isinstance(message, JoinReq) and message.token and self._join_keys:
            message = replace(message, auth=join_auth(self._join_keys[0], message.token, message.source))
        plain = encode(message, self._limit_bytes - self._envelope.overhead_bytes)
        return self._envelope.seal(plain, answered_key_id)

    def incoming(self, datagram: bytes, source: Address, now_ms: int) -> Incoming:
        """What a datagram from `source` tells the core, or `RefusedError`."""
        try:
            opened = self._envelope.open(datagram)
        except SealError as error:
            raise RefusedError(error.reason) from error
        if opened.retired_key_id:
            raise RefusedError(Refusal.RETIRED_KEY, opened.retired_key_id)
        try:
            message, left_out = self._verifier.authenticate(decode(opened.plain))
        except DatagramError as error:
            raise RefusedError(Refusal.MALFORMED) from error
        except ForgedError as error:
            raise RefusedError(Refusal.FORGED) from error
        admitted = isinstance(message, JoinReq) and self._admits(message, source, now_ms)
        return Incoming(Received(source, message, token_valid=admitted), left_out, opened.outdated_key_id)

    def mint_token(self, address: Address, applicant: NodeId, now_ms: int) -> bytes:
        """The token that lets `applicant` at `address` join within the next seconds."""
        return self._mint.mint(address, applicant, now_ms)

    def _admits(self, request: JoinReq, source: Address, now_ms: int) -> bool:
        if not self._mint.recognises(request.token, source, request.source.node_id, now_ms):
            return False
        if not self._join_keys:
            return True
        return any(
            hmac.compare_digest(request.auth, join_auth(key, request.token, request.source)) for key in self._join_keys
        )


def _join_keys(ring: KeyRing | None) -> tuple[bytes, ...]:
    usable = () if ring is None else (ring.primary, *ring.others)
    return tuple(derive(key, b"", b"join auth") for key in usable)
