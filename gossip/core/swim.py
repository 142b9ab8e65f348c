"""One member of a gossip group, without I/O.

    event ──▶ step(event, now) ──▶ effects          deadline: when DeadlineReached is due

SWIM as the RFC describes it (peers bounded by capacity, joins with tokens and redirects, pings relayed by ttl, leaving,
broadcast presence), with Lifeguard's three additions. This file is the control flow only; each mechanism has a leaf:

    claims       the precedence rule, suspicions, refutation        composer       what rides on a ping
    probe        rounds, answers        relay  helping others       dissemination  which news, how often
    joining      getting peers          admission  giving them      membership     peers and the directory

Time is integer milliseconds and never runs backwards in here: an older `now` is taken as the latest one seen. A core
that met its live twin is halted: it does nothing any more and has no deadline.
"""

from random import Random
from typing import assert_never

from gossip.core.admission import Admission, AdmissionPolicy, admit_all
from gossip.core.awareness import Awareness
from gossip.core.description import Description, described
from gossip.core.dissemination import Dissemination
from gossip.core.effects import Alarm, AlarmKind, Announce, Effect
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
    SeedsGiven,
    Unreadable,
    UserEventRequested,
)
from gossip.core.join import Joining
from gossip.core.keyring import Keyring
from gossip.core.keyring_exchange import KeyringExchange
from gossip.core.local_node import LocalNode, is_plausible
from gossip.core.member import METADATA_LIMIT_BYTES, Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.membership import Membership
from gossip.core.messages import (
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
    VerdictUpdate,
)
from gossip.core.options import Options
from gossip.core.outbox import DropReason, Outbox
from gossip.core.piggyback import Piggyback
from gossip.core.probe import Answerer, Prober
from gossip.core.reconnect import Reconnect
from gossip.core.refusal import DOMAIN, RefusalCode
from gossip.core.rewiring import Rewiring
from gossip.core.token_bucket import TokenBucket
from gossip.core.updates import Updates
from gossip.core.user_events import UserEvents

_FAREWELLS = 3


class Swim:
    """The decider of one node."""

    def __init__(
        self,
        self_info: NodeInfo,
        options: Options,
        random: Random,
        now: int,
        *,
        keys: Keyring | None = None,
        admit: AdmissionPolicy = admit_all,
        unix_ms: int = 0,
    ) -> None:
        """`keys` if sealed; `admit` is the group's own reason to reject a joiner; `unix_ms`: the time of day at 0."""
        if not is_plausible(self_info):
            raise ValueError(
                f"gossip cannot start with this description of the node: capacity {self_info.capacity} must be at "
                f"least 1, metadata ({len(self_info.metadata)} bytes) at most {METADATA_LIMIT_BYTES}, "
                f"incarnation {self_info.incarnation} not negative"
            )
        self._options = options
        self._random = random
        self._now = now
        self._halted = False
        self._outbox = Outbox()
        self._local = LocalNode(self_info, options.refutations_per_second)
        self._awareness = Awareness(options.awareness_max)
        self._membership = Membership(self_info.node_id, self_info.capacity, options.directory_limit, random)
        self._news = Dissemination(options.retransmit_multiplier)
        self._updates = Updates(self._local, self._membership, self._news, self._awareness, self._outbox, options)
        self._keys = KeyringExchange(keys, self._membership, self._outbox, unix_ms)
        self._user_events = UserEvents(self._local, self._keys, self._outbox, options)
        self._piggyback = Piggyback(self._local, self._membership, self._news, self._user_events, self._keys, options)
        self._prober = Prober(
            self._local,
            self._membership,
            self._updates,
            self._piggyback,
            self._awareness,
            self._outbox,
            options,
            random,
            now,
        )
        self._joining = Joining(self._local, self._membership, self._user_events, self._outbox, options, random, now)
        self._admission = Admission(
            self._local,
            self._membership,
            self._updates,
            self._piggyback,
            self._prober,
            self._user_events,
            self._outbox,
            options,
            random,
            admit,
        )
        self._rewiring = Rewiring(self._membership, self._joining, self._outbox, random)
        self._link_naks = TokenBucket(options.join_rate_per_second, options.join_burst)
        self._announce_at = self._gossip_at = now
        self._reconnect = Reconnect(self._membership, self._prober, options, random, now)
        self._sweep_at = now + options.probe_period_ms
        self._farewells = 0
        self._updates.announce_self()

    @property
    def deadline(self) -> int | None:
        """When DeadlineReached is to be given next; none for a halted core."""
        if self._halted:
            return None
        earliest = min(self._prober.deadline, self._announce_at, self._reconnect.deadline, self._sweep_at)
        for time in (self._updates.deadline, self._joining.deadline, self._user_events.deadline):
            if time is not None and time < earliest:
                earliest = time
        return min(earliest, self._gossip_at) if self._wants_to_gossip else earliest

    @property
    def _wants_to_gossip(self) -> bool:
        # In an overlay hardly any peer lists whom the news is about: there it only rides on probes.
        has_news = len(self._news) > 0 and not self._options.overlay
        return (has_news or len(self._user_events) > 0 or self._farewells > 0) and self._membership.peer_count > 0

    def step(self, event: Event, now: int) -> list[Effect]:
        """Take one event at one time; the effects are to be carried out in order."""
        if self._halted:
            return []
        now = self._now = max(now, self._now)
        if self._options.standstill_grace:
            self._notice_standstill(now)
        self._piggyback.now = now
        peers_before = self._membership.peer_count
        self._take(event, now)
        for entry in self._updates.revived:
            self._rewiring.revived(entry, now)
        self._updates.revived.clear()
        if self._membership.peer_count != peers_before:
            self._joining.peers_changed(now)
        return self._outbox.drain()

    def _take(self, event: Event, now: int) -> None:
        match event:
            case Received(source, message, token_valid, boxed):
                self._outbox.received[type(message).__name__] += 1
                self._receive(source, message, now, token_valid=token_valid, boxed=boxed)
            case DeadlineReached():
                self._expire(now)
            case SeedsGiven(addresses):
                self._joining.give_seeds(addresses, now)
            case MetadataChanged(metadata):
                self._describe_anew(metadata)
            case LeaveRequested():
                self._leave(now)
            case MaintenanceSwitched(on):
                self._admission.in_maintenance = on
            case UserEventRequested() | QueryRequested() | AnswerGiven():
                self._user_events.requested(event, now)
            case KeyringChanged(chain):
                self._keys.change(chain)
            case Unreadable(source):
                self._keys.repair(source, now)
            case _:
                assert_never(event)

    def _notice_standstill(self, now: int) -> None:
        """A deadline served far too late means that this node stood still (no processor, a suspended machine).

        Refutations and answers are then waiting unread behind the event at hand; whoever acts on the clock alone buries
        the healthy. So the time lost counts for nobody, and against our own health.
        """
        late_ms = now - self._prober.deadline
        if late_ms > self._options.probe_timeout_ms:
            self._awareness.adjust(1)
            self._updates.postpone(late_ms)
            self._prober.postpone(late_ms)

    def _receive(  # noqa: C901 - one case per message is the shape of this function
        self, source: Address, message: Message, now: int, *, token_valid: bool, boxed: bool
    ) -> None:
        match message:
            case PingRequest():
                requester = self._prober.receive_request(source, message, now)
                self._hear_riders(requester, source, message.source_id, message.payload, now)
                if requester is Answerer.STRANGER:
                    self._reject_link(source, message, now)
            case PingResponse():
                responder = self._prober.receive_response(source, message, now)
                self._hear_riders(responder, source, message.target_id, message.payload, now)
                if responder is Answerer.IDENTITY_CONFLICT:
                    self._halt(source)
            case JoinReq():
                self._admission.receive(source, message, now, token_valid=token_valid)
            case JoinAck() | JoinNak() | JoinRedirect():
                self._receive_answer(source, message, now)
            case Leave(info):
                verdict = VerdictUpdate(
                    info.node_id, info.incarnation, Status.LEFT, info.node_id, proof=info.credential
                )
                self._updates.hear_verdict(verdict, now)
            case Broadcast(info):
                self._receive_broadcast(info, now)
            case QueryReply():
                self._user_events.hear_reply(message)
            case KeyringUpdate(chain):
                self._keys.hear(chain, now, boxed=boxed)
            case _:
                assert_never(message)

    def _hear_riders(self, kind: Answerer, source: Address, teller: NodeId, payload: Payload, now: int) -> None:
        if kind is Answerer.MEMBER or kind is Answerer.STRANGER:
            self._user_events.hear(payload.user_messages, teller, now)
            self._keys.compare(source, payload.keys_digest, now)

    def _receive_answer(self, source: Address, answer: JoinAck | JoinNak | JoinRedirect, now: int) -> None:
        if answer.receiver_generation != self._local.incarnation.generation:
            # For a former life of ours: late, or a recording played to a node that has just started.
            self._outbox.drop(DropReason.FORMER_LIFE)
        elif isinstance(answer, JoinAck):
            self._receive_welcome(source, answer, now)
        elif isinstance(answer, JoinNak):
            self._receive_nak(source, answer, now)
        else:
            self._receive_redirect(source, answer, now)

    def _receive_welcome(self, source: Address, welcome: JoinAck, now: int) -> None:
        if not self._joining.succeeded(source):
            self._outbox.drop(DropReason.UNSOLICITED)
            return
        self._user_events.sync_clock(welcome.clock, now)
        entry = self._updates.hear_alive(welcome.description, now)
        if entry is not None and not entry.is_live:
            self._prober.correct(entry, source, now)
        elif entry is not None and not self._membership.link(entry):
            # Others joined us meanwhile: no room for the peer that we asked for.
            self._reject(source, entry.node_id, entry.incarnation)
        # Only now: in a full directory the sample could push out the very member that names it.
        for info in welcome.sample:
            self._updates.hear_alive(info, now, tell_on=False)

    def _receive_nak(self, source: Address, nak: JoinNak, now: int) -> None:
        peer = self._membership.peer_at(source)
        is_denial = nak.domain == DOMAIN and nak.code == RefusalCode.NOT_A_PEER
        if peer is not None and is_denial and not self._joining.is_joining(source):
            self._membership.unlink(peer.node_id)
        else:
            self._joining.receive_nak(source, nak, now)

    def _receive_redirect(self, source: Address, redirect: JoinRedirect, now: int) -> None:
        peer = self._membership.peer_at(source)
        is_split = redirect.domain == DOMAIN and redirect.code == RefusalCode.EDGE_SPLIT
        if not is_split:
            self._joining.receive_redirect(source, redirect, now)
        elif peer is None:
            self._outbox.drop(DropReason.UNSOLICITED)
        else:
            self._membership.unlink(peer.node_id)
            for address in redirect.addresses[:1]:
                self._joining.go(address, now)

    def _receive_broadcast(self, info: NodeInfo, now: int) -> None:
        if not is_plausible(info):
            self._outbox.drop(DropReason.BAD_DESCRIPTION)
        elif info.node_id == self._local.node_id:
            self._updates.hear_of_self(info.incarnation, Status.ALIVE, now, info)
        elif not self._membership.live_at(info.address):
            self._joining.give_seeds((info.address,), now, is_hint=True)

    def _reject_link(self, source: Address, ping: PingRequest, now: int) -> None:
        """Somebody probes us as its peer and is none of ours: say so, unless our JoinReq to it is on the way."""
        if not self._joining.is_joining(source) and self._link_naks.take(now):
            self._reject(source, ping.source_id, ping.source_incarnation)

    def _reject(self, target: Address, node_id: NodeId, incarnation: Incarnation) -> None:
        self._outbox.send(target, JoinNak(DOMAIN, RefusalCode.NOT_A_PEER, b"", incarnation.generation), node_id)

    def _expire(self, now: int) -> None:
        self._updates.expire(now)
        self._user_events.expire(now)
        if self._sweep_at <= now:
            self._sweep_at = now + self._options.probe_period_ms
            for node_id in self._membership.sweep(now, self._options.directory_age_ms, self._options.tombstone_ms):
                self._updates.forget(node_id)
            if self._options.overlay:
                self._prober.verify_suspects(now)
        if self._prober.deadline <= now:
            self._prober.expire(now)
        if not self._local.leaving:
            self._joining.expire(now)
        if self._announce_at <= now:
            self._announce(now)
        self._reconnect.expire(now)
        if self._gossip_at <= now and self._wants_to_gossip:
            self._gossip(now)

    def _announce(self, now: int) -> None:
        alone = self._membership.peer_count == 0
        period_ms = self._options.announce_alone_period_ms if alone else self._options.announce_period_ms
        self._announce_at = now + period_ms * self._random.randrange(750, 1_251) // 1_000 + 1
        if not self._local.leaving:
            self._outbox.emit(Announce(Broadcast(self._local.info)))

    def _gossip(self, now: int) -> None:
        self._gossip_at = now + self._options.gossip_period_ms
        peers = self._membership.peers()
        if self._farewells > 0:
            self._farewells -= 1
            for peer in peers:
                self._outbox.send(peer.address, Leave(self._local.info), peer.node_id)
        for peer in self._random.sample(peers, min(self._options.gossip_fanout, len(peers))):
            self._prober.ping(peer, now)

    def _describe_anew(self, metadata: bytes) -> None:
        if len(metadata) > METADATA_LIMIT_BYTES:
            raise ValueError(f"gossip metadata of {len(metadata)} bytes is over the limit of {METADATA_LIMIT_BYTES}")
        if metadata != self._local.info.metadata and not self._local.leaving:
            self._local.say(metadata)
            self._updates.announce_self()

    def _leave(self, now: int) -> None:
        if self._local.leaving:
            return
        own = self._local
        own.leaving = True
        self._joining.stop()
        self._news.add(VerdictUpdate(own.node_id, own.incarnation, Status.LEFT, own.node_id))
        self._farewells = _FAREWELLS
        self._gossip(now)

    def _halt(self, source: Address) -> None:
        self._halted = True
        text = (
            f"another live node at {source.host}:{source.port} uses this node's identity "
            f"{self._local.node_id.hex()}: this node stops. Two nodes must not share a state directory or a copy of "
            "one: give one of them a fresh state directory"
        )
        self._outbox.emit(Alarm(AlarmKind.IDENTITY_CONFLICT, text))

    @property
    def keys(self) -> Keyring | None:
        """The farm's keys as this node knows them; none if datagrams travel in clear."""
        return self._keys.chain

    def known_members(self) -> tuple[NodeInfo, ...]:
        """The descriptions of the other members that are not known to be dead or gone."""
        return tuple(entry.info for entry in self._membership.entries() if entry.is_live)

    @property
    def membership(self) -> Membership:
        """The peers and the directory; to be looked at only."""
        return self._membership

    @property
    def counts(self) -> tuple[int, int]:
        """Members known, and peers among them; what `describe` would tell at the cost of listing them."""
        return len(self._membership), self._membership.peer_count

    def describe(self) -> Description:
        """This node's picture of the group, for operators."""
        return Description(
            self_info=self._local.info,
            members=described(self._membership),
            peer_count=self._membership.peer_count,
            health_score=self._awareness.score,
            leaving=self._local.leaving,
            in_maintenance=self._admission.in_maintenance,
            halted=self._halted,
            joins_in_flight=self._joining.in_flight,
            seed_count=self._joining.seed_count,
            sent=dict(self._outbox.sent),
            received=dict(self._outbox.received),
            dropped=dict(self._outbox.dropped),
        )
