"""All requests about who is a member, for one server: asked as a leader, and as one who comes or goes."""

from collections.abc import Callable
from typing import assert_never

from consensus.core.model import integer_id
from consensus.protocols.garlic_farm.node.connection import GiveUp
from consensus.protocols.garlic_farm.node.joining import Joining
from consensus.protocols.garlic_farm.node.membership_leader import MemberRequests
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.limits import UNKNOWN_SERVER
from consensus.server.server import ConsensusServer


class Members:
    """Answers the five requests."""

    def __init__(self, joining: Joining, requests: MemberRequests) -> None:
        self.joining = joining
        self.requests = requests

    def membership_request(
        self, request: wire.MembershipRequest, correlation: int, answered: Callable[[wire.Reply | None], None]
    ) -> GiveUp:
        """Answer, at once or, where the disk has to be waited for, later. May raise `GarlicFarmError` instead."""
        match request:
            case wire.SyncLogRequest():
                return self.joining.sync(request, correlation, answered)
            case wire.JoinClusterRequest():
                answered(self.joining.join(request))
            case wire.LeaveClusterRequest():
                answered(self.joining.leave(request))
            case wire.AddServerRequest():
                answered(self.requests.add(request))
            case wire.RemoveServerRequest():
                answered(self.requests.remove(request))
            case _:
                assert_never(request)
        return _nothing_to_give_up


def refuse(request: wire.MembershipRequest, server: ConsensusServer, own_id: int) -> wire.Reply:
    """The answer of a server whose members do not change by requests."""
    role, last = server.role, server.describe().raft.last.index
    leader = UNKNOWN_SERVER if role.leader is None else integer_id(role.leader)
    asked_by_client = isinstance(request, wire.AddServerRequest | wire.RemoveServerRequest)
    destination = leader if asked_by_client else request.source
    return wire.ANSWERS[type(request)](own_id, destination, role.term, last + 1, accepted=False)


def _nothing_to_give_up() -> None:
    """The answer has been given."""
