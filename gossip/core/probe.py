"""Failure detection: one round per period, and the answers to other nodes' rounds.

    0 ─────────── timeout ──────────────────────────────── period
    ping the next  no answer: ask k helpers to ping it     still no answer: the target is suspect
    of the rotation (ttl, relay)                           (missing nacks count against ourselves)

Period and timeout are stretched by the local health multiplier. Most rounds probe peers; every few rounds one probes a
member of the directory, since a member whose peers all died with it would otherwise be thought alive for ever.

A ping addressed to another id is never answered for it: an address may have passed to another node. An answer counts
only for a ping that this node sent, to that id, under that number. Gossip pings, and pings towards the dead, use the
same messages but no round: their silence accuses nobody.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

from gossip.core.awareness import Awareness
from gossip.core.local_node import LocalNode
from gossip.core.member import Address, Incarnation, NodeId, Status
from gossip.core.membership import Entry, Membership
from gossip.core.messages import Payload, PingRequest, PingResponse, Update
from gossip.core.options import Options
from gossip.core.outbox import DropReason, Outbox
from gossip.core.piggyback import Piggyback, notice
from gossip.core.relay import Relays
from gossip.core.rotation import Rotation
from gossip.core.updates import Updates

_PENDING_LIMIT = 1_024
_NONCE_BITS = 64
"""A twin signs the number of the ping that asks it: one that nobody can have had signed before."""


class Answerer(Enum):
    """Who turned out to be at the other end of a ping."""

    MEMBER = "member"
    STRANGER = "stranger"
    IDENTITY_CONFLICT = "identity-conflict"
    NOBODY = "nobody"


@dataclass(slots=True)
class _Round:
    target: NodeId
    incarnation: Incarnation
    seq: int
    relay_at: int | None
    awaited_nacks: dict[Address, None]
    helpers_asked: int = 0
    answered: bool = False


@dataclass(frozen=True, slots=True)
class _Pending:
    target: NodeId
    sent_at: int


class Prober:
    """Sends and answers pings."""

    def __init__(
        self,
        own: LocalNode,
        membership: Membership,
        updates: Updates,
        composer: Piggyback,
        awareness: Awareness,
        outbox: Outbox,
        options: Options,
        random: Random,
        now: int,
    ) -> None:
        self._local = own
        self._membership = membership
        self._updates = updates
        self._piggyback = composer
        self._awareness = awareness
        self._outbox = outbox
        self._options = options
        self._random = random
        self._rotation = Rotation(random)
        self._relays = Relays(membership, outbox, options, random)
        self._round: _Round | None = None
        self._rounds = 0
        self._next_round_at = now + random.randrange(options.probe_period_ms)
        self._seq = random.getrandbits(32)
        self._pending: dict[int, _Pending] = {}

    @property
    def deadline(self) -> int:
        """When the round, or a relay, needs attention."""
        earliest = self._next_round_at
        current = self._round
        if current is not None and not current.answered and current.relay_at is not None:
            earliest = min(earliest, current.relay_at)
        relays_at = self._relays.deadline
        return earliest if relays_at is None else min(earliest, relays_at)

    def postpone(self, duration_ms: int) -> None:
        """This node stood still: answers to the present round may be waiting unread."""
        self._next_round_at += duration_ms
        current = self._round
        if current is not None and current.relay_at is not None:
            current.relay_at += duration_ms

    def expire(self, now: int) -> None:
        """Ask helpers, end the round, begin the next."""
        self._relays.expire(now)
        current = self._round
        if current is not None and not current.answered and current.relay_at is not None and current.relay_at <= now:
            current.relay_at = None
            self._ask_helpers(current)
        if self._next_round_at <= now:
            if current is not None and not current.answered:
                self._fail(current, now)
            self._begin(now)

    def _begin(self, now: int) -> None:
        period_ms = self._awareness.scale(self._options.probe_period_ms)
        self._next_round_at = now + period_ms
        self._round = None
        self._pending = {
            seq: pending for seq, pending in self._pending.items() if now - pending.sent_at < 5 * period_ms
        }
        self._ping_conflict_suspects(now)
        target = self._pick()
        if target is None:
            return
        seq = self.ping(target, now)
        timeout_ms = self._awareness.scale(self._options.probe_timeout_ms)
        self._round = _Round(target.node_id, target.incarnation, seq, now + timeout_ms, {})

    def _pick(self) -> Entry | None:
        if self._options.overlay:
            return self._membership.longest_silent()
        self._rounds += 1
        peer_id = None
        if self._rounds % self._options.scrub_every_rounds != 0:
            peer_id = self._rotation.next(self._membership.peer_ids())
        if peer_id is None:
            strangers = self._membership.strangers()
            if strangers:
                return self._random.choice(strangers)
            peer_id = self._rotation.next(self._membership.peer_ids())
        return self._membership.get(peer_id) if peer_id is not None else None

    def _ask_helpers(self, current: _Round) -> None:
        target = self._membership.get(current.target)
        if target is None:
            return
        able = [
            peer for peer in self._membership.peers() if peer.node_id != current.target and peer.status is Status.ALIVE
        ]
        for helper in self._random.sample(able, min(self._options.helpers, len(able))):
            if self._options.nacks:
                current.awaited_nacks[helper.address] = None
            current.helpers_asked += 1
            request = self._request(target, current.seq, self._options.relay_ttl, self._piggyback.bare(target))
            self._outbox.send(helper.address, request, helper.node_id)

    def _fail(self, current: _Round, now: int) -> None:
        self._awareness.adjust(self._own_fault(current))
        self._updates.accuse(current.target, current.incarnation, now)

    def _own_fault(self, current: _Round) -> int:
        """How much a failed round says against this node itself."""
        if not self._options.nacks or not current.helpers_asked:
            return 1
        if self._options.overlay:
            # Helpers die as often as targets, and long before this node hears of it: one that answers clears it.
            return int(len(current.awaited_nacks) == current.helpers_asked)
        return len(current.awaited_nacks)

    def _ping_conflict_suspects(self, now: int) -> None:
        for address in self._updates.conflict_suspects:
            own = self._local
            seq = self._random.getrandbits(_NONCE_BITS)
            self._expect(seq, own.node_id, now)
            ping = PingRequest(own.node_id, own.incarnation, own.node_id, own.incarnation, seq, 0)
            self._outbox.send(address, ping, own.node_id)
        self._updates.conflict_suspects.clear()

    def ping(self, target: Entry, now: int) -> int:
        """One direct ping with gossip on it; returns its number. Its silence accuses nobody by itself."""
        seq = self._take_seq(target.node_id, now)
        request = self._request(target, seq, 0, self._piggyback.question(target))
        self._outbox.send(target.address, request, target.node_id)
        return seq

    def verify_suspects(self, now: int) -> None:
        """Ask the suspects themselves, without waiting for the epidemic to bring their refutation."""
        for suspect in self._membership.sample(self._options.gossip_fanout, Status.SUSPECT):
            self.ping(suspect, now)

    def correct(self, target: Entry, address: Address, now: int) -> None:
        """Tell a node that speaks for an outdated claim of its own what we hold, so that it can refute."""
        seq = self._take_seq(target.node_id, now)
        payload = self._piggyback.question(target, (notice(target, self._local.node_id),))
        self._outbox.send(address, self._request(target, seq, 0, payload), target.node_id)

    def _take_seq(self, target: NodeId, now: int) -> int:
        self._seq = (self._seq + 1) % (1 << 32)
        self._expect(self._seq, target, now)
        return self._seq

    def _expect(self, seq: int, target: NodeId, now: int) -> None:
        while len(self._pending) >= _PENDING_LIMIT:
            del self._pending[next(iter(self._pending))]
        self._pending[seq] = _Pending(target, now)

    def _request(self, target: Entry, seq: int, ttl: int, payload: Payload) -> PingRequest:
        own = self._local
        return PingRequest(own.node_id, own.incarnation, target.node_id, target.incarnation, seq, ttl, payload=payload)

    def receive_request(self, source: Address, request: PingRequest, now: int) -> Answerer:
        """Answer a ping, or help with it. Says who the requester is, if the ping was a direct one to us."""
        own = self._local
        if request.source_id == own.node_id:
            self._receive_own_name(source, request)
            return Answerer.NOBODY
        if request.target_id != own.node_id:
            self._relays.pass_on(source, request, now)
            return Answerer.NOBODY
        self._updates.hear_payload(request.payload, now)
        self._updates.hear_of_self(request.target_incarnation, Status.ALIVE, now)
        entry = self._membership.get(request.source_id)
        first: tuple[Update, ...] = ()
        if entry is not None:
            self._note_room(entry, request.payload, now)
            if not entry.is_live or request.source_incarnation < entry.incarnation:
                first = (notice(entry, own.node_id),)
        self._answer(source, request, entry, first)
        if request.requester is not None or self._membership.is_peer(request.source_id):
            return Answerer.MEMBER
        return Answerer.STRANGER

    def _receive_own_name(self, source: Address, request: PingRequest) -> None:
        if request.seq in self._pending or request.target_id != self._local.node_id:
            # Our own ping came back to us: by another of our addresses, or by helpers in a circle.
            self._outbox.drop(DropReason.OWN_MESSAGE)
            return
        # Answered, so that the other one finds out; believed only once it answers a ping of ours.
        self._updates.suspect_conflict(source)
        self._answer(source, request, None, ())

    def _answer(self, source: Address, request: PingRequest, entry: Entry | None, first: tuple[Update, ...]) -> None:
        own = self._local
        with_own = request.target_incarnation < own.incarnation and not own.leaving
        payload = self._piggyback.answer(entry, first, with_own=with_own)
        response = PingResponse(
            request.source_id, own.node_id, own.incarnation, request.seq, request.ttl, payload=payload
        )
        # A relayed request does not tell which helper it came from.
        self._outbox.send(source, response, request.source_id if request.requester in {None, source} else None)
        if request.requester is not None and request.requester != source:
            self._outbox.send(request.requester, response, request.source_id)

    def receive_response(self, source: Address, response: PingResponse, now: int) -> Answerer:
        """An answer to one of our pings, or one to pass back. Says who answered."""
        own = self._local
        if response.source_id != own.node_id:
            if not self._relays.pass_back(response):
                self._outbox.drop(DropReason.UNMATCHED_RESPONSE)
            return Answerer.NOBODY
        pending = self._pending.get(response.seq)
        if pending is None or pending.target != response.target_id:
            self._outbox.drop(DropReason.UNMATCHED_RESPONSE)
            return Answerer.NOBODY
        current = self._round if self._round is not None and self._round.seq == response.seq else None
        if response.nack:
            if current is not None:
                current.awaited_nacks.pop(source, None)
            return Answerer.NOBODY
        del self._pending[response.seq]
        if response.target_id == own.node_id:
            return Answerer.IDENTITY_CONFLICT
        if current is not None:
            current.answered = True
            self._awareness.adjust(-1)
        self._updates.hear_payload(response.payload, now)
        entry = self._membership.get(response.target_id)
        if entry is not None:
            self._note_room(entry, response.payload, now)
            # Once helpers were asked it is unknown which of the requests is being answered.
            if source == entry.address and (current is None or not current.helpers_asked):
                entry.round_trip_ms = now - pending.sent_at
        return Answerer.MEMBER

    @staticmethod
    def _note_room(entry: Entry, payload: Payload, now: int) -> None:
        entry.heard_ms = entry.contact_ms = now
        entry.confirmed = True
        if payload.capacity > 0:
            entry.peer_count = payload.peer_count
