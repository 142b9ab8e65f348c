"""The nouns of formation: a promise, a founding, what a node remembers of them and what it tells others.

    proposal    a set of founders that a node would promise; volatile, changes as discovery goes on
    promise     the one set of exactly `expect` founders that a node stands by; durable before anyone hears of it
    founding    a first configuration: made of the promises of *all* founders, and of nothing else

A promise carries the founder's clock and a nonce, both minted once with the storage and kept even over a withdrawal.
So the same set always derives the same cluster id, no matter whose copy of which promise a founder happened to hold;
a nonce per promise would let two founders of one set found two clusters.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

NODE_ID_BYTES = 8
CLUSTER_ID_BYTES = 16
NONCE_BYTES = 16
CLOCK_LIMIT_MS = 2**48
"""Clocks of promises lie below this: they are hashed as eight bytes and become log time."""
EXPECT_MAX = 9
"""More founders would not fit into the 512 bytes of a member's metadata beside its other facts."""
WITHDRAWALS_MAX = 8

Founders = tuple[bytes, ...]
"""NodeIds in ascending order, each once."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A founder's word: it starts with exactly these founders or with nobody."""

    founders: Founders
    clock_ms: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Founding:
    """A first configuration: founder number k (from 1, in order of NodeId) has the Raft id k."""

    cluster_id: bytes
    founders: Founders
    log_time_base_ms: int

    def raft_id(self, node_id: bytes) -> int:
        """The Raft id that a founder has for ever; ValueError for a node that is no founder."""
        return self.founders.index(node_id) + 1


@dataclass(frozen=True, slots=True)
class FormationNotice:
    """What a node says of formation in its signed gossip metadata; at most one of the three is present.

    A founder's notice carries `founding` once it has founded; an observer's carries the cluster that it knows.
    """

    proposal: Founders = ()
    promise: Promise | None = None
    founding: Founding | None = None

    @property
    def backs(self) -> Founders:
        """The set that this node proposes or has promised, empty if none."""
        return self.promise.founders if self.promise is not None else self.proposal


@dataclass(frozen=True, slots=True)
class FormationState:
    """What a node must remember about formation; lives and dies with its identity key.

    `founding` is what it founded, `known` a cluster that others founded. `withdrawn` are sets that it once promised:
    should such a set turn out to be founded by the others after all, this node still belongs to it.
    """

    promise: Promise | None = None
    founding: Founding | None = None
    known: Founding | None = None
    withdrawn: tuple[Promise, ...] = ()


def is_set_of_founders(founders: Founders, expect: int) -> bool:
    """Whether `founders` is a set of exactly `expect` NodeIds in ascending order."""
    return len(founders) == expect and all(left < right for left, right in itertools.pairwise(founders))


def found(promises: Mapping[bytes, Promise]) -> Founding:
    """The founding that these promises make: the same at every founder, whatever the order in which it heard them."""
    digest = hashlib.sha256(b"garlicfarm formation 1")
    for node_id in sorted(promises):
        promise = promises[node_id]
        digest.update(node_id + promise.clock_ms.to_bytes(8, "big") + promise.nonce)
    clocks_ms = sorted(promise.clock_ms for promise in promises.values())
    return Founding(
        cluster_id=digest.digest()[:CLUSTER_ID_BYTES],
        founders=tuple(sorted(promises)),
        log_time_base_ms=clocks_ms[(len(clocks_ms) - 1) // 2],
    )
