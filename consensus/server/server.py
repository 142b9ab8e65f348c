"""One Raft server at work: the owner task around the core, the disk worker, and the feeding of the state machine.

    transports ──request──▶ ┐ urgent    ┌──▶ Raft.step ──▶ Executor.accept ──▶ links.send, answers, state machine
    deadline ─────────────▶ ├─────────▶ │        ▲                │
    clients ────propose───▶ ┘ proposals └────────┴── Persisted ◀──┴── disk worker (a thread, one job at a time)

Only whoever has the turn touches the core, the executor and the storage's planners, so none of them needs a lock; who
that is, `turns` tells. The disk worker performs jobs in a thread; while it syncs, turns go on, and whatever the core
emits meanwhile gathers into the next group. How proposals are joined to batches is told in `mailbox`, how writes are
joined in `executor`.

*Correlation.* How a request that a transport hands in finds its reply is told in `requests`. Replies to our own
requests come in by `deliver_reply`, with the correlation that the request had when it went out through `PeerLink.send`.

*Bounds.* Requests being answered, urgent events, proposals, the backlog of the disk and the state machine's queue are
each limited; what exceeds them is refused with `BUSY` or `ServerBusyError`, or dropped and counted where Raft repeats.

*Snapshots* are taken by `snapshotting`, without stopping this task; `disk_questions` are what the server reads back.

*Failure.* An error of the disk ends `run` with that error: what was not acknowledged may be lost, nothing else is. A
full disk is waited out: a leader resigns and nobody campaigns, what was not durable stays unacknowledged, the write is
tried again every `full_disk_retry_ms`, and a `DiskFull` notice tells when it begins and when it ends.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import assert_never

import trio

from consensus.core.effects import (
    Answer,
    Apply,
    ConfigurationChanged,
    ConfigurationResolved,
    Halt,
    ProposalResolved,
    ReadReady,
    ReadRefused,
    Restore,
    RoleChanged,
    Send,
    TakeSnapshot,
    TransferEnded,
)
from consensus.core.events import (
    AppendNotSent,
    DiskSpace,
    Event,
    PeerExtensions,
    Persisted,
    SnapshotChecked,
)
from consensus.core.features import Extensions
from consensus.core.messages import PullMessage, Reply, Request
from consensus.core.model import Configuration, Entry, Index, Server, ServerId, SnapshotDescription
from consensus.server.applying import Applying, StateMachine
from consensus.server.changes import Changes
from consensus.server.content_checks import ContentChecks
from consensus.server.description import ContentRejected, DiskFull, Notice, ServerDescription
from consensus.server.errors import HaltedError
from consensus.server.event_loop import EventLoop
from consensus.server.executor import (
    Executor,
    HardStateJob,
    Job,
    PreparationJob,
    ReadJob,
    Released,
    SnapshotWrite,
    StorageRead,
    StorageReadResult,
    WriteJob,
)
from consensus.server.interfaces import Core, PeerLink
from consensus.server.mailbox import Admission, Batches, JobBlocked, JobDone, Mailbox, Proposal
from consensus.server.options import ServerOptions
from consensus.server.proposing import Proposing
from consensus.server.questions import Questions
from consensus.server.requests import Requests
from consensus.server.snapshotting import Snapshotting
from consensus.server.storage_reads import DiskQuestions
from consensus.storage.directory import OutOfSpaceError
from consensus.storage.disk_worker import DiskWorker, ServerDisk
from consensus.storage.planner import Storage


class ConsensusServer:
    """One replica at work. `run` it once; everything else may be called from any task of the same trio run.

    The state machine takes committed entries in a task of its own, at its own pace. Of the log that a snapshot covers,
    entries before `keep_from()` are of no use to anybody any more. `observe` hears role changes and alarms; it must
    return at once. `checks` are asked before anything that another server sends is stored.
    """

    def __init__(
        self,
        core: Core,
        storage: Storage,
        disk: ServerDisk,
        links: PeerLink,
        state_machine: StateMachine,
        observe: Callable[[Notice], None],
        options: ServerOptions | None = None,
        keep_from: Callable[[], Index] = lambda: 0,
        checks: ContentChecks | None = None,
    ) -> None:
        options = options or ServerOptions()
        self._core = core
        self._storage = storage
        self._disk = disk
        self._links = links
        self._observe = observe
        self._options = options
        self._checks = checks or ContentChecks()
        self._executor = Executor(storage, options.group_bytes, self._checks)
        self._mailbox = Mailbox(
            options.max_urgent,
            options.batch_commands,
            options.batch_bytes,
            options.batch_hold_ms / 1000,
            options.batch_gather_ms / 1000,
        )
        self._admission = Admission(options.max_proposals, options.max_proposal_bytes)
        self.questions = Questions(self._mailbox, options.max_requests)
        self._batches = Batches()
        self._turns = EventLoop(
            core,
            self._executor,
            self._mailbox,
            self._batches,
            carry_out=self._carry_out,
            end_job=self._end_job,
            start_job=self._start_job,
        )
        self._changes = Changes(self._mailbox)
        self.applying = Applying(state_machine, options.apply_queue_bytes)
        self._disk_questions = DiskQuestions(self._ask)
        self._snapshots = Snapshotting(self, storage, self.applying, options, keep_from)
        if storage.snapshot is not None:
            self.applying.push_restore(Restore(storage.snapshot))
        self._worker = DiskWorker(
            disk, self._job_done, self._blocked, lambda: self._set_disk_full(full=False), options.full_disk_retry_ms
        )
        self._disk_full = False
        self._dropped: Counter[str] = Counter()
        self._requests = Requests(self._mailbox, options.max_requests, self._dropped, self._rejects)
        self._proposing = Proposing(
            self._mailbox, self._admission, lambda: self._role, self._is_overloaded, self._dropped
        )
        description = core.describe()
        self._own_id = description.server_id
        self._role = RoleChanged(description.role, description.term, description.leader)

    @property
    def role(self) -> RoleChanged:
        """Role, term and known leader, as last announced."""
        return self._role

    @property
    def commit_index(self) -> Index:
        """Entries up to here are known to be committed."""
        return self.applying.commit

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled, or until the disk, the core or the state machine fails (their error is raised)."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._worker.run)
                nursery.start_soon(self.applying.run, self._disk_questions.entries, self._disk_questions.state)
                nursery.start_soon(self._snapshots.run)
                self._keep_links(self._core.describe().configuration)
                task_status.started()
                await self._turns.run()
        finally:
            self._stop()
            with trio.CancelScope(shield=True):
                await self._note_clean_stop()

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        """Submit commands and wait until they are committed, refused, or of unknown fate.

        Raises `ValueError` for commands that can never be stored. If cancelled, their fate is unknown.
        """
        return await self._proposing.propose(commands)

    def submit(self, commands: tuple[bytes, ...], answered: Callable[[ProposalResolved], None]) -> Proposal:
        """Submit commands; `answered` is called once, at once or later, unless the proposal is abandoned before.

        Raises `ValueError` for commands that can never be stored.
        """
        return self._proposing.submit(commands, answered)

    async def change_configuration(
        self, voters: tuple[Server, ...], learners: tuple[Server, ...] = ()
    ) -> ConfigurationResolved:
        """Have this leader make these the cluster's voters and learners; waits until that is committed or refused.

        A server that would vote and does not yet must be running, with an empty log, and be reachable by the links.
        """
        return await self._changes.ask(Configuration(voters, (), learners))

    async def request(self, sender: ServerId, request: Request) -> Reply:
        """Answer a request of another server, with the correlation that it carries.

        Raises `ServerBusyError` or `ServerStoppedError`: the transport then closes the connection.
        """
        return await self._requests.request(sender, request)

    def ask(self, sender: ServerId, request: Request, answered: Callable[[Reply | None], None]) -> int:
        """Like `request`, by a callback, which gets None if the server stops; returns a number for `forget`."""
        return self._requests.ask(sender, request, answered)

    def forget(self, number: int) -> None:
        """Nobody waits for the answer to this request any more."""
        self._requests.forget(number)

    def deliver_reply(self, sender: ServerId, reply: Reply) -> None:
        """A peer answered a request that went out through `PeerLink.send`. Dropped and counted if too much waits."""
        self._requests.deliver(sender, reply)

    def append_not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """A link kept back an append, because the peer lacks the entries from `next_index` on."""
        if not self._mailbox.put(AppendNotSent(peer, correlation, next_index)):
            self._dropped["word of a link dropped for want of room"] += 1

    def peer_extensions(self, peer: ServerId, extensions: Extensions) -> None:
        """The handshake with `peer` settled this. Dropped and counted if too much waits."""
        if not self._mailbox.put(PeerExtensions(peer, extensions)):
            self._dropped["handshake dropped for want of room"] += 1

    async def read_barrier(self) -> Index:
        """Wait until this server's state machine has taken every write acknowledged before the call; returns its index.

        Raises `NotLeaderError` (ask the leader it names), `ServerBusyError` or `ServerStoppedError`. Which of several
        writes under way at the same time are seen is open, as for any read.
        """
        return await self.applying.wait_applied(await self.questions.read())

    async def transfer_leadership(self, target: ServerId | None = None) -> TransferEnded:
        """Hand leadership to `target`, or to the voter that is caught up best; the answer says what came of it.

        Ends within a few election timeouts. Raises `ServerBusyError` or `ServerStoppedError`.
        """
        return await self.questions.transfer(target)

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Committed entries from `first` on, at least one if there is one; raises `ServerBusyError`.

        Empty if nothing is committed at `first` yet (`wait_commit` waits for it).
        """
        last = min(self.applying.commit, first + limit_entries - 1)
        return await self._disk_questions.entries_unless_busy(first, last, limit_bytes, self._options.max_reads)

    async def read_stored(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Entries of this server's own log, committed or not; raises `ServerBusyError`.

        For a server that is alone: what it stored may be replaced as soon as there is a leader.
        """
        last = min(self._core.describe().last.index, first + limit_entries - 1)
        return await self._disk_questions.entries_unless_busy(first, last, limit_bytes, self._options.max_reads)

    async def take_snapshot(self) -> SnapshotDescription | None:
        """Write the state machine down now and shorten the log; None if there is nothing new, or no space for it."""
        return await self._snapshots.take()

    async def wait_commit(self, index: Index) -> Index:
        """Wait until the entry at `index` is committed; returns the commit index."""
        return await self.applying.wait_commit(index)

    async def wait_applied(self, index: Index) -> Index:
        """Wait until the state machine has taken the entry at `index`; returns the applied index."""
        return await self.applying.wait_applied(index)

    def describe(self) -> ServerDescription:
        """This server as plain data."""
        return ServerDescription(
            raft=self._core.describe(),
            applied=self.applying.applied,
            durable=self._storage.durable,
            segments=self._storage.segment_count,
            backlog_bytes=self._executor.backlog_bytes,
            disk_full=self._disk_full,
            proposals_in_flight=self._admission.proposals,
            requests_in_flight=len(self._requests),
            groups=self._executor.groups,
            persists=self._executor.persists,
            entries_reread=self.applying.reread,
            snapshots_taken=self._snapshots.taken,
            snapshots_given_up=self._snapshots.given_up,
            restores=self.applying.restores,
            dropped=tuple(sorted(self._dropped.items())),
        )

    def _rejects(self, sender: ServerId, entries: tuple[Entry, ...]) -> bool:
        objection = self._checks.entries(entries)
        if objection is not None:
            self._observe(ContentRejected(sender, objection))
        return objection is not None

    def _is_overloaded(self) -> bool:
        return self._disk_full or self._executor.backlog_bytes > self._options.max_backlog_bytes

    def _end_job(self, job: Job, answer: StorageReadResult | None) -> Event | None:
        match job:
            case WriteJob(number=number):
                self._carry_out(self._executor.written(job))
                return Persisted(number)
            case HardStateJob():
                self._carry_out(self._executor.hard_state_written(job))
                return None
            case ReadJob(request=request):
                self._executor.read(job)
                if isinstance(answer, SnapshotChecked) and answer.objection is not None:
                    self._observe(ContentRejected(self._role.leader, answer.objection))
                asked_here = answer is None or self._disk_questions.answered(request.request_id, answer)
                return None if asked_here else answer
            case PreparationJob():
                self._executor.prepared(job)
                return None
            case SnapshotWrite():
                self._executor.read(job)
                self._snapshots.written(job)
                return None
            case _:
                assert_never(job)

    def step(self, event: Event) -> None:
        """Step the core and carry out what it wants, for a part of this server that is not in a turn.

        Raises `ServerStoppedError` if that goes wrong; the error itself is raised by `run`.
        """
        self._turns.step(event)

    def _carry_out(self, effects: Sequence[Released]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case Apply():
                    self.applying.push(effect)
                case Restore():
                    self.applying.push_restore(effect)
                case TakeSnapshot():
                    self._snapshots.granted(effect)
                case ProposalResolved() | ConfigurationResolved() | ReadReady() | ReadRefused() | TransferEnded():
                    self._answer(effect)
                case RoleChanged():
                    self._role = effect
                    self._observe(effect)
                case ConfigurationChanged(configuration):
                    self._keep_links(configuration)
                    self._observe(effect)
                case Halt(reason):
                    raise HaltedError(reason)
                case _:
                    assert_never(effect)

    def _keep_links(self, configuration: Configuration) -> None:
        self._links.keep(configuration.member_ids - {self._own_id})

    def _answer(self, effect: Answer) -> None:
        match effect:
            case ProposalResolved():
                self._batches.resolve(effect)
                self._mailbox.answered()
            case ConfigurationResolved():
                self._changes.resolve(effect)
            case ReadReady() | ReadRefused() | TransferEnded():
                self.questions.answer(effect)
            case _:
                assert_never(effect)

    def _send(self, send: Send) -> None:
        message = send.message
        if isinstance(message, PullMessage):
            raise TypeError(f"a {type(message).__name__} cannot leave by links that push")
        if isinstance(message, Request):
            self._links.send(send.recipient, message)
        else:
            self._requests.answer(message)

    def _start_job(self) -> None:
        job = self._executor.next_job()
        if job is not None:
            self._worker.submit(job)

    def _job_done(self, job: Job, answer: StorageReadResult | None) -> None:
        self._mailbox.put(JobDone(job, answer))

    def _blocked(self, job: WriteJob, resume_at: int) -> None:
        self._set_disk_full(full=True)
        self._mailbox.put(JobBlocked(job, resume_at))

    def _set_disk_full(self, *, full: bool) -> None:
        if full != self._disk_full:
            self._disk_full = full
            self._mailbox.put(DiskSpace(full))
            self._observe(DiskFull(full))

    def write_aside(self, job: SnapshotWrite) -> None:
        """Have the disk do something that no Persist waits for; only for this server's own parts."""
        self._executor.write_aside(job)
        self._start_job()

    def _ask(self, question: StorageRead) -> None:
        self._executor.accept([question])
        self._start_job()

    def _stop(self) -> None:
        self._proposing.end()
        self._mailbox.end()
        self._batches.end()
        self._changes.end()
        self._requests.end()
        self._disk_questions.end()
        self._snapshots.end()
        self.questions.end()

    async def _note_clean_stop(self) -> None:
        """After a clean stop any damage to the log is told from a torn tail."""
        for _ in range(self._mailbox.urgent_count):
            event = self._mailbox.take_urgent()
            if isinstance(event, JobDone) and isinstance(event.job, WriteJob):
                self._executor.written(event.job)
        operations = self._storage.plan_close()
        if operations:
            with suppress(OutOfSpaceError):
                await self._disk.perform_all(operations)
