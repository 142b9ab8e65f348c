"""Which of two claims about a member wins: the whole rule as one table, and as one for claims about this node itself.

A claim is an incarnation and a status. Rows are what is claimed, columns what is known, the three places of a cell are
for a claim whose incarnation is older than, equal to and newer than the known one:

    .  nothing happens     +  the claim replaces what is known     c  it confirms the suspicion that runs

It is one total order, (incarnation, status) with left > dead > suspect > alive, so all nodes that heard the same claims
end with the same one, whatever order they came in. SWIM's own rule (a death is final) has no such table to fill in, but
a healed partition could never come back together: each half has declared the other dead for good.

About itself a node alone knows the truth. It answers (`!`) a claim that would win at others with a higher incarnation.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from gossip.core.member import Incarnation, Status

ALIVE, SUSPECT, DEAD, LEFT = Status


class Outcome(Enum):
    """What a claim does to the one who hears it."""

    NOTHING = "."
    REPLACES = "+"
    CONFIRMS = "c"
    REFUTED = "!"


_ABOUT_OTHERS: Final[Mapping[Status, tuple[str, str, str, str]]] = {
    #         known:  alive  suspect  dead   left
    ALIVE:  (          "..+", "..+",  "..+", "..+"),
    SUSPECT: (         ".++", ".c+",  "..+", "..+"),
    DEAD:   (          ".++", ".++",  "..+", "..+"),
    LEFT:   (          ".++", ".++",  ".++", "..+"),
}  # fmt: skip

_ABOUT_SELF: Final[Mapping[Status, str]] = {
    ALIVE:   "..!",
    SUSPECT: ".!!",
    DEAD:    ".!!",
    LEFT:    ".!!",
}  # fmt: skip

_Cell = tuple[Outcome, Outcome, Outcome]


def _cell(places: str) -> _Cell:
    older, equal, newer = (Outcome(place) for place in places)
    return older, equal, newer


ABOUT_OTHERS: Final = tuple(tuple(_cell(places) for places in _ABOUT_OTHERS[claimed]) for claimed in Status)
ABOUT_SELF: Final = tuple(_cell(_ABOUT_SELF[claimed]) for claimed in Status)


def weigh(claimed: Incarnation, status: Status, known: Incarnation, known_status: Status) -> Outcome:
    """What a claim about another member does."""
    return ABOUT_OTHERS[status][known_status][_age(claimed, known)]


def weigh_own(claimed: Incarnation, status: Status, own: Incarnation) -> Outcome:
    """What a claim about this node itself does."""
    return ABOUT_SELF[status][_age(claimed, own)]


def _age(claimed: Incarnation, known: Incarnation) -> int:
    """Older 0, equal 1, newer 2."""
    if claimed == known:
        return 1
    return 2 if claimed > known else 0
