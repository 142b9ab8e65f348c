"""One Raft server: the task that owns the core, the disk worker, and the task that feeds the state machine.

    transport ──message──▶ ┐ urgent    ┌──▶ Raft.step ──▶ effects ──▶ transport, calls, state machine
    deadline ────────────▶ ├─────────▶ │        ▲            └──▶ executor ──▶ disk worker (a thread)
    clients ────propose──▶ ┘ proposals └────────┴── Persisted ◀──────────────────┘

Tasks take turns (`event_loop`). Only the task with the turn uses the core, the executor and the storage's planners, so
none of them needs a lock. The disk worker performs one job at a time in a thread; turns continue during a sync, and new
Persists join the next group (`executor`). Each effect is dispatched once, in `_carry_out`. The server contains no code
for a single protocol (`interfaces`, `Features`).

*Bounds.* Requests, urgent events, proposals, the backlog of the disk and the state machine's queue are limited. Any
excess is refused with `BUSY` or `ServerBusyError`, or dropped and counted if Raft repeats it.

*Failure.* An error of the disk ends `run` with that error; only unacknowledged entries may be lost. While the disk is
full, this server neither leads nor campaigns, and it repeats the write every `full_disk_retry_ms`. A `DiskFull` notice
reports the beginning and the end of this condition.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeGuard, assert_never, get_args

import trio

from consensus.core.effects import (
    Apply,
    ChangeOutcome,
    ChangeRefusal,
    CheckSnapshot,
    ConfigurationChanged,
    ConfigurationResolved,
    Effect,
    Halt,
    Outcome,
    Persist,
    ProposalAccepted,
    ProposalResolved,
    ReadEntries,
    ReadReady,
    ReadRefusal,
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
    AnswerArriving,
    AppendNotSent,
    ChangeConfiguration,
    DiskSpace,
    Event,
    PeerEnded,
    PeerExtensions,
    Persisted,
    ReadRequested,
    Received,
    Rejected,
    SnapshotChecked,
    TransferLeadership,
)
from consensus.core.features import Extensions, Strategy
from consensus.core.messages import AppendEntries, FetchReply, Message, Reply, Request
from consensus.core.model import Configuration, Entry, Index, LogId, Server, ServerId, SnapshotDescription
from consensus.core.raft import Raft
from consensus.core.status import SoftState
from consensus.server.applying import Applying
from consensus.server.batching import Batches, Proposal, ProposalLimit
from consensus.server.callbacks import log_failure, run_callback
from consensus.server.errors import HaltedError, NotLeaderError, ServerBusyError, ServerStoppedError
from consensus.server.event_loop import EventLoop, now_ms
from consensus.server.executor import Executor
from consensus.server.interfaces import next_call
from consensus.server.mailbox import JobBlocked, JobDone, Mailbox, Urgent
from consensus.server.parts import ServerParts
from consensus.server.pending_calls import CallbackResult, PendingCalls
from consensus.server.snapshotting import Snapshotting
from consensus.server.status import ContentRejected, DiskFull, Notice, ServerDescription, ShellDrop
from consensus.server.storage_reads import SnapshotChunk, StorageReads
from consensus.storage.directory import OutOfSpaceError
from consensus.storage.disk import DiskHangsError
from consensus.storage.disk_worker import DiskWorker, ServerDisk
from consensus.storage.jobs import (
    HardStateJob,
    Job,
    PreparationJob,
    ReadJob,
    SnapshotWrite,
    StorageRead,
    StorageReadResult,
    WriteJob,
)
from consensus.storage.planner import Storage
from consensus.storage.snapshot_form import PLAIN

CLEAN_STOP_SECONDS = 1.0
"""Time limit for writing the mark of a clean stop.

Without the mark, the next start treats damage to the last group as a torn write.
"""

_REQUESTS = frozenset(get_args(Request))


def _is_request(message: Message) -> TypeGuard[Request]:
    """Return True for a request. An `isinstance` of the union would take four times as long, for each message."""
    return type(message) in _REQUESTS


class ConsensusServer:
    """One running replica. Call `run` once; call the other methods from any task of the same trio run.

    The state machine takes committed entries in a separate task, at its own pace. `opening` makes `core`, `storage` and
    `disk` from the same parts.
    """

    def __init__(self, core: Raft, storage: Storage, disk: ServerDisk, parts: ServerParts) -> None:
        if core.features.replication is Strategy.FETCH and storage.snapshot_form is PLAIN:
            raise ValueError(
                f"the followers of {core.features.name} fetch snapshots, and their chunks do not contain the"
                " configuration: choose a snapshot_form with the configuration, such as IMAGE"
            )
        options = parts.server_options
        self._core = core
        self._storage = storage
        self._disk = disk
        self._transport = parts.transport
        self._observer = parts.observe
        self._on_effects = parts.on_effects
        self._options = options
        self._checks = parts.checks
        self._calls = PendingCalls(options)
        self._executor = Executor(storage, options.group_bytes, self._checks.snapshot)
        self._proposal_limit = ProposalLimit(options.max_proposals, options.max_proposal_bytes)
        self._batches = Batches(self._calls, options)
        self._mailbox = Mailbox(options.max_urgent, self._batches)
        self._event_loop = EventLoop(
            core,
            self._mailbox,
            self._batches,
            carry_out=self._carry_out,
            end_job=self._end_job,
            start_job=self._start_job,
        )
        self.applying = Applying(parts.state_machine, options.apply_queue_bytes, parts.snapshot_index)
        self._storage_reads = StorageReads(self._calls, self._read_storage, storage.snapshot_form)
        self._snapshots = Snapshotting(
            storage, self.applying, options, parts.keep_from, self._event_loop.step, self._write_aside, core.describe
        )
        if storage.snapshot is not None:
            self.applying.push_restore(Restore(storage.snapshot))
        self._worker = DiskWorker(
            disk, self._job_done, self._job_blocked, lambda: self._set_disk_full(full=False), options.full_disk_retry_ms
        )
        self._disk_full = self._disk_hangs = False
        self._job_began_ms: int | None = None
        self._dropped: Counter[ShellDrop] = Counter()
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

    @property
    def applied_index(self) -> Index:
        """Entries up to here are in the state machine."""
        return self.applying.applied

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until canceled, or until the disk, the core or the state machine fails; then raise the error."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._worker.run)
                nursery.start_soon(self.applying.run, self._storage_reads.entries, self._storage_reads.state)
                nursery.start_soon(self._snapshots.run)
                await nursery.start(self._transport.run, self)
                self._connect(self._core.describe().configuration)
                task_status.started()
                await self._event_loop.run()
        except* DiskHangsError:
            self._disk_hangs = True
            raise
        finally:
            self._stop()
            if not self._disk_hangs:
                await self._note_clean_stop()

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        """Submit commands and wait until they are committed, refused, or of unknown fate.

        Raises `ValueError` for commands that can never be stored. A cancellation leaves their fate unknown.
        """
        result: CallbackResult[ProposalResolved] = CallbackResult()
        proposal = self.submit(commands, result.give)
        try:
            answer = await result.wait()
        except trio.Cancelled:
            proposal.abandon()
            raise
        return answer or ProposalResolved(proposal_id=0, outcome=Outcome.UNKNOWN)

    def submit(
        self,
        commands: tuple[bytes, ...],
        on_reply: Callable[[ProposalResolved], None],
        accepted: Callable[[LogId], None] | None = None,
        *,
        control: bool = False,
    ) -> Proposal:
        """Submit commands; `on_reply` is called once, immediately or later, unless the proposal is abandoned before.

        `accepted` is called earlier, when the leader has appended the commands and they are not committed yet. With
        `control` the commands are control records, which only some protocols have. A proposal refused as `BUSY` or
        `NOT_LEADER` never has an effect, so it may be submitted again elsewhere. Raises `ValueError` for commands that
        can never be stored.
        """
        if not commands:
            raise ValueError("a proposal needs at least one command")
        largest = max(map(len, commands))
        features = self._core.features
        if largest > features.max_command_bytes:
            raise ValueError(f"a command has {largest} bytes; at most {features.max_command_bytes} can be stored")
        # Checked here, because within a turn the error would end this server.
        features.kind_of(commands, control=control)
        proposal = Proposal(commands, self._proposal_limit, on_reply, accepted, control=control)
        refusal = self._refusal(proposal.size_bytes)
        if refusal is not None:
            on_reply(refusal)
        else:
            proposal.admit()
            self._mailbox.propose(proposal)
        return proposal

    async def change_configuration(
        self, voters: tuple[Server, ...], learners: tuple[Server, ...] = (), head: bytes = b""
    ) -> ConfigurationResolved:
        """Change the cluster's voters and learners through this leader; wait until the change is committed or refused.

        `head`: bytes of the protocol in the entry of the first configuration (`entry_data`). A server that joins must
        run, be reachable, and begin with an empty log. If the caller is canceled, the change continues.
        """
        target = Configuration(voters, (), learners)
        if self._calls.ended:
            return ConfigurationResolved(change_id=0, outcome=ChangeOutcome.REFUSED, refusal=ChangeRefusal.NOT_LEADER)
        try:
            return await self._calls.ask(
                self._calls.changes, lambda number: self._mailbox.put(ChangeConfiguration(number, target, head))
            )
        except ServerBusyError:
            return ConfigurationResolved(change_id=0, outcome=ChangeOutcome.REFUSED, refusal=ChangeRefusal.BUSY)
        except ServerStoppedError:
            return ConfigurationResolved(change_id=0, outcome=ChangeOutcome.UNKNOWN)

    def ask(self, sender: ServerId, request: Request, on_reply: Callable[[Reply | None], None]) -> None:
        """Process a peer's request. See `Receiver.ask`."""
        try:
            # Registered first: the reply may come immediately.
            self._calls.begin(self._calls.requests, request.correlation, on_reply)
            event: Received | Rejected = Received(sender, request)
            if isinstance(request, AppendEntries) and request.entries and self._rejects(sender, request.entries):
                event = Rejected(sender, request)
            self._put_call(request.correlation, event)
        except ServerBusyError:
            self._dropped[ShellDrop.REQUEST_BUSY] += 1
            raise

    def forget(self, number: int) -> None:
        """Stop waiting for the reply to the call with this number."""
        self._calls.forget(number)

    def deliver_reply(self, sender: ServerId, reply: Reply) -> None:
        """Process a peer's reply to a request of this server. Drop and count it if the queue is full."""
        if isinstance(reply, FetchReply) and reply.entries and self._rejects(sender, reply.entries):
            self._dropped[ShellDrop.FETCH_REPLY_REJECTED_BY_STATE_MACHINE] += 1
        elif not self._mailbox.put(Received(sender, reply)):
            self._dropped[ShellDrop.REPLY_QUEUE_FULL] += 1

    def append_not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """Process the report that an append was not sent, because the peer lacks the entries from `next_index` on."""
        if not self._mailbox.put(AppendNotSent(peer, correlation, next_index)):
            self._dropped[ShellDrop.APPEND_NOT_SENT_QUEUE_FULL] += 1

    def answer_arriving(self, peer: ServerId, correlation: int) -> None:
        """Record that bytes of an incomplete reply to a request of this server have arrived."""
        if not self._mailbox.put(AnswerArriving(peer, correlation)):
            self._dropped[ShellDrop.ANSWER_ARRIVING_QUEUE_FULL] += 1

    def peer_connected(self, peer: ServerId, extensions: Extensions) -> None:
        """Record a new connection to `peer`. Drop and count it if the queue is full."""
        if not self._mailbox.put(PeerExtensions(peer, extensions)):
            self._dropped[ShellDrop.HANDSHAKE_QUEUE_FULL] += 1

    def peer_ended(self, peer: ServerId) -> None:
        """Record that no process listens at the peer's address any more. Drop and count it if the queue is full."""
        if not self._mailbox.put(PeerEnded(peer)):
            self._dropped[ShellDrop.PEER_ENDED_QUEUE_FULL] += 1

    async def read_barrier(self) -> Index:
        """Wait until this server's state machine has taken all writes acknowledged before the call; return its index.

        Raises `NotLeaderError` (try the leader it names), `ServerBusyError` or `ServerStoppedError`. Concurrent writes
        may or may not be visible, as for any read.
        """
        answer = await self._calls.ask(self._calls.reads, lambda number: self._mailbox.put(ReadRequested(number)))
        match answer:
            case ReadReady(_, index):
                return await self.applying.wait_applied(index)
            case ReadRefused(_, ReadRefusal.NOT_LEADER, leader):
                raise NotLeaderError(leader)
            case ReadRefused():
                raise ServerBusyError("too many reads wait for a majority")
            case _:
                assert_never(answer)

    def request_read(self, on_reply: Callable[[ReadReady | ReadRefused | None], None]) -> int:
        """Request the index for a linearizable read; `on_reply(None)` reports that the server stops.

        Returns a number for `forget`. Raises `ServerBusyError` or `ServerStoppedError`.
        """
        number = next_call()
        self._calls.begin(self._calls.reads, number, on_reply)
        self._put_call(number, ReadRequested(number))
        return number

    async def transfer_leadership(self, target: ServerId | None = None) -> TransferEnded:
        """Hand leadership to `target`, or to the voter with the longest log; return the outcome.

        Ends within a few election timeouts. Raises `ServerBusyError` or `ServerStoppedError`.
        """
        return await self._calls.ask(
            self._calls.transfers, lambda number: self._mailbox.put(TransferLeadership(number, target))
        )

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return committed entries from `first` on, at least one if there is one; raises `ServerBusyError`.

        The result is empty if the entry at `first` is compacted, or not committed yet (`wait_commit` waits for it).
        """
        last = min(self.applying.commit, first + limit_entries - 1)
        return await self._storage_reads.log(first, last, limit_bytes)

    async def read_stored(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return entries of this server's own log, committed or not; raises `ServerBusyError`.

        Use it for a server without a group: in a group, a leader may later replace uncommitted entries.
        """
        last = min(self._core.describe().last.index, first + limit_entries - 1)
        return await self._storage_reads.log(first, last, limit_bytes)

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        """Return bytes of the stored snapshot from `offset` on, up to its end.

        Return None without a snapshot, or if a newer one replaced it during the read. Each chunk contains its
        snapshot's position. Raises `ServerBusyError` or `ServerStoppedError`.
        """
        snapshot = self._storage.snapshot
        if snapshot is None:
            return None
        start = min(offset, snapshot.size_bytes)
        data = await self._storage_reads.chunk(snapshot, start, limit_bytes)
        return None if data is None else SnapshotChunk(snapshot.last, snapshot.size_bytes, start, data)

    async def take_snapshot(self) -> SnapshotDescription | None:
        """Store a snapshot of the state machine now and shorten the log; return None if no snapshot was stored."""
        return await self._snapshots.take()

    async def wait_commit(self, index: Index) -> Index:
        """Wait until the entry at `index` is committed; returns the commit index.

        Raises `ServerStoppedError` if this server stops before.
        """
        return await self.applying.wait_commit(index)

    async def wait_applied(self, index: Index) -> Index:
        """Wait until the state machine has taken the entry at `index`; returns the applied index.

        Raises `ServerStoppedError` if this server stops before.
        """
        return await self.applying.wait_applied(index)

    def soft_state(self) -> SoftState:
        """Return a summary of the core, which a protocol reads for every message."""
        return self._core.soft_state()

    def divergence(self, other: LogId) -> LogId:
        """Return the last position, up to `other`, that this log may share with a log that ends with `other`.

        No entry is read: the core keeps the first index of each term.
        """
        return self._core.divergence(other)

    @property
    def disk_pending_ms(self) -> int:
        """Age of the present job of the disk; 0 without one, and while the disk is full."""
        return 0 if self._job_began_ms is None or self._disk_full else now_ms() - self._job_began_ms

    def describe(self) -> ServerDescription:
        """Return this server as plain data."""
        return ServerDescription(
            raft=self._core.describe(now_ms()),
            applied=self.applying.applied,
            durable=self._storage.durable,
            hard_state_durable=self._executor.is_hard_state_durable,
            segments=self._storage.segment_count,
            backlog_bytes=self._executor.backlog_bytes,
            disk_full=self._disk_full,
            proposals_in_flight=self._proposal_limit.proposals,
            requests_in_flight=self._calls.requests.waiting,
            groups=self._executor.groups,
            persists=self._executor.persists,
            entries_reread=self.applying.reread,
            snapshots_taken=self._snapshots.taken,
            snapshots_given_up=self._snapshots.given_up,
            restores=self.applying.restores,
            log_bytes=self._storage.log_bytes,
            dropped=tuple(sorted(self._dropped.items())),
        )

    def _write_aside(self, job: SnapshotWrite) -> None:
        """Queue a disk job that no Persist waits for."""
        self._executor.write_aside(job)
        self._start_job()

    def _carry_out(self, effects: Sequence[Effect]) -> None:  # noqa: C901, PLR0912 - a line for each kind of effect
        """Dispatch the core's effects, the frequent ones first."""
        if self._on_effects is not None:
            self._on_effects(effects)
        for effect in effects:
            match effect:
                case Send():
                    if self._executor.may_send(effect):
                        self._send(effect)
                case Persist():
                    self._executor.persist(effect)
                case Apply():
                    self.applying.push(effect)
                case ProposalAccepted():
                    self._batches.accepted(effect)
                case ProposalResolved():
                    self._calls.answer(effect.proposal_id, effect)
                case ReadReady() | ReadRefused():
                    self._calls.answer(effect.read_id, effect)
                case ConfigurationResolved():
                    self._calls.answer(effect.change_id, effect)
                case TransferEnded():
                    self._calls.answer(effect.transfer_id, effect)
                case ReadEntries() | ReadSnapshot() | CheckSnapshot():
                    self._executor.queue_read(effect)
                case TakeSnapshot():
                    self._snapshots.granted(effect)
                case Restore():
                    self.applying.push_restore(effect)
                case RoleChanged():
                    self._role = effect
                    self._notify(effect)
                case ConfigurationChanged(configuration):
                    self._connect(configuration)
                    self._notify(effect)
                case Halt(reason):
                    raise HaltedError(reason)
                case _:
                    assert_never(effect)

    def _send(self, send: Send) -> None:
        message = send.message
        if _is_request(message):
            try:
                self._transport.send(send.recipient, message)
            except Exception as error:  # noqa: BLE001 - logged
                log_failure(self._transport.send, error)
        else:
            self._calls.answer(message.correlation, message)

    def _connect(self, configuration: Configuration) -> None:
        run_callback(self._transport.connect, configuration.member_ids - {self._own_id})

    def _notify(self, notice: Notice) -> None:
        run_callback(self._observer, notice)

    def _put_call(self, number: int, event: Urgent) -> None:
        if not self._mailbox.put(event):
            self._calls.forget(number)
            raise ServerBusyError("too many events wait")

    def _refusal(self, size_bytes: int) -> ProposalResolved | None:
        """Return the refusal of a proposal, if any.

        If a follower does not have room, the refusal names the leader, which may have room.
        """
        if self._calls.ended:
            return ProposalResolved(proposal_id=0, outcome=Outcome.NOT_LEADER)
        role, overloaded = self._role, self._is_overloaded()
        if overloaded and role.role is not Role.LEADER:
            return ProposalResolved(proposal_id=0, outcome=Outcome.NOT_LEADER, leader=role.leader)
        if overloaded or not self._proposal_limit.allows(size_bytes):
            self._dropped[ShellDrop.PROPOSAL_BUSY] += 1
            return ProposalResolved(proposal_id=0, outcome=Outcome.BUSY, leader=role.leader)
        return None

    def _rejects(self, sender: ServerId, entries: tuple[Entry, ...]) -> bool:
        objection = self._checks.entries(entries)
        if objection is not None:
            self._notify(ContentRejected(sender, objection))
        return objection is not None

    def _is_overloaded(self) -> bool:
        return self._disk_full or self._executor.backlog_bytes > self._options.max_backlog_bytes

    def _start_job(self) -> None:
        job = self._executor.next_job()
        if job is not None:
            self._job_began_ms = now_ms()
            self._worker.submit(job)

    def _end_job(self, report: JobDone | JobBlocked) -> Event | None:
        """Process a completed or blocked disk job; return the event for the core, if any."""
        self._job_began_ms = None
        if isinstance(report, JobBlocked):
            self._send_all(self._executor.blocked(report.job, report.resume_at))
            return None
        match report.job:
            case WriteJob() as job:
                self._send_all(self._executor.written(job))
                return Persisted(job.number)
            case HardStateJob() as job:
                self._send_all(self._executor.hard_state_written(job))
            case PreparationJob() as job:
                self._executor.prepared(job)
            case SnapshotWrite() as job:
                self._executor.read(job)
                self._snapshots.written(job)
            case ReadJob() as job:
                self._executor.read(job)
                return self._on_read_result(job.request.request_id, report.answer)
            case _:
                assert_never(report.job)
        return None

    def _on_read_result(self, request_id: int, answer: StorageReadResult | None) -> StorageReadResult | None:
        """Return the result of a read for the core; None if this server requested it itself (`storage_reads`)."""
        if isinstance(answer, SnapshotChecked) and answer.objection is not None:
            self._notify(ContentRejected(self._role.leader, answer.objection))
        if request_id > 0:
            return answer
        self._calls.answer(-request_id, answer)
        return None

    def _send_all(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._send(send)

    def _job_done(self, job: Job, answer: StorageReadResult | None) -> None:
        self._mailbox.put(JobDone(job, answer))

    def _job_blocked(self, job: WriteJob, resume_at: int) -> None:
        self._set_disk_full(full=True)
        self._mailbox.put(JobBlocked(job, resume_at))

    def _set_disk_full(self, *, full: bool) -> None:
        if full != self._disk_full:
            self._disk_full = full
            self._mailbox.put(DiskSpace(full))
            self._notify(DiskFull(full))

    def _read_storage(self, request: StorageRead) -> None:
        self._executor.queue_read(request)
        self._start_job()

    def _stop(self) -> None:
        self._calls.end()
        self._batches.end()
        self.applying.end()
        self._snapshots.end()

    async def _note_clean_stop(self) -> None:
        """Mark a clean stop, so that the next start can distinguish damage to the log from a torn write."""
        for event in self._mailbox.take_urgent():
            if isinstance(event, JobDone) and isinstance(event.job, WriteJob):
                self._executor.written(event.job)
        operations = self._storage.plan_close()
        if operations:
            # Shielded: the disk itself bounds its work for a canceled caller (`STOP_SECONDS`).
            with trio.move_on_after(CLEAN_STOP_SECONDS, shield=True), suppress(OutOfSpaceError):
                await self._disk.perform_all(operations)
