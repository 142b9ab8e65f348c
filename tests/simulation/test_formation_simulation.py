"""Farms form while messages are lost, repeated and reordered, and nodes restart and start late.

Each run draws a farm (one to nine nodes, `expect` above half of them) and runs the production core. In the first half,
messages between nodes are lost, repeated and overtake each other. Writes complete late or are lost with the process,
disks are lost (with their identities), and reachability is random. An attacker with the farm key sends invented
foundings that contain received promises. Then the network heals.

Safety is asserted after every founding: one cluster id per run, and never an invented one. Liveness is asserted at the
end: the farm is created, and all nodes know its cluster. Later nodes know it from their key file, or because the
operator confirmed the founders' cluster. If promises collided (only with more nodes than `expect`) or a founder lost
its disk, a scripted operator follows the alarms. The number of such runs is bounded.

250 farms run by default, ten thousand in `make soak`. FORMATION_RUNS and FORMATION_SEED change number and start; a
failure names the seed of its run.
"""

import os
from dataclasses import dataclass, field
from random import Random

import pytest
from msgspec.structs import replace

from bridge.core.formation.alarms import CONFIRM_COMMAND
from bridge.core.formation.formation import Formation, FormationTuning
from bridge.core.formation.founding import FormationNotice, FormationState, Founders, Founding, Promise, founding_of
from bridge.core.formation.messages import (
    Advertise,
    Alarm,
    ConfirmRequested,
    DeadlineReached,
    Effect,
    Event,
    FormationPhase,
    FormationRefused,
    Founded,
    KnowsCluster,
    MembersChanged,
    Persist,
    Persisted,
    Started,
    WithdrawRequested,
)
from tests.members import farm_member

RUNS = int(os.environ.get("FORMATION_RUNS", "250"))
SOAK_RUNS = 10_000
FIRST_SEED = int(os.environ.get("FORMATION_SEED", "1"))
TIMEOUT_MS = 5_000
EPOCH_MS = 1_700_000_000_000
ATTACKER = b"stranger"


@dataclass
class Node:
    """A node: its durable state survives `crash`, a pending write may survive, and the received notices do not."""

    node_id: bytes
    durable: FormationState = field(default_factory=FormationState)
    core: Formation | None = None
    generation: int = 0
    version: tuple[int, int] = (0, 0)
    notice: FormationNotice = field(default_factory=FormationNotice)
    received: dict[bytes, tuple[tuple[int, int], FormationNotice]] = field(default_factory=dict)
    writing: Persist | None = None
    founded: Founding | None = None


class Farm:
    """The environment of the cores: a network that loses, repeats and reorders, disks, and an operator."""

    def __init__(self, seed: int, *, disks_lie: bool = False) -> None:
        self.disks_lie = disks_lie
        self.random = Random(seed)
        self.expect = self.random.choice((1, 2, 3, 3, 3, 4, 5))
        size = self.random.randint(self.expect, max(self.expect, 2 * self.expect - 1))
        self.nodes = [Node(bytes([0] * 7 + [number])) for number in self.random.sample(range(256), size)]
        self.tuning = FormationTuning(settle_ms=self.random.choice((1, 50, 300)), patience_ms=TIMEOUT_MS)
        self.lost: set[bytes] = set()
        self.now = 0
        self.foundings: set[Founding] = set()
        self.stale: list[tuple[Node, tuple[int, int], FormationNotice]] = []
        self.invented: set[Founding] = set()
        self.withdrawals = 0

    def start(self, node: Node) -> None:
        """Begin a run with the durable state."""
        node.generation += 1
        node.version = (node.generation, 0)
        node.core = Formation(
            node.node_id,
            self.expect,
            node.durable,
            Random(self.random.random()),
            # A later node has a key file exported from the farm.
            cluster_id=self.key_file_of(node),
            tuning=self.tuning,
        )
        node.received, node.writing, node.founded = {}, None, None
        self.step(node, Started())

    def crash(self, node: Node) -> None:
        """End a run; a pending write may or may not have become durable."""
        if node.writing is not None and self.random.random() < 0.5:
            node.durable = node.writing.state
        if self.disks_lie:
            node.durable = FormationState()
        node.core = node.writing = None

    def lose_storage(self, node: Node) -> None:
        """Restart the machine as another node; its former identity remains in the directories of other nodes."""
        self.lost.add(node.node_id)
        taken = self.lost | {each.node_id for each in self.nodes}
        fresh = self.random.choice([number for number in range(256) if bytes([0] * 7 + [number]) not in taken])
        self.nodes[self.nodes.index(node)] = Node(bytes([0] * 7 + [fresh]))

    def key_file_of(self, node: Node) -> bytes | None:
        """Return the cluster id of an exported key file, or None for a key file from before the founding."""
        exported = len(self.foundings) == 1 and self.random.random() < 0.3
        if not exported or (node.durable.known or node.durable.founding) is not None:
            return None
        return next(iter(self.foundings)).cluster_id

    def attack(self, node: Node) -> None:
        """Send an invented founding from an attacker, with the node's own promise inside if it has one."""
        promised = node.durable.promise
        founders = promised.founders if promised is not None else (node.node_id, ATTACKER)
        promises = {each: Promise(founders, EPOCH_MS, b"?" * 16) for each in founders}
        if promised is not None and self.expect > 1:
            promises[node.node_id] = promised
        forged = founding_of(promises)
        self.invented.add(forged)
        node.received[ATTACKER] = ((0, len(self.invented)), FormationNotice(founding=forged))
        self.observe(node)
        del node.received[ATTACKER]

    def confirm(self, node: Node) -> None:
        """Compare the cluster in an alarm with the founders, and confirm it as an operator."""
        core = node.core
        if core is None or node.writing is not None or not any(CONFIRM_COMMAND in each for each in core.alarms):
            return
        reported = {each.cluster_id for each in core.ignored.values()}
        named = [each.cluster_id for each in self.foundings if each.cluster_id in reported]
        if named:
            self.step(node, ConfirmRequested(named[0]))
            self.write(node)

    def step(self, node: Node, event: Event) -> None:
        """Pass an event to the core and perform its effects."""
        assert node.core is not None
        clock_ms = EPOCH_MS + self.now + node.node_id[7]
        for effect in node.core.step(event, self.now, clock_ms):
            self.carry_out(node, effect)

    def carry_out(self, node: Node, effect: Effect) -> None:
        """Perform an effect of a node, and check its safety."""
        match effect:
            case Persist(_, state):
                assert {state.founding, state.known}.isdisjoint(self.invented), "an invented founding was accepted"
                node.writing = effect
            case Advertise(notice):
                node.version = (node.version[0], node.version[1] + 1)
                node.notice = notice
                assert notice.promise in (None, node.durable.promise), "a promise was advertised before it was durable"
            case Founded(founding, raft_id):
                assert node.durable.founding == founding, "Raft was started before the founding was durable"
                assert founding.founders[raft_id - 1] == node.node_id
                assert len(founding.founders) == self.expect
                node.founded = founding
                self.foundings.add(founding)
                if self.withdrawals:
                    # The operator declared a node permanently lost, and with it the cluster that it alone had created.
                    self.foundings = {each.durable.founding for each in self.nodes if each.durable.founding is not None}
                assert len(self.foundings) == 1, "two clusters were created"
            case KnowsCluster() | Alarm() | FormationRefused():
                pass

    def deliver(self, node: Node, source: Node, version: tuple[int, int], notice: FormationNotice) -> None:
        """Deliver a notice; gossip keeps the latest incarnation."""
        known = node.received.get(source.node_id)
        if known is None or version > known[0]:
            node.received[source.node_id] = (version, notice)
        self.observe(node, {source.node_id})

    def observe(self, node: Node, surely_up: set[bytes] | None = None) -> None:
        """Pass the members to the core, some of them apparently unreachable."""
        members = tuple(
            farm_member(
                node_id,
                reachable=surely_up is None or node_id in surely_up or self.random.random() < 0.8,
                notice=notice,
            )
            for node_id, (_, notice) in node.received.items()
        )
        self.step(node, MembersChanged(members))

    def write(self, node: Node) -> None:
        """Complete the pending write."""
        if node.writing is not None:
            written, node.writing = node.writing, None
            node.durable = written.state
            self.step(node, Persisted(written.number))

    def trouble(self) -> None:
        """Perform one random action or fault."""
        self.now += self.random.randint(1, 120)
        node = self.random.choice(self.nodes)
        if node.core is None:
            if self.random.random() < 0.3:
                self.start(node)
            return
        action = self.random.random()
        if action < 0.04:
            self.crash(node)
            if self.random.random() < 0.2 and len(self.nodes) + len(self.lost) < 2 * self.expect - 1:
                self.lose_storage(node)
        elif action < 0.2:
            self.write(node)
        elif action < 0.3:
            self.tick(node)
        elif action < 0.31:
            self.attack(node)
        elif action < 0.32:
            self.confirm(node)
        elif action < 0.4 and self.stale:
            self.deliver(node, *self.random.choice(self.stale))
        else:
            self.gossip(node, self.random.choice(self.nodes))

    def gossip(self, node: Node, source: Node) -> None:
        """Send a notice, which may be lost or kept for later."""
        if source is node or source.core is None:
            return
        message = (source, source.version, source.notice)
        if self.random.random() < 0.3:
            self.stale.append(message)
        if self.random.random() < 0.75:
            self.deliver(node, *message)

    def tick(self, node: Node) -> None:
        """Pass the core its deadline, if it is due."""
        if node.core is not None and node.core.deadline is not None and node.core.deadline <= self.now:
            self.step(node, DeadlineReached())

    def heal(self) -> bool:
        """Deliver everything for some rounds; return True if all nodes agreed on the founding."""
        for node in self.nodes:
            if node.core is None:
                self.start(node)
        for _ in range(14):
            self.now += self.tuning.settle_ms
            for node in self.nodes:
                self.deliver_everything(node)
                self.update_core(node)
            if all(node.core is not None and node.core.founding is not None for node in self.nodes):
                return True
        return False

    def deliver_everything(self, node: Node) -> None:
        """Deliver all notices after healing: from running nodes, and about lost nodes from the other directories."""
        for source in self.nodes:
            if source is not node:
                node.received[source.node_id] = (source.version, source.notice)
            for node_id, received in source.received.items():
                if node_id in self.lost and (node_id not in node.received or received[0] > node.received[node_id][0]):
                    node.received[node_id] = received

    def update_core(self, node: Node) -> None:
        """Pass everything to the core: members, writes, deadlines."""
        members = tuple(
            farm_member(node_id, reachable=node_id not in self.lost, notice=notice)
            for node_id, (_, notice) in node.received.items()
        )
        self.step(node, MembersChanged(members))
        self.write(node)
        self.tick(node)
        self.confirm(node)

    def follow_the_alarms(self) -> None:
        """Wait for the alarms as an operator, and withdraw one node at a time if an alarm names it."""
        self.now += TIMEOUT_MS
        self.heal()
        texts = [text for node in self.nodes if node.core is not None for text in node.core.alarms]
        for node in sorted(self.nodes, key=lambda node: (node.durable.promise is None, node.node_id)):
            assert node.core is not None
            named = any(f"on {node.node_id.hex()}" in text for text in texts)
            lost_founder = any(
                f"{lost.hex()} cannot be reached" in text for text in node.core.alarms for lost in self.lost
            )
            holds = node.core.phase is FormationPhase.PROMISED or node.durable.endorsed is not None
            if holds and (named or lost_founder):
                self.withdrawals += 1
                self.step(node, WithdrawRequested())
                self.write(node)
                return
        alive = {each.durable.founding for each in self.nodes if each.durable.founding is not None}
        for node in self.nodes:
            assert node.core is not None
            trusted = node.core._trusted
            has_alarm = any("waits for cluster" in each or "ignores cluster" in each for each in node.core.alarms)
            if has_alarm and trusted not in {each.cluster_id for each in alive}:
                # Its confirmed cluster was lost with the only founder: the node gets a key file without a cluster, or
                # with another one.
                self.withdrawals += 1
                node.durable = replace(node.durable, confirmed=None)
                self.foundings = alive
                received = node.received
                self.start(node)
                node.received = received
                return
        raise AssertionError("the farm is stuck, and no alarm names a node")


def run(seed: int, *, disks_lie: bool = False) -> Farm:
    farm = Farm(seed, disks_lie=disks_lie)
    for _ in range(farm.random.choice((30, 100, 250))):
        farm.trouble()
    while not farm.heal():
        farm.follow_the_alarms()
        assert farm.withdrawals <= 2 * len(farm.nodes), "the alarms do not resolve the situation"
    (founding,) = farm.foundings
    for node in farm.nodes:
        assert node.core is not None
        assert node.core.founding == founding
        assert (node.core.phase is FormationPhase.FOUNDED) == (node.node_id in founding.founders)
    return farm


@pytest.mark.parametrize("runs", [RUNS, pytest.param(SOAK_RUNS, marks=pytest.mark.soak)])
def test_formation_creates_exactly_one_cluster(runs: int) -> None:
    collisions = kept_disks = collisions_of_them = with_spare_nodes = helped_after_a_collision = helped_after_a_loss = 0
    for seed in range(FIRST_SEED, FIRST_SEED + runs):
        try:
            farm = run(seed)
        except Exception as problem:
            raise AssertionError(f"FORMATION_RUNS=1 FORMATION_SEED={seed} reproduces: {problem!r}") from problem
        spare = len(farm.nodes) > farm.expect
        with_spare_nodes += spare
        helped_after_a_loss += farm.withdrawals > 0 and bool(farm.lost)
        helped_after_a_collision += farm.withdrawals > 0 and not farm.lost
        collided = len({node.durable.promise.founders for node in farm.nodes if node.durable.promise}) > 1
        collisions += collided
        kept_disks += not farm.lost
        collisions_of_them += collided and not farm.lost
        untouched = not spare and not farm.lost
        assert not (untouched and farm.withdrawals), f"seed {seed}: exactly the expected nodes needed an operator"
    figures = (
        f"{runs} farms, {with_spare_nodes} with spare nodes, {collisions} with promises of different sets;"
        f" {kept_disks} without a lost disk, {collisions_of_them} of them with promises of different sets"
    )
    print(f"{figures}, {helped_after_a_collision} needed an operator")  # noqa: T201 - formation.md has the figures
    assert runs < 250 or collisions > 0, f"{figures}: the simulation has too few faults"
    assert helped_after_a_collision <= 0.005 * runs + 1, f"{figures}: {helped_after_a_collision} needed an operator"
    assert helped_after_a_loss <= 0.05 * runs + 1, f"{figures}: {helped_after_a_loss} after a loss of storage"


def test_simulation_detects_disk_that_loses_promise() -> None:
    def two_clusters(seed: int) -> bool:
        try:
            run(seed, disks_lie=True)
        except AssertionError as problem:
            return "two clusters" in str(problem)
        return False

    assert any(two_clusters(seed) for seed in range(1, 1_000))


def test_simulation_detects_founding_by_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a shortcut: do not wait for the last founder, because Raft needs only a majority of them."""
    monkeypatch.setattr(Formation, "unendorsed_by", property(lambda _core: ()))
    whole = Formation._promises_for

    def padded(core: Formation, founders: Founders) -> dict[bytes, Promise]:
        promises = whole(core, founders)
        if 2 * len(promises) > len(founders):
            promises |= {each: Promise(founders, EPOCH_MS, bytes(16)) for each in founders if each not in promises}
        return promises

    monkeypatch.setattr(Formation, "_promises_for", padded)

    def two_clusters(seed: int) -> bool:
        try:
            run(seed)
        except AssertionError as problem:
            return "two clusters" in str(problem)
        return False

    assert any(two_clusters(seed) for seed in range(1, 1_000))
