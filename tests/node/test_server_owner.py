"""The owner task with a real Raft: one voter alone, and three over links in memory; MockClock throughout."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest
import trio
import trio.testing

from consensus.core.dialect import GARLIC_FARM
from consensus.core.effects import Outcome, Resolve, Role
from consensus.core.events import DiskSpace, PeerExtensions
from consensus.core.extensions import NO_EXTENSIONS
from consensus.core.messages import Request, RequestVote, VoteReply
from consensus.core.position import Command, Configuration, Entry, LogPosition, Server, ServerId
from consensus.core.raft import Raft
from consensus.core.tuning import lan
from consensus.node.clock import now_ms
from consensus.node.directory import OutOfSpaceError
from consensus.node.disk import CreateFile, DiskOperation, DiskReader, SyncFile, WriteBytes
from consensus.node.executor import Reading
from consensus.node.inbox import Admission, Inbox, Proposal
from consensus.node.refusals import ServerBusyError, ServerStoppedError
from consensus.node.server import ConsensusServer
from consensus.node.server_description import DiskFull, Notice
from consensus.node.server_tuning import ServerTuning
from consensus.node.storage import Owner, StorageTuning, recover
from tests.node.crash_disk import CrashDisk
from tests.node.kept_entries import KeptEntries

ONE = ServerId(1)
SMALL = StorageTuning(segment_bytes=256 * 1024)


@dataclass
class MemoryDisk(CrashDisk):
    """A disk that a test can make full or broken."""

    full: bool = False
    broken: bool = False
    full_for: str = ""
    """There is no space for files whose name ends so."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Carry out operations after a while, or fail."""
        await trio.sleep(0.002)
        writes = [operation.file for operation in operations if isinstance(operation, CreateFile | WriteBytes)]
        if self.full or (self.full_for and any(file.endswith(self.full_for) for file in writes)):
            raise OutOfSpaceError(start)
        if self.broken and any(isinstance(operation, SyncFile) for operation in operations):
            raise OSError(5, "Input/output error")
        self.run(operations[start:])

    async def ask(self, question: Callable[[DiskReader], Reading]) -> Reading:
        """Read after a while."""
        await trio.sleep(0.001)
        return question(self)


@dataclass
class Node:
    """One server with what a test wants to see of it."""

    server: ConsensusServer
    disk: MemoryDisk
    machine: KeptEntries
    notices: list[Notice] = field(default_factory=list)

    @property
    def applied(self) -> list[Entry]:
        """What the state machine holds."""
        return self.machine.entries


class Links:
    """In place of a transport: hands requests to the other server and the replies back."""

    def __init__(self, sender: ServerId, nodes: dict[ServerId, Node], nursery: trio.Nursery) -> None:
        self._sender = sender
        self._nodes = nodes
        self._nursery = nursery

    def keep(self, peers: Collection[ServerId]) -> None:
        """Nothing to keep."""

    def send(self, recipient: ServerId, message: Request) -> None:
        """Deliver in a task, as a socket would."""
        if recipient in self._nodes and self._sender in self._nodes:
            self._nursery.start_soon(self._exchange, recipient, message)

    async def _exchange(self, recipient: ServerId, message: Request) -> None:
        with suppress(ServerBusyError, ServerStoppedError):
            reply = await self._nodes[recipient].server.request(self._sender, message)
            self._nodes[self._sender].server.deliver_reply(recipient, reply)


def voters(count: int) -> Configuration:
    return Configuration(tuple(Server(ServerId(n), f"tcp://127.0.0.1:{7000 + n}") for n in range(1, count + 1)))


def build(
    server_id: ServerId,
    nodes: dict[ServerId, Node],
    nursery: trio.Nursery,
    disk: MemoryDisk,
    count: int = 1,
    tuning: ServerTuning | None = None,
    configuration: Configuration | None = None,
) -> Node:
    recovery = recover(disk, Owner(b"node-%03d" % server_id, 1, 1), bytes(16), SMALL)
    disk.run(recovery.operations)
    known = voters(count) if configuration is None else configuration
    core = Raft(server_id, known, recovery.ballot, recovery.log, lan(), GARLIC_FARM, Random(server_id), now_ms())
    node: Node

    machine = KeptEntries()

    def observe(notice: Notice) -> None:
        node.notices.append(notice)

    links = Links(server_id, nodes, nursery)
    server = ConsensusServer(core, recovery.storage, disk, links, machine, observe, tuning or ServerTuning())
    node = Node(server, disk, machine)
    return node


async def until(condition: Callable[[], bool]) -> None:
    """Let simulated time pass until something is true."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - a question about several objects has no one event
            await trio.sleep(0.01)


async def leader_alone(nursery: trio.Nursery, disk: MemoryDisk, tuning: ServerTuning | None = None) -> Node:
    node = build(ONE, {}, nursery, disk, tuning=tuning)
    await nursery.start(node.server.run)
    await until(lambda: node.server.role.role is Role.LEADER)
    return node


def data(node: Node) -> list[bytes]:
    return [entry.content.data for entry in node.applied if isinstance(entry.content, Command)]


async def test_a_proposal_to_the_only_voter_is_committed_applied_and_durable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    disk = MemoryDisk()
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, disk)
        answer = await node.server.propose((b"first", b"second"))
        assert answer.outcome is Outcome.COMMITTED
        assert answer.position is not None
        await node.server.wait_applied(answer.position.index)
        assert data(node) == [b"first", b"second"]
        nursery.cancel_scope.cancel()
    again = recover(disk.crash(Random(1)), Owner(b"node-001", 2, 1), bytes(16), SMALL)
    assert [entry.content for entry in again.log.tail][-2:] == [Command(b"first"), Command(b"second")]


async def test_proposals_that_arrive_together_share_a_batch_and_each_gets_its_own_position(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    answers: dict[int, Resolve] = {}
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        await until(lambda: node.server.commit_index >= 1)
        groups = node.server.describe().groups

        async def client(number: int) -> None:
            answers[number] = await node.server.propose(tuple(b"%d.%d" % (number, n) for n in range(number + 1)))

        async with trio.open_nursery() as clients:
            for number in range(40):
                clients.start_soon(client, number)
        await node.server.wait_applied(node.server.commit_index)
        for number, answer in answers.items():
            assert answer.outcome is Outcome.COMMITTED
            assert answer.position is not None
            assert node.applied[answer.position.index - 1].content == Command(b"%d.%d" % (number, number))
        assert node.server.describe().groups - groups < 10
        nursery.cancel_scope.cancel()


async def test_three_servers_elect_a_leader_and_apply_the_same_log(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    nodes: dict[ServerId, Node] = {}
    async with trio.open_nursery() as nursery:
        for n in range(1, 4):
            nodes[ServerId(n)] = build(ServerId(n), nodes, nursery, MemoryDisk(), count=3)
        for node in nodes.values():
            await nursery.start(node.server.run)
        await until(lambda: any(node.server.role.role is Role.LEADER for node in nodes.values()))
        leader = next(node for node in nodes.values() if node.server.role.role is Role.LEADER)
        for number in range(20):
            assert (await leader.server.propose((b"%d" % number,))).outcome is Outcome.COMMITTED
        await until(lambda: all(len(data(node)) == 20 for node in nodes.values()))
        assert len({tuple(node.applied) for node in nodes.values()}) == 1
        follower = next(node for node in nodes.values() if node is not leader)
        refused = await follower.server.propose((b"x",))
        assert refused.outcome is Outcome.NOT_LEADER
        assert refused.leader == leader.server.role.leader
        nursery.cancel_scope.cancel()


async def test_a_request_gets_its_own_reply_with_the_correlation_it_came_with(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = build(ONE, {}, nursery, MemoryDisk(), count=3)
        await nursery.start(node.server.run)
        replies: dict[int, VoteReply] = {}

        async def ask(sender: int, correlation: int) -> None:
            request = RequestVote(1, ServerId(sender), LogPosition(0, 0), correlation)
            reply = await node.server.request(ServerId(sender), request)
            assert isinstance(reply, VoteReply)
            assert reply.correlation == correlation
            replies[sender] = reply

        async with trio.open_nursery() as asking:
            asking.start_soon(ask, 2, 77)
            asking.start_soon(ask, 3, 77)
        assert replies[2].granted != replies[3].granted
        assert node.server.describe().requests_in_flight == 0
        nursery.cancel_scope.cancel()


async def test_a_vote_is_answered_only_when_it_is_durable(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = build(ONE, {}, nursery, MemoryDisk(), count=3)
        await nursery.start(node.server.run)
        reply = await node.server.request(ServerId(2), RequestVote(9, ServerId(2), LogPosition(0, 0), 1))
        assert isinstance(reply, VoteReply)
        assert reply.granted
        found = recover(node.disk.crash(Random(3)), Owner(b"node-001", 2, 1), bytes(16), SMALL)
        assert (found.ballot.term, found.ballot.voted_for) == (9, ServerId(2))
        nursery.cancel_scope.cancel()


async def test_a_slow_state_machine_delays_nobody_and_fills_no_memory(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    tuning = ServerTuning(apply_queue_bytes=10_000)
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk(), tuning)
        await until(lambda: node.server.describe().applied == 1)
        node.machine.gate = trio.Event()
        for number in range(100):
            answer = await node.server.propose((b"%04d" % number * 250,))
            assert answer.outcome is Outcome.COMMITTED
        assert data(node) == []
        node.machine.gate.set()
        await node.server.wait_applied(node.server.commit_index)
        assert data(node) == [b"%04d" % number * 250 for number in range(100)]
        assert node.server.describe().entries_reread > 50
        nursery.cancel_scope.cancel()


async def test_committed_entries_are_read_in_ranges_and_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        await node.server.propose(tuple(b"%d" % n for n in range(50)))
        commit = node.server.commit_index
        assert await node.server.read(1, 1_000, 10**9) == tuple(node.applied)
        assert len(await node.server.read(10, 5, 10**9)) == 5
        assert len(await node.server.read(10, 5, 1)) == 1
        assert await node.server.read(commit + 1, 5, 10**9) == ()
        with trio.move_on_after(5) as patience:
            await node.server.wait_commit(commit + 1)
        assert patience.cancelled_caught
        await node.server.propose((b"more",))
        assert await node.server.wait_commit(commit + 1) == commit + 1
        nursery.cancel_scope.cancel()


async def test_a_leader_whose_disk_is_full_says_so_and_resigns_and_does_not_campaign_until_there_is_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        node.disk.full = True
        answers: list[Resolve] = []

        async def client() -> None:
            answers.append(await node.server.propose((b"held",)))

        nursery.start_soon(client)
        await until(lambda: DiskFull(full=True) in node.notices)
        await until(lambda: node.server.role.role is Role.FOLLOWER)
        assert (await node.server.propose((b"refused",))).outcome is Outcome.NOT_LEADER
        await until(lambda: bool(answers))
        assert answers[0].outcome is Outcome.UNKNOWN
        term = node.server.role.term
        await trio.sleep(60)
        assert node.server.role.role is Role.FOLLOWER
        assert node.server.role.term == term
        node.disk.full = False
        await until(lambda: node.server.role.role is Role.LEADER)
        assert DiskFull(full=False) in node.notices
        assert (await node.server.propose((b"again",))).outcome is Outcome.COMMITTED
        await until(lambda: data(node) == [b"held", b"again"])
        nursery.cancel_scope.cancel()


async def test_another_server_leads_while_the_disk_of_the_old_leader_is_full_and_the_old_one_catches_up_afterwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    nodes: dict[ServerId, Node] = {}
    async with trio.open_nursery() as nursery:
        for number in (1, 2, 3):
            nodes[ServerId(number)] = build(ServerId(number), nodes, nursery, MemoryDisk(), count=3)
            await nursery.start(nodes[ServerId(number)].server.run)
        await until(lambda: any(node.server.role.role is Role.LEADER for node in nodes.values()))
        full = next(node for node in nodes.values() if node.server.role.role is Role.LEADER)
        others = [node for node in nodes.values() if node is not full]
        full.disk.full = True
        nursery.start_soon(full.server.propose, (b"of unknown fate",))
        await until(lambda: any(node.server.role.role is Role.LEADER for node in others))
        leader = next(node for node in others if node.server.role.role is Role.LEADER)
        for number in range(20):
            assert (await leader.server.propose((b"meanwhile %d" % number,))).outcome is Outcome.COMMITTED
        assert full.server.role.role is Role.FOLLOWER
        assert dict(full.server.describe().raft.dropped).get("append while the disk is full", 0) > 0
        full.disk.full = False
        await until(lambda: full.applied == leader.applied and b"meanwhile 19" in data(full))
        assert full.notices.count(DiskFull(full=False)) == 1
        nursery.cancel_scope.cancel()


async def test_a_follower_whose_disk_is_full_sends_clients_on_instead_of_calling_itself_busy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = build(ONE, {}, nursery, MemoryDisk(), count=3)
        await nursery.start(node.server.run)
        node.server._set_disk_full(full=True)
        assert (await node.server.propose((b"elsewhere",))).outcome is Outcome.NOT_LEADER
        nursery.cancel_scope.cancel()


async def test_a_failed_sync_ends_the_server_and_acknowledges_nothing(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    answers: list[Resolve] = []

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            node = await leader_alone(nursery, MemoryDisk())
            node.disk.broken = True
            answers.append(await node.server.propose((b"lost",)))

    with pytest.raises(ExceptionGroup) as caught:
        await story()
    assert caught.group_contains(OSError, match="Input/output error")
    assert [answer.outcome for answer in answers] in ([], [Outcome.UNKNOWN])


async def test_too_many_proposals_are_refused_at_once(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    outcomes: list[Outcome] = []
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk(), ServerTuning(max_proposals=10))

        async def client() -> None:
            outcomes.append((await node.server.propose((b"x",))).outcome)

        async with trio.open_nursery() as clients:
            for _ in range(25):
                clients.start_soon(client)
        assert outcomes.count(Outcome.BUSY) == 15
        assert outcomes.count(Outcome.COMMITTED) == 10
        assert node.server.describe().proposals_in_flight == 0
        nursery.cancel_scope.cancel()


async def test_a_client_that_goes_away_leaves_nothing_behind(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        for _ in range(20):
            with trio.CancelScope() as scope:
                scope.cancel()
                await node.server.propose((b"of unknown fate",))
        assert (await node.server.propose((b"kept",))).outcome is Outcome.COMMITTED
        await node.server.wait_applied(node.server.commit_index)
        assert data(node)[-1] == b"kept"
        assert node.server.describe().proposals_in_flight == 0
        nursery.cancel_scope.cancel()


async def test_a_full_lane_still_takes_what_the_disk_says() -> None:
    inbox = Inbox(1, 10, 1_000, 1.0, 0.0)
    assert inbox.put(PeerExtensions(ServerId(2), NO_EXTENSIONS))
    assert not inbox.put(PeerExtensions(ServerId(3), NO_EXTENSIONS))
    assert inbox.put(DiskSpace(full=True))
    assert inbox.urgent_count == 2


async def test_a_proposal_given_up_before_the_core_has_it_never_takes_effect() -> None:
    inbox, admission = Inbox(10, 10, 1_000, 1.0, 0.0), Admission(10, 1_000)
    proposal = admitted(b"never", admission)
    inbox.propose(proposal)
    proposal.abandon()
    assert inbox.take_batch() == []
    assert admission == Admission(10, 1_000)


async def test_proposals_are_held_for_the_batch_under_way_until_they_fill_one_or_their_time_is_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    inbox, admission = Inbox(10, 3, 100, 0.5, 0.0), Admission(10, 1_000)
    inbox.propose(admitted(b"first", admission))
    assert inbox.batch_is_due(under_way=False), "nobody waits for company"
    assert not inbox.batch_is_due(under_way=True)
    began = trio.current_time()
    await inbox.wait(began + 60, under_way=True)
    assert trio.current_time() == began + 0.5
    assert inbox.batch_is_due(under_way=True), "held long enough"
    assert len(inbox.take_batch()) == 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(propose_later, inbox, admission, 0.1)
        nursery.start_soon(propose_later, inbox, admission, 0.2)
        nursery.start_soon(propose_later, inbox, admission, 0.3)
        began = trio.current_time()
        while not inbox.batch_is_due(under_way=True):
            await inbox.wait(began + 60, under_way=True)
    assert trio.current_time() == pytest.approx(began + 0.3), "a full batch need not wait"
    assert len(inbox.take_batch()) == 3

    inbox.propose(admitted(b"x" * 100, admission))
    assert inbox.batch_is_due(under_way=True), "full by its bytes"


async def test_the_clients_of_an_answered_batch_are_awaited_for_a_moment_so_that_they_share_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    inbox, admission = Inbox(10, 100, 10_000, 0.5, 0.1), Admission(100, 10_000)
    # given a batch of five that was answered
    for _ in range(5):
        inbox.propose(admitted(b"x", admission))
    assert len(inbox.take_batch()) == 5
    inbox.answered()
    # when its clients come back one after the other, then nothing is due until the last of them is there
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(propose_later, inbox, admission, 0.01 * (number + 1))
        began = trio.current_time()
        while not inbox.batch_is_due(under_way=False):
            await inbox.wait(began + 60, under_way=False)
    assert trio.current_time() == pytest.approx(began + 0.05)
    assert len(inbox.take_batch()) == 5

    # and when one stays away, the others wait for the time of a pause and no longer
    inbox.answered()
    for _ in range(4):
        inbox.propose(admitted(b"x", admission))
    began = trio.current_time()
    while not inbox.batch_is_due(under_way=False):
        await inbox.wait(began + 60, under_way=False)
    assert trio.current_time() == pytest.approx(began + 0.1)
    assert len(inbox.take_batch()) == 4


async def test_a_client_alone_never_waits_for_company(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    inbox, admission = Inbox(10, 100, 10_000, 0.5, 0.1), Admission(100, 10_000)
    for _ in range(3):
        inbox.propose(admitted(b"x", admission))
        assert inbox.batch_is_due(under_way=False)
        inbox.take_batch()
        inbox.answered()


def admitted(command: bytes, admission: Admission) -> Proposal:
    proposal = Proposal((command,), admission, lambda _: None)
    proposal.admit()
    return proposal


async def propose_later(inbox: Inbox, admission: Admission, delay_s: float) -> None:
    await trio.sleep(delay_s)
    inbox.propose(admitted(b"later", admission))


async def test_clients_that_come_one_by_one_share_batches_while_the_disk_is_slow(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, MemoryDisk())
        before = node.server.describe().persists
        async with trio.open_nursery() as clients:
            for number in range(40):
                clients.start_soon(node.server.propose, (b"%d" % number,))
                await trio.sleep(0.0001)
        await node.server.wait_applied(node.server.commit_index)
        assert data(node)[-40:] == [b"%d" % number for number in range(40)]
        assert node.server.describe().persists - before <= 5
        nursery.cancel_scope.cancel()


async def test_after_a_clean_stop_rot_in_the_last_entry_is_recognised(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    disk = MemoryDisk()
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, disk)
        answer = await node.server.propose((b"last" * 10,))
        nursery.cancel_scope.cancel()
    assert answer.position is not None
    name = next(file for file in disk.files() if file.endswith(".segment"))
    place = disk.names[name].now.rfind(b"last")
    disk.names[name].now[place] ^= 1
    with pytest.raises(Exception, match="ballot file proves"):
        recover(disk, Owner(b"node-001", 2, 1), bytes(16), SMALL)
    assert (await node.server.propose((b"x",))).outcome is Outcome.NOT_LEADER
    with pytest.raises(ServerStoppedError):
        await node.server.request(ServerId(2), RequestVote(9, ServerId(2), LogPosition(0, 0), 1))
