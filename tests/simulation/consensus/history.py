"""One history: a world drawn from a seed, faults for a number of steps, then healing and the demand for progress.

    trouble     servers crash between effects and start again, links are cut, clocks jump, clients propose
    healing     everybody runs, everything arrives; within a bound a leader must exist, a fresh proposal must be
                committed, and every member must have applied the same entries

One random source decides everything, so a seed and a number of steps name a history exactly.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from consensus.core.dialect import GARLIC_FARM, KRAFT
from consensus.core.effects import Role
from consensus.core.events import ChangeConfiguration, Proposed, ReadRequested, Received, TransferLeadership
from consensus.core.log import RecoveredLog
from consensus.core.messages import Message
from consensus.core.position import Ballot, Configuration, Server, ServerId
from consensus.core.raft import Raft
from tests.simulation.consensus.checker import Checker, ViolationError
from tests.simulation.consensus.machine import Machine
from tests.simulation.consensus.network import Network
from tests.simulation.consensus.profile import Profile, draw_profile

DEFAULT_STEPS = 1_500
_SETTLING_MS = 20_000
_TRANSFERS_AMONG_QUESTIONS = 0.1
_WORLDS_WITH_QUESTIONS = 0.5
"""Simulated time within which a healed world must make progress: some sixty election timeouts."""

CoreFactory = Callable[[ServerId, Configuration, Ballot, RecoveredLog, Profile, Random, int], Raft]


def production_core(
    server_id: ServerId,
    configuration: Configuration,
    ballot: Ballot,
    log: RecoveredLog,
    profile: Profile,
    random: Random,
    now: int,
) -> Raft:
    """The core as it is shipped."""
    return Raft(server_id, configuration, ballot, log, profile.tuning, GARLIC_FARM, random, now)


def pulling_core(
    server_id: ServerId,
    configuration: Configuration,
    ballot: Ballot,
    log: RecoveredLog,
    profile: Profile,
    random: Random,
    now: int,
) -> Raft:
    """The core as it is shipped, where followers fetch."""
    return Raft(server_id, configuration, ballot, log, profile.tuning, KRAFT, random, now)


CORES = {"push": production_core, "pull": pulling_core}


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in one history."""

    seed: int
    steps: int
    elections: int
    crashes: int
    commits: int
    acknowledged: int
    changes: int
    """Committed changes of the configuration; joint ones count with their C_new."""
    lost: int
    snapshots: int
    restores: int
    reads: int
    """Linearizable reads that were answered."""
    transfers: int
    """Leadership went where it was sent."""
    trace_digest: str


class World:
    """Simulated time, and everything that lives in it."""

    def __init__(self, seed: int, make_core: CoreFactory, show: Callable[[str], None] | None = None) -> None:
        self._random = Random(seed)
        self._profile = draw_profile(self._random)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._digest = sha256()
        self._show = show
        self._proposals = 0
        self._changes = 0
        self._questions = 0
        self._asker = Random(seed + 1)
        self._trouble = True
        self.now = 0
        self.steps = 0
        ids = [ServerId(number) for number in range(1, self._profile.servers + self._profile.strangers + 1)]
        configuration = Configuration(_servers(ids[: self._profile.servers]))
        self.checker = Checker(ids, configuration)
        self.network = Network(self._random, self._profile, self._deliver_later)
        self.machines = {
            server: Machine(
                server,
                configuration if server in configuration.voter_ids else Configuration(()),
                self._profile,
                self._random,
                self,
                self.network,
                self.checker,
                make_core,
                self._trace,
            )
            for server in ids
        }
        self._trace(f"{self._profile}")

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay_ms`; things of the same moment happen in the order in which they were asked for."""
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._sequence, action))

    def elected(self, server: ServerId) -> None:
        """A server became leader: in most worlds it does not get far."""
        if not self._trouble or self._random.random() >= self._profile.leader_trouble:
            return
        match self._random.choice(("crash", "cut off", "pause")):
            case "crash":
                self.after(self._random.randrange(60), lambda: self._crash(server))
                self.after(60 + self._random.randrange(500), lambda: self._start(server))
            case "cut off":
                self.after(self._random.randrange(60), lambda: self._cut_off(server))
                self.after(300 + self._random.randrange(600), self.network.mend)
            case _:
                # Long enough to be replaced; its clients' proposals wait and are its first words afterwards.
                self.after(self._random.randrange(60), lambda: self._pause(server, 150 + self._random.randrange(400)))

    def run(self, steps: int) -> None:
        """Trouble for `steps` steps, then healing; raises `ViolationError`."""
        for server in self.machines:
            self._start(server)
        self.after(self._profile.nuisance_ms, self._trouble_somebody)
        self.after(self._profile.proposal_ms, self._propose_somewhere)
        if self._asker.random() < _WORLDS_WITH_QUESTIONS:
            self.after(self._profile.proposal_ms, self._ask_somewhere)
        if self._profile.change_ms:
            self.after(self._profile.change_ms, self._change_somewhere)
        while self.steps < steps:
            self._turn()
        self._heal()
        deadline = self.now + _SETTLING_MS
        while not self._settled():
            if self.now > deadline:
                raise ViolationError(f"liveness: no progress within {_SETTLING_MS} ms of healing; {self._state()}")
            self._turn()
        self.checker.check_settled()

    def digest(self) -> str:
        """A fingerprint of the whole trace."""
        return self._digest.hexdigest()

    def _turn(self) -> None:
        self.now, _, action = heapq.heappop(self._queue)
        self.steps += 1
        action()

    def _start(self, server: ServerId) -> None:
        machine = self.machines[server]
        if machine.life is None:
            machine.start([other for other in self.machines.values() if other is not machine])

    def _deliver_later(self, delay_ms: int, sender: ServerId, recipient: ServerId, message: Message) -> None:
        def deliver() -> None:
            if self.network.reaches(sender, recipient):
                self.machines[recipient].step(Received(sender, message))

        self.after(delay_ms, deliver)

    def _crash(self, server: ServerId) -> None:
        if self._trouble:
            self.machines[server].crash()

    def _pause(self, server: ServerId, duration_ms: int) -> None:
        if self._trouble:
            self.machines[server].pause(duration_ms)

    def _cut_off(self, server: ServerId) -> None:
        if self._trouble:
            self._trace(f"{self.now} cut off {self.network.cut_off(server, list(self.machines))}")

    def _trouble_somebody(self) -> None:
        if not self._trouble:
            return
        random, servers = self._random, list(self.machines)
        machine = self.machines[random.choice(servers)]
        match random.choice(("crash", "start", "start", "start", "cut", "mend", "mend", "pause", "jump", "leader")):
            case "crash":
                machine.crash()
            case "start":
                for server in servers:
                    self._start(server)
            case "cut":
                self._trace(f"{self.now} cut {self.network.cut_at_random(servers)}")
            case "mend":
                self.network.mend()
            case "pause":
                machine.pause(random.randrange(500))
            case "jump":
                machine.jump(random.randrange(1_000))
            case _:
                for leader in self._leaders():
                    leader.crash()
                self.after(random.randrange(400), lambda: self._start(machine.server_id))
        self.after(1 + int(random.expovariate(1 / self._profile.nuisance_ms)), self._trouble_somebody)

    def _propose_somewhere(self) -> None:
        leaders = self._leaders()
        eager = bool(leaders) and self._random.random() < 0.9
        machine = self._random.choice(leaders if eager else list(self.machines.values()))
        if machine.life is not None:
            self._proposals += 1
            commands = tuple(b"%d.%d" % (self._proposals, part) for part in range(self._random.choice((1, 1, 1, 2, 5))))
            self.checker.proposed(self._proposals, commands)
            machine.step(Proposed(self._proposals, commands))
        pause_ms = self._profile.proposal_ms if self._trouble else 200
        self.after(1 + int(self._random.expovariate(1 / pause_ms)), self._propose_somewhere)

    def _ask_somewhere(self) -> None:
        """A client reads, or now and then an operator hands leadership over."""
        random = self._asker
        machine = random.choice(self._leaders() or list(self.machines.values()))
        if machine.life is not None:
            self._questions += 1
            if random.random() < _TRANSFERS_AMONG_QUESTIONS and self._trouble:
                target = random.choice([None, *self.machines])
                machine.step(TransferLeadership(self._questions, target))
            else:
                self.checker.read_asked(self._questions)
                machine.step(ReadRequested(self._questions))
        pause_ms = self._profile.proposal_ms if self._trouble else 200
        self.after(1 + int(random.expovariate(1 / pause_ms)), self._ask_somewhere)

    def _change_somewhere(self) -> None:
        """Ask for a configuration: some voter replaced, added or removed, or any servers at all."""
        if not self._trouble:
            return
        random, everybody = self._random, sorted(self.machines)
        machine = random.choice(self._leaders() or list(self.machines.values()))
        if machine.life is not None:
            voters = set(machine.life.core.describe().configuration.voter_ids)
            match random.choice(("one more", "one less", "replace", "replace", "any")):
                case "one more":
                    voters.add(random.choice(everybody))
                case "one less":
                    voters.discard(random.choice(everybody))
                case "replace":
                    voters.discard(random.choice(everybody))
                    voters.add(random.choice(everybody))
                case _:
                    voters = set(random.sample(everybody, random.randint(1, len(everybody))))
            others = [server for server in everybody if server not in voters]
            learners = random.sample(others, random.choice((0, 0, 1)) if others else 0)
            self._changes += 1
            target = Configuration(_servers(sorted(voters)), (), _servers(learners))
            self.checker.change_requested(self._changes, target)
            machine.step(ChangeConfiguration(self._changes, target))
        self.after(1 + int(random.expovariate(1 / self._profile.change_ms)), self._change_somewhere)

    def _heal(self) -> None:
        self._trace(f"{self.now} heal")
        self._trouble = False
        self.network.heal()
        self._committed_at_healing = len(self.checker.committed)
        self._acknowledged_at_healing = len(self.checker.acknowledged)
        for server, machine in self.machines.items():
            machine.healthy = True
            self._start(server)

    def _settled(self) -> bool:
        """A proposal made since healing is acknowledged, and all members have applied everything that is committed."""
        committed = len(self.checker.committed)
        return (
            len(self.checker.acknowledged) > self._acknowledged_at_healing
            and committed > self._committed_at_healing
            and not self.checker.configuration.is_joint
            and all(
                self.checker.shadows[member].applied == committed for member in self.checker.configuration.member_ids
            )
        )

    def _leaders(self) -> list[Machine]:
        return [
            machine
            for machine in self.machines.values()
            if machine.life is not None and machine.life.core.describe().role is Role.LEADER
        ]

    def _state(self) -> list[str]:
        return [
            f"{machine.server_id}: {machine.life.core.describe() if machine.life else 'down'}"
            for machine in self.machines.values()
        ]

    def _trace(self, line: str) -> None:
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        if self._show is not None:
            self._show(line)


def _servers(ids: Sequence[ServerId]) -> tuple[Server, ...]:
    return tuple(Server(server, f"tcp://10.0.0.{server}:7669") for server in ids)


def run_history(
    seed: int,
    steps: int = DEFAULT_STEPS,
    make_core: CoreFactory = production_core,
    show: Callable[[str], None] | None = None,
) -> Report:
    """Run one history to its end; a violation names the line that shows it again."""
    world = World(seed, make_core, show)
    try:
        world.run(steps)
    except Exception as error:
        error.add_note(f"to see it again: python -m tests.simulation consensus --seed {seed} --steps {steps}")
        raise
    return Report(
        seed=seed,
        steps=world.steps,
        elections=len(world.checker.leaders),
        crashes=sum(machine.crashes for machine in world.machines.values()),
        commits=len(world.checker.committed),
        acknowledged=len(world.checker.acknowledged),
        changes=world.checker.changes,
        lost=world.network.lost,
        snapshots=sum(machine.snapshots for machine in world.machines.values()),
        restores=sum(machine.restores for machine in world.machines.values()),
        reads=world.checker.reads,
        transfers=world.checker.transfers,
        trace_digest=world.digest(),
    )
