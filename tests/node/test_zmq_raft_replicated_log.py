"""Updates of a plain replicated log: each is executed once, even after failed servers and lost replies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from consensus.core.effects import Role, RoleChanged
from consensus.core.model import Entry, Index
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
from tests.node.memory_server import until
from tests.node.zmq_raft_group import Group, Node, request_id

HOUR_S = 3600


@asynccontextmanager
async def group_of(
    path: Path, count: int = 3, table_limit: int = 1000, options: LogOptions | None = None
) -> AsyncIterator[tuple[Group, Node]]:
    """Run a group, and yield it with its leader."""
    async with trio.open_nursery() as nursery:
        group = Group(path, nursery, table_limit=table_limit, options=options or LogOptions())
        await group.start(*range(1, count + 1), founders=count)
        yield group, await group.leader()
        nursery.cancel_scope.cancel()


async def final_index(answers: list[UpdateReply]) -> Index:
    await until(lambda: type(answers[-1]) is not UpdateAccepted)
    final = answers[-1]
    assert isinstance(final, UpdateCommitted), final
    return final.index


async def commit(node: Node, counter: int, data: bytes = b"x") -> Index:
    return await final_index(node.update(counter, data))


async def test_update_readable_when_reported_committed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Given an accepted update, when the leader replies with its index, then the entry is applied there."""
    async with group_of(tmp_path) as (_, leader):
        answers = leader.update(1, b"data")
        assert answers == [UpdateAccepted(request_id(1))]
        index = await final_index(answers)
        assert (await leader.entries(index))[0].data == request_id(1) + b"data"
        assert leader.log.describe().last_applied >= index


async def test_repeat_gets_index_of_first_update(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A repeat of a pending update is accepted, and only the last repeat gets the final reply."""
    async with group_of(tmp_path) as (_, leader):
        first, second = leader.update(1), leader.update(1)
        index = await final_index(second)
        assert (first, second[0]) == ([UpdateAccepted(request_id(1))], UpdateAccepted(request_id(1)))
        assert leader.update(1) == [UpdateCommitted(request_id(1), index)]
        assert len(await leader.updates()) == 1


async def test_follower_names_leader_also_for_expired_id(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Only a leader checks a request id, as in the npm package."""
    async with group_of(tmp_path) as (group, leader):
        await commit(leader, 1)
        follower = next(node for node in group.nodes.values() if not node.leads)
        await until(lambda: follower.server.role.leader is not None)
        name = next(name for name, node in group.nodes.items() if node is leader)
        for age_s in (0, 9 * HOUR_S):
            assert follower.update(2, age_s=age_s) == [UpdateRedirect(request_id(2, age_s), name)]


async def test_id_outside_window_expired_unless_in_log(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The window is 7 h 45 min back and 15 min ahead; the ids are a minute inside and outside of it."""
    async with group_of(tmp_path, 1) as (group, leader):
        for age_s in (8 * HOUR_S - 14 * 60, -16 * 60):
            assert leader.update(1, age_s=age_s) == [UpdateExpired(request_id(1, age_s))]
        edges = {age_s: await final_index(leader.update(1, age_s=age_s)) for age_s in (8 * HOUR_S - 16 * 60, -14 * 60)}
        group.clock_ahead_s = 5 * 60
        for age_s, index in edges.items():
            assert leader.update(1, age_s=age_s) == [UpdateCommitted(request_id(1, age_s), index)]


async def test_fault_in_watcher_does_not_end_server(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(first: Index, _entries: tuple[Entry, ...]) -> None:
        raise RuntimeError(f"entry {first} cannot be sent")

    async with group_of(tmp_path, 1) as (_, leader):
        leader.machine.watchers.insert(0, fail)
        assert await commit(leader, 1) < await commit(leader, 2)
    assert caplog.text.count("cannot be sent") >= 2


async def test_update_without_data_ignored(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An entry without data would stop a server of the npm package."""
    async with group_of(tmp_path, 1) as (_, leader):
        assert leader.update(1, b"") == []
        assert await leader.entries() == []


async def test_updates_beyond_limit_ignored_until_others_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A client without a reply repeats its request, and the leader then accepts it."""
    async with group_of(tmp_path, options=LogOptions(max_updates=2)) as (_, leader):
        answers = [leader.update(counter) for counter in (1, 2, 3)]
        assert answers[2] == []
        for each in answers[:2]:
            await final_index(each)
        await commit(leader, 3)


async def test_updates_committed_over_slow_link(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """With an election timeout of 2 to 3 s, the leader does not treat an append as lost within 800 ms."""
    group = Group(tmp_path, nursery, MemoryNetwork(delay_s=0.4), times=core_options((2000, 3000)))
    await group.start(1, 2, 3)
    leader = await group.leader()
    for counter in range(3):
        await commit(leader, counter)
    assert leader.leads


def test_reply_times_grow_with_election_timeout() -> None:
    """With the default timeout, the times equal the times of the npm package."""
    assert core_options((200, 300)).retry_ms == 140
    assert PeerTimes.for_options(core_options((200, 300))) == PeerTimes()
    slow = PeerTimes.for_options(core_options((2000, 3000)))
    assert (slow.heartbeat_ms, slow.chunk_ms, slow.configuration_ms) == (500, 1000, 1000)
    assert slow.vote_ms * slow.repeats == 3000
    assert PeerTimes.for_options(core_options((20_000, 30_000))).lost_ms == 20_000
    assert PeerTimes.for_options(core_options((200, 3000))).vote_ms * slow.repeats == 3000


async def test_executed_requests_known_after_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A restarted server rebuilds its table of request ids from the log."""
    async with group_of(tmp_path) as (group, leader):
        indexes = [await commit(leader, counter) for counter in range(5)]
        await group.stop(*group.nodes.values())
        await group.start(1, 2, 3)
        successor = await group.leader()
        assert [await final_index(successor.update(counter)) for counter in range(5)] == indexes
        assert len(await successor.updates()) == 5


async def test_new_leader_waits_for_inherited_entries(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Updates are executed once across a change of leaders.

    Given an update that both followers have stored, and that the leader has not reported as committed.
    When the leader stops, and the client immediately repeats the update at the next leader.
    Then the client receives the index of the inherited entry.
    """
    async with group_of(tmp_path) as (group, old):
        await commit(old, 1)
        unanswered = old.update(2, b"inherited")
        await until(lambda: all(node.log.describe().last_index == 2 for node in group.nodes.values()))
        await group.stop(old)
        assert UpdateCommitted not in map(type, unanswered)
        successor = await group.leader()
        raft = successor.server.describe().raft
        assert raft.last.index > raft.commit_index
        answers, new = successor.update(2, b"inherited"), successor.update(3, b"new")
        assert answers == [UpdateAccepted(request_id(2))]
        assert await final_index(answers) < await final_index(new)
        assert [data for _, data in await successor.updates()] == [b"x", b"inherited", b"new"]


async def test_accepted_update_redirected_by_overloaded_leader(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an update that waits for inherited entries, when the leader is overloaded, then it redirects the update."""
    async with group_of(tmp_path) as (group, old):
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
        assert await commit(successor, 2) == successor.log.describe().last_applied


async def test_leader_without_majority_redirects_updates(tmp_path: Path, autojump_clock: MockClock) -> None:
    """When a leader without followers steps down, then it redirects each update, and a repeat is executed once."""
    async with group_of(tmp_path) as (group, leader):
        await commit(leader, 1)
        pending = [leader.update(counter) for counter in range(2, 6)]
        await group.stop(*(node for node in group.nodes.values() if node is not leader))
        pending += [leader.update(counter) for counter in range(6, 9)]
        await until(lambda: not leader.leads)
        assert all(type(answers[-1]) is UpdateRedirect for answers in pending)
        await group.start(*({1, 2, 3} - {int(name) for name in group.nodes}))
        successor = await group.leader()
        for counter in range(2, 9):
            await commit(successor, counter)
        ids = [known_id for known_id, _ in await successor.updates()]
        assert sorted(ids) == sorted(request_id(counter) for counter in range(1, 9))


async def test_queued_update_not_appended_after_role_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Another leader may execute the repeat before this server leads again, so queued updates are dropped."""
    async with group_of(tmp_path) as (_, leader):
        await commit(leader, 1)
        in_flight = leader.update(2)
        await trio.sleep(0.002)
        queued = [leader.update(counter) for counter in (3, 4)]
        leader.log.role_changed(RoleChanged(Role.FOLLOWER, leader.server.role.term + 1, None))
        for answers in (in_flight, *queued):
            assert type(answers[-1]) is UpdateRedirect
        await trio.sleep(1)
        assert [known_id for known_id, _ in await leader.updates()] == [request_id(1), request_id(2)]


async def test_full_table_drops_oldest_ids_and_refuses_them(tmp_path: Path, autojump_clock: MockClock) -> None:
    """With a table of 32 ids, a repeat of a dropped update is expired, and not executed again."""
    async with group_of(tmp_path, 1, table_limit=32) as (_, leader):
        for counter in range(80):
            await final_index(leader.update(counter, age_s=1000 - counter))
        assert leader.update(0, age_s=1000) == [UpdateExpired(request_id(0, 1000))]
        assert type(leader.update(79, age_s=921)[0]) is UpdateCommitted
        assert leader.log.describe().prune_index == 0


async def test_prune_index_follows_expired_ids(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The prune index stays below the first entry with an id that is fresh by the clock or by the newest id."""
    async with group_of(tmp_path, 1) as (group, leader):
        for counter in range(3):
            await commit(leader, counter)
        assert leader.log.describe().prune_index == 0
        group.clock_ahead_s = 8 * HOUR_S + 1
        assert leader.log.describe().prune_index == 0
        index = await final_index(leader.update(9, age_s=-8 * HOUR_S - 1))
        assert leader.log.describe().prune_index == index - 1


async def test_window_of_ids_configurable(tmp_path: Path, autojump_clock: MockClock) -> None:
    """With a window of a day, an id of ten hours ago is accepted, found again, and excluded from a snapshot."""
    async with group_of(tmp_path, 1, options=LogOptions(window=Window.of_ttl(24 * HOUR_S * 1000))) as (group, leader):
        index = await final_index(leader.update(1, age_s=10 * HOUR_S))
        assert leader.update(1, age_s=10 * HOUR_S) == [UpdateCommitted(request_id(1, 10 * HOUR_S), index)]
        assert leader.log.describe().prune_index == index - 1
        group.clock_ahead_s = 14 * HOUR_S + 1
        await final_index(leader.update(2, age_s=-14 * HOUR_S - 1))
        assert leader.log.describe().prune_index == index
