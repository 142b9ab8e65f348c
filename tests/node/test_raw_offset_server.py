"""A server that stores raw offsets and records, like another implementation, accepts our log without a failure.

`RawOffsetServer` stores log packs at their offsets and executes only whole packs. It does not support TLS, the
handshake, extensions or proofs.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from consensus.core.effects import Role
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.node.joining_peers import PACKED_ENTRIES_MAX
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.values import ClusterServer
from tests.node.loopback_group import CALM, LoopbackGroup, Service
from tests.node.membership_client import request_addition, request_removal
from tests.node.raw_offset_server import RawOffsetServer, RequestKind
from tests.node.test_joining import client_as_server, group, leading, submit, until_level, until_members

THEIRS, FIFTH = 4, 5


def entries(count: int) -> list[bytes]:
    return [b'{"entry":%d}' % number * (1 + number % 7) for number in range(count)]


class LargeSnapshotService(Service):
    """A service whose snapshot has many chunks."""

    def snapshot(self) -> Iterator[bytes]:
        """Return random bytes, equal each time."""
        return iter((Random(1).randbytes(600_000),))


@asynccontextmanager
async def joining(
    path: Path,
    before: int,
    their: RawOffsetServer,
    *,
    compacted: bool = False,
    make_service: Callable[[], Service] = Service,
) -> AsyncIterator[tuple[LoopbackGroup, GarlicFarmClient, trio.Nursery]]:
    """Add `their` server to three servers with `before` entries in their log; wait until it is a member."""
    async with group(path, make_service, CALM) as (servers, client, nursery):
        await submit(client, entries(before))
        leader = await leading(servers)
        if compacted:
            await until_level(leader)
            assert await leader.server.take_snapshot() is not None
        servers.plain[THEIRS] = await nursery.start(their.listen)
        addition = await request_addition(client, ClusterServer(THEIRS, "tcp://127.0.0.1:4"))
        assert addition.has_begun, addition.reason
        await until_members(leader, 1, 2, 3, THEIRS)
        yield servers, client, nursery
        assert their.death is None


@pytest.mark.parametrize("elects_itself", [False, True], ids=["empty", "elected-itself"])
async def test_files_contain_log_after_several_packs(tmp_path: Path, elects_itself: bool) -> None:  # noqa: FBT001
    their = RawOffsetServer(THEIRS, elects_itself=elects_itself)
    async with joining(tmp_path, 1500, their) as (_, client, _):
        after = [b"after %d" % number for number in range(200)]
        await submit(client, after)
        await their.until(lambda: len(their.executed) == 1700)
        assert their.packs >= 3
        assert their.executed == their.commands() == entries(1500) + after
        assert (their.invited_to, their.members) == ((1, 2, 3), (1, 2, 3, 4))
        # and it received no other request before it had accepted the invitation
        assert their.received[:2] == [RequestKind.JOIN, RequestKind.SYNC_LOG]


async def test_files_contain_log_after_snapshot(tmp_path: Path) -> None:
    their = RawOffsetServer(THEIRS, elects_itself=True)
    async with joining(tmp_path, 600, their, compacted=True) as (_, client, _):
        after = [b"after %d" % number for number in range(700)]
        await submit(client, after)
        await their.until(lambda: their.executed[-1:] == after[-1:])
        assert their.snapshot
        assert their.start > 600
        assert their.commands() == after
        assert their.executed == after


async def test_broken_connection_continues_at_end_of_log(tmp_path: Path) -> None:
    their = RawOffsetServer(THEIRS, break_after={RequestKind.SYNC_LOG})
    async with joining(tmp_path, 2500, their):
        await their.until(lambda: len(their.executed) == 2500)
        assert their.executed == their.commands() == entries(2500)
        assert their.received.count(RequestKind.JOIN) == 2


async def test_snapshot_resumes_after_broken_connection(tmp_path: Path) -> None:
    their = RawOffsetServer(THEIRS, break_after={RequestKind.SNAPSHOT})
    service = LargeSnapshotService
    async with joining(tmp_path, 10, their, compacted=True, make_service=service) as (servers, _, _):
        assert their.received.count(RequestKind.JOIN) == 2
        assert len(their.chunks) > 5
        assert their.chunks.count(0) == 1
        snapshot = (await leading(servers)).server.describe().raft.snapshot
        assert snapshot is not None
        assert len(their.snapshot) == snapshot.size_bytes


async def test_raw_server_is_removed_by_its_request(tmp_path: Path) -> None:
    their = RawOffsetServer(THEIRS)
    async with joining(tmp_path, 1, their) as (servers, client, nursery):
        removal = await request_removal(await client_as_server(servers, nursery, THEIRS), THEIRS)
        assert removal.has_begun, removal.reason
        leader = await leading(servers)
        await until_members(leader, 1, 2, 3)
        assert RequestKind.LEAVE in their.received
        await submit(client, [b"without it"])
        counts = leader.metrics.counts
        assert counts[ConnectionEvent.SERVERS_ADDED] == counts[ConnectionEvent.SERVERS_REMOVED] == 1


async def test_own_snapshot_switches_packs_to_appends(tmp_path: Path) -> None:
    """The server's own snapshot shrinks its data file, so our offsets into the file are wrong afterwards."""
    their = RawOffsetServer(THEIRS, compact_after=PACKED_ENTRIES_MAX)
    async with joining(tmp_path, 9000, their) as (_, client, _):
        await submit(client, [b"end"])
        await their.until(lambda: their.executed[-1:] == [b"end"])
        assert their.executed == [*entries(9000), b"end"]
        assert their.compacted > 0
        assert RequestKind.APPEND in their.received
        stored = their.commands()
        assert stored == their.executed[-len(stored) :]


async def test_raw_leader_transfers_log_without_handshake(tmp_path: Path) -> None:
    """The raw leader's packs carry offsets in its data file, and lack the term of the previous entry."""
    their = RawOffsetServer(THEIRS, elects_itself=True)
    for number in range(400):
        their.submit(b"theirs %d" % number)
    async with group(tmp_path, options=CALM) as (servers, _, _):
        servers.plain[THEIRS] = PeerAddress("127.0.0.1", 9, None)
        run = await servers.start(FIFTH)
        stream = await trio.open_tcp_stream("127.0.0.1", servers.plain_ports[FIFTH, THEIRS])
        async with stream:
            # when it invites our server, and sends its log in packs from its files, and then in appends
            assert await their.send_request(stream, FIFTH, RequestKind.JOIN, 0, [(1, 2, their.entry(1)[2])]) == (
                True,
                1,
            )
            for first in range(1, their.last - 4, 50):
                pack = their.pack(first, 50)
                assert await their.send_request(stream, FIFTH, RequestKind.SYNC_LOG, first - 1, [(1, 4, pack)]) == (
                    True,
                    first + 50,
                )
            while (held := run.server.describe().raft.last.index) < their.last:
                rest = [their.entry(index) for index in range(held + 1, their.last + 1)]
                assert await their.send_request(stream, FIFTH, RequestKind.APPEND, held, rest) == (True, their.last + 1)
        await run.server.wait_applied(their.last)
        assert run.executed == their.commands()
        assert run.server.role.role is Role.FOLLOWER
        assert run.server.role.leader == THEIRS


async def test_raw_snapshot_is_refused_with_incident(tmp_path: Path) -> None:
    their = RawOffsetServer(THEIRS, elects_itself=True)
    async with group(tmp_path, options=CALM) as (servers, _, _):
        servers.plain[THEIRS] = PeerAddress("127.0.0.1", 9, None)
        run = await servers.start(FIFTH)
        stream = await trio.open_tcp_stream("127.0.0.1", servers.plain_ports[FIFTH, THEIRS])
        async with stream:
            assert await their.send_request(stream, FIFTH, RequestKind.JOIN, 0, [(1, 2, their.entry(1)[2])]) == (
                True,
                1,
            )
            assert (
                await their.send_request(stream, FIFTH, RequestKind.SNAPSHOT, 70, [(1, 5, their.chunk(70, b"k:v"))])
                is None
            )
        texts = [incident.text for incident in servers.incidents if incident.fault is Fault.FOREIGN_SNAPSHOT]
        assert len(texts) == 1
        assert "server 4 sends a snapshot of index 70" in texts[0]
        assert run.server.describe().raft.snapshot is None
