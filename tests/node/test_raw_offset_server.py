"""A server that stores a log as the running implementation does takes ours, and does not die of it.

`RawOffsetServer` keeps the offsets of log packs as they come, executes whole packs, and knows neither TLS, handshake,
extensions nor proofs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from consensus.core.effects import Role
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.joining_peers import PACKED_ENTRIES_MAX
from consensus.protocols.garlic_farm.node.membership_client import ask_to_add
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.values import ClusterServer
from tests.node.loopback_group import CALM, Life, LoopbackGroup
from tests.node.raw_offset_server import RawOffsetServer, Said
from tests.node.test_joining import group, leading, submit, until_level, until_members

THEIRS, FIFTH = 4, 5


@asynccontextmanager
async def joining(
    path: Path, before: int, their: RawOffsetServer, *, compacted: bool = False
) -> AsyncIterator[tuple[Life, GarlicFarmClient, list[bytes]]]:
    """Three servers with `before` entries in their log; `their` server has been asked to be added to them."""
    async with group(path, options=CALM) as (servers, client, nursery):
        commands = [b'{"entry":%d}' % number * (1 + number % 7) for number in range(before)]
        await submit(client, commands)
        leader = await leading(servers)
        if compacted:
            await until_level(leader)
            assert await leader.server.take_snapshot() is not None
            assert leader.server.describe().raft.snapshot is not None
        await ask(servers, client, nursery, their)
        yield leader, client, commands
        assert their.death is None


async def ask(servers: LoopbackGroup, client: GarlicFarmClient, nursery: trio.Nursery, their: RawOffsetServer) -> None:
    servers.plain[THEIRS] = ("127.0.0.1", await nursery.start(their.listen))
    asked = await ask_to_add(client, ClusterServer(THEIRS, "tcp://127.0.0.1:4"))
    assert asked.begun, asked.reason


@pytest.mark.parametrize("elects_itself", [False, True], ids=["empty", "has elected itself"])
async def test_its_files_hold_our_log_after_several_packs(tmp_path: Path, elects_itself: bool) -> None:  # noqa: FBT001
    their = RawOffsetServer(THEIRS, elects_itself=elects_itself)
    async with joining(tmp_path, 1500, their) as (leader, client, commands):
        await until_members(leader, 1, 2, 3, 4)
        after = [b"after %d" % number for number in range(200)]
        await submit(client, after)
        await their.until(lambda: len(their.executed) == len(commands + after))
        assert their.packs >= 3
        assert their.executed == their.commands() == commands + after
        assert their.members == (1, 2, 3, 4)
        # and nothing was said to it before it had accepted the invitation
        assert their.heard[:2] == [Said.JOIN, Said.SYNC_LOG]


async def test_its_files_hold_our_log_after_a_snapshot(tmp_path: Path) -> None:
    their = RawOffsetServer(THEIRS, elects_itself=True)
    async with joining(tmp_path, 600, their, compacted=True) as (leader, client, _):
        await until_members(leader, 1, 2, 3, 4)
        after = [b"after %d" % number for number in range(700)]
        await submit(client, after)
        await their.until(lambda: their.executed[-1:] == after[-1:])
        assert their.snapshot
        assert their.start > 600
        assert their.commands() == after
        assert their.executed == after


async def test_after_a_broken_connection_it_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    their = RawOffsetServer(THEIRS, break_after={Said.SYNC_LOG})
    async with joining(tmp_path, 2500, their) as (leader, _, commands):
        await until_members(leader, 1, 2, 3, 4)
        await their.until(lambda: len(their.executed) == len(commands))
        assert their.executed == their.commands() == commands
        assert their.heard.count(Said.JOIN) == 2


async def test_one_that_writes_its_own_snapshot_meanwhile_gets_appends_after_a_number_of_packs(tmp_path: Path) -> None:
    """Its data file shrinks then, so that no offset which we could name would be right."""
    their = RawOffsetServer(THEIRS, compact_after=PACKED_ENTRIES_MAX)
    async with joining(tmp_path, 9000, their) as (leader, client, commands):
        await until_members(leader, 1, 2, 3, 4)
        await submit(client, [b"end"])
        await their.until(lambda: their.executed[-1:] == [b"end"])
        assert their.executed == [*commands, b"end"]
        assert their.compacted > 0
        assert Said.APPEND in their.heard
        stored = their.commands()
        assert stored == their.executed[-len(stored) :]


async def test_as_a_leader_it_brings_a_server_of_ours_up_without_a_handshake(tmp_path: Path) -> None:
    """Its packs carry the offsets of its own data file, and no term of the entry before."""
    their = RawOffsetServer(THEIRS, elects_itself=True)
    for number in range(400):
        their.submit(b"theirs %d" % number)
    async with group(tmp_path, options=CALM) as (servers, _, _):
        servers.plain[THEIRS] = ("127.0.0.1", 9)
        life = await servers.start(FIFTH)
        stream = await trio.open_tcp_stream("127.0.0.1", servers.plain_ports[FIFTH])
        async with stream:
            # when it invites ours, and hands it its log in packs as they lie in its files, and then in appends
            assert await their.says(stream, FIFTH, Said.JOIN, 0, [(1, 2, their.entry(1)[2])]) == (True, 1)
            for first in range(1, their.last - 4, 50):
                pack = their.pack(first, 50)
                assert await their.says(stream, FIFTH, Said.SYNC_LOG, first - 1, [(1, 4, pack)]) == (True, first + 50)
            while (held := life.server.describe().raft.last.index) < their.last:
                rest = [their.entry(index) for index in range(held + 1, their.last + 1)]
                assert await their.says(stream, FIFTH, Said.APPEND, held, rest) == (True, their.last + 1)
        await life.server.wait_applied(their.last)
        assert life.executed == their.commands()
        assert life.server.role.role is Role.FOLLOWER
        assert life.server.role.leader == THEIRS


async def test_its_snapshot_is_refused_in_words_and_nothing_is_lost(tmp_path: Path) -> None:
    their = RawOffsetServer(THEIRS, elects_itself=True)
    async with group(tmp_path, options=CALM) as (servers, _, _):
        servers.plain[THEIRS] = ("127.0.0.1", 9)
        life = await servers.start(FIFTH)
        stream = await trio.open_tcp_stream("127.0.0.1", servers.plain_ports[FIFTH])
        async with stream:
            assert await their.says(stream, FIFTH, Said.JOIN, 0, [(1, 2, their.entry(1)[2])]) == (True, 1)
            assert await their.says(stream, FIFTH, Said.SNAPSHOT, 70, [(1, 5, their.chunk(70, b"k:v"))]) is None
        told = [incident.text for incident in servers.incidents if incident.fault is Fault.FOREIGN_SNAPSHOT]
        assert len(told) == 1
        assert "server 4 sends a snapshot of index 70" in told[0]
        assert life.server.describe().raft.snapshot is None
