"""A server that stores a log as the running implementation does takes ours, and does not die of it.

`RawOffsetServer` keeps the offsets of log packs as they come, executes whole packs, and knows neither TLS, handshake,
extensions nor proofs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from consensus.core.position import ServerId
from consensus.node.garlic_farm_client import GarlicFarmClient
from consensus.node.garlic_farm_guests import PACKED_ENTRIES_MAX
from consensus.node.member_client import ask_to_add
from consensus.wire.garlic_farm.values import ClusterServer
from tests.node.loopback_group import CALM, Life, LoopbackGroup
from tests.node.raw_offset_server import RawOffsetServer, Said
from tests.node.test_joining import group, leading, submit, until_level, until_members

THEIRS = ServerId(4)


@asynccontextmanager
async def joining(
    path: Path, before: int, their: RawOffsetServer, *, compacted: bool = False
) -> AsyncIterator[tuple[Life, GarlicFarmClient, list[bytes]]]:
    """Three servers with `before` entries in their log; `their` server has been asked to be added to them."""
    async with group(path, tuning=CALM) as (servers, client, nursery):
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
