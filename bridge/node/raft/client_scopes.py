"""What clients of an endpoint may have committed, by the entry that they submit.

    submit       entries of applications, and entries that carry a proof of their own
    weights      the pipeline's factors │ they act on the farm: this node signs them, as it does for an operator
    operator     everything else that acts on the farm and that `garlicfarm submit` takes

A scope permits its own kind of entry and no other, like the scopes of client keys (`bridge.core.membership.authors`).
The endpoints know their clients by keys, passwords or certificates; this node vouches for them.

A module of its own, because the endpoints for ØMQ and for Kafka do not know each other.
"""

from collections.abc import Sequence
from enum import Enum

from bridge.core.log.records import Factors, Foreign
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import ends_like_proof


class CommitScope(Enum):
    """What a client of an endpoint may have committed."""

    SUBMIT = "submit"
    WEIGHTS = "weights"
    OPERATOR = "operator"


def needed_scope(entry: bytes) -> CommitScope:
    """The scope for an entry that a client submits."""
    if ends_like_proof(entry):
        return CommitScope.SUBMIT  # the farm judges it by the author that the proof names
    match decode(entry):
        case Foreign():
            return CommitScope.SUBMIT
        case Factors():
            return CommitScope.WEIGHTS
        case _:
            return CommitScope.OPERATOR


def scopes_in(words: Sequence[str]) -> frozenset[CommitScope]:
    """The scopes that a line of an endpoint's file names; raises `ValueError` with the word that is none."""
    known = [each.value for each in CommitScope]
    unknown = next((each for each in words if each not in known), None)
    if unknown is not None:
        raise ValueError(f"no scope {unknown[:20]!r}; there are {', '.join(known)}")
    return frozenset(map(CommitScope, words))
