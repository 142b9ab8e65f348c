"""Changes of the members of a plain replicated log, with the answers that the package gives."""

from pathlib import Path

import trio
import trio.testing

from consensus.core.effects import Role
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
from tests.node.test_zmq_raft_replicated_log import done, group_of
from tests.node.zmq_raft_group import peer, request_id, until

INCONSISTENT = "new peers must be consistent with current configuration"


async def final(answers: list[ChangeReply]) -> ChangeReply:
    await until(lambda: bool(answers) and type(answers[-1]) is not ChangeAccepted)
    return answers[-1]


async def committed(answers: list[ChangeReply]) -> Index:
    answer = await final(answers)
    assert isinstance(answer, ChangeCommitted), answer
    return answer.index


async def test_a_new_member_joins_and_the_entry_of_both_configurations_carries_the_id(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Accepted at once; committed with C_old,new; the one that follows has no id."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        await done(leader, 1)
        await group.start(4)
        answers = leader.change(2, map(peer, (1, 2, 3, 4)))
        assert answers == [ChangeAccepted(request_id(2))]
        index = await committed(answers)
        await until(lambda: not leader.server.describe().raft.configuration.is_joint)
        await until(lambda: leader.log.describe().commit > index)
        changes = [entry for entry in await leader.entries(index) if entry.kind == EntryKind.CONFIGURATION]
        assert [request_id_of(entry) for entry in changes] == [request_id(2), NO_REQUEST_ID]
        assert leader.log.describe().peers == tuple(map(peer, (1, 2, 3, 4)))
        newcomer = group.nodes["4"]
        await until(lambda: newcomer.log.describe().last_applied > index)
        assert leader.change(2, map(peer, (1, 2, 3, 4))) == [ChangeCommitted(request_id(2), index)]


async def test_while_a_change_is_under_way_a_repeat_is_accepted_and_another_is_refused_as_busy(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The newcomer does not run yet, so the change waits for it."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        first = leader.change(1, map(peer, (1, 2, 3, 4)))
        assert leader.change(2, map(peer, (1, 2))) == [ChangeBusy(request_id(2))]
        repeat = leader.change(1, map(peer, (1, 2, 3, 4)))
        await trio.sleep(1)
        assert repeat == [ChangeAccepted(request_id(1))]
        await group.start(4)
        await committed(repeat)
        assert first == [ChangeAccepted(request_id(1))]


async def test_the_five_answers_to_a_change_that_cannot_begin(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Not a leader, expired, peers that are none, and conflicts of ids and URLs in the package's words."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        follower = next(node for node in group.nodes.values() if not node.leads)
        await until(lambda: follower.server.role.leader is not None)
        name = next(name for name, node in group.nodes.items() if node is leader)
        wanted = tuple(map(peer, (1, 2, 3, 4)))
        expired = 9 * 3600
        assert follower.change(1, wanted) == [ChangeRedirect(request_id(1), name)]
        assert leader.change(1, wanted, expired) == [ChangeExpired(request_id(1, expired))]
        assert leader.change(1, MalformedPeers("TypeError", "peers must be an array")) == [
            ChangeRefused(request_id(1), "TypeError", "peers must be an array")
        ]
        for conflict in (Peer("1", peer(4).url), Peer("4", peer(1).url)):
            answers = leader.change(1, (conflict, peer(2), peer(3)))
            assert answers == [ChangeRefused(request_id(1), "AssertionError", INCONSISTENT)]
        same = leader.change(1, map(peer, (1, 2, 3)))
        assert same == [ChangeRefused(request_id(1), "Error", "no change in cluster membership")]


async def test_the_id_of_an_update_is_none_for_a_change(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Refused while the update is under way; afterwards the answer is its index, as the package answers."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        update = leader.update(1)
        assert type(leader.change(1, map(peer, (1, 2)))[0]) is ChangeRefused
        await until(lambda: type(update[-1]) is not UpdateAccepted)
        assert type(leader.change(1, map(peer, (1, 2)))[0]) is ChangeCommitted


async def test_a_peer_that_never_answers_is_no_member_and_the_client_learns_why(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The group stays as it was, and takes the next change."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        answer = await final(leader.change(1, map(peer, (1, 2, 3, 9))))
        assert isinstance(answer, ChangeRefused)
        assert "start it before" in answer.message
        assert leader.log.describe().peers == tuple(map(peer, (1, 2, 3)))
        await committed(leader.change(2, map(peer, (1, 2))))


async def test_a_leader_that_is_replaced_answers_with_the_index_and_steps_down(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Peer by peer the whole group can be replaced; nothing that was executed is executed again."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        index = await done(leader, 1)
        await group.start(4, 5, 6)
        await committed(leader.change(2, map(peer, (4, 5, 6))))
        newcomers = [group.nodes[name] for name in "456"]
        await until(lambda: any(node.leads for node in newcomers))
        successor = next(node for node in newcomers if node.leads)
        assert leader.server.role.role is Role.FOLLOWER
        await group.stop(*(group.nodes[name] for name in "123"))
        assert await done(successor, 1) == index
        await done(successor, 3)


async def test_a_change_that_the_old_leader_began_is_finished_by_the_next_one(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The client gets one answer, also if the leader changes meanwhile.

    Given C_old,new stored by a majority when the leader stops, when the client repeats the change at its
    successor, then it gets the index of that entry.
    """
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        await done(leader, 1)
        answers = leader.change(2, map(peer, (1, 2)))
        await until(lambda: all(node.server.describe().raft.configuration.is_joint for node in group.nodes.values()))
        joint = leader.server.describe().raft
        assert joint.commit_index < joint.last.index
        name = next(name for name, node in group.nodes.items() if node is leader)
        await group.stop(leader)
        await group.start(int(name))
        successor = await group.leader()
        repeat = successor.change(2, map(peer, (1, 2)))
        assert await committed(repeat) == joint.last.index
        assert type(answers[0]) is ChangeAccepted
        await until(lambda: successor.log.describe().peers == (peer(1), peer(2)))
