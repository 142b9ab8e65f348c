"""Permissions of endpoint clients, by the entry that they submit.

    submit       entries of applications, and entries with their own proof
    weights      the pipeline's factors │ they act on the farm: this node signs them, as it does for an operator
    operator     all other entries that act on the farm and that `garlicfarm submit` accepts

A scope permits only its own kind of entry, like the scopes of client keys (`bridge.core.membership.authors`). Endpoints
identify their clients by keys, passwords or certificates; this node vouches for them.

The endpoints for ØMQ and Kafka both import this module, because they do not import each other.
"""

from collections.abc import Sequence
from enum import Enum

from bridge.core.log.records import Factors, Foreign
from bridge.wire.log.entries import decode
from bridge.wire.log.proof import ends_like_proof


class CommitScope(Enum):
    """A permission of an endpoint client."""

    SUBMIT = "submit"
    WEIGHTS = "weights"
    OPERATOR = "operator"


def needed_scope(entry: bytes) -> CommitScope:
    """Return the scope that a client needs to submit the entry."""
    if ends_like_proof(entry):
        return CommitScope.SUBMIT  # the farm checks it by the author in its own proof
    match decode(entry):
        case Foreign():
            return CommitScope.SUBMIT
        case Factors():
            return CommitScope.WEIGHTS
        case _:
            return CommitScope.OPERATOR


def scopes_in(words: Sequence[str]) -> frozenset[CommitScope]:
    """Return the scopes in a line of an endpoint's file; raise `ValueError` with the first unknown word."""
    known = [each.value for each in CommitScope]
    unknown = next((each for each in words if each not in known), None)
    if unknown is not None:
        raise ValueError(f"no scope {unknown[:20]!r}; there are {', '.join(known)}")
    return frozenset(map(CommitScope, words))
