"""Who a member is and how it stands. Which of two claims about it wins is in `precedence`.

A node is named by its `NodeId`; each of its lives has a `generation` (a persisted restart counter) and within a life it
raises `number` to refute suspicion or to announce new metadata. The pair is its `Incarnation`.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", bytes)
"""First 8 bytes of the SHA-256 of a node's identity key."""

NODE_ID_BYTES = 8
METADATA_LIMIT_BYTES = 512
CREDENTIAL_LIMIT_BYTES = 128


class Status(IntEnum):
    """How a member stands; the numeric order is the precedence at equal incarnation."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Incarnation(NamedTuple):
    """A member's life (`generation`) and the claims it made within that life (`number`).

    A tuple, since three of them are compared with every datagram, which tuples do without running a line of Python.
    """

    generation: int
    number: int

    def raised(self) -> "Incarnation":
        """The next claim of the same life."""
        return Incarnation(self.generation, self.number + 1)


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A UDP endpoint: numeric host and port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node says about itself, signed as a whole.

    `capacity` is the number of peers that it is willing to probe. `metadata` is opaque to gossip (at most 512 bytes).
    `credential` is what the wire floor made to prove that the node itself said so (identity key and signature); the
    core passes it on unchanged and never looks inside. It is empty for the node's own description until the wire signs.
    """

    node_id: NodeId
    address: Address
    incarnation: Incarnation
    capacity: int
    metadata: bytes = b""
    credential: bytes = b""

    def __hash__(self) -> int:
        """A signature stands for all that it covers, and infos are looked up with every datagram."""
        return hash(self.credential or self.node_id)
