"""A stage for one node of a farm: a log that commits immediately, a leader that the test sets, a router in memory.

The machine's clock advances with trio's clock (`machine_clock`), so a scenario of minutes runs fast and
deterministically.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import trio
from msgspec.structs import replace

from bridge.api.alarms import ROUTER
from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.farm.state_machine import Change
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import Clock, LeafStatus, MetaStatus, Publication, PublishConfig, Record, Report
from bridge.core.publishing.publication import Pace
from bridge.node.events.alarms import Alarms, SharedAlarm
from bridge.node.events.event_log import EventLog
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.replica import Replica
from bridge.node.router.router import MeasuredStatus, RouterError
from bridge.node.security.signing_keys import PublishingKey
from bridge.node.settings.timing import Patience
from bridge.node.tasks.background_tasks import BackgroundTasks
from bridge.node.tasks.directory import Directory
from bridge.node.tasks.known_structures import KnownStructures
from bridge.node.tasks.published_store import PublishedStore
from bridge.node.tasks.task_context import TaskContext
from bridge.wire.i2p.destination_keys import MasterKey, new_master_key
from bridge.wire.i2p.structures import Destination
from bridge.wire.log.entries import decode
from consensus.core.effects import Outcome, ProposalResolved, Role, RoleChanged
from consensus.core.model import ORIGIN, Configuration, Entry, LogId, Server, ServerId, SnapshotDescription
from consensus.core.status import FollowerProgress
from consensus.protocols.garlic_farm.node.client_requests import ClientRequests
from consensus.server.event_loop import now_ms
from consensus.server.server import ConsensusServer
from consensus.server.storage_reads import SnapshotChunk
from tests.authored import CLUSTER_ID, key_of, node_id, signed
from tests.destinations import new_demo_leaf

NOW_S = 1_767_225_600
NOW_MS = NOW_S * 1000
PERIOD_MS = 2_000
OWN = 1
OTHER = 2
MASTER: MasterKey = new_master_key(demo=True)
LEAF = new_demo_leaf()
NODE_IDS = (node_id(1), node_id(2), node_id(3))
"""Node ids of servers 1, 2 and 3."""
CONFIGURATION = Configuration(tuple(Server(number, f"tcp://127.0.0.1:{number}") for number in (1, 2, 3)))


LEADING = RoleChanged(Role.LEADER, 1, OWN)


def clock_now_ms() -> int:
    return NOW_MS + now_ms()


@dataclass
class MemoryRouter:
    """A router that records publications, refuses them or delays its replies."""

    refusal: str | None = None
    silence: str | None = None
    gate: trio.Event | None = None
    measured: dict[bytes, MeasuredStatus] = field(default_factory=dict)
    published: list[bytes] = field(default_factory=list)
    stopped: int = 0
    kept_ready: list[tuple[bytes, bool]] = field(default_factory=list)
    obstacle: str | None = None
    """Reason why the router cannot publish."""
    status_s: float = 0.0
    """Duration of a status request in seconds."""
    status: RouterStatus = field(default_factory=lambda: RouterStatus(attached=True, uptime_ms=3_600_000, job_lag_ms=0))
    """Status of a healthy router."""
    behind: dict[bytes, tuple[Destination, ...]] = field(default_factory=lambda: {MASTER.destination.hash: (LEAF,)})
    """Leaves of each master."""

    async def local_router_status(self) -> RouterStatus:
        """Return `status`, or raise an error with the text of `silence`."""
        await trio.sleep(self.status_s)
        if self.silence is not None:
            raise RouterError(self.silence)
        return self.status

    async def local_leaf_hashes(self, master_hash: bytes) -> tuple[bytes, ...]:
        return tuple(each.hash for each in self.behind[master_hash])

    async def local_leaf_status(self, leaf_hash: bytes) -> LeafStatus:
        [leaf] = {each for leaves in self.behind.values() for each in leaves if each.hash == leaf_hash}
        return LeafStatus(leaf.base64, healthy=True)

    async def remote_measured_status(self, master_or_leaf_hash: bytes) -> MeasuredStatus | None:
        """Return the measured status, or None if the test did not set one."""
        await trio.lowlevel.checkpoint()
        return self.measured.get(master_or_leaf_hash)

    def publishing_obstacle(self, master_hash: bytes) -> str | None:
        assert master_hash in self.behind
        return self.obstacle

    async def publish_meta_lease_set(self, master_hash: bytes, structure: bytes) -> None:
        """Record a publication, or refuse it."""
        assert master_hash in self.behind
        if self.gate is not None:
            await self.gate.wait()
        if self.refusal is not None:
            raise RouterError(self.refusal)
        self.published.append(structure)

    async def keep_ready(self, master_hash: bytes, structure: bytes, *, urgent: bool) -> str | None:
        """Record a structure of the standby with its urgency."""
        assert master_hash in self.behind
        self.kept_ready.append((structure, urgent))
        return self.refusal

    async def stop_publishing_meta_lease_set(self, master_hash: bytes) -> None:
        """Count a stopped publication."""
        assert master_hash in self.behind
        self.stopped += 1


@dataclass
class StageDescription:
    """Fields of a server's description that the tests use."""

    raft: "StageDescription | None" = None
    configuration: Configuration = CONFIGURATION
    applied: int = 0
    last: LogId = ORIGIN
    log_start: LogId = ORIGIN
    term: int = 1
    snapshot: SnapshotDescription | None = None
    commit_index: int = 0
    followers: tuple[FollowerProgress, ...] = ()


@dataclass
class StageServer:
    """The server of a farm that commits every proposal immediately, or resolves it with `outcome`."""

    stage: "Stage"
    role: RoleChanged = LEADING
    outcome: Outcome = Outcome.COMMITTED
    configuration: Configuration = CONFIGURATION
    commit_s: float = 0.0
    """Duration of a commit in seconds."""
    snapshot: SnapshotDescription | None = None
    followers: tuple[FollowerProgress, ...] = ()
    image: bytes = b""
    """Image of the stored snapshot. The snapshot replaces the log up to its last entry."""
    unapplied: tuple[bytes, ...] = ()
    """Committed commands that the state machine applies with the next proposal."""

    def describe(self) -> StageDescription:
        """Return the configuration (initially three servers) and the applied index."""
        return StageDescription(self.soft_state(), applied=self.applied_index)

    def soft_state(self) -> StageDescription:
        last = len(self.stage.log)
        start = ORIGIN if self.snapshot is None else self.snapshot.last
        return StageDescription(
            configuration=self.configuration,
            last=LogId(last, 1),
            log_start=start,
            snapshot=self.snapshot,
            commit_index=self.commit_index,
            followers=self.followers,
        )

    def divergence(self, other: LogId) -> LogId:
        """Return the divergence point by the log's own rule.

        A snapshot may have any term. Every entry has term 1 or the snapshot's term.
        """
        start = ORIGIN if self.snapshot is None else self.snapshot.last
        term = max(start.term, 1)
        index = other.index if term <= other.term else start.index
        return LogId(max(start.index, min(index, len(self.stage.log))), term)

    @property
    def applied_index(self) -> int:
        """Return the last index: every committed entry except `unapplied` is applied."""
        return len(self.stage.log)

    @property
    def commit_index(self) -> int:
        return len(self.stage.log) + len(self.unapplied)

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        await trio.sleep(self.commit_s)
        if self.outcome is not Outcome.COMMITTED:
            return ProposalResolved(proposal_id=0, outcome=self.outcome, leader=self.role.leader)
        applied, self.unapplied = (*self.unapplied, *commands), ()
        for command in applied:
            await self.stage.append(command)
        return ProposalResolved(
            proposal_id=0, outcome=Outcome.COMMITTED, position=LogId(len(self.stage.log), 1), leader=OWN
        )

    async def wait_applied(self, index: int) -> int:
        """Wait until the log reaches `index`: every committed entry is applied."""
        while len(self.stage.log) < index:
            await self.stage.applied_state.news()
        return len(self.stage.log)

    async def read(self, first: int, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        del limit_bytes
        await trio.lowlevel.checkpoint()
        return tuple(Entry.command(1, data) for data in self.stage.log[first - 1 : first - 1 + limit_entries])

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        await trio.lowlevel.checkpoint()
        if self.snapshot is None:
            return None
        data = self.image[offset : offset + limit_bytes]
        return SnapshotChunk(self.snapshot.last, len(self.image), offset, data)

    async def read_stored(self, first: int, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return entries of the log, which contains only committed entries and entries of the test."""
        return await self.read(first, limit_entries, limit_bytes)


@dataclass
class StageReplica:
    """The replica of the stage's server."""

    server: StageServer
    server_id: int = OWN
    taken: Callable[[bytes], SubmitAnswer | None] = lambda _: None
    """Answer to a submission, or None to commit it."""
    barrier: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    """Function called while a linearizable read waits."""
    patience: Patience = field(default_factory=Patience)
    role_changed: trio.Event = field(default_factory=trio.Event)

    async def role_changes(self) -> None:
        await self.role_changed.wait()

    def change_role(self) -> None:
        """Wake the tasks that wait for a role change."""
        self.role_changed.set()
        self.role_changed = trio.Event()

    async def read_barrier(self) -> int:
        await self.barrier()
        return len(self.server.stage.log)

    @property
    def clients(self) -> ClientRequests:
        """Return the listener's handler of client requests."""
        return ClientRequests(cast("ConsensusServer", self.server), self.server_id, self.server.stage.applied_state)

    @property
    def leads(self) -> bool:
        return self.server.role.role is Role.LEADER

    async def submit_all(self, commands: tuple[bytes, ...], *, repeat_unknown: bool = False) -> SubmitAnswer:
        """Submit commands in order, up to the first uncommitted one."""
        answer = SubmitAnswer(outcome=SubmitOutcome.UNKNOWN)
        for each in commands:
            answer = await self.submit(each, repeat_unknown=repeat_unknown)
            if answer.outcome is not SubmitOutcome.COMMITTED:
                break
        return answer

    async def submit(self, command: bytes, *, repeat_unknown: bool = False) -> SubmitAnswer:
        """Commit a command through the leader, or return the answer of `taken`."""
        del repeat_unknown
        await trio.lowlevel.checkpoint()
        answer = self.taken(command)
        if answer is None:
            await self.server.stage.append(command)
            answer = SubmitAnswer(outcome=SubmitOutcome.COMMITTED, index=len(self.server.stage.log), term=1)
        return answer


class Stage:
    """One node of a farm, with its log."""

    def __init__(
        self,
        *,
        period_ms: int = PERIOD_MS,
        key: PublishingKey | None = None,
        more_keys: tuple[PublishingKey, ...] = (),
        keyless: tuple[MetaStatus, ...] = (),
        published: PublishedStore | None = None,
        directory: Directory | None = None,
    ) -> None:
        self.trace = EventLog("node-1", clock_now_ms)
        self.alarms = Alarms(self.trace)
        self.structures = KnownStructures()
        self.applied_state = AppliedState(
            NOW_MS, self.trace, NODE_IDS, CLUSTER_ID, on_change=self._changed, on_report=self.structures.reported
        )
        self.signer = EntrySigner(key_of(OWN), CLUSTER_ID, self.applied_state, clock_now_ms)
        # Only this server of the three runs, so its clock must count as a majority.
        state = self.applied_state.state
        self.applied_state.farm.state = replace(state, clocks=state.clocks.configured(((OWN,),)))
        self.log: list[bytes] = []
        self.times_ms: list[int] = []
        self.router = MemoryRouter()
        self.reachable: set[bytes] = set()
        self.server = StageServer(self)
        self.replica = StageReplica(self.server)
        self.background_tasks = BackgroundTasks(
            TaskContext(
                cluster="demo",
                replica=cast("Replica", self.replica),
                applied_state=self.applied_state,
                signer=self.signer,
                router=self.router,
                keys=(key or PublishingKey(MASTER.sign_transient(NOW_S)), *more_keys),
                keyless=keyless,
                pace=Pace.of_period(period_ms),
                period_ms=period_ms,
                election_timeout_ms=1_000,
                published=published or PublishedStore(None),
                structures=self.structures,
                directory=directory,
                trace=self.trace,
                alarms=self.alarms,
                router_alarm=SharedAlarm(self.alarms, ROUTER),
                reachable=lambda: self.reachable,
                clock_ms=clock_now_ms,
                request_prefix="00-1",
            )
        )

    def _changed(self, change: Change) -> None:
        self.background_tasks.changed(change)

    async def append(self, command: bytes) -> None:
        """Commit and apply one entry."""
        self.log.append(command)
        self.times_ms.append(now_ms())
        await self.applied_state.apply(len(self.log), (Entry.command(1, command),))

    async def append_record(self, record: Report | Clock | Publication) -> None:
        """Append an entry of another server."""
        await self.append(signed(record))

    def lead(self, server_id: ServerId) -> None:
        role = Role.LEADER if server_id == OWN else Role.FOLLOWER
        self.server.role = RoleChanged(role, self.server.role.term + 1, server_id)
        self.replica.change_role()

    def lose_quorum(self) -> None:
        """Remove the leader and commit no more entries."""
        self.server.role = RoleChanged(Role.FOLLOWER, self.server.role.term + 1, None)
        self.server.outcome = Outcome.NOT_LEADER
        self.replica.taken = lambda _: SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason="no leader")
        self.replica.change_role()

    def regain_quorum(self, leader: ServerId) -> None:
        """Set a leader, and commit entries again."""
        self.server.outcome = Outcome.COMMITTED
        self.replica.taken = lambda _: None
        self.lead(leader)

    def records(self, kind: type[Record]) -> list[tuple[int, Record]]:
        """Return the entries of one kind, each with its time."""
        decoded = [(at_ms, decode(data)) for at_ms, data in zip(self.times_ms, self.log, strict=True)]
        return [(at_ms, record) for at_ms, record in decoded if isinstance(record, kind)]

    def events(self, kind: str) -> int:
        """Return the number of recorded events of a kind."""
        return sum(event.kind == kind for event in self.trace.recent(4096))

    def alarm(self, kind: str) -> str | None:
        return next((alarm.text for alarm in self.alarms.active() if alarm.kind == kind), None)


@asynccontextmanager
async def on_duty(stage: Stage) -> AsyncIterator[None]:
    """Run the node's tasks during the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.background_tasks.run)
        yield
        nursery.cancel_scope.cancel()


def rival_report(sequence: int = 1) -> Report:
    """Return a report of server 2, the preferred publisher."""
    return Report(
        cluster="demo",
        date_ms=clock_now_ms(),
        server_id=OTHER,
        router=RouterStatus(attached=True, uptime_ms=3_600_000, job_lag_ms=0),
        masters=(
            MetaStatus(
                MASTER.destination.base64,
                PublishConfig.ON,
                publishing=False,
                last_published_time_ms=0,
                can_sign_until_s=2**32 - 1,
            ),
        ),
        destinations=(LeafStatus(LEAF.base64, healthy=True),),
        request=f"02-1-0-{sequence}",
    )
