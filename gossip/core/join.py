"""Joining, on both sides: obtaining peers, and granting links to other nodes.

docs/reference/gossip-protocol.md ("Joining") has the messages, the receiver's decisions in their order, and the
rewiring of a full overlay after a partition.

*The joiner* retries seeds from an operator without end, since a whole site may return after hours. It drops hints from
broadcasts, and former addresses of a seed's name, after a few failures. A node with fewer peers than its capacity also
looks for more in its own directory. So a small group becomes a full mesh, and members of a large one replace lost
links. Retries back off exponentially with jitter: a hundred nodes that lost the same seed must not return to it at the
same time. A search also slows down if it finds only members at capacity, for example when the group's only vacancy is
at this node.

*The receiver* stores data of a joiner only after the joiner returns a token. If neither the receiver nor any known
member has room, the receiver splits a link for a joiner with two vacancies. Both ends of the link then link to the
joiner. The receiver drops a JoinReq if its record of the joiner is dead or departed, or has a later incarnation or
another address. It pings the joiner with this record, so that the joiner refutes it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct, field, structs

from gossip.core.dissemination import Piggyback
from gossip.core.effects import Alarm, AlarmKind, Context, KeyOffered, OfferToken
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status, is_plausible
from gossip.core.membership import MemberRecord
from gossip.core.messages import DOMAIN, DropReason, JoinAck, JoinNak, JoinRedirect, JoinReq, PingRequest, RefusalCode
from gossip.core.options import TokenBucket
from gossip.core.probe import NUMBER_BYTES, Prober
from gossip.core.queries import Queries
from gossip.core.updates import Updates

_HINT_FAILURES: Final = 5
_HINTS_PER_SECOND: Final = 1
_HINTS_BURST: Final = 8
"""Limit of joins by hints. The address in a broadcast is unproved, and each join sends it up to `join_tries` JoinReqs.
"""
_ALARM_FAILURES: Final = 3
_ALONE_PERIODS: Final = 10
"""A node that had peers is isolated after this number of gossip periods without peers."""
_TOKENS_PER_JOIN: Final = 3
_ALTERNATIVES_LIMIT: Final = 8
_REDIRECT_ADDRESSES: Final = 4
_ENDS_OF_A_SPLIT: Final = 2
_UNREADABLE_BEFORE: Final = 3
_UNREADABLE_SOURCES: Final = 4
_UNREADABLE_JOINS_PER_SECOND: Final = 0.5
_UNREADABLE_JOINS_BURST: Final = 2
"""Limit of JoinReqs to senders with an unknown key. The burst is below `joins_in_flight`, so seeds are still tried."""
_UNREADABLE_ALARM_MS: Final = 120_000
"""The alarm ends after this time without datagrams under an unknown key."""
_REFUSALS_WITH_PEERS: Final = 3
"""A node with peers may lack a new key for a moment during a rotation, so the alarm needs this number of refusals."""
_REFUSED_ALARM_MS: Final = 120_000
"""The alarm ends if this node has peers and no member has refused its key for this time."""

AdmissionPolicy = Callable[[NodeInfo], JoinNak | None]
"""A function that returns the reason to refuse a joiner with a valid token, or None."""


def admit_all(_source: NodeInfo) -> JoinNak | None:
    """Admit every holder of the farm's key."""
    return None


class _Seed(Struct):
    is_hint: bool
    next_at: int
    failures: int = 0


class _Join(Struct):
    """One attempt to gain one peer. Redirects may lead the attempt from address to address."""

    address: Address
    seed: Address | None
    next_at: int
    token: bytes = b""
    tries: int = 0
    tokens: int = 0
    redirects: int = 0
    answers_unreadable: bool = False
    """True if this join does not repeat an unanswered JoinReq, because the address may be forged."""
    tried: set[Address] = field(default_factory=set)
    alternatives: deque[Address] = field(default_factory=lambda: deque(maxlen=_ALTERNATIVES_LIMIT))


class _Sender(Struct):
    seen_at: int
    count: int = 0


class Joiner:
    """The seeds, and the joins under way (at most `joins_in_flight`)."""

    def __init__(self, context: Context, updates: Updates, prober: Prober, queries: Queries) -> None:
        self._context = context
        self._local = context.local
        self._members = context.members
        self._options = options = context.options
        self._random = context.random
        self._updates = updates
        self._prober = prober
        self._queries = queries
        self._seeds: dict[Address, _Seed] = {}
        self._joins: dict[Address, _Join] = {}
        self._next_seek_at = context.now
        self._failed_searches = 0
        self._alarmed = False
        self._alone_since: int | None = None
        """The time when the last peer was lost; None before the first peer and while this node has peers."""
        self._had_peer = False
        self._refusals = 0
        """Number of refusals of this node's key, without a pause of `_REFUSED_ALARM_MS`."""
        self._refused_until = context.now
        self._alarmed_of_key = False
        self._unreadable: dict[Address, _Sender] = {}
        """Senders of this farm's datagrams under a key that this node lacks, recorded only without peers."""
        self._to_join: list[Address] = []
        """The senders with an unknown key that get a JoinReq next."""
        self._joins_of_unreadable = TokenBucket(_UNREADABLE_JOINS_PER_SECOND, _UNREADABLE_JOINS_BURST)
        self._unreadable_until: int | None = None
        """The end of the alarm about senders with an unknown key; None without an alarm."""
        self._rewirings = TokenBucket(1, 1)
        self._hints = TokenBucket(_HINTS_PER_SECOND, _HINTS_BURST)
        self._link_naks = TokenBucket(options.join_rate_per_second, options.join_burst)

    @property
    def seed_count(self) -> int:
        """The number of seed addresses kept."""
        return len(self._seeds)

    @property
    def in_flight(self) -> int:
        """The number of joins in flight."""
        return len(self._joins)

    @property
    def deadline(self) -> int | None:
        """The time of the next try, timeout or end of an alarm."""
        if self._local.leaving:
            return None
        times = [join.next_at for join in self._joins.values()] if self._joins else []
        if self._unreadable_until is not None:
            times.append(self._unreadable_until)
        if self._alarmed_of_key and len(self._members.links) > 0:
            times.append(self._refused_until)
        if self._alone_since is not None and not self._alarmed:
            times.append(self._alone_since + self._alone_limit_ms)
        if self._has_free:
            if self._to_join:
                times.append(self._context.now)
            times += [seed.next_at for seed in self._seeds.values()]
            if self._members.is_short:
                times.append(self._next_seek_at)
        return min(times) if times else None

    @property
    def _has_free(self) -> bool:
        return len(self._joins) < self._options.joins_in_flight

    # -- seeds ---------------------------------------------------------------------------------------------------------

    def add_seeds(
        self, addresses: tuple[Address, ...], former: tuple[Address, ...] = (), *, is_hint: bool = False
    ) -> None:
        """Add addresses to join through; known addresses keep their retry interval.

        Turn the addresses in `former` into hints.
        """
        for address in former:
            if address in self._seeds:
                self._seeds[address].is_hint = True
        for address in addresses:
            if address == self._local.info.address:
                continue
            known = self._seeds.get(address)
            if known is not None:
                known.is_hint = known.is_hint and is_hint
            elif len(self._seeds) >= self._options.seeds_limit and not (not is_hint and self._drop_hint()):
                self._context.drop(DropReason.SEEDS_FULL)
            else:
                self._seeds[address] = _Seed(is_hint, self._context.now)

    def _drop_hint(self) -> bool:
        hint = next((address for address, seed in self._seeds.items() if seed.is_hint), None)
        if hint is None:
            return False
        del self._seeds[hint]
        return True

    def receive_broadcast(self, info: NodeInfo) -> None:
        """Add the address of a node that announced its presence, as a hint."""
        if not is_plausible(info):
            self._context.drop(DropReason.BAD_DESCRIPTION)
        elif info.node_id == self._local.node_id:
            self._updates.apply_own(info.incarnation, Status.ALIVE, info)
        elif not self._members.live_at(info.address):
            self.add_seeds((info.address,), is_hint=True)

    def receive_unreadable(self, source: Address) -> None:
        """Handle a datagram of this farm sealed with a key that this node lacks.

        A node without peers may have the wrong key. If its key is retired, a member reports that in reply to a JoinReq.
        If the farm never had its key, no member replies, so this method raises the alarm. The label is in clear, so the
        datagram may be forged: it causes one JoinReq at most, and few senders are recorded.
        """
        if len(self._members.links) > 0:
            return
        now = self._context.now
        sender = self._unreadable.get(source)
        if sender is None:
            if len(self._unreadable) >= _UNREADABLE_SOURCES and not self._drop_sender():
                return
            sender = self._unreadable[source] = _Sender(now)
        sender.seen_at, sender.count = now, sender.count + 1
        if sender.count < _UNREADABLE_BEFORE:
            return
        if source not in self._joins and source not in self._to_join and self._joins_of_unreadable.take(now):
            self._to_join.append(source)
        if self._unreadable_until is not None:
            self._unreadable_until = self._context.now + _UNREADABLE_ALARM_MS
        elif not self._alarmed_of_key:
            self._unreadable_until = self._context.now + _UNREADABLE_ALARM_MS
            text = (
                f"the node at {source.host}:{source.port} has this farm's label and seals its gossip with a key that"
                " this node does not have: one of the two key files is not the farm's current one. Copy the current key"
                " from a member to the node with the other file, then start that node again; this node continues to try"
            )
            self._context.emit(Alarm(AlarmKind.KEY_RETIRED, text))

    def _drop_sender(self) -> bool:
        """Drop a sender that has sent enough datagrams, or none for long; return True if one was dropped."""
        old = self._context.now - _UNREADABLE_ALARM_MS
        for address, sender in self._unreadable.items():
            if sender.count >= _UNREADABLE_BEFORE or sender.seen_at <= old:
                del self._unreadable[address]
                return True
        return False

    def _forget_unreadable(self) -> None:
        self._unreadable.clear()
        self._to_join.clear()
        if self._unreadable_until is not None:
            self._unreadable_until = None
            if not self._alarmed_of_key:
                text = "no gossip under a key that this node lacks is received"
                self._context.emit(Alarm(AlarmKind.KEY_RETIRED, text, over=True))

    def expire(self) -> None:
        """Retry due joins, then begin due ones."""
        now = self._context.now
        if self._unreadable_until is not None and self._unreadable_until <= now:
            self._forget_unreadable()
        if len(self._members.links) > 0 and self._refused_until <= now:
            self._end_alarm_of_key("no member refuses this node's key")
        for join in list(self._joins.values()):
            if join.next_at <= now:
                self._retry(join)
        self._check_isolation()
        while self._to_join and self._has_free:
            self._begin(self._to_join.pop(0), answers_unreadable=True)
        due = [(address, seed) for address, seed in self._seeds.items() if seed.next_at <= now]
        self._random.shuffle(due)
        for address, seed in due:
            self._try_seed(address, seed)
        if self._members.is_short and self._next_seek_at <= now:
            self._next_seek_at = now + self._seek_pause_ms()
            for target in self._candidates():
                self._begin(target.address)

    def _try_seed(self, address: Address, seed: _Seed) -> None:
        now = self._context.now
        if self._members.live_at(address):
            if seed.is_hint:
                del self._seeds[address]
                return
            seed.failures = 0
            seed.next_at = now + self._jittered(self._options.join_backoff_max_ms)
        elif seed.is_hint and self._has_free and address not in self._joins and not self._hints.take(now):
            seed.next_at = now + self._jittered(self._options.join_backoff_min_ms)
        elif address in self._joins or self._begin(address, address):
            seed.next_at = now + self._backoff_ms(seed.failures)

    def _candidates(self) -> list[MemberRecord]:
        members, joins = self._members, self._joins
        missing_links = min(members.capacity, members.live_count) - len(members.links) - len(joins)
        count = min(self._options.joins_in_flight - len(joins), missing_links)
        if count <= 0:
            return []
        others = [
            entry
            for entry in members.unlinked()
            if entry.status is Status.ALIVE
            and entry.info.address not in joins
            and entry.info.address != self._local.info.address
        ]
        with_room = [entry for entry in others if entry.peer_count is None or entry.has_room]
        pool = with_room or others
        return self._random.sample(pool, min(count, len(pool)))

    # -- joins ---------------------------------------------------------------------------------------------------------

    def _begin(self, address: Address, seed: Address | None = None, *, answers_unreadable: bool = False) -> bool:
        if not self._has_free or address in self._joins:
            return False
        if address == self._local.info.address or self._local.leaving:
            return False
        self._send(_Join(address, seed, self._context.now, answers_unreadable=answers_unreadable))
        return True

    def _send(self, join: _Join) -> None:
        join.tries += 1
        join.tried.add(join.address)
        join.next_at = self._context.now + self._jittered(self._options.join_timeout_ms)
        self._joins[join.address] = join
        own, peer_count = self._local.info, len(self._members.links)
        request = JoinReq(own, join.token, peer_count=peer_count, clock=self._queries.clock)
        self._context.send(join.address, request, None)

    def _retry(self, join: _Join) -> None:
        if join.tries < (1 if join.answers_unreadable else self._options.join_tries):
            self._send(join)
        else:
            self._move_on(join)

    def _move_on(self, join: _Join) -> None:
        """Continue with the next alternative after an address has failed, or fail the join."""
        del self._joins[join.address]
        while join.alternatives and join.redirects < self._options.redirects_per_join:
            address = join.alternatives.popleft()
            if address in self._joins or address in join.tried or self._members.peer_at(address) is not None:
                continue
            join.address = address
            join.redirects += 1
            join.token, join.tries, join.tokens = b"", 0, 0
            self._send(join)
            return
        self._fail(join)

    def _fail(self, join: _Join) -> None:
        now = self._context.now
        seed = self._seeds.get(join.seed) if join.seed is not None else None
        if seed is not None and join.seed is not None:
            seed.failures += 1
            seed.next_at = now + self._backoff_ms(seed.failures)
            if seed.is_hint and seed.failures >= _HINT_FAILURES:
                del self._seeds[join.seed]
        if join.seed is None and not join.answers_unreadable:
            self._failed_searches += 1
            self._next_seek_at = now + self._seek_pause_ms()
        self._check_isolation()

    def _check_isolation(self) -> None:
        if len(self._members.links) > 0 or self._alarmed or self._local.leaving:
            return
        seeds_fail = bool(self._seeds) and all(seed.failures >= _ALARM_FAILURES for seed in self._seeds.values())
        if seeds_fail:
            what, addresses = "seed addresses", list(self._seeds)
        elif self._alone_since is not None and self._context.now - self._alone_since >= self._alone_limit_ms:
            # For example, this node discovered its peers by broadcast, so it has only members and not seeds to report.
            what, addresses = "members that it knew", [each.address for each in self._members.not_left()]
            self._alone_since = None
        else:
            return
        if addresses:
            self._alarmed = True
            named = ", ".join(f"{address.host}:{address.port}" for address in addresses[:4])
            text = (
                f"no peer answers, and none of the {len(addresses)} {what} ({named}) answers; check that one of"
                " these nodes runs with the same farm key and that UDP reaches it. This node continues to try"
            )
            self._context.emit(Alarm(AlarmKind.ISOLATED, text))

    @property
    def _alone_limit_ms(self) -> int:
        return _ALONE_PERIODS * self._options.gossip_period_ms

    def peers_changed(self) -> None:
        """Restart the search after a peer was gained or lost, since it may succeed now."""
        self._failed_searches = 0
        self._next_seek_at = min(self._next_seek_at, self._context.now + self._options.gossip_period_ms)
        if len(self._members.links) > 0:
            if self._alarmed:
                self._context.emit(Alarm(AlarmKind.ISOLATED, "a peer answers", over=True))
            self._alarmed = False
            self._forget_unreadable()
            self._alone_since = None
            self._had_peer = True
        elif self._had_peer and self._alone_since is None and not self._alarmed:
            self._alone_since = self._context.now

    def stop(self) -> None:
        """Cancel all joins, since this node leaves."""
        self._joins.clear()

    def _seek_pause_ms(self) -> int:
        longest = self._options.join_backoff_max_ms
        return self._jittered(min(self._options.gossip_period_ms << min(self._failed_searches, 16), longest))

    def _backoff_ms(self, failures: int) -> int:
        longest = self._options.join_backoff_max_ms
        return self._jittered(min(self._options.join_backoff_min_ms << min(failures, 16), longest))

    def _jittered(self, duration_ms: int) -> int:
        """Return a random duration between three quarters and five quarters of the given one."""
        return max(1, duration_ms * self._random.randrange(750, 1_251) // 1_000)

    # -- answers -------------------------------------------------------------------------------------------------------

    def receive_answer(self, source: Address, answer: JoinAck | JoinNak | JoinRedirect) -> None:
        """Handle a reply to a JoinReq, or a notice that a peer closed a link."""
        if answer.receiver_generation != self._local.incarnation.generation:
            # The reply is for an earlier generation: it is late, or a recording is replayed to a node that has just
            # started.
            self._context.drop(DropReason.FORMER_LIFE)
            return
        match answer:
            case JoinAck():
                self._receive_ack(source, answer)
            case JoinNak():
                self._receive_nak(source, answer)
            case JoinRedirect():
                self._receive_redirect(source, answer)

    def _receive_ack(self, source: Address, ack: JoinAck) -> None:
        join = self._joins.pop(source, None)
        if join is None:
            self._context.drop(DropReason.UNSOLICITED)
            return
        seed = self._seeds.get(join.seed) if join.seed is not None else None
        if seed is not None:
            seed.failures = 0
        self._queries.sync_clock(ack.clock)
        entry = self._updates.apply_alive(ack.description)
        if entry is not None:
            self._members.prove(entry, source)
        if entry is not None and not entry.is_live:
            self._prober.correct(entry, source)
        elif entry is not None and self._members.link(entry):
            entry.link_secret = _secret_in(join.token)
        elif entry is not None:
            # Others have joined this node since its JoinReq, so it cannot link with the peer that replied.
            self._send_link_nak(source, entry.node_id, entry.incarnation, _secret_in(join.token))
        # The sample is applied after the link: in a full directory the sample could otherwise displace its own sender.
        for info in ack.sample:
            self._updates.apply_alive(info, further=False)

    def _receive_nak(self, source: Address, nak: JoinNak) -> None:
        join = self._joins.get(source)
        code = nak.code if nak.domain == DOMAIN else None
        if code == RefusalCode.LINK_REJECTED:
            peer = self._members.peer_at(source)
            # A notice that crossed this node's JoinReq is ignored, because the reply to the JoinReq will follow.
            if join is not None or peer is None or not self._is_of_peer(nak.etag, peer):
                self._context.drop(DropReason.UNSOLICITED)
            else:
                self._members.unlink(peer.node_id)
        elif join is None:
            self._context.drop(DropReason.UNSOLICITED)
        elif code == RefusalCode.TOKEN_EXPECTED and nak.etag:
            join.tokens += 1
            if join.tokens > _TOKENS_PER_JOIN:
                self._move_on(join)
            else:
                join.token = nak.etag
                self._send(join)
        else:
            if code == RefusalCode.KEY_RETIRED:
                self._alarm_of_key(source)
                if nak.etag:
                    self._context.emit(KeyOffered(source, nak.etag))
            self._move_on(join)

    def _alarm_of_key(self, source: Address) -> None:
        """Raise the alarm about this node's key. A peer does not disprove it, because it may have the same old key."""
        now = self._context.now
        self._refusals = self._refusals + 1 if now < self._refused_until else 1
        self._refused_until = now + _REFUSED_ALARM_MS
        needed = _REFUSALS_WITH_PEERS if len(self._members.links) > 0 else 1
        if self._alarmed_of_key or self._refusals < needed:
            return
        self._alarmed_of_key = True
        text = (
            f"the member at {source.host}:{source.port} refuses this node's key: the group's keys were changed while"
            " this node was down or cut off. Copy the current key from a member, then start this node again; it"
            " continues to try"
        )
        self._context.emit(Alarm(AlarmKind.KEY_RETIRED, text))

    def key_changed(self) -> None:
        """End the alarm about this node's key: no member has refused the new key."""
        self._refusals = 0
        self._end_alarm_of_key("this node has another key")

    def _end_alarm_of_key(self, text: str) -> None:
        if self._alarmed_of_key:
            self._alarmed_of_key = False
            self._context.emit(Alarm(AlarmKind.KEY_RETIRED, text, over=True))

    def _receive_redirect(self, source: Address, redirect: JoinRedirect) -> None:
        if redirect.domain == DOMAIN and redirect.code == RefusalCode.EDGE_SPLIT:
            peer = self._members.peer_at(source)
            if peer is None or not self._is_of_peer(redirect.etag, peer):
                self._context.drop(DropReason.UNSOLICITED)
                return
            self._members.unlink(peer.node_id)
            for address in redirect.addresses[:1]:
                self._begin(address)
            return
        join = self._joins.get(source)
        if join is None:
            self._context.drop(DropReason.UNSOLICITED)
            return
        for address in redirect.addresses[:_ALTERNATIVES_LIMIT]:
            if address not in join.tried and address != self._local.info.address:
                join.alternatives.append(address)
        self._move_on(join)

    # -- links ---------------------------------------------------------------------------------------------------------

    def reject_link(self, source: Address, ping: PingRequest) -> None:
        """Reject the ping of an unlinked node that treats this node as its peer, unless this node is joining it."""
        if source not in self._joins and self._link_naks.take(self._context.now):
            self._send_link_nak(source, ping.source_id, ping.source_incarnation, ping.seq.to_bytes(NUMBER_BYTES))

    def _send_link_nak(self, target: Address, node_id: NodeId, incarnation: Incarnation, proof: bytes) -> None:
        nak = JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, proof, incarnation.generation)
        self._context.send(target, nak, node_id)

    def _is_of_peer(self, proof: bytes, peer: MemberRecord) -> bool:
        """Return True if `proof` is the link's secret or the number of a recent ping; forged datagrams lack them."""
        has_secret = bool(peer.link_secret) and proof == peer.link_secret
        return has_secret or self._prober.is_number_of_recent_ping(proof, peer.node_id)

    def rewire(self, node_id: NodeId) -> None:
        """If this node is full, join a revived member with some probability; two peers then link to each other."""
        members, entry = self._members, self._members.get(node_id)
        if entry is None or members.has_room or node_id in members.links or not entry.is_live:
            return
        is_chosen = self._random.random() * members.live_count < _ENDS_OF_A_SPLIT
        if not is_chosen or not self._has_free or not self._rewirings.take(self._context.now):
            return
        alive = [peer for peer in members.peers() if peer.status is Status.ALIVE]
        if len(alive) < _ENDS_OF_A_SPLIT:
            return
        one, other = self._random.sample(alive, _ENDS_OF_A_SPLIT)
        for peer, partner in ((one, other), (other, one)):
            members.unlink(peer.node_id)
            self._context.send(peer.address, _split_off(peer, partner), peer.node_id)
        self._begin(entry.address)


def _secret_in(token: bytes) -> bytes:
    return token[-NUMBER_BYTES:]


def _split_off(peer: MemberRecord, partner: MemberRecord) -> JoinRedirect:
    """Return the notice that ends a peer's link. The notice has the link's secret, or the number of the peer's ping."""
    number = b"" if peer.last_ping is None else peer.last_ping.to_bytes(NUMBER_BYTES)
    generation = peer.info.incarnation.generation
    return JoinRedirect((partner.address,), DOMAIN, RefusalCode.EDGE_SPLIT, peer.link_secret or number, generation)


class Admission:
    """The decision about JoinReqs."""

    def __init__(
        self,
        context: Context,
        updates: Updates,
        piggyback: Piggyback,
        prober: Prober,
        queries: Queries,
        admit: AdmissionPolicy,
    ) -> None:
        self.in_maintenance = False
        self._context = context
        self._local = context.local
        self._members = context.members
        self._updates = updates
        self._piggyback = piggyback
        self._prober = prober
        self._queries = queries
        self._admit = admit
        options = context.options
        self._tokens = TokenBucket(options.join_rate_per_second, options.join_burst)
        self._joins = TokenBucket(options.join_rate_per_second, options.join_burst)

    def receive(self, source: Address, request: JoinReq, *, token_valid: bool) -> None:
        """Handle one JoinReq."""
        reason = self._drop_reason(request, token_valid=token_valid)
        if reason is not None:
            self._context.drop(reason)
        elif not token_valid:
            self._context.emit(OfferToken(source, request.source.node_id, request.source.incarnation.generation))
        elif request.source.node_id == self._local.node_id:
            self._updates.suspect_conflict(request.source.address)
        else:
            self._consider(source, request)

    def _drop_reason(self, request: JoinReq, *, token_valid: bool) -> DropReason | None:
        if self._local.leaving:
            return DropReason.LEAVING
        if self.in_maintenance:
            return DropReason.MAINTENANCE
        if not is_plausible(request.source):
            return DropReason.BAD_DESCRIPTION
        own = self._local.info
        if request.source.node_id == own.node_id and request.source.address == own.address:
            return DropReason.OWN_MESSAGE
        bucket = self._joins if token_valid else self._tokens
        return None if bucket.take(self._context.now) else DropReason.RATE_LIMITED

    def _consider(self, source: Address, request: JoinReq) -> None:
        self._queries.sync_clock(request.clock)
        rejection = self._admit(request.source)
        if rejection is not None:
            self._answer(source, request.source, rejection)
            return
        entry = self._members.get(request.source.node_id)
        if entry is None and not self._members.has_room and not self._may_split(request):
            # A refused joiner is not recorded, so that a refusal does not use memory.
            self._refuse(source, request)
            return
        entry = self._updates.apply_alive(request.source)
        if entry is None:
            self._context.drop(DropReason.DIRECTORY_FULL)
            return
        self._members.prove(entry, source)
        moved = entry.info.address != request.source.address
        if not entry.is_live or moved or entry.incarnation > request.source.incarnation:
            self._context.drop(DropReason.STALE_JOIN)
            self._prober.correct(entry, source)
            return
        entry.peer_count = request.peer_count
        if source == entry.address:
            # At another address, the sender may be another key holder that sends the member's description.
            entry.link_secret = _secret_in(request.token)
        if entry.node_id in self._members.links or self._members.link(entry):
            self._welcome(source, entry)
        elif self._may_split(request):
            self._split(source, entry)
        else:
            self._refuse(source, request)

    def _may_split(self, request: JoinReq) -> bool:
        return request.source.capacity - request.peer_count >= _ENDS_OF_A_SPLIT and not any(self._with_room(request))

    def _with_room(self, request: JoinReq) -> Iterator[MemberRecord]:
        for entry in self._members.alive():
            if entry.has_room and entry.node_id != request.source.node_id and entry.address != request.source.address:
                yield entry

    def _welcome(self, source: Address, entry: MemberRecord, *others: MemberRecord) -> None:
        sample = self._piggyback.welcome_sample(entry.node_id, tuple(other.info for other in others))
        self._answer(source, entry.info, JoinAck(self._local.info, sample, self._queries.clock))

    def _answer(self, target: Address, receiver: NodeInfo, answer: JoinAck | JoinNak | JoinRedirect) -> None:
        """Bind the reply to the receiver's current generation, so that it cannot be replayed after a restart."""
        bound = structs.replace(answer, receiver_generation=receiver.incarnation.generation)
        self._context.send(target, bound, receiver.node_id)

    def _refuse(self, source: Address, request: JoinReq) -> None:
        with_room = list(self._with_room(request))
        if not with_room:
            self._answer(source, request.source, JoinNak(DOMAIN, RefusalCode.AT_CAPACITY))
            return
        chosen = self._context.random.sample(with_room, min(_REDIRECT_ADDRESSES, len(with_room)))
        # Joiners will probably use the first address. Random order distributes them until that node has reported its
        # new peer count.
        chosen[0].peer_count = (chosen[0].peer_count or 0) + 1
        addresses = tuple(entry.address for entry in chosen)
        self._answer(source, request.source, JoinRedirect(addresses, DOMAIN, RefusalCode.AT_CAPACITY))

    def _split(self, source: Address, entry: MemberRecord) -> None:
        alive = [peer for peer in self._members.peers() if peer.status is Status.ALIVE]
        if not alive:
            self._answer(source, entry.info, JoinNak(DOMAIN, RefusalCode.AT_CAPACITY))
            return
        other = self._context.random.choice(alive)
        self._members.unlink(other.node_id)
        self._members.link(entry)
        self._context.send(other.address, _split_off(other, entry), other.node_id)
        self._welcome(source, entry, other)
