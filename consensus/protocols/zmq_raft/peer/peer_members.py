"""The servers that the transport of a peer may contact: the members, newcomers, and recently removed members.

    configuration in the log ──▶ members, newcomers    from `ConfigurationChanged`
    removed a moment ago ──▶ still reachable           so that the server receives its removal
    found by RequestConfig ──▶ reachable               until this server is a member

A transport replies only to known servers. A joining server knows only the members that its operator named. If another
member becomes leader before the log has arrived, the joining server would not reply to that leader. So until it is a
member, it requests the list of members from known servers, as a client does. The reply only opens connections, and does
not change votes or commitment.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import trio

from consensus.core.model import Configuration, Server, ServerId
from consensus.core.options import Options
from consensus.protocols.zmq_raft.client.client import ClientError, connect
from consensus.protocols.zmq_raft.peer.peer_transport import PeerTransport
from consensus.server.server import ConsensusServer

_ASKING_S: Final = 1.0
_COMMIT_POLL_S: Final = 1.0


class PeerMembers:
    """Sets the contacts of the transport of server `own_id` from `configuration` and later changes."""

    def __init__(
        self, transport: PeerTransport, own_id: ServerId, configuration: Configuration, options: Options
    ) -> None:
        self._transport = transport
        self._own_id = own_id
        self._departure_s = options.election_timeout_min_ms / 1000
        """Time that the core sends the log to a removed server after the commitment of the removal."""
        self._is_member = False
        self._present: tuple[Server, ...] = ()
        self._found: tuple[Server, ...] = ()
        self._left: dict[Server, float] = {}
        """The removed servers with the ends of their connections; infinity until the removal is committed."""
        self._changed = trio.Event()
        self.change(configuration, ())

    def change(self, configuration: Configuration, newcomers: Sequence[Server]) -> None:
        """Set the present members and newcomers."""
        self._left = dict.fromkeys(self._present, math.inf) | self._left
        self._present = (*configuration.servers, *newcomers)
        self._is_member = self._own_id in configuration.member_ids
        if self._is_member:
            self._found = ()
        self._update()
        self._changed.set()

    async def run(self, server: ConsensusServer) -> None:
        """Drop each removed server some time after the commitment of its removal in the log of `server`."""
        while True:
            self._changed = trio.Event()
            # The removal is not after the end of the log. If another leader replaces entries, the lowest end counts.
            removal = server.describe().raft.last.index
            while math.inf in self._left.values() and not self._changed.is_set():
                raft = server.describe().raft
                removal = min(removal, raft.last.index)
                if raft.commit_index >= removal:
                    until_s = trio.current_time() + self._departure_s
                    self._left = {left: min(until_s, end_s) for left, end_s in self._left.items()}
                else:
                    await trio.sleep(_COMMIT_POLL_S)
            with trio.move_on_at(min(self._left.values(), default=math.inf)):
                await self._changed.wait()
            self._update()

    async def find(self, ident: bytes) -> None:
        """Request the list of members until this server is a member."""
        while True:
            if not self._is_member:
                await self._query_members(ident)
            await trio.sleep(_ASKING_S)

    async def _query_members(self, ident: bytes) -> None:
        urls = list(dict.fromkeys(server.endpoint for server in (*self._present, *self._found)))
        async with connect(urls, ident) as client:
            while not self._is_member:
                try:
                    reply = await client.config(timeout_s=_ASKING_S)
                except ClientError:
                    return
                found = tuple(Server(peer.peer_id, peer.url) for peer in reply.peers)
                if found != self._found and not self._is_member:
                    self._found = found
                    self._update()
                await trio.sleep(_ASKING_S)

    def _update(self) -> None:
        now_s, present = trio.current_time(), _ids(self._present)
        self._left = {
            server: until_s
            for server, until_s in self._left.items()
            if until_s > now_s and server.server_id not in present
        }
        # If two sources have a server, the last source counts. The log is the most reliable source, so it comes last.
        self._transport.members((*self._left, *self._found, *self._present))


def _ids(servers: Iterable[Server]) -> set[ServerId]:
    return {server.server_id for server in servers}
