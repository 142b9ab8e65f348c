"""What clients and operators ask of a replica: to append, to read, to change the members, to hand leadership over.

Only a leader does any of it. Everybody else refuses at once and names the leader, if he knows one (Raft section 8); so
nothing waits here, and a client that goes where it is told repeats nothing that might have happened.
"""

from typing import assert_never

from consensus.core.configuration import ChangeRefusal
from consensus.core.effects import (
    ChangeOutcome,
    ConfigurationResolved,
    Outcome,
    ProposalResolved,
    ReadRefusal,
    ReadRefused,
)
from consensus.core.events import ChangeConfiguration, Proposed, ReadRequested, Requested, TransferLeadership
from consensus.core.leader import Leader
from consensus.core.model import ServerId
from consensus.core.replica import Replica
from consensus.core.transfer import LeadershipTransfers


def take(
    request: Requested,
    replica: Replica,
    leader: Leader | None,
    transfers: LeadershipTransfers,
    known_leader: ServerId | None,
) -> None:
    """Have the leader that we are take the request; `leader` is None if we are none, and then it is refused."""
    match request:
        case TransferLeadership():
            transfers.begin(request, leader, known_leader)
        case _ if leader is None:
            _refuse(request, replica, known_leader)
        case Proposed():
            if not transfers.hold(request):
                leader.propose(request)
        case ChangeConfiguration():
            leader.reconfiguration.request(request)
        case ReadRequested(read_id):
            leader.read(read_id)
        case _:
            assert_never(request)


def _refuse(
    request: Proposed | ChangeConfiguration | ReadRequested, replica: Replica, known_leader: ServerId | None
) -> None:
    match request:
        case Proposed(proposal_id):
            replica.outbox.add(ProposalResolved(proposal_id, Outcome.NOT_LEADER, leader=known_leader))
        case ChangeConfiguration(change_id):
            refusal = ChangeRefusal.NOT_LEADER
            replica.outbox.add(ConfigurationResolved(change_id, ChangeOutcome.REFUSED, refusal, leader=known_leader))
        case ReadRequested(read_id):
            replica.outbox.add(ReadRefused(read_id, ReadRefusal.NOT_LEADER, known_leader))
        case _:
            assert_never(request)
