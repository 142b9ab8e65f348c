"""The owner task with a real Raft: a single voter, and three voters over links in memory, with a MockClock."""

from collections.abc import Awaitable
from random import Random

import pytest
import trio
from trio.testing import MockClock

from consensus.core.drops import Drop
from consensus.core.effects import Outcome, ProposalResolved, Role
from consensus.core.messages import RequestVote, VoteReply
from consensus.core.model import Entry, Index, LogId, ServerId
from consensus.net.memory import MemoryNetwork
from consensus.server.errors import ServerStoppedError
from consensus.server.options import ServerOptions
from consensus.server.status import DiskFull
from consensus.storage.planner import Owner, recover
from tests.node.memory_server import ONE, SMALL, MemoryDisk, Node, build, data, leader_alone, request, until


async def test_single_voter_proposal_is_committed_and_durable(autojump_clock: MockClock) -> None:
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
    assert [entry.data for entry in again.log.tail][-2:] == [b"first", b"second"]


async def test_concurrent_proposals_share_batch_with_own_positions(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    answers: dict[int, ProposalResolved] = {}
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
        assert node.applied[answer.position.index - 1].data == b"%d.%d" % (number, number)
    assert node.server.describe().groups - groups < 10


async def test_accepted_callback_runs_before_commit(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    calls: list[str] = []
    node = await leader_alone(nursery, MemoryDisk())
    first = node.server.commit_index + 1
    for name, size in (("one", 1), ("two", 2)):

        def on_reply(found: ProposalResolved, name: str = name) -> None:
            assert found.position is not None
            calls.append(f"{name} {found.outcome.value} {found.position.index - first}")

        def accepted(position: LogId, name: str = name) -> None:
            calls.append(f"{name} accepted {position.index - first}")

        node.server.submit((b"x",) * size, on_reply, accepted)
    resolved: list[ProposalResolved] = []
    node.server.submit((b"y",), resolved.append)
    await until(lambda: bool(resolved))
    assert sorted(calls) == ["one accepted 0", "one committed 0", "two accepted 2", "two committed 2"]
    assert calls.index("one accepted 0") < calls.index("one committed 0")
    assert calls.index("two accepted 2") < calls.index("two committed 2")


async def test_concurrent_vote_requests_get_separate_replies(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    node = build(ONE, MemoryNetwork(), MemoryDisk(), count=3)
    await nursery.start(node.server.run)
    replies: dict[int, VoteReply] = {}

    async def ask(sender: int) -> None:
        reply = await request(node, sender, RequestVote(term=1, candidate=sender, last=LogId(0, 0), correlation=0))
        assert isinstance(reply, VoteReply)
        replies[sender] = reply

    async with trio.open_nursery() as asking:
        asking.start_soon(ask, 2)
        asking.start_soon(ask, 3)
    assert replies[2].granted != replies[3].granted
    assert node.server.describe().requests_in_flight == 0


async def test_vote_reply_follows_durable_vote(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    node = build(ONE, MemoryNetwork(), MemoryDisk(), count=3)
    await nursery.start(node.server.run)
    reply = await request(node, 2, RequestVote(term=9, candidate=2, last=LogId(0, 0), correlation=1))
    assert isinstance(reply, VoteReply)
    assert reply.granted
    found = recover(node.disk.crash(Random(3)), Owner(b"node-001", 2, 1), bytes(16), SMALL)
    assert (found.hard_state.term, found.hard_state.voted_for) == (9, 2)


async def test_slow_state_machine_delays_only_apply(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    options = ServerOptions(apply_queue_bytes=10_000)
    node = await leader_alone(nursery, MemoryDisk(), options)
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


async def test_committed_entries_are_read_in_ranges(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    node = await leader_alone(nursery, MemoryDisk())
    await node.server.propose(tuple(b"%d" % n for n in range(50)))
    commit = node.server.commit_index
    assert await node.server.read(1, 1_000, 10**9) == tuple(node.applied)
    assert len(await node.server.read(10, 5, 10**9)) == 5
    assert len(await node.server.read(10, 5, 1)) == 1
    assert await node.server.read(commit + 1, 5, 10**9) == ()
    with trio.move_on_after(5) as scope:
        await node.server.wait_commit(commit + 1)
    assert scope.cancelled_caught
    await node.server.propose((b"more",))
    assert await node.server.wait_commit(commit + 1) == commit + 1


async def test_stored_snapshot_is_read_from_any_offset(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    node = await leader_alone(nursery, MemoryDisk(), ServerOptions(retain_bytes=0))
    assert await node.server.read_snapshot(0, 1_000) is None
    await node.server.propose((b"1" * 40_000,))
    await node.server.wait_applied(node.server.commit_index)
    snapshot = await node.server.take_snapshot()
    assert snapshot is not None
    size = snapshot.size_bytes
    chunks = [await node.server.read_snapshot(offset, 1_000) for offset in (0, 7, size - 3, size, size + 100)]
    read = [(chunk.last, chunk.total_bytes, chunk.offset, len(chunk.data)) for chunk in chunks if chunk is not None]
    assert read == [
        (snapshot.last, size, offset, length)
        for offset, length in ((0, 1_000), (7, 1_000), (size - 3, 3), (size, 0), (size, 0))
    ]


async def test_waiting_callers_get_error_when_server_stops(autojump_clock: MockClock) -> None:
    """This includes calls after the stop. A wait for an index reached before the stop still returns."""
    calls: list[str] = []

    async def wait(name: str, reached: Awaitable[Index]) -> None:
        with pytest.raises(ServerStoppedError):
            await reached
        calls.append(name)

    async with trio.open_nursery() as callers:
        async with trio.open_nursery() as nursery:
            server = (await leader_alone(nursery, MemoryDisk())).server
            await server.propose((b"last",))
            last = await server.wait_applied(server.commit_index)
            callers.start_soon(wait, "commit", server.wait_commit(last + 1))
            callers.start_soon(wait, "applied", server.wait_applied(last + 1))
            await trio.sleep(1)
            assert calls == []
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            await wait("late commit", server.wait_commit(last + 1))
            await wait("late applied", server.wait_applied(last + 1))
            assert (await server.wait_commit(last), await server.wait_applied(last)) == (last, last)
        callers.cancel_scope.deadline = trio.current_time() + 5
    assert sorted(calls) == ["applied", "commit", "late applied", "late commit"]


async def test_confirmed_read_fails_with_state_machine(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    broken = trio.Event()

    async def fail(_first: Index, _entries: tuple[Entry, ...]) -> None:
        await broken.wait()
        raise OSError("the state machine's own disk is broken")

    async with trio.open_nursery() as callers:
        with pytest.RaisesGroup(OSError, flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                node = await leader_alone(nursery, MemoryDisk())
                await node.server.wait_applied(node.server.commit_index)
                monkeypatch.setattr(node.machine, "apply", fail)
                await node.server.propose((b"committed, not applied",))

                async def read() -> None:
                    with pytest.raises(ServerStoppedError):
                        await node.server.read_barrier()
                    calls.append("read")

                callers.start_soon(read)
                await trio.sleep(1)
                assert node.server._calls.reads.waiting == 0, "the majority has confirmed the read"
                assert calls == []
                broken.set()
        callers.cancel_scope.deadline = trio.current_time() + 5
    assert calls == ["read"]


async def test_leader_with_full_disk_resigns_until_it_has_space(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    node = await leader_alone(nursery, MemoryDisk())
    node.disk.full = True
    answers: list[ProposalResolved] = []

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


async def test_full_disk_of_leader_causes_election_then_catch_up(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    nodes, network = dict[ServerId, Node](), MemoryNetwork()
    for number in (1, 2, 3):
        nodes[number] = build(number, network, MemoryDisk(), count=3)
        await nursery.start(nodes[number].server.run)
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
    assert dict(full.server.describe().raft.dropped).get(Drop.APPEND_DISK_FULL, 0) > 0
    full.disk.full = False
    await until(lambda: full.applied == leader.applied and b"meanwhile 19" in data(full))
    assert full.notices.count(DiskFull(full=False)) == 1


async def test_follower_with_full_disk_redirects_clients(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    node = build(ONE, MemoryNetwork(), MemoryDisk(), count=3)
    await nursery.start(node.server.run)
    node.server._set_disk_full(full=True)
    assert (await node.server.propose((b"elsewhere",))).outcome is Outcome.NOT_LEADER


async def test_failed_sync_ends_server_without_acknowledgment(autojump_clock: MockClock) -> None:
    answers: list[ProposalResolved] = []

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            node = await leader_alone(nursery, MemoryDisk())
            node.disk.broken = True
            answers.append(await node.server.propose((b"lost",)))

    with pytest.raises(ExceptionGroup) as caught:
        await story()
    assert caught.group_contains(OSError, match="Input/output error")
    assert [answer.outcome for answer in answers] in ([], [Outcome.UNKNOWN])


async def test_surplus_proposals_are_refused_immediately(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    outcomes: list[Outcome] = []
    node = await leader_alone(nursery, MemoryDisk(), ServerOptions(max_proposals=10))

    async def client() -> None:
        outcomes.append((await node.server.propose((b"x",))).outcome)

    async with trio.open_nursery() as clients:
        for _ in range(25):
            clients.start_soon(client)
    assert outcomes.count(Outcome.BUSY) == 15
    assert outcomes.count(Outcome.COMMITTED) == 10
    assert node.server.describe().proposals_in_flight == 0


async def test_canceled_proposal_releases_its_resources(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    node = await leader_alone(nursery, MemoryDisk())
    for _ in range(20):
        with trio.CancelScope() as scope:
            scope.cancel()
            await node.server.propose((b"of unknown fate",))
    assert (await node.server.propose((b"kept",))).outcome is Outcome.COMMITTED
    await node.server.wait_applied(node.server.commit_index)
    assert data(node)[-1] == b"kept"
    assert node.server.describe().proposals_in_flight == 0


async def test_sequential_proposals_share_batches_on_slow_disk(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    node = await leader_alone(nursery, MemoryDisk())
    before = node.server.describe().persists
    async with trio.open_nursery() as clients:
        for number in range(40):
            clients.start_soon(node.server.propose, (b"%d" % number,))
            await trio.sleep(0.0001)
    await node.server.wait_applied(node.server.commit_index)
    assert data(node)[-40:] == [b"%d" % number for number in range(40)]
    assert node.server.describe().persists - before <= 5


async def test_damage_in_last_entry_after_clean_stop_is_detected(autojump_clock: MockClock) -> None:
    disk = MemoryDisk()
    async with trio.open_nursery() as nursery:
        node = await leader_alone(nursery, disk)
        answer = await node.server.propose((b"last" * 10,))
        nursery.cancel_scope.cancel()
    assert answer.position is not None
    name = next(file for file in disk.files() if file.endswith(".segment"))
    place = disk.names[name].now.rfind(b"last")
    disk.names[name].now[place] ^= 1
    with pytest.raises(Exception, match="hard state proves"):
        recover(disk, Owner(b"node-001", 2, 1), bytes(16), SMALL)
    assert (await node.server.propose((b"x",))).outcome is Outcome.NOT_LEADER
    with pytest.raises(ServerStoppedError):
        await request(node, 2, RequestVote(term=9, candidate=2, last=LogId(0, 0), correlation=1))
