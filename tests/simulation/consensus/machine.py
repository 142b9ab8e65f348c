"""One simulated server: production core, executor and storage on an in-memory disk, and the loop between them.

A machine runs, crashes between any two effects or any two disk operations, and restarts with the remaining content of
the disk: all synced bytes, and any part of the others, torn or complete. A paused machine does nothing, and handles the
received events after the pause. A full disk makes it wait. Bit rot stops it permanently; a new server replaces it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import assert_never

from consensus.core.effects import (
    Answer,
    Apply,
    CheckSnapshot,
    ConfigurationChanged,
    ConfigurationResolved,
    Effect,
    Halt,
    Install,
    Persist,
    ProposalAccepted,
    ProposalResolved,
    ReadEntries,
    ReadReady,
    ReadRefused,
    ReadSnapshot,
    Restore,
    Role,
    RoleChanged,
    Send,
    TakeSnapshot,
    TransferEnded,
)
from consensus.core.events import (
    DeadlineReached,
    DiskSpace,
    Event,
    PeerExtensions,
    Persisted,
    SnapshotRead,
    SnapshotWanted,
)
from consensus.core.features import ZMQ_RAFT, Extensions, Features
from consensus.core.log import RecoveredLog
from consensus.core.messages import AppendReply, SnapshotReply, VoteReply
from consensus.core.model import Configuration, Index, ServerId, SnapshotDescription, Term
from consensus.core.raft import Raft
from consensus.core.replication.progress import ProgressState
from consensus.protocols.kraft.replica.open_voter import leader_records
from consensus.protocols.kraft.replica.state_machine import QuorumLog
from consensus.protocols.kraft.wire.snapshot_form import KafkaSnapshotForm
from consensus.server.executor import Executor
from consensus.storage.disk import DamagedStorageError, DiskOperation, SyncDirectory, SyncFile
from consensus.storage.jobs import HardStateJob, Job, PreparationJob, ReadJob, SnapshotWrite, WriteJob
from consensus.storage.planner import Recovery, Storage
from consensus.storage.snapshot_form import IMAGE, PLAIN, SnapshotForm
from tests.simulation.consensus.checker import Checker, ViolationError
from tests.simulation.consensus.clock import Clock
from tests.simulation.consensus.host import Desk, Schedule
from tests.simulation.consensus.kafka_node import CLUSTER_ID, UNIX_MS, KafkaNode, draw_versions, make_node
from tests.simulation.consensus.kafka_state import KafkaStateMachine
from tests.simulation.consensus.keeper import Keeper
from tests.simulation.consensus.network import Network
from tests.simulation.consensus.profile import Kind, Profile, place_of
from tests.simulation.consensus.state import OWN_READ, StateMachine

_FULL_RETRY_MS = 40


def _clock_error(profile: Profile, random: Random) -> float:
    """Return the drift of the clock; with leases, every clock has the maximum permitted error."""
    rate = profile.clock_rate
    return random.choice((-rate, rate)) if profile.kind is Kind.LEASE else random.uniform(-rate, rate)


class CrashedError(Exception):
    """The machine crashed between two effects."""


@dataclass(slots=True)
class Life:
    """All volatile state of one run."""

    core: Raft
    executor: Executor
    state: StateMachine
    storage: Storage
    proven: Index
    """Last index that other data on the disk proves durable: recovery must never treat rot up to it as a torn write."""
    job: Job | None = None
    node: KafkaNode | None = None
    """Adapter between core and connections, on Kafka's wire."""
    timer: int = -1
    blocked: WriteJob | None = None
    """The group that waits for disk space; other jobs continue."""
    done: int = 0
    """Number of operations of that group that need not be repeated."""
    full: bool = False


class Machine:
    """A server that may be down."""

    def __init__(
        self,
        server_id: ServerId,
        configuration: Configuration,
        profile: Profile,
        features: Features,
        random: Random,
        world: Schedule,
        network: Network,
        checker: Checker,
        make_core: Callable[..., Raft],
        trace: Callable[[str], None],
        show_step: Callable[[ServerId, Event, Sequence[Effect]], None],
    ) -> None:
        self.server_id = server_id
        self._configuration = configuration
        self._profile = profile
        self._features = features
        self._form = self._snapshot_form()
        self._random = random
        self._world = world
        self._network = network
        self._checker = checker
        self._make_core = make_core
        self._trace = trace
        self._show_step = show_step
        self._keeper = Keeper(server_id, profile, random, checker, self._form)
        self._clock = Clock(1 + _clock_error(profile, random))
        self._paused_until_ms = 0
        self._slow_disk_ms = 0
        self.desk: Desk | None = None
        self.has_stopped = False
        self.leads = False
        self.full_disks = 0
        self.life: Life | None = None
        self.crashes = 0
        self.snapshots = 0
        self.restores = 0
        self.healthy = False
        self.understands_pre_vote = random.random() < profile.pre_vote
        self.understands_transfer = random.random() < profile.transfer
        self.versions = {} if profile.kafka is None else draw_versions(random, profile.kafka)

    @property
    def node(self) -> KafkaNode | None:
        """Return the adapter between core and connections; None while the machine is down."""
        return None if self.life is None else self.life.node

    @property
    def clock_ms(self) -> int:
        """Return the time of this machine's own monotonic clock."""
        return self._clock.reads(self._world.now)

    @property
    def term(self) -> Term:
        """Return the latest term of the current run."""
        return 0 if self.life is None else self.life.core.describe().term

    @property
    def configuration(self) -> Configuration | None:
        """Return the newest configuration in the log; None while the machine is down."""
        return None if self.life is None else self.life.core.describe().configuration

    @property
    def snapshot_bytes(self) -> int:
        """Return the size of the stored snapshot."""
        snapshot = None if self.life is None else self.life.core._replica.log.snapshot
        return 0 if snapshot is None else snapshot.size_bytes

    @property
    def has_lease(self) -> bool:
        """Return True if the machine is a leader that could answer a read from memory now."""
        leader = None if self.life is None else self.life.core._role.as_leader
        return leader is not None and leader.lease.holds(self.clock_ms)

    @property
    def is_lost(self) -> bool:
        """Return True if the machine will never start again, or possibly not."""
        return self.has_stopped or self._keeper.rotten

    def start(self, others: list["Machine"]) -> None:
        """Start with the content of the disk; a crash during recovery ends the run immediately."""
        recovery = self._open_storage()
        configuration = None if recovery is None else self._first_configuration(recovery.log)
        if configuration is None or recovery is None:
            return
        core = self._core(configuration, recovery)
        executor = Executor(recovery.storage, group_bytes=self._profile.group_bytes)
        self.life = Life(core, executor, self._state(), recovery.storage, recovery.storage.last.index)
        if self._profile.kafka is not None:
            self.life.node = make_node(self.server_id, configuration, core, self._random)
        if recovery.log.snapshot is not None:
            self._carry_out(self.life, [Restore(recovery.log.snapshot)])
        for other in others if self._handshakes else ():
            extensions = Extensions(
                pre_vote=self.understands_pre_vote and other.understands_pre_vote,
                transfer=self.understands_transfer and other.understands_transfer,
                configurations=self._profile.joint,
                lease_ms=self._profile.options.lease_promise_ms,
            )
            self.step(PeerExtensions(other.server_id, extensions))
        self._set_timer()

    @property
    def _handshakes(self) -> bool:
        """Return True if servers exchange their extensions immediately; on Kafka's wire each connection does so."""
        return self._features is not ZMQ_RAFT and self._profile.kafka is None

    def _snapshot_form(self) -> SnapshotForm:
        if self._profile.kafka is not None:
            return KafkaSnapshotForm(self._unix_ms)
        return PLAIN if self._features is ZMQ_RAFT else IMAGE

    def _unix_ms(self) -> int:
        return UNIX_MS + self.clock_ms

    def _first_configuration(self, log: RecoveredLog) -> Configuration | None:
        """Return the initial configuration; None if a leader must provide it and no leader is reachable."""
        if self._profile.kafka is None or self._configuration.voters or log.names_configuration:
            return self._configuration
        return self._world.described_quorum(self.server_id)

    def _core(self, configuration: Configuration, recovery: Recovery) -> Raft:
        random = Random(self._random.getrandbits(64))
        arguments = (
            self.server_id,
            configuration,
            recovery.hard_state,
            recovery.log,
            self._profile,
            random,
            self.clock_ms,
        )
        if self._profile.kafka is None:
            return self._make_core(*arguments)
        records = leader_records(self._unix_ms, is_dynamic=not self._profile.kafka.static)
        return self._make_core(*arguments, CLUSTER_ID, records)

    def _state(self) -> StateMachine:
        def applied(effect: Apply) -> None:
            self._checker.applied(self.server_id, effect)

        def executed(index: Index, value: int) -> None:
            self._checker.executed(self.server_id, index, value)

        limits, head_bytes = self._profile.limits, self._features.command_head_bytes
        if self._profile.kafka is not None:
            return KafkaStateMachine(limits, applied, executed, self._restored, self._form, self._kept)
        return StateMachine(limits, applied, executed, self._restored, self._form, head_bytes)

    def _kept(self, index: Index, log: QuorumLog) -> None:
        self._world.kept(self, index, log)

    def crash(self) -> None:
        """Discard all volatile state. An unfinished write stops midway, and unsynced bytes may be lost or torn."""
        life = self.life
        if life is None:
            return
        self._trace(f"crash {self.server_id}")
        # The disk runs one job at a time: a group that waits for space continues between other jobs, not during one.
        writing, begun = (life.job, 0) if life.job is not None else (life.blocked, life.done)
        if isinstance(writing, WriteJob | HardStateJob | PreparationJob):
            done = self._random.randint(begun, len(writing.operations))
            self._keeper.disk.run(writing.operations[begun:done])
        self._power_off()
        self._checker.crashed(self.server_id)
        if self._random.random() < self._profile.rot and self._world.may_lose(self.server_id):
            self._rot_in_sleep()
        elif self._loses_directory() and self._world.may_lose(self.server_id):
            self._checker.marks.see("directory lost, another server in its place")
            self._trace(f"stopped {self.server_id} with its directory")
            self.has_stopped = True
            self._world.lost(self.server_id)

    def _loses_directory(self) -> bool:
        rates, place = self._profile.kafka, place_of(self.server_id)
        return rates is not None and place == rates.loser and self._random.random() < rates.lost_directories

    def fill_disk(self, duration_ms: int) -> None:
        """Leave the disk without space for `duration_ms`."""
        self._keeper.fill_up(self._world.now + duration_ms)

    def slow_down(self, disk_ms: int) -> None:
        """Make every later sync take `disk_ms`."""
        self._slow_disk_ms = disk_ms

    def rot(self) -> None:
        """Flip a bit of an entry that was durable when this run began, if there is such an entry."""
        if self.life is not None and self._world.may_lose(self.server_id):
            place = self._keeper.rot_entry(self.life.storage, self.life.proven)
            self._trace(f"rot {self.server_id} {place}")

    def _rot_in_sleep(self) -> None:
        """Start and stop immediately, so that everything is proven durable; then flip any bit."""
        if self._open_storage() is not None:
            self._trace(f"rot {self.server_id} {self._keeper.rot_anywhere()}")

    def _open_storage(self) -> Recovery | None:
        """Recover; return None after a crash, or if the disk has rotted."""
        try:
            recovery = self._keeper.open(self._operate)
        except DamagedStorageError as error:
            self._stop_for_good(error)
            return None
        except CrashedError:
            self._checker.marks.see("crash during recovery")
            self._power_off()
            return None
        self._trace(f"start {self.server_id} {recovery.hard_state} {recovery.storage.last.index}")
        return recovery

    def _stop_for_good(self, error: DamagedStorageError) -> None:
        """Stop permanently after the server found damaged storage; raise the error unless rot explains it."""
        if not self._keeper.rotten:
            raise error
        self._checker.marks.see("rot refused by recovery" if self.life is None else "rot found while running")
        self._trace(f"stopped {self.server_id} {error}")
        if self.life is not None:
            self._power_off()
            self._checker.crashed(self.server_id)
        self.has_stopped = True
        self._world.lost(self.server_id)

    def _power_off(self) -> None:
        self.life = None
        self.leads = False
        self.crashes += 1
        self._keeper.power_off()
        self._network.stopped(self.server_id)

    def _operate(self, operations: Sequence[DiskOperation]) -> None:
        for operation in operations:
            if self._unlucky():
                raise CrashedError
            self._keeper.disk.perform(operation)

    def pause(self, duration_ms: int) -> None:
        """Pause for `duration_ms`."""
        self._paused_until_ms = max(self._paused_until_ms, self._world.now + duration_ms)

    def jump(self, ahead_ms: int) -> None:
        """Move the clock forward, as after the suspension of a machine."""
        self._clock.jump(ahead_ms)
        self._set_timer()

    def step(self, event: Event) -> None:
        """Pass an event to the core, now or after the pause."""
        life = self.life
        if life is not None:
            self.when_awake(lambda: self._step_in(life, event))

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run `action` now or after the pause, if this run has not ended by then."""
        life = self.life
        if life is None:
            return
        if self._paused_until_ms > self._world.now:
            self._world.after(self._paused_until_ms - self._world.now, lambda: action() if self.life is life else None)
            return
        action()

    def _step_in(self, life: Life, event: Event) -> None:
        if self.life is not life:
            return
        effects = life.core.step(event, self.clock_ms)
        self._show_step(self.server_id, event, effects)
        self._checker.stepped(self.server_id, event, effects)
        self._note(effects)
        self._world.stepped(self, event, effects)
        survived = self._survived(effects)
        self._carry_out(life, effects if survived == len(effects) else effects[:survived])
        if survived < len(effects):
            self.crash()
            return
        self._consider_snapshot(life)
        self._start_job(life)
        self._set_timer()

    def _survived(self, effects: Sequence[Effect]) -> int:
        """Return the number of effects performed before a crash; crashes are likelier next to a Persist."""
        if self.healthy or not self._profile.crash_between_effects:
            return len(effects)
        for place, effect in enumerate(effects):
            by_persist = isinstance(effect, Persist) or (place > 0 and isinstance(effects[place - 1], Persist))
            if self._random.random() < self._profile.crash_between_effects * (3 if by_persist else 1):
                return place
        return len(effects)

    def _note(self, effects: Sequence[Effect]) -> None:
        """Track leadership, and the entries that remain proven durable after a truncation."""
        for effect in effects:
            if isinstance(effect, RoleChanged):
                self.leads = effect.role is Role.LEADER
            elif isinstance(effect, Persist) and self.life is not None:
                if effect.truncate_from is not None:
                    self.life.proven = min(self.life.proven, effect.truncate_from - 1)
                elif isinstance(effect.snapshot, Install):
                    self.life.proven = 0

    def _unlucky(self) -> bool:
        return not self.healthy and self._random.random() < self._profile.crash_between_effects

    def _carry_out(self, life: Life, effects: Sequence[Effect]) -> None:  # noqa: C901 - a line for each kind of effect
        for effect in effects:
            match effect:
                case Send():
                    if life.executor.may_send(effect):
                        self._transmit(effect)
                case Persist():
                    life.executor.persist(effect)
                case ReadEntries() | ReadSnapshot() | CheckSnapshot():
                    life.executor.ask(effect)
                case Apply():
                    life.state.apply(effect)
                case Restore() | TakeSnapshot():
                    self._begin_with_snapshot(life, effect)
                case RoleChanged(role=Role.LEADER):
                    self._world.elected(self.server_id)
                case RoleChanged():
                    pass
                case ConfigurationChanged():
                    self._members_changed(life, effect)
                case Halt(reason):
                    raise ViolationError(f"server {self.server_id} halts: {reason}")
                case _:
                    self._answer_client(effect)

    def _members_changed(self, life: Life, changed: ConfigurationChanged) -> None:
        joining = {newcomer.server_id for newcomer in changed.newcomers}
        self._network.members_changed(self.server_id, changed.configuration.member_ids | joining)
        if life.node is not None:
            life.node.names.change(changed.configuration, changed.newcomers)

    def _answer_client(self, answer: Answer) -> None:
        match answer:
            case ProposalAccepted():
                self._checker.accepted(self.server_id, answer)
            case ProposalResolved():
                self._checker.resolved(self.server_id, answer)
                self._desk.resolved(self._living().state, answer)
            case ConfigurationResolved():
                self._checker.change_resolved(self.server_id, answer)
            case ReadReady():
                self._checker.answered(self.server_id, answer)
                self._desk.read_ready(self._living().state, answer)
            case ReadRefused():
                self._checker.answered(self.server_id, answer)
                self._desk.read_refused(answer)
            case TransferEnded():
                self._checker.answered(self.server_id, answer)
            case _:
                assert_never(answer)

    @property
    def _desk(self) -> Desk:
        assert self.desk is not None
        return self.desk

    def _start_job(self, life: Life) -> None:
        job = life.executor.next_job()
        if job is not None:
            life.job = job
            self._world.after(self._disk_delay_ms(job), lambda: self._finish(life, job))

    def _finish(self, life: Life, job: Job, start: int = 0) -> None:
        """Complete a job of the disk: release its sends, pass the result to the core, and start the next job."""
        if self.life is not life:
            return
        if job is life.blocked:
            life.blocked = None
        else:
            life.job = None
        try:
            if isinstance(job, WriteJob | SnapshotWrite | PreparationJob) and self._is_full(job, start):
                if isinstance(job, WriteJob):
                    self._wait_for_space(life, job, start)
                    return
                self._keeper.give_up(job)
            self._perform(life, job, start)
        except CrashedError:
            self.crash()
        if self.life is life:
            self._start_job(life)

    def _perform(self, life: Life, job: Job, start: int) -> None:
        match job:
            case ReadJob():
                self._answer(life, job)
            case SnapshotWrite():
                self._operate(job.operations)
                life.executor.read(job)
                self._continue_snapshot(life, given_up=job.given_up)
            case PreparationJob():
                self._operate(job.operations)
                life.executor.prepared(job)
            case WriteJob():
                self._operate(job.operations[start:])
                self._written(life, job)
            case HardStateJob():
                self._operate(job.operations)
                self._checker.marks.see("term or vote written while a group waits for space")
                self._checker.hard_state_persisted(self.server_id, job.number)
                self._transmit_all(life.executor.hard_state_written(job))
            case _:
                assert_never(job)

    def _written(self, life: Life, job: WriteJob) -> None:
        if life.full:
            life.full = False
            self._checker.marks.see("write continued after a full disk")
            self.step(DiskSpace(full=False))
            if self.life is not life:
                return
        self._checker.persisted(self.server_id, job.number)
        released = life.executor.written(job)
        survived = next((place for place in range(len(released)) if self._unlucky()), len(released))
        self._transmit_all(released[:survived])
        if survived < len(released):
            raise CrashedError
        self.step(Persisted(job.number))

    def _transmit_all(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._transmit(send)

    def _is_full(self, job: WriteJob | SnapshotWrite | PreparationJob, start: int) -> bool:
        return not self.healthy and self._keeper.is_full(self._world.now) and start < len(job.operations)

    def _wait_for_space(self, life: Life, job: WriteJob, start: int) -> None:
        """Stop a job midway; it continues after its last sync when there is space."""
        life.blocked, life.done = job, self._keeper.break_off(job, start)
        resume_at = life.done
        self._world.after(_FULL_RETRY_MS, lambda: self._finish(life, job, resume_at))
        if not life.full:
            life.full = True
            self.full_disks += 1
            self.step(DiskSpace(full=True))
        if self.life is life:
            self._transmit_all(life.executor.blocked(job, resume_at))
            self._start_job(life)

    def _begin_with_snapshot(self, life: Life, effect: Restore | TakeSnapshot) -> None:
        match effect:
            case Restore():
                life.executor.ask(life.state.begin_restore(effect))
            case TakeSnapshot():
                life.state.begin_snapshot(effect)
                life.executor.write_aside(life.state.jobs.popleft())

    def _answer(self, life: Life, job: ReadJob) -> None:
        try:
            answer = job.answer(self._keeper.disk)
        except DamagedStorageError as error:
            self._stop_for_good(error)
            return
        life.executor.read(job)
        if isinstance(answer, SnapshotRead) and answer.request_id == OWN_READ:
            life.state.restore(answer)
        else:
            self.step(answer)

    def _continue_snapshot(self, life: Life, *, given_up: bool) -> None:
        if given_up:
            life.state.give_up_snapshot()
        elif life.state.jobs:
            life.executor.write_aside(life.state.jobs.popleft())
        else:
            kept_behind = self._random.choice((0, 0, 1, 5, 1_000))
            self.snapshots += 1
            self.step(life.state.end_snapshot(kept_behind))

    def _consider_snapshot(self, life: Life) -> None:
        """Take a snapshot after `snapshot_entries` applied entries.

        A healthy leader waits while it sends a snapshot to a follower.
        """
        state, limit = life.state, self._profile.snapshot_entries
        if (
            not limit
            or state.applied < state.covered + limit
            or state.restoring is not None
            or state.writer is not None
        ):
            return
        if self.healthy and any(
            follower.state is ProgressState.SNAPSHOT for follower in life.core.describe().followers
        ):
            return
        state.covered = state.applied
        self._world.after(0, lambda: self._want_snapshot(life))

    def _want_snapshot(self, life: Life) -> None:
        if self.life is life and life.state.writer is None and life.state.restoring is None:
            self._step_in(life, SnapshotWanted(life.state.capture()))

    def _restored(self, snapshot: SnapshotDescription, chain: int) -> None:
        self.restores += 1
        self._checker.restored(self.server_id, snapshot, chain)

    def _living(self) -> Life:
        assert self.life is not None
        return self.life

    def _transmit(self, effect: Send) -> None:
        if isinstance(effect.message, VoteReply | AppendReply | SnapshotReply):
            self._checker.reply_sent(self.server_id, effect.recipient, effect.message)
        else:
            self._checker.sent(self.server_id, effect.message)
        self._network.send(self.server_id, effect.recipient, effect.message)

    def _disk_delay_ms(self, job: Job) -> int:
        if self.healthy:
            return 1
        if self._slow_disk_ms:
            operations = () if isinstance(job, ReadJob) else job.operations
            syncs = any(isinstance(operation, SyncFile | SyncDirectory) for operation in operations)
            return self._slow_disk_ms if syncs else 1
        if self._random.random() < self._profile.slow_disk:
            return self._random.randrange(self._profile.slow_disk_ms)
        return self._random.randrange(self._profile.disk_ms + 1)

    def _set_timer(self) -> None:
        """Schedule a wake-up of the core at its deadline, unless an earlier one is scheduled."""
        life = self.life
        if life is None:
            return
        due = max(self._world.now + 1, self._clock.shows_at(life.core.deadline))
        if life.timer <= self._world.now or due < life.timer:
            life.timer = due
            self._world.after(due - self._world.now, lambda: self._wake(life, due))

    def _wake(self, life: Life, due: int) -> None:
        if self.life is not life or life.timer != due:
            return
        life.timer = -1
        if self._paused_until_ms > self._world.now:
            life.timer = self._paused_until_ms + 1
            self._world.after(life.timer - self._world.now, lambda: self._wake(life, self._paused_until_ms + 1))
        elif self.clock_ms >= life.core.deadline:
            self.step(DeadlineReached())
        else:
            self._set_timer()
