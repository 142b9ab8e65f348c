"""Failure detection: the probe rounds of this node, and the acks and relayed pings for other nodes' rounds.

    0 ─────────── timeout ──────────────────────────────── period
    ping the next  no ack: k helpers ping it as well       still no ack: the target is suspect
    of the rotation (ttl, relay)                           (missing nacks of helpers count against this node)

docs/explanation/gossip.md ("Probing") describes the round. docs/reference/gossip-protocol.md describes the relay of a
ping ("Relay"). Its section "Decisions" describes the pings to members that are not peers: scrubs, and pings to dead and
departed members.

A node begins one round per period. With the option `first_hand_verdicts`, it also begins a round for a member that
another node reports as suspect or dead. The local health multiplier lengthens period and timeout. In the periodic
rounds, a node probes its peers in rotation (SWIM paper, section 4.3). The rotation contains each peer once per pass,
so a failed peer is found within two passes. A random choice in each round would not limit this time. A new peer enters
the rotation at a random place, and the node shuffles the order after each pass. So members do not probe in a common
rhythm. With the option `overlay`, a node does not use the rotation: it probes the alive peer whose last message is the
oldest.

Pings outside of rounds use the same messages: pings that carry gossip, and pings to dead or departed members. If such a
ping is not acked, the node does not suspect the member.
"""

from collections.abc import Collection
from random import Random
from typing import Final

from msgspec import Struct, structs

from gossip.core.dissemination import Piggyback, notice
from gossip.core.effects import Context
from gossip.core.member import Address, Incarnation, NodeId, Status
from gossip.core.membership import MemberRecord
from gossip.core.messages import AliveUpdate, DropReason, Payload, PingRequest, PingResponse, Update
from gossip.core.updates import Updates

RELAY_TTL_MAX: Final = 8
"""The maximum ttl; a higher one counts as this value. Otherwise an unknown node could use 254 helpers with one
datagram.
"""
_PENDING_LIMIT: Final = 1_024
_NONCE_BITS: Final = 64
"""Number of random bits in a ping to a possible second instance of this node. That instance signs the number in its
ack, so it must never have signed the number before."""
_SEQ_BITS: Final = 32
NUMBER_BYTES: Final = 8
"""Size in bytes of the proof (`etag`) in a message that ends a link: the link's secret, or the number of a recent ping.
An unknown node cannot guess either.
"""


class Rotation:
    """A shuffled ring over a set that changes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._order: list[NodeId] = []
        self._next = 0

    def next(self, current: Collection[NodeId]) -> NodeId | None:
        """Return the next node of `current`; first remove nodes outside `current`, and insert new ones at random."""
        self._follow(current)
        if not self._order:
            return None
        if self._next >= len(self._order):
            self._random.shuffle(self._order)
            self._next = 0
        chosen = self._order[self._next]
        self._next += 1
        return chosen

    def _follow(self, current: Collection[NodeId]) -> None:
        known = set(self._order)
        if known == set(current):
            return
        self._next = sum(1 for node_id in self._order[: self._next] if node_id in current)
        self._order = [node_id for node_id in self._order if node_id in current]
        for node_id in current:
            if node_id not in known:
                place = self._random.randint(0, len(self._order))
                self._order.insert(place, node_id)
                if place < self._next:
                    self._next += 1


class _Relay(Struct):
    previous_hop: Address
    nack_at: int | None
    forget_at: int
    request: PingRequest

    @property
    def previous_node(self) -> NodeId | None:
        """Id of the node that sent us the ping: the source if it came directly.

        None if a helper relayed the ping to us, because a ping does not contain its helper's id.
        """
        return self.request.source_id if self.request.requester is None else None


class Relays:
    """Pings that this node relayed for others."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.passed_on: dict[tuple[NodeId, NodeId, int], _Relay] = {}

    @property
    def deadline(self) -> int:
        """The time when the next nack is due or the next entry expires."""
        return min(relay.forget_at if relay.nack_at is None else relay.nack_at for relay in self.passed_on.values())

    def expire(self) -> None:
        """Send due nacks, and remove expired entries."""
        now = self._context.now
        for key, relay in list(self.passed_on.items()):
            if relay.nack_at is not None and relay.nack_at <= now:
                relay.nack_at = None
                ping = relay.request
                nack = PingResponse(ping.source_id, ping.target_id, ping.target_incarnation, ping.seq, 0, nack=True)
                self._context.send(relay.previous_hop, nack, relay.previous_node)
            if relay.forget_at <= now:
                del self.passed_on[key]

    def pass_on(self, source: Address, ping: PingRequest) -> None:
        """Relay a ping for another member toward its target, within the limit of ttl."""
        context, options = self._context, self._context.options
        key = (ping.source_id, ping.target_id, ping.seq)
        next_hop = self._next_hop(source, ping)
        if next_hop is None:
            context.drop(DropReason.NOT_THE_TARGET)
            return
        if key in self.passed_on:
            context.drop(DropReason.RELAY_REPEATED)
            return
        if len(self.passed_on) >= options.relays_limit:
            context.drop(DropReason.RELAY_TABLE_FULL)
            return
        forwarded = structs.replace(ping, ttl=min(ping.ttl, RELAY_TTL_MAX) - 1, requester=ping.requester or source)
        # Three quarters of the timeout, so that the nack arrives before the requester's round ends.
        nacks = options.nacks and (next_hop.node_id == ping.target_id or options.overlay)
        nack_at = context.now + options.probe_timeout_ms * 3 // 4 if nacks else None
        self.passed_on[key] = _Relay(source, nack_at, context.now + options.probe_period_ms, ping)
        context.send(next_hop.address, forwarded, next_hop.node_id)

    def _next_hop(self, source: Address, ping: PingRequest) -> MemberRecord | None:
        if ping.ttl < 1:
            return None
        members = self._context.members
        target = members.get(ping.target_id)
        if target is not None and target.status is not Status.LEFT:
            return target
        if ping.ttl < 2:  # noqa: PLR2004 - the last hop must be the target itself
            return None
        seen = {source, ping.requester}
        others = [peer for peer in members.peers() if peer.address not in seen and peer.node_id != ping.source_id]
        return self._context.random.choice(others) if others else None

    def pass_back(self, response: PingResponse) -> bool:
        """Pass a response to another node's ping back one hop. Return True if this node had relayed the ping."""
        key = (response.source_id, response.target_id, response.seq)
        relay = self.passed_on.get(key)
        if relay is None:
            return False
        if not response.nack:
            del self.passed_on[key]
        self._context.send(relay.previous_hop, response, relay.previous_node)
        return True


class _ProbeRound(Struct):
    target: NodeId
    incarnation: Incarnation
    seq: int
    relay_at: int | None
    awaited_nacks: dict[Address, None]
    helpers_pinged: int = 0
    is_answered: bool = False
    ends_at: int = 0
    """The end of the round; set only if another node's verdict started the round."""


class Prober:
    """Sends and acks pings."""

    def __init__(
        self, context: Context, updates: Updates, piggyback: Piggyback, first_round_at: int | None = None
    ) -> None:
        self._context = context
        self._local = context.local
        self._members = context.members
        self._options = options = context.options
        self._random = random = context.random
        self._updates = updates
        self._piggyback = piggyback
        self._rotation = Rotation(random)
        self._relays = Relays(context)
        self._round: _ProbeRound | None = None
        self._doubted: dict[int, _ProbeRound] = {}
        """Rounds that other nodes' verdicts started, by ping number."""
        self._rounds = 0
        random_start = context.now + random.randrange(options.probe_period_ms)
        self._first_round_at = self._next_round_at = random_start if first_round_at is None else first_round_at
        self._reconnect_at = context.now + options.reconnect_period_ms
        self._numbers: dict[int, NodeId] = {}
        """Target of each recent ping, by ping number, even after the ack. A message that ends a link may have one of
        these numbers as proof of its sender.
        """
        self._pending: dict[int, tuple[NodeId, int]] = {}
        """The target and send time of each ping that may still be acked, by its number."""

    @property
    def round_deadline(self) -> int:
        """The time of the next action for the round or a relay."""
        earliest = self._next_round_at
        current = self._round
        if current is not None and not current.is_answered and current.relay_at is not None:
            earliest = min(earliest, current.relay_at)
        for each in self._doubted.values():
            earliest = min(earliest, each.ends_at if each.relay_at is None else each.relay_at)
        return min(earliest, self._relays.deadline) if self._relays.passed_on else earliest

    @property
    def deadline(self) -> int:
        """The time of the next action for the round, a relay or a lost member."""
        return min(self.round_deadline, self._reconnect_at)

    def postpone(self, duration_ms: int) -> None:
        """Extend all rounds by the duration of a pause of this process: acks may still be unread in the socket."""
        self._next_round_at += duration_ms
        current = self._round
        for each in (current, *self._doubted.values()):
            if each is not None:
                each.ends_at += duration_ms
                each.relay_at = None if each.relay_at is None else each.relay_at + duration_ms

    def expire(self) -> None:
        """Ping through helpers, end the round, begin the next."""
        now = self._context.now
        if self.round_deadline <= now:
            self._relays.expire()
            self._expire_doubted()
            current = self._round
            is_open = current is not None and not current.is_answered
            if current is not None and is_open and current.relay_at is not None and current.relay_at <= now:
                current.relay_at = None
                self._ping_through_helpers(current)
            if self._next_round_at <= now:
                if current is not None and is_open:
                    self._local.awareness.adjust(self._own_fault(current))
                    self._updates.accuse(current.target, current.incarnation)
                self._begin()

    def _begin(self) -> None:
        now = self._context.now
        period_ms = self._local.awareness.scale(self._options.probe_period_ms)
        # Rounds keep the phase of the first one. After a late round, the next one comes within 3/4 to 7/4 of a period.
        earliest = now + period_ms - self._options.probe_period_ms // 4
        self._next_round_at = earliest + (self._first_round_at - earliest) % self._options.probe_period_ms
        self._round = None
        self._pending = {seq: sent for seq, sent in self._pending.items() if now - sent[1] < 5 * period_ms}
        self._ping_conflict_suspects()
        target = self._pick()
        if target is None:
            return
        seq = self.ping(target)
        timeout_ms = self._local.awareness.scale(self._options.probe_timeout_ms)
        self._round = _ProbeRound(target.node_id, target.incarnation, seq, now + timeout_ms, {})

    def _pick(self) -> MemberRecord | None:
        if self._options.overlay:
            return self._members.longest_silent()
        self._rounds += 1
        peer_id = None
        if self._rounds % self._options.scrub_every_rounds != 0:
            peer_id = self._rotation.next(self._members.links)
        if peer_id is None:
            unlinked = self._members.unlinked()
            if unlinked:
                return self._random.choice(unlinked)
            peer_id = self._rotation.next(self._members.links)
        return self._members.get(peer_id) if peer_id is not None else None

    def _ping_through_helpers(self, current: _ProbeRound) -> None:
        target = self._members.get(current.target)
        if target is None:
            return
        peers = self._members.peers()
        alive = [peer for peer in peers if peer.node_id != current.target and peer.status is Status.ALIVE]
        for helper in self._random.sample(alive, min(self._options.helpers, len(alive))):
            if self._options.nacks:
                current.awaited_nacks[helper.address] = None
            current.helpers_pinged += 1
            payload = self._piggyback.relayed_payload(target)
            ping = self._ping_to(target, current.seq, self._options.relay_ttl, payload)
            self._context.send(helper.address, ping, helper.node_id)

    def _own_fault(self, current: _ProbeRound) -> int:
        """Return how much a failed round adds to this node's own fault score (see `Awareness`)."""
        if not self._options.nacks or not current.helpers_pinged:
            return 1
        if self._options.overlay:
            # In an overlay, helpers die as frequently as targets, and this node detects their death late. So missing
            # nacks count only if all helpers failed to respond.
            return int(len(current.awaited_nacks) == current.helpers_pinged)
        return len(current.awaited_nacks)

    def _ping_conflict_suspects(self) -> None:
        own = self._local.info
        for address in self._updates.conflict_suspects:
            seq = self._random.getrandbits(_NONCE_BITS)
            self._expect(seq, own.node_id)
            # The ping contains this node's description, so that it is larger than the ack, which carries a signature.
            payload = Payload((AliveUpdate(own),))
            ping = PingRequest(own.node_id, own.incarnation, own.node_id, own.incarnation, seq, 0, payload=payload)
            self._context.send(address, ping, own.node_id)
        self._updates.conflict_suspects.clear()

    # -- pings of this node --------------------------------------------------------------------------------------------

    def ping(self, target: MemberRecord) -> int:
        """Send one direct ping with gossip; return its number. A missing ack alone does not make a member suspect."""
        seq = self._take_seq(target.node_id)
        ping = self._ping_to(target, seq, 0, self._piggyback.ping_payload(target))
        self._context.send(target.address, ping, target.node_id)
        return seq

    def verify_suspects(self) -> None:
        """Ping a few suspects, without waiting for gossip to deliver their refutation."""
        for suspect in self._members.sample(self._options.gossip_fanout, Status.SUSPECT):
            self.ping(suspect)

    def verify_doubted(self) -> None:
        """Probe, outside the regular rounds, the members that other nodes reported as suspect or dead."""
        awareness = self._local.awareness
        for node_id in self._updates.doubts.take_unprobed():
            entry = self._members.get(node_id)
            if entry is None or entry.status is not Status.ALIVE:
                self._updates.doubts.settle(node_id)
                continue
            seq, now = self.ping(entry), self._context.now
            timeout_ms = awareness.scale(self._options.probe_timeout_ms)
            ends_at = now + awareness.scale(self._options.probe_period_ms)
            self._doubted[seq] = _ProbeRound(node_id, entry.incarnation, seq, now + timeout_ms, {}, ends_at=ends_at)

    def _expire_doubted(self) -> None:
        now = self._context.now
        for seq, doubted in list(self._doubted.items()):
            if doubted.relay_at is not None and doubted.relay_at <= now:
                doubted.relay_at = None
                self._ping_through_helpers(doubted)
            if doubted.ends_at <= now:
                del self._doubted[seq]
                self._updates.doubts.settle(doubted.target)
                self._updates.accuse(doubted.target, doubted.incarnation)

    def _clear_doubts(self, node_id: NodeId) -> None:
        """End the doubts about a member that replied, since others' verdicts against it are false."""
        for seq in [seq for seq, each in self._doubted.items() if each.target == node_id]:
            del self._doubted[seq]
        self._updates.doubts.contradict(node_id)

    def reconnect(self) -> None:
        """Ping a dead or departed member if a ping is due."""
        now, members, options = self._context.now, self._members, self._options
        if now < self._reconnect_at:
            return
        if len(members) - members.live_count < max(members.live_count, 1):
            self._reconnect_at = now + self._random.randrange(1, 2 * options.reconnect_period_ms)
        else:
            self._reconnect_at = now + options.probe_period_ms
        lost = [*members.sample(1, Status.DEAD), *members.sample(1, Status.LEFT)]
        if lost:
            self.ping(lost[0] if len(lost) == 1 else self._random.choice(lost))

    def correct(self, target: MemberRecord, address: Address) -> None:
        """Send the target this node's record of it, so that it replies with a newer description."""
        seq = self._take_seq(target.node_id)
        payload = self._piggyback.ping_payload(target, (notice(target, self._local.node_id),))
        self._context.send(address, self._ping_to(target, seq, 0, payload), target.node_id)

    def _take_seq(self, target: NodeId) -> int:
        # Numbers are random: an unknown node that gets a ping must not be able to guess the numbers of pings to others.
        seq = self._random.getrandbits(_SEQ_BITS)
        self._expect(seq, target)
        while len(self._numbers) >= _PENDING_LIMIT:
            del self._numbers[next(iter(self._numbers))]
        self._numbers[seq] = target
        return seq

    def is_number_of_recent_ping(self, number: bytes, target: NodeId) -> bool:
        """Return True if one of the last pings to the target had this number, which no other node can guess."""
        return len(number) == NUMBER_BYTES and self._numbers.get(int.from_bytes(number)) == target

    def _expect(self, seq: int, target: NodeId) -> None:
        while len(self._pending) >= _PENDING_LIMIT:
            del self._pending[next(iter(self._pending))]
        self._pending[seq] = (target, self._context.now)

    def _ping_to(self, target: MemberRecord, seq: int, ttl: int, payload: Payload) -> PingRequest:
        own = self._local.info
        return PingRequest(own.node_id, own.incarnation, target.node_id, target.incarnation, seq, ttl, payload=payload)

    # -- pings of others -----------------------------------------------------------------------------------------------

    def is_for_us(self, source: Address, ping: PingRequest) -> bool:
        """Return True if another member pings this node, and handle any other ping.

        A ping for another member is relayed or dropped. A ping with this node's id as its source is dropped if it
        is this node's own ping. Otherwise another node uses the id, and this node acks the ping.
        """
        own_id = self._local.node_id
        if ping.source_id == own_id:
            if ping.seq in self._pending or ping.target_id != own_id:
                # This is this node's own ping: it was sent to another address of this node, or helpers relayed it back.
                self._context.drop(DropReason.OWN_MESSAGE)
            else:
                # Ack the ping, so that the other instance can detect the conflict. For this node the conflict is proved
                # only when the other instance acks a ping of this node.
                self._updates.suspect_conflict(source)
                self.ack(source, ping, None)
            return False
        if ping.target_id != own_id:
            self._relays.pass_on(source, ping)
            return False
        return True

    def ack(self, source: Address, ping: PingRequest, entry: MemberRecord | None) -> None:
        """Ack a ping; `entry` is the sender's member record, if known."""
        own = self._local.info
        first: list[Update] = []
        if entry is not None and (entry.status > Status.SUSPECT or ping.source_incarnation < entry.incarnation):
            first.append(notice(entry, own.node_id))
        if ping.target_incarnation < own.incarnation and not self._local.leaving:
            first.append(AliveUpdate(own))
        payload = self._piggyback.ack_payload(entry, first)
        ack = PingResponse(ping.source_id, own.node_id, own.incarnation, ping.seq, ping.ttl, payload=payload)
        is_direct = ping.requester is None or ping.requester == source
        # A relayed ping does not name its helper.
        self._context.send(source, ack, ping.source_id if is_direct else None)
        if ping.requester is not None and not is_direct:
            self._context.send(ping.requester, ack, ping.source_id)

    def _round_of(self, seq: int) -> tuple[bool, _ProbeRound | None]:
        """Return a pair: True if ping `seq` belongs to the round of this period, and the ping's probe round or None."""
        if self._round is not None and self._round.seq == seq:
            return True, self._round
        return False, self._doubted.get(seq)

    def matches(self, source: Address, response: PingResponse) -> bool:
        """Return True for an ack to a ping of this node. Any other response is passed back, counted or dropped."""
        own_id = self._local.node_id
        if response.source_id != own_id:
            if not self._relays.pass_back(response):
                self._context.drop(DropReason.UNMATCHED_RESPONSE)
            return False
        target, sent_at = self._pending.get(response.seq, (None, 0))
        if target != response.target_id:
            self._context.drop(DropReason.UNMATCHED_RESPONSE)
            return False
        is_round, current = self._round_of(response.seq)
        if response.nack:
            if current is not None:
                current.awaited_nacks.pop(source, None)
            return False
        del self._pending[response.seq]
        if response.target_id == own_id:
            return True
        if is_round and current is not None:
            current.is_answered = True
            self._local.awareness.adjust(-1)
        if self._doubted:
            self._clear_doubts(response.target_id)
        entry = self._members.get(response.target_id)
        if entry is not None and source == entry.address:
            self._note_direct_ack(entry, current, sent_at)
        return True

    def _note_direct_ack(self, entry: MemberRecord, current: _ProbeRound | None, sent_at: int) -> None:
        self._members.prove(entry, entry.address)
        # If helpers have also pinged, the ack may belong to any of these pings, so the round trip is not measured.
        if current is None or not current.helpers_pinged:
            entry.round_trip_ms = self._context.now - sent_at
