"""What the receivers of messages (`pushing`, `pulling`) see of a replica's roles, and the transitions they may ask for.

`raft` alone changes the role. The receivers know what a message means, not who is what; so they ask by these few words.
"""

from typing import Protocol

from consensus.core.follower import Follower
from consensus.core.model import Milliseconds, ServerId, Term
from consensus.core.replication.port import Replication


class Roles(Protocol):
    """The replica's roles as this module sees them: who is what, and the transitions that it may ask for."""

    @property
    def strategy(self) -> Replication | None:
        """The leader's strategy, if this replica leads."""

    @property
    def follower(self) -> Follower | None:
        """The role of follower, if this replica has it."""

    @property
    def leader(self) -> ServerId | None:
        """Who leads this term, as far as is known."""

    def keeps_its_leader(self, claimant: ServerId, term: Term) -> bool:
        """Whether `claimant` speaks as the leader of a later term from outside the group while ours is heard."""

    def check_term(self, term: Term, *, of_a_leader: bool = False) -> bool:
        """Adopt a higher term and become a follower; returns False if the term is still beyond ours."""

    def follow(self, leader: ServerId) -> None:
        """Be a follower of the leader of our term, who has just spoken to us."""

    def follow_hearsay(self, leader: ServerId) -> None:
        """Be a follower of the leader of our term, of whom somebody else has told us."""

    def campaign_at(self, deadline: Milliseconds) -> None:
        """The leader resigned: be a follower of nobody, and campaign then, or now if that has come."""
