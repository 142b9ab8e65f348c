"""Requests to a cluster to add or remove a server: the requesting side of the document's sequence.

    ClientRequest without entries ──▶ any server ──▶ names the leader ──▶ the leader itself
    AddServerRequest ────────────────────────────────────────────────────▶ accepted: begun │ refused

Accepted means begun. The server's own log shows when it has become a member. Until then it repeats the request, since
the leader that has begun the change may have failed.
"""

from random import Random
from typing import Final

import trio
from msgspec import Struct

from consensus.core.effects import Outcome
from consensus.core.model import ServerId, integer_id
from consensus.net.backoff import Backoff
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.client_connection import Lost
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import GarlicFarmError
from consensus.protocols.garlic_farm.wire.values import ClusterServer, LogEntry
from consensus.server.server import ConsensusServer

_ELECTION_PAUSE_S = 0.1
_LOOK_S = 0.1


class MembershipAnswer(Struct, frozen=True):
    """The reply to a request to add or remove a server: the change has begun, or the reason against it."""

    has_begun: bool
    leader: ServerId | None
    reason: str = ""


_ONLY_ITSELF: Final = (
    ": a leader of this implementation removes a server only at the request of that server, and counts other requests"
    " as `out-of-turn`. Remove the server in the leader's process, with `ConsensusServer.change_configuration`"
)
"""Reason why a request to remove a server stays unanswered, and the way to remove it."""


async def request_addition(
    client: GarlicFarmClient, server: ClusterServer, *, timeout_s: float = 10.0
) -> MembershipAnswer:
    """Request the addition of `server` from the leader; it must listen at its endpoint."""
    return await _call_leader(client, wire.AddServerRequest(entries=(LogEntry(0, server),)), timeout_s)


async def request_removal(client: GarlicFarmClient, server: int, *, timeout_s: float = 10.0) -> MembershipAnswer:
    """Request the removal of `server` from the leader.

    Our leaders accept this only from that server; see `_ONLY_ITSELF`.
    """
    named = LogEntry(0, ClusterServer(server, None))
    return await _call_leader(client, wire.RemoveServerRequest(entries=(named,)), timeout_s, _ONLY_ITSELF)


async def join(
    client: GarlicFarmClient,
    server: ConsensusServer,
    own: ClusterServer,
    random: Random,
    *,
    first_s: float = 0.5,
    longest_s: float = 5.0,
) -> None:
    """Repeat the request until the log of this `server` names it as a voter."""
    backoff = Backoff(first_s, longest_s, random)

    def is_member() -> bool:
        return own.server_id in server.describe().raft.configuration.voter_ids

    while not is_member():
        await request_addition(client, own)
        retry_at_s = trio.current_time() + backoff.next_s()
        while not is_member() and trio.current_time() < retry_at_s:  # noqa: ASYNC110 - no event reports it
            await trio.sleep(_LOOK_S)


async def _call_leader(
    client: GarlicFarmClient, request: wire.Request, timeout_s: float, hint: str = ""
) -> MembershipAnswer:
    """Find the leader and send the request; if it does not lead any more, find the next one.

    `hint` is a possible reason for the leader to end the connection.
    """
    result = MembershipAnswer(has_begun=False, leader=None, reason=f"no leader was found within {timeout_s:g} s")
    with trio.move_on_after(timeout_s):
        while True:
            found = await client.submit((), timeout_s=timeout_s)
            if found.outcome is not Outcome.COMMITTED or found.leader is None:
                return MembershipAnswer(has_begun=False, leader=found.leader, reason=found.reason)
            try:
                reply = await client.call(integer_id(found.leader), request)
            except GarlicFarmError as error:
                return MembershipAnswer(has_begun=False, leader=found.leader, reason=str(error))
            if isinstance(reply, Lost):
                return MembershipAnswer(
                    has_begun=False, leader=found.leader, reason=f"the connection ended without an answer{hint}"
                )
            if reply.accepted or reply.destination == reply.source:
                reason = "" if reply.accepted else f"server {reply.source} leads and refused; see its log"
                return MembershipAnswer(reply.accepted, found.leader, reason)
            await trio.sleep(_ELECTION_PAUSE_S)
    return result
