"""This node's claim about itself: its description and the incarnation that it may raise.

Only a node itself raises its number: to refute a suspicion, or to announce new metadata. Hearing a higher generation of
itself means that its own record of restarts is older than what the group remembers (a restored backup, a lost disk): it
takes the next generation, or its words would never win again.
"""

from dataclasses import replace
from typing import Final

from gossip.core.member import METADATA_LIMIT_BYTES, Incarnation, NodeId, NodeInfo
from gossip.core.token_bucket import TokenBucket

INCARNATION_LIMIT: Final = 1 << 53
"""Generations and numbers from here on are refused: at the end of the scale nobody could refute any more."""

GENERATION_STEP_LIMIT: Final = 1 << 24
"""Nobody restarts so often unheard: an unsigned claim further ahead of what its subject signed is a lie. Taken for
true, its subject would keep it for good, and two such lies would use up the generations of that node."""


def is_sound(incarnation: Incarnation) -> bool:
    """Whether an incarnation leaves room to be refuted."""
    return 0 <= incarnation.generation < INCARNATION_LIMIT and 0 <= incarnation.number < INCARNATION_LIMIT


def is_credible(claimed: Incarnation, signed: Incarnation) -> bool:
    """Whether an unsigned claim about a member may be true, given what the member itself said last."""
    return is_sound(claimed) and claimed.generation <= signed.generation + GENERATION_STEP_LIMIT


def is_plausible(info: NodeInfo) -> bool:
    """Whether a description keeps its limits (the wire floor checks the same; a core trusts no caller with memory)."""
    return is_sound(info.incarnation) and info.capacity >= 1 and len(info.metadata) <= METADATA_LIMIT_BYTES


class LocalNode:
    """The node's own description. Never suspect, never dead; `leaving` is final."""

    def __init__(self, info: NodeInfo, refutations_per_second: int) -> None:
        self.info = replace(info, credential=b"")
        self.leaving = False
        self.refutations = TokenBucket(refutations_per_second, 2 * refutations_per_second)

    @property
    def node_id(self) -> NodeId:
        """This node's id."""
        return self.info.node_id

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation of its present claim."""
        return self.info.incarnation

    def raise_above(self, claim: Incarnation) -> None:
        """Say it again, above what somebody claims within this life."""
        number = max(self.incarnation.number, claim.number) + 1
        self.info = replace(self.info, incarnation=Incarnation(self.incarnation.generation, number))

    def adopt(self, generation: int) -> None:
        """Begin a later life."""
        self.info = replace(self.info, incarnation=Incarnation(generation, 0))

    def say(self, metadata: bytes) -> None:
        """Announce new metadata under a new number."""
        self.info = replace(self.info, metadata=metadata, incarnation=self.incarnation.raised())
