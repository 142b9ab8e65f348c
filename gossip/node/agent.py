"""The trio agent: one task that owns the gossip core, and what stands between it and the network.

    socket --> reader --+                       +--> socket          Send, Announce, OfferToken
                        +--> inbox --> owner ---+--> state directory AdoptGeneration
    broadcast --> reader+      ^   codec, core  +--> events          MembershipChanged, Alarm
    requests ------------------+  (doorbell)

The owner takes one datagram, request or deadline at a time through codec and core and carries the effects out in their
order; sends are synchronous, so nothing comes between the effects of one step, except the fsync that AdoptGeneration
demands before anything else may be sent. Both reader and owner take what waits in short batches: giving way to other
tasks after every datagram would cost more than a small datagram itself.

Nothing here waits for a consumer. A full inbox drops datagrams (gossip repeats), requests are slots that keep the last
word (metadata) or a bounded set (seeds) behind a single doorbell, and a full events channel drops the event, counts it
and asks for a resync: the consumer then reads `members()`, the whole truth, instead of the changes that it missed.
"""

import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final, assert_never

import trio

from gossip.core.description import Description, MemberDescription
from gossip.core.effects import AdoptGeneration, Alarm, Announce, Effect, MembershipChanged, OfferToken, Send
from gossip.core.events import DeadlineReached, Event, LeaveRequested, MetadataChanged, SeedsGiven
from gossip.core.member import METADATA_LIMIT_BYTES, Address, Incarnation, NodeId, NodeInfo
from gossip.core.messages import Broadcast, JoinNak, JoinReq, Message
from gossip.core.refusal import DOMAIN, RefusalCode
from gossip.core.swim import Swim
from gossip.node.config import EVENTS_LIMIT, SEEDS_LIMIT, AgentConfig, ConfigError
from gossip.node.counters import Counters, Loss, WireDescription
from gossip.node.discovery import Discovery
from gossip.node.endpoints import endpoint, is_private
from gossip.node.identity import Identity, begin_generation, exclusive, keep_generation, load_identity
from gossip.node.rate_limit import SourceLimit
from gossip.node.seeds import follow_name, named_seeds, numeric_seeds
from gossip.node.udp import DatagramSocket, Network, UdpNetwork
from gossip.wire.codec import SECRETS_BYTES, Codec, RefusedError
from gossip.wire.datagram import DatagramError
from gossip.wire.identity import Signer
from gossip.wire.layout import Refusal

INBOX_LIMIT: Final = 1024
BATCH: Final = 16
"""So many datagrams are read, or go through the core, before other tasks and deadlines have their turn."""
NEWCOMERS_PER_SECOND: Final = 20.0
NEWCOMERS_BURST: Final = 100.0
NEWCOMERS_OF_ALL_PER_SECOND: Final = 200.0
ERRORS_PER_SECOND: Final = 20.0
ERRORS_BURST: Final = 100.0
ERRORS_OF_ALL_PER_SECOND: Final = 200.0

AgentEvent = MembershipChanged | Alarm


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """What the core says about itself, and the figures of the wire."""

    core: Description
    wire: WireDescription


class Agent:
    """One node's gossip. Made by `open_agent`; every method but `leave` returns at once."""

    def __init__(
        self,
        config: AgentConfig,
        identity: Identity,
        generation: int,
        socket: DatagramSocket,
        discovery: Discovery | None,
    ) -> None:
        self._config = config
        self._identity = identity
        self._generation = generation
        self._socket = socket
        self._discovery = discovery
        self._started_at = trio.current_time()
        self._codec = Codec(
            Signer(identity.key), config.key_ring, os.urandom(SECRETS_BYTES), config.datagram_limit_bytes
        )
        info = NodeInfo(
            node_id=identity.node_id,
            address=config.advertise or socket.address,
            incarnation=Incarnation(generation, 0),
            capacity=config.capacity,
            metadata=config.metadata,
        )
        random = Random() if config.random_seed is None else Random(config.random_seed)
        self._core = Swim(info, config.tuning, random, self._now_ms())
        self._counters = Counters()
        self._newcomers = SourceLimit(NEWCOMERS_PER_SECOND, NEWCOMERS_BURST, NEWCOMERS_OF_ALL_PER_SECOND)
        self._errors = SourceLimit(ERRORS_PER_SECOND, ERRORS_BURST, ERRORS_OF_ALL_PER_SECOND)
        self._inbox: deque[tuple[bytes, Address]] = deque()
        self._work_waits = trio.Event()
        self._events_in, self.events = trio.open_memory_channel[AgentEvent](EVENTS_LIMIT)
        self._doorbell_rung = False
        self._metadata_wanted: bytes | None = None
        self._seeds_wanted: dict[Address, None] = {}
        self._leave_wanted = False
        self._resync_needed = False

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> NodeId:
        """This node's name."""
        return self._identity.node_id

    @property
    def generation(self) -> int:
        """The number of this life; it rises while the agent runs if peers remember a higher one."""
        return self._generation

    @property
    def info(self) -> NodeInfo:
        """What this node says about itself now."""
        return self._core.describe().self_info

    def members(self) -> tuple[MemberDescription, ...]:
        """Every other member that this node knows of."""
        return self._core.describe().members

    def describe(self) -> AgentDescription:
        """The core's picture and the wire's figures."""
        return AgentDescription(self._core.describe(), self._counters.describe())

    def now_ms(self) -> int:
        """The core's clock, by which `MemberDescription.since_ms` counts."""
        return self._now_ms()

    def take_resync(self) -> bool:
        """Whether events were lost since the last call; if so, `members()` tells what they would have."""
        needed, self._resync_needed = self._resync_needed, False
        return needed

    def set_metadata(self, metadata: bytes) -> None:
        """Say something else about this node from now on."""
        if len(metadata) > METADATA_LIMIT_BYTES:
            raise ValueError(f"metadata has {len(metadata)} bytes, the limit is {METADATA_LIMIT_BYTES}")
        self._metadata_wanted = metadata
        self._ring_doorbell()

    def add_seeds(self, addresses: Sequence[Address]) -> None:
        """Try to join through these, too."""
        for address in addresses:
            if len(self._seeds_wanted) < SEEDS_LIMIT:
                self._seeds_wanted[address] = None
        self._ring_doorbell()

    async def leave(self) -> None:
        """Tell the peers that this node goes, and give the word a moment to spread."""
        self._leave_wanted = True
        self._ring_doorbell()
        await trio.sleep(self._config.leave_linger_ms / 1000)

    # -- the owner -----------------------------------------------------------------------------------------------------

    async def run(self, network: Network) -> None:
        """Own the core until cancelled; then the events end."""
        async with self._events_in, trio.open_nursery() as nursery:
            nursery.start_soon(self._read, self._socket)
            if self._discovery is not None:
                nursery.start_soon(self._read, self._discovery.ears)
            for host, port in named_seeds(self._config.seeds):
                nursery.start_soon(follow_name, host, port, network, self.add_seeds)
            self.add_seeds(numeric_seeds(self._config.seeds))
            while True:
                await self._take_next()

    async def _take_next(self) -> None:
        deadline_ms = self._core.deadline
        if deadline_ms is not None and deadline_ms <= self._now_ms():
            await self._step(DeadlineReached())
        if not self._inbox and not self._doorbell_rung:
            self._work_waits = trio.Event()
            # Work happens outside the scope: a deadline must not cancel the effects of the datagram before it.
            with trio.move_on_at(self._deadline_s()):
                await self._work_waits.wait()
        else:
            await trio.lowlevel.checkpoint()
        if self._doorbell_rung:
            await self._answer_doorbell()
        for _ in range(min(len(self._inbox), BATCH)):
            await self._arrived(*self._inbox.popleft())

    async def _step(self, event: Event) -> None:
        for effect in self._core.step(event, self._now_ms()):
            await self._carry_out(effect)

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(target, message):
                self._send(target, message)
            case Announce(message):
                self._announce(message)
            case OfferToken(target, applicant):
                token = self._codec.mint_token(target, applicant, self._now_ms())
                self._refuse(target, JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, token))
            case MembershipChanged() | Alarm():
                self._publish(effect)
            case AdoptGeneration(generation):
                await self._adopt(generation)
            case _:
                assert_never(effect)

    async def _adopt(self, generation: int) -> None:
        directory = self._config.state_directory
        if directory is not None:
            await trio.to_thread.run_sync(keep_generation, directory, self.node_id, generation)
        self._generation = generation

    async def _arrived(self, datagram: bytes, source: Address) -> None:
        try:
            incoming = self._codec.incoming(datagram, source, self._now_ms())
        except RefusedError as error:
            self._counters.drop(error.reason)
            if error.reason is Refusal.RETIRED_KEY and error.retired_key_id:
                self._refuse(source, JoinNak(DOMAIN, RefusalCode.KEY_RETIRED), error.retired_key_id)
            return
        self._counters.riders_left_out += incoming.riders_left_out
        # Counted behind the seal, so that only holders of the farm's key can use up what a source is allowed.
        if isinstance(incoming.received.message, JoinReq | Broadcast) and not self._newcomers.allows(
            source.host, self._now_ms()
        ):
            self._counters.drop(Loss.RATE_LIMITED)
            return
        await self._step(incoming.received)

    async def _answer_doorbell(self) -> None:
        self._doorbell_rung = False
        if self._seeds_wanted:
            seeds, self._seeds_wanted = tuple(self._seeds_wanted), {}
            await self._step(SeedsGiven(seeds))
        if self._metadata_wanted is not None:
            metadata, self._metadata_wanted = self._metadata_wanted, None
            await self._step(MetadataChanged(metadata))
        if self._leave_wanted:
            self._leave_wanted = False
            await self._step(LeaveRequested())

    # -- in ------------------------------------------------------------------------------------------------------------

    async def _read(self, socket: DatagramSocket) -> None:
        by_broadcast = socket is not self._socket
        while True:
            arrival: tuple[bytes, Address] | None = await socket.receive()
            taken = 0
            while arrival is not None:
                self._counters.heard(arrival[0])
                loss = self._queue(arrival, by_broadcast=by_broadcast)
                if loss is not None:
                    self._counters.drop(loss)
                taken += 1
                arrival = socket.receive_waiting() if taken < BATCH else None

    def _queue(self, arrival: tuple[bytes, Address], *, by_broadcast: bool) -> Loss | None:
        if len(arrival[0]) > self._config.datagram_limit_bytes:
            return Loss.OVERSIZE
        if by_broadcast and not Discovery.is_presence(arrival[0]):
            return Loss.MISPLACED
        if len(self._inbox) >= INBOX_LIMIT:
            return Loss.OVERLOADED
        self._inbox.append(arrival)
        self._work_waits.set()
        return None

    def _ring_doorbell(self) -> None:
        self._doorbell_rung = True
        self._work_waits.set()

    # -- out -----------------------------------------------------------------------------------------------------------

    def _send(self, target: Address, message: Message, retired_key_id: bytes = b"") -> None:
        if not self._config.allow_wan and not is_private(target.host):
            self._counters.drop(Loss.WIDE_AREA)
            return
        try:
            datagram = self._codec.outgoing(message, retired_key_id)
        except DatagramError:
            self._counters.drop(Loss.UNENCODABLE)
            return
        if self._socket.send(datagram, target):
            self._counters.told(datagram)
        else:
            self._counters.drop(Loss.SEND_FAILED)

    def _announce(self, message: Message) -> None:
        if self._discovery is not None and self._discovery.may_announce(self._now_ms()):
            self._send(self._discovery.target, message)

    def _refuse(self, target: Address, nak: JoinNak, retired_key_id: bytes = b"") -> None:
        if self._errors.allows(target.host, self._now_ms()):
            self._send(target, nak, retired_key_id)
        else:
            self._counters.drop(Loss.RATE_LIMITED)

    def _publish(self, event: AgentEvent) -> None:
        try:
            self._events_in.send_nowait(event)
        except (trio.WouldBlock, trio.BrokenResourceError):
            self._counters.events_lost += 1
            self._resync_needed = True

    # -- time ----------------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        # The thousandth makes up for rounding: a wake-up at a deadline must not read as one millisecond before it.
        return int((trio.current_time() - self._started_at) * 1000 + 0.001)

    def _deadline_s(self) -> float:
        deadline_ms = self._core.deadline
        return float("inf") if deadline_ms is None else self._started_at + deadline_ms / 1000


def _begin_life(config: AgentConfig, stack: ExitStack) -> tuple[Identity, int]:
    """Identity and generation of the life that begins; the state directory is ours until the stack unwinds."""
    if config.state_directory is None:
        return Identity.throwaway(), 1
    stack.enter_context(exclusive(config.state_directory))
    identity = load_identity(config.state_directory)
    return identity, begin_generation(config.state_directory, identity.node_id)


def _opened(
    setting: str, address: Address, how: Callable[[Address, int], DatagramSocket], limit_bytes: int
) -> DatagramSocket:
    try:
        return how(address, limit_bytes)
    except OSError as error:
        raise ConfigError(
            f"{setting} = {endpoint(address)} cannot be opened ({error.strerror}): choose an address of this machine "
            "and a port that no other process uses"
        ) from error


@asynccontextmanager
async def open_agent(config: AgentConfig, network: Network | None = None) -> AsyncIterator[Agent]:
    """Run an agent for as long as the block lasts. Leaving the block without `leave()` is, to the others, a crash.

    `StateError` and `ConfigError` say why it cannot start.
    """
    network = network or UdpNetwork()
    with ExitStack() as stack:
        if config.state_directory is None:
            identity, generation = _begin_life(config, stack)
        else:
            identity, generation = await trio.to_thread.run_sync(_begin_life, config, stack)
        socket = _opened("bind", config.bind, network.bind, config.datagram_limit_bytes)
        stack.callback(socket.close)
        discovery = None
        if config.broadcast is not None:
            ears = _opened("broadcast", config.broadcast, network.hear_broadcasts, config.datagram_limit_bytes)
            stack.callback(ears.close)
            discovery = Discovery(config.broadcast, ears)
        agent = Agent(config, identity, generation, socket, discovery)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run, network)
            yield agent
            nursery.cancel_scope.cancel()
