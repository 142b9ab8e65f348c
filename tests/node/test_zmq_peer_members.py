"""The servers that the transport of a ØMQ Raft peer may contact."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import trio
from trio.testing import MockClock

from consensus.core.model import LogId, Server
from consensus.protocols.zmq_raft.peer.open_peer import core_options
from consensus.protocols.zmq_raft.peer.peer_members import PeerMembers
from consensus.protocols.zmq_raft.peer.peer_transport import PeerTransport
from consensus.protocols.zmq_raft.wire.entries import configuration_of
from consensus.server.server import ConsensusServer
from tests.node.zmq_raft_group import peer


class Contacts:
    """The part of a transport that records the servers."""

    def __init__(self) -> None:
        self.names: set[object] = set()

    def members(self, servers: Iterable[Server]) -> None:
        self.names = {server.server_id for server in servers}


class Log:
    """The part of a server that describes its log."""

    def __init__(self) -> None:
        self.raft = SimpleNamespace(last=LogId(7, 1), commit_index=6)

    def describe(self) -> "Log":
        return self


async def test_removed_peer_reachable_while_core_sends(autojump_clock: MockClock) -> None:
    """Until the commit and for the shortest election timeout after it, the core sends the log to the peer."""
    log = Log()
    contacts = Contacts()
    founders = configuration_of(tuple(map(peer, (1, 2, 3))))
    members = PeerMembers(cast(PeerTransport, contacts), "1", founders, core_options((20_000, 30_000)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.run, cast(ConsensusServer, log))
        members.change(configuration_of(tuple(map(peer, (1, 2)))), ())
        await trio.sleep(100)
        assert "3" in contacts.names
        log.raft.commit_index = 7
        await trio.sleep(19.9)
        assert "3" in contacts.names
        await trio.sleep(1.2)
        assert contacts.names == {"1", "2"}
        nursery.cancel_scope.cancel()
