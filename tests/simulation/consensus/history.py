"""One history: a world drawn from a seed, a number of steps with faults, then healing and required progress.

    trouble     servers crash between effects and restart, disks fill and rot, links are cut. Clocks jump and drift
                apart. Operators change the configuration and transfer leadership; clients read and write
    healing     all servers run and all messages arrive. Within a limit a leader must exist, clients must get answers,
                and lost servers must be replaced or removed. Every member must have applied all entries from before
                healing. The exception: no server leads, and only the lost servers could make an election possible
    judgment    one order of the calls must explain the results that clients saw for each key

One random source makes all decisions, so a seed and a length identify a history exactly.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from zlib import crc32

from msgspec.structs import replace

from consensus.core.effects import Effect
from consensus.core.events import Event, Received
from consensus.core.features import ZMQ_RAFT, Features, LeaderRecords
from consensus.core.log import RecoveredLog
from consensus.core.messages import Message
from consensus.core.model import Configuration, HardState, Index, ServerId
from consensus.core.raft import Raft
from consensus.protocols.kraft.replica.state_machine import QuorumLog
from tests.simulation.consensus.checker import Checker, StandstillError
from tests.simulation.consensus.clients import Clients
from tests.simulation.consensus.connections import Way
from tests.simulation.consensus.forger import Forger
from tests.simulation.consensus.kafka_judge import KafkaJudge
from tests.simulation.consensus.kafka_links import KafkaLinks
from tests.simulation.consensus.leadership import Leadership
from tests.simulation.consensus.machine import Machine
from tests.simulation.consensus.marks import NO_ELECTION_LEFT
from tests.simulation.consensus.nemesis import Nemesis, servers_of
from tests.simulation.consensus.network import Network, Sockets
from tests.simulation.consensus.profile import (
    STRATEGIES,
    Kind,
    Profile,
    Strategy,
    draw_ids,
    draw_profile,
    features_of,
    is_successor,
)
from tests.simulation.consensus.zmq_judge import ZmqJudge
from tests.simulation.consensus.zmq_sockets import ZmqSockets

_SETTLING_MS = 20_000
"""Maximum simulated time until a healed world makes progress: about 66 maximum election timeouts."""
_TURNS_PER_STEP_MAX = 100


@dataclass(frozen=True, slots=True)
class Length:
    """Minimum length of a history."""

    trouble_steps: int
    """Steps of cores before healing."""
    steps: int
    calls: int
    """Calls of clients."""


FULL = Length(1_300, 2_000, 200)
SHORT = Length(450, 600, 50)

CoreFactory = Callable[[Features, ServerId, Configuration, HardState, RecoveredLog, Profile, Random, int], Raft]


def production_core(
    features: Features,
    server_id: ServerId,
    configuration: Configuration,
    hard_state: HardState,
    log: RecoveredLog,
    profile: Profile,
    random: Random,
    now: int,
    cluster_id: str | None = None,
    leader_records: LeaderRecords | None = None,
) -> Raft:
    options = replace(profile.options, check_invariants=True)
    return Raft(server_id, configuration, hard_state, log, options, features, random, now, cluster_id, leader_records)


@dataclass(frozen=True, slots=True)
class Report:
    """Statistics of one history."""

    seed: int
    trace_digest: int
    counts: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)


class World:
    """Simulated time, and all machines, clients and faults."""

    def __init__(
        self,
        seed: int,
        strategy: Strategy = STRATEGIES["append"],
        show: Callable[[str], None] | None = None,
        kind: Kind | None = None,
        make_core: CoreFactory = production_core,
        make_checker: Callable[[list[ServerId], Configuration, Features], Checker] = Checker,
    ) -> None:
        self._random = Random(seed)
        self._profile = profile = draw_profile(self._random, strategy, kind)
        features = features_of(strategy, profile)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._digest = 0
        self._show = show
        self.trouble = True
        self.now = 0
        ids = draw_ids(seed, profile, features)
        configuration = Configuration(servers_of(profile, ids[: profile.servers]))
        self.checker = make_checker(ids, configuration, features)
        self.machines: dict[ServerId, Machine] = {}
        self._judge: ZmqJudge | KafkaJudge | None = None
        self.network = Network(self._random, profile, self, self._deliver, self._step_server, self._sockets(features))
        self.machines |= {
            server: Machine(
                server,
                self._initial_configuration(server, configuration),
                profile,
                features,
                self._random,
                self,
                self.network,
                self.checker,
                partial(make_core, features),
                self._trace,
                self._show_step,
            )
            for server in ids
        }
        self.leadership = Leadership(profile, self.machines)
        self.clients = Clients(self._random, profile, features, self, self.checker)
        self.nemesis = Nemesis(
            self._random, profile, self, self.network, self.checker, self.clients, self.leadership, self._trace
        )
        self.forger = Forger(self._random, profile, self, self.network, self.checker, self._trace)
        for machine in self.machines.values():
            machine.answer_receiver = self.clients
        self._trace(f"{profile}")

    def _initial_configuration(self, server: ServerId, configuration: Configuration) -> Configuration:
        """Return the initial configuration of a server, which is empty for a server that joins later.

        On Kafka's wire an operator formats the directory of a successor in the same way as the lost one.
        """
        is_formatted_again = self._profile.kafka is not None and is_successor(server)
        return configuration if server in configuration.voter_ids or is_formatted_again else Configuration(())

    def _sockets(self, features: Features) -> Callable[[Way], Sockets] | None:
        """Return the transport of a protocol's messages, or None without a wire, and create the judge of that wire."""
        random, profile, marks = self._random, self._profile, self.checker.marks
        if features is ZMQ_RAFT:
            zmq = self._judge = ZmqJudge(random, profile, self.machines, self.checker)
            return partial(ZmqSockets, random, profile, self.machines, zmq, marks)
        if profile.kafka is not None:
            kafka = self._judge = KafkaJudge(profile, self.machines, self.checker)
            return partial(KafkaLinks, random, profile, profile.kafka, self.machines, kafka, marks)
        return None

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` in `delay_ms`; actions of the same moment run in the order of these calls."""
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._sequence, action))

    def stepped(self, machine: Machine, event: Event, effects: Sequence[Effect]) -> None:
        """Handle a step of a server before its effects are performed."""
        self.leadership.stepped(machine, event, effects)
        if self._judge is not None:
            self._judge.stepped(machine, event, effects)

    def elected(self, server: ServerId) -> None:
        """Handle the election of a leader."""
        self.nemesis.elected(server)

    def may_lose(self, server: ServerId) -> bool:
        """Return True if the group can work without this server permanently."""
        return self.nemesis.may_lose(server)

    def lost(self, server: ServerId) -> None:
        """Handle the permanent loss of a server."""
        self.nemesis.replace(server)

    def described_quorum(self, server: ServerId) -> Configuration | None:
        """Return the configuration of a leader that this server reaches; None if there is no such leader."""
        for leader in self.machines.values():
            reached = self.network.reaches(server, leader.server_id) and self.network.reaches(leader.server_id, server)
            if leader.leads and reached:
                return leader.configuration
        return None

    def records_restored(self, machine: Machine, index: Index, log: QuorumLog) -> None:
        """Check the records that a KRaft server restored from a snapshot at `index`."""
        if isinstance(self._judge, KafkaJudge):
            self._judge.records_restored(machine.server_id, index, log)

    def run(self, length: Length) -> None:
        """Run the trouble, then healing and judgment; raises `ViolationError`."""
        self._start_all()
        self.clients.begin()
        self.nemesis.begin()
        self.forger.begin()
        turns = 0
        while (
            self.checker.steps < length.trouble_steps or self.now < self._profile.trouble_ms
        ) and turns < length.trouble_steps * _TURNS_PER_STEP_MAX:
            self._turn()
            turns += 1
        self._heal()
        gets_on = self._gets_on()
        while gets_on and (self.clients.calls < length.calls or self.checker.steps < length.steps):
            self._turn()
        self.checker.check_settled()
        self.clients.check()
        self.checker.marks.end(set(self.checker.leaders), max(self.checker.leaders, default=0))

    def report(self, seed: int) -> Report:
        """Return the statistics of the history."""
        checker, clients, machines = self.checker, self.clients, self.machines.values()
        counts = Counter(
            {
                "histories": 1,
                "steps": checker.steps,
                "elections": len(checker.leaders),
                "crashes": sum(machine.crashes for machine in machines),
                "snapshots": sum(machine.snapshots for machine in machines),
                "restores": sum(machine.restores for machine in machines),
                "configuration changes": checker.changes,
                "commits": len(checker.committed),
                "calls": clients.calls,
                "writes answered": clients.writes_answered,
                "reads answered": clients.reads_answered,
                "transfers": checker.marks.counts["transfer done"],
                "full disks": sum(machine.full_disks for machine in machines),
                "servers lost to rot": sum(machine.has_stopped for machine in machines),
                "messages lost": self.network.lost,
                "messages duplicated": self.network.duplicated,
                "messages repeated": self.network.repeated,
                "connections broken": self.network.broken,
                "messages forged": self.forger.forged,
                "keys judged": clients.keys_judged,
            }
        )
        return Report(seed, self._digest, counts, checker.marks.counts)

    def _turn(self) -> None:
        self.now, _, action = heapq.heappop(self._queue)
        action()

    def _start_all(self) -> None:
        for server in self.machines:
            self.nemesis.start(server)

    def _deliver(self, sender: ServerId, recipient: ServerId, message: Message) -> bool:
        machine = self.machines[recipient]
        is_up = machine.run is not None
        machine.step(Received(sender, message))
        return is_up

    def _step_server(self, server: ServerId, event: Event) -> None:
        self.machines[server].step(event)

    def _heal(self) -> None:
        self._trace(f"{self.now} heal")
        self.trouble = False
        self.leadership.expect_undisturbed(None, len(self.checker.committed))
        self.network.heal()
        self._committed_at_healing = len(self.checker.committed)
        self._answered_at_healing = self.clients.writes_answered
        for machine in self.machines.values():
            machine.healthy = True
        self._start_all()

    def _gets_on(self) -> bool:
        """Wait for progress after healing, or raise; return False if only the lost servers prevent an election."""
        # A job that a slow disk began before healing takes its full time.
        deadline = self.now + _SETTLING_MS + self._profile.steady_disk_ms
        while not self._settled():
            if self.now > deadline:
                lost = [server for server, machine in self.machines.items() if machine.has_stopped]
                leads = any(machine.leads for machine in self.machines.values())
                if lost and not leads and self.checker.explains_missing_election(lost):
                    self.checker.marks.see(NO_ELECTION_LEFT)
                    return False
                raise StandstillError(f"liveness: no progress within {_SETTLING_MS} ms of healing; {self._state()}")
            self._turn()
        return True

    def _settled(self) -> bool:
        """Return True if there is progress.

        A write was answered since healing. The configuration is not joint, and does not contain a lost server. All
        members have applied the entries committed until healing.
        """
        configuration, lost = self.checker.configuration, [mate for mate in self.machines.values() if mate.has_stopped]
        return (
            self.clients.writes_answered > self._answered_at_healing
            and len(self.checker.committed) > self._committed_at_healing
            and not configuration.is_joint
            and not any(machine.server_id in configuration.member_ids for machine in lost)
            and all(self.checker.shadows[server].applied > self._committed_at_healing for server in self._followers())
        )

    def _followers(self) -> Iterable[ServerId]:
        """Return the servers that must receive the log: all members, and the running observers of a KRaft quorum."""
        members = self.checker.configuration.member_ids
        if self._profile.kafka is None:
            return members
        return (server for server in self.machines if server in members or self._observes(self.machines[server]))

    def _observes(self, machine: Machine) -> bool:
        """Return True if a server without a vote can follow: it knows one of the voters, and no epoch above theirs.

        A former voter that campaigned alone is in a later epoch (`Nemesis`).
        """
        configuration = machine.configuration
        epoch = max((other.term for other in self.machines.values() if other.leads), default=0)
        knows_a_voter = configuration is not None and configuration.voter_ids & self.checker.configuration.voter_ids
        return bool(knows_a_voter) and machine.term <= epoch

    def _state(self) -> list[str]:
        return [
            f"{machine.server_id}: {machine.run.core.describe() if machine.run else 'down'}"
            for machine in self.machines.values()
        ]

    def _show_step(self, server: ServerId, event: Event, effects: Sequence[Effect]) -> None:
        """Show a step completely if there is an observer; add its outline to the digest."""
        if self._show is not None:
            self._show(f"{self.now} {server} {event} -> {effects}")
        kind = event.message if isinstance(event, Received) else event
        self._digest = crc32(f"{self.now} {server} {type(kind).__name__} {len(effects)}".encode(), self._digest)

    def _trace(self, line: str) -> None:
        self._digest = crc32(line.encode(), self._digest)
        if self._show is not None:
            self._show(line)


def run_history(
    seed: int,
    length: Length = FULL,
    strategy: Strategy = STRATEGIES["append"],
    show: Callable[[str], None] | None = None,
    kind: Kind | None = None,
    make_core: CoreFactory = production_core,
) -> Report:
    world = World(seed, strategy, show, kind, make_core)
    world.run(length)
    return world.report(seed)
