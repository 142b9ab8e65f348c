"""Majorities: who has won a vote, and which index a majority holds. Pure functions over the set of voters.

Only voters count: an answer from anybody else is never seen by these functions' results.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from consensus.core.position import ServerId


class Verdict(Enum):
    """How a vote stands."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority(voters: Collection[ServerId]) -> int:
    """The number of voters that any two majorities share at least one of."""
    return len(voters) // 2 + 1


def tally(votes: Mapping[ServerId, bool], voters: Collection[ServerId]) -> Verdict:
    """Won when a majority granted; lost when so many denied that no majority can grant any more."""
    granted = sum(votes.get(voter) is True for voter in voters)
    denied = sum(votes.get(voter) is False for voter in voters)
    if voters and granted >= majority(voters):
        return Verdict.WON
    if denied > len(voters) - majority(voters):
        return Verdict.LOST
    return Verdict.OPEN


def held_by_majority(values: Mapping[ServerId, int], voters: Collection[ServerId]) -> int:
    """The greatest value that a majority of the voters has reached; a voter without a value counts as 0.

    With match indexes this is the index stored on a majority; with times of contact, when a majority was last heard.
    """
    ordered = sorted((values.get(voter, 0) for voter in voters), reverse=True)
    return ordered[majority(voters) - 1]
