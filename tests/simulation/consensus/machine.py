"""One simulated server: production core, executor and storage over a disk in memory, and the loop between them.

A machine lives, crashes between any two effects or any two operations of its disk, and lives again with what the disk
kept: synced bytes, and any part of the others, torn or not. The clock of a machine runs ahead of the world's by jumps;
during a pause nothing happens on it, and what arrived meanwhile is taken up afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, assert_never

from consensus.core.effects import (
    Answer,
    Apply,
    ChangeResolved,
    ConfigurationChanged,
    Halt,
    ReadEntries,
    ReadReady,
    ReadRefused,
    Resolve,
    Restore,
    Role,
    RoleChanged,
    Send,
    TakeSnapshot,
    TransferEnded,
)
from consensus.core.events import DeadlineReached, Event, PeerExtensions, Persisted, SnapshotRead, SnapshotWanted
from consensus.core.extensions import Extensions
from consensus.core.messages import AppendReply, SnapshotReply, VoteReply
from consensus.core.position import Configuration, Entry, ServerId, SnapshotDescription
from consensus.core.progress import Pace
from consensus.core.raft import Raft
from consensus.node.disk import DiskOperation
from consensus.node.executor import Executor, Job, ReadJob, Released, SideJob, WriteJob
from consensus.node.storage import Owner, Recovery, StorageTuning, read_extents, recover
from tests.node.crash_disk import CrashDisk
from tests.simulation.consensus.checker import Checker, ViolationError
from tests.simulation.consensus.network import Network
from tests.simulation.consensus.profile import Profile
from tests.simulation.consensus.state import OWN_READ, StateMachine


class Schedule(Protocol):
    """The world's list of things to come."""

    @property
    def now(self) -> int:
        """Simulated time in milliseconds."""

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay_ms`."""

    def elected(self, server: ServerId) -> None:
        """A server became leader."""


class CrashedError(Exception):
    """The machine died between two effects."""


@dataclass(slots=True)
class Life:
    """Everything volatile of one life."""

    core: Raft
    executor: Executor
    state: StateMachine
    job: Job | None = None
    timer: int = -1


class Machine:
    """A server that may be down."""

    def __init__(
        self,
        server_id: ServerId,
        configuration: Configuration,
        profile: Profile,
        random: Random,
        world: Schedule,
        network: Network,
        checker: Checker,
        make_core: Callable[..., Raft],
        trace: Callable[[str], None],
    ) -> None:
        self.server_id = server_id
        self._configuration = configuration
        self._profile = profile
        self._random = random
        self._world = world
        self._network = network
        self._checker = checker
        self._make_core = make_core
        self._trace = trace
        self._disk = CrashDisk()
        self._generation = 0
        self._clock_ahead_ms = 0
        self._paused_until_ms = 0
        self.life: Life | None = None
        self.crashes = 0
        self.snapshots = 0
        self.restores = 0
        self.healthy = False
        self.understands_pre_vote = random.random() < profile.pre_vote

    @property
    def clock_ms(self) -> int:
        """This machine's own monotonic clock."""
        return self._world.now + self._clock_ahead_ms

    def start(self, others: list["Machine"]) -> None:
        """Begin a life with what the disk holds; a crash in the midst of recovery ends it at once."""
        recovery = self._recover()
        if recovery is None:
            return
        first, last = recovery.storage.start.index + 1, recovery.storage.last.index
        everything = recovery.storage.extents(ReadEntries(0, first, last, 2**62))
        entries = list(read_extents(self._disk, recovery.storage.binding, everything))
        self._checker.recovered(self.server_id, recovery.ballot, first, entries)
        self._trace(f"start {self.server_id} {recovery.ballot} {last}")
        core = self._make_core(
            self.server_id,
            self._configuration,
            recovery.ballot,
            recovery.log,
            self._profile,
            Random(self._random.getrandbits(64)),
            self.clock_ms,
        )
        state = StateMachine(
            lambda effect: self._checker.applied(self.server_id, effect),
            self._restored,
        )
        self.life = Life(core, Executor(recovery.storage, group_bytes=self._profile.group_bytes), state)
        if recovery.log.snapshot is not None:
            self._carry_out([Restore(recovery.log.snapshot)])
        for other in others:
            both = self.understands_pre_vote and other.understands_pre_vote
            self.step(
                PeerExtensions(other.server_id, Extensions(both, transfer=both, configurations=self._profile.joint))
            )
        self._set_timer()

    def crash(self) -> None:
        """Lose everything volatile; an unfinished write stops somewhere, and what is not synced may be lost or torn."""
        life = self.life
        if life is None:
            return
        self._trace(f"crash {self.server_id}")
        if isinstance(life.job, WriteJob):
            done = self._random.randint(0, len(life.job.operations))
            self._disk.run(life.job.operations[:done])
        self._power_off()
        self._checker.crashed(self.server_id)

    def _recover(self) -> Recovery | None:
        self._generation += 1
        owner = Owner(self.server_id.to_bytes(8, "big"), self._generation, place=1)
        tail = self._profile.tuning
        tuning = StorageTuning(64 * 1024, tail.tail_entries, tail.tail_bytes)
        recovery = recover(self._disk, owner, self.server_id.to_bytes(16, "big"), tuning)
        try:
            self._operate(recovery.operations)
        except CrashedError:
            self._power_off()
            return None
        return recovery

    def _power_off(self) -> None:
        self.life = None
        self.crashes += 1
        self._disk = self._disk.crash(self._random)

    def _operate(self, operations: Sequence[DiskOperation]) -> None:
        for operation in operations:
            if self._unlucky():
                raise CrashedError
            self._disk.perform(operation)

    def pause(self, duration_ms: int) -> None:
        """Do nothing for a while."""
        self._paused_until_ms = max(self._paused_until_ms, self._world.now + duration_ms)

    def jump(self, ahead_ms: int) -> None:
        """The clock jumps forward (a suspended machine wakes up)."""
        self._clock_ahead_ms += ahead_ms
        self._set_timer()

    def step(self, event: Event) -> None:
        """Give the core an event, now or when the pause is over."""
        life = self.life
        if life is None:
            return
        if self._paused_until_ms > self._world.now:
            self._world.after(self._paused_until_ms - self._world.now, lambda: self._step_in(life, event))
            return
        self._step_in(life, event)

    def _step_in(self, life: Life, event: Event) -> None:
        if self.life is not life:
            return
        effects = life.core.step(event, self.clock_ms)
        self._trace(f"{self._world.now} {self.server_id} {event} -> {effects}")
        self._checker.stepped(self.server_id, event, effects)
        survived = next((place for place in range(len(effects)) if self._unlucky()), len(effects))
        self._carry_out(life.executor.accept(effects[:survived]))
        if survived < len(effects):
            self.crash()
            return
        self._consider_snapshot(life)
        self._start_job(life)
        self._set_timer()

    def _unlucky(self) -> bool:
        return not self.healthy and self._random.random() < self._profile.crash_between_effects

    def _carry_out(self, released: Sequence[Released]) -> None:
        for effect in released:
            match effect:
                case Send():
                    self._transmit(effect)
                case Apply():
                    self._living().state.apply(effect)
                case Restore() | TakeSnapshot():
                    self._begin_with_snapshot(self._living(), effect)
                case RoleChanged(role=Role.LEADER):
                    self._world.elected(self.server_id)
                case Resolve() | ChangeResolved() | ReadReady() | ReadRefused() | TransferEnded():
                    self._tell_client(effect)
                case RoleChanged() | ConfigurationChanged():
                    pass
                case Halt(reason):
                    raise ViolationError(f"server {self.server_id} halts: {reason}")
                case _:
                    assert_never(effect)

    def _tell_client(self, answer: Answer) -> None:
        match answer:
            case Resolve():
                self._checker.resolved(self.server_id, answer)
            case ChangeResolved():
                self._checker.change_resolved(self.server_id, answer)
            case _:
                self._checker.question_answered(self.server_id, answer)

    def _start_job(self, life: Life) -> None:
        job = life.executor.next_job()
        if job is not None:
            life.job = job
            self._world.after(self._disk_delay_ms(), lambda: self._finish(life, job))

    def _finish(self, life: Life, job: Job) -> None:
        """The disk has done its job: let go what waited, tell the core, go on with the next."""
        if self.life is not life:
            return
        life.job = None
        match job:
            case ReadJob():
                self._answer(life, job)
            case SideJob():
                try:
                    self._operate(job.operations)
                except CrashedError:
                    self.crash()
                    return
                life.executor.read(job)
                self._go_on_with_snapshot(life)
            case WriteJob(number=number):
                try:
                    self._operate(job.operations)
                except CrashedError:
                    self.crash()
                    return
                self._checker.persisted(self.server_id, number)
                released = life.executor.written(job)
                survived = next((place for place in range(len(released)) if self._unlucky()), len(released))
                self._carry_out(released[:survived])
                if survived < len(released):
                    self.crash()
                    return
                self.step(Persisted(number))
            case _:
                assert_never(job)
        if self.life is life:
            self._start_job(life)

    def _begin_with_snapshot(self, life: Life, effect: Restore | TakeSnapshot) -> None:
        match effect:
            case Restore():
                life.executor.accept([life.state.begin_restore(effect)])
            case TakeSnapshot():
                life.state.begin_snapshot(effect)
                life.executor.write_aside(life.state.jobs.popleft())

    def _answer(self, life: Life, job: ReadJob) -> None:
        answer = job.answer(self._disk)
        life.executor.read(job)
        if isinstance(answer, SnapshotRead) and answer.request_id == OWN_READ:
            life.state.restore(answer)
        else:
            self.step(answer)

    def _go_on_with_snapshot(self, life: Life) -> None:
        if life.state.jobs:
            life.executor.write_aside(life.state.jobs.popleft())
        else:
            kept_behind = self._random.choice((0, 0, 1, 5, 1_000))
            self.snapshots += 1
            self.step(life.state.end_snapshot(kept_behind))

    def _consider_snapshot(self, life: Life) -> None:
        """Have a snapshot taken when enough has been applied since the last; when healthy not while one is sent."""
        state, limit = life.state, self._profile.snapshot_entries
        if self.healthy and any(follower.pace is Pace.SNAPSHOT for follower in life.core.describe().followers):
            return
        if limit and state.restoring is None and state.writer is None and len(state.entries) >= state.covered + limit:
            state.covered = len(state.entries)
            self._world.after(0, lambda: self._want_snapshot(life))

    def _want_snapshot(self, life: Life) -> None:
        if life.state.writer is None and life.state.restoring is None:
            self._step_in(life, SnapshotWanted(len(life.state.entries)))

    def _restored(self, snapshot: SnapshotDescription, entries: list[Entry]) -> None:
        self.restores += 1
        self._checker.restored(self.server_id, snapshot, entries)

    def _living(self) -> Life:
        assert self.life is not None
        return self.life

    def _transmit(self, effect: Send) -> None:
        if isinstance(effect.message, VoteReply | AppendReply | SnapshotReply):
            self._checker.reply_sent(self.server_id, effect.recipient, effect.message)
        else:
            self._checker.sent(self.server_id, effect.message)
        self._network.send(self.server_id, effect.recipient, effect.message)

    def _disk_delay_ms(self) -> int:
        if self.healthy:
            return 1
        if self._random.random() < self._profile.slow_disk:
            return self._random.randrange(self._profile.slow_disk_ms)
        return self._random.randrange(self._profile.disk_ms + 1)

    def _set_timer(self) -> None:
        """Have the world wake the core at its deadline, unless it will already."""
        life = self.life
        if life is None:
            return
        due = max(self._world.now + 1, life.core.deadline - self._clock_ahead_ms)
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
