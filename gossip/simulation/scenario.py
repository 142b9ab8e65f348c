"""A scenario of a large group: it forms, loses and gains members, has faults, and is measured.

    periods   0 ────── forming ────── settled ──── churn ──── rest ──────────── end
    members   join one after another               crash, as many new ones join
                                                     partition, slow members from the end of churn on

Times are fractions of the whole scenario (see the properties of `Scenario`). All nodes run the production core. The
measurements are the nodes' own reports (`MembershipChanged`) and their messages. A node has declared a crash when it
has recorded the victim as dead. All nodes that listed the victim at the crash must declare it, and a while later no
node may list the victim as live.

*Load.* Messages, and bytes on the wire, per member and period. Encoding costs more than deciding, so in large groups
only a sample of the messages is encoded, with the production encoder, and represents the others. The simulation signs
nothing; the bytes of seal and signatures are added to the sizes.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from msgspec import field as struct_field

from gossip.core.effects import Effect, MembershipChanged, Send
from gossip.core.member import NodeId, Status
from gossip.core.messages import AliveUpdate, Broadcast, JoinAck, JoinReq, Leave, Message, PingRequest, PingResponse
from gossip.core.options import SwimOptions
from gossip.simulation.network import GossipNetwork, Node, node_id
from gossip.wire.codec import encode
from gossip.wire.identity import CREDENTIAL_BYTES
from gossip.wire.seal import OVERHEAD_BYTES

JUDGED_AFTER_PERIODS = 30
_SEEDS_OF_A_JOINER = 3
_ENCODES_ALL_UP_TO: Final = 150
"""In larger groups, only a sample of the messages is encoded: about the number that a group of this size sends."""


def wire_bytes(message: Message) -> int:
    """Return the length of the sealed datagram of a message."""
    return len(encode(message)) + OVERHEAD_BYTES + CREDENTIAL_BYTES * _descriptions(message)


def _descriptions(message: Message) -> int:
    if isinstance(message, PingRequest | PingResponse):
        payload = message.payload
        return len(payload.sample) + sum(isinstance(update, AliveUpdate) for update in payload.updates)
    if isinstance(message, JoinAck):
        return 1 + len(message.sample)
    return int(isinstance(message, JoinReq | Leave | Broadcast))


class Load:
    """The counts of sent messages."""

    def __init__(self, members: int) -> None:
        self._encoded_every = max(members // _ENCODES_ALL_UP_TO, 1) | 1
        self.messages_of: dict[int, int] = {}
        self.messages_by_period: list[float] = []
        """Messages per member in each period."""
        self.bytes_by_period: list[float] = []
        """Bytes per member in each period."""
        self._messages = 0
        self._bytes = 0
        self._encoded = 0

    def sent(self, number: int, message: Message) -> None:
        """Count one message of one member."""
        self.messages_of[number] = self.messages_of.get(number, 0) + 1
        self._messages += 1
        if self._messages % self._encoded_every == 0:
            self._encoded += 1
            self._bytes += wire_bytes(message)

    def end_of_period(self, members: int) -> None:
        """End a period with this number of running members, which may be 0 in a small group."""
        each = self._bytes / self._encoded if self._encoded else 0.0
        self.messages_by_period.append(self._messages / members if members else 0.0)
        self.bytes_by_period.append(self._messages * each / members if members else 0.0)
        self._messages = self._bytes = self._encoded = 0


class Scenario(Struct, frozen=True, kw_only=True):
    """The course of a run. `churn`, `slow` and `partition` (the part that is cut off) are fractions of the members."""

    members: int
    capacity: int
    periods: int
    churn: float = 0.0
    loss: float = 0.0
    slow: float = 0.0
    slow_periods: int = 3
    partition: float = 0.0
    random_seed: int = 1
    options: SwimOptions = struct_field(default_factory=SwimOptions.lan)

    def __post_init__(self) -> None:
        if self.members < 2 or self.capacity < 1 or self.periods < 20:  # noqa: PLR2004 - the least that makes a story
            raise ValueError("a simulation needs at least 2 members, capacity 1 and 20 periods")
        for name in ("churn", "loss", "slow", "partition"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is a fraction from 0 to below 1, not {getattr(self, name)}")

    @property
    def formed_by(self) -> int:
        """The end of the joins."""
        return self.periods * 3 // 20

    @property
    def settled_by(self) -> int:
        """The first period of churn."""
        return self.periods * 6 // 20

    @property
    def churned_by(self) -> int:
        """The first period after churn."""
        return self.periods * 8 // 20

    @property
    def healed_by(self) -> int:
        """The first period after a partition."""
        return self.periods * 12 // 20

    @property
    def quiet_from(self) -> int:
        """The first period with the load of a group at rest."""
        return self.periods * 17 // 20


@dataclass(slots=True)
class Crash:
    """One crash, and the times of its detection, in periods after the crash."""

    victim: int
    at_ms: int
    peers: set[int]
    directories: set[int]
    first_suspected: float | None = None
    first_declared: float | None = None
    declared_by_peers: list[float] = field(default_factory=list)
    declared_by_directories: list[float] = field(default_factory=list)
    unaware: set[int] | None = None
    """The nodes that still listed the victim as live `JUDGED_AFTER_PERIODS` later."""


class Play:
    """Plays a scenario and collects its figures."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.network = GossipNetwork(scenario.random_seed, scenario.options, Node, scenario.loss)
        self.network.watch = self._watch
        self.load = Load(scenario.members)
        self.crashes: list[Crash] = []
        self.false_suspicions = 0
        self.false_deaths = 0
        self.parts = 0
        self._crash_of: dict[NodeId, Crash] = {}
        self._judged = 0
        self._up: list[Node] = []

    def run(self, progress: Callable[[int], None] | None = None) -> None:
        """Play the scenario to its end; call `progress` after each period."""
        for period in range(self.scenario.periods):
            self._direct(period)
            self.network.run(self.scenario.options.probe_period_ms)
            self._judge()
            self.load.end_of_period(len(self._up))
            if progress is not None:
                progress(period + 1)
        self.parts = parts(self.network)

    def _direct(self, period: int) -> None:
        story, network = self.scenario, self.network
        while len(network.nodes) < min(story.members, story.members * (period + 1) // max(story.formed_by, 1)):
            self._join()
        if story.settled_by <= period < story.churned_by:
            start, steps = period - story.settled_by, story.churned_by - story.settled_by
            churn_count = round(story.members * story.churn)
            self._churn(churn_count * (start + 1) // steps - churn_count * start // steps)
        if story.partition and period == story.churned_by:
            up = network.up
            cut = round(len(up) * story.partition)
            network.partition(up[:cut], up[cut:])
        if story.partition and period == story.healed_by:
            network.heal()
        if story.slow and story.churned_by <= period < story.quiet_from and period % (2 * story.slow_periods) == 0:
            up = network.up
            for node in network.random.sample(up, round(len(up) * story.slow)):
                network.freeze(node, story.slow_periods * story.options.probe_period_ms)

    def _join(self) -> None:
        """Start the next node, which joins through a few running ones."""
        network, up = self.network, self._up
        seeds = {network.random.choice(up).number for _ in range(_SEEDS_OF_A_JOINER if up else 0)}
        up.append(network.add(len(network.nodes), seeds=tuple(sorted(seeds)), capacity=self.scenario.capacity))

    def _churn(self, count: int) -> None:
        """Crash members at the same moment, with a new member for each."""
        network = self.network
        crash_of: dict[NodeId, Crash] = {}
        for _ in range(count):
            victim = self._up.pop(network.random.randrange(len(self._up)))
            crash_of[victim.node_id] = Crash(victim.number, network.now, set(), set())
            network.kill(victim)
            self._join()
        for node, victim_id in self._listing(crash_of.keys()):
            crash = crash_of[victim_id]
            (crash.peers if victim_id in node.core.membership.links else crash.directories).add(node.number)
        self.crashes += crash_of.values()
        self._crash_of |= crash_of

    def _watch(self, node: Node, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.load.sent(node.number, effect.message)
        elif isinstance(effect, MembershipChanged) and effect.status in {Status.SUSPECT, Status.DEAD}:
            self._note(node, effect)

    def _note(self, node: Node, change: MembershipChanged) -> None:
        crash = self._crash_of.get(change.info.node_id)
        if crash is None:
            if change.status is Status.DEAD:
                self.false_deaths += 1
            else:
                self.false_suspicions += 1
            return
        after = (self.network.now - crash.at_ms) / self.scenario.options.probe_period_ms
        if crash.first_suspected is None:
            crash.first_suspected = after
        if change.status is Status.DEAD:
            if crash.first_declared is None:
                crash.first_declared = after
            if node.number in crash.peers:
                crash.declared_by_peers.append(after)
            elif node.number in crash.directories:
                crash.declared_by_directories.append(after)

    def _listing(self, victims: AbstractSet[NodeId]) -> Iterator[tuple[Node, NodeId]]:
        """Yield each running node with each victim that it lists as live, in one pass over all directories."""
        for node in self._up if victims else ():
            membership = node.core.membership
            for victim in victims & membership.ids:
                entry = membership.get(victim)
                if entry is not None and entry.is_live:
                    yield node, victim

    def _judge(self) -> None:
        due_ms = self.network.now - JUDGED_AFTER_PERIODS * self.scenario.options.probe_period_ms
        due: dict[NodeId, set[int]] = {}
        while self._judged < len(self.crashes) and self.crashes[self._judged].at_ms <= due_ms:
            crash = self.crashes[self._judged]
            due[node_id(crash.victim)] = crash.unaware = set()
            self._judged += 1
        for node, victim in self._listing(due.keys()):
            due[victim].add(node.number)


def parts(network: GossipNetwork[Node]) -> int:
    """Return the number of connected parts of the running nodes."""
    left = {node.number for node in network.up}
    count = 0
    while left:
        left -= network.reached_from(network.nodes[min(left)])
        count += 1
    return count
