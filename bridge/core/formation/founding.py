"""The values of formation: promise, founding, a node's durable state and its notice to others.

    proposal      a set of founders that a node would promise; not durable, changes as discovery continues
    promise       the one set of exactly `expect` founders that a node promises; durable before it is announced
    endorsement   the one founding whose complete promises a node has seen; durable before it is announced
    founding      a first configuration, made only of the promises of *all* founders

A promise carries the founder's clock and a nonce. A node chooses both for its first promise, and uses them again after
a withdrawal. So the same set of founders always results in the same cluster id. With a new nonce in each promise, two
founders of one set could see different promises, and create two clusters.

A founding certifies itself: it carries clock and nonce of each founder's promise, and its cluster id is their hash. So
a founding cannot claim another cluster id. A node that knows its farm's cluster id recognizes the founding from any
sender.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

NODE_ID_BYTES = 8
PUBLIC_KEY_BYTES = 32
"""The length of an Ed25519 public key in bytes, as in gossip."""
CLUSTER_ID_BYTES = 16
NONCE_BYTES = 16
CLOCK_LIMIT_MS = 2**48
"""Clocks of promises lie below this: they are hashed as six bytes and become log time."""
EXPECT_MAX = 9
"""More founders would not fit into a member's metadata of 512 bytes, which also has other contents."""
WITHDRAWALS_MAX = 8
_CLOCK_BYTES = 6
FOUNDER_BYTES = NODE_ID_BYTES + _CLOCK_BYTES + NONCE_BYTES
"""Bytes of a founder's promise in a founding's packed form."""
_DOMAIN = b"garlicfarm formation 2"

Founders = tuple[bytes, ...]
"""NodeIds in ascending order, each once."""


class Promise(Struct, frozen=True):
    """A founder's promise to start with exactly these founders or not at all."""

    founders: Founders
    clock_ms: int
    nonce: bytes


class Founder(Struct, frozen=True):
    """The part of a promise that goes into the founding; the set of founders is the same in all promises."""

    node_id: bytes
    clock_ms: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Founding:
    """A first configuration: founder number k (from 1, in order of NodeId) has the Raft id k.

    `promised` are the founders in order of NodeId; all else follows from them. The constructor raises ValueError if
    they are not a founding.
    """

    promised: tuple[Founder, ...]
    founders: Founders = field(init=False, compare=False)
    cluster_id: bytes = field(init=False, compare=False)
    log_time_base_ms: int = field(init=False, compare=False)
    """Log time of the empty log: the median of the founders' clocks, the lower one of two."""

    def __post_init__(self) -> None:
        founders = tuple(each.node_id for each in self.promised)
        if not 1 <= len(founders) <= EXPECT_MAX or not is_set_of_founders(founders, len(founders)):
            raise ValueError(f"a founding has 1 to {EXPECT_MAX} founders in ascending order, each once")
        if any(len(each.node_id) != NODE_ID_BYTES or len(each.nonce) != NONCE_BYTES for each in self.promised):
            raise ValueError(f"a founder has {NODE_ID_BYTES} bytes of NodeId and {NONCE_BYTES} bytes of nonce")
        if not all(0 <= each.clock_ms < CLOCK_LIMIT_MS for each in self.promised):
            raise ValueError(f"a founder's clock is from 0 to {CLOCK_LIMIT_MS - 1} ms")
        clocks_ms = sorted(each.clock_ms for each in self.promised)
        object.__setattr__(self, "founders", founders)
        object.__setattr__(self, "cluster_id", hashlib.sha256(_DOMAIN + self.packed).digest()[:CLUSTER_ID_BYTES])
        object.__setattr__(self, "log_time_base_ms", clocks_ms[(len(clocks_ms) - 1) // 2])

    @property
    def packed(self) -> bytes:
        """The promises as bytes, `FOUNDER_BYTES` each: NodeId, clock (big-endian), nonce."""
        return b"".join(
            each.node_id + each.clock_ms.to_bytes(_CLOCK_BYTES, "big") + each.nonce for each in self.promised
        )

    def raft_id(self, node_id: bytes) -> int:
        """Return the permanent Raft id of a founder; raise ValueError for another node."""
        return self.founders.index(node_id) + 1

    def rests_on(self, node_id: bytes, promise: Promise) -> bool:
        """Return True if the founding contains exactly this promise of that node."""
        return promise.founders == self.founders and Founder(node_id, promise.clock_ms, promise.nonce) in self.promised


def unpacked(packed: bytes) -> Founding:
    """Return the founding of these bytes; raise ValueError if they are not one."""
    if len(packed) % FOUNDER_BYTES or not 1 <= len(packed) // FOUNDER_BYTES <= EXPECT_MAX:
        raise ValueError(f"a founding has 1 to {EXPECT_MAX} times {FOUNDER_BYTES} bytes, not {len(packed)}")
    clock_ends = NODE_ID_BYTES + _CLOCK_BYTES
    parts = (packed[start : start + FOUNDER_BYTES] for start in range(0, len(packed), FOUNDER_BYTES))
    return Founding(
        tuple(
            Founder(each[:NODE_ID_BYTES], int.from_bytes(each[NODE_ID_BYTES:clock_ends], "big"), each[clock_ends:])
            for each in parts
        )
    )


class FormationNotice(Struct, frozen=True):
    """A node's statement about formation in its signed gossip metadata; at most one of the first three is present.

    `founding` is the farm that a founder has created, or the cluster that an observer knows. Without `founding`,
    `endorsement` is the cluster id of the founding that this node endorsed, empty if none.
    """

    proposal: Founders = ()
    promise: Promise | None = None
    founding: Founding | None = None
    endorsement: bytes = b""

    @property
    def backs(self) -> Founders:
        """The set that this node proposes or has promised, empty if none."""
        return self.promise.founders if self.promise is not None else self.proposal

    def endorses(self, founding: Founding) -> bool:
        """Return True if this node has seen exactly the promises of this founding, or belongs to it."""
        return self.founding == founding if self.founding is not None else self.endorsement == founding.cluster_id


class FormationState(Struct, frozen=True):
    """The durable state of formation; it belongs to one identity key.

    `founding` is the farm that this node created, `known` a cluster that others created. `withdrawn` are its withdrawn
    promises: if the other founders complete such a set, this node still belongs to it. `confirmed` is the cluster id
    that an operator confirmed on this node. `endorsed` is the founding that this node, founder or not, accepted after
    it had seen all promises in it. An operator withdrew the endorsements in `revoked`.
    """

    promise: Promise | None = None
    founding: Founding | None = None
    known: Founding | None = None
    withdrawn: tuple[Promise, ...] = ()
    confirmed: bytes | None = None
    endorsed: Founding | None = None
    revoked: tuple[Founding, ...] = ()


def is_set_of_founders(founders: Founders, expect: int) -> bool:
    """Return True if `founders` is a set of exactly `expect` NodeIds in ascending order."""
    return len(founders) == expect and all(left < right for left, right in itertools.pairwise(founders))


def founding_of(promises: Mapping[bytes, Promise]) -> Founding:
    """Return the founding of these promises: the same at every founder, in any order of arrival."""
    return Founding(tuple(Founder(each, promises[each].clock_ms, promises[each].nonce) for each in sorted(promises)))
