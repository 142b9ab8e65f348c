"""Majorities: the result of a vote and the index held by a majority. Pure functions over sets of voters.

There is one set, or two in joint consensus, and a decision needs a majority in each (Raft section 6). A majority of
their union is not enough. The union of five new and three different old servers has a majority without any old server,
and the old servers could decide differently. Only voters count: replies of other servers never affect the result.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from consensus.core.model import ServerId


class VoteResult(Enum):
    """State of a vote: won, lost or open."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority(voters: Collection[ServerId]) -> int:
    """Return the least number of voters such that any two sets of this size have a common voter."""
    return len(voters) // 2 + 1


def tally(votes: Mapping[ServerId, bool], majorities: Collection[Collection[ServerId]]) -> VoteResult:
    """Return won if a majority of each set granted, and lost if a majority of some set can no longer grant."""
    verdicts = {_tally_one(votes, voters) for voters in majorities}
    if VoteResult.LOST in verdicts:
        return VoteResult.LOST
    return VoteResult.WON if verdicts == {VoteResult.WON} else VoteResult.OPEN


def value_of_majorities(values: Mapping[ServerId, int], majorities: Collection[Collection[ServerId]]) -> int:
    """Return the greatest value that a majority of every set has reached; a voter without a value counts as 0.

    With match indexes this is the index stored on a majority; with times of contact, the last contact of a majority.
    """
    return min([_value_of_majority(values, voters) for voters in majorities])


def _tally_one(votes: Mapping[ServerId, bool], voters: Collection[ServerId]) -> VoteResult:
    granted = sum(votes.get(voter) is True for voter in voters)
    denied = sum(votes.get(voter) is False for voter in voters)
    if voters and granted >= majority(voters):
        return VoteResult.WON
    if denied > len(voters) - majority(voters):
        return VoteResult.LOST
    return VoteResult.OPEN


def _value_of_majority(values: Mapping[ServerId, int], voters: Collection[ServerId]) -> int:
    ordered = sorted([values.get(voter, 0) for voter in voters])
    return ordered[len(ordered) - majority(voters)]
