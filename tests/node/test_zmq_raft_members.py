"""Changes of the members of a plain replicated log, with the replies of the package."""

from pathlib import Path

import trio
from trio.testing import MockClock

from consensus.core.effects import Role, RoleChanged
from consensus.core.model import EntryKind, Index
from consensus.protocols.zmq_raft.peer.executed_requests import request_id_of
from consensus.protocols.zmq_raft.wire.messages import (
    ChangeAccepted,
    ChangeBusy,
    ChangeCommitted,
    ChangeExpired,
    ChangeRedirect,
    ChangeRefused,
    ChangeReply,
    MalformedPeers,
    Peer,
    UpdateAccepted,
)
from consensus.protocols.zmq_raft.wire.request_ids import NO_REQUEST_ID
from tests.node.memory_server import until
from tests.node.test_zmq_raft_replicated_log import commit, group_of
from tests.node.zmq_raft_group import peer, request_id

INCONSISTENT = "new peers must be consistent with current configuration"


async def final(answers: list[ChangeReply]) -> ChangeReply:
    await until(lambda: bool(answers) and type(answers[-1]) is not ChangeAccepted)
    return answers[-1]


async def final_index(answers: list[ChangeReply]) -> Index:
    answer = await final(answers)
    assert isinstance(answer, ChangeCommitted), answer
    return answer.index


async def test_entry_of_joint_configuration_carries_request_id(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The change is committed with C_old,new. The entry C_new after it does not carry an id."""
    async with group_of(tmp_path) as (group, leader):
        await commit(leader, 1)
        await group.start(4)
        answers = leader.change(2, map(peer, (1, 2, 3, 4)))
        assert answers == [ChangeAccepted(request_id(2))]
        index = await final_index(answers)
        await until(lambda: not leader.server.describe().raft.configuration.is_joint)
        await until(lambda: leader.log.describe().commit > index)
        changes = [entry for entry in await leader.entries(index) if entry.kind == EntryKind.CONFIGURATION]
        assert [request_id_of(entry) for entry in changes] == [request_id(2), NO_REQUEST_ID]
        assert leader.log.describe().peers == tuple(map(peer, (1, 2, 3, 4)))
        newcomer = group.nodes["4"]
        await until(lambda: newcomer.log.describe().last_applied > index)
        assert leader.change(2, map(peer, (1, 2, 3, 4))) == [ChangeCommitted(request_id(2), index)]


async def test_other_change_refused_as_busy_during_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The change waits for the newcomer, which is not running yet. A repeat of the change is accepted."""
    async with group_of(tmp_path) as (group, leader):
        first = leader.change(1, map(peer, (1, 2, 3, 4)))
        assert leader.change(2, map(peer, (1, 2))) == [ChangeBusy(request_id(2))]
        repeat = leader.change(1, map(peer, (1, 2, 3, 4)))
        await trio.sleep(1)
        assert repeat == [ChangeAccepted(request_id(1))]
        await group.start(4)
        await final_index(repeat)
        assert first == [ChangeAccepted(request_id(1))]


async def test_redirected_change_not_carried_out_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The client of a queued change is redirected, and another leader may have carried the change out since then."""
    async with group_of(tmp_path) as (_, leader):
        await commit(leader, 1)
        answers = leader.change(2, map(peer, (1, 2)))
        role = leader.server.role
        leader.log.role_changed(RoleChanged(Role.FOLLOWER, role.term, None))
        leader.log.role_changed(role)
        assert type(answers[-1]) is ChangeRedirect
        await commit(leader, 3)
        assert leader.log.describe().peers == tuple(map(peer, (1, 2, 3)))


async def test_invalid_changes_refused_with_their_reasons(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The texts about invalid peers, conflicts of ids and URLs, and equal members are the package's."""
    async with group_of(tmp_path) as (group, leader):
        follower = next(node for node in group.nodes.values() if not node.leads)
        await until(lambda: follower.server.role.leader is not None)
        name = next(name for name, node in group.nodes.items() if node is leader)
        members = tuple(map(peer, (1, 2, 3, 4)))
        expired = 9 * 3600
        assert follower.change(1, members) == [ChangeRedirect(request_id(1), name)]
        assert leader.change(1, members, expired) == [ChangeExpired(request_id(1, expired))]
        assert leader.change(1, MalformedPeers("TypeError", "peers must be an array")) == [
            ChangeRefused(request_id(1), "TypeError", "peers must be an array")
        ]
        for conflict in (Peer("1", peer(4).url), Peer("4", peer(1).url)):
            answers = leader.change(1, (conflict, peer(2), peer(3)))
            assert answers == [ChangeRefused(request_id(1), "AssertionError", INCONSISTENT)]
        answers_to_same = leader.change(1, map(peer, (1, 2, 3)))
        assert answers_to_same == [ChangeRefused(request_id(1), "Error", "no change in cluster membership")]


async def test_change_with_id_of_update_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A pending update with the same id blocks the change. Later the reply is the update's index, as in the package."""
    async with group_of(tmp_path) as (_, leader):
        update = leader.update(1)
        assert type(leader.change(1, map(peer, (1, 2)))[0]) is ChangeRefused
        await until(lambda: type(update[-1]) is not UpdateAccepted)
        assert type(leader.change(1, map(peer, (1, 2)))[0]) is ChangeCommitted


async def test_unresponsive_peer_not_added(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The members do not change, the client receives the reason, and the next change succeeds."""
    async with group_of(tmp_path) as (_, leader):
        answer = await final(leader.change(1, map(peer, (1, 2, 3, 9))))
        assert isinstance(answer, ChangeRefused)
        assert "start it before" in answer.message
        assert leader.log.describe().peers == tuple(map(peer, (1, 2, 3)))
        await final_index(leader.change(2, map(peer, (1, 2))))


async def test_replaced_leader_returns_index_and_steps_down(tmp_path: Path, autojump_clock: MockClock) -> None:
    """All members can be replaced together; the new members do not execute a repeated request again."""
    async with group_of(tmp_path) as (group, leader):
        index = await commit(leader, 1)
        await group.start(4, 5, 6)
        await final_index(leader.change(2, map(peer, (4, 5, 6))))
        newcomers = [group.nodes[name] for name in "456"]
        await until(lambda: any(node.leads for node in newcomers))
        successor = next(node for node in newcomers if node.leads)
        assert leader.server.role.role is Role.FOLLOWER
        await group.stop(*(group.nodes[name] for name in "123"))
        assert await commit(successor, 1) == index
        await commit(successor, 3)


async def test_change_finished_by_next_leader(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Given C_old,new on a majority when the leader stops, the next leader returns the index of C_old,new."""
    async with group_of(tmp_path) as (group, leader):
        await commit(leader, 1)
        answers = leader.change(2, map(peer, (1, 2)))
        nodes = group.nodes.values()
        await until(lambda: all(node.server.describe().raft.configuration.is_joint for node in nodes), step_s=0.001)
        joint = leader.server.describe().raft
        assert joint.commit_index < joint.last.index
        name = next(name for name, node in group.nodes.items() if node is leader)
        await group.stop(leader)
        await group.start(int(name))
        successor = await group.leader()
        repeat = successor.change(2, map(peer, (1, 2)))
        assert await final_index(repeat) == joint.last.index
        assert type(answers[0]) is ChangeAccepted
        await until(lambda: successor.log.describe().peers == (peer(1), peer(2)))
