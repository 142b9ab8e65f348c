"""Changes of the configuration through real servers: a caller of the leader awaits the outcome."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ConfigurationChanged, Role
from consensus.core.model import Configuration, Server, ServerId
from consensus.net.memory import MemoryNetwork
from consensus.server.options import ServerOptions
from tests.node.memory_server import MemoryDisk, Node, build, data, until


def server(number: int) -> Server:
    return Server(number, f"tcp://127.0.0.1:{7000 + number}")


def servers(*numbers: int) -> tuple[Server, ...]:
    return tuple(map(server, numbers))


async def start(nursery: trio.Nursery, founders: int, empty_servers: int) -> dict[ServerId, Node]:
    """Start founders that have each other's addresses, and empty servers that lack addresses."""
    nodes, network = dict[ServerId, Node](), MemoryNetwork()
    for number in range(1, founders + empty_servers + 1):
        server_id = number
        known = Configuration(servers(*range(1, founders + 1)) if number <= founders else ())
        nodes[server_id] = build(server_id, network, MemoryDisk(), configuration=known)
        await nursery.start(nodes[server_id].server.run)
    return nodes


async def leader_of(nodes: dict[ServerId, Node]) -> Node:
    def leaders() -> list[Node]:
        return [node for node in nodes.values() if node.server.role.role is Role.LEADER]

    await until(lambda: bool(leaders()) and leaders()[0].server.commit_index > 0)
    return leaders()[0]


async def test_group_is_replaced_without_losing_entries(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Clients are served before, during and after the change; the first leader is among the removed servers."""
    nodes = await start(nursery, founders=3, empty_servers=3)
    leader = await leader_of(nodes)
    await leader.server.propose((b"before",))
    answer = await leader.server.change_configuration(servers(4, 5, 6))
    assert answer.outcome is ChangeOutcome.COMMITTED
    newcomers = {number: node for number, node in nodes.items() if number not in (1, 2, 3)}
    successor = await leader_of(newcomers)
    await successor.server.propose((b"after",))
    await until(lambda: all(data(node) == [b"before", b"after"] for node in newcomers.values()))
    assert leader.server.role.role is Role.FOLLOWER
    changes = [notice for notice in leader.notices if isinstance(notice, ConfigurationChanged)]
    assert [(notice.configuration.is_joint, len(notice.newcomers)) for notice in changes] == [
        (False, 3),
        (True, 0),
        (False, 0),
    ]


async def test_invalid_change_is_refused_with_reason(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A follower's refusal names the leader."""
    nodes = await start(nursery, founders=3, empty_servers=0)
    leader = await leader_of(nodes)
    follower = next(node for node in nodes.values() if node is not leader)
    await until(lambda: follower.server.role.leader is not None)
    elsewhere = await follower.server.change_configuration(servers(1, 2))
    assert (elsewhere.refusal, elsewhere.leader) == (ChangeRefusal.NOT_LEADER, leader.server.role.leader)
    no_voters = await leader.server.change_configuration(())
    assert (no_voters.outcome, no_voters.refusal) == (ChangeOutcome.REFUSED, ChangeRefusal.NO_VOTERS)


@pytest.mark.parametrize(("changes_max", "refusal"), [(1, ChangeRefusal.BUSY), (2, ChangeRefusal.CHANGE_UNDER_WAY)])
async def test_surplus_changes_are_refused_and_stopped_one_is_unknown(
    changes_max: int, refusal: ChangeRefusal, autojump_clock: MockClock
) -> None:
    """A change that waits when the server stops has the outcome UNKNOWN."""
    options = ServerOptions(max_changes=changes_max)
    answers: list[tuple[ChangeOutcome, ChangeRefusal | None]] = []
    async with trio.open_nursery() as clients, trio.open_nursery() as nursery:
        leader = build(1, MemoryNetwork(), MemoryDisk(), options=options)
        await nursery.start(leader.server.run)
        await leader_of({1: leader})

        async def change(number: int) -> None:
            answer = await leader.server.change_configuration(servers(1, number))
            answers.append((answer.outcome, answer.refusal))

        for number in range(2, 19):
            clients.start_soon(change, number)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(answers, key=str) == [(ChangeOutcome.REFUSED, refusal)] * 16 + [(ChangeOutcome.UNKNOWN, None)]
    late = await leader.server.change_configuration(servers(1))
    assert late.refusal is ChangeRefusal.NOT_LEADER
