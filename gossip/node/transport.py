"""The datagrams of one node, in and out: sockets, codec, limits and counters.

    node's socket ------------------------------+
    broadcast socket --> watcher --> a queue ---+--> wait, take a batch --> open --> events for the core
    doorbell, deadline -------------------------+

    Send, Announce, OfferToken ──▶ seal ──▶ post

The owner of the core reads the node's socket itself, in one scope until the doorbell rings or the deadline comes. A
separate reader task would cost two task switches, often for a single datagram. Only the broadcast socket has a separate
task, since a task can wait for one socket only.

A batch has the queued broadcasts and at most `BATCH` datagrams of the node's socket: a flood must not block other tasks
and deadlines. Later datagrams wait in the kernel, which drops the excess.

Unreadable datagrams come last in a batch, since the same batch may hold the keys that open them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import trio

from gossip.core.effects import Alarm, KeyringUpdateRefused, Send
from gossip.core.events import Received, Unreadable
from gossip.core.keyring import Keyring
from gossip.core.member import Address, NodeId
from gossip.core.messages import DOMAIN, Broadcast, JoinNak, JoinReq, KeyringUpdate, Message, RefusalCode
from gossip.node.discovery import Discovery
from gossip.node.endpoints import may_gossip
from gossip.node.limits import Counters, ForeignVersions, Loss, OtherFarms, SourceLimits, offer_to
from gossip.node.resumption import ResumptionWatch
from gossip.node.settings import GroupSettings
from gossip.node.udp import DatagramSocket
from gossip.wire.codec import DatagramError
from gossip.wire.identity import Signer
from gossip.wire.seal import RefusedError, SealFault, farm_named
from gossip.wire.secure_codec import SECRETS_BYTES, SecureCodec

BATCH: Final = 64
BROADCASTS_LIMIT: Final = 256
"""The maximum number of waiting broadcasts; each sender repeats its own."""
_NEWCOMERS: Final = (JoinReq, Broadcast)
_UNREADABLE: Final = frozenset({SealFault.UNKNOWN_KEY, SealFault.RETIRED_KEY})

Datagram = tuple[bytes, Address]
"""The bytes, and the address of their sender or receiver."""


AnswerBudget = list[int]
"""A list of one number: the bytes that may still be sent to the unproved source of one datagram."""


class DatagramTransport:
    """The datagrams of one node, and the counters of dropped ones."""

    def __init__(
        self,
        settings: GroupSettings,
        signer: Signer,
        keyring: Keyring | None,
        socket: DatagramSocket,
        discovery: Discovery | None,
        publish: Callable[[Alarm | KeyringUpdateRefused], None],
    ) -> None:
        self._settings = settings
        self._socket = socket
        self._discovery = discovery
        self._publish = publish
        self._resumption = ResumptionWatch(settings.clocks)
        secrets = self._resumption.fresh_secrets(SECRETS_BYTES)
        self._codec = SecureCodec(signer, keyring, secrets, settings.datagram_limit_bytes)
        self._limits = SourceLimits()
        self._broadcasts: deque[Datagram] = deque()
        self._waiting = trio.CancelScope()
        self._is_more = False
        self.keyring = keyring
        self.counters = Counters()
        self.foreign_versions = ForeignVersions(publish)
        self.other_farms = OtherFarms()
        self.is_rung = False
        """True if the doorbell rang; the owner resets it."""

    def use(self, keyring: Keyring) -> None:
        """Seal and open with other keys of the same farm."""
        self._codec.use(keyring)
        self.keyring = keyring

    def overflowed(self) -> int:
        """Return the number of datagrams that the kernel dropped because its queue was full."""
        return self._socket.overflowed()

    # -- in ------------------------------------------------------------------------------------------------------------

    def ring_doorbell(self) -> None:
        """Wake the owner for a reason other than a datagram."""
        self.is_rung = True
        self._waiting.cancel()

    def until(self, deadline_s: float) -> trio.CancelScope:
        """Return the scope of the owner's wait for datagrams, which ends at the doorbell or the deadline."""
        self._waiting = trio.CancelScope(deadline=deadline_s)
        if self.is_rung:
            self._waiting.cancel()
        return self._waiting

    async def readable(self) -> None:
        """Wait until a datagram is available. Other tasks always get a turn."""
        if self._is_more or self._broadcasts:
            await trio.lowlevel.checkpoint()
        else:
            await self._socket.readable()

    def take(self) -> list[Datagram]:
        """Return the waiting datagrams, up to a batch."""
        arrivals = list(self._broadcasts)
        self._broadcasts.clear()
        receive = self._socket.receive_waiting
        for _ in range(BATCH):
            arrival = receive()
            if arrival is None:
                self._is_more = False
                return arrivals
            if self._is_within_size(arrival[0]):
                arrivals.append(arrival)
        self._is_more = True
        return arrivals

    async def watch_broadcasts(self, broadcast_socket: DatagramSocket) -> None:
        """Queue datagrams of the broadcast socket."""
        while True:
            await broadcast_socket.readable()
            for _ in range(BATCH):
                arrival = broadcast_socket.receive_waiting()
                if arrival is None:
                    break
                self._queue(arrival)

    def _queue(self, arrival: Datagram) -> None:
        if not self._is_within_size(arrival[0]):
            return
        if not Discovery.is_presence(arrival[0]):
            self.counters.drop(Loss.MISPLACED)
        elif len(self._broadcasts) >= BROADCASTS_LIMIT:
            self.counters.drop(Loss.OVERLOADED)
        else:
            self._broadcasts.append(arrival)
            self._waiting.cancel()

    def _is_within_size(self, datagram: bytes) -> bool:
        self.counters.received += 1
        self.counters.received_bytes += len(datagram)
        if len(datagram) <= self._settings.datagram_limit_bytes:
            return True
        self.counters.drop(Loss.OVERSIZE)
        return False

    def open(self, arrivals: Sequence[Datagram], now_ms: int) -> list[Received | Unreadable]:
        """Return the events of a batch for the core. Send refusals immediately."""
        received: list[Received | Unreadable] = []
        unreadable: list[Unreadable] = []
        for datagram, source in arrivals:
            try:
                event = self._open(datagram, source, now_ms)
            except Exception as error:  # noqa: BLE001 - logged
                self.counters.failed(error)
                continue
            if isinstance(event, Received):
                received.append(event)
            elif event is not None and self._limits.key_repairs.allows(source.host, now_ms):
                unreadable.append(event)
        return received + unreadable

    def _open(self, datagram: bytes, source: Address, now_ms: int) -> Received | Unreadable | None:
        if self._codec.is_boxed(datagram) and not self._limits.boxes.allows(source.host, now_ms):
            self.counters.drop(Loss.RATE_LIMITED)
            return None
        try:
            incoming = self._codec.incoming(datagram, source, now_ms)
        except RefusedError as error:
            self.counters.drop(error.reason)
            return self._refused(error, datagram, source, now_ms)
        self.counters.piggyback_left_out += incoming.piggyback_left_out
        if incoming.outdated_key_id:
            self._send_keyring(source, incoming.outdated_key_id, now_ms)
        message = incoming.received.message
        # This limit follows the check of the seal, so that only holders of the farm's key can use up a source's share.
        if isinstance(message, _NEWCOMERS) and not self._limits.newcomers.allows(source.host, now_ms):
            self.counters.drop(Loss.RATE_LIMITED)
            return None
        if isinstance(message, KeyringUpdate) and not self._settings.may_send_keys(message.sender):
            self.counters.drop(Loss.KEYRING_UNAUTHORIZED)
            if self._limits.refused_keyrings.take(now_ms):
                self._publish(KeyringUpdateRefused(message.sender, source))
            return None
        return incoming.received

    def _refused(self, error: RefusedError, datagram: bytes, source: Address, now_ms: int) -> Unreadable | None:
        if error.reason is SealFault.FOREIGN_VERSION:
            self.foreign_versions.record(source, error.version, now_ms)
        elif error.reason is SealFault.OTHER_FARM:
            label = farm_named(datagram)
            if label is not None:
                self.other_farms.record(source, label, now_ms)
        elif error.outdated is not None:
            applicant, key_id = error.outdated
            offer = offer_to(applicant, self._settings.offer_keys)
            nak = JoinNak(DOMAIN, RefusalCode.KEY_RETIRED, offer, applicant.incarnation.generation)
            self._refuse(source, nak, applicant.node_id, now_ms, key_id)
        elif error.reason in _UNREADABLE:
            return Unreadable(source, is_retired=error.reason is SealFault.RETIRED_KEY)
        return None

    def _send_keyring(self, target: Address, known_key_id: bytes, now_ms: int) -> None:
        """Send the keyring to a sender with a replaced key, which may be unable to read this node's datagrams."""
        if self.keyring is not None and self._limits.key_repairs.allows(target.host, now_ms):
            self.post(self._seal(target, KeyringUpdate(self.keyring), None, known_key_id))

    # -- out -----------------------------------------------------------------------------------------------------------

    def seal(self, effect: Send, budget: AnswerBudget) -> Iterable[Datagram]:
        """Return the datagram of an effect; empty if it must not or cannot be sent."""
        if effect.is_limited:
            sealed = tuple(self._seal(effect.target, effect.message, effect.recipient, limit_bytes=budget[0]))
            budget[0] -= sum(len(datagram) for datagram, _ in sealed)
            return sealed
        if not effect.boxed_for:
            return self._seal(effect.target, effect.message, effect.recipient)
        may_read = effect.recipient is not None and self._settings.may_send_keys(effect.recipient)
        if not may_read or not isinstance(effect.message, KeyringUpdate):
            return ()
        try:
            return ((self._codec.boxed(effect.message, effect.boxed_for), effect.target),)
        except DatagramError:
            self.counters.drop(Loss.UNENCODABLE)
            return ()

    def _seal(
        self,
        target: Address,
        message: Message,
        recipient: NodeId | None,
        reply_key_id: bytes = b"",
        limit_bytes: int | None = None,
    ) -> Iterable[Datagram]:
        if not self._settings.allow_wan and not may_gossip(target.host):
            self.counters.drop(Loss.WIDE_AREA)
            return ()
        if self._resumption.resumed():
            self._codec.renew_secrets(self._resumption.fresh_secrets(SECRETS_BYTES))
            self.counters.resumptions += 1
        try:
            return ((self._codec.outgoing(message, recipient, reply_key_id, limit_bytes), target),)
        except DatagramError:
            self.counters.drop(Loss.UNENCODABLE if limit_bytes is None else Loss.LARGER_THAN_QUESTION)
            return ()

    def post(self, sealed: Iterable[Datagram]) -> None:
        """Send datagrams immediately; count each refused datagram as dropped."""
        for datagram, target in sealed:
            if self._socket.send(datagram, target):
                self.counters.sent += 1
                self.counters.sent_bytes += len(datagram)
            else:
                self.counters.drop(Loss.SEND_FAILED)

    def announce(self, message: Message, now_ms: int) -> None:
        """Broadcast presence, if there is a broadcast address."""
        if self._discovery is not None and self._discovery.may_announce(now_ms):
            self.post(self._seal(self._discovery.target, message, None))

    def offer_token(self, target: Address, applicant: NodeId, generation: int, now_ms: int) -> None:
        """Answer a JoinReq with the required token."""
        token = self._codec.mint_token(target, applicant, now_ms)
        self._refuse(target, JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, token, generation), applicant, now_ms)

    def _refuse(self, target: Address, nak: JoinNak, applicant: NodeId, now_ms: int, reply_key_id: bytes = b"") -> None:
        if self._limits.errors.allows(target.host, now_ms):
            self.post(self._seal(target, nak, applicant, reply_key_id))
        else:
            self.counters.drop(Loss.RATE_LIMITED)
