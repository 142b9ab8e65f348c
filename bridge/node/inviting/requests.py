"""Requests to the control endpoint about invitations: make, list, revoke.

    GET  /v1/invitations                                        without the tokens
    POST /v1/invitations/new     {"uses": 1, "lifetimeS": 3600}  the only reply with the token
    POST /v1/invitations/revoke  {"id": "1a2b3c4d"}

Before the farm is created, each invited node becomes a founder. So the number of open uses is limited to the nodes that
can create the farm together with this node. After that only a voter invites, because the inviting node must be able to
become leader for the approval (`bridge.node.inviting`).
"""

from functools import partial

import trio
from msgspec import Struct

from bridge.api.control import (
    InvitationAnswer,
    InvitationCreated,
    InvitationsAnswer,
    InvitationUseView,
    InvitationView,
    Refused,
)
from bridge.api.requests import InvitationRequest, RevokeRequest
from bridge.node.inviting.invitations import Invitation
from bridge.node.inviting.inviting import Inviting, NotInvitingError
from bridge.wire.keys.invitation import InvitationError
from consensus.net import CertificateError


class InvitationRequests(Struct, frozen=True):
    """The requests to one node."""

    inviting: Inviting

    async def listing(self) -> InvitationsAnswer:
        """Return the invitations."""
        return InvitationsAnswer(tuple(map(self._view, self.inviting.invitations.all)))

    async def create(self, request: InvitationRequest) -> InvitationCreated:
        """Make an invitation; raise `Refused`."""
        try:
            made, token = await self.inviting.create(request.uses, request.lifetime_s)
        except (CertificateError, InvitationError, NotInvitingError) as error:
            raise Refused(409, "not-invited", str(error)) from error
        except OSError as error:
            raise Refused(503, "not-stored", f"the invitation cannot be stored: {error.strerror or error}") from error
        return InvitationCreated(str(token), tuple(map(str, token.places)), self._view(made))

    async def revoke(self, request: RevokeRequest) -> InvitationAnswer:
        """Revoke an invitation; raise `Refused`."""
        try:
            async with self.inviting.lock:
                with trio.CancelScope(shield=True):
                    found = await trio.to_thread.run_sync(partial(self.inviting.invitations.revoke, request.id))
        except OSError as error:
            raise Refused(503, "not-stored", f"the revocation cannot be stored: {error.strerror or error}") from error
        if found is None:
            text = (
                f"this node does not have an invitation {request.id[:40]!r}, and only the node that made an invitation"
                " lists and revokes it: run the command there, or select that node with --node"
            )
            raise Refused(404, "no-such-invitation", text)
        return InvitationAnswer(self._view(found))

    def _view(self, each: Invitation) -> InvitationView:
        closed = each.closed_by(self.inviting.invitations.now_ms())
        uses = (InvitationUseView(use.name, use.node_id, use.time_ms, not use.settled) for use in each.uses)
        state = "open" if closed is None else closed.value
        return InvitationView(each.id, state, each.uses_max, each.created_ms, each.ends_ms, tuple(uses))
