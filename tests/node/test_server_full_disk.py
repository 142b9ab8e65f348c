"""A server whose log write waits for space still grants votes, rejects requests and reads entries."""

from random import Random

import trio
import trio.testing

from consensus.core.effects import Persist, ReadEntries, Send
from consensus.core.events import EntriesRead
from consensus.core.messages import AppendEntries, AppendReply, RequestVote, VoteReply
from consensus.core.model import Entry, HardState, LogId
from consensus.net.memory import MemoryNetwork
from consensus.storage.jobs import HardStateJob, ReadJob, WriteJob
from consensus.storage.planner import Owner, Recovery, recover
from tests.node.memory_server import ONE, SMALL, MemoryDisk, Node, build, request
from tests.node.test_executor_order import accept, machine, write

TWO, THREE = 2, 3
LARGE = Entry.command(1, bytes(100_000))


def append(after: int, *entries: Entry, commit: int = 0, correlation: int = 1) -> AppendEntries:
    """Return an append of server 2, the leader of term 1."""
    return AppendEntries(
        term=1,
        leader=TWO,
        previous=LogId(after, 1 if after else 0),
        entries=entries,
        commit=commit,
        correlation=correlation,
    )


async def blocked_follower(nursery: trio.Nursery, disk: MemoryDisk) -> Node:
    """Start a follower with two durable entries, one of them committed, that waits for space for two more."""
    node = build(ONE, MemoryNetwork(), disk, count=3)
    await nursery.start(node.server.run)
    stored = await request(node, TWO, append(0, LARGE, LARGE, commit=1))
    assert stored == AppendReply(term=1, success=True, next_index=3, correlation=1)
    disk.full_for = ".segment.new"
    nursery.start_soon(request, node, TWO, append(2, LARGE, LARGE, commit=1))
    await trio.sleep(0.1)
    assert node.server.describe().disk_full
    return node


def reopened(disk: MemoryDisk) -> Recovery:
    return recover(disk.crash(Random(1)), Owner(b"node-001", 2, 1), bytes(16), SMALL)


async def test_blocked_write_does_not_delay_durable_vote(autojump_clock: trio.testing.MockClock) -> None:
    disk = MemoryDisk()
    async with trio.open_nursery() as nursery:
        node = await blocked_follower(nursery, disk)
        await trio.sleep(1.1)  # the minimum election timeout without a message of the leader
        with trio.fail_after(0.5):
            reply = await request(node, THREE, RequestVote(term=2, candidate=THREE, last=LogId(4, 1), correlation=7))
        assert reply == VoteReply(term=2, granted=True, correlation=7)
        assert node.server.describe().disk_full
        nursery.cancel_scope.cancel()
    found = reopened(disk)
    assert found.hard_state == HardState(2, THREE)
    assert found.log.last.index == 2


async def test_blocked_write_does_not_delay_rejection_of_old_leader(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    node = await blocked_follower(nursery, MemoryDisk())
    await trio.sleep(1.1)
    with trio.fail_after(0.5):
        await request(node, THREE, RequestVote(term=2, candidate=THREE, last=LogId(4, 1), correlation=7))
    with trio.fail_after(0.5):
        reply = await request(node, TWO, append(2, correlation=8))
    assert isinstance(reply, AppendReply)
    assert (reply.term, reply.success) == (2, False)


async def test_blocked_write_does_not_delay_reads_of_durable_entries(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    node = await blocked_follower(nursery, MemoryDisk())
    with trio.fail_after(0.5):
        assert await node.server.read(1, 10, 1_000_000) == (LARGE,)
        assert await node.server.read_stored(1, 10, 1_000_000) == (LARGE, LARGE)


async def test_resumed_write_keeps_granted_vote(autojump_clock: trio.testing.MockClock) -> None:
    disk = MemoryDisk()
    async with trio.open_nursery() as nursery:
        node = await blocked_follower(nursery, disk)
        await trio.sleep(1.1)
        with trio.fail_after(0.5):
            await request(node, THREE, RequestVote(term=2, candidate=THREE, last=LogId(4, 1), correlation=7))
        disk.full_for = ""
        with trio.fail_after(10):
            while node.server.describe().disk_full:  # noqa: ASYNC110 - a flag of the view
                await trio.sleep(0.05)
        assert node.server.describe().durable == 4
        nursery.cancel_scope.cancel()
    found = reopened(disk)
    assert (found.hard_state, found.log.last.index) == (HardState(2, THREE), 4)


def entries(number: int, first: int, term: int = 1) -> Persist:
    return Persist(
        number=number, hard_state=None, truncate_from=None, first=first, entries=(Entry.command(term, b"x" * 4_000),)
    )


def test_blocked_write_releases_vote_reply_but_not_append_reply() -> None:
    executor, disk = machine()
    accept(executor, [entries(1, 1)])
    job = write(executor)
    vote = Send(THREE, VoteReply(term=5, granted=True, correlation=1), after=3)
    stored = Send(TWO, AppendReply(term=5, success=True, next_index=3, correlation=2), after=3)
    assert accept(executor, [entries(2, 2), Persist(number=3, hard_state=HardState(5, THREE)), vote, stored]) == []
    # When the disk is full for the first group, the vote is written before it
    assert executor.blocked(job, 0) == []
    state_job = executor.next_job()
    assert isinstance(state_job, HardStateJob)
    disk.run(state_job.operations)
    assert executor.hard_state_written(state_job) == [vote]
    assert executor.next_job() is None
    # And the reply about entries waits for them
    disk.run(job.operations)
    assert executor.written(job) == []
    rest = write(executor)
    disk.run(rest.operations)
    assert executor.written(rest) == [stored]


def test_later_group_does_not_restore_older_vote() -> None:
    executor, disk = machine(group_bytes=5_000)
    accept(executor, [entries(1, 1)])
    job = write(executor)
    accept(
        executor,
        [
            Persist(number=2, hard_state=HardState(4, TWO)),
            entries(3, 2),
            entries(4, 3),
            Persist(number=5, hard_state=HardState(5, THREE)),
        ],
    )
    executor.blocked(job, 0)
    state_job = executor.next_job()
    assert isinstance(state_job, HardStateJob)
    disk.run(state_job.operations)
    executor.hard_state_written(state_job)
    disk.run(job.operations)
    executor.written(job)
    groups = 0
    while isinstance(group := executor.next_job(), WriteJob):
        disk.run(group.operations)
        executor.written(group)
        found = recover(disk.crash(Random(groups)), Owner(b"node-one", 2, 1), bytes(16), SMALL)
        assert found.hard_state == HardState(5, THREE)
        groups += 1
    assert groups >= 2


def test_vote_waits_while_blocked_group_writes_hard_state() -> None:
    executor, _ = machine()
    accept(
        executor,
        [
            Persist(
                number=1, hard_state=HardState(4, TWO), truncate_from=None, first=1, entries=(Entry.command(4, b"x"),)
            )
        ],
    )
    job = write(executor)
    vote = Send(THREE, VoteReply(term=5, granted=True, correlation=1), after=2)
    accept(executor, [Persist(number=2, hard_state=HardState(5, THREE)), vote])
    assert executor.blocked(job, 0) == []
    assert executor.next_job() is None
    # Once the group has written its hard state, none of its remaining writes can overwrite the vote.
    executor.blocked(job, len(job.operations) - 1)
    assert isinstance(executor.next_job(), HardStateJob)


def test_read_during_blocked_group_excludes_truncated_entries() -> None:
    executor, disk = machine()
    accept(executor, [entries(1, 1), entries(2, 2)])
    first = write(executor)
    disk.run(first.operations)
    executor.written(first)
    accept(executor, [entries(3, 3)])
    job = write(executor)
    executor.blocked(job, 0)
    accept(
        executor,
        [
            Persist(number=4, hard_state=None, truncate_from=2, first=2, entries=(Entry.command(2, b"y"),)),
            ReadEntries(request_id=9, first=1, last=3, limit_bytes=100_000),
        ],
    )
    read = executor.next_job()
    assert isinstance(read, ReadJob)
    answer = read.answer(disk)
    assert isinstance(answer, EntriesRead)
    assert len(answer.entries) == 1
