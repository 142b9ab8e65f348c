"""The trio agent: one task that owns the gossip core, and what stands between it and the network.

    socket -----+                         +--> socket           Send, Announce, OfferToken
                |                         |
    broadcast --+--> intake --> owner ----+--> state directory  AdoptGeneration, UseKeyring
                |              codec,     |
    requests ---+              core       +--> events           MembershipChanged, Alarm

The owner takes what waits through codec and core and carries the effects out in their order; sends are synchronous, so
nothing comes between the effects of one step, except the fsync that AdoptGeneration demands before anything else may
be sent.

Datagrams that wait together go through each stage together: all are opened and read, then the core steps through them,
then all answers
are sealed, then they are sent. One datagram's journey runs through more code than a processor's innermost cache
holds; taken one by one, every datagram would fetch all of it anew, which costs a quarter of the whole (Blackwell,
"Speeding up Protocols for Small Messages", SIGCOMM 1996). The core cannot tell: it only decides, and to the network
it is as if the batch had arrived a moment later.

Nothing here waits for a consumer. Datagrams that nobody has time for are dropped by the kernel (gossip repeats),
requests are slots that keep the last word (metadata) or a bounded set (seeds) behind a single doorbell, and a full
events channel drops the event, counts it and asks for a resync: the consumer then reads `members()`, the whole truth,
instead of the changes that it missed.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from random import Random
from time import time_ns
from typing import Final, assert_never

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.core.description import Member
from gossip.core.effects import (
    AdoptGeneration,
    Alarm,
    Announce,
    Effect,
    KeyOffered,
    KeyringUpdateRefused,
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
    KeyringChanged,
    QueryRequested,
    Received,
    Unreadable,
    UserEventRequested,
)
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo
from gossip.core.messages import Broadcast, JoinNak, JoinReq, KeyringUpdate, Message, Query
from gossip.core.refusal import DOMAIN, RefusalCode
from gossip.core.swim import Swim
from gossip.node.admission import AdmissionCheck, offer_to
from gossip.node.counters import Counters, GroupDescription, Loss
from gossip.node.discovery import Discovery
from gossip.node.endpoints import is_private
from gossip.node.generation_keeper import GenerationKeeper
from gossip.node.intake import Datagram, Intake
from gossip.node.keyring_store import KeyringStore
from gossip.node.opening import opened
from gossip.node.questions import Answer, Questions
from gossip.node.requests import Requests
from gossip.node.resumption import ResumptionWatch
from gossip.node.seeds import NamesToFollow, numeric_seeds
from gossip.node.settings import EVENTS_LIMIT, GroupSettings, seed_texts
from gossip.node.source_limits import SourceLimits
from gossip.node.startup_state import StartupState, load_startup_state
from gossip.node.state_files import remember_peers
from gossip.node.udp import DatagramSocket, Network, UdpNetwork
from gossip.wire.codec import SECRETS_BYTES, Codec, RefusedError
from gossip.wire.datagram import DatagramError
from gossip.wire.identity import Signer
from gossip.wire.layout import Refusal

_NEWCOMERS: Final = (JoinReq, Broadcast)
_UNREADABLE: Final = frozenset({Refusal.UNKNOWN_KEY, Refusal.RETIRED_KEY})
GroupEvent = MembershipChanged | Alarm | UserEventReceived | QueryReceived | KeyOffered | KeyringUpdateRefused


class Agent:
    """One node's gossip. Made by `open_agent`; what is not async returns at once."""

    def __init__(
        self,
        config: GroupSettings,
        startup: StartupState,
        socket: DatagramSocket,
        discovery: Discovery | None,
    ) -> None:
        self._config = config
        self.identity = identity = startup.identity
        self._generation = GenerationKeeper(config.state_directory, identity.node_id, startup.generation)
        self._keyring_store = KeyringStore(config, startup.chain)
        self._socket = socket
        self._discovery = discovery
        self._started_at = trio.current_time()
        self._resumption = ResumptionWatch(config.clocks)
        self._codec = Codec(
            Signer(identity.key),
            self._keyring_store.ring,
            self._resumption.fresh_secrets(SECRETS_BYTES),
            config.datagram_limit_bytes,
        )
        info = NodeInfo(
            node_id=identity.node_id,
            address=config.advertise or socket.address,
            incarnation=Incarnation(startup.generation, 0),
            capacity=config.capacity,
            metadata=config.metadata,
        )
        random = Random() if config.random_seed is None else Random(config.random_seed)
        self._counters = Counters()
        admission = AdmissionCheck(config.admit, self._counters, self._publish)
        self._core = Swim(
            info, config.options, random, 0, keys=startup.chain, admit=admission.ask, unix_ms=time_ns() // 1_000_000
        )
        self._source_limits = SourceLimits()
        self._intake = Intake(socket, config.datagram_limit_bytes, self._counters)
        self._requests = Requests(self._intake.ring)
        self._questions = Questions()
        self._names = NamesToFollow()
        self._events_in, self.events = trio.open_memory_channel[GroupEvent](EVENTS_LIMIT)
        self._resync_needed = False
        self._repairs: list[Address] = []
        """Where datagrams of this batch came from that none of our keys opens."""

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> NodeId:
        """This node's name."""
        return self.identity.node_id

    @property
    def public_key(self) -> bytes:
        """Of its identity."""
        return self.identity.key.public_key().public_bytes_raw()

    @property
    def identity_key(self) -> Ed25519PrivateKey:
        """With which this node signs. Secret."""
        return self.identity.key

    @property
    def generation(self) -> int:
        """The number of this life; it rises while the agent runs if peers remember a higher one."""
        return self._generation.current

    @property
    def info(self) -> NodeInfo:
        """What this node says about itself now."""
        return self._core.describe().self_info

    def members(self) -> tuple[Member, ...]:
        """Every other member that this node knows of."""
        return self._core.describe().members

    @property
    def counts(self) -> tuple[int, int]:
        """How many other members this node knows of, and how many of them are its peers."""
        return self._core.counts

    def _peer_addresses(self) -> tuple[Address, ...]:
        peers = sorted((each for each in self.members() if each.is_peer), key=lambda each: each.since_ms)
        return tuple(each.info.address for each in peers)

    def describe(self) -> GroupDescription:
        """The core's picture and the wire's figures."""
        return GroupDescription(self._core.describe(), self._counters.describe(self._socket.overflowed()))

    @property
    def events_lost(self) -> int:
        """How many events found no room in the channel."""
        return self._counters.events_lost

    def take_resync(self) -> bool:
        """Whether events were lost since the last call; if so, `members()` tells what they would have."""
        needed, self._resync_needed = self._resync_needed, False
        return needed

    def set_metadata(self, metadata: bytes) -> None:
        """Say something else about this node from now on."""
        self._requests.describe(metadata)

    def add_seeds(self, addresses: Sequence[Address]) -> None:
        """Try to join through these, too."""
        self._requests.give_seeds(addresses)

    def join_through(self, seeds: Sequence[Address | str]) -> None:
        """Further seeds as an application gives them, names among them; `ConfigError` for what cannot be reached."""
        texts = seed_texts(seeds, allow_wan=self._config.allow_wan)
        self._names.add(texts)
        self.add_seeds(numeric_seeds(texts))

    def set_maintenance(self, *, on: bool) -> None:
        """While on, requests to join are ignored; everything else goes on."""
        self._requests.switch_maintenance(on=on)

    def broadcast(self, name: str, body: bytes) -> None:
        """Say something to every member; `BusyError` beyond a modest pace."""
        self._requests.speak(UserEventRequested(name, body), self.now_ms())

    def query(self, name: str, body: bytes, timeout_ms: int) -> trio.MemoryReceiveChannel[Answer]:
        """Ask every member. The channel brings the answers and ends after `timeout_ms`, whatever the core does."""
        ticket, answers = self._questions.begin(timeout_ms)
        with self._questions.unless_refused(ticket, answers):
            self._requests.speak(QueryRequested(ticket, name, body, timeout_ms), self.now_ms())
        return answers

    def answer(self, query: Query, body: bytes) -> None:
        """Answer a query that came as an event, once and within its time."""
        self._requests.speak(AnswerGiven(query.message_id, body), self.now_ms())

    @property
    def key_chain(self) -> Keyring | None:
        """The group's keys as this node knows them; none if datagrams travel in clear."""
        return self._core.keys

    async def change_keys(self, chain: Keyring) -> None:
        """Have the whole group take over a change (one that `key_chain` allowed) of its keys; returns when we have."""
        self._requests.speak(KeyringChanged(chain), self.now_ms())
        await self._requests.answered.wait()

    async def leave(self) -> None:
        """Tell the peers that this node goes, and give the word a moment to spread."""
        self._requests.leave()
        await trio.sleep(self._config.leave_linger_ms / 1000)

    # -- the owner -----------------------------------------------------------------------------------------------------

    async def run(self, network: Network) -> None:
        """Own the core until cancelled; then the events end."""
        async with self._events_in, trio.open_nursery() as nursery:
            if self._config.state_directory is not None:
                nursery.start_soon(remember_peers, self._config.state_directory, self._peer_addresses)
            if self._discovery is not None:
                nursery.start_soon(self._intake.watch, self._discovery.broadcast_socket)
            nursery.start_soon(self._names.follow, network, self.add_seeds)
            nursery.start_soon(self._questions.end_overdue)
            self.join_through(self._config.seeds)
            try:
                while True:
                    await self._take_next()
            finally:
                self._questions.close()

    async def _take_next(self) -> None:
        deadline_ms = self._core.deadline
        if deadline_ms is not None and deadline_ms <= self.now_ms():
            await self._step(DeadlineReached())
            deadline_ms = self._core.deadline
        await self._intake.wait(float("inf") if deadline_ms is None else self._started_at + deadline_ms / 1000)
        if self._intake.is_rung:
            await self._answer_doorbell()
        arrivals = self._intake.take()
        if arrivals:
            await self._arrived(arrivals)

    async def _step(self, *events: Event) -> None:
        now_ms = self.now_ms()
        effects: list[Effect] = []
        for event in events:
            effects += self._core.step(event, now_ms)
        sealed: list[Datagram] = []
        for effect in effects:
            if isinstance(effect, Send):
                sealed += self._sealed_effect(effect)
            else:
                self._post(sealed)
                sealed.clear()
                await self._carry_out(effect)
        self._post(sealed)

    async def _carry_out(self, effect: Effect) -> None:  # noqa: C901 - one case per effect
        match effect:
            case Send():
                self._post(self._sealed_effect(effect))
            case Announce(message):
                self._announce(message)
            case OfferToken(target, applicant, generation):
                token = self._codec.mint_token(target, applicant, self.now_ms())
                self._refuse(target, JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, token, generation), applicant)
            case MembershipChanged() | Alarm() | UserEventReceived() | QueryReceived() | KeyOffered():
                self._publish(effect)
            case QueryAnswered():
                if not self._questions.answered(effect):
                    self._counters.drop(Loss.ANSWER_LOST)
            case QueryEnded():
                self._questions.ended(effect)
            case AdoptGeneration(generation):
                await self._generation.adopt(generation, self._publish)
            case UseKeyring(chain):
                alarm = await self._keyring_store.take_over(chain, self._codec)
                if alarm is not None:
                    self._publish(alarm)
            case _:
                assert_never(effect)

    async def _arrived(self, arrivals: list[Datagram]) -> None:
        now_ms = self.now_ms()
        opened = [self._open(datagram, source, now_ms) for datagram, source in arrivals]
        events: list[Event] = [received for received in opened if received is not None]
        # Behind the others: what could not be opened may have been overtaken by the keys that open it.
        events += [
            Unreadable(each) for each in self._repairs if self._source_limits.key_repairs.allows(each.host, now_ms)
        ]
        self._repairs.clear()
        await self._step(*events)

    def _open(self, datagram: bytes, source: Address, now_ms: int) -> Received | None:
        if self._codec.is_boxed(datagram) and not self._source_limits.boxes.allows(source.host, now_ms):
            self._counters.drop(Loss.RATE_LIMITED)
            return None
        try:
            incoming = self._codec.incoming(datagram, source, now_ms)
        except RefusedError as error:
            self._counters.drop(error.reason)
            if error.reason in _UNREADABLE and error.outdated is None:
                self._repairs.append(source)
            if error.outdated is not None:
                applicant, key_id = error.outdated
                offer = offer_to(applicant, self._config.offer_keys)
                nak = JoinNak(DOMAIN, RefusalCode.KEY_RETIRED, offer, applicant.incarnation.generation)
                self._refuse(source, nak, applicant.node_id, key_id)
            return None
        self._counters.piggyback_left_out += incoming.piggyback_left_out
        if incoming.outdated_key_id:
            self._tell_keys(source, incoming.outdated_key_id)
        # Counted behind the seal, so that only holders of the farm's key can use up what a source is allowed.
        if isinstance(incoming.received.message, _NEWCOMERS) and not self._source_limits.newcomers.allows(
            source.host, now_ms
        ):
            self._counters.drop(Loss.RATE_LIMITED)
            return None
        if isinstance(incoming.received.message, KeyringUpdate) and not self._heeds_keys(
            source, incoming.received.message
        ):
            return None
        return incoming.received

    def _heeds_keys(self, source: Address, news: KeyringUpdate) -> bool:
        if self._config.may_tell_keys(news.teller):
            return True
        self._counters.drop(Loss.KEYRING_OF_A_STRANGER)
        if self._source_limits.refused_keys.take(self.now_ms()):
            self._publish(KeyringUpdateRefused(news.teller, source))
        return False

    async def _answer_doorbell(self) -> None:
        self._intake.is_rung = False
        answered, events = self._requests.take()
        await self._step(*events)
        answered.set()

    # -- out -----------------------------------------------------------------------------------------------------------

    def _send(self, target: Address, message: Message, recipient: NodeId | None, answered_key_id: bytes = b"") -> None:
        self._post(self._sealed(target, message, recipient, answered_key_id))

    def _sealed(
        self, target: Address, message: Message, recipient: NodeId | None, answered_key_id: bytes = b""
    ) -> Sequence[Datagram]:
        """The datagram for `target`, if there is one to be sent."""
        if not self._config.allow_wan and not is_private(target.host):
            self._counters.drop(Loss.WIDE_AREA)
            return ()
        if self._resumption.resumed():
            self._codec.begin_life(self._resumption.fresh_secrets(SECRETS_BYTES))
            self._counters.resumptions += 1
        try:
            return ((self._codec.outgoing(message, recipient, answered_key_id), target),)
        except DatagramError:
            self._counters.drop(Loss.UNENCODABLE)
            return ()

    def _sealed_effect(self, effect: Send) -> Sequence[Datagram]:
        if not effect.boxed_for:
            return self._sealed(effect.target, effect.message, effect.recipient)
        may_read = effect.recipient is not None and self._config.may_tell_keys(effect.recipient)
        if not may_read or not isinstance(effect.message, KeyringUpdate):
            return ()
        try:
            return ((self._codec.boxed(effect.message, effect.boxed_for), effect.target),)
        except DatagramError:
            self._counters.drop(Loss.UNENCODABLE)
            return ()

    def _post(self, sealed: Sequence[Datagram]) -> None:
        for datagram, target in sealed:
            if self._socket.send(datagram, target):
                self._counters.told(datagram)
            else:
                self._counters.drop(Loss.SEND_FAILED)

    def _announce(self, message: Message) -> None:
        if self._discovery is not None and self._discovery.may_announce(self.now_ms()):
            self._send(self._discovery.target, message, None)

    def _tell_keys(self, target: Address, known_key_id: bytes) -> None:
        """The sender still seals with a key that we replaced: perhaps it cannot read what we seal by now."""
        chain = self._core.keys
        if chain is not None and self._source_limits.key_repairs.allows(target.host, self.now_ms()):
            self._send(target, KeyringUpdate(chain), None, known_key_id)

    def _refuse(self, target: Address, nak: JoinNak, applicant: NodeId, answered_key_id: bytes = b"") -> None:
        if self._source_limits.errors.allows(target.host, self.now_ms()):
            self._send(target, nak, applicant, answered_key_id)
        else:
            self._counters.drop(Loss.RATE_LIMITED)

    def _publish(self, event: GroupEvent) -> None:
        try:
            self._events_in.send_nowait(event)
        except (trio.WouldBlock, trio.BrokenResourceError):
            self._counters.events_lost += 1
            self._resync_needed = True

    def now_ms(self) -> int:
        """The core's clock, by which `Member.since_ms` counts."""
        # The thousandth makes up for rounding: a wake-up at a deadline must not read as one millisecond before it.
        return int((trio.current_time() - self._started_at) * 1000 + 0.001)


@asynccontextmanager
async def open_agent(config: GroupSettings, network: Network | None = None) -> AsyncIterator[Agent]:
    """Run an agent for as long as the block lasts. Leaving the block without `leave()` is, to the others, a crash.

    `StateError` and `ConfigError` say why it cannot start.
    """
    network = network or UdpNetwork(config.interface)
    with ExitStack() as stack:
        startup = (
            await trio.to_thread.run_sync(load_startup_state, config, stack)
            if config.state_directory
            else load_startup_state(config, stack)
        )
        socket = opened("bind", config.bind, network.bind, config.datagram_limit_bytes)
        stack.callback(socket.close)
        discovery = None
        if config.broadcast is not None:
            broadcast_socket = opened(
                "broadcast", config.broadcast, network.hear_broadcasts, config.datagram_limit_bytes
            )
            stack.callback(broadcast_socket.close)
            discovery = Discovery(config.broadcast, broadcast_socket)
        agent = Agent(config, startup, socket, discovery)
        agent.add_seeds(startup.peers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run, network)
            yield agent
            nursery.cancel_scope.cancel()
