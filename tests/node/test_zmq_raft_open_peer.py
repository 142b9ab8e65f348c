"""Complete peers on real sockets, with our client: creation, joins, replacement of each peer, stops and restarts."""

import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from consensus.core.effects import Role
from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft.peer import open_peer as open_peer_module
from consensus.protocols.zmq_raft.peer.compaction import CommandCompactor, Compacted, CompactionOptions, Compactor
from consensus.protocols.zmq_raft.peer.open_peer import PeerError, PeerNotice, PeerOptions, ZmqRaftPeer, open_peer
from consensus.protocols.zmq_raft.wire.messages import Peer
from consensus.protocols.zmq_raft.wire.request_ids import make_request_id
from consensus.server.opening import prepare_server
from consensus.server.server import ConsensusServer
from consensus.storage.disk import StorageError
from tests.node.memory_server import until
from tests.processes import free_ports

pytestmark = pytest.mark.usefixtures("small_segments")

IDENT = b"cluster"
WAIT_S = 60


def free_peers(count: int) -> tuple[Peer, ...]:
    """Return peers "1", "2", … at free ports."""
    return tuple(Peer(str(number), f"tcp://127.0.0.1:{port}") for number, port in enumerate(free_ports(count), 1))


@dataclass
class Cluster:
    """Peers in one process."""

    path: Path
    nursery: trio.Nursery
    founders: tuple[Peer, ...]
    running: dict[str, ZmqRaftPeer] = field(default_factory=dict)
    ends: dict[str, tuple[trio.CancelScope, trio.Event]] = field(default_factory=dict)
    notices: list[PeerNotice] = field(default_factory=list)
    compactor: Compactor | None = None

    def options(self, peer: Peer) -> PeerOptions:
        return PeerOptions(
            peer.peer_id,
            self.founders,
            IDENT,
            self.path / peer.peer_id,
            bind_url=peer.url,
            broadcast_url="tcp://127.0.0.1:*",
            compactor=self.compactor,
            compaction=CompactionOptions(log_bytes=1000, min_entries=50, check_s=0.02),
        )

    async def start(self, *peers: Peer) -> None:
        for peer in peers:
            self.running[peer.peer_id] = await self.nursery.start(self._serve, peer)

    async def stop(self, peer: Peer) -> None:
        del self.running[peer.peer_id]
        scope, ended = self.ends.pop(peer.peer_id)
        scope.cancel()
        await ended.wait()

    def leader(self) -> Peer:
        """Return the leader; one exists after a reply to a client."""
        leaders = [(peer_id, peer) for peer_id, peer in self.running.items() if peer.server.role.role is Role.LEADER]
        peer_id, peer = max(leaders, key=lambda each: each[1].server.role.term)
        return Peer(peer_id, peer.url)

    async def wait_settled(self, count: int) -> None:
        """Wait until a change to `count` members is finished; before that, the next change is refused as busy."""
        with trio.fail_after(WAIT_S):
            while not any(self._has_settled(peer, count) for peer in self.running.values()):  # noqa: ASYNC110 - any peer
                await trio.sleep(0.01)

    def _has_settled(self, peer: ZmqRaftPeer, count: int) -> bool:
        """Return True if the peer leads `count` members and its whole log is committed."""
        raft = peer.server.describe().raft
        members = () if raft.configuration.is_joint else raft.configuration.voters
        return raft.role is Role.LEADER and len(members) == count and raft.commit_index == raft.last.index

    async def _serve(self, peer: Peer, *, task_status: trio.TaskStatus[ZmqRaftPeer]) -> None:
        with trio.CancelScope() as scope:
            self.ends[peer.peer_id] = scope, trio.Event()
            ended = self.ends[peer.peer_id][1]
            async with open_peer(self.options(peer), self.notices.append) as opened:
                task_status.started(opened)
                await trio.sleep_forever()
        ended.set()


@asynccontextmanager
async def cluster_of(path: Path, count: int) -> AsyncIterator[Cluster]:
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            cluster = Cluster(path, nursery, free_peers(count))
            await cluster.start(*cluster.founders)
            yield cluster
            nursery.cancel_scope.cancel()


async def read_all(client: zmq_raft.ZmqRaftClient) -> list[object]:
    async with aclosing(client.entries(0)) as items:
        return [item async for item in items]


async def test_cluster_replaced_peer_by_peer_during_updates(tmp_path: Path) -> None:
    """Given three peers, when three others replace them one by one, then updates are neither lost nor repeated."""
    async with cluster_of(tmp_path, 3) as cluster:
        members, others = list(cluster.founders), free_peers(6)[3:]
        async with zmq_raft.connect([peer.url for peer in members], IDENT) as client:
            ids = [client.make_request_id()]
            indexes = [await client.update(b"first", ids[0])]
            for old, new in zip(cluster.founders, others, strict=True):
                await cluster.start(new)
                members = [*members, new]
                await client.change_config(members)
                await cluster.wait_settled(len(members))
                members.remove(old)
                await client.change_config(members)
                await client.update(b"after " + new.peer_id.encode())
                await cluster.stop(old)
            await cluster.wait_settled(len(others))
            assert await client.update(b"first", ids[0]) == indexes[0]
            assert set((await client.config()).peers) == set(others)
            items = await read_all(client)
            logs = {tuple(await peer.log.read(1, 100, 1 << 20)) for peer in cluster.running.values()}
        assert len(items) == max(map(len, logs))
        assert sum(b"first" in entry.data for log in logs for entry in log) == len(logs)


async def test_subscriber_continues_after_leader_stops(tmp_path: Path) -> None:
    """The consumer gets each update once, in order, from the PUB socket of one leader and then of the next."""
    async with cluster_of(tmp_path, 3) as cluster:
        received: list[bytes] = []
        urls = [peer.url for peer in cluster.founders]
        async with zmq_raft.connect(urls, IDENT) as client, trio.open_nursery() as nursery:

            async def follow() -> None:
                async with aclosing(client.subscribe(0)) as items:
                    async for item in items:
                        if isinstance(item, zmq_raft.CommittedEntry) and item.kind is zmq_raft.LogEntryKind.STATE:
                            received.append(item.data)
                        if len(received) == 10:
                            nursery.cancel_scope.cancel()

            nursery.start_soon(follow)
            for number in range(10):
                await client.update(b"%d" % number)
                if number == 4:
                    await cluster.stop(cluster.leader())
        assert received == [b"%d" % number for number in range(10)]


async def test_single_peer_keeps_executed_requests_over_restart(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        (peer,) = cluster.founders
        async with zmq_raft.connect([peer.url], IDENT) as client:
            request_id = client.make_request_id()
            index = await client.update(b"x", request_id)
            await cluster.stop(peer)
            await cluster.start(peer)
            assert await client.update(b"x", request_id) == index
            assert await client.broadcast_url() == cluster.running["1"].broadcast_url
            assert (await client.log_info()).prune_index == index - 1


async def test_stop_during_update_does_not_log_a_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stopping leader replies to its waiting update after its sockets are closed."""
    async with cluster_of(tmp_path, 3) as cluster:
        urls = [peer.url for peer in cluster.founders]
        async with zmq_raft.connect(urls, IDENT) as client, trio.open_nursery() as nursery:
            await client.update(b"committed")
            leader = cluster.leader()
            for peer in cluster.founders:
                if peer != leader:
                    await cluster.stop(peer)
            server = cluster.running[leader.peer_id].server
            nursery.start_soon(client.update, b"without a majority")
            await until(lambda: server.describe().proposals_in_flight == 1)
            await cluster.stop(leader)
            nursery.cancel_scope.cancel()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_joining_peer_gets_snapshot_of_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a log compacted by `cat`, when a peer joins, then it has the same snapshot (three chunks) and entries."""
    ahead_ms = [-9 * 3600 * 1000]
    monkeypatch.setattr(open_peer_module, "unix_ms", lambda: int(time.time() * 1000) + ahead_ms[0])
    async with cluster_of(tmp_path, 1) as cluster:
        (first,), (_, joining) = cluster.founders, free_peers(2)
        await cluster.stop(first)
        cluster.compactor = CommandCompactor(["cat"])
        await cluster.start(first)
        async with zmq_raft.connect([first.url], IDENT) as client:
            created_s = int(time.time()) - 9 * 3600
            for number in range(50):
                await client.update(b"%d" % number * 2000, make_request_id(created_s, b"mac", 1, number))
            ahead_ms[0] = 0
            await client.update(b"behind")
            await until(lambda: any(isinstance(notice, Compacted) for notice in cluster.notices))
            await cluster.start(joining)
            index = await client.change_config([first, joining])
            logs = [peer.log for peer in cluster.running.values()]
            await until(lambda: logs[1].describe().last_applied >= index)
            snapshots = [await log.read_snapshot(0, 1 << 20) for log in logs]
            assert snapshots[0] == snapshots[1] is not None
            assert await logs[1].read(51, index - 50, 1 << 20) == await logs[0].read(51, index - 50, 1 << 20)
            assert logs[1].describe().first_index == 51
            items = await read_all(client)
            assert isinstance(items[0], zmq_raft.SnapshotPart)
            assert next(item.data for item in items if isinstance(item, zmq_raft.CommittedEntry)) == b"behind"


async def test_request_during_start_answered_after_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port opens before the peer reads the log, so a client does not have to repeat its request."""
    opening = prepare_server

    @asynccontextmanager
    async def prepare_slowly(*arguments: Any, **options: Any) -> AsyncIterator[ConsensusServer]:
        async with opening(*arguments, **options) as server:
            await trio.sleep(0.3)
            yield server

    monkeypatch.setattr(open_peer_module, "prepare_server", prepare_slowly)
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            cluster = Cluster(tmp_path, nursery, free_peers(1))
            (peer,) = cluster.founders
            nursery.start_soon(cluster.start, peer)
            async with zmq_raft.connect([peer.url], IDENT) as client:
                assert (await client.log_info(peer.url)).first_index == 1
            nursery.cancel_scope.cancel()


async def test_full_disk_at_first_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(open_peer_module, "replace_file", fill)
    (peer,) = free_peers(1)
    with pytest.raises(PeerError, match="No space left on device; free some space there"):
        async with open_peer(PeerOptions(peer.peer_id, (peer,), IDENT, tmp_path / "new")):
            pytest.fail("opened")


async def test_peer_with_invalid_options_raises_error_with_cause(tmp_path: Path) -> None:
    """Cases: a used port, a directory of another peer, cluster or process, and contradictory options."""
    async with cluster_of(tmp_path, 1) as cluster:
        (peer,) = cluster.founders
        (free,) = free_peers(1)
        valid = replace(cluster.options(peer), peers=(free,), bind_url=None)
        refusals = {
            f"cannot listen at {peer.url}": replace(valid, directory=tmp_path / "new", bind_url=peer.url),
            "contains the log of peer 1, and this is peer 2": replace(valid, peer_id="2", bind_url=free.url),
            "another ident": replace(valid, ident=b"other"),
            "2 is not among the peers": replace(valid, peer_id="2"),
            "an election timeout of 20 to 300 ms": replace(valid, election_timeout_ms=(20, 300)),
            "peer url protocol must be tcp:": replace(valid, peers=(Peer("1", "udp://127.0.0.1:1"),)),
        }
        for reason, options in refusals.items():
            with pytest.raises(PeerError, match=reason):
                async with open_peer(options):
                    pass
        with pytest.raises(StorageError, match="another process has the directory"):
            async with open_peer(valid):
                pass
