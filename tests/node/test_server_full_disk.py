"""While a write of the log waits for space the server votes, says no, and reads: none of that needs space."""

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
    """What server 2, the leader of term 1, sends."""
    return AppendEntries(
        term=1,
        leader=TWO,
        previous=LogId(after, 1 if after else 0),
        entries=entries,
        commit=commit,
        correlation=correlation,
    )


async def blocked_follower(nursery: trio.Nursery, disk: MemoryDisk) -> Node:
    """A follower with two durable entries, the first of them committed, that waits for space for two more."""
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
    """What the server finds on its disk after a crash."""
    return recover(disk.crash(Random(1)), Owner(b"node-001", 2, 1), bytes(16), SMALL)


async def test_a_vote_is_given_and_durable_while_a_write_of_the_log_waits_for_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    disk = MemoryDisk()
    async with trio.open_nursery() as nursery:
        node = await blocked_follower(nursery, disk)
        await trio.sleep(1.1)  # the leader is silent for the minimum election timeout
        with trio.fail_after(0.5):
            reply = await request(node, THREE, RequestVote(term=2, candidate=THREE, last=LogId(4, 1), correlation=7))
        assert reply == VoteReply(term=2, granted=True, correlation=7)
        assert node.server.describe().disk_full
        nursery.cancel_scope.cancel()
    found = reopened(disk)
    assert found.hard_state == HardState(2, THREE)
    assert found.log.last.index == 2


async def test_a_deposed_leader_is_told_the_later_term_while_a_write_of_the_log_waits_for_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await blocked_follower(nursery, MemoryDisk())
        await trio.sleep(1.1)
        with trio.fail_after(0.5):
            await request(node, THREE, RequestVote(term=2, candidate=THREE, last=LogId(4, 1), correlation=7))
        with trio.fail_after(0.5):
            reply = await request(node, TWO, append(2, correlation=8))
        assert isinstance(reply, AppendReply)
        assert (reply.term, reply.success) == (2, False)
        nursery.cancel_scope.cancel()


async def test_what_is_durable_is_read_while_a_write_of_the_log_waits_for_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with trio.open_nursery() as nursery:
        node = await blocked_follower(nursery, MemoryDisk())
        with trio.fail_after(0.5):
            assert await node.server.read(1, 10, 1_000_000) == (LARGE,)
            assert await node.server.read_stored(1, 10, 1_000_000) == (LARGE, LARGE)
        nursery.cancel_scope.cancel()


async def test_when_there_is_space_the_write_goes_on_and_takes_no_vote_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
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
    """A Persist of one entry."""
    return Persist(
        number=number, hard_state=None, truncate_from=None, first=first, entries=(Entry.command(term, b"x" * 4_000),)
    )


def test_beside_a_blocked_group_only_what_tells_nothing_of_the_log_leaves() -> None:
    executor, disk = machine()
    accept(executor, [entries(1, 1)])
    job = write(executor)
    vote = Send(THREE, VoteReply(term=5, granted=True, correlation=1), after=3)
    stored = Send(TWO, AppendReply(term=5, success=True, next_index=3, correlation=2), after=3)
    assert accept(executor, [entries(2, 2), Persist(number=3, hard_state=HardState(5, THREE)), vote, stored]) == []
    # When the first group finds no space, the vote goes ahead of it
    assert executor.blocked(job, 0) == []
    beside = executor.next_job()
    assert isinstance(beside, HardStateJob)
    disk.run(beside.operations)
    assert executor.hard_state_written(beside) == [vote]
    assert executor.next_job() is None
    # And what speaks of entries waits for them
    disk.run(job.operations)
    assert executor.written(job) == []
    rest = write(executor)
    disk.run(rest.operations)
    assert executor.written(rest) == [stored]


def test_no_later_group_brings_an_older_vote_back() -> None:
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
    beside = executor.next_job()
    assert isinstance(beside, HardStateJob)
    disk.run(beside.operations)
    executor.hard_state_written(beside)
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


def test_a_vote_waits_where_the_blocked_group_still_writes_the_hard_state_itself() -> None:
    executor, _ = machine()
    accept(
        executor,
        [
            Persist(
                number=1,
                hard_state=HardState(4, TWO),
                truncate_from=None,
                first=1,
                entries=(Entry.command(4, b"x"),),
            )
        ],
    )
    job = write(executor)
    vote = Send(THREE, VoteReply(term=5, granted=True, correlation=1), after=2)
    accept(executor, [Persist(number=2, hard_state=HardState(5, THREE)), vote])
    assert executor.blocked(job, 0) == []
    assert executor.next_job() is None
    # Behind its part of the group there is nothing that could overwrite the vote.
    executor.blocked(job, len(job.operations) - 1)
    assert isinstance(executor.next_job(), HardStateJob)


def test_a_read_beside_a_blocked_group_sees_no_entry_that_is_about_to_be_removed() -> None:
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
            Persist(
                number=4,
                hard_state=None,
                truncate_from=2,
                first=2,
                entries=(Entry.command(2, b"y"),),
            ),
            ReadEntries(request_id=9, first=1, last=3, limit_bytes=100_000),
        ],
    )
    read = executor.next_job()
    assert isinstance(read, ReadJob)
    answer = read.answer(disk)
    assert isinstance(answer, EntriesRead)
    assert len(answer.entries) == 1
