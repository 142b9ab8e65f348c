"""Updates of a plain replicated log: each once, whatever becomes of servers, leaders and answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from consensus.core.effects import Role, RoleChanged
from consensus.core.model import Index
from consensus.net.memory import MemoryNetwork
from consensus.protocols.zmq_raft.peer.open_peer import core_options
from consensus.protocols.zmq_raft.peer.peer_link import PeerTimes
from consensus.protocols.zmq_raft.peer.replicated_log import LogOptions
from consensus.protocols.zmq_raft.wire.messages import (
    UpdateAccepted,
    UpdateCommitted,
    UpdateExpired,
    UpdateRedirect,
    UpdateReply,
)
from consensus.protocols.zmq_raft.wire.request_ids import Window
from tests.node.zmq_raft_group import Group, Node, request_id, until

HOUR_S = 3600


@asynccontextmanager
async def group_of(
    path: Path, count: int = 3, table_limit: int = 1000, options: LogOptions | None = None
) -> AsyncIterator[Group]:
    async with trio.open_nursery() as nursery:
        group = Group(path, nursery, table_limit=table_limit, options=options or LogOptions())
        await group.start(*range(1, count + 1), founders=count)
        yield group
        nursery.cancel_scope.cancel()


async def committed(answers: list[UpdateReply]) -> Index:
    """The index in the final answer."""
    await until(lambda: type(answers[-1]) is not UpdateAccepted)
    final = answers[-1]
    assert isinstance(final, UpdateCommitted), final
    return final.index


async def done(node: Node, counter: int, data: bytes = b"x") -> Index:
    return await committed(node.update(counter, data))


async def test_an_update_is_accepted_at_once_and_committed_when_it_can_be_read(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Given a leader, when it answers with the index, then the entry is applied there."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        answers = leader.update(1, b"data")
        assert answers == [UpdateAccepted(request_id(1))]
        index = await committed(answers)
        assert (await leader.entries(index))[0].data == request_id(1) + b"data"
        assert leader.log.describe().last_applied >= index


async def test_a_repeat_gets_the_index_of_the_first_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """While it is under way it is accepted, and the final answer goes to the last repeat only."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        first, second = leader.update(1), leader.update(1)
        index = await committed(second)
        assert (first, second[0]) == ([UpdateAccepted(request_id(1))], UpdateAccepted(request_id(1)))
        assert leader.update(1) == [UpdateCommitted(request_id(1), index)]
        assert len(await leader.updates()) == 1


async def test_a_follower_names_the_leader_even_for_what_has_expired(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """As the package does: only a leader judges a request id."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        await done(leader, 1)
        follower = next(node for node in group.nodes.values() if not node.leads)
        await until(lambda: follower.server.role.leader is not None)
        name = next(name for name, node in group.nodes.items() if node is leader)
        for age_s in (0, 9 * HOUR_S):
            assert follower.update(2, age_s=age_s) == [UpdateRedirect(request_id(2, age_s), name)]


async def test_what_is_too_old_or_too_new_is_expired_unless_it_is_in_the_log(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """7 h 45 min back and 15 min ahead are accepted, a minute more is not."""
    del autojump_clock
    async with group_of(tmp_path, 1) as group:
        leader = await group.leader()
        for age_s in (8 * HOUR_S - 14 * 60, -16 * 60):
            assert leader.update(1, age_s=age_s) == [UpdateExpired(request_id(1, age_s))]
        edges = {age_s: await committed(leader.update(1, age_s=age_s)) for age_s in (8 * HOUR_S - 16 * 60, -14 * 60)}
        group.clock_ahead_s = 5 * 60
        for age_s, index in edges.items():
            assert leader.update(1, age_s=age_s) == [UpdateCommitted(request_id(1, age_s), index)]


async def test_an_update_without_data_is_ignored(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The package dies of an entry without data, so none may get into a log."""
    del autojump_clock
    async with group_of(tmp_path, 1) as group:
        leader = await group.leader()
        assert leader.update(1, b"") == []
        assert await leader.entries() == []


async def test_beyond_the_bound_updates_are_ignored_until_others_are_answered(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A client that hears nothing repeats its request, which is then taken."""
    del autojump_clock
    async with group_of(tmp_path, options=LogOptions(max_updates=2)) as group:
        leader = await group.leader()
        answers = [leader.update(counter) for counter in (1, 2, 3)]
        assert answers[2] == []
        for each in answers[:2]:
            await committed(each)
        await done(leader, 3)


async def test_updates_are_committed_over_a_way_as_long_as_the_election_timeout_permits(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Given an election timeout from 2 s on and a round trip of 800 ms, then an append is not taken for lost."""
    del autojump_clock
    async with trio.open_nursery() as nursery:
        group = Group(tmp_path, nursery, MemoryNetwork(delay_s=0.4), times=core_options((2000, 3000)))
        await group.start(1, 2, 3)
        leader = await group.leader()
        for counter in range(3):
            await done(leader, counter)
        assert leader.leads
        nursery.cancel_scope.cancel()


def test_a_longer_election_timeout_gives_answers_more_time_and_the_default_keeps_the_packages_times() -> None:
    """Of appends, heartbeats, chunks, and of the question who the members are."""
    assert (core_options((200, 300)).retry_ms, PeerTimes.for_retry(140)) == (140, PeerTimes())
    slow = PeerTimes.for_retry(core_options((2000, 3000)).retry_ms)
    assert (slow.heartbeat_ms, slow.chunk_ms, slow.configuration_ms) == (500, 1000, 1000)


async def test_a_restart_remembers_what_was_executed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The table is made of the log again."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        indexes = [await done(leader, counter) for counter in range(5)]
        await group.stop(*group.nodes.values())
        await group.start(1, 2, 3)
        leader = await group.leader()
        assert [await committed(leader.update(counter)) for counter in range(5)] == indexes
        assert len(await leader.updates()) == 5


async def test_a_new_leader_waits_for_the_entries_that_it_inherited(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """No update is executed twice over a change of leaders.

    Given an update that both followers stored and neither knows to be committed, when the leader stops and the
    client repeats the update at its successor at once, then it gets the index of the inherited entry.
    """
    del autojump_clock
    async with group_of(tmp_path) as group:
        old = await group.leader()
        await done(old, 1)
        lost = old.update(2, b"inherited")
        await until(lambda: all(node.log.describe().last_index == 2 for node in group.nodes.values()))
        await group.stop(old)
        assert UpdateCommitted not in map(type, lost)
        successor = await group.leader()
        raft = successor.server.describe().raft
        assert raft.last.index > raft.commit_index
        answers, new = successor.update(2, b"inherited"), successor.update(3, b"new")
        assert answers == [UpdateAccepted(request_id(2))]
        assert await committed(answers) < await committed(new)
        assert [data for _, data in await successor.updates()] == [b"x", b"inherited", b"new"]


async def test_an_accepted_update_that_the_new_leader_cannot_take_gets_a_final_answer(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a leader whose disk is full when it has applied what it inherited, then what waited is sent elsewhere."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        old = await group.leader()
        old.update(1, b"inherited")
        await until(lambda: all(node.log.describe().last_index == 1 for node in group.nodes.values()))
        await group.stop(old)
        successor = await group.leader()
        answers = successor.update(2)
        assert answers == [UpdateAccepted(request_id(2))]
        monkeypatch.setattr(successor.server, "_is_overloaded", lambda: True)
        await until(lambda: len(answers) > 1)
        assert answers[1:] == [UpdateRedirect(request_id(2), None)]
        monkeypatch.undo()
        assert await done(successor, 2) == successor.log.describe().last_applied


async def test_a_leader_without_a_majority_hands_its_clients_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Given a leader whose followers are gone, when it steps down, then each update is redirected and done once."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        await done(leader, 1)
        held = [leader.update(counter) for counter in range(2, 6)]
        await group.stop(*(node for node in group.nodes.values() if node is not leader))
        held += [leader.update(counter) for counter in range(6, 9)]
        await until(lambda: not leader.leads)
        assert all(type(answers[-1]) is UpdateRedirect for answers in held)
        await group.start(*({1, 2, 3} - {int(name) for name in group.nodes}))
        successor = await group.leader()
        for counter in range(2, 9):
            await done(successor, counter)
        ids = [known for known, _ in await successor.updates()]
        assert sorted(ids) == sorted(request_id(counter) for counter in range(1, 9))


async def test_an_update_that_waits_for_its_batch_when_the_role_changes_is_never_appended(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """If the server led again when the batch is due, another leader could have executed the repeat meanwhile."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        await done(leader, 1)
        in_flight = leader.update(2)
        await trio.sleep(0.002)
        waiting = [leader.update(counter) for counter in (3, 4)]
        leader.log.role_changed(RoleChanged(Role.FOLLOWER, leader.server.role.term + 1, None))
        for answers in (in_flight, *waiting):
            assert type(answers[-1]) is UpdateRedirect
        await trio.sleep(1)
        assert [known for known, _ in await leader.updates()] == [request_id(1), request_id(2)]


async def test_a_bounded_table_forgets_the_oldest_and_refuses_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Given a table of 32 ids, then an update that fell out of it is expired, and not executed a second time."""
    del autojump_clock
    async with group_of(tmp_path, 1, table_limit=32) as group:
        leader = await group.leader()
        for counter in range(80):
            await committed(leader.update(counter, age_s=1000 - counter))
        assert leader.update(0, age_s=1000) == [UpdateExpired(request_id(0, 1000))]
        assert type(leader.update(79, age_s=921)[0]) is UpdateCommitted
        assert leader.log.describe().prune_index == 0


async def test_what_has_expired_may_be_pruned(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """By the clock and by the newest id in the log: the prune index stays below the first that is fresh by either."""
    del autojump_clock
    async with group_of(tmp_path, 1) as group:
        leader = await group.leader()
        for counter in range(3):
            await done(leader, counter)
        assert leader.log.describe().prune_index == 0
        group.clock_ahead_s = 8 * HOUR_S + 1
        assert leader.log.describe().prune_index == 0
        index = await committed(leader.update(9, age_s=-8 * HOUR_S - 1))
        assert leader.log.describe().prune_index == index - 1


async def test_a_cluster_may_remember_ids_for_another_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Given a day, then an id of ten hours ago is taken, found again, and keeps its entry out of a snapshot."""
    del autojump_clock
    async with group_of(tmp_path, 1, options=LogOptions(window=Window.of_ttl(24 * HOUR_S * 1000))) as group:
        leader = await group.leader()
        index = await committed(leader.update(1, age_s=10 * HOUR_S))
        assert leader.update(1, age_s=10 * HOUR_S) == [UpdateCommitted(request_id(1, 10 * HOUR_S), index)]
        assert leader.log.describe().prune_index == index - 1
        group.clock_ahead_s = 14 * HOUR_S + 1
        await committed(leader.update(2, age_s=-14 * HOUR_S - 1))
        assert leader.log.describe().prune_index == index
