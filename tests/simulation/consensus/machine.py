"""One simulated server: production core, executor and storage on an in-memory disk, and the loop between them.

A machine runs, crashes between any two effects or any two disk operations, and restarts with the remaining content of
the disk. That is all synced bytes, and any part of the others, torn or complete. A paused machine does nothing, and
handles the received events after the pause. On a full disk, entries wait for space. Bit rot stops a machine
permanently; a new server replaces it.
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
from tests.simulation.consensus.host import AnswerReceiver, Schedule
from tests.simulation.consensus.kafka_node import CLUSTER_ID, UNIX_MS, KafkaNode, draw_versions, make_node
from tests.simulation.consensus.kafka_state import KafkaStateMachine
from tests.simulation.consensus.keeper import Keeper
from tests.simulation.consensus.network import Network
from tests.simulation.consensus.profile import Kind, Profile, place_of
from tests.simulation.consensus.state import OWN_READ, StateMachine

_FULL_RETRY_MS = 40


def _clock_error(profile: Profile, random: Random) -> float:
    """Return the drift of the clock; in a world of the kind `LEASE`, each clock has the maximum permitted drift."""
    rate = profile.clock_rate
    return random.choice((-rate, rate)) if profile.kind is Kind.LEASE else random.uniform(-rate, rate)


class CrashedError(Exception):
    """The machine crashed between two effects."""


@dataclass(slots=True)
class Run:
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
        self.answer_receiver: AnswerReceiver | None = None
        self.has_stopped = False
        self.leads = False
        self.full_disks = 0
        self.run: Run | None = None
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
        return None if self.run is None else self.run.node

    @property
    def clock_ms(self) -> int:
        """Return the time of this machine's own monotonic clock."""
        return self._clock.reads(self._world.now)

    @property
    def term(self) -> Term:
        """Return the latest term of the current run."""
        return 0 if self.run is None else self.run.core.describe().term

    @property
    def configuration(self) -> Configuration | None:
        """Return the newest configuration in the log; None while the machine is down."""
        return None if self.run is None else self.run.core.describe().configuration

    @property
    def snapshot_bytes(self) -> int:
        """Return the size of the stored snapshot."""
        snapshot = None if self.run is None else self.run.core._replica.log.snapshot
        return 0 if snapshot is None else snapshot.size_bytes

    @property
    def has_lease(self) -> bool:
        """Return True if the machine is a leader that could answer a read from memory now."""
        leader = None if self.run is None else self.run.core._role.as_leader
        return leader is not None and leader.lease.holds(self.clock_ms)

    @property
    def is_lost(self) -> bool:
        """Return True if the machine has stopped permanently, or may do so because its disk has rotted."""
        return self.has_stopped or self._keeper.rotten

    def start(self, others: list["Machine"]) -> None:
        """Start with the content of the disk; a crash during recovery ends the run immediately."""
        recovery = self._open_storage()
        configuration = None if recovery is None else self._first_configuration(recovery.log)
        if configuration is None or recovery is None:
            return
        core = self._core(configuration, recovery)
        executor = Executor(recovery.storage, group_bytes=self._profile.group_bytes)
        self.run = Run(core, executor, self._state(), recovery.storage, recovery.storage.last.index)
        if self._profile.kafka is not None:
            self.run.node = make_node(self.server_id, configuration, core, self._random)
        if recovery.log.snapshot is not None:
            self._carry_out(self.run, [Restore(recovery.log.snapshot)])
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
            return KafkaStateMachine(limits, applied, executed, self._restored, self._form, self._records_restored)
        return StateMachine(limits, applied, executed, self._restored, self._form, head_bytes)

    def _records_restored(self, index: Index, log: QuorumLog) -> None:
        self._world.records_restored(self, index, log)

    def crash(self) -> None:
        """Discard all volatile state. An unfinished write stops midway, and unsynced bytes may be lost or torn."""
        run = self.run
        if run is None:
            return
        self._trace(f"crash {self.server_id}")
        # The disk runs one job at a time: a group that waits for space continues between other jobs, not during one.
        writing, first = (run.job, 0) if run.job is not None else (run.blocked, run.done)
        if isinstance(writing, WriteJob | HardStateJob | PreparationJob):
            done = self._random.randint(first, len(writing.operations))
            self._keeper.disk.run(writing.operations[first:done])
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
        if self.run is not None and self._world.may_lose(self.server_id):
            place = self._keeper.rot_entry(self.run.storage, self.run.proven)
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
        self._checker.marks.see("rot refused by recovery" if self.run is None else "rot found while running")
        self._trace(f"stopped {self.server_id} {error}")
        if self.run is not None:
            self._power_off()
            self._checker.crashed(self.server_id)
        self.has_stopped = True
        self._world.lost(self.server_id)

    def _power_off(self) -> None:
        self.run = None
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
        self._paused_until_ms = max(self._paused_until_ms, self._world.now + duration_ms)

    def jump(self, ahead_ms: int) -> None:
        """Move the clock forward, as after the suspension of a machine."""
        self._clock.jump(ahead_ms)
        self._set_timer()

    def step(self, event: Event) -> None:
        """Pass an event to the core, now or after the pause."""
        run = self.run
        if run is not None:
            self.when_awake(lambda: self._step_in(run, event))

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run `action` now or after the pause, if this run has not ended by then."""
        run = self.run
        if run is None:
            return
        if self._paused_until_ms > self._world.now:
            self._world.after(self._paused_until_ms - self._world.now, lambda: action() if self.run is run else None)
            return
        action()

    def _step_in(self, run: Run, event: Event) -> None:
        if self.run is not run:
            return
        effects = run.core.step(event, self.clock_ms)
        self._show_step(self.server_id, event, effects)
        self._checker.stepped(self.server_id, event, effects)
        self._note(effects)
        self._world.stepped(self, event, effects)
        survived = self._survived(effects)
        self._carry_out(run, effects if survived == len(effects) else effects[:survived])
        if survived < len(effects):
            self.crash()
            return
        self._consider_snapshot(run)
        self._start_job(run)
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
        """Track leadership, and the entries with proof of durability after a truncation."""
        for effect in effects:
            if isinstance(effect, RoleChanged):
                self.leads = effect.role is Role.LEADER
            elif isinstance(effect, Persist) and self.run is not None:
                if effect.truncate_from is not None:
                    self.run.proven = min(self.run.proven, effect.truncate_from - 1)
                elif isinstance(effect.snapshot, Install):
                    self.run.proven = 0

    def _unlucky(self) -> bool:
        return not self.healthy and self._random.random() < self._profile.crash_between_effects

    def _carry_out(self, run: Run, effects: Sequence[Effect]) -> None:  # noqa: C901 - a line for each kind of effect
        for effect in effects:
            match effect:
                case Send():
                    if run.executor.may_send(effect):
                        self._transmit(effect)
                case Persist():
                    run.executor.persist(effect)
                case ReadEntries() | ReadSnapshot() | CheckSnapshot():
                    run.executor.queue_read(effect)
                case Apply():
                    run.state.apply(effect)
                case Restore() | TakeSnapshot():
                    self._begin_with_snapshot(run, effect)
                case RoleChanged(role=Role.LEADER):
                    self._world.elected(self.server_id)
                case RoleChanged():
                    pass
                case ConfigurationChanged():
                    self._members_changed(run, effect)
                case Halt(reason):
                    raise ViolationError(f"server {self.server_id} halts: {reason}")
                case _:
                    self._answer_client(effect)

    def _members_changed(self, run: Run, changed: ConfigurationChanged) -> None:
        joining = {newcomer.server_id for newcomer in changed.newcomers}
        self._network.members_changed(self.server_id, changed.configuration.member_ids | joining)
        if run.node is not None:
            run.node.names.change(changed.configuration, changed.newcomers)

    def _answer_client(self, answer: Answer) -> None:
        match answer:
            case ProposalAccepted():
                self._checker.accepted(self.server_id, answer)
            case ProposalResolved():
                self._checker.resolved(self.server_id, answer)
                self._answer_receiver.resolved(self._current_run().state, answer)
            case ConfigurationResolved():
                self._checker.change_resolved(self.server_id, answer)
            case ReadReady():
                self._checker.record_answer(self.server_id, answer)
                self._answer_receiver.read_ready(self._current_run().state, answer)
            case ReadRefused():
                self._checker.record_answer(self.server_id, answer)
                self._answer_receiver.read_refused(answer)
            case TransferEnded():
                self._checker.record_answer(self.server_id, answer)
            case _:
                assert_never(answer)

    @property
    def _answer_receiver(self) -> AnswerReceiver:
        assert self.answer_receiver is not None
        return self.answer_receiver

    def _start_job(self, run: Run) -> None:
        job = run.executor.next_job()
        if job is not None:
            run.job = job
            self._world.after(self._disk_delay_ms(job), lambda: self._finish(run, job))

    def _finish(self, run: Run, job: Job, start: int = 0) -> None:
        """Complete a job of the disk: release its sends, pass the result to the core, and start the next job."""
        if self.run is not run:
            return
        if job is run.blocked:
            run.blocked = None
        else:
            run.job = None
        try:
            if isinstance(job, WriteJob | SnapshotWrite | PreparationJob) and self._is_full(job, start):
                if isinstance(job, WriteJob):
                    self._wait_for_space(run, job, start)
                    return
                self._keeper.give_up(job)
            self._perform(run, job, start)
        except CrashedError:
            self.crash()
        if self.run is run:
            self._start_job(run)

    def _perform(self, run: Run, job: Job, start: int) -> None:
        match job:
            case ReadJob():
                self._answer(run, job)
            case SnapshotWrite():
                self._operate(job.operations)
                run.executor.read(job)
                self._continue_snapshot(run, given_up=job.given_up)
            case PreparationJob():
                self._operate(job.operations)
                run.executor.prepared(job)
            case WriteJob():
                self._operate(job.operations[start:])
                self._written(run, job)
            case HardStateJob():
                self._operate(job.operations)
                self._checker.marks.see("term or vote written while a group waits for space")
                self._checker.hard_state_persisted(self.server_id, job.number)
                self._transmit_all(run.executor.hard_state_written(job))
            case _:
                assert_never(job)

    def _written(self, run: Run, job: WriteJob) -> None:
        if run.full:
            run.full = False
            self._checker.marks.see("write continued after a full disk")
            self.step(DiskSpace(full=False))
            if self.run is not run:
                return
        self._checker.persisted(self.server_id, job.number)
        released = run.executor.written(job)
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

    def _wait_for_space(self, run: Run, job: WriteJob, start: int) -> None:
        """Stop a job midway; it continues after its last sync when there is space."""
        run.blocked, run.done = job, self._keeper.break_off(job, start)
        resume_at = run.done
        self._world.after(_FULL_RETRY_MS, lambda: self._finish(run, job, resume_at))
        if not run.full:
            run.full = True
            self.full_disks += 1
            self.step(DiskSpace(full=True))
        if self.run is run:
            self._transmit_all(run.executor.blocked(job, resume_at))
            self._start_job(run)

    def _begin_with_snapshot(self, run: Run, effect: Restore | TakeSnapshot) -> None:
        match effect:
            case Restore():
                run.executor.queue_read(run.state.begin_restore(effect))
            case TakeSnapshot():
                run.state.begin_snapshot(effect)
                run.executor.write_aside(run.state.jobs.popleft())

    def _answer(self, run: Run, job: ReadJob) -> None:
        try:
            answer = job.answer(self._keeper.disk)
        except DamagedStorageError as error:
            self._stop_for_good(error)
            return
        run.executor.read(job)
        if isinstance(answer, SnapshotRead) and answer.request_id == OWN_READ:
            run.state.restore(answer)
        else:
            self.step(answer)

    def _continue_snapshot(self, run: Run, *, given_up: bool) -> None:
        if given_up:
            run.state.give_up_snapshot()
        elif run.state.jobs:
            run.executor.write_aside(run.state.jobs.popleft())
        else:
            kept_behind = self._random.choice((0, 0, 1, 5, 1_000))
            self.snapshots += 1
            self.step(run.state.end_snapshot(kept_behind))

    def _consider_snapshot(self, run: Run) -> None:
        """Take a snapshot after `snapshot_entries` applied entries.

        A healthy leader waits while it sends a snapshot to a follower.
        """
        state, limit = run.state, self._profile.snapshot_entries
        if (
            not limit
            or state.applied < state.covered + limit
            or state.restoring is not None
            or state.writer is not None
        ):
            return
        if self.healthy and any(follower.state is ProgressState.SNAPSHOT for follower in run.core.describe().followers):
            return
        state.covered = state.applied
        self._world.after(0, lambda: self._want_snapshot(run))

    def _want_snapshot(self, run: Run) -> None:
        if self.run is run and run.state.writer is None and run.state.restoring is None:
            self._step_in(run, SnapshotWanted(run.state.capture()))

    def _restored(self, snapshot: SnapshotDescription, chain: int) -> None:
        self.restores += 1
        self._checker.restored(self.server_id, snapshot, chain)

    def _current_run(self) -> Run:
        assert self.run is not None
        return self.run

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
        run = self.run
        if run is None:
            return
        due = max(self._world.now + 1, self._clock.shows_at(run.core.deadline))
        if run.timer <= self._world.now or due < run.timer:
            run.timer = due
            self._world.after(due - self._world.now, lambda: self._wake(run, due))

    def _wake(self, run: Run, due: int) -> None:
        if self.run is not run or run.timer != due:
            return
        run.timer = -1
        if self._paused_until_ms > self._world.now:
            run.timer = self._paused_until_ms + 1
            self._world.after(run.timer - self._world.now, lambda: self._wake(run, self._paused_until_ms + 1))
        elif self.clock_ms >= run.core.deadline:
            self.step(DeadlineReached())
        else:
            self._set_timer()
