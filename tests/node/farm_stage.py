"""A stage for a node in a farm: a log that commits at once, a leader by decree, a router in memory.

The machine's clock runs with trio's (`machine_clock`), so that a story of minutes is told in no time and always alike.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
import trio

from bridge.api.alarms import ROUTER
from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.farm.state_machine import Change
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import Clock, LeafStatus, MetaStatus, Publication, PublishConfig, Record, Report
from bridge.core.publishing.publication import Pace
from bridge.node.events.alarms import Alarms, SharedAlarm
from bridge.node.events.event_log import EventLog
from bridge.node.raft import applied_state as applied_state_module
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.replica import Replica
from bridge.node.router.router import MeasuredStatus, RouterError
from bridge.node.security.signing_keys import HeldKey
from bridge.node.settings.timing import Patience
from bridge.node.tasks.background_tasks import BackgroundTasks
from bridge.node.tasks.published_store import PublishedStore
from bridge.node.tasks.task_context import TaskContext
from bridge.wire.i2p.destination_keys import MasterKey, new_demo_leaf, new_master_key
from bridge.wire.i2p.structures import Destination
from bridge.wire.log.entries import decode
from consensus.core.effects import Outcome, ProposalResolved, Role, RoleChanged
from consensus.core.model import ORIGIN, Configuration, Entry, LogId, Server, ServerId, SnapshotDescription
from consensus.core.status import FollowerProgress
from consensus.protocols.garlic_farm.node.client_requests import ClientRequests
from consensus.server.event_loop import now_ms
from consensus.server.log_stream import SnapshotChunk
from consensus.server.server import ConsensusServer
from tests.authored import CLUSTER_ID, key_of, node_id, signed

NOW_S = 1_767_225_600
NOW_MS = NOW_S * 1000
PERIOD_MS = 2_000
OWN = 1
OTHER = 2
MASTER: MasterKey = new_master_key(demo=True)
LEAF = new_demo_leaf()
NODE_IDS = (node_id(1), node_id(2), node_id(3))
"""Of the servers 1, 2 and 3."""
CONFIGURATION = Configuration(tuple(Server(number, f"tcp://127.0.0.1:{number}") for number in (1, 2, 3)))


LEADING = RoleChanged(Role.LEADER, 1, OWN)


def clock_now_ms() -> int:
    """The machine's clock of the stage."""
    return NOW_MS + now_ms()


def machine_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine's clock run with trio's. Files are read without a thread, for which it would not wait."""
    monkeypatch.setattr(applied_state_module, "clock_ms", clock_now_ms)
    monkeypatch.setattr(trio.to_thread, "run_sync", in_no_time)


async def in_no_time(function: Callable[..., object], *arguments: object) -> object:
    """Call a function as a thread would, in no time of a simulated clock."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


@dataclass
class MemoryRouter:
    """A router that remembers, refuses or takes its time."""

    refusal: str | None = None
    silence: str | None = None
    gate: trio.Event | None = None
    measured: dict[bytes, MeasuredStatus] = field(default_factory=dict)
    published: list[bytes] = field(default_factory=list)
    stopped: int = 0
    obstacle: str | None = None
    """Why it never publishes."""
    status_s: float = 0.0
    """How long a request for its status takes."""
    status: RouterStatus = field(default_factory=lambda: RouterStatus(attached=True, uptime_ms=3_600_000, job_lag_ms=0))
    """Its figures: in the best of health."""
    behind: dict[bytes, tuple[Destination, ...]] = field(default_factory=lambda: {MASTER.destination.hash: (LEAF,)})
    """The leaves behind each master."""

    async def local_router_status(self) -> RouterStatus:
        """In the best of health."""
        await trio.sleep(self.status_s)
        if self.silence is not None:
            raise RouterError(self.silence)
        return self.status

    async def local_leaf_hashes(self, master_hash: bytes) -> tuple[bytes, ...]:
        """One leaf, or what the test says."""
        return tuple(each.hash for each in self.behind[master_hash])

    async def local_leaf_status(self, leaf_hash: bytes) -> LeafStatus:
        """Healthy."""
        [leaf] = {each for leaves in self.behind.values() for each in leaves if each.hash == leaf_hash}
        return LeafStatus(leaf.base64, healthy=True)

    async def remote_measured_status(self, master_or_leaf_hash: bytes) -> MeasuredStatus | None:
        """Unknown, if it was not told."""
        await trio.lowlevel.checkpoint()
        return self.measured.get(master_or_leaf_hash)

    def publishing_obstacle(self, master_hash: bytes) -> str | None:
        """What the test says."""
        assert master_hash in self.behind
        return self.obstacle

    async def publish_meta_lease_set(self, master_hash: bytes, structure: bytes) -> None:
        """Take it, or not."""
        assert master_hash in self.behind
        if self.gate is not None:
            await self.gate.wait()
        if self.refusal is not None:
            raise RouterError(self.refusal)
        self.published.append(structure)

    async def stop_publishing_meta_lease_set(self, master_hash: bytes) -> None:
        """Count."""
        assert master_hash in self.behind
        self.stopped += 1


@dataclass
class StageDescription:
    """As much of a server's description as is asked for."""

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
    """The server of a farm in which every proposal is committed at once, or meets `outcome`."""

    stage: "Stage"
    role: RoleChanged = LEADING
    outcome: Outcome = Outcome.COMMITTED
    configuration: Configuration = CONFIGURATION
    commit_s: float = 0.0
    """How long a majority takes."""
    snapshot: SnapshotDescription | None = None
    followers: tuple[FollowerProgress, ...] = ()
    image: bytes = b""
    """Of the stored snapshot, which stands for the log up to its last entry."""

    def describe(self) -> StageDescription:
        """The configuration, of three at first, and how far the log goes."""
        return StageDescription(self.soft_state(), applied=self.applied_index)

    def soft_state(self) -> StageDescription:
        """The part about the log."""
        last = len(self.stage.log)
        start = ORIGIN if self.snapshot is None else self.snapshot.last
        return StageDescription(
            configuration=self.configuration,
            last=LogId(last, 1),
            log_start=start,
            snapshot=self.snapshot,
            commit_index=last,
            followers=self.followers,
        )

    def divergence(self, other: LogId) -> LogId:
        """By the log's own rule; a snapshot may have any term, and all entries are of term 1 or of the snapshot's."""
        start = ORIGIN if self.snapshot is None else self.snapshot.last
        term = max(start.term, 1)
        index = other.index if term <= other.term else start.index
        return LogId(max(start.index, min(index, len(self.stage.log))), term)

    @property
    def applied_index(self) -> int:
        """Everything is applied when it is committed."""
        return len(self.stage.log)

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        """Commit."""
        await trio.sleep(self.commit_s)
        if self.outcome is not Outcome.COMMITTED:
            return ProposalResolved(proposal_id=0, outcome=self.outcome, leader=self.role.leader)
        for command in commands:
            await self.stage.append(command)
        return ProposalResolved(
            proposal_id=0, outcome=Outcome.COMMITTED, position=LogId(len(self.stage.log), 1), leader=OWN
        )

    async def wait_applied(self, index: int) -> int:
        """Here everything is applied when it is committed."""
        while len(self.stage.log) < index:
            await self.stage.applied_state.news()
        return len(self.stage.log)

    async def read(self, first: int, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Entries of the log."""
        del limit_bytes
        await trio.lowlevel.checkpoint()
        return tuple(Entry.command(1, data) for data in self.stage.log[first - 1 : first - 1 + limit_entries])

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        """A piece of the image."""
        await trio.lowlevel.checkpoint()
        if self.snapshot is None:
            return None
        data = self.image[offset : offset + limit_bytes]
        return SnapshotChunk(self.snapshot.last, len(self.image), offset, data)

    async def read_stored(self, first: int, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """The same: nothing is in the log before it is committed, but what a story puts there."""
        return await self.read(first, limit_entries, limit_bytes)


@dataclass
class StageReplica:
    """The replica around it."""

    server: StageServer
    server_id: int = OWN
    taken: Callable[[bytes], SubmitAnswer | None] = lambda _: None
    """What becomes of a submission; None: it is committed."""
    barrier: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    """What happens while a linearizable read waits."""
    patience: Patience = field(default_factory=Patience)
    role_changed: trio.Event = field(default_factory=trio.Event)

    async def role_changes(self) -> None:
        """As decreed."""
        await self.role_changed.wait()

    def change_role(self) -> None:
        """A decree."""
        self.role_changed.set()
        self.role_changed = trio.Event()

    async def read_barrier(self) -> int:
        """As decided."""
        await self.barrier()
        return len(self.server.stage.log)

    @property
    def clients(self) -> ClientRequests:
        """What is behind its listener."""
        return ClientRequests(cast("ConsensusServer", self.server), self.server_id, self.server.stage.applied_state)

    @property
    def leads(self) -> bool:
        """By decree."""
        return self.server.role.role is Role.LEADER

    async def submit_all(self, commands: tuple[bytes, ...], *, repeat_unknown: bool = False) -> SubmitAnswer:
        """Commit one after the other, up to one of which something else becomes."""
        answer = SubmitAnswer(outcome=SubmitOutcome.UNKNOWN)
        for each in commands:
            answer = await self.submit(each, repeat_unknown=repeat_unknown)
            if answer.outcome is not SubmitOutcome.COMMITTED:
                break
        return answer

    async def submit(self, command: bytes, *, repeat_unknown: bool = False) -> SubmitAnswer:
        """Commit, wherever the leader is."""
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
        held: HeldKey | None = None,
        more_keys: tuple[HeldKey, ...] = (),
        keyless: tuple[MetaStatus, ...] = (),
        published: PublishedStore | None = None,
    ) -> None:
        self.trace = EventLog("node-1", clock_now_ms)
        self.alarms = Alarms(self.trace)
        self.applied_state = AppliedState(
            NOW_MS,
            self.trace,
            NODE_IDS,
            CLUSTER_ID,
            on_change=self._changed,
        )
        self.signer = EntrySigner(key_of(OWN), CLUSTER_ID, self.applied_state, clock_now_ms)
        # Of the three servers this one alone runs, so its clock has to do for a majority.
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
                keys=(held or HeldKey(MASTER.sign_transient(NOW_S)), *more_keys),
                keyless=keyless,
                pace=Pace.of_period(period_ms),
                period_ms=period_ms,
                election_timeout_ms=1_000,
                published=published or PublishedStore(None),
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
        """An entry of another server."""
        await self.append(signed(record))

    def lead(self, server_id: ServerId) -> None:
        """Another server leads from here on."""
        role = Role.LEADER if server_id == OWN else Role.FOLLOWER
        self.server.role = RoleChanged(role, self.server.role.term + 1, server_id)
        self.replica.change_role()

    def lose_quorum(self) -> None:
        """There is no leader from here on, and nothing is committed."""
        self.server.role = RoleChanged(Role.FOLLOWER, self.server.role.term + 1, None)
        self.server.outcome = Outcome.NOT_LEADER
        self.replica.taken = lambda _: SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason="no leader")
        self.replica.change_role()

    def regain_quorum(self, leader: ServerId) -> None:
        """There is a leader again."""
        self.server.outcome = Outcome.COMMITTED
        self.replica.taken = lambda _: None
        self.lead(leader)

    def records(self, kind: type[Record]) -> list[tuple[int, Record]]:
        """The entries of one kind, each with its time."""
        decoded = [(at_ms, decode(data)) for at_ms, data in zip(self.times_ms, self.log, strict=True)]
        return [(at_ms, record) for at_ms, record in decoded if isinstance(record, kind)]

    def events(self, kind: str) -> int:
        """How often the trace has told this."""
        return sum(event.kind == kind for event in self.trace.recent(4096))

    def alarm(self, kind: str) -> str | None:
        """The text of a standing alarm."""
        return next((alarm.text for alarm in self.alarms.standing() if alarm.kind == kind), None)


@asynccontextmanager
async def on_duty(stage: Stage) -> AsyncIterator[None]:
    """Let the node do its tasks while the block lasts."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.background_tasks.run)
        yield
        nursery.cancel_scope.cancel()


def rival_report(sequence: int = 1) -> Report:
    """A report of server 2, which is preferred to be the publisher."""
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
