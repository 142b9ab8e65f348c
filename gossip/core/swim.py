"""One member of a gossip group, without I/O.

    event ──▶ step(event, now) ──▶ effects          deadline: the time of the next DeadlineReached

The protocol is SWIM as the RFC (docs/explanation/gossip.md) describes it, with Lifeguard's three additions. The RFC has
peers bounded by capacity, joins with tokens and redirects, pings relayed by ttl, leaving, and broadcasts of presence.
This file contains only the control flow; each mechanism has a module:

    updates      the precedence rule, suspicions, doubts,          dissemination  payloads of pings
                 refutation
    probe        rounds, acks, relays, reconnecting                join           obtaining peers, granting links
    user_events  events and the spread of messages                 queries        queries and replies
    keyring_exchange  the spread of changed keys                   membership     peers and the directory

The payload of a ping or an ack is handled in one place (`_handle_payload`), before the ping is acked.

Time is integer milliseconds and never decreases: an older `now` is replaced by the latest `now` so far. If a core
detects another live instance of its identity, it halts: it no longer acts, and does not have a deadline.
"""

from random import Random
from typing import Final, assert_never

from gossip.core.dissemination import Piggyback, UpdateQueue
from gossip.core.effects import (
    Alarm,
    AlarmKind,
    Announce,
    Context,
    Effect,
    MembershipChanged,
    UseKeyring,
    UserEventReceived,
)
from gossip.core.events import (
    AnswerGiven,
    DeadlineReached,
    Event,
    KeyringChanged,
    LeaveRequested,
    MaintenanceSwitched,
    MetadataChanged,
    QueryRequested,
    Received,
    Request,
    SeedsGiven,
    Unreadable,
    UserEventRequested,
)
from gossip.core.join import Admission, AdmissionPolicy, Joiner, admit_all
from gossip.core.keyring import ClockBound, Keyring
from gossip.core.keyring_exchange import KeyringExchange
from gossip.core.member import METADATA_LIMIT_BYTES, Address, LocalNode, NodeId, NodeInfo, Status, is_plausible
from gossip.core.membership import Description, MemberRecord, Membership
from gossip.core.messages import (
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    KeyringUpdate,
    Leave,
    Payload,
    PingRequest,
    PingResponse,
    QueryReply,
    UserEvent,
    VerdictUpdate,
)
from gossip.core.options import SwimOptions
from gossip.core.probe import Prober
from gossip.core.queries import Queries
from gossip.core.updates import Updates
from gossip.core.user_events import UserEvents

_LEAVES: Final = 3
_REVIVAL: Final = (Status.DEAD, Status.ALIVE)


class Swim:
    """The decision logic of one node."""

    def __init__(
        self,
        self_info: NodeInfo,
        options: SwimOptions,
        random: Random,
        now: int,
        *,
        keys: Keyring | None = None,
        admit: AdmissionPolicy = admit_all,
        unix_ms: int = 0,
        first_round_at: int | None = None,
    ) -> None:
        """Create a core. `keys` seal datagrams, `admit` may refuse joiners, `unix_ms` is the time of day at time 0.

        Without `first_round_at`, the probe rounds have a random phase.
        """
        if not is_plausible(self_info):
            raise ValueError(
                f"gossip cannot start with this description of the node: capacity {self_info.capacity} must be at "
                f"least 1, metadata ({len(self_info.metadata)} bytes) at most {METADATA_LIMIT_BYTES}, "
                f"incarnation {self_info.incarnation} not negative"
            )
        self._options = options
        self._random = random
        self._halted = False
        self._local = LocalNode(self_info, options)
        self._members = Membership(self_info.node_id, self_info.capacity, options.directory_limit, random)
        self._context = context = Context(self._local, self._members, options, random, now)
        self._queue = UpdateQueue(options.retransmit_multiplier)
        self._updates = Updates(context, self._queue)
        clock_bound = ClockBound(unix_ms)
        self._keyring = KeyringExchange(context, keys, clock_bound)
        self._user_events = UserEvents(context, clock_bound)
        self._queries = Queries(context, self._user_events, self._keyring)
        piggyback = Piggyback(context, self._queue, self._user_events, self._keyring)
        self._prober = Prober(context, self._updates, piggyback, first_round_at)
        self._joiner = Joiner(context, self._updates, self._prober, self._queries)
        self._admission = Admission(context, self._updates, piggyback, self._prober, self._queries, admit)
        self._announce_at = self._gossip_at = now
        self._sweep_at = now + options.probe_period_ms
        self._leaves_to_send = 0
        self._updates.announce_self()

    @property
    def deadline(self) -> int | None:
        """The time of the next DeadlineReached; None for a halted core."""
        if self._halted:
            return None
        earliest = min(self._prober.deadline, self._announce_at)
        if self._options.overlay:
            # Outside of overlays a sweep only removes old entries, so the next probe round is early enough.
            earliest = min(earliest, self._sweep_at)
        for time in (self._updates.deadline, self._joiner.deadline, self._queries.deadline):
            if time is not None and time < earliest:
                earliest = time
        return min(earliest, self._gossip_at) if self._wants_to_gossip else earliest

    @property
    def _wants_to_gossip(self) -> bool:
        # In an overlay only a few peers have a record of the subject of an update, so updates are sent only in probes.
        has_updates = bool(self._queue.queued) and not self._options.overlay
        wants = has_updates or bool(self._user_events.queue) or self._leaves_to_send > 0
        return wants and len(self._members.links) > 0

    def step(self, event: Event, now: int) -> list[Effect]:
        """Handle one event; return the effects, to be executed in order."""
        if self._halted:
            return []
        context = self._context
        context.now = max(now, context.now)
        late_ms = context.now - self._prober.round_deadline
        if late_ms > self._options.probe_timeout_ms and self._options.standstill_grace:
            self._give_back(late_ms)
        peers_before = len(self._members.links)
        if isinstance(event, Received):
            try:
                self._receive(event)
            finally:
                context.unproved_sources = ()
        else:
            self._handle(event)
        if self._updates.doubts.unprobed:
            self._prober.verify_doubted()
        effects = context.take_effects()
        for effect in effects:
            if isinstance(effect, MembershipChanged) and (effect.previous, effect.status) == _REVIVAL:
                self._joiner.rewire(effect.info.node_id)
            elif isinstance(effect, UseKeyring):
                self._joiner.key_changed()
        if len(self._members.links) != peers_before:
            self._joiner.peers_changed()
        return effects + context.take_effects() if context.effects else effects

    def _handle(self, event: Request) -> None:  # noqa: C901 - one case per event
        match event:
            case DeadlineReached():
                self._expire()
            case SeedsGiven(addresses, former):
                self._joiner.add_seeds(addresses, former)
            case MetadataChanged(metadata):
                self._set_metadata(metadata)
            case LeaveRequested():
                self._leave()
            case MaintenanceSwitched(on):
                self._admission.in_maintenance = on
            case UserEventRequested(name, body):
                self._user_events.send_event(name, body)
            case QueryRequested(ticket, name, body, timeout_ms):
                self._queries.start(ticket, name, body, timeout_ms)
            case AnswerGiven(query_id, body):
                self._queries.answer(query_id, body)
            case KeyringChanged(keyring):
                self._keyring.change(keyring)
            case Unreadable(source, is_retired):
                self._keyring.repair(source)
                if not is_retired:
                    self._joiner.receive_unreadable(source)
            case _:
                assert_never(event)

    def _give_back(self, late_ms: int) -> None:
        """Extend all timeouts by the duration of a standstill: this step comes long after the deadline of the round.

        The process did not run, or the machine was suspended. Refutations and acks may still be unread in the queue, so
        a node that acts on the clock alone would declare healthy members dead. So suspicions and probe rounds are
        extended by the lost time, and the standstill counts against local health.
        """
        self._local.awareness.adjust(1)
        self._updates.postpone(late_ms)
        self._prober.postpone(late_ms)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _receive(self, received: Received) -> None:
        source, message = received.source, received.message
        self._context.received[type(message).__name__] += 1
        match message:
            case PingRequest():
                # Of the other messages from unproved sources only a JoinReq gets a reply: a token.
                self._context.unproved_sources = source, message.requester or source
                self._receive_ping(source, message)
            case PingResponse():
                self._receive_ack(source, message)
            case JoinReq():
                self._admission.receive(source, message, token_valid=received.token_valid)
            case JoinAck() | JoinNak() | JoinRedirect():
                self._joiner.receive_answer(source, message)
            case Leave(info):
                proof = info.credential
                self._updates.apply_verdict(
                    VerdictUpdate(info.node_id, info.incarnation, Status.LEFT, info.node_id, proof)
                )
            case Broadcast(info):
                self._joiner.receive_broadcast(info)
            case QueryReply():
                self._queries.receive_reply(message)
            case KeyringUpdate(keyring):
                self._keyring.receive(keyring, boxed=received.boxed)
            case _:
                assert_never(message)

    def _receive_ping(self, source: Address, ping: PingRequest) -> None:
        if not self._prober.is_for_us(source, ping):
            return
        entry = self._handle_payload(source, ping.source_id, ping.payload)
        if ping.target_incarnation != self._local.info.incarnation:
            self._updates.apply_own(ping.target_incarnation, Status.ALIVE)
        is_unlinked = ping.requester is None and ping.source_id not in self._members.links
        # An unproved source gets at most as many bytes as it sent, perhaps too few for both replies. A peer from before
        # this node's restart first needs the rejection, and then joins again. With acks alone it would keep its link.
        generation = self._local.info.incarnation.generation
        is_of_earlier_run = 0 < ping.target_incarnation.generation < generation
        if is_unlinked and is_of_earlier_run:
            self._joiner.reject_link(source, ping)
        self._prober.ack(source, ping, entry)
        if ping.requester is None and entry is not None:
            entry.last_ping = ping.seq
        if is_unlinked and not is_of_earlier_run:
            self._joiner.reject_link(source, ping)

    def _receive_ack(self, source: Address, ack: PingResponse) -> None:
        if not self._prober.matches(source, ack):
            return
        if ack.target_id == self._local.node_id:
            self._halt(source)
        else:
            self._handle_payload(source, ack.target_id, ack.payload)

    def _handle_payload(self, source: Address, sender: NodeId, payload: Payload) -> MemberRecord | None:
        """Handle the payload of a ping or ack from `sender`; return the sender's entry."""
        if payload.updates or payload.sample:
            self._updates.apply(payload, source)
        if payload.user_messages:
            for message in self._user_events.receive(payload.user_messages, sender):
                if isinstance(message, UserEvent):
                    self._context.emit(UserEventReceived(message))
                else:
                    self._queries.receive(message)
        if payload.keys_digest != self._keyring.digest:
            self._keyring.compare(source, payload.keys_digest)
        entry = self._members.get(sender)
        if entry is not None:
            entry.mentioned_ms = entry.contact_ms = self._context.now
            entry.confirmed = True
            if payload.capacity > 0:
                entry.peer_count = payload.peer_count
        return entry

    def _halt(self, source: Address) -> None:
        self._halted = True
        text = (
            f"another live node at {source.host}:{source.port} uses this node's identity "
            f"{self._local.node_id.hex()}: this node stops. Two nodes must not share a state directory or a copy of "
            "one: give one of them a fresh state directory"
        )
        self._context.emit(Alarm(AlarmKind.IDENTITY_CONFLICT, text))

    # -- time and requests ---------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        now, options = self._context.now, self._options
        self._updates.expire()
        self._queries.expire()
        self._updates.doubts.expire()
        if self._sweep_at <= now:
            self._sweep_at = now + options.probe_period_ms
            for node_id in self._members.sweep(now, options.directory_age_ms, options.tombstone_ms):
                self._updates.forget(node_id)
            if options.overlay:
                self._prober.verify_suspects()
        self._prober.expire()
        if not self._local.leaving:
            self._joiner.expire()
        if self._announce_at <= now:
            self._announce()
        self._prober.reconnect()
        if self._gossip_at <= now and self._wants_to_gossip:
            self._gossip()

    def _announce(self) -> None:
        alone = len(self._members.links) == 0
        period_ms = self._options.announce_alone_period_ms if alone else self._options.announce_period_ms
        self._announce_at = self._context.now + period_ms * self._random.randrange(750, 1_251) // 1_000 + 1
        if not self._local.leaving:
            self._context.emit(Announce(Broadcast(self._local.info)))

    def _gossip(self) -> None:
        self._gossip_at = self._context.now + self._options.gossip_period_ms
        peers = self._members.peers()
        self._queue.drop_known(self._members.links.keys())
        self._user_events.drop_known(self._members.links.keys())
        if self._leaves_to_send > 0:
            self._leaves_to_send -= 1
            for peer in peers:
                self._context.send(peer.address, Leave(self._local.info), peer.node_id)
        for peer in self._random.sample(peers, min(self._options.gossip_fanout, len(peers))):
            self._prober.ping(peer)

    def _set_metadata(self, metadata: bytes) -> None:
        if len(metadata) > METADATA_LIMIT_BYTES:
            raise ValueError(f"gossip metadata of {len(metadata)} bytes is over the limit of {METADATA_LIMIT_BYTES}")
        if metadata != self._local.info.metadata and not self._local.leaving:
            self._local.set_metadata(metadata)
            self._updates.announce_self()

    def _leave(self) -> None:
        local = self._local
        if local.leaving:
            return
        local.leaving = True
        self._joiner.stop()
        self._queue.add_verdict(VerdictUpdate(local.node_id, local.incarnation, Status.LEFT, local.node_id))
        self._leaves_to_send = _LEAVES
        self._gossip()

    # -- views ---------------------------------------------------------------------------------------------------------

    def keyring_stored(self, keyring: Keyring) -> None:
        """Record that the node has stored this keyring, for replies about its keys."""
        self._keyring.stored(keyring)

    @property
    def keyring_is_stored(self) -> bool:
        """True if a restart would find the current keyring."""
        return self._keyring.is_stored

    @property
    def keyring(self) -> Keyring | None:
        """The farm's current keys at this node; None for datagrams in clear."""
        return self._keyring.keyring

    @property
    def info(self) -> NodeInfo:
        """This node's own description."""
        return self._local.info

    @property
    def membership(self) -> Membership:
        """The peers and the directory, read-only."""
        return self._members

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of known members and of peers, without the cost of listing them."""
        return len(self._members), len(self._members.links)

    def describe(self) -> Description:
        """Return this node's view of the group, for operators."""
        return Description(
            self_info=self._local.info,
            members=self._members.describe(),
            peer_count=len(self._members.links),
            health_score=self._local.awareness.score,
            leaving=self._local.leaving,
            in_maintenance=self._admission.in_maintenance,
            halted=self._halted,
            joins_in_flight=self._joiner.in_flight,
            seed_count=self._joiner.seed_count,
            sent=dict(self._context.sent),
            received=dict(self._context.received),
            dropped=dict(self._context.dropped),
            now_ms=self._context.now,
        )
