"""`async with gossip.open_group(...) as group`: one node's part in a group, and the task that owns the core.

    socket -----+                            +--> socket           Send, Announce, OfferToken
    broadcast --+--> transport --> owner ----+--> state directory  AdoptGeneration, UseKeyring
    requests ---+                  core      +--> event ring       MembershipChanged, UserEventReceived, Alarm, ...

One task owns the core. It passes waiting input through the codec and the core, and executes the effects in order. Sends
are synchronous, so the effects of one step are not interrupted, except by the fsync that AdoptGeneration requires
before any further send. A separate task stores keys (docs/explanation/gossip.md, "Reasons").

Waiting datagrams go through each stage as a batch: open and decode, step through the core, seal the replies, send them.
Handling one datagram runs more code than fits in the L1 cache. If datagrams were handled one by one, each would load
all of this code again (Blackwell, "Speeding up Protocols for Small Messages", SIGCOMM 1996).

An unexpected error about one datagram drops that datagram: a member must not be able to end another one. Errors of
requests and deadlines end the group, because a repetition of the step would fail again.

The owner never waits for a consumer. The kernel drops datagrams that are not read in time (gossip repeats). Requests
are bounded, and events go into a ring: a slow reader gets the number of missed events, and `members()` is always
complete.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from random import Random
from time import time_ns
from typing import Any, Final, assert_never

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from gossip.core.effects import (
    AdoptGeneration,
    Alarm,
    Announce,
    Effect,
    KeyOffered,
    KeyringUpdateRefused,
    LocalEffect,
    MembershipChanged,
    OfferToken,
    QueryAnswered,
    QueryEnded,
    QueryReceived,
    Send,
    UseKeyring,
    UserEventReceived,
)
from gossip.core.events import (
    AnswerGiven,
    DeadlineReached,
    Event,
    QueryRequested,
    Received,
    Unreadable,
    UserEventRequested,
)
from gossip.core.keyring import ClockBound, Keyring, KeyringError
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo
from gossip.core.membership import Member
from gossip.core.messages import Query
from gossip.core.swim import Swim
from gossip.node.discovery import Discovery, NamesToFollow, numeric_seeds
from gossip.node.endpoints import numeric
from gossip.node.event_ring import EventRing, Reader
from gossip.node.limits import AdmissionCheck, GroupDescription, Loss
from gossip.node.requests import Answer, OpenQueries, Requests
from gossip.node.settings import ConfigError, GroupSettings, keyring_of, seed_texts, unknown_names
from gossip.node.state_files import (
    GenerationKeeper,
    KeyringKeeper,
    NodeIdentity,
    begin_generation,
    exclusive,
    known_peers,
    load_identity,
    load_keyring,
    remember_peers,
)
from gossip.node.transport import AnswerBudget, Datagram, DatagramTransport
from gossip.node.udp import DatagramSocket, Network, UdpNetwork, open_socket
from gossip.wire.identity import Signer

EVENTS_LIMIT: Final = 1_024
KEYRING_WAIT_S: Final = 2.0
"""Longest wait for the disk; `change_keyring` then returns, because the change itself succeeded."""
GroupEvent = MembershipChanged | Alarm | UserEventReceived | QueryReceived | KeyOffered | KeyringUpdateRefused


class StartupState(Struct, frozen=True):
    """The initial state of a node. `keyring` None means unencrypted datagrams."""

    identity: NodeIdentity
    generation: int
    keyring: Keyring | None
    peers: tuple[Address, ...] = ()

    @classmethod
    def load(cls, settings: GroupSettings, stack: ExitStack) -> "StartupState":
        """Begin the next generation; the state directory stays locked until the stack unwinds."""
        keyring, directory = settings.keyring, settings.state_directory
        if directory is None:
            return cls(NodeIdentity.throwaway(), 1, keyring)
        stack.enter_context(exclusive(directory))
        identity = load_identity(directory)
        if keyring is not None:
            known = load_keyring(directory, keyring.label)
            keyring = keyring if known is None else keyring.merge(known)
        return cls(identity, begin_generation(directory, identity.node_id), keyring, known_peers(directory))


class Group:
    """One node's part in a group. Made by `gossip.open_group`; methods that are not async return immediately."""

    def __init__(
        self, settings: GroupSettings, startup: StartupState, socket: DatagramSocket, discovery: Discovery | None
    ) -> None:
        self._settings = settings
        self._discovery = discovery
        self._started_at = trio.current_time()
        unix_ms = time_ns() // 1_000_000
        self._clock_bound = ClockBound(unix_ms)
        self.identity = identity = startup.identity
        self._ring: EventRing[GroupEvent] = EventRing(EVENTS_LIMIT)
        directory = settings.state_directory
        self._generation = GenerationKeeper(directory, identity.node_id, startup.generation)
        self._keyring_keeper = KeyringKeeper(directory, settings.keyring_changed, self._ring.append, self._keys_stored)
        self._transport = DatagramTransport(
            settings, Signer(identity.key), startup.keyring, socket, discovery, self._ring.append
        )
        admission = AdmissionCheck(settings.admit, self._transport.counters, self._ring.append)
        info = NodeInfo(
            node_id=identity.node_id,
            address=settings.advertise or socket.address,
            incarnation=Incarnation(startup.generation, 0),
            capacity=settings.capacity,
            metadata=settings.metadata,
        )
        self._core = Swim(
            info,
            settings.options,
            Random() if settings.random_seed is None else Random(settings.random_seed),
            0,
            keys=startup.keyring,
            admit=admission.check,
            unix_ms=unix_ms,
            first_round_at=self._next_multiple_ms(settings.options.probe_period_ms)
            if settings.aligned_rounds
            else None,
        )
        self._requests = Requests(self._transport.ring_doorbell)
        self._queries = OpenQueries()
        self._names = NamesToFollow()
        self._is_ending = False
        self._adoption = trio.CancelScope()
        """The scope of the last write of a generation."""
        self._requests.add_seeds(startup.peers)

    # -- this node and the others --------------------------------------------------------------------------------------

    @property
    def node_id(self) -> NodeId:
        """This node's id."""
        return self.identity.node_id

    @property
    def public_key(self) -> bytes:
        """The public key of this node's identity."""
        return self.identity.key.public_key().public_bytes_raw()

    @property
    def identity_key(self) -> Ed25519PrivateKey:
        """The key for this node's signatures. Secret."""
        return self.identity.key

    @property
    def generation(self) -> int:
        """The number of this node's starts; it rises while the node runs if peers have recorded a higher number."""
        return self._generation.current

    @property
    def info(self) -> NodeInfo:
        """This node's own description, including its address."""
        return self._core.describe().self_info

    def members(self) -> tuple[Member, ...]:
        """Return every other known member, including recently dead or departed ones."""
        return self._core.describe().members

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of known other members, and of peers among them."""
        return self._core.counts

    def describe(self) -> GroupDescription:
        """Return everything for operators: the members, the core's state, the counters."""
        transport = self._transport
        wire = transport.counters.describe(
            transport.overflowed(), self._ring.lost, transport.other_farms.recent(self.now_ms())
        )
        return GroupDescription(self._core.describe(), wire)

    # -- events --------------------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        """The current position in the event stream: `events(after=cursor)` returns future events."""
        return self._ring.cursor

    def events(self, after: int = 0) -> Reader[GroupEvent]:
        """Return the events after a cursor, and then every event as it happens; the stream ends with the group."""
        return self._ring.after(after)

    # -- requests ------------------------------------------------------------------------------------------------------

    def set_metadata(self, metadata: bytes) -> None:
        """Replace this node's metadata (at most 512 bytes)."""
        self._requests.set_metadata(metadata)

    def send_event(self, name: str, body: bytes = b"") -> None:
        """Send a user event with a body of at most 512 bytes to every member; raise BusyError above the rate."""
        self._requests.add(UserEventRequested(name, body), self.now_ms())

    @asynccontextmanager
    async def query(
        self, name: str, body: bytes = b"", timeout_s: float = 5.0
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Answer]]:
        """Query every member: `async for answer in` the yielded channel, until the timeout."""
        timeout_ms = int(timeout_s * 1000)
        ticket, answers = self._queries.begin(timeout_ms)
        async with answers:
            try:
                self._requests.add(QueryRequested(ticket, name, body, timeout_ms), self.now_ms())
                yield answers
            finally:
                self._queries.end(ticket)

    def answer(self, query: Query, body: bytes = b"") -> None:
        """Answer a query that arrived as an event; only once, and before it times out."""
        self._requests.add(AnswerGiven(query.message_id, body), self.now_ms())

    def add_seeds(self, *seeds: Address | str) -> None:
        """Try to join through further seeds: 'host:port' as in `seeds`, or addresses. Raise ConfigError if invalid."""
        texts = seed_texts(seeds, allow_wan=self._settings.allow_wan)
        self._names.add(texts)
        self._requests.add_seeds(numeric_seeds(texts))

    def set_maintenance(self, *, on: bool) -> None:
        """Turn maintenance on or off. While it is on, this node ignores join requests, and otherwise continues."""
        self._requests.set_maintenance(on=on)

    @property
    def keyring(self) -> Keyring | None:
        """The group's current keys at this node; None for unencrypted datagrams."""
        return self._core.keyring

    @property
    def keyring_is_stored(self) -> bool:
        """True if a restart of this node would find its current keys."""
        return self._core.keyring_is_stored

    @property
    def latest_clock(self) -> int:
        """The latest logical time that members now accept in a keyring."""
        return self._clock_bound.at(self.now_ms())

    async def change_keyring(self, keyring: Keyring) -> None:
        """Distribute a changed keyring to the whole group; return when this node has adopted it.

        Waits at most `KEYRING_WAIT_S` for the disk; `keyring_is_stored` has the result. Raises `KeyringError` for a
        keyring that would be rejected by members or on reload.
        """
        if not keyring.is_sound():
            raise KeyringError(f"no member accepts {keyring}")
        self._requests.change_keyring(keyring)
        await self._requests.done.wait()
        await self._keyring_keeper.settle(KEYRING_WAIT_S)

    async def leave(self) -> None:
        """Announce that this node leaves. Otherwise the others see the end of the `async with` block as a crash."""
        self._requests.leave()
        await trio.sleep(self._settings.leave_linger_ms / 1000)

    def now_ms(self) -> int:
        """Return the time of the core's clock, the base of `Member.since_ms`."""
        # The added 0.001 ms compensates for rounding: a wake-up at a deadline must not read as 1 ms before it.
        return int((trio.current_time() - self._started_at) * 1000 + 0.001)

    def _next_multiple_ms(self, period_ms: int) -> int:
        """Return the time of the core's clock at the next multiple of a period on trio's clock.

        Trio's clock begins at a random time in each process, so different nodes have different times.
        """
        return -int(self._started_at * 1000) % period_ms

    # -- the owner -----------------------------------------------------------------------------------------------------

    async def run(self, network: Network) -> None:
        """Own the core until canceled; then end the events."""
        async with trio.open_nursery() as nursery:
            if self._settings.state_directory is not None:
                nursery.start_soon(remember_peers, self._settings.state_directory, self._peer_addresses)
            if self._discovery is not None:
                nursery.start_soon(self._transport.watch_broadcasts, self._discovery.broadcast_socket)
            nursery.start_soon(self._names.follow, network, self._requests.add_seeds)
            nursery.start_soon(self._queries.end_overdue)
            nursery.start_soon(self._keyring_keeper.run)
            nursery.start_soon(self._end_adoption)
            self.add_seeds(*self._settings.seeds)
            try:
                while True:
                    await self._expire()
                    await self._take_requests()
                    await self._take_datagrams()
                    with self._transport.until(self._deadline_s()) as scope:
                        await self._follow_socket(scope)
            finally:
                self._queries.end_all()
                self._ring.close()

    def _peer_addresses(self) -> tuple[Address, ...]:
        peers = sorted((each for each in self.members() if each.is_peer), key=lambda each: each.since_ms)
        return tuple(each.info.address for each in peers)

    def _deadline_s(self) -> float:
        """Return the time of the core's next step, by trio's clock."""
        deadline_ms = self._core.deadline
        return inf if deadline_ms is None else self._started_at + deadline_ms / 1000

    async def _expire(self) -> None:
        deadline_ms, now_ms = self._core.deadline, self.now_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self._transport.foreign_versions.expire(now_ms)
            await self._step(now_ms, DeadlineReached())

    async def _take_requests(self) -> None:
        if self._transport.is_rung:
            self._transport.is_rung = False
            done, events = self._requests.take()
            await self._step(self.now_ms(), *events)
            done.set()

    async def _take_datagrams(self) -> None:
        arrivals = self._transport.take()
        if arrivals:
            now_ms = self.now_ms()
            await self._step(now_ms, *self._transport.open(arrivals, now_ms))

    async def _follow_socket(self, scope: trio.CancelScope) -> None:
        while True:
            await self._transport.readable()
            await self._take_datagrams()
            deadline_s = self._deadline_s()
            if deadline_s != scope.deadline:
                scope.deadline = deadline_s

    async def _step(self, now_ms: int, *events: Event) -> None:
        effects: list[tuple[Effect, AnswerBudget]] = []
        for event in events:
            budget = [event.size_bytes if isinstance(event, Received) else 0]
            try:
                for effect in self._core.step(event, now_ms):
                    effects.append((effect, budget))  # noqa: PERF401 - a comprehension would add a call per datagram
            except Exception as error:
                if not isinstance(event, Received | Unreadable):
                    raise
                self._transport.counters.failed(error)
        sealed: list[Datagram] = []
        for effect, budget in effects:
            if isinstance(effect, Send):
                try:
                    sealed += self._transport.seal(effect, budget)
                except Exception as error:  # noqa: BLE001 - logged
                    self._transport.counters.failed(error)
            else:
                if sealed:
                    self._transport.post(sealed)
                    sealed.clear()
                await self._carry_out(effect, now_ms)
        self._transport.post(sealed)

    async def _carry_out(self, effect: LocalEffect, now_ms: int) -> None:
        match effect:
            case Announce(message):
                self._transport.announce(message, now_ms)
            case OfferToken(target, applicant, generation):
                self._transport.offer_token(target, applicant, generation, now_ms)
            case MembershipChanged() | Alarm() | UserEventReceived() | QueryReceived() | KeyOffered():
                self._ring.append(effect)
            case QueryAnswered():
                if not self._queries.forward_reply(effect):
                    self._transport.counters.drop(Loss.ANSWER_LOST)
            case QueryEnded(ticket):
                self._queries.end(ticket)
            case AdoptGeneration(generation):
                # The shield protects the write from the doorbell, which cancels the owner's scope.
                with trio.CancelScope(shield=not self._is_ending) as self._adoption:
                    await self._generation.adopt(generation, self._ring.append)
            case UseKeyring(keyring):
                self._transport.use(keyring)
                self._keyring_keeper.keep(keyring)
            case _:
                assert_never(effect)

    async def _end_adoption(self) -> None:
        """Cancel a waiting write of a generation at the end of the group, so that a node with a full disk can stop."""
        try:
            await trio.sleep_forever()
        finally:
            self._is_ending, self._adoption.shield = True, False

    def _keys_stored(self, keyring: Keyring) -> None:
        self._core.keyring_stored(keyring)


def open_group(
    bind: Address | str,
    *,
    key: bytes | Keyring | None = None,
    insecure: bool = False,
    seeds: Sequence[str] = (),
    state_directory: Path | None = None,
    network: Network | None = None,
    **settings: Any,
) -> AbstractAsyncContextManager[Group]:
    """Join a group for the duration of the block.

    `bind` is an address or a numeric host (any free port). `key` is the group's secret of 32 bytes; without one, set
    `insecure`. `settings` are the further fields of `GroupSettings`. Errors: `ConfigError`, `StateError`.
    """
    strange = unknown_names(settings)
    if strange:
        raise ConfigError(f"{', '.join(strange)}: no such setting; see the fields of GroupSettings")
    try:
        keyring = keyring_of(key)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if network is not None and not callable(getattr(network, "bind", None)):
        raise ConfigError(f"network = {network!r:.60}: expected a transport of datagrams (a gossip.node.udp.Network)")
    given_seeds: Any = tuple(seeds) if isinstance(seeds, list) else seeds
    checked = GroupSettings(
        bind=_address(bind),
        keyring=keyring,
        insecure=insecure,
        seeds=given_seeds,
        state_directory=state_directory,
        **settings,
    )
    return _running(checked, network)


def _address(bind: Any) -> Address:
    if isinstance(bind, Address):
        return bind
    host = numeric(bind) if isinstance(bind, str) else None
    if host is None:
        raise ConfigError(f"bind = {bind!r}: expected a numeric host, as in 192.168.1.5, or an Address with a port")
    return Address(host, 0)


@asynccontextmanager
async def _running(settings: GroupSettings, network: Network | None) -> AsyncIterator[Group]:
    network = network or UdpNetwork(settings.interface)
    limit_bytes = settings.datagram_limit_bytes
    with ExitStack() as stack:
        if settings.state_directory is None:
            startup = StartupState.load(settings, stack)
        else:
            startup = await trio.to_thread.run_sync(StartupState.load, settings, stack)
        socket = open_socket("bind", settings.bind, network.bind, limit_bytes)
        stack.callback(socket.close)
        discovery = None
        if settings.broadcast is not None:
            listening = open_socket("broadcast", settings.broadcast, network.bind_broadcast, limit_bytes)
            stack.callback(listening.close)
            discovery = Discovery(settings.broadcast, listening)
        group = Group(settings, startup, socket, discovery)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.run, network)
            yield group
            nursery.cancel_scope.cancel()
