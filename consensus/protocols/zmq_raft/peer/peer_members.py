"""The servers that the transport of a peer may contact: the members, newcomers, and recently removed members.

    configuration in the log ──▶ members, newcomers           from `ConfigurationChanged`
    left it less than 5 s ago ──▶ still reachable             a server must learn of its removal
    found by RequestConfig ──▶ reachable, while this server is not a member

A transport replies only to known servers. A joining server knows the members that its operator named. Until the leader
has sent it the log, the leadership may pass to a member that the operator did not name, and that leader could not reach
it. So while a server is not a member, it queries known servers for the members, as a client does. The reply only opens
connections; it does not take part in votes or commitment.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import trio

from consensus.core.model import Configuration, Server, ServerId
from consensus.protocols.zmq_raft.client.client import ClientError, connect
from consensus.protocols.zmq_raft.peer.peer_transport import PeerTransport

_DEPARTURE_S: Final = 5.0
"""Seconds that a server stays reachable after its removal: longer than the core still sends the log to it."""
_ASKING_S: Final = 1.0


class PeerMembers:
    """Sets the contacts of the transport of server `own_id` from `configuration` and later changes."""

    def __init__(self, transport: PeerTransport, own_id: ServerId, configuration: Configuration) -> None:
        self._transport = transport
        self._own_id = own_id
        self._is_member = False
        self._present: tuple[Server, ...] = ()
        self._found: tuple[Server, ...] = ()
        self._left: dict[Server, float] = {}
        self._changed = trio.Event()
        self.change(configuration, ())

    def change(self, configuration: Configuration, newcomers: Sequence[Server]) -> None:
        """Set the present members and newcomers."""
        until_s = trio.current_time() + _DEPARTURE_S
        self._left = dict.fromkeys(self._present, until_s) | self._left
        self._present = (*configuration.servers, *newcomers)
        self._is_member = self._own_id in configuration.member_ids
        if self._is_member:
            self._found = ()
        self._update()
        self._changed.set()

    async def run(self) -> None:
        """Drop servers that left, when their time has passed."""
        while True:
            self._changed = trio.Event()
            with trio.move_on_at(min(self._left.values(), default=math.inf)):
                await self._changed.wait()
            self._update()

    async def find(self, ident: bytes) -> None:
        """Query for the members while this server is not one."""
        while True:
            if not self._is_member:
                await self._query_members(ident)
            await trio.sleep(_ASKING_S)

    async def _query_members(self, ident: bytes) -> None:
        urls = list(dict.fromkeys(server.endpoint for server in (*self._present, *self._found)))
        async with connect(urls, ident) as client:
            while not self._is_member:
                try:
                    reply = await client.config(patience_s=_ASKING_S)
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
        # The last item of a server has precedence: the log, as the most reliable source, comes last.
        self._transport.members((*self._left, *self._found, *self._present))


def _ids(servers: Iterable[Server]) -> set[ServerId]:
    return {server.server_id for server in servers}
