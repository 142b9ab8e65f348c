"""What subscribers of a plain replicated log are told: every applied entry, by the leader, and that it still leads."""

from pathlib import Path

import trio
import trio.testing

from consensus.core.model import Entry
from consensus.protocols.zmq_raft.wire.messages import StateBroadcast
from tests.node.test_zmq_raft_replicated_log import done, group_of
from tests.node.zmq_raft_group import IDENT, Node, until


def told(node: Node) -> dict[int, Entry]:
    """The entries that a subscriber heard, by index, after a check that no message contradicts itself."""
    entries: dict[int, Entry] = {}
    for message in node.broadcasts:
        assert message.ident == IDENT
        for index, entry in enumerate(message.entries, message.last_applied - len(message.entries) + 1):
            assert entries.setdefault(index, entry) == entry
    return entries


async def test_a_subscriber_hears_each_entry_without_a_gap(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The message after each application ends at the entry that was applied last."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        for counter in range(20):
            await done(leader, counter)
        entries = await leader.entries()
        assert told(leader) == dict(enumerate(entries, 1))
        last = [message.last_applied for message in leader.broadcasts]
        assert last == sorted(last)
        assert leader.broadcasts[-1].term == leader.server.role.term


async def test_only_the_leader_sends_and_every_half_second_it_says_that_it_does(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The message without entries tells the term and the entry that was applied last."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        leader = await group.leader()
        index = await done(leader, 1)
        before = len(leader.broadcasts)
        await trio.sleep(5.2)
        assert (
            leader.broadcasts[before:]
            == [StateBroadcast(ident=IDENT, term=leader.server.role.term, last_applied=index)] * 10
        )
        assert [node.broadcasts for node in group.nodes.values() if node is not leader] == [[], []]


async def test_the_next_leader_says_at_once_how_far_it_is_and_the_entries_go_on_there(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A subscriber that knows the entries of the first leader lacks none behind the first message of the second."""
    del autojump_clock
    async with group_of(tmp_path) as group:
        old = await group.leader()
        for counter in range(3):
            await done(old, counter)
        heard = told(old)
        await group.stop(old)
        successor = await group.leader()
        await until(lambda: bool(successor.broadcasts))
        first = successor.broadcasts[0]
        await done(successor, 9)
        heard |= told(successor)
        known = {index for index in heard if index <= first.last_applied}
        assert known == set(range(1, first.last_applied + 1))
        assert list(heard.values()) == await successor.entries()


async def test_a_large_application_is_told_in_messages_of_a_bounded_size(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """In order, and without a gap between them."""
    del autojump_clock
    async with group_of(tmp_path, 1) as group:
        leader = await group.leader()
        answers = [leader.update(counter, b"z" * 10_000) for counter in range(30)]
        await until(lambda: len(answers[-1]) > 1)
        assert max(sum(len(entry.data) for entry in message.entries) for message in leader.broadcasts) <= 64 * 1024
        assert told(leader) == dict(enumerate(await leader.entries(), 1))
