"""Broadcasts of a plain replicated log: the leader sends every applied entry, and heartbeats."""

from pathlib import Path

import trio
from trio.testing import MockClock

from consensus.core.model import Entry
from consensus.protocols.zmq_raft.wire.messages import StateBroadcast
from tests.node.memory_server import until
from tests.node.test_zmq_raft_replicated_log import commit, group_of
from tests.node.zmq_raft_group import IDENT, Node


def broadcast_entries(node: Node) -> dict[int, Entry]:
    """Return the broadcast entries by index, and check that messages agree."""
    entries: dict[int, Entry] = {}
    for message in node.broadcasts:
        assert message.ident == IDENT
        for index, entry in enumerate(message.entries, message.last_applied - len(message.entries) + 1):
            assert entries.setdefault(index, entry) == entry
    return entries


async def test_broadcast_has_every_entry_without_gap(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each message ends at the last applied entry."""
    async with group_of(tmp_path) as (_, leader):
        for counter in range(20):
            await commit(leader, counter)
        entries = await leader.entries()
        assert broadcast_entries(leader) == dict(enumerate(entries, 1))
        last = [message.last_applied for message in leader.broadcasts]
        assert last == sorted(last)
        assert leader.broadcasts[-1].term == leader.server.role.term


async def test_heartbeats_are_sent_by_leader_each_half_second(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A heartbeat has the term and the last applied index."""
    async with group_of(tmp_path) as (group, leader):
        index = await commit(leader, 1)
        before = len(leader.broadcasts)
        await trio.sleep(5.2)
        assert (
            leader.broadcasts[before:]
            == [StateBroadcast(ident=IDENT, term=leader.server.role.term, last_applied=index)] * 10
        )
        assert [node.broadcasts for node in group.nodes.values() if node is not leader] == [[], []]


async def test_broadcasts_of_next_leader_continue_without_gap(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Given a subscriber of the first leader, then it has every entry up to the next leader's first message."""
    async with group_of(tmp_path) as (group, old):
        for counter in range(3):
            await commit(old, counter)
        received = broadcast_entries(old)
        await group.stop(old)
        successor = await group.leader()
        await until(lambda: bool(successor.broadcasts))
        first = successor.broadcasts[0]
        await commit(successor, 9)
        received |= broadcast_entries(successor)
        indexes = {index for index in received if index <= first.last_applied}
        assert indexes == set(range(1, first.last_applied + 1))
        assert list(received.values()) == await successor.entries()


async def test_large_batch_broadcast_in_bounded_messages(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The messages are in order and without a gap."""
    async with group_of(tmp_path, 1) as (_, leader):
        answers = [leader.update(counter, b"z" * 10_000) for counter in range(30)]
        await until(lambda: len(answers[-1]) > 1)
        assert max(sum(len(entry.data) for entry in message.entries) for message in leader.broadcasts) <= 64 * 1024
        assert broadcast_entries(leader) == dict(enumerate(await leader.entries(), 1))
