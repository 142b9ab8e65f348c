"""The joiner's part: through which addresses this node tries to get peers.

    JoinReq ──▶ JoinNak(TOKEN_EXPECTED, token) ──▶ JoinReq with it ──▶ JoinAck         a new peer
                                                                  └──▶ JoinRedirect    try those, boundedly
                                                                  └──▶ JoinNak, silence    the next seed, later

Three sources of addresses: seeds that an operator gave (kept and retried for ever, since a whole site may come back
after hours), hints from broadcasts (dropped after a few failures), and, once a node knows members, its own directory: a
node with fewer peers than it could have looks for more, which makes a small group a full mesh and repairs an overlay.

Retries back off exponentially with jitter: a hundred nodes that lost the same seed must not return to it in step. When
a search finds no room anywhere (all are at capacity, one vacancy is left over) its pace drops the same way.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from gossip.core.effects import Alarm, AlarmKind, KeyOffered
from gossip.core.local_node import LocalNode
from gossip.core.member import Address, Status
from gossip.core.membership import Entry, Membership
from gossip.core.messages import JoinNak, JoinRedirect, JoinReq
from gossip.core.options import Options
from gossip.core.outbox import DropReason, Outbox
from gossip.core.refusal import DOMAIN, RefusalCode
from gossip.core.user_events import UserEvents

_HINT_FAILURES = 5
_ALARM_FAILURES = 3
_TOKENS_PER_JOIN = 3
_ALTERNATIVES_LIMIT = 8


@dataclass(slots=True)
class _Seed:
    is_hint: bool
    next_at: int
    failures: int = 0


@dataclass(slots=True)
class _Join:
    """One attempt to gain one peer, which may wander from address to address by redirects."""

    address: Address
    seed: Address | None
    next_at: int
    token: bytes = b""
    tries: int = 0
    tokens: int = 0
    redirects: int = 0
    tried: set[Address] = field(default_factory=set)
    alternatives: deque[Address] = field(default_factory=lambda: deque(maxlen=_ALTERNATIVES_LIMIT))


class Joining:
    """Seeds, and the joins under way (at most `joins_in_flight`)."""

    def __init__(
        self,
        own: LocalNode,
        membership: Membership,
        user_messages: UserEvents,
        outbox: Outbox,
        options: Options,
        random: Random,
        now: int,
    ) -> None:
        self._local = own
        self._membership = membership
        self._user_events = user_messages
        self._outbox = outbox
        self._options = options
        self._random = random
        self._seeds: dict[Address, _Seed] = {}
        self._joins: dict[Address, _Join] = {}
        self._next_seek_at = now
        self._fruitless = 0
        self._alarmed = False
        self._alarmed_of_key = False

    @property
    def seed_count(self) -> int:
        """How many seed addresses are kept."""
        return len(self._seeds)

    @property
    def in_flight(self) -> int:
        """How many joins are under way."""
        return len(self._joins)

    @property
    def deadline(self) -> int | None:
        """When something is to be tried or given up."""
        if self._local.leaving:
            return None
        times = [join.next_at for join in self._joins.values()] if self._joins else []
        if self.has_free:
            times.extend(seed.next_at for seed in self._seeds.values())
            if self._membership.is_short:
                times.append(self._next_seek_at)
        return min(times, default=None)

    @property
    def has_free(self) -> bool:
        """Whether another join may begin."""
        return len(self._joins) < self._options.joins_in_flight

    def is_joining(self, address: Address) -> bool:
        """Whether an answer from this address is awaited."""
        return address in self._joins

    def give_seeds(self, addresses: tuple[Address, ...], now: int, *, is_hint: bool = False) -> None:
        """Further addresses to join through; known ones keep their pace."""
        for address in addresses:
            if address == self._local.info.address:
                continue
            known = self._seeds.get(address)
            if known is not None:
                known.is_hint = known.is_hint and is_hint
            elif len(self._seeds) >= self._options.seeds_limit and not (not is_hint and self._drop_hint()):
                self._outbox.drop(DropReason.SEEDS_FULL)
            else:
                self._seeds[address] = _Seed(is_hint, now)

    def _drop_hint(self) -> bool:
        hint = next((address for address, seed in self._seeds.items() if seed.is_hint), None)
        if hint is None:
            return False
        del self._seeds[hint]
        return True

    def expire(self, now: int) -> None:
        """Retry what is due, then begin what is due."""
        for join in list(self._joins.values()):
            if join.next_at <= now:
                self._retry(join, now)
        due = [(address, seed) for address, seed in self._seeds.items() if seed.next_at <= now]
        self._random.shuffle(due)
        for address, seed in due:
            self._try_seed(address, seed, now)
        if self._membership.is_short and self._next_seek_at <= now:
            self._next_seek_at = now + self._seek_pause_ms()
            for target in self._candidates():
                self._begin(target.address, None, now)

    def _try_seed(self, address: Address, seed: _Seed, now: int) -> None:
        if self._membership.live_at(address):
            if seed.is_hint:
                del self._seeds[address]
                return
            seed.failures = 0
            seed.next_at = now + self._jittered(self._options.join_backoff_max_ms)
        elif address in self._joins or self._begin(address, address, now):
            seed.next_at = now + self._backoff_ms(seed.failures)

    def _candidates(self) -> list[Entry]:
        free = self._options.joins_in_flight - len(self._joins)
        wanted = min(self._membership.capacity, self._membership.live_count) - self._membership.peer_count
        others = [
            entry
            for entry in self._membership.strangers()
            if entry.status is Status.ALIVE
            and entry.address not in self._joins
            and entry.address != self._local.info.address
        ]
        roomy = [entry for entry in others if entry.peer_count is None or entry.has_room]
        pool = roomy or others
        return self._random.sample(pool, max(min(free, wanted - len(self._joins), len(pool)), 0))

    def go(self, address: Address, now: int) -> None:
        """Join through this address now, if there is room for another join."""
        self._begin(address, None, now)

    def _begin(self, address: Address, seed: Address | None, now: int) -> bool:
        if not self.has_free or address in self._joins:
            return False
        if address == self._local.info.address or self._local.leaving:
            return False
        self._send(_Join(address, seed, now), now)
        return True

    def _send(self, join: _Join, now: int) -> None:
        join.tries += 1
        join.tried.add(join.address)
        join.next_at = now + self._jittered(self._options.join_timeout_ms)
        self._joins[join.address] = join
        request = JoinReq(
            self._local.info, join.token, peer_count=self._membership.peer_count, clock=self._user_events.clock
        )
        self._outbox.send(join.address, request, None)

    def _retry(self, join: _Join, now: int) -> None:
        if join.tries < self._options.join_tries:
            self._send(join, now)
        else:
            self._wander(join, now)

    def _wander(self, join: _Join, now: int) -> None:
        """This address will not do: go on with the next alternative, or give up."""
        del self._joins[join.address]
        while join.alternatives and join.redirects < self._options.redirects_per_join:
            address = join.alternatives.popleft()
            if address in self._joins or address in join.tried or self._membership.peer_at(address) is not None:
                continue
            join.address = address
            join.redirects += 1
            join.token, join.tries, join.tokens = b"", 0, 0
            self._send(join, now)
            return
        self._fail(join, now)

    def _fail(self, join: _Join, now: int) -> None:
        seed = self._seeds.get(join.seed) if join.seed is not None else None
        if seed is not None and join.seed is not None:
            seed.failures += 1
            seed.next_at = now + self._backoff_ms(seed.failures)
            if seed.is_hint and seed.failures >= _HINT_FAILURES:
                del self._seeds[join.seed]
        if join.seed is None:
            self._fruitless += 1
            self._next_seek_at = now + self._seek_pause_ms()
        self._check_isolation()

    def _check_isolation(self) -> None:
        if self._membership.peer_count > 0 or self._alarmed or not self._seeds:
            return
        if all(seed.failures >= _ALARM_FAILURES for seed in self._seeds.values()):
            self._alarmed = True
            named = ", ".join(f"{address.host}:{address.port}" for address in list(self._seeds)[:4])
            text = (
                f"no peer answers, and neither do the {len(self._seeds)} seed addresses ({named}); check that one of "
                "those nodes runs with the same farm key and that UDP reaches it. This node goes on trying"
            )
            self._outbox.emit(Alarm(AlarmKind.ISOLATED, text))

    def succeeded(self, source: Address) -> bool:
        """A JoinAck came from `source`. Whether it was asked for."""
        join = self._joins.pop(source, None)
        if join is None:
            return False
        seed = self._seeds.get(join.seed) if join.seed is not None else None
        if seed is not None:
            seed.failures = 0
        return True

    def peers_changed(self, now: int) -> None:
        """A peer was gained or lost: searching is worth while again."""
        self._fruitless = 0
        self._next_seek_at = min(self._next_seek_at, now + self._options.gossip_period_ms)
        if self._membership.peer_count > 0:
            self._alarmed = False
            self._alarmed_of_key = False

    def receive_nak(self, source: Address, nak: JoinNak, now: int) -> None:
        """A refusal: come back with the token that it carries, or go elsewhere."""
        join = self._joins.get(source)
        if join is None:
            self._outbox.drop(DropReason.UNSOLICITED)
        elif nak.domain == DOMAIN and nak.code == RefusalCode.TOKEN_EXPECTED and nak.etag:
            join.tokens += 1
            if join.tokens > _TOKENS_PER_JOIN:
                self._wander(join, now)
                return
            join.token = nak.etag
            self._send(join, now)
        elif nak.domain == DOMAIN and nak.code == RefusalCode.NOT_A_PEER:
            # Crossed our JoinReq on the way; the answer to that is still to come.
            self._outbox.drop(DropReason.UNSOLICITED)
        else:
            if nak.domain == DOMAIN and nak.code == RefusalCode.KEY_RETIRED:
                self._alarm_of_key(source)
                if nak.etag:
                    self._outbox.emit(KeyOffered(source, nak.etag))
            self._wander(join, now)

    def _alarm_of_key(self, source: Address) -> None:
        if self._alarmed_of_key or self._membership.peer_count > 0:
            return
        self._alarmed_of_key = True
        text = (
            f"the member at {source.host}:{source.port} refuses this node's key: the group's keys were changed while "
            "this node was away. Copy the current key from a member, then start this node again; it goes on trying"
        )
        self._outbox.emit(Alarm(AlarmKind.KEY_RETIRED, text))

    def receive_redirect(self, source: Address, redirect: JoinRedirect, now: int) -> None:
        """At capacity there: the addresses it names come next."""
        join = self._joins.get(source)
        if join is None:
            self._outbox.drop(DropReason.UNSOLICITED)
            return
        for address in redirect.addresses[:_ALTERNATIVES_LIMIT]:
            if address not in join.tried and address != self._local.info.address:
                join.alternatives.append(address)
        self._wander(join, now)

    def stop(self) -> None:
        """Leaving: no joins any more."""
        self._joins.clear()

    def _seek_pause_ms(self) -> int:
        longest = self._options.join_backoff_max_ms
        return self._jittered(min(self._options.gossip_period_ms << min(self._fruitless, 16), longest))

    def _backoff_ms(self, failures: int) -> int:
        longest = self._options.join_backoff_max_ms
        return self._jittered(min(self._options.join_backoff_min_ms << min(failures, 16), longest))

    def _jittered(self, duration_ms: int) -> int:
        """Between three quarters and five quarters of a duration."""
        return max(1, duration_ms * self._random.randrange(750, 1_251) // 1_000)
