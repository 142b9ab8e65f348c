"""The injected faults: crashes and restarts, cuts, pauses, clock jumps, full disks, rot, and failing new leaders.

It also sends operators' requests at random moments: configuration changes and leadership transfers. It replaces or
removes a permanently lost server, as an operator would; this continues after the trouble phase.
"""

from collections.abc import Callable, Sequence
from random import Random

from consensus.core.effects import TransferEnded
from consensus.core.events import ChangeConfiguration, PeerEnded, Proposed, TransferLeadership
from consensus.core.model import Configuration, Server, ServerId
from consensus.protocols.kraft.replica.state_machine import NEW_PRODUCER
from consensus.protocols.kraft.wire.entries import control_data
from consensus.protocols.kraft.wire.replica_names import replica
from consensus.sessions.dedup_state_machine import clock_entry
from tests.simulation.consensus.checker import Checker
from tests.simulation.consensus.clients import Clients
from tests.simulation.consensus.kafka_node import UNIX_MS, named_for_kafka
from tests.simulation.consensus.leadership import Leadership
from tests.simulation.consensus.machine import Machine
from tests.simulation.consensus.network import Network
from tests.simulation.consensus.profile import LOG_TIME_UNITS, Kind, Profile, is_successor, place_of
from tests.simulation.consensus.stage import Stage

_REPLACE_MS = 150
_CLOCK_MS = 150
_PRODUCER_MS = 400
_SETTLED_MS = 1_000
"""Time for all followers to answer a new leader if nothing fails."""
_TROUBLE_OF_LEADERS = {Kind.LEASE: ("isolate", "isolate", "isolate one by one", "garble"), Kind.PAUSED: ("absent",)}
_FALSE_ENDS = 0.2
"""Share of false evidence during the trouble."""
_KINDS = ("crash", "start", "start", "start", "cut", "repair", "repair", "pause", "jump", "leader")


def named(ids: Sequence[ServerId]) -> tuple[Server, ...]:
    return tuple(Server(server, f"tcp://10.0.0.{place_of(server)}:7669") for server in ids)


def servers_of(profile: Profile, ids: Sequence[ServerId]) -> tuple[Server, ...]:
    return named(ids) if profile.kafka is None else named_for_kafka(ids)


class Nemesis:
    """All faults of one history."""

    def __init__(
        self,
        random: Random,
        profile: Profile,
        stage: Stage,
        network: Network,
        checker: Checker,
        clients: Clients,
        leadership: Leadership,
        trace: Callable[[str], None],
    ) -> None:
        self._replaced: set[ServerId] = set()
        self._random = random
        self._profile = profile
        self._stage = stage
        self._network = network
        self._checker = checker
        self._clients = clients
        self._leadership = leadership
        self._has_slowed_disks = False
        self._trace = trace

    def begin(self) -> None:
        """Schedule the first faults."""
        profile, after = self._profile, self._stage.after
        after(profile.nuisance_ms, self._trouble_a_server)
        after(_CLOCK_MS, self._advance_log_time)
        after(_REPLACE_MS, self._remove_stranded)
        if profile.kafka is not None:
            after(_REPLACE_MS, self._start_the_rest)
            after(_PRODUCER_MS, self._request_producer_id)
        if profile.change_ms:
            after(profile.change_ms, self._change_somewhere)
        if profile.transfer_ms:
            after(profile.transfer_ms, self._transfer_somewhere)
        if profile.ends_ms:
            after(profile.ends_ms, self._report_an_end)

    def elected(self, server: ServerId) -> None:
        """Handle the election of a leader: in most worlds a fault follows soon."""
        stage, random = self._stage, self._random
        if not stage.trouble or random.random() >= self._profile.leader_trouble:
            return
        soon_ms = random.randrange(60)
        if self._profile.kind in (Kind.SLOW_DISKS, Kind.HUNG_DISKS):
            stage.after(_SETTLED_MS, lambda: self._during_trouble(lambda: self._slow_disks(server)))
            return
        if self._profile.kind is Kind.FIGURE_8:
            self._let_reach_few(server, soon_ms)
            return
        match random.choice(_TROUBLE_OF_LEADERS.get(self._profile.kind, ("crash", "cut off", "pause"))):
            case "isolate":
                # The lease was just renewed, and no message from the leader arrives: the others campaign as early as
                # possible.
                stage.after(15 + soon_ms // 2, lambda: self._during_trouble(lambda: self._isolate(server)))
                stage.after(240 + soon_ms, self._network.repair)
            case "isolate one by one":
                # The first isolated server has waited longer than the others when the lease of the leader ends.
                first = random.choice([other for other in stage.machines if other != server])
                stage.after(soon_ms, lambda: self._during_trouble(lambda: self._isolate(server, [first])))
                between_ms = 40 + random.randrange(80)
                stage.after(soon_ms + between_ms, lambda: self._during_trouble(lambda: self._isolate(server)))
                stage.after(soon_ms + 300, self._network.repair)
            case "garble":
                # The leader's appends arrive but are implausible; the replies to them must not count as contact.
                stage.after(soon_ms, lambda: self._during_trouble(lambda: self._network.garble(server, 300)))
            case "absent":
                # After its absence, the leader handles the requests of its clients before it receives a message of
                # another server.
                absent_ms = 250 + random.randrange(300)
                stage.after(soon_ms, lambda: self._during_trouble(lambda: self._isolate(server)))
                stage.after(soon_ms, lambda: self._during_trouble(lambda: stage.machines[server].pause(absent_ms)))
                stage.after(soon_ms + absent_ms + 50, self._network.repair)
            case "crash":
                stage.after(soon_ms, lambda: self._during_trouble(stage.machines[server].crash))
                stage.after(60 + random.randrange(500), lambda: self.start(server))
            case "cut off":
                stage.after(soon_ms, lambda: self._during_trouble(lambda: self._cut_off(server)))
                stage.after(300 + random.randrange(600), self._network.repair)
            case _:
                # The pause is often long enough for an election. Clients' proposals wait, and the paused server handles
                # them first afterwards.
                pause_ms = 150 + random.randrange(400)
                stage.after(soon_ms, lambda: self._during_trouble(lambda: stage.machines[server].pause(pause_ms)))

    def _slow_disks(self, leader: ServerId) -> None:
        """Slow down disks once per history: of all followers, or of a majority, so that nothing can be committed."""
        stage, disk_ms = self._stage, self._profile.steady_disk_ms
        if self._has_slowed_disks or not stage.machines[leader].leads:
            return
        self._has_slowed_disks = True
        others = [other for other in stage.machines if other != leader]
        if self._profile.kind is Kind.SLOW_DISKS:
            slowed = others
            self._leadership.expect_undisturbed(leader, len(self._checker.committed))
        else:
            majority = self._profile.servers // 2 + 1
            slowed = self._random.sample(list(stage.machines), majority)
        self._trace(f"{stage.now} disks of {sorted(slowed)} take {disk_ms} ms")
        for server in slowed:
            stage.machines[server].slow_down(disk_ms)

    def _let_reach_few(self, server: ServerId, soon_ms: int) -> None:
        """Let a new leader reach no other server, one, or a bare majority; then isolate it, or crash it too (figure 8).

        The isolation ends with the next election, so that the leader of an older term can be elected again.
        """
        stage, random = self._stage, self._random
        others = [other for other in stage.machines if other != server]
        reached = random.sample(others, random.choice((0, 1, 1, 2, 2, 2)))
        self._network.repair()
        self._network.isolate(server, [other for other in stage.machines if other not in reached])
        self._trace(f"{stage.now} {server} reaches {sorted(reached)}")
        stage.after(10 + soon_ms, lambda: self._during_trouble(lambda: self._isolate(server)))
        if random.random() < 0.5:
            stage.after(11 + soon_ms, lambda: self._during_trouble(stage.machines[server].crash))
            stage.after(20 + soon_ms + random.randrange(100), lambda: self.start(server))

    def may_lose(self, server: ServerId) -> bool:
        """Return True in the trouble, if this is the first loss, and each possible configuration keeps a majority."""
        lost = {other for other, machine in self._stage.machines.items() if machine.is_lost} | {server}
        if not self._stage.trouble or len(lost) > 1:
            return False
        return all(
            2 * sum(voter.server_id not in lost for voter in voters) > len(voters)
            for configuration in self._checker.possible_configurations()
            for voters in (configuration.voters, configuration.old_voters)
            if voters
        )

    def replace(self, lost: ServerId) -> None:
        """Replace a lost server by a spare one, or only remove it; repeat forever.

        An entry of an older leader may still make the lost server a member again, so the check never ends.
        """
        current = self._checker.configuration
        leader = self._a_leader()
        if self._profile.kafka is not None:
            self._start_successor(lost)
        if lost not in current.member_ids:
            if lost not in self._replaced:
                self._replaced.add(lost)
                self._checker.marks.see("rotten server replaced by a configuration change")
        elif leader is not None and not current.is_joint:
            voters = current.voter_ids - {lost}
            spare = [server for server in self._stage.machines if server not in current.member_ids]
            if spare and self._profile.joint and self._stage.trouble:
                voters |= {self._random.choice(spare)}
            self._request(leader, Configuration(self._servers(sorted(voters))))
        self._stage.after(_REPLACE_MS, lambda: self.replace(lost))

    def _start_successor(self, lost: ServerId) -> None:
        """Start the successor of a lost server, with the same number and address, on an empty directory."""
        for server in self._stage.machines:
            if is_successor(server) and replica(server).id == replica(lost).id:
                self.start(server)

    def _remove_stranded(self) -> None:
        """After the trouble, remove learners whose term is higher than the leader's.

        Such a learner campaigned alone while it had a vote, and lost the vote later. No server adopts its term:
        otherwise any server without a vote could depose leaders. The learner follows no leader of an older term.
        """
        leader = None if self._stage.trouble else self._a_leader()
        if leader is not None:
            current, machines = self._checker.configuration, self._stage.machines
            stranded = {server for server in current.learner_ids if machines[server].term > leader.term}
            kept = current.learner_ids - stranded
            if stranded and not current.is_joint:
                self._checker.marks.see("server without a vote removed in a later term")
                self._request(leader, Configuration(current.voters, (), self._servers(sorted(kept))))
        self._stage.after(_REPLACE_MS, self._remove_stranded)

    def _during_trouble(self, action: Callable[[], None]) -> None:
        if self._stage.trouble:
            action()

    def start(self, server: ServerId) -> None:
        """Start a stopped server, unless it is permanently lost or its predecessor still has its place."""
        machine, others = self._stage.machines[server], self._stage.machines
        if machine.run is None and not machine.has_stopped and self._has_place(server):
            machine.start([other for other in others.values() if other is not machine])

    def _has_place(self, server: ServerId) -> bool:
        """Return True unless the server is a successor whose predecessor still has its directory."""
        if self._profile.kafka is None or not is_successor(server):
            return True
        machines = self._stage.machines
        return all(
            machines[other].has_stopped
            for other in machines
            if replica(other).id == replica(server).id and place_of(other) < place_of(server)
        )

    def _servers(self, ids: Sequence[ServerId]) -> tuple[Server, ...]:
        """Return servers with addresses; if two have one number, which Kafka's voters never do, choose one of them."""
        if self._profile.kafka is None:
            return named(ids)
        nodes: dict[int, list[ServerId]] = {}
        for each in ids:
            nodes.setdefault(replica(each).id, []).append(each)
        return named_for_kafka([self._random.choice(keys) for keys in nodes.values()])

    def _start_the_rest(self) -> None:
        """After the trouble, start each stopped server as soon as it can run."""
        if not self._stage.trouble:
            for server in self._stage.machines:
                self.start(server)
        self._stage.after(_REPLACE_MS, self._start_the_rest)

    def _cut_off(self, server: ServerId) -> None:
        self._trace(f"{self._stage.now} cut off {self._network.cut_off(server, list(self._stage.machines))}")

    def _isolate(self, server: ServerId, others: list[ServerId] | None = None) -> None:
        chosen = list(self._stage.machines) if others is None else others
        self._trace(f"{self._stage.now} isolate {self._network.isolate(server, chosen)} of {sorted(chosen)}")

    def _trouble_a_server(self) -> None:
        if not self._stage.trouble:
            return
        random, stage = self._random, self._stage
        machine = random.choice(list(stage.machines.values()))
        if random.random() < self._profile.full_disk:
            random.choice([machine, self._a_leader() or machine]).fill_disk(random.randrange(400))
        elif random.random() < self._profile.rot / 3:
            machine.rot()
        else:
            self._trouble(machine, random.choice(_KINDS))
        stage.after(1 + int(random.expovariate(1 / self._profile.nuisance_ms)), self._trouble_a_server)

    def _trouble(self, machine: Machine, kind: str) -> None:
        random, stage = self._random, self._stage
        match kind:
            case "crash":
                machine.crash()
            case "start":
                for server in stage.machines:
                    self.start(server)
            case "cut":
                self._trace(f"{stage.now} cut {self._network.cut_at_random(list(stage.machines))}")
            case "repair":
                self._network.repair()
            case "pause":
                machine.pause(random.randrange(500))
            case "jump":
                if self._profile.jumps:
                    machine.jump(random.randrange(1_000))
            case _:
                for leader in self._leaders():
                    leader.crash()
                stage.after(random.randrange(400), lambda: self.start(machine.server_id))

    def _report_an_end(self) -> None:
        random, stage = self._random, self._stage
        machine, ended = random.choices(list(stage.machines.values()), k=2)
        if ended.run is None or (stage.trouble and random.random() < _FALSE_ENDS):
            machine.step(PeerEnded(ended.server_id))
        stage.after(self._profile.ends_ms, self._report_an_end)

    def _advance_log_time(self) -> None:
        """Advance log time by the clock of a leader; sessions expire by log time."""
        leader = self._a_leader()
        if leader is not None:
            number = self._clients.next_number()
            log_time = leader.clock_ms * LOG_TIME_UNITS + number % LOG_TIME_UNITS
            commands = (self._clients.headed(clock_entry(log_time)),)
            self._checker.proposed(number, commands)
            leader.step(Proposed(proposal_id=number, commands=commands))
        self._stage.after(_CLOCK_MS, self._advance_log_time)

    def _request_producer_id(self) -> None:
        """Request a producer id as a Kafka client, which appends a control record."""
        leader = self._a_leader()
        if leader is not None:
            number = self._clients.next_number()
            commands = (control_data(NEW_PRODUCER, b"", UNIX_MS + self._stage.now),)
            self._checker.proposed(number, commands)
            leader.step(Proposed(proposal_id=number, commands=commands, control=True))
        self._stage.after(_PRODUCER_MS, self._request_producer_id)

    def _change_somewhere(self) -> None:
        """Request a configuration: a voter replaced, added or removed, or a random set of servers."""
        if not self._stage.trouble:
            return
        random = self._random
        # A new configuration never contains a lost server: the remaining majority may exist only in the old one.
        living = sorted(server for server, machine in self._stage.machines.items() if not machine.is_lost)
        machine = self._a_leader() or random.choice(list(self._stage.machines.values()))
        if machine.run is not None:
            current = machine.run.core.describe().configuration
            voters = set(current.voter_ids).intersection(living)
            match random.choice(("one more", "one less", "itself", "replace", "replace", "any")):
                case "one more":
                    voters.add(random.choice(living))
                case "one less":
                    voters.discard(random.choice(living))
                case "itself":
                    voters.discard(machine.server_id)
                case "replace":
                    voters.discard(random.choice(living))
                    voters.add(random.choice(sorted(current.learner_ids) or living))
                case _:
                    voters = set(random.sample(living, random.randint(1, len(living))))
            voters.intersection_update(living)
            others = [server for server in living if server not in voters]
            share = (0, 0, 1) if self._profile.kafka is None else (0,)
            learners = random.sample(others, random.choice(share) if others else 0)
            self._request(machine, Configuration(self._servers(sorted(voters)), (), self._servers(learners)))
        self._stage.after(1 + int(random.expovariate(1 / self._profile.change_ms)), self._change_somewhere)

    def _request(self, machine: Machine, target: Configuration) -> None:
        number = self._clients.next_number()
        self._checker.change_requested(machine.server_id, number, target)
        machine.step(ChangeConfiguration(number, target, self._clients.next_head()))

    def _transfer_somewhere(self) -> None:
        if not self._stage.trouble:
            return
        random, machines = self._random, self._stage.machines
        machine = self._a_leader() or random.choice(list(machines.values()))
        if machine.run is not None:
            number = self._clients.next_number()
            self._checker.request_sent(machine.server_id, TransferEnded, number)
            machine.step(TransferLeadership(number, random.choice((None, *machines))))
        self._stage.after(1 + int(random.expovariate(1 / self._profile.transfer_ms)), self._transfer_somewhere)

    def _leaders(self) -> list[Machine]:
        return [machine for machine in self._stage.machines.values() if machine.leads]

    def _a_leader(self) -> Machine | None:
        leaders = self._leaders()
        return self._random.choice(leaders) if leaders else None
