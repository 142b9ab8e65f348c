"""What a leader pushes, as it arrives in any role: AppendEntries and InstallSnapshot (Raft figure 2, figure 13).

    of an older term               refused at our term, nothing changes
    of a later term, from outside  refused and counted, while a leader is heard (`Roles.keeps_its_leader`)
    of a term far ahead            refused, and our term has come nearer by one step (`Replica.adopt_term`)
    of a second leader             refused and counted: in one term there is one, so one of the two is lying
    of the leader of our term      a candidate becomes its follower; the timer starts anew; the follower takes it

No refused leader may take the answer for a promise, so it is never one of the term that this leader leads (`refusing`).

Its counterpart is `pulling`, where the follower asks. Replies go to the role that asked (`raft`).
"""

from typing import assert_never

from consensus.core import snapshots
from consensus.core.follower import Follower
from consensus.core.messages import AppendEntries, InstallSnapshot
from consensus.core.model import ServerId, Term
from consensus.core.refusing import refuse_leader
from consensus.core.replica import Replica
from consensus.core.roles import Roles


class Pushing:
    """The receiving side of pushing replication, whatever the role of this replica."""

    def __init__(self, replica: Replica, roles: Roles) -> None:
        self._replica = replica
        self._roles = roles

    def receive(self, request: AppendEntries | InstallSnapshot) -> None:
        """A plausible request of a leader arrives."""
        match request:
            case AppendEntries():
                self._append_requested(request)
            case InstallSnapshot():
                self._snapshot_requested(request)
            case _:
                assert_never(request)

    def _append_requested(self, request: AppendEntries) -> None:
        follower = self._as_follower_of(request.term, request.leader)
        if follower is None:
            refuse_leader(self._replica, request.leader, request)
        else:
            follower.receive(self._replica, request)

    def _snapshot_requested(self, request: InstallSnapshot) -> None:
        if self._as_follower_of(request.term, request.leader) is None:
            refuse_leader(self._replica, request.leader, request)
        else:
            snapshots.receive(self._replica, request)

    def _as_follower_of(self, term: Term, leader: ServerId) -> Follower | None:
        """A leader's request has come: be its follower. None if it is no leader of our term."""
        if term < self._replica.term:
            return None
        if self._roles.keeps_its_leader(leader, term) or not self._roles.check_term(term, of_a_leader=True):
            return None
        if self._roles.leader not in (None, leader):
            self._replica.dropped["append from a second leader of the term"] += 1
            return None
        self._roles.follow(leader)
        return self._roles.follower
